"""ACP's words into the core's and back (acp.md, sections 5 and 8)."""

import json

import pytest

from bridge.acp.schema import Said, read_permission_request
from bridge.acp.translate import TurnText, make_asked, make_result, shows_the_same
from bridge.core.events import Asked
from bridge.core.model import (
    AgentName,
    CallRef,
    Cancelled,
    JsonValue,
    Misfit,
    Outcome,
    Selected,
    SessionId,
    Unsatisfied,
)

PARAMS: dict[str, JsonValue] = {
    "sessionId": "secret-session",
    "toolCall": {"toolCallId": "c1", "title": "T", "x": [1]},
    "options": [{"optionId": "a", "name": "A", "kind": "allow_once", "y": 2}, {"optionId": 1}],
    "new": "kept in the raw text",
}


def asked_for(params: dict[str, JsonValue]) -> tuple[Asked, int]:
    request = read_permission_request(params)
    assert request is not None
    return make_asked(
        request,
        params,
        tool_call={**request.tool_call, "rawInput": {"command": "from an update"}},
        cwd="/w",
        agent=AgentName("claude"),
        session_id=SessionId("acps_1"),
        call=CallRef(5),
        nonce="n0nce",
    )


def test_the_record_is_exact_and_flat_and_without_the_harness_session() -> None:
    asked, _ = asked_for(PARAMS)
    assert asked.record == {"toolCall": PARAMS["toolCall"], "options": PARAMS["options"]}


@pytest.mark.parametrize("meta", [{"a": 1}, {}, None])
def test_the_record_has_meta_only_when_it_was_sent(meta: JsonValue) -> None:
    asked, _ = asked_for({**PARAMS, "_meta": meta})
    assert asked.record["_meta"] == meta


def test_the_nonce_is_handed_on_and_stands_in_nothing_that_is_kept_or_shown() -> None:
    asked, _ = asked_for(PARAMS)
    assert asked.nonce == "n0nce"
    assert "n0nce" not in repr(asked)


def test_the_raw_text_has_all_of_the_params() -> None:
    asked, _ = asked_for(PARAMS)
    assert json.loads(asked.raw) == PARAMS


def test_the_description_is_of_the_merged_tool_call_and_options_are_read() -> None:
    asked, dropped = asked_for(PARAMS)
    assert asked.description.essence.command == "from an update"
    assert ([option.option_id for option in asked.options], asked.misfit, dropped) == (["a"], None, 1)


def test_a_list_of_options_that_cannot_be_shown_is_told() -> None:
    asked, _ = asked_for({**PARAMS, "options": []})
    assert asked.misfit is Misfit.NOTHING_TO_CHOOSE


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Selected("a\udfff"), {"outcome": {"outcome": "selected", "optionId": "a\udfff"}}),
        (Cancelled(), {"outcome": {"outcome": "cancelled"}}),
        (Unsatisfied(), None),
    ],
)
def test_an_outcome_has_its_own_object_inside_the_result(outcome: Outcome, result: JsonValue) -> None:
    assert make_result(outcome) == result


@pytest.mark.parametrize(
    ("field", "same"),
    [
        ("title", False),
        ("name", False),
        ("kind", False),
        ("content", False),
        ("locations", False),
        ("rawInput", False),
        ("status", True),
        ("rawOutput", True),
        ("_meta", True),
    ],
)
def test_only_what_is_shown_makes_a_difference(field: str, same: bool) -> None:
    assert shows_the_same({"toolCallId": "c"}, {"toolCallId": "c", field: "new"}) is same


# ------------------------------------------------------------------------------------------------- the words of a turn


def text_of(*pieces: Said | None, limit: int = 100) -> str:
    turn = TurnText(limit)
    for piece in pieces:
        if piece is None:
            turn.interrupt()
        else:
            turn.add(piece)
    return str(turn)


def piece(text: str, message_id: str | None = None) -> Said:
    return Said(session_id="s", text=text, message_id=message_id)


def test_pieces_are_joined_as_they_came() -> None:
    assert text_of(piece("Hel"), piece("lo "), piece("you")) == "Hello you"


def test_another_message_is_another_paragraph() -> None:
    assert text_of(piece("a", "1"), piece("b", "1"), piece("c", "2")) == "ab\n\nc"


def test_words_after_a_tool_call_are_another_paragraph() -> None:
    assert text_of(None, piece("I run it."), None, None, piece("Done.")) == "I run it.\n\nDone."


def test_a_long_turn_says_how_much_was_left_out() -> None:
    text = text_of(piece("x" * 8), piece("y" * 8), piece("z" * 8), limit=10)
    assert text == "xxxxxxxxyy\n\n[14 more characters of this turn were left out.]"


def test_a_turn_of_exactly_the_limit_is_whole() -> None:
    assert text_of(piece("x" * 10), limit=10) == "x" * 10


def test_a_turn_without_words_has_none() -> None:
    assert text_of() == ""
