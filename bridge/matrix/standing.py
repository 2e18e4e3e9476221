"""How the bot stands in one room, kept from the room's state events.

Above it: the sync loop. Below it: the event readers. It refuses to know how the events came here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bridge.core.events import RoomSeen, RoomState
from bridge.core.model import RoomId, UserId
from bridge.matrix import events
from bridge.matrix.events import Source


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a tombstone says: the room that takes the place of this one, if it names any, and who says so."""

    room: RoomId | None
    by: UserId | None


class Standing:
    """The bot's place in one room: joined, encrypted, replaced, its name, and who else is there.

    Only the ids of who is joined are kept. Power levels are not read: in room version 12 a creator stands above all of
    them, and the server says soon enough what it refuses (matrix.md, sections 4 and 8). `seals`: the bridge can speak
    in an encrypted room.
    """

    __slots__ = ("_bot", "_encrypted", "_joined", "_people", "_replaced", "_room", "_seals", "name")

    def __init__(self, room: RoomId, bot: UserId, *, seals: bool = False) -> None:
        self._room = room
        self._bot = bot
        self._seals = seals
        self._joined = False
        self._encrypted = False
        self._replaced: Replacement | None = None
        self._people: set[UserId] = set()
        self.name: str | None = None  # what clients call the bot here; it may change at any time

    @property
    def joined(self) -> bool:
        """Whether the bot is in the room."""
        return self._joined

    @property
    def encrypted(self) -> bool:
        """Whether the room is encrypted; it stays so, whatever later state says (matrix.md, section 6, rule a)."""
        return self._encrypted

    def encrypt(self) -> None:
        """The room is encrypted, or was once."""
        self._encrypted = True

    @property
    def people(self) -> frozenset[UserId]:
        """Who is joined, other than the bot."""
        return frozenset(self._people)

    @property
    def replaced(self) -> Replacement | None:
        """What took the room's place, once it was upgraded."""
        return self._replaced

    def enter(self, state: Iterable[Source], *, whole: bool) -> None:
        """The bot is in the room; `state` is all of its state when `whole`, else what changed of it."""
        if whole:
            self._people.clear()
            self._replaced = None
        self._joined = True
        for source in state:
            self.see(source)

    def see(self, source: Source) -> None:
        """Take in one event of the room, if it is a state event that matters here."""
        member = events.membership(source)
        if member is not None and member.user == self._bot:
            self.see_name(source)
        elif member is not None:
            (self._people.add if member.now == "join" else self._people.discard)(member.user)
        if events.text(source, "state_key") != "":
            return
        match events.kind(source):
            case events.ENCRYPTION:
                self._encrypted = True
            case events.TOMBSTONE:
                self._replaced = _replacement(source)
            case _:
                pass

    def see_name(self, source: Source) -> None:
        """Take in what the bot is called from here on, if the event says so."""
        member = events.membership(source)
        if member is not None and member.user == self._bot:
            self.name = events.text(events.content(source), "displayname") or self.name

    def own_join(self, found: Sequence[Source]) -> int | None:
        """Where the bot itself came into the room, before all of `found` was seen; beyond it nothing is an answer.

        A new display name is a join event as well, and none of these.
        """
        for index in range(len(found) - 1, -1, -1):
            member = events.membership(found[index])
            if member is None or member.user != self._bot or member.now != "join":
                continue
            if member.before != "join" and (member.before is not None or not self._joined):
                return index
        return None

    def leave(self) -> None:
        """The bot left, was kicked or banned."""
        self._joined = False
        self._people.clear()

    def seen(self) -> RoomSeen:
        """All of it as the core's event."""
        if not self._joined:
            state = RoomState.NOT_JOINED
        elif self._replaced is not None:
            state = RoomState.REPLACED
        elif self._encrypted and not self._seals:
            state = RoomState.ENCRYPTED
        else:
            state = RoomState.JOINED
        return RoomSeen(room=self._room, state=state, people=len(self._people), encrypted=self._encrypted)


def _replacement(source: Source) -> Replacement | None:
    """None once the tombstone was redacted: then its content is empty."""
    content = events.content(source)
    room = events.text(content, "replacement_room")
    return Replacement(RoomId(room) if room else None, events.sender(source)) if content else None
