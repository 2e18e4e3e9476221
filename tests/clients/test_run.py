from pathlib import Path

import pytest

from tests.clients import run


def test_a_machine_without_npm_is_told_so_in_one_sentence_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["test-clients", "--short"])
    assert run.main() == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "test-clients: npm is not on the PATH, so matrix-js-sdk cannot be had.\n")


def test_a_client_that_there_is_not_is_answered_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["test-clients", "element"])
    with pytest.raises(SystemExit):
        run.main()
    assert "there is no client element; there are matrix-js-sdk and matrix-commander" in capsys.readouterr().err


def test_the_lock_of_matrix_commander_names_no_address() -> None:
    lock = run.commander.LOCK.read_text(encoding="utf-8")
    assert "--hash=sha256:" in lock
    assert "://" not in lock
