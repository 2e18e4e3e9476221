"""Trials: a real client answers a running bridge, one surface after another, and what its person saw.

Above it: `run` and the tests. Below it: the client (through `seen`), the bridge as a program, and a scripted agent. It
refuses to know how any of them does its part.
"""

import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from bridge.demo.homeserver import Account, Homeserver, call
from tests.clients.seen import Client, DidNotCome, Shown
from tests.e2e.stage import Agent
from tests.peers.service import Service, running, write_config

AGENT_S = 60.0
"""From an answer in the client to the agent: a second here, more where the person's own limit makes it wait."""
LOOK_S = 0.05
"""Between looks at the log of the agent, which is another process."""
FIRST_CALL = 1001
"""The agent's ids for its questions begin here: the script that it follows must not take a request of the bridge for one."""
REFUSAL = "a session that you have not verified"
"""Of the words to somebody whose device does not count."""
POLL = "org.matrix.msc3381.poll.start"
POLL_TEXT = "org.matrix.msc1767.text"

ANSWERS = {
    "text": ("1", "opt-allow"),
    "reply": ("Reject", "opt-reject"),
    "thread": ("2", "opt-always"),
    "reaction": ("3\ufe0f\u20e3", "opt-reject"),
    "poll": ("Allow once", "opt-allow"),
}
"""What the person answers on each surface, and what the agent must get for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One answer: `seconds` from the client to the agent; `prompt` and `ending` as the person saw them."""

    client: str
    surface: str
    passed: bool
    seconds: float = 0.0
    prompt: Shown | None = None
    ending: Shown | None = None
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Scene:
    """A room that the client made, with the bridge in it."""

    client: Client
    room: str
    encrypted: bool
    homeserver: Homeserver
    bot: Account
    agent: Agent
    bridge: Service
    asked: int = 0

    async def ask(self, *, in_turn: bool = True) -> Shown:
        """Have the agent ask once, in a turn that the person starts; the prompt as the person sees it."""
        call_id = FIRST_CALL + self.asked
        self.asked += 1
        if in_turn:
            self.agent.ask_in_turn(call_id)
            await self.client.say(self.room, "claude: go")
        else:
            self.agent.do({"ask": call_id})
        mark = re.compile(rf"\A.*\(#{self.asked}\):")

        def is_prompt(shown: Shown) -> bool:
            return self.is_said(shown) and bool(mark.match(shown.text))

        return await self.client.until(self.room, is_prompt, what=f"the prompt #{self.asked}")

    def is_said(self, shown: Shown) -> bool:
        """Whether this is a message of the bridge."""
        return shown.sender == self.bot.user_id and shown.kind == "m.room.message"

    def is_sealed(self, shown: Shown) -> bool:
        """Whether the homeserver holds this event encrypted, where the room is encrypted."""
        path = f"/_matrix/client/v3/rooms/{quote(self.room)}/event/{quote(shown.event)}"
        held = call(self.homeserver.base_url, "GET", path, token=self.bot.access_token).body
        return held["type"] == "m.room.encrypted" if self.encrypted else True

    async def ballot(self, name: str) -> tuple[Shown, str]:
        """The poll beside the last prompt, and the id of the answer with this name."""

        def is_poll(shown: Shown) -> bool:
            mine = shown.sender == self.bot.user_id and shown.kind == POLL
            return mine and f"(#{self.asked}):" in shown.content[POLL]["question"][POLL_TEXT]

        poll = await self.client.until(self.room, is_poll, what="the poll")
        for answer in poll.content[POLL]["answers"]:
            if name in answer[POLL_TEXT]:
                return poll, answer["id"]
        raise DidNotCome(f"no answer of the poll has the name {name}")

    async def heard(self) -> str | None:
        """The option that the agent got for its last question; None when it got none."""
        outcomes: list[Any] = []
        with anyio.move_on_after(AGENT_S):
            while not (outcomes := self.agent.answers(FIRST_CALL + self.asked - 1)):  # noqa: ASYNC110 - another process
                await anyio.sleep(LOOK_S)
        return outcomes[0]["outcome"].get("optionId") if outcomes else None

    async def ending(self, prompt: Shown) -> Shown:
        """The prompt after its end."""

        def is_ending(shown: Shown) -> bool:
            if self.client.sees_edits:
                return shown.event == prompt.event and shown.edited
            about = shown.content.get("m.relates_to", {})
            return about.get("rel_type") == "m.replace" and about.get("event_id") == prompt.event

        return await self.client.until(self.room, is_ending, what="the ending")


@asynccontextmanager
async def open_scene(
    folder: Path, homeserver: Homeserver, bot: Account, client: Client, *, encrypted: bool = True, **settings: object
) -> AsyncGenerator[Scene]:
    """The bridge in a room that the client has just made; the settings are those of the agent."""
    agent = Agent(folder, "claude")
    try:
        room = await client.create_room(bot.user_id, encrypted=encrypted)
        keys = {"command": agent.command, "cwd": str(folder), "room": room, "approvers": [client.user_id]}
        agents = {"claude": keys | settings}
        config = write_config(folder, homeserver.base_url, bot, agents, encryption=encrypted)
        async with running(config) as bridge:
            await client.until_joined(room, bot.user_id)
            yield Scene(
                client=client,
                room=room,
                encrypted=encrypted,
                homeserver=homeserver,
                bot=bot,
                agent=agent,
                bridge=bridge,
            )
    finally:
        agent.close()


async def try_surface(scene: Scene, surface: str) -> Trial:
    """Ask, have the person answer on this surface, and look at what the agent got and the person saw."""
    text, expected = ANSWERS[surface]
    prompt = ending = None
    seconds = 0.0
    try:
        prompt = target = await scene.ask()
        if surface == "poll":
            target, text = await scene.ballot(text)
        began = time.monotonic()
        await scene.client.answer(surface, scene.room, target, text)
        got = await scene.heard()
        seconds = time.monotonic() - began
        ending = await scene.ending(prompt) if got else None
        why = "" if got == expected else f"the agent got {got!r}, not {expected!r}"
        seen = [prompt, *([ending] if ending else [])]
        if not all(map(scene.is_sealed, seen)):
            why = "the homeserver could read it"
        if warned := {shown.shield for shown in seen} - {"", "none"}:
            why = f"the person is warned of it: a {warned.pop()} shield"
    except DidNotCome as late:
        why = str(late)
    return Trial(
        client=scene.client.name,
        surface=surface,
        passed=not why,
        seconds=seconds,
        prompt=prompt,
        ending=ending,
        why=why,
    )


async def try_refusal(scene: Scene) -> Trial:
    """Answer twice from a device that does not count: the person is told so once, and nothing is decided by it.

    A reaction, which comes from no device, then decides: so both answers were weighed before, and counted for nothing.
    """
    told = prompt = None
    seconds = 0.0
    try:
        prompt = await scene.ask(in_turn=False)
        began = time.monotonic()
        await scene.client.say(scene.room, "1")

        def is_told(shown: Shown) -> bool:
            return scene.is_said(shown) and REFUSAL in shown.text

        told = await scene.client.until(scene.room, is_told, what="why the answer does not count")
        seconds = time.monotonic() - began
        await scene.client.say(scene.room, "1")
        text, expected = ANSWERS["reaction"]
        await scene.client.answer("reaction", scene.room, prompt, text)
        got = await scene.heard()
        await scene.ending(prompt)
        times = sum(is_told(shown) for shown in await scene.client.look(scene.room))
        why = "" if (got, times) == (expected, 1) else f"the agent got {got!r}, and the person was told {times} times"
    except DidNotCome as late:
        why = str(late)
    return Trial(
        client=scene.client.name,
        surface="refused device",
        passed=not why,
        seconds=seconds,
        prompt=prompt,
        ending=told,
        why=why,
    )
