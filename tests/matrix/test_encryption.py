"""Encryption at a post office in memory, which fails and waits where a test says so."""

# What others may do to us is made from the inside of their machine
# pyright: reportPrivateUsage=false

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.core.errors import HomeserverUnreachable, KeysLost, RateLimited
from bridge.core.model import JsonObject, JsonValue, Seal
from bridge.matrix.crypto.machine import KEY_REQUEST, Machine, ToDevice
from bridge.matrix.events import ENCRYPTED
from bridge.matrix.sealing import Opened, Shut, Why
from tests.fakes.postoffice import ALGORITHM
from tests.matrix.crypto.world import send_letter
from tests.matrix.encrypting import ALICE, AWAY, BOT, EVERYBODY, MALLORY, ROOM, TEXT, World, body, logged


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.encryption.start()
    await made.sync()
    made.office.calls.clear()
    yield made
    made.close()


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


# ------------------------------------------------------------------------------------------------------------ the start


async def test_a_start_publishes_the_device_with_its_keys(unstarted: World) -> None:
    await unstarted.encryption.start()
    office, where = unstarted.office, (BOT, "BOT")
    assert ({"BOT"}, 50, True) == (set(office.devices[BOT]), len(office.one_time[where]), where in office.fallback)


async def test_a_second_start_publishes_nothing_new(world: World) -> None:
    before = (world.office.devices[BOT]["BOT"], dict(world.office.one_time[BOT, "BOT"]))
    world.restart()
    await world.encryption.start()
    assert before == (world.office.devices[BOT]["BOT"], dict(world.office.one_time[BOT, "BOT"]))


@pytest.mark.parametrize("which", [1, 2])
async def test_a_start_after_a_lost_answer_goes_on_where_it_was(unstarted: World, which: int) -> None:
    """The homeserver took the keys, and its answer did not come: the same keys are published once more."""

    async def lose() -> None:
        unstarted.office.lost["upload"] = int(unstarted.office.calls["upload"] == which)

    unstarted.office.gates["upload"] = lose
    with pytest.raises(HomeserverUnreachable):
        await unstarted.encryption.start()
    unstarted.restart()
    await unstarted.encryption.start()
    said = unstarted.say()
    await unstarted.sync()
    assert "1" == body(await unstarted.encryption.open(ROOM, said))


async def test_a_homeserver_that_forgot_the_device_is_told_again(world: World) -> None:
    world.office.devices.clear()
    world.restart()
    await world.encryption.start()
    assert {"BOT"} == set(world.office.devices[BOT])


async def test_other_keys_at_the_homeserver_mean_that_ours_are_lost(world: World, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "another", BOT, "BOT", create=True)
    with pytest.raises(KeysLost, match="BOT"):
        await world.encrypting(machine).start()
    machine.close()


async def test_a_start_at_a_homeserver_that_is_away_can_be_tried_again(unstarted: World) -> None:
    unstarted.office.faults["upload"] = [AWAY]
    with pytest.raises(HomeserverUnreachable):
        await unstarted.encryption.start()
    await unstarted.encryption.start()
    assert 50 == len(unstarted.office.one_time[BOT, "BOT"])


async def test_an_old_copy_of_the_keys_is_told_as_lost(world: World) -> None:
    """The homeserver has a key of this name already, and another: some other copy of this folder went on from here."""
    world.office.one_time[BOT, "BOT"] = {f"{ALGORITHM}:{name}": {"key": "other"} for name in _next_names(world)}
    with pytest.raises(KeysLost), logged() as lines:
        await world.sync(one_time_keys=0)
    assert ["crypto.keys_refused"] == [line["event"] for line in lines]


def _next_names(world: World) -> list[str]:
    world.bot._letters._olm.account.generate_one_time_keys(1)
    return list(world.bot._letters._olm.account._account.one_time_keys)


# ------------------------------------------------------------------------------------------------------------ after a sync


async def test_used_up_keys_are_refilled_after_a_sync(world: World) -> None:
    """Fault 9. Anybody can claim them all."""
    world.office.one_time.clear()
    await world.sync()
    assert 50 == len(world.office.one_time[BOT, "BOT"])


async def test_a_used_fallback_key_is_renewed(world: World) -> None:
    old = world.office.fallback[BOT, "BOT"]
    world.office.fallback_used.add((BOT, "BOT"))
    world.now += 3600
    await world.sync()
    assert old != world.office.fallback[BOT, "BOT"]


async def test_a_sync_with_nothing_to_do_asks_for_nothing(world: World) -> None:
    await world.sync()
    await world.encryption.tidy()
    assert {} == world.office.calls


async def test_keys_that_could_not_be_published_are_published_after_the_next_sync(world: World) -> None:
    world.office.one_time.clear()
    world.office.faults["upload"] = [AWAY]
    with pytest.raises(HomeserverUnreachable):
        await world.sync()
    await world.sync()
    assert 50 == len(world.office.one_time[BOT, "BOT"])


async def test_devices_that_changed_are_asked_for_before_they_are_needed(world: World) -> None:
    await world.send()
    await world.sync(devices_changed=frozenset({ALICE, MALLORY}))
    world.office.calls.clear()
    await world.send()
    assert {} == world.office.calls


async def test_what_is_about_no_key_is_overheard(world: World) -> None:
    world.office.send(ALICE, "m.key.verification.request", {BOT: {"BOT": {"a": 1}}})
    await world.sync()
    assert [ToDevice(sender=ALICE, kind="m.key.verification.request", content={"a": 1})] == world.overheard


async def test_a_session_that_does_not_work_is_renewed_after_a_sync(world: World) -> None:
    """The bot has lost its sessions; Alice's next key would not come to it."""
    world.say()
    await world.sync()
    await world.send()
    world.office.deliver(world.alice)
    for sessions in list(world.bot._letters._olm.session_store.values()):
        sessions.clear()
    world.alice._rooms._sending.clear()
    lost = world.say()
    await world.sync()
    world.office.deliver(world.alice)
    again = world.say("2", event_id="$e2")
    await world.sync()
    assert ("1", "2") == (
        body(await world.encryption.open(ROOM, lost)),  # it came with the next, being the same key
        body(await world.encryption.open(ROOM, again)),
    )


@pytest.mark.parametrize(("operation", "claims"), [("claim", 2), ("sendToDevice", 1)])
async def test_a_renewal_that_failed_goes_on_where_it_was(world: World, operation: str, claims: int) -> None:
    """Their one-time keys are theirs to spend: a second try claims no second one."""
    await world.send()
    world.office.calls.clear()
    world.bot._letters.break_off(ALICE, world.alice.curve_key)
    world.office.faults[operation] = [AWAY]
    with pytest.raises(HomeserverUnreachable):
        await world.encryption.tidy()
    for _ in range(2):
        await world.encryption.tidy()
    assert ((), claims) == (world.bot.repairs(), world.office.calls["claim"])


# -------------------------------------------------------------------------------------------------------------- opening


async def test_a_message_opens_and_is_its_devices(world: World) -> None:
    said = world.say("Grüße", origin_server_ts=5, unsigned={"age": 1})
    await world.sync()
    expected = Opened(
        source={
            "type": "m.room.message",
            "event_id": "$e1",
            "sender": ALICE,
            "origin_server_ts": 5,
            "unsigned": {"age": 1},
            "content": {"msgtype": "m.text", "body": "Grüße"},
        },
        seal=Seal(device_id="PHONE", signed=False, master=None),
    )
    assert expected == await world.encryption.open(ROOM, said)


async def test_the_senders_devices_are_asked_for_once(world: World) -> None:
    first, second = world.say("1"), world.say("2", event_id="$e2")
    await world.sync()
    opened = [body(await world.encryption.open(ROOM, said)) for said in (first, second)]
    assert (["1", "2"], 1) == (opened, world.office.calls["query"])


async def test_a_homeserver_that_is_away_leaves_a_message_shut_for_now(world: World) -> None:
    said = world.say()
    await world.sync()
    world.office.faults["query"] = [AWAY, RateLimited("wait", retry_after=1)]
    shut = [await world.encryption.open(ROOM, said) for _ in range(2)]
    assert ([Shut(Why.NOT_NOW)] * 2, "1") == (shut, body(await world.encryption.open(ROOM, said)))


async def test_a_senders_own_homeserver_that_is_away_leaves_a_message_shut_for_now(world: World) -> None:
    said = world.say()
    await world.sync()
    world.office.unanswered.add(ALICE)
    assert Shut(Why.NOT_NOW) == await world.encryption.open(ROOM, said)


async def test_devices_that_have_changed_are_asked_for_before_one_is_believed(world: World) -> None:
    """The homeserver says that something changed: the device may be the one that was thrown out."""
    said = world.say()
    await world.sync()
    await world.encryption.open(ROOM, said)
    del world.office.devices[ALICE]["PHONE"]
    await world.encryption.receive(world.batch(devices_changed=frozenset({ALICE})))
    opened = await world.encryption.open(ROOM, said)
    assert isinstance(opened, Opened)
    assert None is opened.seal.device_id


async def test_a_device_that_is_not_in_the_list_is_nobodys_after_one_more_look(world: World) -> None:
    await world.send()
    said = world.say() | {"sender": BOT}
    await world.sync()
    world.office.calls.clear()
    seals = [getattr(await world.encryption.open(ROOM, said), "seal", None) for _ in range(3)]
    assert ([Seal(device_id=None, signed=False, master=None)] * 3, 1) == (seals, world.office.calls["query"])


async def test_a_device_that_is_new_is_found_by_one_more_look(world: World) -> None:
    await world.send()
    laptop = world.machine(ALICE, "LAPTOP")
    world.office.publish(laptop)
    world.office.share(laptop, ROOM, BOT)
    sealed = laptop.encrypt(ROOM, "m.room.message", TEXT)
    await world.sync()
    opened = await world.encryption.open(
        ROOM, {"type": ENCRYPTED, "event_id": "$e1", "sender": ALICE, "content": {**sealed}}
    )
    assert isinstance(opened, Opened)
    assert "LAPTOP" == opened.seal.device_id


async def test_another_name_on_a_message_makes_it_nobodys(world: World) -> None:
    world.office.publish(world.machine(MALLORY, "LAPTOP"))
    said = world.say() | {"sender": MALLORY}
    await world.sync()
    opened = await world.encryption.open(ROOM, said)
    assert isinstance(opened, Opened)
    assert (MALLORY, None) == (opened.source["sender"], opened.seal.device_id)


async def test_a_key_that_somebody_else_gave_first_does_not_hide_its_owners(world: World) -> None:
    """Mallory, who is in the room, passes Alice's key on as their own, before Alice's own letter comes."""
    mallory = world.machine(MALLORY, "LAPTOP")
    world.office.publish(mallory)
    said = world.say()
    key = world.alice._rooms._sending[ROOM].given[BOT, "BOT"][1]
    content: JsonObject = {
        "algorithm": "m.megolm.v1.aes-sha2",
        "room_id": ROOM,
        "session_id": said["content"]["session_id"],
        "session_key": key,
    }
    own = world.office.collect(BOT, "BOT")
    send_letter(world.office, mallory, world.bot, "m.room_key", content)
    await world.sync()
    world.bot.left([ALICE, MALLORY])
    world.now += 1
    await world.sync(to_device=own)
    opened = await world.encryption.open(ROOM, said)
    assert isinstance(opened, Opened)
    assert "PHONE" == opened.seal.device_id


async def test_a_relation_outside_stands_in_where_there_is_none_inside(world: World) -> None:
    said = world.say()
    said["content"]["m.relates_to"] = {"rel_type": "m.thread", "event_id": "$root"}
    await world.sync()
    opened = await world.encryption.open(ROOM, said)
    assert isinstance(opened, Opened)
    content: Any = opened.source["content"]
    assert said["content"]["m.relates_to"] == content["m.relates_to"]


async def test_a_relation_outside_cannot_replace_the_one_inside(world: World) -> None:
    world.office.share(world.alice, ROOM, *EVERYBODY)
    inside: JsonValue = {"m.in_reply_to": {"event_id": "$a"}}
    sealed = world.alice.encrypt(ROOM, "m.room.message", {**TEXT, "m.relates_to": inside})
    content = {**sealed, "m.relates_to": {"m.in_reply_to": {"event_id": "$b"}}}
    await world.sync()
    opened = await world.encryption.open(
        ROOM, {"type": ENCRYPTED, "event_id": "$e1", "sender": ALICE, "content": content}
    )
    assert isinstance(opened, Opened)
    found: Any = opened.source["content"]
    assert inside == found["m.relates_to"]


@pytest.mark.parametrize("kind", ["m.room.encrypted", "m.room.redaction"])
async def test_what_is_never_encrypted_is_refused_where_it_is(world: World, kind: str) -> None:
    world.office.share(world.alice, ROOM, *EVERYBODY)
    sealed = world.alice.encrypt(ROOM, kind, {"redacts": "$x"})
    await world.sync()
    said = {"type": ENCRYPTED, "event_id": "$e1", "sender": ALICE, "content": {**sealed}}
    assert Shut(Why.NEVER) == await world.encryption.open(ROOM, said)


async def test_why_a_message_stays_shut_is_told(world: World) -> None:
    said = world.say()
    no_key = await world.encryption.open(ROOM, said)
    notice = {"room_id": ROOM, "session_id": said["content"]["session_id"], "code": "m.unverified"}
    world.office.letters.clear()
    world.office.send(ALICE, "m.room_key.withheld", {BOT: {"BOT": notice}})
    await world.sync()
    withheld = await world.encryption.open(ROOM, said)
    never = await world.encryption.open(ROOM, {**said, "content": {"algorithm": "m.unknown"}})
    assert [Shut(Why.NO_KEY), Shut(Why.WITHHELD), Shut(Why.NEVER)] == [no_key, withheld, never]


async def test_a_key_that_comes_late_opens_what_waited_for_it(world: World) -> None:
    said = world.say()
    before = await world.encryption.open(ROOM, said)
    await world.sync()
    assert (Shut(Why.NO_KEY), "1") == (before, body(await world.encryption.open(ROOM, said)))


async def test_a_message_sent_again_as_another_event_stays_shut_also_after_a_restart(world: World) -> None:
    said = world.say()
    await world.sync()
    await world.encryption.open(ROOM, said)
    world.restart()
    replayed = await world.encryption.open(ROOM, said | {"event_id": "$e9"})
    assert (Shut(Why.NEVER), "1") == (replayed, body(await world.encryption.open(ROOM, said)))


@pytest.mark.parametrize("sender", [None, 7, ""])
async def test_a_message_of_nobody_raises_nothing(world: World, sender: object) -> None:
    said = world.say() | {"sender": sender}
    await world.sync()
    opened = await world.encryption.open(ROOM, said)
    assert isinstance(opened, Shut)


async def test_a_key_is_asked_for_again_and_its_owners_answer_is_taken(world: World) -> None:
    said = world.say()
    world.office.letters.clear()
    await world.encryption.ask_again(ROOM, said)
    ((question,),) = world.office.letters.values()
    assert (KEY_REQUEST, "request", said["content"]["session_id"]) == (
        question["type"],
        question["content"]["action"],
        question["content"]["body"]["session_id"],
    )


async def test_asking_again_says_nothing_when_it_fails(world: World) -> None:
    world.office.faults["sendToDevice"] = [AWAY]
    await world.encryption.ask_again(ROOM, world.say())
    await world.encryption.ask_again(ROOM, {"type": ENCRYPTED})
    assert 1 == world.office.calls["sendToDevice"]


async def test_an_answered_question_is_taken_back(world: World) -> None:
    said = world.say()
    letters = world.office.collect(BOT, "BOT")
    await world.encryption.ask_again(ROOM, said)
    world.office.letters.clear()
    await world.sync(to_device=letters)
    assert ["request_cancellation"] == [one["content"]["action"] for one in world.office.collect(ALICE, "PHONE")]


# ------------------------------------------------------------------------------------------------------------ devices_of


async def test_the_devices_of_a_user_are_asked_for_where_they_are_not_known(world: World) -> None:
    known = [await world.encryption.devices_of(ALICE) for _ in range(2)]
    assert ([{"PHONE"}] * 2, 1) == ([set(one.devices) for one in known], world.office.calls["query"])


async def test_devices_that_nobody_could_tell_of_are_told_as_such(world: World) -> None:
    world.office.unanswered.add(ALICE)
    with pytest.raises(HomeserverUnreachable):
        await world.encryption.devices_of(ALICE)
