"""A device of our own as the key machine has it: real Olm keys, no store."""

import vodozemac

from bridge.core.model import JsonObject, JsonValue
from bridge.matrix.crypto.signing import to_canonical


class FakeDevice:
    """Implements `bridge.matrix.crosssigning.Device`."""

    def __init__(self, user_id: str, device_id: str) -> None:
        self.user_id = user_id
        self.device_id = device_id
        self.account = vodozemac.Account()

    @property
    def public(self) -> str:
        return self.account.ed25519_key.to_base64()

    def sign(self, value: JsonObject) -> str:
        return self.account.sign(to_canonical(value)).to_base64()

    def device_keys(self) -> JsonObject:
        value: dict[str, JsonValue] = {
            "user_id": self.user_id,
            "device_id": self.device_id,
            "algorithms": ["m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"],
            "keys": {
                f"curve25519:{self.device_id}": self.account.curve25519_key.to_base64(),
                f"ed25519:{self.device_id}": self.public,
            },
        }
        return {**value, "signatures": {self.user_id: {f"ed25519:{self.device_id}": self.sign(value)}}}
