"""`check`: the real homeserver and the real harnesses behind the questions of `ops.doctor`.

Above it: app. Below it: ops.doctor, which asks and words; matrix and acp, which answer.

A bridge may be running on the same account meanwhile. So the keys are looked at in their file and not opened, and no sync
here ever goes on from another: only that makes a homeserver drop the messages to the device, which are the bridge's.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from bridge.acp.agent import Harnesses
from bridge.app.accounts import find_address
from bridge.app.opening import find_token
from bridge.app.service import find_uids, make_launch, new_session_id, read_version
from bridge.config import Config
from bridge.core.errors import (
    BridgeError,
    CredentialsRefused,
    HomeserverUnreachable,
    KeysLost,
    MatrixError,
    RequestRefused,
)
from bridge.core.events import Event, RoomState
from bridge.core.model import AgentName, RoomId, Seal, UserId
from bridge.matrix import crosssigning, events
from bridge.matrix.client import Client, SyncBatch
from bridge.matrix.crypto import devices, glimpse
from bridge.matrix.events import Source
from bridge.matrix.keyserver import KeyServer
from bridge.ops import client as control_client
from bridge.ops.control import socket_path
from bridge.ops.credentials import read_device
from bridge.ops.doctor import check
from bridge.ops.findings import (
    AgentPlan,
    DeviceReport,
    HarnessReport,
    Keys,
    PersonReport,
    Plan,
    RoomReport,
    RunningBridge,
)
from bridge.ops.login import Account
from bridge.store.ledger import read_pins

LEVELLED_VERSIONS = frozenset(str(number) for number in range(1, 12))  # room versions where levels bind creators, too
DEFAULT_SEND_LEVEL = 0  # of `events_default`, as the specification has it


class BotAccount:
    """The bot's account; implements `ops.findings.Homeserver`."""

    def __init__(self, client: Client, token: str | None, *, state_dir: Path, ledger_file: Path) -> None:
        self._client, self._token, self._bot = client, token, client.user_id
        self._keys, self._state_dir, self._ledger_file = KeyServer(client), state_dir, ledger_file

    @property
    def times_limited(self) -> int:
        """How many of these calls were answered M_LIMIT_EXCEEDED."""
        return self._client.times_limited

    async def whoami(self) -> Account:
        """Whose token it is."""
        if self._token is None:
            raise CredentialsRefused("There is a password but no token yet.")
        user_id, device_id = await self._client.whoami()
        return Account(user_id=user_id, device_id=device_id)

    async def compare_keys(self, device_id: str) -> Keys:
        """Our device's keys beside those that the homeserver shows."""
        ours = glimpse.look(self._state_dir, self._bot, device_id)
        answer = await self._keys.query([self._bot])
        shown = events.mapping(events.mapping(events.mapping(answer, "device_keys"), self._bot), device_id)
        if ours is None:
            return Keys.LOST if shown else Keys.NOT_MADE
        if not shown:
            return Keys.NOT_PUBLISHED
        return Keys.SAME if shown.get("keys") == ours.device_keys()["keys"] else Keys.LOST

    async def inspect_device(self, device_id: str) -> DeviceReport:
        """Whether our device is signed by its account."""
        ours = glimpse.look(self._state_dir, self._bot, device_id)
        if ours is None:
            raise KeysLost(f"The keys of device {device_id} are not in {self._state_dir}.")
        standing = await crosssigning.inspect(self._keys, ours, self._state_dir, user_id=self._bot)
        return DeviceReport(fingerprint=crosssigning.to_fingerprint(ours.fingerprint), problem=standing.problem)

    async def has_fallback_key(self) -> bool:
        """Whether the homeserver holds a fallback key of our device that nobody has used. Only a sync tells."""
        return (await self._sync()).fallback_unused

    async def _sync(self, *rooms: RoomId) -> SyncBatch:
        """A sync that is the first and the last of its kind: some homeservers give an old answer to the same question."""
        nowhere = RoomId(f"!{secrets.token_hex(8)}:check.invalid")
        return await self._client.sync(None, timeout_ms=0, full_state=False, rooms=[*rooms, nowhere])

    async def inspect_person(self, user: UserId) -> PersonReport:
        """Somebody's devices, and the identity that is pinned as theirs."""
        found = devices.read(await self._keys.query([user]), user)
        if found is None:
            raise HomeserverUnreachable(f"The homeserver cannot say which devices {user} has.")
        seals = tuple(
            Seal(device_id=device.device_id, signed=device.signed, master=found.master)
            for device in found.devices.values()
        )
        return PersonReport(seals=seals, pinned=dict(read_pins(self._ledger_file)).get(user))

    async def inspect(self, room: str) -> RoomReport:
        """A room by id or alias."""
        room_id = await self._client.resolve_alias(room) if room.startswith("#") else RoomId(room)
        try:
            state = await self._client.room_state(room_id)
        except RequestRefused as refused:
            if refused.status != 403:  # noqa: PLR2004 - what the specification gives to who is not in the room
                raise
            batch = await self._sync(room_id)
            return RoomReport(
                state=RoomState.NOT_JOINED,
                invited=room_id in batch.invites,
                may_send=False,
                may_react=False,
                people=frozenset(),
            )
        by_kind = {events.kind(source): source for source in state if not source.get("state_key")}
        people = {m.user for m in map(events.membership, state) if m is not None and m.now == "join"}
        encrypted = events.ENCRYPTION in by_kind
        standing = RoomState.JOINED if self._bot in people else RoomState.NOT_JOINED
        if events.TOMBSTONE in by_kind:
            standing = RoomState.REPLACED
        create = by_kind.get("m.room.create")
        levels: Source = events.content(by_kind["m.room.power_levels"]) if "m.room.power_levels" in by_kind else {}
        created = create is not None and self._bot in _above_levels(create)
        return RoomReport(
            state=standing,
            encrypted=encrypted,
            may_send=created or _may(levels, self._bot, "m.room.encrypted" if encrypted else "m.room.message"),
            may_react=created or _may(levels, self._bot, "m.reaction"),
            people=frozenset(people),
        )


def _above_levels(create: Source) -> frozenset[str]:
    """Who stands above every power level: the creators, in rooms of version 12 and later."""
    content = events.content(create)
    if (events.text(content, "room_version") or "1") in LEVELLED_VERSIONS:
        return frozenset()
    more = content.get("additional_creators")
    named = cast("list[object]", more) if isinstance(more, list) else []
    return frozenset(user for user in (events.sender(create), *named) if isinstance(user, str))


def _may(levels: Source, bot: UserId, kind: str) -> bool:
    own = _level(events.mapping(levels, "users"), bot, _level(levels, "users_default", 0))
    needed = _level(events.mapping(levels, "events"), kind, _level(levels, "events_default", DEFAULT_SEND_LEVEL))
    return own >= needed


def _level(levels: Mapping[str, object], key: str, otherwise: int) -> int:
    value = levels.get(key)
    return value if isinstance(value, int) else otherwise


async def inspect(config: Config, path: Path) -> int:
    """Ask everything, and say each answer on stdout; returns the exit code."""
    homeserver = await _find_address(config.matrix.homeserver)
    token = await find_token(config, homeserver)
    bot = UserId(config.matrix.user_id)
    plan = Plan(
        config=path,
        warnings=config.warnings,
        state_dir=config.state_dir,
        homeserver=homeserver,
        user_id=bot,
        device_id=read_device(config.saved_token_file),
        encryption=config.matrix.encryption,
        bridge=ask_running_bridge(config.state_dir),
        agents=tuple(
            AgentPlan(
                name=AgentName(name),
                room=section.room,
                approvers=frozenset(map(UserId, section.approvers)),
                policy=section.policy,
                mode=section.mode,
                reactions=section.reactions,
                trust=section.trust,
            )
            for name, section in config.agents.items()
        ),
    )

    async def probe(name: AgentName) -> HarnessReport:
        launch = make_launch(name, config.agents[name])
        harnesses = Harnesses([launch], deliver=_ignore, new_session_id=new_session_id, version=read_version())
        async with harnesses:
            await harnesses.start(name)
            opened = harnesses.opened(name)
            uids = find_uids(harnesses.pids) - {os.getuid()}
        if opened is None:
            raise AssertionError("unreachable")
        return HarnessReport(
            name=opened.greeting.name or name,
            modes=opened.modes,
            mode=opened.mode,
            uid=next(iter(uids), os.getuid()),
        )

    client = Client(homeserver, user_id=bot, access_token=token or "")
    try:
        account = BotAccount(client, token, state_dir=config.state_dir, ledger_file=config.ledger_file)
        return await check(plan, account, probe, _say)
    finally:
        await client.close()


def ask_running_bridge(state_dir: Path) -> RunningBridge | None:
    """What the bridge says that runs on this state folder; None where none does, or it says nothing that can be read."""
    try:
        status: Any = control_client.call(socket_path(state_dir), "status", {})
        encryption = status["encryption"]
        why = None if encryption["available"] else str(encryption["why"])
        return RunningBridge(no_encryption=why, times_limited=int(status["times_limited"]))
    except (BridgeError, KeyError, TypeError, ValueError):
        return None


async def _find_address(homeserver: str) -> str:
    """A server that is away is a finding like any other, and not the end of the command."""
    try:
        return await find_address(homeserver)
    except MatrixError:
        return f"https://{homeserver}"


def _ignore(_event: Event) -> None:
    """A harness that is only tried has nobody to tell."""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
