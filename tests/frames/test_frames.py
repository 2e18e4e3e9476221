"""What real agents said, replayed through the whole chain: every recording against what `expect.json` says of it."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from jsonschema import Draft202012Validator

from bridge.demo.homeserver import Homeserver
from tests.frames.recordings import Json, Recording, read_all
from tests.frames.replay import Played, replay

RECORDINGS = read_all()
SCHEMA: Json = json.loads((Path(__file__).parents[2] / "bridge/matrix/permission-v2.schema.json").read_text())

NOT_REPLAYED: dict[str, str] = {}
"""Recordings that cannot be replayed, each with the reason; the tests of such a file are skipped with it."""

MEANING = {
    "allow_once": ("approve", "once"),
    "allow_always": ("approve", "always"),
    "reject_once": ("reject", "once"),
    "reject_always": ("reject", "always"),
}
TOLD = {
    "answered": 'answered: "{name}".',
    "cancelled": "Nothing has been approved.",
    "withdrawn": "The agent took its question back before anybody answered.",
    "agent_gone": "The agent ended before anybody answered.",
    "shutdown": "The bridge was stopped before anybody answered.",
}
NOT_STARTED = {
    "auggie/a-allow-bash": "Agent auggie_a-allow-bash wants a login first. It offers none.",
    "kimi-latest/a-allow-bash": "Agent kimi-latest_a-allow-bash ended before it had a session. Its exit code was 0.",
}
UNASKING = {
    "claude-latest/z-automode": "auto",
    "codex2/z-automode": "agent",
    "qwen-latest/z-automode": "auto",
    "vibe/z-automode": "accept-edits",
}


@pytest.fixture(scope="module")
def everything(synapse: Homeserver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """All recordings, replayed once for this module."""
    wanted = [recording for recording in RECORDINGS if recording.name not in NOT_REPLAYED]
    played, exit_code = anyio.run(replay, wanted, synapse, tmp_path_factory.mktemp("frames"))
    assert exit_code == 0
    return {one.recording.name: one for one in played}


@pytest.fixture(params=RECORDINGS, ids=lambda recording: recording.name)
def played(request: pytest.FixtureRequest, everything: dict[str, Played]) -> Played:
    recording: Recording = request.param
    if recording.name in NOT_REPLAYED:
        pytest.skip(NOT_REPLAYED[recording.name])
    return everything[recording.name]


def asked(played: Played) -> Iterator[tuple[Json, Json]]:
    """Each request with the content of its prompt."""
    prompts = [event["content"] for event in played.prompts]
    return zip(played.recording.requests, prompts, strict=True)


def plain_parts(text: str) -> list[str]:
    """What of a text is shown as it is, whatever is escaped between."""
    return [part for part in re.split(r"[^ -~]|[\"\\]", text) if part.strip()]


def assert_shown(text: str, where: str) -> None:
    """The text stands there, part after part."""
    at = 0
    for part in plain_parts(text):
        at = where.find(part, at) + len(part)
        assert at >= len(part), (part, where)


# ------------------------------------------------------------------------------------------------------------- the asking


def test_a_recording_is_played_to_its_end(played: Played) -> None:
    assert (None, None) == (played.failure, played.lost)


def test_no_process_of_an_agent_outlives_the_bridge(played: Played) -> None:
    assert not played.left_over


def test_each_request_is_asked_once_and_in_order_whatever_is_told_while_it_waits(played: Played) -> None:
    expected = [f"Permission needed (#{place}):" for place in range(1, len(played.recording.requests) + 1)]
    starts = [content["body"] for _, content in asked(played)]
    assert expected == [start[: len(prefix)] for start, prefix in zip(starts, expected, strict=True)]
    assert all(content["subject"]["revision"] == 1 for _, content in asked(played))


def test_a_prompt_shows_the_title_and_what_would_be_done(played: Played) -> None:
    for request, content in asked(played):
        body = content["body"]
        assert_shown(request["title"] or "", body.partition("\n")[0])
        command: str | list[str] = request["command"] or ""
        assert_shown(command if isinstance(command, str) else shlex.join(command), body)
        for path in request["paths"]:
            assert path in body
        assert (request["kind"] is None) == ("\nKind: " not in body)
        assert f"\nKind: {request['kind'] or ''}" in body or request["kind"] is None


def test_a_prompt_shows_every_line_of_a_change(played: Played) -> None:
    for request, content in asked(played):
        for item in played.recording.merged(request).get("content", []):
            if item["type"] == "diff":
                old = (item.get("oldText") or "").splitlines()
                lines = content["body"].splitlines()
                assert [] == [
                    line for line in item["newText"].splitlines() if line not in old and f"    +{line}" not in lines
                ]
                assert bool(old) == ("new file" not in content["body"])


def test_a_prompt_lists_the_options_in_the_agents_order(played: Played) -> None:
    for request, content in asked(played):
        names = [option["name"] for option in request["options"]]
        listed = [f"{number}. {name}" for number, name in enumerate(names, 1)]
        assert listed == content["body"].splitlines()[-2 - len(names) : -2]


def test_a_card_says_what_the_text_says(played: Played) -> None:
    for place, (request, content) in enumerate(asked(played), 1):
        Draft202012Validator(SCHEMA).validate(content)  # pyright: ignore[reportUnknownMemberType] - its stubs are partial
        expected = [
            {"id": o["optionId"], "label": o["name"], "meaning": MEANING[o["kind"]][0], "scope": MEANING[o["kind"]][1]}
            for o in request["options"]
        ]
        assert expected == content["options"]
        assert (f"{content['session_id']}:{place}", place) == (content["request_id"], content["request_seq"])
        assert request["kind"] == content.get("tool_kind")
        assert_shown(request["title"] or "", content["title"])
        older = [{"option_id": o["optionId"], "name": o["name"]} for o in request["options"][:4]]
        assert older == content["dev.agentpod.permission"]["options"]


def test_a_prompt_mentions_the_approver_and_nobody_else(played: Played) -> None:
    for _, content in asked(played):
        assert ["user_ids"] == list(content["m.mentions"])
        assert len(content["m.mentions"]["user_ids"]) == 1


def test_the_harness_s_own_session_id_never_reaches_the_room_or_the_history(played: Played) -> None:
    told = json.dumps([event["content"] for event in played.messages]) + json.dumps(played.edits)
    kept = json.dumps([record.fields for record in played.history])
    assert [] == [session for session in played.recording.expected["sessions"] if session in told + kept]


# ------------------------------------------------------------------------------------------------------------ the answer


def expected_result(request: Json) -> object:
    """What is written for a request; where a person chose by themselves, the last option."""
    if request["bridge"]:
        return request["bridge"]["writes"]
    return {"outcome": {"outcome": "selected", "optionId": request["options"][-1]["optionId"]}}


def expected_ending(request: Json) -> str:
    return request["bridge"]["ending"] if request["bridge"] else "answered"


def test_the_agent_gets_each_result_once_under_its_own_id(played: Played) -> None:
    for request in played.recording.requests:
        expected = expected_result(request)
        assert ([] if expected is None else [expected]) == played.answers(request["id"])


def test_nothing_is_answered_that_was_not_asked(played: Played) -> None:
    frames = [line["frame"] for line in played.recording.lines if line["dir"] == "in"]
    asked_ids = {json.dumps(frame["id"]) for frame in frames if "method" in frame and "id" in frame}
    answers = [line for line in played.read if "method" not in line and line["id"] is not None]
    assert len(answers) == len({json.dumps(line["id"]) for line in answers})
    assert {json.dumps(line["id"]) for line in answers} <= asked_ids


def test_what_is_not_built_is_answered_so(played: Played) -> None:
    others = [
        line["frame"]
        for line in played.recording.lines
        if line["dir"] == "in" and "id" in line["frame"] and "method" in line["frame"]
    ]
    for frame in others:
        if frame["method"] != "session/request_permission":
            error = next(
                line["error"] for line in played.read if line.get("id") == frame["id"] and "method" not in line
            )
            assert (-32601, {"method": frame["method"]}) == (error["code"], error["data"])


def test_the_history_says_how_each_request_ended(played: Played) -> None:
    expected = [
        (expected_ending(request), expected_result(request) is not None) for request in played.recording.requests
    ]
    assert expected == [(row["ending"], row["delivered"]) for row in played.recorded("permission_ended")]


def test_the_history_says_who_chose_what(played: Played) -> None:
    expected = [expected_result(r) for r in played.recording.requests if expected_ending(r) == "answered"]
    rows = played.recorded("permission_response")
    assert [("accepted", "message", result) for result in expected] == [
        (row["status"], row["via"], {"outcome": row["outcome"]}) for row in rows
    ]


def test_the_prompt_is_edited_once_to_its_ending(played: Played) -> None:
    for request, event in zip(played.recording.requests, played.prompts, strict=True):
        number = played.recording.number(request)
        name = request["options"][number - 1]["name"] if number else ""
        edits = played.edits[event["event_id"]]
        assert len(edits) == 1
        assert TOLD[expected_ending(request)].format(name=name) in edits[0]
        assert_shown(request["title"] or "", edits[0])


# ------------------------------------------------------------------------------------------------------ around the asking


def test_every_recording_is_replayed_or_stands_in_the_table() -> None:
    assert (83, 98) == (len(RECORDINGS), sum(len(recording.requests) for recording in RECORDINGS))
    assert NOT_REPLAYED.keys() <= {recording.name for recording in RECORDINGS}


def test_the_operator_reads_why_an_agent_could_not_be_started(everything: dict[str, Played]) -> None:
    for name, sentence in NOT_STARTED.items():
        bodies = [event["content"]["body"] for event in everything[name].messages]
        assert [f"{name.replace('/', '_')}: {sentence}"] == bodies


def test_the_mode_of_the_config_is_set_before_the_first_prompt(played: Played) -> None:
    mode = played.recording.expected["mode_set"]
    methods = [line["method"] for line in played.read if "method" in line]
    changes = [line["params"] for line in played.read if line.get("method") == "session/set_mode"]
    assert ([mode] if mode else []) == [params["modeId"] for params in changes]
    assert not changes or methods.index("session/set_mode") < methods.index("session/prompt")


def test_a_session_in_a_mode_that_skips_questions_is_said_to_be_in_one(everything: dict[str, Played]) -> None:
    notes = {
        name: body
        for name, played in everything.items()
        for event in played.messages
        if "may act without asking" in (body := event["content"]["body"])
    }
    expected = {
        name: f"{name.replace('/', '_')}: The session is in mode {mode}, in which the agent may act without asking."
        for name, mode in UNASKING.items()
    }
    assert expected == notes


def test_a_command_full_of_tricks_reaches_the_room_as_plain_text(everything: dict[str, Played]) -> None:
    (_, content), *_ = asked(everything["claude/h-odd-command"])
    assert "\u202e" not in json.dumps(content, ensure_ascii=False)
    assert "<b>" not in content["formatted_body"]
    assert "\\u202eevil" in content["body"]
