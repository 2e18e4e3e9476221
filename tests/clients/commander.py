"""A person with matrix-commander: a program that is started for each thing it does, on its own key store.

Above it: `trials`. Below it: the program, in a virtual environment of its own from `commander.lock`. It refuses to know
what is said and why.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio

from bridge.demo.homeserver import Account, call
from tests.clients.javascript import NotInstalled
from tests.clients.jsperson import DEED_S, WAIT_S
from tests.clients.seen import DidNotCome, Shown, relation

LOCK = Path(__file__).with_name("commander.lock")
CACHE = Path(__file__).parents[2] / ".cache" / "clients"
INSTALL_TIMEOUT_S = 900.0
TAIL = 100
"""Events of the room that one look goes back; a whole run has fewer."""
AGAIN_S = 0.2
"""Between looks at who is in the room: another process joins, and the program that is tried cannot wait for that."""
ROOM_VERSION = "11"
"""Version 8.0.6 appends a server name to a room's id that has none, as those of version 12, and then finds no such room."""
ENCRYPTION = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}


def install() -> Path:
    """The program, from its public package when it is not here yet."""
    folder = CACHE / "matrix-commander"
    mark, program = folder / ".locked", folder / "bin/matrix-commander"
    locked = hashlib.sha256(LOCK.read_bytes() + str(folder).encode()).hexdigest()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text(encoding="utf-8") != locked:
            sys.stderr.write("clients: installing matrix-commander (half a minute) ...\n")
            shutil.rmtree(folder, ignore_errors=True)
            make = [sys.executable, "-m", "venv", str(folder)]
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(LOCK)]
            for command in (make, pip):
                done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)  # noqa: S603 - our own interpreter
                if done.returncode:
                    said = (done.stderr or done.stdout).strip()
                    raise NotInstalled(f"matrix-commander could not be installed: {said[-2000:]}")
            mark.write_text(locked, encoding="utf-8")
    return program


class Commander:
    """The person; the room is the one that it was given, since its credentials name one."""

    sees_edits = False

    def __init__(self, program: Path, folder: Path, homeserver: str, account: Account) -> None:
        self.name = "matrix-commander " + _version(program)
        self.user_id = account.user_id
        self._homeserver = homeserver
        self._account = account
        self._folder = folder
        self._program = program

    async def create_room(self, guest: str, *, encrypted: bool) -> str:
        """Not by the program itself, which cannot choose the room's version."""
        wish = {"preset": "private_chat", "invite": [guest], "room_version": ROOM_VERSION}
        state = {"initial_state": [ENCRYPTION] if encrypted else []}
        address, token = "/_matrix/client/v3/createRoom", self._account.access_token
        made = call(self._homeserver, "POST", address, wish | state, token=token)
        if made.status != HTTPStatus.OK:
            raise DidNotCome(f"the room was refused with status {made.status}")
        room = str(made.body["room_id"])
        credentials = {
            "homeserver": self._homeserver,
            "device_id": self._account.device_id,
            "user_id": self.user_id,
            "room_id": room,
            "access_token": token,
        }
        (self._folder / "store").mkdir()
        (self._folder / "credentials.json").write_text(json.dumps(credentials), encoding="utf-8")
        await self._run("--listen", "once")  # uploads the keys of its device, without which nobody can write to it
        return room

    async def until_joined(self, room: str, user: str) -> None:
        """Until the homeserver says so: the program asks it anew each time that it is started."""
        path = f"/_matrix/client/v3/rooms/{room}/joined_members"
        with anyio.move_on_after(DEED_S):
            while True:
                members: Any = call(self._homeserver, "GET", path, token=self._account.access_token).body["joined"]
                if user in members:
                    return
                await anyio.sleep(AGAIN_S)
        raise DidNotCome(f"{user} did not join")

    async def say(self, room: str, text: str) -> None:
        await self._run("--room", room, "--message", text)

    async def answer(self, surface: str, room: str, prompt: Shown, text: str) -> None:
        if surface == "text":
            await self.say(room, text)
            return
        kind, content = relation(surface, prompt.event, text)
        await self._run("--room", room, "--event", "-", said=json.dumps({"type": kind, "content": content}))

    async def look(self, room: str) -> list[Shown]:
        said = await self._run(
            "--room", room, "--listen", "tail", "--tail", str(TAIL), "--listen-self", "--output", "json"
        )
        lines = [json.loads(line)["source"] for line in said.splitlines() if line.startswith("{")]
        return [_read(source) for source in lines if "state_key" not in source]

    async def until(self, room: str, find: Callable[[Shown], bool], *, what: str) -> Shown:
        shown: list[Shown] = []
        with anyio.move_on_after(WAIT_S):
            while True:
                shown = await self.look(room)
                if found := next(filter(find, shown), None):
                    return found
        raise DidNotCome(f"{what} was not shown; the last were {[each.text for each in shown[-3:]]}")

    async def _run(self, *words: str, said: str = "") -> str:
        own = ["--credentials", str(self._folder / "credentials.json"), "--store", str(self._folder / "store")]
        environment = os.environ | {"HOME": str(self._folder)}
        with anyio.fail_after(DEED_S):
            done = await anyio.run_process(
                [str(self._program), *own, *words], input=said.encode(), env=environment, check=False
            )
        if done.returncode:
            raise DidNotCome(f"matrix-commander ended with {done.returncode}: {done.stderr.decode()[-500:]}")
        return done.stdout.decode()


def _version(program: Path) -> str:
    pinned = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith(f"{program.name}==")]
    return pinned[0].removeprefix(f"{program.name}==").partition(" ")[0]


def _read(source: dict[str, Any]) -> Shown:
    content = source.get("content", {})
    return Shown(
        event=source["event_id"],
        sender=source["sender"],
        kind=source["type"],
        text=str(content.get("body", "")),
        edited=False,
        content=content,
    )
