"""Encrypted messages that cannot be read yet: where they stood, so that what they say later counts for no later prompt.

Above it: attempts, answers, broker. Below it: trusting. Rule 13 of design.md: an answer counts only if it comes after the prompt in
sync order, and a key may come long after the message that it opens. It refuses to know how anything is opened.
"""

from dataclasses import replace

from bridge.core import trusting
from bridge.core.changes import Priority, StoreLocked, StoreTaken, StoreUnlocked
from bridge.core.effects import Log, Send
from bridge.core.events import Locked, StillLocked, Unlocked
from bridge.core.messages import SendAgain
from bridge.core.model import EventId
from bridge.core.state import Entry, Late, Step, without

LOCKED_KEPT = 500  # a day's talk of a busy room; whose key has not come by then does not come


def hear(step: Step, event: Locked | StillLocked | Unlocked) -> None:
    """What the rooms say of such a message."""
    match event:
        case Locked():
            _lock(step, event)
        case StillLocked():
            _ask_again(step, event)
        case Unlocked():  # pragma: no branch - the last of the three
            if event.event_id in step.state.locked:
                _forget(step, event.event_id)


def _lock(step: Step, event: Locked) -> None:
    """It stands here. Of who is on no list nothing could count, so it is not kept."""
    state, room = step.state, step.room(event.room)
    if event.event_id in state.locked or not trusting.is_listed(step, event.room, event.sender):
        return
    late = Late(room=event.room, sender=event.sender, place=state.place, at=step.at, unseen=event.sender in room.unseen)
    step.state = replace(
        state,
        locked=state.locked.set(event.event_id, late),
        locked_order=(*state.locked_order, event.event_id),
    )
    step.do(StoreLocked(event_id=event.event_id, room=event.room, sender=event.sender, raw=event.raw))
    if len(step.state.locked_order) > LOCKED_KEPT:
        _drop(step, step.state.locked_order[0])


def _drop(step: Step, event_id: EventId) -> None:
    """Where it stood is forgotten, so it must never count as if it had just come."""
    _forget(step, event_id)
    step.do(StoreTaken(event_id), Log("locked.dropped", {"event_id": event_id}, warning=True))


def _forget(step: Step, event_id: EventId) -> None:
    state = step.state
    order = tuple(each for each in state.locked_order if each != event_id)
    step.state = replace(state, locked=without(state.locked, event_id), locked_order=order)
    step.do(StoreUnlocked(event_id))


def _ask_again(step: Step, event: StillLocked) -> None:
    """Its sender is asked to send it again: once, until a message of theirs can be read."""
    late, room = step.state.locked.get(event.event_id), step.room(event.room)
    if late is None or not room.encrypted or late.sender in room.asked_again:
        return
    if trusting.is_listed(step, event.room, late.sender):
        step.put_room(event.room, replace(room, asked_again=room.asked_again | {late.sender}))
        message = SendAgain(late.sender, event.event_id, event.withheld)
        step.do(Send(room=event.room, message=message, priority=Priority.NOTICE))


def stood(step: Step, event_id: EventId, place: int) -> bool:
    """Whether what has this place stood in the room when this message took its own; for one that came readable, yes."""
    late = step.state.locked.get(event_id)
    return late is None or 0 < place <= late.place


def stood_prompt(step: Step, event_id: EventId, entry: Entry) -> bool:
    """The same of a request's current message."""
    return stood(step, event_id, entry.place if entry.request.placed else 0)
