"""The state folder: 0700 from the first byte, the small files in it 0600 (design.md, rule 21), one bridge at a time.

Above it: app, `ops.login` and `ops.doctor`. Below it: the file system. It knows no file of the ledger.
"""

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from bridge.core.errors import BridgeError, ConfigError

LOCK_NAME = "lock"


def open_state_folder(path: Path) -> None:
    """Make the folder if it is missing, close it to others, and see that it can be written."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
        probe = path / f".probe-{secrets.token_hex(4)}"
        _create(probe)
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"The state folder {path} cannot be used: {error.strerror}.") from error


@contextmanager
def hold_state_folder(path: Path) -> Generator[None]:
    """Keep every other bridge out of the folder: a second one would end what waits for the first.

    The kernel lets go of it when this process ends, however it ends; its children do not get it.
    """
    descriptor = -1
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BridgeError(
            f"Another bridge is running with the state folder {path}; it may be a command such as `login` or `setup`."
        ) from error
    except OSError as error:
        raise ConfigError(f"The state folder {path} cannot be used: {error.strerror}.") from error
    try:
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner can read, whole or not at all; after that it survives a power cut."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        _create(draft, text.encode())
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"The file {path} cannot be written: {error.strerror}.") from error


def _sync_folder(path: Path) -> None:
    """Until the folder is on the disk, the file's new name is not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: Path, content: bytes = b"") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
