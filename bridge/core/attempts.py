"""One attempt to answer one request: whether this person may, what it does, and what they are told if it does nothing.

Above it: answers (what people did in the room), receipts (the control socket). Below it: endings, trusting. Rules 10, 12, 13, 16.
"""

from dataclasses import dataclass, replace

from bridge.core import endings, trusting
from bridge.core.changes import Priority, StoreLateAnswer
from bridge.core.effects import Send
from bridge.core.events import Said, Voted
from bridge.core.messages import Confirm, Message, NotAllowed, NotAnOption, TooLate
from bridge.core.model import (
    REASON_OF_ENDING,
    EventId,
    Meaning,
    Millis,
    Option,
    Phase,
    Reason,
    Request,
    RoomId,
    TransactionId,
    UserId,
    Via,
)
from bridge.core.replies import Fits
from bridge.core.state import Confirmation, Entry, Leaving, Step

STRANGERS_TOLD = 3  # rule 13: nobody can make the bot flood a room


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Who did what: `event_id` is the message or reaction, `under` the event that a word to them replies to.

    `message` is None for a reaction, for which no device vouches.
    """

    sender: UserId
    via: Via
    event_id: EventId
    under: EventId
    message: Said | Voted | None = None

    @property
    def device_id(self) -> str | None:
        """The device that it came from, where it came encrypted."""
        return None if self.message is None or self.message.seal is None else self.message.seal.device_id


def take(step: Step, entry: Entry, fits: Option | Fits, attempt: Attempt) -> None:
    """An authorised, clear attempt at a waiting request."""
    if not isinstance(fits, Option):
        tell(step, entry.request.room, NotAnOption(entry.request, attempt.under))
    elif fits.meaning is not Meaning.REJECT and not entry.request.whole:
        ask_to_confirm(step, entry, fits, attempt)
    else:
        decide(step, entry, fits, attempt)


def decide(step: Step, entry: Entry, option: Option, attempt: Attempt) -> None:
    """The option counts, unless the time is over: at the very instant is late (AC-10)."""
    if step.at >= entry.request.expires_at:
        endings.run_out(step, entry)
        late = step.state.entries[entry.request.request_id]
        tell_late(step, late, late.request.revision, attempt, option)
    else:
        endings.answer(
            step,
            entry,
            option,
            by=attempt.sender,
            via=attempt.via,
            event_id=attempt.event_id,
            device_id=attempt.device_id,
        )


def ask_to_confirm(step: Step, entry: Entry, option: Option, attempt: Attempt) -> None:
    """Rule 10: people were not shown all of it, so an allow is asked for a second time, by a message of its own."""
    request = entry.request
    transaction_id = TransactionId(f"{request.request_id}/{request.revision}/confirm/{entry.posts}")
    asked = Confirmation(sender=attempt.sender, option=option, transaction_id=transaction_id)
    others = tuple(c for c in entry.confirmations if c.sender != attempt.sender)
    step.put(replace(entry, posts=entry.posts + 1, confirmations=(*others, asked)))
    step.leave(transaction_id, Leaving(request.request_id, request.revision, confirmation=True))
    step.do(
        Send(
            room=request.room,
            message=Confirm(request, option, attempt.sender, attempt.under),
            priority=Priority.NOTICE,
            transaction_id=transaction_id,
        )
    )


def is_approver(step: Step, request: Request, sender: UserId) -> bool:
    """Whether this exact user id stands on the list of the request's agent; one that the config dropped has none."""
    agent = step.state.agents.get(request.agent)
    return agent is not None and sender in agent.approvers


def may_answer(step: Step, entry: Entry, attempt: Attempt) -> bool:
    """Whether they are on the list, and their device accepted; who is not is told once for this prompt, and three at most."""
    if is_approver(step, entry.request, attempt.sender):
        return is_from_accepted_device(step, entry.request, attempt)
    if attempt.sender not in entry.strangers and len(entry.strangers) < STRANGERS_TOLD:
        step.put(replace(entry, strangers=entry.strangers | {attempt.sender}))
        tell(step, entry.request.room, NotAllowed(entry.request, attempt.sender, attempt.under))
    return False


def is_from_accepted_device(step: Step, request: Request, attempt: Attempt) -> bool:
    """Whether the request's agent accepts the device of an approver; if not, they are told once."""
    agent, message = step.state.agents[request.agent], attempt.message
    if message is None:
        return not (step.room(request.room).encrypted and trusting.has_changed(step, agent, attempt.sender))
    if trusting.find_doubt(step, agent, message) is None:
        return True
    trusting.refuse(step, message, agent)
    return False


def tell_late(
    step: Step, entry: Entry, revision: int, attempt: Attempt, option: Option | None, *, again: bool = False
) -> None:
    """A late answerer is told how it ended, once per prompt; for a bare text (`again`) each time, else it goes unheard."""
    key = (attempt.sender, revision)
    if entry.request.phase is not Phase.PENDING:
        step.do(late_record(step, entry, option, by=attempt.sender, via=attempt.via, event_id=attempt.event_id))
    if again or key not in entry.late:
        step.put(replace(entry, late=entry.late | {key}))
        tell(step, entry.request.room, TooLate(entry.request, attempt.sender, attempt.under))


def late_record(
    step: Step, entry: Entry, option: Option | None, *, by: str, via: Via, event_id: EventId | None
) -> StoreLateAnswer:
    """The history row of an authorised answer that came too late."""
    request = entry.request
    return StoreLateAnswer(
        request_id=request.request_id,
        reason=late_reason(entry),
        option=option,
        by=by,
        via=via,
        event_id=event_id,
        waited=Millis(max(0, step.at - request.asked_at)),
    )


def late_reason(entry: Entry) -> Reason:
    """Why a decided request takes no answer any more."""
    decision = entry.request.decision
    if decision is None:
        raise AssertionError("unreachable")
    return REASON_OF_ENDING[decision.ending]


def tell(step: Step, room: RoomId, message: Message) -> None:
    """Say a word in the room."""
    step.do(Send(room=room, message=message, priority=Priority.NOTICE))
