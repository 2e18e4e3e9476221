"""What the machine compares: responses, endings, what a prompt shows, and what must be so after every run.

Above it: the test modules. Below it: the stage, played to its end. Sentences are no part of it: they are in claims.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from typing import Any

from bridge.core.model import JsonValue
from tests.cases.reading import Run
from tests.cases.stage import Stage
from tests.cases.wording import FAKE_TOKEN, write_response
from tests.peers.homeserver import SentEvent

BLOCKS = frozenset({"p", "li", "ol", "pre", "br"})

Json = dict[str, Any]


def judge(run: Run, stage: Stage) -> None:
    """Everything that a machine can compare."""
    _judge_responses(run, stage)
    for name, endings in run.expected.get("state", {}).items():
        assert stage.ending(name) in ([endings] if isinstance(endings, str) else endings), name
    for name, shown in run.expected.get("shown", {}).items():
        _judge_shown(shown, stage.prompts(name)[0], stage)
    for never in run.expected.get("never", ()):
        if not isinstance(never, str):
            assert write_response(never) not in all_responses(stage)
    _judge_each_time(stage)


def _judge_responses(run: Run, stage: Stage) -> None:
    if "to_agent_one_of" in run.expected:
        allowed: list[Any] = run.expected["to_agent_one_of"]
    elif "to_agent" in run.expected:
        allowed = [run.expected["to_agent"]]
    else:
        return
    order = sorted if run.expected.get("any_order") else list
    pairs: list[tuple[dict[str, list[str]], dict[str, list[str]]]] = []
    for expected in allowed:
        by_agent: dict[str, list[Json]] = {"A": expected} if isinstance(expected, list) else expected
        written = {agent: list(map(write_response, ones)) for agent, ones in by_agent.items()}
        answered = {agent: _comparable(stage.responses(agent), ones) for agent, ones in written.items()}
        pairs.append((_ordered(written, order), _ordered(answered, order)))
    assert any(written == answered for written, answered in pairs), pairs


def _ordered(lines: dict[str, list[Json]], order: Callable[[Iterable[str]], list[str]]) -> dict[str, list[str]]:
    return {agent: order(map(canonical, ones)) for agent, ones in lines.items()}


def _comparable(lines: list[Json], expected: list[Json]) -> list[Json]:
    """Errors to nobody count only where the case lists one; of an error only the code is compared."""
    lists_one = any(one["id"] is None for one in expected)
    return [
        {**line, "error": line["error"]["code"]} if "error" in line else line
        for line in lines
        if line["id"] is not None or lists_one
    ]


def all_responses(stage: Stage) -> list[Json]:
    """What every agent was answered."""
    return [line for agent in stage.setup.agents for line in stage.responses(agent)]


def canonical(value: object) -> str:
    """A text that is equal only for JSON of the same values and types: 1, "1", 1.0 and true are four."""
    return json.dumps(value, sort_keys=True)


def _judge_shown(shown: Json, prompt: SentEvent, stage: Stage) -> None:
    texts = [read_body(prompt), read_html(prompt)]
    for wanted in shown.get("contains", ()):
        for text in texts:
            assert wanted.casefold() in text.casefold(), wanted
    everything = [*strings(prompt.content), json.dumps(prompt.content, ensure_ascii=False)]
    for unwanted in shown.get("lacks", ()):
        assert not any(unwanted.replace("{{fake_token}}", FAKE_TOKEN) in text for text in everything), unwanted
    if shown.get("mentions") == "ours":
        assert prompt.content["m.mentions"] == {"user_ids": sorted(stage.setup.approvers)}


def _judge_each_time(stage: Stage) -> None:
    """What the harness hears and what the history says agree, once per request."""
    for agent in stage.setup.agents:
        asked = Counter(canonical(frame["ask"]) for frame in stage.asked if frame.get("harness", "A") == agent)
        answered = Counter(canonical(line["id"]) for line in stage.responses(agent) if line["id"] is not None)
        assert all(count <= max(1, asked[call_id]) for call_id, count in answered.items()), "answered twice"
    accepted = [row.fields["outcome"] for row in stage.records if row.type == "permission_response"]
    selected = [line["result"]["outcome"] for line in all_responses(stage) if "result" in line]
    assert all(outcome in accepted for outcome in selected if outcome["outcome"] == "selected")
    decided = [row.fields["request_id"] for row in stage.records if row.type == "permission_ended"]
    assert len(decided) == len(set(decided))
    for event in stage.sent:
        assert "m.mentions" in event.content or event.type != "m.room.message"


# ----------------------------------------------------------------------------------------------- what a reader sees


class _Reader(HTMLParser):
    """The text of HTML, with a line end where a block begins or ends."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - its signature
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in BLOCKS:
            self.parts.append("\n")


def read_body(event: SentEvent) -> str:
    """The plain text of an event; of an edit its new one."""
    return event.content.get("m.new_content", event.content)["body"]


def read_html(event: SentEvent) -> str:
    """What a client makes of the formatted text of an event, or of the plain one where there is none."""
    content = event.content.get("m.new_content", event.content)
    if "formatted_body" not in content:
        return content["body"]
    reader = _Reader()
    reader.feed(content["formatted_body"])
    reader.close()
    return "".join(reader.parts)


def strings(value: JsonValue) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from strings(key)
            yield from strings(member)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
