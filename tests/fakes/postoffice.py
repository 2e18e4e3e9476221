"""A homeserver that keeps public keys and hands letters on, in memory: for machines that need no network to be tried.

It does what Synapse does with keys (a claimed key is gone, a fallback key stays), tells what was asked of it, and fails
or waits where a test says so. `client` is a Client of it for those who take one.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from bridge.core.errors import HomeserverUnreachable, MatrixError, RequestRefused
from bridge.core.model import RoomId, UserId
from bridge.matrix.client import Client
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.events import ENCRYPTED

Json = dict[str, Any]
ALGORITHM = "signed_curve25519"


class PostOffice:
    """Keys and letters of everybody."""

    def __init__(self) -> None:
        self.devices: defaultdict[str, dict[str, Json]] = defaultdict(dict)
        self.identities: Json = {}  # parts of an answer to a query: `master_keys`, `self_signing_keys`
        self.one_time: defaultdict[tuple[str, str], Json] = defaultdict(dict)
        self.fallback: dict[tuple[str, str], Json] = {}
        self.fallback_used: set[tuple[str, str]] = set()
        self.letters: defaultdict[tuple[str, str], list[Json]] = defaultdict(list)
        self.unanswered: set[str] = set()  # users whose own homeserver is away
        self.calls: Counter[str] = Counter()
        self.faults: defaultdict[str, list[MatrixError]] = defaultdict(list)  # by operation, one a call
        self.lost: Counter[str] = Counter()  # how many calls of this operation are carried out and their answers lost
        self.gates: dict[str, Callable[[], Awaitable[object]]] = {}  # waited for before a call of this operation

    def upload(self, user: str, device: str, body: Mapping[str, Any]) -> Json:
        if "device_keys" in body:
            self.devices[user][device] = body["device_keys"]
        kept = self.one_time[user, device]
        for name, key in body.get("one_time_keys", {}).items():
            if name in kept and kept[name] != key:
                raise RequestRefused("Already exists.", status=400, errcode="M_UNKNOWN")
            kept[name] = key
        if "fallback_keys" in body:
            self.fallback[user, device] = dict(body["fallback_keys"])
            self.fallback_used.discard((user, device))
        return {"one_time_key_counts": {ALGORITHM: len(kept)}}

    def query(self, users: Iterable[str]) -> Json:
        found = {user: dict(self.devices[user]) for user in users if user not in self.unanswered}
        return {"device_keys": found} | self.identities

    def claim(self, wanted: Mapping[str, Mapping[str, str]]) -> Json:
        found: Json = {}
        for user, devices in wanted.items():
            for device in devices:
                kept = self.one_time[user, device]
                if kept:
                    name = next(iter(kept))
                    found.setdefault(user, {})[device] = {name: kept.pop(name)}
                elif (user, device) in self.fallback:
                    self.fallback_used.add((user, device))
                    found.setdefault(user, {})[device] = self.fallback[user, device]
        return {"one_time_keys": found}

    def send(self, sender: str, kind: str, messages: Mapping[Any, Mapping[str, Any]]) -> None:
        for user, devices in messages.items():
            for device, content in devices.items():
                for one in self.devices[user] if device == "*" else [device]:
                    self.letters[user, one].append({"sender": sender, "type": kind, "content": content})

    def collect(self, user: str, device: str) -> tuple[Json, ...]:
        return tuple(self.letters.pop((user, device), []))

    # ---------------------------------------------------------------------------------- for machines, without Encryption

    def publish(self, machine: Machine) -> None:
        """What a device does at its start."""
        left = len(self.one_time[machine.user_id, machine.device_id])
        body = machine.uploads(left, fallback_unused=True)
        if body is not None:
            self.upload(machine.user_id, machine.device_id, body)
            machine.uploaded(body)

    def ask(self, machine: Machine, *users: str) -> None:
        marks = machine.to_ask([UserId(user) for user in users])
        machine.learned(self.query(marks), marks)

    def share(self, machine: Machine, room: str, *members: str) -> None:
        """Give the room's key to everybody who can have it."""
        where, users = RoomId(room), [UserId(user) for user in members]
        self.ask(machine, *members)
        claim = machine.needs(where, users).claim
        wanted: dict[str, dict[str, str]] = {}
        for device in claim:
            wanted.setdefault(device.user, {})[device.device_id] = ALGORITHM
        machine.claimed(self.claim(wanted), claim)
        give = machine.needs(where, users).give
        session_id, messages = machine.letters(where, give)
        self.send(machine.user_id, ENCRYPTED, messages)
        machine.given(where, session_id, give)

    def deliver(self, machine: Machine) -> None:
        machine.receive(self.collect(machine.user_id, machine.device_id))

    # ------------------------------------------------------------------------------------------------ for Encryption

    def client(self, user: str, device: str) -> Client:
        return cast("Client", _Client(self, user, device))


class _Client:
    """The calls of a client that the key server makes."""

    def __init__(self, office: PostOffice, user: str, device: str) -> None:
        self._office = office
        self.user_id = user
        self._device = device

    async def call(
        self, _method: str, *parts: str, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Json:
        assert query is None
        office = self._office
        operation = parts[1] if parts[0] == "keys" else parts[0]
        office.calls[operation] += 1
        if gate := office.gates.get(operation):
            await gate()
        if office.faults[operation]:
            raise office.faults[operation].pop(0)
        answer = self._carry_out(operation, parts, cast("Json", body))
        if office.lost[operation]:
            office.lost[operation] -= 1
            raise HomeserverUnreachable("The answer was lost.", perhaps_done=True)
        return answer

    def _carry_out(self, operation: str, parts: tuple[str, ...], said: Json) -> Json:
        office = self._office
        match operation:
            case "upload":
                return office.upload(self.user_id, self._device, said)
            case "query":
                return office.query(said["device_keys"])
            case "claim":
                return office.claim(said["one_time_keys"])
            case "sendToDevice":
                office.send(self.user_id, parts[1], said["messages"])
                return {}
            case _:
                raise NotImplementedError
