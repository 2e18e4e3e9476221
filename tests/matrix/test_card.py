"""The card is held against the published schema, the two valid examples, the refused ones, and its digest's vectors."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bridge.core.model import Field, JsonValue, Meaning, Millis, Scope, Text
from bridge.matrix import card
from bridge.matrix.card import (
    Fault,
    build_card,
    build_v1,
    compute_digest,
    find_unclean,
    measure_item,
    read_instant,
    validate,
    write_instant,
)
from tests.matrix.asked import EXPIRY, FOUR, REQUEST, TESTS, make_description, make_option

DATA = Path(__file__).parent / "data"
VALID: list[dict[str, Any]] = json.loads((DATA / "permission-v2.valid.json").read_text())
REFUSED: list[dict[str, Any]] = json.loads((DATA / "permission-v2.refused.json").read_text())
FIRST, SECOND = (cast("dict[str, Any]", case["event"]) for case in VALID)
SCHEMA = Draft202012Validator(json.loads((Path(card.__file__).parent / "permission-v2.schema.json").read_text()))
ACCEPTED_INSTANTS = {
    "2026-11-07T10:30:00.000Z": EXPIRY,
    "2026-11-07T10:30:00.000+05:30": EXPIRY - 19_800_000,
    "2026-11-07T10:30:00.000-00:00": EXPIRY,
    "2026-11-07T10:30:00-01:00": EXPIRY + 3_600_000,
    "2026-11-07T10:30:00.123456789Z": EXPIRY + 123,
    "2026-11-07T10:30:00.5Z": EXPIRY + 500,
    "2028-02-29T00:00:00Z": 1_835_395_200_000,
    "1970-01-01T00:00:00Z": 0,
}
REFUSED_INSTANTS = [
    "2026-11-07",
    "7 Nov 2026 10:30",
    "2026-11-07T10:30:00.000",
    "2026-11-07T10:30Z",
    "2026-11-07 10:30:00Z",
    "2026-11-07T10:30:00+0530",
    "2026-11-07t10:30:00z",
    "2026-02-30T10:30:00Z",
    "2027-02-29T00:00:00Z",
    "2026-11-07T10:30:00Z\n",
    "2026-11-07T10:30:00,5Z",
    "2026-W45-6T10:30:00Z",
    "20261107T103000Z",
    "2026-11-07T24:00:00Z",
    "2026-12-31T23:59:60Z",
    "2026-11-07T10:30:00+24:00",
    "2026-11-07T10:30:00+05:60",
    "٢٠٢٦-11-07T10:30:00Z",
    "1794047400",
    "0000-01-01T00:00:00Z",
    "2026-13-01T00:00:00Z",
    " 2026-11-07T10:30:00Z",
    "2026-11-07T10:30:00.Z",
    "",
]


def change(path: str, value: object) -> dict[str, Any]:
    """The second example with one member changed, or left out where `value` is Ellipsis."""
    event = deepcopy(SECOND)
    holder: Any = event
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for part in way:
        holder = holder[part]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return event


def fits_schema(event: object) -> bool:
    return SCHEMA.is_valid(cast("dict[str, Any]", event))  # pyright: ignore[reportUnknownMemberType]


def list_places(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value))
    return list(range(len(cast("list[object]", value)))) if isinstance(value, list) else []


def list_fields(faults: tuple[Fault, ...]) -> list[str]:
    return [fault.field for fault in faults]


@pytest.mark.parametrize("case", VALID, ids=lambda case: case["case"][:2])
def test_a_valid_example_is_a_card(case: dict[str, Any]) -> None:
    assert validate(case["event"]) == ()
    assert fits_schema(case["event"])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["case"].split()[0])
def test_a_refused_example_fails_at_its_field_and_nowhere_else(case: dict[str, Any]) -> None:
    assert list_fields(validate(case["event"])) == [case["field"]]
    assert not fits_schema(case["event"])


def test_all_fourteen_refused_examples_are_here() -> None:
    assert len(REFUSED) == 14


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("options/0/id", "reject", "options[].id"),
        ("options/0/id", "", "options[0].id"),
        ("options/1/id", "x" * 201, "options[1].id"),
        ("options/1/id", 7, "options[1].id"),
        ("options/0/label", "x" * 201, "options[0].label"),
        ("options/0/label", ..., "options[0].label"),
        ("options/0/meaning", "allow", "options[0].meaning"),
        ("options/0/meaning", ["approve"], "options[0].meaning"),
        ("options/0/scope", "session", "options[0].scope"),
        ("options/1", "reject", "options[1]"),
        ("options", {}, "options"),
        ("options", ..., "options"),
        ("schema_version", 0, "schema_version"),
        ("schema_version", "1", "schema_version"),
        ("schema_version", 1.5, "schema_version"),
        ("schema_version", True, "schema_version"),
        ("request_seq", -1, "request_seq"),
        ("request_seq", 1.5, "request_seq"),
        ("request_seq", True, "request_seq"),
        ("request_id", "", "request_id"),
        ("session_id", "", "session_id"),
        ("tool_kind", "", "tool_kind"),
        ("msgtype", "m.notice", "msgtype"),
        ("body", 5, "body"),
        ("title", None, "title"),
        ("suite_event_type", "dev.agentpod.permission.v1", "suite_event_type"),
        ("subject", ..., "subject"),
        ("subject", [], "subject"),
        ("subject/revision", "1", "subject.revision"),
        ("subject/digest", "", "subject.digest"),
        ("subject/id", "", "subject.id"),
        ("subject/schema", ..., "subject.schema"),
        ("subject/expires_at", 1_794_047_400, "subject.expires_at"),
        ("subject/preview", {}, "subject.preview"),
        ("subject/preview_complete", 1, "subject.preview_complete"),
        ("subject/preview/0", "bun test", "subject.preview[0]"),
        ("subject/preview/0", {"label": "x"}, "subject.preview[0].type"),
        ("subject/preview/0", {"type": 1}, "subject.preview[0].type"),
        ("subject/preview/0", {"type": ""}, "subject.preview[0].type"),
        ("subject/preview/0", {"type": "field", "label": "Kind"}, "subject.preview[0].value"),
        ("subject/preview/0", {"type": "text", "label": "Kind", "text": 1}, "subject.preview[0].text"),
    ],
)
def test_what_is_no_card_fails_at_the_named_field(path: str, value: object, field: str) -> None:
    assert list_fields(validate(change(path, value))) == [field]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("x", 1),
        ("options/0/x", 1),
        ("subject/x", None),
        ("subject/preview/0/x", []),
        ("schema_version", 2),
        ("title", ""),
        ("options/0/label", ""),
        ("options/0/id", "x" * 200),
        ("options/0/label", "x" * 200),
        ("subject/preview", []),
        ("subject/preview/0", {"type": "table"}),
        ("subject/revision", 1.0),
        ("msgtype", ...),
        ("body", ...),
        ("tool_kind", ...),
        ("options/0/scope", ...),
    ],
)
def test_what_a_reader_must_take_is_a_card(path: str, value: object) -> None:
    event = change(path, value)
    assert validate(event) == ()
    assert fits_schema(event)


@pytest.mark.parametrize("content", [None, [], "x", 1], ids=repr)
def test_what_is_no_object_is_no_card(content: object) -> None:
    assert validate(content) == (Fault("", "is no object"),)


def test_twenty_options_are_a_card() -> None:
    options = [{"id": f"o{number}", "label": "x", "meaning": "choose"} for number in range(20)]
    assert validate(change("options", options)) == ()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NEAR_VALUES: st.SearchStrategy[object] = st.sampled_from(
    cast(
        "list[object]",
        [
            "",
            "x" * 200,
            "x" * 201,
            "once",
            "approve",
            "field",
            "text",
            "m.text",
            0,
            1,
            1.0,
            1.5,
            -1,
            True,
            [],
            {},
            None,
        ],
    ),
)


@given(st.data())
def test_a_mutated_event_gets_the_verdict_of_the_schema(data: st.DataObject) -> None:
    event = deepcopy(data.draw(st.sampled_from([FIRST, SECOND])))
    holder: Any = event  # any: what is deep inside is of any type
    while True:
        key = data.draw(st.sampled_from(list_places(holder)))
        if not (list_places(holder[key]) and data.draw(st.booleans())):
            break
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[key] = data.draw(NEAR_VALUES | JSON_VALUES | st.sampled_from(REFUSED_INSTANTS))
    else:
        del holder[key]
    faults = [field for field in list_fields(validate(event)) if field != "options[].id"]
    assert fits_schema(event) == (not faults)


@pytest.mark.parametrize("text", ACCEPTED_INSTANTS)
def test_an_instant_is_read(text: str) -> None:
    assert read_instant(text) == ACCEPTED_INSTANTS[text]


@pytest.mark.parametrize("text", REFUSED_INSTANTS)
def test_what_is_no_instant_is_refused(text: str) -> None:
    assert read_instant(text) is None


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_an_instant_that_we_write_is_read_back(at: int) -> None:
    assert read_instant(write_instant(Millis(at))) == at


@pytest.mark.parametrize(
    ("at", "written"),
    [
        (EXPIRY, "2026-11-07T10:30:00.000Z"),
        (EXPIRY + 7, "2026-11-07T10:30:00.007Z"),
        (-1, "1970-01-01T00:00:00.000Z"),
        (10**30, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_an_instant_is_written_in_utc_with_milliseconds(at: int, written: str) -> None:
    assert write_instant(Millis(at)) == written


def test_the_digest_has_its_published_vectors() -> None:
    assert [compute_digest(FIRST["subject"]), compute_digest(SECOND["subject"])] == [
        "c89ee056e3cc613367d88d05eaeb0d7c91d2a2983a9ff30aec8bd1eb284586cb",
        "b22bfa56105f8215134d77612e853c2c705d1504b5f68c5f0499bb2febe405cb",
    ]


def test_our_card_is_the_first_example_but_for_the_digest() -> None:
    built, digest = build_card(REQUEST, TESTS, title="Run the test suite", complete=True)
    expected = deepcopy(FIRST)
    expected["subject"]["digest"] = digest
    assert {"msgtype": "m.text", "body": FIRST["body"], **built} == expected
    assert digest == "c89ee056e3cc613367d88d05eaeb0d7c91d2a2983a9ff30aec8bd1eb284586cb"


def test_the_options_keep_the_order_of_the_agent_and_v1_has_the_first_four() -> None:
    asked = replace(REQUEST, options=(make_option("later", "Later"), *reversed(FOUR)))
    built = cast("dict[str, Any]", build_card(asked, (), title="x", complete=False)[0])
    assert [option["id"] for option in built["options"]] == [
        "later",
        "reject_always",
        "reject_once",
        "allow_always",
        "allow_once",
    ]
    assert [option["option_id"] for option in built["dev.agentpod.permission"]["options"]] == [
        "later",
        "reject_always",
        "reject_once",
        "allow_always",
    ]


def test_an_option_of_unknown_kind_has_no_scope() -> None:
    built = cast("dict[str, Any]", build_card(REQUEST, (), title="x", complete=True)[0])
    assert "scope" in built["options"][0]
    asked = replace(
        REQUEST, options=(make_option("later", "Later"), make_option("a", "A", Meaning.APPROVE, Scope.ONCE))
    )
    built = cast("dict[str, Any]", build_card(asked, (), title="x", complete=True)[0])
    assert built["options"][0] == {"id": "later", "label": "Later", "meaning": "choose"}


@pytest.mark.parametrize("kind", [None, ""])
def test_a_missing_kind_is_left_out(kind: str | None) -> None:
    asked = replace(REQUEST, description=make_description(kind=kind))
    assert "tool_kind" not in build_card(asked, (), title="x", complete=True)[0]


def test_an_alias_stands_for_an_id_that_does_not_fit() -> None:
    option = replace(make_option("x" * 201, "Yes"), card_id="opt:1")
    built = cast("dict[str, Any]", build_card(replace(REQUEST, options=(option,)), (), title="x", complete=True)[0])
    assert built["options"][0]["id"] == "opt:1"
    v1 = cast("dict[str, Any]", build_v1(replace(REQUEST, options=(option,)), title="x"))
    assert v1["dev.agentpod.permission"]["options"] == [{"option_id": "opt:1", "name": "Yes"}]


@pytest.mark.parametrize("item", [Field("Kind", 'é"\n'), Text("Command", "a\tb")])
def test_the_size_of_an_item_is_what_it_adds_to_a_card(item: Field | Text) -> None:
    def count(*items: Field | Text) -> int:
        content = build_card(REQUEST, (*TESTS, *items), title="x", complete=True)[0]
        return len(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())

    assert measure_item(item) == count(item) - count()


def test_our_card_is_valid_whatever_is_asked() -> None:
    built = build_card(REQUEST, TESTS, title="", complete=False)[0]
    assert validate(built) == ()
    assert find_unclean(built) == ()


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ({"a": 1.0}, ["a"]),
        ({"a": {"b": [1, {"c": 2**53}]}}, ["a.b[1].c"]),
        ({"a": -(2**53)}, ["a"]),
        ({"a": "x\x00"}, ["a"]),
        (["\ud800", "ok"], ["[0]"]),
        ("\udfff", [""]),
        ({"a": 2**53 - 1, "b": True, "c": None, "d": "𐍈"}, []),
    ],
)
def test_what_no_event_may_hold_is_found(content: JsonValue, fields: list[str]) -> None:
    assert list_fields(find_unclean(content)) == fields
