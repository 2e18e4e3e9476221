"""What a homeserver says of a user's devices and identity, believed only as far as it is signed.

Above it: the machine, encryption and cross-signing. Below it: signatures. It refuses to know who may answer: a seal says
whose device a message came from and who vouches for it (design.md, rule 13).

A homeserver can leave devices out, add its own and give everybody another identity. It cannot make a device that signs
with a key it does not have, nor sign one with its owner's identity.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.core.model import Seal, UserId
from bridge.matrix import events
from bridge.matrix.crypto.signing import is_signed_by
from bridge.matrix.events import Source

NOBODY = Seal(device_id=None, signed=False, master=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that vouches for its own keys. `signed`: its owner's self-signing key vouches for it as well."""

    user: UserId
    device_id: str
    curve_key: str
    signing_key: str
    signed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """One user's devices by id. `self_signing` is there only when the identity `master` signed it."""

    user: UserId
    master: str | None = None
    self_signing: str | None = None
    devices: Mapping[str, Device]


def read(answer: Source, user: UserId) -> Devices | None:
    """What an answer to a key query says of one user; None when it says nothing of them."""
    listed = events.mapping(answer, "device_keys").get(user)
    if not isinstance(listed, dict):
        return None
    master_key = events.mapping(events.mapping(answer, "master_keys"), user)
    master = _only_key(master_key, user, "master")
    signing_key = events.mapping(events.mapping(answer, "self_signing_keys"), user)
    self_signing = _only_key(signing_key, user, "self_signing")
    if master is None or self_signing is None or not is_signed_by(signing_key, user, master):
        self_signing = None
    sources = events.mapping(events.mapping(answer, "device_keys"), user)
    found = (_device(events.mapping(sources, device_id), user, device_id, self_signing) for device_id in sources)
    devices = {device.device_id: device for device in found if device is not None}
    return Devices(user=user, master=master, self_signing=self_signing, devices=devices)


def find_seal(devices: Devices, sender_key: str, signing_key: str) -> Seal:
    """How a message is vouched for that came under these two keys; nobody's where no device here has both.

    The keys come from inside an encrypted channel with the device: a homeserver that puts another sender's name on the
    message makes nobody of it.
    """
    for device in devices.devices.values():
        if (device.curve_key, device.signing_key) == (sender_key, signing_key):
            return Seal(device_id=device.device_id, signed=device.signed, master=devices.master)
    return NOBODY


def _device(source: Source, user: UserId, device_id: str, self_signing: str | None) -> Device | None:
    keys = events.mapping(source, "keys")
    curve_key, signing_key = events.text(keys, f"curve25519:{device_id}"), events.text(keys, f"ed25519:{device_id}")
    if (source.get("user_id"), source.get("device_id")) != (user, device_id) or not curve_key or not signing_key:
        return None
    if not is_signed_by(source, user, signing_key, key_name=device_id):
        return None
    signed = self_signing is not None and is_signed_by(source, user, self_signing)
    return Device(user=user, device_id=device_id, curve_key=curve_key, signing_key=signing_key, signed=signed)


def _only_key(source: Source, user: UserId, usage: str) -> str | None:
    """The public key of one part of an identity, which names itself."""
    usages = source.get("usage")
    keys = events.mapping(source, "keys")
    if source.get("user_id") != user or not isinstance(usages, list) or usage not in usages or len(keys) != 1:
        return None
    name = next(iter(keys))
    public = events.text(keys, name)
    return public if public and name == f"ed25519:{public}" else None
