from datetime import UTC, datetime

import pytest

from bridge.core.errors import CommandRefused
from bridge.core.model import JsonObject, JsonValue, Reason
from bridge.ops import table

NOW = datetime(2026, 11, 7, 12, 0, tzinfo=UTC)
BASE: dict[str, JsonValue] = {"sequence": 41, "session_id": "acps_1", "timestamp": "2026-11-07T10:29:58.114Z"}


def make_pending(asked_at: str, **fields: JsonValue) -> dict[str, JsonValue]:
    return {
        "request_id": "acps_1:12",
        "session_id": "acps_1",
        "agent": "claude",
        "number": 3,
        "title": "Run tests",
        "options": [{"optionId": "allow_once", "name": "Allow once"}, {"optionId": "no"}],
        "room_id": "!room",
        "event_id": None,
        "asked_at": asked_at,
        **fields,
    }


def test_each_request_is_shown_with_its_ids_and_options() -> None:
    assert list(table.show_pending([make_pending("2026-11-07T10:29:58.114Z")], NOW)) == [
        "acps_1:12  #3  claude  1h  !room",
        "  Run tests",
        "    allow_once  Allow once",
        "    no  ",
    ]


def test_nothing_waiting_is_said() -> None:
    assert list(table.show_pending([], NOW)) == ["Nothing waits."]


@pytest.mark.parametrize(
    ("asked_at", "expected"),
    [
        ("2026-11-07T11:59:01Z", "59s"),
        ("2026-11-07T11:59:00Z", "1m"),
        ("2026-11-05T11:59:00Z", "2d"),
        ("2026-11-07T12:00:05Z", "0s"),
    ],
)
def test_how_long_it_waits_is_shown_in_one_unit(asked_at: str, expected: str) -> None:
    assert f"  {expected}  " in next(table.show_pending([make_pending(asked_at)], NOW))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"type": "permission_request", "request_id": "r:1", "agent": "claude", "toolCall": {"title": "Run tests"}},
            "r:1 asked by claude: Run tests",
        ),
        (
            {"type": "permission_request", "request_id": "r:1", "agent": "claude", "toolCall": {"title": None}},
            "r:1 asked by claude: an action",
        ),
        ({"type": "permission_posted", "request_id": "r:1"}, "r:1 posted"),
        (
            {
                "type": "permission_response",
                "request_id": "r:1",
                "status": "accepted",
                "outcome": {"outcome": "selected", "optionId": "allow_once"},
                "by": "@amy:hs",
                "via": "reaction",
            },
            "r:1 accepted: allow_once by @amy:hs (reaction)",
        ),
        (
            {
                "type": "permission_response",
                "request_id": "r:1",
                "status": "not_pending",
                "reason": "already_resolved",
                "outcome": None,
                "by": None,
                "via": "expiry",
            },
            "r:1 already_resolved: cancelled by nobody (expiry)",
        ),
        (
            {"type": "permission_ended", "request_id": "r:1", "ending": "answered", "delivered": True},
            "r:1 ended: answered",
        ),
        (
            {"type": "permission_ended", "request_id": "r:1", "ending": "agent_gone", "delivered": False},
            "r:1 ended: agent_gone, and the agent did not get it",
        ),
        ({"type": "session_started", "agent": "claude"}, "session of claude started"),
        ({"type": "session_ended", "agent": "claude", "reason": "shutdown"}, "session of claude ended: shutdown"),
        ({"type": "of_a_later_version"}, "of_a_later_version"),
    ],
)
def test_a_record_is_one_line(fields: dict[str, JsonValue], expected: str) -> None:
    assert table.show_record({**BASE, **fields}) == f"2026-11-07 10:29:58  acps_1  41  {expected}"


def test_text_of_others_cannot_steer_the_terminal_and_its_secrets_are_masked() -> None:
    title = "\x1b[2J\u202eps postgres://app:hunter2pw@db.example/x\n"
    lines = list(table.show_pending([make_pending("2026-11-07T10:29:58Z", title=title)], NOW))
    lines.append(table.show_record({**BASE, "type": "permission_request", "toolCall": {"title": title}}))
    assert all(line.isprintable() for line in lines)
    assert "hunter2pw" not in "".join(lines)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_put_into_words(reason: Reason) -> None:
    sentence = table.show_reason(reason.value)
    assert sentence.startswith("Not accepted: ")
    assert f"({reason})" in sentence


def test_a_refusal_names_what_was_offered() -> None:
    error = CommandRefused("This option was not offered.", code="invalid_permission_option", offered=("a", "b"))
    assert table.show_refusal(error) == "Not accepted: This option was not offered. Offered: a, b. Nothing was decided."


def test_the_reply_to_a_question_names_person_surface_device_and_time() -> None:
    reply: JsonObject = {
        "event_id": "$q",
        "option": "works",
        "by": "@alice:hs",
        "via": "reaction",
        "device_id": "PHONE",
        "waited_ms": 4210,
        "ending": "answered",
    }
    line = table.show_reply("claude", reply)
    assert "answered by @alice:hs with works after 4.2 s, as a reaction from device PHONE." in line


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"event_id": None, "ending": "stopped"}, "it was stopped before anybody answered."),
        ({"event_id": None, "ending": "undeliverable"}, "it did not reach the room"),
        ({"event_id": "$q", "ending": "session_deleted"}, "but it ended: session_deleted."),
        ({"event_id": "$q", "ending": None}, "but nobody answered in time."),
    ],
)
def test_a_question_that_got_no_answer_says_why(reply: JsonObject, says: str) -> None:
    assert says in table.show_reply("claude", reply)
