"""A relay between fakes: one agent, one room, two approvers. `quiet` waits until it has taken all it was given."""

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio

from bridge.core.changes import Change, Record
from bridge.core.errors import LedgerError, SessionNotFound
from bridge.core.events import AnsweredLocally, Asked, Event, RoomSeen, RoomState, Said, SessionStarted, ToolCallChanged
from bridge.core.messages import Message
from bridge.core.model import (
    Agent,
    AgentName,
    CallRef,
    EventId,
    Millis,
    Outcome,
    Reason,
    RequestId,
    RoomId,
    Rules,
    SessionId,
    SyncToken,
    TransactionId,
    UserId,
)
from bridge.core.ports import Envelope
from bridge.relay.loop import Relay
from tests.core.play import ALICE, BOT, CLAUDE, NONCE, OPTIONS, ROOM, SESSION, agent, describe
from tests.fakes.agents import FakeAgents, Responded
from tests.fakes.ledger import MemoryLedger
from tests.fakes.rooms import FakeRooms

LIMIT_S = 5


class Ledger(MemoryLedger):
    """Remembers when it was written to, and fails in ways that the test asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.diary: list[object] = []
        self.refuses: type[Change] | None = None  # every commit that holds one of these
        self.error: LedgerError = LedgerError("no")

    async def commit(self, changes: Sequence[Change], *, at: Millis, token: SyncToken | None = None) -> list[Record]:
        if self.refuses is not None and any(isinstance(change, self.refuses) for change in changes):
            raise self.error
        records = await super().commit(changes, at=at, token=token)
        self.diary += [type(change) for change in changes]
        return records


class Rooms(FakeRooms):
    """Cannot word some messages, and splits others."""

    unwordable: type[Message] | None = None
    parts = 1

    def compose(self, message: Message, room: RoomId, *, shrink: int = 0) -> tuple[Envelope, ...]:
        if self.unwordable is not None and isinstance(message, self.unwordable):
            raise ValueError(message)
        return super().compose(message, room, shrink=shrink) * self.parts


class Agents(FakeAgents):
    """Breaks for one call."""

    broken: CallRef | None = None

    def respond(self, agent: AgentName, call: CallRef, outcome: Outcome) -> None:
        if call == self.broken:
            raise ValueError(call)
        super().respond(agent, call, outcome)


class Rig:
    """The relay and what stands round it."""

    def __init__(self, *agents: Agent, ledger: Ledger | None = None, rooms_take_at_once: bool = False) -> None:
        self.ledger = ledger or Ledger()
        self.now = Millis(1_000_000)
        self.agents = Agents(self.deliver)
        self.rooms = Rooms(self.deliver, at_once=rooms_take_at_once)
        tokens = itertools.count()
        self.relay = Relay(
            Rules(agents=agents or (agent(),), bot=BOT),
            ledger=self.ledger,
            agents=self.agents,
            rooms=self.rooms,
            clock=lambda: self.now,
            new_token=lambda: f"{id(self)}.{next(tokens)}",
        )
        self._numbers = itertools.count(1)

    def deliver(self, event: Event) -> None:
        self.relay.deliver(event)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        await self.relay.load()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.relay.run)
            with anyio.fail_after(LIMIT_S):
                yield
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def begun(self) -> AsyncGenerator[None]:
        """Running, with the room joined and the session started."""
        async with self.running():
            await self.sync(RoomSeen(room=ROOM, state=RoomState.JOINED, people=1))
            await self.happens(SessionStarted(agent=CLAUDE, session_id=SESSION))
            yield

    async def quiet(self) -> None:
        """Until the relay has taken what it was given, and what came of that: an answer to nobody comes after it."""
        for _ in range(3):
            with suppress(SessionNotFound, LedgerError):
                await self.answer(RequestId("nobody"), "", session_id=SessionId("nobody"))

    async def happens(self, *events: Event) -> None:
        for event in events:
            self.deliver(event)
        await self.quiet()

    async def sync(self, *events: Event, since: str = "s") -> None:
        await self.relay.take(events, SyncToken(since))

    def asked(self, call: int = 1, command: str = "pytest -q") -> Asked:
        return Asked(
            agent=CLAUDE,
            session_id=SESSION,
            call=CallRef(call),
            tool_call_id="call_1",
            description=describe(command=command),
            options=OPTIONS,
            misfit=None,
            record={"toolCall": {"toolCallId": "call_1"}, "options": []},
            raw="{}",
            nonce=NONCE,
        )

    def changed(self, command: str, call: int = 1) -> ToolCallChanged:
        what = describe(command=command)
        return ToolCallChanged(session_id=SESSION, tool_call_id="call_1", description=what, call=CallRef(call))

    async def ask(self, call: int = 1) -> RequestId:
        """A request whose prompt stands in the room."""
        await self.happens(self.asked(call))
        request_id = RequestId(f"{SESSION}:{call}")
        await self.post(request_id)
        return request_id

    async def post(self, request_id: RequestId) -> None:
        transaction_id = self.transaction_of(request_id)
        self.rooms.take(transaction_id)
        await self.quiet()
        await self.sync(self.rooms.echo(transaction_id))

    def transaction_of(self, request_id: RequestId) -> TransactionId:
        transaction_id = self.relay.state.entries[request_id].transaction_id
        assert transaction_id is not None
        return transaction_id

    def said(self, text: str, *targets: EventId, sender: UserId = ALICE, event_id: str | None = None) -> Said:
        event = EventId(event_id or f"$e{next(self._numbers)}")
        return Said(room=ROOM, sender=sender, event_id=event, text=text, targets=targets)

    async def answer(self, request_id: RequestId, option_id: str, **more: object) -> Reason | None:
        answered = AnsweredLocally(
            ticket=next(self._numbers),
            session_id=SESSION,
            request_id=request_id,
            option_id=option_id,
            by="local:ann",
            trusted=True,
        )
        return await self.relay.answer(replace(answered, **more))  # pyright: ignore[reportArgumentType] - named in tests

    def worded(self, kind: type[Message]) -> list[Message]:
        return [message for message, _, _ in self.rooms.composed if isinstance(message, kind)]

    @property
    def responses(self) -> list[tuple[CallRef, Outcome]]:
        return [(act.call, act.outcome) for act in self.agents.acts if isinstance(act, Responded)]
