"""JSON-RPC 2.0 as ACP puts it on a stream of bytes: lines in, messages out, no I/O (acp.md, sections 1 and 2).

Above it: the connection, which moves the bytes. Below it: nothing. It knows ids, framing and JSON, and refuses to know
what any method means.

Numbers are never rounded. A number that Python would change (`1e400`, `NaN`, a float with more digits than a float
holds, an integer beyond Python's own limit of digits) is kept as `NumberText`: a `str` with the characters that came.
Everybody above may treat it as text: it shows as what was sent, and what is stored of it is valid JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import TypeAlias, cast

from bridge.core.model import JsonValue

LINE_LIMIT_BYTES = 32 * 1024 * 1024  # the default of ACP's own SDK (acp.md, section 1)
DEPTH_LIMIT_LEVELS = 128  # what serde_json, which agents in Rust read with, takes; below Python's own recursion limit
FLOAT_LIMIT_CHARS = 25  # one more than the longest text that Python writes for a float
ACTIVE_CALLS_LIMIT_COUNT = 1_000  # requests of one agent that wait at once; real ones send three

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
AUTH_REQUIRED = -32000

_TEXTS: Mapping[int, str] = {
    PARSE_ERROR: "Parse error",
    INVALID_REQUEST: "Invalid request",
    METHOD_NOT_FOUND: "Method not found",
    INVALID_PARAMS: "Invalid params",
    INTERNAL_ERROR: "Internal error",
}

JsonDict: TypeAlias = dict[str, JsonValue]
Id: TypeAlias = int | float | str | None  # a `NumberText` among the strings is a number
_Key: TypeAlias = tuple[type, Id]  # 1, "1", 1.0 and true are four different things


class NumberText(str):
    """A JSON number (or `NaN`, `Infinity`) as it was written, where a Python number would say something else."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A request of the other side; itself the handle by which it is answered."""

    id: Id
    method: str
    params: JsonDict
    size: int  # of its line, in bytes


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification of the other side."""

    method: str
    params: JsonDict
    size: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a reply. `message` is text of the other side."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the other side said to the request of ours with this id."""

    id: int
    result: JsonValue
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that is no message; `answer` is the line that says so."""

    answer: bytes
    code: int
    reason: str  # fixed words, for the log
    size: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that changes nothing and gets no answer."""

    reason: str  # fixed words, for the log


Incoming: TypeAlias = Call | Notice | Reply | Refused | Ignored


class Lines:
    """Cuts a stream of bytes into lines; a line over the limit is given as None once, and its rest is dropped."""

    def __init__(self, limit: int = LINE_LIMIT_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that end within `data`, without their line feed."""
        lines: list[bytes | None] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end], lines)
            start = end + 1
            if not self._dropping:
                lines.append(bytes(self._buffer))
            self._buffer.clear()
            self._dropping = False
        self._keep(data[start:], lines)
        return lines

    def end(self) -> list[bytes | None]:
        """The last line, where the stream ended without a line feed."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return [rest] if rest else []

    def _keep(self, part: bytes, lines: list[bytes | None]) -> None:
        if self._dropping:
            return
        if len(self._buffer) + len(part) > self._limit:
            self._buffer.clear()
            self._dropping = True
            lines.append(None)
            return
        self._buffer += part


class Peer:
    """One side of a JSON-RPC conversation: what is waiting, on both sides, and the bytes for each thing to be said."""

    def __init__(self, line_limit: int = LINE_LIMIT_BYTES) -> None:
        self._lines = Lines(line_limit)
        self._calls: dict[_Key, Call] = {}
        self._asked: set[int] = set()
        self._last_id = 0

    def feed(self, data: bytes) -> list[Incoming]:
        """What the bytes that just came complete, in order."""
        return self._read_all(self._lines.feed(data))

    def end(self) -> list[Incoming]:
        """What the end of the stream completes."""
        return self._read_all(self._lines.end())

    def find(self, call_id: JsonValue) -> Call | None:
        """The request of the other side that still waits under this id, type and value."""
        key = _key(call_id)
        return None if key is None else self._calls.get(key)

    def request(self, method: str, params: Mapping[str, JsonValue]) -> tuple[int, bytes]:
        """The id and the line of a new request of ours."""
        self._last_id += 1
        self._asked.add(self._last_id)
        return self._last_id, _line({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": dict(params)})

    def notify(self, method: str, params: Mapping[str, JsonValue]) -> bytes:
        """The line of a notification of ours."""
        return _line({"jsonrpc": "2.0", "method": method, "params": dict(params)})

    def answer(self, call: Call, result: JsonValue) -> bytes | None:
        """The line that answers `call`; None when it was answered before."""
        return self._settle(call, "result", result)

    def fail(self, call: Call, code: int, data: Mapping[str, JsonValue] | None = None) -> bytes | None:
        """The line that answers `call` with an error and its fixed text; None when it was answered before."""
        return self._settle(call, "error", _error(code, data))

    def _settle(self, call: Call, member: str, value: JsonValue) -> bytes | None:
        key = (type(call.id), call.id)
        if self._calls.get(key) is not call:
            return None
        del self._calls[key]
        return _response(call.id, member, value)

    def _read_all(self, lines: list[bytes | None]) -> list[Incoming]:
        return [message for line in lines if (message := self._read(line)) is not None]

    def _read(self, line: bytes | None) -> Incoming | None:
        if line is not None and not line.strip():
            return None
        size = 0 if line is None else len(line)
        try:
            message = _parse(line)
            if "method" in message:
                return self._read_request(message, size)
            return self._read_reply(message)
        except _Invalid as invalid:
            return Refused(invalid.answer, invalid.code, invalid.reason, size)

    def _read_request(self, message: JsonDict, size: int) -> Incoming:
        method, params = message["method"], message.get("params", {})
        if not isinstance(method, str):
            raise _Invalid(INVALID_REQUEST, "the method is no string")
        if "id" not in message:
            if not isinstance(params, dict):
                return Ignored("the params of a notification are no object")
            return Notice(method, params, size)
        key = _key(message["id"])
        if key is None:
            raise _Invalid(INVALID_REQUEST, "the id is neither string, number nor null")
        if key in self._calls:
            # With its own id this answer would resolve the request that waits (acp.md, section 2).
            raise _Invalid(INVALID_REQUEST, "a request with this id still waits")
        if not isinstance(params, dict):
            raise _Invalid(INVALID_PARAMS, "the params are no object", key[1])
        if len(self._calls) >= ACTIVE_CALLS_LIMIT_COUNT:
            raise _Invalid(INTERNAL_ERROR, "too many requests wait", key[1])
        call = Call(key[1], method, params, size)
        self._calls[key] = call
        return call

    def _read_reply(self, message: JsonDict) -> Incoming:
        if "id" not in message:
            raise _Invalid(INVALID_REQUEST, "the object is no message")
        own = message["id"]
        if type(own) is not int or own not in self._asked:
            return Ignored("a response to nothing")
        self._asked.remove(own)
        error = message.get("error")
        if error is None:
            return Reply(own, message.get("result"))
        fields = error if isinstance(error, dict) else {}
        code, text = fields.get("code"), fields.get("message")
        return Reply(
            own,
            None,
            Failure(code if type(code) is int else INTERNAL_ERROR, text if isinstance(text, str) else ""),
        )


class _Invalid(Exception):
    """A line that is no message of JSON-RPC, with the answer it gets."""

    def __init__(self, code: int, reason: str, call_id: Id = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.answer = _response(call_id, "error", _error(code))


def _parse(line: bytes | None) -> JsonDict:
    if line is None:
        raise _Invalid(PARSE_ERROR, "the line is too long")
    try:
        text = line.decode("utf-8").removeprefix("\ufeff")
        value = cast(
            "JsonValue",
            json.loads(text, parse_int=_read_int, parse_float=_read_float, parse_constant=NumberText),
        )
    except UnicodeDecodeError:
        raise _Invalid(PARSE_ERROR, "the line is not UTF-8") from None
    except RecursionError:
        raise _Invalid(PARSE_ERROR, "the line is nested too deep") from None
    except ValueError:
        raise _Invalid(PARSE_ERROR, "the line is not JSON") from None
    # Only a line with this many brackets can be that deep; most have few, and are not walked.
    if text.count("[") + text.count("{") > DEPTH_LIMIT_LEVELS and _too_deep(value):
        raise _Invalid(PARSE_ERROR, "the line is nested too deep")
    if not isinstance(value, dict):
        raise _Invalid(INVALID_REQUEST, "the line is no object")
    return value


def _too_deep(value: JsonValue) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(DEPTH_LIMIT_LEVELS):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return False
    return True


def _members(value: JsonValue) -> list[JsonValue]:
    """What lies one level deeper, containers only."""
    found = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return [inner for inner in found if isinstance(inner, list | dict)]


def _read_int(text: str) -> int | NumberText:
    try:
        return int(text)
    except ValueError:  # Python's own limit, 4,300 digits unless set otherwise
        return NumberText(text)


def _read_float(text: str) -> float | NumberText:
    if len(text) > FLOAT_LIMIT_CHARS:
        return NumberText(text)
    value = float(text)
    try:
        same = isfinite(value) and Decimal(repr(value)) == Decimal(text)
    except InvalidOperation:  # an exponent beyond Decimal's
        same = False
    return value if same else NumberText(text)


def _key(call_id: JsonValue) -> _Key | None:
    """What tells ids apart; None for what can be no id."""
    if isinstance(call_id, NumberText):
        return (NumberText, call_id) if isfinite(float(call_id)) else None
    if isinstance(call_id, bool | list | dict):
        return None
    return type(call_id), call_id


def _error(code: int, data: Mapping[str, JsonValue] | None = None) -> JsonDict:
    error: JsonDict = {"code": code, "message": _TEXTS[code]}
    if data is not None:
        error["data"] = dict(data)
    return error


def _response(call_id: JsonValue, member: str, value: JsonValue) -> bytes:
    written = str(call_id) if isinstance(call_id, NumberText) else _json(call_id)
    return f'{{"jsonrpc":"2.0","id":{written},"{member}":{_json(value)}}}\n'.encode("ascii")


def _line(message: JsonDict) -> bytes:
    return f"{_json(message)}\n".encode("ascii")


def _json(value: JsonValue) -> str:
    # ASCII only, so that lone surrogates go back as the escapes they came as (acp.md, sections 13 and 14).
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
