"""One life of the bridge, from a start to a kill: the real parts, wired as the service wires them.

Above it: the stage. Below it: the real harness side, relay and rooms, over `FakeProcess` (or a real program) and a client of the
stub homeserver. It knows when nothing moves inside the bridge any more; it refuses to know cases.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from bridge.acp.agent import Harnesses, Launch, Process, spawn
from bridge.config import AgentSection, agent_rules
from bridge.core.errors import SessionNotFound
from bridge.core.events import AnsweredLocally, Event
from bridge.core.model import Agent, AgentName, Millis, RequestId, RoomId, Rules, SessionId, SyncToken, UserId
from bridge.core.ports import Ledger
from bridge.matrix.client import Client
from bridge.matrix.patience import Patience
from bridge.matrix.rooms import MatrixRooms
from bridge.matrix.sealing import Sealing
from bridge.relay import Relay
from tests.fakes.process import FakeProcess

ROOM = "!room:ex.org"
ALICE, BOB, BOT = "@alice:ex.org", "@bob:ex.org", "@bridge:ex.org"
SOON = Patience(first_s=0.005, most_s=0.02)
PATIENCE_S = 40.0  # for anything that a run waits for; it takes milliseconds, but for 100,000 lines on a busy machine
CWD = "/srv/app"

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a case says before the start."""

    agents: Mapping[str, str] = field(default_factory=lambda: {"A": "s1"})  # name to the harness's own session id
    approvers: Sequence[str] = (ALICE, BOB)
    expires_after: str = "never"
    rooms: Mapping[str, str] = field(default_factory=dict[str, str])  # the harness's session id to a room
    display_name: str = "Bridge"
    strict: bool = False
    encrypted: bool = False  # the rooms, from the start
    keys_lost: bool = False  # the bridge's device had keys once
    command: tuple[str, ...] = ()  # a real program instead of a `FakeProcess`

    def room_of(self, agent: str) -> str:
        """Where this agent asks."""
        return self.rooms.get(self.agents[agent], ROOM)

    def rules(self) -> tuple[Agent, ...]:
        """The agents' rules as the config makes them, every key that no case names as it is by default."""
        return tuple(
            agent_rules(name_of(agent), self._section(agent), RoomId(self.room_of(agent))) for agent in self.agents
        )

    def _section(self, agent: str) -> AgentSection:
        keys: dict[str, object] = {
            "command": self.command or ("agent",),
            "room": self.room_of(agent),
            "approvers": tuple(self.approvers),
            "listen": "all",
            "expires_after": self.expires_after,
            "strict": self.strict,
        }
        return AgentSection.model_validate(keys)


def name_of(agent: str) -> AgentName:
    """The name in the config of the agent that a case calls `A`."""
    return AgentName(agent.lower())


class Life:
    """The parts of the bridge, from a start to a kill."""

    def __init__(
        self,
        setup: Setup,
        client: Client,
        ledger: Ledger,
        *,
        clock: Callable[[], Millis],
        new_session_id: Callable[[], SessionId],
        new_token: Callable[[], str],
        sealing: Sealing | None,
        no_sealing_reason: str,
    ) -> None:
        self.ledger = ledger
        self.delivered: list[Event] = []
        self.taken = 0
        self.processes: dict[str, Process] = {}
        self.killed = anyio.Event()
        self.over = anyio.Event()
        self._setup = setup
        self._moved = anyio.Event()
        rules = setup.rules()
        shared = [agent.room for agent in rules]
        self.rooms = MatrixRooms(
            client,
            bot=UserId(BOT),
            names=(BOT, setup.display_name),
            bound={room: shared.count(room) > 1 for room in shared if room is not None},
            deliver=self._deliver,
            take=self._take,
            sealing=sealing,
            no_sealing_reason=no_sealing_reason,
            patience=SOON,
        )
        self.harnesses = Harnesses(
            [
                Launch(name=name_of(agent), command=setup.command or ("agent",), cwd="/" if setup.command else CWD)
                for agent in setup.agents
            ],
            deliver=self._deliver,
            new_session_id=new_session_id,
            version="0",
            spawn=self._spawn,
        )
        self.relay = Relay(
            Rules(agents=rules, bot=UserId(BOT)),
            ledger=ledger,
            agents=self.harnesses,
            rooms=self.rooms,
            clock=clock,
            new_token=new_token,
        )

    async def run(self, since: SyncToken | None, started: Callable[[], None]) -> None:
        """Live until killed; `started` is called once every session is open."""
        ready = anyio.Event()

        async def follow() -> None:
            await self.rooms.run(since, ready=ready)

        async with self.harnesses, anyio.create_task_group() as tasks:
            tasks.start_soon(self.relay.run)
            tasks.start_soon(follow)
            await ready.wait()
            for agent in self._setup.agents:
                await self.harnesses.start(name_of(agent))
            started()
            await self.killed.wait()
            tasks.cancel_scope.cancel()

    def fake(self, agent: str) -> FakeProcess:
        """The process of an agent that is no real program."""
        process = self.processes[agent]
        assert isinstance(process, FakeProcess)
        return process

    @property
    def fakes(self) -> list[FakeProcess]:
        return [process for process in self.processes.values() if isinstance(process, FakeProcess)]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something that an adapter delivers makes this true."""
        while not true():
            self._moved = anyio.Event()
            await self._moved.wait()

    def count(self, kind: type[Event]) -> int:
        """How many events of a kind the adapters have delivered."""
        return sum(isinstance(event, kind) for event in self.delivered)

    async def settle(self, *, sends: bool, writes: bool) -> None:
        """Let all that agents and adapters have said come to its effects; `sends` and `writes`: until those are out."""
        for fake in self.fakes:
            await fake.until_read()
        await self.drain()
        if writes:
            for running in self.harnesses._running.values():  # pyright: ignore[reportPrivateUsage]
                await running.connection.flush()
            await self.drain()
        if sends:
            await self.relay.settle(PATIENCE_S)
            assert self.rooms.queued == 0, "the homeserver does not take what is sent"

    async def drain(self) -> None:
        """Return once the relay has taken all that was delivered before: it answers in turn, and this asks for nothing."""
        nobody = AnsweredLocally(
            ticket=-1,
            session_id=SessionId("acps_nobody"),
            request_id=RequestId("acps_nobody:1"),
            option_id="",
            by="local:runner",
            trusted=False,
        )
        try:
            await self.relay.answer(nobody)
        except SessionNotFound:
            return
        raise AssertionError("unreachable")

    def count_kept_updates(self) -> int:
        """How many tool calls the harness side remembers."""
        sessions = [running.session for running in self.harnesses._running.values()]  # pyright: ignore[reportPrivateUsage]
        return sum(len(session._tool_calls) for session in sessions)  # pyright: ignore[reportPrivateUsage]

    def progress(self) -> tuple[int, ...]:
        """Something that differs whenever anything has moved."""
        return len(self.delivered), self.taken, sum(len(fake.lines) for fake in self.fakes)

    async def _spawn(self, launch: Launch) -> Process:
        agent = next(agent for agent in self._setup.agents if name_of(agent) == launch.name)
        if self._setup.command:
            process = await spawn(launch)
        else:
            session: dict[str, Any] = {"sessionId": self._setup.agents[agent]}
            process = await FakeProcess({"session/new": session}).spawn(launch)
        self.processes[agent] = process
        return process

    def _deliver(self, event: Event) -> None:
        self.delivered.append(event)
        self.relay.deliver(event)
        self._moved.set()

    async def _take(self, events: Sequence[Event], token: SyncToken) -> None:
        self.taken += 1
        await self.relay.take(events, token)
