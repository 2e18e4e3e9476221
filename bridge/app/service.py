"""`run`: the account, the ledger, the rooms, the harnesses and the control socket, wired together until a signal comes.

Above it: app. Below it: everything. The end has the order of design.md, rule 18: what waits is answered while the harnesses still
live, then they are stopped, then the rooms are told, then the rest goes.
"""

import gc
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib import metadata
from pathlib import Path

import anyio
import structlog
from anyio.abc import ObjectReceiveStream

from bridge.acp.agent import Harnesses, Launch
from bridge.app.desk import Desk
from bridge.app.life import Open, Stop, be_alone, unless, until_reached
from bridge.app.questions import STOPPED, Questions, Reply
from bridge.config import AgentSection, Config, agent_rules
from bridge.core.changes import Record
from bridge.core.errors import (
    AgentStartFailed,
    BridgeError,
    ConfigError,
    CredentialsRefused,
    RequestRefused,
)
from bridge.core.events import Event, StartFailed
from bridge.core.model import AgentName, Millis, RoomId, Rules, SessionId, SyncToken, UserId
from bridge.matrix.client import Client
from bridge.matrix.rooms import MatrixRooms
from bridge.ops import control
from bridge.ops.login import explain
from bridge.relay import Relay
from bridge.relay.weighing import Start

log = structlog.get_logger()

ANSWER_LIMIT_S = 2.0  # what waits gets its `cancelled` within this when the bridge ends; a pipe takes it at once
TELL_LIMIT_S = 3.0  # for what the rooms are still to be told once the harnesses are gone
END_LIMIT_S = 8.5  # all of it; a harness that takes its time leaves less for the rooms, which the next start tells then
DISTRIBUTION = "acp-matrix-bridge"
PROCESSES = Path("/proc")


async def serve(config: Config) -> int:
    """Serve until a signal comes; the exit code is 4 when no agent at all could be started."""
    for warning in config.warnings:
        log.warning("config.warning", sentence=warning)

    async def work(opened: Open, stop: Stop) -> int:
        service = await _make(config, opened, stop)
        return 0 if service is None else await service.run(stop.asked)

    return await be_alone(config, work) or 0


async def ask(config: Config, agent: AgentName) -> Reply:
    """A harmless question in this agent's room, without any harness, where no bridge runs on this state folder."""

    async def work(opened: Open, stop: Stop) -> Reply:
        service = await _make(config, opened, stop)
        return STOPPED if service is None else await service.ask(agent, stop.asked)

    return await be_alone(config, work) or STOPPED


async def _make(config: Config, opened: Open, stop: Stop) -> "Service | None":
    """The service on what is open; None when a signal came before the rooms were found."""
    bot = opened.account.user_id
    known = await unless(stop.asked, lambda: until_reached(lambda: _look_up(opened.client, config, bot)))
    if known is None:
        return None
    service = Service(config, opened, known=known)
    stop.harnesses = service.harnesses
    return service


Known = tuple[dict[str, RoomId], tuple[str, ...]]
"""What is asked of the homeserver before the first sync: the room behind each name, and what people call the bot."""


async def _look_up(client: Client, config: Config, bot: UserId) -> Known:
    rooms: dict[str, RoomId] = {}
    for name, section in config.agents.items():
        if section.room is not None and section.room not in rooms:
            rooms[section.room] = await find_room(client, section.room, key=f"agents.{name}.room")
    try:
        display_name = await client.display_name(bot)
    except RequestRefused:  # it shows no profiles; what the bot is called in a room is learned there
        display_name = None
    return rooms, (bot, display_name) if display_name else (bot,)


async def find_room(client: Client, room: str, *, key: str = "agents.NAME.room") -> RoomId:
    """The id of a room that the config names under `key`, by id or alias. Raises `ConfigError` where there is none."""
    if not room.startswith("#"):
        return RoomId(room)
    try:
        return await client.resolve_alias(room)
    except RequestRefused as refused:
        raise ConfigError(f"{key}: the homeserver knows no room {room}.") from refused


class Service:
    """One run of the bridge."""

    def __init__(self, config: Config, opened: Open, *, known: Known) -> None:
        rooms, names = known
        bot = opened.account.user_id
        agents = tuple(
            agent_rules(name, section, rooms[section.room] if section.room else None)
            for name, section in config.agents.items()
        )
        shared = [agent.room for agent in agents]
        self._names = tuple(agent.name for agent in agents)
        self._state_dir = config.state_dir
        self._ledger, self._client, self._no_encryption = opened.ledger, opened.client, opened.no_encryption
        self._rooms = MatrixRooms(
            opened.client,
            bot=bot,
            names=names,
            bound={room: shared.count(room) > 1 for room in shared if room is not None},
            deliver=self._deliver,
            take=self._take,
            sealing=opened.encryption,
            no_sealing_reason=opened.no_encryption,
            follow_upgrades=config.matrix.follow_upgrades,
        )
        self.harnesses = Harnesses(
            [make_launch(name, section) for name, section in config.agents.items()],
            deliver=self._deliver,
            new_session_id=new_session_id,
            version=read_version(),
        )
        self._questions = Questions(
            self.harnesses,
            deliver=self._deliver,
            subscribe=self._subscribe,
            new_session_id=new_session_id,
            new_nonce=new_nonce,
        )
        self._relay = Relay(
            Rules(agents=agents, bot=bot),
            ledger=opened.ledger,
            agents=self._questions,
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

    def _subscribe(self) -> AbstractAsyncContextManager[ObjectReceiveStream[Record]]:
        return self._relay.subscribe()

    async def run(self, stop: anyio.Event) -> int:
        """Serve until `stop`; raises what made it impossible to go on."""
        await self._while_following(stop, partial(self._serve_harnesses, stop))
        log.info("bridge.ended")
        return 0

    async def ask(self, agent: AgentName, stop: anyio.Event) -> Reply:
        """Ask a harmless question in the agent's room without starting any harness, and wait for its end."""
        reply: Reply | None = None

        async def ask() -> None:
            nonlocal reply
            reply = await unless(stop, lambda: self._questions.ask(agent))

        await self._while_following(stop, ask)
        return reply or STOPPED

    async def _while_following(self, stop: anyio.Event, work: Callable[[], Awaitable[None]]) -> None:
        """Do this once the rooms are known; raises what made it impossible to go on."""
        found = await self._relay.load()
        ready = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._relay.run)
            tasks.start_soon(self._follow_rooms, found, ready, stop)
            await unless(stop, ready.wait)
            if not stop.is_set():
                await work()
            await self._relay.settle(max(0.0, min(TELL_LIMIT_S, self._ends_by - anyio.current_time())))
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _follow_rooms(self, found: Start, ready: anyio.Event, stop: anyio.Event) -> None:
        """Without its account the bridge ends in order: what waits is answered `cancelled` first."""
        try:
            await self._rooms.run(
                found.token, ready=ready, held=found.locked, encrypted=found.encrypted, moved=found.moved
            )
        except BridgeError as error:
            self._failure = explain(error) if isinstance(error, CredentialsRefused) else error
            stop.set()

    async def _serve_harnesses(self, stop: anyio.Event) -> None:
        async with self.harnesses, anyio.create_task_group() as tasks:
            desk = Desk(
                self._relay,
                self._ledger,
                agents=self._names,
                harness_uids=lambda: find_uids(self.harnesses.pids),
                questions=self._questions,
                no_encryption=self._no_encryption,
                times_limited=lambda: self._client.times_limited,
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


def new_nonce() -> str:
    """The unguessable part of one request (`Request.nonce`)."""
    return secrets.token_hex(16)


def read_clock() -> Millis:
    """Unix time in milliseconds."""
    return Millis(time.time_ns() // 1_000_000)
