"""`strict`: in an encrypted room only what its server can neither read, forge nor move decides."""

from dataclasses import replace

import pytest

from bridge.core.changes import StoreRevision
from bridge.core.effects import Conversation, Send
from bridge.core.events import Echoed, Sent, ToolCallChanged
from bridge.core.messages import (
    Closing,
    Confirm,
    NeedsNumber,
    NotAllowed,
    NotAnOption,
    Prompt,
    Replaced,
    Seed,
    TooLate,
    WhichPrompt,
    WrongNumber,
)
from bridge.core.model import EventId, Option, Phase, Request, RequestId, Selected
from tests.core.play import ALICE, ALLOW, BOB, MALLORY, OPTIONS, ROOM, SESSION, Play, agent, describe


def make(*, encrypted: bool = True, **changes: object) -> Play:
    play = Play(agent(strict=True, **changes))
    if encrypted:
        play.encrypt()
    return play


def is_pending(play: Play, asked: RequestId) -> bool:
    return play.request(asked).phase is Phase.PENDING


@pytest.mark.parametrize("text", ["#1 1", "#1 Allow once", "#1 opt-allow"])
@pytest.mark.parametrize("aimed", [True, False])
def test_the_number_in_front_answers_as_a_reply_or_not(text: str, aimed: bool) -> None:
    play = make()
    asked = play.ask()
    play.say(text, ALICE, *([play.event_of(asked)] if aimed else []))
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


def test_a_number_in_front_in_a_thread_answers() -> None:
    play = make()
    asked = play.ask()
    play.say("#1 3", ALICE, play.event_of(asked), in_thread=True)
    assert not is_pending(play, asked)


@pytest.mark.parametrize("text", ["1", "Allow once", "opt-allow", "1. Allow once"])
@pytest.mark.parametrize("aimed", [True, False])
def test_without_the_number_nothing_counts_and_that_is_said(text: str, aimed: bool) -> None:
    play = make()
    asked = play.ask()
    play.say(text, ALICE, *([play.event_of(asked)] if aimed else []))
    assert play.told() == [NeedsNumber(play.request(asked), ALICE, EventId("$e1"))]
    assert is_pending(play, asked)


def test_a_reply_that_was_moved_to_another_prompt_decides_neither() -> None:
    play = make()
    first, second = play.ask(), play.ask()
    play.reply(second, "1")
    assert [type(m) for m in play.told()] == [NeedsNumber]
    play.reply(second, "#1 1")
    assert play.told() == [WrongNumber(play.request(second), 1, EventId("$e2"))]
    assert is_pending(play, first)
    assert is_pending(play, second)


def test_bare_text_where_several_wait_hears_which() -> None:
    play = make()
    play.ask()
    play.ask()
    play.say("1")
    assert [type(m) for m in play.told()] == [WhichPrompt]


def test_a_number_that_names_no_option_gets_the_list() -> None:
    play = make()
    asked = play.ask()
    play.say("#1 9")
    assert play.told() == [NotAnOption(play.request(asked), EventId("$e1"))]


def test_reactions_count_for_nothing_in_silence_and_none_are_offered() -> None:
    play = make(reactions=True)
    asked = play.ask()
    assert play.told(Seed) == []
    for person in (ALICE, MALLORY):
        play.react(play.event_of(asked), "1", person)
        assert play.told() == []
    assert is_pending(play, asked)


def test_in_a_room_that_is_not_encrypted_strict_changes_nothing() -> None:
    play = make(encrypted=False, reactions=True)
    asked = play.ask()
    assert len(play.told(Seed)) == 3
    play.react(play.event_of(asked), "1")
    assert not is_pending(play, asked)


def test_the_prompt_says_that_it_is_strict() -> None:
    play = make()
    play.ask()
    (prompt,) = [m for m in play.told(Prompt) if isinstance(m, Prompt)]
    assert prompt.request.strict


def test_encryption_that_is_switched_on_while_a_prompt_waits_counts_for_it_too() -> None:
    play = make(encrypted=False, reactions=True)
    asked = play.ask()
    play.encrypt()
    play.react(play.event_of(asked), "1")
    play.reply(asked, "1")
    assert is_pending(play, asked)
    play.say("#1 1")
    assert not is_pending(play, asked)


def test_encryption_that_is_switched_on_makes_no_other_agent_strict() -> None:
    play = Play()
    asked = play.ask()
    play.encrypt()
    play.reply(asked, "1")
    assert not is_pending(play, asked)


def test_a_late_answer_is_told_how_it_ended_with_or_without_the_number() -> None:
    play = make()
    asked = play.ask()
    play.say("#1 3", BOB)
    play.deliver(asked)
    play.reply(asked, "1")
    assert [type(m) for m in play.told()] == [TooLate]


def test_words_for_the_agent_need_no_number() -> None:
    play = make()
    play.ask()
    play.say("write the tests")
    assert len(play.did(Conversation)) == 1


def ask_to_confirm(play: Play, text: str = "#1 1", *options: Option) -> tuple[Request, EventId]:
    """An allow of something that was not shown whole, and the question that follows it."""
    asked = play.ask(whole=False, options=options or OPTIONS)
    play.say(text)
    (send,) = [e for e in play.effects if isinstance(e, Send) and isinstance(e.message, Confirm)]
    assert send.transaction_id is not None
    play.step(Sent(transaction_id=send.transaction_id, event_id=EventId("$question")))
    play.step(Echoed(room=ROOM, event_id=EventId("$question"), transaction_id=send.transaction_id))
    return play.request(asked), EventId("$question")


@pytest.mark.parametrize("words", ["confirm", "Allow once", "3"])
def test_a_confirmation_needs_the_number_too(words: str) -> None:
    play = make()
    request, question = ask_to_confirm(play)
    play.say(words, ALICE, question)
    assert play.told() == [NeedsNumber(request, ALICE, EventId("$e2"))]
    assert play.outcomes == []


@pytest.mark.parametrize(("words", "chosen"), [("confirm", "opt-allow"), ("3", "opt-reject")])
def test_a_confirmation_with_the_number_confirms_and_a_refusal_refuses(words: str, chosen: str) -> None:
    play = make()
    _, question = ask_to_confirm(play)
    play.say(f"#1 {words}", ALICE, question)
    assert [o for _, o in play.outcomes] == [Selected(chosen)]


def test_an_option_chosen_twice_is_no_confirmation_whatever_it_is_said_to_reply_to() -> None:
    play = make()
    request, question = ask_to_confirm(play, "#1 Allow once")
    play.say("#1 Allow once", ALICE, question)
    assert play.told() == [Confirm(request, ALLOW, ALICE, EventId("$e2"))]
    assert play.outcomes == []


def test_an_option_that_is_called_confirm_is_confirmed_by_no_choice_of_it() -> None:
    play = make()
    _, question = ask_to_confirm(play, "#1 confirm", replace(ALLOW, name="Confirm", label="Confirm", line="Confirm"))
    play.say("#1 confirm", ALICE, question)
    assert [type(m) for m in play.told()] == [Confirm]
    assert play.outcomes == []


def test_an_option_that_is_called_confirm_is_confirmed_by_the_doubled_word() -> None:
    play = make()
    _, question = ask_to_confirm(play, "#1 confirm", replace(ALLOW, name="Confirm", label="Confirm", line="Confirm"))
    play.say("#1 confirm confirm", ALICE, question)
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


# --------------------------------------------------------------------------------- what the agent changes while it waits


def change(play: Play, asked: RequestId, command: str = "rm -rf /") -> None:
    request = play.request(asked)
    changed = describe(command=command)
    play.step(
        ToolCallChanged(session_id=SESSION, tool_call_id="call_1", description=changed, call=play.request(asked).call)
    )
    assert play.request(asked).revision == request.revision + 1


def test_what_the_agent_changed_waits_under_a_number_of_its_own() -> None:
    play = make()
    asked, other = play.ask(), play.ask()
    change(play, asked)
    assert play.request(asked).number == 3
    assert dict(play.state.rooms[ROOM].waiting) == {2: other, 3: asked}
    assert play.state.rooms[ROOM].next_number == 4
    assert [e.request.number for e in play.effects if isinstance(e, StoreRevision)] == [3]


def test_an_answer_that_the_server_kept_back_until_the_request_had_changed_does_not_count_for_the_new_one() -> None:
    play = make()
    asked = play.ask()
    change(play, asked)
    new = play.post(asked)
    for targets in ([], [new]):
        play.say("#1 1", ALICE, *targets)
    assert is_pending(play, asked)
    play.say("#2 1")
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


def test_who_answers_under_the_old_number_is_told_once_to_answer_the_newer_message() -> None:
    play = make()
    asked = play.ask()
    old = play.event_of(asked)
    change(play, asked)
    play.post(asked)
    play.say("#1 1")
    assert play.told() == [TooLate(play.request(asked), ALICE, EventId("$e1"))]
    play.say("#1 1", ALICE, old)
    assert play.told() == []
    play.say("#1 1", BOB, old)
    assert play.told() == [TooLate(play.request(asked), BOB, EventId("$e3"))]


def test_a_reply_to_the_newer_message_with_the_old_number_is_told_that_they_differ() -> None:
    play = make()
    asked = play.ask()
    change(play, asked)
    play.say("#1 1", ALICE, play.post(asked))
    assert play.told() == [WrongNumber(play.request(asked), 1, EventId("$e1"))]


def test_a_reply_to_the_old_message_with_the_new_number_answers_nothing() -> None:
    play = make()
    asked = play.ask()
    old = play.event_of(asked)
    change(play, asked)
    play.post(asked)
    play.say("#2 1", ALICE, old)
    assert play.told() == [TooLate(play.request(asked), ALICE, EventId("$e1"))]
    assert is_pending(play, asked)


def test_a_stranger_who_writes_the_old_number_hears_only_that_they_may_not_answer() -> None:
    play = make()
    asked = play.ask()
    change(play, asked)
    play.say("#1 1", MALLORY)
    assert [type(m) for m in play.told()] == [NotAllowed]


def test_the_old_message_is_told_as_replaced_under_its_own_number() -> None:
    play = make()
    asked = play.ask()
    olds = [play.event_of(asked)]
    change(play, asked)
    olds.append(play.post(asked))
    change(play, asked, "ls")
    play.post(asked)
    said = [e.message for e in play.all_effects if isinstance(e, Send) and isinstance(e.message, Replaced)]
    assert [(olds[0], 1, 2), (olds[1], 2, 3)] == [(m.old_event_id, m.old_number, m.request.number) for m in said]


def test_once_it_has_ended_the_old_number_is_told_how() -> None:
    play = make()
    asked = play.ask()
    change(play, asked)
    play.post(asked)
    play.say("#2 3", BOB)
    play.deliver(asked)
    play.say("#1 1")
    assert play.told() == [TooLate(play.request(asked), ALICE, EventId("$e2"))]
    assert len(play.state.rooms[ROOM].waiting) == 0


def test_a_request_that_has_ended_leaves_its_new_number_too() -> None:
    play = make()
    asked = play.ask()
    change(play, asked)
    play.post(asked)
    play.say("#2 1")
    play.deliver(asked)
    assert [m.request.number for m in play.told(Closing) if isinstance(m, Closing)] == [2]
    assert play.request(play.ask()).number == 3


def test_a_question_of_before_the_change_confirms_nothing_under_either_number() -> None:
    play = make()
    request, question = ask_to_confirm(play)
    change(play, request.request_id)
    for number in (1, 2):
        play.say(f"#{number} confirm", ALICE, question)
    assert play.outcomes == []


def test_encryption_that_is_switched_on_gives_a_new_number_to_later_changes_only() -> None:
    play = make(encrypted=False)
    asked = play.ask()
    change(play, asked)
    assert play.request(asked).number == 1
    play.encrypt()
    change(play, asked, "ls")
    assert play.request(asked).number == 2
    play.post(asked)
    play.say("#1 1")
    assert [type(m) for m in play.told()] == [TooLate]


def test_where_nothing_is_strict_a_request_keeps_its_number() -> None:
    play = Play()
    play.encrypt()
    asked = play.ask()
    change(play, asked)
    play.post(asked)
    assert play.request(asked).number == 1
    assert play.state.rooms[ROOM].next_number == 2


@pytest.mark.parametrize("aimed", [True, False])
def test_a_number_that_was_written_under_what_was_asked_before_decides_only_as_a_reply(aimed: bool) -> None:
    """Where nothing is strict the number stays when a request is asked anew."""
    play = Play(agent())
    asked = play.ask()
    play.say("hello", ALICE)
    change(play, asked)
    play.post(asked)
    play.say("#1 1", ALICE, *([play.event_of(asked)] if aimed else []))
    assert aimed == (not is_pending(play, asked))
    if not aimed:
        assert [type(m) for m in play.told(WhichPrompt)] == [WhichPrompt]
        play.wait(6)
        play.say("#1 1", ALICE)
        assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


def test_under_strict_a_reaction_that_the_server_may_have_forged_does_not_say_that_they_saw_it() -> None:
    play = make()
    asked = play.ask()
    play.say("hello", ALICE)
    change(play, asked)
    play.post(asked)
    play.react(play.event_of(asked), "1", ALICE)
    assert ALICE in play.state.rooms[ROOM].unseen
