"""Agents from their start to their end, side by side, and one of them a real process."""

import json
import sys
from pathlib import Path

import anyio
import pytest

from bridge.acp.agent import Harnesses, Launch
from bridge.core.errors import AgentStartFailed
from bridge.core.events import AgentGone, Asked, Delivered, TurnEnded
from bridge.core.model import AgentName, Cancelled, JsonValue, Selected, SessionId
from tests.acp.driving import AGENT, SESSION, a_launch, driving, make_harnesses, request_line
from tests.fakes.inbox import Inbox
from tests.fakes.process import FakeProcess

pytestmark = pytest.mark.anyio

SCRIPTED = Path(__file__).parents[1] / "peers" / "scripted_agent.py"


async def test_an_agent_that_runs_is_not_started_again() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            with pytest.raises(AgentStartFailed, match=r"^Agent claude is running already\.$"):
                await driven.harnesses.start(AGENT)


async def test_an_agent_that_starts_is_not_started_again() -> None:
    fake, inbox = FakeProcess({"initialize": None}), Inbox()
    with anyio.fail_after(5):
        async with make_harnesses(fake, inbox) as harnesses, anyio.create_task_group() as group:
            group.start_soon(harnesses.start, AGENT)
            asked = await fake.hear(method="initialize")
            with pytest.raises(AgentStartFailed, match="running already"):
                await harnesses.start(AGENT)
            fake.reply(asked, {"protocolVersion": 1})
    assert len(fake.launches) == 1


async def test_an_agent_that_ended_can_be_started_again_with_a_new_session() -> None:
    fakes = [FakeProcess(), FakeProcess()]
    inbox, numbers = Inbox(), iter("12")
    left = iter(fakes)

    async def spawn(launch: Launch) -> FakeProcess:
        return await next(left).spawn(launch)

    with anyio.fail_after(5):
        async with Harnesses(
            [a_launch()],
            deliver=inbox.deliver,
            new_session_id=lambda: SessionId(next(numbers)),
            version="1",
            spawn=spawn,
        ) as harnesses:
            await harnesses.start(AGENT)
            fakes[0].exit(1)
            await inbox.take(AgentGone)
            await harnesses.stop(AGENT)
            assert await harnesses.start(AGENT) == "2"


async def test_stopping_tells_that_the_agent_is_gone_and_only_then_returns() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            await driven.harnesses.stop(AGENT)
            assert driven.fake.stopped
            assert driven.inbox.events[-1] == AgentGone(agent=AGENT, session_id=SESSION, exit_code=0)
            await driven.harnesses.stop(AGENT)


async def test_stopping_while_it_starts_ends_the_start() -> None:
    fake, inbox = FakeProcess({"session/new": None}), Inbox()
    with anyio.fail_after(5):
        async with make_harnesses(fake, inbox) as harnesses, anyio.create_task_group() as group:

            async def stop() -> None:
                await fake.hear(method="session/new")
                await harnesses.stop(AGENT)

            group.start_soon(stop)
            with pytest.raises(AgentStartFailed, match=r"^Agent claude was stopped while it started\.$"):
                await harnesses.start(AGENT)
    assert (fake.stopped, inbox.events) == (True, [])


async def test_a_cancelled_start_stops_the_process() -> None:
    fake, inbox = FakeProcess({"session/new": None}), Inbox()
    with anyio.fail_after(5):
        async with make_harnesses(fake, inbox) as harnesses:
            async with anyio.create_task_group() as group:
                group.start_soon(harnesses.start, AGENT)
                await fake.hear(method="session/new")
                group.cancel_scope.cancel()
            await harnesses.stop(AGENT)
            assert fake.stopped


async def test_last_answers_are_written_before_the_pipe_closes() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.respond(await driven.asked(), Cancelled())
        assert driven.answers() == [{"id": 7, "result": {"outcome": {"outcome": "cancelled"}}}]
        assert driven.inbox.kinds()[-2:] == ["Delivered", "AgentGone"]


async def test_they_are_written_even_when_everything_is_cancelled() -> None:
    fake, inbox = FakeProcess(), Inbox()
    with anyio.fail_after(5):
        with anyio.CancelScope() as scope:
            async with make_harnesses(fake, inbox) as harnesses:
                await harnesses.start(AGENT)
                fake.say(request_line(7))
                harnesses.respond(AGENT, (await inbox.take(Asked)).call, Cancelled())
                scope.cancel()
    assert fake.lines[-1]["result"] == {"outcome": {"outcome": "cancelled"}}
    assert inbox.kinds()[-2:] == ["Delivered", "AgentGone"]


async def test_an_error_of_the_body_comes_out_by_its_own_name() -> None:
    with anyio.fail_after(5), pytest.raises(KeyError):
        async with driving():
            raise KeyError


async def test_one_that_does_not_read_ends_all_the_same_and_its_answer_is_not_delivered() -> None:
    with anyio.fail_after(10):
        async with driving() as driven:
            driven.fake.stop_reading()
            driven.respond(await driven.asked())
        assert driven.inbox.kinds()[-2:] == ["NotDelivered", "AgentGone"]


async def test_all_are_stopped_at_the_same_time() -> None:
    """Neither can end before the other one is asked to."""
    names = [AgentName("one"), AgentName("two")]
    inbox = Inbox()
    asked = {name: anyio.Event() for name in names}

    class Partner(FakeProcess):
        async def stop(self) -> int | None:
            mine = names.index(self.launches[0].name)
            asked[names[mine]].set()
            await asked[names[1 - mine]].wait()
            return await super().stop()

    async def spawn(launch: Launch) -> FakeProcess:
        return await Partner().spawn(launch)

    numbers = iter("12")
    with anyio.fail_after(5):
        async with Harnesses(
            [a_launch(name=name) for name in names],
            deliver=inbox.deliver,
            new_session_id=lambda: SessionId(next(numbers)),
            version="1",
            spawn=spawn,
        ) as harnesses:
            for name in names:
                await harnesses.start(name)
    assert inbox.kinds().count("AgentGone") == 2


# ------------------------------------------------------------------------------------------------------ a real process


def scripted(tmp_path: Path, *steps: dict[str, JsonValue]) -> tuple[Launch, Path]:
    (tmp_path / "script").write_text("".join(json.dumps(step) + "\n" for step in steps))
    command = (sys.executable, str(SCRIPTED), str(tmp_path / "script"), str(tmp_path / "log"))
    return Launch(name=AGENT, command=command, cwd=str(tmp_path)), tmp_path / "log"


async def heard(log: Path) -> list[dict[str, JsonValue]]:
    return [json.loads(line) for line in (await anyio.Path(log).read_text()).splitlines()]


def real(launch: Launch, inbox: Inbox) -> Harnesses:
    return Harnesses([launch], deliver=inbox.deliver, new_session_id=lambda: SESSION, version="0.1.0")


async def test_a_turn_with_a_real_process(tmp_path: Path) -> None:
    launch, log = scripted(
        tmp_path,
        {"stderr_bytes": 1_000_000},
        {"wait": {"method": "session/prompt"}},
        {"raw": "Loaded cached credentials."},
        {"ask": "q-1"},
        {"wait": {"id": "q-1"}},
        {"end_turn": "end_turn", "text": "Done."},
    )
    inbox = Inbox()
    with anyio.fail_after(20):
        async with real(launch, inbox) as harnesses:
            await harnesses.start(AGENT)
            harnesses.prompt(AGENT, SESSION, "go")
            asked = await inbox.take(Asked)
            harnesses.respond(AGENT, asked.call, Selected("opt-reject"))
            await inbox.take(Delivered)
            assert (await inbox.take(TurnEnded)).text == "Done."
    answer = next(line for line in await heard(log) if line.get("id") == "q-1")
    assert answer["result"] == {"outcome": {"outcome": "selected", "optionId": "opt-reject"}}
    assert inbox.events[-1] == AgentGone(agent=AGENT, session_id=SESSION, exit_code=0)


async def test_a_real_process_that_dies_while_one_waits(tmp_path: Path) -> None:
    launch, _ = scripted(tmp_path, {"wait": {"method": "session/prompt"}}, {"ask": 1}, {"child": 5}, {"exit": 3})
    inbox = Inbox()
    with anyio.fail_after(20):
        async with real(launch, inbox) as harnesses:
            await harnesses.start(AGENT)
            harnesses.prompt(AGENT, SESSION, "go")
            await inbox.take(Asked)
            assert (await inbox.take(AgentGone)).exit_code == 3


async def test_a_real_process_that_cannot_start() -> None:
    inbox = Inbox()
    with anyio.fail_after(20):
        async with real(Launch(name=AGENT, command=("/no/such",), cwd="/"), inbox) as harnesses:
            with pytest.raises(AgentStartFailed, match="there is no command /no/such"):
                await harnesses.start(AGENT)
    assert inbox.events == []
