"""A homeserver that answers at once, and says when the first byte of each send came and when each sync answer left.

    python -m tests.bench.homeserver CONTROL_SOCKET

Above it: the bridge and the floors, each an account of its own by its access token. Below it: asyncio. It knows just what
they ask for, keeps nothing that has been read, and is quick: no framework, a process of its own, so that its work is none
of the bridge's. Like a real one it gives a bot's own events back in the next sync, and hands keys and letters around. Each
account sees one room of its own, as the bench has set it up.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from tests.bench.keys import ALGORITHM, Keys

PERSON = "@alice:bench"
ROOM = "!room:bench"
API = "/_matrix/client/v3/"
MESSAGES = ("m.room.message", "m.room.encrypted")
HEAD_END = b"\r\n\r\n"

Json = dict[str, Any]


def user_of(account: str) -> str:
    """The user of an account, which is named by its access token and its one device alike."""
    return f"@{account}:bench"


def _state(kind: str, key: str, content: Json) -> Json:
    event_id = f"$state-{kind}-{key}"
    return {"type": kind, "state_key": key, "sender": PERSON, "event_id": event_id, "content": content}


def make_state(bot: str, people: Sequence[str], *, encrypted: bool) -> list[Json]:
    """The state of a room with these people in it."""
    state = [_state("m.room.member", user, {"membership": "join"}) for user in (bot, *people)]
    return [*state, *([_state("m.room.encryption", "", {"algorithm": "m.megolm.v1.aes-sha2"})] if encrypted else [])]


@dataclass(slots=True)
class Account:
    """What one account has not read yet, of its room and of what comes to its device, and its sync that waits."""

    name: str
    state: list[Json]
    head: int = 0
    unread: dict[int, Json] = field(default_factory=dict[int, Json])
    held: "Request | None" = None


class Request(asyncio.Protocol):
    """One connection; `began` is when the first byte of the request that is being read came."""

    def __init__(self, server: "Homeserver") -> None:
        self.server = server
        self.buffer = b""
        self.began = 0
        self.since = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self.buffer:
            self.began = time.monotonic_ns()
        self.buffer += data
        while (end := self.buffer.find(HEAD_END)) >= 0:
            start, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            length = end + len(HEAD_END) + int(headers.get("content-length", "0"))
            if len(self.buffer) < length:
                return
            body, self.buffer = self.buffer[end + len(HEAD_END) : length], self.buffer[length:]
            method, target, _ = start.split(" ")
            self.server.serve(self, method, target, headers.get("authorization", ""), body)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.server.forget(self)

    def answer(self, said: Json) -> None:
        body = json.dumps(said).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


class Homeserver:
    def __init__(self, control: asyncio.StreamWriter) -> None:
        self.control = control
        self.accounts: dict[str, Account] = {}
        self.keys = Keys()

    def tell(self, **report: object) -> None:
        self.control.write(json.dumps(report).encode() + b"\n")

    def account(self, authorization: str) -> Account:
        name = authorization.removeprefix("Bearer ")
        if name not in self.accounts:
            self.begin(name, [PERSON], encrypted=False)
        return self.accounts[name]

    def begin(self, name: str, people: Sequence[str], *, encrypted: bool) -> None:
        """Nothing of what the account did before is known any more."""
        self.keys.forget(user_of(name))
        self.accounts[name] = Account(name, make_state(user_of(name), people, encrypted=encrypted))

    def forget(self, request: Request) -> None:
        for account in self.accounts.values():
            if account.held is request:
                account.held = None

    def serve(self, request: Request, method: str, target: str, authorization: str, body: bytes) -> None:
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.removeprefix(API).split("/")]
        match method, parts:
            case "GET", ["sync"]:
                self.sync(request, self.account(authorization), parse_qs(url.query))
            case "PUT", ["rooms", _, "send", kind, txn]:
                self.send(request, self.account(authorization), kind, txn, body)
            case "GET", ["account", "whoami"]:
                name = self.account(authorization).name
                request.answer({"user_id": user_of(name), "device_id": name})
            case "POST", ["keys", *what]:
                name = self.account(authorization).name
                self.tell(name=name, kind="call", call="/".join(parts))
                request.answer(self.keys.serve(user_of(name), name, "/".join(what), json.loads(body)))
            case "PUT", ["sendToDevice", kind, _]:
                self.tell(name=self.account(authorization).name, kind="call", call="sendToDevice")
                request.answer({})
                self.hand_over(user_of(self.account(authorization).name), kind, json.loads(body)["messages"])
            case "POST", ["join", room]:
                request.answer({"room_id": room})
            case _:
                request.answer({})

    def send(self, request: Request, account: Account, kind: str, txn: str, body: bytes) -> None:
        event_id = f"$e{account.head}-{account.name}"
        request.answer({"event_id": event_id})
        said = txn.rpartition("/")[2] if kind in MESSAGES else "seed"
        report: Json = {"event_id": event_id, "body": body.decode()} if said == "prompt" else {}
        self.tell(name=account.name, kind=said, at=request.began, **report)
        event = {"type": kind, "sender": user_of(account.name), "event_id": event_id, "content": json.loads(body)}
        self.put(account, event | {"unsigned": {"transaction_id": txn}})

    def hand_over(self, sender: str, kind: str, messages: Json) -> None:
        """Letters from device to device; those to devices that are no account here nobody reads."""
        for account in self.accounts.values():
            content = messages.get(user_of(account.name), {}).get(account.name)
            if content is not None:
                event = {"type": kind, "sender": sender, "content": content}
                self.tell(name=account.name, kind="letter", event=event)
                self.put(account, event)

    def put(self, account: Account, event: Json) -> int:
        """The event reaches the account; gives back when the sync answer with it left, 0 when none waited."""
        account.unread[account.head] = event
        account.head += 1
        held, account.held = account.held, None
        return 0 if held is None else self.give(held, account)

    def sync(self, request: Request, account: Account, query: dict[str, list[str]]) -> None:
        first = "since" not in query  # a bridge that has just begun, perhaps after another one
        request.since = account.head if first else int(query["since"][0])
        for old in [number for number in account.unread if number < request.since]:
            del account.unread[old]
        if first or request.since < account.head:
            self.give(request, account, account.state if first else [])
        else:
            account.held = request
            self.tell(name=account.name, kind="held")

    def give(self, request: Request, account: Account, state: Sequence[Json] = ()) -> int:
        found = [account.unread[number] for number in range(request.since, account.head)]
        in_room = [event for event in found if "event_id" in event]
        timeline = {"events": in_room, "limited": False, "prev_batch": str(request.since)}
        room = {"state": {"events": list(state)}, "timeline": timeline}
        said = {
            "next_batch": str(account.head),
            "rooms": {"join": {ROOM: room}, "invite": {}, "leave": {}},
            "to_device": {"events": [event for event in found if "event_id" not in event]},
            "device_one_time_keys_count": self.keys.count(user_of(account.name), account.name),
            "device_unused_fallback_key_types": [ALGORITHM],
        }
        at = time.monotonic_ns()
        request.answer(said)
        return at

    def obey(self, command: Json) -> None:
        """What the bench wants: keys published, an account to begin anew, or an event in an account's room at once."""
        match command:
            case {"keys": str(what), "user": str(user), "device": str(device), "body": body}:
                self.keys.serve(user, device, what, body)
            case {"begin": str(name), "people": people, "encrypted": bool(encrypted)}:
                self.begin(name, people, encrypted=encrypted)
            case {"name": str(name), "type": str(kind), "content": content}:
                self.say(self.accounts[name], kind, content)
            case _:
                raise AssertionError(command)

    def say(self, account: Account, kind: str, content: Json) -> None:
        """The person says something in the room, and the account's sync gets it at once."""
        event_id = f"$p{account.head}-{account.name}"
        event = {"type": kind, "sender": PERSON, "event_id": event_id, "content": content}
        now = time.monotonic_ns()  # where no sync waits, the bridge is late from here on
        self.tell(name=account.name, kind="delivered", at=self.put(account, event) or now)


async def main() -> None:
    reader, writer = await asyncio.open_unix_connection(sys.argv[1])
    homeserver = Homeserver(writer)
    server = await asyncio.get_running_loop().create_server(lambda: Request(homeserver), "127.0.0.1", 0)
    homeserver.tell(name="homeserver", port=server.sockets[0].getsockname()[1])
    async for line in reader:
        homeserver.obey(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main())
