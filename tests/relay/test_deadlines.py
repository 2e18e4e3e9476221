"""Deadlines by a wall clock that may jump."""

import anyio
import pytest

from bridge.core.model import CallRef, Ending, Millis, Phase, RequestId, Selected
from bridge.relay.deadlines import SLACK, Deadlines
from tests.core.play import SESSION, agent
from tests.relay.rig import Rig

FIRST = RequestId(f"{SESSION}:1")


class Clock:
    def __init__(self) -> None:
        self.now = Millis(0)
        self.reached: list[RequestId] = []
        self.open: set[RequestId] = set()
        self.came = anyio.Event()
        self.deadlines = Deadlines(clock=lambda: self.now, reached=self.reach, is_open=self.open.__contains__)

    def reach(self, request_id: RequestId) -> None:
        self.reached.append(request_id)
        self.came.set()


def test_what_has_come_is_called_in_the_order_of_time() -> None:
    clock = Clock()
    for at in (30, 10, 20):
        clock.deadlines.add(Millis(at), RequestId(f"r{at}"), open_count=3)
    clock.now = Millis(20)
    clock.deadlines.wake()
    assert clock.reached == ["r10", "r20"]


def test_deadlines_of_ended_requests_are_swept_out_when_they_are_many() -> None:
    clock = Clock()
    clock.open.add(RequestId("r1"))
    for number in range(SLACK + 1):
        clock.deadlines.add(Millis(number), RequestId(f"r{number}"), open_count=0)
    clock.now = Millis(SLACK + 2)
    clock.deadlines.wake()
    assert clock.reached == ["r1"]


async def test_a_deadline_wakes_by_itself_also_one_that_is_added_later() -> None:
    clock = Clock()
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            tasks.start_soon(clock.deadlines.watch)
            await anyio.wait_all_tasks_blocked()
            clock.deadlines.add(Millis(50), RequestId("later"), open_count=1)
            await anyio.wait_all_tasks_blocked()
            assert clock.reached == []
            clock.now = Millis(50)
            await clock.came.wait()
        tasks.cancel_scope.cancel()
    assert clock.reached == ["later"]


async def test_a_clock_that_jumps_ahead_is_noticed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.relay.deadlines.LONGEST_SLEEP_S", 0.001)
    clock = Clock()
    clock.deadlines.add(Millis(3_600_000), RequestId("r"), open_count=1)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            tasks.start_soon(clock.deadlines.watch)
            clock.now = Millis(3_600_000)
            await clock.came.wait()
        tasks.cancel_scope.cancel()


async def test_a_request_whose_time_is_over_gets_its_refusal_and_no_answer_counts_any_more() -> None:
    rig = Rig(agent(expires_after=60_000))
    async with rig.begun():
        asked = await rig.ask()
        rig.now = Millis(rig.now + 60_000)
        rig.relay.wake()
        await rig.quiet()
        await rig.sync(rig.said("1"))
        assert rig.responses == [(CallRef(1), Selected("opt-reject"))]
        decision = rig.relay.state.entries[asked].request.decision
        assert decision is not None
        assert decision.ending is Ending.EXPIRED


async def test_a_clock_that_is_set_back_at_the_deadline_only_puts_it_off() -> None:
    rig = Rig(agent(expires_after=60_000))
    async with rig.begun():
        asked = await rig.ask()
        before = rig.now
        rig.now = Millis(before + 60_000)
        rig.relay.wake()
        rig.now = Millis(before + 1)
        await rig.quiet()
        assert rig.relay.state.entries[asked].request.phase is Phase.PENDING
        rig.now = Millis(before + 60_000)
        rig.relay.wake()
        await rig.quiet()
        assert rig.relay.state.entries[asked].request.phase is Phase.DECIDED
