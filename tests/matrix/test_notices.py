"""Endings, refusals, words and reactions as the events that are sent."""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.messages import Confirm, Gone, Help, NotAllowed, NotAnOption, Replaced, Seed, Words
from bridge.core.model import (
    AgentName,
    Decision,
    Ending,
    EventId,
    Millis,
    Phase,
    PromptStyle,
    RequestId,
    Selected,
    Text,
    UserId,
)
from bridge.core.ports import Envelope
from bridge.matrix.notices import (
    clean,
    compose_closing,
    compose_replaced,
    compose_seed,
    compose_speech,
    compose_words,
    mention,
)
from bridge.matrix.size import encode_canonical
from tests.matrix.asked import ALWAYS, AMY, ANSWER, PROMPT, REQUEST, TESTS, make_description, make_option

CLAUDE = AgentName("claude")
BUDGET = 60_000
ENDED = replace(
    REQUEST,
    phase=Phase.ENDED,
    delivered=True,
    decision=Decision(ending=Ending.ANSWERED, outcome=Selected("allow_always"), option=ALWAYS, by=AMY, at=Millis(1)),
)


def read(envelopes: tuple[Envelope, ...]) -> dict[str, Any]:
    assert len(envelopes) == 1
    return cast("dict[str, Any]", envelopes[0].content)


def say(text: str, *, shared: bool = False, budget: int = BUDGET, shrink: int = 0) -> list[str]:
    envelopes = compose_words(Words(CLAUDE, text), shared=shared, budget_bytes=budget, shrink=shrink)
    return [cast("str", envelope.content["body"]) for envelope in envelopes]


def test_a_closing_is_an_edit_whose_new_content_is_text_alone() -> None:
    content = read(compose_closing(ENDED, budget_bytes=BUDGET, shrink=0))
    new = content.pop("m.new_content")
    assert content == {
        "msgtype": "m.text",
        "body": '* Permission was asked (#12): Run the test suite. @amy:hs answered: "Always allow".',
        "m.mentions": {},
        "m.relates_to": {"rel_type": "m.replace", "event_id": PROMPT},
    }
    assert set(new) == {"msgtype", "body", "format", "formatted_body", "m.mentions"}
    assert new["m.mentions"] == {"user_ids": [AMY]}
    assert "bun test" in new["body"]
    assert new["body"].endswith('@amy:hs answered: "Always allow".')


def test_where_agents_share_a_room_a_closing_says_whose_request_it_was() -> None:
    content = read(compose_closing(ENDED, shared=True, budget_bytes=BUDGET, shrink=0))
    start = f"Permission was asked by {ENDED.agent} (#12): Run the test suite"
    assert content["body"].startswith(f"* {start}.")
    assert content["m.new_content"]["body"].startswith(start)


def test_a_closing_stays_small_and_says_what_it_leaves_out() -> None:
    asked = replace(ENDED, description=make_description(*TESTS[:2], Text("Command", "x" * 50_000)))
    content = read(compose_closing(asked, budget_bytes=BUDGET, shrink=0))
    assert len(encode_canonical(content)) < 8_000
    assert "bytes left out" in content["m.new_content"]["body"]
    assert "\n" not in content["body"]


def test_a_brief_closing_shows_the_title_alone() -> None:
    content = read(compose_closing(replace(ENDED, style=PromptStyle.BRIEF), budget_bytes=BUDGET, shrink=0))
    assert "bun test" not in content["m.new_content"]["body"]


def test_a_closing_gets_shorter_once() -> None:
    shorter = read(compose_closing(ENDED, budget_bytes=BUDGET, shrink=1))
    assert "formatted_body" not in shorter["m.new_content"]
    assert "Run the test suite" in shorter["m.new_content"]["body"]
    assert compose_closing(ENDED, budget_bytes=BUDGET, shrink=2) == ()


def test_a_prompt_that_never_arrived_is_not_edited() -> None:
    assert compose_closing(replace(ENDED, event_id=None), budget_bytes=BUDGET, shrink=0) == ()


def test_a_replaced_prompt_is_edited_where_it_was() -> None:
    content = read(compose_replaced(Replaced(REQUEST, EventId("$old"), 12), budget_bytes=BUDGET, shrink=0))
    assert content["m.relates_to"] == {"rel_type": "m.replace", "event_id": "$old"}
    assert "newer message" in content["m.new_content"]["body"]


@pytest.mark.parametrize(("number", "key"), [(1, "1️⃣"), (9, "9️⃣"), (10, "🔟")])
def test_a_seed_is_a_keycap(number: int, key: str) -> None:
    (envelope,) = compose_seed(Seed(RequestId("acps_1:1"), PROMPT, number))
    assert envelope.event_type == "m.reaction"
    assert envelope.content == {"m.relates_to": {"rel_type": "m.annotation", "event_id": PROMPT, "key": key}}


@pytest.mark.parametrize("number", [0, 11])
def test_there_is_no_seed_beyond_ten(number: int) -> None:
    assert compose_seed(Seed(RequestId("acps_1:1"), PROMPT, number)) == ()


def test_a_refusal_is_a_notice_that_replies_and_rings_nobody() -> None:
    content = read(compose_speech(NotAnOption(REQUEST, ANSWER), budget_bytes=BUDGET, shrink=0))
    assert content["msgtype"] == "m.notice"
    assert content["m.mentions"] == {}
    assert content["m.relates_to"] == {"m.in_reply_to": {"event_id": ANSWER}}
    assert content["format"] == "org.matrix.custom.html"


def test_who_must_confirm_is_rung() -> None:
    content = read(compose_speech(Confirm(REQUEST, ALWAYS, AMY, ANSWER), budget_bytes=BUDGET, shrink=0))
    assert (content["msgtype"], content["m.mentions"]) == ("m.text", {"user_ids": [AMY]})


def test_a_message_that_answers_nothing_replies_to_nothing() -> None:
    assert "m.relates_to" not in read(compose_speech(Gone(CLAUDE, 1), budget_bytes=BUDGET, shrink=0))


def test_a_notice_loses_its_html_when_it_is_too_large_and_then_nothing_is_left() -> None:
    assert "formatted_body" not in read(compose_speech(Help(), budget_bytes=BUDGET, shrink=1))
    assert compose_speech(Help(), budget_bytes=BUDGET, shrink=2) == ()


def test_a_list_of_hundreds_of_long_options_is_cut_rather_than_the_refusal_lost() -> None:
    options = tuple(make_option(f"o{number}", "語" * 300) for number in range(100))
    content = read(
        compose_speech(NotAnOption(replace(REQUEST, options=options), ANSWER), budget_bytes=BUDGET, shrink=0)
    )
    assert len(encode_canonical(content)) <= BUDGET
    assert content["body"].startswith("That is not one of the options, so nothing has been approved.\n\n1. ")
    assert "bytes left out" in content["body"]


def test_words_are_plain_text_that_rings_nobody() -> None:
    (envelope,) = compose_words(Words(CLAUDE, "Hi @room, <b>see</b> 👩‍💻"), shared=False, budget_bytes=BUDGET, shrink=0)
    assert envelope.content == {"msgtype": "m.text", "body": "Hi @room, <b>see</b> 👩‍💻", "m.mentions": {}}


def test_words_in_a_shared_room_name_their_agent() -> None:
    assert say("Hello", shared=True) == ["claude: Hello"]


def test_secrets_in_words_are_masked() -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3
    words = Words(agent=CLAUDE, text=f"Done. I used {token}, and\nexport DB_PASSWORD=hunter2hunter2\n")
    content = read(compose_words(words, shared=False, budget_bytes=BUDGET, shrink=0))
    assert content["body"] == "Done. I used ghp_[masked], and\nexport DB_PASSWORD=[masked]"


def test_words_show_control_characters_as_escapes_and_no_line_as_a_quote() -> None:
    assert say("> quoted\n>> more\u202e\nplain") == [" > quoted\n >> more\\u202e\nplain"]


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_words_are_not_sent(text: str) -> None:
    assert say(text) == []


def test_long_words_are_parted_at_line_ends() -> None:
    lines = [f"{number} " + "x" * 10_000 for number in range(5)]
    assert say("\n".join(lines)) == ["\n".join(lines[:2]), "\n".join(lines[2:4]), lines[4]]


def test_words_get_shorter_until_nothing_is_gained() -> None:
    text = "x" * 40_000
    lengths = [[len(body) for body in say(text, shrink=shrink)] for shrink in range(4)]
    assert lengths == [[30_000, 10_000], [12_000, 12_000, 12_000, 4_000], [4_000] * 10, []]


def test_short_words_that_are_refused_are_halved_and_then_given_up() -> None:
    assert [len(body) for body in say("x" * 600, shrink=1)] == [301, 299]
    assert say("x" * 600, shrink=2) == []


@given(st.text(st.characters(exclude_categories=[])), st.booleans())
def test_words_are_clean_whatever_an_agent_says(text: str, shared: bool) -> None:
    for envelope in compose_words(Words(CLAUDE, text), shared=shared, budget_bytes=BUDGET, shrink=0):
        body = cast("str", envelope.content["body"])
        assert "\x00" not in body
        assert len(body.encode()) <= BUDGET  # encode() raises for a lone surrogate
        assert not body.startswith(">")
        assert "\n>" not in body


def test_what_core_missed_is_still_cleaned() -> None:
    dirty = {"body": "a\x00b\ud800", "list": ["\udfff", 1], "object": {"x": "\x00"}, "flag": True}
    assert clean(dirty) == {  # pyright: ignore[reportArgumentType]
        "body": "a\\x00b\\ud800",
        "list": ["\\udfff", 1],
        "object": {"x": "\\x00"},
        "flag": True,
    }


def test_a_strangers_odd_id_does_not_break_the_event() -> None:
    content = read(compose_speech(NotAllowed(REQUEST, UserId("@\ud800:hs"), ANSWER), budget_bytes=BUDGET, shrink=0))
    assert "\\ud800" in content["body"]


def test_mentions_are_always_there() -> None:
    assert mention(()) == {}
    assert mention((AMY,)) == {"user_ids": [AMY]}
