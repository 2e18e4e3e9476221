import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.core.errors import ConfigError, CredentialsRefused, HomeserverUnreachable
from bridge.core.model import UserId
from bridge.ops import login

BOT = UserId("@bot:hs")
GIVEN = "syt_given"
RIGHT = "the right one"


@dataclass(slots=True)
class FakeAccounts:
    """A homeserver that knows one user with one password, and tokens it has given out."""

    tokens: dict[str, login.Account] = field(default_factory=dict[str, login.Account])
    logins: list[str | None] = field(default_factory=list[str | None])
    reachable: bool = True

    async def whoami(self, access_token: str) -> login.Account:
        if not self.reachable:
            raise HomeserverUnreachable("The homeserver does not answer.")
        if access_token not in self.tokens:
            raise CredentialsRefused("The access token does not count.")
        return self.tokens[access_token]

    async def log_in(self, user_id: UserId, password: str, device_id: str | None) -> login.LoggedIn:
        if password != RIGHT:
            raise CredentialsRefused("The password does not count.")
        self.logins.append(device_id)
        device = device_id or f"DEVICE{len(self.logins)}"
        token = f"syt_{len(self.logins)}"
        self.tokens[token] = login.Account(user_id=user_id, device_id=device)
        return login.LoggedIn(user_id=user_id, device_id=device, access_token=token)


@dataclass(slots=True)
class FakeTerminal:
    answers: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])
    said: list[str] = field(default_factory=list[str])

    def ask(self, question: str) -> str:
        self.asked.append(question)
        return self.answers.pop(0)

    def ask_secret(self, question: str) -> str:
        return self.ask(question)

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture
def accounts() -> FakeAccounts:
    return FakeAccounts()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "access_token"


async def sign_in(accounts: FakeAccounts, token_file: Path, *, token: str | None = None) -> login.LoggedIn:
    return await login.sign_in(
        accounts, user_id=BOT, token_file=token_file, access_token=token, ask_password=lambda: RIGHT
    )


async def log_in(accounts: FakeAccounts, terminal: FakeTerminal, wish: login.Wish) -> tuple[login.LoggedIn, list[str]]:
    connected: list[str] = []

    @asynccontextmanager
    async def connect(homeserver: str) -> AsyncGenerator[FakeAccounts]:
        connected.append(homeserver)
        yield accounts

    return await login.log_in(wish, connect, terminal), connected


def read_kept(file: Path) -> str | None:
    return file.read_text().strip() if file.exists() else None


def block(file: Path) -> None:
    file.mkdir(parents=True)


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def list_modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}


async def test_the_first_login_keeps_token_and_device_for_their_owner_alone(
    accounts: FakeAccounts, token_file: Path
) -> None:
    account = await sign_in(accounts, token_file)
    assert "syt_1" == account.access_token == read_kept(token_file)
    assert "DEVICE1" == account.device_id == login.read_device(token_file)
    assert list_modes(token_file.parent) == {"state": 0o700, "access_token": 0o600, "device_id": 0o600}


async def test_a_token_that_works_is_used_and_no_login_spent(accounts: FakeAccounts, token_file: Path) -> None:
    first = await sign_in(accounts, token_file)
    assert first == await sign_in(accounts, token_file)
    assert accounts.logins == [None]


async def test_a_dead_token_is_replaced_on_the_same_device(accounts: FakeAccounts, token_file: Path) -> None:
    await sign_in(accounts, token_file)
    accounts.tokens.clear()
    account = await sign_in(accounts, token_file)
    assert accounts.logins == [None, "DEVICE1"]
    assert (account.device_id, read_kept(token_file)) == ("DEVICE1", "syt_2")


async def test_a_homeserver_that_is_away_costs_neither_token_nor_login(
    accounts: FakeAccounts, token_file: Path
) -> None:
    await sign_in(accounts, token_file)
    accounts.reachable = False
    with pytest.raises(HomeserverUnreachable):
        await sign_in(accounts, token_file)
    assert (accounts.logins, read_kept(token_file)) == ([None], "syt_1")


async def test_a_given_token_is_kept_with_its_device(accounts: FakeAccounts, token_file: Path) -> None:
    accounts.tokens[GIVEN] = login.Account(user_id=BOT, device_id="D9")
    await sign_in(accounts, token_file, token=GIVEN)
    assert (read_kept(token_file), login.read_device(token_file), accounts.logins) == (GIVEN, "D9", [])


async def test_a_given_token_that_is_refused_is_an_error_and_spends_no_login(
    accounts: FakeAccounts, token_file: Path
) -> None:
    with pytest.raises(CredentialsRefused):
        await sign_in(accounts, token_file, token=GIVEN)
    assert accounts.logins == []


async def test_somebody_elses_token_is_refused_and_not_kept(accounts: FakeAccounts, token_file: Path) -> None:
    accounts.tokens[GIVEN] = login.Account(user_id=UserId("@amy:hs"), device_id="D9")
    with pytest.raises(CredentialsRefused, match="@amy:hs's, not @bot:hs's") as caught:
        await sign_in(accounts, token_file, token=GIVEN)
    assert GIVEN not in str(caught.value)
    assert read_kept(token_file) is None


async def test_a_token_without_a_device_is_kept_alone(accounts: FakeAccounts, token_file: Path) -> None:
    accounts.tokens[GIVEN] = login.Account(user_id=BOT, device_id="")
    await sign_in(accounts, token_file, token=GIVEN)
    assert list_names(token_file.parent) == ["access_token"]
    assert login.read_device(token_file) is None


async def test_a_wrong_password_keeps_nothing(accounts: FakeAccounts, token_file: Path) -> None:
    with pytest.raises(CredentialsRefused):
        await login.sign_in(
            accounts, user_id=BOT, token_file=token_file, access_token=None, ask_password=lambda: "wrong"
        )
    assert list_names(token_file.parent) == []


async def test_a_kept_file_that_cannot_be_read_is_said(accounts: FakeAccounts, token_file: Path) -> None:
    block(token_file)
    with pytest.raises(ConfigError, match="cannot be read"):
        await sign_in(accounts, token_file)


async def test_the_command_asks_for_what_is_missing_and_prints_the_config(
    accounts: FakeAccounts, token_file: Path
) -> None:
    terminal = FakeTerminal(answers=["@bot:hs", "", RIGHT])
    _, connected = await log_in(accounts, terminal, login.Wish(token_file=token_file))
    assert connected == ["hs"]
    assert terminal.asked[1:] == ["Homeserver [hs]: ", "Password of @bot:hs: "]
    assert [
        f'state_dir = "{token_file.parent}"',
        "",
        "[matrix]",
        'homeserver = "hs"',
        'user_id = "@bot:hs"',
    ] == terminal.said[-5:]
    assert not [line for line in terminal.said if "syt_" in line or RIGHT in line]


async def test_the_command_asks_nothing_where_everything_is_given(accounts: FakeAccounts, token_file: Path) -> None:
    terminal = FakeTerminal()
    wish = login.Wish(token_file=token_file, homeserver="https://m.hs", user_id=BOT, password=RIGHT)
    _, connected = await log_in(accounts, terminal, wish)
    assert (connected, terminal.asked) == (["https://m.hs"], [])


async def test_the_command_run_again_asks_for_no_password(accounts: FakeAccounts, token_file: Path) -> None:
    await sign_in(accounts, token_file)
    terminal = FakeTerminal()
    await log_in(accounts, terminal, login.Wish(token_file=token_file, homeserver="hs", user_id=BOT))
    assert terminal.asked == []


@pytest.mark.parametrize("text", ["bot", "@bot", "bot:hs", ""])
async def test_what_is_no_user_id_is_refused_before_anything_is_asked(
    text: str, accounts: FakeAccounts, token_file: Path
) -> None:
    with pytest.raises(ConfigError, match="no user id"):
        await log_in(accounts, FakeTerminal(answers=[text]), login.Wish(token_file=token_file))


def test_no_secret_is_in_the_text_of_what_holds_it(token_file: Path) -> None:
    wish = login.Wish(token_file=token_file, access_token=GIVEN, password=RIGHT)
    account = login.LoggedIn(user_id=BOT, device_id="D", access_token=GIVEN)
    shown = repr(wish) + repr(account)
    assert (GIVEN in shown, RIGHT in shown) == (False, False)


def test_without_a_terminal_the_error_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_question: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    monkeypatch.setattr("getpass.getpass", end)
    for ask in (login.Console().ask, login.Console().ask_secret):
        with pytest.raises(ConfigError, match="--token-file"):
            ask("?")


def test_the_console_strips_what_is_typed_and_prints_what_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def type_text(_question: str) -> str:
        return " text "

    monkeypatch.setattr("builtins.input", type_text)
    login.Console().say("hello")
    assert (login.Console().ask("?"), capsys.readouterr().out) == ("text", "hello\n")
