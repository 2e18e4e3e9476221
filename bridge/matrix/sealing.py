"""What the sync loop and the outbox need of encryption: the port between them and `matrix.encryption`.

Above it: sync, outbox, rooms. Below it: the client's batches. `encryption.Encryption` implements it on the real key store;
tests have a fake that is held to the same contract. It refuses to know who may answer: a `Seal` says how a message is
vouched for, and the core decides what that is worth (design.md, rule 13).
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from bridge.core.model import EventId, JsonObject, RoomId, Seal, UserId
from bridge.matrix.batches import SyncBatch
from bridge.matrix.events import Source


class Why(Enum):
    """Why an encrypted event cannot be read."""

    NO_KEY = "its room key has not come (yet)"
    WITHHELD = "the sender's client keeps the key from us on purpose"
    NOT_NOW = "the sender's devices could not be asked for; it may be opened a little later"
    NEVER = "it is damaged, was sent before, or is no message of this room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A decrypted event: `source` has the decrypted type and content, and id, sender and relation as they came outside.

    Where the encrypted part has no `m.relates_to`, the one in the clear stands in its place (matrix.md, section 6): the
    server could have put it there.
    """

    source: Source
    seal: Seal


@dataclass(frozen=True, slots=True)
class Shut:
    """An encrypted event that stays shut, for now or for good."""

    why: Why


Unsealed: TypeAlias = Opened | Shut

Place: TypeAlias = tuple[RoomId, EventId]
"""Where an event stands. A homeserver can give one id to two events: what was opened is of that room only."""


class Sealing(Protocol):
    """Encryption of one device. Every method that asks the homeserver raises the passing errors of `MatrixError`."""

    async def receive(self, batch: SyncBatch) -> None:
        """Take in what a sync says of keys and devices, before its timelines are read. Raises nothing for bad events."""
        ...

    async def open(self, room: RoomId, source: Source) -> Unsealed:
        """Decrypt one event. Never raises for what is in it or for a homeserver that is away (`NOT_NOW`)."""
        ...

    async def ask_again(self, room: RoomId, source: Source) -> None:
        """Ask the sender's devices once more for the key of an event that stays shut; best effort."""
        ...

    async def encrypt(
        self, room: RoomId, members: Collection[UserId], event_type: str, content: JsonObject
    ) -> tuple[str, JsonObject]:
        """The event to send instead, once every device of these members that can have the room key has it.

        May be cancelled or time out at any moment and be called again. Raises `HomeserverUnreachable` or `RateLimited`
        when keys could not be given out, `EventTooLarge` when the encrypted event would be too large for any server.
        """
        ...

    async def tidy(self) -> None:
        """What is due after a sync: keys to upload, devices to ask for, lost sessions to renew."""
        ...
