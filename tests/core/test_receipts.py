"""Answers over the control socket: the same race, a receipt at the end, and refusals that consume nothing."""

import pytest

from bridge.core.changes import StoreLateAnswer
from bridge.core.effects import Receipt
from bridge.core.errors import InvalidOption, InvalidRevision, LocalAnswersOff, SessionNotFound
from bridge.core.events import DeadlineReached, NotDelivered, Withdrawn
from bridge.core.model import LocalAnswers, Phase, Reason, RequestId, Selected, SessionId, Via
from tests.core.play import BOB, Play, agent


def open_play() -> Play:
    return Play(agent(local_answers=LocalAnswers.SAME_USER))


def test_accepted_means_that_the_harness_has_it() -> None:
    play = open_play()
    asked = play.ask()
    play.answer_locally(asked, "opt-allow")
    assert play.receipts == []
    decision = play.request(asked).decision
    assert decision is not None
    assert (decision.by, decision.via) == ("local:ann", Via.LOCAL)
    play.deliver(asked)
    assert play.receipts == [Receipt(ticket=1)]


def test_an_answer_that_could_not_be_written_was_not_accepted() -> None:
    play = open_play()
    asked = play.ask()
    play.answer_locally(asked, "opt-allow")
    request = play.request(asked)
    play.step(NotDelivered(agent=request.agent, call=request.call))
    assert play.receipts == [Receipt(ticket=1, reason=Reason.ADAPTER_EXITED)]


def test_an_option_that_was_not_offered_lists_those_that_were_and_consumes_nothing() -> None:
    play = open_play()
    asked = play.ask()
    play.answer_locally(asked, "nope")
    (receipt,) = play.receipts
    assert isinstance(receipt.error, InvalidOption)
    assert receipt.error.offered == ("opt-allow", "opt-always", "opt-reject")
    play.answer_locally(asked, "opt-reject")
    assert [o for _, o in play.outcomes] == [Selected("opt-reject")]


def test_a_session_nobody_knows_and_a_request_of_another_session() -> None:
    play = open_play()
    asked = play.ask()
    play.answer_locally(asked, "opt-reject", session_id=SessionId("acps_no"))
    assert isinstance(play.receipts[0].error, SessionNotFound)
    other = play.ask(session_id=SessionId("acps_2"))
    play.answer_locally(other, "opt-reject")
    assert play.receipts == [Receipt(ticket=1, reason=Reason.REQUEST_NOT_FOUND)]
    play.answer_locally(RequestId("acps_2:77"), "opt-reject")
    assert play.receipts == [Receipt(ticket=1, reason=Reason.REQUEST_NOT_FOUND)]
    assert play.outcomes == []


def test_another_revision_than_the_current_consumes_nothing() -> None:
    play = open_play()
    asked = play.ask()
    play.answer_locally(asked, "opt-reject", revision=2)
    assert isinstance(play.receipts[0].error, InvalidRevision)
    play.answer_locally(asked, "opt-reject", revision=1)
    assert play.request(asked).phase is Phase.DECIDED


def test_a_late_answer_is_told_why_and_is_on_record_even_with_an_option_that_was_not_offered() -> None:
    play = open_play()
    asked = play.ask()
    play.say("3", BOB)
    for choice in ("opt-allow", "nope"):
        play.answer_locally(asked, choice)
        assert play.receipts == [Receipt(ticket=1, reason=Reason.ALREADY_RESOLVED)]
        assert len(play.did(StoreLateAnswer)) == 1


def test_a_withdrawn_request_says_prompt_cancelled() -> None:
    play = open_play()
    asked = play.ask()
    request = play.request(asked)
    play.step(Withdrawn(agent=request.agent, call=request.call))
    play.answer_locally(asked, "opt-allow")
    assert play.receipts == [Receipt(ticket=1, reason=Reason.PROMPT_CANCELLED)]


def test_an_answer_at_the_instant_of_expiry_is_late() -> None:
    play = Play(agent(local_answers=LocalAnswers.SAME_USER, expires_after=1_000))
    asked = play.ask()
    play.wait(1)
    play.answer_locally(asked, "opt-allow")
    assert play.receipts == [Receipt(ticket=1, reason=Reason.EXPIRED)]
    assert [o for _, o in play.outcomes] == [Selected("opt-reject")]
    assert play.step(DeadlineReached(request_id=asked)) == []


@pytest.mark.parametrize(
    ("rule", "trusted", "allowed"),
    [
        (LocalAnswers.OFF, True, False),
        (LocalAnswers.OFF, False, False),
        (LocalAnswers.OTHER_USERS, True, True),
        (LocalAnswers.OTHER_USERS, False, False),
        (LocalAnswers.SAME_USER, False, True),
    ],
)
def test_an_allow_over_the_socket_needs_the_config_and_a_user_that_no_harness_runs_as(
    rule: LocalAnswers, trusted: bool, allowed: bool
) -> None:
    play = Play(agent(local_answers=rule))
    asked = play.ask()
    play.answer_locally(asked, "opt-allow", trusted=trusted)
    assert (play.request(asked).phase is Phase.DECIDED) is allowed
    if not allowed:
        assert isinstance(play.receipts[0].error, LocalAnswersOff)
        play.answer_locally(asked, "opt-reject", trusted=trusted)
        assert [o for _, o in play.outcomes] == [Selected("opt-reject")]
