"""Files for a room: on a real Synapse, and what a homeserver may answer instead."""

import http.client
from collections.abc import AsyncIterator

import anyio
import pytest
from nio.crypto.attachments import decrypt_attachment

from bridge.core.errors import CredentialsRefused, EventTooLarge, HomeserverUnreachable, MatrixError
from bridge.core.model import JsonObject
from bridge.demo.homeserver import Account, Homeserver
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.uploads import upload_file
from tests.peers import homeserver as stub
from tests.peers.homeserver import Fault

TEXT = ("é line\n" * 20_000).encode()
NAME = "détails #1.txt"
PLAIN = "text/plain; charset=utf-8"


@pytest.fixture
def account(synapse: Homeserver, request: pytest.FixtureRequest) -> Account:
    return synapse.register(f"up{abs(hash(request.node.name)) % 10**8}")


@pytest.fixture
async def client(synapse: Homeserver, account: Account) -> AsyncIterator[Client]:
    made = Client(
        synapse.base_url, user_id=account.user_id, device_id=account.device_id, access_token=account.access_token
    )
    yield made
    await made.close()


@pytest.fixture
async def server() -> AsyncIterator[stub.Homeserver]:
    async with stub.Homeserver().serving() as running:
        yield running


@pytest.fixture
async def stubbed(server: stub.Homeserver) -> AsyncIterator[Client]:
    made = Client(server.url, user_id=server.user_id, device_id=server.device_id, access_token=server.token)
    yield made
    await made.close()


def download(synapse: Homeserver, uri: str, token: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    """As a client does since Matrix 1.11: with its token."""
    connection = http.client.HTTPConnection(synapse.base_url.removeprefix("http://"), timeout=30)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("GET", f"/_matrix/client/v1/media/download/{uri.removeprefix('mxc://')}", headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


async def send(client: Client, *, encrypted: bool, data: bytes = TEXT) -> JsonObject:
    with anyio.fail_after(30):
        return await upload_file(client, data=data, filename=NAME, content_type=PLAIN, encrypted=encrypted)


async def test_a_file_is_read_back_with_its_name_and_kind(
    synapse: Homeserver, account: Account, client: Client
) -> None:
    content = dict(await send(client, encrypted=False))
    status, headers, body = download(synapse, str(content.pop("url")), account.access_token)
    assert (200, TEXT) == (status, body)
    assert (headers["Content-Type"] or "").startswith("text/plain")
    assert "d%C3%A9tails%20%231.txt" in (headers["Content-Disposition"] or "")
    assert content == {
        "msgtype": "m.file",
        "body": NAME,
        "filename": NAME,
        "info": {"size": len(TEXT), "mimetype": PLAIN},
        "m.mentions": {},
    }


async def test_an_encrypted_file_is_read_back_with_the_keys_of_the_message(
    synapse: Homeserver, account: Account, client: Client
) -> None:
    content = await send(client, encrypted=True)
    file = events.mapping(content, "file")
    status, _, body = download(synapse, events.text(file, "url") or "", account.access_token)
    key, digest = events.mapping(file, "key")["k"], events.mapping(file, "hashes")["sha256"]
    assert 200 == status
    assert decrypt_attachment(body, str(key), str(digest), str(file["iv"])) == TEXT
    assert "url" not in content


async def test_the_homeserver_learns_neither_text_nor_name_nor_kind_of_an_encrypted_file(
    synapse: Homeserver, account: Account, client: Client
) -> None:
    content = await send(client, encrypted=True)
    uri = events.text(events.mapping(content, "file"), "url") or ""
    _, headers, body = download(synapse, uri, account.access_token)
    assert TEXT[:8] not in body
    assert ("application/octet-stream", True) == (headers["Content-Type"], "tails" not in str(headers))


async def test_nobody_reads_a_file_without_a_token(synapse: Homeserver, client: Client) -> None:
    content = await send(client, encrypted=False)
    assert 401 == download(synapse, str(content["url"]), "")[0]


async def test_megabytes_go_as_well(synapse: Homeserver, account: Account, client: Client) -> None:
    data = bytes(range(256)) * 2**13
    content = await send(client, encrypted=False, data=data)
    assert data == download(synapse, str(content["url"]), account.access_token)[2]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_file_that_is_too_large_is_said_to_be_one(
    stubbed: Client, server: stub.Homeserver, encrypted: bool
) -> None:
    server.fail("upload", Fault(status=413, body={"errcode": "M_TOO_LARGE"}))
    with pytest.raises(EventTooLarge, match="no file of this size"):
        await send(stubbed, encrypted=encrypted)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(status=413, body="<h1>Too large</h1>", content_type="text/html"), EventTooLarge),
        (Fault(status=502), HomeserverUnreachable),
        (Fault(drop=True), HomeserverUnreachable),
        (Fault(status=200, body="<h1>Welcome</h1>", content_type="text/html"), HomeserverUnreachable),
        (Fault(status=200, body={"content_uri": 7}), HomeserverUnreachable),
        (Fault(status=401, body={"errcode": "M_UNKNOWN_TOKEN"}), CredentialsRefused),
    ],
)
async def test_an_upload_that_fails_is_judged_like_every_call(
    stubbed: Client, server: stub.Homeserver, fault: Fault, error: type[MatrixError]
) -> None:
    server.fail("upload", fault)
    with pytest.raises(error):
        await send(stubbed, encrypted=False)


async def test_the_token_goes_into_the_header_alone(stubbed: Client, server: stub.Homeserver) -> None:
    await send(stubbed, encrypted=False)
    (seen,) = server.requests
    assert f"Bearer {server.token}" == seen.headers["Authorization"]
    assert {"filename": NAME} == seen.query
