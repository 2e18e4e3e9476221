"""How large text becomes inside an event, and how it is made smaller without hiding that (permission-v2.md, section 11).

Above it: every other module of this package that writes text. Below it: safetext and the model. It knows bytes and the order of cutting, but no sentence, no
card and no Matrix.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bridge.core.model import Field, JsonObject, PreviewItem, Text
from bridge.core.safetext import cut_line, cut_to_bytes

LINE_CHARACTERS = 300  # section 11: what a title, a field or an option's name shows at most
KEPT_BYTES = 512  # what a cut text keeps at least: head and tail that can still be read, before anything is dropped
SHRINKS = (
    (1, 1),
    (2, 5),
    (2, 15),
)  # of the budget, each time a homeserver finds an event too large: 60,000, 24,000, 8,000

_UNCLEAN = re.compile("[\x00\ud800-\udfff]")

Cost = Callable[[PreviewItem], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Preview items that fit; `missing` are the numbers of those not shown whole, `left_out` the bytes they lack."""

    items: tuple[PreviewItem, ...]
    missing: frozenset[int] = frozenset()
    left_out: int = 0
    cost: int = 0


def encode_canonical(content: JsonObject) -> bytes:
    """Canonical JSON, as Matrix and RFC 8785 have it for content without floats and with ASCII keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def is_clean(text: str) -> bool:
    """Whether a text holds neither NUL nor a lone surrogate, which no Matrix event may."""
    return _UNCLEAN.search(text) is None


def count_bytes(text: str) -> int:
    """UTF-8 bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def count_json_bytes(text: str) -> int:
    """UTF-8 bytes of a text inside a JSON string, without its quotes."""
    return count_bytes(json.dumps(text, ensure_ascii=False)) - 2


def fit_items(
    items: Sequence[PreviewItem], *, allowance: int, cost: Cost, text_bytes: int, may_drop: bool = True
) -> Fitted:
    """Cut items until they cost no more than `allowance`, in the order of section 11; what was cut says so itself.

    Without `may_drop` only the list of locations gets shorter, and the result may still cost too much.
    """
    first = [_cut_item(item, text_bytes) for item in items]
    shown: list[PreviewItem | None] = [item for item, _ in first]
    left_out = [lacks for _, lacks in first]
    costs = [cost(item) for item, _ in first]
    total = sum(costs)
    for number, drop in _order_moves(items, may_drop=may_drop):
        if total <= allowance:
            break
        total -= costs[number]
        item = shown[number]
        if drop or item is None:
            shown[number], left_out[number], costs[number] = None, count_bytes(_value(items[number])), 0
        else:
            item, lacks = _cut_to_cost(items[number], item, allowance - total, cost)
            shown[number], left_out[number], costs[number] = item, max(lacks, left_out[number]), cost(item)
        total += costs[number]
    return Fitted(
        items=tuple(item for item in shown if item is not None),
        missing=frozenset(number for number, item in enumerate(shown) if left_out[number] or item is None),
        left_out=sum(left_out),
        cost=total,
    )


def split_text(text: str, limit: int) -> Iterator[str]:
    """Pieces that take at most `limit` bytes inside a JSON string each, parted at line ends where there are any."""
    piece: list[str] = []
    used = 0
    for line in _lines_within(text, limit):
        size = count_json_bytes(line)
        if used + size > limit:
            yield "".join(piece)
            piece, used = [], 0
        piece.append(line)
        used += size
    if piece:
        yield "".join(piece)


def _lines_within(text: str, limit: int) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        start = 0
        while start < len(line):
            length = limit
            while (size := count_json_bytes(line[start : start + length])) > limit:
                length = max(1, min(length - 1, length * limit // size))
            yield line[start : start + length]
            start += length


def _value(item: PreviewItem) -> str:
    return item.value if isinstance(item, Field) else item.text


def _cut_item(item: PreviewItem, text_bytes: int) -> tuple[PreviewItem, int]:
    if isinstance(item, Field):
        cut = cut_line(item.value, LINE_CHARACTERS)
        return (Field(item.label, cut.text) if cut.left_out else item), cut.left_out
    cut = cut_to_bytes(item.text, text_bytes)
    return (Text(item.label, cut.text) if cut.left_out else item), cut.left_out


def _cut_to_cost(item: PreviewItem, shown: PreviewItem, room: int, cost: Cost) -> tuple[PreviewItem, int]:
    """Keep about as much of a text as the room allows: how dear a byte is (quotes, line ends, tags) only trying tells."""
    keep = count_bytes(_value(shown))
    cut, left_out = shown, 0
    while (spent := cost(cut)) > room and keep > KEPT_BYTES:
        keep = max(KEPT_BYTES, min(keep - 1, keep * room // spent))
        cut, left_out = _cut_item(item, keep)
    return cut, left_out


def _order_moves(items: Sequence[PreviewItem], *, may_drop: bool) -> Iterator[tuple[int, bool]]:
    """The order of section 11, each with whether the item is dropped: people decide by the command, so it comes last."""
    by_rank: dict[int, list[int]] = {rank: [] for rank in range(7)}
    for number, item in enumerate(items):
        by_rank[_rank(item)].append(number)
    diffs = sorted(by_rank[2], key=lambda number: len(_value(items[number])), reverse=True)
    for number in (*by_rank[0], *by_rank[1], *diffs):
        yield number, False
    for number in reversed(by_rank[3]):
        yield number, True
    for number in (*by_rank[5], *by_rank[6]):
        yield number, False
    if may_drop:
        for rank in (0, 1, 2, 4, 5, 6):
            for number in reversed(by_rank[rank]):
                yield number, True


def _rank(item: PreviewItem) -> int:
    if isinstance(item, Field):
        return 3 if item.label == "Location" else 4
    if item.label.startswith("Change: "):
        return 2
    return {"Input": 0, "Title": 5, "Command": 6}.get(item.label, 1)
