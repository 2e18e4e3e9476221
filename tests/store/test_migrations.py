"""The way from each released version to this one keeps every row."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import LedgerError
from bridge.core.model import SessionId
from bridge.store.database import migrate
from bridge.store.ledger import SqliteLedger
from bridge.store.migrations import STEPS, Step
from tests.store.values import AT, GUARDS, ask, decide, end, make_request, queue, start

VERSIONS = Path(__file__).parent / "versions"
"""`N.sql` is a ledger as version N wrote it: frozen, one for each version, never written again."""

WAITING, DECIDED, ENDED = make_request(1), make_request(2), make_request(3)
OTHER = SessionId("acps_fedcba9876543210")
POLLED = replace(make_request(4), nonce="n0nce", strict=True)


def test_each_version_has_a_ledger_to_try_the_way_from() -> None:
    assert [f"{version}.sql" for version in range(1, len(STEPS) + 1)] == sorted(
        found.name for found in VERSIONS.iterdir()
    )


@pytest.mark.parametrize("version", range(1, len(STEPS) + 1))
async def test_a_ledger_of_an_earlier_version_keeps_what_it_held(tmp_path: Path, version: int) -> None:
    old, new = (tmp_path / name / "ledger.db" for name in ("old", "new"))
    old.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript((VERSIONS / f"{version}.sql").read_text("ascii"))
    upgraded, fresh = await SqliteLedger.open(old), await SqliteLedger.open(new)
    await fill(fresh, version)
    assert await fresh.load() == await upgraded.load()
    assert await fresh.history() == await upgraded.history()
    await upgraded.close()
    await fresh.close()


async def fill(ledger: SqliteLedger, version: int) -> None:
    """Commit what the frozen ledger of this version holds."""
    await ledger.commit([start(), start(OTHER), *map(ask, (WAITING, DECIDED, ENDED))], at=AT)
    await ledger.commit([queue(WAITING), decide(DECIDED), decide(ENDED), end(ENDED)], at=AT)
    if version > 1:
        await ledger.commit([ask(POLLED), *GUARDS], at=AT)


ROWS = st.lists(st.text(max_size=5), max_size=5)


def make_step(number: int, kind: str) -> Step:
    match kind:
        case "table":
            return (f"CREATE TABLE t{number} (value TEXT)",)
        case "column":
            return (f"ALTER TABLE rows ADD COLUMN c{number} INTEGER NOT NULL DEFAULT {number}",)
        case "index":
            return (f"CREATE INDEX i{number} ON rows (value)",)
        case _:
            return (
                "CREATE TABLE moved (id INTEGER PRIMARY KEY, value TEXT)",
                "INSERT INTO moved SELECT id, value FROM rows",
                "DROP TABLE rows",
                "ALTER TABLE moved RENAME TO rows",
            )


FIRST: Step = ("CREATE TABLE rows (id INTEGER PRIMARY KEY, value TEXT)",)
KINDS = st.lists(st.sampled_from(["table", "column", "index", "rebuild"]), min_size=1, max_size=5)


def open_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


@given(kinds=KINDS, rows=ROWS, data=st.data())
def test_whatever_the_steps_and_wherever_one_begins_no_row_is_lost(
    kinds: list[str], rows: list[str], data: st.DataObject
) -> None:
    steps = (FIRST, *(make_step(number, kind) for number, kind in enumerate(kinds)))
    begin = data.draw(st.integers(1, len(steps)))
    with closing(open_memory()) as connection:
        migrate(connection, steps[:begin])
        connection.executemany("INSERT INTO rows (value) VALUES (?)", [(row,) for row in rows])
        migrate(connection, steps)
        assert rows == [value for (value,) in connection.execute("SELECT value FROM rows ORDER BY id")]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(steps),)


@given(kinds=KINDS, rows=ROWS, data=st.data())
def test_a_step_that_fails_leaves_the_version_before_it(kinds: list[str], rows: list[str], data: st.DataObject) -> None:
    steps = [FIRST, *(make_step(number, kind) for number, kind in enumerate(kinds))]
    fails = data.draw(st.integers(1, len(steps) - 1))
    steps[fails] = (*steps[fails], "INSERT INTO nowhere VALUES (1)")
    with closing(open_memory()) as connection:
        migrate(connection, steps[:1])
        connection.executemany("INSERT INTO rows (value) VALUES (?)", [(row,) for row in rows])
        migrate(connection, steps[:fails])
        before = list(connection.iterdump())
        with pytest.raises(LedgerError):
            migrate(connection, steps)
        assert before == list(connection.iterdump())
        assert connection.execute("PRAGMA user_version").fetchone() == (fails,)
