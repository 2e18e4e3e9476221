"""A bot that encrypts at a post office in memory, and Alice, who reads and writes without a bridge."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from structlog.testing import capture_logs

from bridge.core.errors import HomeserverUnreachable
from bridge.core.model import JsonObject, RoomId, SyncToken, UserId
from bridge.matrix.batches import SyncBatch
from bridge.matrix.crypto.machine import Deciphered, Machine, ToDevice
from bridge.matrix.encryption import Encryption
from bridge.matrix.events import ENCRYPTED
from bridge.matrix.sealing import Opened, Unsealed
from tests.fakes.postoffice import Json, PostOffice

ROOM = RoomId("!room")
BOT, ALICE, MALLORY = UserId("@bot:hs"), UserId("@alice:hs"), UserId("@mallory:hs")
EVERYBODY = (BOT, ALICE)
TEXT: JsonObject = {"msgtype": "m.text", "body": "1"}
AWAY = HomeserverUnreachable("away")


class World:
    """The bot's encryption, and Alice's machine, which needs none of its own."""

    def __init__(self, folder: Path) -> None:
        self.office = PostOffice()
        self.now = 1_800_000_000.0
        self._folder = folder
        self._machines: list[Machine] = []
        self.alice = self.machine(ALICE, "PHONE")
        self.office.publish(self.alice)
        self.bot = self.machine(BOT, "BOT")
        self.overheard: list[ToDevice] = []
        self.encryption = self.encrypting(self.bot)

    def machine(self, user: UserId, device: str) -> Machine:
        made = Machine(self._folder / device, user, device, create=True, clock=lambda: self.now)
        self._machines.append(made)
        return made

    def encrypting(self, machine: Machine) -> Encryption:
        client = self.office.client(machine.user_id, machine.device_id)
        return Encryption(client, machine, overhears=self.overheard.append)

    def restart(self) -> None:
        self.bot.close()
        self.bot = self.machine(BOT, "BOT")
        self.encryption = self.encrypting(self.bot)

    def close(self) -> None:
        for machine in self._machines:
            machine.close()

    def batch(self, **more: object) -> SyncBatch:
        """A sync that brings what came for the bot, and counts its keys."""
        where = (BOT, "BOT")
        plain: Json = {
            "next_batch": SyncToken("s1"),
            "to_device": self.office.collect(BOT, "BOT"),
            "one_time_keys": len(self.office.one_time[where]),
            "fallback_unused": where in self.office.fallback and where not in self.office.fallback_used,
        }
        plain.update(more)
        return SyncBatch(**plain)

    async def sync(self, **more: object) -> None:
        await self.encryption.receive(self.batch(**more))
        await self.encryption.tidy()

    def say(self, text: str = "1", *, event_id: str = "$e1", **more: object) -> Json:
        """Alice says something encrypted to the bot."""
        self.office.share(self.alice, ROOM, *EVERYBODY)
        content = self.alice.encrypt(ROOM, "m.room.message", {"msgtype": "m.text", "body": text})
        return {"type": ENCRYPTED, "event_id": event_id, "sender": ALICE, "content": {**content}} | more

    async def send(self, content: JsonObject = TEXT, *members: UserId) -> Json:
        """The bot says something; the event as it leaves."""
        kind, sealed = await self.encryption.encrypt(ROOM, members or EVERYBODY, "m.room.message", content)
        return {"type": kind, "event_id": "$sent", "sender": BOT, "content": {**sealed}}

    def read_by_alice(self, sent: Json) -> object:
        self.office.deliver(self.alice)
        found = self.alice.decrypt(ROOM, sent)
        return found.content["body"] if isinstance(found, Deciphered) else found


def body(found: Unsealed) -> object:
    content: Any = found.source["content"] if isinstance(found, Opened) else {"body": found}
    return content["body"]


@contextmanager
def logged() -> Generator[list[Any]]:
    structlog.reset_defaults()
    with capture_logs() as lines:
        yield lines
