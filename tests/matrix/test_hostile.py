"""A homeserver that does what it likes with encrypted events, and what the bridge makes of it."""

import json
from collections.abc import AsyncIterator

import pytest

from bridge.core.changes import StoreLocked
from bridge.core.events import Locked, Said, StillLocked
from bridge.core.model import EventId, RoomId, UserId
from bridge.matrix.client import Client
from bridge.matrix.held import HELD_MOST, Held
from bridge.matrix.sealing import Why
from tests.fakes.sealing import FakeSealing, key, sealed
from tests.peers.homeserver import Homeserver
from tests.peers.running_rooms import OTHER, ROOM, running

SEALED = "m.room.encrypted"
BOTH = {ROOM: False, OTHER: False}
ALICE = "@alice:hs"
ODD = {"algorithm": "m.megolm.v1.aes-sha2"}


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as made:
        made.room(ROOM, encrypted=True)
        made.room(OTHER, encrypted=True)
        yield made


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, access_token=server.token)
    yield made
    await made.close()


@pytest.mark.parametrize(("here", "there"), [(ROOM, OTHER), (OTHER, ROOM)])
async def test_one_id_in_two_rooms_moves_no_answer_from_the_one_to_the_other(
    client: Client, server: Homeserver, here: RoomId, there: RoomId
) -> None:
    """What was said in one room was taken for an answer in another, as both stood under one id in one batch."""
    since = server.token_now()
    server.send_to_device(key())
    server.put(here, SEALED, ODD, ALICE, event_id="$same")
    server.put(there, SEALED, sealed("1", room=there), ALICE, event_id="$same")
    server.put(here, SEALED, sealed("2", room=here), ALICE)
    async with running(client, bound=BOTH, since=since, sealing=FakeSealing()) as run:
        pass
    assert [said.text for said in run.events(Said) if said.room == here] == ["2"]


async def test_an_event_that_waits_is_not_opened_by_one_of_the_same_id_in_another_room(
    client: Client, server: Homeserver
) -> None:
    since = server.token_now()
    server.send_to_device(key())
    server.put(OTHER, SEALED, sealed("1", room=OTHER), ALICE, event_id="$same")
    raw = {"type": SEALED, "sender": ALICE, "event_id": "$same", "content": sealed("?", room=ROOM, session="lost")}
    waiting = StoreLocked(event_id=EventId("$same"), room=ROOM, sender=UserId(ALICE), raw=json.dumps(raw))
    async with running(client, bound=BOTH, since=since, held=[waiting], sealing=FakeSealing()) as run:
        pass
    assert [] == [said for said in run.events(Said) if said.room == ROOM]


async def test_the_first_of_two_events_of_one_id_is_what_counts(client: Client, server: Homeserver) -> None:
    since = server.token_now()
    server.send_to_device(key())
    server.put(ROOM, SEALED, sealed("first", room=ROOM), ALICE, event_id="$same")
    server.put(ROOM, SEALED, sealed("second", room=ROOM), ALICE, event_id="$same")
    async with running(client, bound=BOTH, since=since, sealing=FakeSealing()) as run:
        pass
    assert [said.text for said in run.events(Said)] == ["first"]


def test_a_stranger_who_floods_pushes_out_nobody_elses_answer() -> None:
    """The oldest of all went, so a stranger in the room could have an approver's answer forgotten unsaid."""
    held = Held()
    held.hold(ROOM, UserId(ALICE), EventId("$hers"), {}, why=Why.NO_KEY, now=0.0)
    for number in range(HELD_MOST + 100):
        held.hold(ROOM, UserId("@stranger:hs"), EventId(f"${number}"), {}, why=Why.NO_KEY, now=1.0)
    assert (HELD_MOST, "$hers") == (len(held), held.all()[0][0])


async def test_six_hundred_events_that_cannot_be_opened_stop_nothing(client: Client, server: Homeserver) -> None:
    since = server.token_now()
    for number in range(600):
        server.put(ROOM, SEALED, sealed(str(number), room=ROOM, session="lost"), "@stranger:hs")
    server.put(ROOM, SEALED, sealed("1", room=ROOM, session="late"), ALICE)
    server.timeline_limit = 1000
    async with running(client, bound=BOTH, since=since, sealing=FakeSealing()) as run:
        assert 601 == len(run.events(Locked))
        server.send_to_device(key("late"))
        await run.until(lambda: run.events(Said))
    assert ["1"] == [said.text for said in run.events(Said)]
    assert [] == run.events(StillLocked)


@pytest.mark.parametrize("content", [{"\ud800": 1}, {"session_id": "\ud800", "index": 0, "algorithm": "m.fake"}])
async def test_half_a_surrogate_pair_stops_nothing(client: Client, server: Homeserver, content: dict[str, int]) -> None:
    since = server.token_now()
    server.send_to_device(key())
    server.put(ROOM, SEALED, content, "@\ud800:hs", event_id="$\ud800")
    server.put(ROOM, SEALED, sealed("1", room=ROOM), ALICE)
    async with running(client, bound=BOTH, since=since, sealing=FakeSealing()) as run:
        pass
    assert ["1"] == [said.text for said in run.events(Said)]


@pytest.mark.parametrize(
    "batch",
    [
        {"next_batch": "\ud800"},
        {"next_batch": "s1", "rooms": {"join": {ROOM: {"timeline": {"limited": True, "prev_batch": "\ud800"}}}}},
        {"next_batch": "s1", "rooms": {"invite": {"\ud800": {}}}},
        {"next_batch": "s1", "device_lists": {"changed": ["\ud800"], "left": ["\ud800"]}},
    ],
)
async def test_no_id_or_token_that_a_server_makes_up_ends_the_loop(
    client: Client, server: Homeserver, batch: dict[str, object]
) -> None:
    """One that is no text ended it, and a token was stored by then, so each start ended in the same way."""
    async with running(client, bound=BOTH, sealing=FakeSealing()) as run:
        server.scripted.extend([{**batch}, {"next_batch": "s0"}])
        server.say(ROOM, "1")
        await run.until(lambda: run.events(Said) or run.ended)
    assert (None, ["1"]) == (run.ended, [said.text for said in run.events(Said)])
