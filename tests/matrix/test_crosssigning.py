"""Signing our device on a real Synapse, in each state that an account can be in."""

import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, IdentityUnusable, RecoveryRefused
from bridge.core.model import JsonObject, UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix.client import Client
from bridge.matrix.crosssigning import Done, Established, Standing, establish, inspect
from bridge.matrix.crypto.identity import read_kept
from bridge.matrix.crypto.signing import is_signed_by
from bridge.matrix.keyserver import KeyServer
from tests.fakes.device import FakeDevice
from tests.fakes.storage import SecretStorage


def not_asked() -> str:
    raise NotImplementedError


@dataclass(kw_only=True)
class Bridge:
    """One bridge with a state folder of its own, on one device of the account."""

    keys: KeyServer
    account: Account
    folder: Path
    device: FakeDevice = field(init=False)

    def __post_init__(self) -> None:
        self.device = FakeDevice(self.account.user_id, self.account.device_id)

    async def log_in(
        self,
        *,
        recovery_key: Callable[[], str] | None = None,
        password: Callable[[], str] | None = not_asked,
        reset: bool = False,
    ) -> Established:
        return await establish(
            self.keys,
            self.device,
            self.folder,
            user_id=UserId(self.account.user_id),
            recovery_key=recovery_key,
            password=password,
            reset=reset,
        )

    async def look(self) -> Standing:
        return await inspect(self.keys, self.device, self.folder, user_id=UserId(self.account.user_id))

    async def query(self) -> dict[str, Any]:
        return dict(await self.keys.query([UserId(self.account.user_id)]))


class Torn(KeyServer):
    """A homeserver whose answer to one upload does not come back, or a bridge that ends at this moment."""

    def __init__(self, client: Client, *, after: bool) -> None:
        super().__init__(client)
        self._after = after

    async def upload_signing_keys(self, keys: JsonObject, auth: JsonObject | None = None) -> None:
        if self._after:
            await super().upload_signing_keys(keys, auth)
        raise HomeserverUnreachable("The connection to the homeserver broke.", perhaps_done=True)


@dataclass(kw_only=True)
class World:
    synapse: Homeserver
    path: Path
    clients: list[Client] = field(default_factory=list[Client])

    def register(self, name: str) -> Account:
        return self.synapse.register(name)

    def client(self, account: Account) -> Client:
        client = Client(
            self.synapse.base_url,
            user_id=account.user_id,
            device_id=account.device_id,
            access_token=account.access_token,
        )
        self.clients.append(client)
        return client

    def bridge(self, account: Account, folder: str = "one") -> Bridge:
        return Bridge(keys=KeyServer(self.client(account)), account=account, folder=self.path / folder)

    def second_device(self, account: Account) -> Account:
        wish = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": account.user_id},
            "password": account.password,
        }
        body = call(self.synapse.base_url, "POST", "/_matrix/client/v3/login", wish).body
        return Account(
            user_id=account.user_id,
            device_id=str(body["device_id"]),
            access_token=str(body["access_token"]),
            password=account.password,
        )

    def store(self, account: Account, kind: str, content: JsonObject) -> None:
        path = f"/_matrix/client/v3/user/{quote(account.user_id)}/account_data/{kind}"
        assert call(self.synapse.base_url, "PUT", path, content, token=account.access_token).status == 200


@asynccontextmanager
async def opened(synapse: Homeserver, path: Path) -> AsyncGenerator[World]:
    world = World(synapse=synapse, path=path)
    try:
        yield world
    finally:
        for client in world.clients:
            await client.close()


@pytest.fixture
async def world(synapse: Homeserver, tmp_path: Path) -> AsyncGenerator[World]:
    async with opened(synapse, tmp_path) as made:
        yield made


def name(request: pytest.FixtureRequest) -> str:
    return "x" + "".join(c for c in request.node.name if c.isalnum())[-60:].lower()


@pytest.fixture
def account(world: World, request: pytest.FixtureRequest) -> Account:
    return world.register(name(request))


async def test_an_account_without_an_identity_gets_ours_without_a_password(world: World, account: Account) -> None:
    bridge = world.bridge(account)
    made = await bridge.log_in()
    standing = await bridge.look()
    kept = read_kept(bridge.folder, UserId(account.user_id))
    assert kept.identity is not None
    assert (Done.MADE, kept.identity.master_key, None) == (made.done, made.master_key, kept.proposed)
    assert made.fingerprint.replace(" ", "") == bridge.device.public
    assert [4] * 10 + [3] == [len(group) for group in made.fingerprint.split()]
    assert standing == Standing(
        device_known=True, device_signed=True, master_key=made.master_key, ours=True, problem=None
    )


async def test_the_device_is_signed_as_every_client_checks_it(world: World, account: Account) -> None:
    bridge = world.bridge(account)
    made = await bridge.log_in()
    shown, user = await bridge.query(), account.user_id
    self_signing = shown["self_signing_keys"][user]
    (public,) = self_signing["keys"].values()
    assert is_signed_by(self_signing, user, made.master_key)
    assert is_signed_by(shown["device_keys"][user][account.device_id], user, public)
    assert is_signed_by(shown["master_keys"][user], user, bridge.device.public, account.device_id)


async def test_a_second_login_changes_nothing(world: World, account: Account) -> None:
    bridge = world.bridge(account)
    first = await bridge.log_in()
    before, file = await bridge.query(), (bridge.folder / "cross_signing.json").read_bytes()
    again = await bridge.log_in()
    assert (Done.KEPT, first.master_key) == (again.done, again.master_key)
    assert (before, file) == (await bridge.query(), (bridge.folder / "cross_signing.json").read_bytes())


async def test_a_new_device_after_a_lost_login_is_signed_with_the_kept_identity(world: World, account: Account) -> None:
    first = await world.bridge(account).log_in()
    bridge = world.bridge(world.second_device(account))
    second = await bridge.log_in()
    assert (Done.KEPT, first.master_key) == (second.done, second.master_key)
    assert (await bridge.look()).problem is None


@pytest.mark.parametrize("after", [False, True])
async def test_an_end_between_keeping_and_publishing_is_taken_up(world: World, account: Account, after: bool) -> None:
    bridge = world.bridge(account)
    bridge.keys = Torn(world.client(account), after=after)
    with pytest.raises(HomeserverUnreachable):
        await bridge.log_in()
    proposed = read_kept(bridge.folder, UserId(account.user_id)).proposed
    bridge.keys = KeyServer(world.client(account))
    made = await bridge.log_in()
    assert proposed is not None
    assert (Done.MADE, proposed.master_key) == (made.done, made.master_key)
    assert (await bridge.look()).problem is None


async def test_a_second_bridge_is_told_both_ways_and_leaves_the_first_ones_device_signed(
    world: World, account: Account
) -> None:
    first = world.bridge(account)
    made = await first.log_in()
    second = world.bridge(world.second_device(account), "two")
    with pytest.raises(IdentityUnusable) as refused:
        await second.log_in(password=lambda: account.password)
    assert "login --recovery-key" in str(refused.value)
    assert "login --reset-identity" in str(refused.value)
    assert "must do it again" in str(refused.value)
    assert (await first.look()).problem is None
    assert (await second.look()).device_signed is False
    assert (await first.look()).master_key == made.master_key


async def test_a_second_bridge_with_the_firsts_file_is_signed_too(world: World, account: Account) -> None:
    first = world.bridge(account)
    made = await first.log_in()
    second = world.bridge(world.second_device(account), "two")
    shutil.copytree(first.folder, second.folder)
    assert (await second.log_in()).master_key == made.master_key
    assert [None, None] == [(await bridge.look()).problem for bridge in (first, second)]


async def test_a_reset_replaces_the_identity_with_the_password(world: World, account: Account) -> None:
    first = world.bridge(account)
    before = await first.log_in()
    second = world.bridge(world.second_device(account), "two")
    made = await second.log_in(password=lambda: account.password, reset=True)
    assert (Done.RESET, True) == (made.done, made.master_key != before.master_key)
    assert (await second.look()).problem is None
    problem = (await first.look()).problem
    assert problem is not None
    assert "not the one that the bridge knows" in problem


async def test_a_reset_with_a_wrong_password_changes_nothing_and_can_be_tried_again(
    world: World, account: Account
) -> None:
    bridge = world.bridge(account)
    before = await bridge.log_in()
    with pytest.raises(CredentialsRefused, match="did not accept this password"):
        await bridge.log_in(password=lambda: "wrong", reset=True)
    assert (await bridge.look()).problem is None
    assert (await bridge.log_in()).master_key == before.master_key
    after = await bridge.log_in(password=lambda: account.password, reset=True)
    assert Done.RESET == after.done
    assert (await bridge.look()).master_key == after.master_key != before.master_key


async def test_a_reset_that_ended_after_publishing_is_taken_up_without_another(world: World, account: Account) -> None:
    bridge = world.bridge(account)
    await bridge.log_in()
    bridge.keys = Torn(world.client(account), after=True)
    with pytest.raises(HomeserverUnreachable):
        await bridge.log_in(password=lambda: account.password, reset=True)
    proposed = read_kept(bridge.folder, UserId(account.user_id)).proposed
    bridge.keys = KeyServer(world.client(account))
    made = await bridge.log_in(reset=True)
    assert proposed is not None
    assert (Done.RESET, proposed.master_key) == (made.done, made.master_key)
    assert (await bridge.look()).problem is None


async def test_the_recovery_key_signs_this_device_and_leaves_the_identity(world: World, account: Account) -> None:
    client = world.bridge(account, "client")
    made = await client.log_in()
    storage = SecretStorage.of(read_kept(client.folder, UserId(account.user_id)).identity)
    for kind, content in storage.account_data.items():
        world.store(account, kind, content)
    bridge = world.bridge(world.second_device(account), "two")
    signed = await bridge.log_in(recovery_key=lambda: storage.recovery_key)
    kept = read_kept(bridge.folder, UserId(account.user_id)).identity
    assert (Done.RECOVERED, made.master_key) == (signed.done, signed.master_key)
    assert kept is not None
    assert (False, True) == (kept.whole, kept.self_signing is not None)
    assert [None, None] == [(await each.look()).problem for each in (client, bridge)]
    assert Done.KEPT == (await bridge.log_in(recovery_key=not_asked)).done


async def test_a_recovery_key_of_something_else_signs_nothing(world: World, account: Account) -> None:
    client = world.bridge(account, "client")
    await client.log_in()
    storage = SecretStorage.of(read_kept(client.folder, UserId(account.user_id)).identity)
    for kind, content in storage.account_data.items():
        world.store(account, kind, content)
    bridge = world.bridge(world.second_device(account), "two")
    with pytest.raises(RecoveryRefused, match="not the one of this account"):
        await bridge.log_in(recovery_key=lambda: SecretStorage.of(None).recovery_key)
    assert not (await bridge.look()).device_signed


async def test_without_secret_storage_no_recovery_key_is_asked_for(world: World, account: Account) -> None:
    await world.bridge(account, "client").log_in()
    bridge = world.bridge(world.second_device(account), "two")
    with pytest.raises(RecoveryRefused, match="no secret storage"):
        await bridge.log_in(recovery_key=not_asked)
