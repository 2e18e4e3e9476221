"""What the loop and the queue may lean on, for the fake and for the real keys on a homeserver."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from uuid import uuid4

import anyio
import pytest

from bridge.core.errors import EventTooLarge, HomeserverUnreachable
from bridge.core.model import JsonObject, JsonValue, RoomId, SyncToken, TransactionId, UserId
from bridge.demo.homeserver import Homeserver, call
from bridge.matrix import events
from bridge.matrix.batches import SyncBatch
from bridge.matrix.client import Client
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from bridge.matrix.events import Source
from bridge.matrix.sealing import Opened, Sealing, Shut, Why
from tests.fakes.sealing import FakeSealing, key, no_key, sealed, unseal
from tests.peers.late_keys import Kept, losing_keys
from tests.peers.nio_person import nio_person

ROOM = RoomId("!room")
ALICE = UserId("@alice:hs")
TEXT: JsonObject = {"msgtype": "m.text", "body": "secret"}
NOTHING = SyncBatch(next_batch=SyncToken("s"))


@dataclass(slots=True, kw_only=True)
class Subject:
    """The encryption under test, and Alice at the other end of a room."""

    sealing: Sealing
    room: RoomId
    alice: UserId
    say: Callable[[str], Awaitable[tuple[SyncBatch, Source]]]  # the batch that brings what she says, and its key
    say_without_key: Callable[[str], Awaitable[tuple[SyncBatch, Source]]]
    bring_key: Callable[[], Awaitable[SyncBatch]]  # of what she said without it
    withhold: Callable[[Source], Awaitable[SyncBatch]]  # that she will not give it
    read: Callable[[str, JsonObject], Awaitable[Source]]  # the content that she sees in what was sealed
    fail: Callable[[], None]  # the homeserver takes no keys
    stall: Callable[[], None]  # it does not answer
    mend: Callable[[], None]


MakeSubject = Callable[[Homeserver, Path], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def on_fake(_: Homeserver, __: Path) -> AsyncGenerator[Subject]:
    sealing = FakeSealing()
    ids = iter(range(100))

    def event(text: str, session: str) -> Source:
        content = sealed(text, room=ROOM, session=session)
        return {"type": "m.room.encrypted", "sender": ALICE, "event_id": f"$e{next(ids)}", "content": content}

    async def say(text: str) -> tuple[SyncBatch, Source]:
        return replace(NOTHING, to_device=(key("s1"),)), event(text, "s1")

    async def say_without_key(text: str) -> tuple[SyncBatch, Source]:
        return NOTHING, event(text, "s2")

    async def bring_key() -> SyncBatch:
        return replace(NOTHING, to_device=(key("s2"),))

    async def withhold(_: Source) -> SyncBatch:
        return replace(NOTHING, to_device=(no_key("s2"),))

    async def read(_: str, content: JsonObject) -> Source:
        return cast("Source", unseal(content)["content"])

    def fail() -> None:
        sealing.failures = [HomeserverUnreachable("No connection to the homeserver.")] * 9

    def stall() -> None:
        sealing.gate = anyio.Event()

    def mend() -> None:
        sealing.failures, sealing.gate = [], None

    yield Subject(
        sealing=sealing,
        room=ROOM,
        alice=ALICE,
        say=say,
        say_without_key=say_without_key,
        bring_key=bring_key,
        withhold=withhold,
        read=read,
        fail=fail,
        stall=stall,
        mend=mend,
    )


class Trouble:
    """A client whose calls about keys can be made to fail or to hang."""

    def __init__(self, client: Client) -> None:
        self.how = ""
        self._call = client.call
        client.call = self.call  # type: ignore[method-assign]

    async def call(self, method: str, *parts: str, **more: object) -> Source:
        match self.how:
            case "fail":
                raise HomeserverUnreachable("No connection to the homeserver.")
            case "stall":
                await anyio.sleep_forever()
            case _:
                pass
        return await self._call(method, *parts, **more)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def on_homeserver(synapse: Homeserver, folder: Path) -> AsyncGenerator[Subject]:
    tag = uuid4().hex[:8]
    account, hers = synapse.register(f"bot-{tag}"), synapse.register(f"alice-{tag}")
    bot = UserId(account.user_id)
    client = Client(synapse.base_url, user_id=bot, device_id=account.device_id, access_token=account.access_token)
    since: SyncToken | None = None
    kept: list[Kept] = []
    person = nio_person(synapse.base_url, hers.user_id, hers.device_id, hers.access_token, folder / "alice")
    try:
        with Machine(folder / "bot", bot, account.device_id, create=True) as machine:
            sealing = Encryption(client, machine)
            trouble = Trouble(client)
            await sealing.start()
            async with person as alice:
                room = RoomId(await alice.room(bot))
                await client.join(room)
                await alice.until_member(room, bot)

                async def sync() -> SyncBatch:
                    nonlocal since
                    batch = await client.sync(since, timeout_ms=0, full_state=since is None, rooms=[room])
                    since = batch.next_batch
                    return batch

                async def find(event_id: str) -> tuple[SyncBatch, Source]:
                    batch = await sync()
                    return batch, next(one for one in batch.rooms[room].events if one["event_id"] == event_id)

                async def say(text: str) -> tuple[SyncBatch, Source]:
                    return await find(await alice.say(room, text))

                async def say_without_key(text: str) -> tuple[SyncBatch, Source]:
                    with losing_keys(alice) as lost:
                        event_id = await alice.say(room, text)
                    kept.append(lost)
                    return await find(event_id)

                async def bring_key() -> SyncBatch:
                    await kept[-1].bring()
                    return await sync()

                async def withhold(source: Source) -> SyncBatch:
                    about = events.content(source)
                    content = {name: about[name] for name in ("algorithm", "session_id", "sender_key")}
                    content |= {"room_id": room, "code": "m.unverified", "reason": "x"}
                    path = f"/_matrix/client/v3/sendToDevice/m.room_key.withheld/{uuid4().hex}"
                    wish = {"messages": {bot: {account.device_id: content}}}
                    assert call(synapse.base_url, "PUT", path, wish, token=hers.access_token).status == 200
                    return await sync()

                async def read(kind: str, content: JsonObject) -> Source:
                    event_id = await client.send(room, kind, content, TransactionId(uuid4().hex))
                    return events.content(await alice.read(event_id))

                await sync()
                yield Subject(
                    sealing=sealing,
                    room=room,
                    alice=UserId(hers.user_id),
                    say=say,
                    say_without_key=say_without_key,
                    bring_key=bring_key,
                    withhold=withhold,
                    read=read,
                    fail=lambda: setattr(trouble, "how", "fail"),
                    stall=lambda: setattr(trouble, "how", "stall"),
                    mend=lambda: setattr(trouble, "how", ""),
                )
    finally:
        await client.close()


@pytest.fixture(params=[on_fake, on_homeserver], ids=["fake", "homeserver"])
async def subject(request: pytest.FixtureRequest, synapse: Homeserver, tmp_path: Path) -> AsyncIterator[Subject]:
    make = cast("MakeSubject", request.param)
    async with make(synapse, tmp_path) as made:
        yield made


def body(opened: object) -> object:
    assert isinstance(opened, Opened)
    return events.content(opened.source)["body"]


# ------------------------------------------------------------------------------------------------------------- reading


async def test_what_is_said_is_opened_with_the_key_of_its_batch(subject: Subject) -> None:
    batch, source = await subject.say("1")
    await subject.sealing.receive(batch)
    opened = await subject.sealing.open(subject.room, source)
    assert body(opened) == "1"
    assert isinstance(opened, Opened)
    inside = (opened.source["type"], opened.source["sender"], opened.source["event_id"], "state_key" in opened.source)
    assert ("m.room.message", subject.alice, source["event_id"], False) == inside


async def test_an_event_can_be_opened_again(subject: Subject) -> None:
    """A batch that could not be stored comes again after a restart."""
    batch, source = await subject.say("1")
    await subject.sealing.receive(batch)
    assert [body(await subject.sealing.open(subject.room, source)) for _ in range(2)] == ["1", "1"]


async def test_a_batch_can_be_received_again(subject: Subject) -> None:
    batch, source = await subject.say("1")
    await subject.sealing.receive(batch)
    await subject.sealing.receive(batch)
    assert body(await subject.sealing.open(subject.room, source)) == "1"


async def test_what_has_no_key_opens_once_its_key_has_come(subject: Subject) -> None:
    batch, source = await subject.say_without_key("1")
    await subject.sealing.receive(batch)
    assert Shut(Why.NO_KEY) == await subject.sealing.open(subject.room, source)
    await subject.sealing.receive(await subject.bring_key())
    assert body(await subject.sealing.open(subject.room, source)) == "1"


async def test_a_key_that_is_kept_back_on_purpose_is_told_as_such(subject: Subject) -> None:
    batch, source = await subject.say_without_key("1")
    await subject.sealing.receive(batch)
    await subject.sealing.receive(await subject.withhold(source))
    assert Shut(Why.WITHHELD) == await subject.sealing.open(subject.room, source)


async def test_the_same_words_under_another_id_were_sent_before(subject: Subject) -> None:
    batch, source = await subject.say("1")
    await subject.sealing.receive(batch)
    await subject.sealing.open(subject.room, source)
    assert Shut(Why.NEVER) == await subject.sealing.open(subject.room, {**source, "event_id": "$other"})


async def test_words_that_were_moved_to_another_room_are_not_read_there(subject: Subject) -> None:
    batch, source = await subject.say("1")
    await subject.sealing.receive(batch)
    assert isinstance(await subject.sealing.open(RoomId("!other"), source), Shut)


async def test_the_relation_in_the_clear_stands_in_for_one_that_was_not_sealed(subject: Subject) -> None:
    batch, source = await subject.say("1")
    await subject.sealing.receive(batch)
    relates = {"m.in_reply_to": {"event_id": "$p"}}
    moved = {**source, "content": {**events.content(source), "m.relates_to": relates}}
    opened = await subject.sealing.open(subject.room, moved)
    assert isinstance(opened, Opened)
    assert relates == events.content(opened.source)["m.relates_to"]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"algorithm": 5},
        {"algorithm": "m.megolm.v1.aes-sha2"},
        {
            "algorithm": "m.megolm.v1.aes-sha2",
            "ciphertext": "!!",
            "session_id": "s",
            "sender_key": "k",
            "device_id": "D",
        },
        {
            "algorithm": "m.olm.v1.curve25519-aes-sha2",
            "ciphertext": {"k": {"type": 0, "body": "!!"}},
            "sender_key": "k",
        },
        {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": ["AAAA"], "session_id": {}, "sender_key": None},
    ],
)
async def test_what_is_no_message_at_all_stays_shut(subject: Subject, content: Source) -> None:
    source = {"type": "m.room.encrypted", "sender": "@mallory:hs", "event_id": "$m", "content": content}
    assert isinstance(await subject.sealing.open(subject.room, source), Shut)


async def test_poison_that_came_to_the_device_stops_nothing(subject: Subject) -> None:
    batch, source = await subject.say("1")
    ours = {"k": {"type": 0, "body": "!!"}}
    poison: tuple[Source, ...] = (
        {"type": "m.room.encrypted", "sender": "@mallory:hs", "content": {"ciphertext": ours, "algorithm": "m.olm.v1"}},
        {"type": "m.room.encrypted", "sender": 5, "content": []},
        {"type": "m.room_key", "sender": "@mallory:hs", "content": {"session_id": ["s"]}},
        {},
    )
    await subject.sealing.receive(replace(batch, to_device=(*poison, *batch.to_device)))
    assert body(await subject.sealing.open(subject.room, source)) == "1"


async def test_to_ask_again_promises_nothing_and_raises_nothing(subject: Subject) -> None:
    batch, source = await subject.say_without_key("1")
    await subject.sealing.receive(batch)
    await subject.sealing.ask_again(subject.room, source)
    subject.fail()
    await subject.sealing.ask_again(subject.room, source)


# ------------------------------------------------------------------------------------------------------------- writing


async def test_what_was_sealed_is_read_at_the_other_end_and_nowhere_between(subject: Subject) -> None:
    kind, content = await subject.sealing.encrypt(subject.room, [subject.alice], "m.room.message", TEXT)
    assert (kind, "secret" in str(content)) == ("m.room.encrypted", False)
    assert (await subject.read(kind, content))["body"] == "secret"


async def test_a_relation_stays_where_the_server_can_see_it(subject: Subject) -> None:
    relates: JsonValue = {"m.in_reply_to": {"event_id": "$p"}}
    _, content = await subject.sealing.encrypt(
        subject.room, [subject.alice], "m.room.message", {**TEXT, "m.relates_to": relates}
    )
    assert relates == content["m.relates_to"]


async def test_nothing_is_sealed_while_keys_cannot_be_given_out(subject: Subject) -> None:
    subject.fail()
    with pytest.raises(HomeserverUnreachable):
        await subject.sealing.encrypt(subject.room, [subject.alice], "m.room.message", TEXT)
    subject.mend()
    kind, content = await subject.sealing.encrypt(subject.room, [subject.alice], "m.room.message", TEXT)
    assert (await subject.read(kind, content))["body"] == "secret"


async def test_sealing_that_was_broken_off_leaves_nothing_locked(subject: Subject) -> None:
    subject.stall()
    with anyio.move_on_after(0.05) as scope:
        await subject.sealing.encrypt(subject.room, [subject.alice], "m.room.message", TEXT)
    assert scope.cancelled_caught
    subject.mend()
    with anyio.fail_after(10):
        kind, content = await subject.sealing.encrypt(subject.room, [subject.alice], "m.room.message", TEXT)
    assert (await subject.read(kind, content))["body"] == "secret"


async def test_what_no_server_would_take_is_too_large(subject: Subject) -> None:
    with pytest.raises(EventTooLarge):
        await subject.sealing.encrypt(subject.room, [subject.alice], "m.room.message", {**TEXT, "body": "x" * 60_000})


async def test_what_the_bridge_composes_is_never_too_large(subject: Subject) -> None:
    large = {**TEXT, "body": "x" * 43_000}
    kind, content = await subject.sealing.encrypt(subject.room, [subject.alice], "m.room.message", large)
    assert large["body"] == (await subject.read(kind, content))["body"]
