"""Secret storage as a client sets it up: what goes into the account data, and the recovery key that a person writes down."""

import hmac
import secrets
from dataclasses import dataclass
from typing import Self

from Crypto.Cipher import AES

from bridge.core.model import JsonObject, JsonValue
from bridge.matrix.crypto.identity import Identity
from bridge.matrix.crypto.signing import PrivateKey, to_base64

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def spell(raw: bytes) -> str:
    """Base58, each digit from the left the largest that fits."""
    number, digits, power = int.from_bytes(raw, "big"), "", 58**60
    while power:
        digit, number = divmod(number, power)
        digits += BASE58[digit]
        power //= 58
    return digits.lstrip("1")


def to_recovery_key(key: bytes, prefix: bytes = b"\x8b\x01", parity: int = 0) -> str:
    raw = prefix + key
    for byte in raw:
        parity ^= byte
    return spell(raw + bytes([parity]))


def expand(key: bytes, name: str) -> tuple[bytes, bytes]:
    """HKDF by hand (RFC 5869): 32 zero bytes of salt, two blocks."""
    pseudo = hmac.digest(bytes(32), key, "sha256")
    first = hmac.digest(pseudo, name.encode() + b"\x01", "sha256")
    return first, hmac.digest(pseudo, first + name.encode() + b"\x02", "sha256")


def counter_mode(key: bytes, iv: bytes, data: bytes) -> bytes:
    """AES-CTR from single blocks."""
    ecb, start = AES.new(key, AES.MODE_ECB), int.from_bytes(iv, "big")
    blocks = range((len(data) + 15) // 16)
    stream = b"".join(ecb.encrypt(((start + at) % 2**128).to_bytes(16, "big")) for at in blocks)
    return bytes(a ^ b for a, b in zip(data, stream, strict=False))


def seal(name: str, key: bytes, plain: bytes, iv: bytes = b"\x0f" * 16) -> dict[str, JsonValue]:
    aes_key, mac_key = expand(key, name)
    ciphertext = counter_mode(aes_key, iv, plain)
    mac = hmac.digest(mac_key, ciphertext, "sha256")
    return {"iv": to_base64(iv), "ciphertext": to_base64(ciphertext), "mac": to_base64(mac)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretStorage:
    """`account_data` by type."""

    recovery_key: str
    account_data: dict[str, JsonObject]

    @classmethod
    def of(cls, identity: Identity | None) -> Self:
        """A storage that holds the identity's self-signing key."""
        key = secrets.token_bytes(32)
        self_signing = identity.self_signing if identity and identity.self_signing else PrivateKey.new()
        name = "m.cross_signing.self_signing"
        description = seal("", key, bytes(32))
        return cls(
            recovery_key=to_recovery_key(key),
            account_data={
                "m.secret_storage.default_key": {"key": "k"},
                "m.secret_storage.key.k": {
                    "algorithm": "m.secret_storage.v1.aes-hmac-sha2",
                    "iv": description["iv"],
                    "mac": description["mac"],
                },
                name: {"encrypted": {"k": seal(name, key, to_base64(self_signing.seed).encode())}},
            },
        )
