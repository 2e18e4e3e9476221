"""The device at the start of `run`, on a real homeserver."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from bridge.app.device import OpenDevice, discard_keys, open_device
from bridge.core.errors import KeysDamaged, KeysLost
from bridge.core.model import UserId
from bridge.demo.homeserver import Account, Homeserver
from bridge.matrix.client import Client
from bridge.matrix.crosssigning import inspect
from bridge.matrix.keyserver import KeyServer
from bridge.ops.credentials import Credentials
from bridge.ops.login import LoggedIn


@pytest.fixture
def account(synapse: Homeserver) -> Account:
    return synapse.register(f"bot-{uuid4().hex[:8]}")


@asynccontextmanager
async def opened(synapse: Homeserver, account: Account, folder: Path) -> AsyncGenerator[OpenDevice]:
    user = UserId(account.user_id)
    client = Client(synapse.base_url, user_id=user, device_id=account.device_id, access_token=account.access_token)
    logged_in = LoggedIn(
        user_id=user, device_id=account.device_id, credentials=Credentials(access_token=account.access_token)
    )
    try:
        async with open_device(client, logged_in, folder) as device:
            yield device
    finally:
        await client.close()


async def is_signed(device: OpenDevice, folder: Path) -> bool:
    user = device.account.user_id
    return (await inspect(KeyServer(device.client), device.machine, folder, user_id=user)).device_signed


async def test_an_account_without_an_identity_gets_one_at_the_start(
    synapse: Homeserver, account: Account, tmp_path: Path
) -> None:
    async with opened(synapse, account, tmp_path) as device:
        await device.sign_or_warn(None)
        assert await is_signed(device, tmp_path)


async def test_a_device_that_nobody_can_sign_now_is_said_and_the_bridge_goes_on(
    synapse: Homeserver, account: Account, tmp_path: Path
) -> None:
    async with opened(synapse, account, tmp_path) as device:
        await device.sign()
        (tmp_path / "cross_signing.json").unlink()
        await device.sign(reset=True, password=lambda: account.password)
        (tmp_path / "cross_signing.json").write_text("torn")
        with capture_logs() as logged:
            await device.sign_or_warn(account.password)
    (line,) = [entry for entry in logged if entry["event"] == "identity.device_unsigned"]
    assert line["device_id"] == account.device_id


@pytest.mark.parametrize(("break_it", "kind"), [("lose", KeysLost), ("tear", KeysDamaged)])
async def test_keys_that_are_not_there_any_more_name_the_way_out(
    break_it: str, kind: type[Exception], synapse: Homeserver, account: Account, tmp_path: Path
) -> None:
    async with opened(synapse, account, tmp_path):
        pass
    if break_it == "lose":
        discard_keys(tmp_path)
    else:
        (tmp_path / "keys.db").write_bytes(b"torn" * 1000)
    with pytest.raises(kind, match="login --new-device"):
        async with opened(synapse, account, tmp_path):
            raise NotImplementedError
