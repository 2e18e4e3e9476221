"""The world of one run: the homeserver, the ledger's folder, the clock that the runner moves, and what came of it all.

Above it: steps, which plays a case on it; verdict and claims, which look at it afterwards. Below it: life, and the stub
homeserver. It knows how to find a prompt, an edit or a notice among what was sent; it refuses to know what is right.
"""

import asyncio
import json
import logging
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus
from structlog.testing import capture_logs

from bridge.core.changes import Record
from bridge.core.errors import KeysLost, LedgerError
from bridge.core.model import Millis, Request, RequestId, SessionId, UserId
from bridge.matrix.client import Client
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.sealing import Sealing
from bridge.store.ledger import SqliteLedger
from tests.cases.faulty import Commit, FaultyLedger
from tests.cases.life import BOT, PATIENCE_S, Life, Setup
from tests.cases.wording import READABLE
from tests.fakes.sealing import FakeSealing, unseal
from tests.peers.homeserver import Homeserver, SentEvent

TOKEN = "tok-Okapi-52"  # looks for itself in logs, room and ledger
START_MS = 1_793_505_600_000  # 2026-11-01T04:00:00Z: half an hour before the clocks of St John's go back
ADMIN = "@admin:ex.org"
MEMBERS = ("@alice:ex.org", "@bob:ex.org", "@carol:ex.org", "@mod:ex.org")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """How far things were when what a fault had held up was let go."""

    sent: int
    lines: Mapping[str, int]


class _Kept(logging.Handler):
    """Keeps what the standard library's logging was told, beside structlog's entries."""

    def __init__(self, logs: list[Any]) -> None:
        super().__init__(logging.WARNING)
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        self._logs.append({"event": record.getMessage(), "log_level": record.levelname.lower(), "logger": record.name})


class Stage:
    """The world of one run."""

    def __init__(self, setup: Setup, homeserver: Homeserver, folder: Path, tasks: TaskGroup, logs: list[Any]) -> None:
        self.setup = setup
        self.homeserver = homeserver
        self.folder = folder
        self.logs = cast("list[Json]", logs)
        self.life: Life | None = None
        self.lives: list[Life] = []
        self.records: list[Record] = []
        self.commits: list[Commit] = []
        self.ledger_faults = list[LedgerError]()
        self.marks: list[Mark] = []
        self.asked: list[Json] = []  # the frames of `ask` steps, in order
        self.last_words: dict[str, tuple[str, ...]] = {}  # of each agent's stderr, as kept when the run was over
        self.kept_updates = 0  # tool calls that were remembered when the run was over
        self.true_ms = START_MS
        self.clock_offset_s = 0
        self.files: dict[str, bytes] = {}  # of the state folder, once the run is over
        self.unread_before = self.unread_after = (
            0  # messages of a flood, when an answer was given and when it was there
        )
        self.sealing = FakeSealing()  # of the bridge's device, over all its lives
        self.sealing.keys.add(READABLE)
        self.checked = ""  # what `check` says of this bridge, where a case asks for that
        self._first_request = 0  # where a round of a case that is played many times begins
        self.sends_held = False  # the homeserver is slow: nobody waits for what is on its way
        self.writes_held = False  # an agent is slow: nobody waits for what it has to read
        self._tasks = tasks
        self._sessions = 0
        self._tokens = 0
        self._real_lines: list[Json] = []

    # ------------------------------------------------------------------------------------------------ starts and kills

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    async def start(self) -> Life:
        """Start the bridge on this ledger, each agent anew."""
        life: Life = await self._tasks.start(self._live)
        self.life = life
        self.lives.append(life)
        return life

    async def kill(self) -> None:
        """End the bridge without any order: nothing more is stored, sent or answered."""
        if self.life is not None:
            life, self.life = self.life, None
            self.last_words = {agent: process.last_lines for agent, process in life.processes.items()}
            self.kept_updates = life.count_kept_updates()
            life.killed.set()
            await life.over.wait()

    @property
    def running(self) -> Life:
        assert self.life is not None
        return self.life

    async def _live(self, *, task_status: TaskStatus[Life]) -> None:
        ledger = await SqliteLedger.open(self.state_dir / "ledger.db")
        client = Client(self.homeserver.url, user_id=BOT, device_id=self.homeserver.device_id, access_token=TOKEN)
        sealing, why = self._open_keys()
        life = Life(
            self.setup,
            client,
            FaultyLedger(ledger, self.ledger_faults, self.commits),
            clock=self.read_clock,
            new_session_id=self._new_session_id,
            new_token=self._new_token,
            sealing=sealing,
            no_sealing_reason=why,
        )
        try:
            await life.run((await life.relay.load()).token, lambda: task_status.started(life))
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()
                await ledger.close()
            life.over.set()

    def _open_keys(self) -> tuple[Sealing | None, str]:
        """The keys of the bridge's device, or why there are none."""
        if not self.setup.keys_lost:
            return (self.sealing if self.setup.encrypted else None), "Encryption is not set up."
        try:
            Machine(self.state_dir, UserId(BOT), self.homeserver.device_id)
        except KeysLost as error:
            return None, str(error)
        raise AssertionError("unreachable")

    def _new_session_id(self) -> SessionId:
        self._sessions += 1
        return SessionId(f"acps_{self._sessions:016x}")

    def _new_token(self) -> str:
        self._tokens += 1
        return f"token{self._tokens}"

    # ---------------------------------------------------------------------------------------------------- time and rest

    def read_clock(self) -> Millis:
        """The local clock, which may be wrong."""
        return Millis(self.true_ms + self.clock_offset_s * 1000)

    def pass_time(self, seconds: float) -> None:
        """Let time pass: deadlines that it reaches are met at once."""
        self.true_ms += int(seconds * 1000)
        if self.life is not None:
            self.life.relay.wake()

    async def settle(self) -> None:
        """Return once nothing moves any more: all that was said is taken, all that follows from it is done and echoed."""
        if self.life is None:
            return
        life = self.life
        with anyio.fail_after(PATIENCE_S):
            while True:
                before = self._progress(life)
                await life.settle(sends=not self.sends_held, writes=not self.writes_held)
                await self.homeserver.until_followed()
                await life.drain()
                if before == self._progress(life):
                    break
            await self._read_records(life)

    def _progress(self, life: Life) -> tuple[int, ...]:
        return len(self.homeserver.stream), *life.progress()

    async def _read_records(self, life: Life) -> None:
        last: dict[SessionId, int] = {}
        for record in self.records:
            last[record.session_id] = record.sequence
        self.records += await life.ledger.history(last)

    def begin_round(self) -> None:
        """From here on `P1` is the next request."""
        self._first_request = sum(record.type == "permission_request" for record in self.records)

    def keep_files(self) -> None:
        """Read what goes with the stage: the state folder, and what a real program has noted."""
        if self.setup.command:
            noted = Path(self.setup.command[-1]).read_bytes()
            self._real_lines = [cast("Json", json.loads(line)) for line in noted.splitlines()]
        self.files = {path.name: path.read_bytes() for path in self.state_dir.iterdir() if path.is_file()}

    def mark(self) -> None:
        """Remember how far things are now."""
        agents = self.setup.agents
        self.marks.append(Mark(len(self.homeserver.sent), {agent: len(self.lines(agent)) for agent in agents}))

    # ------------------------------------------------------------------------------------------------------ what came

    @property
    def sent(self) -> list[SentEvent]:
        """Every event that the bridge has put into a room, in order, as who has the keys reads it."""
        return [_read(event) for event in self.homeserver.sent]

    def lines(self, agent: str = "A") -> list[Json]:
        """Every line that this agent has read, over all lives of the bridge."""
        if self.setup.command:
            return self._real_lines
        fakes = [life.fake(agent) for life in self.lives if agent in life.processes]
        return [cast("Json", line) for fake in fakes for line in fake.lines]

    def responses(self, agent: str = "A") -> list[Json]:
        """What this agent was answered, in order."""
        return [line for line in self.lines(agent) if "method" not in line]

    @property
    def request_ids(self) -> list[RequestId]:
        """The requests that were accepted, in order."""
        asked = [record for record in self.records if record.type == "permission_request"]
        return [RequestId(str(record.fields["request_id"])) for record in asked][self._first_request :]

    def request_id(self, name: str) -> RequestId:
        """The request that a case calls `P1`, `P2` or `P_last`."""
        found = self.request_ids
        return found[-1] if name == "P_last" else found[int(name.removeprefix("P")) - 1]

    def request(self, name: str) -> Request:
        """What the bridge's latest life knows of a request."""
        return self.lives[-1].relay.state.entries[self.request_id(name)].request

    def rows(self, kind: str, name: str) -> list[Record]:
        """The history rows of one type about one request."""
        request_id = self.request_id(name)
        return [row for row in self.records if row.type == kind and row.fields["request_id"] == request_id]

    def ending(self, name: str) -> str:
        """What has become of a request, by the history."""
        ended = self.rows("permission_ended", name)
        return str(ended[-1].fields["ending"]) if ended else "pending"

    def prompts(self, name: str) -> list[SentEvent]:
        """The messages of one request, the latest last."""
        ids = [row.fields["event_id"] for row in self.rows("permission_posted", name)]
        return [event for event_id in ids for event in self.sent if event.event_id == event_id]

    def edits(self, of: SentEvent) -> list[SentEvent]:
        """The edits of a message."""
        return [event for event in self.sent if relation(event) == ("m.replace", of.event_id)]

    def seeds(self, of: SentEvent) -> list[SentEvent]:
        """The reactions that the bot put under a message."""
        return [event for event in self.sent if relation(event) == ("m.annotation", of.event_id)]

    @property
    def notices(self) -> list[SentEvent]:
        """What the bot said besides prompts, their edits and seeds."""
        prompts = {str(row.fields["event_id"]) for row in self.records if row.type == "permission_posted"}
        return [
            event
            for event in self.sent
            if event.type == "m.room.message" and relation(event)[0] is None and event.event_id not in prompts
        ]


def _read(event: SentEvent) -> SentEvent:
    if event.type != "m.room.encrypted":
        return event
    inner = unseal(event.content)
    return replace(event, type=inner["type"], content=inner["content"])


def relation(event: SentEvent) -> tuple[str | None, str | None]:
    """How an event relates to which other."""
    relates: Json = event.content.get("m.relates_to", {})
    return relates.get("rel_type"), relates.get("event_id")


@asynccontextmanager
async def staging(setup: Setup) -> AsyncGenerator[Stage]:
    """A world in which nothing has happened yet. At its end nothing of it is left: no task, no process, no file."""
    before = asyncio.all_tasks()
    homeserver = Homeserver()
    homeserver.user_id, homeserver.token, homeserver.display_name = BOT, TOKEN, setup.display_name
    with capture_logs() as logs, tempfile.TemporaryDirectory(prefix="case") as folder:
        kept = _Kept(logs)
        logging.getLogger().addHandler(kept)
        try:
            async with homeserver.serving(), anyio.create_task_group() as tasks:
                stage = Stage(setup, homeserver, Path(folder), tasks, logs)
                try:
                    yield stage
                finally:
                    with anyio.CancelScope(shield=True):
                        await stage.kill()
        finally:
            logging.getLogger().removeHandler(kept)
        left = asyncio.all_tasks() - before
        if left:
            _, left = await asyncio.wait(left, timeout=PATIENCE_S)
        assert not left, f"tasks are left: {left}"
