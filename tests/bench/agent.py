"""A harness that does nothing of its own: it asks when it is told to, and says to the nanosecond when it wrote and read.

    python agent.py CONTROL_SOCKET NAME

Above it: the bridge or a floor, at the other end of its standard streams; the bench tells it what to do over the socket.
Below it: the standard library. `time.monotonic_ns` is one clock for all processes of a machine, so its stamps can be
compared with those of the homeserver. The stamp of a request is taken before its bytes are written, that of an answer
after its line has been read.
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

HANDSHAKE: dict[str, Any] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []},
    "session/new": {"sessionId": "bench"},
}
OPTIONS = [
    {"optionId": "allow", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
]
READ_BYTES = 65_536
FLOOD_ID = "flooded"  # the request behind the last line of a flood: its answer says that every line has been handled
OLD_LINES = [f"    value = read_setting({number!r}, default=None)" for number in range(20)]
NEW_LINES = [*OLD_LINES[:8], "    value = read_setting('mode', default='ask')", "    check(value)", *OLD_LINES[10:]]


def make_request(number: int) -> bytes:
    """A permission request as agents send them: a command where the number is even, an edit with its diff where it is odd."""
    call: dict[str, Any] = {"toolCallId": f"call_{number}", "status": "pending"}
    if number % 2:
        path = f"/srv/project/settings_{number}.py"
        change = {"type": "diff", "path": path, "oldText": "\n".join(OLD_LINES), "newText": "\n".join(NEW_LINES)}
        call |= {"title": f"Edit {path}", "kind": "edit", "content": [change], "locations": [{"path": path}]}
    else:
        command = f"cd /srv/project && python -m pytest -q tests/test_{number}.py"
        call |= {"title": command, "kind": "execute", "rawInput": {"command": command, "description": "Run the tests"}}
    params = {"sessionId": "bench", "toolCall": call, "options": OPTIONS}
    return make_line({"id": number, "method": "session/request_permission", "params": params})


def make_flood(count: int) -> bytes:
    """Updates as agents send them while they work: pieces of speech, and in between a tool call that goes on."""
    lines: list[bytes] = []
    for number in range(count):
        update: dict[str, Any] = {
            "sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": f" word {number}"},
        }
        if number % 4 == 0:
            update = {
                "sessionUpdate": "tool_call_update",
                "toolCallId": f"work_{number % 10}",
                "status": "in_progress",
                "content": [{"type": "content", "content": {"type": "text", "text": f"line {number} of the output"}}],
            }
        params = {"sessionId": "bench", "update": update}
        lines.append(make_line({"method": "session/update", "params": params}))
    return b"".join(lines)


def make_line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


class Agent:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.telling = threading.Lock()

    def tell(self, report: dict[str, Any]) -> None:
        with self.telling:
            self.control.sendall(json.dumps(report).encode() + b"\n")

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def obey(self) -> None:
        """Do what the bench says, until it goes."""
        for line in self.control.makefile("rb"):
            match json.loads(line):
                case {"ask": int(number)}:
                    request = make_request(number)
                    at = time.monotonic_ns()
                    self.write(request)
                    self.tell({"kind": "asked", "id": number, "at": at})
                case {"fill": [int(first), int(last)]}:
                    self.write(b"".join(make_request(number) for number in range(first, last)))
                case {"flood": int(count)}:
                    data = make_flood(count) + make_line({"id": FLOOD_ID, "method": "bench/ping", "params": {}})
                    self.tell({"kind": "flooding", "at": time.monotonic_ns()})
                    self.write(data)
                case other:
                    raise SystemExit(f"no such command: {other}")

    def listen(self) -> None:
        """Take what comes on stdin, until it ends."""
        rest = b""
        while data := os.read(0, READ_BYTES):
            at = time.monotonic_ns()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(cast("dict[str, Any]", json.loads(line)), at)

    def take(self, message: dict[str, Any], at: int) -> None:
        method = message.get("method")
        if method in HANDSHAKE:
            self.write(make_line({"id": message["id"], "result": HANDSHAKE[method]}))
            if method == "session/new":
                self.tell({"kind": "ready"})
        elif method is None:
            self.tell({"kind": "answered", "id": message["id"], "at": at})


def main() -> None:
    control = socket.socket(socket.AF_UNIX)
    control.connect(str(Path(sys.argv[1])))
    agent = Agent(control)
    agent.tell({"name": sys.argv[2]})
    threading.Thread(target=agent.obey, daemon=True).start()
    agent.listen()


if __name__ == "__main__":
    main()
