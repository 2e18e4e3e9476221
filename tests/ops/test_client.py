import socket
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bridge.core.errors import CommandRefused, ControlError, NotRunning
from bridge.ops import client, control
from tests.fakes.control_target import OFFERED, REQUEST, SESSION, FakeControlTarget, make_record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.sock"


@contextmanager
def _answering(path: Path, reply: bytes) -> Generator[None]:
    """A service that reads one line, says `reply` and hangs up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            lines.readline()
            connection.sendall(reply)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(5)


def test_without_a_service_the_error_says_that_it_is_not_running(path: Path) -> None:
    with pytest.raises(NotRunning, match="The bridge is not running"):
        client.call(path, "status", {})


def test_a_dead_socket_is_a_service_that_is_not_running(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(NotRunning):
        client.call(path, "status", {})


def test_a_socket_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="cannot be used"):
        client.call(_file(tmp_path), "status", {})


def _file(folder: Path) -> Path:
    (folder / "f").touch()
    return folder / "f" / "c.sock"


@pytest.mark.parametrize("reply", [b"", b"no json\n", b'{"torn'])
def test_a_service_that_breaks_off_leaves_open_what_has_happened(reply: bytes, path: Path) -> None:
    with _answering(path, reply), pytest.raises(ControlError, match="what was asked may have happened"):
        client.call(path, "permission.respond", {})


def test_a_service_that_says_nothing_in_time_leaves_open_what_has_happened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(ControlError, match="has not replied in time"):
            client.call(path, "permission.respond", {})


async def test_a_result_comes_back(tmp_path: Path) -> None:
    async with _serving(tmp_path, FakeControlTarget()) as path:
        result = await anyio.to_thread.run_sync(lambda: client.call(path, "status", {}))
        assert result == {"agents": {"claude": "running"}}


async def test_an_error_comes_back_with_its_code_and_what_was_offered(tmp_path: Path) -> None:
    params = {"session_id": SESSION, "request_id": REQUEST, "option_id": "nope"}
    async with _serving(tmp_path, FakeControlTarget()) as path:
        with pytest.raises(CommandRefused) as caught:
            await anyio.to_thread.run_sync(lambda: client.call(path, "permission.respond", params))
        assert (caught.value.code, caught.value.offered) == ("invalid_permission_option", OFFERED)


@asynccontextmanager
async def _serving(tmp_path: Path, target: FakeControlTarget) -> AsyncGenerator[Path]:
    folder = _make_private(tmp_path)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await tasks.start(control.serve, folder, target)
            yield control.socket_path(folder)
            tasks.cancel_scope.cancel()


async def test_a_follower_gets_old_and_new_records_until_the_bridge_ends(tmp_path: Path) -> None:
    folder = _make_private(tmp_path)
    target = FakeControlTarget(records=[make_record(1)])
    heard: list[object] = []

    def follow() -> None:
        for record in client.follow(control.socket_path(folder), {"session_id": SESSION}):
            heard.append(record["sequence"])
            anyio.from_thread.run_sync(store_the_next)

    def store_the_next() -> None:
        if len(heard) < 3:
            target.publish(make_record(len(heard) + 1))
        else:
            tasks.cancel_scope.cancel()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await tasks.start(control.serve, folder, target)
            await anyio.to_thread.run_sync(follow)
    assert heard == [1, 2, 3]


def _make_private(tmp_path: Path) -> Path:
    (tmp_path / "s").mkdir(mode=0o700)
    return tmp_path / "s"
