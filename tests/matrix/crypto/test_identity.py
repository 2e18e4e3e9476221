import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from bridge.core.errors import ConfigError, IdentityUnusable
from bridge.core.model import JsonObject, UserId
from bridge.matrix import events
from bridge.matrix.crypto.identity import (
    FILE_NAME,
    Identity,
    Kept,
    Published,
    read_kept,
    read_published,
    write_kept,
)
from bridge.matrix.crypto.signing import PrivateKey, is_signed_by, to_base64
from tests.fakes.device import FakeDevice
from tests.matrix.crypto import recordings

BOT = UserId("@bot:hs")
DEVICE = FakeDevice(BOT, "DEV")


def published(identity: Identity) -> dict[str, Any]:
    """What a homeserver shows of it."""
    body = identity.to_upload(BOT, DEVICE.device_id, DEVICE.sign)
    return {f"{usage}_keys": {BOT: body[f"{usage}_key"]} for usage in ("master", "self_signing", "user_signing")}


def test_a_new_identity_is_whole_and_like_no_other() -> None:
    one, two = Identity.new(), Identity.new()
    assert (True, True) == (one.whole, two.whole)
    publics = {key.public for made in (one, two) for key in (made.master, made.self_signing, made.user_signing) if key}
    assert len(publics) == 6


def test_the_master_key_is_signed_by_the_device_and_signs_the_others() -> None:
    identity = Identity.new()
    body: JsonObject = identity.to_upload(BOT, DEVICE.device_id, DEVICE.sign)
    assert is_signed_by(body["master_key"], BOT, DEVICE.public, "DEV")
    assert is_signed_by(body["self_signing_key"], BOT, identity.master_key)
    assert is_signed_by(body["user_signing_key"], BOT, identity.master_key)
    assert set(body) == {"master_key", "self_signing_key", "user_signing_key"}


def test_no_private_key_is_published_or_shown() -> None:
    identity = Identity.new()
    said = json.dumps(identity.to_upload(BOT, DEVICE.device_id, DEVICE.sign)) + repr(identity)
    for key in (identity.master, identity.self_signing, identity.user_signing):
        assert key is not None
        assert to_base64(key.seed) not in said
        assert repr(key.seed) not in said


def test_a_device_is_signed_with_the_self_signing_key_alone() -> None:
    identity = Identity.new()
    signed = identity.sign_device(BOT, {**DEVICE.device_keys(), "unsigned": {"device_display_name": "x"}})
    assert identity.self_signing is not None
    assert is_signed_by(signed, BOT, identity.self_signing.public)
    assert {identity.self_signing.key_id} == set(events.mapping(events.mapping(signed, "signatures"), BOT))
    assert "unsigned" not in signed


def test_what_is_published_is_read_back() -> None:
    identity = Identity.new()
    assert identity.self_signing is not None
    shown = read_published(published(identity), BOT)
    assert shown == Published(master_key=identity.master_key, self_signing_key=identity.self_signing.public)
    assert identity.can_sign_for(shown)


def test_what_js_sdk_published_is_read() -> None:
    made = recordings.read("key")
    shown = read_published(made.query, made.user_id)
    assert shown == Published(master_key=made.public("master"), self_signing_key=made.public("self_signing"))


def test_an_identity_signs_for_no_other_one() -> None:
    identity, other = Identity.new(), Identity.new()
    mixed = Identity(master_key=other.master_key, self_signing=identity.self_signing)
    known = Identity(master_key=other.master_key)
    shown = read_published(published(other), BOT)
    assert (False, False, False, False) == (
        identity.can_sign_for(shown),
        mixed.can_sign_for(shown),
        known.can_sign_for(shown),
        identity.can_sign_for(None),
    )


def test_a_self_signing_key_that_the_master_key_does_not_vouch_for_is_none() -> None:
    identity, other = published(Identity.new()), published(Identity.new())
    shown = read_published(identity | {"self_signing_keys": other["self_signing_keys"]}, BOT)
    assert shown is not None
    assert shown.self_signing_key is None


@pytest.mark.parametrize(
    "odd",
    [
        {"user_id": "@eve:hs"},
        {"user_id": None},
        {"usage": ["self_signing"]},
        {"usage": "master"},
        {"usage": None},
        {"keys": {}},
        {"keys": []},
        {"keys": {"ed25519:a": "b"}},
        {"keys": {"ed25519:a": 7}},
        {"keys": {"ed25519:": ""}},
        {"keys": {"ed25519:a": "a", "ed25519:b": "b"}},
    ],
)
def test_a_misshapen_key_is_no_identity(odd: dict[str, Any]) -> None:
    shown = published(Identity.new())
    shown["master_keys"][BOT] = shown["master_keys"][BOT] | odd
    assert read_published(shown, BOT) is None


@pytest.mark.parametrize("answer", [{}, {"master_keys": []}, {"master_keys": {BOT: 7}}, {"master_keys": {BOT: {}}}])
def test_an_answer_without_an_identity_shows_none(answer: dict[str, Any]) -> None:
    assert read_published(answer, BOT) is None


def test_a_partial_identity_publishes_and_signs_nothing() -> None:
    known = Identity(master_key="m")
    with pytest.raises(ValueError, match="not whole"):
        known.to_upload(BOT, "DEV", DEVICE.sign)
    with pytest.raises(ValueError, match="signs nothing"):
        known.sign_device(BOT, {})


# ------------------------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize(
    "kept",
    [
        Kept(),
        Kept(identity=Identity.new()),
        Kept(identity=Identity(master_key="m")),
        Kept(identity=Identity(master_key="m", self_signing=PrivateKey.new())),
        Kept(identity=Identity.new(), proposed=Identity.new()),
    ],
    ids=["nothing", "whole", "known", "taken", "both"],
)
def test_what_is_written_is_read(tmp_path: Path, kept: Kept) -> None:
    write_kept(tmp_path / "crypto", BOT, kept)
    assert read_kept(tmp_path / "crypto", BOT) == kept


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    assert read_kept(tmp_path / "missing", BOT) == Kept()


def test_the_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_kept(tmp_path / "crypto", BOT, Kept(identity=Identity.new()))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "crypto", tmp_path / "crypto" / FILE_NAME)]
    assert [0o700, 0o600] == modes


def test_a_file_that_is_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for _ in range(2):
        write_kept(tmp_path, BOT, Kept(identity=Identity.new()))
    assert [FILE_NAME] == [path.name for path in tmp_path.iterdir()]


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(identity=Identity.new())
    write_kept(tmp_path, BOT, kept)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        write_kept(tmp_path, BOT, Kept(identity=Identity.new()))
    assert read_kept(tmp_path, BOT) == kept
    assert [FILE_NAME] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "crypto").write_text("no folder")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_kept(tmp_path / "crypto", BOT, Kept())


def whole(**more: object) -> dict[str, object]:
    seed = to_base64(bytes(32))
    master = PrivateKey(bytes(32)).public
    identity = {"master_key": master, "master": seed, "self_signing": seed, "user_signing": seed}
    return {"version": 1, "user_id": BOT, "identity": identity | more, "proposed": None}


@pytest.mark.parametrize(
    ("said", "why"),
    [  # pyright: ignore[reportUnknownArgumentType] - of whatever type it is
        ("{", "cannot be read"),
        ("\xff", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ([], "this version"),
        ({}, "this version"),
        (whole() | {"version": 2}, "this version"),
        (whole() | {"user_id": 7}, "this version"),
        (whole() | {"user_id": "@other:hs"}, "another account"),
        (whole() | {"identity": {}}, "damaged"),
        (whole(master_key=None), "damaged"),
        (whole(master_key="other"), "damaged"),
        (whole(self_signing="AAAA"), "damaged"),
        (whole(self_signing="!"), "damaged"),
        (whole(user_signing=7), "damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_never_passed_over(tmp_path: Path, said: object, why: str) -> None:
    """Taken for no file, it would be followed by a new identity."""
    text = said if isinstance(said, str) else json.dumps(said)
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(IdentityUnusable, match=why) as refused:
        read_kept(tmp_path, BOT)
    assert to_base64(bytes(32)) not in str(refused.value)


def test_the_file_that_those_were_made_from_is_a_good_one(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps(whole()))
    kept = read_kept(tmp_path, BOT).identity
    assert kept is not None
    assert kept.whole
