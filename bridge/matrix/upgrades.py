"""Rooms that were upgraded: into the room that takes a bound one's place, when the config follows upgrades and it is the right one.

Above it: rooms. Below it: the client. It refuses to know what waits in a room. Anybody with the power to upgrade a room can
write any room into its tombstone, so one side's word is not enough: the new room has to name the old one as its
predecessor (matrix.md, section 8), and it must not be less protected. Whatever is not followed is told to the operator.
"""

from collections.abc import Callable

import anyio
import structlog

from bridge.core.errors import HomeserverUnreachable, RateLimited, RequestRefused
from bridge.core.model import RoomId, UserId
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.patience import Patience, worth_a_line
from bridge.matrix.standing import Replacement

log = structlog.stdlib.get_logger()

NOT_FOLLOWED = "The room was upgraded. Bind the new room in the config, or set follow_upgrades there, and start again."
NO_REPLACEMENT = "The room was closed, and no other is named in its place. Bind another room in the config."
NOT_INVITED = "The room was upgraded, and the bot may not enter the new one. Invite the bot there."
NOT_ITS_SUCCESSOR = (
    "The room was upgraded, but the new one does not name it as its predecessor, so the bot does not follow."
    " Find out who upgraded it, and bind the right room in the config."
)
NOT_ENCRYPTED = (
    "The room was upgraded, and the new one is not encrypted although the old one was, so the bot does not follow."
    " Switch on encryption there and start again, or bind another room in the config."
)


class Upgrades:
    """Follows upgrades one after the other; `moved` hears of each that was followed (old, new)."""

    def __init__(
        self,
        client: Client,
        *,
        bot: UserId,
        follows: bool,
        is_encrypted: Callable[[RoomId], bool],
        moved: Callable[[RoomId, RoomId], None],
        patience: Patience,
    ) -> None:
        self._client = client
        self._bot = bot
        self._follows = follows
        self._is_encrypted = is_encrypted
        self._moved = moved
        self._patience = patience
        self._wanted: dict[RoomId, Replacement] = {}  # by the old room, in the order in which they are tried
        self._expected: dict[RoomId, RoomId] = {}  # the rooms that we need an invite to, and the old one of each
        self._known: dict[RoomId, Replacement] = {}
        self._came = anyio.Event()

    def replaced(self, room: RoomId, replacement: Replacement) -> None:
        """A bound room was upgraded, or was when this started. Never waits."""
        self._known[room] = replacement
        if replacement.room is None:
            self._tell(room, None, NO_REPLACEMENT)
        elif not self._follows:
            self._tell(room, replacement.room, NOT_FOLLOWED)
        else:
            self._want(room)

    def invited(self, room: RoomId) -> bool:
        """Whether an invite to this room is one that is waited for; then it is followed. Never waits."""
        old = self._expected.pop(room, None)
        if old is not None:
            self._want(old)
        return old is not None

    def _want(self, old: RoomId) -> None:
        self._wanted[old] = self._known[old]
        self._came.set()

    async def run(self) -> None:
        """Follow upgrades until cancelled. Raises CredentialsRefused when the token does not count any more."""
        failures = 0
        while True:
            if not self._wanted:
                self._came = anyio.Event()
                await self._came.wait()
            old, replacement = next(iter(self._wanted.items()))
            del self._wanted[old]
            try:
                await self._follow(old, replacement)
            except (HomeserverUnreachable, RateLimited) as passing:
                failures += 1
                told_s = passing.retry_after if isinstance(passing, RateLimited) else 0.0
                if worth_a_line(failures):
                    log.warning("matrix.upgrade_delayed", room=old, why=str(passing), failures=failures)
                self._wanted[old] = replacement  # behind the others
                await anyio.sleep(max(told_s, self._patience.wait_s(failures)))
            else:
                failures = 0

    async def _follow(self, old: RoomId, replacement: Replacement) -> None:
        new = replacement.room
        if new is None:
            raise AssertionError("unreachable")
        was_in = await self._is_in(new)
        if not was_in:
            try:
                await self._client.join(new, via=_server_of(replacement.by))
            except RequestRefused as refused:
                log.info("matrix.join_refused", room=new, status=refused.status, errcode=refused.errcode)
                self._expected[new] = old
                self._tell(old, new, NOT_INVITED)
                return
        wrong = await self._find_fault(old, new)
        if wrong is None:
            log.warning("matrix.upgrade_followed", room=old, replacement=new)
            self._moved(old, new)
            return
        self._tell(old, new, wrong)
        if not was_in:
            await self._client.leave(new)

    async def _is_in(self, room: RoomId) -> bool:
        try:
            member = await self._client.state_content(room, events.MEMBER, self._bot)
        except RequestRefused:
            return False
        return member is not None and events.text(member, "membership") == "join"

    async def _find_fault(self, old: RoomId, new: RoomId) -> str | None:
        """Why this is not the room to go on in. Of the predecessor only `room_id` is there in room version 12."""
        create = await self._client.state_content(new, events.CREATE) or {}
        if events.text(events.mapping(create, "predecessor"), "room_id") != old:
            return NOT_ITS_SUCCESSOR
        if self._is_encrypted(old) and await self._client.state_content(new, events.ENCRYPTION) is None:
            return NOT_ENCRYPTED
        return None

    def _tell(self, old: RoomId, new: RoomId | None, sentence: str) -> None:
        log.error("matrix.upgrade_not_followed", room=old, replacement=new, sentence=sentence)


def _server_of(user: UserId | None) -> str | None:
    """The server to join through: room ids say none in version 12, and who upgraded the room is in the new one."""
    return None if user is None else user.partition(":")[2] or None
