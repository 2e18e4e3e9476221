"""What people are told in a room, before it is put into words: one class a kind of message.

Above it: the core, which chooses, and `bridge.matrix`, which words. Below it: the model.
"""

from dataclasses import dataclass
from typing import TypeAlias

from bridge.core.model import AgentName, EventId, Misfit, Option, Request, RequestId, SessionId, UserId


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
    old_number: int  # the room number that this message shows


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


@dataclass(frozen=True, slots=True)
class Moved:
    """Said in the new room of an upgrade: these agents go on here."""

    agents: tuple[AgentName, ...]


@dataclass(frozen=True, slots=True)
class DeviceRefused:
    """Told once to somebody on the list whose message came from a device that `trust` does not accept, and what to do.

    `identity_changed`: their identity is another than the pinned one; `unpinned`: none was pinned yet.
    """

    sender: UserId
    answer: EventId
    device_id: str | None
    identity_changed: bool = False
    unpinned: bool = False


@dataclass(frozen=True, slots=True)
class NeedsNumber:
    """Under `strict` only the room number in front, inside an encrypted text, makes an answer (or a vote)."""

    request: Request
    sender: UserId
    answer: EventId


@dataclass(frozen=True, slots=True)
class Exposed:
    """A message in clear text in an encrypted room, from somebody on the list: it counts for nothing, told once."""

    sender: UserId
    answer: EventId


@dataclass(frozen=True, slots=True)
class SendAgain:
    """A message that could not be read: its sender is asked, once, to send it again."""

    sender: UserId
    answer: EventId
    withheld: bool


@dataclass(frozen=True, slots=True)
class Poll:
    """The request as a poll beside its prompt: `answers` are the ids of its options, in order, unguessable."""

    request: Request
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PollEnd:
    """The poll is closed, together with its prompt."""

    request: Request
    poll: EventId


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
    | Moved
    | DeviceRefused
    | NeedsNumber
    | Exposed
    | SendAgain
    | Poll
    | PollEnd
)
