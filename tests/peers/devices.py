"""Devices whose keys lie in a folder and are open there, as a bridge has its own; for the bot and for anybody else."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bridge.app.device import OpenDevice, open_device
from bridge.core.model import UserId
from bridge.demo.homeserver import Account
from bridge.matrix.client import Client
from bridge.ops.credentials import Credentials
from bridge.ops.login import LoggedIn


@asynccontextmanager
async def client_of(url: str, account: Account) -> AsyncGenerator[Client]:
    user, device = account.user_id, account.device_id
    client = Client(url, user_id=user, device_id=device, access_token=account.access_token)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def at_work(url: str, account: Account, folder: Path) -> AsyncGenerator[OpenDevice]:
    """This account's device with its keys open and published."""
    credentials = Credentials(access_token=account.access_token)
    logged_in = LoggedIn(user_id=UserId(account.user_id), device_id=account.device_id, credentials=credentials)
    async with client_of(url, account) as client, open_device(client, logged_in, folder) as device:
        yield device
