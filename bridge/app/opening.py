"""The account opened: by `login`, by the start of `run`, and again by a running bridge whose token runs out.

Above it: service. Below it: accounts, ops.login and the files of the state folder, matrix.client.
"""

from collections.abc import Callable
from pathlib import Path

from bridge import logs
from bridge.app.accounts import HomeserverAccounts, connect, find_address
from bridge.app.device import discard_keys, open_device
from bridge.config import Config, read_password, read_secrets
from bridge.core.errors import BridgeError, ConfigError, CredentialsRefused, MatrixError
from bridge.core.model import UserId
from bridge.matrix.client import Client
from bridge.matrix.tokens import TokenHolder, Tokens
from bridge.ops.console import Console
from bridge.ops.credentials import Credentials, read_credentials, write_credentials
from bridge.ops.folder import hold_state_folder, open_state_folder
from bridge.ops.login import LoggedIn, Opened, Wish, log_in, log_in_by_password, show_config, sign_in

HIDDEN_MOST = 3  # tokens kept out of the log: the one in use, and those before it that a slow request may still name


async def log_in_here(wish: Wish, console: Console | None = None) -> int:
    """The `login` command. It holds the state folder: a bridge that runs renews the same tokens, and would lose them."""
    console = console or Console()
    for line in show_config(wish, await open_and_sign(wish, console)):
        console.say(line)
    return 0


async def open_and_sign(wish: Wish, console: Console) -> Opened:
    """Open the account, keep its token, and have it sign the device; for `login` and for `setup`."""
    folder = wish.token_file.parent
    open_state_folder(folder)
    with hold_state_folder(folder):
        opened = await log_in(wish, connect, console, discard=lambda: discard_keys(folder))
        if wish.encryption:
            await _sign_device(wish, opened, console)
        return opened


async def _sign_device(wish: Wish, opened: Opened, console: Console) -> None:
    """Open or make the device's keys, publish them, and have the account sign them. The login stays, whatever comes."""
    account, folder = opened.account, wish.token_file.parent

    def ask_recovery_key() -> str:
        if wish.recovery_key is not None:
            return wish.recovery_key
        console.say("The account has a cross-signing identity already, which a client made; its recovery key opens it.")
        return console.ask_secret(f"Recovery key or passphrase of {account.user_id}: ")

    def ask_password() -> str:
        return opened.password or console.ask_secret(f"Password of {account.user_id}: ")

    may_ask = console.present
    address = await find_address(opened.homeserver)
    client = make_client(address, account, wish.token_file, lambda: opened.password)
    try:
        async with open_device(client, account, folder) as device:
            done = await device.sign(
                recovery_key=ask_recovery_key if may_ask or wish.ask_recovery_key or wish.recovery_key else None,
                password=ask_password if may_ask or opened.password else None,
                reset=wish.reset_identity,
            )
    finally:
        await client.close()
    console.say(done.done)
    console.say(f"Fingerprint of device {account.device_id}: {done.fingerprint}")


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
        discard=lambda: discard_keys(config.state_dir),
    )
    return address, account


async def find_token(config: Config, address: str) -> str | None:
    """A token for a look at the account: `run`'s, renewed where it has run out and no bridge is there to do it."""
    found, kept = read_secrets(config), read_credentials(config.saved_token_file)
    token = None if found.access_token is None else found.access_token.get_secret_value()
    if token is None or kept is None or kept.refresh_token is None or kept.access_token != token:
        return token
    accounts = HomeserverAccounts(address)
    try:
        await accounts.whoami(token)
    except CredentialsRefused as refused:
        if not refused.soft:
            return token
    except MatrixError:
        return token
    else:
        return token
    try:
        with hold_state_folder(config.state_dir):
            renewed = await accounts.refresh(kept.refresh_token)
            write_credentials(config.saved_token_file, renewed)
    except BridgeError:  # whoever looks sees that the token does not work
        return token
    return renewed.access_token


def make_client(address: str, account: LoggedIn, token_file: Path, find_password: Callable[[], str | None]) -> Client:
    """The client of an open account. It renews its tokens as they run out, and keeps them in the state folder.

    `find_password`: for a device whose token has run out and cannot be renewed.
    """
    accounts = HomeserverAccounts(address)
    hidden = [account.credentials]

    def keep(tokens: Tokens) -> None:
        credentials = Credentials(
            access_token=tokens.access_token, refresh_token=tokens.refresh_token, renew_at=tokens.renew_at
        )
        write_credentials(token_file, credentials)
        hidden.append(credentials)
        if len(hidden) > HIDDEN_MOST:
            dead = hidden.pop(0)
            logs.forget(dead.access_token)
            logs.forget(dead.refresh_token or "")

    async def refresh(refresh_token: str) -> Tokens:
        return _to_tokens(await accounts.refresh(refresh_token))

    async def log_in_again() -> Tokens | None:
        password = find_password()
        if password is None or not account.device_id:
            return None
        again = await accounts.log_in(account.user_id, password, account.device_id)
        if (again.user_id, again.device_id) != (account.user_id, account.device_id):
            raise CredentialsRefused("The homeserver opened another device than ours.")
        return _to_tokens(again.credentials)

    holder = TokenHolder(_to_tokens(account.credentials), keep=keep, refresh=refresh, log_in=log_in_again)
    return Client(address, user_id=account.user_id, device_id=account.device_id, tokens=holder)


def find_password(config: Config) -> str | None:
    """The password, where the config names one; read when it is needed, hours after the start: it may be gone by then."""
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
