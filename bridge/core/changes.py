"""What is written down: the changes that one transaction stores, and what the ledger gives back.

Above it: the core, which orders them, and `bridge.store`, which keeps them. Below it: the model.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from bridge.core.model import (
    AgentName,
    Decision,
    Ending,
    EventId,
    JsonObject,
    JsonValue,
    Millis,
    Option,
    Reason,
    Request,
    RequestId,
    RoomId,
    SessionId,
    TransactionId,
    UserId,
    Via,
)


class Priority(IntEnum):
    """The order in which one account's events leave (matrix.md, section 5): prompts first, seeds last and droppable."""

    PROMPT = 0
    NOTICE = 1
    EDIT = 2
    SEED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSession:
    """A session began: history row `session_started`."""

    session_id: SessionId
    agent: AgentName


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSessionEnd:
    """A session ended: history row `session_ended`."""

    session_id: SessionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAsked:
    """A request: its row, and history row `permission_request`. Takes `request_seq` and the room number for good.

    With the room number 0 it is never put to people (rules 4 and 6), and its decision follows at once. What the request says of
    decision and phase is not stored: `StoreDecision` and `StoreEnding` say it.
    """

    request: Request
    record: JsonObject
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRevision:
    """A waiting request changed: its row with all but decision and phase (so `placed` and `whole` too); no history row.

    A room number that it did not have before is taken for good, as by `StoreAsked`.
    """

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePosted:
    """The room has the prompt: history row `permission_posted`."""

    request_id: RequestId
    event_id: EventId
    digest: str | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDecision:
    """The one conditional update of rule 17; raises `AlreadyDecided` when the request has a decision.

    For an answer or an expiry: history row `permission_response`, status `accepted`.
    """

    request_id: RequestId
    decision: Decision
    waited: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLateAnswer:
    """An authorised answer that came too late: history row `permission_response`, status `not_pending`."""

    request_id: RequestId
    reason: Reason
    option: Option | None
    by: str
    via: Via
    event_id: EventId | None
    waited: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEnding:
    """The request's end, UNIQUE: history row `permission_ended`."""

    request_id: RequestId
    ending: Ending
    delivered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnseen:
    """Rule 14's memory: this person has not written since a prompt here was ended by another (`on`), or has (not `on`)."""

    room: RoomId
    person: UserId
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOutgoing:
    """An event to be sent, with its transaction id, before the first try (rule 19)."""

    transaction_id: TransactionId
    room: RoomId
    event_type: str
    content: JsonObject
    priority: Priority
    request_id: RequestId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSent:
    """An outgoing event left (`event_id`), or never will (None)."""

    transaction_id: TransactionId
    event_id: EventId | None


@dataclass(frozen=True, slots=True)
class StoreTaken:
    """A room event that was taken; it never counts again (rule 19, T12)."""

    event_id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocked:
    """An encrypted event that cannot be read yet (rule 19)."""

    event_id: EventId
    room: RoomId
    sender: UserId
    raw: str


@dataclass(frozen=True, slots=True)
class StoreUnlocked:
    """It is done with."""

    event_id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePin:
    """The identity of this person that `trust = "pinned"` accepts, in place of an earlier one."""

    user: UserId
    master: str


@dataclass(frozen=True, slots=True)
class StoreEncrypted:
    """A room is encrypted, and stays so for us, whatever its server says of it after the next start."""

    room: RoomId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMoved:
    """Whatever the config binds to `old` is bound to `new` from here on."""

    old: RoomId
    new: RoomId


Change: TypeAlias = (
    StoreSession
    | StoreSessionEnd
    | StoreAsked
    | StoreRevision
    | StorePosted
    | StoreDecision
    | StoreLateAnswer
    | StoreEnding
    | StoreUnseen
    | StoreOutgoing
    | StoreSent
    | StoreTaken
    | StoreLocked
    | StoreUnlocked
    | StorePin
    | StoreEncrypted
    | StoreMoved
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One history row as the ledger gives it back: `fields` holds what its type adds (interface.md)."""

    sequence: int
    session_id: SessionId
    timestamp: str  # RFC 3339, UTC, milliseconds, `Z`
    type: str
    fields: dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a start finds in the ledger.

    `open` are the requests without an ending; `closed` the youngest ended ones per room (at most `CLOSED_KEPT`).
    """

    next_numbers: dict[RoomId, int]
    open: tuple[Request, ...]
    closed: tuple[Request, ...]
    unseen: frozenset[tuple[RoomId, UserId]]
    taken: tuple[EventId, ...]  # the youngest, at most `TAKEN_KEPT`
    outgoing: tuple[StoreOutgoing, ...]
    sync_token: str | None
    sessions: tuple[tuple[SessionId, AgentName], ...]  # without `session_ended`
    locked: tuple[StoreLocked, ...] = ()  # oldest first
    pins: tuple[tuple[UserId, str], ...] = ()
    encrypted: frozenset[RoomId] = frozenset()
    moved: tuple[tuple[RoomId, RoomId], ...] = ()  # old, new; oldest first
    polls: tuple[tuple[RequestId, EventId], ...] = ()  # polls of `open` that stand in their rooms and were not ended
