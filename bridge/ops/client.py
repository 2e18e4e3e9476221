"""The other end of the control socket, for the commands: one call, or a record after another.

Above it: the command line. Below it: the socket of a running bridge. Plain blocking calls: a command does one thing.
"""

import json
import os
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import cast

from bridge.core.errors import CommandRefused, ControlError, NotRunning
from bridge.core.model import JsonObject, JsonValue
from bridge.ops.calls import to_line

CALL_TIMEOUT_S = 30.0  # a decision is stored and written within milliseconds; a disk that is busy may take seconds

QUESTION_TIMEOUT_S = 660.0  # the bridge gives a question ten minutes


def call(path: Path, method: str, params: JsonObject, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, JsonValue]:
    """The result of one call. Raises `NotRunning`, `CommandRefused`, `ControlError`."""
    with _connected(path) as (connection, lines):
        connection.settimeout(timeout_s)
        connection.sendall(to_line({"id": 1, "method": method, "params": dict(params)}))
        return _read_result(lines)


def follow(path: Path, params: JsonObject) -> Iterator[dict[str, JsonValue]]:
    """The records that `history.subscribe` gives, and each new one, until the bridge ends."""
    with _connected(path) as (connection, lines):
        connection.sendall(to_line({"id": 1, "method": "history.subscribe", "params": dict(params)}))
        result = _read_result(lines)
        yield from cast("list[dict[str, JsonValue]]", result["records"])
        connection.settimeout(None)  # the next record may be days away
        while line := lines.readline():
            yield cast("dict[str, JsonValue]", json.loads(line)["params"])


@contextmanager
def _connected(path: Path) -> Generator[tuple[socket.socket, BufferedReader]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CALL_TIMEOUT_S)
        try:
            connection.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotRunning(f"The bridge is not running: nothing listens on {path}.") from error
        except OSError as error:
            raise ControlError(f"The control socket {path} cannot be used: {error.strerror}.") from error
        with connection.makefile("rb") as lines:
            try:
                yield connection, lines
            except TimeoutError as error:
                raise ControlError("The bridge has not replied in time; what was asked may have happened.") from error
            except (ConnectionError, ValueError) as error:
                raise ControlError("The connection to the bridge broke; what was asked may have happened.") from error


def _read_result(lines: BufferedReader) -> dict[str, JsonValue]:
    line = lines.readline()
    if not line:
        raise ControlError("The bridge hung up; what was asked may have happened.")
    reply = json.loads(line)
    if "error" in reply:
        data = reply["error"].get("data", {})
        raise CommandRefused(
            reply["error"]["message"], code=data.get("code", ""), offered=tuple(data.get("offered", ()))
        )
    return reply["result"]
