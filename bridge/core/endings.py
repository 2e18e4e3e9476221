"""How a request ends: the one table of transitions, and what each ending does to the harness, the ledger and the room.

Above it: answers and broker. Below it: the state. A request is PENDING, then DECIDED once, then ENDED once. What is not
in the table changes nothing: a second answer, a cancel after an answer, a delivery nobody waits for.

The order for every decision is ledger, harness, room (design.md, rules 12 and 17): `decide` stores and responds, and only
when the harness has it (`deliver`) is the ending stored and the prompt edited.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from bridge.core.changes import Priority, StoreDecision, StoreEnding, StoreUnseen
from bridge.core.effects import Log, Receipt, Respond, Send, Withhold
from bridge.core.messages import Closing, Replaced
from bridge.core.model import (
    REASON_OF_ENDING,
    Cancelled,
    Decision,
    Ending,
    EventId,
    Millis,
    Option,
    Outcome,
    Phase,
    Request,
    RequestId,
    Selected,
    TransactionId,
    Via,
)
from bridge.core.policy import expire
from bridge.core.polls import end_polls, withhold_polls
from bridge.core.state import Entry, Leaving, Step, without


class Cause(Enum):
    """What happens to a request, once it is asked."""

    ANSWER = "an authorised person chose an option"
    EXPIRY = "its time is over"
    CANCEL = "its turn was cancelled or ended"
    WITHDRAW = "the agent no longer waits"
    DELETE = "its session was deleted"
    SHUTDOWN = "the bridge ends"
    NO_WAY = "it can be shown to nobody"
    GONE = "the harness ended"
    WRITTEN = "the harness has the response"
    NOT_WRITTEN = "the response could not be written"


TRANSITIONS: dict[tuple[Phase, Cause], Phase] = {
    (Phase.PENDING, Cause.ANSWER): Phase.DECIDED,
    (Phase.PENDING, Cause.EXPIRY): Phase.DECIDED,
    (Phase.PENDING, Cause.CANCEL): Phase.DECIDED,
    (Phase.PENDING, Cause.WITHDRAW): Phase.DECIDED,
    (Phase.PENDING, Cause.DELETE): Phase.DECIDED,
    (Phase.PENDING, Cause.SHUTDOWN): Phase.DECIDED,
    (Phase.PENDING, Cause.NO_WAY): Phase.DECIDED,
    (Phase.PENDING, Cause.GONE): Phase.ENDED,
    (Phase.DECIDED, Cause.WRITTEN): Phase.ENDED,
    (Phase.DECIDED, Cause.NOT_WRITTEN): Phase.ENDED,
    (Phase.DECIDED, Cause.GONE): Phase.ENDED,
}
"""Every transition there is. A pair that is not here changes nothing."""

ENDING_OF: dict[Cause, Ending] = {
    Cause.ANSWER: Ending.ANSWERED,
    Cause.EXPIRY: Ending.EXPIRED,
    Cause.CANCEL: Ending.CANCELLED,
    Cause.WITHDRAW: Ending.WITHDRAWN,
    Cause.DELETE: Ending.SESSION_DELETED,
    Cause.SHUTDOWN: Ending.SHUTDOWN,
    Cause.NO_WAY: Ending.UNDELIVERABLE,
    Cause.GONE: Ending.AGENT_GONE,
}


def answer(
    step: Step,
    entry: Entry,
    option: Option,
    *,
    by: str,
    via: Via,
    event_id: EventId | None,
    device_id: str | None = None,
    ticket: int | None = None,
) -> None:
    """The first valid answer: stored, then written to the harness."""
    decision = Decision(
        ending=Ending.ANSWERED,
        outcome=Selected(option.option_id),
        option=option,
        by=by,
        via=via,
        event_id=event_id,
        device_id=device_id,
        at=step.at,
    )
    _decide(step, replace(entry, ticket=ticket), Cause.ANSWER, decision)


def end(step: Step, entry: Entry, cause: Cause, *, by: str | None = None) -> None:
    """An ending that no option goes with: the harness, if it is alive, gets `cancelled`."""
    outcome: Outcome | None = None if cause is Cause.GONE else Cancelled()
    _decide(step, entry, cause, Decision(ending=ENDING_OF[cause], outcome=outcome, by=by, at=step.at))


def end_all(step: Step, requests: Iterable[RequestId], cause: Cause, *, by: str | None = None) -> None:
    """End each of these that still waits, in the order in which they were asked."""
    entries = [step.state.entries[request_id] for request_id in requests]
    for entry in sorted(entries, key=lambda entry: entry.request.call):
        end(step, entry, cause, by=by)


def run_out(step: Step, entry: Entry) -> None:
    """The time is over: the first `reject_once`, else `cancelled`; never an allow (rule 5)."""
    option = expire(entry.request.options)
    outcome = Cancelled() if option is None else Selected(option.option_id)
    decision = Decision(ending=Ending.EXPIRED, outcome=outcome, option=option, via=Via.EXPIRY, at=step.at)
    _decide(step, entry, Cause.EXPIRY, decision)


def _decide(step: Step, entry: Entry, cause: Cause, decision: Decision) -> None:
    request = entry.request
    phase = TRANSITIONS.get((request.phase, cause))
    if phase is None:
        return
    if request.phase is Phase.DECIDED:  # the harness went before it was told
        _end(step, entry, _ending_undelivered(request.decision), delivered=False)
        return
    entry = replace(entry, request=replace(request, phase=Phase.DECIDED, decision=decision))
    step.do(
        StoreDecision(
            request_id=request.request_id, decision=decision, waited=Millis(max(0, step.at - request.asked_at))
        )
    )
    step.settle(entry)
    mark_unseen(step, entry, decision.by)
    _withdraw_from_room(step, entry)
    if decision.outcome is None:
        _end(step, entry, decision.ending, delivered=False)
    else:
        step.do(Respond(agent=request.agent, call=request.call, outcome=decision.outcome))


def deliver(step: Step, entry: Entry, cause: Cause) -> None:
    """The response was written, or could not be: the ending is stored, then the room is told."""
    request = entry.request
    if (request.phase, cause) not in TRANSITIONS or request.decision is None:
        return
    if cause is Cause.WRITTEN:
        _end(step, entry, request.decision.ending, delivered=True)
    else:
        _end(step, entry, _ending_undelivered(request.decision), delivered=False)


def _ending_undelivered(decision: Decision | None) -> Ending:
    """An answer that never reached the harness ends as `agent_gone`; who chose what stays in the record (rule 20)."""
    if decision is None or decision.ending in (Ending.ANSWERED, Ending.EXPIRED):
        return Ending.AGENT_GONE
    return decision.ending


def _end(step: Step, entry: Entry, ending: Ending, *, delivered: bool) -> None:
    request, ticket = entry.request, entry.ticket
    decision = request.decision
    if decision is None:
        raise AssertionError("unreachable")
    request = replace(request, phase=Phase.ENDED, delivered=delivered, decision=replace(decision, ending=ending))
    step.put(replace(entry, ticket=None, unedited=(), request=request))
    step.state = replace(step.state, calls=without(step.state.calls, request.call))
    step.do(StoreEnding(request_id=request.request_id, ending=ending, delivered=delivered))
    step.do(
        Log(
            "permission.ended",
            {"request_id": request.request_id, "ending": ending.value, "delivered": delivered},
            warning=ending in (Ending.UNDELIVERABLE, Ending.AGENT_GONE),
        )
    )
    for event_id in (request.event_id, *entry.unedited):
        if event_id is not None:
            close_prompt(step, request, event_id)
    end_polls(step, step.state.entries[request.request_id])
    if ticket is not None:
        step.do(Receipt(ticket=ticket, reason=None if delivered else REASON_OF_ENDING[ending]))


def close_prompt(step: Step, request: Request, event_id: EventId) -> None:
    """The one edit of an ended prompt. Its transaction id names the message, so it cannot happen twice."""
    edit(step, request, Closing(replace(request, event_id=event_id)), f"{request.request_id}/closing/{event_id}")


def edit(step: Step, request: Request, message: Closing | Replaced, transaction_id: str) -> None:
    """Edit a prompt; what the homeserver finds too large goes out shorter, or the room would show it as waiting."""
    send = Send(
        room=request.room, message=message, priority=Priority.EDIT, transaction_id=TransactionId(transaction_id)
    )
    step.leave(TransactionId(transaction_id), Leaving(request.request_id, request.revision, again=send))
    step.do(send)


def mark_unseen(step: Step, entry: Entry, by: str | None) -> None:
    """Everybody else's phone may still show this prompt: their next bare text in the room decides nothing (rule 14)."""
    request = entry.request
    if entry.transaction_id is None and not entry.old_events:
        return
    room = step.room(request.room)
    others = step.state.persons.get(request.room, frozenset()) - {by} - room.unseen
    if others:
        step.put_room(request.room, replace(room, unseen=room.unseen | others))
        step.do(*(StoreUnseen(room=request.room, person=person, on=True) for person in sorted(others)))


def _withdraw_from_room(step: Step, entry: Entry) -> None:
    """What has not left for the room yet shall not: the prompt itself, its poll, or its seeds."""
    request = entry.request
    if entry.transaction_id is not None and request.event_id is None:
        step.do(Withhold(entry.transaction_id))
    withhold_polls(step, entry)
    for number in range(1, entry.seeded + 1):
        step.do(Withhold(seed_id(entry, number)))


def seed_id(entry: Entry, number: int) -> TransactionId:
    """The transaction id of one reaction seed."""
    return TransactionId(f"{entry.transaction_id}/seed/{number}")
