"""What is measured, and how. Every figure of the bridge is taken from outside of it, in turns with its floors.

Above it: `__main__`. Below it: stage and figures. A latency of the bridge begins and ends at other processes' byte edges:
it holds the kernel's hand-over of both hops, as its floors do.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from bridge.core.model import JsonObject
from tests.bench.agent import FLOOD_ID
from tests.bench.figures import Figure, compare, measure
from tests.bench.people import ACCOUNT as PERSON_ACCOUNT
from tests.bench.people import DEVICES_EACH, Person, open_person, publish_crowd
from tests.bench.stage import ROOT, TOKEN, Report, Stage, read_memory, run_bridge, run_floors

WARM_UP_RUNS = 30  # not counted: the first ones fill caches, open connections and make files grow
RUNS = 200
SIZES = (10, 1_000, 10_000)
FILL_EACH = 1_000  # what the bridge lets one agent leave waiting; more agents make more
FILL_WAIT_S = 150.0
FLOOD_LINES = 100_000
FLOOD_WAITING = 60  # prompts that wait when a flood begins
FLOOD_PAUSE_S = 0.1  # between two answers of a flood
SOME_WAITING = 200
SEALED = "sealed"  # the account of the bridge whose room is encrypted
CROWD = "crowd"  # the account of the one whose room is also full
CROWD_PEOPLE = 25
CROWD_RUNS = 5  # each takes a bridge that has met nobody yet

NO_GOAL = "no goal"
LATENCY_GOAL_MS = 3.0
FLOOR_GOAL = 2.0
SCALE_GOAL = 1.3
VERSION_GOAL_MS = 150.0
FLOOD_GOAL_MS = 1_000.0
FLOOD_MEMORY_GOAL_MB = 16.0
IDLE_GOAL_MB = 90.0
WAITING_GOAL_MB = 110.0


@dataclass(slots=True)
class Numbers:
    """The ids of requests: even ones and odd ones differ (`tests.bench.agent`)."""

    last: int = 1

    def take(self, *, odd: bool) -> int:
        self.last += 1
        self.last += (self.last % 2 == 1) is not odd
        return self.last


@dataclass(slots=True)
class Times:
    """Milliseconds, by what was timed."""

    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict[str, list[float]](list))

    def add(self, name: str, began: int, ended: int) -> None:
        self.values[name].append((ended - began) / 1e6)


def measure_version() -> list[Figure]:
    """How long `--version` takes, beside a Python that does nothing."""
    times = Times()
    for _ in range(25):
        for name, words in (("python", ["-c", "pass"]), ("version", ["-m", "bridge", "--version"])):
            began = time.monotonic_ns()
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
            times.add(name, began, time.monotonic_ns())
    floor = measure("  floor: a Python that does nothing", times.values["python"][5:])
    return [measure("--version", times.values["version"][5:], most=VERSION_GOAL_MS, floors={"python": floor}), floor]


async def measure_alone(stage: Stage, homeserver: str) -> AsyncGenerator[Figure]:
    """A bridge with one agent: its memory, and how it stands a flood."""
    async with run_bridge(stage, homeserver, ["one"]) as pid:
        idle = read_memory(pid)
        yield compare("memory, idle", idle, f"< {IDLE_GOAL_MB:g} MB", met=idle < IDLE_GOAL_MB, unit="MB")
        events = await _fill(stage, "one", 0, SOME_WAITING)
        await stage.rest(TOKEN)
        some = read_memory(pid)
        name = f"memory, {SOME_WAITING} waiting"
        yield compare(name, some, f"< {WAITING_GOAL_MB:g} MB", met=some < WAITING_GOAL_MB, unit="MB")
        for figure in await _flood(stage, pid, events[:FLOOD_WAITING]):
            yield figure


async def _flood(stage: Stage, pid: int, events: list[str]) -> list[Figure]:
    """Lines as fast as the bridge takes them, while people answer one prompt after the other."""
    times = Times()
    before = peak = read_memory(pid)
    stage.forget(TOKEN)
    stage.tell("one", flood=FLOOD_LINES)
    began = (await stage.hear("one", "flooding"))["at"]
    ended = 0
    for number, event in enumerate(events):
        stage.tell("homeserver", name=TOKEN, type="m.room.message", content=make_reply("1", event))
        said = (await stage.hear(TOKEN, "delivered"))["at"]
        answer = await stage.hear("one", "answered")
        if answer["id"] == FLOOD_ID:
            ended = answer["at"]
            break
        if answer["id"] != number:
            raise SystemExit(f"Answer {answer['id']} came instead of {number}.")
        times.add("answer", said, answer["at"])
        peak = max(peak, read_memory(pid))
        await asyncio.sleep(FLOOD_PAUSE_S)
    while not ended:
        answer = await stage.hear("one", "answered")
        ended = answer["at"] if answer["id"] == FLOOD_ID else 0
    peak = max(peak, read_memory(pid))
    await stage.rest(TOKEN)
    speed = FLOOD_LINES / ((ended - began) / 1e9)
    slowest = max(times.values["answer"])
    grown = peak - before
    return [
        Figure(name=f"{FLOOD_LINES:,} updates", unit="lines/s", runs=1, median=speed),
        compare(
            "  longest delay of an answer meanwhile",
            slowest,
            f"< {FLOOD_GOAL_MS:g} ms",
            met=slowest < FLOOD_GOAL_MS,
            unit="ms",
            runs=len(times.values["answer"]),
        ),
        compare(
            "  memory that it took",
            grown,
            f"< {FLOOD_MEMORY_GOAL_MB:g} MB",
            met=grown < FLOOD_MEMORY_GOAL_MB,
            unit="MB",
        ),
    ]


async def measure_crowd(stage: Stage, homeserver: str) -> AsyncGenerator[Figure]:
    """The first words to an encrypted room full of devices, each of which must be given the room's key, and the next."""
    people = publish_crowd(stage, CROWD_PEOPLE)
    times, calls = Times(), 0
    for _ in range(CROWD_RUNS):
        async with run_bridge(stage, homeserver, [CROWD], account=CROWD, people=people, encrypted=True):
            for number, name in enumerate(("first", "second")):
                before = stage.heard(CROWD, "call")
                await _ask(stage, times, name, agent=CROWD, account=CROWD, number=number)
                calls = stage.heard(CROWD, "call") - before
                times.values[f"{name}, calls"].append(calls)
                await stage.rest(CROWD)
    for name in ("first", "second"):
        devices = CROWD_PEOPLE * DEVICES_EACH
        figure = measure(f"{name} ask in a room of {devices} devices", times.values[name])
        yield replace(figure, goal=NO_GOAL)
        yield measure("  requests for its keys", times.values[f"{name}, calls"], unit="requests")


async def measure_latencies(stage: Stage, homeserver: str) -> AsyncGenerator[Figure]:
    """Asking and answering, with few, some and many prompts waiting in one room."""
    fillers = [f"filler{number}" for number in range(SIZES[-1] // FILL_EACH)]
    numbers, first = Numbers(), dict[str, Figure]()
    async with run_bridge(stage, homeserver, ["asker", *fillers]):
        body = (await _ask(stage, Times(), "", agent="asker", account=TOKEN, number=0))["body"]
        await stage.rest(TOKEN)
        async with run_floors(stage, homeserver, body):
            waiting = 1
            for size in SIZES:
                waiting = await _fill_up(stage, fillers, waiting, size)
                stage.forget(TOKEN)
                if size == SIZES[0]:
                    async with _run_sealed(stage, homeserver, size) as person:
                        times = await _run_all(stage, numbers, person)
                else:
                    times = await _run_all(stage, numbers)
                for figure in _judge(times, size, first):
                    yield figure


@asynccontextmanager
async def _run_sealed(stage: Stage, homeserver: str, size: int) -> AsyncGenerator[Person]:
    """A second bridge with as many prompts waiting, in an encrypted room; the person in it has given it their key."""
    filler = f"{SEALED}-filler"
    async with (
        open_person(stage, homeserver, SEALED) as person,
        run_bridge(stage, homeserver, [SEALED, filler], account=SEALED, encrypted=True),
    ):
        first = await _ask(stage, Times(), "", agent=SEALED, account=SEALED, number=0)
        person.check(await stage.hear(PERSON_ACCOUNT, "letter"), first, json.loads(first["body"]))
        stage.tell(filler, fill=[1, size])
        await _sent(stage, size - 1, account=SEALED)
        await stage.rest(SEALED)
        yield person


async def _run_all(stage: Stage, numbers: Numbers, person: Person | None = None) -> Times:
    for _ in range(WARM_UP_RUNS):
        await _run(stage, numbers, Times(), person)
    times = Times()
    for _ in range(RUNS):
        await _run(stage, numbers, times, person)
    return times


async def _run(stage: Stage, numbers: Numbers, times: Times, person: Person | None) -> None:
    """One question and its answer, of the bridge and of both floors, by turns; and of the encrypted one with a `person`."""
    number = numbers.take(odd=bool(numbers.last // 2 % 2))
    sent = await _ask(stage, times, "ask", agent="asker", account=TOKEN, number=number)
    await stage.rest(TOKEN)
    for odd, name in ((False, "ask, bare"), (True, "ask, one sync")):
        await _ask(stage, times, name, agent="floor-agent", account="floor", number=numbers.take(odd=odd))
        await stage.rest("floor")
    await _answer(stage, times, "answer", agent="asker", account=TOKEN, content=make_reply("1", sent["event_id"]))
    await stage.rest(TOKEN)
    for text, name in (("0", "answer, bare"), ("1", "answer, one sync")):
        await _answer(stage, times, name, agent="floor-agent", account="floor", content=make_reply(text, ""))
        await stage.rest("floor")
    if person is not None:
        sent = await _ask(stage, times, "ask, encrypted", agent=SEALED, account=SEALED, number=numbers.last)
        await stage.rest(SEALED)
        sealed = await person.seal(make_reply("1", sent["event_id"]))
        await stage.rest(SEALED)  # every hundredth time the person's key is a new one, and came just now
        await _answer(
            stage, times, "answer, encrypted", agent=SEALED, account=SEALED, content=sealed, kind="m.room.encrypted"
        )
        await stage.rest(SEALED)


def make_reply(text: str, event: str) -> JsonObject:
    """What a person says, in reply to an event where one is named."""
    content: JsonObject = {"msgtype": "m.text", "body": text}
    return {**content, "m.relates_to": {"m.in_reply_to": {"event_id": event}}} if event else content


async def _ask(stage: Stage, times: Times, name: str, *, agent: str, account: str, number: int) -> Report:
    stage.tell(agent, ask=number)
    asked = await stage.hear(agent, "asked")
    sent = await stage.hear(account, "prompt")
    times.add(name, asked["at"], sent["at"])
    return sent


async def _answer(
    stage: Stage,
    times: Times,
    name: str,
    *,
    agent: str,
    account: str,
    content: JsonObject,
    kind: str = "m.room.message",
) -> None:
    stage.tell("homeserver", name=account, type=kind, content=content)
    began = (await stage.hear(account, "delivered"))["at"]
    ended = (await stage.hear(agent, "answered"))["at"]
    times.add(name, began, ended)


async def _fill_up(stage: Stage, fillers: list[str], waiting: int, size: int) -> int:
    """Have `size` prompts wait; gives back how many do."""
    while waiting < size:
        filler = waiting // FILL_EACH
        first = waiting % FILL_EACH
        last = min(FILL_EACH, first + size - waiting)
        stage.tell(fillers[filler], fill=[first, last])
        waiting += last - first
        await _sent(stage, last - first)
    await stage.rest(TOKEN)
    return waiting


async def _fill(stage: Stage, agent: str, first: int, last: int) -> list[str]:
    stage.tell(agent, fill=[first, last])
    return await _sent(stage, last - first)


async def _sent(stage: Stage, count: int, account: str = TOKEN) -> list[str]:
    async with asyncio.timeout(FILL_WAIT_S):
        return [(await stage.hear(account, "prompt"))["event_id"] for _ in range(count)]


def _judge(times: Times, size: int, first: dict[str, Figure]) -> list[Figure]:
    figures: list[Figure] = []
    for act in ("ask", "answer"):
        bare = measure(f"  floor: aiohttp alone ({act})", times.values[f"{act}, bare"])
        synced = measure(f"  floor: and one sync of the disk ({act})", times.values[f"{act}, one sync"])
        figure = measure(
            f"{act}, {size:,} waiting", times.values[act], most=LATENCY_GOAL_MS, floors={"bare": bare, "sync": synced}
        )
        ratio = (figure.ratios or {})["sync"]
        figures += [figure, bare, synced]
        figures.append(
            compare("  p95 to the floor with one sync", ratio, f"< {FLOOR_GOAL:g} x", met=ratio < FLOOR_GOAL)
        )
        if figure.p95 is not None and (few := first.setdefault(act, figure)).p95 and figure is not few:
            scale = figure.p95 / few.p95
            met = scale < SCALE_GOAL if size == SIZES[-1] else None
            goal = f"< {SCALE_GOAL:g} x" if size == SIZES[-1] else ""
            figures.append(
                Figure(name=f"  p95 to that of {SIZES[0]} waiting", unit="x", runs=1, median=scale, goal=goal, met=met)
            )
        if sealed := times.values.get(f"{act}, encrypted"):
            floors = {"unencrypted": figure, "sync": synced}
            encrypted = measure(f"{act}, {size:,} waiting, encrypted", sealed, floors=floors)
            figures.append(replace(encrypted, goal=NO_GOAL))
            cost = encrypted.median / figure.median
            figures.append(
                Figure(name="  median to that of the unencrypted one", unit="x", runs=1, median=cost, goal=NO_GOAL)
            )
    return figures
