"""What `check` asks and what it gets: the plan that the config makes, the questions to the account, the reports, a finding.

Above it: `ops.doctor`, which asks and words, and app, which answers. Below it: the core's nouns. Values and ports only.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Protocol

from bridge.core.events import RoomState
from bridge.core.model import AgentName, PolicyName, Seal, Trust, UserId
from bridge.ops.login import Account


class Level(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line; `exit_code` is what the command ends with when this is the first that failed."""

    level: Level
    subject: str
    sentence: str
    exit_code: int = 1

    def __str__(self) -> str:
        return f"{self.level:<8} {self.subject}: {self.sentence}"


# ------------------------------------------------------------------------------------------------------------ the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """What the config says of an agent."""

    name: AgentName
    room: str | None
    approvers: frozenset[UserId]
    policy: PolicyName
    mode: str | None
    reactions: bool
    trust: Trust = Trust.CROSS_SIGNED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBridge:
    """What a bridge that runs on the state folder says. `no_encryption`: why it cannot encrypt; None: it can."""

    no_encryption: str | None
    times_limited: int  # calls of its that were answered M_LIMIT_EXCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the config says; `device_id` is the one that the state folder knows, `bridge` the one that runs there."""

    config: Path
    warnings: tuple[str, ...]
    state_dir: Path
    homeserver: str
    user_id: UserId
    device_id: str | None
    encryption: bool
    agents: tuple[AgentPlan, ...]
    bridge: RunningBridge | None = None


# --------------------------------------------------------------------------------------------------------- the reports


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomReport:
    """A room as the bot's account sees it. `people` are the joined users, `invited` is the bot.

    `may_send` is about what is sent there: in an encrypted room that is `m.room.encrypted`.
    """

    state: RoomState
    encrypted: bool = False
    invited: bool = False
    may_send: bool
    may_react: bool
    people: frozenset[UserId]


class Keys(Enum):
    """The keys of the bot's device: ours beside those that the homeserver shows."""

    SAME = "same"
    NOT_MADE = "not_made"  # on neither side
    NOT_PUBLISHED = "not_published"  # here, and not there yet
    LOST = "lost"  # there are some, and ours are not those


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """The bot's device as others see it. `problem`: what clients make of it and what to do; None when all is well."""

    fingerprint: str
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonReport:
    """How a message from each of a person's devices would be vouched for now, and the master key that was pinned."""

    seals: tuple[Seal, ...]
    pinned: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessReport:
    """What a harness said to `initialize` and `session/new`; `uid` is the user it runs as."""

    name: str
    modes: tuple[str, ...]
    mode: str | None  # the one it started in
    uid: int


class Homeserver(Protocol):
    """The bot's account. Nothing asked here changes anything. All of it raises the errors of `MatrixError`."""

    @property
    def times_limited(self) -> int:
        """How many of these calls were answered M_LIMIT_EXCEEDED."""
        ...

    async def whoami(self) -> Account:
        """Whose token it is."""
        ...

    async def inspect(self, room: str) -> RoomReport:
        """A room by id or alias."""
        ...

    async def compare_keys(self, device_id: str) -> Keys:
        """Our device's keys beside those that the homeserver shows.

        Raises `KeysDamaged` where ours cannot be read, `KeysLost` where they are another device's.
        """
        ...

    async def inspect_device(self, device_id: str) -> DeviceReport:
        """Whether our device, whose keys are the same on both sides, is signed by its account."""
        ...

    async def has_fallback_key(self) -> bool:
        """Whether the homeserver holds a fallback key of our device that nobody has used."""
        ...

    async def inspect_person(self, user: UserId) -> PersonReport:
        """Somebody's devices. Raises `LedgerError`, too, where the pins cannot be read."""
        ...


Probe = Callable[[AgentName], Awaitable[HarnessReport]]
"""Starts an agent's harness, says `initialize`, opens a session, ends it. Raises `AgentError`."""
