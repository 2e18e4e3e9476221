"""Encryption on a real Synapse, with a person on nio's own client at the other end."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from bridge.core.errors import EventTooLarge, KeysLost
from bridge.core.model import RoomId, SyncToken, TransactionId, UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from bridge.matrix.sealing import Opened
from tests.peers.nio_person import NioPerson, nio_person


class Bot:
    """A device of the bridge that syncs when told."""

    def __init__(self, url: str, account: Account, folder: Path, *, create: bool = True) -> None:
        self._made_of = (url, account, folder)
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

    def restarted(self, folder: Path | None = None) -> "Bot":
        """The same device in another process."""
        url, account, own = self._made_of
        return Bot(url, account, folder or own, create=False)

    async def close(self) -> None:
        await self.client.close()
        self.machine.close()


@pytest.fixture
async def bot(synapse: Homeserver, tmp_path: Path) -> AsyncIterator[Bot]:
    made = Bot(synapse.base_url, synapse.register(f"bot{uuid4().hex}"), tmp_path / "bot")
    await made.sealing.start()
    yield made
    await made.close()


@pytest.fixture
def account(synapse: Homeserver) -> Account:
    """Alice's."""
    return synapse.register(f"alice{uuid4().hex}")


@pytest.fixture
async def alice(synapse: Homeserver, account: Account, tmp_path: Path) -> AsyncIterator[NioPerson]:
    async with nio_person(
        synapse.base_url, account.user_id, account.device_id, account.access_token, tmp_path / "alice"
    ) as person:
        yield person


def drain(synapse: Homeserver, bot: Bot, times: int) -> None:
    """Somebody claims the bot's keys, for which no shared room is needed."""
    somebody = synapse.register(f"somebody{uuid4().hex}")
    wanted = {"one_time_keys": {bot.user: {bot.machine.device_id: "signed_curve25519"}}}
    for _ in range(times):
        call(synapse.base_url, "POST", "/_matrix/client/v3/keys/claim", wanted, token=somebody.access_token)


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


async def test_what_people_do_in_a_room_comes_as_they_did_it(bot: Bot, alice: NioPerson) -> None:
    """Relations are in the clear for nio, inside for others; reactions are never encrypted."""
    room = await together(bot, alice)
    root = await bot.send(room, [bot.user, alice.user_id], "t1", "prompt")
    await alice.read(root)
    said = [
        await alice.reply(room, root, "1"),
        await alice.thread(room, root, "2"),
        await alice.vote(room, root, "answer"),
    ]
    reaction = await alice.react(room, root, "1️⃣")
    await bot.sync(room)
    opened = [await bot.sealing.open(RoomId(room), bot.seen[event_id]) for event_id in said]
    found = [events.relation(one.source) for one in opened if isinstance(one, Opened)]
    assert [(None, root), ("m.thread", root), ("m.reference", None)] == [
        (one.rel_type, one.replied_to) for one in found
    ]
    assert ([root] * 2, "m.reaction") == ([one.event_id for one in found[1:]], bot.seen[reaction]["type"])


async def test_a_malformed_letter_from_a_stranger_stops_nothing_also_after_a_restart(
    bot: Bot, alice: NioPerson, synapse: Homeserver
) -> None:
    """Fault 1: no shared room is needed for it, and it came again with every restart from the same token."""
    room = await together(bot, alice)
    stranger = synapse.register(f"stranger{uuid4().hex}")
    poison = {
        "algorithm": "m.olm.v1.curve25519-aes-sha2",
        "sender_key": "k",
        "ciphertext": {bot.machine.curve_key: {"type": 0, "body": "!!"}},
    }
    messages = {"messages": {bot.user: {bot.machine.device_id: poison}}}
    path = "/_matrix/client/v3/sendToDevice/m.room.encrypted/t1"
    call(synapse.base_url, "PUT", path, messages, token=stranger.access_token)
    said = await alice.say(room, "1")
    before = bot.since
    await bot.sync(room)
    first = await bot.sealing.open(RoomId(room), bot.seen[said])
    again = bot.restarted()
    again.since = before
    await again.sealing.start()
    await again.sync(room)
    second = await again.sealing.open(RoomId(room), again.seen[said])
    await again.close()
    assert ["1", "1"] == [events.content(one.source)["body"] for one in (first, second) if isinstance(one, Opened)]


async def test_when_somebody_has_claimed_all_keys_people_can_still_write(
    bot: Bot, alice: NioPerson, synapse: Homeserver
) -> None:
    """Fault 9: anybody may claim them; the fallback key serves until they are refilled."""
    drain(synapse, bot, 60)
    room = await together(bot, alice)  # alice's client can only have got the fallback key, before the refill
    said = await alice.say(room, "1")
    await bot.sync(room)
    opened = await bot.sealing.open(RoomId(room), bot.seen[said])
    counted = await bot.client.call("POST", "keys", "upload", body={})
    assert isinstance(opened, Opened)
    assert 50 == events.mapping(counted, "one_time_key_counts")["signed_curve25519"]


async def test_an_old_copy_of_the_keys_does_not_go_on_beside_the_new_ones(
    bot: Bot, synapse: Homeserver, tmp_path: Path
) -> None:
    """As after a backup was put back: what was encrypted since is lost to it, and its keys clash with the published."""
    bot.machine.close()
    await anyio.to_thread.run_sync(shutil.copytree, tmp_path / "bot", tmp_path / "copy")
    newer, older = bot.restarted(), bot.restarted(tmp_path / "copy")
    drain(synapse, bot, 30)
    await newer.sealing.start()
    drain(synapse, bot, 30)
    with pytest.raises(KeysLost):
        await older.sealing.start()
    for one in (newer, older):
        await one.close()


async def test_a_person_who_joins_later_can_read_what_comes_then(
    bot: Bot, alice: NioPerson, synapse: Homeserver, tmp_path: Path
) -> None:
    room = await together(bot, alice)
    await bot.send(room, [bot.user, alice.user_id], "t1", "before")
    hers = synapse.register(f"carol{uuid4().hex}")
    async with nio_person(
        synapse.base_url, hers.user_id, hers.device_id, hers.access_token, tmp_path / "carol"
    ) as carol:
        await alice.nio.room_invite(room, carol.user_id)
        await carol.join(room)
        await bot.sync(room)
        sent = await bot.send(room, [bot.user, alice.user_id, carol.user_id], "t2", "after")
        read = [(await person.read(sent))["content"]["body"] for person in (alice, carol)]
    assert ["after", "after"] == read


async def test_a_second_device_of_a_person_is_given_the_key_as_soon_as_it_is_there(
    bot: Bot, alice: NioPerson, account: Account, synapse: Homeserver, tmp_path: Path
) -> None:
    room = await together(bot, alice)
    await bot.send(room, [bot.user, alice.user_id], "t1", "before")
    wish = {"type": "m.login.password", "identifier": {"type": "m.id.user", "user": alice.user_id}}
    password = {"password": account.password, "device_id": "SECOND"}
    answer = call(synapse.base_url, "POST", "/_matrix/client/v3/login", wish | password)
    token = str(answer.body["access_token"])
    async with nio_person(synapse.base_url, alice.user_id, "SECOND", token, tmp_path / "second") as second:
        await bot.sync(room)
        sent = await bot.send(room, [bot.user, alice.user_id], "t2", "after")
        assert "after" == (await second.read(sent))["content"]["body"]


async def test_a_restart_goes_on_with_the_keys_that_are_there(bot: Bot, alice: NioPerson) -> None:
    room = await together(bot, alice)
    said = await alice.say(room, "while it was away")
    again = bot.restarted()
    again.since = bot.since
    await again.sealing.start()
    await again.sync(room)
    opened = await again.sealing.open(RoomId(room), again.seen[said])
    sent = await again.send(room, [bot.user, alice.user_id], "t1", "back")
    read = (await alice.read(sent))["content"]["body"]
    await again.close()
    assert isinstance(opened, Opened)
    assert ("while it was away", "back") == (events.content(opened.source)["body"], read)


async def test_the_largest_event_that_we_let_go_is_taken_by_the_homeserver(bot: Bot, alice: NioPerson) -> None:
    room = await together(bot, alice)
    members, fits = [bot.user, alice.user_id], 46_100
    sent = await bot.send(room, members, "t1", "x" * fits)
    with pytest.raises(EventTooLarge):
        await bot.send(room, members, "t2", "x" * (fits + 400))
    assert fits == len((await alice.read(sent))["content"]["body"])
