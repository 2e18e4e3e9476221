"""What of a request is shown beside its title."""

from dataclasses import replace

from bridge.core.model import Description, Field, Request, Text
from bridge.matrix.preview import note, note_left_out, prepare, read_item
from tests.matrix.asked import REQUEST, TESTS, make_description

LONG = "x" * 301


def ask(description: Description) -> Request:
    return replace(REQUEST, description=description)


def test_the_tool_is_kept_for_the_card_where_it_is_the_title() -> None:
    material = prepare(REQUEST, shared=True)
    assert (material.tool, material.items, material.title) == (TESTS[:1], TESTS[1:], "Run the test suite")
    assert (material.shared, material.small, material.title_lost) == (True, True, 0)


def test_a_tool_that_is_not_the_title_is_an_item_like_others() -> None:
    material = prepare(ask(make_description(*TESTS, title="Tests")))
    assert (material.tool, material.items) == ((), TESTS)


def test_a_long_title_that_stands_nowhere_else_is_an_item_too() -> None:
    material = prepare(ask(make_description(Field("Tool", LONG), title=LONG)))
    assert material.items == (Text("Title", LONG),)
    assert len(material.title) <= 300
    assert material.tool == (Field("Tool", material.title),)
    assert material.title_lost > 0


def test_a_long_title_that_an_item_holds_whole_is_no_loss() -> None:
    command = Text("Command", f"sh -c {LONG}")
    material = prepare(ask(make_description(Field("Tool", LONG), command, title=LONG)))
    assert (material.items, material.title_lost) == ((command,), 0)


def test_each_note_is_a_field_at_the_end() -> None:
    notes = ("a secret is masked", "Preview is incomplete: the agent gave only a title")
    assert prepare(ask(make_description(*TESTS, notes=notes))).items[-2:] == (
        Field("Note", "Preview is incomplete: a secret is masked"),
        Field("Note", "Preview is incomplete: the agent gave only a title"),
    )


def test_what_was_left_out_is_counted_in_a_note() -> None:
    assert note_left_out(0) == ()
    assert note_left_out(12_345) == (note("12,345 bytes left out"),)
    assert note("x").value == "Preview is incomplete: x"


def test_a_preview_is_small_while_no_item_has_to_be_cut() -> None:
    assert not prepare(ask(make_description(Text("Command", "x" * 2_001)))).small
    assert not prepare(ask(make_description(Field("URL", LONG)))).small


def test_a_value_is_read_from_either_kind_of_item() -> None:
    assert [read_item(Field("a", "b")), read_item(Text("c", "d"))] == ["b", "d"]
