import json
from collections.abc import AsyncIterator

import pytest

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, MatrixError, RateLimited, RequestRefused
from bridge.core.model import UserId
from bridge.matrix import entrance
from bridge.matrix.client import Client
from tests.peers.homeserver import SOFT_LOGOUT, Fault, Homeserver

BOT = UserId("@bot:hs")


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as running:
        yield running


@pytest.fixture
async def client(server: Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url)
    yield made
    await made.close()


async def test_the_ways_in_are_read_without_a_token(client: Client, server: Homeserver) -> None:
    assert await entrance.read_flows(client) == ("m.login.password", "m.login.token")
    assert "Authorization" not in server.requests[0].headers


async def test_a_password_opens_the_device_that_was_named(client: Client, server: Homeserver) -> None:
    login = await entrance.log_in_by_password(client, BOT, server.password, "D2")
    assert (login.user_id, login.device_id, login.tokens.access_token) == (BOT, "D2", server.token)
    assert (login.tokens.refresh_token, login.tokens.renew_at) == (None, None)


async def test_a_login_wants_tokens_that_can_be_renewed(client: Client, server: Homeserver) -> None:
    server.refresh_token = "r"
    login = await entrance.log_in_by_password(client, BOT, server.password, "D2")
    assert json.loads(server.requests[0].body)["refresh_token"] is True
    assert login.tokens.refresh_token == "r"
    assert login.tokens.renew_at is not None


async def test_the_token_of_a_browser_opens_the_device_that_was_named(client: Client, server: Homeserver) -> None:
    assert (await entrance.log_in_by_token(client, server.login_token, "D3")).device_id == "D3"


async def test_no_token_and_no_password_is_in_the_text_of_a_login(client: Client, server: Homeserver) -> None:
    assert server.token not in repr(await entrance.log_in_by_password(client, BOT, server.password, "D"))


@pytest.mark.parametrize("fault", [None, Fault(status=401, body=SOFT_LOGOUT)])
async def test_a_refused_login_is_refused_credentials(client: Client, server: Homeserver, fault: Fault | None) -> None:
    if fault is not None:
        server.fail("login", fault)
    with pytest.raises(CredentialsRefused, match="did not accept this login"):
        await entrance.log_in_by_password(client, BOT, "wrong", "D")


async def test_a_login_that_is_refused_for_another_reason_says_so(client: Client, server: Homeserver) -> None:
    server.flows = ["m.login.sso"]
    with pytest.raises(RequestRefused):
        await entrance.log_in_by_password(client, BOT, server.password, "D")


async def test_a_login_that_gives_no_device_is_none(client: Client, server: Homeserver) -> None:
    server.fail("login", Fault(status=200, body={"user_id": "@bot:hs", "access_token": "t"}))
    with pytest.raises(HomeserverUnreachable):
        await entrance.log_in_by_password(client, BOT, server.password, "D")


async def test_a_refresh_gives_the_next_pair(client: Client, server: Homeserver) -> None:
    server.refresh_token = "r"
    tokens = await entrance.refresh(client, "r")
    assert (tokens.access_token, tokens.refresh_token) == (server.token, "r+")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=403, body={"errcode": "M_FORBIDDEN"}),
        Fault(status=401, body={"errcode": "M_UNKNOWN_TOKEN"}),
        Fault(status=404, body={"errcode": "M_UNRECOGNIZED"}),
    ],
)
async def test_a_refused_refresh_leaves_the_device_as_it_is(client: Client, server: Homeserver, fault: Fault) -> None:
    server.fail("refresh", fault)
    with pytest.raises(CredentialsRefused) as caught:
        await entrance.refresh(client, "r")
    assert caught.value.soft


@pytest.mark.parametrize(
    ("fault", "kind"), [(Fault(status=429), RateLimited), (Fault(drop=True), HomeserverUnreachable)]
)
async def test_a_refresh_that_fails_for_now_is_no_refusal(
    client: Client, server: Homeserver, fault: Fault, kind: type[MatrixError]
) -> None:
    server.fail("refresh", fault)
    with pytest.raises(kind):
        await entrance.refresh(client, "r")


def test_a_browser_is_sent_to_the_homeserver_and_back() -> None:
    assert entrance.make_browser_address("https://hs/", "http://127.0.0.1:8/x?y=1") == (
        "https://hs/_matrix/client/v3/login/sso/redirect?redirectUrl=http%3A%2F%2F127.0.0.1%3A8%2Fx%3Fy%3D1"
    )
