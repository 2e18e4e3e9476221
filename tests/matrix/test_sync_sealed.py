"""The loop in encrypted rooms, with encryption that a test holds in its hand."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.core.changes import StoreLocked
from bridge.core.errors import HomeserverUnreachable
from bridge.core.events import Locked, Reacted, RoomSeen, RoomState, Said, StillLocked, Unlocked
from bridge.core.messages import Prompt
from bridge.core.model import EventId, RoomId, Text, UserId
from bridge.matrix.client import Client
from bridge.matrix.events import Source
from bridge.matrix.sync import STEPS_MOST
from tests.fakes.sealing import SEAL, FakeSealing, key, no_key, seal, sealed
from tests.matrix.asked import REQUEST
from tests.peers.homeserver import Fault, Homeserver
from tests.peers.running_rooms import OTHER, ROOM, Running, outgoing, running

SEALED = "m.room.encrypted"


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as made:
        made.room(ROOM, encrypted=True)
        yield made


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, access_token=server.token)
    yield made
    await made.close()


@pytest.fixture
def sealing() -> FakeSealing:
    return FakeSealing()


def say(server: Homeserver, text: str, *, session: str = "s1") -> EventId:
    return EventId(server.put(ROOM, SEALED, sealed(text, room=ROOM, session=session), "@alice:hs"))


def heard(run: Running) -> list[str]:
    return [said.text for said in run.events(Said)]


def stored(event_id: str, source: str, room: RoomId = ROOM) -> StoreLocked:
    return StoreLocked(event_id=EventId(event_id), room=room, sender=UserId("@alice:hs"), raw=source)


# ------------------------------------------------------------------------------------------------------- what is opened


async def test_a_room_that_can_be_spoken_in_is_joined_and_said_to_be_encrypted(
    client: Client, sealing: FakeSealing
) -> None:
    async with running(client, sealing=sealing) as run:
        pass
    assert [RoomSeen(room=ROOM, state=RoomState.JOINED, people=1, encrypted=True)] == run.events(RoomSeen)


async def test_without_encryption_the_log_says_why_nothing_can_be_said(client: Client) -> None:
    with capture_logs() as logs:
        async with running(client) as run:
            pass
    said = [line["reason"] for line in logs if line["event"] == "matrix.room_unusable"]
    assert (["Encryption is switched off in the config."], RoomState.ENCRYPTED) == (said, run.events(RoomSeen)[0].state)


async def test_what_comes_encrypted_is_heard_with_its_seal(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    async with running(client, sealing=sealing) as run:
        server.send_to_device(key())
        event_id = say(server, "1")
        await run.until(lambda: run.events(Said))
    said = run.events(Said)[0]
    assert (said.text, said.event_id, said.seal, said.exposed) == ("1", event_id, SEAL, False)


async def test_a_key_opens_what_comes_in_the_same_batch(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    since = server.token_now()
    say(server, "1")
    server.send_to_device(key())
    async with running(client, since=since, sealing=sealing) as run:
        pass
    assert (heard(run), run.events(Locked)) == (["1"], [])


async def test_clear_text_in_an_encrypted_room_is_told_as_exposed_and_a_reaction_as_ever(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    async with running(client, sealing=sealing) as run:
        server.say(ROOM, "1")
        server.react(ROOM, "$p", "1")
        await run.until(lambda: run.events(Reacted))
    said = run.events(Said)[0]
    assert (said.text, said.seal, said.exposed) == ("1", None, True)


async def test_an_encrypted_text_in_a_room_that_is_not_is_heard(client: Client, server: Homeserver) -> None:
    server.room(OTHER)
    sealing = FakeSealing()
    async with running(client, bound={OTHER: False}, sealing=sealing) as run:
        server.send_to_device(key())
        server.put(OTHER, SEALED, sealed("1", room=OTHER), "@alice:hs")
        await run.until(lambda: run.events(Said))
    assert SEAL == run.events(Said)[0].seal


async def test_what_can_never_be_read_is_logged_and_nothing_else(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    with capture_logs() as logs:
        async with running(client, sealing=sealing) as run:
            server.send_to_device(key())
            server.put(ROOM, SEALED, {"algorithm": "m.megolm.v1.aes-sha2"}, "@mallory:hs")
            server.put(ROOM, SEALED, sealed("moved", room=OTHER), "@mallory:hs")
            say(server, "1")
            await run.until(lambda: run.events(Said))
    assert (heard(run), run.events(Locked)) == (["1"], [])
    assert ["@mallory:hs"] * 2 == [line["sender"] for line in logs if line["event"] == "matrix.never_readable"]


async def test_own_events_are_not_opened(client: Client, server: Homeserver, sealing: FakeSealing) -> None:
    async with running(client, sealing=sealing) as run:
        server.send_to_device(key())
        server.put(ROOM, SEALED, sealed("ours", room=ROOM), server.user_id)
        say(server, "1")
        await run.until(lambda: run.events(Said))
    assert len(sealing.opened) == 1


async def test_what_stood_in_the_room_before_the_bot_came_is_not_even_tried(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    server.room(OTHER, joined=False, encrypted=True)
    for number in range(5):
        server.put(OTHER, SEALED, sealed(str(number), room=OTHER, session="old"), "@alice:hs")
    async with running(client, bound={OTHER: False}, sealing=sealing) as run:
        server.invite(OTHER)
        await run.until(lambda: run.events(RoomSeen)[-1].state is RoomState.JOINED)
        server.send_to_device(key())
        server.put(OTHER, SEALED, sealed("after", room=OTHER), "@alice:hs")
        await run.until(lambda: run.events(Said))
    assert (heard(run), run.events(Locked), len(sealing.opened)) == (["after"], [], 1)


async def test_history_is_not_even_tried(client: Client, server: Homeserver, sealing: FakeSealing) -> None:
    say(server, "old", session="lost")
    async with running(client, sealing=sealing) as run:
        server.send_to_device(key())
        say(server, "new")
        await run.until(lambda: run.events(Said))
    assert (heard(run), run.events(Locked)) == (["new"], [])


async def test_what_was_said_encrypted_before_a_kick_counts(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    since = server.token_now()
    server.send_to_device(key())
    say(server, "1")
    server.member(ROOM, server.user_id, "leave", "@mod:hs")
    async with running(client, since=since, sealing=sealing) as run:
        pass
    assert heard(run) == ["1"]


async def test_what_lies_in_a_gap_is_opened(client: Client, server: Homeserver, sealing: FakeSealing) -> None:
    since = server.token_now()
    server.send_to_device(key())
    for number in range(5):
        say(server, str(number))
    server.timeline_limit = 2
    async with running(client, since=since, sealing=sealing) as run:
        pass
    assert heard(run) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["m.room.redaction", "m.room.member", "m.room.encrypted"])
async def test_what_only_the_server_can_act_on_is_nothing_when_it_came_encrypted(
    client: Client, server: Homeserver, sealing: FakeSealing, kind: str
) -> None:
    async with running(client, sealing=sealing) as run:
        server.send_to_device(key())
        server.put(ROOM, SEALED, seal(kind, {"redacts": "$p", "membership": "leave"}, room=ROOM), "@mallory:hs")
        say(server, "1")
        await run.until(lambda: run.events(Said))
    assert [Said] == [type(event) for batch, _ in run.taken for event in batch if not isinstance(event, RoomSeen)]


# -------------------------------------------------------------------------------------------------------- what is locked


async def test_what_cannot_be_read_yet_is_told_at_its_place_and_said_when_its_key_comes(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    async with running(client, sealing=sealing) as run:
        server.send_to_device(key("other"))
        locked = say(server, "1")
        say(server, "between", session="other")
        await run.until(lambda: run.events(Said))
        server.send_to_device(key())
        say(server, "later", session="other")
        await run.until(lambda: len(run.events(Said)) == 3)
    assert heard(run) == ["between", "1", "later"]
    happened = [event for batch, _ in run.taken for event in batch if not isinstance(event, RoomSeen)]
    assert [Locked, Said, Said, Unlocked, Said] == [type(event) for event in happened]
    assert (locked, SEAL) == (run.events(Unlocked)[0].event_id, run.events(Said)[1].seal)


async def test_a_batch_that_could_not_be_stored_is_given_again_with_what_was_locked_in_it(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    since = server.token_now()
    say(server, "1")
    async with running(client, since=since, sealing=sealing, refusals=2) as run:
        server.send_to_device(key())
        await run.until(lambda: run.events(Said))
    assert [run.offered[0]] * 3 == run.offered[:3]
    assert len(run.events(Locked)) == 1


async def test_keys_of_a_batch_whose_gap_could_not_be_filled_are_not_lost(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    since = server.token_now()
    server.send_to_device(key())
    for number in range(3):
        say(server, str(number))
    server.timeline_limit = 1
    server.fail("messages", Fault(status=502))
    async with running(client, since=since, sealing=sealing) as run:
        pass
    assert heard(run) == ["0", "1", "2"]


async def test_a_key_that_does_not_come_is_told_in_time_and_asked_for_once(
    client: Client, server: Homeserver, sealing: FakeSealing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.held.ASK_AGAIN_S", 0.02)
    monkeypatch.setattr("bridge.matrix.held.UNREADABLE_S", 0.1)
    async with running(client, sealing=sealing) as run:
        locked = say(server, "1")
        await run.until(lambda: run.events(StillLocked))
        server.send_to_device(no_key("other"))
        await server.until_followed()
    expected = StillLocked(room=ROOM, sender=UserId("@alice:hs"), event_id=locked, withheld=False)
    assert ([expected], [(ROOM, locked)]) == (run.events(StillLocked), sealing.asked)


async def test_a_key_that_is_kept_back_on_purpose_is_told_as_such(
    client: Client, server: Homeserver, sealing: FakeSealing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.held.UNREADABLE_S", 0.1)
    async with running(client, sealing=sealing) as run:
        server.send_to_device(no_key())
        say(server, "1")
        await run.until(lambda: run.events(StillLocked))
    assert run.events(StillLocked)[0].withheld


async def test_what_could_not_be_opened_for_the_homeservers_sake_is_tried_again_without_news(
    client: Client, server: Homeserver, sealing: FakeSealing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.held.SOON_S", 0.05)
    sealing.away = True
    async with running(client, sealing=sealing) as run:
        server.send_to_device(key())
        say(server, "1")
        await run.until(lambda: run.events(Locked))
        sealing.away = False
        await run.until(lambda: run.events(Said))
    assert heard(run) == ["1"]


async def test_what_was_locked_before_a_restart_is_heard_after_it(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    async with running(client, sealing=sealing) as run:
        say(server, "1")
        await run.until(lambda: run.events(Locked))
    locked = run.events(Locked)[0]
    rows = [stored(locked.event_id, locked.raw), stored("$gone", locked.raw, OTHER)]
    async with running(client, since=run.taken[-1][1], sealing=FakeSealing(), held=rows) as again:
        assert ["$gone"] == [event.event_id for event in again.events(Unlocked)]
        server.send_to_device(key())
        await again.until(lambda: again.events(Said))
    assert (["1"], locked.event_id) == (heard(again), again.events(Unlocked)[-1].event_id)


async def test_what_is_removed_while_it_cannot_be_read_is_done_with(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    async with running(client, sealing=sealing) as run:
        locked = say(server, "1")
        server.put(ROOM, "m.room.redaction", {"redacts": locked}, "@alice:hs")
        await run.until(lambda: run.events(Unlocked))
        server.send_to_device(key())
        say(server, "2")
        await run.until(lambda: run.events(Said))
    assert heard(run) == ["2"]


# ------------------------------------------------------------------------------------------------------- verifications


class Listener:
    """Implements `matrix.sync.Steps`."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, object]] = []
        self.gate: anyio.Event | None = None
        self.came = anyio.Event()

    async def hear_in_room(self, room: RoomId, source: Source) -> None:
        await self._hear(room, source)

    async def hear_to_device(self, source: Source) -> None:
        await self._hear("to device", source)

    async def _hear(self, where: str, source: Source) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.heard.append((where, str(source["type"]), source.get("event_id")))
        self.came.set()

    async def until(self, count: int) -> None:
        with anyio.fail_after(5):
            while len(self.heard) < count:
                self.came = anyio.Event()
                await self.came.wait()


async def test_steps_of_a_verification_reach_who_follows_them_and_are_nothing_that_was_said(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    listener = Listener()
    request = {"msgtype": "m.key.verification.request", "body": "1", "to": server.user_id}
    async with running(client, sealing=sealing, verifications=listener) as run:
        server.send_to_device(key())
        first = server.put(ROOM, SEALED, seal("m.room.message", request, room=ROOM), "@alice:hs")
        second = server.put(ROOM, SEALED, seal("m.key.verification.start", {}, room=ROOM), "@alice:hs")
        server.put(ROOM, "m.key.verification.start", {}, "@mallory:hs")
        say(server, "2")
        await run.until(lambda: run.events(Said))
        await listener.until(2)
    assert heard(run) == ["2"]
    assert listener.heard == [(ROOM, "m.room.message", first), (ROOM, "m.key.verification.start", second)]


async def test_steps_of_a_verification_in_a_room_that_is_not_encrypted_come_in_clear_text(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    listener = Listener()
    server.room(OTHER)
    async with running(client, bound={OTHER: False}, sealing=sealing, verifications=listener) as run:
        step = server.put(OTHER, "m.key.verification.ready", {}, "@alice:hs")
        server.say(OTHER, "1")
        await run.until(lambda: run.events(Said))
        await listener.until(1)
    assert [(OTHER, "m.key.verification.ready", step)] == listener.heard


async def test_steps_that_come_to_the_device_are_heard_in_their_order_and_hold_up_nothing(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    listener = Listener()
    listener.gate = anyio.Event()
    async with running(client, sealing=sealing, verifications=listener) as run:
        with capture_logs() as logs:
            for number in range(STEPS_MOST + 5):
                run.rooms.overhear({"type": f"m.key.verification.{number}", "sender": "@mallory:hs"})
        server.send_to_device(key())
        say(server, "1")
        await run.until(lambda: run.events(Said))
        listener.gate.set()
        await listener.until(STEPS_MOST)
    assert listener.heard[:2] == [
        ("to device", "m.key.verification.0", None),
        ("to device", "m.key.verification.1", None),
    ]
    assert 5 == [line["event"] for line in logs].count("matrix.verification_step_dropped")


@pytest.mark.usefixtures("server")
async def test_what_comes_to_the_device_and_is_no_verification_is_nobodys_concern(
    client: Client, sealing: FakeSealing
) -> None:
    listener = Listener()
    async with running(client, sealing=sealing, verifications=listener) as run:
        run.rooms.overhear({"type": "m.secret.send", "sender": "@mallory:hs"})
        run.rooms.overhear({"type": "m.key.verification.start", "sender": "@alice:hs"})
        await listener.until(1)
    assert [("to device", "m.key.verification.start", None)] == listener.heard


# -------------------------------------------------------------------------------------------------------- housekeeping


async def test_after_each_batch_what_is_due_for_keys_is_done(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    async with running(client, sealing=sealing) as run:
        say(server, "1")
        await run.until(lambda: run.events(Locked))
        await server.until_followed()
    assert sealing.tidied >= 1


async def test_housekeeping_that_takes_its_time_does_not_hold_up_the_loop(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    sealing.tidy_gate = anyio.Event()
    async with running(client, sealing=sealing) as run:
        server.send_to_device(key())
        say(server, "1")
        await run.until(lambda: run.events(Said))
    assert sealing.tidied == 0


async def test_housekeeping_that_fails_or_hangs_is_done_with_a_later_batch(
    client: Client, server: Homeserver, sealing: FakeSealing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.sync.TIDY_MOST_S", 0.05)
    sealing.untidy = [HomeserverUnreachable("No connection to the homeserver.")]
    sealing.tidy_gate = anyio.Event()
    with capture_logs() as logs:
        async with running(client, sealing=sealing) as run:
            with anyio.fail_after(5):
                while not [line for line in logs if line["event"] == "matrix.keys_delayed"]:
                    await anyio.lowlevel.checkpoint()
            sealing.tidy_gate.set()
            for number in range(1, 4):
                server.member(ROOM, f"@p{number}:hs", "join")
                await run.until(lambda number=number: run.events(RoomSeen)[-1].people == number + 1)
            with anyio.fail_after(5):
                while not sealing.tidied:
                    await anyio.lowlevel.checkpoint()
    assert run.ended is None


# ------------------------------------------------------------------------------------------------- what a start is told


async def test_a_room_that_was_encrypted_once_is_so_whatever_the_server_says_now(
    client: Client, server: Homeserver, sealing: FakeSealing
) -> None:
    server.room(OTHER)
    async with running(client, bound={OTHER: False}, sealing=sealing, encrypted=[OTHER, ROOM]) as run:
        server.say(OTHER, "1")
        await run.until(lambda: run.events(Said))
        run.rooms.send(outgoing("t1", room=OTHER))
        await run.until(lambda: run.delivered)
    assert (True, True) == (run.events(RoomSeen)[0].encrypted, run.events(Said)[0].exposed)
    assert ["m.room.encrypted"] == [event.type for event in server.sent]


async def test_a_room_that_was_moved_before_the_start_is_followed_where_it_went(
    client: Client, server: Homeserver
) -> None:
    server.room(OTHER)
    async with running(client, moved=[(ROOM, OTHER), (RoomId("!unbound"), RoomId("!elsewhere"))]) as run:
        server.say(ROOM, "old")
        server.say(OTHER, "new")
        await run.until(lambda: run.events(Said))
    assert (["new"], {OTHER}) == (heard(run), {seen.room for seen in run.events(RoomSeen)})


async def test_what_is_composed_for_an_encrypted_room_leaves_space_for_its_sealing(
    client: Client, server: Homeserver, sealing: FakeSealing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.rooms.SEALED_BUDGET_BYTES", 8_000)
    described = replace(REQUEST.description, preview=(Text("Command", "x" * 80_000),))
    asked = Prompt(replace(REQUEST, description=described))
    server.room(OTHER)
    async with running(client, bound={ROOM: False, OTHER: False}, sealing=sealing) as run:
        sizes = {
            room: max(len(json.dumps(dict(one.content))) for one in run.rooms.compose(asked, room))
            for room in (ROOM, OTHER)
        }
    assert sizes[ROOM] <= 8_000 < sizes[OTHER]
