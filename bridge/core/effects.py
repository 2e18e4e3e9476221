"""What is to be done: every effect that a step of the core can have. The relay carries them out, the changes first.

Above it: the core and the relay. Below it: changes, messages, the model.
"""

from dataclasses import dataclass
from typing import TypeAlias

from bridge.core.changes import Change, Priority
from bridge.core.errors import AnswerRefused
from bridge.core.events import Said
from bridge.core.messages import Message
from bridge.core.model import (
    AgentName,
    CallRef,
    JsonObject,
    Millis,
    Outcome,
    Reason,
    RequestId,
    RoomId,
    SessionId,
    TransactionId,
    UserId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Put `message` into words and queue it for `room`. `transaction_id` None: the relay makes a fresh one."""

    room: RoomId
    message: Message
    priority: Priority
    transaction_id: TransactionId | None = None
    shrink: int = 0  # how many times the homeserver found it too large


@dataclass(frozen=True, slots=True)
class Withhold:
    """If this outgoing event has not left yet it shall not; if it has, `Sent` comes all the same."""

    transaction_id: TransactionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """Answer the harness's call, once, ever. `Delivered` or `NotDelivered` follows."""

    agent: AgentName
    call: CallRef
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTurn:
    """`session/prompt` with these words."""

    agent: AgentName
    session_id: SessionId
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTurn:
    """`session/cancel`; written before the `cancelled` outcomes of what waits in that session."""

    agent: AgentName
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTurn:
    """A person ends the running turn: the broker is told (`TurnCancelled`), and it sends `CancelTurn` and what belongs to it."""

    session_id: SessionId
    by: UserId


@dataclass(frozen=True, slots=True)
class TellStatus:
    """Answer `!status` in this room with what the broker and the turns know now."""

    room: RoomId


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession:
    """`session/close` or `session/delete` where the agent offers it (session.delete of interface.md)."""

    agent: AgentName
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """`DeadlineReached` for this request at this time."""

    request_id: RequestId
    at: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result for a waiting `permission.respond`: accepted (reason None), not pending, or an error."""

    ticket: int
    reason: Reason | None = None
    error: AnswerRefused | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A person's words that are no answer: for `core.turns`. `aimed`: the agent whose prompt they point at.

    `refused`: the agents whose `trust` does not accept the device that they came from.
    """

    said: Said
    aimed: AgentName | None = None
    refused: frozenset[AgentName] = frozenset()


@dataclass(frozen=True, slots=True)
class Refuse:
    """Words were for this agent, and came from a device that it does not accept: `broker.refuse` tells their sender once."""

    said: Said
    agent: AgentName


@dataclass(frozen=True, slots=True, kw_only=True)
class Typing:
    """Show, or stop showing, in this room that the agent works."""

    room: RoomId
    on: bool


@dataclass(frozen=True, slots=True)
class Log:
    """One log event with its fields; no text of agents or people."""

    event: str
    fields: JsonObject
    warning: bool = False


Effect: TypeAlias = (
    Send
    | Withhold
    | Respond
    | StartTurn
    | CancelTurn
    | EndTurn
    | TellStatus
    | CloseSession
    | WakeAt
    | Receipt
    | Conversation
    | Refuse
    | Typing
    | Log
    | Change
)
