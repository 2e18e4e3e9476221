"""Sentences about encrypted rooms: what may be sent there, what counts there, and what is said of what cannot be read."""

from bridge.core.events import StillLocked
from bridge.core.model import EventId, RoomId, UserId
from bridge.matrix.held import UNREADABLE_S, Held
from bridge.matrix.sealing import Why
from tests.cases.claims import answers_to, holds, logged, only, read, reply_target, written_by
from tests.cases.life import ALICE, ROOM
from tests.cases.stage import Stage
from tests.cases.verdict import strings
from tests.fakes.sealing import sealed


@holds("e2ee-01", "no complaint in the first seconds; later at most one")
def who_waits_for_a_key_says_nothing_at_first_and_then_once(stage: Stage) -> None:
    assert stage.notices == []
    held, room, event_id = Held(), RoomId(ROOM), EventId("$utd")
    event = {"type": "m.room.encrypted", "event_id": event_id, "sender": ALICE, "content": sealed("1", room=ROOM)}
    held.hold(room, UserId(ALICE), event_id, event, why=Why.NO_KEY, now=0.0)
    assert held.overdue(UNREADABLE_S - 1) == []
    complaints = [event for now in (UNREADABLE_S, 2 * UNREADABLE_S) for event in held.overdue(now)]
    assert complaints == [StillLocked(room=room, sender=UserId(ALICE), event_id=event_id)]


@holds("e2ee-03", "nothing is sent to that room in clear text", "an m.room.message with the command in it")
def nothing_is_sent_to_that_room(stage: Stage) -> None:
    assert stage.homeserver.sent == []
    assert stage.homeserver.count("send") == 0


@holds("e2ee-03", "the health check fails and the operator is told why")
def the_operator_is_told_that_the_keys_are_gone(stage: Stage) -> None:
    entry = only(logged(stage, "matrix.room_unusable"))
    assert (entry["log_level"], entry["room"], entry["why"]) == ("warning", ROOM, "encrypted")
    assert f"The keys of device {stage.homeserver.device_id} are not in" in str(entry["reason"])
    assert any(line.startswith("failed") and "encrypt" in line for line in stage.checked.splitlines())


@holds("e2ee-05", "under `strict` no reactions are seeded, and one that comes counts for nothing")
def reactions_are_worth_nothing(stage: Stage) -> None:
    prompt = only(stage.prompts("P1"))
    assert stage.seeds(prompt) == []
    assert stage.notices == []
    assert "Reply with #1 and the number" in read(prompt)
    assert "Run tests" not in "".join(text for event in stage.homeserver.sent for text in strings(event.content))


@holds("e2ee-05", "any response for id 1")
def the_reaction_has_no_response(stage: Stage) -> None:
    assert answers_to(stage, 1) == []


@holds(
    "e2ee-06",
    "under `strict` only a text with the prompt's number inside the encrypted part counts; the room is told so",
)
def the_number_must_be_inside(stage: Stage) -> None:
    notice = only(stage.notices)
    assert "an answer to #2 counts only with its number inside the encrypted message" in read(notice)
    assert reply_target(notice) == written_by(stage, ALICE)[-1]
