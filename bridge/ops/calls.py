"""What comes in over the control socket, taken apart and checked: JSON-RPC 2.0 lines and their parameters.

Above it: `ops.control`. Below it: the core's nouns. No I/O; every fault is a `Refused`, which a client is told.
"""

import json
from collections.abc import Sequence
from typing import cast

from bridge.core.model import JsonObject, JsonValue, SessionId

LINE_LIMIT_BYTES = 1024 * 1024  # a place for every session of a long history; a respond takes a few hundred bytes


class Refused(Exception):
    """What a client is told instead of a result; `request_id` where only that of a broken request could be read."""

    def __init__(
        self,
        number: int,
        code: str,
        sentence: str,
        *,
        offered: Sequence[str] | None = None,
        request_id: str | int | None = None,
    ) -> None:
        super().__init__(sentence)
        self.request_id = request_id
        self._error: dict[str, JsonValue] = {"code": number, "message": sentence, "data": {"code": code}}
        if offered is not None:
            self._error["data"] = {"code": code, "offered": list(offered)}

    def to_json(self) -> dict[str, JsonValue]:
        """The `error` member of a JSON-RPC response."""
        return self._error


def _invalid_params(sentence: str) -> Refused:
    return Refused(-32602, "invalid_params", sentence)


class Params:
    """The parameters of one call, taken one by one; what is left over at the end is an error."""

    def __init__(self, raw: object) -> None:
        if not isinstance(raw, dict):
            raise _invalid_params("The parameters must be an object.")
        self._left = dict(cast("dict[str, object]", raw))

    def take_text(self, key: str) -> str:
        """A text that must be there."""
        value = self._left.pop(key, None)
        if not isinstance(value, str):
            raise _invalid_params(f"{key} is needed and must be a text.")
        return value

    def take_session(self) -> SessionId | None:
        """The session, where one is named."""
        if self._left.get("session_id") is None:
            self._left.pop("session_id", None)
            return None
        return SessionId(self.take_text("session_id"))

    def take_revision(self) -> int | None:
        """The revision, where one is named."""
        value = self._left.pop("revision", None)
        if value is None or _is_count(value):
            return cast("int | None", value)
        raise _invalid_params("revision must be a whole number.")

    def take_after(self, session_id: SessionId | None) -> dict[SessionId, int] | None:
        """`after` belongs to one session: a number beside its id, or an object of numbers without one."""
        value = self._left.pop("after", None)
        if value is None:
            return None
        if session_id is not None and _is_count(value):
            return {session_id: cast("int", value)}
        if session_id is None and isinstance(value, dict):
            places = cast("dict[str, object]", value)
            if all(_is_count(place) for place in places.values()):
                return cast("dict[SessionId, int]", places)
        raise _invalid_params("after must be a whole number beside a session_id, or an object, session to number.")

    def finish(self) -> None:
        """Refuse what nobody took."""
        if self._left:
            raise _invalid_params("There is a parameter that this method does not have.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def to_line(message: JsonObject) -> bytes:
    """A JSON-RPC message as the bytes of one line."""
    # ASCII only: ids go back code point for code point, lone surrogates too (requirements.md, AO-09).
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes | None) -> tuple[str | int, str, object]:
    """Id, method and parameters of a request."""
    if line is None:
        raise Refused(-32700, "parse_error", f"The line is longer than {LINE_LIMIT_BYTES} bytes.")
    try:
        message: object = json.loads(line)
    except (ValueError, RecursionError):
        raise Refused(-32700, "parse_error", "The line is not JSON.") from None
    if not isinstance(message, dict):
        raise Refused(-32600, "invalid_request", "A request is a JSON object on a line of its own.")
    fields = cast("dict[str, object]", message)
    request_id, method = fields.get("id"), fields.get("method")
    if not isinstance(request_id, str | int) or isinstance(request_id, bool):
        raise Refused(-32600, "invalid_request", "A request needs an id, a text or a whole number.")
    if fields.get("jsonrpc") != "2.0" or not isinstance(method, str):
        sentence = 'A request says "jsonrpc": "2.0" and names its method.'
        raise Refused(-32600, "invalid_request", sentence, request_id=request_id)
    return request_id, method, fields.get("params", {})
