"""The control socket: JSON-RPC 2.0 lines on `state_dir/control.sock`, for the people and programs of this machine.

Above it: app, which runs it; `ops.client`, which speaks to it. Below it: a `ControlTarget`. It knows framing, parameters
and who is calling (`SO_PEERCRED`), never what becomes of an answer (interface.md, Control socket).
"""

import asyncio
import os
import pwd
import socket
import stat
import struct
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Protocol

import anyio
import structlog
from anyio.abc import ObjectReceiveStream, TaskGroup, TaskStatus

from bridge.core.changes import Record
from bridge.core.errors import AnswerRefused, BridgeError, ConfigError, InvalidOption
from bridge.core.model import AgentName, JsonObject, JsonValue, Reason, RequestId, SessionId
from bridge.ops.calls import LINE_LIMIT_BYTES, Params, Refused, parse, to_line

SOCKET_NAME = "control.sock"
PATH_LIMIT_BYTES = 100  # a socket's path ends at 104 (BSD) or 108 bytes (Linux), and says so badly
CHUNK_BYTES = 64 * 1024  # one read; a pipe's usual capacity
PROBE_TIMEOUT_S = 1.0  # a living socket takes a call at once, unless its queue is full
CLOSE_TIMEOUT_S = 1.0  # for the last words to a client that reads; one that does not loses them
CLIENT_LIMIT = 32  # a few people and programs; more is a loop that forgets to hang up

log = structlog.get_logger()


class ControlTarget(Protocol):
    """Whom the socket serves: the running bridge. What it raises besides `BridgeError` is a fault that ends the bridge."""

    async def respond(
        self,
        *,
        session_id: SessionId,
        request_id: RequestId,
        option_id: str,
        by: str,
        uid: int,
        revision: int | None,
    ) -> Reason | None:
        """None: accepted; else why it is not pending. Raises `AnswerRefused`, which consumes nothing."""
        ...

    def list_pending(self) -> list[JsonObject]:
        """What waits, oldest first, each as `permission.list` shows it."""
        ...

    async def read_history(self, after: dict[SessionId, int] | None, session_id: SessionId | None) -> list[Record]:
        """The records of one session or of all, each session's after its number."""
        ...

    def subscribe(self) -> AbstractAsyncContextManager[ObjectReceiveStream[Record]]:
        """Every record that is stored from now on. A reader that falls too far behind has its stream ended."""
        ...

    def status(self) -> JsonObject:
        """How the bridge and its agents are."""
        ...

    async def delete_session(self, session_id: SessionId) -> None:
        """End a session. Raises `SessionNotFound`."""
        ...

    async def ask(self, agent: AgentName) -> JsonObject:
        """Ask a harmless question in this agent's room, and say what became of it. Raises `InvalidAgent`."""
        ...


def socket_path(state_dir: Path) -> Path:
    """Where the socket lies. Raises `ConfigError` when the system has no room for so long a path."""
    path = state_dir / SOCKET_NAME
    length = len(os.fsencode(path))
    if length > PATH_LIMIT_BYTES:
        raise ConfigError(
            f"The control socket would be {path}, which is {length} bytes long; at most {PATH_LIMIT_BYTES} are "
            "possible: choose a shorter state_dir."
        )
    return path


def record_to_json(record: Record) -> dict[str, JsonValue]:
    """A history record as other programs see it (interface.md, History record)."""
    return {
        "sequence": record.sequence,
        "session_id": record.session_id,
        "timestamp": record.timestamp,
        "type": record.type,
        **record.fields,
    }


async def serve(
    state_dir: Path, target: ControlTarget, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Listen until cancelled; started once clients can connect. Raises `BridgeError` when that cannot be."""
    path = socket_path(state_dir)
    _prepare(path)
    listener = _bind(path)
    inode = path.stat().st_ino
    clients = 0

    async def welcome(reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal clients
        clients += 1
        try:
            if clients > CLIENT_LIMIT:
                _turn_away(writer)
            else:
                await _Client(reader, writer, target).serve()
        finally:
            clients -= 1
            await _hang_up(writer)

    try:
        async with anyio.create_task_group() as tasks:
            # asyncio's streams, since a read of anyio's socket that is cancelled just when data comes breaks its future.
            server = await asyncio.start_unix_server(
                lambda reader, writer: tasks.start_soon(welcome, reader, writer), sock=listener, backlog=CLIENT_LIMIT
            )
            try:
                task_status.started()
                await anyio.sleep_forever()
            finally:
                server.close()
    finally:
        listener.close()
        if path.exists() and path.stat().st_ino == inode:
            path.unlink()


def _prepare(path: Path) -> None:
    """Refuse a folder that others can enter, a socket that answers, and what is no socket; a dead one may go."""
    try:
        if path.parent.stat().st_mode & 0o077:
            raise BridgeError(f"The state folder {path.parent} is open to other users; make its mode 0700.")
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise BridgeError(f"{path} is in the way: it is no socket.")
        with socket.socket(socket.AF_UNIX) as probe, suppress(TimeoutError):  # too busy to take a call: alive
            probe.settimeout(PROBE_TIMEOUT_S)
            probe.connect(os.fspath(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        raise BridgeError(f"The control socket {path} cannot be opened: {error.strerror}.") from error
    raise BridgeError(f"Another bridge is running with the state folder {path.parent}.")


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        # Before it has a name: so it is 0600 from the first byte on Linux; elsewhere its folder keeps others out.
        with suppress(OSError):
            os.fchmod(listener.fileno(), 0o600)
        listener.bind(os.fspath(path))
        path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise BridgeError(f"The control socket {path} cannot be opened: {error.strerror}.") from error
    return listener


def _turn_away(writer: StreamWriter) -> None:
    log.warning("control.too_many_clients", limit=CLIENT_LIMIT)
    refusal = Refused(-32000, "too_many_clients", f"More than {CLIENT_LIMIT} clients are connected.")
    writer.write(to_line({"id": None, "error": refusal.to_json()}))


async def _hang_up(writer: StreamWriter) -> None:
    writer.close()
    with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True), suppress(OSError):
        await writer.wait_closed()
    writer.transport.abort()


def _peer_uid(writer: StreamWriter) -> int:
    if sys.platform != "linux":
        return os.getuid()  # the least trusted one: a harness may run as it (rule 13)
    raw: socket.socket = writer.get_extra_info("socket")
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1]


def _name_user(uid: int) -> str:
    try:
        return f"local:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"local:{uid}"


async def _read_lines(reader: StreamReader) -> AsyncIterator[bytes | None]:
    """Line by line until the client is gone; None stands for one that was too long and was skipped."""
    begun = b""
    too_long = False
    while True:
        chunk = await reader.read(CHUNK_BYTES)
        if not chunk:
            return
        *lines, begun = (begun + chunk).split(b"\n")
        for line in lines:
            yield None if too_long or len(line) > LINE_LIMIT_BYTES else line
            too_long = False
        if len(begun) > LINE_LIMIT_BYTES:
            begun, too_long = b"", True


class _Client:
    """One connection: its calls are answered in their order, its subscription goes on beside them."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, target: ControlTarget) -> None:
        self._reader = reader
        self._writer = writer
        self._target = target
        self._uid = _peer_uid(writer)
        self._sending = anyio.Lock()
        self._subscribed = False

    async def serve(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                async for line in _read_lines(self._reader):
                    if line is None or line.strip():
                        await self._answer(line, tasks)
                tasks.cancel_scope.cancel()
        except* ConnectionError:
            log.debug("control.client_gone")

    async def _answer(self, line: bytes | None, tasks: TaskGroup) -> None:
        request_id: JsonValue = None
        try:
            request_id, method, params = parse(line)
            if method == "history.subscribe":
                await self._subscribe(request_id, params, tasks)
                return
            reply: dict[str, JsonValue] = {"id": request_id, "result": dict(await self._call(method, params))}
        except Refused as refused:
            known = refused.request_id if request_id is None else request_id
            reply = {"id": known, "error": refused.to_json()}
        except AnswerRefused as refused:
            offered = refused.offered if isinstance(refused, InvalidOption) else None
            error = Refused(-32602, refused.code, str(refused), offered=offered)
            reply = {"id": request_id, "error": error.to_json()}
        except BridgeError as error:
            reply = {"id": request_id, "error": Refused(-32603, "internal_error", str(error)).to_json()}
        await self._send(reply)

    async def _call(self, method: str, raw: object) -> JsonObject:
        params = Params(raw)
        match method:
            case "permission.list":
                params.finish()
                return {"pending": [dict(item) for item in self._target.list_pending()]}
            case "permission.respond":
                return await self._respond(params)
            case "history.read":
                session_id = params.take_session()
                after = params.take_after(session_id)
                params.finish()
                return _to_result(await self._target.read_history(after, session_id))
            case "status":
                params.finish()
                return self._target.status()
            case "session.delete":
                session_id = SessionId(params.take_text("session_id"))
                params.finish()
                await self._target.delete_session(session_id)
                return {}
            case "question.ask":
                agent = AgentName(params.take_text("agent"))
                params.finish()
                return await self._target.ask(agent)
            case _:
                raise Refused(-32601, "method_not_found", "There is no such method.")

    async def _respond(self, params: Params) -> JsonObject:
        session_id = SessionId(params.take_text("session_id"))
        request_id = RequestId(params.take_text("request_id"))
        option_id = params.take_text("option_id")
        revision = params.take_revision()
        params.finish()
        reason = await self._target.respond(
            session_id=session_id,
            request_id=request_id,
            option_id=option_id,
            by=_name_user(self._uid),
            uid=self._uid,
            revision=revision,
        )
        return {"status": "accepted"} if reason is None else {"status": "not_pending", "reason": reason.value}

    async def _subscribe(self, request_id: JsonValue, raw: object, tasks: TaskGroup) -> None:
        params = Params(raw)
        session_id = params.take_session()
        after = params.take_after(session_id)
        params.finish()
        if self._subscribed:
            raise Refused(-32600, "invalid_request", "This connection has its subscription already.")
        await tasks.start(self._feed, request_id, after, session_id)
        self._subscribed = True

    async def _feed(
        self,
        request_id: JsonValue,
        after: dict[SessionId, int] | None,
        session_id: SessionId | None,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        """First what there is, then what comes; subscribed before reading, so that nothing falls in between."""
        async with self._target.subscribe() as stream:
            records = await self._target.read_history(after, session_id)
            sent = dict(after or {}) | {record.session_id: record.sequence for record in records}
            await self._send({"id": request_id, "result": _to_result(records)})
            task_status.started()
            async for record in stream:
                wanted = session_id in {None, record.session_id}
                if wanted and record.sequence > sent.get(record.session_id, 0):
                    await self._send({"method": "history.record", "params": record_to_json(record)})
        self._writer.close()  # it fell behind, or the bridge ends: the client resumes after its last record

    async def _send(self, message: JsonObject) -> None:
        async with self._sending:
            self._writer.write(to_line(message))
            await self._writer.drain()


def _to_result(records: Sequence[Record]) -> dict[str, JsonValue]:
    return {"records": [record_to_json(record) for record in records]}
