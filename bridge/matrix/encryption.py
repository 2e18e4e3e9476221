"""Encryption of one device: what the key machine needs of the homeserver is asked for here, and kept in step with it.

Above it: sync, outbox and rooms (through the port in `sealing`), verification. Below it: the key server and the machine.
It refuses to know who may answer, and when to try again.

Nothing is marked as done before the homeserver has confirmed it, and no state lives in a coroutine: whoever is cancelled
or fails leaves the machine as it was after the last answer, and the next one goes on from there (matrix.md, faults 2
and 3).
"""

import json
import secrets
from collections.abc import Callable, Collection

import anyio
import structlog

from bridge.core.errors import (
    EventTooLarge,
    HomeserverUnreachable,
    KeysLost,
    MatrixError,
    RequestRefused,
)
from bridge.core.model import JsonObject, RoomId, TransactionId, UserId
from bridge.matrix import events
from bridge.matrix.batches import KEY_ALGORITHM, SyncBatch
from bridge.matrix.client import Client
from bridge.matrix.crypto.devices import NOBODY, Device, Devices
from bridge.matrix.crypto.machine import CHUNK, KEY_REQUEST, Machine, ToDevice
from bridge.matrix.crypto.roomkeys import Deciphered, Unread
from bridge.matrix.events import ENCRYPTED, Source
from bridge.matrix.keyserver import KeyServer
from bridge.matrix.sealing import Opened, Shut, Unsealed, Why

log = structlog.get_logger()

WIRE_MOST_BYTES = (
    62_000  # of the 65,536 of an event; the server's own fields of it take up to 3,000 (matrix.md, section 4)
)
IN_THE_CLEAR = frozenset({events.REACTION, events.REDACTION})  # servers act on them, so they are never encrypted

WHY = {Unread.NO_KEY: Why.NO_KEY, Unread.WITHHELD: Why.WITHHELD, Unread.NEVER: Why.NEVER}


class Encryption:
    """The port `Sealing` on a real homeserver. `overhears` is told what comes to our device that is about no key."""

    def __init__(
        self, client: Client, machine: Machine, *, overhears: Callable[[ToDevice], None] = lambda _: None
    ) -> None:
        self._keys = KeyServer(client)
        self._machine = machine
        self.overhears = overhears
        self._asking = anyio.Lock()  # so that two who need the same answer ask once
        self._giving = anyio.Lock()  # the same for claimed keys and given ones; taken before `_asking`, never after
        self._one_time_keys: int | None = None  # what the homeserver said last; None: it may have changed since
        self._fallback_unused = True
        self._without_key: set[tuple[UserId, str]] = set()

    # ------------------------------------------------------------------------------------------------------ the start

    async def start(self) -> None:
        """See that the homeserver has our device's keys, and no others for it. Raises `KeysLost` where it has others."""
        machine = self._machine
        user, device_id = machine.user_id, machine.device_id
        marks = machine.to_ask([user]) or {user: 0}
        answer = await self._keys.query([user])
        machine.learned(answer, marks)
        listed = events.mapping(events.mapping(events.mapping(answer, "device_keys"), user), device_id)
        keys = machine.device_keys()
        if listed and listed.get("keys") != keys["keys"]:
            raise KeysLost(f"The homeserver has other keys of device {device_id} than the state folder.")
        counted = await self._keys.upload({} if listed else {"device_keys": {**keys}})
        if not listed:
            machine.changed([user])
        self._count(counted)
        await self._upload()

    def _count(self, answer: Source) -> None:
        count = events.mapping(answer, "one_time_key_counts").get(KEY_ALGORITHM)
        self._one_time_keys = count if isinstance(count, int) and not isinstance(count, bool) else 0

    async def _upload(self) -> None:
        """Publish what is due, if anything is."""
        if self._one_time_keys is None:
            return
        body = self._machine.uploads(self._one_time_keys, fallback_unused=self._fallback_unused)
        if body is None:
            return
        self._one_time_keys = None  # until the homeserver counts again: its answer may be lost
        try:
            await self._keys.upload(body)
        except RequestRefused as refused:
            # It has another key under a name of ours: this state folder is an old copy, or a second one is in use.
            log.error("crypto.keys_refused", status=refused.status, errcode=refused.errcode)  # noqa: TRY400 - no bug of ours
            raise KeysLost("The homeserver has newer keys of this device than the state folder.") from None
        self._machine.uploaded(body)

    # ------------------------------------------------------------------------------------------------------- a sync

    async def receive(self, batch: SyncBatch) -> None:
        """Take in what a sync says of keys and devices."""
        self._machine.changed(batch.devices_changed)
        self._machine.left(batch.devices_left)
        self._one_time_keys, self._fallback_unused = batch.one_time_keys, batch.fallback_unused
        for message in self._machine.receive(batch.to_device):
            self.overhears(message)

    async def tidy(self) -> None:
        """Publish keys, ask for devices that have changed, renew sessions that do not work."""
        await self._upload()
        if stale := self._machine.stale:
            await self._ask(sorted(stale)[:CHUNK])
        await self._repair()
        while answered := self._machine.cancellations():
            for user, content in answered:
                await self._keys.send_to_device(KEY_REQUEST, {user: {"*": content}}, _transaction())

    async def _repair(self) -> None:
        broken = self._machine.repairs()[:CHUNK]
        if not broken:
            return
        async with self._giving:
            if unbegun := self._machine.unbegun(broken):
                self._machine.claimed(await self._keys.claim(_by_user(unbegun)), unbegun)
            begun, messages = self._machine.greetings(broken)
            if begun:
                await self._keys.send_to_device(ENCRYPTED, messages, _transaction())
                self._machine.repaired(begun)
                log.info("crypto.sessions_renewed", devices=len(begun))

    # ------------------------------------------------------------------------------------------------------ reading

    async def open(self, room: RoomId, source: Source) -> Unsealed:
        """Decrypt one event, and say how it is vouched for."""
        sender = events.sender(source)
        if sender is None:
            return Shut(Why.NEVER)
        found = self._machine.decrypt(room, source)
        if isinstance(found, Deciphered) and self._is_in_doubt(sender, found):
            try:
                await self._ask([sender])
            except MatrixError:
                return Shut(Why.NOT_NOW)
            found = self._machine.decrypt(room, source)  # of several keys it is now known which is the sender's
        if isinstance(found, Unread):
            return Shut(WHY[found])
        if found.kind in (ENCRYPTED, events.REDACTION):
            return Shut(Why.NEVER)  # a redaction inside would be one that no server has allowed
        seal = self._machine.seal(sender, found)
        if seal is None:
            return Shut(Why.NOT_NOW)
        outside = {key: value for key, value in source.items() if key not in ("type", "content", "state_key")}
        content = dict(found.content)
        clear = events.content(source)
        if "m.relates_to" not in content and "m.relates_to" in clear:
            content["m.relates_to"] = clear["m.relates_to"]
        return Opened(source={**outside, "type": found.kind, "content": content}, seal=seal)

    def _is_in_doubt(self, sender: UserId, found: Deciphered) -> bool:
        """Whether the sender's devices must be asked for, before it can be said whose this message is."""
        seal = self._machine.seal(sender, found)
        return seal is None or (seal == NOBODY and self._machine.doubt(sender, found.sender_key))

    async def ask_again(self, room: RoomId, source: Source) -> None:
        """Ask the sender's devices for the key of an event; nothing is said when that fails."""
        messages = self._machine.requests(room, source)
        if not messages:
            return
        try:
            await self._keys.send_to_device(KEY_REQUEST, messages, _transaction())
        except MatrixError as error:
            log.info("crypto.key_not_asked_for", room=room, why=str(error))

    async def devices_of(self, user: UserId) -> Devices:
        """A user's devices and identity, asked for where they are not known. Raises the passing errors."""
        if self._machine.devices_of(user) is None:
            await self._ask([user])
        found = self._machine.devices_of(user)
        if found is None:
            raise HomeserverUnreachable(f"The devices of {user} could not be asked for.")
        return found

    async def _ask(self, users: Collection[UserId]) -> None:
        async with self._asking:
            marks = self._machine.to_ask(users)
            if marks:
                self._machine.learned(await self._keys.query(marks), marks)

    # ------------------------------------------------------------------------------------------------------ writing

    async def encrypt(
        self, room: RoomId, members: Collection[UserId], event_type: str, content: JsonObject
    ) -> tuple[str, JsonObject]:
        """The event to send instead, once every device of these members that can have the room's key has it."""
        if event_type in IN_THE_CLEAR:
            return event_type, content
        try:
            await self._share(room, members)
        except RequestRefused as refused:  # of the keys: no fault of the event, and it may not leave without them
            log.warning("crypto.keys_not_given", room=room, status=refused.status, errcode=refused.errcode)
            raise HomeserverUnreachable("The homeserver did not take the keys of the room.") from None
        try:
            sealed = self._machine.encrypt(room, event_type, content)
        except ValueError:  # a float that JSON cannot say, or a lone surrogate
            raise RequestRefused("The event is no valid JSON.", status=0, errcode="M_BAD_JSON") from None
        if len(json.dumps(sealed, ensure_ascii=False, separators=(",", ":")).encode()) > WIRE_MOST_BYTES:
            raise EventTooLarge("The encrypted event is too large for any server.", status=413, errcode="M_TOO_LARGE")
        return ENCRYPTED, sealed

    async def _share(self, room: RoomId, members: Collection[UserId]) -> None:
        """Ask, claim and give until nothing is left to do. Returns without any await in between the last look and it.

        Each step makes the next look find less: a device without a key to claim is left alone for a while.
        """
        while True:
            needs = self._machine.needs(room, members)
            if not (needs.ask or needs.claim or needs.give):
                return
            async with self._giving:
                needs = self._machine.needs(room, members)  # somebody else may have done it meanwhile
                if needs.ask:
                    await self._ask(sorted(needs.ask)[:CHUNK])
                elif needs.claim:
                    asked = needs.claim[:CHUNK]
                    without = self._machine.claimed(await self._keys.claim(_by_user(asked)), asked)
                    self._tell_without(room, [(device.user, device.device_id) for device in without])
                elif needs.give:
                    session_id, messages = self._machine.letters(room, needs.give[:CHUNK])
                    await self._keys.send_to_device(ENCRYPTED, messages, _transaction())
                    self._machine.given(room, session_id, needs.give[:CHUNK])

    def _tell_without(self, room: RoomId, devices: Collection[tuple[UserId, str]]) -> None:
        for user, device_id in set(devices) - self._without_key:
            log.warning("crypto.device_without_keys", room=room, user=user, device=device_id)
        self._without_key.update(devices)


def _by_user(devices: Collection[Device]) -> dict[UserId, list[str]]:
    found: dict[UserId, list[str]] = {}
    for device in devices:
        found.setdefault(device.user, []).append(device.device_id)
    return found


def _transaction() -> TransactionId:
    """To-device messages need none that survives us: what was not confirmed is encrypted anew."""
    return TransactionId(secrets.token_hex(16))
