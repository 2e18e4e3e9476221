"""`check`: the real homeserver and the real harnesses behind the questions of `ops.doctor`.

Above it: app. Below it: ops.doctor, which asks and words; matrix.client and acp, which answer.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from bridge.acp.agent import Harnesses
from bridge.app.accounts import HomeserverAccounts, find_address
from bridge.app.opening import find_token
from bridge.app.service import find_uids, make_launch, new_session_id, read_version
from bridge.config import Config
from bridge.core.errors import CredentialsRefused, MatrixError, RequestRefused
from bridge.core.events import Event, RoomState
from bridge.core.model import AgentName, RoomId, UserId
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.events import Source
from bridge.ops.credentials import read_device
from bridge.ops.doctor import AgentPlan, HarnessReport, Plan, RoomReport, check
from bridge.ops.login import Account

LEVELLED_VERSIONS = frozenset(str(number) for number in range(1, 12))  # room versions where levels bind creators, too
DEFAULT_SEND_LEVEL = 0  # of `events_default`, as the specification has it


class BotAccount:
    """The bot's account; implements `ops.doctor.Homeserver`."""

    def __init__(self, client: Client, token: str | None, homeserver: str, bot: UserId) -> None:
        self._client, self._token, self._homeserver, self._bot = client, token, homeserver, bot

    async def whoami(self) -> Account:
        """Whose token it is."""
        if self._token is None:
            raise CredentialsRefused("There is a password but no token yet.")
        return await HomeserverAccounts(self._homeserver).whoami(self._token)

    async def inspect(self, room: str) -> RoomReport:
        """A room by id or alias."""
        room_id = await self._client.resolve_alias(room) if room.startswith("#") else RoomId(room)
        try:
            state = await self._client.room_state(room_id)
        except RequestRefused as refused:
            if refused.status != 403:  # noqa: PLR2004 - what the specification gives to who is not in the room
                raise
            batch = await self._client.sync(None, timeout_ms=0, full_state=False, rooms=[room_id])
            return RoomReport(
                state=RoomState.NOT_JOINED,
                invited=room_id in batch.invites,
                may_send=False,
                may_react=False,
                people=frozenset(),
            )
        by_kind = {events.kind(source): source for source in state if not source.get("state_key")}
        people = {m.user for m in map(events.membership, state) if m is not None and m.now == "join"}
        standing = RoomState.JOINED if self._bot in people else RoomState.NOT_JOINED
        if "m.room.encryption" in by_kind:
            standing = RoomState.ENCRYPTED
        if "m.room.tombstone" in by_kind:
            standing = RoomState.REPLACED
        create = by_kind.get("m.room.create")
        levels: Source = events.content(by_kind["m.room.power_levels"]) if "m.room.power_levels" in by_kind else {}
        created = create is not None and self._bot in _above_levels(create)
        return RoomReport(
            state=standing,
            may_send=created or _may(levels, self._bot, "m.room.message"),
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
        user_id=bot,
        device_id=read_device(config.saved_token_file),
        agents=tuple(
            AgentPlan(
                name=AgentName(name),
                room=section.room,
                approvers=frozenset(map(UserId, section.approvers)),
                policy=section.policy,
                mode=section.mode,
                reactions=section.reactions,
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
        return await check(plan, BotAccount(client, token, homeserver, bot), probe, _say)
    finally:
        await client.close()


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
