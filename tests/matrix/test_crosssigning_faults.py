"""What a homeserver can show, refuse or lose while our device is signed, on one that is a dictionary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, IdentityUnusable, KeysLost
from bridge.core.model import UserId
from bridge.matrix.crosssigning import Done, Established, Standing, establish, inspect, to_fingerprint
from bridge.matrix.crypto.identity import Identity, Kept, read_kept, write_kept
from bridge.matrix.crypto.signing import PrivateKey
from tests.fakes.device import FakeDevice
from tests.fakes.keyserver import FakeKeyServer
from tests.fakes.storage import SecretStorage

BOT = UserId("@bot:hs")


def not_asked() -> str:
    raise NotImplementedError


class Bridge:
    def __init__(self, folder: Path, keys: FakeKeyServer | None = None, device_id: str = "DEV") -> None:
        self.keys = keys or FakeKeyServer(BOT)
        self.device = FakeDevice(BOT, device_id)
        self.folder = folder

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
            user_id=BOT,
            recovery_key=recovery_key,
            password=password,
            reset=reset,
        )

    async def look(self) -> Standing:
        return await inspect(self.keys, self.device, self.folder, user_id=BOT)

    def kept(self) -> Kept:
        return read_kept(self.folder, BOT)

    def publish(self, identity: Identity, *, signing: bool = False) -> None:
        """Show another identity of the account, as if a client had made it; `signing`: it signed our device too."""
        body: dict[str, Any] = dict(identity.to_upload(BOT, self.device.device_id, self.device.sign))
        self.keys.identity = {part: body[f"{part}_key"] for part in ("master", "self_signing", "user_signing")}
        if signing:
            self.keys.devices[self.device.device_id] = dict(self.device.device_keys())
            signed: dict[str, Any] = dict(identity.sign_device(BOT, self.device.device_keys()))
            self.keys.devices[self.device.device_id]["signatures"][BOT] |= signed["signatures"][BOT]


@pytest.fixture
def bridge(tmp_path: Path) -> Bridge:
    return Bridge(tmp_path / "crypto")


async def test_the_private_keys_are_kept_before_anything_is_published(bridge: Bridge) -> None:
    bridge.keys.break_before_upload = True
    with pytest.raises(HomeserverUnreachable):
        await bridge.log_in()
    kept = bridge.kept()
    assert (None, {}) == (kept.identity, bridge.keys.identity)
    assert kept.proposed is not None
    bridge.keys.break_before_upload = False
    assert kept.proposed.master_key == (await bridge.log_in()).master_key


async def test_an_identity_that_is_published_with_a_password_too_is_made_so(bridge: Bridge) -> None:
    """Some homeservers want proof also for the first one."""
    bridge.keys.always_proof = True
    assert Done.MADE == (await bridge.log_in(password=lambda: bridge.keys.password)).done
    assert bridge.keys.proofs == [
        None,
        {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": BOT},
            "password": bridge.keys.password,
            "session": "s1",
        },
    ]


async def test_without_a_password_where_one_is_wanted_the_command_is_named(bridge: Bridge) -> None:
    bridge.keys.always_proof = True
    with pytest.raises(IdentityUnusable, match=r"wants the password of @bot:hs .* `acp-matrix-bridge login`"):
        await bridge.log_in(password=None)


async def test_a_wrong_password_is_no_dead_token(bridge: Bridge) -> None:
    bridge.keys.always_proof = True
    with pytest.raises(CredentialsRefused, match="did not accept this password of @bot:hs") as refused:
        await bridge.log_in(password=lambda: "hunter2")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("page", "where"),
    [
        ("https://account.hs/?action=org.matrix.cross_signing_reset", "Open https://account.hs/?action="),
        (None, "Open the account's page at its provider"),
    ],
)
async def test_a_provider_that_wants_a_person_in_a_browser_gets_one(
    bridge: Bridge, page: str | None, where: str
) -> None:
    bridge.keys.always_proof = True
    bridge.keys.flows = (("m.oauth",),)
    bridge.keys.page = page
    with pytest.raises(IdentityUnusable) as refused:
        await bridge.log_in()
    assert where in str(refused.value)
    assert "run the same command again" in str(refused.value)
    proposed = bridge.kept().proposed
    bridge.keys.always_proof = False  # the person did it
    assert proposed is not None
    assert proposed.master_key == (await bridge.log_in()).master_key


async def test_a_homeserver_that_ended_between_two_keys_is_mended_with_the_password(bridge: Bridge) -> None:
    made = await bridge.log_in()
    del bridge.keys.identity["self_signing"]
    assert (await bridge.look()).device_signed is False
    mended = await bridge.log_in(password=lambda: bridge.keys.password)
    assert (Done.MADE, made.master_key, None) == (mended.done, mended.master_key, (await bridge.look()).problem)


async def test_a_homeserver_that_lost_the_identity_gets_the_same_again(bridge: Bridge) -> None:
    made = await bridge.log_in()
    bridge.keys.identity.clear()
    problem = (await bridge.look()).problem
    assert problem is not None
    assert "has no cross-signing identity" in problem
    assert made.master_key == (await bridge.log_in()).master_key


async def test_an_identity_of_a_clients_that_is_gone_is_not_followed_by_one_of_ours(bridge: Bridge) -> None:
    theirs = Identity.new()
    write_kept(bridge.folder, BOT, Kept(identity=Identity(master_key=theirs.master_key)))
    with pytest.raises(IdentityUnusable, match="no longer shows"):
        await bridge.log_in()
    assert {} == bridge.keys.identity
    assert Done.MADE == (await bridge.log_in(reset=True)).done


async def test_an_identity_that_cannot_be_read_is_not_taken_for_none(bridge: Bridge) -> None:
    """Published over it, ours would have replaced it, with the password that was at hand."""
    bridge.keys.identity["master"] = {"user_id": BOT, "usage": [], "keys": {}}
    with pytest.raises(IdentityUnusable, match="cannot be read"):
        await bridge.log_in(password=lambda: bridge.keys.password)
    assert [] == bridge.keys.proofs
    assert Done.RESET == (await bridge.log_in(password=lambda: bridge.keys.password, reset=True)).done


async def test_a_device_that_a_person_verified_in_a_client_needs_no_recovery_key(bridge: Bridge) -> None:
    theirs = Identity.new()
    bridge.publish(theirs, signing=True)
    for _ in range(2):
        assert Done.SIGNED_BEFORE == (await bridge.log_in()).done
    assert Kept(identity=Identity(master_key=theirs.master_key)) == bridge.kept()
    assert (True, None) == ((standing := await bridge.look()).ours, standing.problem)


async def test_a_replaced_identity_is_told_and_left_alone_also_where_it_signed_our_device(bridge: Bridge) -> None:
    ours = await bridge.log_in()
    theirs = Identity.new()
    bridge.publish(theirs, signing=True)
    standing = await bridge.look()
    assert (True, False, theirs.master_key) == (standing.device_signed, standing.ours, standing.master_key)
    assert standing.problem is not None
    assert "somebody replaced it" in standing.problem
    with pytest.raises(IdentityUnusable, match="not the one that this bridge knows"):
        await bridge.log_in(password=lambda: bridge.keys.password)
    assert theirs.master_key == (await bridge.look()).master_key
    kept = bridge.kept().identity
    assert kept is not None
    assert ours.master_key == kept.master_key


async def test_a_replaced_identity_is_accepted_with_its_recovery_key(bridge: Bridge) -> None:
    await bridge.log_in()
    theirs = Identity.new()
    bridge.publish(theirs)
    storage = SecretStorage.of(theirs)
    bridge.keys.secrets |= storage.account_data
    signed = await bridge.log_in(recovery_key=lambda: storage.recovery_key)
    assert (Done.RECOVERED, theirs.master_key, None) == (signed.done, signed.master_key, (await bridge.look()).problem)


async def test_a_stored_key_of_another_identity_signs_nothing(bridge: Bridge) -> None:
    bridge.publish(Identity.new())
    storage = SecretStorage.of(Identity.new())
    bridge.keys.secrets |= storage.account_data
    with pytest.raises(IdentityUnusable, match="another identity than the account shows"):
        await bridge.log_in(recovery_key=lambda: storage.recovery_key)
    assert Kept() == bridge.kept()


async def test_a_self_signing_key_that_its_master_key_does_not_vouch_for_signs_nothing(bridge: Bridge) -> None:
    """A homeserver that shows a self-signing key of its own would have us sign with it."""
    theirs, forged = Identity.new(), PrivateKey.new()
    bridge.publish(theirs)
    shown = bridge.keys.identity["self_signing"]
    shown["keys"] = {forged.key_id: forged.public}
    storage = SecretStorage.of(Identity(master_key=theirs.master_key, self_signing=forged))
    bridge.keys.secrets |= storage.account_data
    with pytest.raises(IdentityUnusable):
        await bridge.log_in(recovery_key=lambda: storage.recovery_key)


async def test_other_keys_under_our_device_id_are_never_signed(bridge: Bridge) -> None:
    await bridge.log_in()
    bridge.keys.devices["DEV"] = dict(FakeDevice(BOT, "DEV").device_keys())
    with pytest.raises(KeysLost, match="shows other keys"):
        await bridge.log_in()
    standing = await bridge.look()
    assert (False, False) == (standing.device_known, standing.device_signed)
    assert standing.problem is not None
    assert "shows other keys" in standing.problem


async def test_a_device_that_nobody_published_is_a_problem(bridge: Bridge) -> None:
    assert not (await bridge.look()).device_known


@pytest.mark.parametrize("loses", ["refuse_signatures", "lose_signatures"])
async def test_a_signature_that_the_homeserver_does_not_show_is_no_success(bridge: Bridge, loses: str) -> None:
    setattr(bridge.keys, loses, True)
    with pytest.raises(IdentityUnusable, match="did not take the signature"):
        await bridge.log_in()
    setattr(bridge.keys, loses, False)
    assert Done.KEPT == (await bridge.log_in()).done
    assert (await bridge.look()).problem is None


async def test_an_unsigned_device_is_a_problem_of_its_own(bridge: Bridge) -> None:
    await bridge.log_in()
    bridge.keys.devices["DEV"] = dict(bridge.device.device_keys())
    problem = (await bridge.look()).problem
    assert problem is not None
    assert "not signed by its account" in problem


async def test_a_proposal_that_came_to_nothing_is_dropped_at_the_next_success(bridge: Bridge) -> None:
    ours = await bridge.log_in()
    with pytest.raises(CredentialsRefused):
        await bridge.log_in(password=lambda: "wrong", reset=True)
    assert bridge.kept().proposed is not None
    await bridge.log_in()
    kept = bridge.kept()
    assert kept.identity is not None
    assert (ours.master_key, None) == (kept.identity.master_key, kept.proposed)


async def test_nothing_secret_is_logged(bridge: Bridge) -> None:
    with capture_logs() as logged:
        await bridge.log_in()
    assert [{"event": "identity.established", "log_level": "info", "done": "made", "device_id": "DEV"}] == logged


def test_a_fingerprint_is_shown_in_groups_of_four() -> None:
    assert "abcd efgh ij" == to_fingerprint("abcdefghij")
