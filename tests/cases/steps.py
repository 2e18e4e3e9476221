"""The step language of the cases, played on a stage.

Above it: the test modules. Below it: stage and wording. It knows what every step does; it refuses to know what is expected.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from bridge.app.desk import Desk
from bridge.app.questions import Questions
from bridge.app.service import new_nonce, new_session_id
from bridge.core.errors import LedgerBusy
from bridge.core.events import AgentGone, Asked
from bridge.ops import control
from tests.cases.checking import check
from tests.cases.life import BOB, BOT, PATIENCE_S, ROOM, name_of
from tests.cases.reading import Run
from tests.cases.stage import MEMBERS, Stage
from tests.cases.wording import fill, write_ask, write_events, write_line, write_response
from tests.fakes.sealing import key
from tests.peers.homeserver import Fault

SCRIPTED = Path(__file__).parents[1] / "peers" / "scripted_agent.py"
PIPE_BYTES = 65_536  # what a pipe gives at once
FLOOD_LINES = 500  # of an agent's flood, said in one piece
BETWEEN_ROUNDS_S = 20  # of a case that is played many times on one stage: nothing counts as just closed any more
EYES = {"sync": [{"react": "\U0001f440", "to": "$other"}]}  # whoever looks at the room has seen what it shows

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Held:
    """Something that a fault holds up until a time has come."""

    until_ms: int
    release: Callable[[], None]


class Player:
    """Plays the steps of one run."""

    def __init__(self, run: Run, stage: Stage) -> None:
        self._run = run
        self._stage = stage
        self._homeserver = stage.homeserver
        self._held: list[_Held] = []
        self._turns: dict[str, Any] = {}  # the id of each agent's running session/prompt
        self._flooded = False
        self._zones: list[str | None] = []  # what TZ was before a case changed it

    async def play(self) -> None:
        """All steps, then whatever is still held up, until nothing is left to do; then the bridge is killed."""
        try:
            self._make_rooms()
            for step in self._run.steps:
                await self._do(step)
            await self._be_started()
            await self._stage.settle()
            if self._stage.setup.keys_lost:
                self._stage.checked = await check(self._stage)
            if self._held:
                self._stage.mark()
                for held in sorted(self._held, key=lambda held: held.until_ms):
                    self._stage.pass_time(max(0, held.until_ms - self._stage.true_ms) / 1000)
                    held.release()
                await self._stage.settle()
            await self._stage.kill()
            self._stage.keep_files()
        finally:
            for zone in self._zones:
                _set_zone(zone)

    # ------------------------------------------------------------------------------------------------------- one step

    async def _do(self, step: Json) -> None:
        match step:
            case {"config": _} | {"room": _} | {"fault": "crypto_store_missing"}:
                return
            case {"fault": "clock" | "timezone" | "harness_stderr"}:
                self._arrange(step)
                return
            case {"do": "kill"}:
                await self._stage.settle()
                await self._stage.kill()
                return
            case {"do": "start"}:
                return  # by the next step, which may say what the first sync brings
            case {"sync": events} if {"initial", "resumed"} & step.keys():
                self._put(events)
                await self._be_started()
            case {"sync": events, "joined": room}:
                await self._be_started()
                self._put(events)
                self._homeserver.invite(room)
            case _:
                await self._be_started()
                await self._act(step)
        if not self._flooded:  # what comes next comes in the middle of the flood
            await self._stage.settle()
            await self._begin_turns()

    async def _act(self, step: Json) -> None:  # noqa: C901, PLR0912 - one case a step
        """Do it and wait for nothing."""
        match step:
            case {"ask": _}:
                await self._ask(self._fill(step))
            case {"ask_range": [first, last]}:
                for call_id in range(first, last + 1):
                    await self._ask({"ask": call_id})
            case {"update": update}:
                self._say({"method": "session/update", "params": {"sessionId": "s1", "update": self._fill(update)}})
            case {"withdraw": call_id}:
                self._say({"method": "$/cancel_request", "params": {"requestId": call_id}})
            case {"turn_ends": reason}:
                self._say({"id": self._turns["A"], "result": {"stopReason": reason}})
            case {"agent_raw": _} | {"agent_raw_b64": _}:
                self._say_bytes(write_line(self._fill(step)))
            case {"sync": events}:
                await self._sync(events)
            case {"room_key": session, "decrypts": _}:
                self._homeserver.send_to_device(key(session))
            case {"do": "cancel", "session": session}:
                self._put([{"text": self._word_cancel(session), "from": BOB}])
            case {"do": "status", "waits_s": seconds}:
                await self._be_a_client(seconds)
            case {"fault": _}:
                self._arrange(step)
                await self._await_exit(step)
            case {"wait_s": seconds}:
                self._stage.pass_time(seconds)
            case {"together": [first, second], "turns": turns}:
                await self._act(first)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                await self._act(second)
            case {"repeat": rounds, "steps": steps}:
                await self._repeat(rounds, steps)
            case _:
                raise AssertionError(f"no such step: {step}")

    async def _be_started(self) -> None:
        if self._stage.life is not None:
            return
        await self._stage.start()
        await self._stage.settle()
        await self._begin_turns()

    def _make_rooms(self) -> None:
        """The bot is in all of them but those that it joins in a step."""
        setup = self._stage.setup
        people = [person for person in dict.fromkeys((*MEMBERS, *setup.approvers)) if person != BOT]
        later = {step["joined"] for step in self._run.steps if "joined" in step}
        for room in dict.fromkeys((ROOM, *setup.rooms.values())):
            self._homeserver.room(room, *people, joined=room not in later, encrypted=setup.encrypted)

    async def _begin_turns(self) -> None:
        """A turn is running in every session, once its room can be spoken in; after a restart none was asked for."""
        if len(self._stage.lives) > 1:
            return
        setup = self._stage.setup
        if setup.keys_lost:
            return  # nobody can say anything that the bridge could read
        rooms = {agent: setup.room_of(agent) for agent in setup.agents if agent not in self._turns}
        ready = {agent: room for agent, room in rooms.items() if self._homeserver.membership(room) == "join"}
        for agent, room in ready.items():
            start = f"{name_of(agent)}: begin" if len(setup.agents) > 1 else "begin"
            self._put([{"encrypted" if setup.encrypted else "text": start, "from": setup.approvers[0], "room": room}])
            self._turns[agent] = None
            if not setup.command:
                line = await self._stage.running.fake(agent).hear(method="session/prompt")
                self._turns[agent] = line["id"]
        if ready:
            await self._stage.settle()

    # ------------------------------------------------------------------------------------------------------- the agent

    async def _ask(self, ask: Json) -> None:
        agent = ask.get("harness", "A")
        self._stage.asked.append(ask)
        if self._stage.setup.command:  # the program asks by itself, after the turn has begun
            life = self._stage.running
            await life.until(lambda: life.count(Asked) >= len(self._stage.asked))
            return
        frame = write_ask(ask, self._stage.setup.agents[agent])
        self._say_bytes(json.dumps(frame).encode() + b"\n", agent)

    def _say(self, message: Json) -> None:
        self._say_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def _say_bytes(self, data: bytes, agent: str = "A") -> None:
        fake = self._stage.running.fake(agent)
        for start in range(0, len(data), PIPE_BYTES):
            fake.say(data[start : start + PIPE_BYTES])

    async def _await_exit(self, fault: Json) -> None:
        if fault["fault"] == "harness_exits":
            life = self._stage.running
            await life.until(lambda: life.count(AgentGone) > 0)

    # -------------------------------------------------------------------------------------------------------- the room

    async def _sync(self, events: list[Json]) -> None:
        if "$bot_notice" in json.dumps(events) and not self._stage.notices:
            self._put([{"text": "!help"}])
            await self._stage.settle()
        self._put(events)
        if self._flooded:
            await self._hear_answer()

    def _put(self, events: list[Json]) -> None:
        """In one batch: the homeserver gives all that is there when it is next asked."""
        for room, event in write_events(self._fill([self._lock(event) for event in events])):
            kind, content, sender = event.pop("type"), event.pop("content"), event.pop("sender")
            now = {"origin_server_ts": self._stage.true_ms}
            self._homeserver.put(room, kind, content, sender, **now | event)

    def _lock(self, event: Json) -> Json:
        """What nobody can read yet is sealed under the key that a later step brings, with what it says then."""
        if event.get("encrypted", "") is not None:
            return event
        (step,) = [step for step in self._run.steps if event["id"] in step.get("decrypts", {})]
        return event | {"sealed": step["decrypts"][event["id"]], "session": step["room_key"]}

    def _word_cancel(self, session: str) -> str:
        agents = self._stage.setup.agents
        agent = next(agent for agent, own in agents.items() if own == session)
        return f"!cancel {name_of(agent)}" if len(agents) > 1 else "!cancel"

    def _fill(self, value: Any) -> Any:  # noqa: ANN401 - any JSON, as it came
        stage = self._stage
        return fill(
            value,
            now_ms=stage.true_ms,
            number_of=lambda name: str(stage.request(name).number),
            event_of=self._event_of,
        )

    def _event_of(self, name: str) -> str:
        stage = self._stage
        what, _, request = name.rpartition("_of_")
        if what == "seed1":
            return stage.seeds(stage.prompts(request)[-1])[0].event_id
        if what == "confirm":
            entry = stage.running.relay.state.entries[stage.request_id(request)]
            asked = entry.confirmations[-1].event_id
            assert asked is not None
            return asked
        return stage.notices[-1].event_id if name == "bot_notice" else stage.prompts(name)[-1].event_id

    # ------------------------------------------------------------------------------------------------------ our own side

    async def _be_a_client(self, waits_s: float) -> None:
        """On the control socket: waits for what comes, and goes when nothing has."""
        stage, life = self._stage, self._stage.running
        agents = tuple(map(name_of, stage.setup.agents))
        questions = Questions(
            life.harnesses,
            deliver=life.relay.deliver,
            subscribe=life.relay.subscribe,
            new_session_id=new_session_id,
            new_nonce=new_nonce,
        )
        desk = Desk(
            life.relay,
            life.ledger,
            agents=agents,
            harness_uids=frozenset,
            questions=questions,
            no_encryption="",
            times_limited=lambda: 0,
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(control.serve, stage.state_dir, desk)
            reader, writer = await asyncio.open_unix_connection(control.socket_path(stage.state_dir))
            writer.write(b'{"jsonrpc":"2.0","id":1,"method":"history.subscribe","params":{}}\n')
            assert "result" in json.loads(await reader.readline())
            stage.pass_time(waits_s)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            tasks.cancel_scope.cancel()

    async def _repeat(self, rounds: int, steps: list[Json]) -> None:
        """The rounds follow one another on one stage, each from a start like the first one's."""
        stage = self._stage
        for number in range(rounds):
            stage.begin_round()
            for step in steps:
                match step:
                    case {"at_once": [first, second]}:
                        pair = [first, second] if number % 2 else [second, first]
                        await self._do({"together": pair, "turns": number // 2 % 40})
                    case _:
                        await self._do(step)
            stage.pass_time(BETWEEN_ROUNDS_S)
            await self._do(EYES)

    # ----------------------------------------------------------------------------------------------------------- faults

    def _arrange(self, fault: Json) -> None:  # noqa: C901 - one case a fault
        match fault:
            case {"fault": "send_answers"}:
                made = Fault(status=fault["status"], body=fault.get("body", ""), echo=fault.get("echo_request", False))
                self._fail("send", made, fault.get("times"))
            case {"fault": "upload_answers"}:
                self._fail("upload", Fault(status=fault["status"]), fault.get("times"))
            case {"fault": "send_slow", "seconds": seconds}:
                self._slow_down_sends(seconds)
            case {"fault": "harness_exits", "code": code}:
                self._stage.running.fake("A").exit(code)
            case {"fault": "harness_pipe_breaks"}:
                self._stage.running.fake("A").close_stdin()
            case {"fault": "harness_write_slow", "seconds": seconds}:
                self._slow_down_writes(seconds)
            case {"fault": "harness_updates", "lines": lines}:
                self._flood(lines)
            case {"fault": "harness_stderr", "bytes": count}:
                self._use_real_program(count)
            case {"fault": "clock", "offset_s": offset_s}:
                self._stage.clock_offset_s = offset_s
            case {"fault": "timezone", "tz": zone}:
                self._zones.append(os.environ.get("TZ"))
                _set_zone(zone)
            case {"fault": "db_locked", "times": times, "at": "answer_stored"}:
                self._stage.ledger_faults += [LedgerBusy("The ledger is locked by another program.")] * times
            case _:
                raise AssertionError(f"no such fault: {fault}")

    def _fail(self, operation: str, fault: Fault, times: int | None) -> None:
        if times is None:
            self._homeserver.fail_always(operation, fault)
        else:
            self._homeserver.fail(operation, *[fault] * times)

    def _slow_down_sends(self, seconds: float) -> None:
        gate = asyncio.Event()
        self._homeserver.fail_always("send", Fault(gate=gate))
        self._stage.sends_held = True

        def release() -> None:
            self._stage.sends_held = False
            self._homeserver.fail_always("send", None)
            gate.set()

        self._held.append(_Held(self._stage.true_ms + int(seconds * 1000), release))

    def _slow_down_writes(self, seconds: float) -> None:
        fake = self._stage.running.fake("A")
        fake.stop_reading()
        self._stage.writes_held = True

        def release() -> None:
            self._stage.writes_held = False
            fake.read_on()

        self._held.append(_Held(self._stage.true_ms + int(seconds * 1000), release))

    def _flood(self, lines: int) -> None:
        """Tool calls that are all new, and words: what an adapter might keep all of."""
        self._flooded = True
        fake = self._stage.running.fake("A")
        for start in range(0, lines, FLOOD_LINES):
            fake.say(b"".join(_write_update(number) for number in range(start, start + FLOOD_LINES)))

    async def _hear_answer(self) -> None:
        """Note how much of the flood is still to be read when the answer is there."""
        fake = self._stage.running.fake("A")
        self._stage.unread_before = fake.unread
        with anyio.fail_after(PATIENCE_S):
            await fake.hear(**write_response({"id": 1, "selected": "opt-allow"}))
        self._stage.unread_after = fake.unread
        self._flooded = False

    def _use_real_program(self, stderr_bytes: int) -> None:
        script, log = self._stage.folder / "script", self._stage.folder / "log"
        asks = [step for step in self._run.steps if "ask" in step]
        lines = [{"stderr_bytes": stderr_bytes}, {"wait": {"method": "session/prompt"}}, *asks]
        script.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = (sys.executable, str(SCRIPTED), str(script), str(log))
        self._stage.setup = replace(self._stage.setup, command=command)


def _set_zone(zone: str | None) -> None:
    if zone is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = zone
    time.tzset()


def _write_update(number: int) -> bytes:
    words = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"word {number} "}}
    call = {"sessionUpdate": "tool_call", "toolCallId": f"flood-{number}", "title": "x" * 100, "status": "pending"}
    params = {"sessionId": "s1", "update": call if number % 2 else words}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode() + b"\n"
