"""The person of the demo with a client that encrypts: nio's own, whole, as many bots have it; and a signed device.

Above it: cli, which chooses it, and the tests. Below it: `person`, whose calls that need no encryption it goes on using,
nio, and `matrix.crypto` for the identity that signs the device: nio knows no cross-signing. It refuses to know how the
bridge encrypts: the two share a homeserver and the specification, so that each shows whether the other keeps to it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
from nio import (
    AsyncClient,
    AsyncClientConfig,
    EncryptionError,
    ErrorResponse,
    MegolmEvent,
    Response,
    RoomSendResponse,
    SyncResponse,
)
from nio.exceptions import LocalProtocolError
from nio.store import SqliteMemoryStore

from bridge.core.errors import DemoFailed
from bridge.core.model import JsonObject, UserId
from bridge.demo.homeserver import Account
from bridge.demo.person import SYNC_WAIT_MS, Person, Seen, read_event
from bridge.matrix.crypto.identity import Identity
from bridge.matrix.crypto.olm import ROOM_ALGORITHM
from bridge.matrix.crypto.signing import is_signed_by

ENCRYPTION: JsonObject = {
    "type": "m.room.encryption",
    "state_key": "",
    "content": {"algorithm": ROOM_ALGORITHM},
}
CLEAR = "(NOT ENCRYPTED) "
"""Stands before a message that came as clear text, as clients show it with a warning of their own."""
TIMELINE_EVENTS = 100
"""As many as Synapse gives at most for one room: nothing may be missing from the transcript."""
REQUEST_S = 30.0
"""For one request on loopback."""

T = TypeVar("T")


class EncryptingPerson(Person):
    """The same person in an encrypted room: nothing of theirs leaves in clear text, and their device is signed."""

    encrypts = True
    HINT = f"{Person.HINT}\nIt verifies that client's session by itself, so that its answers count."

    def __init__(self, base_url: str, account: Account) -> None:
        super().__init__(base_url, account)
        # It warns of every device that it meets for the first time, which is all of them, into the transcript.
        logging.getLogger("nio").setLevel(logging.ERROR)
        # The demo is over when its keys are lost, so they are kept nowhere. nio neither waits nor repeats by itself.
        config = AsyncClientConfig(
            store=SqliteMemoryStore,
            pickle_key=account.password,
            store_sync_tokens=False,
            max_limit_exceeded=0,
            max_timeouts=0,
            request_timeout=REQUEST_S,
        )
        self._loop = asyncio.Runner()
        self._nio = AsyncClient(base_url, account.user_id, account.device_id, config=config)
        self._nio.restore_login(account.user_id, account.device_id, account.access_token)
        self._keys: Any = self._nio.olm  # nio's key machine: there from the moment of the login
        self._own: set[str] = set()  # what this device sent: what was decrypted has no transaction id any more
        self._unread: list[MegolmEvent] = []
        self._identity = Identity.new()
        self._run(self._keep_house())
        self._publish_identity()
        self._sign_devices()

    def close(self) -> None:
        """Close the connections and forget the keys."""
        self._run(self._nio.close())
        self._loop.close()
        self._keys.store.database.close()

    def create_room(self, guest: str) -> str:
        """A private, encrypted room with the guest invited; from the moment that this client knows all that of it."""
        room = super().create_room(guest)
        while room not in self._nio.rooms:
            self._run(self._sync())
        return room

    def has_joined(self, room: str, user: str) -> bool:
        """Whether this client has seen the other join, and so gives them the room's key."""
        known = self._nio.rooms[room]
        return user in known.users and user not in known.invited_users

    def look(self, room: str) -> list[Seen]:
        """What is new in the room, or could be decrypted only now; waits for it a moment."""
        batch = self._run(self._sync())
        if self.account.user_id in batch.device_list.changed:
            self._sign_devices()
        late = [event for event in map(self._decrypt, self._unread) if event is not None]
        self._unread = [event for event in self._unread if event.event_id not in {each.event_id for each in late}]
        joined = batch.rooms.join.get(room)
        new: list[Any] = joined.timeline.events if joined else []  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - nio says only "list"
        self._unread += [event for event in new if isinstance(event, MegolmEvent)]
        readable = [event for event in new if not isinstance(event, MegolmEvent)]
        return [seen for event in [*late, *readable] if (seen := self._see(event)) is not None]

    def _room_state(self) -> list[JsonObject]:
        return [ENCRYPTION]

    def _send(self, room: str, transaction: str, content: JsonObject) -> str:
        if not self._nio.rooms[room].encrypted:
            raise DemoFailed("The person's client does not know that its room is encrypted, so it sends nothing.")
        # Whoever is in the room may read: the person trusts the devices there as they are, and verifies none.
        sending = self._nio.room_send(
            room, "m.room.message", dict(content), tx_id=transaction, ignore_unverified_devices=True
        )
        sent = self._run(self._judge(sending, RoomSendResponse))
        self._own.add(sent.event_id)
        return sent.event_id

    def _see(self, event: Any) -> Seen | None:  # noqa: ANN401 - nio's events have no type of their own to speak of
        seen = read_event(event.source)
        if seen is None:
            return None
        clear = seen.kind != "reaction" and not getattr(
            event, "decrypted", False
        )  # reactions are clear text everywhere
        text = CLEAR + seen.text if clear else seen.text
        return Seen(
            event_id=seen.event_id,
            sender=seen.sender,
            kind=seen.kind,
            text=text,
            about=seen.about,
            own_device=seen.event_id in self._own,
        )

    def _decrypt(self, event: MegolmEvent) -> Any:  # noqa: ANN401 - as above
        try:
            return self._nio.decrypt_event(event)
        except EncryptionError:
            return None

    async def _sync(self) -> SyncResponse:
        limit: Any = {"room": {"timeline": {"limit": TIMELINE_EVENTS}}}
        wait = SYNC_WAIT_MS if self._nio.next_batch else 0
        batch = await self._judge(self._nio.sync(timeout=wait, sync_filter=limit), SyncResponse)
        await self._keep_house()
        return batch

    async def _keep_house(self) -> None:
        """What nio's own loop does after each sync: keys of ours, keys of others, and messages to devices."""
        if self._nio.should_upload_keys:
            await self._judge(self._nio.keys_upload(), Response)
        if self._nio.should_query_keys:
            await self._judge(self._nio.keys_query(), Response)
        if self._nio.should_claim_keys:
            devices: Any = self._nio.get_users_for_key_claiming()
            await self._judge(self._nio.keys_claim(devices), Response)
        await self._nio.send_to_device_messages()

    def _publish_identity(self) -> None:
        """Give the account an identity, as a person's first client does."""

        def sign(value: JsonObject) -> str:
            return str(self._keys.sign_json(dict(value)))

        user, device = UserId(self.account.user_id), self.account.device_id
        self._call("POST", "/keys/device_signing/upload", self._identity.to_upload(user, device, sign))

    def _sign_devices(self) -> None:
        """Let the identity sign this device, and each that the person logs in later, as they do by verifying it."""
        user, signing = UserId(self.account.user_id), self._identity.self_signing
        asked: Any = self._call("POST", "/keys/query", {"device_keys": {user: []}})
        for device, keys in asked["device_keys"].get(user, {}).items():
            if signing is not None and not is_signed_by(keys, user, signing.public):
                signed = {user: {device: self._identity.sign_device(user, keys)}}
                if self._call("POST", "/keys/signatures/upload", signed).get("failures"):
                    raise DemoFailed("The homeserver did not take the signature of the person's device.")

    async def _judge(self, asking: Coroutine[Any, Any, Any], wanted: type[T]) -> T:
        """Nio returns what a homeserver refuses, and raises what does not come."""
        try:
            answer = await asking
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise DemoFailed("The demo's homeserver does not answer any more.") from error
        except LocalProtocolError as error:
            raise DemoFailed(f"The person's client cannot do that: {error}") from error
        if isinstance(answer, ErrorResponse) or not isinstance(answer, wanted):
            raise DemoFailed(f"The demo's homeserver refused the person's client: {answer}")
        return answer

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(doing)
