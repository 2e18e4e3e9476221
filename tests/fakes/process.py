"""An agent's process without a process: a test is the agent, line by line."""

import json
from collections import deque
from collections.abc import Mapping
from typing import cast

import anyio

from bridge.acp.agent import Launch
from bridge.core.errors import AgentClosed
from bridge.core.model import JsonValue

HANDSHAKE: dict[str, JsonValue] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []},
    "authenticate": {},
    "session/new": {"sessionId": "h-1"},
    "session/set_mode": {},
    "session/set_config_option": {"configOptions": []},
}


class FakeProcess:
    """Implements `bridge.acp.agent.Process`.

    Requests named in `replies` are answered by themselves, with that result, or with that error where it is an
    `{"error": …}`. Everything else the test says (`say`, `reply`) and hears (`hear`) itself.
    """

    def __init__(self, replies: Mapping[str, JsonValue] | None = None) -> None:
        self.lines: list[dict[str, JsonValue]] = []
        self.written = b""
        self.stopped = False
        self.launches: list[Launch] = []
        self._replies = {**HANDSHAKE, **(replies or {})}
        self._unheard: deque[dict[str, JsonValue]] = deque()
        self._heard = anyio.Event()
        self._said = anyio.Event()
        self._output: deque[bytes] = deque()
        self._output_ended = False
        self._all_read = anyio.Event()
        self._takes_input = True
        self._reads = anyio.Event()
        self._reads.set()
        self._exit_code: int | None = None
        self._exited = anyio.Event()

    async def spawn(self, launch: Launch) -> "FakeProcess":
        """Stand in for `bridge.acp.agent.spawn`."""
        self.launches.append(launch)
        await anyio.lowlevel.checkpoint()
        return self

    # ------------------------------------------------------------------------------------------------ for the test

    def say(self, message: Mapping[str, JsonValue] | bytes) -> None:
        """Write a message, or raw bytes, to stdout."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self._output.append(data)
        if self._all_read.is_set():
            self._all_read = anyio.Event()
        self._said.set()

    def reply(self, request: Mapping[str, JsonValue], result: JsonValue) -> None:
        """Answer a request of the bridge's."""
        self.say({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def update(self, session_id: str = "h-1", /, **update: JsonValue) -> None:
        """Send a `session/update`."""
        self.say({"method": "session/update", "params": {"sessionId": session_id, "update": update}})

    async def hear(self, **members: JsonValue) -> dict[str, JsonValue]:
        """The next line that was not heard yet and has these members; those before it stay unheard."""
        while True:
            for line in self._unheard:
                if all(key in line and _same(line[key], value) for key, value in members.items()):
                    self._unheard.remove(line)
                    return line
            self._heard = anyio.Event()
            await self._heard.wait()

    @property
    def unread(self) -> int:
        """How many of the messages said are still to be read."""
        return len(self._output)

    async def until_read(self) -> None:
        """Wait until the bridge has handled all that was said, and waits for more; or will never read again."""
        await self._all_read.wait()

    def stop_reading(self) -> None:
        """Take nothing from stdin from here on."""
        self._reads = anyio.Event()

    def read_on(self) -> None:
        """Take from stdin again."""
        self._reads.set()

    def close_stdin(self) -> None:
        """Close stdin: the next write fails."""
        self._takes_input = False
        self._reads.set()

    def close_stdout(self) -> None:
        """End stdout while the process lives on."""
        self._output_ended = True
        self._said.set()

    def exit(self, code: int) -> None:
        """End."""
        if self._exit_code is None:
            self._exit_code = code
            self._exited.set()
        self.close_stdin()
        self.close_stdout()

    # ------------------------------------------------------------------------------------------------ for the bridge

    @property
    def pid(self) -> int:
        return 0

    @property
    def exit_code(self) -> int | None:
        return self._exit_code

    @property
    def last_lines(self) -> tuple[str, ...]:
        return ()

    async def receive(self) -> bytes:
        while not self._output:
            self._all_read.set()
            if self._output_ended:
                break
            self._said = anyio.Event()
            await self._said.wait()
        return self._output.popleft() if self._output else b""

    async def send(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        await self._reads.wait()
        if not self._takes_input:
            raise AgentClosed("The fake takes no more input.")
        self.written += data
        line = cast("dict[str, JsonValue]", json.loads(data))
        self.lines.append(line)
        self._unheard.append(line)
        self._heard.set()
        reply = self._replies.get(method) if isinstance(method := line.get("method"), str) else None
        if isinstance(reply, dict):
            answer = {"error": reply["error"]} if "error" in reply else {"result": reply}
            self.say({"jsonrpc": "2.0", "id": line["id"], **answer})

    async def wait(self) -> int:
        await self._exited.wait()
        return self._exit_code or 0

    async def stop(self) -> int | None:
        await anyio.lowlevel.checkpoint()
        self.stopped = True
        self._all_read.set()
        self.exit(0)
        return self._exit_code


def _same(one: JsonValue, other: JsonValue) -> bool:
    return type(one) is type(other) and one == other
