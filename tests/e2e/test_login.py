"""`login` and what becomes of its token, as the programs that they are, against a Synapse whose tokens live for seconds."""

import itertools
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.abc
import pytest
from anyio.streams.text import TextReceiveStream

from bridge.config import load
from bridge.demo.homeserver import Account, Homeserver, call
from tests.peers.cas import LoginPage, log_in_with_a_browser
from tests.peers.service import Service, running, to_toml
from tests.peers.untraced import untraced

API = "/_matrix/client/v3"
LIFE = "5s"  # of an access token: long enough for a start of the bridge on a busy machine, short enough to wait for
EXPIRED_S = 30.0
COMMAND_S = 60.0
AGENT = Path(__file__).parents[1] / "peers" / "scripted_agent.py"

Json = dict[str, Any]


@dataclass(kw_only=True)
class World:
    synapse: Homeserver
    page: LoginPage


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with LoginPage().serving() as page:
        extra: Json = {
            "cas_config": {"enabled": True, "server_url": page.url},
            "refreshable_access_token_lifetime": LIFE,
            "refresh_token_lifetime": "1h",
        }
        synapse = Homeserver(Path(tmp_path_factory.mktemp("login")), extra=extra)
        with untraced():
            synapse.start()
        try:
            yield World(synapse=synapse, page=page)
        finally:
            synapse.stop()


@dataclass(kw_only=True)
class Bot:
    """An account, and a folder in which its bridge lives."""

    world: World
    account: Account
    folder: Path
    room: str = ""
    environ: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def token(self) -> str:
        return (self.state / "access_token").read_text().strip()

    @property
    def device(self) -> str:
        return (self.state / "device_id").read_text().strip()

    @property
    def renewal(self) -> Json:
        return json.loads((self.state / "token_renewal").read_text())

    def ask(self, method: str, path: str, body: object = None, token: str | None = None) -> tuple[int, Json]:
        answer = call(
            self.world.synapse.base_url, method, f"{API}{path}", body, token=token or self.account.access_token
        )
        return answer.status, dict(answer.body)

    def devices(self) -> set[str]:
        """What the account has besides the device that it was registered with."""
        found: Any = self.ask("GET", "/devices")[1]["devices"]
        return {device["device_id"] for device in found} - {self.account.device_id}

    def signatures(self) -> set[str]:
        """Whose signatures the bridge's device carries, and the identity's master key."""
        answer: Any = self.ask("POST", "/keys/query", {"device_keys": {self.account.user_id: []}})[1]
        keys = answer["device_keys"][self.account.user_id][self.device]["signatures"][self.account.user_id]
        return set(keys) - {f"ed25519:{self.device}"}

    def master_key(self) -> str:
        answer: Any = self.ask("POST", "/keys/query", {"device_keys": {self.account.user_id: []}})[1]
        return next(iter(answer["master_keys"][self.account.user_id]["keys"]))

    async def expire(self) -> None:
        """Wait until the kept token has run out."""
        with anyio.fail_after(EXPIRED_S):
            while (found := self.ask("GET", "/account/whoami", token=self.token))[0] == 200:  # noqa: ASYNC110 - another process: nothing to wait on
                await anyio.sleep(0.1)
        assert found[1]["soft_logout"] is True

    def configure(self, **matrix: object) -> Path:
        """A config with an agent that does nothing, without any token."""
        (self.folder / "script").write_text("")
        section = {"homeserver": self.world.synapse.base_url, "user_id": self.account.user_id} | matrix
        agent = {
            "command": [sys.executable, str(AGENT), str(self.folder / "script"), str(self.folder / "log")],
            "room": self.room,
            "approvers": ["@alice:localhost"],
        }
        lines = [f"state_dir = {to_toml(str(self.state))}"]
        for name, table in (("matrix", section), ("agents.claude", agent)):
            lines += [f"[{name}]", *(f"{key} = {to_toml(value)}" for key, value in table.items())]
        config = self.folder / "config.toml"
        config.write_text("\n".join(lines) + "\n")
        return config

    def write_password(self) -> str:
        path = self.folder / "password"
        path.write_text(self.account.password)
        return str(path)

    @property
    def words(self) -> list[str]:
        named = ["--homeserver", self.world.synapse.base_url, "--user", self.account.user_id]
        return [sys.executable, "-m", "bridge", "login", *named, "--state-dir", str(self.state)]

    async def log_in(self, *more: str, password: bool = True) -> tuple[int, str, str]:
        """`login` without a terminal: its exit code, stdout and stderr."""
        environ = os.environ | ({"ACP_MATRIX_BRIDGE_PASSWORD": self.account.password} if password else {})
        with anyio.fail_after(COMMAND_S):
            done = await anyio.run_process(
                [*self.words, *more], check=False, env=environ, cwd=self.folder, stdin=subprocess.DEVNULL
            )
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def bot(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Bot:
    name = "b" + re.sub("[^a-z]", "", request.node.name.lower())[-100:]
    account = world.synapse.register(name)
    made = Bot(world=world, account=account, folder=tmp_path)
    made.room = made.ask("POST", "/createRoom", {})[1]["room_id"]
    return made


async def test_a_login_prints_its_fingerprint_and_config_keeps_its_secrets_and_is_free_to_repeat(bot: Bot) -> None:
    code, out, err = await bot.log_in()
    assert (code, err) == (0, "")
    assert f"is logged in as device {bot.device}." in out
    assert re.search(rf"^Fingerprint of device {bot.device}: (\S{{3,4}} ){{10}}\S{{3,4}}$", out, re.MULTILINE)
    assert f'user_id = "{bot.account.user_id}"' in out
    assert {bot.device} == bot.devices()
    assert len(bot.signatures()) == 1
    secrets = (bot.token, bot.renewal["refresh_token"], bot.account.password)
    assert not [secret for secret in secrets if secret in out]
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in bot.state.iterdir()}
    assert {"access_token", "device_id", "token_renewal", "cross_signing.json", "keys.db", "pickle.key"} <= set(files)
    assert {stat.S_IMODE(bot.state.stat().st_mode), *files.values()} == {0o700, 0o600}
    device, master_key = bot.device, bot.master_key()
    code, out, err = await bot.log_in(password=False)
    assert (code, err) == (0, "")
    assert (bot.devices(), bot.device, bot.master_key()) == ({device}, device, master_key)


async def test_without_encryption_no_keys_are_made(bot: Bot) -> None:
    code, out, _ = await bot.log_in("--no-encryption")
    assert (code, out.endswith("encryption = false\n")) == (0, True)
    assert {path.name for path in bot.state.iterdir()} == {"access_token", "device_id", "token_renewal", "lock"}


async def test_an_identity_of_a_client_stops_the_command_and_keeps_the_login(bot: Bot) -> None:
    await bot.log_in()
    (bot.state / "cross_signing.json").unlink()
    code, _, err = await bot.log_in("--new-device")
    assert code == 3
    assert "--recovery-key" in err
    assert "--reset-identity" in err
    device = bot.device
    assert bot.devices() == {device}  # the one before was ended
    master_key = bot.master_key()
    code, out, _ = await bot.log_in("--reset-identity")
    assert (code, bot.device, bot.master_key() == master_key) == (0, device, False)
    assert "was replaced by a new one" in out


async def test_a_device_whose_keys_are_lost_is_told_and_replaced_when_asked_for(bot: Bot) -> None:
    await bot.log_in()
    device, master_key = bot.device, bot.master_key()
    (bot.state / "keys.db").unlink()
    code, _, err = await bot.log_in()
    assert (code, "login --new-device" in err) == (3, True)
    code, _, _ = await bot.log_in("--new-device")
    assert (code, bot.device == device, bot.devices()) == (0, False, {bot.device})
    assert (bot.master_key(), len(bot.signatures())) == (master_key, 1)


# --------------------------------------------------------------------------------------------------------- the browser


@dataclass(kw_only=True)
class Waiting:
    """A `login --sso` that waits for its browser."""

    process: anyio.abc.Process
    address: str
    out: list[str]

    async def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        async for text in TextReceiveStream(self.process.stdout):
            self.out.append(text)
        return await self.process.wait(), "".join(self.out)

    async def paste(self, text: str) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(f"{text}\n".encode())


@asynccontextmanager
async def waiting(bot: Bot) -> AsyncGenerator[Waiting]:
    process = await anyio.open_process([*bot.words, "--sso"], stderr=subprocess.STDOUT, cwd=bot.folder)
    with anyio.fail_after(COMMAND_S):
        async with process:
            assert process.stdout is not None
            out = ""
            found: re.Match[str] | None = None
            while found is None or "press Enter" not in out:
                out += (await process.stdout.receive()).decode()
                found = re.search(r"^    (http\S+)$", out, re.MULTILINE)
            yield Waiting(process=process, address=found[1], out=[out])


@pytest.mark.parametrize("pasted", [False, True])
async def test_a_browser_logs_in(bot: Bot, pasted: bool) -> None:
    bot.world.page.user = bot.account.user_id[1:].partition(":")[0]
    async with waiting(bot) as run:
        back = await log_in_with_a_browser(run.address)
        if pasted:
            await run.paste(back)
        else:
            assert "close this window" in await _open(back)
        code, out = await run.end()
    assert (code, bot.devices(), len(bot.signatures())) == (0, {bot.device}, 1)
    assert "ACPBRIDGE" in bot.device
    assert not [secret for secret in (back, back.partition("loginToken=")[2], bot.token) if secret in out]


async def test_somebody_else_in_the_browser_leaves_no_session_behind(bot: Bot, world: World) -> None:
    other = world.synapse.register("somebody-else")
    world.page.user = "somebody-else"
    async with waiting(bot) as run:
        await _open(await log_in_with_a_browser(run.address))
        code, out = await run.end()
    assert (code, "a login of @somebody-else:localhost" in out) == (3, True)
    found: Any = call(world.synapse.base_url, "GET", f"{API}/devices", token=other.access_token).body["devices"]
    assert [device["device_id"] for device in found] == [other.device_id]
    assert not (bot.state / "access_token").exists()


async def _open(address: str) -> str:
    """What a page on this machine answers."""
    process = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
    done = await anyio.run_process([sys.executable, "-c", process, address])
    return done.stdout.decode()


# -------------------------------------------------------------------------------------------------- tokens that run out


@asynccontextmanager
async def serving(bot: Bot, config: Path) -> AsyncGenerator[Service]:
    """A bridge in a room where something happens all the time, so that it has reason to use its token."""

    async def speak() -> None:
        for number in itertools.count():
            path = f"/rooms/{quote(bot.room)}/send/m.room.message/t{number}"
            bot.ask("PUT", path, {"msgtype": "m.notice", "body": "x"})
            await anyio.sleep(0.5)

    async with running(config) as service, anyio.create_task_group() as tasks:
        tasks.start_soon(speak)
        yield service
        tasks.cancel_scope.cancel()


async def test_a_token_that_ran_out_while_nobody_used_it_is_renewed_without_a_login(bot: Bot) -> None:
    await bot.log_in("--no-encryption")
    device, before = bot.device, bot.token
    await bot.expire()
    code, _, err = await bot.log_in("--no-encryption", password=False)
    assert (code, err, bot.device, bot.token == before, bot.devices()) == (0, "", device, False, {device})


async def test_a_running_bridge_renews_its_token_again_and_again(bot: Bot) -> None:
    await bot.log_in("--no-encryption")
    seen = {bot.token}
    async with serving(bot, bot.configure()) as service:
        await service.until(lambda: len(service.logged("matrix.token_renewed", by="refresh")) > 1, seconds=EXPIRED_S)
        seen.add(bot.token)
        assert bot.ask("GET", "/account/whoami", token=bot.token)[0] == 200
        assert await service.end() == 0
    assert len(seen) == 2
    assert (bot.devices(), service.logged("matrix.sync_delayed")) == ({bot.device}, [])
    assert not [line for line in service.log if any(token in json.dumps(line) for token in seen)]


async def test_a_renewal_that_is_refused_opens_the_same_device_by_the_password(bot: Bot) -> None:
    """As after a crash between a server's answer and the write, on a server that is stricter than this one."""
    await bot.log_in("--no-encryption")
    device = bot.device
    config = bot.configure(password_file=bot.write_password())
    async with serving(bot, config) as service:
        refresh_token = bot.renewal["refresh_token"]
        for _ in range(2):  # the second use of its successor kills the bridge's own
            refresh_token = bot.ask("POST", "/refresh", {"refresh_token": refresh_token})[1]["refresh_token"]
        await service.until(lambda: service.logged("matrix.token_renewed", by="password"), seconds=EXPIRED_S)
        assert await service.end() == 0
    assert service.logged("matrix.refresh_refused")
    assert (bot.device, bot.devices()) == (device, {device})


async def test_a_token_that_ran_out_and_a_password_start_the_same_device_again(bot: Bot) -> None:
    await bot.log_in("--no-encryption")
    device = bot.device
    await bot.expire()
    (bot.state / "token_renewal").unlink()
    async with serving(bot, bot.configure(password_file=bot.write_password())) as service:
        assert await service.end() == 0
    assert (bot.device, bot.devices()) == (device, {device})


async def test_a_session_that_was_ended_ends_the_bridge_and_the_next_login_makes_a_new_device(bot: Bot) -> None:
    await bot.log_in()
    device, master_key = bot.device, bot.master_key()
    async with running(bot.configure()) as service:
        assert bot.ask("POST", "/delete_devices", _proof(bot, [device]))[0] == 200
        assert await service.ended(seconds=EXPIRED_S) == 3
    (sentence,) = [line["line"] for line in service.log if line.get("line")]
    assert sentence.startswith("The homeserver has ended the session of this device")
    assert "Run `acp-matrix-bridge login`" in sentence
    code, _, err = await bot.log_in()
    assert (code, err, bot.device == device, bot.devices()) == (0, "", False, {bot.device})
    assert (bot.master_key(), len(bot.signatures())) == (master_key, 1)


async def test_a_token_of_another_device_does_not_start_the_bridge(bot: Bot) -> None:
    await bot.log_in("--no-encryption")
    (bot.folder / "other").write_text(bot.account.access_token)
    config = bot.configure(access_token_file=str(bot.folder / "other"))
    async with running(config, ready=False) as service:
        assert await service.ended(seconds=EXPIRED_S) == 3
    (sentence,) = [line["line"] for line in service.log if line.get("line")]
    assert f"holds the keys of {bot.device}" in sentence


def _proof(bot: Bot, devices: list[str]) -> Json:
    """The password, as user-interactive authentication wants it."""
    session = bot.ask("POST", "/delete_devices", {"devices": devices})[1]["session"]
    identifier = {"type": "m.id.user", "user": bot.account.user_id}
    auth = {
        "type": "m.login.password",
        "identifier": identifier,
        "password": bot.account.password,
        "session": session,
    }
    return {"devices": devices, "auth": auth}


def test_the_config_that_is_made_for_these_tests_can_be_used(bot: Bot) -> None:
    assert load(bot.configure()).matrix.user_id == bot.account.user_id
