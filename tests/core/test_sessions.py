"""Sessions: stored once, ended once, and what still comes from one that is being ended."""

from dataclasses import replace

import pytest

from bridge.core import broker
from bridge.core.changes import StoreAsked, StoreEnding, StoreSession, StoreSessionEnd
from bridge.core.effects import Send
from bridge.core.events import AgentGone, SessionDeleted, SessionStarted, ShuttingDown, TurnCancelled, TurnEnded
from bridge.core.model import Cancelled, Ending, Phase, PolicyName, SessionId
from bridge.core.state import begin
from tests.core.play import ALICE, CLAUDE, NOTHING_FOUND, SESSION, Play, agent


def test_a_session_is_stored_before_its_first_request_though_nobody_announced_it() -> None:
    play = Play()
    other = SessionId("acps_ffffffffffffffff")
    play.ask(session_id=other)
    assert [type(e) for e in play.effects[:2]] == [StoreSession, StoreAsked]
    play.step(SessionStarted(agent=CLAUDE, session_id=other))
    assert play.effects == []
    assert play.request(play.ask(session_id=other)).request_seq == 2


def test_a_session_ends_once_though_it_is_deleted_and_its_agent_goes_after_that() -> None:
    play = Play()
    for event in (
        SessionDeleted(session_id=SESSION),
        SessionDeleted(session_id=SESSION),
        AgentGone(agent=CLAUDE, session_id=SESSION),
        AgentGone(agent=CLAUDE, session_id=SESSION),
        AgentGone(agent=CLAUDE, session_id=SessionId("acps_nobody")),
    ):
        play.step(event)
    ends = [e for e in play.all_effects if isinstance(e, StoreSessionEnd)]
    assert ends == [StoreSessionEnd(session_id=SESSION, reason="session_deleted")]


@pytest.mark.parametrize("policy", [PolicyName.ASK, PolicyName.ALLOW_ALL])
@pytest.mark.parametrize(
    ("ender", "ending"),
    [
        (TurnCancelled(session_id=SESSION, by=ALICE), Ending.CANCELLED),
        (SessionDeleted(session_id=SESSION), Ending.SESSION_DELETED),
        (ShuttingDown(), Ending.SHUTDOWN),
    ],
)
def test_a_request_that_crosses_an_ending_is_answered_cancelled_and_never_shown(
    policy: PolicyName, ender: TurnCancelled | SessionDeleted | ShuttingDown, ending: Ending
) -> None:
    play = Play(agent(policy=policy))
    play.step(ender)
    late = play.ask(posted=False)
    assert [o for _, o in play.outcomes] == [Cancelled()]
    assert [e for e in play.effects if isinstance(e, Send)] == []
    play.deliver(late)
    assert StoreEnding(request_id=late, ending=ending, delivered=True) in play.effects


def test_the_next_turn_after_a_cancelled_one_asks_again() -> None:
    play = Play()
    play.step(TurnCancelled(session_id=SESSION, by=ALICE))
    play.step(TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="cancelled"))
    asked = play.ask()
    assert play.request(asked).phase is Phase.PENDING


def test_a_session_that_had_ended_before_the_start_is_not_ended_again() -> None:
    play = Play()
    asked = play.ask()
    play.reply(asked, "3")
    play.deliver(asked)
    other = play.ask()
    play.step(SessionDeleted(session_id=SESSION))
    for closed in ((play.request(asked),), ()):
        found = replace(NOTHING_FOUND, closed=closed, open=(play.request(other),))
        _, effects = broker.recover(begin(play.state.rules, found), found, play.now)
        assert not any(isinstance(e, StoreSessionEnd) for e in effects)
