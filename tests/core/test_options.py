import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import JsonValue, Meaning, Misfit, Scope
from bridge.core.options import OptionList, read_options
from bridge.core.replies import Choices, Fits, choose
from bridge.core.safetext import count_utf16, escape_line

TOKEN = "gh" + "p_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"  # written apart, so that no scanner takes it for a leak


def offer(option_id: JsonValue, name: JsonValue = "", kind: JsonValue = "allow_once") -> dict[str, JsonValue]:
    return {"optionId": option_id, "name": name, "kind": kind}


def named_by(text: str, read: OptionList) -> str | Fits:
    chosen = choose(text, read.options)
    return chosen if isinstance(chosen, Fits) else chosen.option_id


def lines(read: OptionList) -> list[str]:
    return [option.line for option in read.options]


def test_options_keep_the_agents_order_and_their_exact_ids() -> None:
    read = read_options([offer("b", "Beta"), offer("Ünï / 1 ", "Alpha"), offer("a", "Gamma")])
    assert [option.option_id for option in read.options] == ["b", "Ünï / 1 ", "a"]
    assert lines(read) == ["Beta", "Alpha", "Gamma"]
    assert (read.misfit, read.dropped, read.masked) == (None, 0, 0)


@pytest.mark.parametrize(
    ("kind", "meaning", "scope"),
    [
        ("allow_once", Meaning.APPROVE, Scope.ONCE),
        ("allow_always", Meaning.APPROVE, Scope.ALWAYS),
        ("reject_once", Meaning.REJECT, Scope.ONCE),
        ("reject_always", Meaning.REJECT, Scope.ALWAYS),
        ("ask_later", Meaning.CHOOSE, None),
        ("ALLOW_ONCE", Meaning.CHOOSE, None),
        ("", Meaning.CHOOSE, None),
    ],
)
def test_meaning_and_scope_come_from_the_kind_alone(kind: str, meaning: Meaning, scope: Scope | None) -> None:
    (option,) = read_options([offer("reject", "Reject", kind)]).options
    assert (kind, meaning, scope) == (option.kind, option.meaning, option.scope)


@pytest.mark.parametrize("raw", [{"optionId": "x", "name": "X"}, offer("x", "X", 0), offer("x", "X", None)])
def test_a_kind_that_is_no_string_is_unknown(raw: dict[str, JsonValue]) -> None:
    (option,) = read_options([raw]).options
    assert (option.kind, option.meaning, option.scope) == (None, Meaning.CHOOSE, None)


@pytest.mark.parametrize("raw", [[], [{"optionId": 1}], [{"name": "no id"}, 7, None, "x", ["optionId"]]])
def test_a_list_without_a_usable_option_offers_nothing(raw: list[JsonValue]) -> None:
    assert read_options(raw) == OptionList(options=(), misfit=Misfit.NOTHING_TO_CHOOSE, dropped=len(raw))


def test_an_option_without_an_id_is_dropped_beside_good_ones() -> None:
    read = read_options([{"name": "no id"}, offer("r", "Reject"), offer("a", "Allow")])
    assert (lines(read), read.dropped, read.misfit) == (["Reject", "Allow"], 1, None)
    assert named_by("2", read) == "a"


def test_the_same_option_twice_is_kept_once() -> None:
    same: dict[str, JsonValue] = {**offer("a", "A"), "_meta": {"k": [1, {"x": None}]}}
    again: dict[str, JsonValue] = {**offer("a", "A"), "_meta": {"k": [1, {"x": None}]}}
    read = read_options([same, again, offer("b", "B")])
    assert (lines(read), read.dropped) == (["A", "B"], 0)
    assert named_by("2", read) == "b"


@pytest.mark.parametrize(
    "other",
    [
        offer("a", "No"),
        offer("a", "Yes", "allow_always"),
        {**offer("a", "Yes"), "_meta": {}},
        {**offer("a", "Yes"), "more": [1, 2, 3]},
        {**offer("a", "Yes"), "more": [True]},
        {**offer("a", "Yes"), "more": [2]},
    ],
)
def test_two_different_options_with_one_id_cannot_be_put_to_people(other: dict[str, JsonValue]) -> None:
    first: dict[str, JsonValue] = {**offer("a", "Yes"), "more": [1]}
    read = read_options([first, other, offer("r", "Reject")])
    assert read == OptionList(options=(), misfit=Misfit.SAME_ID, dropped=0)


def test_deeply_nested_duplicates_are_compared_without_recursion() -> None:
    one: JsonValue = 1
    other: JsonValue = 1
    for _ in range(5000):
        one, other = [one], [other]
    first: dict[str, JsonValue] = {**offer("a", "A"), "_meta": one}
    again: dict[str, JsonValue] = {**offer("a", "A"), "_meta": other}
    assert len(read_options([first, again]).options) == 1


def test_more_than_twenty_options_are_all_answerable() -> None:
    read = read_options([offer(f"o{n}", f"Choice {n}") for n in range(1, 22)])
    assert (len(read.options), named_by("21", read)) == (21, "o21")


@pytest.mark.parametrize("option_id", ["", "x" * 201, "😀" * 101, "a\0b", "a\udfff", f"use {TOKEN}"])
def test_an_id_that_a_card_cannot_carry_has_an_alias_and_goes_back_as_it_came(option_id: str) -> None:
    read = read_options([offer("a", "A"), offer(option_id, "B")])
    assert read.options[1].card_id == "opt:2"
    assert named_by("2", read) == option_id
    assert named_by("opt:2", read) == option_id


@pytest.mark.parametrize("option_id", ["x" * 200, "😀" * 100, " ", "a\u202eb"])
def test_an_id_that_fits_is_carried_as_it_came(option_id: str) -> None:
    assert read_options([offer(option_id, "B")]).options[0].card_id == option_id


def test_an_alias_avoids_every_id_of_the_list() -> None:
    read = read_options([offer("", "A"), offer("opt:1", "B"), offer("opt:1_", "C")])
    assert [option.card_id for option in read.options] == ["opt:1__", "opt:1", "opt:1_"]


@pytest.mark.parametrize("name", ["", "   ", "\u200b", "\u00a0\n", None, 7, ["x"]])
def test_an_option_without_a_name_is_called_by_its_id(name: JsonValue) -> None:
    (option,) = read_options([offer("go", name)]).options
    assert ("go", "go", name if isinstance(name, str) else "") == (option.label, option.line, option.name)


def test_an_option_without_name_and_usable_id_is_called_by_its_alias() -> None:
    read = read_options([{"optionId": ""}, {"optionId": "a\u202eb"}])
    assert lines(read) == ["opt:1", '"a\\u202eb"']
    assert named_by('"a\\u202eb"', read) == "a\u202eb"


def test_a_name_with_line_ends_is_one_line_and_no_second_option() -> None:
    read = read_options([offer("evil", "Reject\n2. Reject"), offer("ok", "Reject", "reject_once")])
    assert lines(read) == ['"Reject\\n2. Reject"', "Reject"]
    assert read.options[0].label == '"Reject\\n2. Reject"'
    assert named_by("Reject", read) == "ok"
    assert named_by("2. Reject", read) == "ok"
    assert named_by('"Reject\\n2. Reject"', read) == "evil"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
        ("😀" * 100, "😀" * 100),
        ("😀" * 200, "😀" * 99 + "…"),
        ("x" + "😀" * 100, "x" + "😀" * 99 + "…"),
    ],
)
def test_a_long_name_is_cut_for_the_card_where_both_counters_accept_it(name: str, label: str) -> None:
    (option,) = read_options([offer("a", name)]).options
    assert (label, label != name) == (option.label, option.label_cut)
    assert option.name == option.line == name


def test_the_label_as_shown_and_the_whole_name_both_answer() -> None:
    read = read_options([offer("a", "x" * 250), offer("b", "B")])
    assert named_by("x" * 199 + "…", read) == "a"
    assert named_by("x" * 250, read) == "a"


def test_the_prose_shows_head_and_tail_of_a_name_and_says_how_much_is_missing() -> None:
    read = read_options([offer("a", "h" * 400 + "t" * 400), offer("b", "x" * 300)])
    cut, whole = lines(read)
    assert whole == "x" * 300
    assert re.fullmatch(r"h{100,}\[… \d+ bytes left out …\]t{100,}", cut)
    assert len(cut) <= 300
    assert named_by("1. " + read.options[0].line, read) == "a"


def test_two_equal_names_show_their_ids_and_are_no_answer() -> None:
    read = read_options([offer("x", "Same"), offer("y", "same "), offer("z", "Other")])
    assert lines(read) == ["Same [x]", "same  [y]", "Other"]
    assert [named_by(text, read) for text in ("same", "2", "x", "1. Same [x]", "2. Same [y]")] == [
        Fits.SEVERAL,
        "y",
        "x",
        "x",
        "y",
    ]


def test_names_that_look_equal_once_masked_show_their_ids() -> None:
    other = TOKEN[:-1] + "9"
    read = read_options([offer("x", TOKEN), offer("y", other)])
    assert read.options[0].label == read.options[1].label
    assert [line[-4:] for line in lines(read)] == [" [x]", " [y]"]


def test_names_that_are_other_numbers_show_their_ids() -> None:
    read = read_options([offer("x", "2"), offer("y", "1")])
    assert lines(read) == ["2 [x]", "1 [y]"]
    assert [named_by(text, read) for text in ("1", "2", "x", "y")] == [Fits.SEVERAL, Fits.SEVERAL, "x", "y"]


def test_names_that_are_their_own_numbers_answer() -> None:
    read = read_options([offer("x", "1"), offer("y", "2")])
    assert (lines(read), named_by("1", read)) == (["1", "2"], "x")


def test_a_number_that_is_another_options_id_is_no_answer_and_shows_the_id() -> None:
    read = read_options([offer("go", "Allow"), offer("1", "Reject")])
    assert lines(read) == ["Allow [go]", "Reject"]
    assert [named_by(text, read) for text in ("1", "allow", "go", "2")] == [Fits.SEVERAL, "go", "go", "1"]


def test_a_name_that_is_another_options_id_is_no_answer() -> None:
    read = read_options([offer("reject", "Allow"), offer("allow", "Reject")])
    assert [named_by(text, read) for text in ("Allow", "Reject", "1", "2")] == [
        Fits.SEVERAL,
        Fits.SEVERAL,
        "reject",
        "allow",
    ]


def test_options_that_nothing_names_alone_cannot_be_put_to_people() -> None:
    read = read_options([{"name": "no id"}, offer("2", "2"), offer("1", "1")])
    assert read == OptionList(options=(), misfit=Misfit.NOT_TELLABLE, dropped=1)


def test_a_secret_in_a_name_or_id_is_masked_in_all_that_is_shown() -> None:
    read = read_options([offer("a", f"Use {TOKEN}"), offer(TOKEN, ""), offer("r", "Reject")])
    shown = [text for option in read.options for text in (option.label, option.line, option.card_id)]
    assert not [text for text in shown if TOKEN in text]
    assert [option.option_id for option in read.options] == ["a", TOKEN, "r"]
    assert read.masked == 1  # of the id nothing is shown, so nothing is missing


raw_options = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "optionId": st.text(alphabet='12ab \u202e"', max_size=3) | st.just("y" * 201) | st.integers(),
            "name": st.text(alphabet='12aA \n\u200b"\udfff', max_size=3) | st.text(alphabet="a😀", min_size=300),
            "kind": st.sampled_from(["allow_once", "reject_once", "ask_later", 0]),
        },
    ),
    max_size=6,
)


@given(raw_options)
def test_every_list_is_tellable_shown_safely_and_kept_whole_or_refused(raw: list[JsonValue]) -> None:
    read = read_options(raw)
    assert bool(read.options) != bool(read.misfit)
    choices = Choices(read.options)
    card_ids = [option.card_id for option in read.options]
    assert len(set(card_ids)) == len(card_ids)
    for number, option in enumerate(read.options, start=1):
        words = (str(number), option.label, escape_line(option.card_id))
        assert any(choices.named_by(word) is option for word in words)
        assert option.label == escape_line(option.label) or option.label.startswith('"')
        assert 1 <= count_utf16(option.label) <= 200
        assert 1 <= count_utf16(option.card_id) <= 200
