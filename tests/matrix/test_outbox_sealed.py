"""The queue in encrypted rooms, with encryption that a test holds in its hand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.core.changes import Priority
from bridge.core.errors import EventTooLarge, HomeserverUnreachable, RateLimited, RequestRefused
from bridge.core.events import Event, SendFailed, Sent, TooLarge
from bridge.core.model import JsonObject, RoomId, TransactionId, UserId
from bridge.matrix.client import Client
from bridge.matrix.outbox import Outbox
from bridge.matrix.sealing import Sealing
from tests.fakes.sealing import FakeSealing, unseal
from tests.peers.homeserver import Fault, Homeserver
from tests.peers.running_rooms import OTHER, ROOM, SOON, outgoing

PEOPLE = frozenset({UserId("@alice:hs"), UserId("@bob:hs")})
T1 = TransactionId("t1")


class Sending:
    """An outbox at work in a room that is encrypted."""

    def __init__(self, client: Client, sealing: Sealing | None) -> None:
        self.delivered: list[Event] = []
        self.encrypted = {ROOM}
        self.moved = anyio.Event()
        self.box = Outbox(
            client,
            bot=UserId("@bot:hs"),
            deliver=self.deliver,
            is_encrypted=self.encrypted.__contains__,
            is_entering=lambda _: False,
            patience=SOON,
            people=lambda _: PEOPLE,
            sealing=sealing,
            no_sealing_reason="The keys were lost.",
        )

    def deliver(self, event: Event) -> None:
        self.delivered.append(event)
        self.moved.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.box.run)
            yield
            tasks.cancel_scope.cancel()

    async def until(self, count: int) -> list[Event]:
        with anyio.fail_after(5):
            while len(self.delivered) < count:
                self.moved = anyio.Event()
                await self.moved.wait()
        return self.delivered


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as made:
        made.room(ROOM, encrypted=True)
        made.room(OTHER)
        yield made


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, access_token=server.token)
    yield made
    await made.close()


@pytest.fixture
def sealing() -> FakeSealing:
    return FakeSealing()


@pytest.fixture
def sending(client: Client, sealing: FakeSealing) -> Sending:
    return Sending(client, sealing)


async def test_what_is_sent_into_an_encrypted_room_is_sealed_for_the_people_in_it(
    sending: Sending, server: Homeserver, sealing: FakeSealing
) -> None:
    sending.box.add(outgoing("t1", content={"msgtype": "m.text", "body": "secret"}))
    async with sending.running():
        await sending.until(1)
    sent = server.sent[0]
    assert (sent.type, sent.txn, "secret" in str(sent.content)) == ("m.room.encrypted", "t1", False)
    assert unseal(sent.content)["content"] == {"msgtype": "m.text", "body": "secret"}
    assert [PEOPLE] == sealing.read_by


async def test_a_room_that_is_not_encrypted_is_written_to_in_clear_text(
    sending: Sending, server: Homeserver, sealing: FakeSealing
) -> None:
    sending.box.add(outgoing("t1", room=OTHER))
    async with sending.running():
        await sending.until(1)
    assert (server.sent[0].type, sealing.read_by) == ("m.room.message", [])


async def test_a_reaction_is_never_sealed(sending: Sending, server: Homeserver, sealing: FakeSealing) -> None:
    """The server has to count them, and no client looks for one inside an encrypted event."""
    relates: JsonObject = {"m.relates_to": {"rel_type": "m.annotation", "event_id": "$e", "key": "1"}}
    sending.box.add(outgoing("t1", event_type="m.reaction", content=relates, priority=Priority.SEED))
    async with sending.running():
        await sending.until(1)
    assert (server.sent[0].type, sealing.read_by) == ("m.reaction", [])


@pytest.mark.parametrize("event_type", ["m.room.message", "m.reaction"])
async def test_without_encryption_nothing_is_sent_and_the_record_says_why(
    client: Client, server: Homeserver, event_type: str
) -> None:
    sending = Sending(client, None)
    sending.box.add(outgoing("t1", event_type=event_type))
    async with sending.running():
        await sending.until(1)
    sentence = "The room is encrypted, and this bridge cannot write there. The keys were lost."
    assert [SendFailed(transaction_id=T1, sentence=sentence)] == sending.delivered
    assert server.count("send") == 0


async def test_a_room_that_becomes_encrypted_while_an_event_waits_gets_no_clear_text(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    sending = Sending(client, sealing)
    sending.encrypted.clear()
    server.fail("send", Fault(status=503))
    sending.box.add(outgoing("t1"))
    async with sending.running():
        with anyio.fail_after(5):
            await server.until(lambda: server.count("send") == 1)
        sending.encrypted.add(ROOM)
        await sending.until(1)
    assert [event.type for event in server.sent] == ["m.room.encrypted"]


@pytest.mark.parametrize(
    "failure",
    [
        HomeserverUnreachable("No connection to the homeserver.", perhaps_done=True),
        RateLimited("The homeserver asks for patience.", retry_after=0.01),
        RequestRefused("The homeserver refused (400).", status=400, errcode="M_UNKNOWN"),
    ],
    ids=["away", "limited", "refused"],
)
async def test_keys_that_could_not_be_given_out_are_tried_again_and_the_operator_is_told(
    sending: Sending, server: Homeserver, sealing: FakeSealing, failure: Exception
) -> None:
    sealing.failures = [failure] * 3
    sending.box.add(outgoing("t1"))
    with capture_logs() as logs:
        async with sending.running():
            await sending.until(1)
    assert ([Sent], 1) == ([type(event) for event in sending.delivered], server.count("send"))
    assert str(failure) in [line["why"] for line in logs if line["event"] == "matrix.send_delayed"]


async def test_keys_that_take_for_ever_hold_up_no_other_room_for_long(
    client: Client, server: Homeserver, sealing: FakeSealing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.outbox.SEAL_MOST_S", 0.05)
    sending = Sending(client, sealing)
    sealing.gate = anyio.Event()
    sending.box.add(outgoing("t1"))
    sending.box.add(outgoing("t2", room=OTHER))
    async with sending.running():
        await sending.until(1)
        sealing.gate.set()
        await sending.until(2)
    assert [event.txn for event in server.sent] == ["t2", "t1"]


async def test_what_is_too_large_once_it_is_sealed_is_told_as_such(
    sending: Sending, server: Homeserver, sealing: FakeSealing
) -> None:
    sealing.failures = [EventTooLarge("The homeserver takes no event of this size.", status=413, errcode="M_TOO_LARGE")]
    sending.box.add(outgoing("t1"))
    async with sending.running():
        await sending.until(1)
    assert ([TooLarge(transaction_id=T1)], 0) == (sending.delivered, server.count("send"))


@pytest.mark.parametrize(
    "failure",
    [
        None,
        HomeserverUnreachable("No connection to the homeserver."),
        EventTooLarge("The homeserver takes no event of this size.", status=413, errcode="M_TOO_LARGE"),
    ],
    ids=["sealed", "away", "too large"],
)
async def test_what_is_taken_back_while_keys_are_given_out_never_leaves(
    sending: Sending, server: Homeserver, sealing: FakeSealing, failure: Exception | None
) -> None:
    sealing.gate = anyio.Event()
    sealing.failures = [] if failure is None else [failure]
    sending.box.add(outgoing("t1"))
    async with sending.running():
        await anyio.wait_all_tasks_blocked()
        assert sending.box.withhold(T1)
        sending.box.add(outgoing("t2", room=OTHER))
        sealing.gate.set()
        await sending.until(1)
    assert ["t2"] == [event.txn for event in server.sent]
    assert [TransactionId("t2")] == [event.transaction_id for event in sending.delivered if isinstance(event, Sent)]
    assert len(sending.delivered) == 1


async def test_what_failed_while_keys_were_given_out_can_be_taken_back(sending: Sending, sealing: FakeSealing) -> None:
    """It never came near the server, whatever the call for keys may have done there."""
    sealing.failures = [HomeserverUnreachable("The homeserver did not answer in time.", perhaps_done=True)] * 100
    sending.box.add(outgoing("t1"))
    async with sending.running():
        with anyio.fail_after(5):
            while len(sealing.failures) > 97:
                await anyio.lowlevel.checkpoint()
        assert sending.box.withhold(T1)


@pytest.mark.usefixtures("server")
async def test_people_who_come_are_given_keys_with_the_next_event(client: Client, sealing: FakeSealing) -> None:
    rooms: list[RoomId] = []

    def people(room: RoomId) -> frozenset[UserId]:
        rooms.append(room)
        return frozenset({UserId(f"@p{len(rooms)}:hs")})

    sending = Sending(client, sealing)
    sending.box = Outbox(
        client,
        bot=UserId("@bot:hs"),
        deliver=sending.deliver,
        is_encrypted=lambda _: True,
        is_entering=lambda _: False,
        patience=SOON,
        people=people,
        sealing=sealing,
    )
    sending.box.add(outgoing("t1"))
    sending.box.add(outgoing("t2"))
    async with sending.running():
        await sending.until(2)
    assert [{UserId("@p1:hs")}, {UserId("@p2:hs")}] == sealing.read_by


# ------------------------------------------------------------------------------------------- while syncs do not come through


class Behind(Sending):
    """An outbox whose rooms nobody has heard of for a while. `noted` are those that turned out to be encrypted."""

    def __init__(self, client: Client, sealing: Sealing | None) -> None:
        super().__init__(client, sealing)
        self.encrypted.clear()
        self.behind = True
        self.box = Outbox(
            client,
            bot=UserId("@bot:hs"),
            deliver=self.deliver,
            is_encrypted=self.encrypted.__contains__,
            is_behind=lambda _: self.behind,
            note_encrypted=self.encrypted.add,
            is_entering=lambda _: False,
            patience=SOON,
            people=lambda _: PEOPLE,
            sealing=sealing,
            no_sealing_reason="The keys were lost.",
        )


async def test_a_room_that_nobody_has_heard_of_for_a_while_is_asked_before_clear_text_leaves(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    sending = Behind(client, sealing)
    sending.box.add(outgoing("t1"))
    sending.box.add(outgoing("t2", room=OTHER))
    with capture_logs() as logs:
        async with sending.running():
            await sending.until(2)
    assert {"t1": "m.room.encrypted", "t2": "m.room.message"} == {event.txn: event.type for event in server.sent}
    assert {ROOM} == sending.encrypted
    assert [ROOM] == [line["room"] for line in logs if line["event"] == "matrix.encryption_found"]


async def test_a_room_that_turns_out_to_be_encrypted_gets_nothing_from_who_cannot_encrypt(
    client: Client, server: Homeserver
) -> None:
    sending = Behind(client, None)
    sending.box.add(outgoing("t1"))
    async with sending.running():
        await sending.until(1)
    assert ([SendFailed], 0) == ([type(event) for event in sending.delivered], server.count("send"))


async def test_while_syncs_come_through_no_room_is_asked(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    sending = Behind(client, sealing)
    sending.behind = False
    sending.box.add(outgoing("t1", room=OTHER))
    async with sending.running():
        await sending.until(1)
    assert (1, 0) == (server.count("send"), server.count("state"))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503),
        Fault(status=429, body={"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 10}),
        Fault(status=403, body={"errcode": "M_FORBIDDEN", "error": "no"}),
    ],
    ids=["away", "limited", "forbidden"],
)
async def test_what_cannot_be_asked_is_not_sent_and_tried_again(
    client: Client, server: Homeserver, sealing: FakeSealing, fault: Fault
) -> None:
    sending = Behind(client, sealing)
    server.fail("state", fault)
    sending.box.add(outgoing("t1"))
    async with sending.running():
        await sending.until(1)
    assert ["m.room.encrypted"] == [event.type for event in server.sent]


async def test_in_a_room_that_the_bot_is_out_of_the_send_fails_without_a_word_in_it(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    sending = Behind(client, sealing)
    server.guards_state = True
    server.member(OTHER, server.user_id, "leave")
    sending.box.add(outgoing("t1", room=OTHER))
    async with sending.running():
        await sending.until(1)
    assert [SendFailed(transaction_id=T1, sentence="The bot is not in the room any more.")] == sending.delivered
    assert server.count("send") == 0


@pytest.mark.parametrize("kicked", [False, True])
async def test_what_is_taken_back_while_its_room_is_asked_never_leaves(
    client: Client, server: Homeserver, sealing: FakeSealing, kicked: bool
) -> None:
    sending = Behind(client, sealing)
    server.guards_state = True
    gate = asyncio.Event()
    server.fail("state", Fault(gate=gate))
    sending.box.add(outgoing("t1", room=OTHER))
    async with sending.running():
        with anyio.fail_after(5):
            await server.until(lambda: server.count("state") == 1)
        assert sending.box.withhold(T1)
        if kicked:
            server.member(OTHER, server.user_id, "leave")
        sending.box.add(outgoing("t2"))
        gate.set()
        await sending.until(1)
    assert ["t2"] == [event.txn for event in server.sent]
    assert [TransactionId("t2")] == [event.transaction_id for event in sending.delivered if isinstance(event, Sent)]
    assert len(sending.delivered) == 1


async def test_what_a_room_has_refused_is_not_taken_back_while_that_is_looked_into(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    sending = Behind(client, sealing)
    server.guards_state = True
    server.member(OTHER, server.user_id, "leave")
    gate = asyncio.Event()
    server.fail("state", Fault(status=403, body={"errcode": "M_FORBIDDEN"}), Fault(gate=gate))
    sending.box.add(outgoing("t1", room=OTHER))
    async with sending.running():
        with anyio.fail_after(5):
            await server.until(lambda: server.count("state") == 2)
        assert not sending.box.withhold(T1)
        gate.set()
        await sending.until(1)
        sending.box.add(outgoing("t2", room=OTHER))
        assert sending.box.withhold(TransactionId("t2"))
    assert [SendFailed] == [type(event) for event in sending.delivered]
