"""The file of the ledger: its modes, its version, its transactions, and SQLite's errors as ours.

Above it: `reads`, `writes` and `ledger`. Below it: `migrations` and the operating system. It knows none of the tables.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge.core.errors import LedgerBusy, LedgerDamaged, LedgerError, LedgerFull
from bridge.store.migrations import STEPS, Step

BUSY_TIMEOUT_MS = 2_000  # outlasts a copy of the file or a checkpoint by another process; people do not notice it yet

_FILE_MODE = 0o600  # rule 21
_FOLDER_MODE = 0o700  # rule 21
_COMPANIONS = ("-wal", "-shm")  # SQLite gives them the mode of the database file
_PRIMARY_CODE = 0xFF  # an extended error code of SQLite holds its primary code in the low byte

_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FULL_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_DAMAGE_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def open_database(path: Path) -> sqlite3.Connection:
    """Open the ledger's file for writing, make it where it is missing, and bring its tables up to date.

    The file and its companions are 0600 and the folder 0700 from the first byte; looser ones are tightened. A folder
    that others can write to and that is not ours to tighten is refused.
    """
    with _translated_files(path):
        _prepare_folder(path.parent)
        _prepare_files(path)
    with translated():
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            _configure(connection)
            _check(connection)
            migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open the ledger's file for reading, whether or not a bridge is writing to it."""
    if not path.exists():
        raise LedgerError(f"There is no ledger at {path}.")
    with translated():
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            _refuse_earlier(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def migrate(connection: sqlite3.Connection, steps: Sequence[Step] = STEPS) -> None:
    """Take the tables to the last version, each step in a transaction of its own together with its number."""
    while (version := _read_version(connection, len(steps))) < len(steps):
        with transaction(connection):
            if _read_version(connection, len(steps)) == version:  # else another process was quicker
                _take(connection, version, steps[version])


@contextmanager
def transaction(connection: sqlite3.Connection, *, writes: bool = True) -> Generator[None]:
    """Run the block as one transaction: all of it is kept, or, when it raises, nothing."""
    with translated():
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


@contextmanager
def translated() -> Generator[None]:
    """Turn SQLite's errors into the ledger's."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a fault of this package, not of the file
    except sqlite3.DatabaseError as error:
        raise _translate(error) from error


def _translate(error: sqlite3.DatabaseError) -> LedgerError:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # Python itself could not read a text: it is not UTF-8
        return LedgerDamaged("The ledger is damaged: a text in it cannot be read.")
    primary = code & _PRIMARY_CODE
    if primary in _BUSY_CODES:
        return LedgerBusy("The ledger is locked by another program.")
    if primary in _FULL_CODES:
        return LedgerFull("The ledger could not be written: the disk is full or fails.")
    if primary in _DAMAGE_CODES:
        return LedgerDamaged("The ledger's file is damaged or is no database.")
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return LedgerError("The ledger refused a change that contradicts what it holds.")
    return LedgerError(f"The ledger cannot be used: SQLite says {error.sqlite_errorname}.")


@contextmanager
def _translated_files(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        kind = LedgerFull if error.errno in {errno.ENOSPC, errno.EDQUOT} else LedgerError
        raise kind(f"The ledger {path} cannot be opened: {error.strerror}.") from error


def _prepare_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True)
    except FileExistsError:
        _tighten_folder(folder)
    else:
        folder.chmod(_FOLDER_MODE)  # the umask may have taken more away


def _tighten_folder(folder: Path) -> None:
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and not mode & stat.S_ISVTX:  # a sticky folder is shared on purpose
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            folder.chmod(mode & _FOLDER_MODE)
    elif mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LedgerError(f"The folder {folder} can be written to by others; the ledger needs one of its own.")


def _prepare_files(path: Path) -> None:
    try:
        # Only a new file is opened here: to close one would take SQLite's locks away from this process.
        created = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    except FileExistsError:
        if not path.is_file():
            raise LedgerError(f"The ledger {path} cannot be opened: it is no file.") from None
        for found in (path, *(path.with_name(path.name + suffix) for suffix in _COMPANIONS)):
            with suppress(FileNotFoundError):
                if stat.S_IMODE(found.stat().st_mode) != _FILE_MODE:
                    found.chmod(_FILE_MODE)
    else:
        try:
            os.fchmod(created, _FILE_MODE)  # the umask may have taken more away
        finally:
            os.close(created)


def _configure(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA foreign_keys = ON")
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise LedgerError("The ledger cannot lie here: this file system does not let SQLite keep a write-ahead log.")
    connection.execute("PRAGMA synchronous = FULL")  # rule 19: a decision that was reported survives a power loss


def _check(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise LedgerDamaged("The ledger's file is damaged; put a backup in its place, or move it away to begin anew.")


def _refuse_earlier(connection: sqlite3.Connection) -> None:
    if _read_version(connection, len(STEPS)) < len(STEPS):
        raise LedgerError("The ledger is of an earlier version of the bridge; start this one once to update it.")


def _take(connection: sqlite3.Connection, version: int, step: Step) -> None:
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise LedgerDamaged("The ledger's file is a database of another program.")
    for statement in step:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {version + 1}")


def _read_version(connection: sqlite3.Connection, known: int) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= known:
        raise LedgerDamaged(
            f"The ledger is of a later version of the bridge (its tables are version {version}, this bridge knows {known})."
        )
    return version
