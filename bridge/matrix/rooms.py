"""The rooms as the core wants them: it implements `core.ports.Rooms`.

Above it: app, which wires it to the relay. Below it: prompt (words), outbox (sending), sync (reading), upgrades, client.
It refuses to know the config: it gets plain values.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import cast

import anyio
import structlog

from bridge.core.changes import StoreLocked
from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, MatrixError, RateLimited, RequestRefused
from bridge.core.events import RoomMoved
from bridge.core.messages import Message
from bridge.core.model import RoomId, SyncToken, TransactionId, UserId
from bridge.core.ports import Deliver, Envelope, Outgoing, Take
from bridge.matrix import prompt
from bridge.matrix.client import Client
from bridge.matrix.events import Source
from bridge.matrix.outbox import MUTED_MOST_S, Outbox
from bridge.matrix.patience import Patience, worth_a_line
from bridge.matrix.sealing import Sealing
from bridge.matrix.standing import Replacement
from bridge.matrix.sync import FATAL, NO_SEALING, Steps, SyncLoop
from bridge.matrix.upgrades import Upgrades

log = structlog.stdlib.get_logger()

BUDGET_BYTES = 60_000  # of 65,536 for the whole event; Synapse adds up to 4 KB of its own (matrix.md, section 4)
SEALED_BUDGET_BYTES = 44_000  # encrypted, three bytes become four, and then some (matrix.md, section 4)
TYPING_MS = 30_000  # the server stops showing it by itself after this, should the bridge die
TYPING_AGAIN_S = 20.0  # before that runs out


class MatrixRooms:
    """The bound rooms of one account: what is sent into them, and what happens in them.

    `bound` names each room and says whether several agents share it; `names` are what people call the bot. Without
    `sealing` nothing is sent into an encrypted room, and `no_sealing_reason` is the sentence that says why.
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
        sealing: Sealing | None = None,
        no_sealing_reason: str = NO_SEALING,
        verifications: Steps | None = None,
        follow_upgrades: bool = False,
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
            invited=self._invited,
            replaced=self._replaced,
            patience=self._patience,
            sealing=sealing,
            no_sealing_reason=no_sealing_reason,
            verifications=verifications,
        )
        self._outbox = Outbox(
            client,
            bot=bot,
            deliver=deliver,
            is_encrypted=self._sync.is_encrypted,
            is_behind=self._sync.is_behind,
            note_encrypted=self._sync.note_encrypted,
            is_entering=self._is_entering,
            patience=self._patience,
            people=self._sync.people,
            sealing=sealing,
            no_sealing_reason=no_sealing_reason,
            muted_most_s=muted_most_s,
        )
        self._upgrades = Upgrades(
            client,
            bot=bot,
            follows=follow_upgrades,
            is_encrypted=self._sync.is_encrypted,
            moved=self._move,
            patience=self._patience,
        )
        self._deliver = deliver
        self._invites: dict[RoomId, None] = {}  # in the order in which they are tried
        self._invite_came = anyio.Event()
        self._joining: RoomId | None = None
        self._moved: set[RoomId] = set()  # the rooms whose place another has taken
        self._typing: dict[RoomId, bool] = {}
        self._typing_changed = anyio.Event()

    # ------------------------------------------------------------------------------------------------------ the port

    def compose(self, message: Message, room: RoomId, *, shrink: int = 0) -> tuple[Envelope, ...]:
        """Put a message into words that fit an event; empty when nothing shorter is left."""
        shared = self._bound.get(room, False)
        budget_bytes = SEALED_BUDGET_BYTES if self._sync.is_encrypted(room) else BUDGET_BYTES
        return prompt.compose(message, shared=shared, budget_bytes=budget_bytes, shrink=shrink)

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

    async def run(
        self,
        since: SyncToken | None,
        *,
        ready: anyio.Event,
        held: Iterable[StoreLocked] = (),
        encrypted: Collection[RoomId] = (),
        moved: Iterable[tuple[RoomId, RoomId]] = (),
    ) -> None:
        """Follow the rooms and send what is queued until cancelled; `ready` is set once the first batch was taken.

        From the ledger: `held` are the encrypted events that could not be read before the last stop, `encrypted` the rooms
        that ever were, `moved` the upgrades that were followed (old, new), oldest first. Raises CredentialsRefused when the
        access token does not count any more, KeysLost and KeysDamaged when our keys do not.
        """
        for old, new in moved:
            if old in self._bound:
                self._bound[new] = self._bound.pop(old) or new in self._bound
                self._sync.rebind(old, new)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_when, ready)
                tasks.start_soon(self._enter_rooms)
                tasks.start_soon(self._show_typing)
                tasks.start_soon(self._upgrades.run)
                tasks.start_soon(self._sync.keep_house)
                tasks.start_soon(self._sync.pass_on_steps)
                await self._sync.run(since, ready=ready, held=held, encrypted=encrypted)
        except ExceptionGroup as group:
            fatal, others = group.split(FATAL)
            if fatal is None or others is not None:
                raise
            raise _first(fatal) from None

    async def _send_when(self, ready: anyio.Event) -> None:
        """Nothing leaves before the first batch: only then is it known which rooms are encrypted."""
        await ready.wait()
        await self._outbox.run()

    def overhear(self, source: Source) -> None:
        """Take an event that came to this device and is about no key. Never waits."""
        self._sync.overhear(source)

    # ------------------------------------------------------------------------------------------------ entering rooms

    def _invited(self, room: RoomId, by: UserId | None) -> None:
        if room in self._bound:
            self._invites[room] = None
            self._invite_came.set()
        elif not self._upgrades.invited(room):
            log.info("matrix.invite_ignored", room=room, inviter=by)

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

    # ------------------------------------------------------------------------------------------------------- upgrades

    def _replaced(self, room: RoomId, replacement: Replacement) -> None:
        if room not in self._moved:
            self._upgrades.replaced(room, replacement)

    def _move(self, old: RoomId, new: RoomId) -> None:
        """From here on the new room is what the old one was. The core hears of it before it hears from the new room."""
        self._moved.add(old)
        self._bound[new] = self._bound[old] or new in self._bound
        self._deliver(RoomMoved(old=old, new=new))
        self._sync.follow(new)

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


def _first(group: ExceptionGroup[MatrixError]) -> MatrixError:
    """One of what happened at once, as it came: each says all that the operator needs."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return cast("MatrixError", error)
