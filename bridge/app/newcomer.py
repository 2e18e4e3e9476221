"""`setup`: the real homeserver, login and question behind the walk of `ops.setup`.

Above it: app. Below it: opening (the account and its signed device), service (the question), matrix.client.
"""

from collections.abc import Callable
from dataclasses import replace

import anyio

from bridge import config
from bridge.app.accounts import find_address
from bridge.app.opening import make_client, open_and_sign
from bridge.app.service import ask
from bridge.core.model import AgentName, JsonValue, RoomId, UserId
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.crypto.olm import ROOM_ALGORITHM
from bridge.ops.console import Console
from bridge.ops.login import Wish
from bridge.ops.setup import Errand, Guide, Progress, walk
from bridge.ops.table import show_reply


class BotGuide:
    """The bot's account; implements `ops.setup.Guide`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create_room(self, name: str, invited: tuple[UserId, ...], *, encrypted: bool) -> RoomId:
        """A private room with these people invited, encrypted from its first event where it is to be."""
        state: list[JsonValue] = []
        if encrypted:
            state.append({"type": events.ENCRYPTION, "state_key": "", "content": {"algorithm": ROOM_ALGORITHM}})
        answer = await self._client.call(
            "POST",
            "createRoom",
            body={"preset": "private_chat", "name": name, "invite": list(invited), "initial_state": state},
        )
        return RoomId(str(answer["room_id"]))

    async def join(self, room: str) -> RoomId:
        """Join a room that is there, by its id or alias. Raises `RequestRefused` where the bot may not."""
        return RoomId(str((await self._client.call("POST", "join", room, body={}))["room_id"]))

    async def joined(self, room: RoomId) -> frozenset[UserId]:
        """Who is in it."""
        return await self._client.joined_members(room)


async def set_up(errand: Errand, wish: Wish, console: Console) -> int:
    """Walk the newcomer through it, with what the command line says already."""
    clients: list[Client] = []

    async def log_in(progress: Progress) -> tuple[Progress, Guide]:
        known = replace(
            wish,
            homeserver=wish.homeserver or progress.homeserver or None,
            user_id=wish.user_id or (UserId(progress.user_id) if progress.user_id else None),
        )
        opened = await open_and_sign(known, console)
        account = opened.account
        client = make_client(await find_address(opened.homeserver), account, wish.token_file, _no_password)
        clients.append(client)
        found = replace(progress, homeserver=opened.homeserver, user_id=account.user_id)
        return found, BotGuide(client)

    async def ask_in_room(agent: AgentName) -> int:
        reply = (await ask(config.load(errand.config), agent)).to_json()
        console.say(show_reply(agent, reply))
        return 0 if reply["ending"] == "answered" else 1

    try:
        return await walk(errand, console, log_in=log_in, ask_in_room=ask_in_room, pause=anyio.sleep)
    finally:
        for client in clients:
            with anyio.CancelScope(shield=True):
                await client.close()


_no_password: Callable[[], str | None] = lambda: None  # noqa: E731 - the login was a moment ago
