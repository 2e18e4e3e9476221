"""Upgraded rooms on a homeserver that can be made to lie."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.core.events import Echoed, Event, RoomMoved, RoomSeen, RoomState, Said
from bridge.core.model import RoomId
from bridge.matrix import upgrades
from bridge.matrix.client import Client
from tests.fakes.sealing import FakeSealing
from tests.peers.homeserver import Fault, Homeserver
from tests.peers.running_rooms import ROOM, Running, outgoing, running

NEW = RoomId("!31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM")
MOVED = RoomMoved(old=ROOM, new=NEW)
Logs = Sequence[Mapping[str, Any]]
ENCRYPTION = {"algorithm": "m.megolm.v1.aes-sha2"}


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as made:
        made.room(ROOM)
        made.guards_state = True
        yield made


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, access_token=server.token)
    yield made
    await made.close()


def upgrade(server: Homeserver, *, predecessor: object = ROOM, invited: bool = True, encrypted: bool = False) -> None:
    server.state(
        NEW, "m.room.create", "", {"room_version": "12", "predecessor": {"room_id": predecessor}}, "@alice:far.hs"
    )
    server.member(NEW, "@alice:far.hs", "join")
    if encrypted:
        server.state(NEW, "m.room.encryption", "", ENCRYPTION, "@alice:far.hs")
    if invited:
        server.invite(NEW, "@alice:far.hs")
    server.state(ROOM, "m.room.tombstone", "", {"replacement_room": NEW}, "@alice:far.hs")


def sentences(logs: Logs) -> list[object]:
    return [line["sentence"] for line in logs if line["event"] == "matrix.upgrade_not_followed"]


async def told(run: Running, logs: Logs) -> None:
    """Until the operator heard that an upgrade is not followed."""
    with anyio.fail_after(5):
        while not sentences(logs):
            await anyio.lowlevel.checkpoint()
    assert run.delivered == []


async def test_an_upgrade_is_followed_where_both_rooms_name_each_other(client: Client, server: Homeserver) -> None:
    async with running(client, follow_upgrades=True) as run:
        upgrade(server)
        await run.until(lambda: any(seen.room == NEW for seen in run.events(RoomSeen)))
        server.say(NEW, "1")
        run.rooms.send(outgoing("t1", room=NEW))
        await run.until(lambda: run.events(Said) and run.events(Echoed))
    assert MOVED == run.delivered[0]
    states = [(seen.room, seen.state) for seen in run.events(RoomSeen)]
    assert [(ROOM, RoomState.JOINED), (ROOM, RoomState.REPLACED), (NEW, RoomState.JOINED)] == states
    assert (NEW, "1") == (run.events(Said)[0].room, run.events(Said)[0].text)


async def test_the_new_room_is_entered_through_the_server_of_who_upgraded_the_old_one(
    client: Client, server: Homeserver
) -> None:
    async with running(client, follow_upgrades=True) as run:
        upgrade(server)
        await run.until(lambda: run.delivered)
    join = next(seen for seen in server.requests if seen.operation == "join")
    assert {"via": "far.hs", "server_name": "far.hs"} == join.query


async def test_the_core_hears_of_the_move_before_it_hears_from_the_new_room(client: Client, server: Homeserver) -> None:
    async with running(client, follow_upgrades=True) as run:
        upgrade(server)
        await run.until(lambda: run.delivered)
        assert [seen.room for seen in run.events(RoomSeen)] == [ROOM, ROOM]
        await run.until(lambda: any(seen.room == NEW for seen in run.events(RoomSeen)))


async def test_an_upgrade_that_came_before_a_start_is_followed_after_it(client: Client, server: Homeserver) -> None:
    upgrade(server)
    async with running(client, since=server.token_now(), follow_upgrades=True) as run:
        await run.until(lambda: any(seen.room == NEW for seen in run.events(RoomSeen)))
    assert [MOVED] == run.delivered


async def test_an_upgrade_is_not_followed_unless_the_config_says_so(client: Client, server: Homeserver) -> None:
    with capture_logs() as logs:
        async with running(client) as run:
            upgrade(server)
            await told(run, logs)
    assert ([upgrades.NOT_FOLLOWED], 0) == (sentences(logs), server.count("join"))


@pytest.mark.parametrize("predecessor", ["!other", None, 5, ["!room"]])
async def test_a_room_that_does_not_name_the_old_one_is_left_again(
    client: Client, server: Homeserver, predecessor: object
) -> None:
    with capture_logs() as logs:
        async with running(client, follow_upgrades=True) as run:
            upgrade(server, predecessor=predecessor)
            await told(run, logs)
            with anyio.fail_after(5):
                await server.until(lambda: server.membership(NEW) == "leave")
    assert [upgrades.NOT_ITS_SUCCESSOR] == sentences(logs)


async def test_a_room_that_the_bot_was_in_before_is_not_left_for_a_lie_about_it(
    client: Client, server: Homeserver
) -> None:
    server.room(NEW)
    with capture_logs() as logs:
        async with running(client, follow_upgrades=True) as run:
            server.state(ROOM, "m.room.tombstone", "", {"replacement_room": NEW}, "@mallory:hs")
            await told(run, logs)
            run.rooms.send(outgoing("t1", room=NEW))
            await run.until(lambda: run.delivered)
    assert (server.count("leave"), server.count("join")) == (0, 0)


async def test_an_encrypted_room_is_not_left_for_one_that_is_not(client: Client, server: Homeserver) -> None:
    server.state(ROOM, "m.room.encryption", "", ENCRYPTION, "@admin:hs")
    with capture_logs() as logs:
        async with running(client, follow_upgrades=True, sealing=FakeSealing()) as run:
            upgrade(server)
            await told(run, logs)
    assert [upgrades.NOT_ENCRYPTED] == sentences(logs)


async def test_an_encrypted_room_is_left_for_an_encrypted_one(client: Client, server: Homeserver) -> None:
    server.state(ROOM, "m.room.encryption", "", ENCRYPTION, "@admin:hs")
    async with running(client, follow_upgrades=True, sealing=FakeSealing()) as run:
        upgrade(server, encrypted=True)
        await run.until(lambda: any(seen.room == NEW for seen in run.events(RoomSeen)))
    assert run.events(RoomSeen)[-1].encrypted


async def test_a_room_that_the_bot_may_not_enter_is_followed_once_it_is_invited(
    client: Client, server: Homeserver
) -> None:
    with capture_logs() as logs:
        async with running(client, follow_upgrades=True) as run:
            upgrade(server, invited=False)
            await told(run, logs)
            server.invite(NEW, "@alice:far.hs")
            await run.until(lambda: run.delivered)
    assert ([upgrades.NOT_INVITED], [MOVED]) == (sentences(logs), run.delivered)


async def test_a_room_that_was_closed_for_good_is_told_as_such(client: Client, server: Homeserver) -> None:
    with capture_logs() as logs:
        async with running(client, follow_upgrades=True) as run:
            server.state(ROOM, "m.room.tombstone", "", {"body": "closed"}, "@admin:hs")
            await told(run, logs)
    assert [upgrades.NO_REPLACEMENT] == sentences(logs)


@pytest.mark.parametrize("operation", ["join", "state"])
async def test_what_fails_passingly_is_tried_again(client: Client, server: Homeserver, operation: str) -> None:
    server.fail(
        operation, Fault(status=502), Fault(status=429, body={"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1})
    )
    async with running(client, follow_upgrades=True) as run:
        upgrade(server)
        await run.until(lambda: run.delivered)
    delivered: list[Event] = run.delivered
    assert [MOVED] == delivered


async def test_an_upgrade_is_followed_once(client: Client, server: Homeserver) -> None:
    async with running(client, follow_upgrades=True) as run:
        upgrade(server)
        await run.until(lambda: any(seen.room == NEW for seen in run.events(RoomSeen)))
        server.state(ROOM, "m.room.tombstone", "", {"replacement_room": "!third"}, "@mallory:hs")
        server.say(NEW, "1")
        await run.until(lambda: run.events(Said))
        await server.until_followed()
    assert ([MOVED], 1) == (run.delivered, server.count("join"))
