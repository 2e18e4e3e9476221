"""A bridge for the control socket, without agents and rooms: it holds two requests and a history in memory."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import ObjectReceiveStream
from anyio.streams.memory import MemoryObjectSendStream

from bridge.core.changes import Record
from bridge.core.errors import (
    BridgeError,
    InvalidAgent,
    InvalidOption,
    InvalidRevision,
    LocalAnswersOff,
    SessionNotFound,
)
from bridge.core.model import AgentName, JsonObject, JsonValue, Reason, RequestId, SessionId

SESSION = SessionId("acps_00000000000000aa")
OTHER = SessionId("acps_00000000000000bb")
REQUEST = RequestId(f"{SESSION}:12")
OFFERED = ("allow_once", "reject_once", "Ünï / 1 ", "a\udfff")
BACKLOG = 100  # records that a slow reader may fall behind


def make_record(sequence: int, *, session: SessionId = SESSION, agent: str = "claude") -> Record:
    return Record(
        sequence=sequence,
        session_id=session,
        timestamp="2026-11-07T10:29:58.114Z",
        type="session_started",
        fields={"agent": agent},
    )


@dataclass(slots=True)
class FakeControlTarget:
    records: list[Record] = field(default_factory=list[Record])
    decided: dict[RequestId, str] = field(default_factory=dict[RequestId, str])
    calls: list[tuple[str, int, int | None]] = field(default_factory=list[tuple[str, int, int | None]])
    deleted: list[SessionId] = field(default_factory=list[SessionId])
    readers: list[MemoryObjectSendStream[Record]] = field(default_factory=list[MemoryObjectSendStream[Record]])
    local_answers: bool = True
    reply: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    fault: BridgeError | None = None
    reading: anyio.Event | None = None  # set when a history is about to be read
    go_on: anyio.Event | None = None  # what that reading then waits for

    async def respond(
        self, *, session_id: SessionId, request_id: RequestId, option_id: str, by: str, uid: int, revision: int | None
    ) -> Reason | None:
        self.calls.append((by, uid, revision))
        if self.fault is not None:
            raise self.fault
        if session_id not in {SESSION, OTHER}:
            raise SessionNotFound("There is no such session.")
        if session_id != SESSION or request_id != REQUEST:
            return Reason.REQUEST_NOT_FOUND
        if request_id in self.decided:
            return Reason.ALREADY_RESOLVED
        if option_id not in OFFERED:
            raise InvalidOption(OFFERED)
        if not self.local_answers and option_id != "reject_once":
            raise LocalAnswersOff("Only a refusal counts here.")
        if revision not in {None, 1}:
            raise InvalidRevision("This is not the revision that waits.")
        self.decided[request_id] = option_id
        return None

    async def ask(self, agent: AgentName) -> JsonObject:
        if agent != "claude":
            raise InvalidAgent("There is no agent of this name.")
        return dict(self.reply)

    def list_pending(self) -> list[JsonObject]:
        if REQUEST in self.decided:
            return []
        return [
            {
                "request_id": REQUEST,
                "session_id": SESSION,
                "agent": "claude",
                "number": 3,
                "title": "Run the test suite",
                "options": [{"optionId": option, "name": option.title(), "kind": "allow_once"} for option in OFFERED],
                "room_id": "!room:hs",
                "event_id": "$p",
                "asked_at": "2026-11-07T10:29:58.114Z",
            }
        ]

    async def read_history(self, after: dict[SessionId, int] | None, session_id: SessionId | None) -> list[Record]:
        if session_id is not None and session_id not in {SESSION, OTHER}:
            raise SessionNotFound("There is no such session.")
        found = [
            record
            for record in self.records
            if session_id in {None, record.session_id} and record.sequence > (after or {}).get(record.session_id, 0)
        ]
        if self.reading is not None and self.go_on is not None:
            self.reading.set()
            await self.go_on.wait()
        return found

    @asynccontextmanager
    async def subscribe(self) -> AsyncGenerator[ObjectReceiveStream[Record]]:
        send, receive = anyio.create_memory_object_stream[Record](BACKLOG)
        self.readers.append(send)
        async with send, receive:
            yield receive
        self.readers.remove(send)

    def publish(self, record: Record) -> None:
        """What the relay does after a commit."""
        self.records.append(record)
        for reader in self.readers:
            reader.send_nowait(record)

    def status(self) -> JsonObject:
        return {"agents": {"claude": "running"}}

    async def delete_session(self, session_id: SessionId) -> None:
        if session_id not in {SESSION, OTHER}:
            raise SessionNotFound("There is no such session.")
        self.deleted.append(session_id)
