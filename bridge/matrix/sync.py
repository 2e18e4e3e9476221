"""The loop that follows the rooms: one batch after the other, nothing lost, nothing twice, never in a hurry on failure.

Above it: rooms. Below it: client, inbox, standing. It refuses to know what the events are for: it hands each batch to
`take` together with its token, and goes on only when both are stored (design.md, rule 19).
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

import anyio
import structlog

from bridge.core.errors import BridgeError, CredentialsRefused, LedgerError, MatrixError, RateLimited, RequestRefused
from bridge.core.events import Echoed, Event, RoomState, Said
from bridge.core.model import EventId, RoomId, SyncToken, UserId
from bridge.core.ports import Take
from bridge.matrix import events, inbox
from bridge.matrix.client import Client, SyncBatch, Timeline
from bridge.matrix.events import Source
from bridge.matrix.patience import Patience, worth_a_line
from bridge.matrix.standing import Standing

log = structlog.stdlib.get_logger()

LONG_POLL_MS = 30_000  # as every client does; shorter only costs, longer meets the time limits of proxies
SEEN_MOST = 10_000  # event ids remembered: far more than any one batch repeats
GAP_PAGES_MOST = 500  # 50,000 events of one room; who was away for longer has no prompt waiting behind them
BAD_REQUEST = 400
TOKEN_REFUSALS = 3  # a sync token is given up only when the server has refused it so many times in a row
HASTY_ANSWERS = 10  # so many empty answers in a row without any wait: the server does not hold the poll open
HASTY_S = 0.5  # what "without any wait" means, and how long we then wait ourselves


class SyncLoop:
    """Follows the bound rooms from a token on."""

    def __init__(
        self,
        client: Client,
        *,
        bot: UserId,
        names: Collection[str],
        rooms: Collection[RoomId],
        take: Take,
        invited: Callable[[RoomId], None],
        patience: Patience,
    ) -> None:
        self._client = client
        self._bot = bot
        self._names = tuple(names)
        self._standings = {room: Standing(room, bot) for room in rooms}
        self._take = take
        self._invited = invited
        self._patience = patience
        self._seen: OrderedDict[EventId, None] = OrderedDict()
        self._reported = False
        self._token_refusals = 0

    def is_encrypted(self, room: RoomId) -> bool:
        """Whether the room was ever seen to be encrypted."""
        standing = self._standings.get(room)
        return standing is not None and standing.encrypted

    async def run(self, since: SyncToken | None, *, ready: anyio.Event) -> None:
        """Follow until cancelled; `ready` is set once the first batch was taken.

        Raises CredentialsRefused when the token of the account does not count any more.
        """
        first, failures, hasty = True, 0, 0
        while True:
            began = anyio.current_time()
            try:
                batch = await self._client.sync(
                    since, timeout_ms=0 if first else LONG_POLL_MS, full_state=first, rooms=self._standings
                )
                timelines = {
                    room: await self._whole(room, timeline, since)
                    for room, timeline in batch.rooms.items()
                    if room in self._standings
                }
            except CredentialsRefused:
                raise
            except MatrixError as error:
                failures += 1
                if since is not None and self._gives_up_token(error):
                    since, first = None, True
                await self._pause(error, failures)
                continue
            found = self._read(batch, timelines, whole=first, history=since is None)
            if found or batch.next_batch != since:
                await self._give(found, batch.next_batch)
            hasty = 0 if first or found or anyio.current_time() - began > HASTY_S else hasty + 1
            since, first, failures, self._token_refusals = batch.next_batch, False, 0, 0
            if not ready.is_set():
                ready.set()
                self._ask_in()
            if hasty > HASTY_ANSWERS:
                await anyio.sleep(HASTY_S)

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

    def _ask_in(self) -> None:
        """Try to enter the rooms that the bot is not in: a server tells of an invite once, perhaps before a restart."""
        for room, standing in self._standings.items():
            if not standing.joined:
                self._invited(room)

    # ------------------------------------------------------------------------------------------------------- the gap

    async def _whole(self, room: RoomId, timeline: Timeline, since: SyncToken | None) -> tuple[Source, ...]:
        """The room's events since the last batch, with those that the server left out, and none from before our join.

        Without a token everything is history, and history has no gaps worth filling.
        """
        found = timeline.events
        if timeline.limited and since is not None and timeline.prev_batch and self._own_join(room, found) is None:
            found = (*await self._gap(room, timeline.prev_batch, since), *found)
        joined_at = self._own_join(room, found)
        return found if joined_at is None else found[joined_at + 1 :]

    async def _gap(self, room: RoomId, newest: str, oldest: SyncToken) -> list[Source]:
        """What lies between two tokens, oldest first; stops at our own join, beyond which nothing is an answer."""
        found: list[Source] = []
        for _ in range(GAP_PAGES_MOST):
            try:
                page = await self._client.messages(room, newest, oldest)
            except RequestRefused as refused:  # purged, or no longer ours to see: what came after it still counts
                log.warning("matrix.gap_refused", room=room, status=refused.status, errcode=refused.errcode)
                break
            found.extend(page.events)
            if self._own_join(room, page.events) is not None:
                break
            if not page.events or page.end is None or page.end == newest:
                break
            newest = page.end
        else:
            log.error("matrix.gap_cut", room=room, kept=len(found))
        return found[::-1]

    def _own_join(self, room: RoomId, found: Sequence[Source]) -> int | None:
        """Where the bot itself came into the room; a new display name is a join event as well, and none of these."""
        for index in range(len(found) - 1, -1, -1):
            member = events.membership(found[index])
            if member is None or member.user != self._bot or member.now != "join":
                continue
            if member.before != "join" and (member.before is not None or not self._standings[room].joined):
                return index
        return None

    # ------------------------------------------------------------------------------------------------------- reading

    def _read(
        self, batch: SyncBatch, timelines: Mapping[RoomId, Sequence[Source]], *, whole: bool, history: bool
    ) -> list[Event]:
        """The batch as core events. Pure but for what it remembers: it has no await, so it happens whole or not at all.

        That the bot can speak in a room is told before the room's events, that it cannot after them: an answer that
        was given before a kick was given.
        """
        coming: list[Event] = []
        happened: list[Event] = []
        going: list[Event] = []
        for room, standing in self._standings.items():
            before = standing.seen()
            if room in batch.rooms:
                timeline = batch.rooms[room]
                standing.enter(timeline.state, whole=whole or not standing.joined)
                happened += self._events(room, timelines[room], standing, history=history)
                for source in timeline.events:
                    standing.see(source)
            elif room in batch.left:
                happened += self._events(room, batch.left[room].events, standing, history=history)
                standing.leave()
            after = standing.seen()
            if after != before or not self._reported:
                if after.state is not RoomState.JOINED:
                    log.warning("matrix.room_unusable", room=room, why=after.state)
                (going if room in batch.left or after.state is not RoomState.JOINED else coming).append(after)
        self._reported = True
        for room in batch.invites:
            if room in self._standings:
                self._invited(room)
            else:
                log.info("matrix.invite_ignored", room=room, inviter=batch.invites[room])
        return [*coming, *happened, *going]

    def _events(self, room: RoomId, sources: Sequence[Source], standing: Standing, *, history: bool) -> list[Event]:
        found: list[Event] = []
        encrypted = standing.encrypted
        for source in sources:
            event_id = events.event_id(source)
            if event_id is None or event_id in self._seen:
                continue
            self._seen[event_id] = None
            if len(self._seen) > SEEN_MOST:
                self._seen.popitem(last=False)
            encrypted = encrypted or (events.is_state(source) and events.kind(source) == events.ENCRYPTION)
            standing.see_name(source)
            names = (*self._names, standing.name) if standing.name else self._names
            event = inbox.read(source, room=room, bot=self._bot, names=names)
            if event is None or (history and not isinstance(event, Echoed)):
                continue
            if encrypted and isinstance(event, Said):
                continue  # rule 13: in an encrypted room a text counts only when it came encrypted
            found.append(event)
        return found
