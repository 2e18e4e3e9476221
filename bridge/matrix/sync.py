"""The loop that follows the rooms: one batch after the other, nothing lost, nothing twice, never in a hurry on failure.

Above it: rooms. Below it: client, sealing and reading. It refuses to know what the events are for: it hands each batch to
`take` together with its token, and goes on only when both are stored (design.md, rule 19).
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

import anyio
import structlog

from bridge.core.changes import StoreLocked
from bridge.core.errors import (
    BridgeError,
    CredentialsRefused,
    KeysDamaged,
    KeysLost,
    LedgerError,
    MatrixError,
    RateLimited,
    RequestRefused,
)
from bridge.core.events import Event
from bridge.core.model import RoomId, SyncToken, UserId
from bridge.core.ports import Take
from bridge.matrix import events
from bridge.matrix.batches import SyncBatch, Timeline
from bridge.matrix.client import Client
from bridge.matrix.events import Source
from bridge.matrix.patience import Patience, worth_a_line
from bridge.matrix.reading import Read, Reader
from bridge.matrix.sealing import Place, Sealing, Unsealed
from bridge.matrix.standing import Replacement

log = structlog.stdlib.get_logger()

LONG_POLL_MS = 30_000  # as every client does; shorter only costs, longer meets the time limits of proxies
BEHIND_S = LONG_POLL_MS / 1000 + 5.0  # by then a poll that nothing happens in is answered, also by a slow server
GAP_PAGES_MOST = 500  # 50,000 events of one room; who was away for longer has no prompt waiting behind them
BAD_REQUEST = 400
TOKEN_REFUSALS = 3  # a sync token is given up only when the server has refused it so many times in a row
HASTY_ANSWERS = 10  # so many empty answers in a row without any wait: the server does not hold the poll open
HASTY_S = 0.5  # what "without any wait" means, and how long we then wait ourselves
TIDY_MOST_S = 120.0  # a few calls of 30 s each; what was cut off is due again after the next batch
ASK_MOST_S = 30.0  # one call; who was not asked in that time cannot be
STEPS_MOST = 100  # of verifications that wait; a whole one has seven, and anybody can send any number

FATAL = (CredentialsRefused, KeysLost, KeysDamaged)  # nothing that is tried again would go better
NO_SEALING = "Encryption is not set up."


class Steps(Protocol):
    """Who follows verifications: hears each step that somebody takes, in order. Nothing here raises for what is in it."""

    async def hear_to_device(self, source: Source) -> None:
        """Take a step that came to this device alone."""
        ...

    async def hear_in_room(self, room: RoomId, source: Source) -> None:
        """Take a step that was taken in a bound room, already decrypted."""
        ...


class SyncLoop:
    """Follows the bound rooms from a token on.

    `invited` hears of each room that the bot is asked into (also of the bound ones that it was not in when this started),
    `replaced` of each bound room that was upgraded: both once that is stored.
    """

    def __init__(
        self,
        client: Client,
        *,
        bot: UserId,
        names: Collection[str],
        rooms: Collection[RoomId],
        take: Take,
        invited: Callable[[RoomId, UserId | None], None],
        replaced: Callable[[RoomId, Replacement], None],
        patience: Patience,
        sealing: Sealing | None = None,
        no_sealing_reason: str = NO_SEALING,
        verifications: Steps | None = None,
    ) -> None:
        self._client = client
        self._take = take
        self._invited = invited
        self._replaced = replaced
        self._patience = patience
        self._sealing = sealing
        self._verifications = verifications
        self._reader = Reader(
            bot=bot, names=names, rooms=rooms, seals=sealing is not None, no_sealing_reason=no_sealing_reason
        )
        self._token_refusals = 0
        self._whole = True  # the next sync is to say all of the rooms' state
        self._poll: anyio.CancelScope | None = None
        self._to_ask: list[tuple[RoomId, Source]] = []
        self._to_tidy = anyio.Event()
        self._untidy = 0  # failures in a row
        self._heard_at = -math.inf  # when the server last said what has happened
        self._steps: deque[tuple[RoomId | None, Source]] = deque()
        self._step_came = anyio.Event()

    def is_encrypted(self, room: RoomId) -> bool:
        """Whether the room was ever seen to be encrypted."""
        return self._reader.is_encrypted(room)

    def is_behind(self, room: RoomId) -> bool:
        """Whether the room may be something else by now: no sync has come through for a while, or none tells of it."""
        return room not in self._reader.standings or anyio.current_time() - self._heard_at >= BEHIND_S

    def note_encrypted(self, room: RoomId) -> None:
        """Take a room for encrypted that no sync has told of as such yet."""
        self._reader.remember_encrypted(room)

    def people(self, room: RoomId) -> frozenset[UserId]:
        """Who is joined in a bound room, other than the bot."""
        standing = self._reader.standings.get(room)
        return frozenset() if standing is None else standing.people

    def follow(self, room: RoomId) -> None:
        """Follow this room as well, from here on."""
        self._reader.follow(room)
        self._whole = True
        if self._poll is not None:
            self._poll.cancel()  # it asked for the rooms of before

    def rebind(self, old: RoomId, new: RoomId) -> None:
        """Before the start: the new room has taken the place of the old one."""
        self._reader.rebind(old, new)

    async def run(
        self,
        since: SyncToken | None,
        *,
        ready: anyio.Event,
        held: Iterable[StoreLocked] = (),
        encrypted: Collection[RoomId] = (),
    ) -> None:
        """Follow until cancelled; `ready` is set once the first batch was taken.

        `held` is what was shut before a restart, `encrypted` the rooms that ever were: they stay so, whatever the server
        says now (matrix.md, section 6, rule a). Raises CredentialsRefused when the token of the account does not count any more, KeysLost or KeysDamaged when
        our keys do not.
        """
        for room in encrypted:
            self._reader.remember_encrypted(room)
        if self._sealing is not None:
            self._reader.take_up(held, anyio.current_time())
        failures, hasty = 0, 0
        while True:
            began, whole = anyio.current_time(), self._whole
            self._whole = False
            timeout_ms = 0 if whole else self._timeout_ms(began)
            try:
                batch = await self._next(since, timeout_ms=timeout_ms, whole=whole)
                heard_at = anyio.current_time()
                timelines, opened = ({}, {}) if batch is None else await self._open(batch, since)
            except FATAL:
                raise
            except MatrixError as error:
                failures += 1
                self._whole = self._whole or whole
                if since is not None and self._gives_up_token(error):
                    since, self._whole = None, True
                await self._pause(error, failures)
                continue
            if batch is None:
                continue
            read = self._reader.read(
                batch, timelines, opened, whole=whole, history=since is None, now=anyio.current_time()
            )
            self._heard_at = heard_at
            if read.found or batch.next_batch != since:
                await self._give(read.found, batch.next_batch)
            self._tell(read, first=not ready.is_set())
            hurried = anyio.current_time() - began <= HASTY_S < timeout_ms / 1000
            hasty = hasty + 1 if hurried and not read.found else 0
            since, failures, self._token_refusals = batch.next_batch, 0, 0
            ready.set()
            if hasty > HASTY_ANSWERS:
                await anyio.sleep(HASTY_S)

    # ---------------------------------------------------------------------------------------------------- one batch

    def _timeout_ms(self, now: float) -> int:
        """How long the server may wait for something to happen: a key that does not come is no event."""
        due_s = self._reader.held.due_s(now)
        return LONG_POLL_MS if due_s is None else min(LONG_POLL_MS, math.ceil(due_s * 1000))

    async def _next(self, since: SyncToken | None, *, timeout_ms: int, whole: bool) -> SyncBatch | None:
        """What happened since the token; None when meanwhile there are other rooms to follow."""
        with anyio.CancelScope() as self._poll:
            return await self._client.sync(since, timeout_ms=timeout_ms, full_state=whole, rooms=self._reader.standings)
        self._whole = True
        return None

    async def _open(
        self, batch: SyncBatch, since: SyncToken | None
    ) -> tuple[dict[RoomId, tuple[Source, ...]], dict[Place, Unsealed]]:
        """The rooms' events without gaps, and what the encrypted ones among them hold, also those of earlier batches.

        Keys come first: what this batch brings may open what is in it. Of history nothing is opened: it is no answer.
        """
        if self._sealing is not None:
            await self._sealing.receive(batch)
        bound = self._reader.standings
        timelines = {
            room: await self._whole_timeline(room, timeline, since)
            for room, timeline in batch.rooms.items()
            if room in bound
        }
        if self._sealing is None:
            return timelines, {}
        shut = [*self._reader.held.all()]
        if since is not None:
            left = {room: timeline.events for room, timeline in batch.left.items() if room in bound}
            for room, sources in (timelines | left).items():
                shut += self._reader.shut(room, sources)
        opened: dict[Place, Unsealed] = {}
        for event_id, room, source in shut:
            if (room, event_id) not in opened:  # of two events under one id the first is read, so that one is opened
                opened[room, event_id] = await self._sealing.open(room, source)
        return timelines, opened

    async def _give(self, found: Sequence[Event], token: SyncToken) -> None:
        """Hand the batch over until it is stored: what was not stored is given again, the same events in the same order."""
        failures = 0
        while True:
            try:
                await self._take(found, token)
            except LedgerError as error:
                failures += 1
                await self._pause(error, failures)
            else:
                return

    def _tell(self, read: Read, *, first: bool) -> None:
        """Pass on what is not the core's business, now that the batch is stored."""
        invites = dict(read.invites)
        if first:  # a server tells of an invite once, perhaps before a restart
            invites |= {
                room: None
                for room, standing in self._reader.standings.items()
                if not standing.joined and room not in invites
            }
        for room, by in invites.items():
            self._invited(room, by)
        for room, replacement in read.replaced:
            self._replaced(room, replacement)
        for room, source in read.steps:
            self._step(room, source)
        self._to_ask += self._reader.held.to_ask(anyio.current_time())
        self._to_tidy.set()

    # -------------------------------------------------------------------------------------------------- housekeeping

    async def keep_house(self) -> None:
        """Do after each batch what is due for keys, until cancelled. The next sync does not wait for it.

        Raises CredentialsRefused when the token of the account does not count any more, KeysLost or KeysDamaged when
        our keys do not.
        """
        sealing = self._sealing
        if sealing is None:
            return
        while True:
            await self._to_tidy.wait()
            self._to_tidy = anyio.Event()
            asked, self._to_ask = self._to_ask, []
            for room, source in asked:
                await self._attempt(partial(sealing.ask_again, room, source), most_s=ASK_MOST_S)
            await self._attempt(sealing.tidy, most_s=TIDY_MOST_S)

    def overhear(self, source: Source) -> None:
        """Take an event that came to this device and is about no key; only steps of verifications matter. Never waits."""
        if (events.kind(source) or "").startswith(events.VERIFICATION):
            self._step(None, source)

    def _step(self, room: RoomId | None, source: Source) -> None:
        if self._verifications is None:
            return
        if len(self._steps) >= STEPS_MOST:
            log.warning("matrix.verification_step_dropped", room=room, sender=events.sender(source))
            return
        self._steps.append((room, source))
        self._step_came.set()

    async def pass_on_steps(self) -> None:
        """Hand steps of verifications to who follows them, until cancelled. Each may take its time to be answered."""
        if self._verifications is None:
            return
        while True:
            while self._steps:
                room, source = self._steps.popleft()
                if room is None:
                    await self._verifications.hear_to_device(source)
                else:
                    await self._verifications.hear_in_room(room, source)
            self._step_came = anyio.Event()
            await self._step_came.wait()

    async def _attempt(self, work: Callable[[], Awaitable[None]], *, most_s: float) -> None:
        """What fails is tried again after the next batch."""
        try:
            with anyio.fail_after(most_s):
                await work()
        except FATAL:
            raise
        except (MatrixError, TimeoutError) as error:
            self._untidy += 1
            if worth_a_line(self._untidy):
                log.warning("matrix.keys_delayed", why=str(error) or "It took too long.", failures=self._untidy)
        else:
            self._untidy = 0

    # ------------------------------------------------------------------------------------------------ what goes wrong

    async def _pause(self, why: BridgeError, failures: int) -> None:
        wait_s = why.retry_after if isinstance(why, RateLimited) else self._patience.wait_s(failures)
        if worth_a_line(failures):
            log.warning("matrix.sync_delayed", why=str(why), failures=failures, wait_s=round(wait_s, 1))
        await anyio.sleep(wait_s)

    def _gives_up_token(self, error: MatrixError) -> bool:
        """Whether the server does not know our token, for instance after it was put back from a backup.

        What it then gives is history (matrix.md, section 2).
        """
        refused = isinstance(error, RequestRefused) and error.status == BAD_REQUEST
        self._token_refusals = self._token_refusals + 1 if refused else 0
        if self._token_refusals < TOKEN_REFUSALS:
            return False
        log.error("matrix.sync_token_refused")
        self._token_refusals = 0
        return True

    # ------------------------------------------------------------------------------------------------------- the gap

    async def _whole_timeline(self, room: RoomId, timeline: Timeline, since: SyncToken | None) -> tuple[Source, ...]:
        """The room's events since the last batch, with those that the server left out, and none from before our join.

        Without a token everything is history, and history has no gaps worth filling.
        """
        standing, found = self._reader.standings[room], timeline.events
        if timeline.limited and since is not None and timeline.prev_batch and standing.own_join(found) is None:
            found = (*await self._gap(room, timeline.prev_batch, since), *found)
        joined_at = standing.own_join(found)
        return found if joined_at is None else found[joined_at + 1 :]

    async def _gap(self, room: RoomId, newest: str, oldest: SyncToken) -> list[Source]:
        """What lies between two tokens, oldest first; stops at our own join, beyond which nothing is an answer."""
        standing = self._reader.standings[room]
        found: list[Source] = []
        for _ in range(GAP_PAGES_MOST):
            try:
                page = await self._client.messages(room, newest, oldest)
            except RequestRefused as refused:  # purged, or no longer ours to see: what came after it still counts
                log.warning("matrix.gap_refused", room=room, status=refused.status, errcode=refused.errcode)
                break
            found.extend(page.events)
            if standing.own_join(page.events) is not None:
                break
            if not page.events or page.end is None or page.end == newest:
                break
            newest = page.end
        else:
            log.error("matrix.gap_cut", room=room, kept=len(found))
        return found[::-1]
