"""Every pair of phase and cause: those in the table change the request, all others change nothing."""

from itertools import product

import pytest

from bridge.core import endings
from bridge.core.changes import StoreDecision, StoreEnding
from bridge.core.effects import Log, Respond, Send, Withhold
from bridge.core.endings import TRANSITIONS, Cause
from bridge.core.messages import Closing
from bridge.core.model import Cancelled, Ending, Phase, RequestId, Selected
from bridge.core.state import Step
from tests.core.play import ALICE, ALLOW, Play, agent


def bring_to(play: Play, phase: Phase) -> RequestId:
    asked = play.ask()
    if phase is not Phase.PENDING:
        play.say("1")
    if phase is Phase.ENDED:
        play.deliver(asked)
    return asked


def apply(play: Play, request_id: RequestId, cause: Cause) -> Step:
    work = Step(play.state, play.now)
    entry = play.state.entries[request_id]
    match cause:
        case Cause.ANSWER:
            endings.answer(work, entry, ALLOW, by=ALICE, via=endings.Via.MESSAGE, event_id=None)
        case Cause.EXPIRY:
            endings.run_out(work, entry)
        case Cause.WRITTEN | Cause.NOT_WRITTEN:
            endings.deliver(work, entry, cause)
        case _:
            endings.end(work, entry, cause)
    return work


@pytest.mark.parametrize(("phase", "cause"), list(product(Phase, Cause)))
def test_a_pair_outside_the_table_changes_nothing_and_one_inside_does_what_it_says(phase: Phase, cause: Cause) -> None:
    play = Play()
    asked = bring_to(play, phase)
    work = apply(play, asked, cause)
    expected = TRANSITIONS.get((phase, cause))
    if expected is None:
        assert (work.state, work.effects) == (play.state, [])
    else:
        assert expected is work.state.entries[asked].request.phase


@pytest.mark.parametrize(
    ("cause", "ending"),
    [
        (Cause.CANCEL, Ending.CANCELLED),
        (Cause.WITHDRAW, Ending.WITHDRAWN),
        (Cause.DELETE, Ending.SESSION_DELETED),
        (Cause.SHUTDOWN, Ending.SHUTDOWN),
        (Cause.NO_WAY, Ending.UNDELIVERABLE),
    ],
)
def test_an_ending_without_an_answer_sends_cancelled_and_edits_the_prompt_once_it_was_written(
    cause: Cause, ending: Ending
) -> None:
    play = Play()
    asked = play.ask()
    work = apply(play, asked, cause)
    assert [e.outcome for e in work.effects if isinstance(e, Respond)] == [Cancelled()]
    assert not any(isinstance(e, Send | StoreEnding) for e in work.effects)
    play.state = work.state
    play.deliver(asked)
    assert StoreEnding(request_id=asked, ending=ending, delivered=True) in play.effects
    assert len(play.told(Closing)) == 1


def test_the_decision_is_stored_before_the_harness_is_told() -> None:
    play = Play()
    play.ask()
    play.say("1")
    kinds = [type(e) for e in play.effects]
    assert kinds.index(StoreDecision) < kinds.index(Respond)


def test_an_answer_that_cannot_be_written_ends_as_agent_gone_and_keeps_who_chose_what() -> None:
    play = Play()
    asked = play.ask()
    play.say("1")
    work = apply(play, asked, Cause.NOT_WRITTEN)
    decision = work.state.entries[asked].request.decision
    assert decision is not None
    assert (decision.ending, decision.by, decision.option) == (Ending.AGENT_GONE, ALICE, ALLOW)
    assert not work.state.entries[asked].request.delivered


def test_a_cancel_that_cannot_be_written_still_ends_as_cancelled() -> None:
    play = Play()
    asked = play.ask()
    play.state = apply(play, asked, Cause.CANCEL).state
    work = apply(play, asked, Cause.GONE)
    assert StoreEnding(request_id=asked, ending=Ending.CANCELLED, delivered=False) in work.effects


def test_a_harness_that_is_gone_gets_nothing() -> None:
    play = Play()
    asked = play.ask()
    work = apply(play, asked, Cause.GONE)
    assert not any(isinstance(e, Respond) for e in work.effects)
    assert StoreEnding(request_id=asked, ending=Ending.AGENT_GONE, delivered=False) in work.effects


def test_expiry_takes_the_first_reject_once_and_never_an_allow() -> None:
    play = Play()
    asked = play.ask()
    assert [e.outcome for e in apply(play, asked, Cause.EXPIRY).effects if isinstance(e, Respond)] == [
        Selected("opt-reject")
    ]
    asked = play.ask(options=(ALLOW,))
    assert [e.outcome for e in apply(play, asked, Cause.EXPIRY).effects if isinstance(e, Respond)] == [Cancelled()]


def test_a_prompt_that_has_not_left_is_withheld_and_its_seeds_with_it() -> None:
    play = Play(agent(reactions=True))
    unsent = play.ask(posted=False)
    withheld = [e for e in apply(play, unsent, Cause.CANCEL).effects if isinstance(e, Withhold)]
    assert [play.state.entries[unsent].transaction_id] == [w.transaction_id for w in withheld]
    sent = play.ask()
    withheld = [e for e in apply(play, sent, Cause.CANCEL).effects if isinstance(e, Withhold)]
    assert [w.transaction_id[-7:] for w in withheld] == ["/seed/1", "/seed/2", "/seed/3"]


def test_every_ending_is_logged_without_any_text_of_the_agent() -> None:
    play = Play()
    asked = play.ask()
    (line,) = [e for e in apply(play, asked, Cause.GONE).effects if isinstance(e, Log)]
    assert line.fields == {"request_id": asked, "ending": "agent_gone", "delivered": False}
