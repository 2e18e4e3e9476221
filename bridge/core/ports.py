"""What the core's caller needs from the outside. The centre owns the interfaces; the ends implement them; app wires.

Above it: relay and app. Below it: events and model. `tests/fakes` holds a fake for each, and `tests/contracts` runs the
same tests over the fake and its real twin.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bridge.core.changes import Change, Priority, Record, Snapshot
from bridge.core.events import Event
from bridge.core.messages import Message
from bridge.core.model import (
    AgentName,
    CallRef,
    JsonObject,
    Millis,
    Outcome,
    RequestId,
    RoomId,
    SessionId,
    SyncToken,
    TransactionId,
)

Deliver = Callable[[Event], None]  # how an adapter hands an event to the relay; never blocks, never raises
Take = Callable[[Sequence[Event], SyncToken], Awaitable[None]]
"""How the sync loop hands one batch to the relay: returns once it is stored together with the token, raises
`LedgerError` when it is not (the batch is then given again)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One message in words: the event to be sent. `digest` and `whole` speak of prompts only."""

    event_type: str
    content: JsonObject
    digest: str | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """An event on its way into a room, stored before it is given to `Rooms.send`."""

    transaction_id: TransactionId
    room: RoomId
    event_type: str
    content: JsonObject
    priority: Priority
    request_id: RequestId | None = None


class Agents(Protocol):
    """The harnesses. Nothing here waits for a harness to read."""

    def respond(self, agent: AgentName, call: CallRef, outcome: Outcome) -> None:
        """Queue the one response; `Delivered` or `NotDelivered` is delivered afterwards, exactly once."""
        ...

    def prompt(self, agent: AgentName, session_id: SessionId, text: str) -> None:
        """Queue `session/prompt`; `TurnEnded` is delivered when it is answered."""
        ...

    def cancel(self, agent: AgentName, session_id: SessionId) -> None:
        """Queue `session/cancel`, ahead of any later response."""
        ...

    def close(self, agent: AgentName, session_id: SessionId) -> None:
        """Queue `session/close` or `session/delete` where the harness offers one; else nothing."""
        ...


class Rooms(Protocol):
    """The rooms. Nothing here waits for the homeserver."""

    def compose(self, message: Message, room: RoomId, *, shrink: int = 0) -> tuple[Envelope, ...]:
        """Put a message into words that fit an event; shorter with each `shrink`, empty when nothing shorter is left.

        Several envelopes only for `Words` that are split.
        """
        ...

    def send(self, outgoing: Outgoing) -> None:
        """Queue for sending; `Sent` or `SendFailed` is delivered afterwards unless it is withheld in time."""
        ...

    def withhold(self, transaction_id: TransactionId) -> bool:
        """True: it had not left and never will. False: it has left or is leaving, and `Sent` or `SendFailed` comes."""
        ...

    def typing(self, room: RoomId, *, on: bool) -> None:
        """Show or stop showing that an agent works; best effort, no answer."""
        ...


class Ledger(Protocol):
    """What must survive. One transaction a call; when it raises, nothing of it was kept."""

    async def load(self) -> Snapshot:
        """What a start finds."""
        ...

    async def commit(self, changes: Sequence[Change], *, at: Millis, token: SyncToken | None = None) -> list[Record]:
        """Store all of it, durably, with the sync token when one is given; returns the new history rows in order.

        Raises `AlreadyDecided`, `LedgerBusy`, `LedgerFull`, `LedgerDamaged`.
        """
        ...

    async def history(
        self, after: dict[SessionId, int] | None = None, *, session_id: SessionId | None = None
    ) -> list[Record]:
        """History rows in the order they were stored, of one session or all, each session's after its number."""
        ...

    async def close(self) -> None:
        """Finish what is queued and close the file."""
        ...
