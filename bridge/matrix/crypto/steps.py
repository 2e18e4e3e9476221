"""The words of one emoji verification: its two sides, what it asks its caller to do, and why it was cancelled.

Above it: sas, `matrix.verification`, and whoever shows it to people. Below it: the table of emoji.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bridge.core.model import JsonObject
from bridge.matrix.crypto.emoji import Emoji


class Code(StrEnum):
    """Why a verification was cancelled (client-server API, `m.key.verification.cancel`)."""

    USER = "m.user"
    TIMEOUT = "m.timeout"
    UNKNOWN_TRANSACTION = "m.unknown_transaction"
    UNKNOWN_METHOD = "m.unknown_method"
    UNEXPECTED_MESSAGE = "m.unexpected_message"
    KEY_MISMATCH = "m.key_mismatch"
    USER_MISMATCH = "m.user_mismatch"
    INVALID_MESSAGE = "m.invalid_message"
    ACCEPTED = "m.accepted"
    MISMATCHED_COMMITMENT = "m.mismatched_commitment"
    MISMATCHED_SAS = "m.mismatched_sas"


REASONS: Mapping[Code, str] = {
    Code.USER: "cancelled by the bridge's operator",
    Code.TIMEOUT: "it took too long",
    Code.UNKNOWN_TRANSACTION: "there is no such verification",
    Code.UNKNOWN_METHOD: "the bridge can only compare emoji or numbers",
    Code.UNEXPECTED_MESSAGE: "a message that does not belong here",
    Code.KEY_MISMATCH: "the keys are not those that the homeserver names",
    Code.USER_MISMATCH: "this is another device",
    Code.INVALID_MESSAGE: "a message that cannot be read",
    Code.ACCEPTED: "another device took it",
    Code.MISMATCHED_COMMITMENT: "the key is not the one that was promised",
    Code.MISMATCHED_SAS: "the emoji differ",
}
"""What the other person's client may show beside the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One side: a device, its Ed25519 key, and the Ed25519 master key of its user, where there is one (base64)."""

    user: str
    device_id: str
    device_key: str
    master_key: str | None

    @property
    def keys(self) -> dict[str, str]:
        """The keys that this side vouches for, by key id."""
        found = {f"ed25519:{self.device_id}": self.device_key}
        if self.master_key is not None:
            found[f"ed25519:{self.master_key}"] = self.master_key
        return found


@dataclass(frozen=True, slots=True)
class Send:
    """A message to the other side; `kind` is what follows `m.key.verification.`, the content is complete."""

    kind: str
    content: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """What the operator compares. No emoji where the other client knows only the numbers."""

    emoji: tuple[Emoji, ...]
    decimals: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Both sides are done: these keys are theirs."""

    device_key: str
    master_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """It was cancelled; nothing is proven. `code` is theirs word for word where they cancelled."""

    code: str
    by_us: bool


Step: TypeAlias = Send | Show | Proven | Stopped
