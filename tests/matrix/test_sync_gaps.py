from collections.abc import AsyncIterator

import pytest

from bridge.core.events import RoomSeen, RoomState, Said
from bridge.core.model import RoomId
from bridge.matrix.client import Client
from tests.peers.homeserver import Fault, Homeserver
from tests.peers.running_rooms import ROOM, Running, running


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as made:
        yield made


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, access_token=server.token)
    yield made
    await made.close()


def texts(run: Running) -> list[str]:
    return [said.text for said in run.events(Said)]


def seen(state: RoomState, people: int, room: RoomId = ROOM) -> RoomSeen:
    return RoomSeen(room=room, state=state, people=people)


async def test_a_gap_is_filled_in_order_and_without_doubles(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = server.token_now()
    expected = [str(number) for number in range(300)]
    for text in expected:
        server.say(ROOM, text)
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert expected == texts(run)


async def test_a_gap_that_fails_passingly_is_filled_on_the_next_try(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    server.timeline_limit = 1
    since = server.token_now()
    server.say(ROOM, "1")
    server.say(ROOM, "2")
    server.fail("messages", Fault(status=502), Fault(torn=True))
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert texts(run) == ["1", "2"]


async def test_a_gap_that_the_server_refuses_does_not_hold_up_what_came_after(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM)
    server.timeline_limit = 1
    since = server.token_now()
    server.say(ROOM, "1")
    server.say(ROOM, "2")
    server.fail_always("messages", Fault(status=403, body={"errcode": "M_FORBIDDEN"}))
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert texts(run) == ["2"]


async def test_a_server_whose_pages_never_end_does_not_hold_us(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    server.timeline_limit = 1
    since = server.token_now()
    server.say(ROOM, "1")
    server.say(ROOM, "2")
    filler: dict[str, object] = {"type": "m.x", "sender": "@a:hs", "event_id": "$old", "content": {}}
    prev = f"s{len(server.stream) - 1}"
    server.fail_always("messages", Fault(status=200, body={"chunk": [filler], "end": prev}))
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert texts(run) == ["2"]
    assert server.count("messages") == 1


async def test_a_gap_is_cut_at_so_many_pages(
    client: Client, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.sync.GAP_PAGES_MOST", 2)
    server.room(ROOM)
    since = server.token_now()
    for number in range(400):
        server.say(ROOM, str(number))
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert [str(number) for number in range(100, 400)] == texts(run)


async def test_what_stands_before_our_own_join_is_no_answer(client: Client, server: Homeserver) -> None:
    server.room(ROOM, joined=False)
    async with running(client) as run:
        for _ in range(20):
            server.say(ROOM, "1")
        server.invite(ROOM)
        await run.until(lambda: seen(RoomState.JOINED, 1) in run.events(RoomSeen))
        server.say(ROOM, "after")
        await run.until(lambda: texts(run))
    assert texts(run) == ["after"]


async def test_a_gap_that_holds_our_own_join_ends_there(client: Client, server: Homeserver) -> None:
    server.room(ROOM, joined=False)
    since = server.token_now()
    for number in range(150):
        server.say(ROOM, f"old {number}")
    server.member(ROOM, "@bot:hs", "join")
    for number in range(150):
        server.say(ROOM, f"new {number}")
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert [f"new {number}" for number in range(150)] == texts(run)
    assert server.count("messages") == 1


async def test_a_new_display_name_of_the_bot_cuts_nothing_off(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = server.token_now()
    server.say(ROOM, "before")
    server.member(ROOM, "@bot:hs", "join")
    server.say(ROOM, "after")
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert texts(run) == ["before", "after"]


async def test_a_display_name_without_its_history_cuts_nothing_off_once_we_know_we_are_in(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.timeline_limit = 100
        server.scripted.append(
            {
                "next_batch": server.token_now(),
                "rooms": {
                    "join": {
                        ROOM: {
                            "timeline": {
                                "events": [
                                    {
                                        "type": "m.room.message",
                                        "sender": "@alice:hs",
                                        "event_id": "$a",
                                        "content": {"msgtype": "m.text", "body": "before"},
                                    },
                                    {
                                        "type": "m.room.member",
                                        "sender": "@bot:hs",
                                        "state_key": "@bot:hs",
                                        "event_id": "$b",
                                        "content": {"membership": "join"},
                                    },
                                ]
                            }
                        }
                    }
                },
            }
        )
        server.wake()
        await run.until(lambda: texts(run))
    assert texts(run) == ["before"]
