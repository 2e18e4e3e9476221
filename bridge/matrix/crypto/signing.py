"""Ed25519 signatures over JSON: what gets signed, who signed it, and private keys that sign.

Above it: identity, secret storage, the key machine, verification, and `crosssigning`. Below it: vodozemac, which checks,
and pycryptodome, which signs (vodozemac's Python package has no Ed25519 secret key). It refuses to know whose keys they
are and whether they count.
"""

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import Self, cast

import vodozemac
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from bridge.core.model import JsonObject
from bridge.matrix import events
from bridge.matrix.events import Source

ALGORITHM = "ed25519"
SEED_BYTES = 32
KEY_BYTES = 32
UNSIGNED = frozenset({"signatures", "unsigned"})  # not part of what is signed (appendices, "Signing JSON")
LARGEST_INTEGER = 2**53 - 1  # canonical JSON knows no other numbers (appendices, "Canonical JSON")
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def to_canonical(value: JsonObject | Source) -> bytes:
    """The bytes that get signed: canonical JSON without `signatures` and `unsigned`.

    Raises `ValueError` for what canonical JSON cannot say: fractions, huge integers, half of a surrogate pair, and what
    is nested beyond any stack.
    """
    bare = {key: item for key, item in value.items() if key not in UNSIGNED}
    try:
        _refuse_numbers(bare)
        return json.dumps(bare, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode()
    except (RecursionError, TypeError) as error:  # TypeError: no JSON at all
        raise ValueError("This has no canonical JSON.") from error


def _refuse_numbers(value: object) -> None:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) > LARGEST_INTEGER):
        raise ValueError("Canonical JSON has no such number.")
    if isinstance(value, dict):
        for item in cast("dict[object, object]", value).values():
            _refuse_numbers(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            _refuse_numbers(item)


def is_signed_by(value: object, user: str, public_key: str, key_name: str | None = None) -> bool:
    """Whether this key of the user signed the object. Never raises, whatever is in it.

    `key_name` is what stands behind `ed25519:` in the list of signatures: the device id for a device's own key, and for
    cross-signing keys, without a name, the key itself.
    """
    source = events.mapping({"value": value}, "value")
    signatures = events.mapping(events.mapping(source, "signatures"), user)
    signature = events.text(signatures, f"{ALGORITHM}:{public_key if key_name is None else key_name}")
    if signature is None:
        return False
    try:
        if len(from_base64(public_key)) != KEY_BYTES:
            return False  # one byte too many, and vodozemac 0.10 panics, which is no Exception: any account can publish one
        key = vodozemac.Ed25519PublicKey.from_base64(public_key)
        key.verify_signature(to_canonical(source), vodozemac.Ed25519Signature.from_base64(signature))
    except ValueError:  # vodozemac's exceptions are some, and no key, no signature and no UTF-8 are others
        return False
    return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """One Ed25519 key; whoever has its `seed` is its owner."""

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != SEED_BYTES:
            raise ValueError("An Ed25519 key has 32 bytes.")

    @classmethod
    def new(cls) -> Self:
        """A key that nobody had before."""
        return cls(ECC.generate(curve="ed25519").seed)

    @property
    def public(self) -> str:
        """The public key, in unpadded base64."""
        return to_base64(eddsa.import_private_key(self.seed).public_key().export_key(format="raw"))

    @property
    def key_id(self) -> str:
        """Under which a cross-signing key stands in lists of keys and signatures."""
        return f"{ALGORITHM}:{self.public}"

    def sign(self, value: JsonObject | Source) -> str:
        """The signature over `to_canonical(value)`, in unpadded base64."""
        signer = eddsa.new(eddsa.import_private_key(self.seed), "rfc8032")
        return to_base64(signer.sign(to_canonical(value)))


def to_base64(raw: bytes) -> str:
    """Base64 without the `=` at its end, as Matrix writes it."""
    return base64.b64encode(raw).decode().rstrip("=")


def from_base64(text: str) -> bytes:
    """The bytes of base64 with or without the `=` at its end. Raises `ValueError` for anything else."""
    if not BASE64.fullmatch(text):
        raise ValueError("This is no base64.")
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except binascii.Error as error:  # a length that no bytes have
        raise ValueError("This is no base64.") from error
