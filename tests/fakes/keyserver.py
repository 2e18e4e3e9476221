"""The key calls of one account on a homeserver that is a dictionary, and that lies where a test wants it."""

import copy
from collections.abc import Collection
from typing import Any

from bridge.core.errors import HomeserverUnreachable, ProofNeeded
from bridge.core.model import JsonObject, UserId
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.events import Source
from bridge.matrix.keyserver import KeyServer

PARTS = ("master", "self_signing", "user_signing")


class FakeKeyServer(KeyServer):
    """Wants proof for a replacement, as Synapse does; `flows`, `page` and `password` are what it takes for one."""

    def __init__(self, user_id: str) -> None:
        super().__init__(Client("http://127.0.0.1:1", user_id=user_id))
        self.user_id = UserId(user_id)
        self.devices: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.secrets: dict[str, JsonObject] = {}
        self.password = "pw-Giraffe-17"
        self.flows: tuple[tuple[str, ...], ...] = (("m.login.password",),)
        self.page: str | None = None
        self.always_proof = False
        self.break_before_upload = False
        self.break_after_upload = False
        self.refuse_signatures = False
        self.lose_signatures = False
        self.proofs: list[JsonObject | None] = []

    async def upload(self, keys: JsonObject) -> Source:
        device = copy.deepcopy(dict(events.mapping(keys, "device_keys")))
        self.devices[str(device["device_id"])] = device
        return {"one_time_key_counts": {}}

    async def query(self, users: Collection[UserId]) -> Source:
        assert list(users) == [self.user_id]
        shown = {f"{part}_keys": {self.user_id: key} for part, key in self.identity.items()}
        return copy.deepcopy({"device_keys": {self.user_id: self.devices}, **shown})

    async def upload_signing_keys(self, keys: JsonObject, auth: JsonObject | None = None) -> None:
        self.proofs.append(auth)
        if self.break_before_upload:
            raise HomeserverUnreachable("The connection to the homeserver broke.", perhaps_done=True)
        if (self.identity or self.always_proof) and (auth or {}).get("password") != self.password:
            raise ProofNeeded("The homeserver wants proof.", session="s1", flows=self.flows, page=self.page)
        self.identity = {part: copy.deepcopy(keys[f"{part}_key"]) for part in PARTS}
        if self.break_after_upload:
            raise HomeserverUnreachable("The connection to the homeserver broke.", perhaps_done=True)

    async def upload_signatures(self, signatures: JsonObject) -> Source:
        if self.refuse_signatures:
            return {"failures": {self.user_id: {"DEV": {"errcode": "M_INVALID_SIGNATURE"}}}}
        for name, signed in events.mapping(signatures, self.user_id).items():
            added = events.mapping(events.mapping(events.mapping({"s": signed}, "s"), "signatures"), self.user_id)
            if not self.lose_signatures:
                self.devices[name]["signatures"][self.user_id] |= added
        return {"failures": {}}

    async def account_data(self, kind: str) -> Source | None:
        return self.secrets.get(kind)
