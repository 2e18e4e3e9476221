import json
import stat
from pathlib import Path

import pytest

from bridge.core.errors import ConfigError
from bridge.ops import credentials
from bridge.ops.credentials import Credentials, read_credentials, read_device, write_credentials, write_device

PAIR = Credentials(access_token="a1", refresh_token="r1", renew_at=12.5)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "access_token"


def list_names(token_file: Path) -> list[str]:
    return sorted(path.name for path in token_file.parent.iterdir())


@pytest.mark.parametrize(
    "kept", [PAIR, Credentials(access_token="a"), Credentials(access_token="a", refresh_token="r")]
)
def test_what_is_kept_comes_back(kept: Credentials, token_file: Path) -> None:
    write_credentials(token_file, kept)
    assert read_credentials(token_file) == kept


def test_the_files_are_their_owners_alone(token_file: Path) -> None:
    write_device(token_file, "DEV")
    write_credentials(token_file, PAIR)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in token_file.parent.iterdir()}
    assert (list_names(token_file), modes) == (["access_token", "device_id", "token_renewal"], {0o600})


def test_the_token_is_a_file_of_one_line(token_file: Path) -> None:
    write_credentials(token_file, PAIR)
    assert token_file.read_text() == "a1\n"


def test_without_a_token_there_is_none(token_file: Path) -> None:
    assert (read_credentials(token_file), read_device(token_file)) == (None, None)


def test_whoever_is_cut_off_between_the_two_files_keeps_a_pair_that_works(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old token with the new renewal: the other way round the refresh token would be one that is used up."""
    write_credentials(token_file, PAIR)
    write = credentials.write_private

    def cut_off(path: Path, text: str) -> None:
        if path == token_file:
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(credentials, "write_private", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_credentials(token_file, Credentials(access_token="a2", refresh_token="r2"))
    assert read_credentials(token_file) == Credentials(access_token="a1", refresh_token="r2")


def test_a_token_that_cannot_be_renewed_leaves_no_renewal_of_another(token_file: Path) -> None:
    write_credentials(token_file, PAIR)
    write_credentials(token_file, Credentials(access_token="a2"))
    assert list_names(token_file) == ["access_token"]


def test_another_device_leaves_no_renewal_of_the_one_before(token_file: Path) -> None:
    write_credentials(token_file, PAIR)
    write_device(token_file, "D2")
    assert (read_device(token_file), list_names(token_file)) == ("D2", ["access_token", "device_id"])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"refresh_token": 7}', '{"refresh_token": ""}', "[" * 100_000],
    ids=["empty", "torn", "list", "number", "no text", "empty text", "deep"],
)
def test_a_renewal_that_cannot_be_read_renews_nothing(text: str, token_file: Path) -> None:
    token_file.write_text("a1")
    token_file.with_name(credentials.RENEWAL_NAME).write_text(text)
    assert read_credentials(token_file) == Credentials(access_token="a1")


@pytest.mark.parametrize("renew_at", ["soon", True, None])
def test_an_end_that_is_no_number_is_none(renew_at: object, token_file: Path) -> None:
    token_file.write_text("a1")
    token_file.with_name(credentials.RENEWAL_NAME).write_text(json.dumps({"refresh_token": "r", "renew_at": renew_at}))
    assert read_credentials(token_file) == Credentials(access_token="a1", refresh_token="r")


def test_a_file_that_cannot_be_read_is_said(token_file: Path) -> None:
    token_file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_credentials(token_file)


def test_a_renewal_that_cannot_be_removed_is_said(token_file: Path) -> None:
    (token_file.with_name(credentials.RENEWAL_NAME) / "x").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be removed"):
        write_device(token_file, "D")


def test_no_token_is_in_the_text_of_what_holds_it() -> None:
    assert "a1" not in repr(PAIR)
    assert "r1" not in repr(PAIR)
