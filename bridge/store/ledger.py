"""The ledger: `core.ports.Ledger` over SQLite, and the history for a program that only reads it.

Above it: relay (through the port) and app; the command line reads the history. Below it: `reads`, `writes` and `database`. It
knows no SQL; its part is that SQLite, which blocks, has one thread of its own and the event loop never waits in it.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Self, TypeVar

import anyio

from bridge.core.changes import Change, Record, Snapshot
from bridge.core.errors import LedgerError
from bridge.core.model import AgentName, Millis, SessionId, SyncToken, UserId
from bridge.store.database import open_database, open_read_only
from bridge.store.reads import load, load_pins, read_records
from bridge.store.writes import store

Result = TypeVar("Result")


class Worker:
    """A thread of its own for calls that block, one after another.

    What it adds to a call people wait for, and it is half of what an executor and its two kinds of futures add.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon: what a killed program leaves half done, SQLite undoes.
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`. Cannot be cancelled."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def call() -> None:
            finish: Callable[[], None]
            try:
                finish = partial(done.set_result, work())
            except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for it
                finish = partial(done.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(lambda: done.done() or finish())

        self._calls.put(call)
        # Shielded: a commit cannot be called back, and its caller must not believe that nothing was kept.
        with anyio.CancelScope(shield=True):
            await done
        return done.result()

    def end(self) -> None:
        """Finish what is queued."""
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class SqliteLedger:
    """The ledger in one SQLite file. Calls are carried out one after another, in the order in which they were made."""

    def __init__(self, connection: sqlite3.Connection, thread: Worker) -> None:
        self._connection = connection
        self._thread = thread
        self._closed = False

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open the file, make it where it is missing, and bring it up to date.

        Raises `LedgerDamaged` for a file that is damaged, another program's or of a later version, and `LedgerError`
        where it cannot be opened at all.
        """
        thread = Worker()
        try:
            return cls(await thread.run(lambda: open_database(path)), thread)
        except BaseException:
            thread.end()
            raise

    async def load(self) -> Snapshot:
        """Read what a start finds. Requests are in the order of asking, or of ending; the rest in that of storing."""
        return await self._run(lambda: load(self._connection))

    async def commit(self, changes: Sequence[Change], *, at: Millis, token: SyncToken | None = None) -> list[Record]:
        """Store all of it durably, or raise and keep nothing (see the port)."""
        kept = tuple(changes)  # the caller may go on with its list
        return await self._run(lambda: store(self._connection, kept, at, token))

    async def history(
        self, after: dict[SessionId, int] | None = None, *, session_id: SessionId | None = None
    ) -> list[Record]:
        """Read history rows in the order they were stored, of one session or all, each session's after its number."""
        sequences = dict(after or {})
        return await self._run(lambda: read_records(self._connection, sequences, session_id=session_id))

    async def close(self) -> None:
        """Finish what is queued and close the file; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        await self._thread.run(self._connection.close)
        self._thread.end()

    async def _run(self, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise LedgerError("The ledger is closed.")
        return await self._thread.run(work)


def read_history(
    path: Path,
    *,
    after: Mapping[SessionId, int] | None = None,
    session_id: SessionId | None = None,
    agent: AgentName | None = None,
) -> list[Record]:
    """Read history rows, in the order they were stored, from a ledger that a bridge may be writing to meanwhile.

    `after`, `session_id` and `agent` narrow it down. Raises `LedgerError` where there is no ledger that can be read.
    """
    connection = open_read_only(path)
    try:
        return read_records(connection, after or {}, session_id=session_id, agent=agent)
    finally:
        connection.close()


def read_pins(path: Path) -> list[tuple[UserId, str]]:
    """The pinned identities, from a ledger that a bridge may be writing to meanwhile; none where there is no ledger yet.

    Raises `LedgerError` where it cannot be read.
    """
    if not path.exists():
        return []
    connection = open_read_only(path)
    try:
        return load_pins(connection)
    finally:
        connection.close()
