"""Takes every event of the bridge in order: one transaction each, then what it brings about.

Above it: app. Below it: weighing (what an event comes to), and through ports the ledger, the harnesses and the rooms. The
ledger comes first, then the harness, then the room (design.md, rules 17 and 19). When a transaction fails the core is put back
as it was, so nothing counts that is not stored. Nothing here decides anything, reads a frame or words a sentence.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.abc
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from bridge.core.changes import Priority, Record, StoreDecision
from bridge.core.effects import CancelTurn, CloseSession, Log, Receipt, Respond, StartTurn, Typing, WakeAt, Withhold
from bridge.core.errors import AlreadyDecided, LedgerBusy, LedgerDamaged, LedgerError, LedgerFull
from bridge.core.events import AnsweredLocally, Asked, DeadlineReached, Event, SendFailed, Sent, ShuttingDown, TooLarge
from bridge.core.messages import AgentStatus, NotStored
from bridge.core.model import (
    Cancelled,
    EventId,
    Millis,
    Phase,
    Reason,
    RequestId,
    Rules,
    SyncToken,
    TransactionId,
)
from bridge.core.ports import Agents, Ledger, Outgoing, Rooms
from bridge.core.state import State
from bridge.relay.deadlines import Deadlines
from bridge.relay.tickets import Ticket
from bridge.relay.weighing import Carried, Start, Weighing, Work, read_start

log = structlog.get_logger()

TAKEN_KEPT = 10_000  # room events remembered so that none counts twice; far more than any server sends again
BUSY_TRIES = 5  # a locked database is tried again this often before its event is put off
BUSY_PAUSE_S = 0.05  # doubled each time; whoever holds the lock holds it for one transaction
PUT_OFF_S = 1.0  # an event of a harness that could not be stored is tried again after this
HELD_TRIES = 10  # by then a ledger that refuses what it should take does so for good, and the others go on
SUBSCRIBER_HOLDS = 1_000  # records that a slow reader of the history may lag behind before it is cut off


@dataclass(frozen=True, slots=True)
class _Item:
    """What is stored in one transaction."""

    events: tuple[Event, ...]
    token: SyncToken | None = None
    ticket: Ticket | None = None

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


AGAIN = _Item(())  # nothing but a reason to try what could not be stored


class Relay:
    """Takes every event of the bridge, one after the other."""

    def __init__(
        self,
        rules: Rules,
        *,
        ledger: Ledger,
        agents: Agents,
        rooms: Rooms,
        clock: Callable[[], Millis],
        new_token: Callable[[], str],
    ) -> None:
        """`clock` gives Unix milliseconds; `new_token` a fresh, unguessable part of a transaction id."""
        self._ledger, self._agents, self._rooms, self._clock = ledger, agents, rooms, clock
        self._weighing = Weighing(rules, rooms=rooms, clock=clock, new_token=new_token)
        self._deadlines = Deadlines(clock=clock, reached=self._reach, is_open=self._is_open)
        self._queue: deque[_Item] = deque()
        self._wake = anyio.Event()
        self._changed = anyio.Event()
        self._taken: OrderedDict[EventId, None] = OrderedDict()
        self._unsent: set[TransactionId] = set()
        self._tickets: dict[int, Ticket] = {}
        self._subscribers: set[MemoryObjectSendStream[Record]] = set()
        self._not_stored_told = False
        self._unrecorded: set[TransactionId] = set()  # sent while the ledger took nothing
        self._held: deque[_Item] = deque()  # could not be stored yet; what comes later waits for it
        self._held_tries = 0
        self._retrying = False
        self._tasks: anyio.abc.TaskGroup | None = None

    # ------------------------------------------------------------------------------------------------------- the loop

    async def load(self) -> Start:
        """Read the ledger, end what the last run left open, and give back what the rooms go on from."""
        found = await self._ledger.load()
        self._taken = OrderedDict.fromkeys(found.taken)
        work = self._weighing.recover(found)
        self._publish(await self._commit(work, None))
        self._carry_out(work.carried)
        return read_start(found)

    @property
    def state(self) -> State:
        """What the broker knows now; `load` comes first."""
        return self._weighing.state

    def status(self) -> tuple[AgentStatus, ...]:
        """How each agent is."""
        return self._weighing.describe()

    def deliver(self, event: Event) -> None:
        """Take an event of an adapter; never waits."""
        if isinstance(event, Sent | SendFailed | TooLarge) and event.transaction_id in self._unrecorded:
            self._unrecorded.discard(event.transaction_id)  # the ledger knows nothing of it
        else:
            self._put(_Item((event,)))

    async def take(self, events: Sequence[Event], token: SyncToken) -> None:
        """Take one sync batch; returns once it is stored together with its token, else raises `LedgerError`."""
        ticket = Ticket()
        self._put(_Item(tuple(events), token, ticket))
        await ticket.wait()

    async def answer(self, event: AnsweredLocally) -> Reason | None:
        """Take an answer of the control socket: None once the harness has it, else why it does not wait any more."""
        ticket = self._tickets[event.ticket] = Ticket()
        self.deliver(event)
        try:
            return await ticket.wait()
        finally:
            self._tickets.pop(event.ticket, None)

    def _put(self, item: _Item) -> None:
        self._queue.append(item)
        self._wake.set()

    async def run(self) -> None:
        """Take events until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._deadlines.watch)
            while True:
                while self._queue:
                    await self._take_in_order(self._queue[0])
                    self._queue.popleft()  # only now: whoever waits for an empty queue waits for this one, too
                    self._note_change()
                self._wake = anyio.Event()
                await self._wake.wait()

    async def _take_in_order(self, item: _Item) -> None:
        """What could not be stored comes first: an answer must not overtake the change or the cancel it came after."""
        while self._held:
            self._held_tries += item is AGAIN
            error = await self._guard(self._held[0], patient=self._held_tries < HELD_TRIES)
            if error is not None:
                self._put_off(item, error)
                return
            self._held.popleft()
            self._held_tries = 0
        error = await self._guard(item, patient=item.ticket is None)
        if error is not None:
            self._put_off(item, error)

    async def _guard(self, item: _Item, *, patient: bool) -> Exception | None:
        """Round one event: whatever goes wrong with it, the next one is taken (style.md, section 3).

        The error, when nothing was stored and the same may be tried again; `patient`: also after one that may not pass.
        """
        try:
            work = await self._store(item)
        except LedgerError as error:
            passing = isinstance(error, LedgerBusy | LedgerFull | LedgerDamaged)
            if passing or (patient and not isinstance(error, AlreadyDecided)):
                return error
            log.exception("relay.refused_by_ledger", events=item.names)
            return await self._take_apart(item, error)
        except Exception as error:
            log.exception("relay.event_failed", events=item.names)
            return await self._take_apart(item, error)
        self._carry_out(work.carried)
        if item.ticket is not None:
            item.ticket.finish()
        return None

    async def _store(self, item: _Item) -> Work:
        """What the item comes to, once it is stored; until then nothing of it counts and the core is as it was."""
        before = self._weighing.mind
        try:
            work = self._weighing.weigh(item.events, self._taken)
            records = await self._commit(work, item.token)
        except BaseException:
            self._weighing.restore(before)
            raise
        self._note_stored(item, work)
        self._publish(records)
        return work

    async def _commit(self, work: Work, token: SyncToken | None) -> list[Record]:
        if not work.changes and token is None:
            return []
        pause = BUSY_PAUSE_S
        for _ in range(BUSY_TRIES - 1):
            try:
                return await self._ledger.commit(work.changes, at=self._clock(), token=token)
            except LedgerBusy:
                await anyio.sleep(pause)
                pause *= 2
        return await self._ledger.commit(work.changes, at=self._clock(), token=token)

    def _note_stored(self, item: _Item, work: Work) -> None:
        self._not_stored_told = False
        self._taken.update(dict.fromkeys(work.taken))
        while len(self._taken) > TAKEN_KEPT:
            self._taken.popitem(last=False)
        for event in item.events:
            if isinstance(event, Sent | SendFailed | TooLarge):
                self._unsent.discard(event.transaction_id)

    # ---------------------------------------------------------------------------------------------------- what goes wrong

    def _put_off(self, item: _Item, error: Exception) -> None:
        """Not stored, so it did not happen: a batch is given again by the rooms, a harness's event by us."""
        log.error("relay.not_stored", reason=type(error).__name__, events=item.names)
        if item.ticket is not None:
            self._tell_not_stored(item)
            item.ticket.finish(error=error)
        elif later := tuple(event for event in item.events if not self._refuse(event, error)):
            self._held.append(_Item(later))
        if self._held and not self._retrying and self._tasks is not None:
            self._retrying = True
            self._tasks.start_soon(self._retry_later)

    async def _retry_later(self) -> None:
        await anyio.sleep(PUT_OFF_S)
        self._retrying = False
        self._put(AGAIN)

    async def _take_apart(self, item: _Item, error: Exception) -> Exception | None:
        """A fault of ours: the event that met it is dropped, the rest of its batch and its token are not."""
        if item.token is None:
            for event in item.events:
                self._refuse(event, error)
            return None
        if not item.events:
            return error
        for event in item.events:
            failure = await self._guard(_Item((event,)), patient=False)
            if failure is not None:
                return failure
        return await self._guard(_Item((), item.token, item.ticket), patient=False)

    def _refuse(self, event: Event, error: Exception) -> bool:
        """Fail closed: a request that cannot be recorded is not asked, an answer that cannot be stored is not taken."""
        match event:
            case Asked():
                self._agents.respond(event.agent, event.call, Cancelled())
            case AnsweredLocally() if isinstance(error, AlreadyDecided):
                self._hand(Receipt(ticket=event.ticket, reason=Reason.ALREADY_RESOLVED))
            case AnsweredLocally():
                self._hand(Receipt(ticket=event.ticket), failed=error)
            case _:
                return False
        return True

    def _tell_not_stored(self, item: _Item) -> None:
        """An answer that could not be stored decided nothing; the room is told once until storing works again."""
        before = self._weighing.mind
        try:
            work = self._weighing.weigh(item.events, self._taken)
        except Exception:
            log.exception("relay.event_failed", events=item.names)
            return
        finally:
            self._weighing.restore(before)
        chosen = [c for c in work.changes if isinstance(c, StoreDecision) and c.decision.by is not None]
        if chosen and not self._not_stored_told:
            self._not_stored_told = True
            request = self.state.entries[chosen[0].request_id].request
            for outgoing, _ in self._weighing.word(NotStored(request), request.room, priority=Priority.NOTICE):
                self._unrecorded.add(outgoing.transaction_id)
                self._rooms.send(outgoing)

    # -------------------------------------------------------------------------------------------------------- carrying out

    def _carry_out(self, carried: Iterable[Carried]) -> None:
        """It is stored and so has happened: where one effect fails, the others are carried out all the same."""
        for effect in carried:
            try:
                self._do(effect)
            except Exception:
                log.exception("relay.effect_failed", effect=type(effect).__name__)

    def _do(self, effect: Carried) -> None:  # noqa: C901 - one line an effect
        match effect:
            case Outgoing():
                self._unsent.add(effect.transaction_id)
                self._rooms.send(effect)
            case Respond():
                self._agents.respond(effect.agent, effect.call, effect.outcome)
            case StartTurn():
                self._agents.prompt(effect.agent, effect.session_id, effect.text)
            case CancelTurn():
                self._agents.cancel(effect.agent, effect.session_id)
            case CloseSession():
                self._agents.close(effect.agent, effect.session_id)
            case Withhold():
                if self._rooms.withhold(effect.transaction_id):
                    self.deliver(SendFailed(transaction_id=effect.transaction_id, sentence="It was withheld."))
            case Typing():
                self._rooms.typing(effect.room, on=effect.on)
            case WakeAt():
                self._deadlines.add(effect.at, effect.request_id, open_count=len(self.state.calls))
            case Receipt():
                self._hand(effect)
            case Log():
                (log.warning if effect.warning else log.info)(effect.event, **effect.fields)

    def _hand(self, receipt: Receipt, *, failed: Exception | None = None) -> None:
        ticket = self._tickets.get(receipt.ticket)
        if ticket is not None:
            ticket.finish(reason=receipt.reason, error=failed or receipt.error)

    def _reach(self, request_id: RequestId) -> None:
        self.deliver(DeadlineReached(request_id=request_id))

    def wake(self) -> None:
        """Look at the deadlines now; the loop does so by itself, also when the clock has jumped."""
        self._deadlines.wake()

    # ------------------------------------------------------------------------------------------------ history and the end

    def _publish(self, records: Iterable[Record]) -> None:
        for record in records:
            for stream in tuple(self._subscribers):
                try:
                    stream.send_nowait(record)
                except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._subscribers.discard(stream)
                    stream.close()

    @asynccontextmanager
    async def subscribe(self) -> AsyncGenerator[MemoryObjectReceiveStream[Record]]:
        """Every history row from here on, as it is stored; a reader that lags too far behind is cut off."""
        send, receive = anyio.create_memory_object_stream[Record](SUBSCRIBER_HOLDS)
        self._subscribers.add(send)
        try:
            with receive:
                yield receive
        finally:
            self._subscribers.discard(send)
            send.close()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def end_all(self, limit_s: float) -> None:
        """End what waits and return once every harness has its outcome, or after `limit_s`."""
        self.deliver(ShuttingDown())
        with anyio.move_on_after(limit_s):
            while (
                self._queue or self._held or any(self._is_open(request_id) for request_id in self.state.calls.values())
            ):
                await self._changed.wait()

    def _is_open(self, request_id: RequestId) -> bool:
        entry = self.state.entries.get(request_id)
        return entry is not None and entry.request.phase is not Phase.ENDED

    async def settle(self, limit_s: float) -> None:
        """Return once nothing is left to send or to store, or after `limit_s`."""
        with anyio.move_on_after(limit_s):
            while self._queue or self._held or self._unsent:
                await self._changed.wait()
