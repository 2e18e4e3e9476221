"""What a person sees of their rooms on a real homeserver, as it comes, and a way to wait for it."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import anyio

from bridge.demo.homeserver import Account
from tests.peers.synapse import Person

SYNC_MS = 10_000
AGAIN_S = 0.05  # before a homeserver that is away is asked again: another process, nothing to wait on
WAIT_S = 20.0  # for anything that people wait for; a loaded machine with two cores has taken five
FILTER = (
    '{"room":{"timeline":{"limit":1000},"ephemeral":{"types":[]}},"presence":{"types":[]},"account_data":{"types":[]}}'
)

Json = dict[str, Any]
T = TypeVar("T")


class Watch:
    """Everything in the timelines of one person's rooms."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self._timelines: defaultdict[str, list[Json]] = defaultdict(list)
        self._since = ""
        self._moved = anyio.Event()

    async def run(self) -> None:
        while True:
            try:
                await self.look(SYNC_MS)
            except aiohttp.ClientError:
                await anyio.sleep(AGAIN_S)

    async def look(self, wait_ms: int = 0) -> None:
        """Take what is new."""
        since = f"&since={quote(self._since)}" if self._since else ""
        batch = await self.person.ask("GET", f"/sync?timeout={wait_ms}&filter={quote(FILTER)}{since}")
        self._since = batch["next_batch"]
        for room, joined in batch.get("rooms", {}).get("join", {}).items():
            assert not joined["timeline"]["limited"] or room not in self._timelines, "a gap in the timeline"
            self._timelines[room] += joined["timeline"]["events"]
        self.touch()

    def touch(self) -> None:
        """Let whoever waits look again."""
        self._moved.set()

    async def until(self, true: Callable[[], T | None], *, seconds: float = WAIT_S) -> T:
        """What `true` says once it says something."""
        with anyio.fail_after(seconds):
            while not (found := true()):
                self._moved = anyio.Event() if self._moved.is_set() else self._moved
                await self._moved.wait()
        return found

    # ----------------------------------------------------------------------------------------------- what there is to see

    def events(self, room: str, kind: str, sender: str | None = None) -> list[Json]:
        """The events of this kind, in order; of one sender, or of all but the person."""
        return [
            event
            for event in self._timelines[room]
            if event["type"] == kind
            and (event["sender"] == sender if sender else event["sender"] != self.person.user_id)
        ]

    def messages(self, room: str) -> list[Json]:
        """What others said, edits left out."""
        return [event for event in self.events(room, "m.room.message") if not edited_by(event)]

    def edits(self, room: str, event_id: str) -> list[str]:
        """The texts that an event was edited to, in order."""
        return [
            event["content"]["m.new_content"]["body"]
            for event in self.events(room, "m.room.message")
            if edited_by(event) == event_id
        ]

    def prompts(self, room: str) -> list[Json]:
        """The messages that ask for a decision, in order."""
        return [event for event in self.messages(room) if event["content"]["body"].startswith("Permission needed")]

    def heard(self, room: str, text: str) -> Json | None:
        """The first message of others that holds this text."""
        return next((event for event in self.messages(room) if text in event["content"]["body"]), None)

    async def reply(self, room: str, to: str, text: str) -> str:
        """Say something as a reply."""
        return await self.person.say(room, text, **{"m.relates_to": {"m.in_reply_to": {"event_id": to}}})

    async def react(self, room: str, to: str, key: str) -> str:
        """React to an event."""
        relation = {"rel_type": "m.annotation", "event_id": to, "key": key}
        return await self.person.put(room, "m.reaction", {"m.relates_to": relation})


def edited_by(event: Json) -> str | None:
    """The event that this one edits."""
    relation = event["content"].get("m.relates_to", {})
    return relation.get("event_id") if relation.get("rel_type") == "m.replace" else None


def use(account: Account, url: str, http: aiohttp.ClientSession) -> Person:
    """An account of the demo's homeserver as a person."""
    return Person(
        url=url,
        http=http,
        user_id=account.user_id,
        token=account.access_token,
        device_id=account.device_id,
        password=account.password,
    )


@asynccontextmanager
async def watching(person: Person) -> AsyncGenerator[Watch]:
    """A person who looks at their rooms all the time."""
    watch = Watch(person)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        yield watch
        tasks.cancel_scope.cancel()
