"""What `verify` refuses, and what it lists; a whole verification is in `tests/clients/test_verifying.py`."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskStatus

from bridge import app
from bridge.app.service import find_room
from bridge.app.verifying import Plan, list_pinned, make_plan, verify_as, verify_with
from bridge.config import Config, load
from bridge.core.changes import StorePin
from bridge.core.errors import BridgeError, ConfigError
from bridge.core.events import Verified
from bridge.core.model import JsonObject, JsonValue, Millis, RoomId, UserId
from bridge.demo.homeserver import Account, Homeserver
from bridge.matrix.client import Client
from bridge.matrix.crosssigning import establish
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from bridge.matrix.keyserver import KeyServer
from bridge.ops.folder import hold_state_folder, open_state_folder
from bridge.ops.verify import Terminal
from bridge.store.ledger import SqliteLedger, read_pins

CONFIG = """\
state_dir = "state"
[matrix]
homeserver = "http://localhost:1"
user_id = "@bot:hs"
[agents.claude]
command = ["agent"]
room = "!one"
approvers = ["@amy:hs"]
[agents.codex]
command = ["agent"]
room = "#two:hs"
approvers = ["@bob:hs", "@amy:hs"]
[agents.quiet]
command = ["agent"]
policy = "reject_all"
"""
AMY, BOB = UserId("@amy:hs"), UserId("@bob:hs")


@dataclass
class Lines(Terminal):
    said: list[str] = field(default_factory=list[str])

    def say(self, line: str) -> None:
        self.said.append(line)

    async def ask(self, question: str) -> str | None:
        raise NotImplementedError(question)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.toml").write_text(CONFIG)
    return load(tmp_path / "config.toml")


def test_only_an_approver_can_be_verified(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"^@eve:hs is no approver of any agent"):
        make_plan(config, "@eve:hs")


def test_the_rooms_of_the_agents_that_a_person_answers_come_first(config: Config) -> None:
    assert ("#two:hs", "!one") == make_plan(config, "@bob:hs").rooms
    assert frozenset({BOB}) == make_plan(config, "@bob:hs").approvers


def test_without_a_name_every_approver_may_ask(config: Config) -> None:
    assert frozenset({AMY, BOB}) == make_plan(config, None).approvers


def test_while_the_bridge_runs_nobody_is_verified(config: Config) -> None:
    """A harness of the same user could say yes."""
    open_state_folder(config.state_dir)
    with (
        hold_state_folder(config.state_dir),
        pytest.raises(BridgeError, match=r"^The bridge is running\. Stop it, verify, and start it again"),
    ):
        app.verify(config, "@amy:hs")


async def test_what_is_pinned_is_listed_also_while_the_bridge_runs(config: Config) -> None:
    open_state_folder(config.state_dir)
    terminal = Lines()
    with hold_state_folder(config.state_dir):
        assert 0 == list_pinned(config, terminal, as_json=True)
        ledger = await SqliteLedger.open(config.ledger_file)
        await ledger.commit([StorePin(user=AMY, master="first")], at=Millis(1))
        await ledger.commit([StorePin(user=AMY, master="second")], at=Millis(2))
        assert 0 == list_pinned(config, terminal, as_json=True)
        assert 0 == list_pinned(config, terminal, as_json=False)
        await ledger.close()
    assert [
        {"user_id": "@amy:hs", "approver": True, "master_key": None},
        {"user_id": "@bob:hs", "approver": True, "master_key": None},
        {"user_id": "@amy:hs", "approver": True, "master_key": "second"},
        {"user_id": "@bob:hs", "approver": True, "master_key": None},
    ] == [json.loads(line) for line in terminal.said[:4]]
    assert ["@amy:hs  pinned      seco nd", "@bob:hs  not pinned"] == terminal.said[4:]


async def test_without_a_login_it_says_so(config: Config) -> None:
    with pytest.raises(BridgeError):
        await verify_with(config, "@amy:hs", Lines())


# ------------------------------------------------------------------------------------------------ on a real Synapse


@pytest.fixture
def bot(synapse: Homeserver, tmp_path: Path) -> Client:
    account = synapse.register(f"verify{abs(hash(str(tmp_path))) % 10**9}")
    return Client(
        synapse.base_url, user_id=account.user_id, device_id=account.device_id, access_token=account.access_token
    )


async def pin_nobody(_verified: Verified) -> None:
    raise NotImplementedError


async def attempt(bot: Client, folder: Path, user: UserId | None, terminal: Lines, *, identity: bool) -> int:
    try:
        user_id, device_id = await bot.whoami()
        with anyio.fail_after(30), Machine(folder, user_id, device_id, create=True) as machine:
            if identity:
                await Encryption(bot, machine).start()
                await establish(
                    KeyServer(bot), machine, folder, user_id=user_id, recovery_key=None, password=None, reset=False
                )
            plan = Plan(folder=folder, user=user, approvers=frozenset({AMY}), rooms=("!nowhere:localhost",))
            return await verify_as(plan, bot, machine, pin_nobody, terminal)
    finally:
        await bot.close()


async def test_a_bot_without_an_identity_cannot_be_verified(bot: Client, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `acp-matrix-bridge login`"):
        await attempt(bot, tmp_path, AMY, Lines(), identity=False)


async def test_who_shares_no_room_with_the_bridge_is_said(bot: Client, tmp_path: Path) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(BridgeError, match=r"^@amy:hs and the bridge share none of the rooms")):
        await attempt(bot, tmp_path, AMY, Lines(), identity=True)


async def test_when_nobody_asks_it_ends(bot: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.app.verifying.WAIT_S", 0)
    terminal = Lines()
    assert 1 == await attempt(bot, tmp_path, None, terminal, identity=True)
    assert "Nobody has asked for a verification." == terminal.said[-1]


@dataclass
class Yes(Lines):
    """Compares with what the other side's terminal shows, and says yes."""

    other: "Yes | None" = None
    shown: list[str] = field(default_factory=list[str])
    asked: anyio.Event = field(default_factory=anyio.Event)

    async def ask(self, question: str) -> str | None:
        del question
        assert self.other is not None
        self.shown = [line for line in self.said if line.startswith("    ")]
        self.asked.set()
        await self.other.asked.wait()
        return "yes" if self.shown == self.other.shown else "no"


async def make_device(homeserver: Homeserver, name: str, folder: Path) -> tuple[Account, Client]:
    """An account with one device, which its identity has signed."""
    account = homeserver.register(name)
    client = Client(
        homeserver.base_url, user_id=account.user_id, device_id=account.device_id, access_token=account.access_token
    )
    user = UserId(account.user_id)
    open_state_folder(folder)
    with Machine(folder, user, account.device_id, create=True) as machine:
        await Encryption(client, machine).start()
        await establish(KeyServer(client), machine, folder, user_id=user, recovery_key=None, password=None, reset=False)
    return account, client


async def test_two_bridges_verify_each_other_and_the_ledger_has_the_pin(synapse: Homeserver, tmp_path: Path) -> None:
    mark = abs(hash(str(tmp_path))) % 10**9
    bot, bots_client = await make_device(synapse, f"bot{mark}", tmp_path / "state")
    person, client = await make_device(synapse, f"person{mark}", tmp_path / "person")
    megolm: JsonValue = {"algorithm": "m.megolm.v1.aes-sha2"}
    encryption: JsonValue = {"type": "m.room.encryption", "state_key": "", "content": megolm}
    wish: JsonObject = {"invite": [bot.user_id], "initial_state": [encryption]}
    made = await client.call("POST", "createRoom", body=wish)
    room = RoomId(str(made["room_id"]))
    await bots_client.join(room)
    await bots_client.close()
    (tmp_path / "state" / "access_token").write_text(bot.access_token)
    (tmp_path / "state" / "device_id").write_text(bot.device_id)
    (tmp_path / "config.toml").write_text(
        f'state_dir = "state"\n[matrix]\nhomeserver = "{synapse.base_url}"\nuser_id = "{bot.user_id}"\n'
        f'[agents.a]\ncommand = ["agent"]\nroom = "{room}"\napprovers = ["{person.user_id}"]\n'
    )
    config, here, there = load(tmp_path / "config.toml"), Yes(), Yes()
    here.other, there.other = there, here
    pins: list[Verified] = []

    async def be_person(*, task_status: TaskStatus[None]) -> None:
        async def pin(verified: Verified) -> None:
            pins.append(verified)

        plan = Plan(
            folder=tmp_path / "person", user=None, approvers=frozenset({UserId(bot.user_id)}), rooms=(str(room),)
        )
        task_status.started()
        with Machine(plan.folder, UserId(person.user_id), person.device_id) as machine:
            assert 0 == await verify_as(plan, client, machine, pin, there)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await tasks.start(be_person)
            assert 0 == await verify_with(config, person.user_id, here)
    await client.close()
    assert len(here.shown) == 8
    assert [bot.user_id] == [pin.user for pin in pins]
    assert [person.user_id] == [user for user, _ in read_pins(config.ledger_file)]
    assert "is verified" in here.said[-1]


async def test_an_alias_that_nobody_has_is_said(bot: Client) -> None:
    with pytest.raises(ConfigError, match=r"^agents.NAME.room: the homeserver knows no room #none:localhost"):
        await find_room(bot, "#none:localhost")
    await bot.close()
