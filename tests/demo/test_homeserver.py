import os
import stat
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from bridge.core.errors import DemoFailed
from bridge.demo.homeserver import Homeserver, call
from tests.peers.untraced import untraced

NO_SUCH_PROCESS = 0


@pytest.fixture(autouse=True)
def _servers_are_not_measured() -> Iterator[None]:
    with untraced():
        yield


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, NO_SUCH_PROCESS)
    except ProcessLookupError:
        return False
    return True


def test_a_registered_user_has_a_token_for_a_device_of_its_own(synapse: Homeserver) -> None:
    account = synapse.register("token-holder")
    answer = call(synapse.base_url, "GET", "/_matrix/client/v3/account/whoami", token=account.access_token)
    told = {"user_id": account.user_id, "device_id": account.device_id, "is_guest": False}
    assert told == answer.body


def test_a_registered_user_can_log_in_with_the_password(synapse: Homeserver) -> None:
    account = synapse.register("password-holder")
    identifier = {"type": "m.id.user", "user": account.user_id}
    wanted = {"type": "m.login.password", "identifier": identifier, "password": account.password}
    answer = call(synapse.base_url, "POST", "/_matrix/client/v3/login", wanted)
    assert (HTTPStatus.OK, account.user_id) == (answer.status, answer.body.get("user_id"))


def test_an_account_keeps_its_secrets_out_of_its_repr(synapse: Homeserver) -> None:
    account = synapse.register("quiet")
    assert account.access_token not in repr(account)
    assert account.password not in repr(account)


def test_a_name_that_is_taken_is_refused_with_a_sentence(synapse: Homeserver) -> None:
    synapse.register("taken")
    with pytest.raises(DemoFailed, match="refused the user 'taken' with status 400"):
        synapse.register("taken")


def test_the_folder_and_its_secrets_are_for_their_owner_only(synapse: Homeserver) -> None:
    modes = {name: stat.S_IMODE((synapse.folder / name).stat().st_mode) for name in ("homeserver.yaml", "signing.key")}
    assert modes == {"homeserver.yaml": 0o600, "signing.key": 0o600}
    assert stat.S_IMODE(synapse.folder.stat().st_mode) == 0o700


def test_an_answer_that_is_no_json_has_an_empty_body(synapse: Homeserver) -> None:
    answer = call(synapse.base_url, "GET", "/_matrix/static/")
    assert answer.body == {}


def test_a_killed_homeserver_goes_on_with_its_users_after_a_start(tmp_path: Path) -> None:
    with Homeserver(tmp_path) as homeserver:
        account = homeserver.register("survivor")
        before = homeserver.pid
        assert before is not None
        homeserver.kill()
        assert not is_running(before)
        assert homeserver.pid is None
        homeserver.start()
        answer = call(homeserver.base_url, "GET", "/_matrix/client/v3/account/whoami", token=account.access_token)
    assert account.user_id == answer.body.get("user_id")


def test_a_default_homeserver_limits_how_fast_a_user_may_send(tmp_path: Path) -> None:
    with Homeserver(tmp_path, limits="default") as homeserver:
        account = homeserver.register("hasty")
        room = call(homeserver.base_url, "POST", "/_matrix/client/v3/createRoom", {}, token=account.access_token)
        path = f"/_matrix/client/v3/rooms/{room.body['room_id']}/send/m.room.message"
        content = {"msgtype": "m.text", "body": "hi"}
        sent = {
            call(homeserver.base_url, "PUT", f"{path}/{n}", content, token=account.access_token).status
            for n in range(15)
        }
    assert {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS} == sent


def test_nothing_runs_after_a_start_that_was_called_off(tmp_path: Path) -> None:
    homeserver = Homeserver(tmp_path)
    pids: list[int] = []

    def call_off() -> None:
        assert homeserver.pid is not None
        pids.append(homeserver.pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        homeserver.start(call_off)
    assert [is_running(pid) for pid in pids] == [False]


def test_a_homeserver_that_cannot_start_says_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "homeserver.db").mkdir()
    with pytest.raises(DemoFailed, match=r"The homeserver ended with 1: .*unable to open database file"):
        Homeserver(tmp_path).start()


def test_without_its_extra_the_demo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    with pytest.raises(DemoFailed, match=r"acp-matrix-bridge\[demo\]"):
        Homeserver(tmp_path).start()


def test_stopping_what_does_not_run_does_nothing(tmp_path: Path) -> None:
    Homeserver(tmp_path).stop()
    assert list(tmp_path.iterdir()) == []
