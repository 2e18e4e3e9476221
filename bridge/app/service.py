"""`run`: the account, the ledger, the rooms, the harnesses and the control socket, wired together until a signal comes.

Above it: app. Below it: everything. The end has the order of design.md, rule 18: what waits is answered while the harnesses still
live, then they are stopped, then the rooms are told, then the rest goes.
"""

import gc
import math
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NoReturn, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from bridge.acp.agent import Harnesses, Launch
from bridge.app.accounts import open_account
from bridge.app.desk import Desk
from bridge.config import AgentSection, Config, agent_rules
from bridge.core.errors import (
    AgentStartFailed,
    BridgeError,
    ConfigError,
    HomeserverUnreachable,
    RateLimited,
    RequestRefused,
)
from bridge.core.events import Event, StartFailed
from bridge.core.model import AgentName, Millis, RoomId, Rules, SessionId, SyncToken, UserId
from bridge.matrix.client import Client
from bridge.matrix.patience import Patience
from bridge.matrix.rooms import MatrixRooms
from bridge.ops import control
from bridge.ops.folder import hold_state_folder, open_state_folder
from bridge.ops.login import LoggedIn
from bridge.relay import Relay
from bridge.store.ledger import SqliteLedger

log = structlog.get_logger()

T = TypeVar("T")

ANSWER_LIMIT_S = 2.0  # what waits gets its `cancelled` within this when the bridge ends; a pipe takes it at once
TELL_LIMIT_S = 3.0  # for what the rooms are still to be told once the harnesses are gone
END_LIMIT_S = 8.5  # all of it; a harness that takes its time leaves less for the rooms, which the next start tells then
DISTRIBUTION = "acp-matrix-bridge"
PROCESSES = Path("/proc")


async def serve(config: Config) -> int:
    """Serve until a signal comes; the exit code is 4 when no agent at all could be started."""
    for warning in config.warnings:
        log.warning("config.warning", sentence=warning)
    open_state_folder(config.state_dir)
    with hold_state_folder(config.state_dir):
        return await _serve_alone(config)


async def _serve_alone(config: Config) -> int:
    stop = _Stop()
    code = 1
    async with anyio.create_task_group() as tasks:
        await tasks.start(_watch_signals, stop)
        opened = await _unless(stop.asked, lambda: _until_reached(lambda: open_account(config)))
        code = 0 if opened is None else await _serve_as(config, *opened, stop)
        tasks.cancel_scope.cancel()
    return code


@dataclass(slots=True)
class _Stop:
    """Whether the bridge is to end, and which process groups nobody would end if it had to end at once."""

    asked: anyio.Event = field(default_factory=anyio.Event)
    harnesses: Harnesses | None = None

    def force(self) -> NoReturn:
        """End at once, and leave no harness behind: one that outlives the bridge acts without anybody's leave."""
        log.warning("bridge.forced_end")
        for leader in self.harnesses.pids if self.harnesses else ():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        os._exit(1)


async def _serve_as(config: Config, address: str, account: LoggedIn, stop: _Stop) -> int:
    client = Client(
        address,
        user_id=account.user_id,
        device_id=account.device_id,
        access_token=account.access_token,
    )
    try:
        ledger = await SqliteLedger.open(config.ledger_file)
        try:
            known = await _unless(stop.asked, lambda: _until_reached(lambda: _look_up(client, config, account.user_id)))
            if known is None:
                return 0
            service = Service(config, client, ledger, bot=account.user_id, known=known)
            stop.harnesses = service.harnesses
            return await service.run(stop.asked)
        finally:
            with anyio.CancelScope(shield=True):
                await ledger.close()
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


Known = tuple[dict[str, RoomId], tuple[str, ...]]
"""What is asked of the homeserver before the first sync: the room behind each name, and what people call the bot."""


async def _look_up(client: Client, config: Config, bot: UserId) -> Known:
    rooms: dict[str, RoomId] = {}
    for name, section in config.agents.items():
        if section.room is not None and section.room not in rooms:
            rooms[section.room] = await _find_room(client, name, section.room)
    try:
        display_name = await client.display_name(bot)
    except RequestRefused:  # it shows no profiles; what the bot is called in a room is learned there
        display_name = None
    return rooms, (bot, display_name) if display_name else (bot,)


async def _find_room(client: Client, name: str, room: str) -> RoomId:
    if not room.startswith("#"):
        return RoomId(room)
    try:
        return await client.resolve_alias(room)
    except RequestRefused as refused:
        raise ConfigError(f"agents.{name}.room: the homeserver knows no room {room}.") from refused


class Service:
    """One run of the bridge."""

    def __init__(self, config: Config, client: Client, ledger: SqliteLedger, *, bot: UserId, known: Known) -> None:
        rooms, names = known
        agents = tuple(
            agent_rules(name, section, rooms[section.room] if section.room else None)
            for name, section in config.agents.items()
        )
        shared = [agent.room for agent in agents]
        self._names = tuple(agent.name for agent in agents)
        self._state_dir = config.state_dir
        self._ledger = ledger
        self._rooms = MatrixRooms(
            client,
            bot=bot,
            names=names,
            bound={room: shared.count(room) > 1 for room in shared if room is not None},
            deliver=self._deliver,
            take=self._take,
        )
        self.harnesses = Harnesses(
            [make_launch(name, section) for name, section in config.agents.items()],
            deliver=self._deliver,
            new_session_id=new_session_id,
            version=read_version(),
        )
        self._relay = Relay(
            Rules(agents=agents, bot=bot),
            ledger=ledger,
            agents=self.harnesses,
            rooms=self._rooms,
            clock=read_clock,
            new_token=lambda: secrets.token_hex(8),
        )
        self._failure: BridgeError | None = None
        self._started = 0
        self._ends_by = math.inf

    def _deliver(self, event: Event) -> None:
        self._relay.deliver(event)

    async def _take(self, events: Sequence[Event], token: SyncToken) -> None:
        await self._relay.take(events, token)

    async def run(self, stop: anyio.Event) -> int:
        """Serve until `stop`; raises what made it impossible to go on."""
        since = (await self._relay.load()).token
        ready = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._relay.run)
            tasks.start_soon(self._follow_rooms, since, ready, stop)
            await _unless(stop, ready.wait)
            if not stop.is_set():
                await self._serve_harnesses(stop)
            await self._relay.settle(max(0.0, min(TELL_LIMIT_S, self._ends_by - anyio.current_time())))
            tasks.cancel_scope.cancel()
        log.info("bridge.ended")
        if self._failure is not None:
            raise self._failure
        return 0

    async def _follow_rooms(self, since: SyncToken | None, ready: anyio.Event, stop: anyio.Event) -> None:
        """Without its account the bridge ends in order: what waits is answered `cancelled` first."""
        try:
            await self._rooms.run(since, ready=ready)
        except BridgeError as error:
            self._failure = error
            stop.set()

    async def _serve_harnesses(self, stop: anyio.Event) -> None:
        async with self.harnesses, anyio.create_task_group() as tasks:
            desk = Desk(
                self._relay, self._ledger, agents=self._names, harness_uids=lambda: find_uids(self.harnesses.pids)
            )
            await tasks.start(control.serve, self._state_dir, desk)
            tasks.start_soon(self._start_all, stop)
            # What was imported lives as long as the process: without it a full collection stops everybody for less long.
            gc.collect()
            gc.freeze()
            log.info("bridge.ready", agents=list(self._names))
            await stop.wait()
            self._ends_by = anyio.current_time() + END_LIMIT_S
            await self._relay.end_all(ANSWER_LIMIT_S)
            tasks.cancel_scope.cancel()

    async def _start_all(self, stop: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            for name in self._names:
                tasks.start_soon(self._start, name)
        if not self._started:
            self._failure = AgentStartFailed("No agent could be started; the log says why for each.")
            stop.set()

    async def _start(self, name: AgentName) -> None:
        """One that cannot be started is said in its room; the others go on."""
        try:
            await self.harnesses.start(name)
        except AgentStartFailed as error:
            log.error("agent.start_failed", agent=name, sentence=str(error))  # noqa: TRY400 - the sentence says it all
            self._relay.deliver(StartFailed(agent=name, sentence=str(error)))
        else:
            self._started += 1


def find_uids(leaders: frozenset[int]) -> frozenset[int]:
    """Which users harnesses run as: ours, and those of every process in a harness's process session."""
    found = {os.getuid()}
    for process in PROCESSES.iterdir() if leaders else ():
        if process.name.isdigit():
            try:
                if os.getsid(int(process.name)) in leaders:
                    found.add(process.stat().st_uid)
            except (ProcessLookupError, PermissionError, FileNotFoundError):
                continue  # it ended meanwhile
    return frozenset(found)


def make_launch(name: str, section: AgentSection) -> Launch:
    """How this agent is started."""
    return Launch(
        name=AgentName(name),
        command=section.command,
        cwd=str(section.cwd or Path.cwd()),
        env=section.env,
        pass_env=section.pass_env,
        mode=section.mode,
        auth_method=section.auth_method,
    )


def read_version() -> str:
    """The version that was installed, as harnesses are told it."""
    return metadata.version(DISTRIBUTION)


def new_session_id() -> SessionId:
    """A public session id: nobody can guess it, and it says nothing about the harness's own (V2-11)."""
    return SessionId(f"acps_{secrets.token_hex(8)}")


def read_clock() -> Millis:
    """Unix time in milliseconds."""
    return Millis(time.time_ns() // 1_000_000)


async def _watch_signals(stop: _Stop, *, task_status: TaskStatus[None]) -> None:
    """The first signal ends in order, a second one at once. As process 1 nothing else would end us.

    SIGHUP says that the terminal was closed; `nohup` has it ignored, and then it stays so.
    """
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with anyio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            if stop.asked.is_set():
                stop.force()
            log.info("bridge.ending", signal=signal.Signals(number).name)
            stop.asked.set()


async def _unless(stop: anyio.Event, work: Callable[[], Awaitable[T]]) -> T | None:
    """The result of `work`, or None when `stop` comes first."""
    found: T | None = None

    async def watch() -> None:
        await stop.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        found = await work()
        tasks.cancel_scope.cancel()
    return found


async def _until_reached(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the homeserver answers; a start waits for one that is away."""
    patience, failures = Patience(), 0
    while True:
        try:
            return await ask()
        except (HomeserverUnreachable, RateLimited) as error:
            failures += 1
            told_s = error.retry_after if isinstance(error, RateLimited) else 0.0
            log.warning("matrix.waiting_for_homeserver", why=str(error), failures=failures)
            await anyio.sleep(max(told_s, patience.wait_s(failures)))
