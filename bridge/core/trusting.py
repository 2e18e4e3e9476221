"""Whose message it is: which devices an agent's `trust` accepts in an encrypted room, and what who is refused is told.

Above it: attempts, locked, answers, broker. Below it: the state. Rule 13 of design.md. It refuses to know what a message says: what
it accepts may be an answer, a command or words for an agent, and what it does not accept is none of them.

A message in an unencrypted room comes under no key, so nothing here applies to it: the homeserver is believed.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from bridge.core.changes import Priority, StorePin
from bridge.core.effects import Log, Send
from bridge.core.events import Said, Verified, Voted
from bridge.core.messages import DeviceRefused, Exposed, Message
from bridge.core.model import Agent, AgentName, RoomId, Seal, Trust, UserId
from bridge.core.state import Step

TOLD_MOST = 10  # a homeserver can make up devices for its users: nobody can make the bot flood a room

_EXPOSED = "exposed"


class Doubt(Enum):
    """Why a device is not accepted."""

    DEVICE = "device"  # its owner has not signed it, or it is nobody's
    UNPINNED = "unpinned"  # no identity of theirs was pinned yet
    CHANGED = "changed"  # their identity is another than the pinned one


def is_listed(step: Step, room: RoomId, person: UserId) -> bool:
    """Whether they may answer, or prompt, any agent of this room."""
    return any(person in agent.approvers | agent.users for agent in _agents_of(step, room))


def is_heard(step: Step, event: Said | Voted) -> bool:
    """Whether this may count for any agent of the room at all; if not, its sender is told once what to do.

    Strangers are heard: that they may not answer is said elsewhere, whatever their device.
    """
    room = step.room(event.room)
    if event.exposed or (room.encrypted and event.seal is None):
        if is_listed(step, event.room, event.sender):
            _tell_once(step, event.room, (event.sender, _EXPOSED, ""), Exposed(event.sender, event.event_id))
        return False
    if event.sender in room.asked_again:
        step.put_room(event.room, replace(room, asked_again=room.asked_again - {event.sender}))
    agents = [a for a in _agents_of(step, event.room) if event.sender in a.approvers | a.users]
    if agents and all(find_doubt(step, agent, event) for agent in agents):
        refuse(step, event, agents[0])
        return False
    return True


def find_refusing(step: Step, said: Said) -> frozenset[AgentName]:
    """The agents of the room that do not accept the device that this came from."""
    return frozenset(agent.name for agent in _agents_of(step, said.room) if find_doubt(step, agent, said))


def find_doubt(step: Step, agent: Agent, event: Said | Voted) -> Doubt | None:
    """Why this agent's `trust` does not accept the device that this came from; None: it does, or there is none."""
    if event.seal is None:
        return None
    pinned, changed = step.state.pins.get(event.sender), event.sender in step.state.changed
    return judge(agent.trust, event.seal, pinned, changed=changed)


def judge(trust: Trust, seal: Seal, pinned: str | None, *, changed: bool = False) -> Doubt | None:
    """Why `trust` does not accept what comes under this seal; None: it does.

    `pinned`: the sender's pinned master key. `changed`: another one was seen since.
    """
    if seal.device_id is None:
        return Doubt.DEVICE
    if trust is Trust.ANY:
        return None
    if trust is Trust.PINNED:
        if pinned is not None and (changed or seal.master not in (None, pinned)):
            return Doubt.CHANGED
        if seal.signed and seal.master != pinned:
            return Doubt.UNPINNED
    return None if seal.signed else Doubt.DEVICE


def has_changed(step: Step, agent: Agent, person: UserId) -> bool:
    """Whether nothing of this person counts, their reactions neither, since their identity is not the pinned one."""
    return agent.trust is Trust.PINNED and person in step.state.changed


def refuse(step: Step, event: Said | Voted, agent: Agent) -> None:
    """The device is not accepted: its owner is told once for each in this room, for a changed identity once for that."""
    seal, doubt = event.seal, find_doubt(step, agent, event)
    if seal is None or doubt is None:
        raise AssertionError("unreachable")
    subject = seal.device_id or ""
    if doubt is Doubt.CHANGED:
        subject = seal.master or ""
        _note_change(step, event.sender, event.room, subject)
    message = DeviceRefused(
        event.sender,
        event.event_id,
        seal.device_id,
        identity_changed=doubt is Doubt.CHANGED,
        unpinned=doubt is Doubt.UNPINNED,
    )
    _tell_once(step, event.room, (event.sender, doubt.value, subject), message)


def _note_change(step: Step, person: UserId, room: RoomId, master: str) -> None:
    if person in step.state.changed:
        return
    step.state = replace(step.state, changed=step.state.changed | {person})
    step.do(Log("trust.identity_changed", {"user_id": person, "room": room, "master": master}, warning=True))


def pin(step: Step, event: Verified) -> None:
    """From here on this identity is the person's; what was refused may be said anew."""
    state = step.state
    step.state = replace(state, pins=state.pins.set(event.user, event.master), changed=state.changed - {event.user})
    for room, value in sorted(state.rooms.items()):
        told = frozenset(each for each in value.told if each[0] != event.user)
        step.put_room(room, replace(value, told=told))
    step.do(StorePin(user=event.user, master=event.master), Log("trust.pinned", {"user_id": event.user}))


def _tell_once(step: Step, room: RoomId, what: tuple[UserId, str, str], message: Message) -> None:
    value = step.room(room)
    if what not in value.told and sum(each[0] == what[0] for each in value.told) < TOLD_MOST:
        step.put_room(room, replace(value, told=value.told | {what}))
        step.do(Send(room=room, message=message, priority=Priority.NOTICE))


def _agents_of(step: Step, room: RoomId) -> Iterable[Agent]:
    return (agent for agent in step.state.agents.values() if agent.room == room)
