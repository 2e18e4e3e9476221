"""Polls as events: MSC3381 by its unstable names, within the budget, with nothing in them that is not the core's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.messages import Message, Poll, PollEnd
from bridge.core.model import Decision, Ending, EventId, Phase, PromptStyle, Selected, UserId, Via
from bridge.core.polls import make_answer_ids
from bridge.core.ports import Envelope
from bridge.matrix import events, inbox
from bridge.matrix.prompt import compose
from bridge.matrix.size import encode_canonical
from tests.matrix.asked import ALLOW, AMY, EXPIRY, REQUEST, make_option

GOLDEN = Path(__file__).parent.parent / "golden"
NONCE = "00112233445566778899aabbccddeeff"
ASKED = replace(REQUEST, nonce=NONCE)
POLL = EventId("$poll")
ANSWERED = replace(
    ASKED,
    phase=Phase.ENDED,
    delivered=True,
    decision=Decision(
        ending=Ending.ANSWERED, outcome=Selected("allow_once"), option=ALLOW, by=AMY, via=Via.POLL, at=EXPIRY
    ),
)
START = "org.matrix.msc3381.poll.start"
TEXT = "org.matrix.msc1767.text"


def poll(**changes: object) -> Poll:
    request = replace(ASKED, **changes)  # pyright: ignore[reportArgumentType] - tests name the fields they change
    return Poll(request, make_answer_ids(request))


def read(message: Message, budget_bytes: int = 60_000) -> dict[str, Any]:
    (envelope,) = compose(message, budget_bytes=budget_bytes)
    return cast("dict[str, Any]", envelope.content)


@pytest.mark.parametrize(("name", "message"), [("poll", poll()), ("poll-end-answered", PollEnd(ANSWERED, POLL))])
def test_a_poll_equals_its_golden_file(name: str, message: Message) -> None:
    (envelope,) = compose(message)
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    assert (envelope.event_type, envelope.content) == (expected["type"], expected["content"])


def test_a_poll_is_disclosed_has_one_selection_and_mentions_nobody() -> None:
    content = read(poll())
    start = content[START]
    assert (start["kind"], start["max_selections"]) == ("org.matrix.msc3381.poll.disclosed", 1)
    assert content["m.mentions"] == {}


@pytest.mark.parametrize("style", list(PromptStyle))
def test_a_question_names_number_and_title(style: PromptStyle) -> None:
    assert read(poll(style=style))[START]["question"][TEXT] == "Permission needed (#12): Run the test suite"


def test_answers_are_the_options_in_order_under_the_ids_of_the_core() -> None:
    message = poll()
    answers = read(message)[START]["answers"]
    assert [(a["id"], a[TEXT]) for a in answers] == [
        (id_, option.line) for id_, option in zip(message.answers, ASKED.options, strict=True)
    ]


def test_the_nonce_is_in_no_poll() -> None:
    assert NONCE not in json.dumps([read(poll()), read(PollEnd(ANSWERED, POLL))])


def test_a_poll_that_was_replaced_says_where_to_answer() -> None:
    assert read(PollEnd(ASKED, POLL))[TEXT].endswith("Please answer that one.")


def test_the_end_of_a_poll_refers_to_it() -> None:
    (envelope,) = compose(PollEnd(ANSWERED, POLL))
    content = cast("dict[str, Any]", envelope.content)
    assert envelope.event_type == "org.matrix.msc3381.poll.end"
    assert content["m.relates_to"] == {"rel_type": "m.reference", "event_id": POLL}


@pytest.mark.parametrize("message", [poll(), PollEnd(ANSWERED, POLL)])
def test_what_a_server_finds_too_large_is_not_sent_shorter(message: Message) -> None:
    assert compose(message, shrink=1) == ()


@pytest.mark.parametrize("budget", [60_000, 44_000, 20_000, 6_000])
@pytest.mark.parametrize("letter", ["x", "é", "😀", '"'])
def test_a_poll_of_many_long_options_fits_its_budget(budget: int, letter: str) -> None:
    options = tuple(make_option(f"o{n}", f"{n}{letter * 1_000}") for n in range(20))
    (envelope,) = compose(poll(options=options), budget_bytes=budget)
    assert len(encode_canonical(envelope.content)) <= budget


def test_the_list_goes_before_an_answer_is_cut_further() -> None:
    options = tuple(make_option(f"o{n}", f"{n}{'x' * 200}") for n in range(20))
    whole, less, least = (read(poll(options=options), budget_bytes=size) for size in (60_000, 7_000, 4_500))
    assert "\n1. " in whole[TEXT]
    assert less[TEXT] == less[START]["question"][TEXT]
    assert less[START]["answers"] == whole[START]["answers"]
    assert all(len(answer[TEXT]) <= 60 for answer in least[START]["answers"])


def test_a_poll_that_fits_nowhere_is_left_out() -> None:
    assert compose(poll(), budget_bytes=100) == ()


@given(st.text(max_size=50).map(lambda name: name + "x"))
def test_no_odd_option_makes_an_odd_event(name: str) -> None:
    (envelope,) = compose(poll(options=(make_option("a", name), make_option("b", "Other"))))
    text = encode_canonical(envelope.content).decode()  # raises for a lone surrogate
    assert "\\u0000" not in text


def vote_for(envelope: Envelope, *, stable: bool) -> dict[str, object]:
    """As a client votes that was shown this poll."""
    content = cast("dict[str, Any]", envelope.content)
    chosen = [content[START]["answers"][0]["id"]]
    form = {"m.selections": chosen} if stable else {events.VOTE: {"answers": chosen}}
    return {
        "type": events.VOTE_STABLE if stable else events.VOTE,
        "sender": AMY,
        "event_id": "$vote",
        "content": {"m.relates_to": {"rel_type": "m.reference", "event_id": POLL}} | form,
    }


@pytest.mark.parametrize("stable", [False, True])
def test_what_a_client_votes_comes_back_as_an_answer_of_the_poll(stable: bool) -> None:
    message = poll()
    (envelope,) = compose(message)
    found = inbox.read(vote_for(envelope, stable=stable), room=REQUEST.room, bot=UserId("@bot:hs"), names=())
    assert getattr(found, "answers", None) == message.answers[:1]
