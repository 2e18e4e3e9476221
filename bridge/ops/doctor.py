"""`check`: tries each thing that `run` needs and says in one line each how it is, and what to do about it.

Above it: app, which wires the real homeserver and harnesses. Below it: `Homeserver` and `Probe`, asked one after the
other. It changes nothing but the mode of the state folder, and it knows neither Matrix's nor ACP's wire.
"""

import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

from bridge.core.errors import (
    AgentError,
    BridgeError,
    CredentialsRefused,
    KeysDamaged,
    KeysLost,
    LedgerError,
    MatrixError,
    RateLimited,
)
from bridge.core.events import RoomState
from bridge.core.model import PolicyName, Seal, Trust, UserId
from bridge.core.trusting import Doubt, judge
from bridge.ops.findings import (
    AgentPlan,
    Finding,
    HarnessReport,
    Homeserver,
    Keys,
    Level,
    PersonReport,
    Plan,
    Probe,
    RoomReport,
)
from bridge.ops.folder import open_state_folder

NEW_DEVICE = "run `acp-matrix-bridge login --new-device`"


async def check(plan: Plan, homeserver: Homeserver, probe: Probe, say: Callable[[str], None]) -> int:
    """Say each finding as it is found; returns the exit code."""
    exit_code = 0
    async for finding in _Examination(plan, homeserver, probe).findings():
        say(str(finding))
        if finding.level is Level.FAILED and exit_code == 0:
            exit_code = finding.exit_code
    return exit_code


class _Examination:
    """One run of `check`, and what later questions need of earlier answers."""

    def __init__(self, plan: Plan, homeserver: Homeserver, probe: Probe) -> None:
        self._plan, self._homeserver, self._probe = plan, homeserver, probe
        self._device_id: str | None = None  # the token's, once that is known to be the right one
        self._encrypts = False  # whether encrypted rooms can be served
        self._reports: list[HarnessReport] = []

    async def findings(self) -> AsyncIterator[Finding]:
        plan = self._plan
        yield Finding(Level.OK, "config", f"{plan.config} can be used.")
        for warning in plan.warnings:
            yield Finding(Level.WARNING, "config", warning)
        yield _check_state_folder(plan.state_dir)
        async for finding in self._check_account():
            yield finding
        if self._device_id is not None:
            async for finding in self._check_encryption(self._device_id):
                yield finding
        for agent in plan.agents:
            if self._device_id is not None:
                async for finding in self._check_room(agent):
                    yield finding
            yield await self._check_harness(agent)
        if any(report.uid == os.getuid() for report in self._reports):
            sentence = (
                "bridge and harness run as the same user, so a harness can read the bridge's token and ledger; "
                "run the harness in a container or as another user where that matters."
            )
            yield Finding(Level.WARNING, "users", sentence)
        yield self._check_limit()

    # ---------------------------------------------------------------------------------------------------- the account

    async def _check_account(self) -> AsyncIterator[Finding]:
        plan = self._plan
        reached = Finding(Level.OK, "homeserver", "it answers.")
        try:
            account = await self._homeserver.whoami()
        except CredentialsRefused as error:
            yield reached
            yield Finding(Level.FAILED, "token", f"{error} Run `acp-matrix-bridge login`.", error.exit_code)
            return
        except MatrixError as error:
            remedy = "Try again later." if isinstance(error, RateLimited) else "See matrix.homeserver."
            yield Finding(Level.FAILED, "homeserver", f"{error} {remedy}", error.exit_code)
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
            self._device_id = account.device_id
            yield Finding(Level.OK, "token", f"it is {account.user_id}'s, device {account.device_id or '(none)'}.")

    # ----------------------------------------------------------------------------------------------------- encryption

    async def _check_encryption(self, device_id: str) -> AsyncIterator[Finding]:
        if not self._plan.encryption:
            sentence = "it is switched off (encryption = false): nothing is sent into encrypted rooms."
            yield Finding(Level.OK, "encryption", sentence)
            return
        if not device_id:
            sentence = (
                "this token belongs to no device, so nothing can be encrypted; give one that does "
                "(`acp-matrix-bridge login`), or set encryption = false."
            )
            yield Finding(Level.WARNING, "encryption", sentence)
            return
        try:
            keys = await self._homeserver.compare_keys(device_id)
        except (KeysDamaged, KeysLost) as error:
            yield Finding(Level.FAILED, "encryption", f"{error} To get new ones, {NEW_DEVICE}.", error.exit_code)
            return
        except MatrixError as error:
            yield Finding(Level.FAILED, "encryption", str(error), error.exit_code)
            return
        yield self._judge_keys(keys, device_id)
        if keys is Keys.SAME:
            yield await self._check_device(device_id)
            yield await self._check_fallback_key()

    def _judge_keys(self, keys: Keys, device_id: str) -> Finding:
        bridge = self._plan.bridge
        self._encrypts = keys is not Keys.LOST and (bridge is None or bridge.no_encryption is None)
        if bridge is not None and bridge.no_encryption is not None:
            sentence = f"the running bridge encrypts nothing. {bridge.no_encryption}"
            if keys is Keys.LOST:
                return Finding(Level.FAILED, "encryption", sentence, MatrixError.exit_code)
            return Finding(Level.WARNING, "encryption", f"{sentence} The keys can be used now: restart it.")
        match keys:
            case Keys.SAME:
                used = "" if bridge is None else ", and the running bridge has them open"
                sentence = f"the keys of device {device_id} are those that the homeserver shows{used}."
                return Finding(Level.OK, "encryption", sentence)
            case Keys.NOT_MADE:
                sentence = f"device {device_id} has no keys yet; `run` makes them when it starts, check again then."
                return Finding(Level.WARNING, "encryption", sentence)
            case Keys.NOT_PUBLISHED:
                sentence = f"the homeserver has no keys of device {device_id} yet; `run` publishes them when it starts."
                return Finding(Level.WARNING, "encryption", sentence)
            case Keys.LOST:
                sentence = (
                    f"the keys of device {device_id} that the homeserver shows are not in the state folder (any more), so "
                    f"nothing can be encrypted; {NEW_DEVICE}."
                )
                return Finding(Level.FAILED, "encryption", sentence, MatrixError.exit_code)

    async def _check_device(self, device_id: str) -> Finding:
        try:
            report = await self._homeserver.inspect_device(device_id)
        except MatrixError as error:
            return Finding(Level.WARNING, "device", str(error))
        if report.problem is not None:
            return Finding(Level.WARNING, "device", report.problem)
        sentence = f"{device_id} is signed by its account. Its fingerprint: {report.fingerprint}"
        return Finding(Level.OK, "device", sentence)

    async def _check_fallback_key(self) -> Finding:
        """Without one a device that has no other key left cannot be given room keys: what is said to it stays locked."""
        try:
            present = await self._homeserver.has_fallback_key()
        except MatrixError as error:
            return Finding(Level.WARNING, "fallback key", str(error))
        if present:
            return Finding(Level.OK, "fallback key", "the homeserver has one that is unused.")
        sentence = "the homeserver has none that is unused; `run` publishes the next one within an hour."
        return Finding(Level.WARNING, "fallback key", sentence)

    # ---------------------------------------------------------------------------------------------------------- rooms

    async def _check_room(self, agent: AgentPlan) -> AsyncIterator[Finding]:
        if agent.room is None:
            return  # a warning of the config says so
        subject = f"room of {agent.name}"
        try:
            report = await self._homeserver.inspect(agent.room)
        except MatrixError as error:
            yield Finding(Level.FAILED, subject, f"{error} See agents.{agent.name}.room.", error.exit_code)
            return
        if report.invited:
            sentence = f"the bot is invited to {agent.room} and joins when `run` starts; check again then."
            yield Finding(Level.WARNING, subject, sentence)
            return
        unusable = self._find_obstacle(report, agent.room)
        if unusable is not None:
            yield Finding(Level.FAILED, subject, unusable)
            return
        yield self._judge_room(report, agent, agent.room)
        if agent.approvers:
            yield _check_approvers(agent, report.people)
        if report.encrypted:
            async for finding in self._check_devices_of(agent):
                yield finding

    def _find_obstacle(self, report: RoomReport, room: str) -> str | None:
        """Why nothing can be asked in this room, whatever the bot may do there."""
        if report.state is RoomState.NOT_JOINED:
            return f"the bot is not in {room}; invite {self._plan.user_id}."
        if report.state is RoomState.REPLACED:
            return f"{room} was upgraded; put the new room into the config."
        if not report.encrypted or self._encrypts:
            return None
        if not self._plan.encryption:
            return f"{room} is encrypted, and the config says encryption = false; remove that, or use another room."
        return f"{room} is encrypted, and nothing can be encrypted: the line on encryption says why."

    def _judge_room(self, report: RoomReport, agent: AgentPlan, room: str) -> Finding:
        subject, bot = f"room of {agent.name}", self._plan.user_id
        if not report.may_send:
            return Finding(Level.FAILED, subject, f"{bot} may not send messages in {room}; raise its power level.")
        if agent.reactions and not report.may_react:
            sentence = f"{bot} may not react in {room}; raise its power level, or set reactions = false."
            return Finding(Level.WARNING, subject, sentence)
        which = ", which is encrypted," if report.encrypted else ""
        return Finding(Level.OK, subject, f"the bot is in {room}{which} and may send there.")

    async def _check_devices_of(self, agent: AgentPlan) -> AsyncIterator[Finding]:
        """Each approver's; it fails where none of them has a device that counts."""
        reports: dict[UserId, PersonReport | str] = {}
        for person in sorted(agent.approvers):
            try:
                reports[person] = await self._homeserver.inspect_person(person)
            except (MatrixError, LedgerError) as error:
                reports[person] = str(error)
        somebody = any(isinstance(report, str) or _count_accepted(agent, report) for report in reports.values())
        level = Level.WARNING if somebody or agent.policy is not PolicyName.ASK else Level.FAILED
        for person, report in reports.items():
            subject = f"devices of {person} for {agent.name}"
            if isinstance(report, str):
                yield Finding(Level.WARNING, subject, report)
            elif _count_accepted(agent, report):
                yield Finding(Level.OK, subject, _describe_devices(agent, report))
            else:
                sentence = f"{_describe_devices(agent, report)} {_advise(agent, person, report)}"
                yield Finding(level, subject, sentence)

    # ---------------------------------------------------------------------------------------------- harnesses, limits

    async def _check_harness(self, agent: AgentPlan) -> Finding:
        subject = f"harness of {agent.name}"
        try:
            report = await self._probe(agent.name)
        except AgentError as error:
            sentence = f"{error} See agents.{agent.name}.command."
            return Finding(Level.FAILED, subject, sentence, AgentError.exit_code)
        self._reports.append(report)
        # What a harness calls itself and its modes is text of others: as JSON it cannot steer the terminal.
        offered = ", ".join(json.dumps(mode) for mode in report.modes) or "none"
        if agent.mode is not None and agent.mode not in report.modes:
            sentence = f'it does not offer the mode "{agent.mode}"; it offers {offered}: set agents.{agent.name}.mode.'
            return Finding(Level.FAILED, subject, sentence, AgentError.exit_code)
        if agent.mode is None and len(report.modes) > 1 and agent.policy is PolicyName.ASK:
            started = json.dumps(report.mode)
            sentence = (
                f"it starts in the mode {started} of {offered}; name the one that asks in agents.{agent.name}.mode."
            )
            return Finding(Level.WARNING, subject, sentence)
        return Finding(Level.OK, subject, f"{json.dumps(report.name)} starts and opens a session.")

    def _check_limit(self) -> Finding:
        """Nothing is provoked: what counts is what was met anyway, here and by the bridge that runs."""
        plan = self._plan
        seen = self._homeserver.times_limited + (plan.bridge.times_limited if plan.bridge is not None else 0)
        if not seen:
            sentence = (
                "none was met. A default Synapse lets about ten events pass at once, then one in five seconds; how its "
                "admin lifts that for the bot stands in the README under What it does not do."
            )
            return Finding(Level.OK, "rate limit", sentence)
        address = f"{plan.homeserver}/_synapse/admin/v1/users/{quote(plan.user_id)}/override_ratelimit"
        sentence = (
            f"the homeserver answered M_LIMIT_EXCEEDED {seen} times, so messages come late. Its admin can lift the limit: "
            'curl -X POST -H "Authorization: Bearer $ADMIN_TOKEN" '
            f'-d \'{{"messages_per_second": 0, "burst_count": 0}}\' {address}'
        )
        return Finding(Level.WARNING, "rate limit", sentence)


def _check_state_folder(path: Path) -> Finding:
    loose = path.exists() and path.stat().st_mode & 0o077
    try:
        open_state_folder(path)
    except BridgeError as error:
        return Finding(Level.FAILED, "state folder", f"{error} Give it to the user who runs the bridge.")
    if loose:
        return Finding(Level.WARNING, "state folder", f"{path} was open to other users; its mode is 0700 now.")
    return Finding(Level.OK, "state folder", f"{path} can be written, and by nobody else.")


def _check_approvers(agent: AgentPlan, people: frozenset[UserId]) -> Finding:
    subject = f"approvers of {agent.name}"
    absent = sorted(agent.approvers - people)
    if not absent:
        return Finding(Level.OK, subject, "all of them are in the room.")
    nobody = len(absent) == len(agent.approvers) and agent.policy is PolicyName.ASK
    level = Level.FAILED if nobody else Level.WARNING
    return Finding(level, subject, f"not in the room: {', '.join(absent)}; invite them.")


# ------------------------------------------------------------------------------------------------- people and their devices


def _doubts(agent: AgentPlan, report: PersonReport) -> list[Doubt | None]:
    return [judge(agent.trust, seal, report.pinned) for seal in report.seals]


def _count_accepted(agent: AgentPlan, report: PersonReport) -> int:
    return _doubts(agent, report).count(None)


def _describe_devices(agent: AgentPlan, report: PersonReport) -> str:
    signed = sum(seal.signed for seal in report.seals)
    count = f"{len(report.seals)} with keys, {signed} of them signed by their owner"
    pin = ""
    if agent.trust is Trust.PINNED:
        pin = "no identity is pinned" if report.pinned is None else _describe_pin(report.seals, report.pinned)
        pin = f"; {pin}"
    return f'{count}{pin}; trust = "{agent.trust}" accepts {_count_accepted(agent, report) or "none"}.'


def _describe_pin(seals: tuple[Seal, ...], pinned: str) -> str:
    same = any(seal.master == pinned for seal in seals)
    return f"the pinned identity is {'theirs' if same else 'not the one that the homeserver shows'}"


def _advise(agent: AgentPlan, person: UserId, report: PersonReport) -> str:
    """What makes a device of theirs count."""
    doubts = _doubts(agent, report)
    verify = f"stop the bridge and run `acp-matrix-bridge verify {person}`"
    if not doubts:
        return "They need a client that encrypts, and to be logged in there."
    if Doubt.CHANGED in doubts:
        return f"Ask them, not in the room, whether they made a new identity; if so, {verify}."
    if Doubt.UNPINNED in doubts:
        return f"To pin them, {verify}."
    return "They verify their session in its own client, with another one or with the recovery key."
