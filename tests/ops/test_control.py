import json
import os
import pwd
import socket
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from bridge.core.errors import BridgeError, ConfigError, LedgerFull
from bridge.ops import control
from bridge.ops.calls import LINE_LIMIT_BYTES
from tests.fakes.control_target import OFFERED, OTHER, REQUEST, SESSION, FakeControlTarget, make_record

REPLY_LIMIT = 10_000_000
ANSWER = {"session_id": SESSION, "request_id": REQUEST, "option_id": "allow_once"}


class Wire:
    """A client that writes what it is told and reads line by line."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._lines = BufferedByteReceiveStream(stream)

    async def write(self, raw: bytes) -> None:
        await self._stream.send(raw)

    async def read(self) -> dict[str, Any]:
        return json.loads(await self._lines.receive_until(b"\n", REPLY_LIMIT))

    async def hang_up(self) -> None:
        await self._stream.aclose()

    async def call(self, method: str, params: object = None) -> dict[str, Any]:
        await self.write(
            json.dumps({"jsonrpc": "2.0", "id": 5, "method": method, "params": params or {}}).encode() + b"\n"
        )
        return await self.read()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def target() -> FakeControlTarget:
    return FakeControlTarget()


def _let_others_in(folder: Path) -> None:
    folder.chmod(0o750)


@asynccontextmanager
async def _serving(state_dir: Path, target: FakeControlTarget) -> AsyncGenerator[Path]:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await tasks.start(control.serve, state_dir, target)
            yield control.socket_path(state_dir)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _connected(state_dir: Path, target: FakeControlTarget) -> AsyncGenerator[Wire]:
    async with _serving(state_dir, target) as path, await anyio.connect_unix(path) as stream:
        yield Wire(stream)


async def test_the_socket_is_for_its_owner_alone(state_dir: Path, target: FakeControlTarget) -> None:
    async with _serving(state_dir, target) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the folder alone keeps others out at first")
async def test_the_socket_is_so_from_its_first_moment(
    state_dir: Path, target: FakeControlTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tighten_nothing(_path: Path, _mode: int) -> None:
        return

    monkeypatch.setattr(Path, "chmod", tighten_nothing)
    before = os.umask(0)
    try:
        async with _serving(state_dir, target) as path:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


async def test_a_folder_that_others_can_enter_is_refused(state_dir: Path, target: FakeControlTarget) -> None:
    _let_others_in(state_dir)
    with anyio.fail_after(5), pytest.raises(BridgeError, match="0700"):
        await control.serve(state_dir, target)


async def test_the_socket_is_gone_after_the_end(state_dir: Path, target: FakeControlTarget) -> None:
    async with _serving(state_dir, target) as path:
        pass
    assert not path.exists()


async def test_a_dead_socket_is_replaced(state_dir: Path, target: FakeControlTarget) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(control.socket_path(state_dir)))
    async with _connected(state_dir, target) as wire:
        assert (await wire.call("status"))["result"] == {"agents": {"claude": "running"}}


async def test_a_socket_that_answers_is_never_replaced(state_dir: Path, target: FakeControlTarget) -> None:
    async with _connected(state_dir, target) as wire:
        with anyio.fail_after(5), pytest.raises(BridgeError, match="Another bridge is running"):
            await control.serve(state_dir, FakeControlTarget())
        assert "result" in await wire.call("status")


async def test_a_file_in_the_place_of_the_socket_stays(state_dir: Path, target: FakeControlTarget) -> None:
    control.socket_path(state_dir).write_text("mine")
    with anyio.fail_after(5), pytest.raises(BridgeError, match="in the way"):
        await control.serve(state_dir, target)
    assert control.socket_path(state_dir).read_text() == "mine"


def test_a_path_too_long_for_a_socket_is_said_clearly() -> None:
    with pytest.raises(ConfigError, match="choose a shorter state_dir"):
        control.socket_path(Path("/" + "x" * 100))


async def test_an_answer_names_the_unix_user_and_is_accepted_once(state_dir: Path, target: FakeControlTarget) -> None:
    async with _connected(state_dir, target) as wire:
        first = await wire.call("permission.respond", ANSWER)
        second = await wire.call("permission.respond", ANSWER)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert first == {"jsonrpc": "2.0", "id": 5, "result": {"status": "accepted"}}
    assert second["result"] == {"status": "not_pending", "reason": "already_resolved"}
    assert (f"local:{user}", os.getuid(), None) == target.calls[0]


@pytest.mark.parametrize("option", OFFERED)
async def test_an_option_id_arrives_code_point_for_code_point(
    option: str, state_dir: Path, target: FakeControlTarget
) -> None:
    async with _connected(state_dir, target) as wire:
        await wire.call("permission.respond", {**ANSWER, "option_id": option})
    assert {REQUEST: option} == target.decided


async def test_an_option_that_was_not_offered_gets_the_offered_ones_and_consumes_nothing(
    state_dir: Path, target: FakeControlTarget
) -> None:
    async with _connected(state_dir, target) as wire:
        refused = await wire.call("permission.respond", {**ANSWER, "option_id": "nope"})
        accepted = await wire.call("permission.respond", {**ANSWER, "option_id": "reject_once"})
    assert {"code": "invalid_permission_option", "offered": list(OFFERED)} == refused["error"]["data"]
    assert accepted["result"]["status"] == "accepted"


async def test_another_session_of_the_bridge_does_not_have_the_request(
    state_dir: Path, target: FakeControlTarget
) -> None:
    async with _connected(state_dir, target) as wire:
        reply = await wire.call("permission.respond", {**ANSWER, "session_id": OTHER})
    assert reply["result"] == {"status": "not_pending", "reason": "request_not_found"}


@pytest.mark.parametrize("method", ["permission.respond", "history.read", "history.subscribe", "session.delete"])
async def test_an_unknown_session_is_said_to_be_unknown(
    method: str, state_dir: Path, target: FakeControlTarget
) -> None:
    params = ANSWER if method == "permission.respond" else {}
    async with _connected(state_dir, target) as wire:
        reply = await wire.call(method, {**params, "session_id": "acps_no"})
        assert reply["error"]["data"]["code"] == "session_not_found"
        assert "result" in await wire.call("status")


async def test_only_a_refusal_counts_where_local_answers_are_off(state_dir: Path, target: FakeControlTarget) -> None:
    target.local_answers = False
    async with _connected(state_dir, target) as wire:
        reply = await wire.call("permission.respond", ANSWER)
    assert reply["error"]["data"]["code"] == "local_answers_off"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("permission.respond", {"request_id": REQUEST, "option_id": "allow_once"}),
        ("permission.respond", {**ANSWER, "option_id": 1}),
        ("permission.respond", {**ANSWER, "revision": "1"}),
        ("permission.respond", {**ANSWER, "revision": True}),
        ("permission.respond", {**ANSWER, "revision": 2}),
        ("permission.respond", {**ANSWER, "optionId": "allow_once"}),
        ("permission.list", ["x"]),
        ("permission.list", {"x": 1}),
        ("status", {"x": 1}),
        ("history.read", {"after": 3}),
        ("history.read", {"session_id": SESSION, "after": {SESSION: 3}}),
        ("history.read", {"session_id": SESSION, "after": -1}),
        ("history.read", {"after": {SESSION: "3"}}),
        ("history.read", {"session_id": 3}),
        ("history.read", {"x": 1}),
        ("history.subscribe", {"after": 3}),
        ("history.subscribe", {"x": 1}),
        ("session.delete", {}),
        ("session.delete", {"session_id": SESSION, "x": 1}),
    ],
)
async def test_wrong_parameters_are_refused_and_consume_nothing(
    method: str, params: object, state_dir: Path, target: FakeControlTarget
) -> None:
    async with _connected(state_dir, target) as wire:
        reply = await wire.call(method, params)
    assert reply["error"]["data"]["code"] == "invalid_params"
    assert (target.decided, target.deleted) == ({}, [])


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"hello", "parse_error", None),
        (b"\xff", "parse_error", None),
        (b"[" * 100_000, "parse_error", None),
        (b"x" * (LINE_LIMIT_BYTES + 1), "parse_error", None),
        (b"y" * (3 * LINE_LIMIT_BYTES), "parse_error", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"status"}'.rjust(3 * LINE_LIMIT_BYTES), "parse_error", None),
        (b"[]", "invalid_request", None),
        (b"42", "invalid_request", None),
        (b'{"jsonrpc":"2.0","method":"status"}', "invalid_request", None),
        (b'{"jsonrpc":"2.0","id":true,"method":"status"}', "invalid_request", None),
        (b'{"id":3,"method":"status"}', "invalid_request", 3),
        (b'{"jsonrpc":"2.0","id":"a"}', "invalid_request", "a"),
        (b'{"jsonrpc":"2.0","id":3,"method":"nope"}', "method_not_found", 3),
    ],
)
async def test_bad_input_gets_an_error_and_the_connection_goes_on(
    line: bytes, code: str, request_id: object, state_dir: Path, target: FakeControlTarget
) -> None:
    async with _connected(state_dir, target) as wire:
        await wire.write(line + b"\n\n")
        reply = await wire.read()
        assert (code, request_id) == (reply["error"]["data"]["code"], reply["id"])
        assert "result" in await wire.call("status")


async def test_the_longest_line_allowed_is_read(state_dir: Path, target: FakeControlTarget) -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"status"}'
    async with _connected(state_dir, target) as wire:
        await wire.write(line.rjust(LINE_LIMIT_BYTES) + b"\n")
        assert "result" in await wire.read()


async def test_a_ledger_that_fails_is_said_and_the_connection_goes_on(
    state_dir: Path, target: FakeControlTarget
) -> None:
    target.fault = LedgerFull("No space is left for the ledger.")
    async with _connected(state_dir, target) as wire:
        reply = await wire.call("permission.respond", ANSWER)
        assert "result" in await wire.call("status")
    assert (reply["error"]["message"], reply["error"]["data"]["code"]) == (
        "No space is left for the ledger.",
        "internal_error",
    )


async def test_a_user_without_a_name_answers_by_number(
    state_dir: Path, target: FakeControlTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", find_nobody)
    async with _connected(state_dir, target) as wire:
        await wire.call("permission.respond", ANSWER)
    assert target.calls[0][0] == f"local:{os.getuid()}"


async def test_what_waits_is_listed_as_the_bridge_gives_it(state_dir: Path, target: FakeControlTarget) -> None:
    async with _connected(state_dir, target) as wire:
        reply = await wire.call("permission.list")
    assert {"pending": target.list_pending()} == reply["result"]


async def test_a_session_is_deleted_by_its_id(state_dir: Path, target: FakeControlTarget) -> None:
    async with _connected(state_dir, target) as wire:
        reply = await wire.call("session.delete", {"session_id": SESSION})
    assert (reply["result"], target.deleted) == ({}, [SESSION])


async def test_a_question_is_asked_for_an_agent_by_its_name(state_dir: Path, target: FakeControlTarget) -> None:
    target.reply = {"ending": "answered"}
    async with _connected(state_dir, target) as wire:
        assert {"ending": "answered"} == (await wire.call("question.ask", {"agent": "claude"}))["result"]
        refused = await wire.call("question.ask", {"agent": "nobody"})
        assert "invalid_params" == refused["error"]["data"]["code"]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, [(SESSION, 1), (OTHER, 1), (SESSION, 2)]),
        ({"session_id": None, "after": None}, [(SESSION, 1), (OTHER, 1), (SESSION, 2)]),
        ({"session_id": SESSION}, [(SESSION, 1), (SESSION, 2)]),
        ({"session_id": SESSION, "after": 1}, [(SESSION, 2)]),
        ({"after": {SESSION: 2}}, [(OTHER, 1)]),
    ],
)
async def test_history_is_read_in_order_after_each_sessions_number(
    params: object, expected: list[tuple[str, int]], state_dir: Path, target: FakeControlTarget
) -> None:
    target.records = [make_record(1), make_record(1, session=OTHER), make_record(2)]
    async with _connected(state_dir, target) as wire:
        records = (await wire.call("history.read", params))["result"]["records"]
    assert expected == [(record["session_id"], record["sequence"]) for record in records]
    assert {"timestamp", "type", "agent"} < records[0].keys()


async def test_a_subscriber_gets_what_there_is_and_then_each_new_record_once(
    state_dir: Path, target: FakeControlTarget
) -> None:
    target.records = [make_record(1)]
    target.reading, target.go_on = anyio.Event(), anyio.Event()
    async with _connected(state_dir, target) as wire:
        await wire.write(b'{"jsonrpc":"2.0","id":5,"method":"history.subscribe"}\n')
        await target.reading.wait()
        target.publish(make_record(1))  # was read already, and comes again as a new one
        target.publish(make_record(2))  # was stored after the reading
        target.go_on.set()
        first = await wire.read()
        second = await wire.read()
    assert len(first["result"]["records"]) == 1
    assert (second["method"], second["params"]["sequence"]) == ("history.record", 2)
    assert "id" not in second


async def test_a_subscriber_of_one_session_hears_nothing_of_others(state_dir: Path, target: FakeControlTarget) -> None:
    async with _connected(state_dir, target) as wire:
        await wire.call("history.subscribe", {"session_id": SESSION, "after": 1})
        for record in (make_record(1, session=OTHER), make_record(1), make_record(2)):
            target.publish(record)
        heard = (await wire.read())["params"]
    assert (heard["session_id"], heard["sequence"]) == (SESSION, 2)


async def test_a_subscriber_can_go_on_asking_but_not_subscribe_again(
    state_dir: Path, target: FakeControlTarget
) -> None:
    async with _connected(state_dir, target) as wire:
        await wire.call("history.subscribe")
        again = await wire.call("history.subscribe")
        status = await wire.call("status")
    assert again["error"]["data"]["code"] == "invalid_request"
    assert "result" in status


async def test_a_subscriber_that_fell_behind_is_hung_up_on(state_dir: Path, target: FakeControlTarget) -> None:
    async with _connected(state_dir, target) as wire:
        await wire.call("history.subscribe")
        await target.readers[0].aclose()
        with pytest.raises(anyio.IncompleteRead):
            await wire.read()


async def test_a_client_that_hangs_up_harms_nobody(state_dir: Path, target: FakeControlTarget) -> None:
    async with _serving(state_dir, target) as path:
        gone = Wire(await anyio.connect_unix(path))
        await gone.call("history.subscribe")
        await gone.hang_up()
        for sequence in range(1, 5):
            target.publish(make_record(sequence))
        async with await anyio.connect_unix(path) as stream:
            assert "result" in await Wire(stream).call("status")


async def test_too_many_clients_are_turned_away_until_one_leaves(state_dir: Path, target: FakeControlTarget) -> None:
    async with _serving(state_dir, target) as path:
        wires = [Wire(await anyio.connect_unix(path)) for _ in range(control.CLIENT_LIMIT)]
        for wire in wires:
            await wire.call("status")
        refused = Wire(await anyio.connect_unix(path))
        assert (await refused.read())["error"]["data"]["code"] == "too_many_clients"
        with pytest.raises(anyio.IncompleteRead):
            await refused.read()
        await wires[0].hang_up()
        while True:  # the server sees the hang-up when it next runs
            latest = Wire(await anyio.connect_unix(path))
            reply = await latest.call("status")
            await latest.hang_up()
            if "result" in reply:
                break
        for wire in (refused, *wires):
            await wire.hang_up()
