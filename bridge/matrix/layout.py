"""Blocks of text, put down twice: as a plain body and as the HTML that every client shows (matrix.md, section 10).

Above it: render, notices and prompt. Below it: size and the model. It knows tags, indents and escaping, but not one sentence. Values come
in escaped for display; here they are escaped for HTML, and no line of theirs can pass for a quote or an option.
"""

import re
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from bridge.core.model import Field, PreviewItem
from bridge.matrix.size import count_json_bytes

INDENT = "    "
LONG_BLANK = re.compile(r"[ \t\n]{201,}")  # no code is indented so deep: it pushes what follows out of sight (inj-07)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One line of words; `strong` stands before it in bold."""

    text: str
    strong: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that belong together."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """The options, numbered from 1."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be done, item by item."""

    items: tuple[PreviewItem, ...]


Block: TypeAlias = Paragraph | Lines | Choices | Preview


def write_body(blocks: tuple[Block, ...]) -> str:
    """The blocks as plain text, which alone must be enough: notifications and bridges show only this."""
    return "\n\n".join(_write_block(block) for block in blocks)


def write_html(blocks: tuple[Block, ...]) -> str:
    """The same blocks with tags; each tag is ours."""
    return "".join(_mark_up_block(block) for block in blocks)


def write_item(item: PreviewItem) -> str:
    """One preview item in the body: a text is indented line by line, so that none of its lines can pass for ours."""
    if isinstance(item, Field):
        return f"{_label(item.label)}: {item.value}"
    inside = _shorten_blanks(item.text).replace("\n", f"\n{INDENT}")
    return f"{_label(item.label)}:\n{INDENT}{inside}"


def mark_up_item(item: PreviewItem) -> str:
    """One preview item in HTML. Values stand in `code`: clients make no link and no pill of what stands there."""
    label = escape(_label(item.label))
    if isinstance(item, Field):
        return f"<p>{label}: <code>{escape(item.value)}</code></p>"
    return f"<p>{label}:</p><pre><code>{escape(_shorten_blanks(item.text))}</code></pre>"


def measure_written(item: PreviewItem) -> int:
    """Bytes that an item takes in a body, with the line ends round it."""
    return count_json_bytes(write_item(item)) + 4


def measure_marked_up(item: PreviewItem) -> int:
    """Bytes that an item takes in a body and in its HTML."""
    return measure_written(item) + count_json_bytes(mark_up_item(item))


def _write_block(block: Block) -> str:
    match block:
        case Paragraph(text=text, strong=strong):
            return f"{strong} {text}" if strong else text
        case Lines(lines=lines):
            return "\n".join(lines)
        case Choices(lines=lines):
            return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
        case Preview(items=items):
            return "\n".join(write_item(item) for item in items)


def _mark_up_block(block: Block) -> str:
    match block:
        case Paragraph(text=text, strong=strong):
            start = f"<strong>{escape(strong)}</strong> " if strong else ""
            return f"<p>{start}{escape(text)}</p>"
        case Lines(lines=lines):
            return f"<p>{'<br>'.join(escape(line) for line in lines)}</p>"
        case Choices(lines=lines):
            return f"<ol>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ol>"
        case Preview(items=items):
            return "".join(mark_up_item(item) for item in items)


def _label(label: str) -> str:
    # a member's name of an unknown subject may begin with `> ` or `1. `; in quotes it passes for nothing else
    return label if label[:1].isalpha() or label.startswith('"') else f'"{label}"'


def _shorten_blanks(text: str) -> str:
    return LONG_BLANK.sub(_name_blanks, text)


def _name_blanks(match: re.Match[str]) -> str:
    blanks = match[0]
    if lines := blanks.count("\n"):
        return f"\n[… {len(blanks):,} blanks and line ends, {lines:,} lines …]\n"
    return f" [… {len(blanks):,} blanks …] "
