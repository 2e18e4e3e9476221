"""What matrix-js-sdk 43 (crypto-wasm 18.9) made and stored on a Synapse: an identity, and secret storage that holds it.

`key` was opened with a recovery key only, `words` with a passphrase as well. The accounts are of a server that was
thrown away.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.core.model import UserId


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One account, as any of its clients could read it."""

    user_id: UserId
    device_id: str
    recovery_key: str
    passphrase: str | None
    account_data: dict[str, Any]
    query: dict[str, Any]

    @property
    def key_id(self) -> str:
        return str(self.account_data["m.secret_storage.default_key"]["key"])

    @property
    def described(self) -> dict[str, Any]:
        found: dict[str, Any] = self.account_data[f"m.secret_storage.key.{self.key_id}"]
        return found

    def public(self, usage: str) -> str:
        return str(*self.query[f"{usage}_keys"][self.user_id]["keys"].values())


def read(name: str) -> Recording:
    said = json.loads((Path(__file__).parent / "made_by_js_sdk.json").read_text(encoding="utf-8"))[name]
    return Recording(**said)
