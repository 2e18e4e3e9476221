"""Run real agents through the bridge: each asks in a room of a real homeserver, once to be allowed, once to be refused.

`python -m tests.harness.run NAME...`; a line for each on stdout, 0 when every command ran exactly when it was allowed.
Above it: `scripts/test-harness`. Below it: `agents`, `model`, the demo's homeserver and person, and the bridge as a program.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bridge.demo.homeserver import Account, Homeserver
from bridge.demo.person import Person, Seen
from tests.harness.agents import AGENTS, FILE, Agent, Start
from tests.harness.model import OTHERWISE, TRIGGER, serve

CACHE = Path(__file__).parents[2] / ".cache" / "harness"
INSTALL_TIMEOUT_S = 900.0
STEP_TIMEOUT_S = 120.0
"""For each thing waited for; a real agent takes up to 11 s to its first session, several times that on a busy machine."""
STOP_TIMEOUT_S = 30.0
FILE_TEXT = "hi\n"


class Failed(Exception):
    """Something that should have come did not."""


def say(what: str) -> None:
    sys.stderr.write(f"test-harness: {what}\n")
    sys.stderr.flush()


def install(agent: Agent) -> Path:
    """The folder of its programs; from its public package when it is not here yet."""
    folder = CACHE / agent.package.replace("/", "+")
    programs = folder / "node_modules/.bin"
    if not programs.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise Failed("npm is needed to install an agent.")
        say(f"installing {agent.package} (a minute or two) ...")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", agent.package]
        subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_TIMEOUT_S)  # noqa: S603 - pinned above
    return programs


@dataclass(slots=True, kw_only=True)
class Scene:
    """A room with the bridge in it, and all that was seen there."""

    person: Person
    room: str
    bot: str
    bridge: subprocess.Popen[bytes]
    seen: list[Seen] = field(default_factory=list[Seen])

    def wait(self, what: str, find: Callable[[Seen], bool]) -> Seen:
        """The first event of the bot's, old or new, that is looked for."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            for seen in self.seen:
                if seen.sender == self.bot and find(seen):
                    return seen
            if self.bridge.poll() is not None:
                raise Failed(f"the bridge ended with {self.bridge.returncode}")
            if time.monotonic() > deadline:
                raise Failed(f"{what} did not come")
            self.seen += self.person.look(self.room)

    def wait_for_bot(self) -> None:
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while not self.person.has_joined(self.room, self.bot):
            if self.bridge.poll() is not None or time.monotonic() > deadline:
                raise Failed("the bridge did not join the room")
            self.seen += self.person.look(self.room)


def write_config(folder: Path, base_url: str, bot: Account, start: Start, *, room: str, approver: str) -> Path:
    """The bridge's config, as the docs show it."""

    def toml(value: str | list[str]) -> str:
        return json.dumps(value, ensure_ascii=False)

    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(bot.access_token, encoding="utf-8")
    env = start.env | {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    more = "".join(f"{key} = {toml(value)}\n" for key, value in start.keys.items())
    config = folder / "config.toml"
    config.write_text(
        f"""
state_dir = {toml(str(folder / "state"))}

[matrix]
homeserver = {toml(base_url)}
user_id = {toml(bot.user_id)}
access_token_file = {toml(str(token))}
encryption = false

[agents.real]
command = {toml(start.command)}
cwd = {toml(str(folder / "work"))}
env = {{ {", ".join(f"{key} = {toml(value)}" for key, value in env.items())} }}
room = {toml(room)}
approvers = {toml([approver])}
{more}""",
        encoding="utf-8",
    )
    return config


@contextmanager
def open_scene(folder: Path, homeserver: Homeserver, agent: Agent, programs: Path, url: str) -> Generator[Scene]:
    """Accounts of its own, a room, and the bridge with the agent, until the end of the block."""
    for each in ("home", "work", "tmp"):
        (folder / each).mkdir(parents=True)
    bot = homeserver.register(f"bridge-{folder.name}")
    person = Person(homeserver.base_url, homeserver.register(f"you-{folder.name}"))
    room = person.create_room(bot.user_id)
    start = agent.start(programs, folder / "home", url)
    config = write_config(folder, homeserver.base_url, bot, start, room=room, approver=person.account.user_id)
    with (folder / "bridge.log").open("wb") as log:
        command = [sys.executable, "-m", "bridge", "run", "--config", str(config)]
        bridge = subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield Scene(person=person, room=room, bot=bot.user_id, bridge=bridge)
    finally:
        bridge.terminate()
        try:
            bridge.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(bridge.pid, signal.SIGKILL)
            bridge.wait()


def play(scene: Scene, answer: str) -> None:
    """One turn, the answer to its request, and another turn that shows that the first has ended."""
    scene.wait_for_bot()
    scene.person.say(scene.room, TRIGGER)
    asked = scene.wait("the request", lambda seen: seen.kind == "message" and f"> {FILE}" in seen.text)
    scene.person.say(scene.room, answer, reply_to=asked.event_id)
    scene.wait("the end of the request", lambda seen: seen.kind == "edit" and seen.about == asked.event_id)
    scene.person.say(scene.room, "What now?")
    scene.wait("the next turn", lambda seen: OTHERWISE in seen.text)


def try_agent(name: str, agent: Agent, homeserver: Homeserver, folder: Path) -> bool:
    """Allow, then refuse; True when the command ran exactly when it was allowed."""
    programs = install(agent)
    right = True
    for verdict, answer, expected in (("allow", agent.allow, FILE_TEXT), ("reject", agent.reject, None)):
        place = folder / f"{name}-{verdict}"
        say(f"{name}: {verdict} ...")
        began = time.monotonic()
        result: dict[str, object] = {"harness": agent.package, "answer": answer}
        with serve(agent.call) as model, open_scene(place, homeserver, agent, programs, model.url) as scene:
            try:
                play(scene, answer)
            except Failed as failed:
                result |= {"failed": str(failed), "seen": [seen.line() for seen in scene.seen]}
        file = place / "work" / FILE
        written = file.read_text(encoding="utf-8") if file.exists() else None
        passed = "failed" not in result and written == expected
        result |= {"ran": written is not None, "passed": passed, "seconds": round(time.monotonic() - began, 1)}
        if not passed:
            log = (place / "bridge.log").read_text(encoding="utf-8", errors="replace")
            result["log"] = log.splitlines()[-20:]
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        right = right and passed
    return right


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in AGENTS]
    if unknown or not names:
        sys.stderr.write("".join(f"{name:10} {agent.package}\n" for name, agent in AGENTS.items()))
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends as Ctrl-C does, and leaves nothing
    with (
        tempfile.TemporaryDirectory(prefix="acp-matrix-bridge-harness-") as folder,
        Homeserver(Path(folder) / "homeserver") as homeserver,
    ):
        results = [try_agent(name, AGENTS[name], homeserver, Path(folder)) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
