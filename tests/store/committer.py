"""A program that commits to a ledger until it is killed: `committer.py FILE STATEMENTS`.

It says `b N` before and `c N` after each commit, and kills itself when it is about to run that many SQL statements.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

import anyio

from bridge.core.changes import StoreTaken
from bridge.core.model import EventId, Millis, SyncToken
from bridge.store.database import open_database
from bridge.store.ledger import SqliteLedger, Worker
from tests.store.values import ask, make_request, queue, start


async def commit_until_killed(path: Path, statements: int) -> None:
    connection = open_database(path)
    left = itertools.count(statements, -1)

    def count(_: str) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    connection.set_trace_callback(count)
    ledger = SqliteLedger(connection, Worker())
    await ledger.commit([start()], at=Millis(0))
    for number in itertools.count(1):
        request = make_request(number)
        changes = [ask(request), queue(request, f"t{number}"), StoreTaken(EventId(f"${number}"))]
        sys.stdout.write(f"b {number}\n")
        sys.stdout.flush()
        await ledger.commit(changes, at=Millis(number), token=SyncToken(f"s{number}"))
        sys.stdout.write(f"c {number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(commit_until_killed, Path(sys.argv[1]), int(sys.argv[2]))
