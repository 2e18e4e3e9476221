"""The account's own cross-signing identity: its keys, what is published of them, and the file that keeps them.

Above it: `crosssigning`, which talks to the homeserver. Below it: signatures, and one file in the folder of the keys.
nio knows no cross-signing. It refuses to know how keys get published and who may replace them.

An identity made here holds three private keys. One that a client made is known by its public master key, and holds the
self-signing key where secret storage gave it to us: that one signs devices, so a new device after a lost login needs no
person. The private keys are as secret as the access token (matrix.md, section 6).
"""

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from bridge.core.errors import ConfigError, IdentityUnusable
from bridge.core.model import JsonObject, JsonValue, UserId
from bridge.matrix import events
from bridge.matrix.crypto.signing import ALGORITHM, PrivateKey, from_base64, is_signed_by, to_base64
from bridge.matrix.events import Source

FILE_NAME = "cross_signing.json"
FILE_VERSION = 1

MASTER = "master"
SELF_SIGNING = "self_signing"
USER_SIGNING = "user_signing"
USAGES = (MASTER, SELF_SIGNING, USER_SIGNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the homeserver shows of an identity. `self_signing_key`: None unless the master key vouches for it."""

    master_key: str
    self_signing_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What we have of one identity: always its public master key, and those private keys that came to us."""

    master_key: str
    self_signing: PrivateKey | None = None
    master: PrivateKey | None = None
    user_signing: PrivateKey | None = None

    @classmethod
    def new(cls) -> Self:
        """An identity that nobody had before, with all its private keys."""
        master = PrivateKey.new()
        return cls(
            master_key=master.public, master=master, self_signing=PrivateKey.new(), user_signing=PrivateKey.new()
        )

    @property
    def whole(self) -> bool:
        """Whether it can be published from here."""
        return None not in (self.master, self.self_signing, self.user_signing)

    def can_sign_for(self, published: Published | None) -> bool:
        """Whether what the homeserver shows is this identity, and a signature made here counts for it."""
        return (
            published is not None
            and self.self_signing is not None
            and (self.master_key, self.self_signing.public) == (published.master_key, published.self_signing_key)
        )

    def to_upload(self, user: UserId, device_id: str, sign: Callable[[JsonObject], str]) -> JsonObject:
        """The body of `/keys/device_signing/upload`.

        The master key is signed by our device, so that whoever trusts the device may trust the identity; the others by
        the master key (client-server API, "Key and signature security").
        """
        if self.master is None or self.self_signing is None or self.user_signing is None:
            raise ValueError("This identity is not whole.")
        keys = {MASTER: self.master, SELF_SIGNING: self.self_signing, USER_SIGNING: self.user_signing}
        body: dict[str, JsonValue] = {}
        for usage, key in keys.items():
            value: dict[str, JsonValue] = {"user_id": user, "usage": [usage], "keys": {key.key_id: key.public}}
            signature: dict[str, JsonValue] = (
                {f"{ALGORITHM}:{device_id}": sign(value)}
                if usage == MASTER
                else {self.master.key_id: self.master.sign(value)}
            )
            body[f"{usage}_key"] = {**value, "signatures": {user: signature}}
        return body

    def sign_device(self, user: UserId, device_keys: JsonObject) -> JsonObject:
        """Device keys with the signature that clients look for, as `/keys/signatures/upload` takes them."""
        if self.self_signing is None:
            raise ValueError("This identity signs nothing.")
        bare = {key: value for key, value in device_keys.items() if key not in ("signatures", "unsigned")}
        return {**bare, "signatures": {user: {self.self_signing.key_id: self.self_signing.sign(bare)}}}


def read_published(answer: Source, user: UserId) -> Published | None:
    """The identity in an answer to `/keys/query`, or None where the user has none that is well formed."""
    master = _read_key(events.mapping(events.mapping(answer, "master_keys"), user), user, MASTER)
    if master is None:
        return None
    signed = events.mapping(events.mapping(answer, "self_signing_keys"), user)
    self_signing = _read_key(signed, user, SELF_SIGNING)
    vouched = self_signing is not None and is_signed_by(signed, user, master)
    return Published(master_key=master, self_signing_key=self_signing if vouched else None)


def _read_key(value: Source, user: UserId, usage: str) -> str | None:
    keys = events.mapping(value, "keys")
    usages = value.get("usage")
    if value.get("user_id") != user or len(keys) != 1 or not isinstance(usages, list) or usage not in usages:
        return None
    name = next(iter(keys))
    public = events.text(keys, name)
    return public if public and name == f"{ALGORITHM}:{public}" else None


# ------------------------------------------------------------------------------------------------------------ the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the file holds. `proposed`: written before it was published, so that no crash loses its private keys."""

    identity: Identity | None = None
    proposed: Identity | None = None


def read_kept(folder: Path, user: UserId) -> Kept:
    """What is kept for this account; nothing where there is no file. A file that cannot be used is never passed over."""
    path = folder / FILE_NAME
    try:
        said = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Kept()
    except (OSError, ValueError, RecursionError):
        raise IdentityUnusable(f"The file {path}, which holds the bridge's identity, cannot be read.") from None
    source = events.mapping({"said": said}, "said")
    owner = events.text(source, "user_id")
    if source.get("version") != FILE_VERSION or owner is None:
        raise IdentityUnusable(f"The file {path} does not hold an identity as this version of the bridge keeps it.")
    if owner != user:
        raise IdentityUnusable(f"The file {path} holds the identity of another account than {user}: move it away.")
    try:
        return Kept(identity=_read_identity(source, "identity"), proposed=_read_identity(source, "proposed"))
    except ValueError:
        raise IdentityUnusable(f"The file {path}, which holds the bridge's identity, is damaged.") from None


def write_kept(folder: Path, user: UserId, kept: Kept) -> None:
    """Replace the file, whole or not at all; only its owner can read it, from the first byte (design.md, rule 21)."""
    path = folder / FILE_NAME
    said = {
        "version": FILE_VERSION,
        "user_id": user,
        "identity": _to_json(kept.identity),
        "proposed": _to_json(kept.proposed),
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, json.dumps(said, indent=1).encode())
        _settle(folder)
    except OSError as error:
        raise ConfigError(f"The file {path} cannot be written: {error.strerror}.") from error


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _settle(folder: Path) -> None:
    """Have the new name survive a power cut too: the keys are published next, and then cannot be had again."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_json(identity: Identity | None) -> JsonObject | None:
    if identity is None:
        return None
    seeds = {usage: key for usage in USAGES if (key := _private(identity, usage)) is not None}
    return {"master_key": identity.master_key} | {usage: to_base64(key.seed) for usage, key in seeds.items()}


def _private(identity: Identity, usage: str) -> PrivateKey | None:
    return cast("PrivateKey | None", getattr(identity, usage))


def _read_identity(source: Source, key: str) -> Identity | None:
    """Raises `ValueError` for one that is damaged."""
    if source.get(key) is None:
        return None
    said = events.mapping(source, key)
    master_key = events.text(said, "master_key")
    seeds = {usage: PrivateKey(from_base64(_seed(said, usage))) for usage in USAGES if said.get(usage) is not None}
    master = seeds.get(MASTER)
    if not master_key or (master is not None and master.public != master_key):
        raise ValueError("The master key is missing or another one.")
    return Identity(
        master_key=master_key,
        master=master,
        self_signing=seeds.get(SELF_SIGNING),
        user_signing=seeds.get(USER_SIGNING),
    )


def _seed(said: Source, usage: str) -> str:
    found = events.text(said, usage)
    if found is None:
        raise ValueError("A private key is no text.")
    return found
