"""Where the homeserver is, before anything is asked of it."""

from collections.abc import AsyncIterator

import pytest

from bridge.app import accounts
from bridge.core.errors import HomeserverUnreachable
from tests.peers.homeserver import Fault, Homeserver


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as running:
        yield running


async def test_an_address_is_taken_as_it_is_written(server: Homeserver) -> None:
    server.delegate = "https://elsewhere.hs"
    assert await accounts.find_address(server.url) == server.url
    assert server.requests == []


async def test_a_server_name_is_asked_over_https(monkeypatch: pytest.MonkeyPatch) -> None:
    async def follow(address: str) -> str:
        return f"what {address} names"

    monkeypatch.setattr(accounts, "follow", follow)
    assert await accounts.find_address("example.org:8448") == "what https://example.org:8448 names"


@pytest.mark.parametrize("named", ["https://matrix.hs", None])
async def test_a_server_that_names_no_other_address_is_the_homeserver_itself(
    server: Homeserver, named: str | None
) -> None:
    server.delegate = named
    assert await accounts.follow(server.url) == (named or server.url)
    assert "Authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=200, body="{"),
        Fault(status=200, body={"m.homeserver": {"base_url": "matrix.hs"}}),
        Fault(status=200, body={"m.homeserver": []}),
        Fault(status=404),
    ],
    ids=["torn", "no address", "odd", "none"],
)
async def test_a_file_in_which_no_address_stands_names_the_server_itself(server: Homeserver, fault: Fault) -> None:
    server.fail("well_known", fault)
    assert await accounts.follow(server.url) == server.url


async def test_a_homeserver_that_answers_is_connected_to_also_with_a_slash_at_the_end(server: Homeserver) -> None:
    async with accounts.connect(server.url + "/") as found:
        assert await found.flows() == ("m.login.password", "m.login.token")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=404, body="<h1>Welcome</h1>", content_type="text/html"),
        Fault(status=200, body="<h1>Welcome</h1>", content_type="text/html"),
        Fault(status=401, body={}),
        Fault(status=404, body={}),
        Fault(drop=True),
    ],
    ids=["no such page", "a page for people", "401", "404", "away"],
)
async def test_what_is_no_homeserver_is_said_to_be_none_before_anything_is_asked(
    server: Homeserver, fault: Fault
) -> None:
    server.fail("versions", fault)
    with pytest.raises(HomeserverUnreachable, match=f"There is no homeserver at {server.url}.*whole address"):
        async with accounts.connect(server.url):
            raise NotImplementedError


async def test_a_server_name_at_which_nothing_answers_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_nothing(_homeserver: str) -> str:
        raise HomeserverUnreachable("No connection to the homeserver.")

    monkeypatch.setattr(accounts, "find_address", find_nothing)
    with pytest.raises(
        HomeserverUnreachable, match=r"There is no homeserver at example\.org: No connection.*http://localhost:8008"
    ):
        async with accounts.connect("example.org"):
            raise NotImplementedError
