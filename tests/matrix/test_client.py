import asyncio
import json
from collections.abc import AsyncIterator

import anyio
import pytest

from bridge.core.errors import (
    CredentialsRefused,
    EventTooLarge,
    HomeserverUnreachable,
    MatrixError,
    ProofNeeded,
    RateLimited,
    RequestRefused,
)
from bridge.core.model import RoomId, SyncToken, TransactionId, UserId
from bridge.matrix.client import Client
from tests.peers.homeserver import Fault, Homeserver, Json

ROOM = RoomId("!room")
TXN = TransactionId("t1")
TEXT = {"msgtype": "m.text", "body": "x"}


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as running:
        yield running


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url + "/", user_id=server.user_id, device_id=server.device_id, access_token=server.token)
    yield made
    await made.close()


async def failure(client: Client) -> MatrixError:
    with pytest.raises(MatrixError) as caught, anyio.fail_after(5):
        await client.whoami()
    return caught.value


async def test_whoami_says_user_and_device(client: Client) -> None:
    assert await client.whoami() == ("@bot:hs", "DEV")


async def test_whoami_without_a_device_says_an_empty_one(client: Client, server: Homeserver) -> None:
    server.fail("whoami", Fault(status=200, body={"user_id": "@bot:hs"}))
    assert await client.whoami() == ("@bot:hs", "")


async def test_a_server_names_the_address_of_its_homeserver(client: Client, server: Homeserver) -> None:
    server.delegate = "https://matrix.hs:8448/sub/"
    assert await client.delegate() == "https://matrix.hs:8448/sub"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=404, body="<h1>Not found</h1>", content_type="text/html"),
        Fault(status=403, body={"m.homeserver": {"base_url": "https://trap"}}),
        Fault(status=200, body="<h1>Welcome</h1>", content_type="text/html"),
        Fault(status=200, body="[]"),
        Fault(status=200, body={"m.homeserver": "https://trap"}),
        Fault(status=200, body={"m.homeserver": {"base_url": 7}}),
        Fault(status=200, body={"m.homeserver": {"base_url": "http://trap"}}),
    ],
)
async def test_a_server_that_names_no_safe_address_names_none(client: Client, server: Homeserver, fault: Fault) -> None:
    """An http address would carry the token in the clear."""
    server.fail("well_known", fault)
    assert await client.delegate() is None


@pytest.mark.parametrize("fault", [Fault(status=502), Fault(drop=True)])
async def test_a_server_that_cannot_say_now_where_its_homeserver_is_is_asked_again(
    client: Client, server: Homeserver, fault: Fault
) -> None:
    server.fail("well_known", fault)
    with pytest.raises(HomeserverUnreachable):
        await client.delegate()


async def test_versions_are_read_without_a_token(client: Client, server: Homeserver) -> None:
    assert await client.versions() == ("v1.11", "v1.12")
    assert "Authorization" not in server.requests[0].headers


async def test_a_log_out_ends_the_device(client: Client, server: Homeserver) -> None:
    await client.log_out()
    assert (server.count("logout"), type(await failure(client))) == (1, CredentialsRefused)


async def test_an_alias_is_resolved(client: Client, server: Homeserver) -> None:
    server.aliases["#ops:hs"] = "!room"
    assert await client.resolve_alias("#ops:hs") == "!room"


async def test_an_unknown_alias_is_refused(client: Client) -> None:
    with pytest.raises(RequestRefused) as caught:
        await client.resolve_alias("#none:hs")
    assert (caught.value.status, caught.value.errcode) == (404, "M_NOT_FOUND")


async def test_a_display_name_is_read_or_none(client: Client, server: Homeserver) -> None:
    first = await client.display_name(UserId("@bot:hs"))
    server.display_name = None
    assert (first, await client.display_name(UserId("@bot:hs"))) == ("Bridge", None)


async def test_a_look_up_that_is_refused_is_not_taken_for_nothing_there(client: Client, server: Homeserver) -> None:
    server.fail("profile", Fault(status=403, body={"errcode": "M_FORBIDDEN"}))
    with pytest.raises(RequestRefused):
        await client.display_name(UserId("@bot:hs"))


@pytest.mark.parametrize(
    ("body", "session", "flows"),
    [
        ({"flows": [{"stages": ["m.login.password"]}], "session": "s"}, "s", (("m.login.password",),)),
        ({"flows": [{"stages": ["a", 7]}, {"stages": 7}, 7], "errcode": "M_FORBIDDEN"}, "", (("a",),)),
        ({"flows": []}, "", ()),
    ],
)
async def test_a_call_that_wants_proof_is_not_taken_for_a_dead_token(
    client: Client, server: Homeserver, body: Json, session: str, flows: tuple[tuple[str, ...], ...]
) -> None:
    server.fail("whoami", Fault(status=401, body=body))
    needed = await failure(client)
    assert isinstance(needed, ProofNeeded)
    assert (session, flows) == (needed.session, needed.flows)


async def test_a_dead_token_is_one_whatever_else_the_answer_offers(client: Client, server: Homeserver) -> None:
    server.fail("whoami", Fault(status=401, body={"errcode": "M_UNKNOWN_TOKEN", "flows": []}))
    assert isinstance(await failure(client), CredentialsRefused)


async def test_members_and_state_of_a_room_are_read(client: Client, server: Homeserver) -> None:
    server.room(ROOM, "@alice:hs")
    assert {"@alice:hs", "@bot:hs"} == await client.joined_members(ROOM)
    assert "m.room.create" in [source["type"] for source in await client.room_state(ROOM)]
    assert await client.state_content(ROOM, "m.room.create") == {"room_version": "12"}
    assert await client.state_content(ROOM, "m.room.tombstone") is None


async def test_a_room_is_joined_by_an_id_without_a_colon(client: Client, server: Homeserver) -> None:
    room = RoomId("!31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM")
    server.room(room, joined=False)
    server.invite(room)
    await client.join(room)
    assert server.membership(room) == "join"


async def test_a_send_gives_the_event_id_and_the_same_one_when_repeated(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    first = await client.send(ROOM, "m.room.message", TEXT, TXN)
    assert (first, 1) == (await client.send(ROOM, "m.room.message", TEXT, TXN), len(server.sent))


async def test_ids_are_quoted_in_the_path(client: Client, server: Homeserver) -> None:
    room = RoomId("!a/b?c#d:hs")
    server.room(room)
    await client.send(room, "m.room.message", TEXT, TransactionId("acps_1:7/1/prompt"))
    assert (room, "acps_1:7/1/prompt") == (server.sent[0].room, server.sent[0].txn)


async def test_other_letters_than_ascii_leave_as_utf_8(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    await client.send(ROOM, "m.room.message", TEXT | {"body": "é" * 100}, TXN)
    assert ("é" * 100).encode() in server.requests[-1].body


@pytest.mark.parametrize("odd", [float("nan"), "\ud800"])
async def test_content_that_is_no_json_is_refused_before_it_leaves(
    client: Client, server: Homeserver, odd: float | str
) -> None:
    with pytest.raises(RequestRefused) as caught:
        await client.send(ROOM, "m.room.message", {"body": odd}, TXN)
    assert (caught.value.errcode, server.count("send")) == ("M_BAD_JSON", 0)


async def test_typing_is_told_with_its_time_limit(client: Client, server: Homeserver) -> None:
    await client.typing(ROOM, on=True, timeout_ms=30_000)
    await client.typing(ROOM, on=False, timeout_ms=30_000)
    bodies = [json.loads(seen.body) for seen in server.requests]
    assert bodies == [{"typing": True, "timeout": 30_000}, {"typing": False}]


async def test_the_token_is_in_the_header_and_never_in_an_address(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    await client.whoami()
    await client.sync(None, timeout_ms=0, full_state=True, rooms=[ROOM])
    await client.messages(ROOM, "s3", None)
    await client.send(ROOM, "m.room.message", TEXT, TXN)
    await client.typing(ROOM, on=True, timeout_ms=1)
    await client.joined_members(ROOM)
    await client.state_content(ROOM, "m.room.create")
    await client.join(ROOM)
    seen = server.requests
    assert {f"Bearer {server.token}"} == {one.headers["Authorization"] for one in seen}
    assert not [one for one in seen if server.token in one.path or server.token in str(one.query)]


# ------------------------------------------------------------------------------------------------ how calls go wrong


@pytest.mark.parametrize(
    ("fault", "perhaps_done"),
    [
        (Fault(status=500, body={"errcode": "M_UNKNOWN", "error": "x"}), False),
        (Fault(status=502, body="<html>bad gateway</html>", content_type="text/html"), False),
        (Fault(status=503, body=""), False),
        (Fault(status=404, body="<html>not here</html>", content_type="text/html"), False),
        (Fault(status=401, body="<html>log in first</html>", content_type="text/html"), False),
        (Fault(status=504, body={}), True),
        (Fault(status=200, body="<html>captive portal</html>", content_type="text/html"), True),
        (Fault(status=200, body=b"\xff\xfe{"), True),
        (Fault(status=200, body="[]"), True),
        (Fault(status=200, body={"user_id": 5}), True),
        (Fault(torn=True), True),
        (Fault(drop=True), True),
    ],
    ids=[
        "500",
        "502 html",
        "503",
        "404 html",
        "401 html",
        "504",
        "200 html",
        "no utf-8",
        "list",
        "no id",
        "torn",
        "drop",
    ],
)
async def test_a_passing_failure_is_one_and_says_whether_it_may_have_been_done(
    client: Client, server: Homeserver, fault: Fault, perhaps_done: bool
) -> None:
    server.fail_always("whoami", fault)
    error = await failure(client)
    assert isinstance(error, HomeserverUnreachable)
    assert perhaps_done is error.perhaps_done


async def test_a_send_whose_connection_broke_is_not_repeated_behind_our_back(
    client: Client, server: Homeserver
) -> None:
    server.room(ROOM)
    await client.whoami()  # so that the connection is a kept one
    server.fail("send", Fault(done=True, drop=True), Fault(status=503))
    with pytest.raises(HomeserverUnreachable) as caught:
        await client.send(ROOM, "m.room.message", TEXT, TXN)
    assert (caught.value.perhaps_done, server.count("send")) == (True, 1)


async def test_no_connection_is_a_passing_failure_that_certainly_did_nothing() -> None:
    client = Client("http://127.0.0.1:9", access_token="t")
    error = await failure(client)
    await client.close()
    assert isinstance(error, HomeserverUnreachable)
    assert not error.perhaps_done


async def test_a_frozen_server_is_given_up_on(
    client: Client, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.client.SYNC_GRACE_S", 0.05)
    server.fail("sync", Fault(gate=asyncio.Event()))
    with pytest.raises(HomeserverUnreachable), anyio.fail_after(5):
        await client.sync(SyncToken("s0"), timeout_ms=1, full_state=False, rooms=[])


@pytest.mark.parametrize(
    ("body", "headers", "wait_s"),
    [
        ({"retry_after_ms": 7000}, {}, 7.0),
        ({}, {"Retry-After": "9"}, 9.0),
        ({"retry_after_ms": 2000}, {"Retry-After": "9"}, 9.0),
        ({}, {}, 5.0),
        ({"retry_after_ms": 86_400_000}, {}, 60.0),
        ({"retry_after_ms": 10**400}, {}, 60.0),
        ({}, {"Retry-After": "86400"}, 60.0),
        ({"retry_after_ms": -5}, {}, 5.0),
        ({"retry_after_ms": True}, {}, 5.0),
        ({"retry_after_ms": "soon"}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 5.0),
    ],
)
async def test_a_rate_limit_says_how_long_and_never_longer_than_a_minute(
    client: Client, server: Homeserver, body: dict[str, object], headers: dict[str, str], wait_s: float
) -> None:
    server.fail("whoami", Fault(status=429, body={"errcode": "M_LIMIT_EXCEEDED"} | body, headers=headers))
    error = await failure(client)
    assert isinstance(error, RateLimited)
    assert wait_s == error.retry_after
    assert f"asks to wait for {wait_s:.0f} s" in str(error)


async def test_a_rate_limit_comes_back_at_once_after_one_request(client: Client, server: Homeserver) -> None:
    server.fail_always("whoami", Fault(status=429, body="slow down", content_type="text/plain"))
    assert isinstance(await failure(client), RateLimited)
    assert server.count("whoami") == 1


async def test_rate_limits_are_counted(client: Client, server: Homeserver) -> None:
    server.fail("whoami", Fault(status=429, body={"errcode": "M_LIMIT_EXCEEDED"}), Fault(status=502, body={}))
    await failure(client)
    await failure(client)
    await client.whoami()
    assert client.times_limited == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=401, body={"errcode": "M_UNKNOWN_TOKEN", "soft_logout": True}),
        Fault(status=401, body={"errcode": "M_MISSING_TOKEN"}),
        Fault(status=403, body={"errcode": "M_USER_DEACTIVATED"}),
    ],
)
async def test_a_token_that_does_not_count_is_refused_credentials_every_time(
    client: Client, server: Homeserver, fault: Fault
) -> None:
    server.fail("whoami", fault, fault)
    assert [CredentialsRefused, CredentialsRefused] == [type(await failure(client)), type(await failure(client))]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=413, body={"errcode": "M_TOO_LARGE"}),
        Fault(status=413, body="<html>Request Entity Too Large</html>", content_type="text/html"),
        Fault(status=400, body={"errcode": "M_BAD_JSON", "error": "event id too long"}),
    ],
)
async def test_an_event_that_is_too_large_is_told_apart(client: Client, server: Homeserver, fault: Fault) -> None:
    server.fail("send", fault)
    with pytest.raises(EventTooLarge):
        await client.send(ROOM, "m.room.message", TEXT, TXN)


async def test_a_refusal_keeps_status_and_code(client: Client, server: Homeserver) -> None:
    server.fail("whoami", Fault(status=400, body={"errcode": "M_BAD_JSON", "error": "floats are not allowed"}))
    error = await failure(client)
    assert isinstance(error, RequestRefused)
    assert (error.status, error.errcode, isinstance(error, EventTooLarge)) == (400, "M_BAD_JSON", False)


async def test_an_error_repeats_nothing_that_the_server_says_but_its_code(client: Client, server: Homeserver) -> None:
    server.fail("whoami", Fault(status=400, body={"errcode": "M_X <b>\n" + server.token, "error": server.token}))
    assert str(await failure(client)) == "The homeserver refused (400)."


@pytest.mark.parametrize("fault", [Fault(drop=True), Fault(torn=True), Fault(status=500, body="")])
async def test_an_error_never_holds_the_token(client: Client, server: Homeserver, fault: Fault) -> None:
    server.fail_always("whoami", fault)
    error = await failure(client)
    assert server.token not in f"{error!r} {error.__cause__!r}"
    assert error.__suppress_context__ or error.__context__ is None


# ------------------------------------------------------------------------------------------------------------ syncing


async def test_a_sync_gives_events_as_the_server_sent_them_however_odd(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = SyncToken(server.token_now())
    odd = [
        {"type": "m.room.message", "sender": "@a:hs", "event_id": "$1", "content": {"msgtype": ["m.text"], "body": 5}},
        {"type": "m.room.create", "state_key": "", "event_id": "$2", "content": {"predecessor": {"room_id": "!old"}}},
        {"type": "m.room.encrypted", "event_id": "$3", "content": {"algorithm": "m.megolm.v1.aes-sha2"}},
        {"event_id": 7},
    ]
    server.scripted.append(
        {"next_batch": "s9", "rooms": {"join": {ROOM: {"timeline": {"events": [*odd, "no", None]}}}}}
    )
    batch = await client.sync(since, timeout_ms=0, full_state=False, rooms=[ROOM])
    assert tuple(odd) == batch.rooms[ROOM].events


async def test_the_same_sync_twice_gives_the_same_events(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = SyncToken(server.token_now())
    server.say(ROOM, "1")
    first = await client.sync(since, timeout_ms=0, full_state=False, rooms=[ROOM])
    assert first == await client.sync(since, timeout_ms=0, full_state=False, rooms=[ROOM])


async def test_a_kick_and_an_invite_are_in_the_batch(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    since = SyncToken(server.token_now())
    server.member(ROOM, server.user_id, "leave", "@mod:hs")
    server.room("!other", joined=False)
    server.invite("!other", "@alice:hs")
    batch = await client.sync(since, timeout_ms=0, full_state=False, rooms=[ROOM])
    assert (list(batch.left), batch.invites) == ([ROOM], {"!other": "@alice:hs"})


async def test_an_invite_that_names_nobody_is_from_nobody(client: Client, server: Homeserver) -> None:
    server.scripted.append({"next_batch": "s9", "rooms": {"invite": {"!r": {"invite_state": {"events": [{}]}}}}})
    batch = await client.sync(None, timeout_ms=0, full_state=True, rooms=[])
    assert batch.invites == {"!r": None}


async def test_a_sync_asks_for_full_state_the_bound_rooms_and_nothing_noisy(client: Client, server: Homeserver) -> None:
    await client.sync(SyncToken("s0"), timeout_ms=0, full_state=True, rooms=[ROOM])
    query = server.requests[-1].query
    wanted = json.loads(query["filter"])
    assert (
        query["full_state"],
        query["since"],
        wanted["room"]["rooms"],
        wanted["room"]["ephemeral"],
    ) == ("true", "s0", [ROOM], {"types": []})


async def test_an_answer_nested_beyond_any_stack_is_a_passing_failure(client: Client, server: Homeserver) -> None:
    server.fail("whoami", Fault(status=200, body="[" * 100_000))
    assert isinstance(await failure(client), HomeserverUnreachable)


async def test_older_events_come_in_pages_newest_first(client: Client, server: Homeserver) -> None:
    server.room(ROOM)
    start = server.token_now()
    ids = [server.say(ROOM, str(number)) for number in range(150)]
    first = await client.messages(ROOM, server.token_now(), start)
    assert first.end is not None
    second = await client.messages(ROOM, first.end, start)
    assert (ids[::-1], None) == ([source["event_id"] for source in (*first.events, *second.events)], second.end)


@pytest.mark.parametrize(("size", "read"), [(1000, True), (1001, False)])
async def test_an_answer_that_is_too_large_to_be_meant_is_not_read_to_its_end(
    server: Homeserver, client: Client, monkeypatch: pytest.MonkeyPatch, size: int, read: bool
) -> None:
    monkeypatch.setattr("bridge.matrix.client.ANSWER_MOST_BYTES", 1000)
    frame = len(json.dumps({"user_id": "@bot:hs", "junk": ""}))
    server.fail("whoami", Fault(status=200, body={"user_id": "@bot:hs", "junk": "x" * (size - frame)}))
    if read:
        assert ("@bot:hs", "") == await client.whoami()
    else:
        with pytest.raises(HomeserverUnreachable, match="larger than any should be"):
            await client.whoami()
    assert (server.user_id, server.device_id) == await client.whoami()  # and the next one is
