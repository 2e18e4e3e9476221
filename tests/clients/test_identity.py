"""Our signature against matrix-js-sdk: an identity that it made is opened, and one that we made is one for it too."""

import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.core.errors import IdentityUnusable
from bridge.core.model import UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix.client import Client
from bridge.matrix.crosssigning import Done, Established, establish, inspect
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from bridge.matrix.keyserver import KeyServer
from tests.clients.javascript import Javascript

SCRIPT_S = 120.0  # Node with the crypto takes 3 s to start, many times that beside a whole test run on two cores
WORDS = "correct horse battery staple"


@dataclass(kw_only=True)
class World:
    """One homeserver, and an account that a bridge is to use and js-sdk looks at."""

    js: Javascript
    synapse: Homeserver
    account: Account
    folder: Path
    opened: list[Client] = field(default_factory=list[Client])

    async def script(self, deed: str, who: Account, *words: str) -> dict[str, Any]:
        command = self.js.command(
            "identity.mjs", deed, self.synapse.base_url, who.user_id, who.device_id, who.access_token, *words
        )
        with anyio.fail_after(SCRIPT_S):
            done = await anyio.run_process(command, check=False, stderr=subprocess.PIPE)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    async def make(self, *words: str) -> str:
        """The account is opened in js-sdk, which gives it an identity with secret storage: the recovery key."""
        made = await self.script("make", self.account, self.account.password, *words)
        assert made["stored"] is True
        return str(made["recovery_key"])

    async def sees_signed(self, device: str) -> object:
        """Whether js-sdk, on a device of the account that it has just opened, takes another one for signed."""
        return (await self.script("look", self.second_device(), device))["signed_by_owner"]

    def second_device(self) -> Account:
        user = {"type": "m.id.user", "user": self.account.user_id}
        wish = {"type": "m.login.password", "identifier": user, "password": self.account.password}
        body = call(self.synapse.base_url, "POST", "/_matrix/client/v3/login", wish).body
        return Account(
            user_id=self.account.user_id,
            device_id=str(body["device_id"]),
            access_token=str(body["access_token"]),
            password=self.account.password,
        )

    async def log_in(
        self, device: Account, *, folder: str = "bridge", typed: str | None = None, reset: bool = False
    ) -> Established:
        """What `login` does once it has a token."""
        user = UserId(device.user_id)
        client = Client(
            self.synapse.base_url, user_id=user, device_id=device.device_id, access_token=device.access_token
        )
        self.opened.append(client)
        with Machine(self.folder / folder, user, device.device_id, create=True) as machine:
            await Encryption(client, machine).start()
            made = await establish(
                KeyServer(client),
                machine,
                self.folder / folder,
                user_id=user,
                recovery_key=None if typed is None else lambda: typed,
                password=lambda: device.password,
                reset=reset,
            )
            assert (await inspect(KeyServer(client), machine, self.folder / folder, user_id=user)).problem is None
        return made


@pytest.fixture
async def world(
    js: Javascript, synapse: Homeserver, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    name = f"js{abs(hash(request.node.name)) % 10**8}"
    made = World(
        js=js,
        synapse=synapse,
        account=synapse.register(name),
        folder=tmp_path,
    )
    yield made
    for client in made.opened:
        await client.close()


async def test_js_sdk_takes_our_device_for_signed_once_we_have_made_an_identity(world: World) -> None:
    before = world.second_device()
    assert Done.MADE == (await world.log_in(world.account)).done
    assert await world.sees_signed(world.account.device_id) is True
    with pytest.raises(IdentityUnusable):
        await world.log_in(before, folder="another bridge")
    assert await world.sees_signed(before.device_id) is False
    assert await world.sees_signed(world.account.device_id) is True


@pytest.mark.parametrize("words", [(), (WORDS,)], ids=["recovery key", "passphrase"])
async def test_an_identity_of_js_sdks_signs_our_device_and_keeps_signing_its_own(
    world: World, words: tuple[str, ...]
) -> None:
    recovery_key = await world.make(*words)
    device = world.second_device()
    with pytest.raises(IdentityUnusable, match="that this bridge did not make"):
        await world.log_in(device)
    made = await world.log_in(device, typed=words[0] if words else recovery_key)
    assert Done.RECOVERED == made.done
    assert [True, True] == [await world.sees_signed(each.device_id) for each in (device, world.account)]


async def test_two_bridges_of_one_account_are_both_signed_by_what_js_sdk_made(world: World) -> None:
    recovery_key = await world.make()
    one, two = world.second_device(), world.second_device()
    made = [await world.log_in(each, folder=each.device_id, typed=recovery_key) for each in (one, two)]
    assert [Done.RECOVERED] * 2 == [each.done for each in made]
    assert made[0].master_key == made[1].master_key
    assert [True] * 3 == [await world.sees_signed(each.device_id) for each in (one, two, world.account)]


async def test_a_reset_over_an_identity_of_js_sdks_is_one_for_js_sdk(world: World) -> None:
    await world.make()
    device = world.second_device()
    assert Done.RESET == (await world.log_in(device, reset=True)).done
    assert [True, False] == [await world.sees_signed(each.device_id) for each in (device, world.account)]
