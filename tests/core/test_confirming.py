"""Rule 10: what was not shown whole is confirmed by a message of its own before an allow counts."""

from dataclasses import replace

import pytest

from bridge.core.effects import Send
from bridge.core.events import Sent, ToolCallChanged
from bridge.core.messages import Confirm, NotAllowed, TooLate
from bridge.core.model import CallRef, Essence, EventId, Selected
from tests.core.play import ALICE, BOB, MALLORY, SESSION, Play, describe

SAME = describe()


def change(play: Play, **essence: object) -> None:
    base = Essence(command="pytest -q", paths=(), diffs=(), url=None)
    new = replace(base, **essence)  # pyright: ignore[reportArgumentType] - tests name the fields they change
    changed = replace(SAME, essence=new)
    play.step(ToolCallChanged(session_id=SESSION, tool_call_id="call_1", description=changed, call=CallRef(1)))


def confirmation_of(play: Play) -> EventId:
    (send,) = [e for e in play.effects if isinstance(e, Send) and isinstance(e.message, Confirm)]
    assert send.transaction_id is not None
    event_id = EventId(f"$confirm/{send.transaction_id}")
    play.step(Sent(transaction_id=send.transaction_id, event_id=event_id))
    return event_id


@pytest.mark.parametrize("words", ["confirm", "Confirm", "Allow once", "allow once"])
def test_an_allow_of_what_was_not_shown_whole_is_confirmed_by_a_reply_of_the_same_person(words: str) -> None:
    play = Play()
    play.ask(whole=False)
    play.say("1")
    assert play.outcomes == []
    question = confirmation_of(play)
    play.say(words, ALICE, question)
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


def test_a_reply_to_the_question_confirms_in_the_thread_of_the_prompt_too() -> None:
    play = Play()
    asked = play.ask(whole=False)
    prompt = play.event_of(asked)
    play.say("1", ALICE, prompt, in_thread=True)
    question = confirmation_of(play)
    play.say("confirm", ALICE, prompt, in_thread=True)
    assert play.outcomes == []
    play.say("confirm", ALICE, prompt, question, in_thread=True)
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


def test_nothing_else_confirms() -> None:
    play = Play()
    play.ask(whole=False)
    play.say("1")
    question = confirmation_of(play)
    for text in ("1", "yes", "Always allow"):
        play.say(text, ALICE, question)
        question = confirmation_of(play)
    play.react(question, "1")
    assert play.effects == []
    play.say("confirm", BOB, question)
    play.say("confirm", MALLORY, question)
    assert len(play.told(NotAllowed)) == 1
    play.say("confirm")
    assert play.outcomes == []


def test_an_older_question_confirms_nothing_any_more() -> None:
    play = Play()
    play.ask(whole=False)
    play.say("1")
    first = confirmation_of(play)
    play.say("2")
    confirmation_of(play)
    play.say("confirm", ALICE, first)
    assert play.outcomes == []
    assert len(play.told(TooLate)) == 1


def test_a_refusal_needs_no_second_step_on_the_prompt_or_under_the_question() -> None:
    play = Play()
    asked = play.ask(whole=False)
    play.say("1")
    play.reply(asked, "3", BOB)
    assert [o for _, o in play.outcomes] == [Selected("opt-reject")]

    play = Play()
    play.ask(whole=False)
    play.say("1")
    play.say("Reject", ALICE, confirmation_of(play))
    assert [o for _, o in play.outcomes] == [Selected("opt-reject")]


def test_a_confirmation_lapses_with_its_request() -> None:
    play = Play()
    asked = play.ask(whole=False)
    play.say("1")
    question = confirmation_of(play)
    play.reply(asked, "3", BOB)
    play.deliver(asked)
    play.say("confirm", ALICE, question)
    assert len(play.told(TooLate)) == 1
    play.say("confirm", MALLORY, question)
    assert [type(m) for m in play.told()] == [NotAllowed]
    assert len(play.outcomes) == 1


def test_two_people_may_each_be_asked_to_confirm() -> None:
    play = Play()
    play.ask(whole=False)
    play.say("1")
    alices = confirmation_of(play)
    play.say("2", BOB)
    bobs = confirmation_of(play)
    play.say("confirm", ALICE, bobs)
    assert play.outcomes == []
    play.say("confirm", ALICE, alices)
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


def test_a_changed_request_forgets_what_was_to_be_confirmed() -> None:
    play = Play()
    asked = play.ask(whole=False)
    play.say("1")
    question = confirmation_of(play)
    change(play, command="rm -rf /")
    play.post(asked, whole=False)
    play.say("confirm", ALICE, question)
    assert play.outcomes == []


def test_a_forgotten_confirmation_leaves_nothing_behind() -> None:
    play = Play()
    asked = play.ask(whole=False)
    play.say("1")
    confirmation_of(play)
    play.say("2", BOB)
    play.reply(asked, "3", BOB)
    play.deliver(asked)
    for _ in range(100):
        other = play.ask()
        play.reply(other, "3")
        play.deliver(other)
    assert not any(shown.request_id == asked for shown in play.state.shown.values())
