import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.safetext import (
    Cut,
    count_utf16,
    cut_line,
    cut_to_bytes,
    escape_block,
    escape_line,
    escape_words,
    is_hidden,
)

SECTION_10 = [
    ("Allow once", "Allow once"),
    (r"a\b", r"a\b"),
    ("/run/a\nAllow\u202e", r'"/run/a\nAllow\u202e"'),
    ("a\\b\n", r'"a\\b\n"'),
    ("Run\n1. Allow once", r'"Run\n1. Allow once"'),
    ("\ud800", r'"\ud800"'),
    (r'"\u202e"', r'"\"\\u202e\""'),
    ("rm\u00a0-rf x", r'"rm\xa0-rf x"'),
]

ODD = st.text(
    st.sampled_from('a"\\ \n\r\t\u00e9\u200b\u202e\ufe0e\ufe0f\U0001f600\u2028\ud800\U000e0041\u00a0x0')
    | st.characters()
)


@pytest.mark.parametrize(("raw", "shown"), SECTION_10)
def test_the_table_of_section_10_holds(raw: str, shown: str) -> None:
    assert shown == escape_line(raw)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("", ""),
        ('"', r'"\""'),
        ('say "hi"', 'say "hi"'),
        ("\r\n\t", r'"\r\n\t"'),
        ("\x00\x1b\x7f\x9b", r'"\x00\x1b\x7f\x9b"'),
        ("\U000e0041", r'"\U000e0041"'),
        ("\ufdd0\U0001fffe", r'"\ufdd0\U0001fffe"'),
        ("\u034f\u115f\u17b4\u180b\u2800\u3164\uffa0", r'"\u034f\u115f\u17b4\u180b\u2800\u3164\uffa0"'),
        ("\u2065\U000e0fff", r'"\u2065\U000e0fff"'),
        ("\ufe00\U000e0100", r'"\ufe00\U000e0100"'),
        ("❤\ufe0f 1\ufe0f\u20e3", "❤\ufe0f 1\ufe0f\u20e3"),
        ("❤\ufe0f\ufe0f", '"❤\ufe0f\\ufe0f"'),
        ("a \ufe0f", r'"a \ufe0f"'),
        ("\ufe0e", r'"\ufe0e"'),
        ("x\u200b\ufe0f", r'"x\u200b\ufe0f"'),
        ("\ufe0e\ufe0f", r'"\ufe0e\ufe0f"'),
        ("👩\u200d💻", '"👩\\u200d💻"'),
    ],
)
def test_a_line_shows_what_hides(raw: str, shown: str) -> None:
    assert shown == escape_line(raw)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\n\tb", "a\n\tb"),
        ("a\r\nb\rc", '"a\\r\nb\\rc"'),
        ('echo "\\n"\n\u202e', '"echo \\"\\\\n\\"\n\\u202e"'),
        ("a\n\ufe0f", '"a\n\\ufe0f"'),
    ],
)
def test_a_block_keeps_line_feeds_and_tabs_only(raw: str, shown: str) -> None:
    assert shown == escape_block(raw)


def test_many_kinds_of_hidden_characters_are_all_escaped() -> None:
    hidden = "".join(map(chr, range(0x20))) + "x"
    shown = escape_line(hidden)
    assert (shown[:13], shown.isprintable()) == (r'"\x00\x01\x02', True)


def test_selectors_are_escaped_everywhere_when_no_character_is_free_to_mark_them() -> None:
    everything = "".join(map(chr, range(0xD800, 0x110000)))
    shown = escape_line(everything + "a\ufe0f")
    assert shown[-8:] == 'a\\ufe0f"'


def _is_escaped_by_the_words_of_section_10(character: str) -> bool:
    category = unicodedata.category(character)
    return (category in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"} and character != " ") or ord(character) & 0xFFFE == 0xFFFE


def test_every_character_that_section_10_names_by_category_is_hidden() -> None:
    missed = [i for i in range(0x110000) if _is_escaped_by_the_words_of_section_10(chr(i)) and not is_hidden(chr(i))]
    assert missed == []


def _read_back(shown: str) -> str:
    """Undo the escape by its grammar alone."""
    if not (shown[:1] == shown[-1:] == '"'):
        return shown
    raw, at, body = "", 0, shown[1:-1]
    while at < len(body):
        if body[at] != "\\":
            raw, at = raw + body[at], at + 1
        elif (width := {"x": 2, "u": 4, "U": 8}.get(body[at + 1], 0)) > 0:
            raw, at = raw + chr(int(body[at + 2 : at + 2 + width], 16)), at + 2 + width
        else:
            raw, at = raw + {"n": "\n", "r": "\r", "t": "\t"}.get(body[at + 1], body[at + 1]), at + 2
    return raw


@given(ODD)
def test_a_line_is_one_line_and_loses_nothing(raw: str) -> None:
    shown = escape_line(raw)
    assert raw == _read_back(shown)
    assert not [c for c in shown if is_hidden(c) and c not in "\ufe0e\ufe0f"]


@given(ODD)
def test_a_block_loses_nothing_and_holds_no_control_but_line_feed_and_tab(raw: str) -> None:
    shown = escape_block(raw)
    assert raw == _read_back(shown)
    assert not [c for c in shown if is_hidden(c) and c not in "\n\t\ufe0e\ufe0f"]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("a\r\nb\n\tc", "a\nb\n\tc"),
        ('say "x" \\ \x1b[2K \u202e', 'say "x" \\ \\x1b[2K \\u202e'),
        ("👩\u200d💻 \u200b", "👩\u200d💻 \u200b"),
        ("\ud800\r", r"\ud800\r"),
        ("é", "é"),
    ],
)
def test_words_have_only_control_and_bidi_characters_escaped(raw: str, shown: str) -> None:
    assert shown == escape_words(raw)


@pytest.mark.parametrize(("text", "length"), [("", 0), ("abc", 3), ("é😀", 3), ("\ud800", 1)])
def test_the_length_is_counted_as_javascript_does(text: str, length: int) -> None:
    assert length == count_utf16(text)


def test_a_short_line_is_not_cut() -> None:
    assert Cut("a" * 300, 0) == cut_line("a" * 300, 300)


def test_a_cut_line_shows_head_and_tail_and_how_much_is_missing() -> None:
    cut = cut_line("a" * 500 + "z" * 500, 100)
    assert Cut("a" * 37 + "[… 926 bytes left out …]" + "z" * 37, 926) == cut


def test_a_line_cut_to_nothing_is_only_the_gap() -> None:
    assert Cut("[… 40 bytes left out …]", 40) == cut_line("é" * 20, 5)


def test_no_escape_is_cut_in_two() -> None:
    shown = escape_line("\U000e0041" * 60)
    for limit in range(40, 100):
        head, tail = cut_line(shown, limit).text.split("[…")[0], cut_line(shown, limit).text.split("…]")[1]
        assert (len(head) % 10, len(tail) % 10) == (1, 1)


@pytest.mark.parametrize("raw", ["a" * 100 + "\n", "\\" * 100 + "\n", '"\n' * 80, "\u202e\\" * 60, "\n\t\\u" * 40])
@pytest.mark.parametrize("limit", range(60, 72))
def test_what_is_left_of_an_escaped_line_reads_as_part_of_it(raw: str, limit: int) -> None:
    cut = cut_line(escape_line(raw), limit)
    head, tail = (_read_back(f'"{part}"') for part in (cut.text.split("[…")[0][1:], cut.text.split("…]")[1][:-1]))
    assert (raw.startswith(head), raw.endswith(tail)) == (True, True)


@given(st.text(st.sampled_from("aé😀\n")), st.integers(0, 200))
def test_a_text_cut_to_bytes_fits_and_counts_what_is_missing(text: str, limit: int) -> None:
    cut = cut_to_bytes(text, limit)
    whole = len(text.encode())
    shown = len(cut.text.encode())
    if not cut.left_out:
        assert text == cut.text
    else:
        gap = f"[… {cut.left_out:,} bytes left out …]"
        assert whole - cut.left_out + len(gap.encode()) == shown
        assert shown <= max(limit, len(gap.encode()))
        head, tail = cut.text.split(gap)
        assert (text.startswith(head), text.endswith(tail)) == (True, True)


@pytest.mark.parametrize("unit", ["echo a;\n", "\u200b", " \ufe0f", "❤\ufe0f", '"\\', "\u202e\\"])
def test_two_megabytes_are_escaped_in_linear_time(unit: str) -> None:
    text = unit * (2_000_000 // len(unit.encode()))
    start = time.process_time()
    escape_block(text)
    assert time.process_time() - start < 10  # about 0.1; a quadratic one takes hours
