"""One agent under a `Harnesses`, for the tests of this folder."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from bridge.acp.agent import Harnesses, Launch
from bridge.core.events import Asked
from bridge.core.model import AgentName, JsonValue, Outcome, Selected, SessionId
from tests.fakes.inbox import Inbox
from tests.fakes.process import FakeProcess

AGENT = AgentName("claude")
SESSION = SessionId("acps_0000000000000001")
OPTIONS: list[JsonValue] = [
    {"optionId": "opt-allow", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "opt-reject", "name": "Reject", "kind": "reject_once"},
]


def a_launch(**changes: object) -> Launch:
    fields: dict[str, object] = {"name": AGENT, "command": ("agent",), "cwd": "/w", **changes}
    return Launch(**fields)  # type: ignore[arg-type]


def request_line(call_id: JsonValue, **params: JsonValue) -> dict[str, JsonValue]:
    """A permission request; members that are given replace those of the params."""
    tool_call: JsonValue = {"toolCallId": "c1", "title": "Run tests", "rawInput": {"command": "pytest"}}
    whole: dict[str, JsonValue] = {"sessionId": "h-1", "toolCall": tool_call, "options": OPTIONS, **params}
    return {"jsonrpc": "2.0", "id": call_id, "method": "session/request_permission", "params": whole}


@dataclass
class Driven:
    """An agent that runs, from both of its sides."""

    harnesses: Harnesses
    inbox: Inbox
    fake: FakeProcess

    async def asked(self, call_id: JsonValue = 7, **params: JsonValue) -> Asked:
        """Let the agent ask, and give what the core is told of it."""
        self.fake.say(request_line(call_id, **params))
        return await self.inbox.take(Asked)

    def respond(self, asked: Asked, outcome: Outcome | None = None) -> None:
        self.harnesses.respond(AGENT, asked.call, outcome or Selected("opt-allow"))

    def prompt(self, text: str = "go") -> None:
        self.harnesses.prompt(AGENT, SESSION, text)

    def answers(self) -> list[dict[str, JsonValue]]:
        """What the bridge answered so far, in order, without the version."""
        return [
            {key: value for key, value in line.items() if key != "jsonrpc"}
            for line in self.fake.lines
            if "method" not in line
        ]


@asynccontextmanager
async def driving(replies: Mapping[str, JsonValue] | None = None, **changes: object) -> AsyncGenerator[Driven]:
    """An agent with a session."""
    fake, inbox = FakeProcess(replies), Inbox()
    async with make_harnesses(fake, inbox, **changes) as harnesses:
        await harnesses.start(AGENT)
        yield Driven(harnesses, inbox, fake)


def make_harnesses(fake: FakeProcess, inbox: Inbox, **changes: object) -> Harnesses:
    numbers = iter(range(1, 100))
    return Harnesses(
        [a_launch(**changes)],
        deliver=inbox.deliver,
        new_session_id=lambda: SessionId(f"acps_{next(numbers):016x}"),
        version="0.1.0",
        spawn=fake.spawn,
    )


def error(line: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return cast("dict[str, JsonValue]", line["error"])
