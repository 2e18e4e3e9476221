"""What `check` asks of a real homeserver."""

from http import HTTPStatus
from typing import Any
from uuid import uuid4

import pytest

from bridge.app.inspection import BotAccount
from bridge.core.events import RoomState
from bridge.core.model import UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix.client import Client


def make_room(synapse: Homeserver, owner: Account, **wishes: Any) -> str:  # noqa: ANN401 - JSON
    answer = call(synapse.base_url, "POST", "/_matrix/client/v3/createRoom", wishes, token=owner.access_token)
    assert answer.status == HTTPStatus.OK
    return str(answer.body["room_id"])


@pytest.mark.parametrize("invited", [True, False])
async def test_a_bot_that_is_not_in_the_room_knows_whether_it_is_invited(synapse: Homeserver, invited: bool) -> None:
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(synapse, amy, preset="private_chat", invite=[bot.user_id] if invited else [])
    client = Client(synapse.base_url, user_id=bot.user_id, access_token=bot.access_token)
    try:
        report = await BotAccount(client, bot.access_token, synapse.base_url, UserId(bot.user_id)).inspect(room)
    finally:
        await client.close()
    assert (report.state, report.invited) == (RoomState.NOT_JOINED, invited)
