"""What `check` asks of a real homeserver, and what it leaves there as it was."""

import socket
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from bridge.app.device import discard_keys
from bridge.app.inspection import BotAccount, ask_running_bridge
from bridge.core.changes import StorePin
from bridge.core.errors import HomeserverUnreachable, KeysDamaged, KeysLost
from bridge.core.events import RoomState
from bridge.core.model import Millis, TransactionId, UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.keyserver import KeyServer
from bridge.ops.control import socket_path
from bridge.ops.findings import Keys, RunningBridge
from bridge.store.ledger import SqliteLedger
from tests.peers.devices import at_work, client_of

ENCRYPTION = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}


@asynccontextmanager
async def looking(synapse: Homeserver, bot: Account, folder: Path) -> AsyncGenerator[BotAccount]:
    """What `check` has of the bot's account."""
    async with client_of(synapse.base_url, bot) as client:
        yield BotAccount(client, bot.access_token, state_dir=folder, ledger_file=folder / "ledger.db")


@dataclass(slots=True)
class People:
    """The bot and one approver, who share an encrypted room."""

    synapse: Homeserver
    bot: Account
    amy: Account
    room: str


@pytest.fixture
def people(synapse: Homeserver) -> People:
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(synapse, amy, preset="private_chat", invite=[bot.user_id], initial_state=[ENCRYPTION])
    path = f"/_matrix/client/v3/join/{quote(room)}"
    assert call(synapse.base_url, "POST", path, {}, token=bot.access_token).status == HTTPStatus.OK
    return People(synapse, bot, amy, room)


def make_room(synapse: Homeserver, owner: Account, **wishes: Any) -> str:  # noqa: ANN401 - JSON
    answer = call(synapse.base_url, "POST", "/_matrix/client/v3/createRoom", wishes, token=owner.access_token)
    assert answer.status == HTTPStatus.OK
    return str(answer.body["room_id"])


@pytest.mark.parametrize("invited", [True, False])
async def test_a_bot_that_is_not_in_the_room_knows_whether_it_is_invited(
    synapse: Homeserver, tmp_path: Path, invited: bool
) -> None:
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(synapse, amy, preset="private_chat", invite=[bot.user_id] if invited else [])
    async with looking(synapse, bot, tmp_path) as looked:
        report = await looked.inspect(room)
    assert (report.state, report.invited) == (RoomState.NOT_JOINED, invited)


LEVELS = {"events_default": 50, "users_default": 0}


@pytest.mark.parametrize(
    ("version", "creator", "more", "may"),
    [
        ("12", False, [], False),
        ("12", True, [], True),
        ("12", False, ["bot"], True),
        ("11", False, ["bot"], False),
    ],
    ids=["somebody else's", "its own", "one of its creators", "made before creators stood above levels"],
)
async def test_a_creator_may_speak_whatever_the_levels_say(
    synapse: Homeserver, version: str, creator: bool, more: list[str], may: bool, *, tmp_path: Path
) -> None:
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(
        synapse,
        bot if creator else amy,
        preset="private_chat",
        invite=[amy.user_id if creator else bot.user_id],
        room_version=version,
        creation_content={"additional_creators": [bot.user_id for _ in more]} if more else {},
        power_level_content_override=LEVELS,
    )
    path = f"/_matrix/client/v3/join/{quote(room)}"
    assert call(synapse.base_url, "POST", path, {}, token=bot.access_token).status == HTTPStatus.OK
    async with looking(synapse, bot, tmp_path) as looked:
        report = await looked.inspect(room)
    assert (report.state, report.may_send, report.may_react) == (RoomState.JOINED, may, may)


async def test_an_invitation_between_two_looks_is_seen(synapse: Homeserver, tmp_path: Path) -> None:
    """Synapse keeps its answer to the very same sync for two minutes."""
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(synapse, amy, preset="private_chat")
    async with looking(synapse, bot, tmp_path) as looked:
        assert not (await looked.inspect(room)).invited
        path, body = f"/_matrix/client/v3/rooms/{quote(room)}/invite", {"user_id": bot.user_id}
        assert call(synapse.base_url, "POST", path, body, token=amy.access_token).status == HTTPStatus.OK
        assert (await looked.inspect(room)).invited


@pytest.mark.parametrize(
    ("kind", "encrypted", "may"),
    [
        ("m.room.encrypted", True, False),
        ("m.room.message", True, True),
        ("m.room.encrypted", False, True),
        ("m.room.message", False, False),
    ],
)
async def test_what_the_bot_may_send_is_what_it_sends_in_such_a_room(
    synapse: Homeserver, tmp_path: Path, kind: str, encrypted: bool, may: bool
) -> None:
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(
        synapse,
        amy,
        preset="private_chat",
        invite=[bot.user_id],
        initial_state=[ENCRYPTION] if encrypted else [],
        power_level_content_override={"events": {kind: 50}},
    )
    path = f"/_matrix/client/v3/join/{quote(room)}"
    assert call(synapse.base_url, "POST", path, {}, token=bot.access_token).status == HTTPStatus.OK
    async with looking(synapse, bot, tmp_path) as looked:
        report = await looked.inspect(room)
    assert (report.state, report.encrypted, report.may_send) == (RoomState.JOINED, encrypted, may)


# ------------------------------------------------------------------------------------------------------- the bot's keys


def read_all(folder: Path) -> dict[str, bytes]:
    """Every file but the one in which SQLite notes who reads."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


async def test_a_healthy_bridge_is_looked_at_while_it_has_its_keys_open(people: People, tmp_path: Path) -> None:
    async with at_work(people.synapse.base_url, people.bot, tmp_path) as bridge:
        await bridge.sign()
        files = read_all(tmp_path)
        async with looking(people.synapse, people.bot, tmp_path) as looked:
            assert await looked.compare_keys(people.bot.device_id) is Keys.SAME
            device = await looked.inspect_device(people.bot.device_id)
            assert (device.problem, device.fingerprint.replace(" ", "")) == (None, bridge.machine.fingerprint)
            assert await looked.has_fallback_key()
            room = await looked.inspect(people.room)
            assert (room.state, room.encrypted, room.may_send) == (RoomState.JOINED, True, True)
            assert looked.times_limited == 0
        assert files == read_all(tmp_path)
        await bridge.encryption.tidy()  # and the bridge goes on


async def test_a_device_that_its_account_has_not_signed_says_what_to_do(people: People, tmp_path: Path) -> None:
    async with at_work(people.synapse.base_url, people.bot, tmp_path):
        pass
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        device = await looked.inspect_device(people.bot.device_id)
    assert device.problem is not None
    assert "Run `acp-matrix-bridge login`." in device.problem


async def test_a_fallback_key_that_comes_between_two_looks_is_seen(people: People, tmp_path: Path) -> None:
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        assert not await looked.has_fallback_key()
        async with at_work(people.synapse.base_url, people.bot, tmp_path):
            pass
        assert await looked.has_fallback_key()


async def test_where_nothing_was_ever_made_nothing_is_made(people: People, tmp_path: Path) -> None:
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        assert await looked.compare_keys(people.bot.device_id) is Keys.NOT_MADE
        assert not await looked.has_fallback_key()
        with pytest.raises(KeysLost):
            await looked.inspect_device(people.bot.device_id)
    assert read_all(tmp_path) == {}


async def test_keys_that_never_left_are_told_from_those_that_are_lost(people: People, tmp_path: Path) -> None:
    with Machine(tmp_path, UserId(people.bot.user_id), people.bot.device_id, create=True):
        pass
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        assert await looked.compare_keys(people.bot.device_id) is Keys.NOT_PUBLISHED


def make_others(folder: Path, bot: Account) -> None:
    discard_keys(folder)
    with Machine(folder, UserId(bot.user_id), bot.device_id, create=True):
        pass


def lose(folder: Path, _bot: Account) -> None:
    discard_keys(folder)


@pytest.mark.parametrize("spoil", [lose, make_others])
async def test_keys_that_the_homeserver_has_and_we_have_not_are_lost(
    spoil: Callable[[Path, Account], None], people: People, tmp_path: Path
) -> None:
    async with at_work(people.synapse.base_url, people.bot, tmp_path):
        pass
    spoil(tmp_path, people.bot)
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        assert await looked.compare_keys(people.bot.device_id) is Keys.LOST


async def test_the_keys_of_another_device_are_not_ours(people: People, tmp_path: Path) -> None:
    async with at_work(people.synapse.base_url, people.bot, tmp_path):
        pass
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        with pytest.raises(KeysLost, match="The keys of device ANOTHER are not in"):
            await looked.compare_keys("ANOTHER")


@pytest.mark.parametrize(
    ("name", "content"), [("keys.db", b"torn" * 1000), ("pickle.key", b"another key"), ("pickle.key", None)]
)
async def test_keys_that_cannot_be_read_are_damaged(
    name: str, content: bytes | None, people: People, tmp_path: Path
) -> None:
    async with at_work(people.synapse.base_url, people.bot, tmp_path):
        pass
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        with pytest.raises(KeysDamaged):
            await looked.compare_keys(people.bot.device_id)


async def test_no_look_takes_a_message_to_the_device_from_the_bridge(people: People, tmp_path: Path) -> None:
    """A sync that goes on from another drops them (the last lines show it): a look that did would cost room keys."""
    async with (
        client_of(people.synapse.base_url, people.bot) as bridge,
        client_of(people.synapse.base_url, people.amy) as amy,
    ):
        before = (await bridge.sync(None, timeout_ms=0, full_state=False, rooms=[])).next_batch
        message = {UserId(people.bot.user_id): {people.bot.device_id: {"body": "x"}}}
        await KeyServer(amy).send_to_device("org.example.test", message, TransactionId("t1"))
        async with looking(people.synapse, people.bot, tmp_path) as looked:
            for _ in range(2):
                await looked.has_fallback_key()
            await looked.inspect(make_room(people.synapse, people.amy, invite=[people.bot.user_id]))
        batch = await bridge.sync(before, timeout_ms=0, full_state=False, rooms=[])
        assert [source["type"] for source in batch.to_device] == ["org.example.test"]
        await bridge.sync(batch.next_batch, timeout_ms=0, full_state=False, rooms=[])
        # With another timeout: Synapse keeps its answer to the very same sync for two minutes.
        assert (await bridge.sync(before, timeout_ms=1, full_state=False, rooms=[])).to_device == ()


# -------------------------------------------------------------------------------------------------------------- people


async def test_the_devices_of_an_approver_are_as_they_are_signed(people: People, tmp_path: Path) -> None:
    amy = UserId(people.amy.user_id)
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        assert (await looked.inspect_person(amy)).seals == ()
        async with at_work(people.synapse.base_url, people.amy, tmp_path / "amy") as device:
            (seal,) = (await looked.inspect_person(amy)).seals
            assert (seal.device_id, seal.signed, seal.master) == (people.amy.device_id, False, None)
            master = (await device.sign()).master_key
        (seal,) = (await looked.inspect_person(amy)).seals
        assert (seal.device_id, seal.signed, seal.master) == (people.amy.device_id, True, master)


async def test_the_pin_of_an_approver_comes_from_the_ledger(people: People, tmp_path: Path) -> None:
    amy = UserId(people.amy.user_id)
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        assert (await looked.inspect_person(amy)).pinned is None
        ledger = await SqliteLedger.open(tmp_path / "ledger.db")
        await ledger.commit([StorePin(user=amy, master="master")], at=Millis(1))
        assert (await looked.inspect_person(amy)).pinned == "master"
        await ledger.close()


async def test_a_homeserver_that_cannot_be_asked_for_somebody_is_no_lack_of_devices(
    people: People, tmp_path: Path
) -> None:
    async with looking(people.synapse, people.bot, tmp_path) as looked:
        with pytest.raises(HomeserverUnreachable, match="cannot say which devices @amy:nowhere"):
            await looked.inspect_person(UserId("@amy:nowhere.invalid"))


# ------------------------------------------------------------------------------------------------- the bridge that runs


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            b'{"result": {"encryption": {"available": true, "why": null}, "times_limited": 3}}',
            RunningBridge(no_encryption=None, times_limited=3),
        ),
        (
            b'{"result": {"encryption": {"available": false, "why": "It is so."}, "times_limited": 0}}',
            RunningBridge(no_encryption="It is so.", times_limited=0),
        ),
        (b'{"result": {"agents": []}}', None),  # of an older version
        (b"{", None),
    ],
)
def test_what_a_running_bridge_says_is_taken_as_far_as_it_can_be_read(
    reply: bytes, expected: RunningBridge | None, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path(tmp_path)))
        listener.listen()

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(reply + b"\n")

        bridge = threading.Thread(target=answer)
        bridge.start()
        assert ask_running_bridge(tmp_path) == expected
        bridge.join()


def test_where_no_bridge_runs_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert ask_running_bridge(tmp_path) is None
