import json
from typing import Any

import pytest
import vodozemac
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import JsonObject
from bridge.matrix.crypto.signing import PrivateKey, from_base64, is_signed_by, to_base64, to_canonical

USER = "@bot:hs"

# appendices of the Matrix specification, "Test Vectors": the seed, the empty object and its signature
SPEC_SEED = "YJDBA9Xnr2sVqXD9Vj7XVUnmFZcZrlw8Md7kMW+3XA1"
SPEC_EMPTY = "K8280/U9SSy9IVtjBuVeLr+HpOB4BQFWbg+UZaADMtTdGYI7Geitb76LTrr5QV/7Xg4ahLwYGYZzuHGZKM5ZAQ"
SPEC_DATA = "KqmLSbO39/Bzb0QIYE82zqLwsA+PDzYIpIRA2sRQ4sL53+sN6/fpNSoqE7BP7vBZhG6kYdD13EIMJpvhJI+6Bw"

scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8"))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=12,
)
objects = st.dictionaries(st.text(st.characters(codec="utf-8")), values)


def signed(value: dict[str, Any], key: PrivateKey) -> dict[str, Any]:
    return {**value, "signatures": {USER: {key.key_id: key.sign(value)}}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, "{}"),
        ({"one": 1, "two": "Two"}, '{"one":1,"two":"Two"}'),
        ({"b": "2", "a": "1"}, '{"a":"1","b":"2"}'),
        ({"本": 2, "日": 1}, '{"日":1,"本":2}'),
        ({"a": "日"}, '{"a":"日"}'),
        ({"a": None, "b": [True, -0]}, '{"a":null,"b":[true,0]}'),
        ({"a": '\b\t\n\f\r"\\\x00\x1f\x7f/'}, '{"a":"\\b\\t\\n\\f\\r\\"\\\\\\u0000\\u001f\x7f/"}'),
        ({"\U0001f600": 1, "\uffff": 2}, '{"\uffff":2,"\U0001f600":1}'),
        ({"a": 1, "signatures": {"x": 1}, "unsigned": {"y": 1}}, '{"a":1}'),
        ({"a": {"signatures": 1, "unsigned": 2}}, '{"a":{"signatures":1,"unsigned":2}}'),
    ],
)
def test_what_gets_signed_is_canonical_json(value: JsonObject, expected: str) -> None:
    assert to_canonical(value) == expected.encode()


@given(objects)
def test_canonical_json_says_the_same_in_one_way_only(value: dict[str, Any]) -> None:
    bare = {key: item for key, item in value.items() if key not in ("signatures", "unsigned")}
    written = to_canonical(value)
    assert json.loads(written) == bare
    assert to_canonical(dict(reversed(bare.items()))) == written


def deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "odd",
    [{"a": 1.5}, {"a": [float("nan")]}, {"a": {"b": 2**53}}, {"a": -(2**53)}, {"a": "\ud800"}, {"a": {1}}, deep()],
)
def test_what_canonical_json_cannot_say_has_none_and_is_signed_by_nobody(odd: dict[str, Any]) -> None:
    key = PrivateKey.new()
    with pytest.raises(ValueError):  # noqa: PT011 - the type is the contract
        to_canonical(odd)
    assert not is_signed_by({**odd, "signatures": {USER: {key.key_id: key.sign({})}}}, USER, key.public)


def test_a_key_signs_as_the_specification_shows() -> None:
    key = PrivateKey(from_base64(SPEC_SEED))
    assert key.sign({}) == SPEC_EMPTY
    assert key.sign({"one": 1, "two": "Two"}) == SPEC_DATA


def test_the_public_key_is_the_one_that_openssl_derives() -> None:
    """RFC 8032, section 7.1, test 1."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert PrivateKey(seed).public == to_base64(public)


@given(objects)
def test_what_a_key_signed_is_signed_by_it_and_by_no_other(value: dict[str, Any]) -> None:
    key, other = PrivateKey(b"\1" * 32), PrivateKey(b"\2" * 32)
    value.pop("signatures", None)
    made = signed(value, key)
    assert is_signed_by(made, USER, key.public)
    assert not is_signed_by(made, USER, other.public)
    assert not is_signed_by(made, "@eve:hs", key.public)
    assert not is_signed_by({**made, "more": 1}, USER, key.public)


def test_a_device_signs_under_its_own_name() -> None:
    account = vodozemac.Account()
    public = account.ed25519_key.to_base64()
    signature = account.sign(to_canonical({"a": 1})).to_base64()
    value = {"a": 1, "signatures": {USER: {"ed25519:DEV": signature}}}
    assert is_signed_by(value, USER, public, "DEV")
    assert not is_signed_by(value, USER, public)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        7,
        "x",
        [],
        {},
        {"signatures": 7},
        {"signatures": {USER: []}},
        {"signatures": {USER: {"ed25519:KEY": 7}}},
        {"signatures": {USER: {"ed25519:KEY": ""}}},
        {"signatures": {USER: {"ed25519:KEY": "A" * 86}}},
        {"signatures": {USER: {"ed25519:KEY": "\ud800"}}},
        {"signatures": {USER: {"ed25519:KEY": "!" * 86}}},
    ],
)
@pytest.mark.parametrize("public", [PrivateKey(b"\1" * 32).public, "", "short", "\ud800", "\0", "é" * 43, "A" * 43])
def test_odd_input_is_signed_by_nobody(odd: object, public: str) -> None:
    placed = json.loads(json.dumps(odd).replace("KEY", public)) if public.isascii() and public.isprintable() else odd
    assert not is_signed_by(placed, USER, public)


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)), st.text())
def test_no_input_makes_the_check_raise(value: object, public: str) -> None:
    signatures = {"signatures": {USER: {f"ed25519:{public}": value}}}
    assert not is_signed_by(signatures, USER, public)
    assert not is_signed_by(value, USER, public)


def test_a_key_shows_no_secret() -> None:
    key = PrivateKey.new()
    assert repr(key.seed) not in repr(key)
    assert to_base64(key.seed) not in repr(key)


def test_two_new_keys_differ() -> None:
    assert PrivateKey.new() != PrivateKey.new()


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_none(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PrivateKey(bytes(length))


@given(st.binary())
def test_base64_goes_there_and_back_padded_or_not(raw: bytes) -> None:
    text = to_base64(raw)
    assert "=" not in text
    assert from_base64(text) == raw
    assert from_base64(text + "=" * (-len(text) % 4)) == raw


@pytest.mark.parametrize("text", ["A", "A===", "AA=A", "é", "A-_A", "AA\n", " AA", "AAAAA", "\ud800"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no base64"):
        from_base64(text)
