"""What is on its way into the rooms: one queue for the account, one event at a time.

Above it: rooms. Below it: the client and sealing. It refuses to know what the events say; `Outgoing` was stored before it came here
and keeps its transaction id on every try, so a repeated try is the same event (design.md, rule 19).

Order (matrix.md, section 5): prompts first, then notices, edits, seeds; among equals the room whose turn was longest ago,
and in a room the oldest. So an agent that asks a thousand times holds up its own room only. A room in which a send failed
rests alone, so one room's trouble holds up no other either. While a room rests because of a rate limit, other rooms may
try only what matters as much: the limit is most likely the account's, and a seed must not eat what a prompt waits for.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection

import anyio
import structlog

from bridge.core.changes import Priority
from bridge.core.errors import EventTooLarge, HomeserverUnreachable, RateLimited, RequestRefused
from bridge.core.events import SendFailed, Sent, TooLarge
from bridge.core.model import EventId, JsonObject, RoomId, TransactionId, UserId
from bridge.core.ports import Deliver, Outgoing
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.patience import Patience, worth_a_line
from bridge.matrix.sealing import Sealing

log = structlog.stdlib.get_logger()

MUTED_MOST_S = 600.0  # rule 4: a 403 in a room that the bot is in is retried for ten minutes
SEEDS_MOST = 100  # at Synapse's default limit this many take eight minutes; by then nobody taps them
SEAL_MOST_S = 30.0  # to give out keys; other rooms wait meanwhile, and what was given out by then need not be again
STALE_MOST = 64  # withheld entries that a heap may carry along before it is made anew

FORBIDDEN = 403


class _Entry:
    """One event that waits, and what became of the tries so far."""

    __slots__ = ("age", "forbidden_since", "outgoing", "perhaps_there")

    def __init__(self, outgoing: Outgoing, age: int) -> None:
        self.outgoing = outgoing
        self.age = age
        self.perhaps_there = False  # a try may have reached the server: it cannot be withheld any more
        self.forbidden_since: float | None = None

    @property
    def rank(self) -> tuple[Priority, int]:
        return self.outgoing.priority, self.age


class _Lane:
    """One room's events. The heap holds ranks and ids only, so what is withheld frees its content at once."""

    __slots__ = ("failures", "heap", "last_turn", "limited", "rests_until")

    def __init__(self) -> None:
        self.heap: list[tuple[tuple[Priority, int], TransactionId]] = []
        self.rests_until = 0.0
        self.failures = 0
        self.last_turn = 0
        self.limited: Priority | None = None


class Outbox:
    """Queues events and sends them; tells of each exactly one of Sent, SendFailed and TooLarge."""

    def __init__(
        self,
        client: Client,
        *,
        bot: UserId,
        deliver: Deliver,
        is_encrypted: Callable[[RoomId], bool],
        is_entering: Callable[[RoomId], bool],
        patience: Patience,
        is_behind: Callable[[RoomId], bool] = lambda _: False,
        note_encrypted: Callable[[RoomId], None] = lambda _: None,
        people: Callable[[RoomId], Collection[UserId]] = lambda _: (),
        sealing: Sealing | None = None,
        no_sealing_reason: str = "",
        muted_most_s: float = MUTED_MOST_S,
    ) -> None:
        """`people` are who is to read what is sent into an encrypted room; without `sealing` nothing is sent there.

        A room of which what is known `is_behind` is asked whether it is encrypted by now, before clear text leaves; one that is
        gets `note_encrypted`.
        """
        self._client = client
        self._bot = bot
        self._deliver = deliver
        self._is_encrypted = is_encrypted
        self._is_behind = is_behind
        self._note_encrypted = note_encrypted
        self._is_entering = is_entering
        self._patience = patience
        self._people = people
        self._sealing = sealing
        self._no_sealing_reason = no_sealing_reason
        self._muted_most_s = muted_most_s
        self._lanes: dict[RoomId, _Lane] = {}
        self._entries: dict[TransactionId, _Entry] = {}
        self._seeds: OrderedDict[TransactionId, None] = OrderedDict()
        self._leaving: TransactionId | None = None
        self._next_age = 0
        self._turns = 0
        self._woken = anyio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, outgoing: Outgoing) -> None:
        """Queue an event; one that is queued already stays where it is."""
        txn = outgoing.transaction_id
        if txn in self._entries:
            return
        entry = _Entry(outgoing, self._next_age)
        self._next_age += 1
        self._entries[txn] = entry
        lane = self._lanes.setdefault(outgoing.room, _Lane())
        heapq.heappush(lane.heap, (entry.rank, txn))
        if outgoing.priority is Priority.SEED:
            self._seeds[txn] = None
            self._drop_old_seeds()
        self._woken.set()

    def withhold(self, txn: TransactionId) -> bool:
        """Take an event back. False when it has left, is leaving, or may have reached the server on an earlier try."""
        entry = self._entries.get(txn)
        if entry is None or txn == self._leaving or entry.perhaps_there:
            return False
        self._forget(entry)
        return True

    async def run(self) -> None:
        """Send what is queued until cancelled. Raises CredentialsRefused when the token does not count any more."""
        while True:
            self._woken = anyio.Event()
            now = (
                anyio.current_time()
            )  # one look for both: a rest that ended in between would be waited for without end
            entry = self._choose(now)
            if entry is not None:
                await self._try(entry)
                continue
            with anyio.move_on_after(self._rest_s(now)):
                await self._woken.wait()

    # ----------------------------------------------------------------------------------------------------- choosing

    def _choose(self, now: float) -> _Entry | None:
        limits = [lane.limited for lane in self._lanes.values() if lane.limited is not None and lane.rests_until > now]
        least = min(limits, default=Priority.SEED)
        best: tuple[Priority, int, int] | None = None
        chosen: _Entry | None = None
        for lane in self._lanes.values():
            entry = None if lane.rests_until > now else self._head(lane)
            if entry is None or entry.outgoing.priority > least:
                continue
            rank = (entry.outgoing.priority, lane.last_turn, entry.age)
            if best is None or rank < best:
                best, chosen = rank, entry
        return chosen

    def _head(self, lane: _Lane) -> _Entry | None:
        while lane.heap:
            entry = self._entries.get(lane.heap[0][1])
            if entry is not None and entry.rank == lane.heap[0][0]:
                return entry
            heapq.heappop(lane.heap)
        return None

    def _rest_s(self, now: float) -> float | None:
        """Seconds until the next room has rested; None: until something is queued."""
        rests = [lane.rests_until - now for lane in self._lanes.values() if lane.rests_until > now]
        return min(rests, default=None)

    # ------------------------------------------------------------------------------------------------------- sending

    async def _try(self, entry: _Entry) -> None:
        outgoing = entry.outgoing
        self._turns += 1
        self._lanes[outgoing.room].last_turn = self._turns
        content = await self._make_ready(entry)
        if content is None:
            return
        self._leaving = outgoing.transaction_id
        try:
            event_id = await self._client.send(outgoing.room, *content, outgoing.transaction_id)
        except RateLimited as limited:
            self._rest(entry, limited.retry_after, limited=True, why=limited)
        except HomeserverUnreachable as away:
            entry.perhaps_there = entry.perhaps_there or away.perhaps_done
            self._rest(entry, why=away)
        except EventTooLarge:
            self._forget(entry)
            self._deliver(TooLarge(transaction_id=outgoing.transaction_id))
        except RequestRefused as refused:
            await self._refused(entry, refused)
        else:
            self._done(entry, event_id)
        finally:
            self._leaving = None

    async def _make_ready(self, entry: _Entry) -> tuple[str, JsonObject] | None:
        """Type and content as they go over the wire; None when it cannot leave now, or not at all.

        Whether the room is encrypted is asked last, with no wait before the send: it may have become so while the event was
        queued (matrix.md, section 6, rule a). Reactions are never encrypted: the server has to count them.
        """
        outgoing = entry.outgoing
        if (
            not self._is_encrypted(outgoing.room)
            and self._is_behind(outgoing.room)
            and not await self._ask_encrypted(entry)
        ):
            return None
        if not self._is_encrypted(outgoing.room):
            return outgoing.event_type, outgoing.content
        return await self._seal(entry)

    async def _seal(self, entry: _Entry) -> tuple[str, JsonObject] | None:
        outgoing = entry.outgoing
        if self._sealing is None:
            self._fail(
                entry, f"The room is encrypted, and this bridge cannot write there. {self._no_sealing_reason}".strip()
            )
            return None
        if outgoing.event_type == events.REACTION:
            return outgoing.event_type, outgoing.content
        try:
            with anyio.fail_after(SEAL_MOST_S):
                sealed = await self._sealing.encrypt(
                    outgoing.room, self._people(outgoing.room), outgoing.event_type, outgoing.content
                )
        except (HomeserverUnreachable, RateLimited, RequestRefused, TimeoutError) as error:
            if not self._is_queued(entry):
                return None  # taken back meanwhile
            if isinstance(error, EventTooLarge):
                self._forget(entry)
                self._deliver(TooLarge(transaction_id=outgoing.transaction_id))
            else:
                self._rest(entry, error.retry_after if isinstance(error, RateLimited) else None, why=error)
            return None
        return sealed if self._is_queued(entry) else None

    async def _ask_encrypted(self, entry: _Entry) -> bool:
        """Ask whether the room is encrypted by now; False when the event cannot leave. Sends may work while syncs fail."""
        room = entry.outgoing.room
        try:
            found = await self._client.state_content(room, events.ENCRYPTION)
        except (HomeserverUnreachable, RateLimited, RequestRefused) as error:
            if not self._is_queued(entry):
                return False
            if isinstance(error, RequestRefused):
                self._leaving = entry.outgoing.transaction_id
                await self._refused(entry, error)
                self._leaving = None
            else:
                self._rest(entry, error.retry_after if isinstance(error, RateLimited) else None, why=error)
            return False
        if found is not None:
            log.warning("matrix.encryption_found", room=room)
            self._note_encrypted(room)
        return self._is_queued(entry)

    def _is_queued(self, entry: _Entry) -> bool:
        return self._entries.get(entry.outgoing.transaction_id) is entry

    async def _refused(self, entry: _Entry, refused: RequestRefused) -> None:
        if refused.errcode == "M_DUPLICATE_ANNOTATION":
            self._done(entry, EventId(""))  # it is there already; which event it is, nobody needs to know
        elif refused.status == FORBIDDEN:
            await self._forbidden(entry)
        else:
            log.error(
                "matrix.send_refused",
                room=entry.outgoing.room,
                transaction_id=entry.outgoing.transaction_id,
                status=refused.status,
                errcode=refused.errcode,
            )
            self._fail(entry, str(refused))

    async def _forbidden(self, entry: _Entry) -> None:
        """Tell a room that the bot is out of from one where it may not write now: Synapse's answer does not."""
        room = entry.outgoing.room
        if self._is_entering(room):  # an agent that fails at once says so before the bot is in
            self._rest(entry)
            return
        try:
            out = await self._is_out(room)
        except RateLimited as limited:
            self._rest(entry, limited.retry_after)
            return
        except HomeserverUnreachable:
            self._rest(entry)
            return
        now = anyio.current_time()
        if out:
            self._fail(entry, "The bot is not in the room any more.")
        elif entry.forbidden_since is None:
            entry.forbidden_since = now
            log.error("matrix.send_forbidden", room=room, transaction_id=entry.outgoing.transaction_id)
            self._rest(entry)
        elif now - entry.forbidden_since >= self._muted_most_s:
            self._fail(entry, "The bot may not write in the room.")
        else:
            self._rest(entry)

    async def _is_out(self, room: RoomId) -> bool:
        try:
            member = await self._client.state_content(room, events.MEMBER, self._bot)
            if member is None or events.text(member, "membership") != "join":
                return True
            return bool(await self._client.state_content(room, events.TOMBSTONE))
        except RequestRefused:
            return True  # whoever is in a room may read its state

    # --------------------------------------------------------------------------------------------------- afterwards

    def _rest(
        self, entry: _Entry, seconds: float | None = None, *, limited: bool = False, why: Exception | None = None
    ) -> None:
        lane = self._lanes[entry.outgoing.room]
        lane.failures += 1
        wait_s = self._patience.wait_s(lane.failures) if seconds is None else seconds
        lane.rests_until = anyio.current_time() + wait_s
        lane.limited = entry.outgoing.priority if limited else None
        if worth_a_line(lane.failures):
            log.warning(
                "matrix.send_delayed",
                room=entry.outgoing.room,
                failures=lane.failures,
                wait_s=round(wait_s, 1),
                limited=limited,
                why=None if why is None else str(why) or "It took too long.",
                queued=len(self._entries),
            )

    def _done(self, entry: _Entry, event_id: EventId) -> None:
        lane = self._lanes[entry.outgoing.room]
        lane.failures, lane.limited = 0, None
        self._forget(entry)
        self._deliver(Sent(transaction_id=entry.outgoing.transaction_id, event_id=event_id))

    def _fail(self, entry: _Entry, sentence: str) -> None:
        self._forget(entry)
        self._deliver(SendFailed(transaction_id=entry.outgoing.transaction_id, sentence=sentence))

    def _forget(self, entry: _Entry) -> None:
        txn = entry.outgoing.transaction_id
        self._entries.pop(txn, None)
        self._seeds.pop(txn, None)
        lane = self._lanes[entry.outgoing.room]
        if len(lane.heap) > 2 * len(self._entries) + STALE_MOST:
            lane.heap = [item for item in lane.heap if item[1] in self._entries]
            heapq.heapify(lane.heap)

    def _drop_old_seeds(self) -> None:
        while len(self._seeds) > SEEDS_MOST:
            oldest = next((txn for txn in self._seeds if txn != self._leaving), None)
            if oldest is None:
                return
            entry = self._entries[oldest]
            log.info("matrix.seed_dropped", room=entry.outgoing.room, transaction_id=oldest)
            self._fail(entry, "Too many reactions waited to be sent.")
