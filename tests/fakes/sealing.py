"""Encryption without keys: what is sealed can be read by anybody, but only counts as opened once its "key" has come."""

import base64
import itertools
import json
from collections.abc import Collection
from typing import Any, cast

import anyio

from bridge.core.errors import EventTooLarge
from bridge.core.model import JsonObject, JsonValue, RoomId, Seal, UserId
from bridge.matrix import events
from bridge.matrix.batches import SyncBatch
from bridge.matrix.events import Source
from bridge.matrix.sealing import Opened, Shut, Unsealed, Why

ALGORITHM = "m.fake"
KEY = "m.fake.key"
WITHHELD = "m.fake.withheld"
SEALED_MOST_BYTES = 48_000
SEAL = Seal(device_id="PHONE", signed=True, master="master")

Json = dict[str, Any]

_count = itertools.count()


def sealed(text: str, *, room: str, session: str = "s1", **more: JsonValue) -> Json:
    """The content of an `m.room.encrypted` in which somebody says this."""
    return seal("m.room.message", {"msgtype": "m.text", "body": text} | more, room=room, session=session)


def seal(kind: str, content: JsonObject, *, room: str, session: str = "s1") -> Json:
    """The content of an `m.room.encrypted` that holds an event of this type."""
    inner = {"type": kind, "content": dict(content), "room_id": room}
    outer: Json = {
        "algorithm": ALGORITHM,
        "session_id": session,
        "index": next(_count),
        "ciphertext": base64.b64encode(json.dumps(inner).encode()).decode(),
    }
    relates = content.get("m.relates_to")
    return outer if relates is None else outer | {"m.relates_to": relates}


def unseal(content: Source) -> Json:
    """What is in it: type, content and room."""
    return cast("Json", json.loads(base64.b64decode(str(content["ciphertext"]))))


def key(session: str = "s1") -> Json:
    """The to-device event that brings the key of a session."""
    return {"type": KEY, "sender": "@alice:hs", "content": {"session_id": session}}


def no_key(session: str = "s1") -> Json:
    """The to-device event that says that this key is kept back."""
    return {"type": WITHHELD, "sender": "@alice:hs", "content": {"session_id": session}}


class FakeSealing:
    """Implements `matrix.sealing.Sealing`. What a test sets: `away`, `failures`, `gate`; what it looks at: the rest."""

    def __init__(self, *, seal: Seal = SEAL) -> None:
        self.away = False  # the homeserver cannot say whose devices there are
        self.failures: list[Exception] = []  # of the next calls that give out keys
        self.gate: anyio.Event | None = None  # giving out keys takes until this is set
        self.untidy: list[Exception] = []  # of the next calls of `tidy`
        self.tidy_gate: anyio.Event | None = None
        self.keys: set[str] = set()
        self.received: list[SyncBatch] = []
        self.opened: list[str] = []
        self.asked: list[tuple[RoomId, str]] = []
        self.read_by: list[frozenset[UserId]] = []
        self.tidied = 0
        self._seal = seal
        self._withheld: set[str] = set()
        self._places: dict[tuple[str, int], str] = {}

    async def receive(self, batch: SyncBatch) -> None:
        self.received.append(batch)
        for source in batch.to_device:
            session = events.text(events.content(source), "session_id")
            if session is not None and source.get("type") == KEY:
                self.keys.add(session)
            if session is not None and source.get("type") == WITHHELD:
                self._withheld.add(session)

    async def open(self, room: RoomId, source: Source) -> Unsealed:
        await anyio.lowlevel.checkpoint()
        content, event_id = events.content(source), events.event_id(source) or ""
        self.opened.append(event_id)
        session, index = events.text(content, "session_id"), content.get("index")
        if session is None or not isinstance(index, int) or content.get("algorithm") != ALGORITHM:
            return Shut(Why.NEVER)
        if session not in self.keys:
            return Shut(Why.WITHHELD if session in self._withheld else Why.NO_KEY)
        if self.away:
            return Shut(Why.NOT_NOW)
        try:
            inner = unseal(content)
        except ValueError:
            return Shut(Why.NEVER)
        if inner["room_id"] != room or self._places.setdefault((session, index), event_id) != event_id:
            return Shut(Why.NEVER)
        relates = {"m.relates_to": content["m.relates_to"]} if "m.relates_to" in content else {}
        return Opened(
            source=dict(source) | {"type": inner["type"], "content": relates | inner["content"]}, seal=self._seal
        )

    async def ask_again(self, room: RoomId, source: Source) -> None:
        self.asked.append((room, events.event_id(source) or ""))

    async def encrypt(
        self, room: RoomId, members: Collection[UserId], event_type: str, content: JsonObject
    ) -> tuple[str, JsonObject]:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if len(json.dumps(dict(content))) > SEALED_MOST_BYTES:
            raise EventTooLarge("The encrypted event is too large for any server.", status=413, errcode="M_TOO_LARGE")
        self.read_by.append(frozenset(members))
        return "m.room.encrypted", seal(event_type, content, room=room, session="bot")

    async def tidy(self) -> None:
        if self.tidy_gate is not None:
            await self.tidy_gate.wait()
        if self.untidy:
            raise self.untidy.pop(0)
        self.tidied += 1
