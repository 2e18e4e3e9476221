"""The life of a real agent process: the operating system is the subject here."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.acp import process as process_module
from bridge.acp.process import HarnessProcess, choose_environment, start_process
from bridge.core.errors import AgentClosed, AgentStartFailed
from bridge.core.model import JsonValue

pytestmark = pytest.mark.anyio

AGENT = Path(__file__).parents[1] / "peers" / "scripted_agent.py"
PING = b'{"id":1,"method":"initialize"}\n'


@asynccontextmanager
async def running(*steps: dict[str, JsonValue]) -> AsyncGenerator[tuple[HarnessProcess, Path]]:
    """A scripted agent, and the file that it logs what it reads to."""
    folder = Path(tempfile.mkdtemp())
    script, log = folder / "script", folder / "log"
    script.write_text("".join(json.dumps(step) + "\n" for step in steps))
    process = await python(str(AGENT), str(script), str(log))
    try:
        yield process, log
    finally:
        await process.stop()
        shutil.rmtree(folder)


async def python(*arguments: str) -> HarnessProcess:
    environment = choose_environment(os.environ)
    return await start_process("claude", [sys.executable, *arguments], cwd="/", environment=environment)


async def read(process: HarnessProcess, what: bytes) -> bytes:
    """What it writes, until these bytes are there."""
    data = b""
    while what not in data:
        piece = await process.receive()
        assert piece, f"ended before {what!r}: {data[-200:]!r}"
        data += piece
    return data


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def ended(pid: int) -> None:
    while alive(pid):  # noqa: ASYNC110 - a process that is not our child: there is nothing to wait for
        await anyio.sleep(0.01)


async def child_of(log: Path) -> int:
    """The process id that the agent wrote down before it said that it is ready."""
    return int(json.loads((await anyio.Path(log).read_text()).splitlines()[-1])["child"])


async def write_until_it_fails(process: HarnessProcess) -> None:
    while True:  # the first write may still find the pipe open
        await process.send(b"x\n")


# ------------------------------------------------------------------------------------------------------------- starting


async def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(AgentStartFailed, match=r"^Agent claude was not started: there is no command /no/such/agent\.$"):
        await start_process("claude", ["/no/such/agent"], cwd="/", environment={})


async def test_a_folder_that_does_not_exist_is_named() -> None:
    with pytest.raises(AgentStartFailed, match=r"^Agent claude was not started: its folder /no/such does not exist\.$"):
        await start_process("claude", ["true"], cwd="/no/such", environment={})


async def test_a_file_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("x")
    with pytest.raises(AgentStartFailed, match=r"may not be run\.$"):
        await start_process("claude", [str(tmp_path / "agent")], cwd="/", environment={})


async def test_an_argument_with_a_nul_is_a_sentence_too() -> None:
    with pytest.raises(AgentStartFailed, match="holds a NUL"):
        await start_process("claude", ["true", "a\0b"], cwd="/", environment={})


async def test_a_file_that_is_no_program_is_a_sentence_too(tmp_path: Path) -> None:
    (tmp_path / "agent").write_bytes(b"\x7fELF nothing")
    (tmp_path / "agent").chmod(0o700)
    with pytest.raises(AgentStartFailed, match="was not started"):
        await start_process("claude", [str(tmp_path / "agent")], cwd="/", environment={})


def test_the_environment_is_passed_on_purpose() -> None:
    ours = {"HOME": "/h", "LC_ALL": "C", "PATH": "/bin", "SECRET": "s", "KEY": "k", "LD_PRELOAD": "x", "TZ": "UTC"}
    chosen = choose_environment(ours, pass_env=["KEY", "ABSENT"], env={"TZ": "Z", "NEW": "n"})
    assert chosen == {"HOME": "/h", "LC_ALL": "C", "PATH": "/bin", "KEY": "k", "TZ": "Z", "NEW": "n"}


async def test_the_process_sees_that_environment_and_its_folder_and_leads_a_group() -> None:
    code = "import os,json;print(json.dumps([dict(os.environ),os.getcwd(),os.getpgrp()==os.getpid()]))"
    with anyio.fail_after(10):
        process = await start_process("x", [sys.executable, "-c", code], cwd="/usr", environment={"A": "b"})
        environment, folder, leads = json.loads(await read(process, b"\n"))
        await process.stop()
    assert (environment.get("A"), "HOME" in environment, folder, leads) == ("b", False, "/usr", True)


# ------------------------------------------------------------------------------------------------------------ the pipes


async def test_fifty_megabytes_of_stderr_before_the_first_word_hold_nothing_up() -> None:
    with anyio.fail_after(60):
        async with running({"stderr_bytes": 50_000_000}) as (process, _):
            await process.send(PING)
            await read(process, b'"protocolVersion"')
            lines = process.last_lines
    assert len(lines) == process_module.ERROR_LINES_KEPT_COUNT
    assert max(map(len, lines)) <= process_module.ERROR_LINE_LIMIT_BYTES


async def test_stderr_is_logged_in_short_escaped_lines_and_not_all_of_them() -> None:
    code = "import sys; sys.stderr.buffer.write(b'\\xff\\x1b[31m' + b'y' * 9000 + b'\\n\\n' + b'z\\n' * 5000 + b'last')"
    with anyio.fail_after(10), capture_logs() as logs:
        process = await python("-c", code)
        await process.wait()
        await process.stop()
    lines = [entry["line"] for entry in logs if entry["event"] == "agent.stderr"]
    assert lines[0] == "\\ufffd\\x1b[31m" + "y" * (process_module.ERROR_LINE_LIMIT_BYTES - 6)
    assert len(lines) <= 2 * process_module.ERROR_LINES_LOGGED_PER_SECOND
    assert process.last_lines[-2:] == ("z", "last")


async def test_secrets_in_stderr_are_masked_in_the_log_and_in_the_last_lines() -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3
    code = f"import sys; sys.stderr.write('401 for {token}\\nAPI_KEY=zzz999888777')"
    with anyio.fail_after(10), capture_logs() as logs:
        process = await python("-c", code)
        await process.wait()
        await process.stop()
    logged = [entry["line"] for entry in logs if entry["event"] == "agent.stderr"]
    assert (logged, process.last_lines) == (["401 for ghp_[masked]"], ("401 for ghp_[masked]", "API_KEY=[masked]"))


async def test_a_line_of_any_length_comes_whole_to_a_slow_reader() -> None:
    with anyio.fail_after(30):
        async with running({"repeat": "x" * 100, "times": 80_000}) as (process, _):
            while not process._reading_paused:  # noqa: ASYNC110 # pyright: ignore[reportPrivateUsage] - the agent is made to wait: nothing tells of it
                await anyio.sleep(0.01)
            data = await read(process, b"\n")
    assert data == b"x" * 8_000_000 + b"\n"


async def test_a_write_is_done_only_when_the_kernel_has_all_of_it() -> None:
    """An agent that does not read: every write that is done left nothing in this process, and one of them never is."""
    left: list[int] = []
    with anyio.fail_after(10):
        async with running({"stop_reading": True}) as (process, _):
            with anyio.move_on_after(0.5) as waiting:
                while True:
                    await process.send(b"x" * 10_000)
                    left.append(process._stdin.get_write_buffer_size())  # pyright: ignore[reportPrivateUsage]
    assert (waiting.cancelled_caught, set(left)) == (True, {0})


async def test_a_write_larger_than_the_pipe_arrives_whole() -> None:
    line = b'{"x":"' + b"y" * 4_000_000 + b'"}\n'
    with anyio.fail_after(20):
        async with running({"raw": "ready"}) as (process, log):
            await process.send(line)
            await process.send(PING)
            await read(process, b'"protocolVersion"')
            assert (await anyio.Path(log).read_bytes()).startswith(line)


async def test_writing_to_a_closed_stdin_is_told() -> None:
    with anyio.fail_after(10):
        async with running({"raw": "ready"}, {"close_stdin": True}, {"raw": "closed"}) as (process, _):
            await read(process, b"closed")
            with pytest.raises(AgentClosed):
                await write_until_it_fails(process)


async def test_writing_to_an_ended_process_is_told() -> None:
    with anyio.fail_after(10):
        process = await python("-c", "")
        await process.wait()
        await process.receive()
        with pytest.raises(AgentClosed):
            await write_until_it_fails(process)
        await process.stop()


async def test_a_writer_that_waits_is_told_when_the_process_ends() -> None:
    with anyio.fail_after(10):
        async with running({"stop_reading": True}) as (process, _):
            told = anyio.Event()

            async def write() -> None:
                with pytest.raises(AgentClosed):
                    await process.send(b"x" * 4_000_000)
                told.set()

            async with anyio.create_task_group() as group:
                group.start_soon(write)
                await process.stop()
            assert told.is_set()


# -------------------------------------------------------------------------------------------------------------- the end


async def test_most_agents_end_with_their_stdin() -> None:
    with anyio.fail_after(10):
        async with running({"raw": "ready"}) as (process, _):
            await read(process, b"ready")
            assert await process.stop() == 0


async def test_one_that_ignores_end_of_file_gets_sigterm() -> None:
    with anyio.fail_after(10):
        async with running({"ignore_eof": True}, {"raw": "ready"}) as (process, _):
            await read(process, b"ready")
            assert await process.stop() == -15


async def test_one_that_ignores_sigterm_too_is_killed() -> None:
    with anyio.fail_after(10):
        async with running({"ignore_eof": True}, {"ignore_sigterm": True}, {"raw": "ready"}) as (process, _):
            await read(process, b"ready")
            assert await process.stop() == -9


async def test_one_that_stopped_reading_is_ended_all_the_same() -> None:
    with anyio.fail_after(10):
        async with running({"stop_reading": True}) as (process, _):
            with anyio.move_on_after(0.3):
                await process.send(b"x" * 4_000_000)
            assert await process.stop() == -15


async def test_a_stop_is_finished_even_where_it_is_cancelled() -> None:
    with anyio.fail_after(10):
        async with running({"ignore_eof": True}, {"raw": "ready"}) as (process, _):
            await read(process, b"ready")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await process.stop()
            assert not alive(process.pid)


async def test_an_exit_is_seen_while_a_grandchild_holds_the_pipes() -> None:
    with anyio.fail_after(10):
        async with running({"child": 60}, {"raw": "ready"}, {"exit": 3}) as (process, log):
            await read(process, b"ready")
            assert await process.wait() == 3
            assert await process.receive() == b""
            child = await child_of(log)
            await process.stop()
            await ended(child)


async def test_a_grandchild_out_of_reach_does_not_hold_up_the_end() -> None:
    with anyio.fail_after(10):
        async with running({"child": 4, "own_session": True}, {"raw": "ready"}, {"exit": 3}) as (process, _):
            await read(process, b"ready")
            assert await process.stop() == 3


async def test_children_end_with_an_agent_that_ended_by_itself() -> None:
    with anyio.fail_after(10):
        async with running({"child": 60}, {"raw": "ready"}) as (process, log):
            await read(process, b"ready")
            child = await child_of(log)
            await process.stop()
            await ended(child)


async def test_what_was_written_before_the_exit_is_read_after_it() -> None:
    with anyio.fail_after(10):
        process = await python("-c", "print('x' * 3000000)")
        data = await read(process, b"\n")
        await process.wait()
        await process.stop()
    assert len(data) == 3_000_001


async def test_stopping_twice_is_stopping_once() -> None:
    with anyio.fail_after(10):
        async with running({"exit": 4}) as (process, _):
            await process.wait()
            assert [await process.stop(), await process.stop()] == [4, 4]
