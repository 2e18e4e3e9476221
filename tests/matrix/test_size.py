"""Cutting: in the order of the specification, and never in silence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import Field, PreviewItem, Text
from bridge.matrix.size import (
    KEPT_BYTES,
    count_bytes,
    count_json_bytes,
    encode_canonical,
    fit_items,
    is_clean,
    split_text,
)

INPUT = Text("Input", "i" * 4_000)
DETAILS = Text("Details", "d" * 4_000)
SHORT_DIFF = Text("Change: a", "+" * 3_000)
LONG_DIFF = Text("Change: b", "-" * 4_000)
COMMAND = Text("Command", "c" * 4_000)
TITLE = Text("Title", "t" * 4_000)
PLACES = tuple(Field("Location", f"{number}" * 250) for number in range(4))
KIND = Field("Kind", "execute")
EVERYTHING = (TITLE, KIND, COMMAND, *PLACES, SHORT_DIFF, LONG_DIFF, DETAILS, INPUT)


def cost(item: PreviewItem) -> int:
    return len(item.value if isinstance(item, Field) else item.text)


def name_missing(allowance: int, items: tuple[PreviewItem, ...] = EVERYTHING, *, may_drop: bool = True) -> list[str]:
    fitted = fit_items(items, allowance=allowance, cost=cost, text_bytes=100_000, may_drop=may_drop)
    return [items[number].label for number in sorted(fitted.missing)]


def test_what_fits_is_left_alone() -> None:
    fitted = fit_items(EVERYTHING, allowance=100_000, cost=cost, text_bytes=100_000)
    assert (fitted.items, fitted.missing, fitted.left_out) == (EVERYTHING, frozenset(), 0)


@pytest.mark.parametrize(
    ("allowance", "missing"),
    [
        (23_000, ["Input"]),
        (19_000, ["Details", "Input"]),
        (15_000, ["Change: b", "Details", "Input"]),
        (12_000, ["Change: a", "Change: b", "Details", "Input"]),
        (10_850, ["Location", "Change: a", "Change: b", "Details", "Input"]),
        (8_000, ["Title", *["Location"] * 4, "Change: a", "Change: b", "Details", "Input"]),
    ],
)
def test_the_command_is_cut_last(allowance: int, missing: list[str]) -> None:
    assert name_missing(allowance) == missing


def test_when_cutting_is_not_enough_items_are_dropped_the_command_last() -> None:
    fitted = fit_items(EVERYTHING, allowance=600, cost=cost, text_bytes=100_000)
    assert [item.label for item in fitted.items] == ["Command"]
    assert fitted.cost <= 600
    assert fitted.left_out > 20_000


def test_nothing_may_be_left_at_all() -> None:
    fitted = fit_items(EVERYTHING, allowance=-1, cost=cost, text_bytes=100_000)
    assert (fitted.items, fitted.cost) == ((), 0)
    assert fitted.left_out == sum(cost(item) for item in EVERYTHING)


def test_without_dropping_the_result_may_cost_too_much() -> None:
    fitted = fit_items(EVERYTHING, allowance=600, cost=cost, text_bytes=100_000, may_drop=False)
    assert fitted.cost > 600
    assert {item.label for item in EVERYTHING} - {item.label for item in fitted.items} == {"Location"}
    assert all(cost(item) <= KEPT_BYTES for item in fitted.items)


def test_a_cut_shows_both_ends_and_counts_what_it_leaves_out() -> None:
    text = "start " + "é" * 9_000 + " end"
    fitted = fit_items((Text("Command", text),), allowance=100_000, cost=cost, text_bytes=1_000)
    shown = fitted.items[0]
    assert isinstance(shown, Text)
    assert shown.text.startswith("start é")
    assert shown.text.endswith("é end")
    assert f"[… {fitted.left_out:,} bytes left out …]" in shown.text
    kept = shown.text.replace(f"[… {fitted.left_out:,} bytes left out …]", "")
    assert count_bytes(kept) + fitted.left_out == count_bytes(text)


def test_a_field_shows_at_most_three_hundred_characters() -> None:
    fitted = fit_items((Field("URL", "u" * 301), KIND), allowance=10_000, cost=cost, text_bytes=10_000)
    assert (cost(fitted.items[0]) <= 300, fitted.items[1], fitted.missing) == (True, KIND, frozenset({0}))


def test_a_text_whose_bytes_are_dear_is_cut_to_what_it_costs() -> None:
    def dear(item: PreviewItem) -> int:
        return cost(item) * 6

    fitted = fit_items((COMMAND,), allowance=12_000, cost=dear, text_bytes=100_000)
    assert 9_000 < fitted.cost <= 12_000


@given(st.text())
def test_json_bytes_are_those_inside_the_quotes(text: str) -> None:
    assert count_json_bytes(text) == len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2


def test_canonical_json_sorts_and_keeps_characters() -> None:
    assert encode_canonical({"b": "é", "a": [1]}) == '{"a":[1],"b":"é"}'.encode()


@pytest.mark.parametrize(("text", "clean"), [("𐍈", True), ("", True), ("a\x00", False), ("\ud800", False)])
def test_nul_and_lone_surrogates_are_unclean(text: str, clean: bool) -> None:
    assert is_clean(text) is clean


@given(st.text(alphabet='aé"\n\r𐍈', max_size=300), st.integers(min_value=12, max_value=100))
def test_pieces_fit_and_lose_nothing(text: str, limit: int) -> None:
    pieces = list(split_text(text, limit))
    assert "".join(pieces) == text
    assert all(0 < count_json_bytes(piece) <= limit for piece in pieces)


def test_pieces_part_at_line_ends() -> None:
    assert list(split_text("one two\nthree\nfour", 16)) == ["one two\nthree\n", "four"]
