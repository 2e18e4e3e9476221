"""Ten thousand finished requests make nothing slower: no statement of the hot path looks at rows it does not need."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bridge.core.changes import (
    Change,
    StoreLateAnswer,
    StorePosted,
    StoreRevision,
    StoreSent,
    StoreSessionEnd,
    StoreTaken,
    StoreUnseen,
)
from bridge.core.model import EventId, Millis, Reason, SyncToken, Via
from bridge.store.database import open_database
from bridge.store.reads import load, read_records
from bridge.store.writes import store
from tests.store.values import ALICE, ALLOW, AT, ROOM, SESSION, ask, decide, end, make_request, queue, start

GROWING = ("sessions", "history", "requests", "details", "endings", "outgoing", "taken")
"""The tables that grow with use; rooms, unseen people and the one token are few."""

REQUEST = make_request()
CHANGES: list[Change] = [
    start(),
    ask(REQUEST),
    queue(REQUEST),
    StoreRevision(request=REQUEST),
    StorePosted(request_id=REQUEST.request_id, event_id=EventId("$p"), digest=None, revision=1),
    StoreSent(transaction_id=queue(REQUEST).transaction_id, event_id=EventId("$p")),
    StoreTaken(EventId("$answer")),
    StoreUnseen(room=ROOM, person=ALICE, on=True),
    StoreUnseen(room=ROOM, person=ALICE, on=False),
    decide(REQUEST),
    StoreLateAnswer(
        request_id=REQUEST.request_id,
        reason=Reason.ALREADY_RESOLVED,
        option=ALLOW,
        by=ALICE,
        via=Via.MESSAGE,
        event_id=None,
        waited=Millis(1),
    ),
    end(REQUEST),
    StoreSessionEnd(session_id=SESSION, reason="gone"),
]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_database(tmp_path / "state" / "ledger.db")) as opened:
        yield opened


def scans(connection: sqlite3.Connection, statements: list[str]) -> set[str]:
    """Say which steps of these statements walk through a growing table or a whole index of one."""
    steps = {
        step.replace("SCAN TABLE", "SCAN")  # as SQLite before 3.36 says it
        for statement in statements
        if statement.split()[0] in {"SELECT", "INSERT", "UPDATE", "DELETE"}
        for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    }
    return {step for step in steps if step.split()[0] == "SCAN" and step.split()[1] in GROWING}


def test_no_commit_walks_through_a_table(connection: sqlite3.Connection) -> None:
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    store(connection, CHANGES, AT, SyncToken("s1"))
    connection.set_trace_callback(None)
    assert set() == scans(connection, statements)
    assert len(statements) > 30


def test_a_start_and_a_resuming_reader_walk_through_what_is_open_alone(connection: sqlite3.Connection) -> None:
    store(connection, CHANGES, AT, SyncToken("s1"))
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    load(connection)
    read_records(connection, {SESSION: 3})
    connection.set_trace_callback(None)
    assert {
        "SCAN requests USING INDEX requests_open",
        "SCAN outgoing USING INDEX outgoing_waiting",
        "SCAN sessions USING INDEX sessions_open",
        "SCAN taken",  # backwards from the youngest, and it stops at its limit
        "SCAN sessions",  # one row for each run of a harness
    } == scans(connection, statements)
