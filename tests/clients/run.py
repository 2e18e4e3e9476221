"""Let real Matrix clients answer a running bridge in an encrypted room, and print a line for each way they do it.

`python -m tests.clients.run [--short] [--show] [NAME ...]`: 0 when each answer reached the agent and each ending the person.
Above it: `scripts/test-clients`. Below it: the clients and `trials`. Without a name: all clients.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import anyio

from bridge.demo.homeserver import Account, Homeserver, Limits
from tests.clients import commander, javascript
from tests.clients.commander import Commander
from tests.clients.javascript import Missing, NotInstalled
from tests.clients.jsperson import JsError, js_person
from tests.clients.seen import Client, DidNotCome, Shown
from tests.clients.trials import Trial, open_scene, try_refusal, try_surface

JS, COMMANDER = "matrix-js-sdk", "matrix-commander"
NAMES = (JS, COMMANDER)
REFUSED = "refused device"
"""No surface: an answer from a device that does not count, and the words for it."""
LIMITS: dict[Limits, str] = {"off": "no limits", "default": "default limits"}
EXCLUDING = "insecure devices excluded"
FOUR = ("text", "reply", "thread", "reaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One room: who answers there on which surfaces, and how the agent's section is set."""

    client: str
    limits: Limits
    surfaces: tuple[str, ...]
    trust: str = "cross_signed"
    excluding: bool = False
    polls: bool = False


PLAN = (
    Run(client=JS, limits="off", surfaces=(*FOUR, "poll"), polls=True),
    Run(client=JS, limits="off", surfaces=("text",), excluding=True),
    Run(client=COMMANDER, limits="off", surfaces=FOUR, trust="any"),
    Run(client=COMMANDER, limits="off", surfaces=(REFUSED,)),
    Run(client=JS, limits="default", surfaces=FOUR),
    Run(client=COMMANDER, limits="default", surfaces=FOUR, trust="any"),
)
SHORT = (Run(client=JS, limits="off", surfaces=("text", "reaction")),)


@asynccontextmanager
async def log_in(run: Run, folder: Path, homeserver: Homeserver, account: Account) -> AsyncGenerator[Client]:
    """The person of this run with their client."""
    if run.client == COMMANDER:
        yield Commander(commander.install(), folder, homeserver.base_url, account)
        return
    async with js_person(javascript.install(), homeserver.base_url, account) as person:
        await person.do("cross_sign")
        if run.excluding:
            await person.do("isolate", on=True)
        yield person


async def play(run: Run, folder: Path, homeserver: Homeserver, *, show: bool) -> bool:
    """One run in a room of its own; True when all of it passed."""
    for each in ("client", "bridge"):
        (folder / each).mkdir(parents=True)
    you, bot = homeserver.register(f"you-{folder.name}"), homeserver.register(f"bridge-{folder.name}")
    settings: dict[str, Any] = {"trust": run.trust} | ({"polls": True} if run.polls else {})
    passed = True
    try:
        async with (
            log_in(run, folder / "client", homeserver, you) as client,
            open_scene(folder / "bridge", homeserver, bot, client, **settings) as scene,
        ):
            for surface in run.surfaces:
                trial = await (try_refusal(scene) if surface == REFUSED else try_surface(scene, surface))
                say(run, trial, show=show)
                passed = passed and trial.passed
    except* (
        AssertionError,
        TimeoutError,
        DidNotCome,
        JsError,
    ) as failed:  # no room, or no running bridge: the next may
        sys.stdout.write(f"{run.client:24}  FAILED  {first(failed)!r}\n")
        passed = False
    return passed


def first(failed: BaseException) -> BaseException:
    """The fault itself, out of the groups that it came in."""
    inside = cast("tuple[BaseException, ...]", getattr(failed, "exceptions", ()))
    return first(inside[0]) if inside else failed


def say(run: Run, trial: Trial, *, show: bool) -> None:
    """The line for one trial; with `show` also what the person saw."""
    surface = f"{trial.surface}, {EXCLUDING}" if run.excluding else trial.surface
    verdict = f"passed  {trial.seconds:4.1f} s" if trial.passed else f"FAILED  {trial.why}"
    trust = f"trust {run.trust}"
    line = f"{trial.client:24}  encrypted  {surface:31}  {trust:18}  {LIMITS[run.limits]:14}  {verdict}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if show:
        for name, shown in (("prompt", trial.prompt), ("ending", trial.ending)):
            sys.stdout.write(describe(name, shown))


def describe(name: str, shown: Shown | None) -> str:
    """What stood on the person's screen."""
    shield = f", shield: {shown.shield}" if shown and shown.shield else ""
    lines = shown.text.splitlines() if shown else ["(not shown)"]
    return "".join(f"    {line}\n" for line in [f"{name}{shield}", *(f"| {line}" for line in lines)])


async def play_all(runs: list[Run], *, show: bool) -> bool:
    """All runs, those with the same limits on one homeserver."""
    passed = True
    with tempfile.TemporaryDirectory(prefix="acp-matrix-bridge-clients-") as name:
        for limits in LIMITS:
            mine = [run for run in runs if run.limits == limits]
            if not mine:
                continue
            with Homeserver(Path(name) / f"homeserver-{limits}", limits=limits) as homeserver:
                for number, run in enumerate(mine):
                    folder = Path(name) / f"{run.client}-{limits}-{number}"
                    passed = await play(run, folder, homeserver, show=show) and passed
    return passed


def end_as_ctrl_c_does(number: int, frame: FrameType | None) -> None:
    """So that a run that is ended leaves neither a homeserver nor a bridge behind."""
    del number, frame
    signal.raise_signal(signal.SIGINT)


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="scripts/test-clients", description="Real Matrix clients answer the bridge.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{' or '.join(NAMES)}; default: both")
    parser.add_argument("--short", action="store_true", help="text and a reaction with matrix-js-sdk, without limits")
    parser.add_argument("--show", action="store_true", help="also show what the person saw")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in NAMES]:
        parser.error(f"there is no client {unknown[0]}; there are {' and '.join(NAMES)}")
    runs = [run for run in (SHORT if args.short else PLAN) if not args.names or run.client in args.names]
    clients = {run.client for run in runs}
    try:  # before anything is started
        if JS in clients:
            javascript.install()
        if COMMANDER in clients:
            commander.install()
    except (Missing, NotInstalled) as missing:
        sys.stderr.write(f"test-clients: {missing}.\n")
        return 1
    signal.signal(signal.SIGTERM, end_as_ctrl_c_does)
    try:
        return 0 if anyio.run(lambda: play_all(runs, show=args.show)) else 1
    except KeyboardInterrupt:
        return 130  # as shells say it


if __name__ == "__main__":
    sys.exit(main())
