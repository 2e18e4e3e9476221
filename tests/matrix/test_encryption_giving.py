"""Giving out a room's key: what fails or is cancelled on the way, and what a message then costs."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from bridge.core.errors import EventTooLarge, HomeserverUnreachable, RateLimited, RequestRefused
from bridge.matrix.crypto import machine
from bridge.matrix.encryption import WIRE_MOST_BYTES
from bridge.matrix.events import ENCRYPTED
from tests.matrix.encrypting import ALICE, AWAY, BOT, EVERYBODY, MALLORY, ROOM, TEXT, World, logged


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.encryption.start()
    await made.sync()
    made.office.calls.clear()
    yield made
    made.close()


async def test_a_message_can_be_read_by_everybody_there(world: World) -> None:
    sent = await world.send()
    assert (ENCRYPTED, "1") == (sent["type"], world.read_by_alice(sent))


async def test_once_the_key_is_given_a_message_asks_the_homeserver_nothing(world: World) -> None:
    await world.send()
    first = dict(world.office.calls)
    world.office.calls.clear()
    for _ in range(50):
        await world.send()
    assert ({"query": 1, "claim": 1, "sendToDevice": 1}, {}) == (first, world.office.calls)


async def test_a_worn_out_key_costs_one_letter_round_and_no_more(world: World) -> None:
    for _ in range(100):
        await world.send()
    world.office.calls.clear()
    sent = await world.send()
    assert ({"sendToDevice": 1}, "1") == (world.office.calls, world.read_by_alice(sent))


@pytest.mark.parametrize("operation", ["query", "claim", "sendToDevice"])
@pytest.mark.parametrize("failure", [AWAY, RateLimited("wait", retry_after=1)])
async def test_when_the_key_cannot_be_given_nothing_leaves_and_the_next_try_gives_it(
    world: World, operation: str, failure: HomeserverUnreachable | RateLimited
) -> None:
    """Fault 3: the message left, and nobody could read it or the hundred after it."""
    world.office.faults[operation] = [failure]
    with pytest.raises(type(failure)):
        await world.send()
    assert "1" == world.read_by_alice(await world.send())


async def test_a_key_that_was_taken_though_the_answer_was_lost_is_given_again(world: World) -> None:
    world.office.lost["sendToDevice"] = 1
    with pytest.raises(HomeserverUnreachable):
        await world.send()
    sent = await world.send()
    assert (2, "1") == (len(world.office.letters[ALICE, "PHONE"]), world.read_by_alice(sent))


@pytest.mark.parametrize("operation", ["query", "claim", "sendToDevice"])
async def test_a_send_that_is_cancelled_at_any_step_leaves_no_lock_behind(world: World, operation: str) -> None:
    """Fault 2: every later send to the room waited for ever."""
    reached = anyio.Event()

    async def wait() -> None:
        reached.set()
        await anyio.sleep_forever()

    world.office.gates[operation] = wait
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.send, TEXT)
        with anyio.fail_after(5):
            await reached.wait()
        tasks.cancel_scope.cancel()
    world.office.gates.clear()
    with anyio.fail_after(5):
        assert "1" == world.read_by_alice(await world.send())


async def test_a_send_that_waited_for_a_cancelled_one_gives_the_key_itself(world: World) -> None:
    reached = anyio.Event()

    async def wait() -> None:
        reached.set()
        world.office.gates.clear()
        await anyio.sleep_forever()

    world.office.gates["claim"] = wait
    first = anyio.CancelScope()

    async def cancelled() -> None:
        with first:
            await world.send()

    read: list[object] = []

    async def waiting() -> None:
        read.append(world.read_by_alice(await world.send()))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancelled)
            await reached.wait()
            tasks.start_soon(waiting)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
    assert ["1"] == read


async def test_two_at_once_give_the_key_once(world: World) -> None:
    """The steps really interleave: the second arrives while the first waits for the claim."""
    reached, go_on = anyio.Event(), anyio.Event()

    async def wait() -> None:
        reached.set()
        await go_on.wait()

    world.office.gates["claim"] = wait
    sessions: list[str] = []

    async def send() -> None:
        sessions.append((await world.send())["content"]["session_id"])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await reached.wait()
            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
    assert (1, 2, {"query": 1, "claim": 1, "sendToDevice": 1}) == (
        len(set(sessions)),
        len(sessions),
        world.office.calls,
    )


async def test_reading_goes_on_while_a_key_is_being_given(world: World) -> None:
    said = world.say()
    await world.sync()
    await world.encryption.open(ROOM, said)
    reached = anyio.Event()

    async def wait() -> None:
        reached.set()
        await anyio.sleep_forever()

    world.office.gates["sendToDevice"] = wait
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.send, TEXT)
            await reached.wait()
            await world.encryption.receive(world.batch(devices_changed=frozenset({ALICE})))
            await world.encryption.open(ROOM, said)
            tasks.cancel_scope.cancel()


async def test_devices_are_served_in_rounds_and_each_counts_as_it_is_confirmed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.encryption.CHUNK", 2)
    more = [world.machine(ALICE, f"D{number}") for number in range(4)]
    for one in more:
        world.office.publish(one)
    await world.send(TEXT, ALICE)
    assert {"query": 1, "claim": 3, "sendToDevice": 3} == world.office.calls


async def test_what_was_confirmed_before_a_failure_is_not_given_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.encryption.CHUNK", 1)
    world.office.publish(world.machine(ALICE, "LAPTOP"))
    calls = 0

    async def fail_second() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise AWAY

    world.office.gates["sendToDevice"] = fail_second
    with pytest.raises(HomeserverUnreachable):
        await world.send()
    await world.send()
    assert 3 == calls  # one, the one that failed, and that one again


async def test_a_device_without_keys_is_told_of_once_and_does_not_hold_up_the_others(world: World) -> None:
    world.office.publish(world.machine(MALLORY, "LAPTOP"))
    world.office.one_time[MALLORY, "LAPTOP"].clear()
    del world.office.fallback[MALLORY, "LAPTOP"]
    with logged() as lines:
        sent = await world.send(TEXT, *EVERYBODY, MALLORY)
        world.now += machine.CLAIM_AGAIN_MS / 1000
        await world.send(TEXT, *EVERYBODY, MALLORY)
    told = [(line["user"], line["device"]) for line in lines if line["event"] == "crypto.device_without_keys"]
    assert ("1", [(MALLORY, "LAPTOP")]) == (world.read_by_alice(sent), told)


async def test_a_member_whose_homeserver_is_away_does_not_hold_up_the_others(world: World) -> None:
    world.office.unanswered.add(MALLORY)
    assert "1" == world.read_by_alice(await world.send(TEXT, *EVERYBODY, MALLORY))


async def test_keys_that_the_homeserver_refuses_hold_the_message_back(world: World) -> None:
    """It is no fault of the message: repeating may help, and without its key it may not leave."""
    world.office.faults["sendToDevice"] = [RequestRefused("no", status=403, errcode="M_FORBIDDEN")]
    with pytest.raises(HomeserverUnreachable), logged() as lines:
        await world.send()
    assert ["crypto.keys_not_given"] == [line["event"] for line in lines]


async def test_a_session_that_its_owner_began_anew_is_given_the_key_once_more(world: World) -> None:
    """Alice's client has lost its sessions, with the key that was on its way."""
    first = await world.send()
    world.office.letters.clear()
    world.office.share(world.alice, ROOM, BOT)
    await world.sync()
    await world.send()
    assert "1" == world.read_by_alice(first)


@pytest.mark.parametrize("kind", ["m.reaction", "m.room.redaction"])
async def test_what_servers_act_on_leaves_in_the_clear(world: World, kind: str) -> None:
    content = {"key": "1"}
    assert (kind, content) == await world.encryption.encrypt(ROOM, EVERYBODY, kind, content)
    assert {} == world.office.calls


@pytest.mark.parametrize(("letters", "fits"), [(45_000, True), (48_000, False), (200_000, False)])
async def test_an_event_that_no_server_takes_is_told_as_too_large(world: World, letters: int, fits: bool) -> None:
    content = {"msgtype": "m.text", "body": "x" * letters}
    if fits:
        sent = await world.send(content)
        assert len(sent["content"]["ciphertext"]) < WIRE_MOST_BYTES
        return
    with pytest.raises(EventTooLarge):
        await world.send(content)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), "\ud800"])
async def test_what_json_cannot_say_is_refused_as_a_server_would(world: World, odd: float | str) -> None:
    with pytest.raises(RequestRefused) as refused:
        await world.send({"odd": odd})
    assert "M_BAD_JSON" == refused.value.errcode
