"""The processes of a benchmark: the homeserver, the real bridge, the floors, and what each reports.

Above it: the measures. Below it: the operating system. Everything lies in one folder that is removed at the end, and every
process that is started here is ended here. Only loopback and sockets of that folder are used.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.bench.homeserver import PERSON, ROOM, user_of

TOKEN = "bridge"  # the account's name on the stub
AGENT = Path(__file__).with_name("agent.py")
ROOT = AGENT.parents[2]
REPORT_WAIT_S = 60.0  # a report that has not come by then never will
END_WAIT_S = 15.0  # the bridge promises 10 s
QUIET_S = 0.01  # nothing has been sent for so long, and the sync waits: the bridge has nothing left to do
LOOK_S = 0.003  # that nothing happens any more is no event, so it is looked for
LINE_LIMIT_BYTES = 2**24

Report = dict[str, Any]


class Stage:
    """What the processes report, by who and what, and the way to tell them something."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "control"
        self._reports: defaultdict[tuple[str, str], asyncio.Queue[Report]] = defaultdict(asyncio.Queue)
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._held: set[str] = set()
        self._listeners: set[asyncio.Task[None]] = set()
        self._last_at = 0.0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One process, from its first report, which names it, to its end."""
        listener = asyncio.current_task()
        if listener is None:
            raise AssertionError("unreachable")
        self._listeners.add(listener)
        # A cancelled one is the benchmark ended early: asyncio would print a traceback for each.
        with suppress(asyncio.CancelledError):
            first: Report = json.loads(await reader.readline())
            name = first["name"]
            self._writers[name] = writer
            self._note(name, {"kind": "here", **first})
            async for line in reader:
                self._note(name, json.loads(line))
        writer.close()

    def _note(self, process: str, report: Report) -> None:
        name = report.get("name", process)
        if report["kind"] == "held":
            self._held.add(name)
        elif process == "homeserver" and report["kind"] != "call":
            self._held.discard(name)
        self._last_at = asyncio.get_running_loop().time()
        self._reports[name, report["kind"]].put_nowait(report)

    async def see_end(self) -> None:
        """Wait until every process that ever reported is gone."""
        if self._listeners:
            _, left = await asyncio.wait(self._listeners, timeout=END_WAIT_S)
            if left:
                raise SystemExit(f"{len(left)} processes of the benchmark did not end.")

    def tell(self, process: str, **command: object) -> None:
        """Have a process do something."""
        self._writers[process].write(json.dumps(command).encode() + b"\n")

    async def hear(self, name: str, kind: str) -> Report:
        """The next report of this kind, of those that nobody has heard yet."""
        async with asyncio.timeout(REPORT_WAIT_S):
            return await self._reports[name, kind].get()

    def heard(self, name: str, kind: str) -> int:
        """How many such reports wait to be heard."""
        return self._reports[name, kind].qsize()

    def begin(self, account: str, people: Sequence[str], *, encrypted: bool) -> None:
        """Have an account begin anew, in a room with these people."""
        self.forget(account)
        self._held.discard(account)
        self.tell("homeserver", begin=account, people=people, encrypted=encrypted)

    def forget(self, name: str) -> None:
        """Drop what this account has sent so far."""
        for key in [key for key in self._reports if key[0] == name]:
            self._reports[key] = asyncio.Queue()

    async def rest(self, name: str) -> None:
        """Wait until this account has sent everything and its sync waits at the end of what happened."""
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(REPORT_WAIT_S):
            while name not in self._held or now() - self._last_at < QUIET_S:  # noqa: ASYNC110 - that nothing happens is no event
                await asyncio.sleep(LOOK_S)


@contextmanager
def make_folder() -> Generator[Path]:
    """A folder on a real disk: where a machine keeps /tmp in memory, a commit would cost nothing."""
    where = None if os.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK) else "/var/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="bridge-bench-", dir=where) as folder:
        yield Path(folder)


@asynccontextmanager
async def set_up(folder: Path) -> AsyncGenerator[tuple[Stage, str]]:
    """The stage, with its homeserver at the address that is given back."""
    stage = Stage(folder)
    server = await asyncio.start_unix_server(stage.take, stage.socket, limit=LINE_LIMIT_BYTES)
    try:
        with running(["-m", "tests.bench.homeserver", str(stage.socket)]):
            port = (await stage.hear("homeserver", "here"))["port"]
            yield stage, f"http://127.0.0.1:{port}"
    finally:
        server.close()
        await stage.see_end()


@contextmanager
def running(words: Sequence[str], log: Path | None = None) -> Generator[subprocess.Popen[bytes]]:
    """A Python program, ended at the end."""
    with (log or Path(os.devnull)).open("ab") as stderr:
        process = subprocess.Popen(  # noqa: S603 - our own programs
            [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stderr=stderr if log else None
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@asynccontextmanager
async def run_bridge(
    stage: Stage,
    homeserver: str,
    agents: Sequence[str],
    *,
    account: str = TOKEN,
    people: Sequence[str] = (PERSON,),
    encrypted: bool = False,
) -> AsyncGenerator[int]:
    """The real `python -m bridge run` with these agents, all in one room; gives back its process id once all are ready.

    The first agent has everything as by default; the others only fill the room, without reactions to save time.
    """
    stage.begin(account, people, encrypted=encrypted)
    folder = Path(tempfile.mkdtemp(prefix=f"{account}-", dir=stage.folder))
    (folder / "token").write_text(account)
    (folder / "token").chmod(0o600)
    sections = [
        f"[agents.{name}]\ncommand = {json.dumps([sys.executable, str(AGENT), str(stage.socket), name])}\n"
        f'room = "{ROOM}"\napprovers = ["{PERSON}"]\ncwd = {json.dumps(str(folder))}\n'
        f"reactions = {'true' if name == agents[0] else 'false'}\n"
        for name in agents
    ]
    config = folder / "config.toml"
    config.write_text(
        f'state_dir = {json.dumps(str(folder / "state"))}\n[matrix]\nhomeserver = "{homeserver}"\n'
        f'user_id = "{user_of(account)}"\naccess_token_file = "token"\n' + "\n".join(sections)
    )
    log = folder / "log"
    with running(["-m", "bridge", "--config", str(config), "run"], log) as process:
        try:
            for name in agents:
                await stage.hear(name, "ready")
            await stage.rest(account)
        except TimeoutError:
            raise SystemExit(f"The bridge did not start:\n{log.read_text()}") from None
        yield process.pid


@asynccontextmanager
async def run_floors(stage: Stage, homeserver: str, body: str) -> AsyncGenerator[None]:
    """The two floors, which send this body."""
    prompt, disk = stage.folder / "prompt.json", stage.folder / "disk"
    prompt.write_text(body)
    with running(["-m", "tests.bench.floor", str(stage.socket), homeserver, str(AGENT), str(prompt), str(disk)]):
        await stage.hear("floor-agent", "here")
        await stage.rest("floor")
        yield


def read_memory(pid: int) -> float:
    """Resident megabytes of a process, NaN where the system does not say it in Linux's way."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
