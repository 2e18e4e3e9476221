"""The port `Agents`: the fake and the real adapter keep the same promises."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import anyio
import pytest

from bridge.core.events import Delivered, NotDelivered
from bridge.core.model import CallRef, Cancelled, Selected
from bridge.core.ports import Agents
from tests.acp.driving import AGENT, SESSION, driving
from tests.fakes.agents import FakeAgents
from tests.fakes.inbox import Inbox

pytestmark = pytest.mark.anyio

Subject: TypeAlias = tuple[Agents, Inbox, list[CallRef]]
Twin: TypeAlias = Callable[[bool], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def the_fake(open_pipe: bool) -> AsyncGenerator[Subject]:
    class Closed(FakeAgents):
        def write(self, call: CallRef) -> None:
            self.lose(call)

    inbox = Inbox()
    make = FakeAgents if open_pipe else Closed
    yield make(inbox.deliver, at_once=True), inbox, [CallRef(1), CallRef(2)]


@asynccontextmanager
async def the_real_one(open_pipe: bool) -> AsyncGenerator[Subject]:
    async with driving() as driven:
        calls = [(await driven.asked(number)).call for number in (1, 2)]
        if not open_pipe:
            driven.fake.close_stdin()
        yield driven.harnesses, driven.inbox, calls


TWINS = pytest.mark.parametrize("twin", [the_fake, the_real_one], ids=["fake", "real"])


@TWINS
async def test_each_response_is_told_to_be_delivered_once(twin: Twin) -> None:
    with anyio.fail_after(5):
        async with twin(True) as (agents, inbox, calls):
            agents.respond(AGENT, calls[1], Selected("opt-allow"))
            agents.respond(AGENT, calls[0], Cancelled())
            told = [await inbox.take(Delivered), await inbox.take(Delivered)]
            assert told == [Delivered(agent=AGENT, call=call) for call in reversed(calls)]
            assert "NotDelivered" not in inbox.kinds()


@TWINS
async def test_a_response_into_a_closed_pipe_is_told_not_to_be_delivered(twin: Twin) -> None:
    with anyio.fail_after(5):
        async with twin(False) as (agents, inbox, calls):
            agents.respond(AGENT, calls[0], Cancelled())
            assert await inbox.take(NotDelivered) == NotDelivered(agent=AGENT, call=calls[0])
            assert "Delivered" not in inbox.kinds()


@TWINS
async def test_prompting_cancelling_and_closing_return_at_once(twin: Twin) -> None:
    with anyio.fail_after(5):
        async with twin(True) as (agents, inbox, _):
            before = len(inbox.events)
            agents.prompt(AGENT, SESSION, "go")
            agents.cancel(AGENT, SESSION)
            agents.close(AGENT, SESSION)
            assert len(inbox.events) == before
