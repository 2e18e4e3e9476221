"""What happens: every event that the core takes, from the harnesses, from the rooms, from this machine and from the clock.

Above it: broker, turns, relay and every adapter. Below it: the model. An adapter makes events; only the core decides which effects
an event has.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from bridge.core.model import (
    AgentName,
    CallRef,
    Description,
    EventId,
    JsonObject,
    Misfit,
    Option,
    RequestId,
    RoomId,
    Seal,
    SessionId,
    TransactionId,
    UserId,
)


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
    nonce: str = field(default="", repr=False)  # unguessable, from a CSPRNG; see `Request.nonce`


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallChanged:
    """An update came for a tool call that a waiting request asks about. The broker compares what is asked (AC-19).

    `call` is the one request it speaks of: two that wait may share a `tool_call_id` and ask for different things.
    """

    session_id: SessionId
    tool_call_id: str
    description: Description
    call: CallRef


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
    encrypted: bool = False  # it was ever encrypted; with state JOINED the bridge can read and write there


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
    seal: Seal | None = None  # None: it came in clear text
    exposed: bool = False  # it came in clear text although the room was encrypted by then: it counts for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Reacted:
    """An `m.reaction` of somebody else."""

    room: RoomId
    sender: UserId
    event_id: EventId
    key: str
    target: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """A vote of somebody else in a poll, either form. `answers` are the chosen ids as they came; none: taken back."""

    room: RoomId
    sender: UserId
    event_id: EventId
    target: EventId
    answers: tuple[str, ...]
    seal: Seal | None = None
    exposed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """An encrypted event of somebody else that cannot be read yet, at its place in sync order.

    Its key may come: then its `Said` or `Voted` follows, later than its place, and counts only for what stood in the room
    when this was taken. `raw` is the event as it came, as JSON text, so that a restart can still open it.
    """

    room: RoomId
    sender: UserId
    event_id: EventId
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StillLocked:
    """A locked event could not be opened for a while. `withheld`: the sender's client keeps its key from us on purpose."""

    room: RoomId
    sender: UserId
    event_id: EventId
    withheld: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlocked:
    """A locked event is done with: it was opened (what it said came just before this), or nobody waits for it any more."""

    room: RoomId
    event_id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """An operator compared emoji with this person: `master` is their identity from here on (rule 13, `pinned`)."""

    user: UserId
    master: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMoved:
    """The room was upgraded, the new one names it as its predecessor, the bot is in, and the config follows upgrades."""

    old: RoomId
    new: RoomId


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
    too_long: bool = False  # there are no words for it that fit an event


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
    | Voted
    | Locked
    | StillLocked
    | Unlocked
    | Verified
    | RoomMoved
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
