"""A person in encrypted rooms, on nio's own client with its own encryption: another implementation than the bridge's."""

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
from nio import AsyncClient, AsyncClientConfig

ENCRYPTED = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
SYNC_MS = 3_000

Json = dict[str, Any]


class NioPerson:
    """What a person does. Every method that waits for something from the server does so for a few seconds at most."""

    def __init__(self, url: str, user: str, device: str, token: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = AsyncClientConfig(encryption_enabled=True, store_sync_tokens=True, request_timeout=30)
        self.nio = AsyncClient(url, user, device, store_path=str(folder), config=config)
        self.nio.restore_login(user, device, token)
        self.user_id, self.device_id, self.token = user, device, token
        self.password = ""  # given by a test in which the person has to prove who they are
        self.seen: dict[str, Any] = {}  # nio's events by id, the last that nio made of each
        self._count = itertools.count()

    @property
    def fingerprint(self) -> str:
        return cast("Any", self.nio.olm).account.identity_keys["ed25519"]

    @property
    def curve_key(self) -> str:
        return cast("Any", self.nio.olm).account.identity_keys["curve25519"]

    async def sync(self, timeout_ms: int = 0) -> None:
        """One sync, and the key calls that `sync_forever` makes after it."""
        nio: Any = self.nio
        answer: Any = await nio.sync(timeout_ms, full_state=not nio.next_batch)
        for room in answer.rooms.join.values():
            for event in room.timeline.events:
                self.seen[event.event_id] = event
        await nio.send_to_device_messages()
        if nio.should_upload_keys:
            await nio.keys_upload()
        if nio.should_query_keys:
            await nio.keys_query()
        if nio.should_claim_keys:
            await nio.keys_claim(nio.get_users_for_key_claiming())

    async def room(self, *invited: str, encrypted: bool = True) -> str:
        made: Any = await self.nio.room_create(invite=invited, initial_state=[ENCRYPTED] if encrypted else [])
        await self.until_in(made.room_id)
        return made.room_id

    async def join(self, room: str) -> None:
        await self.nio.join(room)
        await self.until_in(room)

    async def until_in(self, room: str) -> None:
        with anyio.fail_after(10):
            while room not in self.nio.rooms:
                await self.sync(SYNC_MS)

    async def until_member(self, room: str, user: str) -> None:
        with anyio.fail_after(10):
            while user not in self.nio.rooms[room].users:
                await self.sync(SYNC_MS)

    async def put(self, room: str, kind: str, content: Json) -> str:
        """Send an event, to unverified devices as well, and say its id."""
        answer: Any = await self.nio.room_send(
            room, kind, content, tx_id=f"{self.device_id}-{next(self._count)}", ignore_unverified_devices=True
        )
        return answer.event_id

    async def say(self, room: str, text: str, **more: object) -> str:
        return await self.put(room, "m.room.message", {"msgtype": "m.text", "body": text} | more)

    async def reply(self, room: str, to: str, text: str) -> str:
        return await self.say(room, text, **{"m.relates_to": {"m.in_reply_to": {"event_id": to}}})

    async def thread(self, room: str, root: str, text: str) -> str:
        relates = {
            "rel_type": "m.thread",
            "event_id": root,
            "is_falling_back": True,
            "m.in_reply_to": {"event_id": root},
        }
        return await self.say(room, text, **{"m.relates_to": relates})

    async def react(self, room: str, to: str, key: str) -> str:
        relates = {"rel_type": "m.annotation", "event_id": to, "key": key}
        return await self.put(room, "m.reaction", {"m.relates_to": relates})

    async def vote(self, room: str, poll: str, *answers: str) -> str:
        content = {
            "org.matrix.msc3381.poll.response": {"answers": list(answers)},
            "m.relates_to": {"rel_type": "m.reference", "event_id": poll},
        }
        return await self.put(room, "org.matrix.msc3381.poll.response", content)

    async def read(self, event_id: str) -> Json:
        """The event as this person sees it, decrypted if it can be, once it has come."""
        with anyio.fail_after(10):
            while event_id not in self.seen:
                await self.sync(SYNC_MS)
        return self.seen[event_id].source


@asynccontextmanager
async def nio_person(url: str, user: str, device: str, token: str, folder: Path) -> AsyncGenerator[NioPerson]:
    """A person whose first sync is done and whose keys are published."""
    person = NioPerson(url, user, device, token, folder)
    await person.sync()
    try:
        yield person
    finally:
        await person.nio.close()
        store: Any = person.nio.store
        store.database.close()
