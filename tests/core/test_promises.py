"""Rows of the requirements that only several steps together show; each test is named after what people see."""

import itertools

import pytest

from bridge.core.changes import StoreDecision
from bridge.core.effects import Conversation
from bridge.core.events import DeadlineReached, RoomSeen, RoomState, TurnCancelled, TurnEnded, Withdrawn
from bridge.core.messages import Closing, TooLate, WhichPrompt
from bridge.core.model import CallRef, Cancelled, Ending, Meaning, Phase, Reason, Selected
from tests.core.play import ALICE, ALLOW, BOB, CLAUDE, ROOM, SESSION, Play, agent, option


def test_of_fifty_answers_at_once_one_is_taken() -> None:  # AO-14
    play = Play(agent(local_answers="same_user"))
    asked = play.ask()
    for number in range(25):
        play.say("1" if number % 2 else "3", BOB)
        play.reply(asked, "2", ALICE)
    assert len(play.outcomes) == 1
    assert sum(isinstance(e, StoreDecision) for e in play.all_effects) == 1


def test_three_that_wait_are_answered_in_any_order() -> None:  # AC-17
    for order in itertools.permutations(range(3)):
        play = Play()
        asked = [play.ask() for _ in range(3)]
        for place in order:
            play.reply(asked[place], str(place + 1))
        expected = [(CallRef(p + 1), Selected(("opt-allow", "opt-always", "opt-reject")[p])) for p in order]
        assert play.outcomes == expected


def test_after_a_cancelled_turn_an_answer_is_told_how_it_ended() -> None:  # AC-01
    play = Play()
    play.ask()
    play.ask()
    play.step(TurnCancelled(session_id=SESSION, by=BOB))
    assert [o for _, o in play.outcomes] == [Cancelled(), Cancelled()]
    play.say("1")
    assert len(play.told(TooLate)) == 1
    assert len(play.outcomes) == 2


def test_a_withdrawal_of_what_does_not_wait_changes_nothing() -> None:  # AC-02
    play = Play()
    asked = play.ask()
    play.reply(asked, "3")
    assert play.step(Withdrawn(agent=CLAUDE, call=CallRef(1))) == []
    assert play.step(Withdrawn(agent=CLAUDE, call=CallRef(99))) == []


@pytest.mark.parametrize("first", ["answer", "turn end", "deadline"])
def test_answer_and_ending_at_the_same_moment_make_one_response_that_the_room_repeats(first: str) -> None:  # AC-11
    play = Play(agent(expires_after=5_000))
    asked = play.ask()
    acts = {
        "answer": lambda: play.say("1"),
        "turn end": lambda: play.step(TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="cancelled")),
        "deadline": lambda: play.step(DeadlineReached(request_id=asked)),
    }
    if first == "deadline":
        play.wait(5)
    acts.pop(first)()
    for act in acts.values():
        act()
    ((call, outcome),) = play.outcomes
    assert call == CallRef(1)
    play.deliver(asked)
    (closing,) = play.told(Closing)
    assert isinstance(closing, Closing)
    assert closing.request.decision is not None
    assert closing.request.decision.outcome == outcome


def test_a_fallback_to_another_prompt_in_a_thread_means_nothing() -> None:  # MX-13
    play = Play()
    first, second = play.ask(), play.ask()
    play.say("1", ALICE, play.event_of(first), in_thread=True)  # the inbox leaves out what only falls back
    assert [Phase.DECIDED, Phase.PENDING] == [play.request(r).phase for r in (first, second)]


def test_a_prompt_posted_after_another_closed_waits_the_same_few_seconds() -> None:  # MX-12
    play = Play()
    play.reply(play.ask(), "3")
    play.wait(1)
    second = play.ask()
    play.wait(1)
    play.say("1")
    assert len(play.told(WhichPrompt)) == 1
    play.wait(6)
    play.say("1")
    assert play.request(second).phase is Phase.DECIDED


def test_thirty_prompts_take_thirty_answers() -> None:
    play = Play()
    asked = [play.ask() for _ in range(30)]
    for text in ("1", "Allow once", "reject", "#99 1"):
        play.say(text)
        assert len(play.told(WhichPrompt)) == 1
    play.react(play.event_of(asked[7]), "1")
    assert [r for r in asked if play.request(r).phase is not Phase.PENDING] == [asked[7]]


def test_the_same_tool_call_asked_again_needs_a_new_answer() -> None:
    play = Play()
    first = play.ask()
    play.reply(first, "2")
    play.deliver(first)
    again = play.ask()
    assert play.request(again).phase is Phase.PENDING
    assert len(play.outcomes) == 1


def test_expiry_never_takes_an_allow() -> None:  # AC-10
    play = Play(agent(expires_after=30_000))
    asked = play.ask(
        options=(ALLOW, option("b", "Always", Meaning.APPROVE), option("c", "Later", Meaning.CHOOSE, None))
    )
    play.wait(31)
    play.step(DeadlineReached(request_id=asked))
    assert [o for _, o in play.outcomes] == [Cancelled()]
    play.answer_locally(asked, "opt-allow")
    assert [r.reason for r in play.receipts] == [Reason.EXPIRED]


def test_a_room_that_the_bot_must_leave_ends_what_waits_there_and_what_comes_after() -> None:  # SI-03
    play = Play()
    first = play.ask()
    play.step(RoomSeen(room=ROOM, state=RoomState.NOT_JOINED, people=2))
    second = play.ask(posted=False)
    for request_id in (first, second):
        play.deliver(request_id)
        decision = play.request(request_id).decision
        assert decision is not None
        assert (decision.ending, decision.outcome) == (Ending.UNDELIVERABLE, Cancelled())


def test_one_reads_on_while_requests_wait() -> None:  # SI-01
    play = Play()
    first = play.ask()
    play.say("and also update the docs")
    assert play.did(Conversation)
    second = play.ask()
    assert {play.request(first).phase, play.request(second).phase} == {Phase.PENDING}
