"""MatrixRooms at work on a homeserver, with all that it delivers and hands over kept for the test to look at."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from bridge.core.changes import Priority, StoreLocked
from bridge.core.errors import LedgerBusy
from bridge.core.events import Event
from bridge.core.model import JsonObject, RoomId, SyncToken, TransactionId, UserId
from bridge.core.ports import Outgoing
from bridge.matrix.client import Client
from bridge.matrix.patience import Patience
from bridge.matrix.rooms import MatrixRooms
from bridge.matrix.sealing import Sealing
from bridge.matrix.sync import Steps

ROOM = RoomId("!room")
OTHER = RoomId("!other")
SOON = Patience(first_s=0.01, most_s=0.02)
FOREVER_S = 600.0

Kind = TypeVar("Kind")


def outgoing(
    txn: str,
    *,
    room: RoomId = ROOM,
    priority: Priority = Priority.PROMPT,
    content: JsonObject | None = None,
    event_type: str = "m.room.message",
) -> Outgoing:
    return Outgoing(
        transaction_id=TransactionId(txn),
        room=room,
        event_type=event_type,
        content=content or {"msgtype": "m.text", "body": txn},
        priority=priority,
    )


class Running:
    """What a test sees of the rooms: `taken` batches with their tokens, `delivered` events, and a way to wait."""

    def __init__(
        self,
        client: Client,
        *,
        bot: UserId,
        bound: Mapping[RoomId, bool],
        muted_most_s: float,
        sealing: Sealing | None,
        verifications: Steps | None,
        follow_upgrades: bool,
    ) -> None:
        self.taken: list[tuple[list[Event], SyncToken]] = []
        self.offered: list[list[Event]] = []  # also the batches that could not be stored
        self.delivered: list[Event] = []
        self.refusals = 0
        self.patience_s = 5.0
        self.ready = anyio.Event()
        self.ended: Exception | None = None
        self._moved = anyio.Event()
        self.rooms = MatrixRooms(
            client,
            bot=bot,
            names=("Bridge",),
            bound=bound,
            deliver=self._deliver,
            take=self._take,
            sealing=sealing,
            no_sealing_reason="Encryption is switched off in the config.",
            verifications=verifications,
            follow_upgrades=follow_upgrades,
            patience=SOON,
            muted_most_s=muted_most_s,
        )

    def _deliver(self, event: Event) -> None:
        self.delivered.append(event)
        self._moved.set()

    async def _take(self, events: Sequence[Event], token: SyncToken) -> None:
        self.offered.append(list(events))
        if self.refusals:
            self.refusals -= 1
            self._moved.set()
            raise LedgerBusy("The ledger is locked.")
        self.taken.append((list(events), token))
        self._moved.set()

    async def run(
        self,
        since: SyncToken | None,
        held: Sequence[StoreLocked],
        encrypted: Sequence[RoomId],
        moved: Sequence[tuple[RoomId, RoomId]],
    ) -> None:
        try:
            await self.rooms.run(since, ready=self.ready, held=held, encrypted=encrypted, moved=moved)
        except Exception as error:  # noqa: BLE001 - a test looks at what it ended with
            self.ended = error
            self._moved.set()

    async def until(self, true: Callable[[], object]) -> None:
        with anyio.fail_after(self.patience_s):
            while not true():
                self._moved = anyio.Event()
                await self._moved.wait()

    def events(self, kind: type[Kind]) -> list[Kind]:
        """All events of a kind that were stored, in order."""
        return [event for batch, _ in self.taken for event in batch if isinstance(event, kind)]


@asynccontextmanager
async def running(
    client: Client,
    *,
    bound: Mapping[RoomId, bool] | None = None,
    since: str | None = None,
    bot: str = "@bot:hs",
    muted_most_s: float = FOREVER_S,
    refusals: int = 0,
    sealing: Sealing | None = None,
    verifications: Steps | None = None,
    follow_upgrades: bool = False,
    held: Sequence[StoreLocked] = (),
    encrypted: Sequence[RoomId] = (),
    moved: Sequence[tuple[RoomId, RoomId]] = (),
    wait: bool = True,
) -> AsyncGenerator[Running]:
    """The rooms, running; when `wait`, after the first batch."""
    made = Running(
        client,
        bot=UserId(bot),
        bound={ROOM: False} if bound is None else bound,
        muted_most_s=muted_most_s,
        sealing=sealing,
        verifications=verifications,
        follow_upgrades=follow_upgrades,
    )
    made.refusals = refusals
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run, None if since is None else SyncToken(since), held, encrypted, moved)
        if wait:
            with anyio.fail_after(5):
                await made.ready.wait()
        yield made
        tasks.cancel_scope.cancel()
