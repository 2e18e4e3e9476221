"""Encryption on a real Synapse, with a person on nio's own client at the other end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.core.model import RoomId, SyncToken, TransactionId, UserId
from bridge.demo.homeserver import Account, Homeserver
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from bridge.matrix.sealing import Opened
from tests.peers.nio_person import NioPerson, nio_person


class Bot:
    """A device of the bridge that syncs when told."""

    def __init__(self, url: str, account: Account, folder: Path, *, create: bool = True) -> None:
        self.user = UserId(account.user_id)
        self.client = Client(url, user_id=self.user, device_id=account.device_id, access_token=account.access_token)
        self.machine = Machine(folder, self.user, account.device_id, create=create)
        self.sealing = Encryption(self.client, self.machine)
        self.since: SyncToken | None = None
        self.seen: dict[str, events.Source] = {}

    async def sync(self, room: str) -> None:
        batch = await self.client.sync(self.since, timeout_ms=0, full_state=self.since is None, rooms=[RoomId(room)])
        await self.sealing.receive(batch)
        for timeline in batch.rooms.values():
            for source in timeline.events:
                self.seen[str(source["event_id"])] = source
        self.since = batch.next_batch
        await self.sealing.tidy()

    async def send(self, room: str, members: list[str], txn: str, text: str) -> str:
        where = RoomId(room)
        kind, content = await self.sealing.encrypt(
            where, [UserId(member) for member in members], "m.room.message", {"msgtype": "m.text", "body": text}
        )
        return await self.client.send(where, kind, content, TransactionId(txn))

    async def close(self) -> None:
        await self.client.close()
        self.machine.close()


@pytest.fixture
async def bot(synapse: Homeserver, tmp_path: Path) -> AsyncIterator[Bot]:
    made = Bot(synapse.base_url, synapse.register(f"bot{abs(hash(str(tmp_path))) % 10**9}"), tmp_path / "bot")
    await made.sealing.start()
    yield made
    await made.close()


@pytest.fixture
async def alice(synapse: Homeserver, tmp_path: Path) -> AsyncIterator[NioPerson]:
    account = synapse.register(f"alice{abs(hash(str(tmp_path))) % 10**9}")
    async with nio_person(
        synapse.base_url, account.user_id, account.device_id, account.access_token, tmp_path / "alice"
    ) as person:
        yield person


async def together(bot: Bot, alice: NioPerson) -> str:
    room = await alice.room(bot.user)
    await bot.client.join(RoomId(room))
    await bot.sync(room)
    await alice.until_member(room, bot.user)
    return room


async def test_what_the_bot_says_a_person_can_read(bot: Bot, alice: NioPerson) -> None:
    room = await together(bot, alice)
    sent = await bot.send(room, [bot.user, alice.user_id], "t1", "Grüße")
    assert "Grüße" == (await alice.read(sent))["content"]["body"]


async def test_what_a_person_says_the_bot_can_read(bot: Bot, alice: NioPerson) -> None:
    room = await together(bot, alice)
    said = await alice.say(room, "1")
    await bot.sync(room)
    opened = await bot.sealing.open(RoomId(room), bot.seen[said])
    assert isinstance(opened, Opened)
    assert ("1", alice.device_id, alice.user_id) == (
        events.content(opened.source)["body"],
        opened.seal.device_id,
        opened.source["sender"],
    )
