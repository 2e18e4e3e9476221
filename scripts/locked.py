# ruff: noqa: INP001 - a script beside the others, not a module of anything
"""Tell whether the lock files are those of this pyproject.toml, without asking an index.

`header` prints the line that stands at the top of each lock: it names what the lock was resolved from. `check` compares.
"""

import hashlib
import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")


def make_header() -> str:
    """The first line of a lock: a digest of every part of pyproject.toml that decides what is installed."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    parts = {key: project.get(key) for key in ("requires-python", "dependencies", "optional-dependencies")}
    text = json.dumps(parts | {"build": pyproject["build-system"]["requires"]}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"# made by scripts/lock from the requirements in pyproject.toml, sha256:{digest}"


def find_old(header: str) -> list[str]:
    """The locks that were made from other requirements."""
    first_lines = {name: (ROOT / name).read_text(encoding="utf-8").partition("\n")[0] for name in LOCKS}
    return [name for name, line in first_lines.items() if line != header]


def main() -> int:
    """Answer `header` or `check`."""
    header = make_header()
    if sys.argv[1:] == ["header"]:
        sys.stdout.write(header + "\n")
        return 0
    old = find_old(header)
    for name in old:
        sys.stderr.write(f"{name} is behind pyproject.toml: run scripts/lock\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
