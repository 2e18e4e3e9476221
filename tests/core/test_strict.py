"""`strict`: in an encrypted room only what its server can neither read, forge nor move decides."""

import pytest

from bridge.core.effects import Conversation, Send
from bridge.core.events import Echoed, Sent, ToolCallChanged
from bridge.core.messages import Confirm, NeedsNumber, NotAnOption, Prompt, Seed, TooLate, WhichPrompt, WrongNumber
from bridge.core.model import CallRef, EventId, Phase, Request, RequestId, Selected
from tests.core.play import ALICE, BOB, MALLORY, ROOM, SESSION, Play, agent, describe


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


def ask_to_confirm(play: Play) -> tuple[Request, EventId]:
    """An allow of something that was not shown whole, and the question that follows it."""
    asked = play.ask(whole=False)
    play.say("#1 1")
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


@pytest.mark.parametrize(
    ("words", "chosen"), [("confirm", "opt-allow"), ("Allow once", "opt-allow"), ("3", "opt-reject")]
)
def test_a_confirmation_with_the_number_confirms_and_a_refusal_refuses(words: str, chosen: str) -> None:
    play = make()
    _, question = ask_to_confirm(play)
    play.say(f"#1 {words}", ALICE, question)
    assert [o for _, o in play.outcomes] == [Selected(chosen)]


def change(play: Play) -> None:
    """The agent now wants something else under the request that waits."""
    changed = ToolCallChanged(
        session_id=SESSION, tool_call_id="call_1", description=describe("rm -rf /"), call=CallRef(1)
    )
    play.step(changed)


@pytest.mark.parametrize("aimed", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_number_that_was_written_under_what_was_asked_before_decides_nothing(aimed: bool, strict: bool) -> None:
    """The number stays when a request is asked anew. Under `strict` nor does it help to have the reply moved."""
    play = make() if strict else Play(agent())
    asked = play.ask()
    play.say("hello", ALICE)
    change(play)
    play.post(asked)
    targets = [play.event_of(asked)] if aimed else []
    play.say("#1 1", ALICE, *targets)
    if aimed and not strict:
        assert not is_pending(play, asked)
        return
    assert is_pending(play, asked)
    assert [type(m) for m in play.told(WhichPrompt)] == [WhichPrompt]
    play.wait(6)
    play.say("#1 1", ALICE, *targets)
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


def test_a_number_held_back_until_a_request_was_asked_anew_decides_nothing() -> None:
    play = make()
    asked = play.ask()
    play.say("hello", ALICE)
    change(play)
    play.post(asked)
    play.wait(3600)
    play.say("#1 1", ALICE)
    assert is_pending(play, asked)


def test_a_reaction_that_the_server_may_have_forged_does_not_say_that_they_saw_it() -> None:
    play = make()
    asked = play.ask()
    play.say("hello", ALICE)
    change(play)
    play.post(asked)
    play.wait(3600)
    play.react(play.event_of(asked), "1", ALICE)
    play.say("#1 1", ALICE)
    assert is_pending(play, asked)
