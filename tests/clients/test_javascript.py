import shutil
from pathlib import Path

import pytest

from tests.clients import javascript
from tests.clients.javascript import FOLDER, Javascript, Missing


def test_the_installed_client_is_the_one_that_the_package_names(js: Javascript) -> None:
    assert js.version("matrix-js-sdk") == "43.0.0"


def test_a_machine_without_npm_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"^npm is not on the PATH, so matrix-js-sdk cannot be had$"):
        javascript.install()


@pytest.mark.usefixtures("js")
def test_an_older_node_of_the_system_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not list(FOLDER.glob("node_modules/node-*")):
        pytest.skip("The lock has no Node for this machine.")
    npm = shutil.which("npm")
    assert npm is not None
    old = tmp_path / "node"
    old.write_text("#!/bin/sh\necho v20.20.2\n")
    old.chmod(0o755)
    (tmp_path / "npm").symlink_to(npm)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert javascript.install().node.is_relative_to(FOLDER)


def test_the_lock_names_no_address_of_a_registry() -> None:
    lock = (FOLDER / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
    assert '"integrity"' in lock
