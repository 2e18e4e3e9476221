"""Every message but a prompt as the event that is sent: endings, refusals, the agent's words, reactions.

Above it: prompt. Below it: render, preview, layout, size and the ports' `Envelope`. Pure. Nothing here carries a card:
both cards mean "decide now".
"""

from collections.abc import Iterator

from bridge.core.masking import mask
from bridge.core.messages import Replaced, Seed, Words
from bridge.core.model import EventId, JsonValue, PreviewItem, PromptStyle, Request, UserId
from bridge.core.ports import Envelope
from bridge.core.safetext import cut_to_bytes, escape_words
from bridge.matrix.layout import Block, measure_marked_up, write_body, write_html
from bridge.matrix.preview import note_left_out, prepare
from bridge.matrix.render import (
    KEYCAPS,
    Spoken,
    render_closing,
    render_replaced,
    render_speech,
    summarise_closing,
    summarise_replaced,
)
from bridge.matrix.size import SHRINKS, count_json_bytes, encode_canonical, fit_items, is_clean, split_text

MESSAGE = "m.room.message"
CLOSING_PREVIEW_BYTES = 6_000  # an ended prompt reminds of what was asked; it need not show all of it again
CLOSING_TEXT_BYTES = 1_500
WORDS_BYTES = 30_000  # the agent's words in one message; longer ones no phone shows well
WORDS_LEAST_BYTES = 256  # words that a server refuses at this size will not pass in smaller pieces
WORDS_AROUND_BYTES = 400  # what stands round the words in their event


def compose_closing(request: Request, *, shared: bool = False, budget_bytes: int, shrink: int) -> tuple[Envelope, ...]:
    """The one edit of an ended prompt; none where the room never got its prompt."""
    if request.event_id is None:
        return ()
    items: tuple[PreviewItem, ...] = ()
    if request.style is PromptStyle.FULL:
        fitted = fit_items(
            prepare(request).items,
            allowance=CLOSING_PREVIEW_BYTES,
            cost=measure_marked_up,
            text_bytes=CLOSING_TEXT_BYTES,
        )
        items = (*fitted.items, *note_left_out(fitted.left_out))
    texts = render_closing(request, items, shared=shared), render_closing(request, (), shared=shared)
    edits = _write_edits(request.event_id, summarise_closing(request, shared=shared), texts, request.mentions)
    return _pick(edits, budget_bytes, shrink)


def compose_replaced(message: Replaced, *, budget_bytes: int, shrink: int) -> tuple[Envelope, ...]:
    """The one edit of a prompt whose request changed."""
    request = message.request
    blocks = render_replaced(message)
    edits = _write_edits(message.old_event_id, summarise_replaced(message), (blocks, blocks), request.mentions)
    return _pick(edits, budget_bytes, shrink)


def _write_edits(
    event_id: EventId, line: str, texts: tuple[tuple[Block, ...], tuple[Block, ...]], mentions: tuple[UserId, ...]
) -> Iterator[dict[str, JsonValue]]:
    """The edit of a prompt, and a shorter one. The new content is text alone: cards mean "decide now" (rule 12)."""
    for blocks, html in zip(texts, (True, False), strict=True):
        new = write_message("m.text", blocks, html=html)
        new["m.mentions"] = mention(mentions)
        yield {
            "msgtype": "m.text",
            "body": f"* {line}",  # one line: both texts stand in one event (matrix.md, section 4)
            "m.mentions": {},  # so that nobody is rung again
            "m.new_content": new,
            "m.relates_to": {"rel_type": "m.replace", "event_id": event_id},
        }


def compose_seed(seed: Seed) -> tuple[Envelope, ...]:
    """A keycap to tap; there are ten of them."""
    if not 1 <= seed.number <= len(KEYCAPS):
        return ()
    relation: dict[str, JsonValue] = {
        "rel_type": "m.annotation",
        "event_id": seed.event_id,
        "key": KEYCAPS[seed.number - 1],
    }
    return (Envelope(event_type="m.reaction", content={"m.relates_to": relation}),)


def compose_words(message: Words, *, shared: bool, budget_bytes: int, shrink: int) -> tuple[Envelope, ...]:
    """The agent's words of a turn, in as many messages as they need."""
    text = escape_words(mask(message.text)[0]).strip("\n")
    if not text.strip() or shrink >= len(SHRINKS):
        return ()
    start = f"{message.agent}: " if shared else ""
    part, whole = SHRINKS[shrink]
    limit = min(WORDS_BYTES, budget_bytes - WORDS_AROUND_BYTES) * part // whole
    if shrink:
        limit = min(limit, (count_json_bytes(text) >> shrink) + 1)
        if limit < WORDS_LEAST_BYTES:
            return ()
    pieces = (piece.strip("\n") for piece in split_text(text, limit))
    bodies = [start + _unquote(piece) for piece in pieces if piece.strip()]
    contents = [clean({"msgtype": "m.text", "body": body, "m.mentions": {}}) for body in bodies]
    return tuple(Envelope(event_type=MESSAGE, content=content) for content in contents)


def _unquote(text: str) -> str:
    """Clients take lines that begin with `> ` for the quote of a reply and hide them; a blank before it keeps them."""
    return "\n".join(f" {line}" if line.startswith(">") else line for line in text.split("\n"))


def compose_speech(message: Spoken, *, budget_bytes: int, shrink: int) -> tuple[Envelope, ...]:
    """A message that is sent once and never edited: a notice, or a text where somebody must act."""
    speech = render_speech(message)

    def write() -> Iterator[dict[str, JsonValue]]:
        msgtype = "m.text" if speech.mentions else "m.notice"  # a notice rings no phone
        around: dict[str, JsonValue] = {"m.mentions": mention(speech.mentions)}
        if speech.reply_to is not None:
            around["m.relates_to"] = {"m.in_reply_to": {"event_id": speech.reply_to}}
        yield write_message(msgtype, speech.blocks, html=True) | around
        yield (plain := write_message(msgtype, speech.blocks, html=False) | around)
        # many long options: the list is cut rather than the refusal lost (a third, for quotes take two bytes in JSON)
        yield plain | {"body": cut_to_bytes(write_body(speech.blocks), budget_bytes // 3).text}

    return _pick(write(), budget_bytes, shrink)


def _pick(contents: Iterator[dict[str, JsonValue]], budget: int, shrink: int) -> tuple[Envelope, ...]:
    """The first that fits, and for each `shrink` the next that is shorter still."""
    most = budget
    for content in map(clean, contents):
        size = len(encode_canonical(content))
        if size > most:
            continue
        if shrink == 0:
            return (Envelope(event_type=MESSAGE, content=content),)
        most, shrink = size - 1, shrink - 1
    return ()


def write_message(msgtype: str, blocks: tuple[Block, ...], *, html: bool) -> dict[str, JsonValue]:
    """Blocks as the content of an `m.room.message`."""
    content: dict[str, JsonValue] = {"msgtype": msgtype, "body": write_body(blocks)}
    if html:
        content |= {"format": "org.matrix.custom.html", "formatted_body": write_html(blocks)}
    return content


def mention(users: tuple[UserId, ...]) -> dict[str, JsonValue]:
    """`m.mentions`: always there, and only ever people whom the core chose (rule 7)."""
    return {"user_ids": list(users)} if users else {}


def clean(content: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Core has escaped what no event may hold; should it ever miss one, the prose still goes out."""
    return {key: _clean_value(value) for key, value in content.items()}


def _clean_value(value: JsonValue) -> JsonValue:
    match value:
        case str() if not is_clean(value):
            return value.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
        case dict():
            return clean(value)
        case list():
            return [_clean_value(item) for item in value]
        case _:
            return value
