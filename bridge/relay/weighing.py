"""What one transaction comes to: the core is run over its events, messages are worded, effects are sorted.

Above it: the loop. Below it: the core, and `Rooms.compose` for words. Nothing is stored or carried out here, so a transaction
that fails is undone by putting two values back.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bridge.core import broker, turns
from bridge.core.changes import Change, Priority, Snapshot, StoreLocked, StoreOutgoing, StoreSent, StoreTaken
from bridge.core.effects import (
    CancelTurn,
    CloseSession,
    Conversation,
    Effect,
    EndTurn,
    Log,
    Receipt,
    Refuse,
    Respond,
    Send,
    StartTurn,
    TellStatus,
    Typing,
    WakeAt,
    Withhold,
)
from bridge.core.events import Composed, Event, Locked, Reacted, Said, SendFailed, Sent, TooLarge, TurnCancelled, Voted
from bridge.core.messages import AgentStatus, Message, Poll, Prompt, Status
from bridge.core.model import EventId, Millis, RoomId, Rules, SyncToken, TransactionId
from bridge.core.ports import Envelope, Outgoing, Rooms
from bridge.core.state import State
from bridge.core.state import begin as begin_state
from bridge.core.turns import Turns

Mind: TypeAlias = tuple[State, Turns]
Carried: TypeAlias = (
    Respond | StartTurn | CancelTurn | CloseSession | Outgoing | Withhold | Typing | WakeAt | Receipt | Log
)


@dataclass(slots=True)
class Work:
    """What one item comes to: stored first, carried out after that."""

    changes: list[Change] = field(default_factory=list[Change])
    carried: list[Carried] = field(default_factory=list[Carried])
    taken: list[EventId] = field(default_factory=list[EventId])


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the rooms go on from after a start.

    `locked` are the messages that could not be read yet, oldest first; `encrypted` the rooms that ever were, whatever their
    server says now; `moved` the followed upgrades, old and new, oldest first: the core has followed them already.
    """

    token: SyncToken | None
    locked: tuple[StoreLocked, ...]
    encrypted: frozenset[RoomId]
    moved: tuple[tuple[RoomId, RoomId], ...]


class Weighing:
    """The state of the core, and how events change it."""

    def __init__(
        self, rules: Rules, *, rooms: Rooms, clock: Callable[[], Millis], new_token: Callable[[], str]
    ) -> None:
        self._rules, self._rooms, self._clock, self._new_token = rules, rooms, clock, new_token
        self._state: State | None = None
        self._turns = turns.begin(rules.agents)

    @property
    def state(self) -> State:
        """What the broker knows now; `recover` comes first."""
        if self._state is None:
            raise AssertionError("unreachable")
        return self._state

    @property
    def mind(self) -> Mind:
        """All that the core knows, to be put back when a transaction fails."""
        return self.state, self._turns

    def restore(self, mind: Mind) -> None:
        """Undo whatever was weighed since `mind` was taken."""
        self._state, self._turns = mind

    def recover(self, found: Snapshot) -> Work:
        """Begin from the ledger; what the last run left open ends."""
        self._state, effects = broker.recover(begin_state(self._rules, found), found, self._clock())
        self._turns = turns.begin(tuple(self.state.agents.values()))  # where upgrades of their rooms have led them
        work = Work()
        for out in found.outgoing:
            if out.priority is Priority.SEED:
                work.changes.append(StoreSent(transaction_id=out.transaction_id, event_id=None))
            else:
                work.carried.append(_restore(out))
        self._expand(effects, work)
        return work

    def weigh(self, events: Sequence[Event], taken: Container[EventId]) -> Work:
        """What is to be stored, and what is to be done after that. A room event in `taken` counts no more."""
        work = Work()
        for event in events:
            if isinstance(event, Locked) and (event.event_id in taken or event.event_id in work.taken):
                continue  # it was opened since, and the batch is given again
            if isinstance(event, Said | Reacted | Voted):
                if event.event_id in taken or event.event_id in work.taken:
                    continue
                work.taken.append(event.event_id)
            if isinstance(event, Sent | SendFailed | TooLarge):
                event_id = event.event_id if isinstance(event, Sent) else None
                work.changes.append(StoreSent(transaction_id=event.transaction_id, event_id=event_id))
            self._step(event, work)
        return work

    def _step(self, event: Event, work: Work) -> None:
        self._state, effects = broker.step(self.state, event, self._clock())
        self._turns, more = turns.step(self._turns, event)
        if isinstance(event, Said | Reacted | Voted) and (effects or more):
            work.changes.append(StoreTaken(event_id=event.event_id))
        self._expand([*effects, *more], work)

    def _expand(self, effects: Iterable[Effect], work: Work) -> None:
        """Turn effects into what is stored and what is carried out; some are words for the other half of the core."""
        for effect in effects:
            match effect:
                case Send():
                    self._prepare(effect, work)
                case Conversation():
                    self._turns, more = turns.step(self._turns, effect)
                    self._expand(more, work)
                case Refuse():
                    self._state, more = broker.refuse(self.state, effect, self._clock())
                    self._expand(more, work)
                case EndTurn():
                    self._step(TurnCancelled(session_id=effect.session_id, by=effect.by), work)
                case TellStatus():
                    status = Send(
                        room=effect.room, message=Status(self.describe(effect.room)), priority=Priority.NOTICE
                    )
                    self._prepare(status, work)
                case Respond() | StartTurn() | CancelTurn() | CloseSession() | Withhold() | Typing():
                    work.carried.append(effect)
                case WakeAt() | Receipt() | Log():
                    work.carried.append(effect)
                case StoreTaken(event_id):
                    work.taken.append(event_id)
                    work.changes.append(effect)
                case _:
                    work.changes.append(effect)

    def _prepare(self, send: Send, work: Work) -> None:
        """Word a message, so that it is stored with its transaction id before the first try (rule 19)."""
        worded = self.word(
            send.message, send.room, transaction_id=send.transaction_id, shrink=send.shrink, priority=send.priority
        )
        for outgoing, envelope in worded:
            work.changes.append(
                StoreOutgoing(
                    transaction_id=outgoing.transaction_id,
                    room=outgoing.room,
                    event_type=outgoing.event_type,
                    content=outgoing.content,
                    priority=outgoing.priority,
                    request_id=outgoing.request_id,
                )
            )
            work.carried.append(outgoing)
            if isinstance(send.message, Prompt):
                composed = Composed(
                    request_id=send.message.request.request_id,
                    revision=send.message.request.revision,
                    digest=envelope.digest,
                    whole=envelope.whole,
                )
                self._step(composed, work)
        if not worded and send.transaction_id is not None:
            self._step(
                SendFailed(transaction_id=send.transaction_id, sentence="It fits no event.", too_long=True), work
            )

    def word(
        self,
        message: Message,
        room: RoomId,
        *,
        priority: Priority,
        transaction_id: TransactionId | None = None,
        shrink: int = 0,
    ) -> list[tuple[Outgoing, Envelope]]:
        """The events that say this, each with a transaction id of its own."""
        base = transaction_id or TransactionId(f"n/{self._new_token()}")
        request = message.request if isinstance(message, Prompt | Poll) else None
        return [
            (
                Outgoing(
                    transaction_id=base if part == 0 else TransactionId(f"{base}/{part}"),
                    room=room,
                    event_type=envelope.event_type,
                    content=envelope.content,
                    priority=priority,
                    request_id=request.request_id if request else None,
                ),
                envelope,
            )
            for part, envelope in enumerate(self._rooms.compose(message, room, shrink=shrink))
        ]

    def describe(self, room: RoomId | None = None) -> tuple[AgentStatus, ...]:
        """How each agent is, of this room or of all."""
        return tuple(
            AgentStatus(
                agent=agent.name,
                session_id=self._turns.talks[agent.name].session_id,
                turn_running=self._turns.talks[agent.name].running,
                queued=len(self._turns.talks[agent.name].queue),
                waiting=tuple(
                    (request.number, request.description.title) for request in broker.waiting_of(self.state, agent.name)
                ),
            )
            for agent in self.state.agents.values()
            if room is None or agent.room == room
        )


def _restore(stored: StoreOutgoing) -> Outgoing:
    return Outgoing(
        transaction_id=stored.transaction_id,
        room=stored.room,
        event_type=stored.event_type,
        content=stored.content,
        priority=stored.priority,
        request_id=stored.request_id,
    )


def read_start(found: Snapshot) -> Start:
    """What of the ledger the rooms go on from."""
    return Start(
        token=SyncToken(found.sync_token) if found.sync_token else None,
        locked=found.locked,
        encrypted=found.encrypted,
        moved=found.moved,
    )
