"""A real bridge, a real homeserver, agents that do what a test tells them, and people: what the tests of this folder play on."""

import json
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bridge.core.changes import Record
from bridge.demo.homeserver import Account, Homeserver
from bridge.store.ledger import read_history
from tests.peers import scripted_agent
from tests.peers.service import Service, running, write_config
from tests.peers.watch import Watch, use, watching

Json = dict[str, Any]

ALLOW = {"outcome": {"outcome": "selected", "optionId": "opt-allow"}}
REJECT = {"outcome": {"outcome": "selected", "optionId": "opt-reject"}}
CANCELLED = {"outcome": {"outcome": "cancelled"}}


class Agent:
    """A scripted agent: each step that is told is done at once, in order."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._script = folder / f"{name}.steps"
        os.mkfifo(self._script)
        self._steps = os.open(self._script, os.O_RDWR)  # for reading too, so that no end waits for the other
        self.command = [sys.executable, scripted_agent.__file__, str(self._script), str(self._log)]

    def do(self, *steps: Json) -> None:
        """Tell it what to do."""
        os.write(self._steps, b"".join(json.dumps(step).encode() + b"\n" for step in steps))

    def ask_in_turn(self, *call_ids: int) -> None:
        """Ask once it is prompted; when all of it is answered, say `done` and end the turn."""
        asks = [{"ask": call_id} for call_id in call_ids]
        waits = [{"wait": {"id": call_id}} for call_id in call_ids]
        self.do({"wait": {"method": "session/prompt"}}, *asks, *waits, {"end_turn": "end_turn", "text": "done"})

    @property
    def read(self) -> list[Json]:
        """What it was sent so far."""
        return [json.loads(line) for line in self._log.read_bytes().splitlines()] if self._log.exists() else []

    def answers(self, call_id: int) -> list[Any]:
        """The results for one of its requests."""
        return [line["result"] for line in self.read if "method" not in line and line.get("id") == call_id]

    def told(self) -> list[str]:
        """The words that it was prompted with."""
        return [line["params"]["prompt"][0]["text"] for line in self.read if line.get("method") == "session/prompt"]

    def close(self) -> None:
        os.close(self._steps)


@dataclass
class Stage:
    """Everything but the running bridge. `alice` and `bob` may answer, `carol` may not."""

    folder: Path
    homeserver: Homeserver
    bot: Account
    people: Mapping[str, Watch]
    room: str = ""
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    config: Path = Path()

    @property
    def alice(self) -> Watch:
        return self.people["alice"]

    @property
    def agent(self) -> Agent:
        return self.agents["claude"]

    @property
    def history(self) -> list[Record]:
        """The durable record, as it stands in the ledger."""
        return read_history(self.folder / "state" / "ledger.db")

    def endings(self) -> list[tuple[str, bool]]:
        """How requests ended, and whether the agent got that, in this order."""
        rows = [record.fields for record in self.history if record.type == "permission_ended"]
        return [(str(row["ending"]), bool(row["delivered"])) for row in rows]

    def write_config(self, *, agent: Mapping[str, object] | None = None, **matrix: object) -> None:
        """The config for the agents that are there, with these settings for each."""
        shared: Json = {
            "cwd": str(self.folder),
            "room": self.room,
            "approvers": [self.people[name].person.user_id for name in ("alice", "bob")],
        }
        sections = {name: {"command": one.command} | shared | dict(agent or {}) for name, one in self.agents.items()}
        url = self.homeserver.base_url
        self.config = write_config(self.folder, url, self.bot, sections, **({"encryption": False} | matrix))

    async def invite(self, user_id: str) -> None:
        """Alice invites somebody into the room."""
        await self.alice.person.ask("POST", f"/rooms/{self.room}/invite", {"user_id": user_id})

    async def enter(self, name: str) -> Watch:
        """Let somebody join the room."""
        await self.invite(self.people[name].person.user_id)
        await self.people[name].person.ask("POST", f"/join/{self.room}")
        return self.people[name]

    async def until_joined(self) -> None:
        """The bot is in the room."""

        def joins() -> list[Json]:
            members = self.alice.events(self.room, "m.room.member", self.bot.user_id)
            return [event for event in members if event["content"]["membership"] == "join"]

        await self.alice.until(joins)

    async def prompt(self, number: int = 1) -> Json:
        """The message that asks for this request."""
        return await self.alice.until(lambda: self.find_prompt(number))

    def find_prompt(self, number: int) -> Json | None:
        mark = f"(#{number}):"
        return next((p for p in self.alice.prompts(self.room) if mark in p["content"]["body"].partition("\n")[0]), None)

    async def heard(self, text: str) -> str:
        """The body of a message of the bot's that holds this text."""
        event = await self.alice.until(lambda: self.alice.heard(self.room, text))
        return event["content"]["body"]

    async def edited(self, prompt: Json) -> str:
        """What a prompt was edited to, at its end."""
        edits = await self.alice.until(lambda: self.alice.edits(self.room, prompt["event_id"]))
        assert len(edits) == 1
        return edits[0]

    async def start_turn(self, *call_ids: int) -> Json:
        """Alice's words start a turn in which the agent asks; the first prompt, once all are in the room."""
        self.agent.ask_in_turn(*call_ids)
        await self.until_joined()
        await self.alice.person.say(self.room, "claude: go")
        for number in range(2, len(call_ids) + 1):
            await self.prompt(number)
        return await self.prompt()


@asynccontextmanager
async def setting_up(homeserver: Homeserver, folder: Path, *names: str, invited: bool = True) -> AsyncGenerator[Stage]:
    """A room of Alice's with the bot invited, and agents of these names; nothing runs yet."""
    mark = secrets.token_hex(4)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        people = {
            name: await stack.enter_async_context(
                watching(use(homeserver.register(f"{name}-{mark}"), homeserver.base_url, http))
            )
            for name in ("alice", "bob", "carol")
        }
        stage = Stage(folder=folder, homeserver=homeserver, bot=homeserver.register(f"bridge-{mark}"), people=people)
        stage.room = await stage.alice.person.room(*([stage.bot.user_id] if invited else []))
        for name in names or ("claude",):
            stage.agents[name] = Agent(folder, name)
            stack.callback(stage.agents[name].close)
        stage.write_config()
        yield stage


@asynccontextmanager
async def playing(
    homeserver: Homeserver, folder: Path, *names: str, **settings: object
) -> AsyncGenerator[tuple[Stage, Service]]:
    """The same with the bridge running; the settings are those of every agent."""
    async with setting_up(homeserver, folder, *names) as stage:
        stage.write_config(agent=settings)
        async with running(stage.config) as bridge:
            yield stage, bridge
