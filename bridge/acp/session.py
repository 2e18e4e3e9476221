"""What the agent's messages mean while its session lives, and how ours are said (acp.md, sections 4 to 8).

Above it: agent, which owns the process. Below it: connection, schema, translate. It keeps what waits: requests by the
bridge's own number, the tool calls they ask about, the words of the turn. It decides nothing: every request becomes an
event of the core, and only the core's outcome is sent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from bridge.acp.connection import Connection
from bridge.acp.handshake import OpenedSession, note_mode
from bridge.acp.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Call, Notice, Reply
from bridge.acp.schema import (
    ModeChanged,
    Said,
    ToolCall,
    ToolCallKey,
    ToolCalls,
    ToolCallUpdate,
    merge,
    read_permission_request,
    read_stop_reason,
    read_update,
)
from bridge.acp.translate import (
    UNSATISFIED_CODE,
    UNSATISFIED_DATA,
    TurnText,
    make_asked,
    make_result,
    shows_the_same,
)
from bridge.core.events import Delivered, NotDelivered, ToolCallChanged, TurnEnded, Withdrawn
from bridge.core.model import AgentName, CallRef, Cancelled, JsonValue, Outcome, SessionId
from bridge.core.ports import Deliver
from bridge.core.subject import describe

STOP_REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A permission request without an answer, and the tool call as it was shown last."""

    call: Call
    key: ToolCallKey
    shown: ToolCall


class Session:
    """One agent's session: the `Handler` of its connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        agent: AgentName,
        session_id: SessionId,
        cwd: str,
        deliver: Deliver,
        numbers: Iterator[int],
        new_nonce: Callable[[], str],
    ) -> None:
        self.session_id = session_id
        self._connection = connection
        self._agent = agent
        self._cwd = cwd
        self._deliver = deliver
        self._numbers = numbers
        self._new_nonce = new_nonce
        self._opened: OpenedSession | None = None
        self._early: list[Call] = []
        self._waiting: dict[CallRef, _Waiting] = {}
        self._refs: dict[Call, CallRef] = {}
        self._asked_about: dict[ToolCallKey, set[CallRef]] = {}
        self._tool_calls = ToolCalls(self._asked_about)
        self._turn_text = TurnText()
        self._cancelling = False
        self._log = log.bind(agent=agent, session_id=session_id)

    def begin(self, opened: OpenedSession) -> None:
        """From here on the session asks and may be told things; what the agent asked before is asked now."""
        self._opened = opened
        early, self._early = self._early, []
        for call in early:
            self._ask(call)

    # ------------------------------------------------------------------------------------------------ from the core

    def respond(self, ref: CallRef, outcome: Outcome) -> None:
        """Answer a request, once; `Delivered` or `NotDelivered` follows. A second answer is never sent."""
        waiting = self._waiting.pop(ref, None)
        if waiting is None:
            self._log.error("permission.not_waiting", call=ref)
            return
        del self._refs[waiting.call]
        self._asked_about[waiting.key].remove(ref)
        if not self._asked_about[waiting.key]:
            del self._asked_about[waiting.key]

        def tell(written: bool) -> None:
            made = Delivered if written else NotDelivered
            self._deliver(made(agent=self._agent, call=ref))

        result = make_result(outcome)
        if result is None:
            self._connection.fail(waiting.call, UNSATISFIED_CODE, UNSATISFIED_DATA, tell)
        else:
            self._connection.answer(waiting.call, result, tell)

    def prompt(self, text: str) -> None:
        """Begin a turn; `TurnEnded` follows unless the agent goes first."""
        self._turn_text = TurnText()
        self._cancelling = False
        prompt: list[JsonValue] = [{"type": "text", "text": text}]
        self._connection.request(
            "session/prompt", {"sessionId": self._harness_session_id, "prompt": prompt}, self._end_turn
        )

    def cancel(self) -> None:
        """End the running turn."""
        self._cancelling = True
        self._connection.notify("session/cancel", {"sessionId": self._harness_session_id})

    def close(self) -> None:
        """Close the session in the way that the agent offers, if it does."""
        greeting = self._open.greeting
        method = "session/close" if greeting.can_close else "session/delete" if greeting.can_delete else None
        if method is not None:
            self._connection.request(method, {"sessionId": self._harness_session_id}, lambda _reply: None)

    # ----------------------------------------------------------------------------------------------- from the agent

    def on_call(self, call: Call) -> None:
        """A request: permission is the one that is built, everything else is answered -32601 (AC-15)."""
        if call.method != "session/request_permission":
            self._connection.fail(call, METHOD_NOT_FOUND, {"method": call.method})
            return
        if self._opened is None:
            self._early.append(call)  # nobody has been told of the session yet
        else:
            self._ask(call)

    def _ask(self, call: Call) -> None:
        request = read_permission_request(call.params)
        if request is None:
            self._log.warning("permission.invalid")
            self._connection.fail(call, INVALID_PARAMS)
            return
        ref = CallRef(next(self._numbers))
        tool_call = merge(self._tool_calls.find(request.key), request.tool_call)
        asked, dropped = make_asked(
            request,
            call.params,
            tool_call=tool_call,
            cwd=self._cwd,
            agent=self._agent,
            session_id=self.session_id,
            call=ref,
            nonce=self._new_nonce(),
        )
        if dropped:
            self._log.warning("permission.options_dropped", call=ref, dropped=dropped)
        self._waiting[ref] = _Waiting(call, request.key, tool_call)
        self._refs[call] = ref
        self._asked_about.setdefault(request.key, set()).add(ref)
        self._deliver(asked)

    def on_notice(self, notice: Notice) -> None:
        """A notification; those that mean nothing to the bridge are ignored."""
        if notice.method == "session/update":
            self._on_update(notice)
        elif notice.method == "$/cancel_request":
            call = self._connection.find(notice.params.get("requestId"))
            if call in self._refs:
                self._deliver(Withdrawn(agent=self._agent, call=self._refs[call]))
            elif call in self._early:
                self._early.remove(call)
                self._connection.answer(call, make_result(Cancelled()))

    def _on_update(self, notice: Notice) -> None:
        match read_update(notice.params):
            case ToolCallUpdate() as update:
                self._tool_calls.apply(update, notice.size)
                if update.first and self._is_own(update.key[0]):
                    self._turn_text.interrupt()
                if not update.final:
                    self._show_change(update)
            case Said() as said:
                if self._is_own(said.session_id):
                    self._turn_text.add(said)
            case ModeChanged() as changed:
                if self._is_own(changed.session_id) and note_mode(changed.mode, ()):
                    self._log.warning("agent.mode_skips_questions")
            case None:
                pass

    def _show_change(self, update: ToolCallUpdate) -> None:
        """Each request that asks about this tool call has its own view of it: what it said itself counts too."""
        for ref in sorted(self._asked_about.get(update.key, ())):
            waiting = self._waiting[ref]
            tool_call = merge(waiting.shown, update.fields)
            if shows_the_same(waiting.shown, tool_call):
                continue
            self._waiting[ref] = _Waiting(waiting.call, waiting.key, tool_call)
            self._deliver(
                ToolCallChanged(
                    session_id=self.session_id,
                    tool_call_id=update.key[1],
                    description=describe(tool_call, cwd=self._cwd),
                    call=ref,
                )
            )

    def _end_turn(self, reply: Reply | None) -> None:
        if reply is None:  # the agent is gone, which is told by `AgentGone`
            return
        reason, error = read_stop_reason(reply.result), None
        if reply.failure is not None:
            # hermes-agent answers a cancelled prompt with an error (acp.md, section 8).
            reason = "cancelled" if self._cancelling else "error"
            error = None if self._cancelling else f"The agent ended the turn with error {reply.failure.code}."
            self._log.info("turn.failed", code=reply.failure.code)
        elif reason not in STOP_REASONS:
            reason = "unknown"
        self._deliver(
            TurnEnded(
                agent=self._agent,
                session_id=self.session_id,
                stop_reason=reason,
                text=str(self._turn_text),
                error=error,
            )
        )
        self._turn_text = TurnText()

    def _is_own(self, harness_session_id: str) -> bool:
        return self._opened is not None and harness_session_id == self._opened.harness_session_id

    @property
    def _open(self) -> OpenedSession:
        if self._opened is None:
            raise AssertionError("unreachable")
        return self._opened

    @property
    def _harness_session_id(self) -> str:
        return self._open.harness_session_id
