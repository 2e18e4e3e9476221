"""The Matrix side on a real Synapse: what the loopback stub only claims."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.core.changes import Priority
from bridge.core.errors import CredentialsRefused, EventTooLarge, RequestRefused
from bridge.core.events import (
    Echoed,
    Reacted,
    Redacted,
    RoomMoved,
    RoomSeen,
    RoomState,
    Said,
    SendFailed,
    Sent,
    TooLarge,
)
from bridge.core.model import RoomId, SyncToken, TransactionId, UserId
from bridge.matrix import entrance, upgrades
from bridge.matrix.client import Client
from tests.peers.running_rooms import Running, outgoing, running
from tests.peers.synapse import Person, Synapse, synapse

VERSIONS = ["12", "11"]  # the default, and the last whose ids have a server part
TEXT = {"msgtype": "m.text", "body": "x"}


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Synapse]:
    async with synapse(tmp_path_factory.mktemp("synapse")) as made:
        yield made


@asynccontextmanager
async def client_of(person: Person) -> AsyncGenerator[Client]:
    made = Client(person.url, user_id=person.user_id, device_id=person.device_id, access_token=person.token)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def at_work(
    bot: Person, *rooms: RoomId, since: str | None = None, follow_upgrades: bool = False
) -> AsyncGenerator[Running]:
    bound = dict.fromkeys(rooms, False)
    async with (
        client_of(bot) as client,
        running(client, bound=bound, since=since, bot=bot.user_id, follow_upgrades=follow_upgrades) as run,
    ):
        yield run


async def joined(run: Running) -> None:
    await run.until(lambda: any(seen.state is RoomState.JOINED for seen in run.events(RoomSeen)))


async def told(logs: Sequence[Mapping[str, Any]], event: str) -> None:
    """Until the operator was told."""
    with anyio.fail_after(10):
        while event not in [line["event"] for line in logs]:
            await anyio.lowlevel.checkpoint()


def texts(run: Running) -> list[str]:
    return [said.text for said in run.events(Said)]


async def test_a_bound_invite_is_accepted_and_other_invites_are_left_alone_but_seen(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room, trap = RoomId(await alice.room(bot.user_id)), RoomId(await alice.room(bot.user_id))
    async with client_of(bot) as client:
        batch = await client.sync(None, timeout_ms=0, full_state=True, rooms=[room])
        assert {room: alice.user_id, trap: alice.user_id} == batch.invites
    async with at_work(bot, room) as run:
        await joined(run)
    assert [room] == (await bot.ask("GET", "/joined_rooms"))["joined_rooms"]


async def test_prompt_answer_reaction_and_redaction_go_round(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id))
    assert ":" not in room
    async with at_work(bot, room) as run:
        await joined(run)
        run.rooms.send(outgoing("acps_1:1/1/prompt", room=room))
        await run.until(lambda: run.delivered and run.events(Echoed))
        sent = run.delivered[0]
        assert isinstance(sent, Sent)
        relates = {"rel_type": "m.annotation", "event_id": sent.event_id, "key": "1"}
        await alice.put(room, "m.reaction", {"m.relates_to": relates})
        await alice.say(room, "1", **{"m.relates_to": {"m.in_reply_to": {"event_id": sent.event_id}}})
        await alice.ask("PUT", f"/rooms/{quote(room)}/redact/{quote(sent.event_id)}/r1", {})
        await run.until(lambda: run.events(Said) or run.events(Redacted))
    echo, reacted, said = run.events(Echoed)[0], run.events(Reacted)[0], run.events(Said)[0]
    assert (sent.event_id, "acps_1:1/1/prompt") == (echo.event_id, echo.transaction_id)
    assert (sent.event_id, (sent.event_id,)) == (reacted.target, said.targets)


async def test_more_texts_than_a_sync_holds_are_all_heard_in_order(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id))
    async with at_work(bot, room) as run:
        await joined(run)
        since = run.taken[-1][1]
    expected = [str(number) for number in range(130)]
    for text in expected:
        await alice.say(room, text)
    async with at_work(bot, room, since=since) as run:
        await run.until(lambda: texts(run))
    assert expected == texts(run)


async def test_what_stands_before_the_bots_join_is_no_answer(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room())
    async with at_work(bot, room) as run:
        for _ in range(20):
            await alice.say(room, "1")
        await alice.ask("POST", f"/rooms/{quote(room)}/invite", {"user_id": bot.user_id})
        await joined(run)
        await alice.say(room, "after")
        await run.until(lambda: "after" in texts(run))
    assert texts(run) == ["after"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("deed", ["kick", "ban"])
async def test_after_a_kick_or_ban_a_prompt_fails_for_good(server: Synapse, deed: str, version: str) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id, version=version))
    async with at_work(bot, room) as run:
        await joined(run)
        await alice.ask("POST", f"/rooms/{quote(room)}/{deed}", {"user_id": bot.user_id})
        await run.until(lambda: run.events(RoomSeen)[-1].state is RoomState.NOT_JOINED)
        run.rooms.send(outgoing("t1", room=room))
        await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], SendFailed)


async def test_after_an_upgrade_a_prompt_fails_for_good(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id, version="11"))
    async with at_work(bot, room) as run:
        await joined(run)
        await alice.ask("POST", f"/rooms/{quote(room)}/upgrade", {"new_version": "12"})
        await run.until(lambda: run.events(RoomSeen)[-1].state is RoomState.REPLACED)
        run.rooms.send(outgoing("t1", room=room))
        await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], SendFailed)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_muted_bot_speaks_as_soon_as_it_may_and_the_operator_is_told_at_once(
    server: Synapse, version: str
) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id, version=version))
    path = f"/rooms/{quote(room)}/state/m.room.power_levels/"
    with capture_logs() as logs:
        async with at_work(bot, room) as run:
            await joined(run)
            levels = await alice.ask("GET", path)
            await alice.ask("PUT", path, levels | {"events_default": 50})
            run.rooms.send(outgoing("t1", room=room))
            await alice.say(room, "you are muted")
            await run.until(lambda: texts(run))
            assert (run.delivered, run.rooms.queued) == ([], 1)
            await told(logs, "matrix.send_forbidden")
            await alice.ask("PUT", path, levels)
            await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], Sent)


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_upgrade_is_followed_once_the_bot_is_invited(server: Synapse, version: str) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id, version="10"))
    with capture_logs() as logs:
        async with at_work(bot, room, follow_upgrades=True) as run:
            await joined(run)
            answer = await alice.ask("POST", f"/rooms/{quote(room)}/upgrade", {"new_version": version})
            new = RoomId(answer["replacement_room"])
            await told(logs, "matrix.upgrade_not_followed")
            await alice.ask("POST", f"/rooms/{quote(new)}/invite", {"user_id": bot.user_id})
            await run.until(lambda: any(seen.room == new for seen in run.events(RoomSeen)))
            run.rooms.send(outgoing("t1", room=new))
            await alice.say(new, "1")
            await run.until(lambda: run.events(Said) and len(run.delivered) == 2)
    assert RoomMoved(old=room, new=new) == run.delivered[0]
    assert isinstance(run.delivered[1], Sent)
    assert [(new, "1")] == [(said.room, said.text) for said in run.events(Said)]
    assert upgrades.NOT_INVITED in [line["sentence"] for line in logs if "sentence" in line]


async def test_a_tombstone_that_points_to_a_strangers_room_leads_nowhere(server: Synapse) -> None:
    alice, bot, mallory = await server.person("alice"), await server.person("bot"), await server.person("mallory")
    room = RoomId(await alice.room(bot.user_id))
    trap = await mallory.room(bot.user_id)
    tombstone = {"body": "moved", "replacement_room": trap}
    with capture_logs() as logs:
        async with at_work(bot, room, follow_upgrades=True) as run:
            await joined(run)
            await alice.ask("PUT", f"/rooms/{quote(room)}/state/m.room.tombstone/", tombstone)
            await told(logs, "matrix.upgrade_not_followed")
            with anyio.fail_after(5):
                while trap in (await bot.ask("GET", "/joined_rooms"))["joined_rooms"]:
                    pass
    assert run.delivered == []
    assert [upgrades.NOT_ITS_SUCCESSOR] == [line["sentence"] for line in logs if "sentence" in line]


async def test_what_the_server_itself_says_is_no_business_of_the_bridge(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    admin = await server.person("admin", admin=True)
    room = RoomId(await alice.room(bot.user_id))
    with capture_logs() as logs:
        async with at_work(bot, room) as run:
            await joined(run)
            await server.notice(admin, bot.user_id, "1")
            await told(logs, "matrix.invite_ignored")
            await alice.say(room, "after")
            await run.until(lambda: texts(run))
    assert (["after"], [room]) == (texts(run), (await bot.ask("GET", "/joined_rooms"))["joined_rooms"])


async def test_what_the_server_itself_says_in_a_bound_room_is_no_answer(server: Synapse) -> None:
    """Somebody bound the room of server notices: it can be joined, and nothing in it counts."""
    bot, admin = await server.person("bot"), await server.person("admin", admin=True)
    await server.notice(admin, bot.user_id, "1")
    room = RoomId(next(iter((await bot.ask("GET", "/sync?timeout=0"))["rooms"]["invite"])))
    async with at_work(bot, room) as run:
        await joined(run)
        await server.notice(admin, bot.user_id, "2")
        members = len(run.taken)
        await run.until(lambda: len(run.taken) > members)
    assert texts(run) == []


async def test_an_encrypted_room_is_seen_as_one_and_nothing_is_sent_there(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id))
    await alice.ask("PUT", f"/rooms/{quote(room)}/state/m.room.encryption/", {"algorithm": "m.megolm.v1.aes-sha2"})
    async with at_work(bot, room) as run:
        await run.until(lambda: run.events(RoomSeen)[-1].state is RoomState.ENCRYPTED)
        run.rooms.send(outgoing("t1", room=room))
        await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], SendFailed)


async def test_what_synapse_finds_too_large_or_there_already_is_told_as_such(server: Synapse) -> None:
    bot = await server.person("bot")
    room = RoomId(await bot.room())
    async with at_work(bot, room) as run:
        run.rooms.send(outgoing("large", room=room, content=TEXT | {"body": "x" * 66_000}))
        await run.until(lambda: len(run.delivered) == 1)
        run.rooms.send(outgoing("prompt", room=room))
        await run.until(lambda: len(run.delivered) == 2)
        sent = run.delivered[1]
        assert isinstance(sent, Sent)
        relates = {"m.relates_to": {"rel_type": "m.annotation", "event_id": sent.event_id, "key": "1"}}
        for txn in ("s1", "s2"):
            seed = outgoing(txn, room=room, content=relates, event_type="m.reaction", priority=Priority.SEED)
            run.rooms.send(seed)
        await run.until(lambda: len(run.delivered) == 4)
    assert [TooLarge, Sent, Sent, Sent] == [type(event) for event in run.delivered]


async def test_an_account_is_read_and_a_dead_token_is_told(server: Synapse) -> None:
    bot = await server.person("bot")
    client = Client(bot.url)
    assert "m.login.password" in await entrance.read_flows(client)
    assert await client.versions()
    login = await entrance.log_in_by_password(client, UserId(bot.user_id), bot.password, "SECOND")
    await client.close()
    client = Client(bot.url, access_token=login.tokens.access_token)
    assert (bot.user_id, "SECOND") == await client.whoami()
    assert bot.user_id.startswith(f"@{await client.display_name(UserId(bot.user_id))}:")
    await bot.ask("POST", "/logout/all")
    with pytest.raises(CredentialsRefused):
        await client.whoami()
    await client.close()


async def test_a_sync_token_of_nobody_is_refused_and_given_up(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id))
    async with client_of(bot) as client:
        with pytest.raises(RequestRefused):
            await client.sync(SyncToken("garbage"), timeout_ms=0, full_state=False, rooms=[room])
    async with at_work(bot, room, since="garbage") as run:
        await joined(run)


async def test_the_client_reads_what_a_room_holds(server: Synapse) -> None:
    alice, bot = await server.person("alice"), await server.person("bot")
    room = RoomId(await alice.room(bot.user_id))
    async with client_of(bot) as client:
        await client.join(room)
        await client.typing(room, on=True, timeout_ms=1_000)
        first = await client.send(room, "m.room.message", TEXT, TransactionId("t"))
        assert first == await client.send(room, "m.room.message", TEXT | {"body": "y"}, TransactionId("t"))
        assert {alice.user_id, bot.user_id} == await client.joined_members(room)
        assert "m.room.create" in [source["type"] for source in await client.room_state(room)]
        member = await client.state_content(room, "m.room.member", UserId(bot.user_id))
        assert member is not None
        assert member["membership"] == "join"
        assert await client.state_content(room, "m.room.tombstone") is None
        with pytest.raises(EventTooLarge):
            await client.send(room, "m.room.message", TEXT | {"body": "é" * 33_000}, TransactionId("u"))
