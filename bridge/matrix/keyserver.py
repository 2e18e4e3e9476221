"""The homeserver as a store of public keys and a post office between devices: plain calls, judged like all others.

Above it: encryption, cross-signing, verification. Below it: the client. It refuses to know what keys mean, whether
what comes back is true (a homeserver may lie about every key), and when to try again.
"""

from collections.abc import Collection, Mapping

from bridge.core.model import JsonObject, JsonValue, TransactionId, UserId
from bridge.matrix.batches import KEY_ALGORITHM
from bridge.matrix.client import Client
from bridge.matrix.events import Source

KEY_WAIT_MS = 10_000  # how long our homeserver may ask other homeservers for keys: the specification's recommendation


class KeyServer:
    """The key calls of one account. Each raises the errors of `MatrixError`, as the client does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def upload(self, keys: JsonObject) -> Source:
        """Publish device keys, one-time keys, fallback keys; the answer counts the one-time keys that are there now."""
        return await self._client.call("POST", "keys", "upload", body=keys)

    async def query(self, users: Collection[UserId]) -> Source:
        """All devices and the identities of these users. Users of a homeserver that cannot be asked are left out."""
        wanted: dict[str, JsonValue] = {user: [] for user in sorted(users)}
        return await self._client.call("POST", "keys", "query", body={"device_keys": wanted, "timeout": KEY_WAIT_MS})

    async def claim(self, devices: Mapping[UserId, Collection[str]]) -> Source:
        """One one-time (or fallback) key of each of these devices; devices that have none are left out."""
        wanted: dict[str, JsonValue] = {
            user: dict.fromkeys(sorted(ids), KEY_ALGORITHM) for user, ids in sorted(devices.items())
        }
        return await self._client.call("POST", "keys", "claim", body={"one_time_keys": wanted, "timeout": KEY_WAIT_MS})

    async def send_to_device(
        self, kind: str, messages: Mapping[UserId, Mapping[str, JsonObject]], txn: TransactionId
    ) -> None:
        """Hand a content to each device (`*`: all of a user's); the same id again hands it over once."""
        body: dict[str, JsonValue] = {
            user: {device: dict(content) for device, content in devices.items()} for user, devices in messages.items()
        }
        await self._client.call("PUT", "sendToDevice", kind, txn, body={"messages": body})

    async def upload_signing_keys(self, keys: JsonObject, auth: JsonObject | None = None) -> None:
        """Publish the account's identity. Raises `ProofNeeded` where the homeserver first wants `auth` for it."""
        body = dict(keys) if auth is None else {**keys, "auth": dict(auth)}
        await self._client.call("POST", "keys", "device_signing", "upload", body=body)

    async def upload_signatures(self, signatures: JsonObject) -> Source:
        """Publish signatures; the answer names those that were refused under `failures`."""
        return await self._client.call("POST", "keys", "signatures", "upload", body=signatures)

    async def account_data(self, kind: str) -> Source | None:
        """The account's own data of this kind (secret storage lies there), or None."""
        return await self._client.find("user", self._client.user_id, "account_data", kind)
