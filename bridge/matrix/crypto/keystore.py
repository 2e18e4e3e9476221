"""The files that hold the private keys of our device, and what must be remembered for as long as they live.

Above it: the machine. Below it: SQLite, and nio's store for the device's account and its sessions with other devices.
It refuses to know what a key opens, who may have one, and the network.

One SQLite file, so that a key and the step that it came by are kept together or not at all: a device-to-device message
can be decrypted only once, and if the room key in it was lost on the way nobody sends it again. nio keeps room keys as
well, under the session's id alone and all of them in memory; ours are in a table of their own, found by whose they are
and read when a message needs them, so a start costs the same after a year.

nio makes its file 0644 and pickles under a constant; here the file exists before nio opens it, and the key is random
(design.md, rule 21). SQLite gives its journal files the mode of the database.
"""

import os
import secrets
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nio.crypto import InboundGroupSession, OlmAccount, Session
from nio.store import SqliteStore
from peewee import PeeweeException, SqliteDatabase

from bridge.core.errors import KeysDamaged, KeysLost

DATABASE = "keys.db"
PICKLE_KEY = "pickle.key"
JOURNALS = ("-wal", "-shm", "-journal")
VERSION = 1  # of our own tables, in SQLite's `user_version`; nio counts in a table

DAY_MS = 24 * 3600 * 1000
OWN_KEPT_MS = 30 * DAY_MS  # of the keys that we send under: only our own echo is ever opened with one
OTHERS_KEPT_MS = 180 * DAY_MS  # since a key was last used; clients change theirs after 7 days or 100 messages
UNUSED_MOST = 5_000  # keys that never opened anything: a stranger can send as many as they like, to any room
WITHHELD_MOST = 1_000  # the same of notices
STRANGERS_MOST = 5_000  # keys whose sessions brought nothing that was ever used: anybody can begin one under any key
SESSIONS_MOST = 5  # with one device; two can cross on the way, more are left over from repairs

TABLES = """
CREATE TABLE IF NOT EXISTS room_keys (
    room TEXT NOT NULL, session_id TEXT NOT NULL, sender_key TEXT NOT NULL, signing_key TEXT NOT NULL,
    first_index INTEGER NOT NULL, pickle BLOB, kept_at INTEGER NOT NULL, used_at INTEGER,
    PRIMARY KEY (room, session_id, sender_key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS read_messages (
    sender_key TEXT NOT NULL, session_id TEXT NOT NULL, message_index INTEGER NOT NULL, event_id TEXT NOT NULL,
    PRIMARY KEY (sender_key, session_id, message_index)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS withheld (
    number INTEGER PRIMARY KEY, sender TEXT NOT NULL, room TEXT NOT NULL, session_id TEXT NOT NULL,
    UNIQUE (sender, room, session_id)
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomKey:
    """A key that opens a run of messages in one room, and the two keys of the device that it came from."""

    room: str
    session: InboundGroupSession
    sender_key: str
    signing_key: str


class _Store(SqliteStore):
    """nio's store in a file that is there already, with one flush to the disk for each change and not three.

    What is saved for every letter is written here and not by nio, which puts all its tables together anew for each: the
    same rows, but a hundred devices of a room held everybody up for most of a second.
    """

    def _create_database(self) -> SqliteDatabase:
        pragmas = {"foreign_keys": 1, "secure_delete": 1, "journal_mode": "wal", "synchronous": "full"}
        return SqliteDatabase(self.database_path, pragmas=pragmas)

    def save_account(self, account: OlmAccount) -> None:
        """Save our own keys."""
        cast("Any", self).database.execute_sql(
            "INSERT INTO accounts (user_id, device_id, shared, account) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (user_id, device_id) DO UPDATE SET shared = excluded.shared, account = excluded.account",
            (self.user_id, self.device_id, account.shared, account.pickle(self.pickle_key)),
        )

    def save_session(self, curve_key: str, session: Session) -> None:
        """Save a session with the device of this key."""
        # always with a fraction: without one nio could not read it, and no session at all
        created, used = (
            moment.isoformat(sep=" ", timespec="microseconds") for moment in (session.creation_time, session.use_time)
        )
        cast("Any", self).database.execute_sql(
            "INSERT OR REPLACE INTO olmsessions"
            " (session_id, sender_key, session, creation_time, last_usage_date, account_id)"
            " SELECT ?, ?, ?, ?, ?, id FROM accounts WHERE user_id = ? AND device_id = ?",
            (
                session.id,
                curve_key,
                session.pickle(self.pickle_key),
                created,
                used,
                self.user_id,
                self.device_id,
            ),
        )


def exists(folder: Path, user: str, device: str) -> bool:
    """Whether the private keys of this device are there. Raises `KeysDamaged` when that cannot be read."""
    return (user, device) in _accounts(folder)


def read_account(folder: Path, user: str, device: str) -> tuple[bytes, str] | None:
    """The pickle of the device's own keys and what opens it, read beside whoever has the store open; None where none is.

    Raises `KeysLost` where only another device's are there, `KeysDamaged` when they cannot be read.
    """
    rows = _read(folder, "SELECT user_id, device_id, account FROM accounts")
    if not rows:
        return None
    pickles = {(owner, name): pickle for owner, name, pickle in rows}
    if (user, device) not in pickles:
        raise KeysLost(f"The keys of device {device} are not in {folder}.")
    return bytes(pickles[user, device]), _prepare(folder, create=False)


def discard(folder: Path) -> None:
    """Delete all keys, once the homeserver has forgotten the device: they open nothing any more."""
    names = (DATABASE, *(DATABASE + journal for journal in JOURNALS), PICKLE_KEY)
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise KeysDamaged(f"The keys in {folder} cannot be deleted: {error.strerror}.") from None


class KeyStore:
    """The open store of one device. For one thread of one process; the lock of the state folder sees to the latter."""

    def __init__(self, folder: Path, user: str, device: str, *, create: bool) -> None:
        """Raises `KeysLost` where the device's keys are not there (unless `create`), `KeysDamaged` where they are broken."""
        found = _accounts(folder)
        if (user, device) not in found and (found or not create):
            raise KeysLost(f"The keys of device {device} are not in {folder}.")
        self.passphrase = _prepare(folder, create=create and not found)
        with translated():
            self.nio = _Store(user, device, str(folder), pickle_key=self.passphrase, database_name=DATABASE)
            self._database: Any = cast("Any", self.nio).database
            self._sql = cast("sqlite3.Connection", self._database.connection())
            self._sql.executescript(TABLES)
            self._sql.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def atomic(self) -> Generator[None]:
        """What is stored inside is kept as a whole or not at all."""
        with translated(), self._database.atomic():
            yield

    # ---------------------------------------------------------------------------------------------------- room keys

    def room_keys(self, room: str, session_id: str) -> tuple[RoomKey, ...]:
        """The keys of this name in this room, in the order they came. Several only if somebody passes on another's."""
        with translated():
            rows = self._sql.execute(
                "SELECT sender_key, signing_key, pickle FROM room_keys"
                " WHERE room = ? AND session_id = ? AND pickle IS NOT NULL ORDER BY kept_at",
                (room, session_id),
            ).fetchall()
        try:
            return tuple(
                RoomKey(
                    room=room,
                    session=InboundGroupSession.from_pickle(pickle, signing_key, sender_key, room, self.passphrase),
                    sender_key=sender_key,
                    signing_key=signing_key,
                )
                for sender_key, signing_key, pickle in rows
            )
        except (ValueError, AttributeError):  # vodozemac's are ValueErrors; the other: it is no pickle at all
            raise KeysDamaged("The store of the keys holds a room key that cannot be read.") from None

    def keep_room_key(self, key: RoomKey, now: int) -> bool:
        """Keep a key, unless the same one is there that opens as much; False then.

        A key that was dropped for its age does not come back: what it opened is no longer known.
        """
        session = key.session
        with translated():
            changed = self._sql.execute(
                "INSERT INTO room_keys (room, session_id, sender_key, signing_key, first_index, pickle, kept_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET first_index = excluded.first_index, pickle = excluded.pickle"
                " WHERE pickle IS NOT NULL AND signing_key = excluded.signing_key"
                " AND excluded.first_index < first_index",
                (
                    key.room,
                    session.id,
                    key.sender_key,
                    key.signing_key,
                    session.first_known_index,
                    session.pickle(self.passphrase),
                    now,
                ),
            ).rowcount
        return changed > 0

    def read_as(self, key: RoomKey, index: int, event_id: str, now: int) -> str:
        """The event that this message was read as: `event_id` the first time, and for ever after the same."""
        where = (key.sender_key, key.session.id, index)
        with self.atomic():
            self._sql.execute("INSERT OR IGNORE INTO read_messages VALUES (?, ?, ?, ?)", (*where, event_id))
            (first,) = self._sql.execute(
                "SELECT event_id FROM read_messages WHERE sender_key = ? AND session_id = ? AND message_index = ?",
                where,
            ).fetchone()
            self._sql.execute(
                "UPDATE room_keys SET used_at = ? WHERE room = ? AND session_id = ? AND sender_key = ?",
                (now, key.room, key.session.id, key.sender_key),
            )
        return cast("str", first)

    def keep_withheld(self, sender: str, room: str, session_id: str) -> None:
        """Remember that somebody says they keep a key from us."""
        with self.atomic():
            self._sql.execute(
                "INSERT OR IGNORE INTO withheld (sender, room, session_id) VALUES (?, ?, ?)", (sender, room, session_id)
            )
            self._sql.execute(
                "DELETE FROM withheld WHERE number <= (SELECT max(number) FROM withheld) - ?", (WITHHELD_MOST,)
            )

    def is_withheld(self, sender: str, room: str, session_id: str) -> bool:
        """Whether they said so."""
        with translated():
            found = self._sql.execute(
                "SELECT 1 FROM withheld WHERE sender = ? AND room = ? AND session_id = ?", (sender, room, session_id)
            ).fetchone()
        return found is not None

    # -------------------------------------------------------------------------------------------------------- facts

    def fact(self, name: str) -> str | None:
        """A small thing that was noted under this name."""
        with translated():
            found = self._sql.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if found is None else cast("str", found[0])

    def note(self, name: str, value: str) -> None:
        """Note a small thing."""
        with translated():
            self._sql.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # ------------------------------------------------------------------------------------------------------- ageing

    def age(self, own_key: str, now: int) -> None:
        """Drop what will not be needed: old keys, with what was read by them, and what strangers sent too much of.

        Of a key that was used the name stays, so that it cannot be brought back to have old messages read anew.
        """
        with self.atomic():
            self._sql.execute(
                "DELETE FROM room_keys WHERE sender_key = ? AND kept_at < ?", (own_key, now - OWN_KEPT_MS)
            )
            self._sql.execute(
                "DELETE FROM room_keys WHERE used_at IS NULL AND (room, session_id, sender_key) IN (SELECT room,"
                " session_id, sender_key FROM room_keys WHERE used_at IS NULL ORDER BY kept_at DESC LIMIT -1 OFFSET ?)",
                (UNUSED_MOST,),
            )
            self._sql.execute("UPDATE room_keys SET pickle = NULL WHERE used_at < ?", (now - OTHERS_KEPT_MS,))
            self._sql.execute(
                "DELETE FROM read_messages WHERE (sender_key, session_id) IN"
                " (SELECT sender_key, session_id FROM room_keys WHERE pickle IS NULL)"
            )
            self._sql.execute(
                "DELETE FROM olmsessions WHERE session_id IN (SELECT session_id FROM (SELECT session_id, row_number()"
                " OVER (PARTITION BY sender_key ORDER BY creation_time DESC) AS place FROM olmsessions) WHERE place > ?)",
                (SESSIONS_MOST,),
            )
            self._sql.execute(  # whoever is forgotten and does write later begins anew: such a letter is repaired
                "DELETE FROM olmsessions WHERE sender_key IN (SELECT sender_key FROM olmsessions WHERE sender_key NOT IN"
                " (SELECT sender_key FROM room_keys WHERE used_at IS NOT NULL) GROUP BY sender_key"
                " ORDER BY max(creation_time) DESC LIMIT -1 OFFSET ?)",
                (STRANGERS_MOST,),
            )


@contextmanager
def translated() -> Generator[None]:
    """What SQLite or a pickle says becomes ours."""
    try:
        yield
    except (PeeweeException, sqlite3.Error, OSError) as error:
        raise KeysDamaged(f"The store of the keys cannot be used ({error}).") from None


def _accounts(folder: Path) -> frozenset[tuple[str, str]]:
    """Whose keys are in the folder: user and device."""
    return frozenset(_read(folder, "SELECT user_id, device_id FROM accounts"))


def _read(folder: Path, question: str) -> list[tuple[Any, ...]]:
    """What the table of accounts says; nothing where there is none yet."""
    path = folder / DATABASE
    try:
        if not path.exists() or path.stat().st_size == 0:
            return []
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except (OSError, sqlite3.Error) as error:
        raise KeysDamaged(f"The keys in {folder} cannot be read ({error}).") from None
    try:
        table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'accounts'"
        if connection.execute(table).fetchone() is None:
            return []
        return connection.execute(question).fetchall()
    except sqlite3.Error as error:
        raise KeysDamaged(f"The keys in {folder} cannot be read ({error}).") from None
    finally:
        connection.close()


def _prepare(folder: Path, *, create: bool) -> str:
    """The pickle key, and a database file that others cannot read before anything is in it."""
    key, database = folder / PICKLE_KEY, folder / DATABASE
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            if not key.exists():
                _create(key, secrets.token_urlsafe(32))
            if not database.exists():
                _create(database, "")
        return key.read_text()
    except OSError as error:
        raise KeysDamaged(f"The keys in {folder} cannot be used: {error.strerror}.") from None


def _create(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
