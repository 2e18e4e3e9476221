"""What a homeserver says of devices, with identities and devices made here."""

from typing import Any

import pytest

from bridge.core.model import Seal, UserId
from bridge.matrix.crypto import devices
from bridge.matrix.crypto.devices import NOBODY, Device, Devices
from bridge.matrix.crypto.signing import PrivateKey

ALICE = UserId("@alice:hs")
CURVE = "curve-of-phone"

Json = dict[str, Any]


class Identity:
    """A user with an identity and one device that it has signed; tests bend the `answer` to a key query."""

    def __init__(self) -> None:
        self.master, self.self_signing, self.device = PrivateKey.new(), PrivateKey.new(), PrivateKey.new()
        self.phone: Json = {
            "user_id": ALICE,
            "device_id": "PHONE",
            "algorithms": ["m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"],
            "keys": {"curve25519:PHONE": CURVE, "ed25519:PHONE": self.device.public},
        }
        sign(self.phone, "ed25519:PHONE", self.device)
        sign(self.phone, self.self_signing.key_id, self.self_signing)
        self.master_key: Json = part("master", self.master)
        self.self_signing_key: Json = part("self_signing", self.self_signing)
        sign(self.self_signing_key, self.master.key_id, self.master)
        self.answer: Json = {
            "device_keys": {ALICE: {"PHONE": self.phone}},
            "master_keys": {ALICE: self.master_key},
            "self_signing_keys": {ALICE: self.self_signing_key},
        }

    def read(self) -> Devices:
        found = devices.read(self.answer, ALICE)
        assert found is not None
        return found

    def seal(self) -> Seal:
        return devices.find_seal(self.read(), CURVE, self.device.public)


def part(usage: str, key: PrivateKey) -> Json:
    return {"user_id": ALICE, "usage": [usage], "keys": {key.key_id: key.public}}


def sign(value: Json, name: str, key: PrivateKey) -> None:
    value.setdefault("signatures", {}).setdefault(ALICE, {})[name] = key.sign(value)


@pytest.fixture
def alice() -> Identity:
    return Identity()


def test_a_device_that_its_owner_signed_is_vouched_for_by_the_identity(alice: Identity) -> None:
    assert Seal(device_id="PHONE", signed=True, master=alice.master.public) == alice.seal()


def test_devices_and_identity_are_given_by_name(alice: Identity) -> None:
    phone = Device(user=ALICE, device_id="PHONE", curve_key=CURVE, signing_key=alice.device.public, signed=True)
    expected = Devices(
        user=ALICE, master=alice.master.public, self_signing=alice.self_signing.public, devices={"PHONE": phone}
    )
    assert expected == alice.read()


def test_what_the_homeserver_adds_outside_the_signed_part_changes_nothing(alice: Identity) -> None:
    alice.phone["unsigned"] = {"device_display_name": "Telefon"}
    assert alice.seal().signed


def test_a_device_that_nobody_signed_is_a_device_without_a_vouch(alice: Identity) -> None:
    del alice.phone["signatures"][ALICE][alice.self_signing.key_id]
    assert Seal(device_id="PHONE", signed=False, master=alice.master.public) == alice.seal()


def test_a_device_signed_by_a_key_that_the_master_did_not_sign_is_not_vouched_for(alice: Identity) -> None:
    """What a homeserver does that wants to add a device: it can make a self-signing key, but not sign it."""
    del alice.self_signing_key["signatures"]
    assert Seal(device_id="PHONE", signed=False, master=alice.master.public) == alice.seal()


def test_a_device_signed_by_the_key_of_somebody_else_is_not_vouched_for(alice: Identity) -> None:
    mallory = PrivateKey.new()
    alice.phone["signatures"][ALICE][alice.self_signing.key_id] = mallory.sign(alice.phone)
    assert not alice.seal().signed


def test_without_an_identity_there_is_no_master(alice: Identity) -> None:
    del alice.answer["master_keys"]
    assert Seal(device_id="PHONE", signed=False, master=None) == alice.seal()


@pytest.mark.parametrize("keys", [(CURVE, "other"), ("other", None), ("other", "other")])
def test_a_message_under_keys_that_no_one_device_has_is_nobodys(alice: Identity, keys: tuple[str, str | None]) -> None:
    curve_key, signing_key = keys
    assert NOBODY == devices.find_seal(alice.read(), curve_key, signing_key or alice.device.public)


@pytest.mark.parametrize("change", [{"user_id": "@mallory:hs"}, {"device_id": "OTHER"}, {"keys": {}}, {"keys": None}])
def test_a_device_that_is_not_what_it_is_listed_as_is_no_device(alice: Identity, change: Json) -> None:
    alice.phone.update(change)
    del alice.phone["signatures"]
    sign(alice.phone, "ed25519:PHONE", alice.device)
    assert NOBODY == alice.seal()


def test_a_device_that_does_not_vouch_for_its_own_keys_is_no_device(alice: Identity) -> None:
    """Else a homeserver could give somebody's device keys that it knows, under the owner's signature or none."""
    alice.phone["signatures"][ALICE]["ed25519:PHONE"] = PrivateKey.new().sign(alice.phone)
    assert NOBODY == alice.seal()


@pytest.mark.parametrize(
    "change",
    [
        {"user_id": "@mallory:hs"},
        {"usage": ["self_signing"]},
        {"usage": "master"},
        {"usage": None},
        {"keys": {}},
        {"keys": {"ed25519:a": "a", "ed25519:b": "b"}},
        {"keys": {"ed25519:a": "b"}},
        {"keys": {"ed25519:a": 7}},
        {"keys": ["a"]},
    ],
)
def test_an_odd_master_key_is_none(alice: Identity, change: Json) -> None:
    alice.master_key.update(change)
    assert Seal(device_id="PHONE", signed=False, master=None) == alice.seal()


@pytest.mark.parametrize("answer", [{}, {"device_keys": None}, {"device_keys": {}}, {"device_keys": {ALICE: None}}])
def test_an_answer_that_does_not_list_the_user_says_nothing(answer: Json) -> None:
    assert None is devices.read(answer, ALICE)


@pytest.mark.parametrize("odd", [None, 7, "x", [], {"keys": 7}, {"signatures": []}, {"signatures": {ALICE: 7}}])
@pytest.mark.parametrize("kind", ["device_keys", "master_keys", "self_signing_keys"])
def test_oddly_shaped_answers_raise_nothing(alice: Identity, odd: object, kind: str) -> None:
    alice.answer[kind] = {ALICE: {"PHONE": odd} if kind == "device_keys" else odd}
    alice.answer.setdefault("x", odd)
    assert not alice.seal().signed


def test_half_a_surrogate_pair_and_endless_nesting_raise_nothing(alice: Identity) -> None:
    deep: object = {}
    for _ in range(10_000):
        deep = {"a": deep}
    alice.phone["odd"] = ["\ud800", deep]
    assert NOBODY == alice.seal()


def test_a_user_without_devices_has_none() -> None:
    assert Devices(user=ALICE, devices={}) == devices.read({"device_keys": {ALICE: {}}}, ALICE)
