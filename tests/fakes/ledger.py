"""A ledger in memory: `core.ports.Ledger` without a file, for tests of what stands above it.

It outlives the relay that uses it, as a file would: a test that "restarts" hands the same one to a new relay.
`tests/contracts/test_ledger.py` holds it to what SQLite does.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import anyio.lowlevel

from bridge.core.changes import (
    Change,
    Record,
    Snapshot,
    StoreAsked,
    StoreDecision,
    StoreEncrypted,
    StoreEnding,
    StoreLateAnswer,
    StoreLocked,
    StoreMoved,
    StoreOutgoing,
    StorePin,
    StorePosted,
    StoreRevision,
    StoreSent,
    StoreSession,
    StoreSessionEnd,
    StoreTaken,
    StoreUnlocked,
    StoreUnseen,
)
from bridge.core.errors import AlreadyDecided, LedgerError
from bridge.core.model import (
    AgentName,
    EventId,
    Millis,
    Phase,
    Request,
    RequestId,
    RoomId,
    SessionId,
    SyncToken,
    TransactionId,
    UserId,
)
from bridge.store.reads import CLOSED_KEPT, TAKEN_KEPT
from bridge.store.records import Recorded, enter, stamp


@dataclass
class _Tables:
    sessions: dict[SessionId, AgentName] = field(default_factory=dict[SessionId, AgentName])
    ended_sessions: set[SessionId] = field(default_factory=set[SessionId])
    last_requests: dict[SessionId, int] = field(default_factory=dict[SessionId, int])
    next_numbers: dict[RoomId, int] = field(default_factory=dict[RoomId, int])
    requests: dict[RequestId, Request] = field(default_factory=dict[RequestId, Request])
    closed: list[RequestId] = field(default_factory=list[RequestId])  # in the order of ending
    unseen: set[tuple[RoomId, UserId]] = field(default_factory=set[tuple[RoomId, UserId]])
    taken: dict[EventId, None] = field(default_factory=dict[EventId, None])
    outgoing: dict[TransactionId, StoreOutgoing] = field(default_factory=dict[TransactionId, StoreOutgoing])
    sent: dict[TransactionId, EventId] = field(default_factory=dict[TransactionId, EventId])
    transaction_ids: set[TransactionId] = field(default_factory=set[TransactionId])
    locked: dict[EventId, StoreLocked] = field(default_factory=dict[EventId, StoreLocked])
    pins: dict[UserId, str] = field(default_factory=dict[UserId, str])
    encrypted: set[RoomId] = field(default_factory=set[RoomId])
    moved: list[tuple[RoomId, RoomId]] = field(default_factory=list[tuple[RoomId, RoomId]])
    records: list[Record] = field(default_factory=list[Record])
    token: SyncToken | None = None


class MemoryLedger:
    """The ledger's rules over plain collections."""

    def __init__(self) -> None:
        self._tables = _Tables()
        self._failures: list[LedgerError] = []
        self._closed = False

    def fail_next(self, error: LedgerError) -> None:
        """Let the next commit raise this and keep nothing; several calls fail as many commits, in turn."""
        self._failures.append(error)

    @property
    def records(self) -> tuple[Record, ...]:
        """All history rows so far."""
        return tuple(self._tables.records)

    @property
    def token(self) -> SyncToken | None:
        """The sync token as last committed."""
        return self._tables.token

    async def load(self) -> Snapshot:
        await self._pause()
        tables = self._tables
        return Snapshot(
            next_numbers=dict(tables.next_numbers),
            open=tuple(request for request in tables.requests.values() if request.phase is not Phase.ENDED),
            closed=_youngest_per_room([tables.requests[request_id] for request_id in tables.closed]),
            unseen=frozenset(tables.unseen),
            taken=tuple(tables.taken)[-TAKEN_KEPT:],
            outgoing=tuple(tables.outgoing.values()),
            sync_token=tables.token,
            sessions=tuple(
                (session_id, agent)
                for session_id, agent in tables.sessions.items()
                if session_id not in tables.ended_sessions
            ),
            polls=tuple(_open_polls(tables)),
            locked=tuple(tables.locked.values()),
            pins=tuple(sorted(tables.pins.items())),
            encrypted=frozenset(tables.encrypted),
            moved=tuple(tables.moved),
        )

    async def commit(self, changes: Sequence[Change], *, at: Millis, token: SyncToken | None = None) -> list[Record]:
        await self._pause()
        if self._failures:
            raise self._failures.pop(0)
        tables = copy.copy(self._tables)
        for name in tables.__dataclass_fields__:
            setattr(tables, name, copy.copy(getattr(tables, name)))
        before = len(tables.records)
        for change in changes:
            _carry_out(tables, change, stamp(at))
        if token is not None:
            tables.token = token
        self._tables = tables
        return _copied(tables.records[before:])

    async def history(
        self, after: dict[SessionId, int] | None = None, *, session_id: SessionId | None = None
    ) -> list[Record]:
        await self._pause()
        sequences = after or {}
        return _copied(
            [
                record
                for record in self._tables.records
                if session_id in {None, record.session_id} and record.sequence > sequences.get(record.session_id, 0)
            ]
        )

    async def close(self) -> None:
        self._closed = True

    async def _pause(self) -> None:
        if self._closed:
            raise LedgerError("The ledger is closed.")
        await anyio.lowlevel.cancel_shielded_checkpoint()  # others get a turn, as while SQLite writes


def _carry_out(tables: _Tables, change: Change, timestamp: str) -> None:
    match change:
        case StoreRevision(request=request):
            known = _find(tables, request.request_id)
            if request.number != known.number:
                _take_number(tables, known.room, request.number)
            tables.requests[request.request_id] = replace(
                request, phase=known.phase, decision=known.decision, delivered=known.delivered
            )
        case StoreUnseen(room=room, person=person, on=on):
            (tables.unseen.add if on else tables.unseen.discard)((room, person))
        case StoreOutgoing(transaction_id=transaction_id):
            _require(transaction_id not in tables.transaction_ids)
            tables.transaction_ids.add(transaction_id)
            tables.outgoing[transaction_id] = replace(change, content=json.loads(json.dumps(change.content)))
        case StoreSent(transaction_id=transaction_id, event_id=event_id):
            _require(transaction_id in tables.transaction_ids)
            if event_id is not None:
                tables.sent[transaction_id] = event_id
            tables.outgoing.pop(transaction_id, None)
        case StoreTaken(event_id):
            tables.taken.setdefault(event_id, None)
        case StoreLocked() | StoreUnlocked() | StorePin() | StoreEncrypted() | StoreMoved():
            _carry_out_guarding(tables, change)
        case _:
            session_id = _carry_out_recorded(tables, change)
            entry = enter(change, tables.sessions[session_id])
            if entry is not None:
                kind, fields = entry
                sequence = 1 + sum(record.session_id == session_id for record in tables.records)
                tables.records += _copied(
                    [Record(sequence=sequence, session_id=session_id, timestamp=timestamp, type=kind, fields=fields)]
                )


def _carry_out_guarding(
    tables: _Tables, change: StoreLocked | StoreUnlocked | StorePin | StoreEncrypted | StoreMoved
) -> None:
    match change:
        case StoreLocked(event_id=event_id):
            tables.locked.setdefault(event_id, change)
        case StoreUnlocked(event_id):
            tables.locked.pop(event_id, None)
        case StorePin(user=user, master=master):
            tables.pins[user] = master
        case StoreEncrypted(room):
            tables.encrypted.add(room)
        case StoreMoved(old=old, new=new):
            tables.moved.append((old, new))


def _carry_out_recorded(tables: _Tables, change: Recorded) -> SessionId:
    match change:
        case StoreSession(session_id=session_id, agent=agent):
            _require(session_id not in tables.sessions)
            tables.sessions[session_id] = agent
            return session_id
        case StoreSessionEnd(session_id=session_id):
            _require(session_id in tables.sessions and session_id not in tables.ended_sessions)
            tables.ended_sessions.add(session_id)
            return session_id
        case StoreAsked(request=request):
            _ask(tables, request)
            return request.session_id
        case StorePosted(request_id=request_id, event_id=event_id, revision=revision):
            request = _find(tables, request_id)
            if request.revision == revision:
                tables.requests[request_id] = replace(request, event_id=event_id)
        case StoreDecision(request_id=request_id, decision=decision):
            request = _find(tables, request_id)
            if request.decision is not None:
                raise AlreadyDecided("This request has been decided already.")
            tables.requests[request_id] = replace(request, phase=Phase.DECIDED, decision=decision)
        case StoreLateAnswer(request_id=request_id):
            pass
        case StoreEnding(request_id=request_id, delivered=delivered):
            request = _find(tables, request_id)
            _require(request.phase is Phase.DECIDED)
            tables.requests[request_id] = replace(request, phase=Phase.ENDED, delivered=delivered)
            tables.closed.append(request_id)
    return _find(tables, change.request_id).session_id


def _ask(tables: _Tables, request: Request) -> None:
    _require(request.session_id in tables.sessions)
    _require(request.request_seq > tables.last_requests.get(request.session_id, 0))
    _require(request.request_id not in tables.requests)
    tables.last_requests[request.session_id] = request.request_seq
    tables.next_numbers.setdefault(request.room, 1)
    if request.number > 0:
        _take_number(tables, request.room, request.number)
    tables.requests[request.request_id] = replace(request, phase=Phase.PENDING, decision=None, delivered=False)


def _take_number(tables: _Tables, room: RoomId, number: int) -> None:
    _require(number >= tables.next_numbers[room])
    tables.next_numbers[room] = number + 1


def _find(tables: _Tables, request_id: RequestId) -> Request:
    _require(request_id in tables.requests)
    return tables.requests[request_id]


def _require(holds: bool) -> None:
    if not holds:
        raise LedgerError("The ledger refused a change that contradicts what it holds.")


def _open_polls(tables: _Tables) -> Iterator[tuple[RequestId, EventId]]:
    for transaction_id, event_id in tables.sent.items():
        request_id = RequestId(transaction_id.partition("/")[0])
        request = tables.requests.get(request_id)
        ended = f"{request_id}/ended/{event_id}" in tables.transaction_ids
        if transaction_id.endswith("/poll") and request and request.phase is not Phase.ENDED and not ended:
            yield request_id, event_id


def _youngest_per_room(requests: list[Request]) -> tuple[Request, ...]:
    seen: dict[RoomId, int] = {}
    kept: list[Request] = []
    for request in reversed(requests):
        seen[request.room] = seen.get(request.room, 0) + 1
        if seen[request.room] <= CLOSED_KEPT:
            kept.append(request)
    return tuple(reversed(kept))


def _copied(records: Sequence[Record]) -> list[Record]:
    # Through JSON, as in a file: nobody can change what was stored, and what is no JSON fails here too.
    return [replace(record, fields=json.loads(json.dumps(record.fields, default=dict))) for record in records]
