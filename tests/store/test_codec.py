"""Requests and decisions come back as they went in, whatever an agent wrote; what does not is damage."""

import json
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import LedgerDamaged
from bridge.core.model import (
    AgentName,
    CallRef,
    Cancelled,
    Decision,
    Description,
    Ending,
    Essence,
    EventId,
    Field,
    JsonValue,
    Meaning,
    Millis,
    Option,
    Outcome,
    Phase,
    PreviewItem,
    PromptStyle,
    Request,
    RequestId,
    RoomId,
    Scope,
    Selected,
    SessionId,
    Subject,
    Text,
    Unsatisfied,
    UserId,
    Via,
)
from bridge.store.codec import (
    dump,
    dump_decision,
    dump_request,
    escape,
    load_decision,
    load_object,
    load_request,
    unescape,
)
from tests.store.values import make_answer, make_request

Item = TypeVar("Item")


def join_surrogates(text: str) -> str:
    read = json.loads(json.dumps(text))  # as on the wire: a pair of escapes is one character
    assert isinstance(read, str)
    return read


def tuples(items: st.SearchStrategy[Item]) -> st.SearchStrategy[tuple[Item, ...]]:
    return st.lists(items, max_size=3).map(tuple)


TEXTS = st.text(st.characters(exclude_categories=()), max_size=8).map(join_surrogates)
MAYBE = st.none() | TEXTS
NUMBERS = st.integers()
JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
OPTIONS = st.builds(
    Option,
    option_id=TEXTS,
    name=TEXTS,
    kind=MAYBE,
    label=TEXTS,
    line=TEXTS,
    card_id=TEXTS,
    meaning=st.sampled_from(Meaning),
    scope=st.none() | st.sampled_from(Scope),
    label_cut=st.booleans(),
)
PREVIEWS: st.SearchStrategy[PreviewItem] = st.builds(Field, TEXTS, TEXTS) | st.builds(Text, TEXTS, TEXTS)
DESCRIPTIONS = st.builds(
    Description,
    title=TEXTS,
    tool_kind=MAYBE,
    subjects=tuples(st.builds(Subject, kind=TEXTS, members=OBJECTS, known=st.booleans())),
    preview=tuples(PREVIEWS),
    notes=tuples(TEXTS),
    essence=st.builds(Essence, command=MAYBE, paths=tuples(TEXTS), diffs=tuples(TEXTS), url=MAYBE),
)
OUTCOMES: st.SearchStrategy[Outcome | None] = (
    st.none() | st.builds(Selected, TEXTS) | st.just(Cancelled()) | st.just(Unsatisfied())
)
DECISIONS = st.builds(
    Decision,
    ending=st.sampled_from(Ending),
    outcome=OUTCOMES,
    option=st.none() | OPTIONS,
    by=MAYBE,
    via=st.none() | st.sampled_from(Via),
    event_id=st.none() | TEXTS.map(EventId),
    at=NUMBERS.map(Millis),
)
REQUESTS = st.builds(
    Request,
    request_id=TEXTS.map(RequestId),
    session_id=TEXTS.map(SessionId),
    request_seq=NUMBERS,
    agent=TEXTS.map(AgentName),
    call=NUMBERS.map(CallRef),
    tool_call_id=TEXTS,
    room=TEXTS.map(RoomId),
    number=NUMBERS,
    description=DESCRIPTIONS,
    options=tuples(OPTIONS),
    asked_at=NUMBERS.map(Millis),
    expires_at=NUMBERS.map(Millis),
    revision=NUMBERS,
    placed=st.booleans(),
    whole=st.booleans(),
    style=st.sampled_from(PromptStyle),
    mentions=tuples(TEXTS.map(UserId)),
    nonce=TEXTS,
    strict=st.booleans(),
)


@given(REQUESTS)
def test_a_request_comes_back_whole(request: Request) -> None:
    written = dump_request(request)
    assert request == load_request(written, event_id=None, decision=None, ended=False, delivered=False)
    assert written.isascii()


@given(DECISIONS)
def test_a_decision_comes_back_whole(decision: Decision) -> None:
    written = dump_decision(decision)
    assert decision == load_decision(written)
    assert written.isascii()


@given(OBJECTS)
def test_an_object_comes_back_exact(value: dict[str, JsonValue]) -> None:
    read = load_object(dump(value))
    assert repr(value) == repr(read)  # 1, 1.0 and True are equal, but not the same JSON


@given(TEXTS)
def test_a_text_comes_back_code_point_for_code_point(text: str) -> None:
    assert text == unescape(escape(text))
    assert escape(text).isascii()


def test_an_ordinary_id_stays_readable_in_the_file() -> None:
    assert escape("!room:ex.org") == "!room:ex.org"


@pytest.mark.parametrize(
    ("decision", "ended", "phase"),
    [
        (None, False, Phase.PENDING),
        (make_answer(), False, Phase.DECIDED),
        (make_answer(), True, Phase.ENDED),
    ],
)
def test_the_phase_follows_from_decision_and_ending(decision: Decision | None, ended: bool, phase: Phase) -> None:
    read = load_request(
        dump_request(make_request()), event_id=EventId("$p"), decision=decision, ended=ended, delivered=True
    )
    assert (phase, decision, EventId("$p"), True) == (read.phase, read.decision, read.event_id, read.delivered)


def spoil(text: str, path: tuple[str | int, ...], value: JsonValue) -> str:
    whole = json.loads(text)
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("request_id",), 1),
        (("request_seq",), True),
        (("call",), "1"),
        (("placed",), 1),
        (("style",), "loud"),
        (("options",), {}),
        (("options", 0), []),
        (("options", 0, "meaning"), None),
        (("description", "preview", 0), ["field", "only a label"]),
        (("description", "preview", 0), ["picture", "a", "b"]),
    ],
)
def test_a_request_that_cannot_be_read_is_damage(path: tuple[str | int, ...], value: JsonValue) -> None:
    spoilt = spoil(dump_request(make_request()), path, value)
    with pytest.raises(LedgerDamaged):
        load_request(spoilt, event_id=None, decision=None, ended=False, delivered=False)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ending": "answered"}'])
def test_a_decision_that_cannot_be_read_is_damage(text: str) -> None:
    with pytest.raises(LedgerDamaged):
        load_decision(text)


def test_a_text_that_cannot_be_read_is_damage() -> None:
    with pytest.raises(LedgerDamaged):
        unescape("\\")
