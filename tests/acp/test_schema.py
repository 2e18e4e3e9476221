"""Readers that take what real agents send, and the merging of tool calls (acp.md, sections 5 to 7)."""

import pytest

from bridge.acp.schema import (
    ModeChanged,
    Modes,
    Said,
    ToolCallKey,
    ToolCalls,
    ToolCallUpdate,
    merge,
    read_greeting,
    read_modes,
    read_permission_request,
    read_session_id,
    read_stop_reason,
    read_update,
)
from bridge.core.model import JsonValue


def an_update(tool_call_id: str, **fields: JsonValue) -> ToolCallUpdate:
    update = read_update(
        {"sessionId": "s", "update": {"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, **fields}}
    )
    assert isinstance(update, ToolCallUpdate)
    return update


# -------------------------------------------------------------------------------------------------------------- merging


@pytest.mark.parametrize("empty", [None, "", [], {}], ids=repr)
def test_what_is_empty_keeps_the_earlier_value(empty: JsonValue) -> None:
    assert merge({"rawInput": {"command": "ls"}}, {"rawInput": empty}) == {"rawInput": {"command": "ls"}}


@pytest.mark.parametrize("value", [0, False, "x", [0], {"a": None}, 0.0], ids=repr)
def test_anything_else_replaces_it_whole(value: JsonValue) -> None:
    assert merge({"rawInput": {"command": "ls", "cwd": "/"}}, {"rawInput": value}) == {"rawInput": value}


def test_what_is_absent_keeps_the_earlier_value_and_what_is_new_is_added() -> None:
    assert merge({"title": "t"}, {"kind": "edit", "status": None}) == {"title": "t", "kind": "edit", "status": None}


def test_merging_changes_neither_side() -> None:
    earlier: dict[str, JsonValue] = {"title": "t"}
    merge(earlier, {"title": "u"})
    assert earlier == {"title": "t"}


def test_updates_are_merged_in_order_whichever_comes_first() -> None:
    """cline sends an update before its tool_call."""
    calls = ToolCalls(())
    calls.apply(an_update("c", rawInput={"command": "a"}), 1)
    calls.apply(an_update("c", title="T", rawInput={}), 1)
    assert calls.find(("s", "c")) == {"toolCallId": "c", "title": "T", "rawInput": {"command": "a"}}


def test_tool_calls_of_two_sessions_are_two() -> None:
    calls = ToolCalls(())
    calls.apply(an_update("c", title="T"), 1)
    assert calls.find(("other", "c")) == {}


def test_the_oldest_tool_call_is_forgotten_first() -> None:
    calls = ToolCalls((), most=2)
    for name in ("a", "b", "a", "c"):
        calls.apply(an_update(name), 1)
    assert [bool(calls.find(("s", name))) for name in "abc"] == [True, False, True]


def test_one_that_is_asked_about_is_never_forgotten() -> None:
    held: set[ToolCallKey] = {("s", "a"), ("s", "b")}
    calls = ToolCalls(held, most=1)
    for name in ("a", "b", "c", "d"):
        calls.apply(an_update(name), 1)
    assert [bool(calls.find(("s", name))) for name in "abcd"] == [True, True, False, False]


def test_their_bytes_are_bounded_too_and_repeated_updates_do_not_add_up() -> None:
    calls = ToolCalls((), most_bytes=100)
    for _ in range(10):
        calls.apply(an_update("a"), 60)
    calls.apply(an_update("b"), 40)
    assert len(calls) == 2
    calls.apply(an_update("c"), 1)
    assert [bool(calls.find(("s", name))) for name in "abc"] == [False, True, True]


# -------------------------------------------------------------------------------------------------------------- updates


def test_fields_that_no_tool_call_has_are_not_remembered() -> None:
    assert set(an_update("c", title="T", filler="x").fields) == {"toolCallId", "title"}


@pytest.mark.parametrize(
    ("status", "final"),
    [("completed", True), ("failed", True), ("in_progress", False), (None, False), ([], False), ({"a": 1}, False)],
)
def test_only_two_statuses_are_final(status: JsonValue, final: bool) -> None:
    assert an_update("c", status=status).final is final


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}, "messageId": "m"},
            Said(session_id="s", text="hi", message_id="m"),
        ),
        (
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}, "messageId": 7},
            Said(session_id="s", text="hi", message_id=None),
        ),
        ({"sessionUpdate": "current_mode_update", "currentModeId": "auto"}, ModeChanged(session_id="s", mode="auto")),
        ({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}, None),
        ({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "you"}}, None),
        ({"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "data": ""}}, None),
        ({"sessionUpdate": "agent_message_chunk", "content": None}, None),
        ({"sessionUpdate": "tool_call"}, None),
        ({"sessionUpdate": "tool_call", "toolCallId": 7}, None),
        ({"sessionUpdate": ["tool_call"], "toolCallId": "c"}, None),
        ({"sessionUpdate": "from_the_future"}, None),
        ({"sessionUpdate": "usage_update", "used": 0}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_an_update_tells_what_it_tells_and_is_never_an_error(update: JsonValue, expected: object) -> None:
    assert read_update({"sessionId": "s", "update": update}) == expected


def test_an_update_without_a_session_is_nothing() -> None:
    assert read_update({"update": {"sessionUpdate": "tool_call", "toolCallId": "c"}}) is None


# ------------------------------------------------------------------------------------------------------------- requests


def test_a_request_with_nothing_but_what_is_required_is_read() -> None:
    request = read_permission_request({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []})
    assert request is not None
    assert (request.key, request.tool_call, request.options) == (("s", "c"), {"toolCallId": "c"}, [])


# ------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    "result", [None, [], 7, "x", {}, {"protocolVersion": "1"}, {"protocolVersion": 1.0}, {"protocolVersion": True}]
)
def test_only_an_integer_is_a_version(result: JsonValue) -> None:
    assert read_greeting(result).protocol_version is None


def test_a_greeting_names_methods_and_capabilities() -> None:
    greeting = read_greeting(
        {
            "protocolVersion": 1,
            "authMethods": [{"id": "a"}, {"name": "no id"}, 7, {"id": "b", "type": "terminal"}],
            "agentCapabilities": {"sessionCapabilities": {"close": {}, "delete": None}},
        }
    )
    assert (greeting.protocol_version, greeting.auth_methods) == (1, ("a", "b"))
    assert (greeting.can_close, greeting.can_delete) == (True, False)


@pytest.mark.parametrize(("result", "expected"), [({"sessionId": "s"}, "s"), ({"sessionId": 7}, None), (None, None)])
def test_a_session_id_is_a_string(result: JsonValue, expected: str | None) -> None:
    assert read_session_id(result) == expected


@pytest.mark.parametrize(("result", "expected"), [({"stopReason": "refusal"}, "refusal"), ({}, None), (None, None)])
def test_a_stop_reason_is_a_string(result: JsonValue, expected: str | None) -> None:
    assert read_stop_reason(result) == expected


def test_modes_come_from_modes_and_from_config_options() -> None:
    result: JsonValue = {
        "modes": {"currentModeId": "auto", "availableModes": [{"id": "default"}, {"id": "auto"}]},
        "configOptions": [
            {"id": "model", "category": "model", "currentValue": "m", "options": [{"value": "m"}]},
            {
                "id": "how",
                "category": "mode",
                "currentValue": "build",
                "options": [{"value": "build"}, {"value": "plan"}],
            },
            {"id": "mode", "options": [{"group": "g", "options": [{"value": "x"}]}, {"group": "h"}, 7]},
            {"category": "mode"},
            {"id": "odd", "category": {}},
        ],
    }
    assert read_modes(result) == (
        Modes(offered=("default", "auto"), current="auto", config_id=None),
        Modes(offered=("build", "plan"), current="build", config_id="how"),
        Modes(offered=("x",), current=None, config_id="mode"),
    )


@pytest.mark.parametrize(
    "result", [None, {}, {"modes": None, "configOptions": None}, {"modes": {"availableModes": []}}]
)
def test_an_agent_may_have_no_modes(result: JsonValue) -> None:
    assert read_modes(result) == ()
