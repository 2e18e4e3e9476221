"""The key calls on a real Synapse, with two accounts that use plain HTTP."""

from collections.abc import AsyncIterator

import pytest

from bridge.core.errors import ProofNeeded
from bridge.core.model import JsonObject, JsonValue, TransactionId, UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.keyserver import KeyServer

KEY: JsonValue = {"key": "wjLpTLRqbqBzLs63aYaEv2Boi6cFEbbM/sSRQ2oAKk4", "signatures": {"@a:hs": {"ed25519:D": "s"}}}
MASTER = "lbXCbOI4qcUJwE3wRnnSEVIHcIOrEmbT7GgkiFkeJ8U"
OTHER = "TMCdDpnTnwuRIxKyd5HnK7NmoqsF6YQfMzm+YPKUbK4"


@pytest.fixture
def account(synapse: Homeserver, request: pytest.FixtureRequest) -> Account:
    return synapse.register(f"keys{abs(hash(request.node.name)) % 10**8}")


@pytest.fixture
async def keys(synapse: Homeserver, account: Account) -> AsyncIterator[KeyServer]:
    client = Client(
        synapse.base_url, user_id=account.user_id, device_id=account.device_id, access_token=account.access_token
    )
    yield KeyServer(client)
    await client.close()


def device_keys(account: Account) -> dict[str, JsonValue]:
    return {
        "user_id": account.user_id,
        "device_id": account.device_id,
        "algorithms": ["m.olm.v1.curve25519-aes-sha2"],
        "keys": {f"ed25519:{account.device_id}": "e", f"curve25519:{account.device_id}": "c"},
        "signatures": {account.user_id: {f"ed25519:{account.device_id}": "s"}},
    }


def identity(account: Account, public: str) -> JsonObject:
    return {"master_key": {"user_id": account.user_id, "usage": ["master"], "keys": {f"ed25519:{public}": public}}}


async def test_what_was_uploaded_can_be_asked_for(keys: KeyServer, account: Account) -> None:
    await keys.upload({"device_keys": device_keys(account)})
    answer = await keys.query([UserId(account.user_id)])
    devices = events.mapping(events.mapping(answer, "device_keys"), account.user_id)
    assert device_keys(account)["keys"] == events.mapping(devices, account.device_id)["keys"]


async def test_a_one_time_key_can_be_claimed_once(keys: KeyServer, account: Account) -> None:
    counted = await keys.upload({"one_time_keys": {"signed_curve25519:AAAA": KEY}})
    wanted = {UserId(account.user_id): [account.device_id]}
    first, second = await keys.claim(wanted), await keys.claim(wanted)
    assert ({"signed_curve25519": 1}, {account.user_id: {account.device_id: {"signed_curve25519:AAAA": KEY}}}, {}) == (
        counted["one_time_key_counts"],
        first["one_time_keys"],
        second["one_time_keys"],
    )


async def test_a_message_to_a_device_arrives_once(keys: KeyServer, account: Account, synapse: Homeserver) -> None:
    for _ in range(2):
        await keys.send_to_device(
            "dev.test", {UserId(account.user_id): {account.device_id: {"é": 1}}}, TransactionId("t1")
        )
    answer = call(synapse.base_url, "GET", "/_matrix/client/v3/sync?timeout=0", token=account.access_token)
    arrived = events.objects(events.mapping(answer.body, "to_device"), "events")
    assert [{"é": 1}] == [one["content"] for one in arrived]


async def test_an_identity_is_replaced_only_with_proof(keys: KeyServer, account: Account) -> None:
    await keys.upload_signing_keys(identity(account, MASTER))
    with pytest.raises(ProofNeeded) as needed:
        await keys.upload_signing_keys(identity(account, OTHER))
    proof: JsonObject = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": account.user_id},
        "password": account.password,
        "session": needed.value.session,
    }
    await keys.upload_signing_keys(identity(account, OTHER), proof)
    answer = await keys.query([UserId(account.user_id)])
    published = events.mapping(events.mapping(answer, "master_keys"), account.user_id)
    assert {f"ed25519:{OTHER}": OTHER} == published["keys"]
    assert ("m.login.password",) in needed.value.flows


async def test_signatures_that_are_refused_are_named(keys: KeyServer, account: Account) -> None:
    answer = await keys.upload_signatures({account.user_id: {"NOSUCH": {"signatures": {}}}})
    assert account.user_id in events.mapping(answer, "failures")


async def test_account_data_is_read_or_is_not_there(keys: KeyServer, account: Account, synapse: Homeserver) -> None:
    path = f"/_matrix/client/v3/user/{account.user_id}/account_data/dev.test"
    before = await keys.account_data("dev.test")
    call(synapse.base_url, "PUT", path, {"a": 1}, token=account.access_token)
    assert (None, {"a": 1}) == (before, await keys.account_data("dev.test"))
