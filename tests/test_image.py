"""The image and the locks, read as text: what may be installed, and that nobody else's address stands in them."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT, DEVELOPMENT = "requirements.lock", "requirements-dev.lock"
PINNED = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+) \\$", re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_pins(name: str) -> dict[str, str]:
    return dict(PINNED.findall(read(name)))


def read_blocks(name: str) -> list[list[str]]:
    """Each package of a lock as its lines, comments left out."""
    lines = [line for line in read(name).splitlines() if line and not line.lstrip().startswith("#")]
    starts = [n for n, line in enumerate(lines) if not line.startswith(" ")] + [len(lines)]
    return [lines[begin:end] for begin, end in itertools.pairwise(starts)]


def test_the_image_installs_the_product_lock_and_no_homeserver() -> None:
    pins = read_pins(PRODUCT)
    assert "matrix-nio" in pins
    assert [name for name in pins if "synapse" in name] == []


def test_the_development_lock_brings_only_build_tools_into_the_builder() -> None:
    """The one line of the Dockerfile that reads it lists them by name."""
    named = re.findall(r"/\^\(([a-z|-]+)\)==/", read("Dockerfile"))
    assert [sorted(names.split("|")) for names in named] == [
        ["hatchling", "packaging", "pathspec", "pluggy", "setuptools", "tomlkit", "trove-classifiers"]
    ]


def test_every_package_of_the_image_comes_from_the_wheels_that_were_checked_by_hash() -> None:
    fetching = [line for line in read("Dockerfile").splitlines() if re.search(r"pip\S* .*(install|wheel) ", line)]
    assert fetching
    assert [line for line in fetching if "--require-hashes" not in line and "--no-index" not in line] == []


@pytest.mark.parametrize("lock", [PRODUCT, DEVELOPMENT])
def test_every_package_of_a_lock_is_pinned_with_a_hash(lock: str) -> None:
    blocks = read_blocks(lock)
    assert len(blocks) == len(read_pins(lock))
    assert [block[0] for block in blocks if not all("--hash=sha256:" in line for line in block[1:])] == []
    assert [block[0] for block in blocks if len(block) == 1] == []


@pytest.mark.parametrize("lock", [PRODUCT, DEVELOPMENT])
def test_a_lock_names_no_index_and_no_address(lock: str) -> None:
    assert [line for line in read(lock).splitlines() if "//" in line or line.startswith("-")] == []


def test_what_the_product_runs_on_is_what_is_tested() -> None:
    development = read_pins(DEVELOPMENT)
    product = read_pins(PRODUCT)
    assert product == {name: development.get(name) for name in product}


def test_the_locks_are_those_of_the_project_file() -> None:
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, ROOT / "scripts/locked.py", "check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lock_of_other_requirements_is_named(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/locked.py", "pyproject.toml", PRODUCT, DEVELOPMENT):
        (tmp_path / name).write_text(read(name), encoding="utf-8")
    with (tmp_path / PRODUCT).open("r+", encoding="utf-8") as lock:
        lock.write("# made from something else, ")
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, tmp_path / "scripts/locked.py", "check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "requirements.lock is behind pyproject.toml: run scripts/lock\n")
