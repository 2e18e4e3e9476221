"""Where the homeserver is, before anything is asked of it."""

from collections.abc import AsyncIterator

import pytest

from bridge.app import accounts
from tests.peers.homeserver import Homeserver


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
