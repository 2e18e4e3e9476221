"""Makes text of others inert: what hides, reorders or controls is shown as an escape (permission-v2.md, section 10).

Above it: masking, the preview, and every place that puts text of agents or people in front of somebody. Below it:
nothing. Text passes here once, after secrets were masked and before it is cut. It knows no HTML, no Matrix and no list
of options: that a line may not look like one of ours is the renderer's business.
"""

import re
import sys
import unicodedata
from dataclasses import dataclass

REPLACED_ONE_BY_ONE = 12
"""Up to so many different characters `str.replace` for each is quicker than one `str.translate`, by far."""

LONGEST_ESCAPE = 10  # `\UNNNNNNNN`

_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_SELECTORS = "\ufe0e\ufe0f"  # text and emoji presentation: the only variation selectors that people's text holds
_BLOCK_KEEPS = "\n\t"
_FIRST_MARK = 0xD800  # surrogates first: no text that came over a wire in one piece holds them

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})  # Zs but the plain space

# Marks and letters without a picture, variation selectors, non-characters, and code points that are drawn as nothing
# although no character was given to them yet (Default_Ignorable_Code_Point): rule 9, "other invisible characters".
_HIDDEN_RANGES = (
    range(0x034F, 0x0350),
    range(0x115F, 0x1161),
    range(0x17B4, 0x17B6),
    range(0x180B, 0x1810),
    range(0x2065, 0x2066),
    range(0x2800, 0x2801),
    range(0x3164, 0x3165),
    range(0xFDD0, 0xFDF0),
    range(0xFE00, 0xFE10),
    range(0xFFA0, 0xFFA1),
    range(0xFFF0, 0xFFF9),
    range(0xFFFE, 0x110000, 0x10000),
    range(0xFFFF, 0x110000, 0x10000),
    range(0xE0000, 0xE1000),
)
_HIDDEN_CHARACTERS = frozenset(chr(code) for codes in _HIDDEN_RANGES for code in codes)

# In words that decide nothing only these are escaped: control characters but line end and tab, what turns the
# direction of reading, and lone surrogates, which no event can carry.
_CONTROL_OR_BIDI = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]",
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A text that was made to fit, and how many bytes of its UTF-8 form are missing from it (0: it is whole)."""

    text: str
    left_out: int


def is_hidden(character: str) -> bool:
    """Whether a character hides, controls or passes for a space: what section 10 escapes wherever it stands.

    U+FE0E and U+FE0F count as hidden here; `escape_line` and `escape_block` let one of them follow a visible character.
    """
    return character in _HIDDEN_CHARACTERS or (
        character != " " and unicodedata.category(character) in _HIDDEN_CATEGORIES
    )


def find_hidden(text: str) -> frozenset[str]:
    """The hidden characters that occur in a text."""
    if text.isascii() and text.isprintable():
        return frozenset()
    return frozenset(filter(is_hidden, set(text)))


def escape_line(text: str) -> str:
    """A text as one line that shows everything in it: for titles, labels and values."""
    return _escape(text, keep="")


def escape_block(text: str) -> str:
    """A text that shows everything in it, with its real line feeds and tabs: for commands, changes and the like.

    The carriage return of a CR LF is escaped like a lone one: a shell runs such a line differently, and a change of
    line ends alone would otherwise show two equal lines.
    """
    return _escape(text, keep=_BLOCK_KEEPS)


def escape_words(text: str) -> str:
    """The agent's words of a turn: control and bidi characters are escaped in place, all else stays (rule 9).

    CR LF becomes a plain line end, since here nothing depends on it.
    """
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL_OR_BIDI.sub(lambda match: _write_escape(match[0]), text.replace("\r\n", "\n"))


def count_utf16(text: str) -> int:
    """The length as JavaScript counts it."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def cut_line(text: str, limit: int) -> Cut:
    """An escaped line of at most `limit` characters: head, how many bytes were left out, and tail.

    No escape is cut in two. Where not even the words between head and tail fit, they stand alone.
    """
    if len(text) <= limit:
        return Cut(text, 0)
    room = limit - len(_write_gap(_count_bytes(text)))
    return _join_ends(text, head=(room + 1) // 2, tail=len(text) - room // 2)


def cut_to_bytes(text: str, limit_bytes: int) -> Cut:
    """An escaped text of at most `limit_bytes` bytes of UTF-8: head, how many bytes were left out, and tail.

    Neither a character nor an escape is cut in two. Where not even the words between head and tail fit, they stand
    alone. What JSON adds (a byte for each quote, backslash and line end) is the caller's to measure.
    """
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit_bytes:
        return Cut(text, 0)
    room = max(limit_bytes - len(_write_gap(len(raw)).encode()), 0)
    head = len(raw[: (room + 1) // 2].decode("utf-8", "ignore"))
    tail = len(text) - len(raw[len(raw) - room // 2 :].decode("utf-8", "ignore"))
    return _join_ends(text, head=head, tail=tail)


def _escape(text: str, *, keep: str) -> str:
    hidden = find_hidden(text).difference(keep)
    shown = {character: _write_escape(character) for character in hidden.difference(_SELECTORS)}
    if not hidden.isdisjoint(_SELECTORS):
        text = _mark_lone_selectors(text, hidden, shown)
    imitates = text[:1] == text[-1:] == '"'
    if not shown and not imitates:
        return text
    table = {"\\": r"\\", '"': r"\""} | shown  # the backslash first: the other escapes bring their own
    if len(table) > REPLACED_ONE_BY_ONE:
        return f'"{text.translate(str.maketrans(table))}"'
    for character, escape in table.items():
        text = text.replace(character, escape)
    return f'"{text}"'


def _mark_lone_selectors(text: str, hidden: frozenset[str], shown: dict[str, str]) -> str:
    """Put a character that the text does not hold for each selector that follows nothing visible.

    `shown` learns how that character is shown. A text that holds every character there is gets all selectors escaped.
    """
    taken = hidden.union(text)
    free = (character for character in map(chr, range(_FIRST_MARK, sys.maxunicode + 1)) if character not in taken)
    marks = {selector: next(free, selector) for selector in _SELECTORS}
    visible = f"[^{_write_ranges(hidden.union(_BLOCK_KEEPS, ' ', marks.values()))}]"
    for selector, mark in marks.items():
        text, found = re.subn(f"{selector}(?<!{visible}{selector})", mark, text)
        if found or mark == selector:
            shown[mark] = _write_escape(selector)
    return text


def _write_ranges(characters: frozenset[str]) -> str:
    """The inside of a character class, with runs as ranges: one of thousands of single characters is slow."""
    codes = set(map(ord, characters))
    firsts = sorted(code for code in codes if code - 1 not in codes)
    lasts = sorted(code for code in codes if code + 1 not in codes)
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in zip(firsts, lasts, strict=True))


def _write_escape(character: str) -> str:
    named = _NAMED.get(character)
    if named is not None:
        return named
    code = ord(character)
    if code < 0x100:  # noqa: PLR2004 - the widths of section 10
        return f"\\x{code:02x}"
    if code < 0x10000:  # noqa: PLR2004
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def _write_gap(left_out: int) -> str:
    return f"[… {left_out:,} bytes left out …]"


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _join_ends(text: str, *, head: int, tail: int) -> Cut:
    """What stands before `head` and from `tail` on, with the gap named. Both move outwards off an escape."""
    head, tail = max(head, 0), min(tail, len(text))
    if text[0] == text[-1] == '"':  # only then does a backslash begin an escape
        head = _find_escape(text, head)[0]
        tail = _find_escape(text, tail)[1]
    left_out = _count_bytes(text[head:tail])
    return Cut(f"{text[:head]}{_write_gap(left_out)}{text[tail:]}", left_out)


def _find_escape(text: str, at: int) -> tuple[int, int]:
    """Start and end of the escape that a cut at `at` would split; `at` twice when it splits none."""
    start = text.rfind("\\", max(at - LONGEST_ESCAPE, 0), at)
    if start < 0:
        return at, at
    run = start - len(text[: start + 1].rstrip("\\")) + 1  # backslashes up to and with this one
    if run % 2 == 0:  # it is the second half of a doubled one
        return at, at
    width = {"x": 4, "u": 6, "U": 10}.get(text[start + 1], 2)
    return (start, start + width) if at < start + width else (at, at)
