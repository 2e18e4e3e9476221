"""A program that commits to a ledger until it is killed: `committer.py FILE`. It says `b N` before and `c N` after each."""

import itertools
import sys
from pathlib import Path

import anyio

from bridge.core.events import StoreTaken
from bridge.core.model import EventId, Millis, SyncToken
from bridge.store.ledger import SqliteLedger
from tests.store.values import ask, make_request, queue, start


async def commit_until_killed(path: Path) -> None:
    ledger = await SqliteLedger.open(path)
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
    anyio.run(commit_until_killed, Path(sys.argv[1]))
