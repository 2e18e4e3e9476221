"""A harmless question in a room, to see that an answer comes back: nothing is run, whatever is answered.

Above it: service and `check --ask`. Below it: the relay's events and the real harnesses, which it stands in front of
(`core.ports.Agents`). A question is a permission request like any other: posted, answered, recorded and ended by the same
rules; only its "harness" is this module, so that its outcome ends here.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace

import anyio
from anyio.abc import ObjectReceiveStream

from bridge.core.changes import Record
from bridge.core.events import Asked, Delivered, Event, SessionDeleted
from bridge.core.model import AgentName, CallRef, JsonObject, JsonValue, Outcome, SessionId
from bridge.core.options import read_options
from bridge.core.ports import Agents
from bridge.core.subject import describe

QUESTION_LIMIT_S = 600.0  # who set this up is at the keyboard; somebody else may first have to find their phone
TITLE = "A test of the bridge: can you answer this?"
DETAIL = "Nothing is run, whatever you choose."
TOOL_CALL_ID = "bridge-question"
OPTIONS: list[JsonValue] = [
    {"optionId": "works", "name": "Yes, I can see this", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a question. `event_id` None: it never reached the room; `option` None: nobody chose one."""

    event_id: str | None = None
    option: str | None = None
    by: str | None = None
    via: str | None = None
    device_id: str | None = None
    waited_ms: int | None = None
    ending: str | None = None  # None: no answer in time

    def to_json(self) -> dict[str, JsonValue]:
        """The same for the control socket and for `ops.table`."""
        return asdict(self)


STOPPED = Reply(ending="stopped")
"""Of a question that its own asker ended by a signal: whether it was in the room by then, nobody has to know."""


class Questions:
    """The harnesses, and beside them the questions that the bridge asks itself."""

    def __init__(
        self,
        agents: Agents,
        *,
        deliver: Callable[[Event], None],
        subscribe: Callable[[], AbstractAsyncContextManager[ObjectReceiveStream[Record]]],
        new_session_id: Callable[[], SessionId],
        new_nonce: Callable[[], str],
    ) -> None:
        self._agents, self._deliver, self._subscribe = agents, deliver, subscribe
        self._new_session_id, self._new_nonce = new_session_id, new_nonce
        self._sessions: set[SessionId] = set()
        self._calls: set[CallRef] = set()
        self._next_call = -1  # harnesses count up from 0

    async def ask(self, agent: AgentName, limit_s: float = QUESTION_LIMIT_S) -> Reply:
        """Ask in the agent's room, and wait for the end of it; after `limit_s` the question is taken back."""
        session_id, call = self._new_session_id(), CallRef(self._next_call)
        self._next_call -= 1
        self._sessions.add(session_id)
        self._calls.add(call)
        try:
            async with self._subscribe() as records:
                self._deliver(self._make_asked(agent, session_id, call))
                with anyio.move_on_after(limit_s):
                    return await _read_reply(records, session_id)
                return Reply()
        finally:
            self._deliver(SessionDeleted(session_id=session_id))

    def _make_asked(self, agent: AgentName, session_id: SessionId, call: CallRef) -> Asked:
        detail: JsonValue = {"type": "content", "content": {"type": "text", "text": DETAIL}}
        tool_call: JsonObject = {"toolCallId": TOOL_CALL_ID, "title": TITLE, "kind": "other", "content": [detail]}
        options = read_options(OPTIONS)
        record: JsonObject = {"toolCall": dict(tool_call), "options": OPTIONS}
        return Asked(
            agent=agent,
            session_id=session_id,
            call=call,
            tool_call_id=TOOL_CALL_ID,
            description=describe(tool_call, cwd="/"),
            options=options.options,
            misfit=options.misfit,
            record=record,
            raw=json.dumps(record),
            nonce=self._new_nonce(),
        )

    # --------------------------------------------------------------------------------------------- core.ports.Agents

    def respond(self, agent: AgentName, call: CallRef, outcome: Outcome) -> None:
        """Take the outcome of a question as written; hand any other to its harness."""
        if call in self._calls:
            self._calls.discard(call)
            self._deliver(Delivered(agent=agent, call=call))
        else:
            self._agents.respond(agent, call, outcome)

    def prompt(self, agent: AgentName, session_id: SessionId, text: str) -> None:
        """A question takes no prompts."""
        if session_id not in self._sessions:
            self._agents.prompt(agent, session_id, text)

    def cancel(self, agent: AgentName, session_id: SessionId) -> None:
        """A question has no turn."""
        if session_id not in self._sessions:
            self._agents.cancel(agent, session_id)

    def close(self, agent: AgentName, session_id: SessionId) -> None:
        """The session of a question ends with it."""
        if session_id in self._sessions:
            self._sessions.discard(session_id)
        else:
            self._agents.close(agent, session_id)


async def _read_reply(records: ObjectReceiveStream[Record], session_id: SessionId) -> Reply:
    """What the history says of the one request of this session, up to its end."""
    reply = Reply()
    async for record in records:
        if record.session_id != session_id:
            continue
        fields = record.fields
        match record.type:
            case "permission_posted":
                reply = replace(reply, event_id=_text(fields, "event_id"))
            case "permission_response" if fields.get("status") == "accepted":
                outcome, waited = fields.get("outcome"), fields.get("waited_ms")
                reply = replace(
                    reply,
                    option=_text(outcome, "optionId") if isinstance(outcome, dict) else None,
                    by=_text(fields, "by"),
                    via=_text(fields, "via"),
                    device_id=_text(fields, "device_id"),
                    waited_ms=waited if isinstance(waited, int) else None,
                )
            case "permission_ended":
                return replace(reply, ending=_text(fields, "ending"))
            case _:
                pass
    return reply


def _text(fields: Mapping[str, JsonValue], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None
