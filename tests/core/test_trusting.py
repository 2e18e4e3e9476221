"""Rule 13 in encrypted rooms: from which devices an answer, a command or words for an agent count, and what who is refused is told."""

from dataclasses import replace

import pytest

from bridge.core import broker
from bridge.core.changes import StorePin
from bridge.core.effects import Conversation, Effect, Log, Refuse, Send
from bridge.core.events import RoomSeen, RoomState, Said, Sent, Verified
from bridge.core.messages import Confirm, DeviceRefused, Exposed, NotAllowed
from bridge.core.model import AgentName, EventId, Phase, RoomId, Seal, Trust, UserId
from bridge.core.trusting import TOLD_MOST
from tests.core.play import ALICE, BOB, CLAUDE, MALLORY, MASTER, NOTHING_FOUND, ROOM, SIGNED, UNSIGNED, Play, agent

CODEX = AgentName("codex")
NOBODYS = Seal(device_id=None, signed=True, master=MASTER)
RESET = Seal(device_id="NEW", signed=True, master="another")
STRAY = Seal(device_id="OLD", signed=False, master=None)


def make(trust: Trust = Trust.CROSS_SIGNED, *, pinned: bool = False, **changes: object) -> Play:
    play = Play(agent(trust=trust, **changes))
    play.encrypt()
    if pinned:
        play.step(Verified(user=ALICE, master=MASTER))
    return play


@pytest.mark.parametrize(
    ("trust", "pinned", "seal", "counts"),
    [
        (Trust.ANY, False, SIGNED, True),
        (Trust.ANY, False, UNSIGNED, True),
        (Trust.ANY, False, STRAY, True),
        (Trust.ANY, False, NOBODYS, False),
        (Trust.CROSS_SIGNED, False, SIGNED, True),
        (Trust.CROSS_SIGNED, False, RESET, True),
        (Trust.CROSS_SIGNED, False, UNSIGNED, False),
        (Trust.CROSS_SIGNED, False, STRAY, False),
        (Trust.CROSS_SIGNED, False, NOBODYS, False),
        (Trust.PINNED, True, SIGNED, True),
        (Trust.PINNED, True, UNSIGNED, False),
        (Trust.PINNED, True, RESET, False),
        (Trust.PINNED, True, STRAY, False),
        (Trust.PINNED, True, NOBODYS, False),
        (Trust.PINNED, True, Seal(device_id="PHONE", signed=True, master=None), False),
        (Trust.PINNED, False, SIGNED, False),
        (Trust.PINNED, False, STRAY, False),
    ],
)
def test_which_devices_count_under_which_trust(trust: Trust, pinned: bool, seal: Seal, counts: bool) -> None:
    play = make(trust, pinned=pinned)
    asked = play.ask()
    play.say("write the tests", seal=seal)
    assert counts == bool(play.did(Conversation))
    play.say("!cancel", seal=seal)
    assert counts == bool(play.did(Conversation))
    for act in (lambda: play.say("1", seal=seal), lambda: play.say("1", ALICE, play.event_of(asked), seal=seal)):
        act()
        assert counts == (play.request(asked).phase is not Phase.PENDING)


def test_in_a_room_that_is_not_encrypted_no_device_is_asked_for() -> None:
    play = Play(agent(trust=Trust.PINNED, strict=True))
    asked = play.ask()
    play.say("1")
    assert play.request(asked).phase is Phase.DECIDED


def test_a_device_counts_also_where_the_room_was_not_known_to_be_encrypted() -> None:
    play = Play()
    asked = play.ask()
    play.say("1", seal=UNSIGNED)
    assert play.request(asked).phase is Phase.PENDING


@pytest.mark.parametrize("exposed", [True, False])
def test_clear_text_in_an_encrypted_room_is_nothing_and_its_sender_is_told_once(exposed: bool) -> None:
    play = make()
    asked = play.ask()
    for text in ("1", "write the tests", "!cancel"):
        play.say(text, seal=None, exposed=exposed)
        assert play.did(Conversation) == []
    assert [m for m in told(play) if isinstance(m, Exposed)] == [Exposed(ALICE, EventId("$e1"))]
    assert play.request(asked).phase is Phase.PENDING


def test_what_came_in_clear_text_is_nothing_though_the_room_is_not_known_to_be_encrypted() -> None:
    play = Play()
    asked = play.ask()
    play.say("1", exposed=True)
    assert play.request(asked).phase is Phase.PENDING


def test_a_room_stays_encrypted_whatever_its_server_says_later() -> None:
    play = make()
    play.step(RoomSeen(room=ROOM, state=RoomState.NOT_JOINED, people=0))
    play.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=2, encrypted=True))
    asked = play.ask()
    play.say("1", seal=None)
    assert play.request(asked).phase is Phase.PENDING


def test_a_stranger_who_writes_in_clear_text_hears_nothing() -> None:
    play = make()
    play.ask()
    play.say("1", MALLORY, seal=None, exposed=True)
    assert play.effects == []


def test_a_stranger_hears_that_they_may_not_answer_whatever_their_device() -> None:
    play = make()
    play.ask()
    play.say("1", MALLORY, seal=STRAY)
    assert [type(m) for m in play.told()] == [NotAllowed]
    play.say("hi", MALLORY, seal=STRAY)
    assert play.told() == []


def told(play: Play) -> list[object]:
    return [e.message for e in play.all_effects if isinstance(e, Send)]


def test_a_refused_device_is_told_once_for_each_room_person_and_device() -> None:
    play = make()
    play.ask()
    for _ in range(2):
        play.say("1", seal=UNSIGNED)
        play.say("1", seal=STRAY)
        play.say("1", BOB, seal=STRAY)
        play.say("1", seal=NOBODYS)
    assert [m for m in told(play) if isinstance(m, DeviceRefused)] == [
        DeviceRefused(ALICE, EventId("$e1"), "LAPTOP"),
        DeviceRefused(ALICE, EventId("$e2"), "OLD"),
        DeviceRefused(BOB, EventId("$e3"), "OLD"),
        DeviceRefused(ALICE, EventId("$e4"), None),
    ]


def test_a_server_that_makes_up_devices_cannot_make_the_bot_flood_the_room() -> None:
    play = make()
    play.ask()
    for number in range(50):
        play.say("1", seal=Seal(device_id=f"D{number}", signed=False, master=None))
    assert len([m for m in told(play) if isinstance(m, DeviceRefused)]) == TOLD_MOST


def test_a_refused_message_says_nothing_about_what_its_sender_has_seen() -> None:
    play = make()
    first = play.ask()
    play.reply(first, "3", BOB)
    play.ask()
    play.say("hm", seal=UNSIGNED)
    assert ALICE in play.state.rooms[ROOM].unseen


def test_who_was_never_pinned_is_told_how() -> None:
    play = make(Trust.PINNED)
    play.ask()
    play.say("1")
    assert play.told() == [DeviceRefused(ALICE, EventId("$e1"), "PHONE", unpinned=True)]


def test_who_is_pinned_counts_from_then_on() -> None:
    play = make(Trust.PINNED)
    asked = play.ask()
    play.say("1")
    play.step(Verified(user=ALICE, master=MASTER))
    assert StorePin(user=ALICE, master=MASTER) in play.effects
    play.say("1")
    assert play.request(asked).phase is Phase.DECIDED


def test_after_a_verification_a_refused_device_is_told_anew() -> None:
    play = make(Trust.PINNED)
    play.ask()
    play.say("1", seal=UNSIGNED)
    play.say("1", BOB, seal=UNSIGNED)
    play.step(Verified(user=ALICE, master=MASTER))
    play.say("1", seal=UNSIGNED)
    assert play.told() == [DeviceRefused(ALICE, EventId("$e3"), "LAPTOP")]
    play.say("1", BOB, seal=UNSIGNED)
    assert play.told() == []


def test_a_changed_identity_is_refused_aloud_once_in_each_room_and_told_to_the_operator_once() -> None:
    play = make(Trust.PINNED, pinned=True)
    play.ask()
    play.say("1", seal=RESET)
    assert play.told() == [DeviceRefused(ALICE, EventId("$e1"), "NEW", identity_changed=True)]
    (warning,) = [e for e in play.effects if isinstance(e, Log)]
    assert (warning.event, warning.warning) == ("trust.identity_changed", True)
    play.say("1", seal=replace(RESET, device_id="NEWER"))
    assert play.effects == []
    play.say("1", seal=replace(RESET, master="third"))
    assert play.told() == [DeviceRefused(ALICE, EventId("$e3"), "NEW", identity_changed=True)]
    assert play.did(Log) == []


def test_after_a_change_nothing_of_that_person_counts_until_they_are_pinned_anew() -> None:
    play = make(Trust.PINNED, pinned=True)
    asked = play.ask()
    play.say("1", seal=RESET)
    play.react(play.event_of(asked), "1")
    play.say("1")
    assert play.request(asked).phase is Phase.PENDING
    play.step(Verified(user=ALICE, master="another"))
    play.say("1")
    assert play.request(asked).phase is Phase.PENDING
    play.step(Verified(user=ALICE, master="another"))
    play.react(play.event_of(asked), "1")
    assert play.request(asked).phase is Phase.DECIDED


def test_the_change_of_one_person_is_nothing_to_another_and_nothing_where_it_is_not_asked_for() -> None:
    play = make(Trust.PINNED, pinned=True)
    asked = play.ask()
    play.say("1", seal=RESET)
    play.react(play.event_of(asked), "1", BOB)
    assert play.request(asked).phase is Phase.DECIDED
    plain = make(pinned=True)
    asked = plain.ask()
    plain.say("1", seal=RESET)
    assert plain.request(asked).phase is Phase.DECIDED


def test_a_pin_outlives_a_restart() -> None:
    play = Play(agent(trust=Trust.PINNED), found=replace(NOTHING_FOUND, pins=((ALICE, MASTER),)))
    play.encrypt()
    asked = play.ask()
    play.say("1")
    assert play.request(asked).phase is Phase.DECIDED


def test_a_reaction_has_no_device_and_counts() -> None:
    play = make()
    asked = play.ask()
    play.react(play.event_of(asked), "1")
    assert play.request(asked).phase is Phase.DECIDED


# ------------------------------------------------------------------------------------------- agents that share a room


@pytest.fixture
def shared() -> Play:
    play = Play(agent(trust=Trust.ANY), agent(name=CODEX))
    play.encrypt()
    return play


def test_where_agents_share_a_room_each_request_has_the_trust_of_its_agent(shared: Play) -> None:
    lax, strict = shared.ask(), shared.ask(name=CODEX)
    shared.reply_from(strict, "1", UNSIGNED)
    assert shared.told() == [DeviceRefused(ALICE, EventId("$e1"), "LAPTOP")]
    shared.reply_from(lax, "1", UNSIGNED)
    assert (Phase.DECIDED, Phase.PENDING) == (shared.request(lax).phase, shared.request(strict).phase)


def test_a_confirmation_needs_an_accepted_device_too(shared: Play) -> None:
    asked = shared.ask(name=CODEX, whole=False)
    shared.reply(asked, "1")
    (send,) = [e for e in shared.effects if isinstance(e, Send) and isinstance(e.message, Confirm)]
    assert send.transaction_id is not None
    shared.step(Sent(transaction_id=send.transaction_id, event_id=EventId("$question")))
    shared.say("confirm", ALICE, EventId("$question"), seal=UNSIGNED)
    assert shared.request(asked).phase is Phase.PENDING
    shared.say("confirm", ALICE, EventId("$question"))
    assert shared.request(asked).phase is Phase.DECIDED


def test_words_say_which_agents_do_not_accept_their_device(shared: Play) -> None:
    shared.say("codex: write the tests", seal=UNSIGNED)
    assert [e.refused for e in shared.effects if isinstance(e, Conversation)] == [frozenset({CODEX})]
    shared.say("codex: write the tests")
    assert [e.refused for e in shared.effects if isinstance(e, Conversation)] == [frozenset()]


def test_a_late_answer_from_a_refused_device_is_no_late_answer(shared: Play) -> None:
    asked = shared.ask(name=CODEX)
    shared.reply(asked, "3")
    shared.deliver(asked)
    shared.say("3", seal=UNSIGNED)
    assert [type(m) for m in shared.told()] == [DeviceRefused]
    assert shared.did(Conversation) == []


def test_the_other_half_of_the_core_may_have_a_device_refused(shared: Play) -> None:
    said = Said(room=ROOM, sender=ALICE, event_id=EventId("$w"), text="codex: go", seal=UNSIGNED)

    def refuse() -> list[Effect]:
        shared.state, effects = broker.refuse(shared.state, Refuse(said, CODEX), shared.now)
        return effects

    assert [e.message for e in refuse() if isinstance(e, Send)] == [DeviceRefused(ALICE, EventId("$w"), "LAPTOP")]
    assert refuse() == []


def test_the_trust_of_another_room_is_its_own() -> None:
    elsewhere = RoomId("!elsewhere:ex.org")
    play = Play(agent(), agent(name=CODEX, room=elsewhere, trust=Trust.ANY, users=frozenset({UserId("@eve:ex.org")})))
    play.encrypt()
    asked = play.ask()
    play.say("1", seal=UNSIGNED)
    assert play.request(asked).phase is Phase.PENDING
    assert [m.sender for m in told(play) if isinstance(m, DeviceRefused)] == [ALICE]
    assert CLAUDE in play.state.agents
