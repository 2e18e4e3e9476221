"""The real ledger, with the faults that a case asks for in the moment in which an answer is stored.

Above it: the stage. Below it: `core.ports.Ledger`, whichever it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.core.changes import Change, Record, Snapshot, StoreDecision
from bridge.core.errors import LedgerError
from bridge.core.model import Millis, SessionId, SyncToken
from bridge.core.ports import Ledger


@dataclass(frozen=True, slots=True)
class Commit:
    """What was to be stored, and whether it was."""

    changes: tuple[Change, ...]
    stored: bool


class FaultyLedger:
    """Implements `core.ports.Ledger`; each of `faults` is raised once, by a commit that stores a decision."""

    def __init__(self, inner: Ledger, faults: list[LedgerError], commits: list[Commit]) -> None:
        self._inner = inner
        self._faults = faults
        self._commits = commits

    async def load(self) -> Snapshot:
        return await self._inner.load()

    async def commit(self, changes: Sequence[Change], *, at: Millis, token: SyncToken | None = None) -> list[Record]:
        fails = bool(self._faults) and any(isinstance(change, StoreDecision) for change in changes)
        self._commits.append(Commit(tuple(changes), not fails))
        if fails:
            raise self._faults.pop(0)
        return await self._inner.commit(changes, at=at, token=token)

    async def history(
        self, after: dict[SessionId, int] | None = None, *, session_id: SessionId | None = None
    ) -> list[Record]:
        return await self._inner.history(after, session_id=session_id)

    async def close(self) -> None:
        await self._inner.close()
