"""Opening the bridge's account: which token counts, which login is spent when none does, what is kept of it.

Above it: app, for `login` and for the start of `run`. Below it: `Accounts`, the homeserver as app wires it, a
`Terminal`, and the kept credentials. It knows no HTTP; no secret leaves it in a sentence.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bridge.core.errors import ConfigError, CredentialsRefused, MatrixError, RequestRefused
from bridge.core.model import UserId
from bridge.ops.credentials import Credentials, read_credentials, read_device, write_credentials, write_device
from bridge.ops.folder import open_state_folder

PASSWORD = "m.login.password"  # noqa: S105 - the name of a way in
BROWSER = "m.login.sso"

RUN_LOGIN = "Run `acp-matrix-bridge login`"
RAN_OUT = (
    f"The session of this device has run out, and it could not be renewed. {RUN_LOGIN}: the device stays as it is."
)
ENDED = (
    "The homeserver has ended the session of this device: it was logged out, here or from another client, "
    f"or the account is closed. {RUN_LOGIN}: it makes a new device with new keys."
)
NO_TOKEN = f"There is no token that works and no password. {RUN_LOGIN}."
TRY_BROWSER = "Log in through a browser: `acp-matrix-bridge login --sso`."
ASK_ADMIN = (
    "Have a token made for the bridge and give it with --token-file; under Matrix Authentication Service an admin makes "
    "it with `mas-cli manage issue-compatibility-token USER DEVICE`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whose token it is; `device_id` is empty for a token without a device."""

    user_id: UserId
    device_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIn:
    """An open account."""

    user_id: UserId
    device_id: str
    credentials: Credentials

    @property
    def access_token(self) -> str:
        """As secret as the password."""
        return self.credentials.access_token


class Accounts(Protocol):
    """What a homeserver says about accounts. All raise the errors of `MatrixError`."""

    async def flows(self) -> tuple[str, ...]:
        """The ways to log in that it offers."""
        ...

    async def whoami(self, access_token: str) -> Account:
        """Whose token this is. Raises `CredentialsRefused` when it is nobody's (any more)."""
        ...

    async def refresh(self, refresh_token: str) -> Credentials:
        """The next token. Raises `CredentialsRefused` when there is none."""
        ...

    async def log_in(self, user_id: UserId, password: str, device_id: str | None) -> LoggedIn:
        """A new token, for this device or, with None, for a new one."""
        ...

    async def log_in_by_browser(self, device_id: str | None) -> LoggedIn:
        """The same for whoever logs in with a browser. Raises `ConfigError` when nobody does."""
        ...

    async def log_out(self, access_token: str) -> None:
        """End the device of this token."""
        ...


class Terminal(Protocol):
    """The person who sits at the command line."""

    def ask(self, question: str) -> str:
        """A line of text."""
        ...

    def ask_secret(self, question: str) -> str:
        """A line that is not shown."""
        ...

    def say(self, line: str) -> None:
        """A line for the person."""
        ...


LogIn = Callable[[str | None], Awaitable[LoggedIn]]
"""Opens the account on this device or, with None, on a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What command line, config and environment say already; None is asked for where it is needed."""

    token_file: Path  # where the token is kept, in the state folder
    homeserver: str | None = None
    user_id: UserId | None = None
    access_token: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    by_browser: bool = False
    new_device: bool = False  # also where the token works: the device's keys are lost
    encryption: bool = True
    recovery_key: str | None = field(default=None, repr=False)
    ask_recovery_key: bool = False
    reset_identity: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What `login` has to go on with: the account, the homeserver as the person names it, the password if it was given."""

    homeserver: str
    account: LoggedIn
    password: str | None = field(default=None, repr=False)


async def log_in(
    wish: Wish,
    connect: Callable[[str], AbstractAsyncContextManager[Accounts]],
    terminal: Terminal,
    *,
    discard: Callable[[], None],
) -> Opened:
    """The `login` command: open the account and keep its token. Safe to repeat."""
    user_id = wish.user_id or UserId(terminal.ask("The bridge's user id, such as @bridge:example.org: "))
    server = user_id.partition(":")[2]
    if not user_id.startswith("@") or not server:
        raise ConfigError("This is no user id; it should look like @bridge:example.org.")
    homeserver = (wish.homeserver or terminal.ask(f"Homeserver [{server}]: ") or server).rstrip("/")
    password = wish.password
    async with connect(homeserver) as accounts:

        async def open_it(device_id: str | None) -> LoggedIn:
            if wish.by_browser:
                return await _log_in_by_browser(accounts, device_id)
            nonlocal password
            offered = await accounts.flows()
            if PASSWORD not in offered:
                raise CredentialsRefused(f"This homeserver takes no passwords. {_suggest(offered)}")
            password = password or terminal.ask_secret(f"Password of {user_id}: ")
            return await log_in_by_password(accounts, user_id, password, device_id)

        account = await sign_in(
            accounts,
            user_id=user_id,
            token_file=wish.token_file,
            access_token=wish.access_token,
            log_in=None if wish.access_token else open_it,
            discard=discard,
            only_given=wish.access_token is not None,
            new_device=wish.new_device,
        )
    terminal.say(f"{user_id} is logged in as device {account.device_id or '(none)'}.")
    return Opened(homeserver=homeserver, account=account, password=password)


def show_config(wish: Wish, opened: Opened) -> tuple[str, ...]:
    """The lines for the config, once all is done."""
    return (
        f"The token is in {wish.token_file}, which only this user can read. The config needs no more than this:",
        "",
        f"state_dir = {_quote(str(wish.token_file.parent))}",
        "",
        "[matrix]",
        f"homeserver = {_quote(opened.homeserver)}",
        f"user_id = {_quote(opened.account.user_id)}",
        *(() if wish.encryption else ("encryption = false",)),
    )


async def _log_in_by_browser(accounts: Accounts, device_id: str | None) -> LoggedIn:
    offered = await accounts.flows()
    if BROWSER not in offered:
        raise CredentialsRefused(f"This homeserver has no login through a browser. {_suggest(offered)}")
    return await accounts.log_in_by_browser(device_id)


async def log_in_by_password(accounts: Accounts, user_id: UserId, password: str, device_id: str | None) -> LoggedIn:
    """Spend a password login; the refusal says what else there is."""
    try:
        return await accounts.log_in(user_id, password, device_id)
    except (CredentialsRefused, RequestRefused) as refused:
        offered = await accounts.flows()
        if PASSWORD not in offered:
            raise CredentialsRefused(f"This homeserver takes no passwords. {_suggest(offered)}") from None
        if BROWSER in offered:
            raise CredentialsRefused(
                f"The homeserver did not accept this user and password. If the account has no password: {TRY_BROWSER}"
            ) from None
        if isinstance(refused, RequestRefused):
            raise
        raise CredentialsRefused("The homeserver did not accept this user and password.") from None


def _suggest(offered: tuple[str, ...]) -> str:
    if BROWSER in offered:
        return TRY_BROWSER
    if PASSWORD in offered:
        return "Leave --sso out, and give the password."
    return ASK_ADMIN


async def sign_in(
    accounts: Accounts,
    *,
    user_id: UserId,
    token_file: Path,
    access_token: str | None,
    log_in: LogIn | None,
    discard: Callable[[], None],
    only_given: bool = False,
    new_device: bool = False,
) -> LoggedIn:
    """The account by the given token, else by the kept one, renewed where it has run out, else by a login.

    A login is spent only when no token works: they are few (a default Synapse allows five, then one in five minutes).
    It opens the same device again where only the token has run out; a session that the homeserver has ended took the
    device and its keys with it, so then it is a new one, and `discard` throws away what the state folder has of the old.

    `only_given`: a person wants this token and no other, be it of another device. `new_device`: they want a new device.
    """
    open_state_folder(token_file.parent)
    device_id = read_device(token_file)
    if new_device and not only_given:
        found = _Nothing(device_ended=True)
    else:
        found = await _try_tokens(accounts, token_file, access_token, only_given=only_given)
    if isinstance(found, LoggedIn):
        account = found
        _check_account(account, user_id, token_file.parent, None if only_given and account.device_id else device_id)
    elif log_in is None:
        raise explain(found.ended)
    else:
        account = await _log_in(accounts, log_in, user_id, None if found.device_ended else device_id)
    if account.device_id != device_id:
        if device_id is not None:
            discard()
        if account.device_id:
            write_device(token_file, account.device_id)
    before = read_credentials(token_file)
    if account.credentials != before:
        write_credentials(token_file, account.credentials)
    if new_device and before is not None and before.access_token != account.access_token:
        with suppress(MatrixError):  # nobody misses it: without its keys it is of no use
            await accounts.log_out(before.access_token)
    return account


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nothing:
    """No token works; `ended` is why, None where there is none at all."""

    ended: CredentialsRefused | None = None
    device_ended: bool = False  # the folder's device, that is; of what device a given token was, nobody knows


async def _try_tokens(
    accounts: Accounts, token_file: Path, given: str | None, *, only_given: bool
) -> LoggedIn | _Nothing:
    kept, found = read_credentials(token_file), _Nothing()
    if given is not None and (kept is None or given != kept.access_token):
        try:
            return await _resume(accounts, Credentials(access_token=given))
        except CredentialsRefused as refused:
            found = _Nothing(ended=refused)
    if kept is not None and not (only_given and found.ended):
        try:
            return await _resume_kept(accounts, kept, token_file)
        except CredentialsRefused as refused:
            found = _Nothing(ended=refused, device_ended=not refused.soft)
    if only_given:
        raise CredentialsRefused(f"The given access token does not count: {found.ended}")
    return found


def _check_account(account: LoggedIn, user_id: UserId, folder: Path, device_id: str | None) -> None:
    """See that the token is of the user, and of the device whose keys the folder holds."""
    if account.user_id != user_id:
        raise CredentialsRefused(
            f"The access token is {account.user_id}'s, not {user_id}'s; each account needs a state folder of its own."
        )
    if device_id is not None and account.device_id != device_id:
        raise CredentialsRefused(
            f"The access token is of device {account.device_id or '(none)'}, but {folder} holds the keys of {device_id}, "
            f"and beside another device's token they break encryption. Give a token of {device_id}, or use another "
            "state folder."
        )


def explain(ended: CredentialsRefused | None) -> CredentialsRefused | ConfigError:
    """What to tell when no token works and nothing can be spent on another."""
    if ended is None:
        return ConfigError(NO_TOKEN)
    return CredentialsRefused(RAN_OUT if ended.soft else ENDED, soft=ended.soft)


async def _resume_kept(accounts: Accounts, kept: Credentials, token_file: Path) -> LoggedIn:
    try:
        return await _resume(accounts, kept)
    except CredentialsRefused as refused:
        if not refused.soft or kept.refresh_token is None:
            raise
        try:
            renewed = await accounts.refresh(kept.refresh_token)
        except CredentialsRefused:
            raise refused from None
    write_credentials(token_file, renewed)  # before it is used: its use is the end of the old pair
    return await _resume(accounts, renewed)


async def _resume(accounts: Accounts, credentials: Credentials) -> LoggedIn:
    account = await accounts.whoami(credentials.access_token)
    return LoggedIn(user_id=account.user_id, device_id=account.device_id, credentials=credentials)


async def _log_in(accounts: Accounts, log_in: LogIn, user_id: UserId, device_id: str | None) -> LoggedIn:
    account = await log_in(device_id)
    if account.user_id != user_id:
        # In a browser that is easily done: the person's own session was still open there.
        await accounts.log_out(account.access_token)
        raise CredentialsRefused(
            f"That was a login of {account.user_id}, not of {user_id}, and was ended again. In a browser use a private "
            "window, and log in there as the bridge."
        )
    return account


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML is written like one of JSON
