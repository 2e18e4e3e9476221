"""What happens (events), what is to be done (effects), what is written down (changes), what people are told (messages).

Above it: broker, turns, relay and every adapter. Below it: the model. Values only. An adapter makes events and carries
effects out; only the core decides which effect an event has.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeAlias

from bridge.core.errors import AnswerRefused
from bridge.core.model import (
    Agent,
    AgentName,
    CallRef,
    Decision,
    Description,
    Ending,
    EventId,
    JsonObject,
    JsonValue,
    Millis,
    Misfit,
    Option,
    Outcome,
    Reason,
    Request,
    RequestId,
    RoomId,
    SessionId,
    TransactionId,
    UserId,
    Via,
)

# --------------------------------------------------------------------------------------------- events: from the harness


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """The harness opened its session; `session_id` is ours. `mode_note`: a sentence when its mode may skip questions."""

    agent: AgentName
    session_id: SessionId
    mode_note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed:
    """The harness could not be started; `sentence` says why, for its room."""

    agent: AgentName
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`session/request_permission`, its tool call merged with the updates before it (acp.md, section 6).

    `options` and `misfit` are what `core.options.read` made of the raw list; exactly one of them says something.
    `record` is what the history keeps: toolCall, options, `_meta` when it was sent, exact and flat (AO-11).
    """

    agent: AgentName
    session_id: SessionId
    call: CallRef
    tool_call_id: str
    description: Description
    options: tuple[Option, ...]
    misfit: Misfit | None
    record: JsonObject
    raw: str  # the raw params as JSON text, for the ledger alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallChanged:
    """An update came for a tool call that a waiting request asks about. The broker compares what is asked (AC-19).

    `call` is the one request it speaks of: two that wait may share a `tool_call_id` and ask for different things.
    """

    session_id: SessionId
    tool_call_id: str
    description: Description
    call: CallRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """`$/cancel_request` for a call that may still be waiting."""

    agent: AgentName
    call: CallRef


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """`session/prompt` was answered. `text` is all the agent said in the turn, in order; `error` a sentence instead."""

    agent: AgentName
    session_id: SessionId
    stop_reason: str
    text: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGone:
    """The harness's process or its stdout ended. `session_id` is None when it had none yet."""

    agent: AgentName
    session_id: SessionId | None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The response for `call` was written to the harness's stdin, whole."""

    agent: AgentName
    call: CallRef


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDelivered:
    """The response for `call` could not be written: the pipe is closed."""

    agent: AgentName
    call: CallRef


# ------------------------------------------------------------------------------------------------- events: from the room


class RoomState(StrEnum):
    """Whether prompts can be posted in a room."""

    JOINED = "joined"
    NOT_JOINED = "not_joined"  # not invited yet, kicked, banned, left
    ENCRYPTED = "encrypted"  # and this bridge cannot speak there
    REPLACED = "replaced"  # upgraded: it has a tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomSeen:
    """What the last sync says of a room that the config names. `people`: joined users other than the bot."""

    room: RoomId
    state: RoomState
    people: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An `m.text` message of somebody else, as `matrix.inbox` read it: fallback and bot mention already taken off.

    `targets` are the events it points at: the thread root, and the replied-to event where that is a true reply.
    """

    room: RoomId
    sender: UserId
    event_id: EventId
    text: str
    targets: tuple[EventId, ...] = ()
    in_thread: bool = False
    mentions_bot: bool = False
    foreign_request: RequestId | None = None  # a `request_id` in the content: it counts for that request alone (V2-34)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reacted:
    """An `m.reaction` of somebody else."""

    room: RoomId
    sender: UserId
    event_id: EventId
    key: str
    target: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """An event of the room was removed."""

    room: RoomId
    sender: UserId
    target: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Echoed:
    """An event of our own came back in the room's timeline: from here on, what follows it in sync order comes after."""

    room: RoomId
    event_id: EventId
    transaction_id: TransactionId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The homeserver took an outgoing event."""

    transaction_id: TransactionId
    event_id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailed:
    """An outgoing event can never be sent. `sentence` says why, for the record."""

    transaction_id: TransactionId
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """The homeserver refused an outgoing event for its size: a shorter one must go out, under a new id (matrix.md, 4)."""

    transaction_id: TransactionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """What became of a prompt when it was put into words: its digest, and whether the message shows all of it."""

    request_id: RequestId
    revision: int
    digest: str | None  # None: sent without a card
    whole: bool


# ------------------------------------------------------------------------------------------- events: from here, and time


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredLocally:
    """`permission.respond` over the control socket. `ticket` names the caller that waits for the receipt.

    `trusted` is false where the caller's uid is one that a harness runs under (rule 13, `SO_PEERCRED`).
    """

    ticket: int
    session_id: SessionId
    request_id: RequestId
    option_id: str
    by: str
    trusted: bool
    revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeleted:
    """`session.delete` over the control socket."""

    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCancelled:
    """A person (or the service) ends the running turn: `session/cancel` is about to be sent. `by` ends its prompts."""

    session_id: SessionId
    by: UserId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The time that `WakeAt` named has come for this request."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class ShuttingDown:
    """SIGTERM: every waiting request ends now."""


Event: TypeAlias = (
    SessionStarted
    | StartFailed
    | Asked
    | ToolCallChanged
    | Withdrawn
    | TurnEnded
    | AgentGone
    | Delivered
    | NotDelivered
    | RoomSeen
    | Said
    | Reacted
    | Redacted
    | Echoed
    | Sent
    | SendFailed
    | TooLarge
    | Composed
    | AnsweredLocally
    | SessionDeleted
    | TurnCancelled
    | DeadlineReached
    | ShuttingDown
)


# -------------------------------------------------------------------------------------------- messages: what people read


@dataclass(frozen=True, slots=True)
class Prompt:
    """The request as one message: text, v2 card, v1 card."""

    request: Request


@dataclass(frozen=True, slots=True)
class Closing:
    """The one edit of an ended prompt (rule 12), to what really went over the wire."""

    request: Request  # phase ENDED; its decision and `delivered` say it all


@dataclass(frozen=True, slots=True)
class Replaced:
    """The one edit of a prompt whose request changed while it waited: answer the new message instead (AC-19)."""

    request: Request  # with the new revision
    old_event_id: EventId


@dataclass(frozen=True, slots=True)
class Seed:
    """A reaction of ours under a prompt, for tapping: option `number` from 1."""

    request_id: RequestId
    event_id: EventId
    number: int


@dataclass(frozen=True, slots=True)
class NotAnOption:
    """Rule 16's refusal with the list."""

    request: Request
    answer: EventId


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """Told to somebody who clearly tried to answer and may not (rule 13)."""

    request: Request
    sender: UserId
    answer: EventId


@dataclass(frozen=True, slots=True)
class WhichPrompt:
    """Bare text that could mean several prompts, or a prompt that this person's phone may still show (rule 14).

    `waiting` are up to ten of them, oldest first; `more` how many others wait.
    """

    waiting: tuple[Request, ...]
    more: int
    sender: UserId
    answer: EventId


@dataclass(frozen=True, slots=True)
class WrongNumber:
    """A reply to one prompt with the room number of another in front: no answer (rule 14)."""

    request: Request
    number: int
    answer: EventId


@dataclass(frozen=True, slots=True)
class TooLate:
    """A late answerer is told how the request ended (rule 12); for a prompt that was replaced: which one to answer."""

    request: Request
    sender: UserId
    answer: EventId


@dataclass(frozen=True, slots=True)
class Confirm:
    """The second, explicit confirmation of rule 10: a message of its own that names the option and the person."""

    request: Request
    option: Option
    sender: UserId
    answer: EventId


@dataclass(frozen=True, slots=True)
class Unaskable:
    """The agent asked something that cannot be put to people (rule 6)."""

    agent: AgentName
    title: str
    misfit: Misfit


@dataclass(frozen=True, slots=True)
class NotStored:
    """The ledger could not keep an answer: nothing was decided, the prompt still waits."""

    request: Request


@dataclass(frozen=True, slots=True)
class PromptLost:
    """A waiting prompt's message was removed from the room a second time: the request waits on, its number answers it."""

    request: Request


@dataclass(frozen=True, slots=True)
class Words:
    """What the agent said in a turn. Long text is split by the room side."""

    agent: AgentName
    text: str


@dataclass(frozen=True, slots=True)
class Queued:
    """A person's words wait for the running turn; `ahead` others before them."""

    agent: AgentName
    ahead: int
    answer: EventId


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The queue holds no more; these words were not taken."""

    agent: AgentName
    answer: EventId


@dataclass(frozen=True, slots=True)
class WhichAgent:
    """Words that could be for any of these agents; nothing was forwarded."""

    agents: tuple[AgentName, ...]
    answer: EventId


@dataclass(frozen=True, slots=True)
class WhichTurn:
    """`!cancel` without a name while these agents have a running turn."""

    agents: tuple[AgentName, ...]
    answer: EventId


@dataclass(frozen=True, slots=True)
class NothingToCancel:
    """`!cancel` with no turn running."""

    answer: EventId


@dataclass(frozen=True, slots=True)
class CancelSent:
    """`session/cancel` went out; `dropped` queued prompts were dropped with it."""

    agent: AgentName
    dropped: int


@dataclass(frozen=True, slots=True)
class NoAgent:
    """Words for an agent that is not running."""

    agent: AgentName
    answer: EventId


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """A turn ended with an error, or for a reason that people should know (`refusal`, `max_tokens`, …)."""

    agent: AgentName
    stop_reason: str
    sentence: str | None


@dataclass(frozen=True, slots=True)
class Gone:
    """The harness ended."""

    agent: AgentName
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class AgentNote:
    """One plain sentence about an agent: its mode skips questions, it could not be started, …."""

    agent: AgentName
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """One agent's line in `!status`."""

    agent: AgentName
    session_id: SessionId | None
    turn_running: bool
    queued: int
    waiting: tuple[tuple[int, str], ...]  # room number and title of each waiting prompt, oldest first


@dataclass(frozen=True, slots=True)
class Status:
    """The answer to `!status`."""

    agents: tuple[AgentStatus, ...]


@dataclass(frozen=True, slots=True)
class Help:
    """The answer to `!help`, and to a command that does not exist (`unknown`)."""

    unknown: str | None = None


Message: TypeAlias = (
    Prompt
    | Closing
    | Replaced
    | Seed
    | NotAnOption
    | NotAllowed
    | WhichPrompt
    | WrongNumber
    | TooLate
    | Confirm
    | Unaskable
    | NotStored
    | PromptLost
    | Words
    | Queued
    | QueueFull
    | WhichAgent
    | WhichTurn
    | NothingToCancel
    | CancelSent
    | NoAgent
    | TurnFailed
    | Gone
    | AgentNote
    | Status
    | Help
)


class Priority(IntEnum):
    """The order in which one account's events leave (matrix.md, section 5): prompts first, seeds last and droppable."""

    PROMPT = 0
    NOTICE = 1
    EDIT = 2
    SEED = 3


# ------------------------------------------------------------------------------------------------------ effects


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
    """A person's words that are no answer: for `core.turns`. `aimed`: the agent whose prompt they point at."""

    said: Said
    aimed: AgentName | None = None


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


# ------------------------------------------------------------------------------------------- changes: what is stored


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
    """A waiting request changed: its row with all but decision and phase (so `placed` and `whole` too); no history row."""

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
)

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
    | Typing
    | Log
    | Change
)

# ---------------------------------------------------------------------------------------- records and what is loaded


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the core decides by: the agents, in the config's order."""

    agents: tuple[Agent, ...]
    bot: UserId
