"""What everybody who holds `core.ports.Rooms` may lean on, for the fake and for the real one on a homeserver."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from bridge.core.changes import Priority
from bridge.core.events import Event, SendFailed, Sent, TooLarge
from bridge.core.messages import AgentNote
from bridge.core.model import AgentName, TransactionId
from bridge.core.ports import Rooms
from bridge.matrix.client import Client
from tests.fakes.rooms import FakeRooms
from tests.peers.homeserver import Fault, Homeserver
from tests.peers.running_rooms import ROOM, outgoing, running

T1 = TransactionId("t1")
T2 = TransactionId("t2")


@dataclass(slots=True, kw_only=True)
class Subject:
    """The rooms under test, held still: nothing leaves until `let_go`, and then as the homeserver decides."""

    rooms: Rooms
    delivered: list[Event]
    let_go: Callable[[int], Awaitable[list[Event]]]  # until so many events were delivered
    gone: Callable[[], Awaitable[None]]  # the bot is put out of the room
    too_large: Callable[[], Awaitable[None]]  # the homeserver finds the next event too large


@asynccontextmanager
async def on_fake() -> AsyncGenerator[Subject]:
    delivered: list[Event] = []
    rooms = FakeRooms(delivered.append)
    fate: list[Callable[[TransactionId], object]] = [rooms.take]

    async def let_go(_: int) -> list[Event]:
        for waiting in sorted(rooms.waiting.values(), key=lambda one: one.priority):
            fate[-1](waiting.transaction_id)
        return delivered

    async def gone() -> None:
        fate.append(rooms.refuse)

    async def too_large() -> None:
        fate.append(rooms.find_too_large)

    yield Subject(rooms=rooms, delivered=delivered, let_go=let_go, gone=gone, too_large=too_large)


@asynccontextmanager
async def on_homeserver() -> AsyncGenerator[Subject]:
    async with Homeserver().serving() as server:
        server.room(ROOM)
        client = Client(server.url, user_id=server.user_id, access_token=server.token)
        server.fail_always("sync", Fault(status=503))
        async with running(client, wait=False) as run:

            async def let_go(count: int) -> list[Event]:
                server.fail_always("sync", None)
                await run.until(lambda: len(run.delivered) >= count)
                return run.delivered

            async def gone() -> None:
                server.member(ROOM, server.user_id, "leave", "@mod:hs")

            async def too_large() -> None:
                server.fail("send", Fault(status=413, body={"errcode": "M_TOO_LARGE"}))

            yield Subject(rooms=run.rooms, delivered=run.delivered, let_go=let_go, gone=gone, too_large=too_large)
        await client.close()


@pytest.fixture(params=[on_fake, on_homeserver], ids=["fake", "homeserver"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with request.param() as made:
        yield made


async def test_send_neither_waits_nor_tells_before_it_is_true(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1"))
    assert subject.delivered == []


async def test_what_was_sent_is_told_exactly_once(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1"))
    subject.rooms.send(outgoing("t2"))
    delivered = await subject.let_go(2)
    assert [(Sent, "t1"), (Sent, "t2")] == [
        (type(one), one.transaction_id) for one in delivered if isinstance(one, Sent)
    ]


async def test_each_event_has_an_id_of_its_own(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1"))
    subject.rooms.send(outgoing("t2"))
    delivered = await subject.let_go(2)
    assert len({one.event_id for one in delivered if isinstance(one, Sent)}) == 2


async def test_a_prompt_leaves_before_what_matters_less(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1", priority=Priority.SEED))
    subject.rooms.send(outgoing("t2", priority=Priority.PROMPT))
    delivered = await subject.let_go(2)
    assert [one.transaction_id for one in delivered if isinstance(one, Sent)] == ["t2", "t1"]


async def test_an_event_that_is_given_twice_is_sent_once(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1"))
    subject.rooms.send(outgoing("t1"))
    subject.rooms.send(outgoing("t2"))
    delivered = await subject.let_go(2)
    assert [one.transaction_id for one in delivered if isinstance(one, Sent)] == ["t1", "t2"]


async def test_what_is_withheld_in_time_is_never_told_of(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1"))
    subject.rooms.send(outgoing("t2"))
    withheld = subject.rooms.withhold(T1)
    delivered = await subject.let_go(1)
    assert (withheld, [one.transaction_id for one in delivered if isinstance(one, Sent)]) == (True, ["t2"])


async def test_what_has_left_cannot_be_withheld(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1"))
    await subject.let_go(1)
    assert not subject.rooms.withhold(T1)


async def test_what_was_never_sent_cannot_be_withheld(subject: Subject) -> None:
    assert not subject.rooms.withhold(T2)


async def test_what_is_withheld_can_be_sent_after_all(subject: Subject) -> None:
    subject.rooms.send(outgoing("t1"))
    subject.rooms.withhold(T1)
    subject.rooms.send(outgoing("t1"))
    delivered = await subject.let_go(1)
    assert [one.transaction_id for one in delivered if isinstance(one, Sent)] == ["t1"]


async def test_a_permanent_failure_is_told_with_a_sentence(subject: Subject) -> None:
    await subject.gone()
    subject.rooms.send(outgoing("t1"))
    expected = SendFailed(transaction_id=T1, sentence="The bot is not in the room any more.")
    assert [expected] == await subject.let_go(1)


async def test_an_event_that_is_too_large_is_told_as_such(subject: Subject) -> None:
    await subject.too_large()
    subject.rooms.send(outgoing("t1"))
    assert [TooLarge(transaction_id=T1)] == await subject.let_go(1)


async def test_typing_waits_for_nothing(subject: Subject) -> None:
    subject.rooms.typing(ROOM, on=True)
    subject.rooms.typing(ROOM, on=False)
    await anyio.lowlevel.checkpoint()


async def test_words_that_can_be_made_no_shorter_are_no_words(subject: Subject) -> None:
    note = AgentNote(AgentName("claude"), "It could not be started.")
    assert subject.rooms.compose(note, ROOM, shrink=1_000) == ()
