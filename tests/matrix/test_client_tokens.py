"""Requests whose token runs out on the way."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, MatrixError
from bridge.core.model import RoomId, TransactionId
from bridge.matrix import entrance
from bridge.matrix.client import Client
from bridge.matrix.tokens import TokenHolder, Tokens
from tests.peers.homeserver import SOFT_LOGOUT, Fault, Homeserver

ROOM = RoomId("!room")
TXN = TransactionId("t1")
TEXT = {"msgtype": "m.text", "body": "x"}


@pytest.fixture
async def server() -> AsyncIterator[Homeserver]:
    async with Homeserver().serving() as running:
        yield running


async def failure(client: Client) -> MatrixError:
    with pytest.raises(MatrixError) as caught, anyio.fail_after(5):
        await client.whoami()
    return caught.value


@dataclass(slots=True)
class Renewing:
    """A client whose tokens the stub renews, and what was kept of them."""

    client: Client
    kept: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def renewing(server: Homeserver, *, renew_at: float | None = None) -> AsyncGenerator[Renewing]:
    server.refresh_token = "r"
    entrance_client = Client(server.url)

    async def renew(refresh_token: str) -> Tokens:
        return await entrance.refresh(entrance_client, refresh_token)

    kept: list[str] = []
    tokens = Tokens(access_token=server.token, refresh_token="r", renew_at=renew_at)
    holder = TokenHolder(tokens, keep=lambda tokens: kept.append(tokens.access_token), refresh=renew)
    client = Client(server.url, user_id=server.user_id, device_id="DEV", tokens=holder)
    yield Renewing(client, kept)
    await client.close()
    await entrance_client.close()


def bearers(server: Homeserver, operation: str) -> list[str | None]:
    return [seen.headers.get("Authorization") for seen in server.requests if seen.operation == operation]


async def test_a_request_whose_token_has_run_out_is_repeated_once_with_a_new_one(server: Homeserver) -> None:
    server.room(ROOM)
    server.fail("send", Fault(status=401, body=SOFT_LOGOUT))
    old = server.token
    async with renewing(server) as run:
        event_id = await run.client.send(ROOM, "m.room.message", TEXT, TXN)
    assert [(event.event_id, event.txn) for event in server.sent] == [(event_id, TXN)]
    assert run.kept == [f"{old}+"]
    assert bearers(server, "send") == [f"Bearer {old}", f"Bearer {old}+"]
    assert bearers(server, "refresh") == [None]


async def test_a_second_refusal_of_the_same_request_is_told(server: Homeserver) -> None:
    server.fail_always("whoami", Fault(status=401, body=SOFT_LOGOUT))
    async with renewing(server) as run:
        error = await failure(run.client)
    assert isinstance(error, CredentialsRefused)
    assert (error.soft, server.count("whoami"), server.count("refresh")) == (True, 2, 1)


async def test_a_session_that_was_ended_is_told_as_such_and_not_renewed(server: Homeserver) -> None:
    async with renewing(server) as run:
        server.token = "another"
        error = await failure(run.client)
    assert isinstance(error, CredentialsRefused)
    assert (error.soft, server.count("refresh"), run.kept) == (False, 0, [])


async def test_several_requests_that_meet_the_refusal_together_renew_once(server: Homeserver) -> None:
    server.room(ROOM)
    server.fail("whoami", *[Fault(status=401, body=SOFT_LOGOUT)] * 3)
    async with renewing(server) as run, anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            for _ in range(3):
                tasks.start_soon(run.client.whoami)
            await server.until(lambda: server.count("whoami") == 6)
    assert (server.count("refresh"), run.kept) == (1, [server.token])


async def test_a_request_that_left_with_the_old_token_is_repeated_with_the_new_one(server: Homeserver) -> None:
    """The server has forgotten the old one by then, and says so as of an ended session."""
    gate = asyncio.Event()
    server.fail("typing", Fault(gate=gate))
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    async with renewing(server) as run, anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            tasks.start_soon(lambda: run.client.typing(ROOM, on=True, timeout_ms=1))
            await server.until(lambda: server.count("typing") == 1)
            await run.client.whoami()
            gate.set()
            await server.until(lambda: server.count("typing") == 2)
    assert server.count("refresh") == 1


async def test_a_token_is_renewed_before_its_end(server: Homeserver) -> None:
    async with renewing(server, renew_at=1.0) as run:
        await run.client.whoami()
        await run.client.whoami()
    assert [seen.operation for seen in server.requests] == ["refresh", "whoami", "whoami"]


async def test_a_renewal_that_fails_is_the_failure_of_the_request(server: Homeserver) -> None:
    server.fail("whoami", Fault(status=401, body=SOFT_LOGOUT))
    server.fail("refresh", Fault(drop=True))
    async with renewing(server) as run:
        error = await failure(run.client)
    assert isinstance(error, HomeserverUnreachable)
    assert not error.perhaps_done
