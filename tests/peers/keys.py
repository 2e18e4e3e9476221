"""The keys that a stub homeserver keeps for its one account: what was uploaded comes back, whoever asks."""

from typing import Any

from aiohttp import web

API = "/_matrix/client/v3/keys"
Json = dict[str, Any]


class Keys:
    """Device keys, one-time keys and a cross-signing identity, without a look at any signature."""

    def __init__(self, user: str, device: str) -> None:
        self._user, self._device_id = user, device
        self.device: Json | None = None
        self.identity: Json = {}
        self.one_time_keys = 0
        self.hidden = False  # what was uploaded is not shown

    def routes(self) -> list[tuple[str, str, str, Any]]:
        return [
            ("POST", f"{API}/upload", "keys_upload", self._upload),
            ("POST", f"{API}/query", "keys_query", self._query),
            ("POST", f"{API}/device_signing/upload", "identity_upload", self._upload_identity),
            ("POST", f"{API}/signatures/upload", "signatures_upload", self._sign),
        ]

    async def _upload(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.device = body.get("device_keys", self.device)
        self.one_time_keys += len(body.get("one_time_keys", {}))
        return web.json_response({"one_time_key_counts": {"signed_curve25519": self.one_time_keys}})

    async def _query(self, request: web.Request) -> web.Response:
        users = (await request.json())["device_keys"]
        devices: Json = {user: {} for user in users}
        answer: Json = {"device_keys": devices}
        if self._user in users:
            if self.device is not None and not self.hidden:
                devices[self._user] = {self._device_id: self.device}
            answer |= {f"{name}s": {self._user: key} for name, key in self.identity.items()}
        return web.json_response(answer)

    async def _upload_identity(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.identity = {name: body[name] for name in ("master_key", "self_signing_key", "user_signing_key")}
        return web.json_response({})

    async def _sign(self, request: web.Request) -> web.Response:
        signed = (await request.json())[self._user][self._device_id]
        if self.device is not None:
            mine = self.device["signatures"][self._user]
            self.device["signatures"][self._user] = mine | signed["signatures"][self._user]
        return web.json_response({"failures": {}})
