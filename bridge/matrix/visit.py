"""The rooms and our device's mailbox followed for a verification alone, while the bridge is stopped.

Above it: `app.verifying`. Below it: the client, encryption through the port in `sealing`, and verification, which it feeds
and whose messages it carries. It takes nothing else in and keeps no sync token: whatever was said meanwhile is read by the
next start of the bridge, which goes on from its own. The keys that come stay, in the key store.
"""

import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NoReturn, TypeVar

import anyio
import structlog

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, MatrixError, RateLimited, RequestRefused
from bridge.core.model import EventId, JsonObject, RoomId, SyncToken, TransactionId, UserId
from bridge.matrix import events
from bridge.matrix.batches import SyncBatch
from bridge.matrix.client import Client
from bridge.matrix.events import ENCRYPTED, VERIFICATION, Source
from bridge.matrix.patience import Patience, worth_a_line
from bridge.matrix.sealing import Opened, Sealing, Why
from bridge.matrix.verification import REQUEST, Verifications

T = TypeVar("T")

LONG_POLL_MS = 30_000  # as every client does
RETRY_S = 60.0  # a message is tried for so long: nobody looks at emoji for longer
SHUT_MOST = 200  # encrypted events kept until their key comes: far more than a verification sends

SendToDevice = Callable[[str, UserId, str, JsonObject, TransactionId], Awaitable[object]]
"""Kind, user, device (`*`: all), content and transaction id of one message, to the homeserver."""

log = structlog.stdlib.get_logger()


class RoadPost:
    """How a verification's messages leave; implements `verification.Post`. What passes is tried again for a while."""

    def __init__(
        self,
        client: Client,
        sealing: Sealing,
        *,
        send_to_device: SendToDevice,
        patience: Patience,
        retry_s: float = RETRY_S,
    ) -> None:
        self._client, self._sealing, self._deliver = client, sealing, send_to_device
        self._patience, self._retry_s = patience, retry_s

    async def send_to_device(self, kind: str, user: UserId, device_id: str, content: JsonObject) -> None:
        """Hand a content to a device, or to all of a user's; in clear text, as every client does."""
        txn = _new_transaction()
        await self._insist(lambda: self._deliver(kind, user, device_id, content, txn))

    async def send_in_room(self, room: RoomId, kind: str, content: JsonObject) -> EventId:
        """Send an event, encrypted where the room is."""
        txn = _new_transaction()

        async def send() -> EventId:
            if await self._client.state_content(room, events.ENCRYPTION) is None:
                return await self._client.send(room, kind, content, txn)
            members = await self._client.joined_members(room)
            sealed_kind, sealed = await self._sealing.encrypt(room, members, kind, content)
            return await self._client.send(room, sealed_kind, sealed, txn)

        return await self._insist(send)

    async def _insist(self, send: Callable[[], Awaitable[T]]) -> T:
        failures, last = 0, HomeserverUnreachable("The homeserver did not take the message in time.")
        with anyio.move_on_after(self._retry_s):
            while True:
                try:
                    return await send()
                except HomeserverUnreachable as error:
                    failures, last = failures + 1, error
                    await anyio.sleep(self._patience.wait_s(failures))
                except RateLimited as limited:
                    await anyio.sleep(limited.retry_after)
        raise last


def _new_transaction() -> TransactionId:
    return TransactionId(f"verify/{secrets.token_hex(16)}")


class Visit:
    """Follows the rooms and the mailbox from now on, and hands on what belongs to a verification."""

    def __init__(
        self,
        client: Client,
        sealing: Sealing,
        verifications: Verifications,
        *,
        rooms: Collection[RoomId],
        mail: list[Source],
        patience: Patience,
    ) -> None:
        """`mail`: where `sealing` leaves the to-device messages that are about no key, while it receives a batch."""
        self._client, self._sealing, self._verifications = client, sealing, verifications
        self._rooms, self._mail, self._patience = tuple(rooms), mail, patience
        self._shut: dict[EventId, tuple[RoomId, Source]] = {}

    async def run(self, *, ready: anyio.Event) -> NoReturn:
        """Follow until cancelled; `ready` is set once what waited for us was handed on.

        Raises `CredentialsRefused` and `RequestRefused`, which trying again does not change.
        """
        since: SyncToken | None = None
        failures = 0
        while True:
            try:
                batch = await self._client.sync(
                    since,
                    timeout_ms=0 if since is None else LONG_POLL_MS,
                    full_state=since is None,
                    rooms=self._rooms,
                )
                await self._take(batch, history=since is None)
                since, failures = batch.next_batch, 0
                ready.set()
                await self._sealing.tidy()
            except (CredentialsRefused, RequestRefused):  # somebody waits at the terminal, and it will not change
                raise
            except MatrixError as error:
                failures += 1
                wait_s = error.retry_after if isinstance(error, RateLimited) else self._patience.wait_s(failures)
                if worth_a_line(failures):
                    log.warning("matrix.sync_delayed", why=str(error), failures=failures, wait_s=round(wait_s, 1))
                await anyio.sleep(wait_s)

    async def _take(self, batch: SyncBatch, *, history: bool) -> None:
        """Of what lies before our coming only a request that still waits is of any use."""
        self._mail.clear()
        await self._sealing.receive(batch)
        mail, self._mail[:] = [*self._mail], []
        for source in drop_answered(mail) if history else mail:
            await self._verifications.hear_to_device(source)
        found: list[tuple[RoomId, Source]] = [*self._shut.values()]
        self._shut.clear()
        for room in self._rooms:
            if room in batch.rooms:
                found += ((room, source) for source in batch.rooms[room].events)
        opened = [(room, clear) for room, source in found if (clear := await self._open(room, source)) is not None]
        if history:
            wanted = drop_answered([clear for _, clear in opened])
            opened = [(room, clear) for room, clear in opened if clear in wanted]
        for room, clear in opened:
            await self._verifications.hear_in_room(room, clear)

    async def _open(self, room: RoomId, source: Source) -> Source | None:
        event_id = events.event_id(source)
        if events.kind(source) != ENCRYPTED or event_id is None:
            return source
        found = await self._sealing.open(room, source)
        if isinstance(found, Opened):
            return found.source
        if found.why in {Why.NO_KEY, Why.NOT_NOW} and len(self._shut) < SHUT_MOST:
            self._shut[event_id] = (room, source)
        return None


def drop_answered(sources: Sequence[Source]) -> list[Source]:
    """The requests among them that nothing else here belongs to: those that were taken, cancelled or done are history."""
    answered = set(_find_answered(sources))
    return [source for source in sources if _is_request(source) and _id_of(source) not in answered]


def _find_answered(sources: Iterable[Source]) -> Iterable[str]:
    for source in sources:
        kind = events.kind(source)
        if kind is not None and kind.startswith(VERIFICATION) and kind != REQUEST:
            mark = events.text(events.content(source), "transaction_id") or events.relation(source).event_id
            if mark:
                yield mark


def _is_request(source: Source) -> bool:
    content = events.content(source)
    return events.kind(source) == REQUEST or events.text(content, "msgtype") == REQUEST


def _id_of(source: Source) -> str | None:
    return events.text(events.content(source), "transaction_id") or events.event_id(source)
