"""The homeserver as `ops.login` asks for it: whose token this is, and a new one for a password.

Above it: service and inspection. Below it: matrix.client, ops.login.
"""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bridge import logs
from bridge.config import Config, read_secrets
from bridge.core.errors import ConfigError
from bridge.core.model import UserId
from bridge.matrix.client import Client
from bridge.ops.login import Account, Console, LoggedIn, Wish, log_in, sign_in

DEVICE_PREFIX = "ACPBRIDGE"  # what people see in their list of sessions; the rest is the homeserver's choice


class HomeserverAccounts:
    """Asks one homeserver about accounts, without a token of its own."""

    def __init__(self, homeserver: str) -> None:
        self._homeserver = homeserver

    async def whoami(self, access_token: str) -> Account:
        """Whose token this is. Raises `CredentialsRefused` when it is nobody's."""
        client = Client(self._homeserver, access_token=access_token)
        try:
            user_id, device_id = await client.whoami()
        finally:
            await client.close()
        return Account(user_id=user_id, device_id=device_id)

    async def log_in(self, user_id: UserId, password: str, device_id: str | None) -> LoggedIn:
        """A new token, for this device or for a new one."""
        client = Client(self._homeserver)
        try:
            login = await client.login_password(user_id, password, device_id or new_device_id())
        finally:
            await client.close()
        logs.hide(login.access_token)
        return LoggedIn(user_id=login.user_id, device_id=login.device_id, access_token=login.access_token)


def new_device_id() -> str:
    """A device of our own choosing: should the answer to the login be lost, the next try opens the same kind of device."""
    return f"{DEVICE_PREFIX}{secrets.token_hex(4).upper()}"


@asynccontextmanager
async def connect(homeserver: str) -> AsyncGenerator[HomeserverAccounts]:
    """The accounts of this homeserver, named by its address or its server name."""
    yield HomeserverAccounts(await find_address(homeserver))


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


async def log_in_here(wish: Wish) -> int:
    """The `login` command."""
    await log_in(wish, connect, Console())
    return 0


async def open_account(config: Config) -> tuple[str, LoggedIn]:
    """The homeserver's address and the account that `run` speaks as: the config's token, the kept one, or a login."""
    address = await find_address(config.matrix.homeserver)
    found = read_secrets(config)

    def password() -> str:
        if found.password is None:
            raise ConfigError("There is no token that works and no password: run `acp-matrix-bridge login`.")
        return found.password.get_secret_value()

    account = await sign_in(
        HomeserverAccounts(address),
        user_id=UserId(config.matrix.user_id),
        token_file=config.saved_token_file,
        access_token=found.access_token.get_secret_value() if found.access_token else None,
        ask_password=password,
    )
    return address, account
