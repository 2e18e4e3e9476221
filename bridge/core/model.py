"""The nouns of the bridge: what a session, a request, an option, an answer and an ending are (design.md, section 4).

Above it: everybody. Below it: nothing. Frozen values only; no behaviour that needs I/O or a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]

AgentName = NewType("AgentName", str)  # `agents.NAME` of the config
SessionId = NewType("SessionId", str)  # the bridge's own, `acps_` + 16 hex digits
RequestId = NewType("RequestId", str)  # "{session_id}:{request_seq}"
CallRef = NewType("CallRef", int)  # stands for the harness's JSON-RPC id, which never leaves bridge.acp
RoomId = NewType("RoomId", str)  # opaque: room version 12 has no server part
UserId = NewType("UserId", str)
EventId = NewType("EventId", str)
TransactionId = NewType("TransactionId", str)
SyncToken = NewType("SyncToken", str)
Millis = NewType("Millis", int)  # Unix time in milliseconds, or a span of them

ENDLESS_MS = Millis(2**31 - 1)  # rule 5: the bound that AgentOS names, about 24.8 days


class Meaning(StrEnum):
    """What an option means, from its kind alone (permission-v2.md, section 6)."""

    APPROVE = "approve"
    REJECT = "reject"
    CHOOSE = "choose"


class Scope(StrEnum):
    """How far an option reaches, from its kind alone."""

    ONCE = "once"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One offered option, in the agent's order.

    `option_id` goes back code point for code point. `label` is the name as a card shows it (escaped, at most 200
    UTF-16 units, never empty), `line` as the prose shows it (with ` [id]` where the name alone would not tell options
    apart), `card_id` the id that the card may carry (an alias where the real one does not fit).
    """

    option_id: str
    name: str  # as it came; "" when missing or no string
    kind: str | None
    label: str
    line: str
    card_id: str
    meaning: Meaning
    scope: Scope | None
    label_cut: bool = False


class Misfit(StrEnum):
    """Why a list of options cannot be put to people (rule 6): the request ends `undeliverable`, answered `cancelled`."""

    NOTHING_TO_CHOOSE = "nothing_to_choose"
    SAME_ID = "same_id"
    NOT_TELLABLE = "not_tellable"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is asked for, typed (MSP `ApprovalSubject`). `known` is false for a kind that nobody may allow by policy."""

    kind: str
    members: JsonObject
    known: bool = True


@dataclass(frozen=True, slots=True)
class Field:
    """A one-line preview item, escaped and masked."""

    label: str
    value: str


@dataclass(frozen=True, slots=True)
class Text:
    """A preview item of several lines, escaped (real line ends and tabs kept) and masked. Nothing is cut yet."""

    label: str
    text: str


PreviewItem: TypeAlias = Field | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Essence:
    """What must not change unnoticed while a request waits: command, paths, diffs and url of the merged tool call.

    None (or an empty tuple) means that it was absent (requirements.md, AC-19).
    """

    command: str | None
    paths: tuple[str, ...]
    diffs: tuple[str, ...]
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What one tool call asks for, ready to be shown: whole, escaped, masked.

    `notes` says why the preview is not complete, one sentence each; empty means complete.
    """

    title: str
    tool_kind: str | None
    subjects: tuple[Subject, ...]
    preview: tuple[PreviewItem, ...]
    notes: tuple[str, ...]
    essence: Essence

    @property
    def complete(self) -> bool:
        """Whether nothing is missing from the preview before it is cut to fit."""
        return not self.notes


class Ending(StrEnum):
    """How a request ended, exactly one of these (design.md, section 4)."""

    ANSWERED = "answered"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    AGENT_GONE = "agent_gone"
    SESSION_DELETED = "session_deleted"
    SHUTDOWN = "shutdown"
    UNDELIVERABLE = "undeliverable"


class Reason(StrEnum):
    """Why an answer is `not_pending` (requirements.md, section 7)."""

    ALREADY_RESOLVED = "already_resolved"
    PROMPT_CANCELLED = "prompt_cancelled"
    ADAPTER_EXITED = "adapter_exited"
    SESSION_DELETED = "session_deleted"
    VM_SHUTDOWN = "vm_shutdown"
    REQUEST_NOT_FOUND = "request_not_found"
    EXPIRED = "expired"
    UNDELIVERABLE = "undeliverable"


REASON_OF_ENDING: Mapping[Ending, Reason] = {
    Ending.ANSWERED: Reason.ALREADY_RESOLVED,
    Ending.CANCELLED: Reason.PROMPT_CANCELLED,
    Ending.WITHDRAWN: Reason.PROMPT_CANCELLED,
    Ending.EXPIRED: Reason.EXPIRED,
    Ending.AGENT_GONE: Reason.ADAPTER_EXITED,
    Ending.SESSION_DELETED: Reason.SESSION_DELETED,
    Ending.SHUTDOWN: Reason.VM_SHUTDOWN,
    Ending.UNDELIVERABLE: Reason.UNDELIVERABLE,
}


class Via(StrEnum):
    """The surface an answer came over (interface.md, History record)."""

    MESSAGE = "message"
    REACTION = "reaction"
    THREAD = "thread"
    POLL = "poll"
    LOCAL = "local"
    EDITOR = "editor"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class Selected:
    """The outcome `selected` of ACP."""

    option_id: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The outcome `cancelled` of ACP."""


@dataclass(frozen=True, slots=True)
class Unsatisfied:
    """No outcome: JSON-RPC error -32603 with `data.code` `permission_policy_unsatisfied` (rule 1)."""


Outcome: TypeAlias = Selected | Cancelled | Unsatisfied


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What ends a request, taken once. `option` is set where an option goes to the harness."""

    ending: Ending
    outcome: Outcome | None  # None: nothing can be written any more (the agent is gone)
    option: Option | None = None
    by: str | None = None  # a full user id, or "local:<unix user>"
    via: Via | None = None
    event_id: EventId | None = None  # of the answer
    device_id: str | None = None  # that the answer came from, where it came encrypted
    at: Millis


class Phase(StrEnum):
    """Where a request stands. Only PENDING may be decided; only DECIDED may end."""

    PENDING = "pending"
    DECIDED = "decided"
    ENDED = "ended"


class PolicyName(StrEnum):
    """What is asked and what is not (rule 1)."""

    ASK = "ask"
    ALLOW_ALL = "allow_all"
    REJECT_ALL = "reject_all"


class PromptStyle(StrEnum):
    """`full` shows the preview in the text, `brief` is exactly AgentPod's prose (rule 8)."""

    FULL = "full"
    BRIEF = "brief"


class Listen(StrEnum):
    """Which text is for the agent (rule 16). AUTO: by the number of people in the room."""

    AUTO = "auto"
    ALL = "all"
    MENTION = "mention"


class Trust(StrEnum):
    """Which devices a person may answer from in an encrypted room (design.md, rule 13)."""

    ANY = "any"  # any device that the homeserver says is this person's
    CROSS_SIGNED = "cross_signed"  # one that its owner has signed
    PINNED = "pinned"  # and the owner's identity is the one that `verify` pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """How an encrypted message is vouched for: whose key it came under, as the device lists had it then.

    `device_id` is None when no device of the sender has the key that it was encrypted with: then it is nobody's. `signed`:
    the device is signed by the sender's self-signing key, and that by the master key `master` (base64, None: they have none).
    """

    device_id: str | None
    signed: bool
    master: str | None


class LocalAnswers(StrEnum):
    """What the control socket may choose besides a refusal (rule 13)."""

    OFF = "off"
    OTHER_USERS = "other_users"  # `local_answers = true`
    SAME_USER = "same_user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent's rules, fixed for its sessions: the part of its config that the core decides by."""

    name: AgentName
    room: RoomId | None
    approvers: frozenset[UserId]
    users: frozenset[UserId]
    policy: PolicyName = PolicyName.ASK
    prompt_style: PromptStyle = PromptStyle.FULL
    reactions: bool = True
    mentions: bool = True
    listen: Listen = Listen.AUTO
    expires_after: Millis = ENDLESS_MS
    local_answers: LocalAnswers = LocalAnswers.OFF
    trust: Trust = Trust.CROSS_SIGNED  # in encrypted rooms
    strict: bool = False  # in encrypted rooms: only what the server can neither read, forge nor move counts
    polls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One `session/request_permission` that is asked in a room."""

    request_id: RequestId
    session_id: SessionId
    request_seq: int
    agent: AgentName
    call: CallRef
    tool_call_id: str
    room: RoomId
    number: int  # the room number, `#12`
    description: Description
    options: tuple[Option, ...]
    asked_at: Millis
    expires_at: Millis
    revision: int = 1
    phase: Phase = Phase.PENDING
    decision: Decision | None = None
    delivered: bool = False  # whether the harness got the outcome; final once ENDED
    event_id: EventId | None = None  # of the current revision's message, once the server has taken it
    placed: bool = False  # whether that message was seen in the room's timeline: only then may bare text count
    whole: bool = True  # whether people were shown all of it; else an allow is confirmed first (rule 10)
    style: PromptStyle = PromptStyle.FULL
    mentions: tuple[UserId, ...] = ()
    nonce: str = field(default="", repr=False)  # unguessable; the ids of a poll's answers come from it. "": no poll
    strict: bool = False  # only an encrypted text with the room number in front counts, or an encrypted vote


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the core decides by: the agents, in the config's order."""

    agents: tuple[Agent, ...]
    bot: UserId
