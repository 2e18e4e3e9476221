"""Messages in rooms, and the keys that they are under."""

# ruff: noqa: ARG001 - who is asked for as a fixture has a device, and need do nothing
import json
from typing import Any

import pytest

from bridge.core.model import JsonObject, UserId
from bridge.matrix.crypto.machine import NOBODY, Deciphered, Machine, Unread
from bridge.matrix.crypto.olm import to_plain
from tests.fakes.postoffice import Json
from tests.matrix.crypto.world import (
    ALICE,
    BOT,
    DAY_S,
    MALLORY,
    OTHER_ROOM,
    ROOM,
    World,
    body,
    event,
    send_letter,
)


def test_a_message_is_read_and_vouched_for_by_its_device(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "Grüße", BOT)
    world.office.deliver(bot)
    world.office.ask(bot, ALICE)
    found = bot.decrypt(ROOM, said)
    assert isinstance(found, Deciphered)
    seal = bot.seal(ALICE, found)
    assert ("Grüße", "PHONE") == (found.content["body"], seal and seal.device_id)


def test_the_homeserver_cannot_put_another_name_on_a_message(world: World, bot: Machine, alice: Machine) -> None:
    world.machine(MALLORY, "LAPTOP")
    said = world.say(alice, "1", BOT) | {"sender": MALLORY}
    world.office.deliver(bot)
    world.office.ask(bot, ALICE, MALLORY)
    found = bot.decrypt(ROOM, said)
    assert isinstance(found, Deciphered)
    assert NOBODY == bot.seal(MALLORY, found)


def test_a_room_key_that_somebody_passes_on_as_their_own_makes_them_nobody_of_the_message(
    world: World, bot: Machine, alice: Machine
) -> None:
    """Mallory is in the room, so has Alice's key, and gives it to the bot before Alice's own letter comes."""
    mallory = world.machine(MALLORY, "LAPTOP")
    said = world.say(alice, "1", BOT, MALLORY)
    world.office.deliver(mallory)
    (key,) = mallory._store.room_keys(ROOM, said["content"]["session_id"])
    forged = {
        "algorithm": "m.megolm.v1.aes-sha2",
        "room_id": ROOM,
        "session_id": key.session.id,
        "session_key": alice._rooms._sending[ROOM].given[BOT, "BOT"][1],
    }
    late = world.office.collect(BOT, "BOT")
    send_letter(world, mallory, bot, "m.room_key", forged)
    world.office.deliver(bot)
    bot.receive(late)
    world.office.ask(bot, ALICE, MALLORY)
    seals: list[object] = []
    for sender in (ALICE, MALLORY):
        found = bot.decrypt(ROOM, said | {"sender": sender})
        assert isinstance(found, Deciphered)
        seals.append(getattr(bot.seal(sender, found), "device_id", None))
    assert [
        "PHONE",
        "LAPTOP",
    ] == seals  # each under the key that they themselves gave; the core takes neither for the other


def test_a_message_is_found_by_its_session_alone(world: World, bot: Machine, alice: Machine) -> None:
    """Fault 16: `sender_key` and `device_id` are deprecated, and nobody vouches for them."""
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    del said["content"]["sender_key"], said["content"]["device_id"]
    assert "1" == body(bot.decrypt(ROOM, said))


def test_without_its_key_a_message_waits_for_it(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", BOT)
    before = bot.decrypt(ROOM, said)
    world.office.deliver(bot)
    assert (Unread.NO_KEY, "1") == (before, body(bot.decrypt(ROOM, said)))


def test_a_key_that_begins_later_opens_nothing_before_it(world: World, bot: Machine, alice: Machine) -> None:
    alice_alone = world.say(alice, "before", ALICE)
    after = world.say(alice, "after", BOT, event_id="$e2")
    world.office.deliver(bot)
    assert (Unread.NO_KEY, "after") == (bot.decrypt(ROOM, alice_alone), body(bot.decrypt(ROOM, after)))


@pytest.mark.parametrize("kind", ["m.room_key.withheld", "org.matrix.room_key.withheld"])
def test_a_key_that_is_kept_from_us_is_told_apart(world: World, bot: Machine, alice: Machine, kind: str) -> None:
    said = world.say(alice, "1", ALICE)
    content = {"room_id": ROOM, "session_id": said["content"]["session_id"], "code": "m.unverified"}
    bot.receive([{"type": kind, "sender": ALICE, "content": content}])
    again = world.restart(bot)
    assert Unread.WITHHELD == again.decrypt(ROOM, said)


def test_only_the_sender_can_say_that_they_keep_a_key_from_us(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", ALICE)
    content = {"room_id": ROOM, "session_id": said["content"]["session_id"], "code": "m.unverified"}
    bot.receive([{"type": "m.room_key.withheld", "sender": MALLORY, "content": content}])
    assert Unread.NO_KEY == bot.decrypt(ROOM, said)


def test_a_message_sent_once_more_as_another_event_is_refused_for_good(
    world: World, bot: Machine, alice: Machine
) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    first = body(bot.decrypt(ROOM, said))
    again = world.restart(bot)
    replayed, repeated = again.decrypt(ROOM, said | {"event_id": "$e9"}), body(again.decrypt(ROOM, said))
    assert ("1", Unread.NEVER, "1") == (first, replayed, repeated)


def test_a_message_of_another_room_is_refused(world: World, bot: Machine, alice: Machine) -> None:
    """Alice's key works in both rooms, because her client says so in the letter; the message says which room it is for."""
    world.office.share(alice, ROOM, BOT)
    content: Any = alice.encrypt(ROOM, "m.room.message", {"body": "1"})
    given = alice._rooms._sending[ROOM].given[BOT, "BOT"][1]
    key = {"algorithm": "m.megolm.v1.aes-sha2", "room_id": OTHER_ROOM, "session_key": given}
    send_letter(world, alice, bot, "m.room_key", {**key, "session_id": content["session_id"]})
    world.office.deliver(bot)
    assert (Unread.NEVER, "1") == (
        bot.decrypt(OTHER_ROOM, event(alice, content)),
        body(bot.decrypt(ROOM, event(alice, content))),
    )


def test_a_key_is_no_key_of_another_room(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    assert Unread.NO_KEY == bot.decrypt(OTHER_ROOM, said)


def encrypted(world: World, bot: Machine, alice: Machine, text: str) -> Json:
    """An event in which Alice's key encrypts any text."""
    world.office.share(alice, ROOM, BOT)
    world.office.deliver(bot)
    sending = alice._rooms._sending[ROOM]
    content = alice.encrypt(ROOM, "m.room.message", {})
    return event(alice, {**content, "ciphertext": sending.session.encrypt(text.encode()).to_base64()})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "null",
        "7",
        "[" * 100_000,
        "1" * 10_000,
        '{"room_id": "!room"}',
        '{"room_id": "!room", "type": "m.room.message"}',
        '{"room_id": "!room", "type": "m.room.message", "content": []}',
        '{"room_id": "!room", "type": 7, "content": {}}',
        '{"type": "m.room.message", "content": {}}',
        '{"room_id": ["!room"], "type": "m.room.message", "content": {}}',
    ],
)
def test_what_is_no_event_inside_is_refused(world: World, bot: Machine, alice: Machine, text: str) -> None:
    assert Unread.NEVER == bot.decrypt(ROOM, encrypted(world, bot, alice, text))


def test_bytes_that_are_no_text_are_refused(world: World, bot: Machine, alice: Machine) -> None:
    said = encrypted(world, bot, alice, "{}")
    said["content"]["ciphertext"] = alice._rooms._sending[ROOM].session.encrypt(b"\xff\xfe").to_base64()
    assert Unread.NEVER == bot.decrypt(ROOM, said)


@pytest.mark.parametrize(
    "change",
    [
        {"ciphertext": "!!!"},
        {"ciphertext": "AAAA"},
        {"ciphertext": ""},
        {"ciphertext": 7},
        {"ciphertext": {"a": 1}},
        {"ciphertext": "\ud800"},
        {"session_id": None},
        {"algorithm": "m.olm.v1.curve25519-aes-sha2"},
        {"algorithm": None},
    ],
)
def test_a_damaged_message_is_refused(world: World, bot: Machine, alice: Machine, change: dict[str, object]) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    assert Unread.NEVER == bot.decrypt(ROOM, event(alice, said["content"] | change))


@pytest.mark.parametrize("change", [{"state_key": ""}, {"event_id": None}, {"content": []}, {"type": "m.room.message"}])
def test_an_event_that_cannot_be_an_encrypted_message_is_refused(
    world: World, bot: Machine, alice: Machine, change: dict[str, object]
) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    assert Unread.NEVER == bot.decrypt(ROOM, said | change)


def test_a_message_with_one_letter_changed_is_refused(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    text: str = said["content"]["ciphertext"]
    middle = len(text) // 2
    said["content"]["ciphertext"] = text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]
    assert Unread.NEVER == bot.decrypt(ROOM, said)


# ------------------------------------------------------------------------------------------------------- asked-for keys


def forwarded(alice: Machine, said: Json, **change: object) -> Json:
    (key,) = alice._store.room_keys(ROOM, said["content"]["session_id"])
    exported = key.session.export_session(0)
    return {
        "algorithm": "m.megolm.v1.aes-sha2",
        "room_id": ROOM,
        "session_id": key.session.id,
        "session_key": exported,
        "sender_key": alice.curve_key,
        "sender_claimed_ed25519_key": alice.fingerprint,
        "forwarding_curve25519_key_chain": [],
    } | change


def test_a_key_that_we_asked_its_owner_for_is_taken_and_the_question_taken_back(
    world: World, bot: Machine, alice: Machine
) -> None:
    said = world.say(alice, "1", ALICE)
    ((user, devices),) = bot.requests(ROOM, said).items()
    send_letter(world, alice, bot, "m.forwarded_room_key", forwarded(alice, said))
    world.office.deliver(bot)
    question: Any = devices["*"]
    ((asked, cancelled),) = bot.cancellations()
    assert ("1", ALICE, ALICE, question["request_id"]) == (
        body(bot.decrypt(ROOM, said)),
        user,
        asked,
        cancelled["request_id"],
    )


def test_a_key_that_we_did_not_ask_for_is_refused(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", ALICE)
    send_letter(world, alice, bot, "m.forwarded_room_key", forwarded(alice, said))
    world.office.deliver(bot)
    assert Unread.NO_KEY == bot.decrypt(ROOM, said)


@pytest.mark.parametrize("own_name", [False, True])
def test_a_key_that_somebody_else_passes_on_is_refused(
    world: World, bot: Machine, alice: Machine, own_name: bool
) -> None:
    mallory = world.machine(MALLORY, "LAPTOP")
    said = world.say(alice, "1", ALICE)
    bot.requests(ROOM, said)
    key = forwarded(alice, said, **({"sender_key": mallory.curve_key} if own_name else {}))
    send_letter(world, mallory, bot, "m.forwarded_room_key", key)
    world.office.deliver(bot)
    assert Unread.NO_KEY == bot.decrypt(ROOM, said)


# -------------------------------------------------------------------------------------------------------------- sending


def test_text_leaves_as_text_and_not_as_escapes(world: World, bot: Machine, alice: Machine) -> None:
    """Fault 10: six bytes for each letter of most languages."""
    world.office.share(bot, ROOM, ALICE)
    few: Any = bot.encrypt(ROOM, "m.room.message", {"body": "é" * 20_000})
    assert len(few["ciphertext"]) < 56_000


def test_a_letter_leaves_as_text_and_not_as_escapes(world: World, bot: Machine, alice: Machine) -> None:
    world.office.ask(bot, ALICE)
    send_letter(world, bot, alice, "dev.test", {"text": "é" * 20_000})
    ((_, (letter,)),) = world.office.letters.items()
    assert len(json.dumps(letter)) < 56_000


def test_what_json_cannot_say_is_refused() -> None:
    for odd in ({"f": float("nan")}, {"t": "\ud800"}):
        with pytest.raises(ValueError, match=r"."):
            to_plain(odd)


def test_the_relation_stands_outside_as_well(world: World, bot: Machine, alice: Machine) -> None:
    relates: JsonObject = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}}
    world.office.share(bot, ROOM, ALICE)
    sealed = bot.encrypt(ROOM, "m.room.message", relates)
    world.office.deliver(alice)
    found = alice.decrypt(ROOM, event(bot, sealed))
    assert isinstance(found, Deciphered)
    assert (relates["m.relates_to"], relates) == (sealed["m.relates_to"], found.content)


def session_of(world: World, bot: Machine, *members: UserId) -> object:
    """Under which key the next message leaves."""
    return world.say(bot, "prompt", *members)["content"]["session_id"]


def test_one_key_serves_until_there_is_reason_for_another(world: World, bot: Machine, alice: Machine) -> None:
    assert session_of(world, bot, BOT, ALICE) == session_of(world, bot, BOT, ALICE)


def test_the_key_is_changed_after_a_hundred_messages(world: World, bot: Machine, alice: Machine) -> None:
    sessions = [session_of(world, bot, ALICE) for _ in range(101)]
    assert (1, 2) == (len(set(sessions[:100])), len(set(sessions)))


def test_the_key_is_changed_after_seven_days(world: World, bot: Machine, alice: Machine) -> None:
    first = session_of(world, bot, ALICE)
    world.clock.now += 7 * DAY_S
    assert first != session_of(world, bot, ALICE)


def test_the_key_is_changed_when_somebody_leaves(world: World, bot: Machine, alice: Machine) -> None:
    world.machine(MALLORY, "LAPTOP")
    first = session_of(world, bot, ALICE, MALLORY)
    assert first != session_of(world, bot, ALICE)


def test_the_key_is_changed_when_a_device_is_gone(world: World, bot: Machine, alice: Machine) -> None:
    world.machine(ALICE, "LOST")
    first = session_of(world, bot, ALICE)
    del world.office.devices[ALICE]["LOST"]
    bot.changed([ALICE])
    assert first != session_of(world, bot, ALICE)


def test_the_key_is_changed_when_a_device_has_other_keys(world: World, bot: Machine, alice: Machine) -> None:
    first = session_of(world, bot, ALICE)
    world.office.one_time.clear()
    with Machine(world.folder / "again" / "PHONE", ALICE, "PHONE", create=True) as other:
        world.office.publish(other)
    bot.changed([ALICE])
    assert first != session_of(world, bot, ALICE)


def test_a_new_device_is_given_the_same_key(world: World, bot: Machine, alice: Machine) -> None:
    first = session_of(world, bot, ALICE)
    laptop = world.machine(ALICE, "LAPTOP")
    bot.changed([ALICE])
    said = world.say(bot, "second", ALICE)
    world.office.deliver(laptop)
    assert (first, "second") == (said["content"]["session_id"], body(laptop.decrypt(ROOM, said)))


def test_a_restart_begins_a_new_key(world: World, bot: Machine, alice: Machine) -> None:
    first = session_of(world, bot, ALICE)
    assert first != session_of(world, world.restart(bot), ALICE)


def test_our_own_echo_can_be_read_also_after_a_restart(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(bot, "prompt", BOT, ALICE)
    again = world.restart(bot)
    world.office.ask(again, BOT)
    found = again.decrypt(ROOM, said)
    assert isinstance(found, Deciphered)
    seal = again.seal(BOT, found)
    assert ("prompt", "BOT") == (found.content["body"], seal and seal.device_id)
