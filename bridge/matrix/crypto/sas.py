"""One emoji verification (SAS, `m.sas.v1`) as a state machine: messages in, steps out, both roles, one table.

Above it: `matrix.verification`, which carries the messages and asks the operator. Below it: vodozemac's key agreement and
`signing`. It refuses to know rooms, people and clocks: that time is up is told to it (`expire`), that the operator sees the
same emoji as well (`confirm`). nio's own is not used, it fails with every other client (matrix.md, fault 14).

Nothing that the other side or the server sends raises or proves anything by itself: what is no expected message ends the
verification, and `Proven` comes only after the operator confirmed, their client vouched for its keys under the compared
secret, and said that it takes ours for good.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from enum import Enum
from typing import ClassVar, cast

import vodozemac

from bridge.core.model import JsonObject, JsonValue
from bridge.matrix import events
from bridge.matrix.crypto.emoji import EMOJI
from bridge.matrix.crypto.signing import to_base64, to_canonical
from bridge.matrix.crypto.steps import REASONS, Code, Party, Proven, Send, Show, Step, Stopped
from bridge.matrix.events import Source

METHOD = "m.sas.v1"
AGREEMENT = "curve25519-hkdf-sha256"
HASH = "sha256"
MAC = "hkdf-hmac-sha256.v2"  # the one before it is only another, broken base64; every client of today has this one
STRINGS = ("decimal", "emoji")
KINDS = frozenset({"request", "ready", "start", "accept", "key", "mac", "done", "cancel"})


class Phase(Enum):
    """How far it has come."""

    ASKED = "we asked, their client has not taken it yet"
    READY = "both are ready, nobody has started"
    OFFERED = "we started, and wait for their agreement"
    PROMISED = "they started, we agreed and promised our key, theirs comes first"
    REVEALED = "they agreed, we sent our key, theirs is to come"
    COMPARING = "the operator compares"
    VOUCHED = "the operator confirmed, their keys are to come"
    HEARD = "their client vouched for its keys, the operator still compares"
    CLOSING = "everything fits, and their client is to say that it thinks so too"
    DONE = "proven"
    CANCELLED = "over, nothing is proven"


OVER = frozenset({Phase.DONE, Phase.CANCELLED})


class _Broken(Exception):
    """The other side's message ends it; the code says why."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.value)
        self.code = code


class Sas:
    """One verification, from our `request` or theirs to its end."""

    def __init__(self, transaction: str, ours: Party, theirs: Party | None, *, in_room: bool) -> None:
        self._transaction, self._ours, self._theirs, self._in_room = transaction, ours, theirs, in_room
        self._secret = vodozemac.Sas()
        self._public = self._secret.public_key.to_base64()
        self._offer: JsonObject = {}  # our `start` as it was sent
        self._commitment = ""
        self._strings: tuple[str, ...] = STRINGS
        self._shared: vodozemac.EstablishedSas | None = None
        self.phase = Phase.ASKED

    # ------------------------------------------------------------------------------------------------------ how it begins

    @staticmethod
    def request(ours: Party) -> JsonObject:
        """What our request says besides whom it is for."""
        return {"from_device": ours.device_id, "methods": [METHOD]}

    @classmethod
    def asking(cls, transaction: str, ours: Party, *, in_room: bool) -> "Sas":
        """After our own request was sent; which of their devices takes it, is not known yet."""
        return cls(transaction, ours, None, in_room=in_room)

    @classmethod
    def asked(
        cls, transaction: str, ours: Party, theirs: Party, request: Source, *, in_room: bool
    ) -> tuple["Sas", list[Step]]:
        """Take their request."""
        sas = cls(transaction, ours, theirs, in_room=in_room)
        return sas, sas._guard(lambda: sas._answer(request))

    def _answer(self, request: Source) -> list[Step]:
        self._check_device(request)
        self._check_methods(request)
        self.phase = Phase.READY
        return [self._send("ready", self.request(self._ours))]

    # ------------------------------------------------------------------------------------------------- what they send

    def hear(self, kind: str, content: Source, party: Party | None = None) -> list[Step]:
        """Take one message of the other side; `party` says with `ready` whose device sent it.

        A kind that no verification has is nothing, and so is all that comes after the end.
        """
        if self.phase in OVER or kind not in KINDS:
            return []
        if kind == "cancel":
            self.phase = Phase.CANCELLED
            return [Stopped(code=events.text(content, "code") or "", by_us=False)]
        if self.phase is Phase.ASKED and kind == "ready":
            self._theirs = party
        take = self._TABLE.get((self.phase, kind))
        if take is None:
            return self.cancel(Code.UNEXPECTED_MESSAGE)
        return self._guard(lambda: take(self, content))

    def _guard(self, take: Callable[[], list[Step]]) -> list[Step]:
        try:
            return take()
        except _Broken as broken:
            return self.cancel(broken.code)
        except ValueError:  # vodozemac's errors, and what has no canonical JSON
            return self.cancel(Code.INVALID_MESSAGE)

    def _take_ready(self, content: Source) -> list[Step]:
        """They take our request: whoever asked starts."""
        self._check_device(content)
        self._check_methods(content)
        self.phase = Phase.OFFERED
        start = self._send(
            "start",
            {
                "from_device": self._ours.device_id,
                "method": METHOD,
                "key_agreement_protocols": [AGREEMENT],
                "hashes": [HASH],
                "message_authentication_codes": [MAC],
                "short_authentication_string": list(STRINGS),
            },
        )
        self._offer = start.content
        return [start]

    def _take_start(self, content: Source) -> list[Step]:
        self._check_device(content)
        offered = {"key_agreement_protocols": AGREEMENT, "hashes": HASH, "message_authentication_codes": MAC}
        self._strings = tuple(name for name in STRINGS if name in _texts(content, "short_authentication_string"))
        fits = all(wanted in _texts(content, key) for key, wanted in offered.items())
        if content.get("method") != METHOD or not fits or not self._strings:
            raise _Broken(Code.UNKNOWN_METHOD)
        self.phase = Phase.PROMISED
        accept: JsonObject = {
            "method": METHOD,
            "key_agreement_protocol": AGREEMENT,
            "hash": HASH,
            "message_authentication_code": MAC,
            "short_authentication_string": list(self._strings),
            "commitment": _commit(self._public, content),
        }
        return [self._send("accept", accept)]

    def _take_rival(self, content: Source) -> list[Step]:
        """Both started at once: the start of the lexicographically smaller user counts, or device of one user."""
        theirs = self._known
        if (self._ours.user, self._ours.device_id) < (theirs.user, theirs.device_id):
            return []
        return self._take_start(content)

    def _take_accept(self, content: Source) -> list[Step]:
        agreed = {
            "key_agreement_protocol": AGREEMENT,
            "hash": HASH,
            "message_authentication_code": MAC,
        }
        self._strings = tuple(name for name in STRINGS if name in _texts(content, "short_authentication_string"))
        if any(content.get(key) != wanted for key, wanted in agreed.items()) or not self._strings:
            raise _Broken(Code.UNKNOWN_METHOD)
        self._commitment = _needed(content, "commitment")
        self.phase = Phase.REVEALED
        return [self._send("key", {"key": self._public})]

    def _take_first_key(self, content: Source) -> list[Step]:
        """They started: their key comes before ours."""
        show = self._agree(content, they_started=True)
        return [self._send("key", {"key": self._public}), show]

    def _take_last_key(self, content: Source) -> list[Step]:
        """We started: their key must be the one they promised before they saw ours."""
        key = vodozemac.Curve25519PublicKey.from_base64(_needed(content, "key")).to_base64()
        if not hmac.compare_digest(_commit(key, self._offer).encode(), self._commitment.encode()):
            raise _Broken(Code.MISMATCHED_COMMITMENT)
        return [self._agree(content, they_started=False)]

    def _agree(self, content: Source, *, they_started: bool) -> Show:
        their_key = vodozemac.Curve25519PublicKey.from_base64(_needed(content, "key"))
        if their_key.to_base64() == self._public:  # our own message, sent back to us
            raise _Broken(Code.KEY_MISMATCH)
        self._shared = self._secret.diffie_hellman(their_key)
        theirs = f"{self._known.user}|{self._known.device_id}|{their_key.to_base64()}"
        ours = f"{self._ours.user}|{self._ours.device_id}|{self._public}"
        pair = f"{theirs}|{ours}" if they_started else f"{ours}|{theirs}"
        shown = self._shared.bytes(f"MATRIX_KEY_VERIFICATION_SAS|{pair}|{self._transaction}")
        self.phase = Phase.COMPARING
        emoji = tuple(EMOJI[index] for index in shown.emoji_indices) if "emoji" in self._strings else ()
        return Show(emoji=emoji, decimals=shown.decimals)

    def _take_mac(self, content: Source) -> list[Step]:
        self._check_mac(content)
        self.phase = Phase.HEARD
        return []

    def _take_last_mac(self, content: Source) -> list[Step]:
        self._check_mac(content)
        self.phase = Phase.CLOSING
        return [self._send("done", {})]

    def _check_mac(self, content: Source) -> None:
        """They must vouch for the device key and the master key that the homeserver names; for others they may."""
        named, shared = events.mapping(content, "mac"), self._shared
        if shared is None:
            raise AssertionError("unreachable")
        info = self._mac_info(self._known, self._ours)
        try:
            shared.verify_mac(",".join(sorted(named)), f"{info}KEY_IDS", _needed(content, "keys"))
            for key_id, key in self._known.keys.items():
                shared.verify_mac(key, info + key_id, events.text(named, key_id) or "")
        except ValueError as error:
            raise _Broken(Code.KEY_MISMATCH) from error

    def _take_done(self, _content: Source) -> list[Step]:
        theirs = self._known
        if theirs.master_key is None:
            raise AssertionError("unreachable")
        self.phase = Phase.DONE
        return [Proven(device_key=theirs.device_key, master_key=theirs.master_key)]

    _TABLE: ClassVar[Mapping[tuple[Phase, str], Callable[..., list[Step]]]] = {
        (Phase.ASKED, "ready"): _take_ready,
        (Phase.READY, "start"): _take_start,
        (Phase.OFFERED, "start"): _take_rival,
        (Phase.OFFERED, "accept"): _take_accept,
        (Phase.PROMISED, "key"): _take_first_key,
        (Phase.REVEALED, "key"): _take_last_key,
        (Phase.COMPARING, "mac"): _take_mac,
        (Phase.VOUCHED, "mac"): _take_last_mac,
        (Phase.CLOSING, "done"): _take_done,
    }
    """What each message does. Any other one of a verification's, at any other time, ends it."""

    # ------------------------------------------------------------------------------------- what our side decides

    def confirm(self) -> list[Step]:
        """The operator says that both show the same. Counts only while something is shown."""
        if self.phase not in {Phase.COMPARING, Phase.HEARD}:
            return []
        shared, keys = self._shared, self._ours.keys
        if shared is None:
            raise AssertionError("unreachable")
        info = self._mac_info(self._ours, self._known)
        macs: dict[str, JsonValue] = {key_id: shared.calculate_mac(key, info + key_id) for key_id, key in keys.items()}
        listed = shared.calculate_mac(",".join(sorted(keys)), f"{info}KEY_IDS")
        steps: list[Step] = [self._send("mac", {"mac": macs, "keys": listed})]
        if self.phase is Phase.HEARD:
            steps.append(self._send("done", {}))
        self.phase = Phase.CLOSING if self.phase is Phase.HEARD else Phase.VOUCHED
        return steps

    def differ(self) -> list[Step]:
        """The operator says that they differ: somebody sits in between, or the wrong person was asked."""
        return self.cancel(Code.MISMATCHED_SAS)

    def expire(self) -> list[Step]:
        """The time is up."""
        return self.cancel(Code.TIMEOUT)

    def cancel(self, code: Code) -> list[Step]:
        """End it, and say why. Nothing happens when it is over."""
        if self.phase in OVER:
            return []
        self.phase = Phase.CANCELLED
        cancel = self._send("cancel", {"code": code.value, "reason": REASONS[code]})
        return [cancel, Stopped(code=code.value, by_us=True)]

    def abandon(self) -> None:
        """End it without a word: it is no longer ours, or no word gets through."""
        if self.phase not in OVER:
            self.phase = Phase.CANCELLED

    # ----------------------------------------------------------------------------------------------------------- pieces

    @property
    def _known(self) -> Party:
        if self._theirs is None:
            raise AssertionError("unreachable")  # the table leads nowhere without `ready`
        return self._theirs

    def _check_device(self, content: Source) -> None:
        """It must be from the device that it is about, and that must have keys which can be told apart.

        A device id is the server's choice: one that reads like a master key would make one key pass for the other.
        """
        theirs = self._theirs
        if theirs is None or content.get("from_device") != theirs.device_id:
            raise _Broken(Code.USER_MISMATCH)
        if theirs.master_key is None or theirs.device_id == theirs.master_key:
            raise _Broken(Code.KEY_MISMATCH)

    @staticmethod
    def _check_methods(content: Source) -> None:
        if METHOD not in _texts(content, "methods"):
            raise _Broken(Code.UNKNOWN_METHOD)

    def _mac_info(self, one: Party, two: Party) -> str:
        return f"MATRIX_KEY_VERIFICATION_MAC{one.user}{one.device_id}{two.user}{two.device_id}{self._transaction}"

    def _send(self, kind: str, content: JsonObject) -> Send:
        return Send(kind, address(content, self._transaction, in_room=self._in_room))


def address(content: JsonObject, transaction: str, *, in_room: bool) -> JsonObject:
    """The content with the mark of its verification: in a room a reference to the request, else the transaction id."""
    if in_room:
        return {**content, "m.relates_to": {"rel_type": "m.reference", "event_id": transaction}}
    return {**content, "transaction_id": transaction}


def _commit(public_key: str, start: JsonObject | Source) -> str:
    return to_base64(hashlib.sha256(public_key.encode() + to_canonical(start)).digest())


def _texts(content: Source, key: str) -> tuple[str, ...]:
    value = content.get(key)
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def _needed(content: Source, key: str) -> str:
    value = events.text(content, key)
    if value is None:
        raise _Broken(Code.INVALID_MESSAGE)
    return value
