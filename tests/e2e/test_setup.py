"""`setup` and `check --ask` as the programs that they are, with a person whose client encrypts, on a real Synapse."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from urllib.parse import quote

import pytest

from bridge import config
from bridge.core.errors import DemoFailed
from bridge.demo.encrypting import EncryptingPerson
from bridge.demo.homeserver import Homeserver, call

LINE_S = 60.0  # for the next line of a program, on a busy machine
LOOKS_MOST = 100


class Program:
    """A command under way: what it prints, line by line, and what is typed to it."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "bridge", *words],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self.lines: list[str] = []
        self._coming: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._coming.put(line.decode())

    def type(self, *lines: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self._process.stdin.flush()

    def until(self, pattern: str) -> re.Match[str]:
        while True:
            self.lines.append(self._coming.get(timeout=LINE_S))
            if found := re.search(pattern, self.lines[-1]):
                return found

    def wait(self) -> int:
        code = self._process.wait(timeout=LINE_S)
        while not self._coming.empty():
            self.lines.append(self._coming.get())
        return code

    def kill(self) -> None:
        self._process.kill()
        self._reader.join()
        with self._process:  # closes its streams
            pass


@contextmanager
def program(folder: Path, *words: str) -> Generator[Program]:
    started = Program(folder, *words)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def person(synapse: Homeserver) -> Iterator[EncryptingPerson]:
    someone = EncryptingPerson(synapse.base_url, synapse.register("alice"))
    yield someone
    someone.close()


def accept(synapse: Homeserver, person: EncryptingPerson, room: str) -> None:
    token = person.account.access_token
    assert 200 == call(synapse.base_url, "POST", f"/_matrix/client/v3/join/{quote(room)}", {}, token=token).status


def answer(person: EncryptingPerson, room: str, text: str) -> str:
    """Reply to the question once it is seen; returns its text."""
    for _ in range(LOOKS_MOST):
        for seen in person.look(room):
            if "A test of the bridge" in seen.text and seen.kind == "message":
                person.say(room, text, reply_to=seen.event_id)
                return seen.text
    raise DemoFailed("The question never came.")


def test_a_newcomer_is_led_from_nothing_to_an_answered_question(
    tmp_path: Path, synapse: Homeserver, person: EncryptingPerson
) -> None:
    bot = synapse.register("helper")
    with program(tmp_path, "setup", "--homeserver", synapse.base_url, "--user", bot.user_id) as setup:
        setup.type(bot.password, person.account.user_id, "", "0", str(tmp_path))
        room = setup.until(r'room "Coding agents" is made: (\S+)')[1]
        setup.until(r"Waiting for @alice")
        accept(synapse, person, room)
        setup.until(r"Everybody is in the room")
        setup.until(r"5 of 5")
        answer(person, room, "1")
        said = setup.until(r"question in the room of demo: (.*)")[1]
        assert 0 == setup.wait()
    assert f"answered by {person.account.user_id} with works" in said
    assert f"as a message from device {person.account.device_id}." in said
    loaded = config.load(tmp_path / "config.toml")
    assert room == loaded.agents["demo"].room
    assert not any(bot.password in line for line in setup.lines)
    state = call(
        synapse.base_url,
        "GET",
        f"/_matrix/client/v3/rooms/{quote(room)}/state/m.room.encryption/",
        None,
        token=person.account.access_token,
    )
    assert "m.megolm.v1.aes-sha2" == state.body["algorithm"]

    with program(tmp_path, "check", "--ask") as check:
        check.until("A question is in the room of demo now")
        answer(person, room, "No")
        assert "with no after" in check.until(r"question in the room of demo: (.*)")[1]
        check.wait()


def test_a_room_of_their_own_is_entered_once_the_bot_is_invited(
    tmp_path: Path, synapse: Homeserver, person: EncryptingPerson
) -> None:
    bot, token = synapse.register("guest"), person.account.access_token
    state = [{"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}]
    wish = {"preset": "private_chat", "initial_state": state}
    made = call(synapse.base_url, "POST", "/_matrix/client/v3/createRoom", wish, token=token)
    room = str(made.body["room_id"])
    with program(tmp_path, "setup", "--homeserver", synapse.base_url, "--user", bot.user_id) as setup:
        setup.type(bot.password, person.account.user_id, room)
        setup.until(r"The bot may not enter")
        invite = f"/_matrix/client/v3/rooms/{quote(room)}/invite"
        assert 200 == call(synapse.base_url, "POST", invite, {"user_id": bot.user_id}, token=token).status
        setup.type("", "0", str(tmp_path))
        setup.until(r"Everybody is in the room")
        setup.until(r"5 of 5")
        answer(person, room, "1")
        assert 0 == setup.wait()
    assert room == config.load(tmp_path / "config.toml").agents["demo"].room
