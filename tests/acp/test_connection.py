"""One conversation: order, queue, bounds and fairness."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.acp import connection as connection_module
from bridge.acp.connection import Connection
from bridge.acp.jsonrpc import Call, Notice, Reply
from bridge.core.errors import AgentClosed, CallFailed
from tests.fakes.process import FakeProcess

pytestmark = pytest.mark.anyio


class Recorder:
    """A `Handler` that writes down what came."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.methods: list[str] = []
        self.arrived = anyio.Event()

    def on_call(self, call: Call) -> None:
        self.calls.append(call)
        self._note(call.method)

    def on_notice(self, notice: Notice) -> None:
        if notice.method == "fault":
            raise RuntimeError(notice.params["text"])
        self._note(notice.method)

    async def wait_for(self, count: int) -> None:
        while len(self.methods) < count:
            self.arrived = anyio.Event()
            await self.arrived.wait()

    def _note(self, method: str) -> None:
        self.methods.append(method)
        self.arrived.set()


@asynccontextmanager
async def talking(fake: FakeProcess) -> AsyncGenerator[tuple[Connection, Recorder]]:
    connection, recorder = Connection(fake, agent="claude"), Recorder()
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run, recorder)
        yield connection, recorder
        group.cancel_scope.cancel()


async def test_messages_are_handled_in_the_order_of_the_wire() -> None:
    fake = FakeProcess()
    with anyio.fail_after(5):
        async with talking(fake) as (_, recorder):
            fake.say(b'{"method":"a"}\n{"method":"b"}\n{"id":1,"method":"c"}\n{"method":"d"}\n')
            await recorder.wait_for(4)
            assert recorder.methods == ["a", "b", "c", "d"]


async def test_requests_wait_side_by_side_and_are_answered_in_any_order() -> None:
    fake = FakeProcess()
    with anyio.fail_after(5):
        async with talking(fake) as (connection, recorder):
            fake.say(b'{"id":1,"method":"m"}\n{"id":2,"method":"m"}\n{"id":3,"method":"m"}\n')
            await recorder.wait_for(3)
            for index in (2, 0, 1):
                connection.answer(recorder.calls[index], index)
            await connection.flush()
            assert [(line["id"], line["result"]) for line in fake.lines] == [(3, 2), (1, 0), (2, 1)]


async def test_an_agent_that_does_not_read_holds_up_nobody() -> None:
    fake = FakeProcess()
    fake.stop_reading()
    with anyio.fail_after(5):
        async with talking(fake) as (connection, recorder):
            fake.say(b'{"id":1,"method":"m"}\n')
            await recorder.wait_for(1)
            written: list[bool] = []
            connection.answer(recorder.calls[0], {}, written.append)
            fake.say(b'{"method":"next"}\n')
            await recorder.wait_for(2)
            assert written == []
            fake.read_on()
            await connection.flush()
            assert written == [True]


async def test_what_was_queued_is_told_when_it_can_never_be_written() -> None:
    fake = FakeProcess()
    fake.stop_reading()
    written: list[tuple[int, bool]] = []
    with anyio.fail_after(5):
        async with talking(fake) as (connection, recorder):
            fake.say(b'{"id":1,"method":"m"}\n{"id":2,"method":"m"}\n{"id":3,"method":"m"}\n')
            await recorder.wait_for(3)
            connection.answer(recorder.calls[0], {}, lambda done: written.append((1, done)))
            connection.answer(recorder.calls[1], {}, lambda done: written.append((2, done)))
            fake.close_stdin()
            await connection.flush()
            connection.answer(recorder.calls[2], {}, lambda done: written.append((3, done)))
            assert connection.ended
    assert written == [(1, False), (2, False), (3, False)]


async def test_a_second_answer_is_not_sent() -> None:
    fake = FakeProcess()
    with anyio.fail_after(5):
        async with talking(fake) as (connection, recorder):
            fake.say(b'{"id":1,"method":"m"}\n')
            await recorder.wait_for(1)
            done = [connection.answer(recorder.calls[0], 1), connection.answer(recorder.calls[0], 2)]
            done.append(connection.fail(recorder.calls[0], -32603))
            await connection.flush()
            assert (done, len(fake.lines)) == ([True, False, False], 1)


async def test_a_call_gives_the_result_or_raises_the_error() -> None:
    fake = FakeProcess({"good": {"x": 1}, "bad": {"error": {"code": -32000, "message": "the agent's own words"}}})
    with anyio.fail_after(5):
        async with talking(fake) as (connection, _):
            assert await connection.call("good", {}) == {"x": 1}
            with pytest.raises(CallFailed, match=r"^The agent answered bad with error -32000\.$") as raised:
                await connection.call("bad", {})
            assert raised.value.code == -32000


async def test_a_call_to_an_agent_that_ends_is_told() -> None:
    fake = FakeProcess()
    with anyio.fail_after(5):
        async with talking(fake) as (connection, _):
            replies: list[Reply | None] = []
            connection.request("never", {}, replies.append)
            fake.close_stdout()
            with pytest.raises(AgentClosed):
                await connection.call("never", {})
            with pytest.raises(AgentClosed):
                await connection.call("later", {})
            connection.notify("later", {})
            assert replies == [None]


async def test_a_fault_in_a_notification_costs_that_one_alone_and_is_logged_without_its_text() -> None:
    fake = FakeProcess()
    with anyio.fail_after(5), capture_logs() as logs:
        async with talking(fake) as (_, recorder):
            fake.say(b'{"method":"fault","params":{"text":"own words"}}\n{"method":"next"}\n')
            await recorder.wait_for(1)
            assert recorder.methods == ["next"]
    (entry,) = [entry for entry in logs if entry["event"] == "acp.handler_failed"]
    assert entry["error"] == "RuntimeError"
    assert "own words" not in str(entry)


async def test_an_agent_that_never_reads_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "OUTGOING_LIMIT_COUNT", 3)
    fake = FakeProcess()
    fake.stop_reading()
    with anyio.fail_after(5):
        async with talking(fake) as (connection, _):
            for _ in range(4):
                connection.notify("m", {})
            assert connection.ended


async def test_so_is_one_with_too_many_bytes_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "OUTGOING_LIMIT_BYTES", 100)
    fake = FakeProcess()
    fake.stop_reading()
    with anyio.fail_after(5):
        async with talking(fake) as (connection, _):
            connection.notify("m", {"x": "y" * 100})
            assert connection.ended


async def test_noise_is_complained_about_with_a_bound_and_logged_with_a_bound() -> None:
    fake = FakeProcess()
    fake.stop_reading()
    with anyio.fail_after(20), capture_logs() as logs:
        async with talking(fake) as (connection, recorder):
            fake.say(b"noise\n" * 50_000 + b'{"method":"next"}\n')
            await recorder.wait_for(1)
            fake.read_on()
            await connection.flush()
            assert len(fake.lines) == connection_module.REFUSALS_LIMIT_COUNT
            fake.say(b"noise\n")
            await fake.hear(id=None)
    refused = [entry for entry in logs if entry["event"] == "acp.line_refused"]
    assert len(refused) < 30
    assert "noise" not in str(refused)


async def test_a_half_line_at_the_end_is_not_answered() -> None:
    fake = FakeProcess()
    with anyio.fail_after(5):
        connection = Connection(fake, agent="claude")
        fake.say(b'{"jsonrpc":"2.0","id":2,"meth')
        fake.close_stdout()
        await connection.run(Recorder())
        assert (connection.ended, fake.lines) == (True, [])


async def test_a_hundred_thousand_updates_do_not_make_an_answer_late() -> None:
    """The answer is asked for while all of them are there to be read, and is out long before the last of them."""
    fake = FakeProcess()
    line = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan"}}}\n'
    with anyio.fail_after(60):
        async with talking(fake) as (connection, recorder):
            fake.say(b'{"id":1,"method":"m"}\n')
            await recorder.wait_for(1)
            for _ in range(160):
                fake.say(line * 625)
            await recorder.wait_for(2)
            connection.answer(recorder.calls[0], {})
            await connection.flush()
            seen = len(recorder.methods)
            await recorder.wait_for(100_001)
    assert seen < 20_000
