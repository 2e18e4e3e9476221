"""The poll beside a prompt: begun once the prompt stands in the room, ended with it, and what a vote in it chooses.

Above it: endings, posting, answers, broker. Below it: the state. Rules 12 and 13 of design.md. It refuses to know who may
answer: it only says which option a vote names. The ids of a poll's answers are unguessable and other ones for each request
and revision, so that a vote fits one question only, whatever a homeserver says it relates to.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from bridge.core.changes import Priority
from bridge.core.effects import Send, Withhold
from bridge.core.messages import Poll, PollEnd
from bridge.core.model import EventId, Option, Phase, Request, TransactionId
from bridge.core.state import Ballot, Entry, Leaving, Shown, Step

ANSWERS_LEAST = 2  # a poll of one option asks nothing that its prompt does not
ANSWERS_MOST = 20  # MSC3381: clients show no more
ID_HEX_DIGITS = 32  # 128 bits, as good as the nonce they come from
SUFFIX = "/poll"  # ends the transaction id of every poll and of nothing else


def make_answer_ids(request: Request) -> tuple[str, ...]:
    """The id of each option, in their order; none for a request that has no poll."""
    count = len(request.options)
    if not request.nonce or not ANSWERS_LEAST <= count <= ANSWERS_MOST:
        return ()
    parts = (f"{request.nonce}\0{request.request_id}\0{request.revision}\0{index}" for index in range(count))
    return tuple(hashlib.sha256(part.encode()).hexdigest()[:ID_HEX_DIGITS] for part in parts)


def read_vote(request: Request, revision: int, chosen: Sequence[str]) -> Option | None:
    """The option that a vote in this revision's poll names: exactly one of the poll's own ids (MX-15)."""
    ids = make_answer_ids(replace(request, revision=revision))
    if len(chosen) != 1 or chosen[0] not in ids:
        return None
    return request.options[ids.index(chosen[0])]


def begin_poll(step: Step, entry: Entry) -> None:
    """Queue the poll of the current message, where the agent has polls; it comes behind every prompt."""
    request = entry.request
    answers = make_answer_ids(request)
    if not answers or not step.state.agents[request.agent].polls:
        return
    transaction_id = TransactionId(f"{request.request_id}/{request.revision}/{entry.posts}{SUFFIX}")
    step.put(replace(entry, ballots=(*entry.ballots, Ballot(transaction_id=transaction_id))))
    step.leave(transaction_id, Leaving(request.request_id, request.revision, poll=True))
    step.do(
        Send(
            room=request.room,
            message=Poll(request, answers),
            priority=Priority.NOTICE,
            transaction_id=transaction_id,
        )
    )


def bind_poll(step: Step, entry: Entry, transaction_id: TransactionId, event_id: EventId) -> None:
    """A poll has its event id. One that ended while it was on its way is closed as it arrives."""
    ballots = tuple(
        replace(ballot, event_id=event_id) if ballot.transaction_id == transaction_id else ballot
        for ballot in entry.ballots
    )
    entry = step.put(replace(entry, ballots=ballots))
    if any(ballot.over and ballot.event_id == event_id for ballot in ballots):
        _say_ended(step, entry.request, event_id)


def withhold_polls(step: Step, entry: Entry) -> None:
    """What has not left for the room yet shall not."""
    step.do(*(Withhold(ballot.transaction_id) for ballot in entry.ballots if ballot.event_id is None))


def end_polls(step: Step, entry: Entry) -> Entry:
    """Close whatever polls of this request are open; one that is still on its way is closed when it arrives."""
    for ballot in entry.ballots:
        if ballot.event_id is not None and not ballot.over:
            _say_ended(step, entry.request, ballot.event_id)
    return step.put(replace(entry, ballots=tuple(replace(ballot, over=True) for ballot in entry.ballots)))


def recover_polls(step: Step, entry: Entry, known: Sequence[EventId], unsent: Sequence[TransactionId]) -> Entry:
    """The polls that the last run left: `known` stand in the room, `unsent` may, and are sent once more."""
    request = entry.request
    there = [Ballot(transaction_id=TransactionId(f"{event_id}{SUFFIX}"), event_id=event_id) for event_id in known]
    leaving = [Ballot(transaction_id=transaction_id) for transaction_id in unsent]
    for event_id in known:
        step.show(event_id, Shown(request.request_id, request.revision, poll=True))
    for transaction_id in unsent:
        step.leave(transaction_id, Leaving(request.request_id, request.revision, poll=True))
    over = request.phase is Phase.ENDED
    ballots = (*there, *leaving)
    return step.put(replace(entry, ballots=tuple(replace(ballot, over=over) for ballot in ballots)))


def _say_ended(step: Step, request: Request, event_id: EventId) -> None:
    step.do(
        Send(
            room=request.room,
            message=PollEnd(request, event_id),
            priority=Priority.EDIT,
            transaction_id=TransactionId(f"{request.request_id}/ended/{event_id}"),
        )
    )
