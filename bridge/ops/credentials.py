"""What the state folder keeps of the bridge's account: its device, its token, and how that is renewed.

Above it: `ops.login`, and app, which stores what a running bridge renews. Below it: the folder's files. It knows no
homeserver. The token is a file of its own, one line, so that people and scripts can read it and replace it.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bridge.core.errors import ConfigError
from bridge.ops.folder import write_private

DEVICE_NAME = "device_id"  # a token may die, the device and its keys live on
RENEWAL_NAME = "token_renewal"  # the refresh token, and from when on it is to be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A device's token; `renew_at`: Unix time in seconds from which on it is renewed, None where the server says when."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    renew_at: float | None = None


def read_credentials(token_file: Path) -> Credentials | None:
    """The token that is kept, with how it is renewed; None without a token."""
    access_token = _read(token_file)
    if access_token is None:
        return None
    refresh_token, renew_at = _read_renewal(token_file.with_name(RENEWAL_NAME))
    return Credentials(access_token=access_token, refresh_token=refresh_token, renew_at=renew_at)


def read_device(token_file: Path) -> str | None:
    """The device that belongs to this state folder, where one is known."""
    return _read(token_file.with_name(DEVICE_NAME))


def write_credentials(token_file: Path, credentials: Credentials) -> None:
    """Keep a device's token, and what renews it before it: between the two the old token stands beside the new renewal.

    That loses nothing, since the old token lives until the new ones are used.
    """
    renewal = token_file.with_name(RENEWAL_NAME)
    if credentials.refresh_token is not None:
        said = {"refresh_token": credentials.refresh_token, "renew_at": credentials.renew_at}
        write_private(renewal, json.dumps(said) + "\n")
    else:
        _remove(renewal)  # it belongs to another token
    if credentials.access_token != _read(token_file):
        write_private(token_file, credentials.access_token + "\n")


def write_device(token_file: Path, device_id: str) -> None:
    """Give the folder to this device, before its token comes: a token of no known device would be of any."""
    _remove(token_file.with_name(RENEWAL_NAME))  # it would open the other device
    write_private(token_file.with_name(DEVICE_NAME), device_id + "\n")


def _read_renewal(path: Path) -> tuple[str | None, float | None]:
    """Whatever a hand has made of the file: what cannot be read renews nothing, and a login mends it."""
    said: Any = None
    with suppress(ValueError, RecursionError):
        said = json.loads(_read(path) or "null")
    renewal = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    refresh_token, renew_at = renewal.get("refresh_token"), renewal.get("renew_at")
    if not isinstance(refresh_token, str) or not refresh_token:
        return None, None
    if not isinstance(renew_at, int | float) or isinstance(renew_at, bool):
        return refresh_token, None
    return refresh_token, renew_at


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file {path} cannot be read.") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"The file {path} cannot be removed: {error.strerror}.") from error
