"""Rooms without a homeserver: keeps what is sent, and lets a test say what becomes of it."""

from bridge.core.events import Echoed, SendFailed, Sent, TooLarge
from bridge.core.messages import Message
from bridge.core.model import EventId, JsonObject, RoomId, TransactionId
from bridge.core.ports import Deliver, Envelope, Outgoing

SHRINKS_MOST = 3


class FakeRooms:
    """Implements `core.ports.Rooms`.

    Until a test says otherwise everything that is sent waits; with `at_once` it is taken as soon as it is sent.
    `composed` holds every message that was put into words, `sent` every event in the order in which it was queued.
    """

    def __init__(self, deliver: Deliver, *, at_once: bool = False) -> None:
        self._deliver = deliver
        self._at_once = at_once
        self._next_event = 0
        self.composed: list[tuple[Message, RoomId, int]] = []
        self.sent: list[Outgoing] = []
        self.waiting: dict[TransactionId, Outgoing] = {}
        self.leaving: set[TransactionId] = set()
        self.withheld: list[TransactionId] = []
        self.taken: dict[TransactionId, EventId] = {}
        self.signs: list[tuple[RoomId, bool]] = []

    # ------------------------------------------------------------------------------------------------------ the port

    def compose(self, message: Message, room: RoomId, *, shrink: int = 0) -> tuple[Envelope, ...]:
        self.composed.append((message, room, shrink))
        if shrink > SHRINKS_MOST:
            return ()
        content: JsonObject = {"msgtype": "m.text", "body": type(message).__name__, "shrink": shrink}
        return (Envelope(event_type="m.room.message", content=content),)

    def send(self, outgoing: Outgoing) -> None:
        if outgoing.transaction_id in self.waiting:
            return
        self.sent.append(outgoing)
        self.waiting[outgoing.transaction_id] = outgoing
        if self._at_once:
            self.take(outgoing.transaction_id)

    def withhold(self, transaction_id: TransactionId) -> bool:
        if transaction_id not in self.waiting or transaction_id in self.leaving:
            return False
        del self.waiting[transaction_id]
        self.withheld.append(transaction_id)
        return True

    def typing(self, room: RoomId, *, on: bool) -> None:
        self.signs.append((room, on))

    # --------------------------------------------------------------------------------------------- what a test decides

    def begin(self, transaction_id: TransactionId) -> None:
        """It is on its way: too late to withhold it."""
        self.leaving.add(transaction_id)

    def take(self, transaction_id: TransactionId, event_id: EventId | None = None) -> EventId:
        """The homeserver took it; the same transaction id gets the same event id again."""
        outgoing = self._leave(transaction_id)
        if event_id is None:
            self._next_event += 1
            event_id = self.taken.get(transaction_id, EventId(f"$sent{self._next_event}"))
        self.taken[outgoing.transaction_id] = event_id
        self._deliver(Sent(transaction_id=transaction_id, event_id=event_id))
        return event_id

    def take_all(self) -> None:
        """The homeserver took everything that waits, in order of priority, then of age."""
        for outgoing in sorted(self.waiting.values(), key=lambda waiting: waiting.priority):
            self.take(outgoing.transaction_id)

    def refuse(self, transaction_id: TransactionId, sentence: str = "The bot is not in the room any more.") -> None:
        """It can never be sent."""
        self._leave(transaction_id)
        self._deliver(SendFailed(transaction_id=transaction_id, sentence=sentence))

    def find_too_large(self, transaction_id: TransactionId) -> None:
        """The homeserver refused it for its size."""
        self._leave(transaction_id)
        self._deliver(TooLarge(transaction_id=transaction_id))

    def echo(self, transaction_id: TransactionId) -> Echoed:
        """The event that the room's timeline shows for it; hand it to the relay with a batch."""
        outgoing = next(sent for sent in self.sent if sent.transaction_id == transaction_id)
        return Echoed(room=outgoing.room, event_id=self.taken[transaction_id], transaction_id=transaction_id)

    def _leave(self, transaction_id: TransactionId) -> Outgoing:
        self.leaving.discard(transaction_id)
        return self.waiting.pop(transaction_id)
