"""A scripted ACP agent on stdio, the same every time: each prompt asks once for permission and says what came back.

Above it: nothing in this package; `play` and tests start it as a program (`python -m bridge.demo.agent`). Below it: the
standard library. It refuses to know the rest of the bridge, Matrix, and any model.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

OUTCOMES_VARIABLE = "ACP_DEMO_OUTCOMES"
"""Names the file to which each outcome is appended, one JSON object a line."""

COMMAND = "bun test --coverage"
TITLE = "Run the test suite"
CLOSING_WORDS = "This demo runs no command."
"""Ends the last message of every turn, so that a watcher knows that nothing follows."""

OPTIONS = (
    {"optionId": "allow_once", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "allow_always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "reject_once", "name": "Reject", "kind": "reject_once"},
)

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

Json = dict[str, Any]


class Agent:
    """The agent's side of one connection: takes a parsed message, writes messages, never waits."""

    def __init__(self, write: Callable[[Json], None], note_outcome: Callable[[Json], None]) -> None:
        self._write = write
        self._note_outcome = note_outcome
        self._sessions: set[str] = set()
        self._asked = 0
        self._turn: _Turn | None = None

    def take(self, message: Json) -> None:
        """One message of the client: a request, a notification, or the answer to the permission request."""
        match message:
            case {"method": "session/cancel"}:
                if self._turn is not None:
                    self._turn.cancelled = True
            case {"method": str(method), "id": identifier}:
                self._answer_request(method, identifier, _object(message.get("params")))
            case {"method": _}:
                pass
            case {"id": identifier} if self._turn is not None and identifier == self._turn.asked:
                self._end_turn(self._turn, _object(message.get("result")))
            case _:
                pass

    def _answer_request(self, method: str, identifier: Any, params: Json) -> None:  # noqa: ANN401 - any JSON-RPC id
        match method:
            case "initialize":
                info = {"name": "demo-agent", "title": "Demo agent", "version": "1"}
                self._reply(identifier, {"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": info})
            case "session/new":
                session = f"demo-{len(self._sessions) + 1}"
                self._sessions.add(session)
                self._reply(identifier, {"sessionId": session})
            case "session/prompt" if params.get("sessionId") not in self._sessions:
                self._refuse(identifier, INVALID_PARAMS, "no such session")
            case "session/prompt" if self._turn is not None:
                self._refuse(identifier, INVALID_REQUEST, "a turn is running")
            case "session/prompt":
                self._begin_turn(identifier, params["sessionId"])
            case _:
                self._refuse(identifier, METHOD_NOT_FOUND, "no such method")

    def _begin_turn(self, identifier: Any, session: str) -> None:  # noqa: ANN401 - any JSON-RPC id
        self._asked += 1
        self._turn = turn = _Turn(identifier, session, asked=self._asked)
        call: Json = {"toolCallId": f"call-{self._asked}", "title": TITLE, "kind": "execute", "status": "pending"}
        call["rawInput"] = {"command": COMMAND}
        self._update(turn, {"sessionUpdate": "tool_call", **call})
        params = {"sessionId": session, "toolCall": call, "options": list(OPTIONS)}
        self._write(
            {"jsonrpc": "2.0", "id": turn.asked, "method": "session/request_permission", "params": params},
        )

    def _end_turn(self, turn: "_Turn", result: Json) -> None:
        outcome = _read_outcome(result)
        self._note_outcome(outcome)
        allowed = str(outcome.get("optionId", "")).startswith("allow")
        status = "completed" if allowed else "failed"
        self._update(turn, {"sessionUpdate": "tool_call_update", "toolCallId": f"call-{turn.asked}", "status": status})
        if not turn.cancelled:
            said = f"I was told {_name(outcome)}. {CLOSING_WORDS}"
            self._update(turn, {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}})
        self._turn = None
        self._reply(turn.prompted, {"stopReason": "cancelled" if turn.cancelled else "end_turn"})

    def _update(self, turn: "_Turn", update: Json) -> None:
        params = {"sessionId": turn.session, "update": update}
        self._write({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def _reply(self, identifier: Any, result: Json) -> None:  # noqa: ANN401 - any JSON-RPC id
        self._write({"jsonrpc": "2.0", "id": identifier, "result": result})

    def _refuse(self, identifier: Any, code: int, why: str) -> None:  # noqa: ANN401 - any JSON-RPC id
        self._write({"jsonrpc": "2.0", "id": identifier, "error": {"code": code, "message": why}})


class _Turn:
    """A prompt that waits for its permission."""

    __slots__ = ("asked", "cancelled", "prompted", "session")

    def __init__(self, prompted: Any, session: str, *, asked: int) -> None:  # noqa: ANN401 - any JSON-RPC id
        self.prompted = prompted
        self.session = session
        self.asked = asked
        self.cancelled = False


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _read_outcome(result: Json) -> Json:
    """The outcome in the order and with the members of the protocol; an error or anything else is a `cancelled`."""
    outcome = _object(result.get("outcome"))
    if outcome.get("outcome") == "selected":
        return {"outcome": "selected", "optionId": outcome.get("optionId")}
    return {"outcome": "cancelled"}


def _name(outcome: Json) -> str:
    names = [option["name"] for option in OPTIONS if option["optionId"] == outcome.get("optionId")]
    return f"“{names[0]}” (`{outcome['optionId']}`)" if names else "nothing, the request was cancelled"


def serve(lines: Iterable[str], write_line: Callable[[str], None], outcomes: Path | None) -> None:
    """Serve until the client closes its end. A line that is no JSON object is skipped."""

    def write(message: Json) -> None:
        write_line(json.dumps(message) + "\n")

    def note_outcome(outcome: Json) -> None:
        if outcomes is not None:
            with outcomes.open("a", encoding="utf-8") as out:
                out.write(json.dumps(outcome, separators=(",", ":")) + "\n")

    agent = Agent(write, note_outcome)
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        agent.take(_object(message))


def main() -> None:
    """Speak ACP on stdin and stdout."""

    def write_line(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    outcomes = os.environ.get(OUTCOMES_VARIABLE)
    serve(sys.stdin, write_line, Path(outcomes) if outcomes else None)


if __name__ == "__main__":
    main()
