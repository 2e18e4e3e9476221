"""What each change does to the tables.

Above it: `ledger`, which calls it in a thread of its own. Below it: `database`, `records` and `codec`. It decides
nothing but what rule 17 leaves to the ledger: which of two decisions came first.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from bridge.core.changes import (
    Change,
    Record,
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
    Request,
    RequestId,
    SessionId,
    SyncToken,
)
from bridge.store.codec import (
    dump,
    dump_decision,
    dump_request,
    escape,
    unescape,
)
from bridge.store.database import transaction
from bridge.store.records import Recorded, enter, stamp

_Silent: TypeAlias = StoreRevision | StoreUnseen | StoreOutgoing | StoreSent | StoreTaken
_Guarding: TypeAlias = StoreLocked | StoreUnlocked | StorePin | StoreEncrypted | StoreMoved


def store(
    connection: sqlite3.Connection, changes: Sequence[Change], at: Millis, token: SyncToken | None
) -> list[Record]:
    """Carry out all changes and move the sync token, in one transaction; return the new history rows in order."""
    if not changes and token is None:
        return []
    with transaction(connection):
        records = [record for change in changes for record in _carry_out(connection, change, stamp(at))]
        if token is not None:
            connection.execute("INSERT OR REPLACE INTO sync (one, token) VALUES (1, ?)", (escape(token),))
    return records


def _carry_out(connection: sqlite3.Connection, change: Change, timestamp: str) -> Iterator[Record]:
    match change:
        case StoreRevision() | StoreUnseen() | StoreOutgoing() | StoreSent() | StoreTaken():
            _store_silently(connection, change)
        case StoreLocked() | StoreUnlocked() | StorePin() | StoreEncrypted() | StoreMoved():
            _store_guarding(connection, change)
        case _:
            session = _store_recorded(connection, change)
            agent, last = _read_session(connection, session)
            entry = enter(change, agent)
            if entry is not None:
                yield _append(
                    connection,
                    Record(session_id=session, sequence=last + 1, timestamp=timestamp, type=entry[0], fields=entry[1]),
                )


def _append(connection: sqlite3.Connection, record: Record) -> Record:
    key = escape(record.session_id)
    connection.execute("UPDATE sessions SET last_sequence = ? WHERE session_id = ?", (record.sequence, key))
    connection.execute(
        "INSERT INTO history (session_id, sequence, timestamp, type, fields) VALUES (?, ?, ?, ?, ?)",
        (key, record.sequence, record.timestamp, record.type, dump(record.fields)),
    )
    return record


def _store_recorded(connection: sqlite3.Connection, change: Recorded) -> SessionId:
    match change:
        case StoreSession():
            _insert_session(connection, change)
            return change.session_id
        case StoreSessionEnd():
            _end_session(connection, change)
            return change.session_id
        case StoreAsked():
            _insert_request(connection, change.request, change.raw)
            return change.request.session_id
        case StorePosted():
            _set_posted(connection, change)
        case StoreDecision():
            _decide(connection, change)
        case StoreLateAnswer():
            pass  # nothing but its history row
        case StoreEnding():
            _end_request(connection, change)
    return _session_of(connection, change.request_id)


def _insert_session(connection: sqlite3.Connection, change: StoreSession) -> None:
    connection.execute(
        "INSERT INTO sessions (session_id, agent) VALUES (?, ?)", (escape(change.session_id), escape(change.agent))
    )


def _end_session(connection: sqlite3.Connection, change: StoreSessionEnd) -> None:
    _one(
        connection.execute(
            "UPDATE sessions SET ended = 1 WHERE session_id = ? AND ended = 0", (escape(change.session_id),)
        ),
        "The ledger knows no such session that has not ended.",
    )


def _insert_request(connection: sqlite3.Connection, request: Request, raw: str) -> None:
    room, session, key = escape(request.room), escape(request.session_id), escape(request.request_id)
    _one(
        connection.execute(
            "UPDATE sessions SET last_request = ?1 WHERE session_id = ?2 AND last_request < ?1",
            (request.request_seq, session),
        ),
        "The ledger knows no such session, or it has given this request's number before.",
    )
    connection.execute("INSERT OR IGNORE INTO rooms (room, next_number) VALUES (?, 1)", (room,))
    if request.number > 0:  # 0: it is never put to people
        _take_number(connection, room, request.number)
    inserted = connection.execute(
        "INSERT INTO requests (request_id, session_id, request_seq, room, number, revision, event_id)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, session, request.request_seq, room, request.number, request.revision, _escape_event(request.event_id)),
    )
    connection.execute(
        "INSERT INTO details (position, body, raw) VALUES (?, ?, ?)",
        (inserted.lastrowid, dump_request(request), raw.encode("utf-8", "surrogatepass")),
    )


def _take_number(connection: sqlite3.Connection, room: str, number: int) -> None:
    _one(
        connection.execute(
            "UPDATE rooms SET next_number = ?1 + 1 WHERE room = ?2 AND next_number <= ?1", (number, room)
        ),
        "The ledger has given this room number before.",
    )


def _set_posted(connection: sqlite3.Connection, change: StorePosted) -> None:
    connection.execute(  # the message of an earlier revision is history, but not where answers belong (AC-19)
        "UPDATE requests SET event_id = ? WHERE request_id = ? AND revision = ?",
        (escape(change.event_id), escape(change.request_id), change.revision),
    )


def _decide(connection: sqlite3.Connection, change: StoreDecision) -> None:
    key = escape(change.request_id)
    decided = connection.execute(
        "UPDATE requests SET decision = ? WHERE request_id = ? AND decision IS NULL",
        (dump_decision(change.decision), key),
    )
    if decided.rowcount == 0:
        _session_of(connection, change.request_id)
        raise AlreadyDecided("This request has been decided already.")


def _end_request(connection: sqlite3.Connection, change: StoreEnding) -> None:
    key = escape(change.request_id)
    _one(
        connection.execute(
            "INSERT INTO endings (request_id, room, ending, delivered)"
            " SELECT request_id, room, ?, ? FROM requests WHERE request_id = ? AND decision IS NOT NULL",
            (change.ending.value, change.delivered, key),
        ),
        "The ledger knows no such request that has its decision.",
    )
    connection.execute("UPDATE requests SET open = 0 WHERE request_id = ?", (key,))


def _store_silently(connection: sqlite3.Connection, change: _Silent) -> None:
    match change:
        case StoreRevision(request=request):
            _revise(connection, request)
        case StoreUnseen(room=room, person=person, on=True):
            connection.execute("INSERT OR IGNORE INTO unseen VALUES (?, ?)", (escape(room), escape(person)))
        case StoreUnseen(room=room, person=person):
            connection.execute("DELETE FROM unseen WHERE room = ? AND person = ?", (escape(room), escape(person)))
        case StoreOutgoing():
            _insert_outgoing(connection, change)
        case StoreSent(transaction_id=transaction_id, event_id=event_id):
            _one(
                connection.execute(  # withheld (None) and then sent after all: the event id stays
                    "UPDATE outgoing SET waiting = 0, content = NULL, event_id = COALESCE(?, event_id)"
                    " WHERE transaction_id = ?",
                    (_escape_event(event_id), escape(transaction_id)),
                ),
                "The ledger knows no such outgoing event.",
            )
        case StoreTaken(event_id):
            connection.execute("INSERT OR IGNORE INTO taken (event_id) VALUES (?)", (escape(event_id),))


def _store_guarding(connection: sqlite3.Connection, change: _Guarding) -> None:
    """What encrypted rooms need to be remembered."""
    match change:
        case StoreLocked(event_id=event_id, room=room, sender=sender, raw=raw):
            connection.execute(
                "INSERT OR IGNORE INTO locked (event_id, room, sender, raw) VALUES (?, ?, ?, ?)",
                (escape(event_id), escape(room), escape(sender), escape(raw)),
            )
        case StoreUnlocked(event_id):
            connection.execute("DELETE FROM locked WHERE event_id = ?", (escape(event_id),))
        case StorePin(user=user, master=master):
            connection.execute("INSERT OR REPLACE INTO pins VALUES (?, ?)", (escape(user), escape(master)))
        case StoreEncrypted(room):
            connection.execute("INSERT OR IGNORE INTO encrypted VALUES (?)", (escape(room),))
        case StoreMoved(old=old, new=new):
            connection.execute("INSERT INTO moved (old, new) VALUES (?, ?)", (escape(old), escape(new)))


def _revise(connection: sqlite3.Connection, request: Request) -> None:
    key = escape(request.request_id)
    row = connection.execute("SELECT room, number FROM requests WHERE request_id = ?", (key,)).fetchone()
    if row is None:
        raise LedgerError("The ledger knows no such request.")
    room, number = row
    if request.number != number:  # under `strict` each revision has its own
        _take_number(connection, room, request.number)
    connection.execute(
        "UPDATE requests SET number = ?, revision = ?, event_id = ? WHERE request_id = ?",
        (request.number, request.revision, _escape_event(request.event_id), key),
    )
    connection.execute(
        "UPDATE details SET body = ? WHERE position = (SELECT position FROM requests WHERE request_id = ?)",
        (dump_request(request), key),
    )


def _insert_outgoing(connection: sqlite3.Connection, change: StoreOutgoing) -> None:
    connection.execute(
        "INSERT INTO outgoing (transaction_id, room, event_type, content, priority, request_id)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            escape(change.transaction_id),
            escape(change.room),
            escape(change.event_type),
            dump(change.content),
            change.priority.value,
            None if change.request_id is None else escape(change.request_id),
        ),
    )


def _one(cursor: sqlite3.Cursor, otherwise: str) -> None:
    if cursor.rowcount != 1:
        raise LedgerError(otherwise)


def _session_of(connection: sqlite3.Connection, request_id: RequestId) -> SessionId:
    row = connection.execute("SELECT session_id FROM requests WHERE request_id = ?", (escape(request_id),)).fetchone()
    if row is None:
        raise LedgerError("The ledger knows no such request.")
    return SessionId(unescape(row[0]))


def _read_session(connection: sqlite3.Connection, session_id: SessionId) -> tuple[AgentName, int]:
    agent, last = connection.execute(
        "SELECT agent, last_sequence FROM sessions WHERE session_id = ?", (escape(session_id),)
    ).fetchone()
    return AgentName(unescape(agent)), last


def _escape_event(event_id: EventId | None) -> str | None:
    return None if event_id is None else escape(event_id)
