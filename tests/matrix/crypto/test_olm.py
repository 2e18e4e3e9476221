"""Letters between devices, and the keys that begin them."""

# What others may do to us is made from the inside of their machine
# pyright: reportPrivateUsage=false
# ruff: noqa: ARG001 - who is asked for as a fixture has a device, and need do nothing
from typing import Any

import pytest

from bridge.core.model import JsonObject
from bridge.matrix.crypto.machine import Machine, Unread
from bridge.matrix.crypto.signing import is_signed_by
from bridge.matrix.events import ENCRYPTED
from tests.fakes.postoffice import ALGORITHM, Json
from tests.matrix.crypto.world import ALICE, BOT, HOUR_S, MALLORY, OTHER_ROOM, ROOM, World, body, olm


def names(upload: JsonObject | None, part: str) -> set[str]:
    found = (upload or {}).get(part, {})
    assert isinstance(found, dict)
    return set(found)


def test_fifty_keys_and_a_fallback_are_published_at_first(world: World) -> None:
    upload = world.machine(BOT, "BOT", publish=False).uploads(0, fallback_unused=False)
    assert (50, 1, True) == (
        len(names(upload, "one_time_keys")),
        len(names(upload, "fallback_keys")),
        "device_keys" in (upload or {}),
    )


def test_nothing_is_published_or_written_while_enough_is_there(bot: Machine) -> None:
    """It is asked after every sync: nobody is to wait for the disk then."""
    before = bot._store._sql.total_changes
    assert bot.uploads(50, fallback_unused=True) is None
    assert bot._store._sql.total_changes == before


def test_used_up_keys_are_made_anew(bot: Machine) -> None:
    """Fault 9: a count of 0 is none, not 'not said'."""
    assert 50 == len(names(bot.uploads(0, fallback_unused=True), "one_time_keys"))


def test_keys_whose_publication_was_never_confirmed_are_offered_again(world: World) -> None:
    first = world.machine(BOT, "BOT", publish=False)
    lost = first.uploads(0, fallback_unused=False)
    assert lost == world.restart(first).uploads(0, fallback_unused=False)


def test_confirmed_keys_are_not_offered_again(world: World) -> None:
    machine = world.machine(BOT, "BOT", publish=False)
    first = machine.uploads(0, fallback_unused=False)
    assert first is not None
    machine.uploaded(first)
    again = world.restart(machine).uploads(0, fallback_unused=True)
    assert set() == names(first, "one_time_keys") & names(again, "one_time_keys")
    assert "device_keys" not in (again or {})


def test_a_used_fallback_key_is_renewed_after_an_hour(world: World, bot: Machine) -> None:
    at_once = bot.uploads(50, fallback_unused=False)
    world.clock.now += HOUR_S
    assert (None, 1) == (at_once, len(names(bot.uploads(50, fallback_unused=False), "fallback_keys")))


def test_every_published_key_is_signed_by_the_device(world: World) -> None:
    machine = world.machine(BOT, "BOT", publish=False)
    upload: Any = machine.uploads(0, fallback_unused=False)
    keys = [*upload["one_time_keys"].values(), *upload["fallback_keys"].values()]
    assert all(is_signed_by(key, BOT, machine.fingerprint, "BOT") for key in keys)


def test_a_message_that_came_through_the_fallback_key_is_read(world: World, bot: Machine, alice: Machine) -> None:
    world.office.one_time.clear()
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    assert (True, "1") == ((BOT, "BOT") in world.office.fallback_used, body(bot.decrypt(ROOM, said)))


# --------------------------------------------------------------------------------------------------------- claimed keys


def test_a_claimed_key_that_its_device_did_not_sign_is_no_key(world: World, bot: Machine, alice: Machine) -> None:
    """The homeserver could read everything, if it could give us keys of its own."""
    world.office.ask(bot, ALICE)
    claim = bot.needs(ROOM, [ALICE]).claim
    forged = {"signed_curve25519:A": {"key": bot.curve_key, "signatures": {ALICE: {"ed25519:PHONE": "x"}}}}
    assert claim == bot.claimed({"one_time_keys": {ALICE: {"PHONE": forged}}}, claim)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"one_time_keys": []},
        {"one_time_keys": {ALICE: []}},
        {"one_time_keys": {ALICE: {"PHONE": []}}},
        {"one_time_keys": {ALICE: {"PHONE": {"signed_curve25519:A": "x"}}}},
        {"one_time_keys": {ALICE: {"PHONE": {"signed_curve25519:A": {"key": 7}}}}},
    ],
)
def test_an_odd_answer_to_a_claim_holds_no_key(world: World, bot: Machine, alice: Machine, answer: Json) -> None:
    world.office.ask(bot, ALICE)
    claim = bot.needs(ROOM, [ALICE]).claim
    assert claim == bot.claimed(answer, claim)


def test_a_device_without_keys_is_left_alone_for_a_while(world: World, bot: Machine, alice: Machine) -> None:
    world.office.ask(bot, ALICE)
    bot.claimed({}, bot.needs(ROOM, [ALICE]).claim)
    now = bot.needs(ROOM, [ALICE])
    world.clock.now += HOUR_S
    assert ((), (), 1) == (now.claim, now.give, len(bot.needs(ROOM, [ALICE]).claim))


# ------------------------------------------------------------------------------------------------------------ repairing


def repair(world: World, machine: Machine) -> int:
    """What `Encryption` does for sessions that do not work; says how many there were."""
    broken = machine.repairs()
    for device in machine.unbegun(broken):
        machine.claimed(world.office.claim({device.user: {device.device_id: ALGORITHM}}), [device])
    begun, messages = machine.greetings(broken)
    world.office.send(machine.user_id, ENCRYPTED, messages)
    machine.repaired(begun)
    return len(broken)


def wedge(world: World, bot: Machine, alice: Machine) -> Json:
    """Alice writes over a session that the bot has lost, as after a backup was put back: her key does not arrive."""
    world.office.share(alice, ROOM, BOT)
    world.office.deliver(bot)
    world.office.share(bot, ROOM, ALICE)
    world.office.deliver(alice)  # she has a session that was answered: no letter of hers begins one any more
    for sessions in list(bot._letters._olm.session_store.values()):
        sessions.clear()
    return world.say(alice, "lost", BOT, room=OTHER_ROOM)


def test_a_session_that_does_not_work_is_renewed_and_the_next_key_arrives(
    world: World, bot: Machine, alice: Machine
) -> None:
    lost = wedge(world, bot, alice)
    world.office.deliver(bot)
    unread = bot.decrypt(OTHER_ROOM, lost)
    renewed = repair(world, bot)
    world.office.deliver(alice)
    said = world.say(alice, "2", BOT, room=OTHER_ROOM, event_id="$e2")
    world.office.deliver(bot)
    assert (Unread.NO_KEY, 1, "2") == (unread, renewed, body(bot.decrypt(OTHER_ROOM, said)))


def test_the_lost_key_comes_with_the_renewed_session(world: World, bot: Machine, alice: Machine) -> None:
    """Whoever begins anew may have missed what they were given: our own side gives it once more, as it was."""
    lost = wedge(world, bot, alice)
    world.office.deliver(bot)
    repair(world, bot)
    world.office.deliver(alice)
    world.office.share(alice, OTHER_ROOM, BOT)
    world.office.deliver(bot)
    assert "lost" == body(bot.decrypt(OTHER_ROOM, lost))


def test_a_session_is_renewed_once_an_hour_at_most(world: World, bot: Machine, alice: Machine) -> None:
    wedge(world, bot, alice)
    letters = world.office.collect(BOT, "BOT")
    renewed: list[int] = []
    for _ in range(2):
        bot.receive(letters)
        renewed.append(repair(world, bot))
    world.clock.now += HOUR_S
    renewed.append(repair(world, bot))
    assert [1, 0, 1] == renewed


def test_letters_from_nobody_we_know_of_are_not_answered(world: World, bot: Machine) -> None:
    bot.receive([{"type": ENCRYPTED, "sender": MALLORY, "content": olm(bot, type=1, body="AwoA")}] * 500)
    assert () == bot.repairs()


def test_who_could_begin_no_session_with_us_is_sent_one(world: World, bot: Machine, alice: Machine) -> None:
    world.office.ask(bot, ALICE)
    content = {"code": "m.no_olm", "sender_key": alice.curve_key, "algorithm": "m.megolm.v1.aes-sha2"}
    bot.receive([{"type": "m.room_key.withheld", "sender": ALICE, "content": content}])
    assert ["PHONE"] == [device.device_id for device in bot.repairs()]
