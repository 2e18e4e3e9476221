import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.core.errors import ConfigError, CredentialsRefused, HomeserverUnreachable, MatrixError, RequestRefused
from bridge.core.model import UserId
from bridge.ops import login
from bridge.ops.credentials import Credentials, read_credentials, read_device

BOT = UserId("@bot:hs")
AMY = UserId("@amy:hs")
GIVEN = "syt_given"
RIGHT = "the right one"
RAN_OUT = CredentialsRefused("It has run out.", soft=True)
ENDED = CredentialsRefused("It was ended.")


@dataclass(slots=True)
class FakeAccounts:
    """A homeserver that knows one user with one password, and tokens it has given out."""

    tokens: dict[str, login.Account | CredentialsRefused] = field(
        default_factory=dict[str, login.Account | CredentialsRefused]
    )
    logins: list[str | None] = field(default_factory=list[str | None])
    refreshes: list[str] = field(default_factory=list[str])
    ended: list[str] = field(default_factory=list[str])
    offered: tuple[str, ...] = (login.PASSWORD,)
    in_browser: UserId = BOT
    renewable: bool = False
    refresh_failure: MatrixError | None = None
    logout_failure: MatrixError | None = None
    reachable: bool = True
    watch: Callable[[], None] = lambda: None  # called whenever a token is used

    async def flows(self) -> tuple[str, ...]:
        return self.offered

    async def whoami(self, access_token: str) -> login.Account:
        self.watch()
        if not self.reachable:
            raise HomeserverUnreachable("The homeserver does not answer.")
        found = self.tokens.get(access_token, ENDED)
        if isinstance(found, CredentialsRefused):
            raise found
        return found

    async def refresh(self, refresh_token: str) -> Credentials:
        self.refreshes.append(refresh_token)
        if self.refresh_failure is not None:
            raise self.refresh_failure
        self.tokens["renewed"] = login.Account(user_id=BOT, device_id="DEVICE1")
        return Credentials(access_token="renewed", refresh_token="r2")

    async def log_in(self, user_id: UserId, password: str, device_id: str | None) -> login.LoggedIn:
        if login.PASSWORD not in self.offered:
            raise RequestRefused("The homeserver refused (400 M_UNKNOWN).", status=400, errcode="M_UNKNOWN")
        if password != RIGHT:
            raise CredentialsRefused("The homeserver did not accept this login.")
        return self._open(user_id, device_id)

    async def log_in_by_browser(self, device_id: str | None) -> login.LoggedIn:
        return self._open(self.in_browser, device_id)

    async def log_out(self, access_token: str) -> None:
        if self.logout_failure is not None:
            raise self.logout_failure
        self.ended.append(access_token)

    def _open(self, user_id: UserId, device_id: str | None) -> login.LoggedIn:
        self.logins.append(device_id)
        device = device_id or f"DEVICE{len(self.logins)}"
        token = f"syt_{len(self.logins)}"
        self.tokens[token] = login.Account(user_id=user_id, device_id=device)
        refresh_token = f"r{len(self.logins)}" if self.renewable else None
        credentials = Credentials(access_token=token, refresh_token=refresh_token)
        return login.LoggedIn(user_id=user_id, device_id=device, credentials=credentials)


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


@dataclass(slots=True)
class Folder:
    """A state folder, and how often its keys were thrown away."""

    token_file: Path
    discarded: list[str | None] = field(default_factory=list[str | None])  # the device that the folder knew then

    def discard(self) -> None:
        self.discarded.append(self.device)

    @property
    def token(self) -> str | None:
        kept = read_credentials(self.token_file)
        return None if kept is None else kept.access_token

    @property
    def device(self) -> str | None:
        return read_device(self.token_file)


@pytest.fixture
def accounts() -> FakeAccounts:
    return FakeAccounts()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "state" / "access_token")


async def sign_in(
    accounts: FakeAccounts,
    folder: Folder,
    *,
    token: str | None = None,
    only_given: bool = False,
    password: str | None = RIGHT,
) -> login.LoggedIn:
    async def log_in(device_id: str | None) -> login.LoggedIn:
        assert password is not None
        return await login.log_in_by_password(accounts, BOT, password, device_id)

    return await login.sign_in(
        accounts,
        user_id=BOT,
        token_file=folder.token_file,
        access_token=token,
        log_in=None if password is None or only_given else log_in,
        discard=folder.discard,
        only_given=only_given,
    )


async def log_in(
    accounts: FakeAccounts, terminal: FakeTerminal, wish: login.Wish, folder: Folder
) -> tuple[login.Opened, list[str]]:
    connected: list[str] = []

    @asynccontextmanager
    async def connect(homeserver: str) -> AsyncGenerator[FakeAccounts]:
        connected.append(homeserver)
        yield accounts

    return await login.log_in(wish, connect, terminal, discard=folder.discard), connected


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def list_modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}


# -------------------------------------------------------------------------------------------- which token, which login


async def test_the_first_login_keeps_token_and_device_for_their_owner_alone(
    accounts: FakeAccounts, folder: Folder
) -> None:
    accounts.renewable = True
    account = await sign_in(accounts, folder)
    assert "syt_1" == account.access_token == folder.token
    assert "DEVICE1" == account.device_id == folder.device
    modes = {"access_token": 0o600, "device_id": 0o600, "token_renewal": 0o600}
    assert list_modes(folder.token_file.parent) == {"state": 0o700} | modes


async def test_a_token_that_works_is_used_and_no_login_spent(accounts: FakeAccounts, folder: Folder) -> None:
    first = await sign_in(accounts, folder)
    assert first == await sign_in(accounts, folder)
    assert (accounts.logins, folder.discarded) == ([None], [])


async def test_a_token_that_has_run_out_is_replaced_on_the_same_device(accounts: FakeAccounts, folder: Folder) -> None:
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = RAN_OUT
    account = await sign_in(accounts, folder)
    assert accounts.logins == [None, "DEVICE1"]
    assert (account.device_id, folder.token, folder.discarded) == ("DEVICE1", "syt_2", [])


async def test_an_ended_session_makes_a_new_device_and_throws_the_old_keys_away(
    accounts: FakeAccounts, folder: Folder
) -> None:
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = ENDED
    account = await sign_in(accounts, folder)
    assert accounts.logins == [None, None]
    assert "DEVICE2" == account.device_id == folder.device
    assert (folder.token, folder.discarded) == ("syt_2", ["DEVICE1"])


async def test_a_token_from_the_config_that_is_also_the_kept_one_is_replaced_as_well(
    accounts: FakeAccounts, folder: Folder
) -> None:
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = RAN_OUT
    assert (await sign_in(accounts, folder, token="syt_1")).access_token == "syt_2"


async def test_a_dead_token_of_the_config_gives_way_to_the_kept_one(accounts: FakeAccounts, folder: Folder) -> None:
    await sign_in(accounts, folder)
    assert (await sign_in(accounts, folder, token=GIVEN)).access_token == "syt_1"
    assert (accounts.logins, folder.discarded) == ([None], [])


async def test_a_dead_token_of_the_config_says_nothing_of_the_folders_device(
    accounts: FakeAccounts, folder: Folder
) -> None:
    await sign_in(accounts, folder)
    folder.token_file.unlink()
    await sign_in(accounts, folder, token=GIVEN)
    assert (accounts.logins, folder.discarded) == ([None, "DEVICE1"], [])


async def test_a_lost_token_is_replaced_on_the_same_device(accounts: FakeAccounts, folder: Folder) -> None:
    await sign_in(accounts, folder)
    folder.token_file.unlink()
    await sign_in(accounts, folder)
    assert (accounts.logins, folder.discarded) == ([None, "DEVICE1"], [])


async def test_a_token_that_has_run_out_is_renewed_without_a_login(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.renewable = True
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = RAN_OUT
    account = await sign_in(accounts, folder)
    assert (accounts.logins, accounts.refreshes) == ([None], ["r1"])
    assert account.credentials == read_credentials(folder.token_file)
    assert account.credentials == Credentials(access_token="renewed", refresh_token="r2")


async def test_a_renewed_token_is_kept_before_it_is_used(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.renewable = True
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = RAN_OUT
    seen: list[str | None] = []
    accounts.watch = lambda: seen.append(folder.token)
    await sign_in(accounts, folder)
    assert seen == ["syt_1", "renewed"]


async def test_a_renewal_that_is_refused_leaves_the_login_on_the_same_device(
    accounts: FakeAccounts, folder: Folder
) -> None:
    accounts.renewable = True
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = RAN_OUT
    accounts.refresh_failure = RAN_OUT
    await sign_in(accounts, folder)
    assert (accounts.logins, folder.discarded) == ([None, "DEVICE1"], [])


async def test_a_renewal_that_fails_for_now_spends_nothing(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.renewable = True
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = RAN_OUT
    accounts.refresh_failure = HomeserverUnreachable("It is away.")
    with pytest.raises(HomeserverUnreachable):
        await sign_in(accounts, folder)
    assert accounts.logins == [None]


async def test_an_ended_session_is_not_renewed(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.renewable = True
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = ENDED
    await sign_in(accounts, folder)
    assert accounts.refreshes == []


async def test_a_homeserver_that_is_away_costs_neither_token_nor_login(accounts: FakeAccounts, folder: Folder) -> None:
    await sign_in(accounts, folder)
    accounts.reachable = False
    with pytest.raises(HomeserverUnreachable):
        await sign_in(accounts, folder)
    assert (accounts.logins, folder.token) == ([None], "syt_1")


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (None, ConfigError, "no token"),
        (RAN_OUT, CredentialsRefused, "the device stays"),
        (ENDED, CredentialsRefused, "new"),
    ],
)
async def test_without_a_password_it_says_what_happened_and_what_to_do(
    state: CredentialsRefused | None, kind: type[Exception], words: str, accounts: FakeAccounts, folder: Folder
) -> None:
    if state is not None:
        await sign_in(accounts, folder)
        accounts.tokens["syt_1"] = state
    with pytest.raises(kind, match=words) as caught:
        await sign_in(accounts, folder, password=None)
    assert "acp-matrix-bridge login" in str(caught.value)
    assert folder.discarded == []


async def test_a_given_token_is_kept_with_its_device(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.tokens[GIVEN] = login.Account(user_id=BOT, device_id="D9")
    await sign_in(accounts, folder, token=GIVEN)
    assert (folder.token, folder.device, accounts.logins) == (GIVEN, "D9", [])


@pytest.mark.parametrize("kept", [False, True])
async def test_a_given_token_that_is_refused_is_an_error_and_spends_no_login(
    kept: bool, accounts: FakeAccounts, folder: Folder
) -> None:
    if kept:
        await sign_in(accounts, folder)
    with pytest.raises(CredentialsRefused, match="given access token does not count"):
        await sign_in(accounts, folder, token=GIVEN, only_given=True)
    assert len(accounts.logins) == kept


async def test_a_given_token_that_is_the_kept_one_keeps_its_renewal(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.renewable = True
    await sign_in(accounts, folder)
    account = await sign_in(accounts, folder, token="syt_1", only_given=True)
    assert account.credentials.refresh_token == "r1"


async def test_a_given_token_of_another_device_takes_the_folder_over(accounts: FakeAccounts, folder: Folder) -> None:
    await sign_in(accounts, folder)
    accounts.tokens[GIVEN] = login.Account(user_id=BOT, device_id="D9")
    await sign_in(accounts, folder, token=GIVEN, only_given=True)
    assert (folder.token, folder.device, folder.discarded) == (GIVEN, "D9", ["DEVICE1"])


@pytest.mark.parametrize(("device", "only_given"), [("D9", False), ("", False), ("", True)])
async def test_a_token_of_another_device_than_the_folders_is_refused(
    device: str, only_given: bool, accounts: FakeAccounts, folder: Folder
) -> None:
    await sign_in(accounts, folder)
    accounts.tokens[GIVEN] = login.Account(user_id=BOT, device_id=device)
    with pytest.raises(CredentialsRefused, match="holds the keys of DEVICE1"):
        await sign_in(accounts, folder, token=GIVEN, only_given=only_given)
    assert (folder.token, folder.device, folder.discarded) == ("syt_1", "DEVICE1", [])


@pytest.mark.parametrize("only_given", [False, True])
async def test_somebody_elses_token_is_refused_and_not_kept(
    only_given: bool, accounts: FakeAccounts, folder: Folder
) -> None:
    accounts.tokens[GIVEN] = login.Account(user_id=AMY, device_id="D9")
    with pytest.raises(CredentialsRefused, match="@amy:hs's, not @bot:hs's") as caught:
        await sign_in(accounts, folder, token=GIVEN, only_given=only_given)
    assert GIVEN not in str(caught.value)
    assert folder.token is None


async def test_the_folder_of_another_account_is_left_alone(accounts: FakeAccounts, folder: Folder) -> None:
    await sign_in(accounts, folder)
    accounts.tokens["syt_1"] = login.Account(user_id=AMY, device_id="DEVICE1")
    with pytest.raises(CredentialsRefused, match="state folder of its own"):
        await sign_in(accounts, folder)
    assert accounts.logins == [None]


async def test_a_token_without_a_device_is_kept_alone(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.tokens[GIVEN] = login.Account(user_id=BOT, device_id="")
    await sign_in(accounts, folder, token=GIVEN)
    assert list_names(folder.token_file.parent) == ["access_token"]
    assert folder.device is None


async def test_a_wrong_password_keeps_nothing(accounts: FakeAccounts, folder: Folder) -> None:
    with pytest.raises(CredentialsRefused, match="user and password"):
        await sign_in(accounts, folder, password="wrong")
    assert list_names(folder.token_file.parent) == []


async def test_a_kept_file_that_cannot_be_read_is_said(accounts: FakeAccounts, folder: Folder) -> None:
    folder.token_file.mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        await sign_in(accounts, folder)


# --------------------------------------------------------------------------------------------------------- the command


async def test_the_command_asks_for_what_is_missing_and_prints_the_config(
    accounts: FakeAccounts, folder: Folder
) -> None:
    terminal = FakeTerminal(answers=["@bot:hs", "", RIGHT])
    wish = login.Wish(token_file=folder.token_file)
    opened, connected = await log_in(accounts, terminal, wish, folder)
    assert connected == ["hs"]
    assert terminal.asked[1:] == ["Homeserver [hs]: ", "Password of @bot:hs: "]
    lines = login.show_config(wish, opened)
    assert lines[-5:] == (
        f'state_dir = "{folder.token_file.parent}"',
        "",
        "[matrix]",
        'homeserver = "hs"',
        'user_id = "@bot:hs"',
    )
    assert not [line for line in (*terminal.said, *lines) if "syt_" in line or RIGHT in line]


async def test_the_config_of_an_account_without_encryption_says_so(accounts: FakeAccounts, folder: Folder) -> None:
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, password=RIGHT, encryption=False)
    opened, _ = await log_in(accounts, FakeTerminal(), wish, folder)
    assert login.show_config(wish, opened)[-1] == "encryption = false"


async def test_a_new_device_that_is_asked_for_takes_the_place_of_one_that_works(
    accounts: FakeAccounts, folder: Folder
) -> None:
    await sign_in(accounts, folder)
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, password=RIGHT, new_device=True)
    await log_in(accounts, FakeTerminal(), wish, folder)
    assert (folder.device, folder.token, folder.discarded) == ("DEVICE2", "syt_2", ["DEVICE1"])
    assert accounts.ended == ["syt_1"]


@pytest.mark.parametrize("failure", [None, ENDED], ids=["first", "dead"])
async def test_a_new_device_needs_nothing_of_an_old_one(
    failure: CredentialsRefused | None, accounts: FakeAccounts, folder: Folder
) -> None:
    accounts.logout_failure = failure
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, password=RIGHT, new_device=True)
    await log_in(accounts, FakeTerminal(), wish, folder)
    await log_in(accounts, FakeTerminal(), wish, folder)
    assert folder.device == "DEVICE2"


async def test_what_was_typed_is_known_to_what_comes_next(accounts: FakeAccounts, folder: Folder) -> None:
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT)
    opened, _ = await log_in(accounts, FakeTerminal(answers=[RIGHT]), wish, folder)
    assert opened.password == RIGHT
    assert RIGHT not in repr(opened)


async def test_the_command_asks_nothing_where_everything_is_given(accounts: FakeAccounts, folder: Folder) -> None:
    terminal = FakeTerminal()
    wish = login.Wish(token_file=folder.token_file, homeserver="https://m.hs/", user_id=BOT, password=RIGHT)
    _, connected = await log_in(accounts, terminal, wish, folder)
    assert (connected, terminal.asked) == (["https://m.hs"], [])


@pytest.mark.parametrize("by_browser", [False, True])
async def test_the_command_run_again_asks_for_nothing(by_browser: bool, accounts: FakeAccounts, folder: Folder) -> None:
    await sign_in(accounts, folder)
    terminal = FakeTerminal()
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, by_browser=by_browser)
    await log_in(accounts, terminal, wish, folder)
    assert (terminal.asked, accounts.logins) == ([], [None])


async def test_the_command_takes_a_given_token_or_none(accounts: FakeAccounts, folder: Folder) -> None:
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, access_token=GIVEN, password=RIGHT)
    with pytest.raises(CredentialsRefused):
        await log_in(accounts, FakeTerminal(), wish, folder)
    assert accounts.logins == []


@pytest.mark.parametrize("text", ["bot", "@bot", "bot:hs", ""])
async def test_what_is_no_user_id_is_refused_before_anything_is_asked(
    text: str, accounts: FakeAccounts, folder: Folder
) -> None:
    with pytest.raises(ConfigError, match="no user id"):
        await log_in(accounts, FakeTerminal(answers=[text]), login.Wish(token_file=folder.token_file), folder)


async def test_a_browser_opens_the_account(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.offered = (login.BROWSER,)
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, by_browser=True)
    await log_in(accounts, FakeTerminal(), wish, folder)
    assert (folder.token, folder.device) == ("syt_1", "DEVICE1")


async def test_somebody_else_in_the_browser_is_logged_out_again(accounts: FakeAccounts, folder: Folder) -> None:
    accounts.offered, accounts.in_browser = (login.BROWSER,), AMY
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, by_browser=True)
    with pytest.raises(CredentialsRefused, match="private window"):
        await log_in(accounts, FakeTerminal(), wish, folder)
    assert (accounts.ended, folder.token) == (["syt_1"], None)


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        ((login.BROWSER, "m.login.token"), "login --sso"),
        (("m.login.application_service",), "issue-compatibility-token"),
    ],
)
async def test_where_no_passwords_are_taken_none_is_asked_for_and_another_way_is_named(
    offered: tuple[str, ...], words: str, accounts: FakeAccounts, folder: Folder
) -> None:
    accounts.offered = offered
    terminal = FakeTerminal()
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT)
    with pytest.raises(CredentialsRefused, match=words):
        await log_in(accounts, terminal, wish, folder)
    assert terminal.asked == []


@pytest.mark.parametrize(
    ("offered", "words"), [((login.PASSWORD,), "Leave --sso out"), ((), "issue-compatibility-token")]
)
async def test_where_no_browser_is_taken_another_way_is_named(
    offered: tuple[str, ...], words: str, accounts: FakeAccounts, folder: Folder
) -> None:
    accounts.offered = offered
    wish = login.Wish(token_file=folder.token_file, homeserver="hs", user_id=BOT, by_browser=True)
    with pytest.raises(CredentialsRefused, match=words):
        await log_in(accounts, FakeTerminal(), wish, folder)


@pytest.mark.parametrize(
    ("offered", "password", "words"),
    [
        ((login.PASSWORD,), "wrong", "did not accept this user and password.$"),
        ((login.PASSWORD, login.BROWSER), "wrong", "--sso"),
        ((login.BROWSER,), RIGHT, "takes no passwords"),
    ],
)
async def test_a_refused_password_names_the_other_ways(
    offered: tuple[str, ...], password: str, words: str, accounts: FakeAccounts
) -> None:
    accounts.offered = offered
    with pytest.raises(CredentialsRefused, match=words):
        await login.log_in_by_password(accounts, BOT, password, None)


async def test_a_login_that_is_refused_for_another_reason_says_it() -> None:
    with pytest.raises(RequestRefused):
        await login.log_in_by_password(_Offering(offered=()), BOT, RIGHT, None)


class _Offering(FakeAccounts):
    """Says that it takes passwords, and takes none."""

    async def flows(self) -> tuple[str, ...]:
        return (login.PASSWORD,)


def test_no_secret_is_in_the_text_of_what_holds_it(folder: Folder) -> None:
    wish = login.Wish(token_file=folder.token_file, access_token=GIVEN, password=RIGHT)
    account = login.LoggedIn(user_id=BOT, device_id="D", credentials=Credentials(access_token=GIVEN))
    shown = repr(wish) + repr(account)
    assert (GIVEN in shown, RIGHT in shown) == (False, False)
