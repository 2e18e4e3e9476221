"""Encrypted letters from device to device (Olm), and the public keys that others need to begin writing to us.

Above it: the machine. Below it: nio's `Olm`, used as a box of sessions, and the key store. It refuses to know rooms,
what a letter means, and the network.

Of nio only what keeps and tries sessions is used. Its own reading of what comes in is left out: it raises on an odd byte
(matrix.md, fault 1), believes one key where two are needed, and answers requests that nobody approved.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

import vodozemac
from nio.crypto import Olm
from nio.exceptions import EncryptionError
from unpaddedbase64 import decode_base64, encode_base64

from bridge.core.model import JsonObject, JsonValue
from bridge.matrix import events
from bridge.matrix.crypto.devices import Device
from bridge.matrix.crypto.keystore import KeyStore
from bridge.matrix.crypto.signing import is_signed_by, to_canonical
from bridge.matrix.events import Source

ALGORITHM = "m.olm.v1.curve25519-aes-sha2"
ROOM_ALGORITHM = "m.megolm.v1.aes-sha2"
KEY_ALGORITHM = "signed_curve25519"
REPAIR_EVERY_MS = (
    3_600_000  # a new session with one device: the specification's recommendation, or two would repair for ever
)
REPAIRS_MOST = 100  # kept in mind; anybody can send letters that do not open

# What the reading of a letter may meet: all of vodozemac's exceptions are ValueErrors, the rest comes from odd shapes.
ODD = (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError, EncryptionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A letter that opened: who says to have sent it (the homeserver can put no other name on it), and its two keys."""

    sender: str
    sender_key: str
    signing_key: str
    kind: str
    content: Source
    fresh: bool  # it began a new session: what its sender got before may be lost to them


class _Sessions(Olm):
    """nio's sessions, with the two places changed where it acts by itself."""

    broken: bool = False

    def _handle_olm_event(self, sender: str, sender_key: str, payload: dict[str, Any]) -> Any:  # noqa: ANN401, ARG002
        return payload  # opened, and checked to be from `sender` for us

    def _mark_device_for_unwedging(self, sender: str, sender_key: str) -> None:  # noqa: ARG002
        self.broken = True


class Letters:
    """Our account and its sessions with other devices."""

    def __init__(self, store: KeyStore, user: str, device: str) -> None:
        """Raises ValueError when what is stored cannot be read, such as under another pickle key."""
        self._store = store
        self._user = user
        self._device = device
        self._olm: Any = cast("Any", _Sessions)(user, device, store.nio)
        self._repairs: dict[tuple[str, str], bool] = {}  # whose session is broken, and whether a new one was begun
        self._repaired: dict[str, int] = {}  # by their key, when a new session was begun
        identity = cast("dict[str, str]", self._olm.account.identity_keys)
        self.curve_key, self.signing_key = identity["curve25519"], identity["ed25519"]

    # ------------------------------------------------------------------------------------------------------ our keys

    def sign(self, value: JsonObject | Source) -> str:
        """Our device's signature over an object."""
        return cast("str", self._account.sign(to_canonical(value)).to_base64())

    def device_keys(self) -> dict[str, JsonValue]:
        """What others must know of our device, signed by it."""
        return self._signed(describe_device(self._user, self._device, self.curve_key, self.signing_key))

    def uploads(self, left: int, *, fallback: bool) -> dict[str, JsonValue]:
        """What is to be published: `left` one-time keys are there, and `fallback` says whether a fallback key is due.

        Keys that were made before and never confirmed are offered again, and only then new ones are made: a crash or a
        lost answer leaves none behind. New ones are stored before they leave.
        """
        body: dict[str, JsonValue] = {}
        account = self._account
        most = cast("int", account.max_number_of_one_time_keys)
        # less than none on the server would be as many as it likes
        missing = most - max(0, left) - len(account.one_time_keys)
        if missing > 0:
            account.generate_one_time_keys(missing)
        no_fallback = fallback and not account.fallback_key
        if no_fallback:
            account.generate_fallback_key()
        if missing > 0 or no_fallback:  # this is asked after every sync, and each flush to the disk holds everybody up
            self._save()
        if account.one_time_keys:
            body["one_time_keys"] = self._published(account.one_time_keys)
        if account.fallback_key:
            body["fallback_keys"] = self._published(account.fallback_key, fallback=True)
        return body

    def uploaded(self) -> None:
        """The homeserver has what `uploads` gave last."""
        self._account.mark_keys_as_published()
        self._save()

    @property
    def _account(self) -> Any:  # noqa: ANN401 - vodozemac's stubs lack the fallback key
        return self._olm.account._account  # noqa: SLF001

    def _save(self) -> None:
        with self._store.atomic():
            self._olm.save_account()

    def _published(self, keys: dict[str, Any], *, fallback: bool = False) -> dict[str, JsonValue]:
        found: dict[str, JsonValue] = {}
        for name, public in keys.items():
            key: dict[str, JsonValue] = {"key": public.to_base64()} | ({"fallback": True} if fallback else {})
            found[f"{KEY_ALGORITHM}:{name}"] = self._signed(key)
        return found

    def _signed(self, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        signatures: JsonValue = {self._user: {f"ed25519:{self._device}": self.sign(value)}}
        return {**value, "signatures": signatures}

    # ------------------------------------------------------------------------------------------------------- reading

    def open(self, sender: str, content: Source) -> Letter | None:
        """Open a letter, or None when it cannot be; what is broken is kept in mind to be repaired. Raises `ODD`."""
        sender_key = events.text(content, "sender_key")
        ours = events.mapping(events.mapping(content, "ciphertext"), self.curve_key)
        body, kind = events.text(ours, "body"), ours.get("type")
        if content.get("algorithm") != ALGORITHM or not sender_key or body is None or isinstance(kind, bool):
            return None
        if kind == 0:
            message: Any = vodozemac.PreKeyMessage.from_base64(body)
        elif kind == 1:
            message = vodozemac.AnyOlmMessage.normal(decode_base64(body))
        else:
            return None
        self._olm.broken = False
        known = self._count(sender_key)
        try:
            payload = self._olm.decrypt(sender, sender_key, message)
        finally:
            self._forget_if_empty(sender_key)
        fresh = self._count(sender_key) > known
        if fresh:
            self._olm.save_account()  # nio saves it before the one-time key is taken out
        if self._olm.broken:
            self.break_off(sender, sender_key)
        if not isinstance(payload, dict):
            return None
        found = cast("Source", payload)
        signing_key, what = events.text(events.mapping(found, "keys"), "ed25519"), events.text(found, "type")
        if not signing_key or not what:
            return None
        return Letter(
            sender=sender,
            sender_key=sender_key,
            signing_key=signing_key,
            kind=what,
            content=events.content(found),
            fresh=fresh,
        )

    def _count(self, sender_key: str) -> int:
        return len(self._entries.get(sender_key, ()))

    def _forget_if_empty(self, sender_key: str) -> None:
        """For each key that nio ever looked for it keeps an entry, and a stranger writes as many, and as long, as they like."""
        if not self._entries.get(sender_key, True):
            del self._entries[sender_key]

    @property
    def _entries(self) -> dict[str, Any]:
        return self._olm.session_store._entries  # noqa: SLF001 - looked at in no other way without adding to it

    # ------------------------------------------------------------------------------------------------------- writing

    def can_write_to(self, device: Device) -> bool:
        """Whether there is a session with it."""
        return self._count(device.curve_key) > 0

    def begin(self, device: Device, claimed: Source) -> bool:
        """Begin a session from a claimed key; False when there is none that the device itself signed."""
        for name in claimed:
            key = events.mapping(claimed, name)
            one_time_key = events.text(key, "key")
            if not name.startswith(f"{KEY_ALGORITHM}:") or not one_time_key:
                continue
            if not is_signed_by(key, device.user, device.signing_key, device.device_id):
                continue
            try:
                self._olm.create_session(one_time_key, device.curve_key)
            except ValueError:
                continue
            if (device.user, device.curve_key) in self._repairs:
                self._repairs[device.user, device.curve_key] = True
            return True
        return False

    def write(self, device: Device, kind: str, content: JsonObject) -> JsonObject:
        """Encrypt a letter; the session's next step is stored before it can leave. There must be a session.

        As UTF-8, not with escapes (matrix.md, fault 10).
        """
        payload: JsonObject = {
            "type": kind,
            "content": dict(content),
            "sender": self._user,
            "sender_device": self._device,
            "keys": {"ed25519": self.signing_key},
            "recipient": device.user,
            "recipient_keys": {"ed25519": device.signing_key},
        }
        session = self._olm.session_store.get(device.curve_key)
        message = session.encrypt(to_plain(payload))
        self._olm.save_session(device.curve_key, session)
        step, raw = message.to_parts()
        return {
            "algorithm": ALGORITHM,
            "sender_key": self.curve_key,
            "ciphertext": {device.curve_key: {"type": step, "body": encode_base64(raw)}},
        }

    # ----------------------------------------------------------------------------------------------------- repairing

    def break_off(self, sender: str, sender_key: str) -> None:
        """Keep in mind that the session with whoever has this key does not work (any more)."""
        self._repairs.setdefault((sender, sender_key), False)
        if len(self._repairs) > REPAIRS_MOST:
            self._repairs.pop(next(iter(self._repairs)))

    def is_broken(self, device: Device, now: int) -> bool:
        """Whether it is to be told of a new session."""
        if (device.user, device.curve_key) not in self._repairs:
            return False
        return now - self._repaired.get(device.curve_key, -REPAIR_EVERY_MS) >= REPAIR_EVERY_MS

    def is_begun(self, device: Device) -> bool:
        """Whether the new session was begun, and it was only not told of it."""
        return self._repairs.get((device.user, device.curve_key), False)

    def repaired(self, device: Device, now: int) -> None:
        """It was told of the new session."""
        self._repairs.pop((device.user, device.curve_key), None)
        self._repaired[device.curve_key] = now


def describe_device(user: str, device: str, curve_key: str, signing_key: str) -> dict[str, JsonValue]:
    """What is published of a device of ours, not signed yet."""
    return {
        "algorithms": [ALGORITHM, ROOM_ALGORITHM],
        "device_id": device,
        "user_id": user,
        "keys": {f"curve25519:{device}": curve_key, f"ed25519:{device}": signing_key},
    }


def to_plain(value: JsonObject) -> str:
    """The text that gets encrypted. Raises ValueError for what JSON cannot say, and for half of a surrogate pair."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    text.encode()
    return text
