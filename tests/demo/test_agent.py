import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.demo import agent

Message = dict[str, Any]

INITIALIZE: Message = {"id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
NEW: Message = {"id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}
PROMPT: Message = {"id": 2, "method": "session/prompt", "params": {"sessionId": "demo-1", "prompt": []}}
LOAD: Message = {"id": 9, "method": "session/load", "params": {}}
CANCEL: Message = {"method": "session/cancel", "params": {"sessionId": "demo-1"}}


def select(option: str) -> Message:
    return {"id": 1, "result": {"outcome": {"outcome": "selected", "optionId": option}}}


CANCELLED: Message = {"id": 1, "result": {"outcome": {"outcome": "cancelled"}}}


def play(tmp_path: Path, *messages: Message) -> tuple[list[Message], list[str]]:
    """What the agent writes, and the outcomes that it notes."""
    written: list[str] = []
    outcomes = tmp_path / "outcomes"
    agent.serve([json.dumps({"jsonrpc": "2.0"} | m) for m in messages], written.append, outcomes)
    return [json.loads(line) for line in written], outcomes.read_text().splitlines() if outcomes.exists() else []


def stop_reason(written: list[Message]) -> str:
    return next(m["result"]["stopReason"] for m in written if m.get("id") == 2 and "result" in m)


def test_the_options_are_offered_in_the_order_that_the_demo_promises() -> None:
    assert [(option["optionId"], option["name"]) for option in agent.OPTIONS] == [
        ("allow_once", "Allow once"),
        ("allow_always", "Always allow"),
        ("reject_once", "Reject"),
    ]


def test_a_prompt_announces_the_call_and_then_asks(tmp_path: Path) -> None:
    written, _ = play(tmp_path, INITIALIZE, NEW, PROMPT)
    announced, asked = written[2:]
    assert announced["params"]["update"]["sessionUpdate"] == "tool_call"
    assert asked["method"] == "session/request_permission"
    assert asked["params"]["toolCall"]["rawInput"] == {"command": agent.COMMAND}


@pytest.mark.parametrize("option", ["allow_once", "allow_always", "reject_once"])
def test_the_chosen_option_is_noted_and_said_and_ends_the_turn(tmp_path: Path, option: str) -> None:
    written, outcomes = play(tmp_path, NEW, PROMPT, select(option))
    said = [
        m["params"]["update"].get("content", {}).get("text", "") for m in written if m.get("method") == "session/update"
    ]
    assert [f'{{"outcome":"selected","optionId":"{option}"}}'] == outcomes
    assert option in said[-1]
    assert said[-1].endswith(agent.CLOSING_WORDS)
    assert stop_reason(written) == "end_turn"


def test_the_tool_call_is_reported_as_failed_unless_it_was_allowed(tmp_path: Path) -> None:
    def status(option: str) -> str:
        written, _ = play(tmp_path, NEW, PROMPT, select(option))
        return next(m["params"]["update"]["status"] for m in written if "tool_call_update" in json.dumps(m))

    assert [status("allow_once"), status("reject_once")] == ["completed", "failed"]


def test_a_cancelled_turn_ends_once_its_request_is_answered(tmp_path: Path) -> None:
    unanswered, _ = play(tmp_path, NEW, PROMPT, CANCEL)
    answered, outcomes = play(tmp_path, NEW, PROMPT, CANCEL, CANCELLED)
    assert [m for m in unanswered if m.get("id") == 2 and "result" in m] == []
    assert stop_reason(answered) == "cancelled"
    assert outcomes == ['{"outcome":"cancelled"}']


def test_an_error_for_an_answer_counts_as_cancelled(tmp_path: Path) -> None:
    _, outcomes = play(tmp_path, NEW, PROMPT, {"id": 1, "error": {"code": -32603, "message": "no"}})
    assert outcomes == ['{"outcome":"cancelled"}']


def test_only_the_first_answer_to_a_request_counts(tmp_path: Path) -> None:
    _, outcomes = play(tmp_path, NEW, PROMPT, select("reject_once"), select("allow_once"))
    assert len(outcomes) == 1


def test_a_cancel_without_a_turn_and_an_unknown_notification_change_nothing(tmp_path: Path) -> None:
    written, _ = play(tmp_path, CANCEL, {"method": "other/news"}, NEW)
    assert written == [{"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "demo-1"}}]


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([NEW, PROMPT, {**PROMPT, "id": 9}], agent.INVALID_REQUEST),
        ([{**PROMPT, "id": 9}], agent.INVALID_PARAMS),
        ([LOAD], agent.METHOD_NOT_FOUND),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_code_for_it(tmp_path: Path, messages: list[Message], code: int) -> None:
    written, _ = play(tmp_path, *messages)
    assert [code] == [m["error"]["code"] for m in written if m.get("id") == 9]


def test_a_line_that_is_no_message_is_skipped() -> None:
    written: list[str] = []
    agent.serve(["not json\n", "[1]\n", json.dumps(NEW)], written.append, None)
    assert len(written) == 1


def test_the_program_serves_until_its_stdin_closes(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"jsonrpc": "2.0"} | m) + "\n" for m in (NEW, PROMPT, select("allow_once")))
    outcomes = tmp_path / "outcomes"
    done = subprocess.run(  # noqa: S603 - our own interpreter and file
        [sys.executable, "-I", agent.__file__],
        input=lines,
        env={agent.OUTCOMES_VARIABLE: str(outcomes)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert outcomes.read_text() == '{"outcome":"selected","optionId":"allow_once"}\n'
    assert json.loads(done.stdout.splitlines()[-1])["result"] == {"stopReason": "end_turn"}


def test_main_speaks_on_stdin_and_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", [json.dumps(NEW)])
    monkeypatch.delenv(agent.OUTCOMES_VARIABLE, raising=False)
    agent.main()
    assert json.loads(capsys.readouterr().out)["result"] == {"sessionId": "demo-1"}
