"""The keys of our device at work: what comes in is opened, what goes out is sealed. It asks nobody and waits for nothing.

Above it: encryption, which carries its wishes to the homeserver, and verification. Below it: letters between devices,
room keys, and what is known of others' devices. It refuses to know the network, and who may answer.

Whatever comes in was made by somebody else: each event is read by itself, and none can spoil the next.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from bridge.core.errors import KeysDamaged
from bridge.core.model import JsonObject, RoomId, Seal, UserId
from bridge.matrix import events
from bridge.matrix.crypto import devices
from bridge.matrix.crypto.devices import Device, Devices
from bridge.matrix.crypto.keystore import KeyStore
from bridge.matrix.crypto.olm import ODD, ROOM_ALGORITHM, Letter, Letters
from bridge.matrix.crypto.roomkeys import Deciphered, RoomKeys, Target, Unread
from bridge.matrix.events import ENCRYPTED, Source

log = structlog.get_logger()

FALLBACK_EVERY_MS = 3_600_000  # the last two are kept: renewed by the minute, a letter under way could not be opened
CLAIM_AGAIN_MS = 900_000  # a device that had no key to claim: it may publish some, but not while we look
QUERY_AGAIN_MS = 60_000  # a user whose homeserver did not answer ours
LOOKED_MOST = 1_000  # unknown keys that we asked the homeserver about, each once
CHUNK = 100  # devices in one request, of about 1 KB each: well below what a proxy lets through

ROOM_KEY = "m.room_key"
FORWARDED = "m.forwarded_room_key"
DUMMY = "m.dummy"
KEY_REQUEST = "m.room_key_request"
WITHHELD = ("m.room_key.withheld", "org.matrix.room_key.withheld")
KEY_KINDS = frozenset({ROOM_KEY, FORWARDED, DUMMY, KEY_REQUEST})  # mean nothing when they come in the clear, or at all
NO_LETTERS = "m.no_olm"  # a withheld key's code: its owner could begin no session with us

Messages = dict[UserId, dict[str, JsonObject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDevice:
    """A message to our device that is about no key. With the keys of the device that it came from, if it was encrypted."""

    sender: UserId
    kind: str
    content: Source
    sender_key: str | None = None
    signing_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be done, in this order, before a room's next message can be read by everybody there."""

    ask: frozenset[UserId]  # whose devices are not known
    claim: tuple[Device, ...]  # with which there is no session
    give: tuple[Device, ...]  # which have not got the room's key


class Machine:
    """The keys of one device, open. For one thread."""

    def __init__(
        self,
        folder: Path,
        user: UserId,
        device: str,
        *,
        create: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises `KeysLost` where the device's keys are not there (unless `create`), `KeysDamaged` where they are broken."""
        self.user_id, self.device_id = user, device
        self._clock = clock
        self._store = KeyStore(folder, user, device, create=create)
        try:
            with self._store.atomic():
                self._letters = Letters(self._store, user, device)
        except ODD:
            self._store.close()
            raise KeysDamaged(f"The keys of device {device} in {folder} cannot be read.") from None
        self._rooms = RoomKeys(self._store, self._letters)
        self._store.age(self._letters.curve_key, self._now)
        self._devices: dict[UserId, Devices] = {}
        self._stale: dict[UserId, int] = {}  # of whom more was heard since we asked; a count, to tell apart when
        self._heard = 0
        self._unanswered: dict[UserId, int] = {}
        self._looked: dict[tuple[UserId, str], None] = {}
        self._claimed: dict[str, int] = {}  # curve25519 keys of devices that had nothing to claim, and when
        self._cancel: list[tuple[UserId, JsonObject]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    @property
    def _now(self) -> int:
        return int(self._clock() * 1000)

    # ------------------------------------------------------------------------------------------------------ our keys

    @property
    def fingerprint(self) -> str:
        """The ed25519 key of our device: what people compare."""
        return self._letters.signing_key

    @property
    def curve_key(self) -> str:
        """The curve25519 key of our device."""
        return self._letters.curve_key

    def sign(self, value: JsonObject) -> str:
        """Our device's signature over an object."""
        return self._letters.sign(value)

    def device_keys(self) -> JsonObject:
        """What others must know of our device, signed by it."""
        return self._letters.device_keys()

    @property
    def published(self) -> bool:
        """Whether our device's keys were once confirmed to be with the homeserver."""
        return self._store.fact("published") is not None

    def uploads(self, one_time_keys: int, *, fallback_unused: bool) -> JsonObject | None:
        """What is to be published, given what the homeserver says that it has; the same again until `uploaded`."""
        last = self._store.fact("fallback_at")
        due = last is None or (not fallback_unused and self._now - int(last) >= FALLBACK_EVERY_MS)
        body = self._letters.uploads(one_time_keys, fallback=due)
        if not self.published:
            body["device_keys"] = self._letters.device_keys()
        return body or None

    def uploaded(self, sent: JsonObject) -> None:
        """The homeserver has taken this, which `uploads` gave."""
        with self._store.atomic():
            self._letters.uploaded()
            self._store.note("published", "yes")
            if "fallback_keys" in sent:
                self._store.note("fallback_at", str(self._now))

    # ---------------------------------------------------------------------------------------------------- to-device

    def receive(self, to_device: Iterable[Source]) -> tuple[ToDevice, ...]:
        """Take in what came to our device; what is about no key is given back. Nothing in it raises."""
        found: list[ToDevice] = []
        for source in to_device:
            try:
                with self._store.atomic():
                    message = self._receive(source)
            except ODD as odd:  # whatever it is: anybody may send anything (matrix.md, fault 1)
                log.info("crypto.message_unreadable", sender=events.sender(source), odd=type(odd).__name__)
                continue
            if message is not None:
                found.append(message)
        return tuple(found)

    def _receive(self, source: Source) -> ToDevice | None:
        sender, kind, content = events.sender(source), events.kind(source), events.content(source)
        if sender is None or kind is None:
            return None
        if kind in WITHHELD:
            self._withheld(sender, content)
            return None
        if kind != ENCRYPTED:
            return None if kind in KEY_KINDS else ToDevice(sender=sender, kind=kind, content=content)
        letter = self._letters.open(sender, content)
        if letter is None:
            log.info("crypto.message_unreadable", sender=sender, odd=None)
            return None
        if letter.fresh or letter.kind == DUMMY:
            self._rooms.lost(sender, letter.sender_key)
        try:
            return self._read(sender, letter)
        except ODD as odd:  # the letter was opened, and that is kept: it can be opened only once
            log.info("crypto.letter_odd", sender=sender, odd=type(odd).__name__)
            return None

    def _read(self, sender: UserId, letter: Letter) -> ToDevice | None:
        key, signing_key, content = letter.sender_key, letter.signing_key, letter.content
        if letter.kind == ROOM_KEY:
            if self._rooms.keep(key, signing_key, content, self._now):
                self._answered(sender, content)
            return None
        if letter.kind == FORWARDED:
            if self._rooms.keep_forwarded(key, signing_key, content, self._now):
                self._answered(sender, content)
            else:
                log.info("crypto.forwarded_key_refused", sender=sender)
            return None
        if letter.kind in KEY_KINDS:
            return None
        return ToDevice(sender=sender, kind=letter.kind, content=content, sender_key=key, signing_key=signing_key)

    def _withheld(self, sender: UserId, content: Source) -> None:
        room, session_id, key = (events.text(content, name) for name in ("room_id", "session_id", "sender_key"))
        if content.get("code") == NO_LETTERS and key:
            self._letters.break_off(sender, key)
        elif room and session_id:
            self._store.keep_withheld(sender, room, session_id)

    def _answered(self, sender: UserId, content: Source) -> None:
        request = self._rooms.answered(str(content.get("room_id")), str(content.get("session_id")))
        if request is not None:
            said = {"action": "request_cancellation", "request_id": request, "requesting_device_id": self.device_id}
            self._cancel.append((sender, {**said}))

    # ------------------------------------------------------------------------------------------------ others' devices

    def changed(self, users: Collection[UserId]) -> None:
        """Something about these users' devices has changed."""
        for user in users:
            self._heard += 1
            if user in self._devices:
                self._stale[user] = self._heard

    def left(self, users: Collection[UserId]) -> None:
        """We shall hear nothing more of these users' devices."""
        for user in users:
            self._devices.pop(user, None)
            self._stale.pop(user, None)

    def to_ask(self, users: Collection[UserId]) -> Mapping[UserId, int]:
        """Whose devices must be asked for, with a mark to give back to `learned`."""
        unknown = (user for user in users if user not in self._devices or user in self._stale)
        now = self._now
        return {
            user: self._stale.get(user, 0)
            for user in unknown
            if now - self._unanswered.get(user, -QUERY_AGAIN_MS) >= QUERY_AGAIN_MS
        }

    @property
    def stale(self) -> frozenset[UserId]:
        """Whose devices were known once and have changed since."""
        return frozenset(self._stale)

    def learned(self, answer: Source, asked: Mapping[UserId, int]) -> None:
        """What an answer to a key query says; what has changed meanwhile is to be asked for once more."""
        for user, mark in asked.items():
            found = devices.read(answer, user)
            if found is None:
                self._unanswered[user] = self._now
                continue
            self._unanswered.pop(user, None)
            self._devices[user] = found
            if self._stale.get(user, 0) == mark:
                self._stale.pop(user, None)

    def devices_of(self, user: UserId) -> Devices | None:
        """A user's devices, or None where they are not known or have changed."""
        return None if user in self._stale else self._devices.get(user)

    def doubt(self, user: UserId, sender_key: str) -> bool:
        """Whether a device that we do not know of may be new: then its user is to be asked for. Once for each key."""
        if (user, sender_key) in self._looked:
            return False
        self._looked[user, sender_key] = None
        if len(self._looked) > LOOKED_MOST:
            self._looked.pop(next(iter(self._looked)))
        self.changed([user])
        return True

    # ---------------------------------------------------------------------------------------------------------- rooms

    def decrypt(self, room: RoomId, source: Source) -> Deciphered | Unread:
        """Read one encrypted event of this room."""
        if events.kind(source) != ENCRYPTED or events.is_state(source):
            return Unread.NEVER
        known = self._devices.get(events.sender(source) or UserId(""))
        likely = () if known is None else tuple(device.curve_key for device in known.devices.values())
        try:
            return self._rooms.decrypt(room, source, likely, self._now)
        except UnicodeError:  # half of a surrogate pair in an id: the store takes none
            return Unread.NEVER

    def seal(self, user: UserId, found: Deciphered) -> Seal | None:
        """How a message of this sender is vouched for; None when their devices are not known."""
        known = self.devices_of(user)
        return None if known is None else devices.find_seal(known, found.sender_key, found.signing_key)

    def needs(self, room: RoomId, members: Collection[UserId]) -> Needs:
        """What must be done before `encrypt`. Nothing, for most messages."""
        ask = frozenset(self.to_ask(members))
        there: dict[Target, Device] = {
            (user, device_id): device
            for user in members
            if (known := self._devices.get(user)) is not None
            for device_id, device in known.devices.items()
            if device.curve_key != self.curve_key
        }
        lacking = self._rooms.lacking(room, there, self._now)
        without = [device for device in lacking if not self._letters.can_write_to(device)]
        give = tuple(device for device in lacking if self._letters.can_write_to(device))
        return Needs(ask=ask, claim=self._claimable(without), give=give)

    def _claimable(self, those: Iterable[Device]) -> tuple[Device, ...]:
        now = self._now
        return tuple(
            device for device in those if now - self._claimed.get(device.curve_key, -CLAIM_AGAIN_MS) >= CLAIM_AGAIN_MS
        )

    def claimed(self, answer: Source, asked: Collection[Device]) -> tuple[Device, ...]:
        """Begin sessions from claimed keys; the devices that had none (that they signed) are given back."""
        keys = events.mapping(answer, "one_time_keys")
        without: list[Device] = []
        with self._store.atomic():
            for device in asked:
                claimed = events.mapping(events.mapping(keys, device.user), device.device_id)
                if self._letters.begin(device, claimed):
                    self._claimed.pop(device.curve_key, None)
                else:
                    without.append(device)
                    self._claimed[device.curve_key] = self._now
        return tuple(without)

    def letters(self, room: RoomId, to: Collection[Device]) -> tuple[str, Messages]:
        """The room's key for these devices, and the key's name, to tell `given` when the homeserver has taken them."""
        messages: Messages = {}
        with self._store.atomic():
            for device in to:
                messages.setdefault(device.user, {})[device.device_id] = self._rooms.letter(room, device)
        return self._rooms.session_id(room) or "", messages

    def given(self, room: RoomId, session_id: str, to: Collection[Device]) -> None:
        """The homeserver has taken these letters."""
        self._rooms.given(room, session_id, to)

    def encrypt(self, room: RoomId, kind: str, content: JsonObject) -> JsonObject:
        """The content of the encrypted event. Only right after `needs` had nothing left. Raises ValueError for no JSON."""
        return self._rooms.encrypt(room, kind, content, self.device_id)

    # ------------------------------------------------------------------------------------------------------ repairing

    def repairs(self) -> tuple[Device, ...]:
        """The devices that are to be told of a new session, because letters from them did not open."""
        now = self._now
        return tuple(
            device
            for known in self._devices.values()
            for device in known.devices.values()
            if device.curve_key != self.curve_key and self._letters.is_broken(device, now)
        )

    def unbegun(self, those: Iterable[Device]) -> tuple[Device, ...]:
        """Of these devices, those for whose new session a key must be claimed first."""
        return self._claimable(device for device in those if not self._letters.is_begun(device))

    def greetings(self, those: Iterable[Device]) -> tuple[tuple[Device, ...], Messages]:
        """Something to send over the sessions that were begun, so that the other side uses them from now on."""
        begun = tuple(device for device in those if self._letters.is_begun(device))
        messages: Messages = {}
        with self._store.atomic():
            for device in begun:
                messages.setdefault(device.user, {})[device.device_id] = self._letters.write(device, DUMMY, {})
        return begun, messages

    def repaired(self, those: Iterable[Device]) -> None:
        """The homeserver has taken the greetings to these devices."""
        for device in those:
            self._letters.repaired(device, self._now)

    def requests(self, room: RoomId, source: Source) -> Messages:
        """The question for the key of an event, to all devices of its sender; empty when it names no key."""
        sender, content = events.sender(source), events.content(source)
        session_id = events.text(content, "session_id")
        if sender is None or not session_id:
            return {}
        request_id = secrets.token_hex(16)
        self._rooms.ask(room, session_id, request_id)
        wanted = {"algorithm": ROOM_ALGORITHM, "room_id": room, "session_id": session_id}
        sender_key = events.text(content, "sender_key")
        question: JsonObject = {
            "action": "request",
            "body": {**wanted, **({"sender_key": sender_key} if sender_key else {})},
            "request_id": request_id,
            "requesting_device_id": self.device_id,
        }
        return {sender: {"*": question}}

    def cancellations(self) -> tuple[tuple[UserId, JsonObject], ...]:
        """The questions that were answered, to be taken back; each given once."""
        answered, self._cancel = tuple(self._cancel), []
        return answered
