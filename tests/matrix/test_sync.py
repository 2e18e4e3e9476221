import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.core.errors import CredentialsRefused
from bridge.core.events import Echoed, Event, Reacted, RoomSeen, RoomState, Said
from bridge.core.model import RoomId
from bridge.matrix.client import Client
from bridge.matrix.reading import SEEN_MOST
from bridge.matrix.sync import HASTY_ANSWERS
from tests.peers.homeserver import UNKNOWN_TOKEN, Fault, Homeserver
from tests.peers.running_rooms import OTHER, ROOM, Running, outgoing, running


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
    return RoomSeen(room=room, state=state, people=people, encrypted=state is RoomState.ENCRYPTED)


# ---------------------------------------------------------------------------------------------------- what is handed on


async def test_what_people_say_comes_in_order(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        for number in range(5):
            server.say(ROOM, str(number))
        await run.until(lambda: len(texts(run)) == 5)
    assert texts(run) == ["0", "1", "2", "3", "4"]


async def test_a_name_that_the_bot_was_given_meanwhile_is_no_part_of_what_is_said_to_it(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.say(ROOM, "Helper: 1")
        await run.until(lambda: texts(run))
        profile = {"membership": "join", "displayname": "Helper"}
        server.state(ROOM, "m.room.member", server.user_id, profile, server.user_id)
        server.say(ROOM, "Helper: 2")
        server.say(ROOM, "Bridge: 3")
        await run.until(lambda: len(texts(run)) == 3)
    assert texts(run) == ["Helper: 1", "2", "3"]


async def test_each_batch_comes_with_the_token_that_follows_it(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.say(ROOM, "1")
        await run.until(lambda: texts(run))
    assert server.token_now() == run.taken[-1][1]


async def test_rooms_that_are_not_bound_are_not_heard(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    server.room(OTHER)
    async with running(client) as run:
        server.say(OTHER, "1")
        server.say(ROOM, "2")
        await run.until(lambda: texts(run))
    assert texts(run) == ["2"]


async def test_own_events_come_back_as_echoes_with_their_transaction_id(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        run.rooms.send(outgoing("t1"))
        await run.until(lambda: run.events(Echoed))
    assert [echo.transaction_id for echo in run.events(Echoed)] == ["t1"]


async def test_what_was_there_before_the_first_start_is_history(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    server.say(ROOM, "1")
    server.react(ROOM, "$any", "1")
    async with running(client) as run:
        server.say(ROOM, "2")
        await run.until(lambda: texts(run))
    assert (texts(run), run.events(Reacted)) == (["2"], [])


async def test_what_was_said_while_the_bridge_was_away_is_heard(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = server.token_now()
    server.say(ROOM, "1")
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert texts(run) == ["1"]


async def test_a_room_of_version_12_is_a_room(client: Client, server: Homeserver) -> None:
    room = RoomId("!31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM")
    server.room(room)
    async with running(client, bound={room: False}) as run:
        server.say(room, "1")
        await run.until(lambda: texts(run))
    assert texts(run) == ["1"]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"msgtype": ["m.text"], "body": "x"},
        {"msgtype": "m.text", "body": 5},
        {"msgtype": "m.text", "body": "x", "m.relates_to": "text"},
        {"msgtype": "m.text", "body": "x", "m.mentions": "x"},
        {"msgtype": "m.text", "body": "x", "m.new_content": "s", "m.relates_to": {"rel_type": "m.replace"}},
    ],
)
async def test_a_poisoned_event_costs_its_batch_nothing(
    client: Client, server: Homeserver, content: dict[str, object]
) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.put(ROOM, "m.room.message", content, "@mallory:hs")
        server.say(ROOM, "after it")
        await run.until(lambda: "after it" in texts(run))


async def test_an_event_that_comes_again_in_a_later_batch_is_heard_once(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    twice = {
        "type": "m.room.message",
        "sender": "@alice:hs",
        "event_id": "$x",
        "content": {"msgtype": "m.text", "body": "1"},
    }
    for token in ("s90", "s91"):
        server.scripted.append({"next_batch": token, "rooms": {"join": {ROOM: {"timeline": {"events": [twice]}}}}})
    async with running(client, since="s4") as run:
        await run.until(lambda: len(run.taken) >= 2)
    assert texts(run) == ["1"]


async def test_only_so_many_event_ids_are_remembered(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    many: list[dict[str, object]] = [
        {"type": "m.x", "sender": "@a:hs", "event_id": f"${n}", "content": {}} for n in range(SEEN_MOST + 5)
    ]
    server.scripted.append({"next_batch": "s9", "rooms": {"join": {ROOM: {"timeline": {"events": many}}}}})
    async with running(client, since="s4") as run:
        assert len(run.rooms._sync._reader._seen) == SEEN_MOST  # pyright: ignore[reportPrivateUsage]


# ---------------------------------------------------------------------------------------------------- how it goes wrong


async def test_a_batch_that_could_not_be_stored_is_given_again_whole(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = server.token_now()
    server.say(ROOM, "1")
    async with running(client, since=since, refusals=3) as run:
        await run.until(lambda: texts(run))
    assert ([run.offered[0]] * 4, ["1"]) == (run.offered[:4], texts(run))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, body={"errcode": "M_UNKNOWN", "error": "x"}),
        Fault(status=502, body="<html>bad gateway</html>", content_type="text/html"),
        Fault(status=200, body="<html>captive portal</html>", content_type="text/html"),
        Fault(status=200, body=b"\xff\xfe{"),
        Fault(status=200, body={"rooms": {}}),
        Fault(status=429, body={"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 20}),
        Fault(status=403, body={"errcode": "M_FORBIDDEN"}),
        Fault(torn=True),
        Fault(drop=True),
    ],
    ids=["500", "502", "portal", "no utf-8", "no token", "429", "403", "torn", "drop"],
)
async def test_a_failed_sync_is_tried_again_without_haste_and_loses_nothing(
    client: Client, server: Homeserver, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = anyio.sleep

    async def note(delay: float) -> None:
        slept.append(delay)
        await sleep(delay)

    monkeypatch.setattr("bridge.matrix.sync.anyio.sleep", note)
    server.room(ROOM)
    since = server.token_now()
    server.say(ROOM, "1")
    server.fail("sync", *[fault] * 4)
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert texts(run) == ["1"]
    assert len(slept) == 4
    assert min(slept) >= 0.005


async def test_all_of_the_state_is_asked_for_until_it_has_come(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    server.fail("sync", Fault(status=502))
    async with running(client, since=server.token_now()):
        await server.until_followed()
    asked = ["full_state" in seen.query for seen in server.requests if seen.operation == "sync"]
    assert [True, True, False] == asked


async def test_a_dead_token_ends_the_run_at_once(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.fail_always("sync", Fault(status=401, body=UNKNOWN_TOKEN))
        server.say(ROOM, "1")
        await run.until(lambda: run.ended)
    assert isinstance(run.ended, CredentialsRefused)
    assert server.token not in f"{run.ended!r}"


async def test_a_sync_token_that_the_server_refuses_is_given_up_and_what_follows_is_history(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM)
    server.say(ROOM, "old")
    async with running(client, since="garbage") as run:
        server.say(ROOM, "new")
        await run.until(lambda: texts(run))
    assert texts(run) == ["new"]


async def test_a_sync_token_that_is_refused_once_is_kept(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = server.token_now()
    server.say(ROOM, "1")
    server.fail("sync", Fault(status=400, body={"errcode": "M_UNKNOWN"}), Fault(status=502), Fault(status=400, body={}))
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    assert texts(run) == ["1"]


async def test_a_server_that_does_not_hold_the_poll_open_is_not_asked_in_a_hurry(
    client: Client, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = asyncio.Event()
    sleep = anyio.sleep

    async def note(delay: float) -> None:
        if delay >= 0.5:
            paused.set()
        await sleep(delay)

    monkeypatch.setattr("bridge.matrix.sync.anyio.sleep", note)
    server.room(ROOM)
    server.fail_always("sync", Fault(status=200, body={"next_batch": "s4"}))
    async with running(client, since="s4"):
        with anyio.fail_after(5):
            await paused.wait()
    assert server.count("sync") <= HASTY_ANSWERS + 3


async def test_a_batch_without_news_and_without_a_new_token_is_not_stored(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.scripted.append({"next_batch": server.token_now()})
        server.wake()
        await server.until(lambda: server.count("sync") == 3)
    assert len(run.taken) == 1


# -------------------------------------------------------------------------------------------------------- the rooms


async def test_every_bound_room_is_told_once_after_the_first_sync(client: Client, server: Homeserver) -> None:
    server.room(ROOM, "@alice:hs", "@bob:hs")
    server.room(OTHER, encrypted=True)
    gone = RoomId("!gone")
    async with running(client, bound={ROOM: False, OTHER: False, gone: False}) as run:
        server.say(ROOM, "1")
        await run.until(lambda: texts(run))
    expected = {
        seen(RoomState.JOINED, 2),
        seen(RoomState.ENCRYPTED, 1, OTHER),
        seen(RoomState.NOT_JOINED, 0, gone),
    }
    assert (expected, 3) == (set(run.events(RoomSeen)), len(run.events(RoomSeen)))


async def test_a_room_where_the_bot_cannot_speak_is_a_warning_in_the_log(client: Client, server: Homeserver) -> None:
    """Nothing can be said in such a room, so without this a set-up that never works would look like one that does."""
    server.room(ROOM)
    server.room(OTHER, encrypted=True)
    with capture_logs() as logs:
        async with running(client, bound={ROOM: False, OTHER: False}) as run:
            server.say(ROOM, "1")
            await run.until(lambda: texts(run))
    said = [(line["room"], line["why"]) for line in logs if line["event"] == "matrix.room_unusable"]
    assert said == [(OTHER, RoomState.ENCRYPTED)]


async def test_people_who_come_and_go_are_counted(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.member(ROOM, "@bob:hs", "join")
        await run.until(lambda: len(run.events(RoomSeen)) == 2)
        server.member(ROOM, "@alice:hs", "leave")
        await run.until(lambda: len(run.events(RoomSeen)) == 3)
    assert [event.people for event in run.events(RoomSeen)] == [1, 2, 1]


async def test_people_who_came_during_a_gap_are_counted(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    server.timeline_limit = 1
    async with running(client) as run:
        server.member(ROOM, "@bob:hs", "join")
        server.say(ROOM, "1")
        server.say(ROOM, "2")
        await run.until(lambda: "2" in texts(run))
    assert run.events(RoomSeen)[-1].people == 2


async def test_a_restart_counts_people_who_said_nothing(client: Client, server: Homeserver) -> None:
    server.room(ROOM, "@alice:hs", "@bob:hs", "@carol:hs")
    async with running(client, since=server.token_now()) as run:
        pass
    assert [seen(RoomState.JOINED, 3)] == run.events(RoomSeen)


@pytest.mark.parametrize("how", ["leave", "ban"])
async def test_after_a_kick_or_ban_the_room_is_not_joined_and_what_was_said_before_counts(
    client: Client, server: Homeserver, how: str
) -> None:
    server.room(ROOM)
    since = server.token_now()
    server.say(ROOM, "1")
    server.member(ROOM, "@bot:hs", how, "@mod:hs")
    async with running(client, since=since) as run:
        await run.until(lambda: texts(run))
    kinds: list[Event] = [event for event in run.taken[0][0] if isinstance(event, Said | RoomSeen)]
    assert [Said, seen(RoomState.NOT_JOINED, 0)] == [type(kinds[0]), kinds[1]]


async def test_a_kick_is_told_while_running(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.member(ROOM, "@bot:hs", "leave", "@mod:hs")
        await run.until(lambda: len(run.events(RoomSeen)) == 2)
    assert seen(RoomState.NOT_JOINED, 0) == run.events(RoomSeen)[-1]


async def test_a_tombstone_replaces_the_room_and_is_not_followed(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.room("!trap", joined=False)
        server.state(ROOM, "m.room.tombstone", "", {"replacement_room": "!trap"}, "@mallory:hs")
        await run.until(lambda: len(run.events(RoomSeen)) == 2)
    assert seen(RoomState.REPLACED, 1) == run.events(RoomSeen)[-1]
    assert server.count("join") == 0


async def test_once_a_room_is_encrypted_plain_text_in_it_is_told_as_exposed(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    async with running(client) as run:
        server.say(ROOM, "before")
        server.state(ROOM, "m.room.encryption", "", {"algorithm": "m.megolm.v1.aes-sha2"}, "@admin:hs")
        server.say(ROOM, "after")
        await run.until(lambda: seen(RoomState.ENCRYPTED, 1) in run.events(RoomSeen))
        server.say(ROOM, "later")
        server.react(ROOM, "$e1", "1")
        await run.until(lambda: run.events(Reacted))
    assert [(said.text, said.exposed) for said in run.events(Said)] == [
        ("before", False),
        ("after", True),
        ("later", True),
    ]
