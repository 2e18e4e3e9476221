"""One JSON-RPC conversation over a stream of bytes: a task that reads, a task that writes, and a queue between.

Above it: handshake and session, which know what the methods mean. Below it: jsonrpc, and a `Pipe` of any kind. Reading
waits for nothing but bytes; what is to be said is queued, so an agent that does not read holds up nobody. It refuses to
know processes and permissions.

Messages are handled one after the other, in the order of the wire and without waiting: a tool call's update is applied
before the request that follows it, and requests wait for their answers side by side (acp.md, section 2).
"""

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import anyio
import anyio.lowlevel
import structlog

from bridge.acp.jsonrpc import INTERNAL_ERROR, Call, Failure, Ignored, Incoming, Notice, Peer, Refused, Reply
from bridge.core.errors import AgentClosed, CallFailed
from bridge.core.model import JsonValue

OUTGOING_LIMIT_COUNT = 10_000  # lines that an agent has not read yet: far beyond any that still means to
OUTGOING_LIMIT_BYTES = 64 * 1024 * 1024  # of those lines: two of the longest that an agent may be sent
REFUSALS_LIMIT_COUNT = 100  # queued complaints about bad lines; an agent that prints noise need not read more
YIELD_AFTER_SECONDS = 0.02  # of handling without a pause: others are held up no longer than this and one message
NOISE_LOGGED_COUNT = 10  # bad lines logged one by one; after these only the 16th, 32nd, 64th, …

log = structlog.get_logger()

OnReply: TypeAlias = Callable[[Reply | None], None]  # None: the conversation ended first
OnWritten: TypeAlias = Callable[[bool], None]  # whether the line was written, whole


class Pipe(Protocol):
    """A stream of bytes to an agent and back."""

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Return when all of it has left this process; raise `AgentClosed` when it cannot."""
        ...


class Handler(Protocol):
    """What a message of the agent's means. Both return at once; a call is answered then or later."""

    def on_call(self, call: Call) -> None:
        """A request came."""
        ...

    def on_notice(self, notice: Notice) -> None:
        """A notification came."""
        ...


@dataclass(frozen=True, slots=True)
class _Outgoing:
    line: bytes
    on_written: OnWritten | None

    def tell(self, written: bool) -> None:
        if self.on_written is not None:
            self.on_written(written)


class Connection:
    """The conversation with one agent, from the first byte to the end of either direction."""

    def __init__(self, pipe: Pipe, *, agent: str) -> None:
        self._pipe = pipe
        self._log = log.bind(agent=agent)
        self._peer = Peer()
        self._replies: dict[int, OnReply] = {}
        self._queue: deque[_Outgoing] = deque()
        self._queued_bytes = 0
        self._queued_refusals = 0
        self._refused = 0
        self._wake = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()
        self._ended = anyio.Event()
        self._scope: anyio.CancelScope | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing can be said any more."""
        return self._ended.is_set()

    async def run(self, handler: Handler) -> None:
        """Talk until the agent's stream ends or it can no longer be written to."""
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                group.start_soon(self._write)
                await self._read(handler)
                group.cancel_scope.cancel()
        finally:
            self._end()

    async def flush(self) -> None:
        """Return when everything that was queued has been written, or never will be."""
        await self._idle.wait()

    def find(self, call_id: JsonValue) -> Call | None:
        """The agent's request that still waits under this id."""
        return self._peer.find(call_id)

    def request(self, method: str, params: Mapping[str, JsonValue], on_reply: OnReply) -> None:
        """Queue a request; `on_reply` is called once, in the order of the wire."""
        if self.ended:
            on_reply(None)
            return
        own_id, line = self._peer.request(method, params)
        self._replies[own_id] = on_reply
        self._send(line)

    async def call(self, method: str, params: Mapping[str, JsonValue]) -> JsonValue:
        """The result of a request. Raises `CallFailed` for an error, `AgentClosed` when the conversation ended first."""
        replies: list[Reply | None] = []
        answered = anyio.Event()

        def take(reply: Reply | None) -> None:
            replies.append(reply)
            answered.set()

        self.request(method, params, take)
        await answered.wait()
        match replies[0]:
            case None:
                raise AgentClosed(f"The agent ended before it answered {method}.")
            case Reply(failure=Failure() as failure):
                self._log.debug("acp.call_failed", method=method, code=failure.code, said=ascii(failure.message[:200]))
                raise CallFailed(f"The agent answered {method} with error {failure.code}.", code=failure.code)
            case Reply(result=result):
                return result

    def notify(self, method: str, params: Mapping[str, JsonValue]) -> None:
        """Queue a notification."""
        self._send(self._peer.notify(method, params))

    def answer(self, call: Call, result: JsonValue, on_written: OnWritten | None = None) -> bool:
        """Queue the result for a request; False, and nothing is queued, when it has its answer already."""
        return self._settle(self._peer.answer(call, result), on_written)

    def fail(
        self, call: Call, code: int, data: Mapping[str, JsonValue] | None = None, on_written: OnWritten | None = None
    ) -> bool:
        """Queue an error for a request; False, and nothing is queued, when it has its answer already."""
        return self._settle(self._peer.fail(call, code, data), on_written)

    def _settle(self, line: bytes | None, on_written: OnWritten | None) -> bool:
        if line is None:
            return False
        self._send(line, on_written)
        return True

    def _send(self, line: bytes, on_written: OnWritten | None = None) -> None:
        if self.ended:
            if on_written is not None:
                on_written(False)
            return
        self._queue.append(_Outgoing(line, on_written))
        self._queued_bytes += len(line)
        self._idle = anyio.Event() if self._idle.is_set() else self._idle
        self._wake.set()
        if len(self._queue) > OUTGOING_LIMIT_COUNT or self._queued_bytes > OUTGOING_LIMIT_BYTES:
            self._log.error("acp.agent_does_not_read", lines=len(self._queue), bytes=self._queued_bytes)
            self._end()

    async def _write(self) -> None:
        while True:
            while self._queue:
                try:
                    await self._pipe.send(self._queue[0].line)
                except AgentClosed:
                    self._log.info("acp.stdin_closed")
                    self._end()
                    return
                if self.ended:  # meanwhile; everybody has been told already
                    return
                outgoing = self._queue.popleft()
                self._queued_bytes -= len(outgoing.line)
                outgoing.tell(True)
            self._idle.set()
            self._wake = anyio.Event()
            await self._wake.wait()

    async def _read(self, handler: Handler) -> None:
        paused_at = anyio.current_time()
        while data := await self._pipe.receive():
            for message in self._peer.feed(data):
                self._handle(message, handler)
                if anyio.current_time() - paused_at > YIELD_AFTER_SECONDS:
                    await anyio.lowlevel.checkpoint()
                    paused_at = anyio.current_time()
        for message in self._peer.end():
            self._handle(message, handler)

    def _handle(self, message: Incoming, handler: Handler) -> None:
        match message:
            case Call() | Notice():
                self._guard(message, handler)
            case Reply():
                self._replies.pop(message.id)(message)
            case Refused():
                self._complain(message)
            case Ignored():
                self._log.debug("acp.message_ignored", reason=message.reason)

    def _guard(self, message: Call | Notice, handler: Handler) -> None:
        """Hand a message on; a fault of ours costs this one message and no other."""
        try:
            if isinstance(message, Call):
                handler.on_call(message)
            else:
                handler.on_notice(message)
        except Exception as error:  # noqa: BLE001 - the one guard round one request (acp.md, section 2)
            # The exception's own text may hold the agent's words: its kind and place are enough.
            place = traceback.format_tb(error.__traceback__)[-1].strip()
            self._log.error("acp.handler_failed", error=type(error).__name__, place=place)
            if isinstance(message, Call):
                self.fail(message, INTERNAL_ERROR)

    def _complain(self, refused: Refused) -> None:
        self._refused += 1
        if self._refused <= NOISE_LOGGED_COUNT or self._refused & (self._refused - 1) == 0:
            self._log.warning(
                "acp.line_refused",
                reason=refused.reason,
                code=refused.code,
                bytes=refused.size,
                count=self._refused,
            )
        if self._queued_refusals < REFUSALS_LIMIT_COUNT:
            self._queued_refusals += 1
            self._send(refused.answer, self._one_refusal_less)

    def _one_refusal_less(self, _written: bool) -> None:
        self._queued_refusals -= 1

    def _end(self) -> None:
        """Nothing more is said: tell everybody who waits for it."""
        if self.ended:
            return
        self._ended.set()
        while self._queue:
            self._queue.popleft().tell(False)
        for own_id in list(self._replies):
            self._replies.pop(own_id)(None)
        self._idle.set()
        if self._scope is not None:
            self._scope.cancel()
