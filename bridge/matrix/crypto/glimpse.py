"""A look at our device's own keys, beside a bridge that has them open: nothing is written, made or used up.

Above it: `check`. Below it: the key store's file and nio's reading of it. It refuses to know sessions and room keys: what
the machine knows while it runs cannot be seen from outside.
"""

from pathlib import Path
from typing import Any, cast

from nio.crypto import OlmAccount

from bridge.core.errors import KeysDamaged
from bridge.core.model import JsonObject
from bridge.matrix.crypto import keystore
from bridge.matrix.crypto.olm import ODD, describe_device
from bridge.matrix.crypto.signing import to_canonical


class Glimpse:
    """Our device as others know it; implements `matrix.crosssigning.Device`."""

    def __init__(self, user: str, device: str, account: OlmAccount) -> None:
        self.device_id = device
        self._user = user
        self._account: Any = cast("Any", account)

    @property
    def fingerprint(self) -> str:
        """The ed25519 key of our device: what people compare."""
        return cast("str", self._account.identity_keys["ed25519"])

    def sign(self, value: JsonObject) -> str:
        """Our device's signature over an object."""
        return cast("str", self._account._account.sign(to_canonical(value)).to_base64())  # noqa: SLF001 - nio's signs text only

    def device_keys(self) -> JsonObject:
        """What others must know of our device, signed by it."""
        keys = self._account.identity_keys
        described = describe_device(self._user, self.device_id, keys["curve25519"], keys["ed25519"])
        return {**described, "signatures": {self._user: {f"ed25519:{self.device_id}": self.sign(described)}}}


def look(folder: Path, user: str, device: str) -> Glimpse | None:
    """The device's keys, or None where no keys were made yet.

    Raises `KeysLost` where only another device's are there, `KeysDamaged` when they cannot be read.
    """
    found = keystore.read_account(folder, user, device)
    if found is None:
        return None
    pickle, passphrase = found
    try:
        account = OlmAccount.from_pickle(pickle, passphrase)
    except ODD:
        raise KeysDamaged(f"The keys of device {device} in {folder} cannot be read.") from None
    return Glimpse(user, device, account)
