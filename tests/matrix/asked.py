"""Requests as the core makes them, for the tests of this folder."""

from bridge.core.model import (
    AgentName,
    CallRef,
    Description,
    Essence,
    EventId,
    Field,
    Meaning,
    Millis,
    Option,
    PreviewItem,
    PromptStyle,
    Request,
    RequestId,
    RoomId,
    Scope,
    SessionId,
    Text,
    UserId,
)

AMY = UserId("@amy:hs")
ANSWER = EventId("$answer")
PROMPT = EventId("$prompt")
EXPIRY = Millis(1_794_047_400_000)  # 2026-11-07T10:30:00.000Z
TESTS: tuple[PreviewItem, ...] = (
    Field("Tool", "Run the test suite"),
    Field("Kind", "execute"),
    Text("Command", "bun test"),
    Field("Location", "apps/hub"),
)


def make_option(
    option_id: str,
    name: str,
    meaning: Meaning = Meaning.CHOOSE,
    scope: Scope | None = None,
    *,
    line: str | None = None,
    label_cut: bool = False,
) -> Option:
    return Option(
        option_id=option_id,
        name=name,
        kind=None,
        label=name,
        line=line or name,
        card_id=option_id,
        meaning=meaning,
        scope=scope,
        label_cut=label_cut,
    )


ALLOW = make_option("allow_once", "Allow once", Meaning.APPROVE, Scope.ONCE)
ALWAYS = make_option("allow_always", "Always allow", Meaning.APPROVE, Scope.ALWAYS)
REJECT = make_option("reject_once", "Reject", Meaning.REJECT, Scope.ONCE)
NEVER = make_option("reject_always", "Never allow", Meaning.REJECT, Scope.ALWAYS)
FOUR = (ALLOW, ALWAYS, REJECT, NEVER)


def make_description(
    *preview: PreviewItem, title: str = "Run the test suite", kind: str | None = "execute", notes: tuple[str, ...] = ()
) -> Description:
    return Description(
        title=title,
        tool_kind=kind,
        subjects=(),
        preview=preview,
        notes=notes,
        essence=Essence(command=None, paths=(), diffs=(), url=None),
    )


REQUEST = Request(
    request_id=RequestId("acps_3f0c:12"),
    session_id=SessionId("acps_3f0c"),
    request_seq=12,
    agent=AgentName("claude"),
    call=CallRef(1),
    tool_call_id="tc1",
    room=RoomId("!room:hs"),
    number=12,
    description=make_description(*TESTS),
    options=FOUR,
    asked_at=Millis(EXPIRY - 60_000),
    expires_at=EXPIRY,
    event_id=PROMPT,
    style=PromptStyle.FULL,
    mentions=(AMY,),
)
