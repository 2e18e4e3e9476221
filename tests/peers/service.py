"""`python -m bridge` as a program of its own: its config, its log, its end."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import anyio.abc

from bridge.demo.homeserver import Account

START_S = 30.0  # of the interpreter with all that it imports, and of the first sync
END_S = 10.0  # what the product promises between SIGTERM and its end
COMMAND_S = 30.0

Json = dict[str, Any]
T = TypeVar("T")


def write_config(folder: Path, homeserver: str, bot: Account, agents: Mapping[str, Json], **matrix: object) -> Path:
    """A config in this folder, with its token beside it."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(bot.access_token)
    section: Json = {"homeserver": homeserver, "user_id": bot.user_id, "access_token_file": str(token)} | matrix
    tables = {"matrix": section} | {f"agents.{name}": agent for name, agent in agents.items()}
    lines = [f"state_dir = {to_toml(str(folder / 'state'))}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {to_toml(value)}" for key, value in table.items() if value is not None)]
    config = folder / "config.toml"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def to_toml(value: object) -> str:
    """JSON's strings, numbers and lists are TOML's; a mapping becomes an inline table."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(item)}" for key, item in value.items()) + " }"  # type: ignore[misc]
    return json.dumps(value, ensure_ascii=False)


class Service:
    """A running `run`."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        self.log: list[Json] = []
        self._moved = anyio.Event()
        self.exit_code: int | None = None

    async def follow(self) -> None:
        """Keep the log until the end."""
        assert self._process.stderr is not None
        rest = b""
        async for data in self._process.stderr:
            *lines, rest = (rest + data).split(b"\n")
            self.log += [read_line(line) for line in lines]
            self._moved.set()
        self.exit_code = await self._process.wait()
        self._moved.set()

    async def until(self, true: Callable[[], T | None], *, seconds: float) -> T:
        """What `true` says once it says something; looked at whenever the log moves."""
        with anyio.fail_after(seconds):
            while not (found := true()):
                self._moved = anyio.Event() if self._moved.is_set() else self._moved
                assert self.exit_code is None, self.log[-5:]
                await self._moved.wait()
        return found

    def logged(self, event: str, **fields: object) -> list[Json]:
        """The lines of the log for this event."""
        return [line for line in self.log if line.get("event") == event and fields.items() <= line.items()]

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self, *, seconds: float = END_S) -> int:
        """Ask it to end and give its exit code; fails when it takes longer than promised."""
        self.send_signal(signal.SIGTERM)
        return await self.ended(seconds=seconds)

    async def kill(self) -> None:
        """End it as a power cut would."""
        self.send_signal(signal.SIGKILL)
        await self.ended(seconds=END_S)

    async def ended(self, *, seconds: float) -> int:
        """Its exit code, once it has ended."""
        with anyio.fail_after(seconds):
            while self.exit_code is None:
                self._moved = anyio.Event() if self._moved.is_set() else self._moved
                await self._moved.wait()
        return self.exit_code


def read_line(line: bytes) -> Json:
    """A line of the log; what is no JSON is kept as it is."""
    try:
        parsed: Any = json.loads(line)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        return cast("Json", parsed)
    return {"event": "", "line": line.decode(errors="replace")}


@asynccontextmanager
async def running(config: Path, *, ready: bool = True, words: tuple[str, ...] = ()) -> AsyncGenerator[Service]:
    """`run` with this config, and `words` before it on its command line; when `ready`, from the moment it says so. Killed at the end if it still runs."""
    process = await anyio.open_process(
        [sys.executable, "-m", "bridge", *words, "run", "--config", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    service = Service(process)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.follow)
        try:
            if ready:
                await service.until(lambda: service.logged("bridge.ready"), seconds=START_S)
            yield service
        finally:
            with anyio.CancelScope(shield=True):
                if service.exit_code is None:
                    await service.kill()
    await process.aclose()


async def command(config: Path, *words: str) -> tuple[int, str, str]:
    """Run another command of the product: its exit code, stdout and stderr."""
    with anyio.fail_after(COMMAND_S):
        done = await anyio.run_process([sys.executable, "-m", "bridge", *words, "--config", str(config)], check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()
