"""The homeserver as `ops.login` asks for it: where it is, whose token this is, and the ways to a new one.

Above it: opening and inspection. Below it: matrix.entrance, matrix.client, ops.login, ops.browser.
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from bridge import logs
from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, RequestRefused
from bridge.core.model import UserId
from bridge.matrix import entrance
from bridge.matrix.client import Client
from bridge.matrix.entrance import Login
from bridge.matrix.tokens import Tokens
from bridge.ops.browser import fetch_login_token
from bridge.ops.console import Console
from bridge.ops.credentials import Credentials
from bridge.ops.login import Account, LoggedIn

DEVICE_PREFIX = "ACPBRIDGE"  # what people see in their list of sessions; the rest is the homeserver's choice

T = TypeVar("T")


class HomeserverAccounts:
    """Asks one homeserver about accounts, without a token of its own; implements `ops.login.Accounts`."""

    def __init__(self, homeserver: str, console: Console | None = None) -> None:
        self._homeserver = homeserver
        self._console = console or Console()

    async def flows(self) -> tuple[str, ...]:
        """The ways to log in that it offers."""
        return await self._ask(entrance.read_flows)

    async def whoami(self, access_token: str) -> Account:
        """Whose token this is. Raises `CredentialsRefused` when it is nobody's."""
        user_id, device_id = await self._ask(lambda client: client.whoami(), access_token)
        return Account(user_id=user_id, device_id=device_id)

    async def refresh(self, refresh_token: str) -> Credentials:
        """The next token. Raises `CredentialsRefused` when there is none."""
        return _read_tokens(await self._ask(lambda client: entrance.refresh(client, refresh_token)))

    async def log_in(self, user_id: UserId, password: str, device_id: str | None) -> LoggedIn:
        """A new token, for this device or for a new one."""
        device = device_id or new_device_id()
        return _read_login(
            await self._ask(lambda client: entrance.log_in_by_password(client, user_id, password, device))
        )

    async def log_in_by_browser(self, device_id: str | None) -> LoggedIn:
        """The same for whoever logs in with a browser."""
        login_token = await fetch_login_token(
            lambda back: entrance.make_browser_address(self._homeserver, back),
            ask=self._console.wait_for_line,
            say=self._console.say,
        )
        logs.hide(login_token)
        device = device_id or new_device_id()
        return _read_login(await self._ask(lambda client: entrance.log_in_by_token(client, login_token, device)))

    async def log_out(self, access_token: str) -> None:
        """End the device of this token."""
        await self._ask(lambda client: client.log_out(), access_token)

    async def _ask(self, ask: Callable[[Client], Awaitable[T]], access_token: str = "") -> T:
        client = Client(self._homeserver, access_token=access_token)
        try:
            return await ask(client)
        finally:
            await client.close()


def new_device_id() -> str:
    """A device of our own choosing: should the answer to the login be lost, the next try opens the same kind of device."""
    return f"{DEVICE_PREFIX}{secrets.token_hex(4).upper()}"


def _read_login(login: Login) -> LoggedIn:
    return LoggedIn(user_id=login.user_id, device_id=login.device_id, credentials=_read_tokens(login.tokens))


def _read_tokens(tokens: Tokens) -> Credentials:
    logs.hide(tokens.access_token)
    logs.hide(tokens.refresh_token or "")
    return Credentials(access_token=tokens.access_token, refresh_token=tokens.refresh_token, renew_at=tokens.renew_at)


# ------------------------------------------------------------------------------------------------------- the address


@asynccontextmanager
async def connect(homeserver: str) -> AsyncGenerator[HomeserverAccounts]:
    """The accounts of this homeserver, named by its address or its server name; says plainly where there is none."""
    address = homeserver
    try:
        address = await find_address(homeserver)
        client = Client(address)
        try:
            await client.versions()
        finally:
            await client.close()
    except (HomeserverUnreachable, CredentialsRefused, RequestRefused) as error:
        raise HomeserverUnreachable(
            f"There is no homeserver at {address}: {error} Give its whole address, such as "
            "https://matrix.example.org or http://localhost:8008."
        ) from None
    yield HomeserverAccounts(address)


async def find_address(homeserver: str) -> str:
    """The address to call: as it is written, or for a bare server name the one that this server names, else its own."""
    if homeserver.startswith(("http://", "https://")):
        return homeserver
    return await follow(f"https://{homeserver}")


async def follow(address: str) -> str:
    """Where the server at this address says that its homeserver is (client-server API, Well-known URI)."""
    client = Client(address)
    try:
        return await client.delegate() or address
    finally:
        await client.close()
