"""What `check` asks of a real homeserver."""

from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from bridge.app.inspection import BotAccount
from bridge.core.events import RoomState
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix.client import Client


def make_room(synapse: Homeserver, owner: Account, **wishes: Any) -> str:  # noqa: ANN401 - JSON
    answer = call(synapse.base_url, "POST", "/_matrix/client/v3/createRoom", wishes, token=owner.access_token)
    assert answer.status == HTTPStatus.OK
    return str(answer.body["room_id"])


@pytest.mark.parametrize("invited", [True, False])
async def test_a_bot_that_is_not_in_the_room_knows_whether_it_is_invited(
    synapse: Homeserver, tmp_path: Path, invited: bool
) -> None:
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(synapse, amy, preset="private_chat", invite=[bot.user_id] if invited else [])
    client = Client(synapse.base_url, user_id=bot.user_id, access_token=bot.access_token)
    try:
        report = await BotAccount(
            client, bot.access_token, state_dir=tmp_path, ledger_file=tmp_path / "ledger.db"
        ).inspect(room)
    finally:
        await client.close()
    assert (report.state, report.invited) == (RoomState.NOT_JOINED, invited)


LEVELS = {"events_default": 50, "users_default": 0}


@pytest.mark.parametrize(
    ("version", "creator", "more", "may"),
    [
        ("12", False, [], False),
        ("12", True, [], True),
        ("12", False, ["bot"], True),
        ("11", False, ["bot"], False),
    ],
    ids=["somebody else's", "its own", "one of its creators", "made before creators stood above levels"],
)
async def test_a_creator_may_speak_whatever_the_levels_say(
    synapse: Homeserver, version: str, creator: bool, more: list[str], may: bool, *, tmp_path: Path
) -> None:
    tag = uuid4().hex[:8]
    bot, amy = synapse.register(f"bot-{tag}"), synapse.register(f"amy-{tag}")
    room = make_room(
        synapse,
        bot if creator else amy,
        preset="private_chat",
        invite=[amy.user_id if creator else bot.user_id],
        room_version=version,
        creation_content={"additional_creators": [bot.user_id for _ in more]} if more else {},
        power_level_content_override=LEVELS,
    )
    path = f"/_matrix/client/v3/join/{quote(room)}"
    assert call(synapse.base_url, "POST", path, {}, token=bot.access_token).status == HTTPStatus.OK
    client = Client(synapse.base_url, user_id=bot.user_id, access_token=bot.access_token)
    try:
        report = await BotAccount(
            client, bot.access_token, state_dir=tmp_path, ledger_file=tmp_path / "ledger.db"
        ).inspect(room)
    finally:
        await client.close()
    assert (report.state, report.may_send, report.may_react) == (RoomState.JOINED, may, may)
