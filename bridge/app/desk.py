"""The running bridge as the control socket sees it: it implements `ops.control.ControlTarget`.

Above it: service. Below it: the relay and the ledger. It words nothing and decides nothing: an answer given here runs through the
same rules and the same race as one given in the room.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

from anyio.abc import ObjectReceiveStream

from bridge.app.questions import Questions
from bridge.core.broker import waiting_of
from bridge.core.changes import Record
from bridge.core.errors import InvalidAgent, SessionNotFound
from bridge.core.events import AnsweredLocally, SessionDeleted
from bridge.core.model import AgentName, JsonObject, JsonValue, Millis, Reason, Request, RequestId, SessionId
from bridge.core.ports import Ledger
from bridge.relay import Relay


class Desk:
    """What `run` offers on this machine. `harness_uids` tells which users harnesses run as, at this moment.

    `no_encryption`: why there is none, else empty. `times_limited`: how often the homeserver has asked for patience.
    """

    def __init__(
        self,
        relay: Relay,
        ledger: Ledger,
        *,
        agents: tuple[AgentName, ...],
        harness_uids: Callable[[], frozenset[int]],
        questions: Questions,
        no_encryption: str,
        times_limited: Callable[[], int],
    ) -> None:
        self._relay, self._ledger, self._agents, self._harness_uids = relay, ledger, agents, harness_uids
        self._questions, self._no_encryption, self._times_limited = questions, no_encryption, times_limited
        self._tickets = itertools.count(1)

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
        """Answer for this machine's user: None once the harness has it, else why the request does not wait."""
        return await self._relay.answer(
            AnsweredLocally(
                ticket=next(self._tickets),
                session_id=session_id,
                request_id=request_id,
                option_id=option_id,
                by=by,
                trusted=uid not in self._harness_uids(),
                revision=revision,
            )
        )

    def list_pending(self) -> list[JsonObject]:
        """What waits, agent by agent, oldest first."""
        state = self._relay.state
        return [_show(request) for agent in self._agents for request in waiting_of(state, agent)]

    async def read_history(self, after: dict[SessionId, int] | None, session_id: SessionId | None) -> list[Record]:
        """The records of one session or of all."""
        return await self._ledger.history(after, session_id=session_id)

    def subscribe(self) -> AbstractAsyncContextManager[ObjectReceiveStream[Record]]:
        """Every record that is stored from now on."""
        return self._relay.subscribe()

    def status(self) -> JsonObject:
        """What each agent does and how many of its requests wait."""
        agents: list[JsonValue] = [
            {
                "agent": line.agent,
                "session_id": line.session_id,
                "turn_running": line.turn_running,
                "queued": line.queued,
                "pending": len(line.waiting),
            }
            for line in self._relay.status()
        ]
        why = self._no_encryption or None
        return {
            "agents": agents,
            "encryption": {"available": why is None, "why": why},
            "times_limited": self._times_limited(),
        }

    async def delete_session(self, session_id: SessionId) -> None:
        """End a session: what waits in it is answered `cancelled`."""
        if session_id not in self._relay.state.sessions:
            raise SessionNotFound("There is no such session.")
        self._relay.deliver(SessionDeleted(session_id=session_id))

    async def ask(self, agent: AgentName) -> JsonObject:
        """A harmless question in this agent's room, and what became of it."""
        if agent not in self._agents:
            raise InvalidAgent("There is no agent of this name.")
        return (await self._questions.ask(agent)).to_json()


def _show(request: Request) -> JsonObject:
    return {
        "request_id": request.request_id,
        "session_id": request.session_id,
        "agent": request.agent,
        "number": request.number,
        "title": request.description.title,
        "options": [{"optionId": o.option_id, "name": o.line} for o in request.options],
        "room_id": request.room,
        "event_id": request.event_id,
        "asked_at": write_instant(request.asked_at),
    }


def write_instant(at: Millis) -> str:
    """RFC 3339 in UTC with milliseconds, as the history writes it."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
