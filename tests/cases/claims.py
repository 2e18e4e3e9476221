"""The sentences of the cases and the assertion that each of them has, written by hand; and what they all look things up with.

Above it: the claim modules, which fill it, and the test modules, which ask it. Below it: the stage, played to its end.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.cases.reading import Run
from tests.cases.stage import Stage
from tests.cases.verdict import all_responses, read_body, read_html, strings
from tests.peers.homeserver import SentEvent

Claim = Callable[[Stage], None]
Key = tuple[str, str | None, str]  # the case, the name of the run where there is one, the sentence

CLAIMS: dict[Key, Claim] = {}

Item = TypeVar("Item")


def holds(case: str, *sentences: str, run: str | None = None) -> Callable[[Claim], Claim]:
    """This function asserts these sentences of a case."""

    def register(claim: Claim) -> Claim:
        for sentence in sentences:
            assert (case, run, sentence) not in CLAIMS
            CLAIMS[case, run, sentence] = claim
        return claim

    return register


def find_claim(run: Run, sentence: str) -> Claim | None:
    """The assertion for a sentence of a run, if there is one."""
    return CLAIMS.get((run.case, run.name, sentence))


# ------------------------------------------------------------------------------------------------------ looking things up


def only(items: Sequence[Item]) -> Item:
    """The one thing that there must be."""
    assert len(items) == 1, items
    return items[0]


def read(event: SentEvent) -> str:
    """What people read of an event, the same in body and formatted body."""
    return f"{read_body(event)}\n{read_html(event)}"


def said(stage: Stage, *words: str) -> list[SentEvent]:
    """The notices of the bot that hold all of these words, in the plain text and in the formatted one."""
    return [
        event for event in stage.notices if all(word in read_body(event) and word in read_html(event) for word in words)
    ]


def reply_target(event: SentEvent) -> str | None:
    """The event that a notice replies to."""
    return event.content.get("m.relates_to", {}).get("m.in_reply_to", {}).get("event_id")


def written_by(stage: Stage, person: str) -> list[str]:
    """The ids of the events of one person, in order."""
    return [event["event_id"] for _, event in stage.homeserver.stream if event["sender"] == person]


def closing(stage: Stage, name: str = "P1") -> str:
    """What stands in the place of a prompt that has ended: the one edit of it, which decides nothing any more."""
    prompt = stage.prompts(name)[-1]
    edit = only(stage.edits(prompt))
    assert not any(key.startswith("dev.agentpod") or key == "suite_event_type" for key in edit.content["m.new_content"])
    return read(edit)


def answers_to(stage: Stage, call_id: object) -> list[object]:
    """Every response that any agent had for this JSON-RPC id."""
    return [line for line in all_responses(stage) if line["id"] == call_id and type(line["id"]) is type(call_id)]


def logged(stage: Stage, event: str) -> list[dict[str, object]]:
    """The log's entries of one kind."""
    return [entry for entry in stage.logs if entry["event"] == event]


def everything_shown(stage: Stage) -> str:
    """All that stands in any event of the bot, as text."""
    return "\n".join(text for event in stage.sent for text in strings(event.content))


def everything_logged(stage: Stage) -> str:
    """All log entries with all their fields."""
    return "\n".join(repr(entry) for entry in stage.logs)
