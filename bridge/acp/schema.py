"""The shapes of ACP v1, read as openly as real agents write them, and the merging of tool calls (acp.md, 3 to 7).

Above it: translate, handshake and session. Below it: the model. A reader takes what it can use and leaves the rest alone; None means
that what is required is not there. It keeps raw objects and refuses to know what they mean.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bridge.core.model import JsonValue

TOOL_CALLS_LIMIT_COUNT = 1_000  # remembered per connection; a request asks about one of the last few
TOOL_CALLS_LIMIT_BYTES = 64 * 1024 * 1024  # of their lines; two of the longest lines that are taken

_TOOL_CALL_FIELDS = frozenset(
    {"toolCallId", "title", "name", "kind", "status", "content", "locations", "rawInput", "rawOutput", "_meta"}
)
_FINAL_STATUSES = frozenset({"completed", "failed"})

ToolCall: TypeAlias = dict[str, JsonValue]
ToolCallKey: TypeAlias = tuple[str, str]  # the harness's session id and the tool call's
_Object: TypeAlias = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """The params of `session/request_permission`, as they came."""

    key: ToolCallKey
    tool_call: ToolCall
    options: Sequence[JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallUpdate:
    """A `tool_call` or `tool_call_update`, as it came."""

    key: ToolCallKey
    fields: ToolCall
    first: bool  # whether it announces the tool call

    @property
    def final(self) -> bool:
        """Whether it says that the tool call is over: it then asks nothing new (requirements.md, AC-19)."""
        return _text(self.fields.get("status")) in _FINAL_STATUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A piece of the agent's own words."""

    session_id: str
    text: str
    message_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChanged:
    """The agent changed its session's mode."""

    session_id: str
    mode: str


Update: TypeAlias = ToolCallUpdate | Said | ModeChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The answer to `initialize`. `protocol_version` is None unless it is an integer."""

    protocol_version: int | None
    name: str | None
    auth_methods: tuple[str, ...]
    can_close: bool
    can_delete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """The modes that a session offers. `config_id` names the config option that sets them, None: `session/set_mode`."""

    offered: tuple[str, ...]
    current: str | None
    config_id: str | None


def read_permission_request(params: _Object) -> PermissionRequest | None:
    """The request, or None where a required part is missing or of the wrong type (requirements.md, AC-03)."""
    session_id, tool_call, options = params.get("sessionId"), params.get("toolCall"), params.get("options")
    if not isinstance(session_id, str) or not isinstance(tool_call, dict) or not isinstance(options, list):
        return None
    tool_call_id = tool_call.get("toolCallId")
    if not isinstance(tool_call_id, str) or not all(isinstance(option, dict) for option in options):
        return None
    return PermissionRequest(key=(session_id, tool_call_id), tool_call=tool_call, options=options)


def read_update(params: _Object) -> Update | None:
    """What a `session/update` tells the bridge, or None for all that tells it nothing (acp.md, section 7)."""
    session_id, update = params.get("sessionId"), params.get("update")
    if not isinstance(session_id, str) or not isinstance(update, dict):
        return None
    match update:
        case {"sessionUpdate": "tool_call" | "tool_call_update" as name, "toolCallId": str(tool_call_id)}:
            fields = {key: value for key, value in update.items() if key in _TOOL_CALL_FIELDS}
            return ToolCallUpdate(key=(session_id, tool_call_id), fields=fields, first=name == "tool_call")
        case {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(text)}}:
            return Said(session_id=session_id, text=text, message_id=_text(update.get("messageId")))
        case {"sessionUpdate": "current_mode_update", "currentModeId": str(mode)}:
            return ModeChanged(session_id=session_id, mode=mode)
        case _:
            return None


def read_greeting(result: JsonValue) -> Greeting:
    """The answer to `initialize`."""
    fields = _object(result)
    version = fields.get("protocolVersion")
    session = _object(_object(fields.get("agentCapabilities")).get("sessionCapabilities"))
    return Greeting(
        protocol_version=version if type(version) is int else None,
        name=_text(_object(fields.get("agentInfo")).get("name")),
        auth_methods=_ids(fields.get("authMethods"), "id"),
        can_close=isinstance(session.get("close"), dict),
        can_delete=isinstance(session.get("delete"), dict),
    )


def read_session_id(result: JsonValue) -> str | None:
    """The harness's session id from the answer to `session/new`."""
    return _text(_object(result).get("sessionId"))


def read_modes(result: JsonValue) -> tuple[Modes, ...]:
    """The ways to set a mode that the answer to `session/new` (or `session/set_config_option`) offers, best first."""
    fields = _object(result)
    found: list[Modes] = []
    modes = _object(fields.get("modes"))
    if offered := _ids(modes.get("availableModes"), "id"):
        found.append(Modes(offered=offered, current=_text(modes.get("currentModeId")), config_id=None))
    for option in map(_object, _list(fields.get("configOptions"))):
        config_id = _text(option.get("id"))
        if config_id is not None and "mode" in (option.get("category"), config_id):
            values = _ids(_flat(_list(option.get("options"))), "value")
            found.append(Modes(offered=values, current=_text(option.get("currentValue")), config_id=config_id))
    return tuple(found)


def read_stop_reason(result: JsonValue) -> str | None:
    """Why the turn ended, from the answer to `session/prompt`."""
    return _text(_object(result).get("stopReason"))


def merge(earlier: _Object, later: _Object) -> ToolCall:
    """`later` over `earlier`: what is absent, null or empty keeps the earlier value, all else replaces it whole."""
    return {**earlier, **{key: value for key, value in later.items() if not _empty(value) or key not in earlier}}


class ToolCalls:
    """What the updates said of each tool call so far; the oldest is forgotten first, never one in `held`."""

    def __init__(
        self,
        held: Container[ToolCallKey],
        *,
        most: int = TOOL_CALLS_LIMIT_COUNT,
        most_bytes: int = TOOL_CALLS_LIMIT_BYTES,
    ) -> None:
        self._held = held
        self._most = most
        self._most_bytes = most_bytes
        self._known: dict[ToolCallKey, tuple[ToolCall, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: ToolCallKey) -> ToolCall:
        """The merged tool call; empty when nothing is known of it."""
        return self._known.get(key, ({}, 0))[0]

    def apply(self, update: ToolCallUpdate, size: int) -> None:
        """Merge an update, whose line had `size` bytes, into what is known."""
        earlier, weight = self._known.pop(update.key, ({}, 0))
        self._known[update.key] = merge(earlier, update.fields), max(weight, size)
        self._bytes += max(weight, size) - weight
        while len(self._known) > self._most or self._bytes > self._most_bytes:
            oldest = next((key for key in self._known if key not in self._held), None)
            if oldest is None:
                return
            self._bytes -= self._known.pop(oldest)[1]


def _empty(value: JsonValue) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _object(value: JsonValue) -> _Object:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _ids(value: JsonValue, member: str) -> tuple[str, ...]:
    return tuple(found for item in _list(value) if (found := _text(_object(item).get(member))) is not None)


def _flat(options: list[JsonValue]) -> list[JsonValue]:
    """The values of a config option, which may be given in groups."""
    return [
        inner
        for option in options
        for inner in (_list(_object(option).get("options")) if "group" in _object(option) else [option])
    ]
