"""The life of a room: joined, left, encrypted for good, followed where it was upgraded to.

Above it: broker. Below it: endings. It knows nothing of what is said in a room.
"""

from dataclasses import replace

from bridge.core import endings
from bridge.core.changes import Priority, StoreEncrypted, StoreMoved
from bridge.core.effects import Log, Send
from bridge.core.endings import Cause
from bridge.core.events import RoomMoved, RoomSeen, RoomState
from bridge.core.messages import Moved
from bridge.core.model import RoomId
from bridge.core.state import Step, without


def see(work: Step, event: RoomSeen) -> None:
    """Whether it can be spoken in, and whether encrypted; what waits where it cannot ends."""
    room, state = work.room(event.room), event.state
    encrypted = room.encrypted or event.encrypted or state is RoomState.ENCRYPTED
    if state is RoomState.JOINED and encrypted and not event.encrypted:
        state = RoomState.ENCRYPTED  # its server takes the encryption back: nothing is asked there in clear text
        work.do(Log("room.encryption_taken_back", {"room": event.room}, warning=True))
    work.put_room(event.room, replace(room, state=state, people=event.people, encrypted=encrypted))
    if encrypted and not room.encrypted:
        _encrypt(work, event.room)
    if state is not RoomState.JOINED:
        endings.end_all(work, room.waiting.values(), Cause.NO_WAY)


def _encrypt(work: Step, room: RoomId) -> None:
    """It stays so for good. What waits there is answered from here on as what is asked there is."""
    work.do(StoreEncrypted(room))
    for request_id in work.room(room).waiting.values():
        entry = work.state.entries[request_id]
        work.put(replace(entry, request=replace(entry.request, strict=work.state.agents[entry.request.agent].strict)))


def follow(work: Step, event: RoomMoved) -> None:
    """An upgrade was followed: the agents of the old room ask in the new one, and what waits in the old ends."""
    agents = work.state.agents
    moving = [agent.name for agent in agents.values() if agent.room == event.old]
    if not moving:
        return
    endings.end_all(work, work.room(event.old).waiting.values(), Cause.NO_WAY)
    state = work.state
    people = state.persons[event.old] | state.persons.get(event.new, frozenset())
    work.state = replace(
        state,
        agents={n: replace(agent, room=event.new) if n in moving else agent for n, agent in agents.items()},
        persons=without(state.persons, event.old).set(event.new, people),
    )
    old, new = work.room(event.old), work.room(event.new)
    if old.encrypted and not new.encrypted:  # an upgrade is no way out of encryption
        new = replace(new, encrypted=True, state=new.state and RoomState.ENCRYPTED)
        work.do(StoreEncrypted(event.new))
    work.put_room(event.new, new)
    work.do(
        StoreMoved(old=event.old, new=event.new),
        Send(room=event.new, message=Moved(tuple(moving)), priority=Priority.NOTICE),
    )
