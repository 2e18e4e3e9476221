import asyncio
import json
from collections.abc import AsyncIterator

import anyio
import pytest

from bridge.core.errors import CredentialsRefused
from bridge.core.events import RoomSeen, RoomState, Said, SendFailed, Sent
from bridge.core.messages import AgentNote
from bridge.core.model import AgentName, RoomId
from bridge.matrix import prompt
from bridge.matrix.client import Client
from tests.fakes.sealing import FakeSealing
from tests.peers.homeserver import UNKNOWN_TOKEN, Fault, Homeserver
from tests.peers.running_rooms import OTHER, ROOM, outgoing, running


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as made:
        yield made


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, access_token=server.token)
    yield made
    await made.close()


def typing(server: Homeserver) -> list[tuple[bool, str]]:
    return [(json.loads(seen.body)["typing"], seen.path) for seen in server.requests if seen.operation == "typing"]


async def test_words_are_those_of_prompt_with_what_the_room_says(client: Client) -> None:
    note = AgentNote(AgentName("claude"), "It could not be started.")
    async with running(client, bound={ROOM: True}, wait=False) as run:
        expected = prompt.compose(note, shared=True, budget_bytes=60_000, shrink=1)
        assert expected == run.rooms.compose(note, ROOM, shrink=1)


async def test_a_prompt_leaves_an_idle_queue_at_once(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert [event.txn for event in server.sent] == ["t1"]


async def test_a_prompt_leaves_while_the_long_poll_is_open(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        await server.until(lambda: server.count("sync") == 2)
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], Sent)


async def test_nothing_leaves_before_the_first_batch_says_what_the_rooms_are(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM, encrypted=True)
    gate = asyncio.Event()
    server.fail("sync", Fault(gate=gate))
    async with running(client, wait=False) as run:
        run.rooms.send(outgoing("t1"))
        with anyio.fail_after(5):
            await server.until(lambda: server.count("sync") == 1)
        gate.set()
        await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], SendFailed)
    assert server.count("send") == 0


async def test_while_the_homeserver_asks_senders_to_wait_reading_goes_on(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    server.fail_always("send", Fault(status=429, body={"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 60_000}))
    async with running(client) as run:
        run.rooms.send(outgoing("t1"))
        with anyio.fail_after(5):
            await server.until(lambda: server.count("send") == 1)
        server.member(ROOM, "@bob:hs", "join")
        await run.until(lambda: len(run.events(RoomSeen)) == 2)
        assert (run.rooms.queued, run.delivered, run.rooms.withhold(outgoing("t1").transaction_id)) == (1, [], True)


async def test_a_dead_token_on_a_send_ends_the_run(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.fail("send", Fault(status=401, body=UNKNOWN_TOKEN | {"soft_logout": True}))
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.ended)
    assert isinstance(run.ended, CredentialsRefused)


async def test_a_fault_of_our_own_is_not_taken_for_a_dead_token(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        run.rooms.send(outgoing("t1", content={"body": object()}))  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
        await run.until(lambda: run.ended)
    assert isinstance(run.ended, ExceptionGroup)


# ------------------------------------------------------------------------------------------------------ entering rooms


async def test_an_invite_to_a_bound_room_is_accepted(client: Client, server: Homeserver) -> None:
    server.room(ROOM, joined=False)
    async with running(client) as run:
        server.invite(ROOM)
        await run.until(lambda: len(run.events(RoomSeen)) == 2)
    assert (run.events(RoomSeen)[-1].state, server.membership(ROOM)) == (RoomState.JOINED, "join")


async def test_an_invite_that_waits_at_the_first_start_is_accepted_once(client: Client, server: Homeserver) -> None:
    server.room(ROOM, joined=False)
    server.invite(ROOM)
    async with running(client) as run:
        await run.until(lambda: run.events(RoomSeen)[-1].state is RoomState.JOINED)
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert server.count("join") == 1


async def test_what_is_said_while_the_bot_enters_a_room_waits_until_it_is_in(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM, joined=False)
    server.invite(ROOM)
    gate = asyncio.Event()
    server.fail("join", Fault(gate=gate))
    async with running(client) as run:
        run.rooms.send(outgoing("t1"))
        with anyio.fail_after(5):
            await server.until(lambda: server.count("send") == 2)
        gate.set()
        await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], Sent)


async def test_an_invite_to_any_other_room_is_left_alone(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.room("!trap", joined=False)
        server.invite("!trap", "@mallory:hs")
        server.member(ROOM, "@bob:hs", "join")
        await run.until(lambda: len(run.events(RoomSeen)) == 2)
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert (server.count("join"), server.membership("!trap")) == (0, "invite")


async def test_an_invite_that_came_before_a_restart_is_accepted_after_it(client: Client, server: Homeserver) -> None:
    server.room(ROOM, joined=False)
    server.invite(ROOM)
    async with running(client, since=server.token_now()) as run:
        await run.until(lambda: len(run.events(RoomSeen)) == 2)
    assert server.membership(ROOM) == "join"


async def test_a_join_that_fails_passingly_is_tried_again_behind_the_others(client: Client, server: Homeserver) -> None:
    server.room(ROOM, joined=False)
    server.invite(ROOM)
    server.room(OTHER, joined=False)
    server.invite(OTHER)
    server.fail("join", Fault(status=502), Fault(status=429, body={"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 5}))
    async with running(client, bound={ROOM: False, OTHER: False}) as run:
        await run.until(lambda: len([seen for seen in run.events(RoomSeen) if seen.state is RoomState.JOINED]) == 2)
    rooms = [seen.path.rsplit("/", 1)[1] for seen in server.requests if seen.operation == "join"]
    assert rooms == [ROOM, OTHER, ROOM, OTHER]


async def test_a_join_that_is_refused_is_not_tried_again(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client, bound={ROOM: False, RoomId("!closed"): False}) as run:
        with anyio.fail_after(5):
            await server.until(lambda: server.count("join") == 1)
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert server.count("join") == 1


# -------------------------------------------------------------------------------------------------------- typing signs


async def test_typing_is_shown_and_taken_back(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        run.rooms.typing(ROOM, on=True)
        with anyio.fail_after(5):
            await server.until(lambda: server.count("typing") == 1)
        run.rooms.typing(ROOM, on=False)
        with anyio.fail_after(5):
            await server.until(lambda: server.count("typing") == 2)
    path = "/_matrix/client/v3/rooms/!room/typing/@bot:hs"
    assert [(True, path), (False, path)] == typing(server)


async def test_typing_is_shown_again_before_the_server_forgets_it(
    client: Client, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.rooms.TYPING_AGAIN_S", 0.01)
    server.room(ROOM)
    async with running(client) as run:
        run.rooms.typing(ROOM, on=True)
        with anyio.fail_after(5):
            await server.until(lambda: server.count("typing") >= 3)
    assert {True} == {on for on, _ in typing(server)}


async def test_a_typing_sign_that_fails_is_not_tried_again_and_harms_nothing(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM)
    server.fail("typing", Fault(status=500))
    async with running(client) as run:
        run.rooms.typing(ROOM, on=True)
        with anyio.fail_after(5):
            await server.until(lambda: server.count("typing") == 1)
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert server.count("typing") == 1


async def test_a_dead_token_on_a_typing_sign_ends_the_run(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.fail("typing", Fault(status=401, body=UNKNOWN_TOKEN))
        run.rooms.typing(ROOM, on=True)
        await run.until(lambda: run.ended)
    assert isinstance(run.ended, CredentialsRefused)


async def test_a_room_that_is_encrypted_while_syncs_fail_gets_no_clear_text_and_is_told_of_afterwards(
    client: Client, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.sync.BEHIND_S", 0.0)
    server.room(ROOM)
    async with running(client, sealing=FakeSealing()) as run:
        await server.until_followed()
        server.fail_always("sync", Fault(status=503))
        server.say(ROOM, "hello")  # the poll that waits already brings this
        await run.until(lambda: run.events(Said))
        server.state(ROOM, "m.room.encryption", "", {"algorithm": "m.megolm.v1.aes-sha2"}, "@alice:hs")
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
        assert [("t1", "m.room.encrypted")] == [(event.txn, event.type) for event in server.sent]
        server.fail_always("sync", None)
        await run.until(lambda: run.events(RoomSeen)[-1].encrypted)


async def test_while_syncs_come_through_rooms_are_not_asked_whether_they_are_encrypted(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM)
    async with running(client) as run:
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert server.count("state") == 0


@pytest.mark.parametrize("remembered", [True, False])
async def test_an_encrypted_room_that_another_has_taken_the_place_of_gets_no_clear_text_after_a_restart_either(
    client: Client, server: Homeserver, remembered: bool
) -> None:
    server.room(ROOM, encrypted=True)
    server.room(OTHER)
    once = [ROOM] if remembered else []
    async with running(client, sealing=FakeSealing(), encrypted=once, moved=[(ROOM, OTHER)]) as run:
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.delivered)
    assert ["m.room.encrypted"] == [event.type for event in server.sent]
