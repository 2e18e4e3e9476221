"""`verify` with a person on matrix-js-sdk, over both roads and from both sides, in an encrypted room on a real Synapse."""

import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import pytest

from bridge.app.verifying import Plan, verify_as
from bridge.core.events import Verified
from bridge.core.model import RoomId, UserId
from bridge.demo.homeserver import Account, Homeserver
from bridge.matrix.client import Client
from bridge.matrix.crosssigning import establish
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from bridge.matrix.keyserver import KeyServer
from bridge.ops.verify import Terminal
from tests.clients.javascript import Javascript

LIMIT_S = 120.0  # a machine under load starts Node in ten seconds, and each of them waits for the other's messages

Note = dict[str, Any]


class Person:
    """`js/verify.mjs`, driven line by line."""

    def __init__(self, process: anyio.abc.Process, account: Account) -> None:
        self.user = UserId(account.user_id)
        self._process = process
        self._notes: list[Note] = []
        self._came = anyio.Event()

    async def listen(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            self._notes += map(json.loads, lines)
            self._came.set()
            self._came = anyio.Event()

    async def until(self, key: str, value: object = None) -> Note:
        """The next note with this key, and value where one is given; it is taken away."""
        while True:
            for note in self._notes:
                if key in note and value in {None, note[key] if isinstance(note[key], str) else None}:
                    self._notes.remove(note)
                    return note
            await self._came.wait()

    async def do(self, deed: str, **wish: object) -> Any:  # noqa: ANN401 - JSON
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps({"do": deed, **wish}).encode() + b"\n")
        note = await self.until("did", deed)
        assert "error" not in note, note
        return note["result"]


@dataclass
class Script(Terminal):
    """The operator: compares with what the person's client shows, and says what the test wants."""

    person: Person
    answer: str | None = "yes"
    lines: list[str] = field(default_factory=list[str])
    said: anyio.Event = field(default_factory=anyio.Event)
    same: bool = False

    def say(self, line: str) -> None:
        self.lines.append(line)
        self.said.set()

    async def ask(self, question: str) -> str | None:
        del question
        theirs = cast("Note", (await self.person.until("sas"))["sas"])
        shown = "\n".join(self.lines)
        self.same = "  ".join(map(str, theirs["decimal"])) in shown and all(
            f"{picture}  " in shown for picture, _ in theirs["emoji"]
        )
        return self.answer if self.same else "no"


@dataclass
class Stage:
    homeserver: Homeserver
    folder: Path
    person: Person
    bot: Account
    client: Client
    machine: Machine
    room: str
    pins: list[Verified] = field(default_factory=list[Verified])
    script: Script = field(init=False)

    def __post_init__(self) -> None:
        self.script = Script(self.person)

    async def verify(self, *, start: bool) -> int:
        plan = Plan(
            folder=self.folder,
            user=self.person.user if start else None,
            approvers=frozenset({self.person.user}),
            rooms=(self.room,),
        )

        async def pin(verified: Verified) -> None:
            self.pins.append(verified)

        return await verify_as(plan, self.client, self.machine, pin, self.script)

    async def master_of_person(self) -> str | None:
        return (await Encryption(self.client, self.machine).devices_of(self.person.user)).master


@asynccontextmanager
async def open_person(js: Javascript, url: str, account: Account) -> AsyncGenerator[Person]:
    words = (url, account.user_id, account.device_id, account.access_token, account.password)
    process = await anyio.open_process(js.command("verify.mjs", *words), stderr=subprocess.DEVNULL)
    person = Person(process, account)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(person.listen)
        try:
            await person.until("ready")
            await person.do("cross_sign")
            yield person
        finally:
            process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
    await process.aclose()


@pytest.fixture
async def stage(js: Javascript, synapse: Homeserver, tmp_path: Path) -> AsyncGenerator[Stage]:
    mark = abs(hash(str(tmp_path))) % 10**9
    bot, alice = synapse.register(f"verifier{mark}"), synapse.register(f"alice{mark}")
    user = UserId(bot.user_id)
    client = Client(synapse.base_url, user_id=user, device_id=bot.device_id, access_token=bot.access_token)
    with anyio.fail_after(LIMIT_S), Machine(tmp_path, user, bot.device_id, create=True) as machine:
        await Encryption(client, machine).start()
        await establish(
            KeyServer(client),
            machine,
            tmp_path,
            user_id=user,
            recovery_key=None,
            password=lambda: bot.password,
            reset=False,
        )
        async with open_person(js, synapse.base_url, alice) as person:
            room = await person.do("create_room", invite=bot.user_id)
            await client.join(RoomId(room))
            while bot.user_id not in await person.do("in_room", room=room):
                await anyio.lowlevel.checkpoint()
            assert await person.do("knows", user=bot.user_id)
            yield Stage(synapse, tmp_path, person, bot, client, machine, room)
        await client.close()


async def finish(stage: Stage) -> None:
    """Both sides said yes: her identity is pinned, and her client trusts the bot's user for good."""
    assert stage.script.same
    assert [Verified(user=stage.person.user, master=await stage.master_of_person() or "")] == stage.pins
    assert (await stage.person.until("verified"))["verified"]
    while not await stage.person.do("trusts", user=stage.bot.user_id):  # her client uploads its signature first
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("deed", ["verify_device", "verify_in_room"])
async def test_her_client_asks(stage: Stage, deed: str) -> None:
    codes: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            codes.append(await stage.verify(start=False))

        tasks.start_soon(run)
        await stage.script.said.wait()
        await stage.person.do(deed, user=stage.bot.user_id, device=stage.bot.device_id, room=stage.room)
        while not stage.script.same:
            await anyio.lowlevel.checkpoint()
        await stage.person.do("confirm")
    assert [0] == codes
    await finish(stage)


@pytest.mark.parametrize("deed", ["verify_device", "verify_in_room"])
async def test_a_request_that_waited_for_the_command_is_taken(stage: Stage, deed: str) -> None:
    await stage.person.do(deed, user=stage.bot.user_id, device=stage.bot.device_id, room=stage.room)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(confirm_when_shown, stage)
        assert 0 == await stage.verify(start=True)
    assert not [line for line in stage.script.lines if "was asked" in line]
    await finish(stage)


async def test_the_bridge_asks_in_the_room(stage: Stage) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(confirm_when_shown, stage)
        assert 0 == await stage.verify(start=True)
    await finish(stage)


async def test_a_no_of_the_operator_reaches_her_client(stage: Stage) -> None:
    stage.script.answer = "no"
    assert 1 == await stage.verify(start=True)
    assert stage.script.same
    assert {"verified": False, "code": "m.mismatched_sas"} == await stage.person.until("verified")
    assert [] == stage.pins
    assert not await stage.person.do("trusts", user=stage.bot.user_id)


async def test_a_no_of_hers_ends_the_command(stage: Stage) -> None:
    stage.script.answer = None

    class Slow(Script):
        async def ask(self, question: str) -> str | None:
            await super().ask(question)
            await self.person.do("mismatch")
            await anyio.sleep_forever()

    stage.script = Slow(stage.person)
    assert 1 == await stage.verify(start=True)
    assert [] == stage.pins
    assert "somebody may sit in between" in stage.script.lines[-1]


async def confirm_when_shown(stage: Stage) -> None:
    while not stage.script.same:
        await anyio.lowlevel.checkpoint()
    await stage.person.do("confirm")
