import os
import stat
from pathlib import Path

import pytest

from bridge.core.errors import BridgeError, ConfigError
from bridge.ops.folder import hold_state_folder, open_state_folder, write_private


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_its_owner_alone_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_state_folder(tmp_path / "a" / "b")
        write_private(tmp_path / "a" / "b" / "token", "secret")
    finally:
        os.umask(before)
    assert (mode_of(tmp_path / "a" / "b"), mode_of(tmp_path / "a" / "b" / "token")) == (0o700, 0o600)


def test_a_loose_folder_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o755)
    open_state_folder(folder)
    assert mode_of(folder) == 0o700


def test_a_folder_is_left_as_empty_as_it_was(tmp_path: Path) -> None:
    open_state_folder(tmp_path / "state")
    assert list((tmp_path / "state").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^The state folder .* cannot be used: [^\n]*$"):
        open_state_folder(tmp_path / "file")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_private(tmp_path / "f", "a long first text")
    write_private(tmp_path / "f", "short")
    assert ([path.name for path in tmp_path.iterdir()], (tmp_path / "f").read_text()) == (["f"], "short")


def test_a_file_is_on_the_disk_with_its_name_before_anybody_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the old name would be back, and with it a refresh token that is used up."""
    synced: list[str] = []
    sync = os.fsync

    def watch(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append("folder" if name == tmp_path.name else "file" if not (tmp_path / "f").exists() else "late")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    write_private(tmp_path / "f", "x")
    assert synced == ["file", "folder"]


def test_a_file_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_private(tmp_path / "f", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with (
        hold_state_folder(tmp_path),
        pytest.raises(
            BridgeError,
            match=r"^Another bridge is running with the state folder [^\n]*; it may be a command such as `login`[^\n]*$",
        ),
        hold_state_folder(tmp_path),
    ):
        raise NotImplementedError


def test_a_folder_that_was_let_go_of_can_be_held_again(tmp_path: Path) -> None:
    for _ in range(2):
        with hold_state_folder(tmp_path):
            assert mode_of(tmp_path / "lock") == 0o600


def test_a_folder_that_cannot_be_held_is_said_in_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"^The state folder .* cannot be used: [^\n]*$"),
        hold_state_folder(tmp_path / "none"),
    ):
        raise NotImplementedError
