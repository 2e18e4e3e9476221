"""The bridge's device: its keys opened, published, and signed by its account.

Above it: opening, for `login`, and service, for `run`. Below it: the key machine, the key calls, cross-signing. The
files of the keys lie in the state folder itself, beside the token that they belong to.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from bridge.core.errors import CredentialsRefused, IdentityUnusable, KeysDamaged, KeysLost
from bridge.matrix.client import Client
from bridge.matrix.crosssigning import Established, establish
from bridge.matrix.crypto import keystore
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from bridge.matrix.keyserver import KeyServer
from bridge.ops.login import LoggedIn

log = structlog.get_logger()

NEW_DEVICE = "Run `acp-matrix-bridge login --new-device`: it makes a new device with new keys."
NO_DEVICE = (
    "This access token belongs to no device, and without one nothing can be encrypted. Give a token that has a device, or "
    "do without encryption: `login --no-encryption`, and encryption = false in the config."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """A device whose keys are open here and published there."""

    client: Client
    machine: Machine
    encryption: Encryption
    account: LoggedIn
    folder: Path

    async def sign(
        self,
        *,
        recovery_key: Callable[[], str] | None = None,
        password: Callable[[], str] | None = None,
        reset: bool = False,
    ) -> Established:
        """Have the account vouch for the device (`crosssigning.establish`)."""
        return await establish(
            KeyServer(self.client),
            self.machine,
            self.folder,
            user_id=self.account.user_id,
            recovery_key=recovery_key,
            password=password,
            reset=reset,
        )

    async def sign_or_warn(self, password: str | None) -> None:
        """The same at the start of `run`, where nobody can be asked: without a signature the bridge goes on.

        An account that has no identity gets one; one that a client made needs its recovery key, and so a `login`.
        """
        try:
            await self.sign(password=None if password is None else lambda: password)
        except IdentityUnusable as error:
            log.warning("identity.device_unsigned", device_id=self.account.device_id, why=str(error))


@asynccontextmanager
async def open_device(client: Client, account: LoggedIn, folder: Path) -> AsyncGenerator[OpenDevice]:
    """The device of this account with the keys that the state folder holds, made where neither side has any.

    Raises `KeysLost` where the homeserver has others, `KeysDamaged` where ours cannot be read.
    """
    if not account.device_id:
        raise CredentialsRefused(NO_DEVICE)
    try:
        machine = Machine(folder, account.user_id, account.device_id, create=True)
    except (KeysLost, KeysDamaged) as error:
        raise type(error)(f"{error} {NEW_DEVICE}") from None
    with machine:
        encryption = Encryption(client, machine)
        try:
            await encryption.start()
        except KeysLost as error:
            raise KeysLost(f"{error} {NEW_DEVICE}") from None
        yield OpenDevice(client=client, machine=machine, encryption=encryption, account=account, folder=folder)


def discard_keys(folder: Path) -> None:
    """Throw the keys of a device away that is no more. The account's identity stays: it signs the next device."""
    keystore.discard(folder)
