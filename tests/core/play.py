"""A broker with one agent, one room and two approvers, played step by step: the tests' shorthand for events."""

from dataclasses import replace

from bridge.core import broker
from bridge.core.changes import Snapshot
from bridge.core.effects import Effect, Receipt, Respond, Send
from bridge.core.events import (
    AnsweredLocally,
    Asked,
    Composed,
    Delivered,
    Echoed,
    Event,
    Locked,
    Reacted,
    RoomSeen,
    RoomState,
    Said,
    Sent,
    SessionStarted,
    Unlocked,
    Voted,
)
from bridge.core.messages import Message, Prompt
from bridge.core.model import (
    Agent,
    AgentName,
    CallRef,
    Description,
    Essence,
    EventId,
    JsonValue,
    Meaning,
    Millis,
    Misfit,
    Option,
    Outcome,
    Request,
    RequestId,
    RoomId,
    Rules,
    Scope,
    Seal,
    SessionId,
    Subject,
    UserId,
)
from bridge.core.state import begin

ROOM = RoomId("!room:ex.org")
BOT = UserId("@bridge:ex.org")
ALICE, BOB, MALLORY = UserId("@alice:ex.org"), UserId("@bob:ex.org"), UserId("@mallory:evil.example")
CLAUDE = AgentName("claude")
SESSION = SessionId("acps_0123456789abcdef")
NONCE = "00112233445566778899aabbccddeeff"
NOTHING_FOUND = Snapshot(
    next_numbers={},
    open=(),
    closed=(),
    unseen=frozenset(),
    taken=(),
    outgoing=(),
    sync_token=None,
    sessions=(),
)


def option(option_id: str, name: str, meaning: Meaning, scope: Scope | None = Scope.ONCE) -> Option:
    kinds = {Meaning.APPROVE: "allow", Meaning.REJECT: "reject"}
    kind = f"{kinds[meaning]}_{scope}" if meaning in kinds and scope else "other"
    return Option(
        option_id=option_id,
        name=name,
        kind=kind,
        label=name,
        line=name,
        card_id=option_id,
        meaning=meaning,
        scope=scope,
    )


ALLOW = option("opt-allow", "Allow once", Meaning.APPROVE)
ALWAYS = option("opt-always", "Always allow", Meaning.APPROVE, Scope.ALWAYS)
REJECT = option("opt-reject", "Reject", Meaning.REJECT)
OPTIONS = (ALLOW, ALWAYS, REJECT)


def describe(command: str | None = "pytest -q", title: str = "Run tests", kind: str = "shell") -> Description:
    return Description(
        title=title,
        tool_kind="execute",
        subjects=(Subject(kind=kind, members={}, known=kind == "shell"),),
        preview=(),
        notes=(),
        essence=Essence(command=command, paths=(), diffs=(), url=None),
    )


def agent(**changes: object) -> Agent:
    people = frozenset({ALICE, BOB})
    base = Agent(name=CLAUDE, room=ROOM, approvers=people, users=people, reactions=False)
    return replace(base, **changes)  # pyright: ignore[reportArgumentType] - tests name the fields they change


MASTER = "masterkey"
SIGNED = Seal(device_id="PHONE", signed=True, master=MASTER)
UNSIGNED = Seal(device_id="LAPTOP", signed=False, master=MASTER)


class Play:
    """Each call is one event; `effects` are those of the last call, `all_effects` of the whole play.

    What is said comes under `seal`: none in a room that is not encrypted, a good one once `encrypt` was called.
    """

    seal: Seal | None = None

    def __init__(self, *agents: Agent, found: Snapshot = NOTHING_FOUND) -> None:
        rules = Rules(agents=agents or (agent(),), bot=BOT)
        self.now = Millis(1_000_000)
        self.state = begin(rules, found)
        self.effects: list[Effect] = []
        self.all_effects: list[Effect] = []
        self._events = 0
        self._calls = 0
        for each in rules.agents:
            if each.room is not None:
                self.step(RoomSeen(room=each.room, state=RoomState.JOINED, people=2))
        self.step(SessionStarted(agent=rules.agents[0].name, session_id=SESSION))

    def encrypt(self, room: RoomId = ROOM) -> None:
        """The room is encrypted from here on, and what is said comes from a signed device."""
        self.step(RoomSeen(room=room, state=RoomState.JOINED, people=2, encrypted=True))
        self.seal = SIGNED

    def step(self, event: Event) -> list[Effect]:
        self.state, self.effects = broker.step(self.state, event, self.now)
        self.all_effects += self.effects
        return self.effects

    def wait(self, seconds: float) -> None:
        self.now = Millis(self.now + int(seconds * 1000))

    def ask(
        self,
        *,
        options: tuple[Option, ...] = OPTIONS,
        misfit: Misfit | None = None,
        description: Description | None = None,
        tool_call_id: str = "call_1",
        session_id: SessionId = SESSION,
        name: AgentName = CLAUDE,
        posted: bool = True,
        whole: bool = True,
    ) -> RequestId:
        self._calls += 1
        record: dict[str, JsonValue] = {"toolCall": {"toolCallId": tool_call_id}, "options": []}
        before = set(self.state.entries)
        asked = self.step(
            Asked(
                agent=name,
                session_id=session_id,
                call=CallRef(self._calls),
                tool_call_id=tool_call_id,
                description=description or describe(),
                options=() if misfit else options,
                misfit=misfit,
                record=record,
                raw="{}",
                nonce=NONCE,
            )
        )
        new = set(self.state.entries) - before
        (request_id,) = new or {RequestId("")}
        if posted and request_id and self.state.entries[request_id].transaction_id is not None:
            self.post(request_id, whole=whole)
            self.effects = [*asked, *self.effects]
        return request_id

    def post(self, request_id: RequestId, *, whole: bool = True) -> EventId:
        """The homeserver takes the current message, and it is seen in the timeline."""
        request = self.request(request_id)
        transaction_id = self.state.entries[request_id].transaction_id
        assert transaction_id is not None
        event_id = EventId(f"$prompt{request.number}r{request.revision}")
        self.step(Composed(request_id=request_id, revision=request.revision, digest="d", whole=whole))
        self.step(Sent(transaction_id=transaction_id, event_id=event_id))
        sent = self.effects
        self.step(Echoed(room=ROOM, event_id=event_id, transaction_id=transaction_id))
        self.effects = [*sent, *self.effects]
        return event_id

    def request(self, request_id: RequestId) -> Request:
        return self.state.entries[request_id].request

    def event_of(self, request_id: RequestId) -> EventId:
        event_id = self.request(request_id).event_id
        assert event_id is not None
        return event_id

    def say(self, text: str, sender: UserId = ALICE, *targets: EventId, **more: object) -> list[Effect]:
        self._events += 1
        event_id = EventId(f"$e{self._events}")
        said = Said(room=ROOM, sender=sender, event_id=event_id, text=text, targets=targets, seal=self.seal)
        return self.step(replace(said, **more))  # pyright: ignore[reportArgumentType] - as above

    def reply(self, request_id: RequestId, text: str, sender: UserId = ALICE) -> list[Effect]:
        return self.say(text, sender, self.event_of(request_id))

    def reply_from(self, request_id: RequestId, text: str, seal: Seal) -> list[Effect]:
        return self.say(text, ALICE, self.event_of(request_id), seal=seal)

    def lock(self, sender: UserId = ALICE, room: RoomId = ROOM) -> EventId:
        """A message comes that cannot be read yet."""
        self._events += 1
        event_id = EventId(f"$locked{self._events}")
        self.step(Locked(room=room, sender=sender, event_id=event_id, raw="{}"))
        return event_id

    def open(self, event_id: EventId, text: str, *targets: EventId, **more: object) -> list[Effect]:
        """Its key has come: this is what it said."""
        found = self.say(text, ALICE, *targets, event_id=event_id, **more)
        self.step(Unlocked(room=ROOM, event_id=event_id))
        self.effects = found
        return found

    def react(self, target: EventId, key: str, sender: UserId = ALICE) -> list[Effect]:
        self._events += 1
        event_id = EventId(f"$e{self._events}")
        return self.step(Reacted(room=ROOM, sender=sender, event_id=event_id, key=key, target=target))

    def vote(self, target: EventId, *answers: str, sender: UserId = ALICE, **more: object) -> list[Effect]:
        self._events += 1
        voted = Voted(
            room=ROOM,
            sender=sender,
            event_id=EventId(f"$e{self._events}"),
            target=target,
            answers=answers,
            seal=self.seal,
        )
        return self.step(replace(voted, **more))  # pyright: ignore[reportArgumentType] - as above

    def post_poll(self, request_id: RequestId) -> EventId:
        """The homeserver takes the youngest poll of this request."""
        transaction_id = self.state.entries[request_id].ballots[-1].transaction_id
        event_id = EventId(f"$poll of {transaction_id}")
        self.step(Sent(transaction_id=transaction_id, event_id=event_id))
        return event_id

    def answer_locally(self, request_id: RequestId, option_id: str, **changes: object) -> list[Effect]:
        answered = AnsweredLocally(
            ticket=1,
            session_id=SESSION,
            request_id=request_id,
            option_id=option_id,
            by="local:ann",
            trusted=True,
        )
        return self.step(replace(answered, **changes))  # pyright: ignore[reportArgumentType] - as above

    def deliver(self, request_id: RequestId) -> list[Effect]:
        request = self.request(request_id)
        return self.step(Delivered(agent=request.agent, call=request.call))

    # ------------------------------------------------------------------------------------------------- what came of it

    @property
    def outcomes(self) -> list[tuple[CallRef, Outcome]]:
        """Every response that went to the harness, in order."""
        return [(e.call, e.outcome) for e in self.all_effects if isinstance(e, Respond)]

    def told(self, *kinds: type[Message]) -> list[Message]:
        """The messages of the last call, prompts left out unless they are asked for."""
        sent = [e.message for e in self.effects if isinstance(e, Send)]
        return [m for m in sent if (isinstance(m, kinds) if kinds else not isinstance(m, Prompt))]

    def did(self, kind: type[Effect]) -> list[Effect]:
        return [e for e in self.effects if isinstance(e, kind)]

    @property
    def receipts(self) -> list[Receipt]:
        return [e for e in self.effects if isinstance(e, Receipt)]
