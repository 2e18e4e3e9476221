"""Values for tests of the ledger: requests, decisions and the changes that store them."""

from bridge.core.changes import (
    Change,
    Priority,
    StoreAsked,
    StoreDecision,
    StoreEncrypted,
    StoreEnding,
    StoreLocked,
    StoreMoved,
    StoreOutgoing,
    StorePin,
    StoreSession,
)
from bridge.core.model import (
    AgentName,
    CallRef,
    Decision,
    Description,
    Ending,
    Essence,
    EventId,
    Field,
    JsonObject,
    Meaning,
    Millis,
    Option,
    PromptStyle,
    Request,
    RequestId,
    RoomId,
    Scope,
    Selected,
    SessionId,
    Subject,
    Text,
    TransactionId,
    UserId,
    Via,
)

AGENT = AgentName("claude")
SESSION = SessionId("acps_0123456789abcdef")
ROOM = RoomId("!room:ex.org")
ALICE = UserId("@alice:ex.org")
AT = Millis(1_794_047_398_114)  # 2026-11-07T10:29:58.114Z

ALLOW = Option(
    option_id="a\udfff",  # a lone surrogate: it must go back as it came
    name="Allow once",
    kind="allow_once",
    label="Allow once",
    line="Allow once",
    card_id="opt_1",
    meaning=Meaning.APPROVE,
    scope=Scope.ONCE,
)
REJECT = Option(
    option_id="Ünï / 1 ",
    name="",
    kind=None,
    label="…",
    line="… [id]",
    card_id="opt_2",
    meaning=Meaning.CHOOSE,
    scope=None,
    label_cut=True,
)
DESCRIPTION = Description(
    title="Run tests ✅",
    tool_kind="execute",
    subjects=(
        Subject(kind="shell", members={"command": "pytest -q", "argv": ["pytest", "-q"]}),
        Subject(kind="teleport", members={}, known=False),
    ),
    preview=(Field("Command", "pytest -q"), Text("Diff", "-a\n+b\n")),
    notes=("The diff is longer than what was sent.",),
    essence=Essence(command="pytest -q", paths=("/srv/a",), diffs=("-a\n+b\n",), url=None),
)
RECORD: JsonObject = {
    "toolCall": {"toolCallId": "call_1", "rawInput": {"big": 2**70, "odd": "\udfff", "half": 0.1}},
    "options": [{"optionId": "a\udfff", "name": "Allow once", "kind": "allow_once"}],
    "_meta": {"trace": None},
}
LOCKED = StoreLocked(event_id=EventId("$l1"), room=ROOM, sender=ALICE, raw='{"content":"odd \udfff"}')
GUARDS: tuple[Change, ...] = (
    LOCKED,
    StorePin(user=ALICE, master="b64+/master"),
    StoreEncrypted(ROOM),
    StoreMoved(old=ROOM, new=RoomId("!new")),
)


def make_request(number: int = 1, *, session_id: SessionId = SESSION, room: RoomId = ROOM) -> Request:
    """Make a waiting request, the `number`-th of its session and room."""
    return Request(
        request_id=RequestId(f"{session_id}:{number}"),
        session_id=session_id,
        request_seq=number,
        agent=AGENT,
        call=CallRef(number + 100),
        tool_call_id="call_\ud800",
        room=room,
        number=number,
        description=DESCRIPTION,
        options=(ALLOW, REJECT),
        asked_at=AT,
        expires_at=Millis(AT + 1000),
        style=PromptStyle.BRIEF,
        mentions=(ALICE,),
    )


def start(session_id: SessionId = SESSION) -> StoreSession:
    """Make the change that begins a session."""
    return StoreSession(session_id=session_id, agent=AGENT)


def ask(request: Request, record: JsonObject = RECORD) -> StoreAsked:
    """Make the change that stores a request."""
    return StoreAsked(request=request, record=record, raw='{"toolCall": "\\udfff"}')


def make_answer(option: Option = ALLOW) -> Decision:
    """Make Alice's decision."""
    return Decision(
        ending=Ending.ANSWERED,
        outcome=Selected(option.option_id),
        option=option,
        by=ALICE,
        via=Via.REACTION,
        event_id=EventId("$answer"),
        at=AT,
    )


def decide(request: Request, decision: Decision | None = None) -> StoreDecision:
    """Make the change that stores a decision, Alice's by default."""
    return StoreDecision(request_id=request.request_id, decision=decision or make_answer(), waited=Millis(1500))


def end(request: Request, ending: Ending = Ending.ANSWERED) -> StoreEnding:
    """Make the change that ends a request."""
    return StoreEnding(request_id=request.request_id, ending=ending, delivered=True)


def queue(request: Request, name: str = "t1") -> StoreOutgoing:
    """Make the change that stores a prompt before it is sent."""
    return StoreOutgoing(
        transaction_id=TransactionId(name),
        room=request.room,
        event_type="m.room.message",
        content={"body": "odd \udfff", "m.mentions": {"user_ids": [ALICE]}},
        priority=Priority.PROMPT,
        request_id=request.request_id,
    )
