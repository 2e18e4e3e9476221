"""The demo: a homeserver, the bridge, an agent that asks, and this terminal as the Matrix client of the person asked.

Above it: cli. Below it: `person`, `homeserver`, `agent` (as a program), and the bridge itself, started as anybody would
start it: `python -m bridge run --config FILE`. It refuses to know how the bridge works: it sees the room and nothing else;
and how the person's client does what it does, with encryption or without.
"""

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

from bridge.core.errors import DemoFailed
from bridge.demo import agent
from bridge.demo.homeserver import Account, Homeserver
from bridge.demo.person import Person, Seen, printable

SERVICE = (sys.executable, "-m", "bridge")
FIRST_MESSAGE = "Please run the tests."
SYNC_WAIT_MS = 500
"""One look at the room; also how long a Ctrl-C may go unheard."""
JOIN_TIMEOUT_S = 60.0
PROMPT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 20.0
"""From an answer to the agent, or to the bridge's word that it was none: a second here, more on a loaded machine."""
SILENCE_S = 5.0
"""An answer that is empty gets no word at all: after this it has decided nothing."""
LAST_WORDS_TIMEOUT_S = 10.0
"""For the edit of the prompt and the agent's last message; the transcript is shown without them when they stay away."""
STOP_TIMEOUT_S = 15.0
"""The bridge ends its turn, its agent and its files in this time; then it is killed with all that it started."""
LOOK_S = 0.5
"""One look at what `check` prints; also how long a Ctrl-C may go unheard."""
LOG_TAIL_LINES = 3
READ_BYTES = 4096


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or the terminal's end, noticed at a place where stopping is clean."""


class Play:
    """One run of the demo: who takes part, and what has happened so far."""

    def __init__(self, folder: Path, screen: TextIO, stop: threading.Event, client: type[Person]) -> None:
        self._folder = folder
        self._screen = screen
        self._stop = stop
        self._client = client
        self._homeserver = Homeserver(folder / "homeserver")
        self._outcomes = folder / "outcomes.jsonl"
        self._bridge: subprocess.Popen[bytes] | None = None
        self._seen: list[Seen] = []
        self._config: Path
        self.person: Person
        self.room: str
        self.bot: str

    @contextlib.contextmanager
    def stage(self) -> Generator[None]:
        """Everything started and in the room; everything ended again on the way out, whatever happens inside."""
        try:
            progress("starting the homeserver (a few seconds) …")
            self._homeserver.start(self._check_stop)
            bot = self._homeserver.register("bridge")
            self.bot = bot.user_id
            self.person = self._client(self._homeserver.base_url, self._homeserver.register("you"))
            with contextlib.closing(self.person):
                self.room = self.person.create_room(self.bot)
                progress("starting the bridge and its agent …")
                self._config = self._write_config(bot)
                self._start_bridge(self._config)
                if not self._wait(lambda: self.person.has_joined(self.room, self.bot), JOIN_TIMEOUT_S):
                    raise DemoFailed(f"The bridge did not join the room: {self._bridge_last_words()}")
                yield
        finally:
            progress("stopping …")
            self._stop_bridge()
            self._homeserver.stop()

    def outcomes(self) -> list[str]:
        """What the agent has received, one JSON object each."""
        with contextlib.suppress(FileNotFoundError):
            return self._outcomes.read_text(encoding="utf-8").splitlines()
        return []

    def answer(self, answers: Sequence[str]) -> tuple[str, bool]:
        """Play one turn with these answers; returns the outcome that the agent received, and whether one decided."""
        self.person.say(self.room, FIRST_MESSAGE)
        if not self._wait(lambda: self._prompt() is not None, PROMPT_TIMEOUT_S):
            raise DemoFailed(f"No prompt came into the room: {self._bridge_last_words()}")
        prompt = cast("Seen", self._prompt())
        left = list(answers)
        while left and not self.outcomes():
            self._try(left.pop(0), prompt)
        decided = bool(self.outcomes())
        if not decided:
            self.person.say(self.room, "!cancel")
            if not self._wait(lambda: bool(self.outcomes()), ANSWER_TIMEOUT_S):
                raise DemoFailed("The agent did not hear that its turn was cancelled.")
        self._wait(lambda: self._is_over(prompt), LAST_WORDS_TIMEOUT_S)
        for text in left:
            self.show(f"        (not sent, nothing waits any more: {printable(text)})")
        return self.outcomes()[0], decided

    def check(self) -> int:
        """Run `check` beside the bridge, show its lines and their sum; returns its exit code."""
        levels: dict[str, list[str]] = {"ok": [], "warning": [], "failed": []}
        with subprocess.Popen(  # noqa: S603 - our own interpreter, arguments of our own
            [*SERVICE, "check", "--config", str(self._config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            out = cast("TextIO", process.stdout)
            said = Terminal(out)
            try:
                while not said.ended:
                    self._check_alive()
                    select.select([out], [], [], LOOK_S)
                    for line in filter(None, said.lines()):
                        self.show(line)
                        level, _, rest = line.partition(" ")
                        levels.setdefault(level, []).append(rest.strip().partition(": ")[0])
            finally:
                if process.poll() is None and not said.ended:
                    os.killpg(process.pid, signal.SIGKILL)
        sums = (f"{len(found)} {level}" + _name(found if level != "ok" else []) for level, found in levels.items())
        self.show(f"demo: {', '.join(sums)}.")
        return process.returncode

    def talk(self, terminal: "Terminal") -> None:
        """Let the terminal talk with the room until its end."""
        account = self.person.account
        self.show(
            f"""
  homeserver  {self._homeserver.base_url}
  user        {account.user_id}
  password    {account.password}
  room        {self.room}

{self.person.HINT}
Write to the agent, for example "{FIRST_MESSAGE}", and answer its question
with a number or the option's name. !help lists more; Ctrl-D or Ctrl-C ends.
"""
        )
        while not terminal.ended:
            self._look(echo=False)
            for line in terminal.lines():
                if line.strip():
                    self.person.say(self.room, line)

    def _try(self, text: str, prompt: Seen) -> None:
        """Send one answer and wait until it has decided, or until the bridge says or shows that it has not."""
        sent = self.person.say(self.room, text, reply_to=prompt.event_id)
        began = time.monotonic()

        def is_settled() -> bool:
            after = itertools.dropwhile(lambda seen: seen.event_id != sent, self._seen)
            told = any(seen.sender == self.bot and seen.kind == "message" for seen in after)
            silent = not text.strip() and time.monotonic() - began > SILENCE_S
            return bool(self.outcomes()) or told or silent

        self._wait(is_settled, ANSWER_TIMEOUT_S)

    def _prompt(self) -> Seen | None:
        asked = (seen for seen in self._seen if seen.sender == self.bot and agent.COMMAND in seen.text)
        return next((seen for seen in asked if seen.kind == "message"), None)

    def _is_over(self, prompt: Seen) -> bool:
        edited = any(seen.kind == "edit" and seen.about == prompt.event_id for seen in self._seen)
        outcome: Any = json.loads(self.outcomes()[0])
        said = outcome["outcome"] == "cancelled" or any(agent.CLOSING_WORDS in seen.text for seen in self._seen)
        return edited and said

    def _look(self, *, echo: bool = True) -> None:
        self._check_alive()
        for seen in self.person.look(self.room):
            self._seen.append(seen)
            if echo or not seen.own_device:
                self.show(seen.line())

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Look at the room until something is reached; False when it is not in time."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            if time.monotonic() > deadline:
                return False
            self._look()
        return True

    def show(self, text: str) -> None:
        """Put text on the person's screen."""
        print(text, file=self._screen, flush=True)

    def _check_alive(self) -> None:
        self._check_stop()
        if self._bridge is not None and self._bridge.poll() is not None:
            raise DemoFailed(f"The bridge ended with {self._bridge.returncode}: {self._bridge_last_words()}")

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Interrupted

    def _write_config(self, bot: Account) -> Path:
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(bot.access_token, encoding="utf-8")
        work = self._folder / "project"
        work.mkdir()
        # The agent as a file and isolated: it needs only the standard library, wherever this package lies.
        command = [sys.executable, "-I", str(Path(agent.__file__).resolve())]
        config = self._folder / "config.toml"
        config.write_text(
            f"""
state_dir = {_toml(str(self._folder / "state"))}

[matrix]
homeserver = {_toml(self._homeserver.base_url)}
user_id = {_toml(bot.user_id)}
access_token_file = {_toml(str(token))}
encryption = {_toml(self.person.encrypts)}

[agents.demo]
command = {_toml(command)}
cwd = {_toml(str(work))}
env = {{ {agent.OUTCOMES_VARIABLE} = {_toml(str(self._outcomes))} }}
room = {_toml(self.room)}
approvers = {_toml([self.person.account.user_id])}
""",
            encoding="utf-8",
        )
        return config

    def _start_bridge(self, config: Path) -> None:
        with (self._folder / "bridge.log").open("wb") as log:
            self._bridge = subprocess.Popen(  # noqa: S603 - our own interpreter, arguments of our own
                [*SERVICE, "run", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us: we end it in our own order
            )

    def _stop_bridge(self) -> None:
        if self._bridge is None:
            return
        self._bridge.terminate()
        try:
            self._bridge.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._bridge.pid, signal.SIGKILL)
            self._bridge.wait()

    def _bridge_last_words(self) -> str:
        text = (self._folder / "bridge.log").read_text(encoding="utf-8", errors="replace")
        return " / ".join(text.strip().splitlines()[-LOG_TAIL_LINES:]) or "it said nothing."


def _name(subjects: Sequence[str]) -> str:
    return f" ({', '.join(subjects)})" if subjects else ""


def _toml(value: str | bool | list[str]) -> str:
    """A value for the config: JSON's strings, truths and lists are TOML's, so long as nothing is written as a surrogate."""
    return json.dumps(value, ensure_ascii=False)


def progress(what: str) -> None:
    """Say on stderr what takes its time; the transcript and the outcome have stdout to themselves."""
    with contextlib.suppress(OSError):  # the terminal may be gone, and what is said here is no reason to stop
        sys.stderr.write(f"demo: {what}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def _heed_signals(stop: threading.Event) -> Generator[None]:
    """Turn the signals that end a program into a flag, so that no cleaning up is ever cut short by a second one."""

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.set()

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Terminal:
    """Lines typed by a person, read without waiting for them."""

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = stream.fileno()
        self._typed = b""
        self.ended = False

    def lines(self) -> list[str]:
        """The whole lines typed since the last call; after the end of input also what had no line end."""
        while not self.ended and select.select([self._descriptor], [], [], 0)[0]:
            typed = os.read(self._descriptor, READ_BYTES)
            self.ended = not typed
            self._typed += typed or b"\n"
        *whole, self._typed = self._typed.split(b"\n")
        return [line.decode(errors="replace") for line in whole]


@contextlib.contextmanager
def _making(screen: TextIO, client: type[Person]) -> Generator[Play]:
    """A play whose folder goes at the end; a signal ends it in order."""
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_heed_signals(stop))
        folder = Path(tempfile.mkdtemp(prefix="acp-matrix-bridge-demo-"))  # it makes it 0700
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Play(folder, screen, stop, client)


def run(answers: list[str], json_only: bool, client: type[Person] = Person) -> int:
    """The whole demo, with this client for the person.

    With answers: one turn, the outcome as the last line, 0 when one decided. Without: talk.
    """
    with contextlib.ExitStack() as stack:
        screen = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8")) if json_only else sys.stdout
        play = stack.enter_context(_making(screen, client))
        try:
            with play.stage():
                if not answers:
                    play.talk(Terminal(sys.stdin))
                    return 0
                outcome, decided = play.answer(answers)
        except Interrupted:
            return 1 if answers else 0
    sys.stdout.write(outcome + "\n")
    return 0 if decided else 1


def check(client: type[Person] = Person) -> int:
    """All of the demo started, and `check` run against it: its lines, how many of each kind, its exit code."""
    with _making(sys.stdout, client) as play:
        try:
            with play.stage():
                return play.check()
        except Interrupted:
            return 1
