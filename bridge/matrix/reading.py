"""From one sync batch to the core's events: what happened in each bound room, in order, and how the bot stands there.

Above it: the sync loop, which fetches and opens what is in the batch. Below it: inbox, standing and held. It refuses to
ask anybody anything: it has no await, so a batch is read whole or not at all.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from bridge.core.changes import StoreLocked
from bridge.core.events import Echoed, Event, Redacted, RoomSeen, RoomState, Unlocked
from bridge.core.model import EventId, RoomId, UserId
from bridge.matrix import events, held, inbox
from bridge.matrix.batches import SyncBatch
from bridge.matrix.events import Source
from bridge.matrix.held import Held
from bridge.matrix.sealing import Opened, Place, Shut, Unsealed, Why
from bridge.matrix.standing import Replacement, Standing

log = structlog.stdlib.get_logger()

SEEN_MOST = 10_000  # event ids remembered: far more than any one batch repeats


@dataclass(slots=True, kw_only=True)
class Read:
    """What a batch came to. `found` is for the core; the rest is for who watches over the rooms, once that is stored."""

    found: list[Event] = field(default_factory=list[Event])
    steps: list[tuple[RoomId, Source]] = field(default_factory=list[tuple[RoomId, Source]])  # of verifications
    replaced: list[tuple[RoomId, Replacement]] = field(default_factory=list[tuple[RoomId, Replacement]])
    invites: Mapping[RoomId, UserId | None] = field(default_factory=dict[RoomId, UserId | None])


class Reader:
    """What is known of the bound rooms, and what new batches say of them."""

    def __init__(
        self, *, bot: UserId, names: Collection[str], rooms: Collection[RoomId], seals: bool, no_sealing_reason: str
    ) -> None:
        self._bot = bot
        self._names = tuple(names)
        self._seals = seals
        self._no_sealing_reason = no_sealing_reason
        self._standings = {room: Standing(room, bot, seals=seals) for room in rooms}
        self._once_encrypted: set[RoomId] = set()  # also of rooms that are not read any more
        self._reported: dict[RoomId, RoomSeen] = {}  # what the core was last told of each room
        self._seen: OrderedDict[EventId, None] = OrderedDict()
        self._done: list[Unlocked] = []
        self.held = Held()

    @property
    def standings(self) -> Mapping[RoomId, Standing]:
        """How the bot stands in each bound room."""
        return self._standings

    def follow(self, room: RoomId) -> None:
        """Read this room as well from here on; the next batch has to say all of its state."""
        self._standings.setdefault(room, Standing(room, self._bot, seals=self._seals))

    def rebind(self, old: RoomId, new: RoomId) -> None:
        """Read the new room instead of the old one."""
        if self._standings.pop(old, None) is not None:
            self.follow(new)

    def remember_encrypted(self, room: RoomId) -> None:
        """Take a room for encrypted because it was once."""
        self._once_encrypted.add(room)
        if room in self._standings:
            self._standings[room].encrypt()

    def is_encrypted(self, room: RoomId) -> bool:
        """Whether the room was ever seen to be encrypted."""
        standing = self._standings.get(room)
        return room in self._once_encrypted or (standing is not None and standing.encrypted)

    def take_up(self, stored: Iterable[StoreLocked], now: float) -> None:
        """Go on with what was shut before a restart."""
        self._done += self.held.take_up(stored, self._standings, now)

    def shut(self, room: RoomId, sources: Iterable[Source]) -> list[tuple[EventId, RoomId, Source]]:
        """Which of these are to be opened before they can be read."""
        found: list[tuple[EventId, RoomId, Source]] = []
        for source in sources:
            event_id, sender = events.event_id(source), events.sender(source)
            if event_id is None or sender is None or sender == self._bot or event_id in self._seen:
                continue
            if events.is_sealed(source):
                found.append((event_id, room, source))
        return found

    def read(
        self,
        batch: SyncBatch,
        timelines: Mapping[RoomId, Sequence[Source]],
        opened: Mapping[Place, Unsealed],
        *,
        whole: bool,
        history: bool,
        now: float,
    ) -> Read:
        """The batch as core events.

        That the bot can speak in a room is told before the room's events, that it cannot after them: an answer that
        was given before a kick was given. Between the two, what was shut comes before what is new.
        """
        read = Read()
        coming: list[Event] = []
        going: list[Event] = []
        about = _Batch(opened, read, history=history, now=now)
        late = [*self._done, *self._late(about), *self.held.overdue(now)]
        self._done.clear()
        happened: list[Event] = []
        for room, standing in self._standings.items():
            replaced = standing.replaced
            if room in batch.rooms:
                timeline = batch.rooms[room]
                standing.enter(timeline.state, whole=whole or not standing.joined)
                happened += self._events(room, timelines[room], about)
                for source in timeline.events:
                    standing.see(source)
            elif room in batch.left:
                happened += self._events(room, batch.left[room].events, about)
                standing.leave()
            if standing.replaced is not None and (standing.replaced != replaced or room not in self._reported):
                read.replaced.append((room, standing.replaced))
            after = standing.seen()
            if after != self._reported.get(room):
                self._reported[room] = after
                if after.state is not RoomState.JOINED:
                    self._warn(room, after.state)
                (going if room in batch.left or after.state is not RoomState.JOINED else coming).append(after)
        read.invites = batch.invites
        read.found = [*coming, *late, *happened, *going]
        return read

    def _warn(self, room: RoomId, state: RoomState) -> None:
        reason = {"reason": self._no_sealing_reason} if state is RoomState.ENCRYPTED else {}
        log.warning("matrix.room_unusable", room=room, why=state, **reason)

    # --------------------------------------------------------------------------------------------------- one by one

    def _late(self, about: "_Batch") -> list[Event]:
        """What was shut and is not any more; what it said comes just before that it is done with."""
        found: list[Event] = []
        for event_id, room, opened in self.held.settle(about.opened, about.now):
            event = None if opened is None else self._opened(room, opened, about.read)
            if event is not None:
                found.append(event)
            found.append(Unlocked(room=room, event_id=event_id))
        return found

    def _events(self, room: RoomId, sources: Sequence[Source], about: "_Batch") -> list[Event]:
        found: list[Event] = []
        standing = self._standings[room]
        encrypted = standing.encrypted
        for source in sources:
            event_id, sender = events.event_id(source), events.sender(source)
            if event_id is None or event_id in self._seen:
                continue
            self._seen[event_id] = None
            if len(self._seen) > SEEN_MOST:
                self._seen.popitem(last=False)
            encrypted = encrypted or (events.is_state(source) and events.kind(source) == events.ENCRYPTION)
            standing.see_name(source)
            if events.is_sealed(source) and sender is not None and sender != self._bot:
                if (room, event_id) in about.opened:
                    found += self._unsealed(room, source, event_id, about)
                continue
            event = inbox.read(source, room=room, bot=self._bot, names=self._called(room), exposed=encrypted)
            if about.history and not isinstance(event, Echoed):
                continue
            if event is not None:
                found.append(event)
            elif events.is_verification(source) and not encrypted:
                about.read.steps.append((room, source))
            if isinstance(event, Redacted):
                found += self.held.drop(room, event.target)  # nobody else can read it any more either
        return found

    def _unsealed(self, room: RoomId, source: Source, event_id: EventId, about: "_Batch") -> list[Event]:
        """What an encrypted event is for the core, at its place in sync order."""
        sender = events.sender(source)
        if sender is None:
            raise AssertionError("unreachable")
        match about.opened[room, event_id]:
            case Opened() as opened:
                event = self._opened(room, opened, about.read)
                return [] if event is None else [event]
            case Shut(why=Why.NEVER):
                log.warning("matrix.never_readable", room=room, event_id=event_id, sender=sender)
                return []
            case Shut(why=why):
                dropped = self.held.hold(room, sender, event_id, source, why=why, now=about.now)
                return [held.lock(room, sender, event_id, source), *dropped]

    def _opened(self, room: RoomId, opened: Opened, read: Read) -> Event | None:
        source = opened.source
        if events.is_verification(source):
            read.steps.append((room, source))
            return None
        event = inbox.read(source, room=room, bot=self._bot, names=self._called(room), seal=opened.seal)
        # A redaction is never encrypted (the server has to act on it), and an own event needs no opening.
        return None if isinstance(event, Redacted | Echoed) else event

    def _called(self, room: RoomId) -> tuple[str, ...]:
        name = self._standings[room].name
        return (*self._names, name) if name else self._names


@dataclass(frozen=True, slots=True)
class _Batch:
    """What goes with the events of one batch: what its encrypted events hold, where its findings go, and when it came."""

    opened: Mapping[Place, Unsealed]
    read: Read
    history: bool = field(kw_only=True)
    now: float = field(kw_only=True)
