"""The bridge's device signed by its own account, so that clients neither warn of it nor keep their room keys from it.

Above it: the login, `check`, and each start. Below it: the identity and its file, secret storage, the key calls of the
homeserver, and the key machine as a `Device`. It refuses to know rooms and whom anybody trusts.

An identity is replaced only where somebody asked for exactly that: whoever has verified the account would have to do it
again. So a homeserver that shows another identity than ours is reported and never overwritten (matrix.md, section 6).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import structlog

from bridge.core.errors import CredentialsRefused, IdentityUnusable, KeysLost, ProofNeeded
from bridge.core.model import JsonObject, UserId
from bridge.matrix import events
from bridge.matrix.crypto import secretstorage
from bridge.matrix.crypto.identity import Identity, Kept, Published, read_kept, read_published, write_kept
from bridge.matrix.crypto.signing import ALGORITHM, is_signed_by
from bridge.matrix.events import Source
from bridge.matrix.keyserver import KeyServer

log = structlog.stdlib.get_logger()

PASSWORD = "m.login.password"  # noqa: S105 - the name of a stage, not a secret
GROUP = 4  # a key is shown in groups of four, as clients show theirs: people compare them

RESET_COSTS = (
    "A reset means that everybody who has verified this account must do it again, and that its other sessions count as "
    "unverified until they are verified anew"
)


class Device(Protocol):
    """Our own device, as the key machine has it."""

    @property
    def device_id(self) -> str:
        """Its id."""
        ...

    def sign(self, value: JsonObject) -> str:
        """The signature of the device's own key over the canonical JSON of an object."""
        ...

    def device_keys(self) -> JsonObject:
        """What is published of it, signed by itself."""
        ...


class Done(StrEnum):
    """What `establish` did; each value is a sentence for the person at the command line."""

    MADE = "The bridge made a cross-signing identity for the account and signed its device with it."
    KEPT = "The account's cross-signing identity is the one that the bridge knows, and its device is signed."
    SIGNED_BEFORE = "The device is signed by the account's cross-signing identity, which a client made."
    RECOVERED = "The device was signed with the account's cross-signing identity, opened by the recovery key."
    RESET = "The account's cross-signing identity was replaced by a new one, which signed the bridge's device."


@dataclass(frozen=True, slots=True, kw_only=True)
class Established:
    """A device that its account vouches for. `fingerprint`: the device's own key, in groups of four."""

    done: Done
    fingerprint: str
    master_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the homeserver shows of our device and its identity. `ours`: the identity is the one that this bridge knows.

    `problem`: what people's clients will make of it, and what to do, in one or two sentences; None when all is well.
    """

    device_known: bool
    device_signed: bool
    master_key: str | None
    ours: bool
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the homeserver shows now. `signed`: our device, by the identity that is shown.

    `misshapen`: there is an identity, and nothing can be made of it.
    """

    published: Published | None
    misshapen: bool
    device: Source
    signed: bool


def to_fingerprint(public_key: str) -> str:
    """A public key as people compare it."""
    return " ".join(public_key[at : at + GROUP] for at in range(0, len(public_key), GROUP))


async def inspect(keys: KeyServer, machine: Device, folder: Path, *, user_id: UserId) -> Standing:
    """How our device and its identity stand, for `check`. Changes nothing.

    Raises the errors of `MatrixError`, and `IdentityUnusable` where the file of the identity cannot be read.
    """
    known = read_kept(folder, user_id).identity
    seen = await _look(keys, machine, user_id)
    published, problem = seen.published, _find_problem(known, seen, machine)
    return Standing(
        device_known=_is_shown(seen, machine),
        device_signed=seen.signed,
        master_key=published.master_key if published else None,
        ours=known is not None and published is not None and known.master_key == published.master_key,
        problem=problem,
    )


def _find_problem(known: Identity | None, seen: _Seen, machine: Device) -> str | None:
    if not _is_shown(seen, machine):
        return (
            "The homeserver shows other keys for the bridge's device than the bridge has: nobody's messages can be read. "
            "Run `acp-matrix-bridge login`."
        )
    if seen.published is None:
        return (
            "The account has no cross-signing identity: clients warn about the bridge, or keep their keys from it. "
            "Run `acp-matrix-bridge login`."
        )
    if known is not None and known.master_key != seen.published.master_key:
        return (
            "The account's cross-signing identity is not the one that the bridge knows: somebody replaced it, or the "
            "homeserver shows a false one. If it was you, run `acp-matrix-bridge login --recovery-key`."
        )
    if not seen.signed:
        return (
            "The bridge's device is not signed by its account: clients warn about it, or keep their keys from it. "
            "Run `acp-matrix-bridge login`."
        )
    return None


async def establish(
    keys: KeyServer,
    machine: Device,
    folder: Path,
    *,
    user_id: UserId,
    recovery_key: Callable[[], str] | None,
    password: Callable[[], str] | None,
    reset: bool,
) -> Established:
    """Have our device signed by the account's identity; make that identity where the account has none. Safe to repeat.

    `recovery_key` and `password` are asked only where they are needed. Raises the errors of `MatrixError`:
    `IdentityUnusable` with what can be done, `RecoveryRefused` and `CredentialsRefused` for what was typed.
    """
    kept = read_kept(folder, user_id)
    seen = await _publish_device(keys, machine, user_id)
    if seen.misshapen and not reset:
        raise IdentityUnusable(
            "The account has a cross-signing identity that cannot be read. Look at it in a client, or run "
            f"`acp-matrix-bridge login --reset-identity`. {RESET_COSTS}."
        )
    if seen.published is None or reset:
        done = Done.RESET if seen.published is not None or seen.misshapen else Done.MADE
        identity = await _publish_ours(keys, machine, folder, kept, user_id=user_id, password=password, reset=reset)
    elif kept.proposed is not None and _counts(kept.proposed, seen):  # we crashed after it was published
        done, identity = (Done.MADE if kept.identity is None else Done.RESET), kept.proposed
    elif kept.identity is not None and _is_half_published(kept.identity, seen):
        done, identity = Done.MADE, kept.identity
        await _publish(keys, machine, identity, user_id=user_id, password=password)
    elif kept.identity is not None and _counts(kept.identity, seen):
        done, identity = Done.KEPT, kept.identity
    elif seen.signed and (kept.identity is None or kept.identity.master_key == seen.published.master_key):
        # by a person, who verified the bridge's session in a client
        done, identity = Done.SIGNED_BEFORE, Identity(master_key=seen.published.master_key)
    else:
        done = Done.RECOVERED
        identity = await _recover(keys, seen.published, kept.identity, recovery_key)
    if kept != Kept(identity=identity):
        write_kept(folder, user_id, Kept(identity=identity))
    if identity.self_signing is not None:
        seen = await _look(keys, machine, user_id)
        if not seen.signed or not _counts(identity, seen):
            await _sign_device(keys, machine, identity, user_id)
    key = events.text(events.mapping(machine.device_keys(), "keys"), f"{ALGORITHM}:{machine.device_id}") or ""
    log.info("identity.established", done=done.name.lower(), device_id=machine.device_id)
    return Established(done=done, fingerprint=to_fingerprint(key), master_key=identity.master_key)


def _counts(identity: Identity | None, seen: _Seen) -> bool:
    return identity is not None and identity.can_sign_for(seen.published)


def _is_half_published(identity: Identity, seen: _Seen) -> bool:
    """A homeserver may end between the three keys of one upload: only the owner of the master key can mend that."""
    published = seen.published
    return (
        identity.whole
        and published is not None
        and published.master_key == identity.master_key
        and (published.self_signing_key is None)
    )


# ------------------------------------------------------------------------------------------------ what the server shows


async def _look(keys: KeyServer, machine: Device, user_id: UserId) -> _Seen:
    answer = await keys.query([user_id])
    device = events.mapping(events.mapping(events.mapping(answer, "device_keys"), user_id), machine.device_id)
    published = read_published(answer, user_id)
    signer = published.self_signing_key if published else None
    return _Seen(
        published=published,
        misshapen=published is None and bool(events.mapping(answer, "master_keys").get(user_id)),
        device=device,
        signed=signer is not None and is_signed_by(device, user_id, signer),
    )


def _is_shown(seen: _Seen, machine: Device) -> bool:
    return events.mapping(seen.device, "keys") == machine.device_keys().get("keys")


async def _publish_device(keys: KeyServer, machine: Device, user_id: UserId) -> _Seen:
    """What the homeserver shows, once it shows our device with our keys: only then is its answer one to act upon."""
    seen = await _look(keys, machine, user_id)
    if not seen.device:
        await keys.upload({"device_keys": dict(machine.device_keys())})
        seen = await _look(keys, machine, user_id)
    if not _is_shown(seen, machine):
        raise KeysLost("The homeserver shows other keys for the bridge's device than the bridge has.")
    return seen


async def _sign_device(keys: KeyServer, machine: Device, identity: Identity, user_id: UserId) -> None:
    """Sign the keys that we have, not those that the homeserver shows for us."""
    signed = identity.sign_device(user_id, machine.device_keys())
    await keys.upload_signatures({user_id: {machine.device_id: dict(signed)}})
    if not (await _look(keys, machine, user_id)).signed:  # what counts is what others will see
        raise IdentityUnusable("The homeserver did not take the signature of the bridge's device.")


# ------------------------------------------------------------------------------------------------------ an identity of ours


async def _publish_ours(
    keys: KeyServer,
    machine: Device,
    folder: Path,
    kept: Kept,
    *,
    user_id: UserId,
    password: Callable[[], str] | None,
    reset: bool,
) -> Identity:
    """Publish the identity that was kept or proposed before, else a new one, which is kept first."""
    known = kept.identity
    if known is not None and not known.whole and not reset:
        raise IdentityUnusable(
            "The account no longer shows the cross-signing identity that a client made for it and that the bridge knew. "
            f"Look in a client what became of it, or run `acp-matrix-bridge login --reset-identity`. {RESET_COSTS}."
        )
    identity = known if known is not None and not reset else kept.proposed
    if identity is None or not identity.whole:
        identity = Identity.new()
    if identity is not known:
        write_kept(folder, user_id, Kept(identity=known, proposed=identity))
    await _publish(keys, machine, identity, user_id=user_id, password=password)
    return identity


async def _publish(
    keys: KeyServer, machine: Device, identity: Identity, *, user_id: UserId, password: Callable[[], str] | None
) -> None:
    """Publish its public keys, with the password where the homeserver wants it: for a replacement, all of them do."""
    body = identity.to_upload(user_id, machine.device_id, machine.sign)
    try:
        await keys.upload_signing_keys(body)
    except ProofNeeded as needed:
        asked = needed
    else:
        return
    if (PASSWORD,) not in asked.flows:
        where = (
            f"Open {asked.page} in a browser" if asked.page else "Open the account's page at its provider in a browser"
        )
        raise IdentityUnusable(
            f"The homeserver takes a new identity only after a person has agreed to it. {where}, log in as {user_id}, "
            "allow the reset of the cryptographic identity, and run the same command again within a few minutes."
        )
    if password is None:
        raise IdentityUnusable(
            f"The homeserver wants the password of {user_id} before it takes a new identity: run `acp-matrix-bridge login` "
            "with it."
        )
    proof: JsonObject = {
        "type": PASSWORD,
        "identifier": {"type": "m.id.user", "user": user_id},
        "password": password(),
        "session": asked.session,
    }
    try:
        await keys.upload_signing_keys(body, proof)
    except ProofNeeded:
        raise CredentialsRefused(f"The homeserver did not accept this password of {user_id}.") from None


# ----------------------------------------------------------------------------------------------- an identity of a client's


async def _recover(
    keys: KeyServer, published: Published, known: Identity | None, recovery_key: Callable[[], str] | None
) -> Identity:
    """The account's identity as far as its secret storage gives it to us: the key that signs devices."""
    if recovery_key is None:
        found = (
            "The account has a cross-signing identity that this bridge did not make"
            if known is None
            else "The account's cross-signing identity is not the one that this bridge knows"
        )
        raise IdentityUnusable(
            f"{found}, so its device cannot be signed yet. Either run `acp-matrix-bridge login --recovery-key` with the "
            "recovery key that a client showed when it was made (of another bridge on this account, copy the file "
            "cross_signing.json into this one's state folder instead), or run `acp-matrix-bridge login --reset-identity`. "
            f"{RESET_COSTS}."
        )
    key_id = secretstorage.read_default(await keys.account_data(secretstorage.DEFAULT_KEY))
    described = secretstorage.read_key(await keys.account_data(secretstorage.KEY_PREFIX + key_id))
    stored = await keys.account_data(secretstorage.SELF_SIGNING)
    storage_key = secretstorage.unlock(recovery_key(), described)
    identity = Identity(
        master_key=published.master_key,
        self_signing=secretstorage.read_secret(secretstorage.SELF_SIGNING, stored, key_id, storage_key),
    )
    if not identity.can_sign_for(published):
        raise IdentityUnusable(
            "The account's secret storage holds the key of another identity than the account shows: set up its recovery "
            "in a client once more, and use the new recovery key."
        )
    return identity
