"""Two key machines and what is between them, without a network."""

# What others may do to us is made from the inside of their machine
# pyright: reportPrivateUsage=false
# ruff: noqa: ARG001 - who is asked for as a fixture has a device, and need do nothing
from pathlib import Path
from typing import Any

import pytest
import vodozemac

from bridge.core.errors import KeysDamaged, KeysLost
from bridge.core.model import UserId
from bridge.matrix.crypto.keystore import PICKLE_KEY
from bridge.matrix.crypto.machine import KEY_REQUEST, Machine, ToDevice, Unread
from bridge.matrix.crypto.signing import is_signed_by
from bridge.matrix.events import ENCRYPTED
from tests.matrix.crypto.world import (
    ALICE,
    BOT,
    MALLORY,
    ROOM,
    World,
    body,
    olm,
    send_letter,
)


def test_a_device_that_has_no_keys_yet_is_made_only_when_told(tmp_path: Path) -> None:
    with pytest.raises(KeysLost):
        Machine(tmp_path / "crypto", BOT, "BOT")


def test_the_keys_are_the_same_after_a_restart(world: World, bot: Machine) -> None:
    before = (bot.fingerprint, bot.curve_key)
    again = world.restart(bot)
    assert before == (again.fingerprint, again.curve_key)


def test_keys_under_another_pickle_key_are_damaged(world: World, bot: Machine) -> None:
    bot.close()
    (world.folder / "BOT" / PICKLE_KEY).write_text("another")
    with pytest.raises(KeysDamaged):
        Machine(world.folder / "BOT", BOT, "BOT")


def test_the_device_signs_its_own_keys(bot: Machine) -> None:
    assert is_signed_by(bot.device_keys(), BOT, bot.fingerprint, "BOT")


# -------------------------------------------------------------------------------------------------------- what comes in


def odd_messages(bot: Machine) -> list[Any]:
    shapes: list[object] = [
        None,
        [],
        {"type": 0},
        {"type": "0", "body": "AAAA"},
        {"type": True, "body": "AAAA"},
        {"type": 7, "body": "AAAA"},
        {"body": "AAAA"},
        {"type": 0, "body": 7},
    ]
    contents: list[object] = [
        {},
        None,
        olm(bot),
        olm(bot, body=""),
        olm(bot, body="AAAA"),
        olm(bot, body="\ud800"),
        olm(bot, type=1),
        olm(bot, type=1, body="AwoA"),
        olm(bot) | {"sender_key": None},
        olm(bot) | {"sender_key": ["k"]},
        olm(bot) | {"ciphertext": None},
        olm(bot) | {"ciphertext": {}},
        olm(bot) | {"algorithm": "m.megolm.v1.aes-sha2"},
        *(olm(bot) | {"ciphertext": {bot.curve_key: shape}} for shape in shapes),
    ]
    events_: list[Any] = [{"type": ENCRYPTED, "sender": MALLORY, "content": content} for content in contents]
    return [
        *events_,
        {},
        {"type": ENCRYPTED},
        {"type": None, "sender": MALLORY, "content": {}},
        {"type": ENCRYPTED, "sender": 7, "content": olm(bot)},
        {"type": "m.room_key.withheld", "sender": MALLORY, "content": {"room_id": 7}},
        {"type": "m.room_key.withheld", "sender": MALLORY},
        {"type": KEY_REQUEST, "sender": MALLORY, "content": {"action": "request", "body": 7}},
    ]


def test_a_malformed_message_from_anybody_spoils_nothing(world: World, bot: Machine, alice: Machine) -> None:
    """Fault 1: one of these ended the bot, and every restart of it."""
    said = world.say(alice, "1", BOT)
    odd = odd_messages(bot)
    found = bot.receive([*odd, *world.office.collect(BOT, "BOT"), *odd])
    again = world.restart(bot)
    assert ((), (), "1") == (found, again.receive(odd), body(again.decrypt(ROOM, said)))


@pytest.mark.parametrize(
    "letter",
    [
        {},
        {"algorithm": "m.megolm.v1.aes-sha2"},
        {"algorithm": "m.megolm.v1.aes-sha2", "room_id": "!r", "session_id": "s", "session_key": "!"},
        {"algorithm": "m.megolm.v1.aes-sha2", "room_id": "!r", "session_id": "s", "session_key": 7},
        {"algorithm": "m.megolm.v1.aes-sha2", "room_id": 7, "session_id": "s", "session_key": "AA"},
        {"algorithm": ["x"], "room_id": "!r", "session_id": "s", "session_key": "AA"},
    ],
)
@pytest.mark.parametrize("kind", ["m.room_key", "m.forwarded_room_key", "m.dummy", KEY_REQUEST])
def test_an_odd_letter_does_not_break_the_session(
    world: World, bot: Machine, alice: Machine, letter: dict[str, Any], kind: str
) -> None:
    send_letter(world.office, alice, bot, kind, letter)
    found = bot.receive(world.office.collect(BOT, "BOT"))
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    assert ((), "1") == (found, body(world.restart(bot).decrypt(ROOM, said)))


def test_a_room_key_in_the_clear_is_no_room_key(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", ALICE)
    key = alice._rooms._sending[ROOM].session.session_key.to_base64()
    content = {"algorithm": "m.megolm.v1.aes-sha2", "room_id": ROOM, "session_key": key}
    found = bot.receive(
        [
            {"type": "m.room_key", "sender": ALICE, "content": content | {"session_id": said["content"]["session_id"]}},
        ]
    )
    assert ((), Unread.NO_KEY) == (found, bot.decrypt(ROOM, said))


def test_a_key_under_anothers_name_is_refused(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", ALICE)
    other = vodozemac.GroupSession()
    key = {"algorithm": "m.megolm.v1.aes-sha2", "room_id": ROOM, "session_key": other.session_key.to_base64()}
    send_letter(world.office, alice, bot, "m.room_key", {**key, "session_id": said["content"]["session_id"]})
    world.office.deliver(bot)
    assert (Unread.NO_KEY, ()) == (bot.decrypt(ROOM, said), bot._store.room_keys(ROOM, other.session_id))


def test_a_letter_that_the_homeserver_says_is_from_somebody_else_is_not_read(
    world: World, bot: Machine, alice: Machine
) -> None:
    said = world.say(alice, "1", BOT)
    bot.receive([letter | {"sender": MALLORY} for letter in world.office.collect(BOT, "BOT")])
    assert Unread.NO_KEY == bot.decrypt(ROOM, said)


def test_the_same_letters_again_change_nothing(world: World, bot: Machine, alice: Machine) -> None:
    """A restart from the same sync token gives them once more."""
    said = world.say(alice, "1", BOT)
    letters = world.office.collect(BOT, "BOT")
    bot.receive(letters)
    again = world.restart(bot)
    again.receive(letters)
    later = world.say(alice, "2", BOT, event_id="$e2")
    world.office.deliver(again)
    assert ("1", "2") == (body(again.decrypt(ROOM, said)), body(again.decrypt(ROOM, later)))


def test_a_one_time_key_serves_once_also_after_a_restart(world: World, bot: Machine, alice: Machine) -> None:
    """nio stores the account before it takes the key out: whoever kept the first letter could begin with it anew."""
    world.say(alice, "1", BOT)
    letters = world.office.collect(BOT, "BOT")
    bot.receive(letters)
    again = world.restart(bot)
    sessions = again._letters._olm.session_store[alice.curve_key]
    sessions.clear()
    again.receive(letters)
    assert [] == sessions


def test_what_is_about_no_key_is_given_back(world: World, bot: Machine, alice: Machine) -> None:
    plain = {"type": "m.key.verification.request", "sender": MALLORY, "content": {"a": 1}}
    send_letter(world.office, alice, bot, "m.key.verification.done", {"b": 2})
    first, second = bot.receive([plain, *world.office.collect(BOT, "BOT")])
    assert ToDevice(sender=MALLORY, kind="m.key.verification.request", content={"a": 1}) == first
    assert (ALICE, "m.key.verification.done", {"b": 2}, alice.curve_key, alice.fingerprint) == (
        second.sender,
        second.kind,
        second.content,
        second.sender_key,
        second.signing_key,
    )


def test_nobody_is_given_a_key_that_they_ask_for(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(bot, "prompt", ALICE)
    world.office.letters.clear()
    question = {"action": "request", "body": {"room_id": ROOM, "session_id": said["content"]["session_id"]}}
    bot.receive([{"type": KEY_REQUEST, "sender": ALICE, "content": question | {"requesting_device_id": "PHONE"}}])
    assert ({}, (), ()) == (world.office.letters, bot.repairs(), bot.needs(ROOM, [ALICE]).give)


# ------------------------------------------------------------------------------------------------------ others' devices


def test_users_are_asked_for_once_until_something_changes(world: World, bot: Machine, alice: Machine) -> None:
    before = set(bot.to_ask([ALICE]))
    world.office.ask(bot, ALICE)
    known = set(bot.to_ask([ALICE]))
    bot.changed([ALICE])
    assert ({ALICE}, set[UserId](), {ALICE}, None) == (
        before,
        known,
        set(bot.to_ask([ALICE])),
        bot.devices_of(ALICE),
    )


def test_what_changes_while_we_ask_is_asked_for_again(world: World, bot: Machine, alice: Machine) -> None:
    world.office.ask(bot, ALICE)
    bot.changed([ALICE])
    marks = bot.to_ask([ALICE])
    answer = world.office.query(marks)
    bot.changed([ALICE])
    bot.learned(answer, marks)
    assert {ALICE} == set(bot.to_ask([ALICE]))


def test_a_homeserver_that_is_away_is_left_alone_for_a_while(world: World, bot: Machine, alice: Machine) -> None:
    world.office.unanswered.add(ALICE)
    world.office.ask(bot, ALICE)
    now = set(bot.to_ask([ALICE]))
    world.clock.now += 60
    assert (set[UserId](), {ALICE}, None) == (now, set(bot.to_ask([ALICE])), bot.devices_of(ALICE))


def test_who_is_gone_is_forgotten(world: World, bot: Machine, alice: Machine) -> None:
    world.office.ask(bot, ALICE)
    bot.left([ALICE])
    assert None is bot.devices_of(ALICE)


def test_a_key_that_nobody_has_is_doubted_once(bot: Machine) -> None:
    assert [True, False] == [bot.doubt(ALICE, "key"), bot.doubt(ALICE, "key")]


def test_a_thousand_doubts_are_kept_and_no_more(bot: Machine) -> None:
    for number in range(1001):
        bot.doubt(ALICE, str(number))
    assert bot.doubt(ALICE, "0")
