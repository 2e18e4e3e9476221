"""Opening the bridge's account: which token counts, when a password is spent, what is kept in the state folder.

Above it: app, for `login` and for a start with a password. Below it: `Accounts`, the homeserver as app wires it, and a
`Terminal`. It knows no HTTP; the token leaves it as a value and as a file, never in a sentence.
"""

import getpass
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bridge.core.errors import ConfigError, CredentialsRefused
from bridge.core.model import UserId
from bridge.ops.folder import open_state_folder, write_private

DEVICE_NAME = "device_id"  # the file beside the saved token; a token may die, the device and its keys live on


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
    access_token: str = field(repr=False)


class Accounts(Protocol):
    """What a homeserver says about accounts. Both raise the errors of `MatrixError`."""

    async def whoami(self, access_token: str) -> Account:
        """Whose token this is. Raises `CredentialsRefused` when it is nobody's (any more)."""
        ...

    async def log_in(self, user_id: UserId, password: str, device_id: str | None) -> LoggedIn:
        """A new token, for this device or, with None, for a new one."""
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


class Console:
    """The real terminal."""

    def ask(self, question: str) -> str:
        """A line of text. Raises `ConfigError` without a terminal."""
        return _read(lambda: input(question))

    def ask_secret(self, question: str) -> str:
        """A line that is not shown. Raises `ConfigError` without a terminal."""
        return _read(lambda: getpass.getpass(question))

    def say(self, line: str) -> None:
        """A line for the person."""
        print(line)  # noqa: T201 - the terminal is what this class is


def _read(ask: Callable[[], str]) -> str:
    try:
        return ask().strip()
    except EOFError as error:
        raise ConfigError(
            "There is nobody to ask: give --homeserver and --user, and --token-file or matrix.password_file."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What command line, config and environment say already; None is asked for where it is needed."""

    token_file: Path  # where the token is kept, in the state folder
    homeserver: str | None = None
    user_id: UserId | None = None
    access_token: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


async def log_in(
    wish: Wish, connect: Callable[[str], AbstractAsyncContextManager[Accounts]], terminal: Terminal
) -> LoggedIn:
    """The `login` command: open the account, keep its token, and print the config to paste. Safe to repeat."""
    user_id = wish.user_id or UserId(terminal.ask("The bridge's user id, such as @bridge:example.org: "))
    server = user_id.partition(":")[2]
    if not user_id.startswith("@") or not server:
        raise ConfigError("This is no user id; it should look like @bridge:example.org.")
    homeserver = wish.homeserver or terminal.ask(f"Homeserver [{server}]: ") or server
    async with connect(homeserver) as accounts:
        account = await sign_in(
            accounts,
            user_id=user_id,
            token_file=wish.token_file,
            access_token=wish.access_token,
            ask_password=lambda: wish.password or terminal.ask_secret(f"Password of {user_id}: "),
        )
    for line in (
        f"{user_id} is logged in as device {account.device_id or '(none)'}.",
        f"The token is in {wish.token_file}, which only this user can read. The config needs no more than this:",
        "",
        f"state_dir = {_quote(str(wish.token_file.parent))}",
        "",
        "[matrix]",
        f"homeserver = {_quote(homeserver)}",
        f"user_id = {_quote(user_id)}",
    ):
        terminal.say(line)
    return account


async def sign_in(
    accounts: Accounts,
    *,
    user_id: UserId,
    token_file: Path,
    access_token: str | None,
    ask_password: Callable[[], str],
) -> LoggedIn:
    """The account, by the given token, else the kept one, else the password; then the token is kept.

    The password is asked for only when no token works: logins are few (a default Synapse allows five, then one in five
    minutes), and each without a known device would make another one.
    """
    open_state_folder(token_file.parent)
    device_file = token_file.with_name(DEVICE_NAME)
    token = access_token or _read_kept(token_file)
    account = None
    if token:
        try:
            account = await _resume(accounts, token, user_id)
        except CredentialsRefused:
            if access_token:
                raise
    if account is None:
        account = await accounts.log_in(user_id, ask_password(), _read_kept(device_file))
    # The device first: without its token it is used again, a token without its device would be of no known device.
    if account.device_id and account.device_id != _read_kept(device_file):
        write_private(device_file, account.device_id + "\n")
    if account.access_token != _read_kept(token_file):
        write_private(token_file, account.access_token + "\n")
    return account


async def _resume(accounts: Accounts, token: str, user_id: UserId) -> LoggedIn:
    account = await accounts.whoami(token)
    if account.user_id != user_id:
        raise CredentialsRefused(f"The access token is {account.user_id}'s, not {user_id}'s.")
    return LoggedIn(user_id=account.user_id, device_id=account.device_id, access_token=token)


def read_device(token_file: Path) -> str | None:
    """The device that belongs to this state folder, where one is known."""
    return _read_kept(token_file.with_name(DEVICE_NAME))


def _read_kept(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file {path} cannot be read.") from error


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML is written like one of JSON
