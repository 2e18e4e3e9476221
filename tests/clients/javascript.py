"""matrix-js-sdk and a Node that can run it, from `tests/clients/js`, installed there when they are not yet.

Above it: the fixtures of this folder and `run`. Below it: npm. It refuses to know what the scripts beside the lock do.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "js"
INSTALL_TIMEOUT_S = 600.0
"""A quarter of a minute with a quick registry; 210 MB, half of it Node."""
NODE_MAJOR = 22
"""What matrix-js-sdk 43 wants at least."""
ASK_TIMEOUT_S = 30.0


class Missing(Exception):
    """Something that this machine lacks; the sentence says what."""


class NotInstalled(Exception):
    """What a package manager said when it failed."""


@dataclass(frozen=True, slots=True)
class Javascript:
    """An installed Node with the packages of the lock beside our scripts."""

    node: Path

    def command(self, script: str, *words: str) -> list[str]:
        """The command line that runs a script of `tests/clients/js`."""
        return [str(self.node), str(FOLDER / script), *words]

    def version(self, package: str) -> str:
        """Of an installed package."""
        return str(json.loads((FOLDER / "node_modules" / package / "package.json").read_bytes())["version"])


def install() -> Javascript:
    """What the lock names, installed once; raises `Missing` on a machine that cannot."""
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("npm is not on the PATH, so matrix-js-sdk cannot be had")
    locked = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    mark = FOLDER / "node_modules/.locked"
    with (FOLDER / "package-lock.json").open("rb") as one_at_a_time:  # any file serves: two test runs share this folder
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text(encoding="utf-8") != locked:
            sys.stderr.write("clients: installing matrix-js-sdk (half a minute) ...\n")
            command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            done = subprocess.run(  # noqa: S603 - npm as the PATH has it, versions pinned by the lock
                command, cwd=FOLDER, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
            if done.returncode:
                raise NotInstalled(f"npm could not install what tests/clients/js names: {done.stderr.strip()[-2000:]}")
            mark.write_text(locked, encoding="utf-8")
    return Javascript(_find_node())


def _find_node() -> Path:
    """The system's Node if it is new enough, else the one that the lock brought."""
    brought = sorted(FOLDER.glob("node_modules/node-*/bin/node"))
    system = shutil.which("node")
    for node in [*([Path(system)] if system else []), *brought]:
        if _major(node) >= NODE_MAJOR:
            return node
    raise Missing(
        f"Node {NODE_MAJOR} or newer is needed: the one here is older, and the lock has none for this machine"
    )


def _major(node: Path) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)  # noqa: S603
    first = said.stdout.strip().removeprefix("v").partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() else 0
