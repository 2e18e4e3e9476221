"""What is SQLite's alone: threads, processes, kills, and reading beside a writer. The port is in `tests/contracts`."""

import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from bridge.core.changes import StoreLateAnswer, StoreSent
from bridge.core.errors import AlreadyDecided, LedgerBusy, LedgerDamaged, LedgerError, LedgerFull
from bridge.core.model import AgentName, EventId, JsonValue, Millis, Reason, SessionId, SyncToken, Via
from bridge.store.codec import outcome_json
from bridge.store.database import open_database
from bridge.store.ledger import SqliteLedger, Worker, read_history
from tests.store.values import AGENT, ALLOW, AT, REJECT, SESSION, ask, decide, make_answer, make_request, queue, start

ROOT = Path(__file__).parents[2]
KILLS = 4  # of each kind; a start costs half a second, and the soak test kills far more often
NEVER = -1
DECIDERS = 50  # AO-14


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
async def ledger(path: Path) -> AsyncIterator[SqliteLedger]:
    opened = await SqliteLedger.open(path)
    yield opened
    await opened.close()


async def test_a_reopened_ledger_holds_what_was_committed(ledger: SqliteLedger, path: Path) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request), queue(request)], at=AT, token=SyncToken("s1"))
    expected = await ledger.load(), await ledger.history()
    await ledger.close()
    again = await SqliteLedger.open(path)
    assert expected == (await again.load(), await again.history())
    await again.close()


async def test_of_many_deciders_on_two_connections_exactly_one_wins(ledger: SqliteLedger, path: Path) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request)], at=AT)
    other = await SqliteLedger.open(path)
    accepted: list[JsonValue] = []
    refused: list[AlreadyDecided] = []

    async def answer(by: SqliteLedger, number: int) -> None:
        try:
            rows = await by.commit([decide(request, make_answer(REJECT if number % 2 else ALLOW))], at=AT)
            accepted.extend(row.fields["outcome"] for row in rows)
        except AlreadyDecided as error:
            refused.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(DECIDERS):
                tasks.start_soon(answer, ledger if number % 3 else other, number)
    assert (len(accepted), len(refused)) == (1, DECIDERS - 1)
    (decided,) = (await other.load()).open
    assert decided.decision is not None
    assert [outcome_json(decided.decision.outcome)] == accepted
    await other.close()


async def test_a_cancelled_caller_still_learns_what_was_kept(ledger: SqliteLedger) -> None:
    learnt: list[int] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        learnt += [row.sequence for row in await ledger.commit([start()], at=AT)]
    assert learnt == [1]


async def test_late_answers_on_two_connections_wait_for_one_another(ledger: SqliteLedger, path: Path) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request), decide(request)], at=AT)
    other = await SqliteLedger.open(path)
    late = StoreLateAnswer(
        request_id=request.request_id,
        reason=Reason.ALREADY_RESOLVED,
        option=ALLOW,
        by="@bob:ex.org",
        via=Via.MESSAGE,
        event_id=None,
        waited=Millis(1),
    )

    async def answer(by: SqliteLedger) -> None:
        await by.commit([late], at=AT)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(DECIDERS):
                tasks.start_soon(answer, ledger if number % 2 else other)
    assert [row.sequence for row in await ledger.history()] == list(range(1, DECIDERS + 4))
    await other.close()


async def test_the_words_of_an_event_that_left_are_not_kept(ledger: SqliteLedger, path: Path) -> None:
    queued = queue(make_request())
    await ledger.commit([queued], at=AT)
    await ledger.commit([StoreSent(transaction_id=queued.transaction_id, event_id=EventId("$p"))], at=AT)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT content, event_id FROM outgoing").fetchall() == [(None, "$p")]


async def test_a_caller_may_change_its_list_while_it_is_stored(ledger: SqliteLedger) -> None:
    changes = [start()]

    async def commit() -> None:
        await ledger.commit(changes, at=AT)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            await anyio.lowlevel.checkpoint()
            changes.clear()
    assert len(await ledger.history()) == 1


async def test_a_locked_ledger_is_busy_and_keeps_nothing(path: Path) -> None:
    connection = open_database(path)
    connection.execute("PRAGMA busy_timeout = 0")
    ledger = SqliteLedger(connection, Worker())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerBusy):
        await ledger.commit([start()], at=AT)
    other.execute("ROLLBACK")
    other.close()
    assert len(await ledger.commit([start()], at=AT)) == 1
    await ledger.close()


async def test_a_full_disk_keeps_nothing_and_lets_the_next_try_succeed(path: Path) -> None:
    connection = open_database(path)
    ledger = SqliteLedger(connection, Worker())
    request = make_request()
    await ledger.commit([start(), ask(request)], at=AT)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = ask(make_request(2), {"toolCall": "x" * 100_000})
    with pytest.raises(LedgerFull):
        await ledger.commit([decide(request), large], at=AT, token=SyncToken("s1"))
    found = await ledger.load()
    assert ((request,), None) == (found.open, found.sync_token)
    connection.execute("PRAGMA max_page_count = 100000")
    assert [row.sequence for row in await ledger.commit([decide(request), large], at=AT)] == [3, 4]
    await ledger.close()


async def test_a_file_that_cannot_be_opened_leaves_no_thread(path: Path) -> None:
    with closing(open_database(path)) as connection:
        connection.execute("PRAGMA user_version = 1000")
    before = threading.active_count()
    with pytest.raises(LedgerDamaged):
        await SqliteLedger.open(path)
    assert before == threading.active_count()


async def test_a_row_that_cannot_be_read_is_damage(ledger: SqliteLedger, path: Path) -> None:
    await ledger.commit([start(), ask(make_request())], at=AT)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("UPDATE details SET body = 'null'")
    other.execute("UPDATE history SET fields = CAST(x'7bfffe' AS TEXT)")
    other.close()
    with pytest.raises(LedgerDamaged):
        await ledger.load()
    with pytest.raises(LedgerDamaged):
        await ledger.history()


@pytest.mark.parametrize("statements", [300, NEVER])
def test_after_a_kill_each_transaction_is_whole_or_absent(tmp_path: Path, statements: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    points = random.Random(seed)  # noqa: S311 - no secret
    for attempt in range(KILLS):
        path = tmp_path / f"{attempt}" / "ledger.db"
        at_statement = points.randrange(30, statements) if statements != NEVER else NEVER
        committed, begun = _run_until_killed(path, at_statement, points.randrange(2, 120))
        anyio.run(_require_whole, path, committed, begun)


def _run_until_killed(path: Path, at_statement: int, at_line: int) -> tuple[int, int]:
    command = [sys.executable, Path(__file__).with_name("committer.py"), path, str(at_statement)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603
        assert process.stdout is not None
        said: list[str] = []
        if at_statement == NEVER:
            said += [process.stdout.readline() for _ in range(at_line)]
            process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()  # until it is dead
    assert process.returncode == -signal.SIGKILL
    numbers = {word: [int(line.split()[1]) for line in said if line.startswith(word)] for word in "bc"}
    return max(numbers["c"], default=0), max(numbers["b"])


async def _require_whole(path: Path, committed: int, begun: int) -> None:
    ledger = await SqliteLedger.open(path)
    found = await ledger.load()
    count = len(found.open)
    assert committed <= count <= begun
    wanted = range(1, count + 1)
    assert list(wanted) == [request.number for request in found.open]
    assert [f"t{number}" for number in wanted] == [queued.transaction_id for queued in found.outgoing]
    assert [f"${number}" for number in wanted] == list(found.taken)
    assert (f"s{count}" if count else None) == found.sync_token
    assert list(range(1, count + 2)) == [row.sequence for row in await ledger.history()]
    await ledger.commit([ask(make_request(count + 1))], at=AT)
    await ledger.close()


async def test_history_is_read_while_the_ledger_is_open(ledger: SqliteLedger, path: Path) -> None:
    other = SessionId("acps_2")
    await ledger.commit([start(), start(other), ask(make_request())], at=AT)
    assert await ledger.history() == read_history(path)
    assert [row.sequence for row in read_history(path, session_id=SESSION, after={SESSION: 1})] == [2]
    assert len(read_history(path, agent=AGENT)) == 3
    assert read_history(path, agent=AgentName("codex")) == []


async def test_history_is_read_from_a_ledger_that_nobody_has_open(ledger: SqliteLedger, path: Path) -> None:
    await ledger.commit([start()], at=AT)
    await ledger.close()
    assert len(read_history(path)) == 1
    assert {0o600} == {found.stat().st_mode & 0o777 for found in path.parent.iterdir()}


def test_reading_history_makes_no_ledger(path: Path) -> None:
    with pytest.raises(LedgerError, match="no ledger"):
        read_history(path)
    assert not path.parent.exists()
