"""The harnesses: each agent of the config as a process with one session, from its start to its end (`core.ports.Agents`).

Above it: app, which starts and stops them, and the relay, which sends what the core decides. Below it: handshake,
session, process. Every agent lives in a task of its own, so that none waits for another (design.md, rule 2). It refuses
to know rooms, policies and the ledger.
"""

import itertools
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import anyio
import structlog
from anyio.abc import TaskGroup

from bridge.acp.connection import Connection, Pipe
from bridge.acp.handshake import OpenedSession, open_session
from bridge.acp.process import choose_environment, start_process
from bridge.acp.session import Session
from bridge.core.errors import AgentStartFailed
from bridge.core.events import AgentGone, SessionStarted
from bridge.core.model import AgentName, CallRef, Outcome, SessionId
from bridge.core.ports import Deliver

START_LIMIT_SECONDS = 60.0  # to a session: opencode takes 4 to 11 s, an agent that logs in over the network longer
FLUSH_WAIT_SECONDS = 1.0  # for the last answers to be read before stdin is closed (AC-18)
EXIT_WAIT_SECONDS = 1.0  # for the exit code of an agent whose stdout has ended: people are told within 5 s (exit-01)

NONCE_BYTES = 16  # nobody guesses 128 bits

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one agent is started."""

    name: AgentName
    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    pass_env: tuple[str, ...] = ()
    mode: str | None = None
    auth_method: str | None = None


class Process(Pipe, Protocol):
    """What is needed of a process: `acp.process` has the real one."""

    @property
    def pid(self) -> int:
        """Its process id, which is its group's and its process session's too."""
        ...

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        ...

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of its stderr, bounded and escaped."""
        ...

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        ...

    async def stop(self) -> int | None:
        """End it, for certain and in bounded time, whatever is cancelled."""
        ...


Spawn: TypeAlias = Callable[[Launch], Awaitable[Process]]


async def spawn(launch: Launch) -> Process:
    """Start the real process. Raises `AgentStartFailed`."""
    environment = choose_environment(os.environ, pass_env=launch.pass_env, env=launch.env)
    return await start_process(launch.name, launch.command, cwd=launch.cwd, environment=environment)


def make_nonce() -> str:
    """A part of a request that nobody can guess (`Request.nonce`)."""
    return secrets.token_hex(NONCE_BYTES)


@dataclass(slots=True)
class _Running:
    """An agent from the start of its process to its end; its session is in use once it is `open`."""

    process: Process
    connection: Connection
    session: Session
    open: bool = False
    opened: OpenedSession | None = None
    stopping: anyio.Event = field(default_factory=anyio.Event)
    stopped: anyio.Event = field(default_factory=anyio.Event)
    starting: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def stop(self) -> None:
        """Let it come to its end, from whatever point it has reached."""
        self.stopping.set()
        if not self.open:
            self.starting.cancel()


@dataclass(slots=True)
class _Start:
    """Somebody waits for an agent's session, or does no longer."""

    done: anyio.Event = field(default_factory=anyio.Event)
    result: SessionId | AgentStartFailed | None = None
    running: _Running | None = None
    abandoned: bool = False

    def abandon(self) -> None:
        """What was begun is ended."""
        self.abandoned = True
        if self.running is not None:
            self.running.stop()

    def settle(self, result: SessionId | AgentStartFailed) -> None:
        """Tell who waits."""
        self.result = result
        self.done.set()


class Harnesses:
    """All agents. An async context manager: at its end every agent is stopped, all at the same time.

    What happens is handed to `deliver`. For one process `SessionStarted` comes first and `AgentGone` last; a response
    for a process that is gone is dropped, since `AgentGone` has said all.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        *,
        deliver: Deliver,
        new_session_id: Callable[[], SessionId],
        version: str,
        spawn: Spawn = spawn,
        new_nonce: Callable[[], str] = make_nonce,
    ) -> None:
        self._launches = {launch.name: launch for launch in launches}
        self._deliver = deliver
        self._new_session_id = new_session_id
        self._version = version
        self._spawn = spawn
        self._new_nonce = new_nonce
        self._numbers = itertools.count(1)
        self._running: dict[AgentName, _Running] = {}
        self._starting: set[AgentName] = set()
        self._closing = False
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._closing = True
        ending = list(self._running.values())
        for running in ending:
            running.stop()
        with anyio.CancelScope(shield=True):
            for running in ending:
                await running.stopped.wait()
        if error is not None and not isinstance(error, anyio.get_cancelled_exc_class()):
            # A group would wrap it, and the caller could no longer catch it by its name.
            kind = error = trace = None
        return await self._tasks.__aexit__(kind, error, trace)

    async def start(self, name: AgentName) -> SessionId:
        """Start an agent and open its session. Raises `AgentStartFailed`; nothing is delivered then."""
        if name in self._running or name in self._starting:
            raise AgentStartFailed(f"Agent {name} is running already.")
        start = _Start()
        self._starting.add(name)
        self._tasks.start_soon(self._run, self._launches[name], start, name=f"agent {name}")
        try:
            await start.done.wait()
        except anyio.get_cancelled_exc_class():
            start.abandon()
            raise
        if isinstance(start.result, AgentStartFailed):
            raise start.result
        if start.result is None:
            raise AssertionError("unreachable")
        return start.result

    async def stop(self, name: AgentName) -> None:
        """Stop an agent; returns when its process is gone. Nothing happens when it does not run."""
        running = self._running.get(name)
        if running is not None:
            running.stop()
            await running.stopped.wait()

    @property
    def pids(self) -> frozenset[int]:
        """The leaders of the process sessions that harnesses run in."""
        return frozenset(running.process.pid for running in self._running.values())

    def opened(self, name: AgentName) -> OpenedSession | None:
        """What a running agent said when its session was opened."""
        running = self._running.get(name)
        return None if running is None else running.opened

    # ------------------------------------------------------------------------------------------------ core.ports.Agents

    def respond(self, agent: AgentName, call: CallRef, outcome: Outcome) -> None:
        """Queue the one response to a request."""
        if (session := self._find(agent)) is not None:
            session.respond(call, outcome)

    def prompt(self, agent: AgentName, session_id: SessionId, text: str) -> None:
        """Queue `session/prompt`."""
        if (session := self._find(agent, session_id)) is not None:
            session.prompt(text)

    def cancel(self, agent: AgentName, session_id: SessionId) -> None:
        """Queue `session/cancel`, ahead of any later response."""
        if (session := self._find(agent, session_id)) is not None:
            session.cancel()

    def close(self, agent: AgentName, session_id: SessionId) -> None:
        """Queue `session/close` or `session/delete` where the agent offers one."""
        if (session := self._find(agent, session_id)) is not None:
            session.close()

    def _find(self, agent: AgentName, session_id: SessionId | None = None) -> Session | None:
        running = self._running.get(agent)
        if running is None or not running.open or session_id not in {None, running.session.session_id}:
            log.info("agent.not_running", agent=agent)
            return None
        return running.session

    # ----------------------------------------------------------------------------------------------- one agent's life

    async def _run(self, launch: Launch, start: _Start) -> None:
        # Whatever is cancelled outside, an agent still gets its last answers and ends in order (AC-18): when `stopping`
        # is set, and within the bounds of `_wind_down`.
        failure: AgentStartFailed | None = AgentStartFailed(f"Agent {launch.name} could not be started.")
        with anyio.CancelScope(shield=True):
            try:
                failure = await self._live(launch, await self._spawn(launch), start)
            except AgentStartFailed as failed:
                failure = failed
            finally:
                self._starting.discard(launch.name)
                if failure is not None and not start.done.is_set():
                    start.settle(failure)

    async def _live(self, launch: Launch, process: Process, start: _Start) -> AgentStartFailed | None:
        connection = Connection(process, agent=launch.name)
        session = Session(
            connection,
            agent=launch.name,
            session_id=self._new_session_id(),
            cwd=launch.cwd,
            deliver=self._deliver,
            numbers=self._numbers,
            new_nonce=self._new_nonce,
        )
        running = start.running = self._running[launch.name] = _Running(process, connection, session)
        if self._closing or start.abandoned:
            running.stop()
        failure: AgentStartFailed | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._talk, running)
                failure = await self._open(launch, running)
                if failure is None:
                    start.settle(session.session_id)
                    await running.stopping.wait()
                await self._wind_down(running)
                group.cancel_scope.cancel()
        finally:
            await self._finish(launch.name, running)
        return failure

    async def _talk(self, running: _Running) -> None:
        await running.connection.run(running.session)
        running.stopping.set()

    async def _open(self, launch: Launch, running: _Running) -> AgentStartFailed | None:
        """Open the session and tell of it, or say why there is none."""
        opened: OpenedSession | None = None
        running.starting.deadline = anyio.current_time() + START_LIMIT_SECONDS
        with running.starting:
            try:
                opened = await open_session(
                    running.connection,
                    name=launch.name,
                    version=self._version,
                    cwd=launch.cwd,
                    mode=launch.mode,
                    auth_method=launch.auth_method,
                )
            except AgentStartFailed as failed:
                return await self._add_exit_code(failed, running)
        if opened is None:
            if running.stopping.is_set():
                return AgentStartFailed(f"Agent {launch.name} was stopped while it started.")
            return AgentStartFailed(f"Agent {launch.name} had no session after {START_LIMIT_SECONDS:.0f} s.")
        running.open, running.opened = True, opened
        log.info("agent.session_started", agent=launch.name, session_id=running.session.session_id)
        self._deliver(
            SessionStarted(agent=launch.name, session_id=running.session.session_id, mode_note=opened.mode_note)
        )
        running.session.begin(opened)
        return None

    async def _add_exit_code(self, failed: AgentStartFailed, running: _Running) -> AgentStartFailed:
        """An agent that ended by itself says most by its exit code: 127 is a command that was not found."""
        if running.connection.ended:
            with anyio.move_on_after(EXIT_WAIT_SECONDS):
                return AgentStartFailed(f"{failed} Its exit code was {await running.process.wait()}.")
        return failed

    async def _wind_down(self, running: _Running) -> None:
        """Reading goes on meanwhile: an agent that cannot write does not end."""
        if running.connection.ended:
            with anyio.move_on_after(EXIT_WAIT_SECONDS):
                await running.process.wait()
            return
        with anyio.move_on_after(FLUSH_WAIT_SECONDS):
            await running.connection.flush()
        await running.process.stop()

    async def _finish(self, name: AgentName, running: _Running) -> None:
        code = running.process.exit_code
        log.info("agent.gone", agent=name, exit_code=code)
        log.debug("agent.last_words", agent=name, lines=running.process.last_lines)
        was_open, running.open = running.open, False
        if was_open:
            self._deliver(AgentGone(agent=name, session_id=running.session.session_id, exit_code=code))
        await running.process.stop()
        del self._running[name]
        running.stopped.set()

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise AssertionError("unreachable")
        return self._group
