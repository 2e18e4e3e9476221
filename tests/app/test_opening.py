"""The account opened and kept open, on a stub where the homeserver must do something odd, on Synapse where it must not."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from bridge import config, logs
from bridge.app.opening import find_password, find_token, log_in_here, make_client, open_account
from bridge.config import Config
from bridge.core.errors import BridgeError, ConfigError, CredentialsRefused, IdentityUnusable, RecoveryRefused
from bridge.core.model import UserId
from bridge.demo.homeserver import Account, call
from bridge.demo.homeserver import Homeserver as Synapse
from bridge.matrix.crypto.identity import read_kept
from bridge.ops.console import Console
from bridge.ops.credentials import Credentials, read_credentials, write_credentials, write_device
from bridge.ops.folder import hold_state_folder, open_state_folder
from bridge.ops.login import LoggedIn, Wish
from tests.fakes.storage import SecretStorage
from tests.peers.homeserver import SOFT_LOGOUT, Fault, Homeserver
from tests.peers.service import to_toml

BOT = UserId("@bot:hs")


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as running:
        running.refresh_token = "r"
        yield running


@pytest.fixture(autouse=True)
def _hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_hidden", [])
    for name in (config.TOKEN_VARIABLE, config.PASSWORD_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def configure(folder: Path, server: Homeserver, *, password: str | None = None) -> Config:
    lines = [
        f"state_dir = {to_toml(str(folder / 'state'))}",
        "[matrix]",
        f"homeserver = {to_toml(server.url)}",
        f"user_id = {to_toml(server.user_id)}",
    ]
    if password is not None:
        (folder / "password").write_text(password)
        lines.append(f"password_file = {to_toml(str(folder / 'password'))}")
    lines += ["[agents.a]", 'command = ["x"]', 'approvers = ["@amy:hs"]']
    path = folder / "config.toml"
    path.write_text("\n".join(lines))
    loaded = config.load(path)
    open_state_folder(loaded.state_dir)
    return loaded


def keep(loaded: Config, credentials: Credentials) -> None:
    write_device(loaded.saved_token_file, "DEV")
    write_credentials(loaded.saved_token_file, credentials)


def is_hidden(secret: str) -> bool:
    return logs.redact(None, "", {"event": secret})["event"] == logs.MASK


# ------------------------------------------------------------------------------------------------------ `run`, its start


async def test_a_start_with_a_password_logs_in_once_and_hides_what_it_was_given(
    tmp_path: Path, server: Homeserver
) -> None:
    loaded = configure(tmp_path, server, password=server.password)
    address, account = await open_account(loaded)
    assert (address, account.user_id, account.access_token) == (server.url, BOT, server.token)
    assert (await open_account(loaded))[1] == account
    assert server.count("login") == 1
    assert (is_hidden(server.token), is_hidden("r")) == (True, True)


async def test_a_start_without_a_password_says_what_to_do(tmp_path: Path, server: Homeserver) -> None:
    loaded = configure(tmp_path, server)
    keep(loaded, Credentials(access_token="dead"))
    with pytest.raises(CredentialsRefused, match="acp-matrix-bridge login"):
        await open_account(loaded)


# ------------------------------------------------------------------------------------------- `run`, and tokens that end


def account_of(server: Homeserver, *, renews: bool = True) -> LoggedIn:
    credentials = Credentials(access_token=server.token, refresh_token="r" if renews else None)
    return LoggedIn(user_id=BOT, device_id="DEV", credentials=credentials)


async def test_a_renewed_pair_is_in_the_files_before_it_is_used(tmp_path: Path, server: Homeserver) -> None:
    loaded = configure(tmp_path, server)
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    client = make_client(server.url, account_of(server), loaded.saved_token_file, lambda: None)
    await client.whoami()
    await client.close()
    assert read_credentials(loaded.saved_token_file) is not None
    kept = read_credentials(loaded.saved_token_file)
    assert kept is not None
    assert (kept.access_token, kept.refresh_token) == (server.token, "r+")
    assert is_hidden(server.token)


async def test_dead_tokens_do_not_stay_among_what_the_log_hides(tmp_path: Path, server: Homeserver) -> None:
    loaded = configure(tmp_path, server)
    client = make_client(server.url, account_of(server), loaded.saved_token_file, lambda: None)
    seen: list[str] = []
    for _ in range(5):
        seen.append(server.token)
        server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
        await client.whoami()
    await client.close()
    assert [is_hidden(token) for token in seen] == [False, False, False, True, True]
    assert is_hidden(server.token)


async def test_a_token_that_nothing_renews_is_replaced_by_the_password_on_the_same_device(
    tmp_path: Path, server: Homeserver
) -> None:
    loaded = configure(tmp_path, server, password=server.password)
    server.refresh_token = None
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    account = account_of(server, renews=False)
    client = make_client(server.url, account, loaded.saved_token_file, lambda: find_password(loaded))
    assert await client.whoami() == (BOT, "DEV")
    await client.close()
    assert server.count("login") == 1


@pytest.mark.parametrize("password", ["gone", None])
async def test_without_a_password_the_end_is_told(tmp_path: Path, server: Homeserver, password: str | None) -> None:
    """Also where the file of it is gone by then."""
    loaded = configure(tmp_path, server, password=password)
    (tmp_path / "password").unlink(missing_ok=True)
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    client = make_client(
        server.url, account_of(server, renews=False), loaded.saved_token_file, lambda: find_password(loaded)
    )
    with pytest.raises(CredentialsRefused) as caught:
        await client.whoami()
    await client.close()
    assert caught.value.soft


async def test_another_device_than_ours_is_not_used(tmp_path: Path, server: Homeserver) -> None:
    loaded = configure(tmp_path, server, password=server.password)
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    server.fail("login", Fault(status=200, body={"user_id": BOT, "device_id": "OTHER", "access_token": "x"}))
    client = make_client(
        server.url, account_of(server, renews=False), loaded.saved_token_file, lambda: find_password(loaded)
    )
    with pytest.raises(CredentialsRefused):
        await client.whoami()
    await client.close()
    assert read_credentials(loaded.saved_token_file) is None


# ------------------------------------------------------------------------------------------------------------- `check`


async def test_a_look_renews_a_token_that_has_run_out(tmp_path: Path, server: Homeserver) -> None:
    loaded = configure(tmp_path, server)
    keep(loaded, Credentials(access_token=server.token, refresh_token="r"))
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    token = await find_token(loaded, server.url)
    assert token == server.token
    kept = read_credentials(loaded.saved_token_file)
    assert kept is not None
    assert kept.access_token == token


async def test_a_look_leaves_renewing_to_the_bridge_that_runs(tmp_path: Path, server: Homeserver) -> None:
    """Two that renew the same pair lock each other out."""
    loaded = configure(tmp_path, server)
    keep(loaded, Credentials(access_token=server.token, refresh_token="r"))
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    before = server.token
    with hold_state_folder(loaded.state_dir):
        assert await find_token(loaded, server.url) == before
    assert server.count("refresh") == 0


@pytest.mark.parametrize(
    "fault",
    [None, Fault(status=401, body={"errcode": "M_UNKNOWN_TOKEN"}), Fault(status=502)],
    ids=["ok", "ended", "away"],
)
async def test_a_look_renews_nothing_else(tmp_path: Path, server: Homeserver, fault: Fault | None) -> None:
    loaded = configure(tmp_path, server)
    keep(loaded, Credentials(access_token=server.token, refresh_token="r"))
    if fault is not None:
        server.fail("whoami", fault)
    assert await find_token(loaded, server.url) == server.token
    assert server.count("refresh") == 0


async def test_a_token_that_cannot_be_renewed_is_not_even_tried(tmp_path: Path, server: Homeserver) -> None:
    loaded = configure(tmp_path, server)
    keep(loaded, Credentials(access_token=server.token))
    assert await find_token(loaded, server.url) == server.token
    assert server.requests == []


# ------------------------------------------------------------------------------------------------------------- `login`


@dataclass(slots=True)
class FakeConsole(Console):
    """Somebody at a terminal, or nobody."""

    there: bool = True
    secrets: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])
    said: list[str] = field(default_factory=list[str])

    @property
    def present(self) -> bool:
        return self.there

    def ask_secret(self, question: str) -> str:
        self.asked.append(question)
        return self.secrets.pop(0)

    def say(self, line: str) -> None:
        self.said.append(line)


@dataclass(kw_only=True)
class World:
    """An account with an identity that a client made, and its recovery key."""

    synapse: Synapse
    account: Account
    recovery_key: str
    folder: Path

    def wish(self, **more: object) -> Wish:
        known: dict[str, object] = {
            "token_file": self.folder / "access_token",
            "homeserver": self.synapse.base_url,
            "user_id": UserId(self.account.user_id),
            "password": self.account.password,
        }
        return Wish(**known | more)  # type: ignore[arg-type]


@pytest.fixture
async def world(synapse: Synapse, tmp_path: Path) -> World:
    account = synapse.register(f"bot-{uuid4().hex[:8]}")
    made = World(synapse=synapse, account=account, recovery_key="", folder=tmp_path / "state")
    other = tmp_path / "client"
    await log_in_here(made.wish(token_file=other / "access_token"), FakeConsole())
    storage = SecretStorage.of(read_kept(other, UserId(account.user_id)).identity)
    for kind, content in storage.account_data.items():
        path = f"/_matrix/client/v3/user/{account.user_id}/account_data/{kind}"
        assert call(synapse.base_url, "PUT", path, content, token=account.access_token).status == 200
    made.recovery_key = storage.recovery_key
    return made


async def test_an_identity_of_a_client_is_opened_by_the_recovery_key_that_is_asked_for(world: World) -> None:
    console = FakeConsole(secrets=[world.recovery_key])
    assert await log_in_here(world.wish(), console) == 0
    assert console.asked == [f"Recovery key or passphrase of {world.account.user_id}: "]
    assert [line for line in console.said if "opened by the recovery key" in line]
    again = FakeConsole()
    assert await log_in_here(world.wish(), again) == 0
    assert again.asked == []


async def test_the_recovery_key_can_be_given_where_nobody_is(world: World) -> None:
    console = FakeConsole(there=False)
    assert await log_in_here(world.wish(recovery_key=world.recovery_key), console) == 0
    assert console.asked == []


async def test_without_a_recovery_key_and_a_person_the_login_is_kept_and_the_rest_explained(world: World) -> None:
    with pytest.raises(IdentityUnusable, match="login --recovery-key") as caught:
        await log_in_here(world.wish(), FakeConsole(there=False))
    kept = read_credentials(world.folder / "access_token")
    assert kept is not None
    assert caught.value.exit_code == 3
    console = FakeConsole(there=False, secrets=[world.recovery_key])
    assert await log_in_here(world.wish(password=None, ask_recovery_key=True), console) == 0
    assert read_credentials(world.folder / "access_token") == kept


async def test_a_wrong_recovery_key_keeps_the_login(world: World) -> None:
    with pytest.raises(RecoveryRefused):
        await log_in_here(world.wish(), FakeConsole(secrets=[SecretStorage.of(None).recovery_key]))
    assert read_credentials(world.folder / "access_token") is not None


async def test_a_password_that_was_typed_is_not_asked_for_again(world: World) -> None:
    """A reset wants it a second time; the homeserver asks, not the bridge."""
    console = FakeConsole(secrets=[world.account.password])
    assert await log_in_here(world.wish(password=None, reset_identity=True), console) == 0
    assert console.asked == [f"Password of {world.account.user_id}: "]


async def test_a_bridge_that_runs_keeps_a_login_out_of_its_folder(tmp_path: Path) -> None:
    open_state_folder(tmp_path / "state")
    with hold_state_folder(tmp_path / "state"), pytest.raises(BridgeError, match="Another bridge is running"):
        await log_in_here(Wish(token_file=tmp_path / "state" / "access_token"), FakeConsole())


async def test_a_token_without_a_device_cannot_encrypt(tmp_path: Path, server: Homeserver) -> None:
    server.fail_always("whoami", Fault(status=200, body={"user_id": BOT}))
    wish = Wish(token_file=tmp_path / "access_token", homeserver=server.url, user_id=BOT, access_token=server.token)
    with anyio.fail_after(5), pytest.raises(CredentialsRefused, match="--no-encryption"):
        await log_in_here(wish, FakeConsole())


async def test_a_login_asks_for_the_account_where_there_is_nobody(tmp_path: Path, server: Homeserver) -> None:
    wish = Wish(token_file=tmp_path / "access_token", homeserver=server.url, access_token=server.token)

    class Nobody(FakeConsole):
        def ask(self, question: str) -> str:
            raise ConfigError(question)

    with pytest.raises(ConfigError, match="user id"):
        await log_in_here(wish, Nobody())
