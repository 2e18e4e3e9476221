"""What the broker knows: requests, rooms, and which event of a room is which prompt.

Above it: endings, answers, broker. Below it: the model. A `State` is a value: a step makes a new one, and a transaction
that fails puts the old one back (a `Map` keeps no order, so what needs one sorts). Nothing here scans what waits: 10,000 waiting requests cost a step no more than ten.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from immutables import Map

from bridge.core.changes import Snapshot, StoreLocked
from bridge.core.effects import Effect, Send
from bridge.core.events import RoomState
from bridge.core.model import (
    Agent,
    AgentName,
    CallRef,
    EventId,
    Millis,
    Option,
    Phase,
    Request,
    RequestId,
    RoomId,
    Rules,
    SessionId,
    TransactionId,
    UserId,
)
from bridge.core.replies import list_forms

K = TypeVar("K")
V = TypeVar("V")

CLOSED_KEPT = 100  # ended prompts a room remembers: late answerers are told how theirs ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The question of rule 10: only this person's reply to this event confirms this option."""

    sender: UserId
    option: Option
    transaction_id: TransactionId
    event_id: EventId | None = None
    place: int = 0  # see `State.place`; 0: not seen in the timeline yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """One poll of a request. `over`: it was ended, or will be as soon as it arrives."""

    transaction_id: TransactionId
    event_id: EventId | None = None
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A request and what the broker remembers beside it."""

    request: Request
    transaction_id: TransactionId | None = None  # of the current revision's message; None: never put to people
    place: int = 0  # of the current message, once `request.placed`; see `State.place`
    digest: str | None = None
    shrink: int = 0
    old_numbers: tuple[int, ...] = ()  # the room number of each earlier revision; under `strict` each has its own
    posts: int = 0  # how many messages were made for it: keeps transaction ids apart
    reposted: bool = False
    seeded: int = 0  # how many reaction seeds were queued for the current message
    old_events: tuple[EventId, ...] = ()
    unedited: tuple[EventId, ...] = ()  # those of the old events that still look as if they waited
    strangers: frozenset[UserId] = frozenset()  # who was told that they may not answer
    late: frozenset[tuple[UserId, int]] = frozenset()  # who was told that they were late, for which revision
    confirmations: tuple[Confirmation, ...] = ()
    ballots: tuple[Ballot, ...] = ()  # oldest first
    ticket: int | None = None  # the control-socket caller whose answer decided it

    def number_of(self, revision: int) -> int:
        """The room number under which people were asked this revision."""
        return self.old_numbers[revision - 1] if revision <= len(self.old_numbers) else self.request.number


@dataclass(frozen=True, slots=True)
class Shown:
    """What an event of ours in a room is: the message or poll of this request's revision, or a confirmation's question."""

    request_id: RequestId
    revision: int
    confirmation: bool = False
    poll: bool = False


@dataclass(frozen=True, slots=True)
class Leaving:
    """What an outgoing event will be once the homeserver has taken it; `again`: what to send shorter if it is too large."""

    request_id: RequestId
    revision: int
    confirmation: bool = False
    poll: bool = False
    again: Send | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """An encrypted message that could not be read at its place: what it says later is judged as of then (rule 13)."""

    room: RoomId
    sender: UserId
    place: int  # see `State.place`
    at: Millis
    unseen: bool  # whether its sender's phone might still have shown an old prompt then (rule 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One room: what waits in it, what closed, and who may still see an old prompt (rule 14)."""

    state: RoomState | None = None  # None: no sync has said yet
    encrypted: bool = False  # for good, once it was
    people: int = 0
    next_number: int = 1
    waiting: Map[int, RequestId] = field(default_factory=Map[int, RequestId])
    offers: Map[tuple[Option, ...], int] = field(
        default_factory=Map[tuple[Option, ...], int]
    )  # how many wait with each
    forms: Map[str, int] = field(default_factory=Map[str, int])  # how many offers have an option that this text names
    closed: tuple[RequestId, ...] = ()  # youngest last
    closed_at: Millis | None = None  # when the youngest closed
    closed_place: int = 0  # the same as a `State.place`
    unseen: frozenset[UserId] = frozenset()
    told: frozenset[tuple[UserId, str, str]] = frozenset()  # who was told what of their devices, and of which
    asked_again: frozenset[UserId] = frozenset()  # whose last message could not be read, and who was told so


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session of a harness."""

    agent: AgentName
    next_seq: int = 1
    waiting: Map[RequestId, None] = field(default_factory=Map[RequestId, None])
    cancelling: bool = False  # its turn was cancelled and has not ended yet
    ended: bool = False  # the ledger holds its end


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything the broker decides by."""

    rules: Rules
    agents: Mapping[AgentName, Agent]
    persons: Map[RoomId, frozenset[UserId]]  # everybody who may answer something in that room
    rooms: Map[RoomId, Room]
    sessions: Map[SessionId, Session] = field(default_factory=Map[SessionId, Session])
    entries: Map[RequestId, Entry] = field(default_factory=Map[RequestId, Entry])
    calls: Map[CallRef, RequestId] = field(default_factory=Map[CallRef, RequestId])
    shown: Map[EventId, Shown] = field(default_factory=Map[EventId, Shown])
    leaving: Map[TransactionId, Leaving] = field(default_factory=Map[TransactionId, Leaving])
    place: int = 1  # goes up by one with each prompt that appears in a room and each that closes: what came before what
    locked: Map[EventId, Late] = field(default_factory=Map[EventId, Late])
    locked_order: tuple[EventId, ...] = ()  # oldest first
    pins: Map[UserId, str] = field(default_factory=Map[UserId, str])  # master keys
    changed: frozenset[UserId] = frozenset()  # pinned people who came with another identity; until they are pinned anew
    closing: bool = False  # the bridge ends


class Step:
    """One step under way: the state so far and the effects so far. It lives for one call of `broker.step` only."""

    __slots__ = ("at", "effects", "state")

    def __init__(self, state: State, at: Millis) -> None:
        self.state = state
        self.at = at
        self.effects: list[Effect] = []

    def do(self, *effects: Effect) -> None:
        """Add effects, in order."""
        self.effects += effects

    def put(self, entry: Entry) -> Entry:
        """Remember this request as it is now."""
        self.state = replace(self.state, entries=self.state.entries.set(entry.request.request_id, entry))
        return entry

    def put_room(self, room: RoomId, value: Room) -> None:
        """Remember this room as it is now."""
        self.state = replace(self.state, rooms=self.state.rooms.set(room, value))

    def put_session(self, session_id: SessionId, value: Session) -> None:
        """Remember this session as it is now."""
        self.state = replace(self.state, sessions=self.state.sessions.set(session_id, value))

    def room(self, room: RoomId) -> Room:
        """What is known of this room."""
        return self.state.rooms.get(room, Room())

    def mark_place(self) -> int:
        """The place of what happens now among what appears and closes in rooms."""
        self.state = replace(self.state, place=self.state.place + 1)
        return self.state.place

    def show(self, event_id: EventId, shown: Shown) -> None:
        """Remember what this event of ours is."""
        self.state = replace(self.state, shown=self.state.shown.set(event_id, shown))

    def leave(self, transaction_id: TransactionId, leaving: Leaving) -> None:
        """Remember what this outgoing event will be."""
        self.state = replace(self.state, leaving=self.state.leaving.set(transaction_id, leaving))

    def wait(self, entry: Entry) -> None:
        """Enter a new request where answers, updates and endings look for it."""
        request, state = entry.request, self.state
        session = state.sessions[request.session_id]
        self.state = replace(
            state,
            calls=state.calls.set(request.call, request.request_id),
            sessions=state.sessions.set(
                request.session_id, replace(session, waiting=session.waiting.set(request.request_id, None))
            ),
        )
        self.put(entry)
        if request.number:
            room = self.room(request.room)
            self.put_room(
                request.room,
                replace(
                    _offer(room, request.options),
                    next_number=max(room.next_number, request.number + 1),
                    waiting=room.waiting.set(request.number, request.request_id),
                ),
            )

    def renumber(self, entry: Entry, request: Request) -> Entry:
        """A waiting request goes on under the room number that comes next; no number ever names anything else."""
        room = self.room(request.room)
        waiting = without(room.waiting, request.number).set(room.next_number, request.request_id)
        self.put_room(request.room, replace(room, next_number=room.next_number + 1, waiting=waiting))
        return self.put(replace(entry, request=replace(request, number=room.next_number)))

    def settle(self, entry: Entry) -> None:
        """Take a decided request out of what waits; the room remembers it among what closed."""
        request, state = entry.request, self.state
        session = state.sessions[request.session_id]
        self.state = replace(
            state,
            sessions=state.sessions.set(
                request.session_id, replace(session, waiting=without(session.waiting, request.request_id))
            ),
        )
        self.put(entry)
        room = self.room(request.room)
        if request.number:
            room = replace(
                _take_back(room, request.options),
                waiting=without(room.waiting, request.number),
                closed_at=self.at,
                closed_place=self.mark_place(),
            )
        self.put_room(request.room, replace(room, closed=(*room.closed, request.request_id)))
        self.forget_old(request.room)

    def forget_old(self, room: RoomId) -> None:
        """Keep no more ended prompts of a room than `CLOSED_KEPT`; those that are not ended yet stay besides."""
        value = self.room(room)
        while len(value.closed) > CLOSED_KEPT:
            entries = (self.state.entries[request_id] for request_id in value.closed)
            oldest = next((entry for entry in entries if entry.request.phase is Phase.ENDED), None)
            if oldest is None:
                return
            self.forget(oldest)
            gone = oldest.request.request_id
            value = replace(self.room(room), closed=tuple(r for r in value.closed if r != gone))
            self.put_room(room, value)

    def forget(self, entry: Entry) -> None:
        """Drop an ended request and every event that stood for it."""
        request, state = entry.request, self.state
        gone = [*entry.old_events, request.event_id]
        gone += [each.event_id for each in (*entry.confirmations, *entry.ballots)]
        shown = state.shown
        for event_id in gone:
            if event_id is not None:
                shown = without(shown, event_id)
        leaving = state.leaving
        for transaction_id in (entry.transaction_id, *(ballot.transaction_id for ballot in entry.ballots)):
            if transaction_id is not None:
                leaving = without(leaving, transaction_id)
        self.state = replace(state, entries=without(state.entries, request.request_id), shown=shown, leaving=leaving)


def without(mapping: Map[K, V], key: K) -> Map[K, V]:
    """The map without this key, which it need not have."""
    return mapping.delete(key) if key in mapping else mapping


def _offer(room: Room, options: tuple[Option, ...]) -> Room:
    count = room.offers.get(options, 0)
    forms = room.forms if count else _count(room.forms, list_forms(options), 1)
    return replace(room, offers=room.offers.set(options, count + 1), forms=forms)


def _take_back(room: Room, options: tuple[Option, ...]) -> Room:
    count = room.offers[options] - 1
    if count:
        return replace(room, offers=room.offers.set(options, count))
    return replace(room, offers=room.offers.delete(options), forms=_count(room.forms, list_forms(options), -1))


def _count(forms: Map[str, int], more: Iterable[str], by: int) -> Map[str, int]:
    counts = forms.mutate()
    for form in more:
        count = counts.get(form, 0) + by
        if count:
            counts[form] = count
        else:
            del counts[form]
    return counts.finish()


def begin(rules: Rules, found: Snapshot) -> State:
    """The state of a start: the rooms as the ledger left them, nothing waiting yet.

    What the ledger holds open belongs to harnesses that are gone; `broker.recover` ends it.
    """
    persons: dict[RoomId, frozenset[UserId]] = {}
    agents = {agent.name: _follow(agent, found.moved) for agent in rules.agents}
    for agent in agents.values():
        if agent.room is not None:
            persons[agent.room] = persons.get(agent.room, frozenset()) | agent.approvers
    rooms = {room: Room() for room in persons}
    for room, number in found.next_numbers.items():
        rooms[room] = replace(rooms.get(room, Room()), next_number=number)
    for room, person in found.unseen:
        old = rooms.get(room, Room())
        rooms[room] = replace(old, unseen=old.unseen | {person})
    for room in found.encrypted:
        rooms[room] = replace(rooms.get(room, Room()), encrypted=True)
    state = State(
        rules=rules,
        agents=agents,
        persons=Map(persons),
        rooms=Map(rooms),
        pins=Map(found.pins),
        locked=Map({each.event_id: _late_of_last_run(each) for each in found.locked}),
        locked_order=tuple(each.event_id for each in found.locked),
    )
    step = Step(state, Millis(0))
    for session_id, agent in found.sessions:
        step.put_session(session_id, Session(agent=agent))
    for request in found.closed:
        _restore(step, request)
    return step.state


def _follow(agent: Agent, moved: Iterable[tuple[RoomId, RoomId]]) -> Agent:
    """The agent where it asks after all upgrades of its room that were followed."""
    for old, new in moved:
        if agent.room == old:
            agent = replace(agent, room=new)
    return agent


def _late_of_last_run(stored: StoreLocked) -> Late:
    """It was written before everything that this run puts into a room, and before everything that it says has closed."""
    return Late(room=stored.room, sender=stored.sender, place=0, at=Millis(0), unseen=True)


def _restore(step: Step, request: Request) -> None:
    step.put(Entry(request=request))
    if request.session_id not in step.state.sessions:
        step.put_session(request.session_id, Session(agent=request.agent, ended=True))
    if request.event_id is not None:
        step.show(request.event_id, Shown(request.request_id, request.revision))
    room = step.room(request.room)
    closed_at = request.decision.at if request.decision and request.number else room.closed_at
    step.put_room(
        request.room,
        replace(room, closed=(*room.closed, request.request_id), closed_at=closed_at, closed_place=step.state.place),
    )
