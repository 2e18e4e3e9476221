"""`check`: tries each thing that `run` needs and says in one line each how it is, and what to do about it.

Above it: app, which wires the real homeserver and harnesses. Below it: `Homeserver` and `Probe`, asked one after the
other. It changes nothing but the mode of the state folder, and it knows neither Matrix's nor ACP's wire.
"""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from bridge.core.errors import AgentError, BridgeError, CredentialsRefused, MatrixError
from bridge.core.events import RoomState
from bridge.core.model import AgentName, PolicyName, UserId
from bridge.ops.folder import open_state_folder
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomReport:
    """A room as the bot's account sees it. `people` are the joined users, `invited` is the bot."""

    state: RoomState
    invited: bool = False
    may_send: bool
    may_react: bool
    people: frozenset[UserId]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessReport:
    """What a harness said to `initialize` and `session/new`; `uid` is the user it runs as."""

    name: str
    modes: tuple[str, ...]
    mode: str | None  # the one it started in
    uid: int


class Homeserver(Protocol):
    """The bot's account. Both raise the errors of `MatrixError`."""

    async def whoami(self) -> Account:
        """Whose token it is."""
        ...

    async def inspect(self, room: str) -> RoomReport:
        """A room by id or alias."""
        ...


Probe = Callable[[AgentName], Awaitable[HarnessReport]]
"""Starts an agent's harness, says `initialize`, opens a session, ends it. Raises `AgentError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """What the config says of an agent."""

    name: AgentName
    room: str | None
    approvers: frozenset[UserId]
    policy: PolicyName
    mode: str | None
    reactions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the config says; `device_id` is the one that the state folder knows."""

    config: Path
    warnings: tuple[str, ...]
    state_dir: Path
    user_id: UserId
    device_id: str | None
    agents: tuple[AgentPlan, ...]


async def check(plan: Plan, homeserver: Homeserver, probe: Probe, say: Callable[[str], None]) -> int:
    """Say each finding as it is found; returns the exit code."""
    exit_code = 0
    async for finding in _examine(plan, homeserver, probe):
        say(str(finding))
        if finding.level is Level.FAILED and exit_code == 0:
            exit_code = finding.exit_code
    return exit_code


async def _examine(plan: Plan, homeserver: Homeserver, probe: Probe) -> AsyncIterator[Finding]:
    yield Finding(Level.OK, "config", f"{plan.config} can be used.")
    for warning in plan.warnings:
        yield Finding(Level.WARNING, "config", warning)
    yield _check_state_folder(plan.state_dir)
    usable = False
    async for finding in _check_account(plan, homeserver):
        yield finding
        usable = finding.level is not Level.FAILED
    reports: list[HarnessReport] = []
    for agent in plan.agents:
        if usable:
            async for finding in _check_room(plan.user_id, agent, homeserver):
                yield finding
        async for finding in _check_harness(agent, probe, reports):
            yield finding
    if any(report.uid == os.getuid() for report in reports):
        sentence = (
            "bridge and harness run as the same user, so a harness can read the bridge's token and ledger; "
            "run the harness in a container or as another user where that matters."
        )
        yield Finding(Level.WARNING, "users", sentence)


def _check_state_folder(path: Path) -> Finding:
    loose = path.exists() and path.stat().st_mode & 0o077
    try:
        open_state_folder(path)
    except BridgeError as error:
        return Finding(Level.FAILED, "state folder", f"{error} Give it to the user who runs the bridge.")
    if loose:
        return Finding(Level.WARNING, "state folder", f"{path} was open to other users; its mode is 0700 now.")
    return Finding(Level.OK, "state folder", f"{path} can be written, and by nobody else.")


async def _check_account(plan: Plan, homeserver: Homeserver) -> AsyncIterator[Finding]:
    reached = Finding(Level.OK, "homeserver", "it answers.")
    try:
        account = await homeserver.whoami()
    except CredentialsRefused as error:
        yield reached
        yield Finding(Level.FAILED, "token", f"{error} Run `acp-matrix-bridge login`.", error.exit_code)
        return
    except MatrixError as error:
        yield Finding(Level.FAILED, "homeserver", f"{error} See matrix.homeserver.", error.exit_code)
        return
    yield reached
    code = CredentialsRefused.exit_code
    if account.user_id != plan.user_id:
        sentence = f"it is {account.user_id}'s, but matrix.user_id is {plan.user_id}; one of them is wrong."
        yield Finding(Level.FAILED, "token", sentence, code)
    elif plan.device_id is not None and account.device_id != plan.device_id:
        sentence = (
            f"it is of device {account.device_id}, but the state folder belongs to {plan.device_id}; "
            "run `acp-matrix-bridge login`, or use a state folder of its own."
        )
        yield Finding(Level.FAILED, "token", sentence, code)
    else:
        yield Finding(Level.OK, "token", f"it is {account.user_id}'s, device {account.device_id or '(none)'}.")


async def _check_room(bot: UserId, agent: AgentPlan, homeserver: Homeserver) -> AsyncIterator[Finding]:
    if agent.room is None:
        return  # a warning of the config says so
    subject = f"room of {agent.name}"
    try:
        report = await homeserver.inspect(agent.room)
    except MatrixError as error:
        yield Finding(Level.FAILED, subject, f"{error} See agents.{agent.name}.room.", error.exit_code)
        return
    unusable = {
        RoomState.NOT_JOINED: f"the bot is not in {agent.room}; invite {bot}.",
        RoomState.ENCRYPTED: f"{agent.room} is encrypted, which this version cannot do; use another room.",
        RoomState.REPLACED: f"{agent.room} was upgraded; put the new room into the config.",
    }
    if report.invited:
        sentence = f"the bot is invited to {agent.room} and joins when `run` starts; check again then."
        yield Finding(Level.WARNING, subject, sentence)
        return
    if report.state in unusable:
        yield Finding(Level.FAILED, subject, unusable[report.state])
        return
    if not report.may_send:
        yield Finding(Level.FAILED, subject, f"{bot} may not send messages in {agent.room}; raise its power level.")
    elif agent.reactions and not report.may_react:
        sentence = f"{bot} may not react in {agent.room}; raise its power level, or set reactions = false."
        yield Finding(Level.WARNING, subject, sentence)
    else:
        yield Finding(Level.OK, subject, f"the bot is in {agent.room} and may send there.")
    if agent.approvers:
        yield _check_approvers(agent, report.people)


def _check_approvers(agent: AgentPlan, people: frozenset[UserId]) -> Finding:
    subject = f"approvers of {agent.name}"
    absent = sorted(agent.approvers - people)
    if not absent:
        return Finding(Level.OK, subject, "all of them are in the room.")
    nobody = len(absent) == len(agent.approvers) and agent.policy is PolicyName.ASK
    level = Level.FAILED if nobody else Level.WARNING
    return Finding(level, subject, f"not in the room: {', '.join(absent)}; invite them.")


async def _check_harness(agent: AgentPlan, probe: Probe, reports: list[HarnessReport]) -> AsyncIterator[Finding]:
    subject = f"harness of {agent.name}"
    try:
        report = await probe(agent.name)
    except AgentError as error:
        sentence = f"{error} See agents.{agent.name}.command."
        yield Finding(Level.FAILED, subject, sentence, AgentError.exit_code)
        return
    reports.append(report)
    # What a harness calls itself and its modes is text of others: as JSON it cannot steer the terminal.
    offered = ", ".join(json.dumps(mode) for mode in report.modes) or "none"
    if agent.mode is not None and agent.mode not in report.modes:
        sentence = f'it does not offer the mode "{agent.mode}"; it offers {offered}: set agents.{agent.name}.mode.'
        yield Finding(Level.FAILED, subject, sentence, AgentError.exit_code)
    elif agent.mode is None and len(report.modes) > 1 and agent.policy is PolicyName.ASK:
        started = json.dumps(report.mode)
        sentence = f"it starts in the mode {started} of {offered}; name the one that asks in agents.{agent.name}.mode."
        yield Finding(Level.WARNING, subject, sentence)
    else:
        yield Finding(Level.OK, subject, f"{json.dumps(report.name)} starts and opens a session.")
