"""A person with matrix-js-sdk: the program `js/person.mjs`, driven line by line.

Above it: `trials`, and tests that want such a person. Below it: Node. It refuses to know what is said and why.
"""

import itertools
import json
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from bridge.demo.homeserver import Account
from tests.clients.javascript import Javascript
from tests.clients.seen import DidNotCome, Shown, relation

WAIT_S = 150.0
"""For what the bridge is to do: at a default homeserver's limits its tenth event may wait that long for its turn."""
DEED_S = 60.0
"""For what the client is to do; with default limits the person, too, may have to wait."""


class JsError(Exception):
    """What the client could not do, in its own words."""


class JsPerson:
    sees_edits = True

    def __init__(self, process: anyio.abc.Process, account: Account, version: str) -> None:
        self.name = f"matrix-js-sdk {version}"
        self.user_id = account.user_id
        self._process = process
        self._numbers = itertools.count(1)
        self._answers: dict[int, Any] = {}
        self._moved = anyio.Event()

    async def follow(self) -> None:
        """Take what the program says, until its end."""
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for said in map(json.loads, lines):
                if "id" in said:
                    self._answers[said["id"]] = said
            self._moved.set()

    async def do(self, deed: str, **wish: object) -> Any:  # noqa: ANN401 - JSON
        """Have it do something; what came of it."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        await self._process.stdin.send(json.dumps({"id": number, "do": deed, **wish}).encode() + b"\n")
        with anyio.fail_after(DEED_S):
            while number not in self._answers:
                await self._wait()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise JsError(answer["error"])
        return answer["result"]

    async def _wait(self) -> None:
        if self._moved.is_set():
            self._moved = anyio.Event()
        await self._moved.wait()

    # ------------------------------------------------------------------------------------------------- as any client

    async def create_room(self, guest: str, *, encrypted: bool) -> str:
        return await self.do("create_room", invite=[guest], encryption=encrypted)

    async def until_joined(self, room: str, user: str) -> None:
        """Until the client has seen the other join: from then on it gives them the room's keys."""
        with anyio.move_on_after(DEED_S):
            while True:
                self._moved = anyio.Event()
                if user in (await self.do("look", room=room))["members"]:
                    return
                await self._moved.wait()
        raise DidNotCome(f"{user} was not seen to join")

    async def say(self, room: str, text: str) -> None:
        await self.do("send", room=room, content={"msgtype": "m.text", "body": text})

    async def answer(self, surface: str, room: str, prompt: Shown, text: str) -> None:
        if surface == "poll":
            await self.do("vote", room=room, poll=prompt.event, answers=[text])
        elif surface == "thread":  # the client makes the relation itself
            await self.do("send", room=room, content={"msgtype": "m.text", "body": text}, thread=prompt.event)
        else:
            kind, content = relation(surface, prompt.event, text)
            await self.do("send", room=room, type=kind, content=content)

    async def look(self, room: str) -> list[Shown]:
        said = await self.do("look", room=room)
        return [
            Shown(
                event=event["event"],
                sender=event["sender"],
                kind=event["type"],
                text=event["text"],
                edited=event["edited"],
                shield=event["shield"] or "",
                content=event["content"],
            )
            for event in said["events"]
        ]

    async def until(self, room: str, find: Callable[[Shown], bool], *, what: str) -> Shown:
        shown: list[Shown] = []
        with anyio.move_on_after(WAIT_S):
            while True:
                self._moved = anyio.Event()  # before the look: what moves after it is seen by the next one
                shown = await self.look(room)
                if found := next(filter(find, shown), None):
                    return found
                await self._moved.wait()
        raise DidNotCome(f"{what} was not shown; the last were {[each.text for each in shown[-3:]]}")


@asynccontextmanager
async def js_person(
    js: Javascript, homeserver: str, account: Account, *, encryption: bool = True
) -> AsyncGenerator[JsPerson]:
    """Logged in with the account's own device, until the end of the block."""
    process = await anyio.open_process(js.command("person.mjs"), stderr=subprocess.DEVNULL)
    person = JsPerson(process, account, js.version("matrix-js-sdk"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(person.follow)
        try:
            login = {"user": account.user_id, "device": account.device_id, "token": account.access_token}
            await person.do("log_in", homeserver=homeserver, password=account.password, encryption=encryption, **login)
            yield person
        finally:
            process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
    await process.aclose()
