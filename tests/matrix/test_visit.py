"""How messages leave, and what is taken of what came: a client, encryption and verifications that do what a test says."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, RateLimited, RequestRefused
from bridge.core.model import EventId, JsonObject, RoomId, Seal, SyncToken, TransactionId, UserId
from bridge.matrix import events
from bridge.matrix.batches import SyncBatch, Timeline
from bridge.matrix.events import Source
from bridge.matrix.patience import Patience
from bridge.matrix.sealing import Opened, Sealing, Shut, Unsealed, Why
from bridge.matrix.visit import RoadPost, Visit, drop_answered

if TYPE_CHECKING:
    from bridge.matrix.client import Client
    from bridge.matrix.verification import Verifications

ROOM = RoomId("!room")
OTHER = RoomId("!other")
AMY = UserId("@amy:hs")
SEAL = Seal(device_id="PHONE", signed=True, master="m")
QUICK = Patience(first_s=0, most_s=0)
AWAY = HomeserverUnreachable("No connection to the homeserver.")
REFUSED = RequestRefused("no", status=403, errcode="M_FORBIDDEN")


@dataclass
class FakeClient:
    """What a visit asks of the homeserver."""

    encrypted: bool = True
    failures: list[Exception] = field(default_factory=list[Exception])
    batches: list[SyncBatch | Exception] = field(default_factory=list[SyncBatch | Exception])
    asked: list[tuple[SyncToken | None, int, bool]] = field(default_factory=list[tuple[SyncToken | None, int, bool]])
    sent: list[tuple[str, JsonObject]] = field(default_factory=list[tuple[str, JsonObject]])
    txns: list[TransactionId] = field(default_factory=list[TransactionId])
    idle: anyio.Event = field(default_factory=anyio.Event)

    async def state_content(self, room: RoomId, kind: str) -> Source | None:
        assert (ROOM, events.ENCRYPTION) == (room, kind)
        return {} if self.encrypted else None

    async def joined_members(self, room: RoomId) -> frozenset[UserId]:
        assert ROOM == room
        return frozenset({AMY})

    async def send(self, room: RoomId, kind: str, content: JsonObject, txn: TransactionId) -> EventId:
        assert ROOM == room
        self.txns.append(txn)
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append((kind, content))
        return EventId("$sent")

    async def sync(
        self, since: SyncToken | None, *, timeout_ms: int, full_state: bool, rooms: Collection[RoomId]
    ) -> SyncBatch:
        assert (ROOM,) == tuple(rooms)
        self.asked.append((since, timeout_ms, full_state))
        if not self.batches:
            self.idle.set()
            await anyio.sleep_forever()
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch


@dataclass
class FakeSealing:
    """Seals under a word; opens what it has a key for."""

    mail: list[Source] = field(default_factory=list[Source])
    keys: set[str] = field(default_factory=set[str])
    read_by: list[Collection[UserId]] = field(default_factory=list[Collection[UserId]])
    why: Why = Why.NO_KEY
    untidy: list[Exception] = field(default_factory=list[Exception])
    tidied: int = 0

    async def encrypt(
        self, room: RoomId, members: Collection[UserId], event_type: str, content: JsonObject
    ) -> tuple[str, JsonObject]:
        assert ROOM == room
        self.read_by.append(members)
        return "m.room.encrypted", {"sealed": event_type, "inside": dict(content)}

    async def receive(self, batch: SyncBatch) -> None:
        for source in batch.to_device:
            if events.kind(source) == "key":
                self.keys.add(str(source["session"]))
            else:
                self.mail.append(source)

    async def open(self, room: RoomId, source: Source) -> Unsealed:
        del room
        if str(source["session"]) not in self.keys:
            return Shut(self.why)
        return Opened(source=cast("Mapping[str, object]", source["inside"]), seal=SEAL)

    async def tidy(self) -> None:
        self.tidied += 1
        if self.untidy:
            raise self.untidy.pop(0)


@dataclass
class Heard:
    """Verifications that only listen."""

    mail: list[Source] = field(default_factory=list[Source])
    said: list[tuple[RoomId, Source]] = field(default_factory=list[tuple[RoomId, Source]])

    async def hear_to_device(self, source: Source) -> None:
        self.mail.append(source)

    async def hear_in_room(self, room: RoomId, source: Source) -> None:
        self.said.append((room, source))


def post(client: FakeClient, sealing: FakeSealing, *, retry_s: float = 60) -> RoadPost:
    async def deliver(kind: str, user: UserId, device_id: str, content: JsonObject, txn: TransactionId) -> None:
        client.txns.append(txn)
        if client.failures:
            raise client.failures.pop(0)
        client.sent.append((f"{kind} {user} {device_id}", content))

    return RoadPost(
        cast("Client", client),
        cast("Sealing", sealing),
        send_to_device=deliver,
        patience=QUICK,
        retry_s=retry_s,
    )


# --------------------------------------------------------------------------------------------------- how they leave


async def test_nothing_goes_into_an_encrypted_room_in_the_clear() -> None:
    client, sealing = FakeClient(), FakeSealing()
    assert "$sent" == await post(client, sealing).send_in_room(ROOM, "kind", {"a": 1})
    assert [("m.room.encrypted", {"sealed": "kind", "inside": {"a": 1}})] == client.sent
    assert [{AMY}] == sealing.read_by


async def test_a_room_without_encryption_is_spoken_to_as_it_is() -> None:
    client = FakeClient(encrypted=False)
    await post(client, FakeSealing()).send_in_room(ROOM, "kind", {"a": 1})
    assert [("kind", {"a": 1})] == client.sent


@pytest.mark.parametrize("to_device", [True, False])
async def test_what_passes_is_tried_again_under_the_same_transaction(to_device: bool) -> None:
    client = FakeClient(failures=[AWAY, RateLimited("slowly", retry_after=0)])
    await send(post(client, FakeSealing()), to_device=to_device)
    assert 1 == len(client.sent)
    assert (3, 1) == (len(client.txns), len(set(client.txns)))


async def send(road: RoadPost, *, to_device: bool) -> None:
    if to_device:
        await road.send_to_device("kind", AMY, "PHONE", {})
    else:
        await road.send_in_room(ROOM, "kind", {})


@pytest.mark.parametrize("to_device", [True, False])
async def test_what_does_not_pass_is_not_tried_again(to_device: bool) -> None:
    client = FakeClient(failures=[REFUSED])
    with pytest.raises(RequestRefused):
        await send(post(client, FakeSealing()), to_device=to_device)
    assert 1 == len(client.txns)


async def test_a_homeserver_that_stays_away_is_given_up() -> None:
    client = FakeClient(failures=[RateLimited("slowly", retry_after=3600)])
    with anyio.fail_after(5), pytest.raises(HomeserverUnreachable):
        await post(client, FakeSealing(), retry_s=0.01).send_in_room(ROOM, "kind", {})


# ---------------------------------------------------------------------------------------------------- what is taken


def mail(kind: str, transaction: str) -> Source:
    return {"type": f"m.key.verification.{kind}", "sender": AMY, "content": {"transaction_id": transaction}}


def in_room(kind: str, event_id: str, to: str | None = None) -> Source:
    if kind == "request":
        content: dict[str, object] = {"msgtype": "m.key.verification.request"}
        return {"type": "m.room.message", "sender": AMY, "event_id": event_id, "content": content}
    content = {"m.relates_to": {"rel_type": "m.reference", "event_id": to}}
    return {"type": f"m.key.verification.{kind}", "sender": AMY, "event_id": event_id, "content": content}


def sealed(inside: Source, session: str = "s") -> Source:
    return {"type": "m.room.encrypted", "event_id": inside["event_id"], "session": session, "inside": inside}


def batch(token: str, *in_room: Source, to_device: tuple[Source, ...] = (), room: RoomId = ROOM) -> SyncBatch:
    timeline = Timeline(events=in_room, state=(), limited=False, prev_batch=None)
    return SyncBatch(
        next_batch=SyncToken(token), rooms={room: timeline} if in_room else {}, invites={}, left={}, to_device=to_device
    )


async def visit(*batches: SyncBatch | Exception, sealing: FakeSealing | None = None) -> tuple[FakeClient, Heard]:
    client, heard, sealing = FakeClient(batches=[*batches]), Heard(), sealing or FakeSealing()
    ready = anyio.Event()
    follow = Visit(
        cast("Client", client),
        cast("Sealing", sealing),
        cast("Verifications", heard),
        rooms=[ROOM],
        mail=sealing.mail,
        patience=QUICK,
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await follow.run(ready=ready)

            tasks.start_soon(run)
            await client.idle.wait()
            tasks.cancel_scope.cancel()
    assert ready.is_set() is any(isinstance(one, SyncBatch) for one in batches)
    return client, heard


KEY: Source = {"type": "key", "session": "s"}


async def test_what_is_new_is_handed_on_in_its_order() -> None:
    request, ready, asked = in_room("request", "$1"), in_room("ready", "$2", "$1"), mail("request", "t")
    client, heard = await visit(
        batch("a"), batch("b", sealed(request), sealed(ready), to_device=(KEY, asked, mail("cancel", "t")))
    )
    assert [(ROOM, request), (ROOM, ready)] == heard.said
    assert [asked, mail("cancel", "t")] == heard.mail
    assert [(None, 0, True), ("a", 30_000, False), ("b", 30_000, False)] == client.asked


async def test_of_what_was_there_before_only_requests_that_wait_are_handed_on() -> None:
    waiting, over = in_room("request", "$1"), in_room("request", "$2")
    mails = (mail("request", "t1"), mail("request", "t2"), mail("cancel", "t2"), mail("key", "t0"))
    _, heard = await visit(batch("a", waiting, over, in_room("cancel", "$3", "$2"), to_device=mails))
    assert [(ROOM, waiting)] == heard.said
    assert [mail("request", "t1")] == heard.mail


async def test_an_event_is_opened_when_its_key_comes_later() -> None:
    request = in_room("request", "$1")
    _, heard = await visit(batch("a"), batch("b", sealed(request)), batch("c", to_device=(KEY,)), batch("d"))
    assert [(ROOM, request)] == heard.said


async def test_what_can_never_be_opened_is_let_go() -> None:
    sealing = FakeSealing(why=Why.NEVER)
    _, heard = await visit(
        batch("a"), batch("b", sealed(in_room("request", "$1"))), batch("c", to_device=(KEY,)), sealing=sealing
    )
    assert [] == heard.said


async def test_another_room_is_none_of_its_business() -> None:
    _, heard = await visit(batch("a"), batch("b", in_room("request", "$1"), room=OTHER))
    assert [] == heard.said


async def test_it_goes_on_from_its_place_when_the_homeserver_was_away() -> None:
    client, heard = await visit(
        batch("a"), AWAY, RateLimited("slowly", retry_after=0), batch("b", in_room("request", "$1"))
    )
    assert ["a", "a", "a"] == [since for since, _, _ in client.asked[1:4]]
    assert 1 == len(heard.said)


async def test_keys_that_could_not_be_tidied_up_do_not_repeat_a_batch() -> None:
    sealing = FakeSealing(untidy=[AWAY, AWAY])
    client, heard = await visit(batch("a"), batch("b", in_room("request", "$1")), sealing=sealing)
    assert [None, "a", "b"] == [since for since, _, _ in client.asked]
    assert 1 == len(heard.said)
    assert 2 == sealing.tidied


@pytest.mark.parametrize("error", [CredentialsRefused("The token does not count any more."), REFUSED])
async def test_what_will_not_change_ends_it(error: Exception) -> None:
    with pytest.RaisesGroup(type(error)):
        await visit(error)


def test_a_request_without_an_id_is_not_dropped_for_another() -> None:
    odd: Source = {"type": "m.key.verification.request", "content": 3}
    assert [odd] == drop_answered([odd, mail("cancel", "t")])
