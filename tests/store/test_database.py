"""The file of the ledger: modes, versions, damage, and SQLite's errors as ours."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bridge.core.errors import LedgerBusy, LedgerDamaged, LedgerError, LedgerFull
from bridge.store.database import migrate, open_database, open_read_only, transaction, translated
from bridge.store.migrations import STEPS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture(params=[0o000, 0o002, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {found.name: oct(found.stat().st_mode & 0o7777) for found in (folder, *folder.iterdir())}


ALL_OURS = {"state": "0o700", "ledger.db": "0o600", "ledger.db-wal": "0o600", "ledger.db-shm": "0o600"}


@pytest.mark.usefixtures("umask")
def test_files_are_ours_alone_whatever_the_umask(path: Path) -> None:
    with closing(open_database(path)):
        assert modes(path.parent) == ALL_OURS


def test_the_file_is_ours_alone_before_sqlite_sees_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    connect = sqlite3.connect

    def watch(database: Path, *, isolation_level: None, check_same_thread: bool) -> sqlite3.Connection:
        seen.append(modes(path.parent))
        return connect(database, isolation_level=isolation_level, check_same_thread=check_same_thread)

    monkeypatch.setattr(sqlite3, "connect", watch)
    before = os.umask(0)
    open_database(path).close()
    os.umask(before)
    assert seen == [{"state": "0o700", "ledger.db": "0o600"}]


def test_the_file_is_never_open_to_others_even_for_a_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(fd: int, mode: int) -> None:  # what a fault here would do
        del fd, mode

    monkeypatch.setattr(os, "fchmod", leave)
    before = os.umask(0)
    open_database(path).close()
    os.umask(before)
    assert modes(path.parent)["ledger.db"] == "0o600"


def test_loose_modes_found_at_a_start_are_tightened(path: Path) -> None:
    with closing(open_database(path)):
        path.parent.chmod(0o755)
        for found in path.parent.iterdir():
            found.chmod(0o644)
        with closing(open_database(path)):
            assert modes(path.parent) == ALL_OURS


def test_a_folder_that_is_shared_on_purpose_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o1777)
    with pytest.raises(LedgerError, match="one of its own"):
        open_database(path)
    assert modes(path.parent) == {"state": "0o1777"}


def test_a_folder_of_somebody_else_that_only_they_can_write_to_is_left_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    open_database(path).close()
    assert modes(path.parent) == {"state": "0o755", "ledger.db": "0o600"}


def test_a_folder_that_is_a_file_is_refused_in_words(path: Path) -> None:
    path.parent.write_text("")
    with pytest.raises(LedgerError, match=r"cannot be opened: .*\.$"):
        open_database(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_refused_in_words(path: Path) -> None:
    path.parent.mkdir(mode=0o500)
    with pytest.raises(LedgerError, match="cannot be opened: Permission denied"):
        open_database(path)


def test_a_ledger_that_is_a_folder_is_refused_and_left_as_it_is(path: Path) -> None:
    path.mkdir(parents=True, mode=0o750)
    with pytest.raises(LedgerError, match="no file"):
        open_database(path)
    assert path.stat().st_mode & 0o777 == 0o750


def test_no_space_for_a_new_file_is_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(LedgerFull):
        open_database(path)


def test_decisions_survive_a_power_loss(path: Path) -> None:
    with closing(open_database(path)) as connection:
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert found == ["wal", 2]
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_a_ledger_of_a_later_version_is_refused_and_left_as_it_is(path: Path) -> None:
    with closing(open_database(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    for opener in (open_database, open_read_only):
        with pytest.raises(LedgerDamaged, match="later version"):
            opener(path)


def test_reading_does_not_bring_an_earlier_version_up_to_date(path: Path) -> None:
    with closing(open_database(path)) as connection:
        connection.execute("PRAGMA user_version = 0")
    with pytest.raises(LedgerError, match="earlier version"):
        open_read_only(path)


def test_a_reader_cannot_write(path: Path) -> None:
    open_database(path).close()
    with (
        closing(open_read_only(path)) as connection,
        pytest.raises(LedgerError, match="SQLITE_READONLY"),
        transaction(connection),
    ):
        connection.execute("DELETE FROM sync")


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(LedgerDamaged, match="another program"):
        open_database(path)


@pytest.mark.parametrize("at", [0, 0.3, 0.5])
def test_a_damaged_file_is_refused_and_no_new_one_begun(path: Path, at: float) -> None:
    with closing(open_database(path)) as connection:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO taken (event_id) VALUES (?)", [(f"${n}" * 20,) for n in range(2000)])
        connection.execute("COMMIT")
    content = bytearray(path.read_bytes())
    offset = int(len(content) * at) // 4096 * 4096
    content[offset : offset + 64] = bytes(byte ^ 0xFF for byte in content[offset : offset + 64])
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged):
        open_database(path)
    assert bytes(content) == path.read_bytes()


def test_a_file_system_without_a_write_ahead_log_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def open_in_memory(*_: object, **__: object) -> sqlite3.Connection:  # SQLite keeps no such log there either
        return connect(":memory:", isolation_level=None)

    monkeypatch.setattr(sqlite3, "connect", open_in_memory)
    with pytest.raises(LedgerError, match="write-ahead log"):
        open_database(path)


def test_a_transaction_that_raises_keeps_nothing(path: Path) -> None:
    def store_and_stop(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO taken (event_id) VALUES ('x')")
            raise KeyError

    with closing(open_database(path)) as connection:
        with pytest.raises(KeyError):
            store_and_stop(connection)
        assert connection.execute("SELECT count(*) FROM taken").fetchone() == (0,)


def make_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("words of SQLite")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_NAME"
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, LedgerBusy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, LedgerBusy),
        (sqlite3.SQLITE_LOCKED, LedgerBusy),
        (sqlite3.SQLITE_FULL, LedgerFull),
        (sqlite3.SQLITE_IOERR_FSYNC, LedgerFull),
        (sqlite3.SQLITE_CORRUPT, LedgerDamaged),
        (sqlite3.SQLITE_CORRUPT_INDEX, LedgerDamaged),
        (sqlite3.SQLITE_NOTADB, LedgerDamaged),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, LedgerError),
        (sqlite3.SQLITE_CANTOPEN, LedgerError),
    ],
)
def test_errors_of_sqlite_are_ours_without_its_words(code: int, expected: type[LedgerError]) -> None:
    with pytest.raises(LedgerError) as raised, translated():
        raise make_error(code)
    assert expected is raised.type
    assert "words of SQLite" not in str(raised.value)


def test_a_fault_of_our_own_is_not_dressed_up() -> None:
    with pytest.raises(sqlite3.ProgrammingError), translated():
        raise sqlite3.ProgrammingError


def test_another_process_that_was_quicker_has_done_the_step(path: Path) -> None:
    steps = (*STEPS, ("CREATE TABLE next (x)",))

    class Overtaken(sqlite3.Connection):
        """Another process takes the step between the look at the version and the lock."""

        def execute(self, sql: str, /) -> sqlite3.Cursor:  # pyright: ignore[reportIncompatibleMethodOverride]
            if sql == "BEGIN IMMEDIATE":
                with closing(sqlite3.connect(path, isolation_level=None)) as other:
                    migrate(other, steps)
            return super().execute(sql)

    open_database(path).close()
    with closing(sqlite3.connect(path, isolation_level=None, factory=Overtaken)) as connection:
        migrate(connection, steps)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(steps),)
