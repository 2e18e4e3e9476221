import base64
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import RecoveryRefused
from bridge.matrix.crypto import secretstorage
from bridge.matrix.crypto.secretstorage import (
    AES_HMAC,
    MOST_ROUNDS,
    Passphrase,
    decode_recovery_key,
    derive_key,
    fits,
    read_default,
    read_key,
    read_secret,
    unlock,
)
from bridge.matrix.crypto.signing import PrivateKey, to_base64
from tests.fakes.storage import BASE58, seal, to_recovery_key
from tests.matrix.crypto import recordings

KEY = recordings.read("key")
WORDS = recordings.read("words")
STORED = bytes(range(32))  # a storage key
NAME = "m.cross_signing.self_signing"


def stored(seed: bytes) -> dict[str, Any]:
    return {"encrypted": {"k": seal(NAME, STORED, to_base64(seed).encode())}}


def described(key: bytes = STORED, **more: object) -> dict[str, Any]:
    return {"algorithm": AES_HMAC} | seal("", key, bytes(32)) | more


@pytest.mark.parametrize("recording", [KEY, WORDS], ids=["key", "words"])
@pytest.mark.parametrize("usage", ["master", "self_signing", "user_signing"])
def test_the_recovery_key_opens_what_js_sdk_stored(recording: recordings.Recording, usage: str) -> None:
    name = f"m.cross_signing.{usage}"
    storage_key = unlock(recording.recovery_key, read_key(recording.described))
    key_id = read_default(recording.account_data["m.secret_storage.default_key"])
    key = read_secret(name, recording.account_data[name], key_id, storage_key)
    assert key.public == recording.public(usage)


def test_the_passphrase_opens_it_too() -> None:
    assert WORDS.passphrase is not None
    how = read_key(WORDS.described)
    assert unlock(WORDS.passphrase, how) == decode_recovery_key(WORDS.recovery_key)


@given(st.binary(min_size=32, max_size=32))
def test_a_recovery_key_is_read_with_any_spaces(key: bytes) -> None:
    text = to_recovery_key(key)
    spaced = " \n".join(text[at : at + 4] for at in range(0, len(text), 4))
    assert (key, key) == (decode_recovery_key(text), decode_recovery_key(f"\t{spaced} "))


@given(st.binary(min_size=32, max_size=32), st.integers(0, 47), st.sampled_from(BASE58))
def test_one_wrong_character_is_never_taken_for_another_key(key: bytes, at: int, other: str) -> None:
    text = to_recovery_key(key)
    wrong = text[:at] + other + text[at + 1 :]
    if wrong == text:
        return
    try:
        read = decode_recovery_key(wrong)
    except RecoveryRefused:
        return
    assert read != key  # one error in 256 has the right sum; the key is then checked against its description


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        (to_recovery_key(STORED)[:-1] + "0", "occurs in none"),
        (to_recovery_key(STORED)[:-1] + "l", "occurs in none"),
        (to_recovery_key(STORED)[:-1] + "é", "occurs in none"),
        ("E" * 1_000_000, "too long"),
        (to_recovery_key(STORED)[:-1], "typing error"),
        (to_recovery_key(STORED)[:-4], "too long or too short"),
        (to_recovery_key(STORED) + "1", "too long or too short"),
        ("1" + to_recovery_key(STORED), "too long or too short"),
        ("1", "too long or too short"),
        (to_recovery_key(STORED, parity=1), "typing error"),
        (to_recovery_key(STORED, prefix=b"\x8b\x02"), "typing error"),
        (to_recovery_key(STORED, prefix=b"\x8c\x01"), "typing error"),
    ],
)
def test_what_is_wrong_with_a_recovery_key_is_said(text: str, why: str) -> None:
    with pytest.raises(RecoveryRefused, match=why):
        decode_recovery_key(text)


def test_no_refusal_repeats_what_was_typed() -> None:
    secret = "hunter2 is my passphrase"
    for text in (secret, to_recovery_key(STORED, parity=1)):
        with pytest.raises(RecoveryRefused) as refused:
            unlock(text, read_key(described(passphrase={"algorithm": "m.pbkdf2", "salt": "s", "iterations": 1})))
        assert text not in str(refused.value)


def test_another_accounts_recovery_key_is_told_from_a_typing_error() -> None:
    with pytest.raises(RecoveryRefused, match="not the one of this account"):
        unlock(to_recovery_key(bytes(32)), read_key(described()))


def test_a_passphrase_where_the_account_has_none_is_a_recovery_key_with_an_error() -> None:
    with pytest.raises(RecoveryRefused, match="occurs in none"):
        unlock("correct horse battery staple!", read_key(described()))


def test_a_key_that_cannot_be_checked_is_taken() -> None:
    unchecked = read_key({"algorithm": AES_HMAC})
    assert unlock(to_recovery_key(STORED), unchecked) == STORED
    half = read_key(described() | {"mac": 7})
    assert fits(bytes(32), half)


def test_words_become_a_key_as_the_standard_library_makes_it() -> None:
    """PBKDF2 (RFC 8018) by hand, of one block."""
    block = total = hmac.digest("pä".encode(), b"salt\0\0\0\1", "sha512")
    for _ in range(2):
        block = hmac.digest("pä".encode(), block, "sha512")
        total = bytes(a ^ b for a, b in zip(total, block, strict=True))
    assert derive_key("pä", Passphrase(salt="salt", rounds=3)) == total[:32]


@pytest.mark.parametrize(
    "odd",
    [
        {"algorithm": "m.other"},
        {"salt": 7},
        {"iterations": "5"},
        {"iterations": True},
        {"iterations": 0},
        {"iterations": -5},
        {"iterations": 2.5},
        {"iterations": MOST_ROUNDS + 1},
        {"iterations": 10**400},
        {"bits": 128},
        {"bits": "256"},
    ],
)
def test_a_passphrase_form_that_is_not_known_or_would_take_for_ever_is_none(odd: dict[str, Any]) -> None:
    form = {"algorithm": "m.pbkdf2", "salt": "s", "iterations": 5, "bits": 256}
    assert read_key(described(passphrase=form)).passphrase == Passphrase(salt="s", rounds=5)
    assert read_key(described(passphrase=form | odd)).passphrase is None


@pytest.mark.parametrize("source", [None, {}, {"key": 7}, {"key": ""}, {"key": ["k"]}])
def test_an_account_without_secret_storage_is_told_so(source: dict[str, Any] | None) -> None:
    with pytest.raises(RecoveryRefused, match="no secret storage"):
        read_default(source)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (None, "kind"),
        ({}, "kind"),
        ({"algorithm": "m.other"}, "kind"),
        (described(iv="AAAA"), "damaged"),
        (described(mac="AAAA"), "damaged"),
        (described(iv="!"), "damaged"),
        (described(mac="\ud800"), "damaged"),
    ],
)
def test_an_odd_description_of_the_key_is_told_so(odd: dict[str, Any] | None, why: str) -> None:
    with pytest.raises(RecoveryRefused, match=why):
        read_key(odd)


def test_a_secret_is_read_with_its_key() -> None:
    seed = hashlib.sha256(b"seed").digest()
    assert read_secret(NAME, stored(seed), "k", STORED) == PrivateKey(seed)


def test_a_padded_secret_is_read_too() -> None:
    text = base64.b64encode(bytes(32))
    assert read_secret(NAME, {"encrypted": {"k": seal(NAME, STORED, text)}}, "k", STORED) == PrivateKey(bytes(32))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (None, "does not hold"),
        ({}, "does not hold"),
        ({"encrypted": []}, "does not hold"),
        ({"encrypted": {"other": {}}}, "does not hold"),
        ({"encrypted": {"k": {"passthrough": True}}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"A" * 43) | {"iv": 7}}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"A" * 43) | {"iv": "AAAA"}}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"A" * 43) | {"mac": "AAAA"}}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"A" * 43) | {"ciphertext": "!"}}}, "cannot be read"),
        ({"encrypted": {"k": seal("m.other", STORED, b"A" * 43)}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, bytes(32), b"A" * 43)}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"A" * 40)}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"\xff")}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"!")}}, "cannot be read"),
        ({"encrypted": {"k": seal(NAME, STORED, b"")}}, "cannot be read"),
    ],
)
def test_a_secret_that_cannot_be_read_is_told_so(source: dict[str, Any] | None, why: str) -> None:
    with pytest.raises(RecoveryRefused, match=why):
        read_secret(NAME, source, "k", STORED)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PARTS = ["algorithm", "iv", "mac", "passphrase", "encrypted", "key", "salt", "iterations", "bits", "k", "ciphertext"]
odd_objects = st.dictionaries(
    st.sampled_from(PARTS), json_values | st.dictionaries(st.sampled_from(PARTS), json_values)
)


@given(odd_objects, odd_objects)
def test_whatever_is_stored_gives_a_value_or_one_sentence(one: dict[str, Any], two: dict[str, Any]) -> None:
    refused: list[str] = []
    for attempt in (
        lambda: read_default(one),
        lambda: read_key(one | {"algorithm": AES_HMAC}),
        lambda: read_secret(NAME, {"encrypted": {"k": one}}, "k", STORED),
        lambda: read_secret(NAME, two, "k", STORED),
    ):
        try:
            attempt()
        except RecoveryRefused as error:
            refused.append(str(error))
    assert all(sentence.endswith(".") for sentence in refused)


def test_the_names_are_those_of_the_specification() -> None:
    assert set(KEY.account_data) == {
        secretstorage.DEFAULT_KEY,
        secretstorage.KEY_PREFIX + KEY.key_id,
        secretstorage.MASTER,
        secretstorage.SELF_SIGNING,
        secretstorage.USER_SIGNING,
    }
