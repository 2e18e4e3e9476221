"""Our client against the agent side of the public package, in a process of its own."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bridge.acp.agent import Harnesses, Launch
from bridge.core.events import AgentGone, Asked, Delivered, SessionStarted, TurnEnded
from bridge.core.model import Cancelled, Selected
from tests.acp.driving import AGENT, SESSION
from tests.fakes.inbox import Inbox

pytestmark = pytest.mark.anyio

PEER = Path(__file__).parents[1] / "peers" / "package_agent.py"


@asynccontextmanager
async def with_the_package(mode: str | None) -> AsyncGenerator[tuple[Harnesses, Inbox]]:
    inbox = Inbox()
    launch = Launch(name=AGENT, command=(sys.executable, str(PEER)), cwd="/usr", mode=mode)
    with anyio.fail_after(60):
        async with Harnesses(
            [launch], deliver=inbox.deliver, new_session_id=lambda: SESSION, version="0.1.0"
        ) as harnesses:
            await harnesses.start(AGENT)
            yield harnesses, inbox


async def test_a_turn_with_two_requests_answered_the_other_way_round() -> None:
    async with with_the_package("ask") as (harnesses, inbox):
        harnesses.prompt(AGENT, SESSION, "Run the tests")
        first, second = await inbox.take(Asked), await inbox.take(Asked)
        assert (first.description.title, first.description.essence.command) == ("Run the tests", "pytest -q")
        assert second.description.title == "an action"
        harnesses.respond(AGENT, second.call, Selected("no"))
        harnesses.respond(AGENT, first.call, Selected("once"))
        ended = await inbox.take(TurnEnded)
        assert (ended.stop_reason, ended.text) == ("end_turn", "ask: once no")
    assert inbox.events[-1] == AgentGone(agent=AGENT, session_id=SESSION, exit_code=0)


async def test_a_cancelled_turn_whose_requests_are_answered_cancelled() -> None:
    async with with_the_package("ask") as (harnesses, inbox):
        harnesses.prompt(AGENT, SESSION, "Run the tests")
        asked = [await inbox.take(Asked), await inbox.take(Asked)]
        harnesses.cancel(AGENT, SESSION)
        for one in asked:
            harnesses.respond(AGENT, one.call, Cancelled())
        ended = await inbox.take(TurnEnded)
        assert (ended.stop_reason, ended.text) == ("cancelled", "ask: cancelled cancelled")
        assert inbox.kinds().count(Delivered.__name__) == 2


async def test_a_mode_that_skips_questions_is_told() -> None:
    async with with_the_package(None) as (_, inbox):
        note = (await inbox.take(SessionStarted)).mode_note
        assert note == "The session is in mode auto, in which the agent may act without asking."
