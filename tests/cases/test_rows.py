"""The tables of the cases about texts: every row through the parser, and through the whole core with what is said of it.

No event loop and no clock. Each row is the first thing that an approver writes after one prompt.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from bridge.core.effects import Respond
from bridge.core.events import Asked, Echoed, RoomSeen, RoomState, Said, Sent, SessionStarted
from bridge.core.messages import Message, NotAnOption, Queued
from bridge.core.model import CallRef, EventId, Millis, Option, RoomId, Rules, Selected, SessionId, UserId
from bridge.core.options import read_options
from bridge.core.ports import Envelope, Outgoing
from bridge.core.replies import choose, split_number
from bridge.core.subject import describe
from bridge.matrix import inbox, prompt
from bridge.relay.weighing import Weighing
from tests.cases.life import ALICE, BOT, ROOM, Setup
from tests.cases.reading import Json, read_cases
from tests.cases.wording import fill, write_ask
from tests.core.play import NOTHING_FOUND

REFUSAL = "That is not one of the options, so nothing has been approved."
NOW = Millis(1_000_000)
SESSION = SessionId("acps_0000000000000001")

ROWS = [
    pytest.param(case["input"]["steps"][0], row, id=f"{case['id']} {row['text']!a}")
    for case in read_cases()
    if case["level"] == "core"
    for row in case["expected"]["rows"]
]


def fill_row(row: Json, number: int) -> Json:
    return fill(row, now_ms=0, number_of=lambda _: str(number), event_of=lambda _: "")


def assert_answer(row: Json, answer: str | None) -> None:
    assert answer in row.get("answer_one_of", [row.get("answer")])


@pytest.mark.parametrize(("ask", "row"), ROWS)
def test_a_text_names_the_option_that_it_should(ask: Json, row: Json) -> None:
    number = 7
    options = read_options(write_ask(ask, "s1")["params"]["options"]).options
    filled = fill_row(row, number)
    prefix, rest = split_number(filled["text"])
    found = choose(rest if prefix == number else filled["text"], options)
    assert_answer(filled, found.option_id if isinstance(found, Option) else None)


class Rooms:
    """Implements as much of `core.ports.Rooms` as words need."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def compose(self, message: Message, room: RoomId, *, shrink: int = 0) -> tuple[Envelope, ...]:
        self.messages.append(message)
        assert room == ROOM
        return prompt.compose(message, shrink=shrink)

    def send(self, outgoing: Outgoing) -> None:
        raise NotImplementedError

    def withhold(self, transaction_id: str) -> bool:
        raise NotImplementedError

    def typing(self, room: RoomId, *, on: bool) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Result:
    answer: str | None
    messages: list[Message]
    texts: list[str]


def write_to_a_waiting_prompt(ask: Json, text: str) -> Result:
    """What becomes of a bare text while exactly one prompt waits and a turn is running."""
    ((agent,), rooms) = (Setup().rules(), Rooms())
    weighing = Weighing(
        Rules(agents=(agent,), bot=UserId(BOT)), rooms=rooms, clock=lambda: NOW, new_token=iter("abcdefgh").__next__
    )
    weighing.recover(NOTHING_FOUND)
    params: dict[str, Any] = write_ask(ask, "s1")["params"]
    read = read_options(params["options"])
    asked = Asked(
        agent=agent.name,
        session_id=SESSION,
        call=CallRef(1),
        tool_call_id="call_1",
        description=describe(params["toolCall"], cwd="/srv/app"),
        options=read.options,
        misfit=read.misfit,
        record={},
        raw="{}",
    )
    room = RoomId(ROOM)
    weighing.weigh([RoomSeen(room=room, state=RoomState.JOINED, people=2)], ())
    weighing.weigh([SessionStarted(agent=agent.name, session_id=SESSION), written("begin", "$begin")], ())
    posted = [item for item in weighing.weigh([asked], ()).carried if isinstance(item, Outgoing)]
    event = EventId("$prompt")
    txn = posted[0].transaction_id
    weighing.weigh(
        [Sent(transaction_id=txn, event_id=event), Echoed(room=room, event_id=event, transaction_id=txn)], ()
    )
    before = len(rooms.messages)
    work = weighing.weigh([written(text, "$text")], ())
    outcomes = [item.outcome for item in work.carried if isinstance(item, Respond)]
    return Result(
        answer=next((outcome.option_id for outcome in outcomes if isinstance(outcome, Selected)), None),
        messages=rooms.messages[before:],
        texts=[str(item.content["body"]) for item in work.carried if isinstance(item, Outgoing)],
    )


def written(text: str, event_id: str) -> Said:
    """A text of Alice's, read as it comes over the wire."""
    content = {"msgtype": "m.text", "body": text}
    source = {"type": "m.room.message", "sender": ALICE, "event_id": event_id, "content": content}
    said = inbox.read(source, room=RoomId(ROOM), bot=UserId(BOT), names=("Bridge",))
    assert isinstance(said, Said)
    return said


def name_word(result: Result) -> str:
    """What a person was told: rule 16's sentence and the list, that the words are queued, or nothing."""
    match result.messages:
        case []:
            return "nothing"
        case [NotAnOption()]:
            assert result.texts[0].startswith(f"{REFUSAL}\n\n1. ")
            return "refused"
        case [Queued()]:
            assert "Queued for a as the next prompt" in result.texts[0]
            return "queued"
        case _:
            return f"neither: {result.texts}"


@pytest.mark.parametrize(("ask", "row"), ROWS)
def test_a_text_decides_and_is_told_what_it_should(ask: Json, row: Json) -> None:
    filled = fill_row(row, 1)
    result = write_to_a_waiting_prompt(ask, filled["text"])
    assert_answer(filled, result.answer)
    if result.answer is None:
        allowed = [filled["said"]] if "said" in filled else ["refused", "queued"]
        assert name_word(result) in allowed
