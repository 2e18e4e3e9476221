"""All recordings at once through the whole chain: real processes, the real bridge, a real homeserver, a person who types.

One `python -m bridge run` serves every recording as an agent of its own, in a room of its own; `tests/peers/replay_agent.py`
plays the agent. The person acts when the agent waits: says the recorded words, replies with the number of `expect.json`,
writes `!cancel`, or ends the agent's process where the recording ended so. At the end SIGTERM ends the bridge, which closes
stdin of all agents that still live.

A second session in a recording is a child session here: the bridge opens one session an agent, so the second `session/new` and
its prompt are passed over, and what it asks is asked in the first one's room.
"""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc

from bridge.core.changes import Record
from bridge.core.model import AgentName
from bridge.demo.homeserver import Account, Homeserver
from bridge.store.ledger import read_history
from tests.frames.recordings import Json, Recording
from tests.peers import replay_agent
from tests.peers.service import running, write_config
from tests.peers.watch import Watch, use, watching

AT_ONCE = 10  # recordings that are played at a time: two cores do not finish more of them any sooner
ROOMS_AT_ONCE = 4
PLAY_S = 90.0  # for one recording, of which most take one or two seconds, beside nine others
ALL_S = 300.0  # for all of them, which take one and a half minutes on two cores that do nothing else
END_S = 20.0  # for all of them to end; one alone has ten seconds


@dataclass
class Played:
    """What came of one recording."""

    recording: Recording
    room: str = ""
    pid: int = 0
    read: list[Json] = field(default_factory=list[Json])  # what the agent was sent, in order
    lost: Json | None = None  # what it waited for in vain
    reached: str = "nothing"  # the last thing it waited for
    failure: str | None = None  # why it was not played to its end
    over: anyio.Event = field(default_factory=anyio.Event)  # nothing more comes but the end of stdin
    messages: list[Json] = field(default_factory=list[Json])
    edits: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    history: list[Record] = field(default_factory=list[Record])
    left_over: bool = False  # whether somebody of its process group outlived the bridge

    @property
    def prompts(self) -> list[Json]:
        return [event for event in self.messages if event["content"]["body"].startswith("Permission needed")]

    def answers(self, rpc_id: object) -> list[Any]:
        """The results for one request of the agent, its id compared with its JSON type."""
        wanted = json.dumps(rpc_id)
        return [line.get("result") for line in self.read if "method" not in line and json.dumps(line["id"]) == wanted]

    def recorded(self, kind: str) -> list[Json]:
        """The fields of the history rows of this type, in the order of the requests that they speak of."""
        rows = [record.fields for record in self.history if record.type == kind]
        return sorted(rows, key=lambda fields: int(str(fields["request_id"]).rpartition(":")[2]))


class Replay:
    """The person at the keyboard, one for all rooms, and the agents that tell what they wait for."""

    def __init__(self, played: Sequence[Played], watch: Watch, bot: str) -> None:
        self._bot = bot
        self._played = {str(one.recording.path): one for one in played}
        self._watch = watch
        self._turn = anyio.CapacityLimiter(AT_ONCE)

    async def attend(self, stream: anyio.abc.SocketStream) -> None:
        """One agent, from its first word to its end."""
        async with stream:
            reports = read_reports(stream)
            hello = await anext(reports)
            played = self._played[hello["hello"]]
            played.pid = hello["pid"]
            async with self._turn:
                try:
                    with anyio.fail_after(PLAY_S):
                        await self._play(played, reports, stream)
                except (TimeoutError, AssertionError) as error:  # one recording's failure is no other's
                    played.failure = f"{error!r} while it waited for {played.reached}"
            played.over.set()
            async for report in reports:
                note(played, report)

    async def _play(self, played: Played, reports: AsyncGenerator[Json], stream: anyio.abc.ByteSendStream) -> None:
        """Act whenever the agent waits, until only the end of stdin can follow."""
        async for report in reports:
            note(played, report)
            if "waits" not in report:
                continue
            what, line = report["waits"], report["line"]
            if what in {"session/cancel", "sigterm", "cue", "stdin_close"}:
                await self._until_shown(played, line)
            match what:
                case "session/prompt":
                    await self._until_joined(played)
                    await self._watch.person.say(played.room, played.recording.words)
                case "session/cancel":
                    await self._watch.person.say(played.room, "!cancel")
                case "answer":
                    await self._answer(played, line)
                case "sigterm":
                    os.kill(played.pid, signal.SIGTERM)
                case "cue":
                    await stream.send(b"!")
                case "stdin_close":
                    break
                case _:
                    pass  # the bridge does it by itself
        await self._until_told(played)

    async def _answer(self, played: Played, line: int) -> None:
        """Reply with the number, where it is a person's to answer what the recorded client answered here."""
        for place, request in enumerate(played.recording.requests, 1):
            number = played.recording.number(request)
            if number is not None and request["answers"] and request["answers"][0]["line"] == line:
                await self._until_shown(played, line)
                prompt = self._find_prompt(played, place)
                assert prompt is not None
                await self._watch.reply(played.room, prompt["event_id"], str(number))

    async def _until_joined(self, played: Played) -> None:
        """The bot is in the room: what is said before is not said to it."""

        def joins() -> list[Json]:
            members = self._watch.events(played.room, "m.room.member", self._bot)
            return [event for event in members if event["content"]["membership"] == "join"]

        await self._watch.until(joins, seconds=PLAY_S)

    def _find_prompt(self, played: Played, place: int) -> Json | None:
        start = f"Permission needed (#{place}):"
        return next((p for p in self._watch.prompts(played.room) if p["content"]["body"].startswith(start)), None)

    async def _until_shown(self, played: Played, line: int) -> None:
        """Every request that stands before this line is in the room."""
        for place, request in enumerate(played.recording.requests, 1):
            if request["line"] < line:
                await self._watch.until(lambda place=place: self._find_prompt(played, place), seconds=PLAY_S)

    async def _until_told(self, played: Played) -> None:
        """The room knows how everything ended that does not wait for the end of the bridge; or why nothing began."""
        if not played.recording.expected["sessions"]:
            await self._watch.until(lambda: self._watch.messages(played.room), seconds=PLAY_S)
        for place, request in enumerate(played.recording.requests, 1):
            if not request["bridge"] or request["bridge"]["ending"] != "shutdown":
                prompt = self._find_prompt(played, place)
                assert prompt is not None
                event_id = prompt["event_id"]
                await self._watch.until(lambda event=event_id: self._watch.edits(played.room, event), seconds=PLAY_S)


def note(played: Played, report: Json) -> None:
    """Keep what an agent told."""
    if "read" in report:
        played.read.append(report["read"])
    elif "lost" in report:
        played.lost = report
    else:
        played.reached = f"{report['waits']} (line {report['line']})"


async def read_reports(stream: anyio.abc.ByteReceiveStream) -> AsyncGenerator[Json]:
    """What one agent tells, until it has ended."""
    rest = b""
    try:
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)
    except anyio.BrokenResourceError:
        return  # it was killed


async def replay(recordings: Sequence[Recording], homeserver: Homeserver, folder: Path) -> tuple[list[Played], int]:
    """Play all of them; gives what came of each, and the exit code of the bridge."""
    everything = [Played(recording) for recording in recordings]
    bot, code = homeserver.register("frames-bridge"), 0
    async with (
        aiohttp.ClientSession() as http,
        watching(use(homeserver.register("frames-person"), homeserver.base_url, http)) as watch,
    ):
        await make_rooms(everything, watch, bot)
        stage = Replay(everything, watch, bot.user_id)
        async with (
            await anyio.create_unix_listener(folder / "stage") as listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(listener.serve, stage.attend)
            code = await serve(everything, homeserver, folder, bot, watch.person.user_id)
            tasks.cancel_scope.cancel()
        await watch.look()
        for played in everything:
            played.left_over = is_group_alive(played.pid)
            played.messages = watch.messages(played.room)
            played.edits = {event["event_id"]: watch.edits(played.room, event["event_id"]) for event in played.prompts}
            played.history = read_history(folder / "state" / "ledger.db", agent=AgentName(played.recording.agent))
    return everything, code


def is_group_alive(leader: int) -> bool:
    """Whether somebody of this process group still lives; a zombie that nobody has fetched yet does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group = stat.read_text().rpartition(") ")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(group) == leader and state not in "ZX":
            return True
    return False


async def make_rooms(everything: Sequence[Played], watch: Watch, bot: Account) -> None:
    """A room for each recording, with the bot invited."""
    limiter = anyio.CapacityLimiter(ROOMS_AT_ONCE)

    async def make(played: Played) -> None:
        async with limiter:
            played.room = await watch.person.room(bot.user_id)

    async with anyio.create_task_group() as tasks:
        for played in everything:
            tasks.start_soon(make, played)


async def serve(everything: Sequence[Played], homeserver: Homeserver, folder: Path, bot: Account, person: str) -> int:
    """Run the bridge until every recording is over, then end it; gives its exit code."""
    work = folder / "work"
    work.mkdir()
    agents: dict[str, Json] = {}
    for played in everything:
        recording = played.recording
        player = [sys.executable, "-I", replay_agent.__file__, str(recording.path), str(folder / "stage")]
        agents[recording.agent] = {
            "command": player,
            "cwd": str(work),
            "room": played.room,
            "approvers": [person],
            "mode": recording.expected["mode_set"],
            "auth_method": recording.auth_method,
        }
    async with running(write_config(folder, homeserver.base_url, bot, agents, encryption=False)) as bridge:
        with anyio.move_on_after(ALL_S):
            for played in everything:
                await played.over.wait()
        for played in everything:
            if not played.over.is_set():
                played.failure = "its turn never came"
        return await bridge.end(seconds=END_S)
