import pytest

from bridge.core.changes import StoreLocked
from bridge.core.events import Locked, StillLocked, Unlocked
from bridge.core.model import EventId, RoomId, UserId
from bridge.matrix.events import Source
from bridge.matrix.held import ASK_AGAIN_S, HELD_MOST, SOON_MOST_S, SOON_S, UNREADABLE_S, Held, lock
from bridge.matrix.sealing import Opened, Shut, Why
from tests.fakes.sealing import SEAL

ROOM = RoomId("!r")
ALICE = UserId("@alice:hs")
E1 = EventId("$1")
SOURCE: Source = {"type": "m.room.encrypted", "event_id": "$1"}


def holding(why: Why = Why.NO_KEY) -> Held:
    made = Held()
    made.hold(ROOM, ALICE, E1, SOURCE, why=why, now=0.0)
    return made


def row(raw: str, room: RoomId = ROOM) -> StoreLocked:
    return StoreLocked(event_id=E1, room=room, sender=ALICE, raw=raw)


def test_what_is_opened_is_done_with() -> None:
    found = holding()
    opened = Opened(source=SOURCE, seal=SEAL)
    assert [(E1, ROOM, opened)] == found.settle({(ROOM, E1): opened}, 1.0)
    assert len(found) == 0


def test_what_will_never_open_is_done_with() -> None:
    found = holding()
    assert [(E1, ROOM, None)] == found.settle({(ROOM, E1): Shut(Why.NEVER)}, 1.0)


@pytest.mark.parametrize("why", [Why.NO_KEY, Why.WITHHELD, Why.NOT_NOW])
def test_what_is_still_shut_waits_on(why: Why) -> None:
    found = holding()
    assert found.settle({(ROOM, E1): Shut(why)}, 1.0) == []
    assert len(found) == 1


def test_an_event_that_nobody_holds_is_no_concern_here() -> None:
    assert Held().settle({(ROOM, E1): Shut(Why.NEVER)}, 1.0) == []


@pytest.mark.parametrize(("why", "withheld"), [(Why.NO_KEY, False), (Why.WITHHELD, True), (Why.NOT_NOW, False)])
def test_what_stays_shut_is_told_once(why: Why, withheld: bool) -> None:
    found = holding()
    found.settle({(ROOM, E1): Shut(why)}, 1.0)
    assert found.overdue(UNREADABLE_S - 0.1) == []
    expected = StillLocked(room=ROOM, sender=ALICE, event_id=E1, withheld=withheld)
    assert [expected] == found.overdue(UNREADABLE_S)
    assert found.overdue(UNREADABLE_S + 1) == []


def test_the_senders_devices_are_asked_once() -> None:
    found = holding()
    assert found.to_ask(ASK_AGAIN_S - 0.1) == []
    assert [(ROOM, SOURCE)] == found.to_ask(ASK_AGAIN_S)
    assert found.to_ask(ASK_AGAIN_S + 1) == []


def test_nobody_is_asked_for_a_key_that_may_be_there() -> None:
    assert holding(Why.NOT_NOW).to_ask(ASK_AGAIN_S) == []


def test_what_is_due_is_due_whatever_happens() -> None:
    found = holding()
    due = [found.due_s(0.0)]
    found.to_ask(ASK_AGAIN_S)
    due.append(found.due_s(ASK_AGAIN_S))
    found.overdue(UNREADABLE_S)
    due.append(found.due_s(UNREADABLE_S))
    assert [ASK_AGAIN_S, UNREADABLE_S - ASK_AGAIN_S, None] == due


def test_what_the_homeserver_could_not_say_is_tried_again_soon_and_then_less_often() -> None:
    found = holding(Why.NOT_NOW)
    found.overdue(UNREADABLE_S)
    waits: list[float | None] = []
    for now in range(8):
        waits.append(found.due_s(now))
        found.settle({(ROOM, E1): Shut(Why.NOT_NOW)}, now + 1)
    assert SOON_S == waits[0]
    assert (SOON_S * 2, SOON_MOST_S) == (waits[1], waits[-1])


def test_a_due_time_that_has_passed_is_now() -> None:
    assert holding().due_s(100.0) == 0.0


def test_only_so_many_wait_and_nobody_waits_for_the_oldest() -> None:
    found = Held()
    for number in range(HELD_MOST):
        assert found.hold(ROOM, ALICE, EventId(f"${number}"), SOURCE, why=Why.NO_KEY, now=0.0) == []
    dropped = found.hold(ROOM, ALICE, EventId("$new"), SOURCE, why=Why.NO_KEY, now=0.0)
    assert ([Unlocked(room=ROOM, event_id=EventId("$0"))], HELD_MOST) == (dropped, len(found))


def test_what_is_dropped_is_told_where_it_was_held() -> None:
    found = holding()
    assert [Unlocked(room=ROOM, event_id=E1)] == found.drop(ROOM, E1)
    assert found.drop(ROOM, E1) == []


def test_what_was_locked_can_be_taken_up_again() -> None:
    source: Source = {"type": "m.room.encrypted", "event_id": "$1", "content": {"ciphertext": "\ud800é"}}
    locked = lock(ROOM, ALICE, E1, source)
    assert isinstance(locked, Locked)
    assert locked.raw.isascii()
    found = Held()
    assert found.take_up([row(locked.raw)], [ROOM], 0.0) == []
    assert ((E1, ROOM, source),) == found.all()


@pytest.mark.parametrize(("raw", "room"), [("{", ROOM), ("[]", ROOM), ("{}", RoomId("!gone"))])
def test_what_cannot_be_taken_up_again_is_done_with(raw: str, room: RoomId) -> None:
    found = Held()
    assert [Unlocked(room=room, event_id=E1)] == found.take_up([row(raw, room)], [ROOM], 0.0)
    assert len(found) == 0
