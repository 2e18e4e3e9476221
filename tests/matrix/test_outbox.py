import asyncio
import itertools
from collections.abc import AsyncIterator

import anyio
import pytest

from bridge.core.changes import Priority
from bridge.core.events import Event, SendFailed, Sent, TooLarge
from bridge.core.model import EventId, RoomId, TransactionId, UserId
from bridge.matrix.client import Client
from bridge.matrix.outbox import SEEDS_MOST, STALE_MOST, Outbox
from bridge.matrix.patience import Patience
from tests.peers.homeserver import Fault, Homeserver
from tests.peers.running_rooms import OTHER, ROOM, SOON, outgoing

LIMIT = {"errcode": "M_LIMIT_EXCEEDED", "error": "slow"}
NO = {"errcode": "M_FORBIDDEN", "error": "no"}


class Sending:
    """An outbox at work; `run` starts it, so that a test can queue in peace before."""

    def __init__(self, client: Client, *, muted_most_s: float = 600.0, patience: Patience = SOON) -> None:
        self.delivered: list[Event] = []
        self.encrypted: set[RoomId] = set()
        self.entering: set[RoomId] = set()
        self.moved = anyio.Event()
        self.box = Outbox(
            client,
            bot=UserId("@bot:hs"),
            deliver=self.deliver,
            is_encrypted=self.encrypted.__contains__,
            is_entering=self.entering.__contains__,
            patience=patience,
            muted_most_s=muted_most_s,
        )

    def deliver(self, event: Event) -> None:
        self.delivered.append(event)
        self.moved.set()

    async def until(self, count: int) -> list[Event]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.box.run)
            with anyio.fail_after(5):
                while len(self.delivered) < count:
                    self.moved = anyio.Event()
                    await self.moved.wait()
            tasks.cancel_scope.cancel()
        return self.delivered


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as made:
        made.room(ROOM)
        made.room(OTHER)
        yield made


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, access_token=server.token)
    yield made
    await made.close()


@pytest.fixture
def sending(client: Client) -> Sending:
    return Sending(client)


def texts(server: Homeserver) -> list[str]:
    return [event.txn for event in server.sent]


def sent(server: Homeserver, txn: str) -> Sent:
    event_id = next(event.event_id for event in server.sent if event.txn == txn)
    return Sent(transaction_id=TransactionId(txn), event_id=EventId(event_id))


async def test_what_was_sent_is_told_with_its_event_id(sending: Sending, server: Homeserver) -> None:
    sending.box.add(outgoing("t1"))
    delivered = await sending.until(1)
    assert [sent(server, "t1")] == delivered


async def test_prompts_leave_before_notices_edits_and_seeds(sending: Sending, server: Homeserver) -> None:
    for txn, priority in (("s", Priority.SEED), ("e", Priority.EDIT), ("n", Priority.NOTICE), ("p", Priority.PROMPT)):
        sending.box.add(outgoing(txn, priority=priority))
    await sending.until(4)
    assert texts(server) == ["p", "n", "e", "s"]


async def test_prompts_leave_in_the_order_in_which_they_came(sending: Sending, server: Homeserver) -> None:
    for number in range(30):
        sending.box.add(outgoing(f"t{number}"))
    await sending.until(30)
    assert [f"t{number}" for number in range(30)] == texts(server)


async def test_rooms_take_turns_so_that_a_flood_in_one_does_not_hold_up_another(
    sending: Sending, server: Homeserver
) -> None:
    for number in range(4):
        sending.box.add(outgoing(f"flood{number}"))
    for number in range(2):
        sending.box.add(outgoing(f"other{number}", room=OTHER))
    await sending.until(6)
    assert texts(server) == ["flood0", "other0", "flood1", "other1", "flood2", "flood3"]


async def test_an_event_that_is_queued_twice_leaves_once(sending: Sending, server: Homeserver) -> None:
    sending.box.add(outgoing("t1"))
    sending.box.add(outgoing("t1"))
    sending.box.add(outgoing("t2"))
    await sending.until(2)
    assert texts(server) == ["t1", "t2"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, body={"errcode": "M_UNKNOWN"}),
        Fault(status=502, body="<html>", content_type="text/html"),
        Fault(status=200, body="<html>", content_type="text/html"),
        Fault(drop=True),
        Fault(torn=True),
        Fault(done=True, drop=True),
        Fault(status=429, body=LIMIT | {"retry_after_ms": 10}),
    ],
    ids=["500", "502", "portal", "drop", "torn", "cut after it was done", "429"],
)
async def test_a_passing_failure_is_tried_again_under_the_same_id_and_makes_one_event(
    sending: Sending, server: Homeserver, fault: Fault
) -> None:
    server.fail("send", fault, fault, fault)
    sending.box.add(outgoing("t1"))
    delivered = await sending.until(1)
    assert [sent(server, "t1")] == delivered
    assert texts(server) == ["t1"]


async def test_a_rate_limit_is_obeyed(sending: Sending, server: Homeserver) -> None:
    server.fail("send", Fault(status=429, body=LIMIT | {"retry_after_ms": 200}))
    sending.box.add(outgoing("t1"))
    await sending.until(1)
    first, second = (seen.at for seen in server.requests if seen.operation == "send")
    assert second - first >= 0.2


async def test_a_rate_limit_in_one_room_does_not_hold_up_a_prompt_in_another(
    sending: Sending, server: Homeserver
) -> None:
    server.fail("send", Fault(status=429, body=LIMIT | {"retry_after_ms": 86_400_000}))
    sending.box.add(outgoing("held"))
    sending.box.add(outgoing("free", room=OTHER))
    delivered = await sending.until(1)
    assert [sent(server, "free")] == delivered


async def test_under_a_rate_limit_lesser_events_of_other_rooms_wait_for_the_prompt(
    sending: Sending, server: Homeserver
) -> None:
    server.fail("send", Fault(status=429, body=LIMIT | {"retry_after_ms": 100}))
    sending.box.add(outgoing("prompt"))
    sending.box.add(outgoing("seed", room=OTHER, priority=Priority.SEED))
    await sending.until(2)
    assert texts(server) == ["prompt", "seed"]


async def test_lesser_events_go_on_when_the_limited_prompt_is_taken_back(sending: Sending, server: Homeserver) -> None:
    server.fail("send", Fault(status=429, body=LIMIT | {"retry_after_ms": 100}))
    sending.box.add(outgoing("prompt"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sending.box.run)
        with anyio.fail_after(5):
            await server.until(lambda: server.count("send") == 1)
            sending.box.add(outgoing("seed", room=OTHER, priority=Priority.SEED))
            while not sending.box.withhold(TransactionId("prompt")):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    delivered = await sending.until(1)
    assert [sent(server, "seed")] == delivered


async def test_a_failing_room_holds_up_no_other(sending: Sending, server: Homeserver) -> None:
    server.fail("send", *[Fault(status=500)] * 1)
    sending.box.add(outgoing("slow"))
    sending.box.add(outgoing("quick", room=OTHER))
    await sending.until(2)
    assert texts(server) == ["quick", "slow"]


async def test_a_rest_that_is_over_while_it_is_measured_holds_nothing_up_for_good(
    client: Client, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, looks = anyio.current_time(), itertools.count()

    def look() -> float:
        return began + next(looks)  # a second passes from look to look

    def most(_: float, most: float) -> float:
        return most

    monkeypatch.setattr(anyio, "current_time", look)
    monkeypatch.setattr("random.uniform", most)
    sending = Sending(client, patience=Patience(first_s=1.5, most_s=1.5))
    server.fail("send", Fault(status=500))
    sending.box.add(outgoing("t1"))
    await sending.until(1)
    assert texts(server) == ["t1"]


async def test_an_event_that_waits_is_taken_back_and_never_leaves(sending: Sending, server: Homeserver) -> None:
    sending.box.add(outgoing("t1"))
    sending.box.add(outgoing("t2"))
    assert sending.box.withhold(TransactionId("t1"))
    await sending.until(1)
    assert texts(server) == ["t2"]


async def test_an_event_that_certainly_failed_is_taken_back(sending: Sending, server: Homeserver) -> None:
    server.fail_always("send", Fault(status=503))
    sending.box.add(outgoing("t1"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sending.box.run)
        with anyio.fail_after(5):
            await server.until(lambda: server.count("send") == 2)
            while not sending.box.withhold(TransactionId("t1")):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert (len(sending.box), sending.delivered) == (0, [])


@pytest.mark.parametrize(
    ("fault", "taken_back"),
    [
        (Fault(done=True, drop=True), False),
        (Fault(done=True, torn=True), False),
        (Fault(status=504), False),
        (Fault(status=503), True),
        (Fault(status=429, body=LIMIT | {"retry_after_ms": 60_000}), True),
    ],
    ids=["drop", "torn", "504", "503", "429"],
)
async def test_only_an_event_that_certainly_did_not_arrive_is_taken_back(
    client: Client, server: Homeserver, fault: Fault, taken_back: bool
) -> None:
    sending = Sending(client, patience=Patience(first_s=60.0, most_s=60.0))
    server.fail("send", fault)
    sending.box.add(outgoing("tried"))
    sending.box.add(outgoing("free", room=OTHER))
    await sending.until(1)
    assert taken_back is sending.box.withhold(TransactionId("tried"))


async def test_an_event_on_its_way_cannot_be_taken_back(sending: Sending, server: Homeserver) -> None:
    gate = asyncio.Event()
    server.fail("send", Fault(gate=gate))
    sending.box.add(outgoing("t1"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sending.until, 1)
        with anyio.fail_after(5):
            await server.until(lambda: server.count("send") == 1)
        assert not sending.box.withhold(TransactionId("t1"))
        gate.set()
    assert [sent(server, "t1")] == sending.delivered


async def test_what_is_not_queued_cannot_be_taken_back(sending: Sending) -> None:
    assert not sending.box.withhold(TransactionId("never"))


async def test_a_refusal_in_a_room_that_the_bot_is_out_of_is_permanent(sending: Sending, server: Homeserver) -> None:
    server.member(ROOM, "@bot:hs", "leave", "@mod:hs")
    sending.box.add(outgoing("t1"))
    expected = SendFailed(transaction_id=TransactionId("t1"), sentence="The bot is not in the room any more.")
    assert [expected] == await sending.until(1)


async def test_a_refusal_in_a_room_that_was_replaced_is_permanent(sending: Sending, server: Homeserver) -> None:
    server.state(ROOM, "m.room.tombstone", "", {"replacement_room": "!new"}, "@admin:hs")
    server.fail_always("send", Fault(status=403, body=NO))
    sending.box.add(outgoing("t1"))
    expected = SendFailed(transaction_id=TransactionId("t1"), sentence="The bot is not in the room any more.")
    assert [expected] == await sending.until(1)


async def test_a_refusal_where_even_the_state_is_closed_is_permanent(sending: Sending, server: Homeserver) -> None:
    server.fail("send", Fault(status=403, body=NO))
    server.fail("state", Fault(status=403, body=NO))
    sending.box.add(outgoing("t1"))
    assert [SendFailed] == [type(event) for event in await sending.until(1)]


async def test_a_refusal_in_a_room_that_the_bot_never_was_in_is_permanent(sending: Sending) -> None:
    sending.box.add(outgoing("t1", room=RoomId("!unknown")))
    assert [SendFailed] == [type(event) for event in await sending.until(1)]


async def test_a_refusal_in_a_room_that_the_bot_is_about_to_enter_is_tried_again(
    sending: Sending, server: Homeserver
) -> None:
    sending.entering.add(ROOM)
    server.fail("send", Fault(status=403, body=NO))
    sending.box.add(outgoing("t1"))
    delivered = await sending.until(1)
    assert [sent(server, "t1")] == delivered
    assert server.count("state") == 0


async def test_a_muted_bot_tries_again_until_it_may_speak(sending: Sending, server: Homeserver) -> None:
    server.fail("send", *[Fault(status=403, body=NO)] * 3)
    sending.box.add(outgoing("t1"))
    delivered = await sending.until(1)
    assert [sent(server, "t1")] == delivered


async def test_a_bot_that_stays_muted_gives_up_after_its_time(client: Client, server: Homeserver) -> None:
    sending = Sending(client, muted_most_s=0.05)
    server.fail_always("send", Fault(status=403, body=NO))
    sending.box.add(outgoing("t1"))
    expected = SendFailed(transaction_id=TransactionId("t1"), sentence="The bot may not write in the room.")
    assert [expected] == await sending.until(1)
    assert server.count("send") > 2


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(status=429, body=LIMIT | {"retry_after_ms": 1})])
async def test_when_the_membership_cannot_be_read_the_event_is_tried_again(
    sending: Sending, server: Homeserver, fault: Fault
) -> None:
    server.fail("send", Fault(status=403, body=NO))
    server.fail("state", fault)
    sending.box.add(outgoing("t1"))
    delivered = await sending.until(1)
    assert [sent(server, "t1")] == delivered


async def test_a_too_large_event_is_told_as_such(sending: Sending, server: Homeserver) -> None:
    server.fail("send", Fault(status=413, body={"errcode": "M_TOO_LARGE"}))
    sending.box.add(outgoing("t1"))
    assert [TooLarge(transaction_id=TransactionId("t1"))] == await sending.until(1)


async def test_a_reaction_that_is_there_already_is_done(sending: Sending, server: Homeserver) -> None:
    server.fail("send", Fault(status=400, body={"errcode": "M_DUPLICATE_ANNOTATION"}))
    sending.box.add(outgoing("t1", priority=Priority.SEED))
    assert [Sent(transaction_id=TransactionId("t1"), event_id=EventId(""))] == await sending.until(1)


async def test_bad_json_is_permanent(sending: Sending, server: Homeserver) -> None:
    server.fail("send", Fault(status=400, body={"errcode": "M_BAD_JSON", "error": "no floats"}))
    sending.box.add(outgoing("t1"))
    expected = SendFailed(transaction_id=TransactionId("t1"), sentence="The homeserver refused (400 M_BAD_JSON).")
    assert [expected] == await sending.until(1)


async def test_nothing_is_sent_into_an_encrypted_room(sending: Sending, server: Homeserver) -> None:
    sending.encrypted.add(ROOM)
    sending.box.add(outgoing("t1"))
    assert [SendFailed] == [type(event) for event in await sending.until(1)]
    assert server.count("send") == 0


async def test_too_many_seeds_push_out_the_oldest(sending: Sending) -> None:
    for number in range(SEEDS_MOST + 2):
        sending.box.add(outgoing(f"s{number}", priority=Priority.SEED))
    assert [event.transaction_id for event in sending.delivered if isinstance(event, SendFailed)] == ["s0", "s1"]


async def test_ten_thousand_events_that_came_and_went_leave_nothing_behind(client: Client) -> None:
    box = Sending(client).box
    for number in range(10_000):
        box.add(outgoing(f"t{number}"))
    for number in range(10_000):
        box.withhold(TransactionId(f"t{number}"))
    assert len(box) == 0
    lanes = box._lanes.values()  # pyright: ignore[reportPrivateUsage]
    assert sum(len(lane.heap) for lane in lanes) <= STALE_MOST + 1


async def test_a_prompt_overtakes_ten_thousand_waiting_notices(sending: Sending, server: Homeserver) -> None:
    for number in range(10_000):
        sending.box.add(outgoing(f"n{number}", priority=Priority.NOTICE))
    sending.box.add(outgoing("prompt"))
    delivered = await sending.until(1)
    assert [sent(server, "prompt")] == delivered[:1]
