"""A file as it lies on the homeserver of an encrypted room: unreadable without the keys that the message carries.

Above it: uploads. Below it: nio's functions for it. It refuses to know where the file goes.
"""

from typing import cast

from nio.crypto.attachments import encrypt_attachment

from bridge.core.model import JsonObject


def encrypt(data: bytes) -> tuple[bytes, JsonObject]:
    """The encrypted bytes, and what a message's `file` needs beside the address to read them (`EncryptedFile`)."""
    encrypted, keys = encrypt_attachment(data)
    return encrypted, cast("JsonObject", keys)
