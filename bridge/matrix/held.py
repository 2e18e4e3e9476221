"""Encrypted events that stay shut: each waits here until its key comes, and is told of once when it does not.

Above it: reading and the sync loop. Below it: the words of `sealing` and the event readers. It refuses to know how
anything is opened and what the time is: it is told both.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import structlog

from bridge.core.changes import StoreLocked
from bridge.core.events import Locked, StillLocked, Unlocked
from bridge.core.model import EventId, RoomId, UserId
from bridge.matrix.events import Source
from bridge.matrix.sealing import Opened, Place, Shut, Unsealed, Why

log = structlog.stdlib.get_logger()

HELD_MOST = 500  # somebody can send any number of events that nobody can open; each one held costs up to 64 KB
UNREADABLE_S = 10.0  # a key that comes at all comes within a second or two; after this the person is told
ASK_AGAIN_S = 3.0  # long enough for the key of a slow phone, and early enough to get it before `UNREADABLE_S`
SOON_S = 2.0  # after a homeserver could not say whose devices there are; doubled each time
SOON_MOST_S = 32.0  # a long poll's time: by then nothing is gained by asking more often
DOUBLINGS_MOST = 4  # from the one to the other


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """One event that is shut, and what was done about it."""

    room: RoomId
    sender: UserId
    source: Source
    why: Why
    since: float
    tried: float
    tries: int = 0
    asked: bool = False
    told: bool = False

    def due(self) -> float | None:
        """When something is to be done about it, whatever else happens."""
        times: list[float] = []
        if not self.told:
            times.append(self.since + UNREADABLE_S)
        if self.why is Why.NOT_NOW:
            times.append(self.tried + min(SOON_MOST_S, SOON_S * 2 ** min(self.tries, DOUBLINGS_MOST)))
        elif not self.asked:
            times.append(self.since + ASK_AGAIN_S)
        return min(times, default=None)


class Held:
    """The events that are shut, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[EventId, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def all(self) -> tuple[tuple[EventId, RoomId, Source], ...]:
        """What is to be tried again with the next batch."""
        return tuple((event_id, one.room, one.source) for event_id, one in self._waiting.items())

    def hold(
        self, room: RoomId, sender: UserId, event_id: EventId, source: Source, *, why: Why, now: float
    ) -> list[Unlocked]:
        """Keep an event for later. Where too many wait, nobody waits for the oldest of who sent the most any more.

        An id that waits already stays what it is: homeservers are believed about ids only once.
        """
        if event_id in self._waiting:
            return []
        self._waiting[event_id] = _Waiting(room=room, sender=sender, source=source, why=why, since=now, tried=now)
        dropped: list[Unlocked] = []
        while len(self._waiting) > HELD_MOST:
            ((most, _),) = Counter(one.sender for one in self._waiting.values()).most_common(1)
            oldest = next(event_id for event_id, one in self._waiting.items() if one.sender == most)
            where = self._waiting[oldest].room
            log.warning("matrix.locked_dropped", room=where, event_id=oldest)
            dropped += self.drop(where, oldest)
        return dropped

    def drop(self, room: RoomId, event_id: EventId) -> list[Unlocked]:
        """Wait for it no longer."""
        if event_id not in self._waiting or self._waiting[event_id].room != room:
            return []
        del self._waiting[event_id]
        return [Unlocked(room=room, event_id=event_id)]

    def take_up(self, stored: Iterable[StoreLocked], rooms: Collection[RoomId], now: float) -> list[Unlocked]:
        """Go on with what was shut before a restart; what cannot be read back or is of no bound room is done with."""
        done: list[Unlocked] = []
        for row in stored:
            source = _parse(row.raw)
            if source is None or row.room not in rooms:
                done.append(Unlocked(room=row.room, event_id=row.event_id))
            else:
                done += self.hold(row.room, row.sender, row.event_id, source, why=Why.NO_KEY, now=now)
        return done

    def settle(self, tried: Mapping[Place, Unsealed], now: float) -> list[tuple[EventId, RoomId, Opened | None]]:
        """Take in what came of the new tries; what is done with comes back, opened or for ever shut (None)."""
        done: list[tuple[EventId, RoomId, Opened | None]] = []
        for (room, event_id), unsealed in tried.items():
            one = self._waiting.get(event_id)
            if one is None or one.room != room:
                continue
            if isinstance(unsealed, Shut) and unsealed.why is not Why.NEVER:
                one.tries = one.tries + 1 if unsealed.why is one.why else 0
                one.why, one.tried = unsealed.why, now
                continue
            del self._waiting[event_id]
            done.append((event_id, one.room, unsealed if isinstance(unsealed, Opened) else None))
        return done

    def overdue(self, now: float) -> list[StillLocked]:
        """What has been shut for so long that its sender should hear of it; each is told once."""
        found: list[StillLocked] = []
        for event_id, one in self._waiting.items():
            if not one.told and now - one.since >= UNREADABLE_S:
                one.told = True
                withheld = one.why is Why.WITHHELD
                log.warning("matrix.unreadable", room=one.room, event_id=event_id, sender=one.sender, why=one.why.value)
                found.append(StillLocked(room=one.room, sender=one.sender, event_id=event_id, withheld=withheld))
        return found

    def to_ask(self, now: float) -> list[tuple[RoomId, Source]]:
        """What the senders' devices are to be asked for now; each once."""
        found: list[tuple[RoomId, Source]] = []
        for one in self._waiting.values():
            if not one.asked and one.why is not Why.NOT_NOW and now - one.since >= ASK_AGAIN_S:
                one.asked = True
                found.append((one.room, one.source))
        return found

    def due_s(self, now: float) -> float | None:
        """Seconds until something is due for one of them; None: until the next batch."""
        times = [due for one in self._waiting.values() if (due := one.due()) is not None]
        return max(0.0, min(times) - now) if times else None


def lock(room: RoomId, sender: UserId, event_id: EventId, source: Source) -> Locked:
    """The core's event for one that is shut. ASCII, so that no text of a stranger is one that cannot be stored."""
    return Locked(room=room, sender=sender, event_id=event_id, raw=json.dumps(source, separators=(",", ":")))


def _parse(raw: str) -> Source | None:
    try:
        found: object = json.loads(raw)
    except ValueError:
        return None
    return cast("Source", found) if isinstance(found, dict) else None
