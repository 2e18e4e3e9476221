"""The account opened: by `login`, by the start of `run`, and again by a running bridge whose token runs out.

Above it: service. Below it: accounts, ops.login and the files of the state folder, matrix.client.
"""

from bridge import logs
from bridge.app.accounts import HomeserverAccounts, connect, find_address
from bridge.config import Config, read_password, read_secrets
from bridge.core.errors import ConfigError, CredentialsRefused
from bridge.core.model import UserId
from bridge.matrix.client import Client
from bridge.matrix.tokens import TokenHolder, Tokens
from bridge.ops.console import Console
from bridge.ops.credentials import Credentials, write_credentials
from bridge.ops.folder import hold_state_folder, open_state_folder
from bridge.ops.login import LoggedIn, Wish, log_in, log_in_by_password, show_config, sign_in

HIDDEN_MOST = 3  # tokens kept out of the log: the one in use, and those before it that a slow request may still name


async def log_in_here(wish: Wish) -> int:
    """The `login` command. It holds the state folder: a bridge that runs renews the same tokens, and would lose them."""
    console = Console()
    folder = wish.token_file.parent
    open_state_folder(folder)
    with hold_state_folder(folder):
        opened = await log_in(wish, connect, console, discard=_discard_keys)
        for line in show_config(wish, opened):
            console.say(line)
    return 0


def _discard_keys() -> None:
    """Throw the keys of a device away that is no more."""


async def open_account(config: Config) -> tuple[str, LoggedIn]:
    """The homeserver's address and the account that `run` speaks as: the config's token, the kept one, or a login."""
    address = await find_address(config.matrix.homeserver)
    found = read_secrets(config)
    accounts, user_id = HomeserverAccounts(address), UserId(config.matrix.user_id)
    password = found.password

    async def open_it(device_id: str | None) -> LoggedIn:
        if password is None:
            raise AssertionError("unreachable")
        return await log_in_by_password(accounts, user_id, password.get_secret_value(), device_id)

    account = await sign_in(
        accounts,
        user_id=user_id,
        token_file=config.saved_token_file,
        access_token=found.access_token.get_secret_value() if found.access_token else None,
        log_in=None if password is None else open_it,
        discard=_discard_keys,
    )
    return address, account


def make_client(config: Config, address: str, account: LoggedIn) -> Client:
    """The client of an open account. It renews its tokens as they run out, and keeps them in the state folder."""
    accounts = HomeserverAccounts(address)
    hidden = [account.credentials]

    def keep(tokens: Tokens) -> None:
        credentials = Credentials(
            access_token=tokens.access_token, refresh_token=tokens.refresh_token, renew_at=tokens.renew_at
        )
        write_credentials(config.saved_token_file, credentials)
        hidden.append(credentials)
        if len(hidden) > HIDDEN_MOST:
            dead = hidden.pop(0)
            logs.forget(dead.access_token)
            logs.forget(dead.refresh_token or "")

    async def refresh(refresh_token: str) -> Tokens:
        return _to_tokens(await accounts.refresh(refresh_token))

    async def log_in_again() -> Tokens | None:
        password = _find_password(config)
        if password is None or not account.device_id:
            return None
        again = await accounts.log_in(account.user_id, password, account.device_id)
        if (again.user_id, again.device_id) != (account.user_id, account.device_id):
            raise CredentialsRefused("The homeserver opened another device than ours.")
        return _to_tokens(again.credentials)

    holder = TokenHolder(_to_tokens(account.credentials), keep=keep, refresh=refresh, log_in=log_in_again)
    return Client(address, user_id=account.user_id, device_id=account.device_id, tokens=holder)


def _find_password(config: Config) -> str | None:
    """Read when it is needed, hours after the start: the file may be gone by then."""
    try:
        password = read_password(config)
    except ConfigError:
        return None
    return None if password is None else password.get_secret_value()


def _to_tokens(credentials: Credentials) -> Tokens:
    return Tokens(
        access_token=credentials.access_token,
        refresh_token=credentials.refresh_token,
        renew_at=credentials.renew_at,
    )
