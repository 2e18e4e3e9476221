"""Verifications with approvers, carried over to-device messages or through a room, and put to the operator.

Above it: whoever feeds it the events and shows it to the operator (`app.verifying`). Below it: `crypto.sas`, which decides
what each message does, and ports for everything else: how messages leave, which keys a device has, what the operator says.
It refuses to know encryption, the homeserver and the ledger, and it takes nothing from anybody but approvers.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from bridge.core.errors import BridgeError
from bridge.core.events import Verified
from bridge.core.model import EventId, JsonObject, Millis, RoomId, UserId
from bridge.matrix import events
from bridge.matrix.crypto.sas import Phase, Sas, address
from bridge.matrix.crypto.steps import REASONS, Code, Party, Proven, Send, Show, Step, Stopped
from bridge.matrix.events import VERIFICATION, Source

REQUEST = f"{VERIFICATION}request"
EVERY_DEVICE = "*"

LIMIT_S = 600.0  # client-server API: a verification that does not complete within 10 minutes should time out
OLDEST_MS = 600_000  # the same for a request that waited for us
NEWEST_MS = 300_000  # and one from further in the future is ignored: its clock, or its story, is wrong

FALLBACK = "The bridge asks to compare emoji, so that it knows your devices. This client cannot do that."

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a verification ended. `master` is what was pinned; without it, `code` and `by_us` say who ended it and why.

    `NOT_KEPT` and `NOT_SENT` are no codes of Matrix: ledger or homeserver failed.
    """

    user: UserId
    device_id: str | None
    master: str | None = None
    code: str = ""
    by_us: bool = False


NOT_KEPT = "not_kept"
NOT_SENT = "not_sent"


class Post(Protocol):
    """How messages leave. Both raise `MatrixError` only when trying again does not help."""

    async def send_to_device(self, kind: str, user: UserId, device_id: str, content: JsonObject) -> None:
        """Hand a content to a device of this user; `*` is all of them."""
        ...

    async def send_in_room(self, room: RoomId, kind: str, content: JsonObject) -> EventId:
        """Send an event, encrypted where the room is."""
        ...


class Operator(Protocol):
    """The person at the bridge's machine."""

    async def compare(self, user: UserId, device_id: str, show: Show) -> bool | None:
        """Whether both show the same; None: no verification. Is cancelled when the verification ends meanwhile."""
        ...

    def tell(self, outcome: Outcome) -> None:
        """How a verification ended."""
        ...


FindParty = Callable[[UserId, str], Awaitable[Party | None]]
"""The keys of a device and its user, as the homeserver names them, checked for their signatures; None: no such device."""


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One verification under way."""

    user: UserId
    transaction: str
    room: RoomId | None
    sas: Sas
    device_id: str | None = None
    over: anyio.Event = field(default_factory=anyio.Event)


class Verifications:
    """All verifications of one device, one at a time with each person. Nothing here raises for what others send."""

    def __init__(
        self,
        *,
        ours: Party,
        approvers: Collection[UserId],
        find_party: FindParty,
        post: Post,
        operator: Operator,
        pinned: Callable[[Verified], Awaitable[None]],
        clock: Callable[[], Millis],
        limit_s: float = LIMIT_S,
    ) -> None:
        self._ours, self._approvers = ours, frozenset(approvers)
        self._find_party, self._post, self._operator = find_party, post, operator
        self._pinned, self._clock, self._limit_s = pinned, clock, limit_s
        self._exchanges: dict[UserId, _Exchange] = {}
        self._turn = anyio.Lock()  # one message after the other: a step is carried out before the next is decided
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the time limits and the operator's questions; started once messages can be heard. Until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await anyio.sleep_forever()

    # --------------------------------------------------------------------------------------------- what our side does

    async def start(self, user: UserId, room: RoomId) -> bool:
        """Ask this person's client, in a room they share with the bridge; False when one is under way with them."""
        async with self._turn:
            if user in self._exchanges or user not in self._approvers:
                return False
            request: JsonObject = {
                "msgtype": REQUEST,
                "body": FALLBACK,
                "to": user,
                "m.mentions": {"user_ids": [user]},
                **Sas.request(self._ours),
            }
            try:
                event_id = await self._post.send_in_room(room, events.MESSAGE, request)
            except BridgeError as error:
                self._tell(Outcome(user=user, device_id=None, code=NOT_SENT), why=error)
                return False
            sas = Sas.asking(event_id, self._ours, in_room=True)
            self._keep(_Exchange(user=user, transaction=event_id, room=room, sas=sas))
            return True

    async def cancel(self, user: UserId) -> None:
        """End the verification with this person, if there is one."""
        async with self._turn:
            exchange = self._exchanges.get(user)
            if exchange is not None:
                await self._carry_out(exchange, exchange.sas.cancel(Code.USER))

    async def cancel_all(self) -> None:
        """End every verification."""
        for user in [*self._exchanges]:
            await self.cancel(user)

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return bool(self._exchanges)

    # ----------------------------------------------------------------------------------------------- what others send

    async def hear_to_device(self, source: Source) -> None:
        """Take a to-device event; most are none of a verification."""
        kind, user = self._read_kind(source), events.sender(source)
        transaction = events.text(events.content(source), "transaction_id")
        if kind is None or user is None or user not in self._approvers or not transaction:
            return
        async with self._turn:
            if kind == "request":
                sent_at = events.content(source).get("timestamp")
                await self._take_request(user, transaction, None, events.content(source), sent_at)
            else:
                await self._take(user, transaction, None, kind, events.content(source))

    async def hear_in_room(self, room: RoomId, source: Source) -> None:
        """Take an event of a room's timeline, already decrypted."""
        user, event_id = events.sender(source), events.event_id(source)
        if user is None or event_id is None or events.is_state(source):
            return
        content, relation = events.content(source), events.relation(source)
        async with self._turn:
            if events.kind(source) == events.MESSAGE:
                wanted = events.text(content, "msgtype") == REQUEST and content.get("to") == self._ours.user
                if wanted and user in self._approvers and relation.rel_type is None:
                    await self._take_request(user, event_id, room, content, source.get("origin_server_ts"))
                return
            kind = self._read_kind(source)
            if kind is None or relation.event_id is None or relation.rel_type != "m.reference":
                return
            if user == self._ours.user:
                await self._see_own(relation.event_id, content)
            else:
                await self._take(user, relation.event_id, room, kind, content)

    @staticmethod
    def _read_kind(source: Source) -> str | None:
        kind = events.kind(source)
        return kind.removeprefix(VERIFICATION) if kind is not None and kind.startswith(VERIFICATION) else None

    async def _take_request(
        self, user: UserId, transaction: str, room: RoomId | None, content: Source, sent_at: object
    ) -> None:
        age = self._clock() - sent_at if isinstance(sent_at, int) else None
        if age is None or not -NEWEST_MS <= age <= OLDEST_MS:
            log.info("verification.stale_request", user=user)
            return
        other = self._exchanges.get(user)
        if other is not None and other.transaction == transaction:
            return
        if other is not None and other.sas.phase is Phase.ASKED:
            await self._carry_out(other, other.sas.cancel(Code.USER), quiet=True)  # both asked: theirs is taken
        elif other is not None:  # the specification has all attempts cancelled then
            await self._carry_out(other, other.sas.cancel(Code.UNEXPECTED_MESSAGE))
            await self._refuse(user, transaction, room, content, Code.UNEXPECTED_MESSAGE)
            return
        device_id = events.text(content, "from_device") or ""
        party = await self._look_up(user, device_id)
        if party is None:
            await self._refuse(user, transaction, room, content, Code.USER_MISMATCH)
            self._tell(Outcome(user=user, device_id=device_id, code=Code.USER_MISMATCH, by_us=True))
            return
        sas, steps = Sas.asked(transaction, self._ours, party, content, in_room=room is not None)
        exchange = _Exchange(user=user, transaction=transaction, room=room, sas=sas, device_id=device_id)
        self._keep(exchange)
        await self._carry_out(exchange, steps)

    async def _take(self, user: UserId, transaction: str, room: RoomId | None, kind: str, content: Source) -> None:
        exchange = self._exchanges.get(user)
        if exchange is None or exchange.transaction != transaction or exchange.room != room:
            if room is None and kind not in {"start", "cancel", "done"}:  # in a room it may be somebody else's
                await self._refuse(user, transaction, None, content, Code.UNKNOWN_TRANSACTION)
            return
        party = None
        if kind == "ready" and exchange.sas.phase is Phase.ASKED:
            exchange.device_id = events.text(content, "from_device") or ""
            party = await self._look_up(user, exchange.device_id)
        await self._carry_out(exchange, exchange.sas.hear(kind, content, party))

    async def _see_own(self, transaction: str, content: Source) -> None:
        """Another device of the bridge's account took what was meant for all of them: it is no longer ours."""
        device_id = events.text(content, "from_device")
        for exchange in [*self._exchanges.values()]:
            if exchange.transaction == transaction and device_id not in {None, self._ours.device_id}:
                self._drop(exchange)
                self._tell(Outcome(user=exchange.user, device_id=device_id, code=Code.ACCEPTED))

    async def _look_up(self, user: UserId, device_id: str) -> Party | None:
        try:
            return await self._find_party(user, device_id)
        except BridgeError as error:
            log.warning("verification.no_keys", user=user, why=str(error))
            return None

    async def _refuse(self, user: UserId, transaction: str, room: RoomId | None, content: Source, code: Code) -> None:
        device_id = events.text(content, "from_device") or EVERY_DEVICE
        told = address({"code": code.value, "reason": REASONS[code]}, transaction, in_room=room is not None)
        try:
            await self._send(Send("cancel", told), user, room, device_id)
        except BridgeError as error:
            log.warning("verification.not_refused", user=user, why=str(error))

    # --------------------------------------------------------------------------------------------- carrying it out

    def _keep(self, exchange: _Exchange) -> None:
        self._exchanges[exchange.user] = exchange
        self._spawn(self._time, exchange)
        log.info("verification.began", user=exchange.user, in_room=exchange.room is not None)

    def _drop(self, exchange: _Exchange) -> None:
        exchange.sas.abandon()
        exchange.over.set()
        if self._exchanges.get(exchange.user) is exchange:
            del self._exchanges[exchange.user]

    async def _carry_out(self, exchange: _Exchange, steps: list[Step], *, quiet: bool = False) -> None:
        for step in steps:
            match step:
                case Send():
                    try:
                        await self._send(step, exchange.user, exchange.room, exchange.device_id or EVERY_DEVICE)
                    except BridgeError as error:
                        self._drop(exchange)
                        self._tell(Outcome(user=exchange.user, device_id=exchange.device_id, code=NOT_SENT), why=error)
                        return
                case Show():
                    self._spawn(self._compare, exchange, step)
                case Proven(master_key=master):
                    self._drop(exchange)
                    await self._pin(exchange, master)
                case Stopped(code=code, by_us=by_us):
                    self._drop(exchange)
                    if not quiet:
                        outcome = Outcome(user=exchange.user, device_id=exchange.device_id, code=code, by_us=by_us)
                        self._tell(outcome)

    async def _send(self, send: Send, user: UserId, room: RoomId | None, device_id: str) -> None:
        if room is None:
            await self._post.send_to_device(VERIFICATION + send.kind, user, device_id, send.content)
        else:
            await self._post.send_in_room(room, VERIFICATION + send.kind, send.content)

    async def _pin(self, exchange: _Exchange, master: str) -> None:
        try:
            await self._pinned(Verified(user=exchange.user, master=master))
        except BridgeError as error:
            self._tell(Outcome(user=exchange.user, device_id=exchange.device_id, code=NOT_KEPT), why=error)
        else:
            self._tell(Outcome(user=exchange.user, device_id=exchange.device_id, master=master))

    def _tell(self, outcome: Outcome, *, why: BridgeError | None = None) -> None:
        if outcome.master is not None:
            log.info("verification.pinned", user=outcome.user, device_id=outcome.device_id)
        else:
            log.warning(
                "verification.failed",
                user=outcome.user,
                code=outcome.code,
                by_us=outcome.by_us,
                why=None if why is None else str(why),
            )
        self._operator.tell(outcome)

    # ------------------------------------------------------------------------------------------------ what takes time

    def _spawn(self, work: Callable[..., Coroutine[object, object, None]], *given: object) -> None:
        if self._tasks is None:
            raise AssertionError("unreachable")  # `run` comes first
        self._tasks.start_soon(work, *given)

    async def _time(self, exchange: _Exchange) -> None:
        with anyio.move_on_after(self._limit_s):
            await exchange.over.wait()
        async with self._turn:
            await self._carry_out(exchange, exchange.sas.expire())

    async def _compare(self, exchange: _Exchange, show: Show) -> None:
        """Ask the operator; the answer counts only while the verification still stands."""
        same: bool | None = None
        answered = False
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                nonlocal same, answered
                same = await self._operator.compare(exchange.user, exchange.device_id or "", show)
                answered = True
                tasks.cancel_scope.cancel()

            tasks.start_soon(ask)
            await exchange.over.wait()
            tasks.cancel_scope.cancel()
        if not answered:
            return
        async with self._turn:
            sas = exchange.sas
            await self._carry_out(
                exchange, sas.cancel(Code.USER) if same is None else sas.confirm() if same else sas.differ()
            )
