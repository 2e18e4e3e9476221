"""What is read back from the tables: what a start needs, and the history.

Above it: `ledger`, which calls it in a thread of its own. Below it: `database` and `codec`. It changes nothing; each
function here sees the tables as of one moment.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from bridge.core.changes import Priority, Record, Snapshot, StoreLocked, StoreOutgoing
from bridge.core.model import (
    AgentName,
    EventId,
    Request,
    RequestId,
    RoomId,
    SessionId,
    TransactionId,
    UserId,
)
from bridge.store.codec import escape, load_decision, load_object, load_request, unescape
from bridge.store.database import transaction, translated

CLOSED_KEPT = 100  # per room: more than a person scrolls back through to answer a prompt that has ended
TAKEN_KEPT = 10_000  # far more events than one sync, or a few repeated after a crash, can bring again

_REQUEST = """
    SELECT details.body, requests.event_id, requests.decision, endings.ending, endings.delivered
    FROM requests JOIN details USING (position) LEFT JOIN endings USING (request_id)
"""
_CLOSED = """
    SELECT endings.position, details.body, requests.event_id, requests.decision, endings.ending, endings.delivered
    FROM endings JOIN requests USING (request_id) JOIN details ON details.position = requests.position
    WHERE endings.room = ? ORDER BY endings.position DESC LIMIT ?
"""
# By the start of their transaction ids, which has an index: `/` begins what follows the request's id, `0` comes after it.
_POLLS = """
    SELECT requests.request_id, poll.event_id FROM requests JOIN outgoing AS poll
    ON poll.transaction_id > requests.request_id || '/' AND poll.transaction_id < requests.request_id || '0'
    WHERE requests.open = 1 AND poll.transaction_id LIKE '%/poll' AND poll.event_id IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM outgoing WHERE transaction_id = requests.request_id || '/ended/' || poll.event_id
    ) ORDER BY poll.position
"""


def load(connection: sqlite3.Connection) -> Snapshot:
    """Read what a start needs, as of one moment."""
    with transaction(connection, writes=False):
        numbers = {
            RoomId(unescape(room)): number for room, number in connection.execute("SELECT room, next_number FROM rooms")
        }
        return Snapshot(
            next_numbers=numbers,
            open=tuple(
                _request(row) for row in connection.execute(f"{_REQUEST} WHERE open = 1 ORDER BY requests.position")
            ),
            closed=_load_closed(connection, numbers),
            unseen=frozenset(
                (RoomId(unescape(room)), UserId(unescape(person)))
                for room, person in connection.execute("SELECT room, person FROM unseen")
            ),
            taken=_load_taken(connection),
            outgoing=tuple(_load_outgoing(connection)),
            sync_token=_load_token(connection),
            sessions=tuple(
                (SessionId(unescape(session_id)), AgentName(unescape(agent)))
                for session_id, agent in connection.execute(
                    "SELECT session_id, agent FROM sessions WHERE ended = 0 ORDER BY position"
                )
            ),
            locked=tuple(_load_locked(connection)),
            pins=tuple(load_pins(connection)),
            encrypted=frozenset(RoomId(unescape(room)) for (room,) in connection.execute("SELECT room FROM encrypted")),
            moved=tuple(
                (RoomId(unescape(old)), RoomId(unescape(new)))
                for old, new in connection.execute("SELECT old, new FROM moved ORDER BY position")
            ),
            polls=tuple(
                (RequestId(unescape(request_id)), EventId(unescape(event_id)))
                for request_id, event_id in connection.execute(_POLLS)
            ),
        )


def load_pins(connection: sqlite3.Connection) -> list[tuple[UserId, str]]:
    """Whose identity is pinned, and its master key, by user id."""
    with translated():
        rows = connection.execute("SELECT person, master FROM pins").fetchall()
    return sorted((UserId(unescape(person)), unescape(master)) for person, master in rows)


def read_records(
    connection: sqlite3.Connection,
    after: Mapping[SessionId, int],
    *,
    session_id: SessionId | None = None,
    agent: AgentName | None = None,
) -> list[Record]:
    """Read history rows in the order they were stored, each session's after its number, of one session or agent or all."""
    found: list[tuple[int, Record]] = []
    with transaction(connection, writes=False):
        sessions = connection.execute(
            "SELECT session_id, last_sequence FROM sessions"
            " WHERE (?1 IS NULL OR session_id = ?1) AND (?2 IS NULL OR agent = ?2)",
            (None if session_id is None else escape(session_id), None if agent is None else escape(agent)),
        ).fetchall()
        for stored_id, last in sessions:
            session = SessionId(unescape(stored_id))
            first = after.get(session, 0) + 1
            if first <= last:
                found.extend(_read_session(connection, session, first))
    return [record for _, record in sorted(found, key=itemgetter(0))]


def _read_session(connection: sqlite3.Connection, session: SessionId, first: int) -> Iterator[tuple[int, Record]]:
    for position, sequence, timestamp, kind, fields in connection.execute(
        "SELECT position, sequence, timestamp, type, fields FROM history"
        " WHERE session_id = ? AND sequence >= ? ORDER BY sequence",
        (escape(session), first),
    ):
        yield (
            position,
            Record(sequence=sequence, session_id=session, timestamp=timestamp, type=kind, fields=load_object(fields)),
        )


def _request(row: Sequence[Any]) -> Request:
    body, event_id, decision, ending, delivered = row
    return load_request(
        body,
        event_id=None if event_id is None else EventId(unescape(event_id)),
        decision=None if decision is None else load_decision(decision),
        ended=ending is not None,
        delivered=bool(delivered),
    )


def _load_closed(connection: sqlite3.Connection, rooms: Mapping[RoomId, int]) -> tuple[Request, ...]:
    rows = [row for room in rooms for row in connection.execute(_CLOSED, (escape(room), CLOSED_KEPT))]
    return tuple(_request(row) for _, *row in sorted(rows, key=itemgetter(0)))


def _load_taken(connection: sqlite3.Connection) -> tuple[EventId, ...]:
    rows = connection.execute("SELECT event_id FROM taken ORDER BY position DESC LIMIT ?", (TAKEN_KEPT,)).fetchall()
    return tuple(EventId(unescape(event_id)) for (event_id,) in reversed(rows))


def _load_outgoing(connection: sqlite3.Connection) -> Iterator[StoreOutgoing]:
    for transaction_id, room, event_type, content, priority, request_id in connection.execute(
        "SELECT transaction_id, room, event_type, content, priority, request_id FROM outgoing"
        " WHERE waiting = 1 ORDER BY position"
    ):
        yield StoreOutgoing(
            transaction_id=TransactionId(unescape(transaction_id)),
            room=RoomId(unescape(room)),
            event_type=unescape(event_type),
            content=load_object(content),
            priority=Priority(priority),
            request_id=None if request_id is None else RequestId(unescape(request_id)),
        )


def _load_locked(connection: sqlite3.Connection) -> Iterator[StoreLocked]:
    for event_id, room, sender, raw in connection.execute(
        "SELECT event_id, room, sender, raw FROM locked ORDER BY position"
    ):
        yield StoreLocked(
            event_id=EventId(unescape(event_id)),
            room=RoomId(unescape(room)),
            sender=UserId(unescape(sender)),
            raw=unescape(raw),
        )


def _load_token(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT token FROM sync").fetchone()
    return None if row is None else unescape(row[0])
