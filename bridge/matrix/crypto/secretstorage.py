"""Secret storage of an account: how a recovery key or passphrase opens the keys that a client has put there.

Above it: `crosssigning`, which fetches what is stored. Below it: signatures, pycryptodome and the standard library. It
refuses to know the homeserver: everything here is a value in, and a value or one plain sentence out. What is stored was
written by clients and can be changed by the server, so any of it may be missing or odd; nothing here repeats any of it.
(Client-server API, "Secrets", `m.secret_storage.v1.aes-hmac-sha2`.)
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import cast

from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF

from bridge.core.errors import RecoveryRefused
from bridge.matrix import events
from bridge.matrix.crypto.signing import PrivateKey, from_base64
from bridge.matrix.events import Source

DEFAULT_KEY = "m.secret_storage.default_key"
KEY_PREFIX = "m.secret_storage.key."
SELF_SIGNING = "m.cross_signing.self_signing"
MASTER = "m.cross_signing.master"
USER_SIGNING = "m.cross_signing.user_signing"

AES_HMAC = "m.secret_storage.v1.aes-hmac-sha2"
PBKDF2 = "m.pbkdf2"

KEY_BYTES = 32
IV_BYTES = 16
KEY_BITS = 8 * KEY_BYTES
MOST_ROUNDS = 10_000_000  # clients take 500,000, a quarter of a second; a server must not keep us busy for hours
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # no 0, O, I and l
RECOVERY_PREFIX = b"\x8b\x01"  # "Recovery key": two fixed bytes, the key, and one that makes the XOR of all zero
RECOVERY_BYTES = len(RECOVERY_PREFIX) + KEY_BYTES + 1
MOST_DIGITS = 60  # a recovery key has 48; what is much longer is something else, and slow to turn into a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Passphrase:
    """How a key is made from words."""

    salt: str
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageKey:
    """What is known of a key without having it. `iv` and `mac` are None where nobody can tell it from another."""

    iv: bytes | None
    mac: bytes | None
    passphrase: Passphrase | None


def read_default(source: Source | None) -> str:
    """The id of the key that opens the account's secrets."""
    key_id = events.text(source or {}, "key")
    if not key_id:
        raise RecoveryRefused("The account has no secret storage: no client has set up a recovery key for it.")
    return key_id


def read_key(source: Source | None) -> StorageKey:
    """The description of a key, `m.secret_storage.key.ID`."""
    said = source or {}
    if events.text(said, "algorithm") != AES_HMAC:
        raise RecoveryRefused("The account's secret storage is missing or of a kind that this bridge does not know.")
    iv, mac = events.text(said, "iv"), events.text(said, "mac")
    checked = iv is not None and mac is not None
    try:
        return StorageKey(
            iv=_bytes(iv, IV_BYTES) if iv is not None and checked else None,
            mac=_bytes(mac, KEY_BYTES) if mac is not None and checked else None,
            passphrase=_read_passphrase(events.mapping(said, "passphrase")),
        )
    except ValueError:
        raise RecoveryRefused("The description of the account's recovery key is damaged.") from None


def _read_passphrase(said: Source) -> Passphrase | None:
    salt, rounds, bits = events.text(said, "salt"), said.get("iterations"), said.get("bits", KEY_BITS)
    if events.text(said, "algorithm") != PBKDF2 or salt is None or isinstance(rounds, bool) or bits != KEY_BITS:
        return None
    if not isinstance(rounds, int) or not 0 < rounds <= MOST_ROUNDS:
        return None
    return Passphrase(salt=salt, rounds=rounds)


def unlock(text: str, described: StorageKey) -> bytes:
    """The key behind a recovery key or, where the account has one, a passphrase."""
    try:
        found = decode_recovery_key(text)
    except RecoveryRefused:
        if described.passphrase is None:
            raise
        found = derive_key(text, described.passphrase)
        if not fits(found, described):
            raise RecoveryRefused(
                "This is neither the account's recovery key, with a typing error perhaps, nor its passphrase."
            ) from None
        return found
    if not fits(found, described):
        raise RecoveryRefused("This is a recovery key, but not the one of this account (any more).")
    return found


def decode_recovery_key(text: str) -> bytes:
    """The key that a recovery key spells; spaces do not count, and a typing error is found."""
    digits = "".join(text.split())
    if not digits:
        raise RecoveryRefused("The recovery key is empty.")
    if not set(digits) <= set(BASE58):
        raise RecoveryRefused("The recovery key has a character that occurs in none: 0, O, I, l and signs never do.")
    if len(digits) > MOST_DIGITS:
        raise RecoveryRefused("The recovery key is too long.")
    number = 0
    for digit in digits:
        number = number * 58 + BASE58.index(digit)
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    if len(raw) != RECOVERY_BYTES or digits.startswith("1"):  # a 1 in front would be one more byte of zero
        raise RecoveryRefused("The recovery key is too long or too short.")
    parity = 0
    for byte in raw:
        parity ^= byte
    if not raw.startswith(RECOVERY_PREFIX) or parity:
        raise RecoveryRefused("The recovery key has a typing error.")
    return raw[len(RECOVERY_PREFIX) : -1]


def derive_key(passphrase: str, how: Passphrase) -> bytes:
    """The key that a passphrase makes; takes a good part of a second."""
    words, salt = passphrase.encode("utf-8", "surrogatepass"), how.salt.encode("utf-8", "surrogatepass")
    return hashlib.pbkdf2_hmac("sha512", words, salt, how.rounds, KEY_BYTES)


def fits(key: bytes, described: StorageKey) -> bool:
    """Whether it is this key; also where its description does not allow to tell."""
    if described.iv is None or described.mac is None:
        return True
    aes_key, mac_key = _keys(key, "")
    return hmac.compare_digest(_mac(mac_key, _ctr(aes_key, described.iv, bytes(KEY_BYTES))), described.mac)


def read_secret(name: str, source: Source | None, key_id: str, key: bytes) -> PrivateKey:
    """The private key that is stored under this name, opened with the storage's key."""
    encrypted = events.mapping(events.mapping(source or {}, "encrypted"), key_id)
    if not encrypted:
        raise RecoveryRefused(f"The account's secret storage does not hold the key {name}.")
    try:
        return PrivateKey(from_base64(_open(name, encrypted, key).decode()))
    except ValueError:
        raise RecoveryRefused(f"The key {name} cannot be read from the account's secret storage.") from None


def _open(name: str, encrypted: Source, key: bytes) -> bytes:
    aes_key, mac_key = _keys(key, name)
    ciphertext = from_base64(_needed(encrypted, "ciphertext"))
    if not hmac.compare_digest(_mac(mac_key, ciphertext), from_base64(_needed(encrypted, "mac"))):
        raise ValueError("It was made with another key or changed since.")
    return _ctr(aes_key, _bytes(_needed(encrypted, "iv"), IV_BYTES), ciphertext)


def _needed(said: Source, key: str) -> str:
    found = events.text(said, key)
    if found is None:
        raise ValueError("A part is missing.")
    return found


def _bytes(text: str, length: int) -> bytes:
    raw = from_base64(text)
    if len(raw) != length:
        raise ValueError("It has another length.")
    return raw


def _keys(key: bytes, name: str) -> tuple[bytes, bytes]:
    """One key for AES and one for the MAC, bound to the secret's name."""
    aes_key, mac_key = HKDF(key, KEY_BYTES, bytes(KEY_BYTES), SHA256, 2, name.encode())
    return cast("bytes", aes_key), cast("bytes", mac_key)


def _mac(mac_key: bytes, ciphertext: bytes) -> bytes:
    return hmac.digest(mac_key, ciphertext, "sha256")


def _ctr(aes_key: bytes, iv: bytes, data: bytes) -> bytes:
    """AES-CTR; the whole of `iv` is where its counter begins."""
    return AES.new(aes_key, AES.MODE_CTR, nonce=b"", initial_value=iv).encrypt(data)
