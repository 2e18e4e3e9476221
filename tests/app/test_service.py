"""`run` as a program of its own: who may run beside it, and what its signals leave behind."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge import config
from bridge.app.inspection import ask_running_bridge
from bridge.app.service import serve
from bridge.core.errors import BridgeError
from bridge.demo.homeserver import Account
from bridge.ops.findings import RunningBridge
from bridge.ops.folder import hold_state_folder
from tests.peers.homeserver import FORBIDDEN, Fault, Homeserver
from tests.peers.service import START_S, Service, running, write_config

AGENT = Path(__file__).parents[1] / "peers" / "scripted_agent.py"
ROOM = "!room"
END_S = 10.0  # interface.md: a stop takes less
GONE_S = 5.0  # SIGKILL cannot be refused, but a parent may take its time to notice

Step = dict[str, Any]


@pytest.fixture
async def homeserver() -> AsyncGenerator[Homeserver]:
    async with Homeserver().serving() as homeserver:
        homeserver.room(ROOM)
        yield homeserver


def _configure(folder: Path, homeserver: Homeserver, *steps: Step) -> Path:
    script = folder / "script"
    script.write_text("".join(json.dumps(step) + "\n" for step in steps))
    bot = Account(
        user_id=homeserver.user_id, device_id=homeserver.device_id, access_token=homeserver.token, password=""
    )
    agent: dict[str, object] = {
        "command": [sys.executable, str(AGENT), str(script), str(folder / "log")],
        "room": ROOM,
        "approvers": ["@alice:hs"],
    }
    return write_config(folder, homeserver.url, bot, {"claude": agent})


@asynccontextmanager
async def _asking(folder: Path, homeserver: Homeserver, *steps: Step) -> AsyncGenerator[Service]:
    """A bridge whose agent has asked, and whose room was told."""
    async with running(_configure(folder, homeserver, *steps, {"ask": 7})) as service:
        with anyio.fail_after(START_S):
            await homeserver.until(lambda: any("options" in event.content for event in homeserver.sent))
        yield service


def _answers(folder: Path) -> list[Any]:
    lines = map(json.loads, (folder / "log").read_text().splitlines())
    return [line["result"] for line in lines if line.get("id") == 7]


async def test_a_second_bridge_leaves_what_waits_for_the_first_alone(tmp_path: Path, homeserver: Homeserver) -> None:
    loaded = config.load(_configure(tmp_path, homeserver))
    loaded.state_dir.mkdir(mode=0o700)
    with (
        hold_state_folder(loaded.state_dir),
        pytest.raises(BridgeError, match=r"^Another bridge is running with the state folder"),
        anyio.fail_after(END_S),
    ):
        await serve(loaded)
    assert (loaded.ledger_file.exists(), homeserver.requests) == (False, [])


async def test_a_homeserver_that_shows_no_keys_of_ours_still_has_its_unencrypted_rooms_served(
    tmp_path: Path, homeserver: Homeserver
) -> None:
    homeserver.keys.hidden = True
    async with _asking(tmp_path, homeserver) as service:
        (line,) = service.logged("crypto.unavailable")
    assert "other keys" in line["why"]


async def test_a_homeserver_that_takes_no_keys_still_has_its_unencrypted_rooms_served(
    tmp_path: Path, homeserver: Homeserver
) -> None:
    homeserver.fail_always("keys_upload", Fault(status=403, body=FORBIDDEN))
    async with _asking(tmp_path, homeserver) as service:
        (line,) = service.logged("crypto.unavailable")
    assert "The homeserver refuses the keys of this device (M_FORBIDDEN)." == line["why"]


@pytest.fixture(autouse=True)
def _hangup_ends_programs() -> Iterator[None]:
    """A suite that was started under `nohup` ignores SIGHUP, and so would the programs that it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_in_order(number: signal.Signals, tmp_path: Path, homeserver: Homeserver) -> None:
    async with _asking(tmp_path, homeserver) as service:
        service.send_signal(number)
        assert await service.ended(seconds=END_S) == 0
    assert _answers(tmp_path) == [{"outcome": {"outcome": "cancelled"}}]


async def test_a_second_signal_leaves_no_harness_behind(tmp_path: Path, homeserver: Homeserver) -> None:
    stubborn: list[Step] = [{"ignore_sigterm": True}, {"ignore_eof": True}]
    async with _asking(tmp_path, homeserver, *stubborn) as service:
        (started,) = service.logged("agent.started")
        service.send_signal(signal.SIGINT)
        await service.until(lambda: service.logged("bridge.ending"), seconds=END_S)
        service.send_signal(signal.SIGINT)
        assert await service.ended(seconds=END_S) == 1
        with anyio.fail_after(GONE_S):
            while _lives(started["pid"]):  # noqa: ASYNC110 - another process: nothing to wait on
                await anyio.sleep(0.02)


async def test_an_agent_and_a_homeserver_that_do_nothing_more_do_not_hold_up_the_end(
    tmp_path: Path, homeserver: Homeserver
) -> None:
    stubborn: list[Step] = [{"ignore_sigterm": True}, {"ignore_eof": True}]
    async with _asking(tmp_path, homeserver, *stubborn) as service:
        (started,) = service.logged("agent.started")
        os.kill(started["pid"], signal.SIGSTOP)
        homeserver.say(ROOM, "x" * 200_000)  # fills the agent's stdin
        with anyio.fail_after(END_S):
            await homeserver.until(lambda: homeserver.count("typing") > 0)  # the turn has begun
        homeserver.fail_always("send", Fault(gate=asyncio.Event()))
        assert await service.end(seconds=END_S) == 0


async def test_a_homeserver_that_shows_no_profiles_is_served_all_the_same(
    tmp_path: Path, homeserver: Homeserver
) -> None:
    homeserver.fail_always("profile", Fault(status=403, body=FORBIDDEN))
    async with _asking(tmp_path, homeserver) as service:
        assert await service.end() == 0


async def test_a_running_bridge_says_how_it_is_to_whoever_checks_it(tmp_path: Path, homeserver: Homeserver) -> None:
    limit = {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1}
    homeserver.fail("profile", Fault(status=429, body=limit), Fault(status=429, body=limit))
    async with _asking(tmp_path, homeserver):
        status = await anyio.to_thread.run_sync(ask_running_bridge, tmp_path / "state")
    assert status == RunningBridge(no_encryption=None, times_limited=2)


def _lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return re.search(r"^State:\s+Z", status, re.MULTILINE) is None
