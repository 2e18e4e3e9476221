"""The keys that messages in rooms are under (Megolm): one for each sender and room at a time, given to every device there.

Above it: the machine. Below it: vodozemac through nio, and the key store. It refuses to know who is in a room, whether a
key's owner may answer, and how keys travel.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, cast

import vodozemac
from nio.crypto import InboundGroupSession

from bridge.core.model import JsonObject, UserId
from bridge.matrix import events
from bridge.matrix.crypto.devices import Device
from bridge.matrix.crypto.keystore import DAY_MS, KeyStore, RoomKey
from bridge.matrix.crypto.olm import ROOM_ALGORITHM, Letters, to_plain
from bridge.matrix.events import Source

MESSAGES_MOST = 100  # under one key; the default of `m.room.encryption`, and never more than that
KEY_LIVES_MS = 7 * DAY_MS  # the same
ASKED_MOST = 500  # keys that we asked somebody for

Target: TypeAlias = tuple[UserId, str]  # a device: its user and its id


class Unread(Enum):
    """Why a message cannot be read."""

    NO_KEY = "no_key"
    WITHHELD = "withheld"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciphered:
    """What was inside a message, and the two keys of the device that its room key came from."""

    kind: str
    content: Source
    sender_key: str
    signing_key: str


@dataclass(slots=True, kw_only=True)
class Sending:
    """The key that we send under in one room. `given` says which device has it, and from which message on."""

    session: Any  # vodozemac.GroupSession
    begun: int
    messages: int = 0
    given: dict[Target, tuple[str, str]] = field(default_factory=dict[Target, tuple[str, str]])  # curve key, key text
    lost: dict[Target, tuple[str, str]] = field(default_factory=dict[Target, tuple[str, str]])  # to give once more


class RoomKeys:
    """All room keys of our device: one to send under for each room, and every one that others gave us."""

    def __init__(self, store: KeyStore, letters: Letters) -> None:
        self._store = store
        self._letters = letters
        self._sending: dict[str, Sending] = {}  # in memory only: a restart begins new ones
        self._asked: dict[tuple[str, str], str] = {}  # room and session, by the id of our request

    # ------------------------------------------------------------------------------------------------------- reading

    def keep(self, sender_key: str, signing_key: str, content: Source, now: int) -> bool:
        """Keep a room key that came in a letter from the device with these keys. Raises ValueError for an odd one."""
        room, session_id, key = (events.text(content, name) for name in ("room_id", "session_id", "session_key"))
        if content.get("algorithm") != ROOM_ALGORITHM or not room or not session_id or not key:
            return False
        return self._keep(InboundGroupSession(key, signing_key, sender_key, room), room, session_id, now)

    def keep_forwarded(self, sender_key: str, signing_key: str, content: Source, now: int) -> bool:
        """Keep a room key that we asked for, from nobody but the very device whose key it is.

        Anybody else could hand us a key of their own making as another's. Raises ValueError for an odd one.
        """
        room, session_id, key = (events.text(content, name) for name in ("room_id", "session_id", "session_key"))
        if content.get("algorithm") != ROOM_ALGORITHM or not room or not session_id or not key:
            return False
        its_own = (content.get("sender_key"), content.get("sender_claimed_ed25519_key")) == (sender_key, signing_key)
        if not its_own or (room, session_id) not in self._asked:
            return False
        return self._keep(InboundGroupSession.import_session(key, signing_key, sender_key, room), room, session_id, now)

    def _keep(self, session: InboundGroupSession, room: str, session_id: str, now: int) -> bool:
        if session.id != session_id or session.sender_key == self._letters.curve_key:
            return False
        key = RoomKey(room=room, session=session, sender_key=session.sender_key, signing_key=session.ed25519)
        return self._store.keep_room_key(key, now)

    def decrypt(self, room: str, source: Source, likely: Collection[str], now: int) -> Deciphered | Unread:
        """Read one message of this room. `likely`: the curve25519 keys of the sender's devices, where they are known.

        The key is found by the session's id alone: what the event says of its sender's device, nobody vouches for.
        """
        content, ciphertext = events.content(source), events.text(events.content(source), "ciphertext")
        names = (events.text(content, "session_id"), events.event_id(source), events.sender(source))
        session_id, event_id, sender = map(_name, names)
        if content.get("algorithm") != ROOM_ALGORITHM or not (session_id and ciphertext and event_id and sender):
            return Unread.NEVER
        keys = self._store.room_keys(room, session_id)
        if not keys:
            return Unread.WITHHELD if self._store.is_withheld(sender, room, session_id) else Unread.NO_KEY
        key = min(keys, key=lambda one: one.sender_key not in likely)
        try:
            text, index = key.session.decrypt(ciphertext)
            found = _payload(json.loads(text), room, key)
        except (vodozemac.MegolmDecryptionException, vodozemac.DecodeException):
            return Unread.NO_KEY if _is_before(key, ciphertext) else Unread.NEVER
        except (ValueError, RecursionError):  # no UTF-8, no JSON
            return Unread.NEVER
        ours = key.sender_key == self._letters.curve_key
        if found is None or (not ours and self._store.read_as(key, index, event_id, now) != event_id):
            return Unread.NEVER  # no message of this room, or one that was sent before as another event
        return found

    def ask(self, room: str, session_id: str, request_id: str) -> None:
        """Note that we ask for a key."""
        self._asked[room, session_id] = request_id
        if len(self._asked) > ASKED_MOST:
            self._asked.pop(next(iter(self._asked)))

    def answered(self, room: str, session_id: str) -> str | None:
        """The id of our request for this key, which needs no answer any more."""
        return self._asked.pop((room, session_id), None)

    # ------------------------------------------------------------------------------------------------------- sending

    def lacking(self, room: str, devices: Mapping[Target, Device], now: int) -> tuple[Device, ...]:
        """Which of these devices, all that are to read the room's next message, have not got its key.

        Where the key is worn out, or somebody has it who is not among them any more, a new one is begun.
        """
        sending = self._sending.get(room)
        if sending is None or self._is_over(sending, devices, now):
            sending = self._begin(room, now)
        return tuple(device for target, device in devices.items() if target not in sending.given)

    def letter(self, room: str, device: Device) -> JsonObject:
        """The letter that gives a device the key that the room's next message is under."""
        sending = self._sending[room]
        now = (device.curve_key, cast("str", sending.session.session_key.to_base64()))
        _, key = sending.lost.get((device.user, device.device_id), now)
        content: JsonObject = {
            "algorithm": ROOM_ALGORITHM,
            "room_id": room,
            "session_id": sending.session.session_id,
            "session_key": key,
        }
        return self._letters.write(device, "m.room_key", content)

    def session_id(self, room: str) -> str | None:
        """The name of the key that we send under."""
        sending = self._sending.get(room)
        return None if sending is None else cast("str", sending.session.session_id)

    def given(self, room: str, session_id: str, devices: Collection[Device]) -> None:
        """The homeserver has taken the letters for these devices."""
        sending = self._sending.get(room)
        if sending is None or sending.session.session_id != session_id:
            return
        key = cast("str", sending.session.session_key.to_base64())
        for device in devices:
            target = (device.user, device.device_id)
            sending.given[target] = sending.lost.pop(target, (device.curve_key, key))

    def lost(self, user: UserId, curve_key: str) -> None:
        """A device begins anew: the keys that it was given may not have come to it, so they are given once more."""
        for sending in self._sending.values():
            for target, (its_key, _) in list(sending.given.items()):
                if (target[0], its_key) == (user, curve_key):
                    sending.lost[target] = sending.given.pop(target)

    def encrypt(self, room: str, kind: str, content: JsonObject, device_id: str) -> dict[str, Any]:
        """The content of the encrypted event. Raises ValueError for what JSON cannot say.

        `m.relates_to` stands outside as well: servers group by it (matrix.md, section 6).
        """
        text = to_plain({"type": kind, "content": dict(content), "room_id": room})
        sending = self._sending[room]
        sealed: dict[str, Any] = {
            "algorithm": ROOM_ALGORITHM,
            "ciphertext": sending.session.encrypt(text.encode()).to_base64(),
            "device_id": device_id,
            "sender_key": self._letters.curve_key,
            "session_id": sending.session.session_id,
        }
        sending.messages += 1
        if "m.relates_to" in content:
            sealed["m.relates_to"] = content["m.relates_to"]
        return sealed

    def _is_over(self, sending: Sending, devices: Mapping[Target, Device], now: int) -> bool:
        if sending.messages >= MESSAGES_MOST or now - sending.begun >= KEY_LIVES_MS:
            return True
        had = (*sending.given.items(), *sending.lost.items())
        return any(target not in devices or devices[target].curve_key != curve_key for target, (curve_key, _) in had)

    def _begin(self, room: str, now: int) -> Sending:
        """A new key for the room; we keep it as well, to read our own echo."""
        session = vodozemac.GroupSession()
        ours = InboundGroupSession(
            session.session_key.to_base64(), self._letters.signing_key, self._letters.curve_key, room
        )
        key = RoomKey(
            room=room, session=ours, sender_key=self._letters.curve_key, signing_key=self._letters.signing_key
        )
        self._store.keep_room_key(key, now)
        self._store.age(self._letters.curve_key, now)
        self._sending[room] = sending = Sending(session=session, begun=now)
        return sending


def _payload(payload: object, room: str, key: RoomKey) -> Deciphered | None:
    """What was encrypted, if it was encrypted for this room: a server can put it into any."""
    inside: Source = events.mapping({"payload": payload}, "payload")
    kind = events.kind(inside)
    if inside.get("room_id") != room or not kind or not isinstance(inside.get("content"), dict):
        return None
    content = events.content(inside)
    return Deciphered(kind=kind, content=content, sender_key=key.sender_key, signing_key=key.signing_key)


def _name(text: str | None) -> str:
    """The text, if there is one that the store can look for: half of a surrogate pair is no UTF-8."""
    try:
        return "" if text is None or not text.encode() else text
    except UnicodeEncodeError:
        return ""


def _is_before(key: RoomKey, ciphertext: str) -> bool:
    """Whether the message is from before the key that we have: an earlier one may still come."""
    try:
        return vodozemac.MegolmMessage.from_base64(ciphertext).message_index() < key.session.first_known_index
    except ValueError:
        return False
