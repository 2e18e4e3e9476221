"""The agent's process: started in a group of its own, its pipes drained, ended for certain and in bounded time.

Above it: agent, which decides when. Below it: the operating system. To the connection it is a `Pipe`. It refuses to know
what the bytes mean (acp.md, section 1).

It uses asyncio's subprocess protocol rather than its streams: only there can one see that a line has left this process
whole, that the process is gone while a grandchild still holds its pipes, and read lines of any length.
"""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import cast

import anyio
import structlog

from bridge.core.errors import AgentClosed, AgentStartFailed
from bridge.core.masking import mask

PASSED_VARIABLES = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"})
PASSED_PREFIX = "LC_"

# The waits of a stop add up to less than 8 s: the service itself has 10 s to end (cases proc-01 and proc-04).
EOF_WAIT_SECONDS = 2.5  # most agents end at end of file; Node takes up to 2 s to unload
TERM_WAIT_SECONDS = 2.5  # what an agent may need to put its files away
KILL_WAIT_SECONDS = 1.0  # SIGKILL cannot be ignored: only the kernel's own work is waited for
LEFTOVERS_WAIT_SECONDS = 1.0  # children of an agent that has ended, between SIGTERM and SIGKILL
POLL_SECONDS = 0.02  # how often a process group is looked at: there is no event for its end
OUTPUT_AFTER_EXIT_SECONDS = (
    0.5  # what an agent wrote before its end is in the pipe by then; a grandchild may keep it open
)

OUTPUT_HELD_BYTES = 512 * 1024  # unread output that is held before the agent is made to wait
ERROR_LINE_LIMIT_BYTES = 500  # of a line of stderr that is kept; the rest of it is dropped
ERROR_LINES_KEPT_COUNT = 20  # last lines of stderr, for the report of an exit
ERROR_LINES_LOGGED_PER_SECOND = 20  # more are counted only; agents write hundreds of lines a turn
ERROR_LINES_AT_ONCE_COUNT = ERROR_LINES_LOGGED_PER_SECOND + ERROR_LINES_KEPT_COUNT  # of one read: no other is looked at

_STDIN, _STDOUT, _STDERR = 0, 1, 2

log = structlog.get_logger()


def choose_environment(
    ours: Mapping[str, str], *, pass_env: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What an agent gets of our environment: the harmless names, those that the config passes on, and its own values."""
    passed = {
        name: value
        for name, value in ours.items()
        if name in PASSED_VARIABLES or name.startswith(PASSED_PREFIX) or name in pass_env
    }
    return {**passed, **(env or {})}


async def start_process(
    name: str, command: Sequence[str], *, cwd: str, environment: Mapping[str, str]
) -> "HarnessProcess":
    """Start the agent `name`. Raises `AgentStartFailed` with a sentence that says what is missing."""
    loop = asyncio.get_running_loop()
    if not await anyio.Path(cwd).is_dir():
        raise AgentStartFailed(f"Agent {name} was not started: its folder {cwd} does not exist.")
    try:
        _, process = await loop.subprocess_exec(
            lambda: HarnessProcess(name, loop), *command, cwd=cwd, env=dict(environment), start_new_session=True
        )
    except (FileNotFoundError, NotADirectoryError):
        raise AgentStartFailed(f"Agent {name} was not started: there is no command {command[0]}.") from None
    except PermissionError:
        raise AgentStartFailed(f"Agent {name} was not started: {command[0]} may not be run.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its command or environment holds a NUL"
        raise AgentStartFailed(f"Agent {name} was not started: {reason}.") from None
    log.info("agent.started", agent=name, pid=process.pid)
    return process


class _ErrorLines:
    """What the agent writes to stderr: taken at any speed, kept short, logged with a bound."""

    def __init__(self, agent: str) -> None:
        self._log = log.bind(agent=agent)
        self._kept: deque[bytes] = deque(maxlen=ERROR_LINES_KEPT_COUNT)
        self._open = bytearray()
        self._second = 0
        self._logged = 0
        self._skipped = 0

    @property
    def last(self) -> tuple[str, ...]:
        """The last lines, shortened, as ASCII."""
        lines = [*self._kept, bytes(self._open)] if self._open else list(self._kept)
        return tuple(_as_ascii(line) for line in lines[-ERROR_LINES_KEPT_COUNT:])

    def feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if len(lines) > ERROR_LINES_AT_ONCE_COUNT:
            self._skipped += len(lines) - ERROR_LINES_AT_ONCE_COUNT
            lines = [*lines[:ERROR_LINES_LOGGED_PER_SECOND], *lines[-ERROR_LINES_KEPT_COUNT:]]
        for line in lines:
            self._extend(line)
            self._finish()
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        self._open += part[: ERROR_LINE_LIMIT_BYTES - len(self._open)]

    def _finish(self) -> None:
        line = bytes(self._open)
        self._open.clear()
        if not line.strip():
            return
        self._kept.append(line)
        if (second := int(time.monotonic())) != self._second:
            if self._skipped:
                self._log.debug("agent.stderr_skipped", lines=self._skipped)
            self._second, self._logged, self._skipped = second, 0, 0
        if self._logged < ERROR_LINES_LOGGED_PER_SECOND:
            self._logged += 1
            self._log.debug("agent.stderr", line=_as_ascii(line))
        else:
            self._skipped += 1


def _as_ascii(line: bytes) -> str:
    return ascii(mask(line.decode("utf-8", "replace").rstrip())[0])[1:-1]


class HarnessProcess(asyncio.SubprocessProtocol):
    """A running agent."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._loop = loop
        self._errors = _ErrorLines(name)
        self._output: deque[bytes] = deque()
        self._output_bytes = 0
        self._output_ended = False
        self._reading_paused = False
        self._something_read = anyio.Event()
        self._writable = anyio.Event()
        self._writable.set()
        self._input_lost = False
        self._exited = anyio.Event()
        self._stopped = False
        self._transport: asyncio.SubprocessTransport | None = None

    # ------------------------------------------------------------------------------------------------ for its owner

    @property
    def pid(self) -> int:
        """Its process id, which names its group too."""
        return self._process.get_pid()

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._process.get_returncode()

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of what it wrote to stderr, bounded and escaped: the agent's text, not for people's eyes as it is."""
        return self._errors.last

    async def receive(self) -> bytes:
        """The next bytes of its stdout; empty at the end, which comes soon after its exit whoever holds the pipe."""
        while not self._output and not self._output_ended:
            self._something_read = anyio.Event()
            await self._something_read.wait()
        if not self._output:
            return b""
        data = self._output.popleft()
        self._output_bytes -= len(data)
        if self._reading_paused and self._output_bytes <= OUTPUT_HELD_BYTES // 2 and not self._output_ended:
            self._reading_paused = False
            self._stdout.resume_reading()
        return data

    async def send(self, data: bytes) -> None:
        """Return when the kernel has all of `data`; raise `AgentClosed` when the agent closed its stdin or is gone."""
        if not self._input_lost and not self._stdin.is_closing():
            self._stdin.write(data)
            await self._writable.wait()
        if self._input_lost or self._stdin.is_closing():
            raise AgentClosed(f"Agent {self._name} takes no more input.")

    async def wait(self) -> int:
        """Its exit code, as soon as it has ended, whatever its children do."""
        await self._exited.wait()
        code = self.exit_code
        if code is None:
            raise AssertionError("unreachable")
        return code

    async def stop(self) -> int | None:
        """End it and all of its group: end of file, SIGTERM, SIGKILL, each with its wait. Cannot be cancelled."""
        if self._stopped:
            return self.exit_code
        with anyio.CancelScope(shield=True):
            self._stdin.close()
            if not await self._exits_within(EOF_WAIT_SECONDS):
                self._signal_group(signal.SIGTERM)
                if not await self._exits_within(TERM_WAIT_SECONDS):
                    log.warning("agent.killed", agent=self._name)
                    self._signal_group(signal.SIGKILL)
                    await self._exits_within(KILL_WAIT_SECONDS)
            await self._end_leftovers()
            self._end_output()
            if self._stdin.get_write_buffer_size():
                self._stdin.abort()  # the close alone waits for somebody to read what is left
            self._process.close()
        self._stopped = True
        log.info("agent.stopped", agent=self._name, exit_code=self.exit_code)
        return self.exit_code

    async def _exits_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._exited.wait()
        return self._exited.is_set()

    async def _end_leftovers(self) -> None:
        """Nobody of the group may outlive its leader (acp.md, section 1: launchers leave orphans)."""
        if not self._signal_group(signal.SIGTERM):
            return
        with anyio.move_on_after(LEFTOVERS_WAIT_SECONDS):
            while self._signal_group(0):  # noqa: ASYNC110 - a process group has no event to wait for
                await anyio.sleep(POLL_SECONDS)
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> bool:
        """Whether somebody was there to be signalled; the group is named after the process that began it."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS, for a group of nothing but zombies
            return False
        return True

    @property
    def _process(self) -> asyncio.SubprocessTransport:
        if self._transport is None:
            raise AssertionError("unreachable")
        return self._transport

    @property
    def _stdin(self) -> asyncio.WriteTransport:
        return cast("asyncio.WriteTransport", self._process.get_pipe_transport(_STDIN))

    @property
    def _stdout(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._process.get_pipe_transport(_STDOUT))

    # ------------------------------------------------------------------------------------------------ for asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process runs and its pipes are open."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        # With no room in its buffer a write counts as done only when the kernel has all of it.
        self._stdin.set_write_buffer_limits(high=0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what the agent wrote, and hold it back where nobody reads it."""
        if fd == _STDERR:
            self._errors.feed(data)
            return
        if self._output_ended:
            return
        self._output.append(data)
        self._output_bytes += len(data)
        self._something_read.set()
        if self._output_bytes > OUTPUT_HELD_BYTES and not self._reading_paused:
            self._reading_paused = True
            self._stdout.pause_reading()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """One of the pipes is closed."""
        if fd == _STDIN:
            self._input_lost = True
            self._writable.set()
        elif fd == _STDOUT:
            self._end_output()

    def pause_writing(self) -> None:
        """The kernel has not taken all of what was written."""
        self._writable = anyio.Event()

    def resume_writing(self) -> None:
        """The kernel has taken all of it."""
        self._writable.set()

    def process_exited(self) -> None:
        """The agent itself has ended; its pipes may still be held by a child of its."""
        self._exited.set()
        self._loop.call_later(OUTPUT_AFTER_EXIT_SECONDS, self._end_output)

    def _end_output(self) -> None:
        self._output_ended = True
        self._something_read.set()
