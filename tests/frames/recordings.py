"""The recordings and what stands in `expect.json` about each."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

Json = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """One file. `name` is `<harness>/<scenario>`."""

    name: str
    expected: Json

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.jsonl"

    @property
    def agent(self) -> str:
        """Its name in the bridge's config."""
        return self.name.replace("/", "_")

    @property
    def requests(self) -> list[Json]:
        return self.expected["requests"]

    @cached_property
    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def sent(self, method: str) -> list[Json]:
        """The params of what the recorded client sent by this method."""
        return [line["frame"]["params"] for line in self.lines if line.get("frame", {}).get("method") == method]

    @property
    def auth_method(self) -> str | None:
        return next((params["methodId"] for params in self.sent("authenticate")), None)

    @property
    def words(self) -> str:
        """What the person says to the agent."""
        return self.sent("session/prompt")[0]["prompt"][0]["text"]

    def number(self, request: Json) -> int | None:
        """What the person types for a request: None where something else ends it.

        Where the recorded client said what neither person nor bridge says, they choose the last option.
        """
        return request["bridge"]["number"] if request["bridge"] else len(request["options"])

    def merged(self, request: Json) -> Json:
        """The tool call of a request: its own members over those that were told before; what is empty says nothing."""
        call: Json = {}
        before: int = request["line"] - 1
        lines: list[Json] = self.lines
        for line in lines[:before]:
            frame: Json = line["frame"] if line["dir"] == "in" else {}
            if frame.get("method") == "session/update" and frame["params"]["sessionId"] == request["session"]:
                told: Json = frame["params"]["update"]
                if told.get("toolCallId") == request["toolCallId"]:
                    call |= keep_said(told)
        asking: Json = lines[before]
        return call | keep_said(asking["frame"]["params"]["toolCall"])


def keep_said(members: Json) -> Json:
    return {name: value for name, value in members.items() if value not in (None, "", [], {})}


def read_all() -> list[Recording]:
    """All of them, in the order of `expect.json`."""
    files: Json = json.loads((HERE / "expect.json").read_text(encoding="utf-8"))["files"]
    return [Recording(name.removesuffix(".jsonl"), expected) for name, expected in files.items()]
