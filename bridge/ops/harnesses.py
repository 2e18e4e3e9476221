"""The harnesses that `setup` knows, from a data file, and which of them are installed here.

Above it: `ops.setup`. Below it: `harnesses.toml` beside this file, and the PATH. It starts none of them.
"""

import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

FILE = Path(__file__).with_name("harnesses.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHarness:
    """One harness and the keys of its section in the config."""

    name: str
    title: str
    program: str
    command: tuple[str, ...]
    install: str
    pass_env: tuple[str, ...] = ()
    mode: str | None = None
    auth_method: str | None = None


def read_known() -> tuple[KnownHarness, ...]:
    """Every harness of the data file, in its order."""
    return TypeAdapter(tuple[KnownHarness, ...]).validate_python(tomllib.loads(FILE.read_text("utf-8"))["harness"])


def find_installed(
    known: tuple[KnownHarness, ...], find: Callable[[str], str | None] = shutil.which
) -> tuple[KnownHarness, ...]:
    """Those whose program is on the PATH."""
    return tuple(harness for harness in known if find(harness.program) is not None)
