"""Writes what changes between two texts as the hunks of a unified diff, in bounded time.

Above it: the preview. Below it: nothing. `difflib` takes quadratic time and worse, so it sees small pieces only: equal
lines at both ends are set aside, lines that occur once on each side tie the rest together (a patience diff), and a piece
that is still large is shown as removed and added whole. Nothing is left out but equal lines.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

CONTEXT_LINES = 3

COMPARED_AT_MOST = 30_000_000
"""Comparisons that difflib may need at worst in one diff: some seconds for a text made to be slow, else milliseconds."""

_NO_LINE_END = "\\ No newline at end of file"


class _Piece(NamedTuple):
    """Old lines `a` to `b` became new lines `c` to `d`."""

    a: int
    b: int
    c: int
    d: int


def write_diff(old: str, new: str) -> str:
    """The hunks of the unified diff, without the two lines that name the files; empty when nothing changes."""
    is_end_changed = bool(old) and bool(new) and old.endswith("\n") != new.endswith("\n")
    before, after = (_split_lines(text, mark_end=is_end_changed) for text in (old, new))
    changes = list(_find_changes(before, after))
    return "\n".join(line for hunk in _group(changes) for line in _write_hunk(hunk, before, after))


def list_changed_lines(diff: str) -> list[str]:
    """The removed and added lines of a unified diff of one file, in order: two diffs with the same say the same."""
    lines = diff.split("\n")
    first = next((index for index, line in enumerate(lines) if line.startswith("@@")), len(lines))
    return [line for line in lines[first:] if line.startswith(("-", "+"))]


def _split_lines(text: str, *, mark_end: bool) -> list[str]:
    """Lines at line feeds alone. `mark_end`: a last line without one says so, as `diff` does.

    That is noise unless the two sides differ in it: agents give parts of files, which end anywhere.
    """
    lines = text.split("\n")
    last = lines.pop()
    if not last:
        return lines
    return [*lines, f"{last}\n{_NO_LINE_END}" if mark_end else last]


def _find_changes(before: list[str], after: list[str]) -> Iterator[_Piece]:
    left = COMPARED_AT_MOST
    start_old = start_new = 0
    for at_old, at_new in [*_find_anchors(before, after), (len(before), len(after))]:
        piece = _strip_ends(before, after, _Piece(start_old, at_old, start_new, at_new))
        start_old, start_new = at_old, at_new
        removed, added = piece.b - piece.a, piece.d - piece.c
        cost = removed * added * min(removed, added)
        if 0 < cost <= left:
            left -= cost
            yield from _compare(before, after, piece)
        elif removed or added:
            yield piece


def _find_anchors(before: list[str], after: list[str]) -> list[tuple[int, int]]:
    """The longest rising row of lines that occur exactly once on both sides."""
    times_before, times_after = Counter(before), Counter(after)
    place = {line: index for index, line in enumerate(after) if times_after[line] == 1}
    pairs = [(index, place[line]) for index, line in enumerate(before) if times_before[line] == 1 and line in place]
    ends: list[int] = []  # the lowest last place of a row of each length
    rows: list[int] = []  # and which pair that is
    earlier: list[int] = []
    for index, (_, at_new) in enumerate(pairs):
        length = bisect_left(ends, at_new)
        earlier.append(rows[length - 1] if length else -1)
        if length == len(ends):
            ends.append(at_new)
            rows.append(index)
        else:
            ends[length], rows[length] = at_new, index
    anchors: list[tuple[int, int]] = []
    current = rows[-1] if rows else -1
    while current >= 0:
        anchors.append(pairs[current])
        current = earlier[current]
    return anchors[::-1]


def _strip_ends(before: list[str], after: list[str], piece: _Piece) -> _Piece:
    a, b, c, d = piece
    while a < b and c < d and before[a] == after[c]:
        a, c = a + 1, c + 1
    while a < b and c < d and before[b - 1] == after[d - 1]:
        b, d = b - 1, d - 1
    return _Piece(a, b, c, d)


def _compare(before: list[str], after: list[str], piece: _Piece) -> Iterator[_Piece]:
    a, b, c, d = piece
    for tag, i, j, k, m in SequenceMatcher(None, before[a:b], after[c:d], autojunk=False).get_opcodes():
        if tag != "equal":
            yield _Piece(a + i, a + j, c + k, c + m)


def _group(changes: list[_Piece]) -> Iterator[list[_Piece]]:
    """Changes whose lines of context meet stand in one hunk."""
    hunk: list[_Piece] = []
    for change in changes:
        if hunk and change.a - hunk[-1].b > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _write_hunk(hunk: list[_Piece], before: list[str], after: list[str]) -> Iterator[str]:
    lead = min(CONTEXT_LINES, hunk[0].a, hunk[0].c)
    tail = min(CONTEXT_LINES, len(before) - hunk[-1].b)
    old = _write_range(hunk[0].a - lead, hunk[-1].b + tail)
    new = _write_range(hunk[0].c - lead, hunk[-1].d + tail)
    yield f"@@ -{old} +{new} @@"
    at = hunk[0].a - lead
    for change in hunk:
        yield from (f" {line}" for line in before[at : change.a])
        yield from (f"-{line}" for line in before[change.a : change.b])
        yield from (f"+{line}" for line in after[change.c : change.d])
        at = change.b
    yield from (f" {line}" for line in before[at : at + tail])


def _write_range(start: int, end: int) -> str:
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"
