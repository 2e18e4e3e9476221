"""Which items of a request are shown beside its title, and the notes on what is missing (permission-v2.md, 9 and 10).

Above it: notices and prompt. Below it: size, safetext and the model. It chooses; it neither writes nor cuts items.
"""

from dataclasses import dataclass

from bridge.core.model import Field, PreviewItem, Request, Text
from bridge.core.safetext import cut_line
from bridge.matrix.size import LINE_CHARACTERS

SMALL = 2_000  # characters of all items together that fit almost always, so that trying is cheaper than measuring

_INCOMPLETE = "Preview is incomplete: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A request made ready for fitting, once: the one source of the items in text and card."""

    request: Request
    shared: bool  # whether several agents speak in the room
    title: str
    tool: tuple[PreviewItem, ...]  # `Tool` where it is the title: for the card alone
    items: tuple[PreviewItem, ...]  # all others, notes included
    small: bool  # nothing has to be cut, unless the event around it is crowded
    title_lost: int  # bytes of the title that are cut and stand in no item of the agent's


def prepare(request: Request, *, shared: bool = False) -> Material:
    """Take a request's preview apart. A title that is cut and stands nowhere else whole becomes an item too."""
    description = request.description
    title = Field("Tool", description.title)
    preview = description.preview
    tool, items = (preview[:1], preview[1:]) if preview[:1] == (title,) else ((), preview)
    cut = cut_line(description.title, LINE_CHARACTERS)
    lost = cut.left_out
    if lost and any(description.title in read_item(item) for item in items):
        lost = 0
    if lost:
        items = (Text("Title", description.title), *items)
    items = (*items, *(note(reason) for reason in description.notes))
    return Material(
        request=request,
        shared=shared,
        title=cut.text,
        tool=tuple(Field("Tool", cut.text) for _ in tool),
        items=items,
        small=sum(len(read_item(item)) for item in items) <= SMALL and not any(map(_is_long_line, items)),
        title_lost=lost,
    )


def read_item(item: PreviewItem) -> str:
    """What stands in an item."""
    return item.value if isinstance(item, Field) else item.text


def note(reason: str) -> Field:
    """One reason why the preview is incomplete."""
    return Field("Note", reason if reason.startswith(_INCOMPLETE) else f"{_INCOMPLETE}{reason}")


def note_left_out(left_out: int) -> tuple[Field, ...]:
    """The note on what was cut, where something was."""
    return (note(f"{left_out:,} bytes left out"),) if left_out else ()


def _is_long_line(item: PreviewItem) -> bool:
    return isinstance(item, Field) and len(item.value) > LINE_CHARACTERS
