"""Key machines that share a post office and a clock, and what a test says of them."""

# What others may do to us is made from the inside of their machine
# pyright: reportPrivateUsage=false

from pathlib import Path

from bridge.core.model import JsonObject, RoomId, UserId
from bridge.matrix.crypto.machine import Deciphered, Machine, Unread
from bridge.matrix.events import ENCRYPTED
from tests.fakes.postoffice import ALGORITHM, Json, PostOffice

ROOM, OTHER_ROOM = RoomId("!room"), RoomId("!other")
BOT, ALICE, MALLORY = UserId("@bot:hs"), UserId("@alice:hs"), UserId("@mallory:hs")
HOUR_S, DAY_S = 3600, 86400


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    """Machines that share a post office and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.office = PostOffice()
        self.clock = Clock()
        self._open: list[Machine] = []

    def machine(self, user: UserId, device: str, *, publish: bool = True) -> Machine:
        made = Machine(self.folder / device, user, device, create=True, clock=self.clock)
        self._open.append(made)
        if publish:
            self.office.publish(made)
        return made

    def restart(self, machine: Machine) -> Machine:
        machine.close()
        again = Machine(self.folder / machine.device_id, machine.user_id, machine.device_id, clock=self.clock)
        self._open.append(again)
        return again

    def close(self) -> None:
        for machine in self._open:
            machine.close()

    def say(self, sender: Machine, text: str, *members: UserId, room: RoomId = ROOM, event_id: str = "$e1") -> Json:
        """An encrypted message, as everybody in the room gets it, after its key was given out."""
        self.office.share(sender, room, *members)
        return event(sender, sender.encrypt(room, "m.room.message", {"body": text}), event_id=event_id)


def event(sender: Machine, content: JsonObject, *, event_id: str = "$e1") -> Json:
    return {"type": ENCRYPTED, "event_id": event_id, "sender": sender.user_id, "content": content}


def body(found: Deciphered | Unread) -> object:
    return found.content["body"] if isinstance(found, Deciphered) else found


def send_letter(office: PostOffice, sender: Machine, to: Machine, kind: str, content: JsonObject) -> None:
    office.ask(sender, to.user_id)
    known = sender.devices_of(to.user_id)
    assert known is not None
    device = known.devices[to.device_id]
    if not sender._letters.can_write_to(device):
        sender.claimed(office.claim({to.user_id: {to.device_id: ALGORITHM}}), [device])
    written = sender._letters.write(device, kind, content)
    office.send(sender.user_id, ENCRYPTED, {to.user_id: {to.device_id: written}})


def olm(bot: Machine, **change: object) -> dict[str, object]:
    ours: object = {"type": 0, "body": "!!"} | change
    ciphertext = {bot.curve_key: ours}
    return {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": "k", "ciphertext": ciphertext}
