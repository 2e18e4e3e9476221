"""A file for a room: uploaded, in an encrypted room encrypted, and the message that shows it.

Above it: the outbox. Below it: the client and the encryption of attachments. It refuses to know what is in the file, and
it sends no message. An upload has no transaction id: repeated, it makes a second file, which nobody ever sees.
"""

from bridge.core.model import JsonObject, JsonValue
from bridge.matrix.client import Client
from bridge.matrix.crypto.attachments import encrypt

OPAQUE = "application/octet-stream"  # what the homeserver may know of an encrypted file: nothing, its name included


async def upload_file(client: Client, *, data: bytes, filename: str, content_type: str, encrypted: bool) -> JsonObject:
    """The content of an `m.file` message with this file. Raises the errors of `MatrixError`: `EventTooLarge` for its size."""
    place: dict[str, JsonValue]
    if encrypted:
        sealed, keys = encrypt(data)
        place = {"file": {**keys, "url": await client.upload(sealed, filename=None, content_type=OPAQUE)}}
    else:
        place = {"url": await client.upload(data, filename=filename, content_type=content_type)}
    return {
        "msgtype": "m.file",
        "body": filename,
        "filename": filename,
        "info": {"size": len(data), "mimetype": content_type},
        "m.mentions": {},
        **place,
    }
