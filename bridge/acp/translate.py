"""ACP's words into the core's, and the core's outcome into ACP's (acp.md, sections 5 to 8).

Above it: the session. Below it: schema, jsonrpc, and the core's own readers of options and tool calls. Values in, values
out; it refuses to know when anything is sent.
"""

import json
from collections.abc import Mapping

from bridge.acp.jsonrpc import INTERNAL_ERROR, JsonDict
from bridge.acp.schema import PermissionRequest, Said, ToolCall
from bridge.core.events import Asked
from bridge.core.model import AgentName, CallRef, Cancelled, JsonValue, Outcome, Selected, SessionId, Unsatisfied
from bridge.core.options import read_options
from bridge.core.subject import describe

TURN_TEXT_LIMIT_CHARS = 1024 * 1024  # far more than a room can take; the rest of a longer turn is counted

_RECORDED = ("toolCall", "options", "_meta")  # AO-11: exact, flat, and without the harness's session id
_SHOWN = ("title", "name", "kind", "content", "locations", "rawInput")  # what a description is made of


def make_asked(
    request: PermissionRequest,
    params: Mapping[str, JsonValue],
    *,
    tool_call: ToolCall,
    cwd: str,
    agent: AgentName,
    session_id: SessionId,
    call: CallRef,
    nonce: str,
) -> tuple[Asked, int]:
    """The event for a permission request, and how many options were dropped; `tool_call` is the merged one.

    `raw` is the params as JSON of the same values; a number that is kept as `NumberText` is a string there.
    """
    options = read_options(request.options)
    asked = Asked(
        agent=agent,
        session_id=session_id,
        call=call,
        tool_call_id=request.key[1],
        description=describe(tool_call, cwd=cwd),
        options=options.options,
        misfit=options.misfit,
        record={key: params[key] for key in _RECORDED if key in params},
        raw=json.dumps(params, allow_nan=False, separators=(",", ":")),
        nonce=nonce,
    )
    return asked, options.dropped


def shows_the_same(earlier: ToolCall, later: ToolCall) -> bool:
    """Whether nothing that people are shown differs, so that no new description is needed."""
    return all(earlier.get(field) == later.get(field) for field in _SHOWN)


def make_result(outcome: Outcome) -> JsonDict | None:
    """The result of `session/request_permission`; None for an outcome that is an error."""
    match outcome:
        case Selected(option_id):
            return {"outcome": {"outcome": "selected", "optionId": option_id}}
        case Cancelled():
            return {"outcome": {"outcome": "cancelled"}}
        case Unsatisfied():
            return None


UNSATISFIED_CODE = INTERNAL_ERROR
UNSATISFIED_DATA: Mapping[str, JsonValue] = {"code": "permission_policy_unsatisfied"}  # AC-13


class TurnText:
    """What the agent says in one turn, in order and bounded."""

    def __init__(self, limit: int = TURN_TEXT_LIMIT_CHARS) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._length = 0
        self._left_out = 0
        self._message_id: str | None = None
        self._broken = False

    def add(self, said: Said) -> None:
        """Take the next piece; another message begins a new paragraph."""
        if said.message_id != self._message_id:
            self.interrupt()
        self._message_id = said.message_id
        text = f"\n\n{said.text}" if self._broken and self._length else said.text
        self._broken = False
        kept = text[: self._limit - self._length]
        if kept:
            self._parts.append(kept)
        self._length += len(kept)
        self._left_out += len(text) - len(kept)

    def interrupt(self) -> None:
        """The agent did something; what it says next is a new paragraph."""
        self._broken = True

    def __str__(self) -> str:
        text = "".join(self._parts)
        if self._left_out:
            text += f"\n\n[{self._left_out} more characters of this turn were left out.]"
        return text
