import hashlib

import pytest
from Crypto.Cipher import AES

from bridge.matrix import events
from bridge.matrix.crypto.attachments import encrypt
from bridge.matrix.crypto.signing import from_base64


def read(encrypted: bytes, keys: events.Source) -> bytes:
    """As the specification says it ("Sending encrypted attachments"), with the counter as one number of 64 bits."""
    jwk = events.mapping(keys, "key")
    key = from_base64((events.text(jwk, "k") or "").replace("-", "+").replace("_", "/"))
    iv = from_base64(events.text(keys, "iv") or "")
    ecb = AES.new(key, AES.MODE_ECB)
    blocks = range((len(encrypted) + 15) // 16)
    stream = b"".join(ecb.encrypt(iv[:8] + (int.from_bytes(iv[8:], "big") + at).to_bytes(8, "big")) for at in blocks)
    return bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))


@pytest.mark.parametrize("data", [b"", b"x", b"line\n" * 1000])
def test_an_encrypted_file_is_read_with_the_keys_beside_it(data: bytes) -> None:
    encrypted, keys = encrypt(data)
    assert read(encrypted, keys) == data
    digest = events.text(events.mapping(keys, "hashes"), "sha256") or ""
    assert hashlib.sha256(encrypted).digest() == from_base64(digest)


def test_the_keys_are_described_as_clients_want_them() -> None:
    _, keys = encrypt(b"x")
    jwk = dict(events.mapping(keys, "key"))
    assert 32 == len(from_base64(str(jwk.pop("k")).replace("-", "+").replace("_", "/")))
    assert {"kty": "oct", "alg": "A256CTR", "ext": True, "key_ops": ["encrypt", "decrypt"]} == jwk
    assert ("v2", {"v", "key", "iv", "hashes"}) == (keys["v"], set(keys))


def test_the_same_file_is_never_encrypted_the_same_way() -> None:
    first, second = encrypt(b"the same"), encrypt(b"the same")
    assert first[0] != second[0]
    assert first[1]["key"] != second[1]["key"]
