"""The rooms as the core wants them: it implements `core.ports.Rooms`.

Above it: app, which wires it to the relay. Below it: prompt (words), outbox (sending), sync (reading), client. It
refuses to know the config: it gets plain values.
"""

from collections.abc import Collection, Mapping

import anyio
import structlog

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, MatrixError, RateLimited, RequestRefused
from bridge.core.messages import Message
from bridge.core.model import RoomId, SyncToken, TransactionId, UserId
from bridge.core.ports import Deliver, Envelope, Outgoing, Take
from bridge.matrix import prompt
from bridge.matrix.client import Client
from bridge.matrix.outbox import MUTED_MOST_S, Outbox
from bridge.matrix.patience import Patience, worth_a_line
from bridge.matrix.sync import SyncLoop

log = structlog.stdlib.get_logger()

BUDGET_BYTES = 60_000  # of 65,536 for the whole event; Synapse adds up to 4 KB of its own (matrix.md, section 4)
TYPING_MS = 30_000  # the server stops showing it by itself after this, should the bridge die
TYPING_AGAIN_S = 20.0  # before that runs out


class MatrixRooms:
    """The bound rooms of one account: what is sent into them, and what happens in them.

    `bound` names each room and says whether several agents share it; `names` are what people call the bot.
    """

    def __init__(
        self,
        client: Client,
        *,
        bot: UserId,
        names: Collection[str],
        bound: Mapping[RoomId, bool],
        deliver: Deliver,
        take: Take,
        patience: Patience | None = None,
        muted_most_s: float = MUTED_MOST_S,
    ) -> None:
        self._client = client
        self._bound = dict(bound)
        self._patience = patience or Patience()
        self._sync = SyncLoop(
            client,
            bot=bot,
            names=names,
            rooms=tuple(bound),
            take=take,
            invited=self._invite,
            patience=self._patience,
        )
        self._outbox = Outbox(
            client,
            bot=bot,
            deliver=deliver,
            is_encrypted=self._sync.is_encrypted,
            is_entering=self._is_entering,
            patience=self._patience,
            muted_most_s=muted_most_s,
        )
        self._invites: dict[RoomId, None] = {}  # in the order in which they are tried
        self._invite_came = anyio.Event()
        self._joining: RoomId | None = None
        self._typing: dict[RoomId, bool] = {}
        self._typing_changed = anyio.Event()

    # ------------------------------------------------------------------------------------------------------ the port

    def compose(self, message: Message, room: RoomId, *, shrink: int = 0) -> tuple[Envelope, ...]:
        """Put a message into words that fit an event; empty when nothing shorter is left."""
        shared = self._bound.get(room, False)
        return prompt.compose(message, shared=shared, budget_bytes=BUDGET_BYTES, shrink=shrink)

    def send(self, outgoing: Outgoing) -> None:
        """Queue for sending; it leaves at once when nothing else waits."""
        self._outbox.add(outgoing)

    def withhold(self, transaction_id: TransactionId) -> bool:
        """Take an event back; False when it has left or may have left."""
        return self._outbox.withhold(transaction_id)

    def typing(self, room: RoomId, *, on: bool) -> None:
        """Show or stop showing that an agent works."""
        self._typing[room] = on
        self._typing_changed.set()

    @property
    def queued(self) -> int:
        """How many events wait to be sent."""
        return len(self._outbox)

    # ------------------------------------------------------------------------------------------------------- running

    async def run(self, since: SyncToken | None, *, ready: anyio.Event) -> None:
        """Follow the rooms and send what is queued until cancelled; `ready` is set once the first batch was taken.

        Raises CredentialsRefused when the access token does not count any more.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_when, ready)
                tasks.start_soon(self._enter_rooms)
                tasks.start_soon(self._show_typing)
                await self._sync.run(since, ready=ready)
        except ExceptionGroup as group:
            refused, others = group.split(CredentialsRefused)
            if refused is None or others is not None:
                raise
            inner: BaseException = refused
            while isinstance(inner, BaseExceptionGroup):
                inner = inner.exceptions[0]
            raise inner from None  # as it came: it says whether the device lives on

    async def _send_when(self, ready: anyio.Event) -> None:
        """Nothing leaves before the first batch: only then is it known which rooms are encrypted."""
        await ready.wait()
        await self._outbox.run()

    # ------------------------------------------------------------------------------------------------ entering rooms

    def _invite(self, room: RoomId) -> None:
        self._invites[room] = None
        self._invite_came.set()

    def _is_entering(self, room: RoomId) -> bool:
        return room == self._joining or room in self._invites

    async def _enter_rooms(self) -> None:
        """Join the rooms that the config names, one after the other; any other invite is left alone."""
        failures = 0
        while True:
            if not self._invites:
                self._invite_came = anyio.Event()
                await self._invite_came.wait()
            room = self._joining = next(iter(self._invites))
            del self._invites[room]
            try:
                await self._client.join(room)
            except (HomeserverUnreachable, RateLimited) as passing:
                failures += 1
                told_s = passing.retry_after if isinstance(passing, RateLimited) else 0.0
                if worth_a_line(failures):
                    log.warning("matrix.join_delayed", room=room, why=str(passing), failures=failures)
                self._invites[room] = None  # behind the others: one room's server must not keep us out of all
                await anyio.sleep(max(told_s, self._patience.wait_s(failures)))
                continue
            except RequestRefused as refused:
                log.warning("matrix.join_refused", room=room, status=refused.status, errcode=refused.errcode)
            else:
                log.info("matrix.joined", room=room)
            self._joining = None
            failures = 0

    # --------------------------------------------------------------------------------------------------- typing signs

    async def _show_typing(self) -> None:
        """Tell the server what changed, and again before it forgets; a sign that fails is not tried again."""
        shown: set[RoomId] = set()
        while True:
            changed, self._typing = self._typing, {}
            for room, on in changed.items():
                if on or room in shown:
                    await self._sign(room, on=on)
                (shown.add if on else shown.discard)(room)
            if self._typing:
                continue
            self._typing_changed = anyio.Event()
            with anyio.move_on_after(TYPING_AGAIN_S if shown else None) as waited:
                await self._typing_changed.wait()
            if waited.cancelled_caught:
                self._typing = dict.fromkeys(shown, True) | self._typing

    async def _sign(self, room: RoomId, *, on: bool) -> None:
        try:
            await self._client.typing(room, on=on, timeout_ms=TYPING_MS)
        except CredentialsRefused:
            raise
        except MatrixError as error:
            log.debug("matrix.typing_failed", room=room, why=str(error))
