"""What a homeserver, or a stranger with a client of their own, may put before the keys of our device."""

# pyright: reportPrivateUsage=false
# ruff: noqa: ARG001 - who is asked for as a fixture has a device, and need do nothing
import base64
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.core.errors import KeysDamaged, KeysLost
from bridge.core.model import UserId
from bridge.matrix.crypto import devices
from bridge.matrix.crypto.machine import CHUNK, Machine, Unread
from bridge.matrix.crypto.signing import is_signed_by
from bridge.matrix.events import ENCRYPTED, mapping
from tests.matrix.crypto.world import ALICE, BOT, MALLORY, ROOM, World, body, event, olm, send_letter

HALF = "\ud800"  # half of a surrogate pair: JSON can say it, UTF-8 and SQLite cannot
SIGNATURE = base64.b64encode(bytes(64)).decode().rstrip("=")


def unpadded(length: int) -> str:
    return base64.b64encode(bytes(number % 256 for number in range(length))).decode().rstrip("=")


# -------------------------------------------------------------------------------------------------- keys of other devices


@pytest.mark.parametrize("length", [*range(70), 96, 1024])
def test_a_public_key_of_any_length_signs_nothing_and_raises_nothing(length: int) -> None:
    """One of 33 bytes made vodozemac panic, and a panic is no Exception: any account could publish one."""
    key = unpadded(length)
    assert not is_signed_by({"signatures": {ALICE: {f"ed25519:{key}": SIGNATURE}}}, ALICE, key)


@pytest.mark.parametrize("length", [0, 31, 33, 63, 65, 1024])
def test_a_signature_of_any_length_is_none(length: int) -> None:
    key = unpadded(32)
    assert not is_signed_by({"signatures": {ALICE: {f"ed25519:{key}": unpadded(length)}}}, ALICE, key)


def test_a_device_with_an_overlong_key_does_not_hide_the_others(world: World, bot: Machine, alice: Machine) -> None:
    key = unpadded(33)
    odd: dict[str, Any] = {
        "user_id": ALICE,
        "device_id": "ODD",
        "algorithms": [],
        "keys": {"ed25519:ODD": key, "curve25519:ODD": unpadded(32)},
        "signatures": {ALICE: {"ed25519:ODD": SIGNATURE}},
    }
    world.office.devices[ALICE] = {"ODD": odd, **world.office.devices[ALICE]}
    world.office.identities = {
        "master_keys": {ALICE: {"user_id": ALICE, "usage": ["master"], "keys": {f"ed25519:{key}": key}}},
        "self_signing_keys": {
            ALICE: {
                "user_id": ALICE,
                "usage": ["self_signing"],
                "keys": {f"ed25519:{key}": key},
                "signatures": {ALICE: {f"ed25519:{key}": SIGNATURE}},
            }
        },
    }
    world.office.ask(bot, ALICE)
    known = bot.devices_of(ALICE)
    assert known is not None
    assert ["PHONE"] == list(known.devices)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([ALICE, "PHONE", "ed25519:PHONE", unpadded(32), unpadded(33), SIGNATURE, HALF]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [ALICE, "PHONE", "keys", "signatures", "usage", "user_id", "device_id", "ed25519:PHONE", "key", HALF]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def replaced(value: Any, path: list[int], other: Any) -> Any:  # noqa: ANN401 - JSON
    """The same JSON with one thing in it, found by the path, replaced."""
    if not path or not isinstance(value, dict) or not value:
        return other
    found: dict[str, Any] = dict(value)  # type: ignore[arg-type]
    name = sorted(found)[path[0] % len(found)]
    return found | {name: replaced(found[name], path[1:], other)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(path=st.lists(st.integers(0, 7), max_size=7), other=json_values)
def test_wrong_types_at_any_level_of_a_key_query_raise_nothing(
    world: World, bot: Machine, alice: Machine, path: list[int], other: object
) -> None:
    found = devices.read(mapping({"it": replaced(world.office.query([ALICE]), path, other)}, "it"), ALICE)
    assert found is None or set(found.devices) <= {"PHONE"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(path=st.lists(st.integers(0, 7), max_size=6), other=json_values)
def test_wrong_types_at_any_level_of_claimed_keys_raise_nothing(
    world: World, bot: Machine, alice: Machine, path: list[int], other: object
) -> None:
    world.office.publish(alice)
    world.office.ask(bot, ALICE)
    known = bot.devices_of(ALICE)
    assert known is not None
    good = {"one_time_keys": {ALICE: {"PHONE": world.office.fallback[ALICE, "PHONE"]}}}
    without = bot.claimed(mapping({"it": replaced(good, path, other)}, "it"), list(known.devices.values()))
    assert len(without) <= 1


def test_keys_that_were_not_asked_for_begin_no_session(world: World, bot: Machine, alice: Machine) -> None:
    other = world.machine(MALLORY, "EVIL")
    world.office.ask(bot, ALICE, MALLORY)
    known = bot.devices_of(ALICE)
    assert known is not None
    claimed = world.office.claim({MALLORY: {other.device_id: ""}})["one_time_keys"][MALLORY]["EVIL"]
    answer = {"one_time_keys": {ALICE: {"PHONE": claimed}, MALLORY: {"EVIL": claimed}}}
    assert ["PHONE"] == [one.device_id for one in bot.claimed(answer, [known.devices["PHONE"]])]
    theirs = bot.devices_of(MALLORY)
    assert theirs is not None
    assert not bot._letters.can_write_to(theirs.devices["EVIL"])


def test_a_storm_of_changed_devices_is_asked_for_in_parts(bot: Machine) -> None:
    users = [UserId(f"@u{number}:hs") for number in range(10 * CHUNK)]
    bot.changed(users)
    assert frozenset() == bot.stale  # of people whose devices nobody needs there is nothing to keep


# ------------------------------------------------------------------------------------------------------ room events


@pytest.mark.parametrize("name", ["session_id", "ciphertext", "algorithm"])
def test_half_a_surrogate_pair_in_an_event_is_never_readable(
    world: World, bot: Machine, alice: Machine, name: str
) -> None:
    """SQLite raised, and the sync loop ended with it: whoever carries the event could write that."""
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    odd = said | {"content": {**said["content"], name: HALF}, "event_id": "$odd"}
    assert Unread.NEVER == bot.decrypt(ROOM, odd)
    assert "1" == body(bot.decrypt(ROOM, said))


@pytest.mark.parametrize("name", ["event_id", "sender"])
@pytest.mark.parametrize("session_id", [None, "unknown"])
def test_half_a_surrogate_pair_around_an_event_is_never_readable(
    world: World, bot: Machine, alice: Machine, name: str, session_id: str | None
) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    content = {**said["content"], **({"session_id": session_id} if session_id else {})}
    assert Unread.NEVER == bot.decrypt(ROOM, said | {"content": content, name: HALF})


def test_a_damaged_room_key_is_said_to_be_damaged(world: World, bot: Machine, alice: Machine) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    for pickle in (b"\0", "text", b"AAAA"):
        bot._store._sql.execute("UPDATE room_keys SET pickle = ?", (pickle,))
        with pytest.raises(KeysDamaged):
            bot.decrypt(ROOM, said)


# ----------------------------------------------------------------------------------------------------------- to-device


def test_odd_letters_under_many_keys_leave_nothing_behind(world: World, bot: Machine, alice: Machine) -> None:
    """nio keeps an entry for each sender's key that it was asked about, and the sender writes any key of any length."""
    send_letter(world.office, alice, bot, "m.dummy", {})
    (letter,) = world.office.collect(BOT, "BOT")
    real: Any = letter["content"]["ciphertext"][bot.curve_key]
    odd: list[Any] = [
        {"type": ENCRYPTED, "sender": MALLORY, "content": olm(bot, body=real["body"], type=real["type"])}
        for _ in range(300)
    ]
    for number, one in enumerate(odd):
        one["content"]["sender_key"] = f"key{number}"
    assert () == bot.receive(odd)
    before = len(bot._letters._olm.session_store._entries)
    send_letter(world.office, alice, bot, "m.room_key", {})
    bot.receive(world.office.collect(BOT, "BOT"))
    assert before <= 1


# ------------------------------------------------------------------------------------------------------------ own keys


def test_a_count_of_keys_below_none_makes_no_more_than_all(bot: Machine) -> None:
    """A homeserver that says so made us make as many keys as it likes, in the one thread that there is."""
    body_ = bot.uploads(-10_000, fallback_unused=True)
    assert body_ is not None
    keys: Any = body_["one_time_keys"]
    assert len(keys) <= 50


def test_a_letter_that_is_moved_to_another_sender_is_nobodys(world: World, bot: Machine, alice: Machine) -> None:
    mallory = world.machine(MALLORY, "EVIL")
    said = world.say(mallory, "1", BOT)
    for letter in world.office.collect(BOT, "BOT"):
        bot.receive([{**letter, "sender": ALICE}])
    assert Unread.NO_KEY == bot.decrypt(ROOM, said | {"sender": ALICE})


def test_the_bots_own_words_put_in_somebodys_mouth_are_nobodys(world: World, bot: Machine, alice: Machine) -> None:
    world.office.ask(bot, ALICE)
    said = world.say(bot, "1", ALICE)
    found = bot.decrypt(ROOM, said | {"sender": ALICE})
    assert not isinstance(found, Unread)
    seal = bot.seal(ALICE, found)
    assert seal is not None
    assert (None, False) == (seal.device_id, seal.signed)


def test_a_message_that_was_read_is_never_read_as_another_also_after_a_restart(
    world: World, bot: Machine, alice: Machine
) -> None:
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    bot.decrypt(ROOM, said)
    again = said | {"event_id": "$again"}
    before = bot.decrypt(ROOM, again)
    assert (Unread.NEVER, Unread.NEVER) == (before, world.restart(bot).decrypt(ROOM, again))


def test_somebody_elses_copy_of_a_key_gives_them_no_message_of_its_owner(
    world: World, bot: Machine, alice: Machine
) -> None:
    """Mallory may have the key of the room, and say that it is hers: what Alice said under it stays Alice's."""
    mallory = world.machine(MALLORY, "EVIL")
    world.office.share(alice, ROOM, MALLORY)
    key = alice._rooms._sending[ROOM].session
    content = {
        "algorithm": "m.megolm.v1.aes-sha2",
        "room_id": ROOM,
        "session_id": key.session_id,
        "session_key": key.session_key.to_base64(),
    }
    send_letter(world.office, mallory, bot, "m.room_key", content)
    world.office.deliver(bot)
    world.office.ask(bot, ALICE, MALLORY)
    said = event(alice, alice.encrypt(ROOM, "m.room.message", {"body": "1"}))
    found = bot.decrypt(ROOM, said)
    assert not isinstance(found, Unread)
    seal = bot.seal(ALICE, found)
    assert seal is not None
    assert seal.device_id is None


# ------------------------------------------------------------------------------------------------- a folder that was hurt


def test_a_file_of_keys_that_was_cut_anywhere_is_said_to_be_damaged_or_lost(
    world: World, bot: Machine, alice: Machine
) -> None:
    """Nor does opening it make new keys under the old name; of a file that is empty only the homeserver can tell."""
    world.say(alice, "1", BOT)
    world.office.deliver(bot)
    bot.close()
    path = world.folder / "BOT" / "keys.db"
    whole = path.read_bytes()
    cuts = [99, 100, 4095, *range(4096, len(whole), 4096), *range(5000, len(whole), 7919)]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        assert open_or_refuse(world) in (bot.fingerprint, None), cut  # the same where what was cut off was nothing


def open_or_refuse(world: World) -> str | None:
    """The fingerprint of the keys that are there; None where they are said to be damaged or lost."""
    try:
        with Machine(world.folder / "BOT", BOT, "BOT", create=True) as opened:
            return opened.fingerprint
    except (KeysDamaged, KeysLost):
        return None


def test_keys_without_their_pickle_key_are_damaged(world: World, bot: Machine) -> None:
    bot.close()
    (world.folder / "BOT" / "pickle.key").unlink()
    with pytest.raises(KeysDamaged):
        Machine(world.folder / "BOT", BOT, "BOT", create=True)


def test_a_flood_of_new_sessions_is_forgotten_and_who_was_heard_is_not(
    world: World, bot: Machine, alice: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger can begin one after another over the fallback key, each under a key that they made up for it."""
    monkeypatch.setattr("bridge.matrix.crypto.keystore.STRANGERS_MOST", 3)
    said = world.say(alice, "1", BOT)
    world.office.deliver(bot)
    bot.decrypt(ROOM, said)
    for number in range(10):
        send_letter(world.office, world.machine(MALLORY, f"EVIL{number}", publish=False), bot, "m.dummy", {})
    world.office.deliver(bot)
    kept = world.restart(world.restart(bot))._letters._entries  # what was dropped at one start is not there at the next
    assert (4, True) == (len(kept), alice.curve_key in kept)
