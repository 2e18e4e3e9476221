"""The people of an encrypted room: one who reads and writes there, and a crowd that only has devices.

Above it: the measures. Below it: the bridge's own key machine, for both sides of the room: whether other clients get along
with it is not the bench's question, and none encrypts with less fuss. All that these people do is done in the bench's
own process, before the clock of any figure runs.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import vodozemac

from bridge.core.model import JsonObject, RoomId, UserId
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.crosssigning import establish
from bridge.matrix.crypto.identity import Identity
from bridge.matrix.crypto.machine import Deciphered, Machine
from bridge.matrix.crypto.olm import ALGORITHM as LETTER_ALGORITHM
from bridge.matrix.crypto.olm import ROOM_ALGORITHM
from bridge.matrix.crypto.signing import to_canonical
from bridge.matrix.encryption import Encryption
from bridge.matrix.keyserver import KeyServer
from tests.bench.homeserver import PERSON, ROOM, user_of
from tests.bench.stage import Report, Stage

ACCOUNT = "alice"  # whose user `PERSON` is
DEVICES_EACH = 2
ONE_TIME_KEYS = 20  # of each device: one for every bridge that writes to it


class Person:
    """Somebody with one device, signed by their identity, who writes to one bridge's account."""

    def __init__(self, machine: Machine, encryption: Encryption, bot: UserId) -> None:
        self._machine, self._encryption, self._bot = machine, encryption, bot

    async def seal(self, content: JsonObject) -> JsonObject:
        """The message as it goes over the wire; the room's key has left for the bridge by then."""
        _, sealed = await self._encryption.encrypt(RoomId(ROOM), [self._bot], events.MESSAGE, content)
        return sealed

    def check(self, letter: Report, prompt: Report, body: JsonObject) -> None:
        """Make sure that what the bridge sent is a prompt that people can read, and no clear text."""
        self._machine.receive([letter["event"]])
        source = {"type": events.ENCRYPTED, "event_id": prompt["event_id"], "sender": self._bot, "content": body}
        found = self._machine.decrypt(RoomId(ROOM), source)
        if not isinstance(found, Deciphered) or not events.text(found.content, "body"):
            raise SystemExit(f"The bridge sent a prompt that nobody can read: {found}.")


@asynccontextmanager
async def open_person(stage: Stage, homeserver: str, account: str) -> AsyncGenerator[Person]:
    """The person, for the bridge of this account."""
    folder, user = stage.folder / ACCOUNT, UserId(PERSON)
    client = Client(homeserver, user_id=user, device_id=ACCOUNT, access_token=ACCOUNT)
    try:
        with Machine(folder, user, ACCOUNT, create=True) as machine:
            encryption = Encryption(client, machine)
            await encryption.start()
            await establish(
                KeyServer(client), machine, folder, user_id=user, recovery_key=None, password=None, reset=False
            )
            yield Person(machine, encryption, UserId(user_of(account)))
    finally:
        await client.close()


def publish_crowd(stage: Stage, size: int) -> list[str]:
    """So many people, each with an identity and two devices that it signed, known to the homeserver; their user ids."""
    users = [user_of(f"person{number}") for number in range(size)]
    for user in users:
        identity = Identity.new()
        for number in range(DEVICES_EACH):
            _publish(stage, UserId(user), f"DEVICE{number}", identity)
    return users


def _publish(stage: Stage, user: UserId, device: str, identity: Identity) -> None:
    """The public half of a device. Nobody ever opens what is sent to it, so the other half is forgotten here."""
    account: Any = vodozemac.Account()

    def sign(value: JsonObject) -> str:
        return str(account.sign(to_canonical(value)).to_base64())

    def signed(value: JsonObject) -> JsonObject:
        return {**value, "signatures": {user: {f"ed25519:{device}": sign(value)}}}

    account.generate_one_time_keys(ONE_TIME_KEYS)
    one_time_keys = {
        f"signed_curve25519:{name}": signed({"key": key.to_base64()}) for name, key in account.one_time_keys.items()
    }
    keys: JsonObject = {
        "algorithms": [LETTER_ALGORITHM, ROOM_ALGORITHM],
        "user_id": user,
        "device_id": device,
        "keys": {
            f"curve25519:{device}": account.curve25519_key.to_base64(),
            f"ed25519:{device}": account.ed25519_key.to_base64(),
        },
    }
    body = {"device_keys": signed(keys), "one_time_keys": one_time_keys}
    for what, said in (
        ("upload", body),
        ("signatures/upload", {user: {device: identity.sign_device(user, keys)}}),
        ("device_signing/upload", identity.to_upload(user, device, sign)),
    ):
        stage.tell("homeserver", user=user, device=device, keys=what, body=said)
