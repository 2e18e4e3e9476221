"""Sentences about how the bridge works: pipes and their noise, ledger, log, order and start."""

import re
import tempfile
from pathlib import Path

import pytest

from bridge.acp.process import ERROR_LINE_LIMIT_BYTES, ERROR_LINES_KEPT_COUNT
from bridge.acp.schema import TOOL_CALLS_LIMIT_COUNT
from bridge.config import load
from bridge.core.changes import StoreDecision, StoreTaken
from bridge.core.errors import ConfigError
from bridge.core.model import EventId
from tests.cases.claims import closing, everything_logged, everything_shown, holds, logged, only
from tests.cases.life import ALICE, BOT
from tests.cases.stage import TOKEN, Stage
from tests.cases.verdict import canonical
from tests.cases.wording import write_response

ROOT = Path(__file__).parents[2]
SHORT = 300  # characters of a log entry about a line that is no frame
CONFIG = """
state_dir = "state"
[matrix]
homeserver = "https://matrix.ex.org"
user_id = "@bridge:ex.org"
[agents.a]
command = ["agent"]
room = "!room:ex.org"
approvers = ["@alice:ex.org", "{other}"]
"""

# --------------------------------------------------------------------------------------------------------- the agent side


@holds("frame-08", "one response: opt-allow, with the request's id in value and in JSON type")
def the_id_comes_back_unchanged(stage: Stage) -> None:
    call_id = only(stage.asked)["ask"]
    assert canonical(only(stage.responses())) == canonical(write_response({"id": call_id, "selected": "opt-allow"}))


@holds("line-01", "LimitOverrunError ends the reader")
@holds("line-03", "frames joined or shifted")
@holds("out-01", "the reader stops")
@holds("out-02", "the reader stops")
@holds("out-03", "the reader stops")
@holds("out-06", "the reader stops")
@holds("out-10", "the reader stops")
def what_follows_is_still_read(stage: Stage) -> None:
    assert len([line for line in stage.responses() if "result" in line]) == 1
    assert logged(stage, "acp.handler_failed") == []


@holds("out-01", "the noise is logged once, shortened")
@holds("out-03", "the noise is logged once, shortened")
@holds("out-06", "the noise is logged once, shortened")
def the_noise_is_logged_once(stage: Stage) -> None:
    entry = only(logged(stage, "acp.line_refused"))
    assert entry["log_level"] == "warning"
    assert len(repr(entry)) < SHORT


@holds(
    "out-04", "the operator is told that a line could not be read", "silence: the agent waits for ever and nobody knows"
)
def the_operator_is_told(stage: Stage) -> None:
    entry = only(logged(stage, "acp.line_refused"))
    assert (entry["log_level"], entry["reason"]) == ("warning", "the line is not UTF-8")
    assert [line["error"]["code"] for line in stage.responses()] == [-32700]


@holds("out-07", "no exception")
def there_is_no_exception(stage: Stage) -> None:
    assert not any("exc_info" in entry or entry["log_level"] in {"error", "critical"} for entry in stage.logs)


@holds("pipe-01", "the last lines of stderr are kept, bounded")
def the_last_lines_are_kept(stage: Stage) -> None:
    lines = stage.last_words["A"]
    assert 0 < len(lines) <= ERROR_LINES_KEPT_COUNT
    assert all(line.startswith("stderr: ") and len(line) <= ERROR_LINE_LIMIT_BYTES for line in lines[:-1])


@holds("pipe-01", "the start hangs")
def the_session_is_open(stage: Stage) -> None:
    assert stage.records[0].type == "session_started"


@holds("pipe-03", "the answer goes out within 1 s of the sync")
def the_answer_overtakes_the_flood(stage: Stage) -> None:
    assert stage.unread_before > stage.unread_after > 0


@holds("pipe-03", "memory stays bounded")
def updates_are_not_piled_up(stage: Stage) -> None:
    assert 0 < stage.kept_updates <= TOOL_CALLS_LIMIT_COUNT
    assert len(stage.lives[0].delivered) < 100  # none of a hundred thousand updates is anything that waits


@holds("pipe-04", "the response for id 2 goes out within 1 s")
def the_response_waits_for_no_room(stage: Stage) -> None:
    mark = only(stage.marks)  # the homeserver has not replied to a single send
    assert mark.sent == 0
    assert canonical(write_response({"id": 2, "cancelled": True})) in map(canonical, stage.lines()[: mark.lines["A"]])


@holds("tell-01", "the edit comes after the write, names person and option and still says what was asked")
def the_edit_follows_the_write(stage: Stage) -> None:
    text = closing(stage)
    assert f'{ALICE} answered: "Allow once".' in text
    assert "Run tests" in text
    assert "pytest -q" in text


@holds("tell-01", "the edit before the write")
def the_edit_waits_for_the_write(stage: Stage) -> None:
    mark = only(stage.marks)  # the answer was stored, and the agent had not read it
    edit = only(stage.edits(stage.prompts("P1")[0]))
    assert stage.sent.index(edit) >= mark.sent
    assert not any("result" in line and "outcome" in line["result"] for line in stage.lines()[: mark.lines["A"]])
    assert only(stage.rows("permission_response", "P1")).fields["status"] == "accepted"


# -------------------------------------------------------------------------------------------------------------- the ledger


@holds("react-07", "the same event is tried again", "the event marked as seen while nothing was decided")
def the_same_event_is_tried_again(stage: Stage) -> None:
    deciding = [commit for commit in stage.commits if any(isinstance(c, StoreDecision) for c in commit.changes)]
    assert [commit.stored for commit in deciding] == [False, True]
    assert deciding[0].changes == deciding[1].changes
    seen = [c for commit in stage.commits if commit.stored for c in commit.changes if isinstance(c, StoreTaken)]
    assert [change.event_id for change in seen].count(EventId("$r")) == 1
    assert StoreTaken(EventId("$r")) in deciding[1].changes


@holds("race-04", "exactly one response: opt-allow with the ending answered, or opt-reject with the ending expired")
@holds("race-04", "two responses for one id")
def each_round_has_one_response(stage: Stage) -> None:
    endings = [record.fields["ending"] for record in stage.records if record.type == "permission_ended"]
    option_of = {"answered": "opt-allow", "expired": "opt-reject"}
    expected = [write_response({"id": 1, "selected": option_of[str(ending)]}) for ending in endings]
    assert expected == stage.responses()
    assert len(endings) == 200
    assert set(endings) == {"answered", "expired"}, "both have won"


@holds("race-04", "the room says that Allow once was sent while the agent got Reject")
def the_room_says_what_was_sent(stage: Stage) -> None:
    texts = {"opt-allow": f'{ALICE} answered: "Allow once".', "opt-reject": '"Reject" was sent to the agent.'}
    posted = [record for record in stage.records if record.type == "permission_posted"]
    for record, response in zip(posted, stage.responses(), strict=True):
        prompt = next(event for event in stage.sent if event.event_id == record.fields["event_id"])
        text = only(stage.edits(prompt)).content["m.new_content"]["body"]
        assert texts[response["result"]["outcome"]["optionId"]] in text
        assert ("Allow once" in text) == (response["result"]["outcome"]["optionId"] == "opt-allow")


@holds("time-03", "stored times are UTC with a zone")
def stored_times_are_utc(stage: Stage) -> None:
    assert stage.records[0].timestamp == "2026-11-01T04:00:00.000Z"
    assert all(re.fullmatch(r"2026-11-01T0[45]:\d\d:\d\d\.\d{3}Z", record.timestamp) for record in stage.records)


@holds("sec-04", "the error is logged without the token")
def the_error_is_logged(stage: Stage) -> None:
    assert len(logged(stage, "matrix.send_delayed")) == 1


@holds("sec-04", "the access token in a log, the room or the database's error texts")
def the_token_is_nowhere(stage: Stage) -> None:
    failed = next(seen for seen in stage.homeserver.requests if "/send/" in seen.path)
    assert TOKEN in failed.headers["Authorization"]  # it was there to be repeated
    assert TOKEN not in everything_logged(stage) + everything_shown(stage)
    assert not any(TOKEN.encode() in content for content in stage.files.values())
    assert "ledger.db" in stage.files


# ------------------------------------------------------------------------------------------------------------- the start


@holds(
    "echo-04",
    "start-up warns that the bot is on its own approvers list, or refuses that list (then the rest does not apply)",
)
def the_bot_on_its_own_list_is_refused(_: Stage) -> None:
    with pytest.raises(ConfigError, match="approvers lists the bridge's own id"):
        read_config(BOT)


@holds("auth-10", "the risk is documented; start-up warns when a listed id looks like a bot")
def a_listed_bot_is_warned_of(_: Stage) -> None:
    warning = only(read_config("@agentbot:ex.org"))
    assert "@agentbot:ex.org, which looks like a bot" in warning
    assert "list people, no bots" in (ROOT / "config.example.toml").read_text(encoding="utf-8")


def read_config(other: str) -> tuple[str, ...]:
    """The warnings of a config in which this id may answer beside Alice."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(CONFIG.format(other=other))
        return load(path).warnings
