"""Every message as the event that is sent: words, card and mentions put together so that they fit (permission-v2.md, 11).

Above it: rooms. Below it: card and render, which do not know each other; layout and size; the ports' `Envelope`. Pure:
it sends nothing and reads no clock. What leaves here holds no float, no NUL and no lone surrogate, mentions only people
the core chose, and carries a card only when our own validator takes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import structlog

from bridge.core.messages import Closing, Message, Poll, PollEnd, Prompt, Replaced, Seed, Words
from bridge.core.model import JsonObject, JsonValue, PromptStyle
from bridge.core.ports import Envelope
from bridge.matrix.card import OPTIONS_MAX, build_card, build_v1, find_unclean, measure_item, validate
from bridge.matrix.layout import measure_marked_up, measure_written
from bridge.matrix.notices import (
    MESSAGE,
    clean,
    compose_closing,
    compose_replaced,
    compose_seed,
    compose_speech,
    compose_words,
    mention,
    write_message,
)
from bridge.matrix.polls import compose_poll, compose_poll_end
from bridge.matrix.preview import Material, note, note_left_out, prepare, read_item
from bridge.matrix.render import render_prompt
from bridge.matrix.size import LINE_CHARACTERS, SHRINKS, Fitted, count_bytes, encode_canonical, fit_items

PLAIN_BUDGET_BYTES = 60_000  # section 11: an event may have 65,536 with all that the server adds
CARD_BYTES = 8_192  # section 11: SuperMessage drops a larger payload whole
CROWDED_CARD_BYTES = 2_048  # what a preview may take beside options that alone are over the limit above
TEXT_BYTES = 16 * 1024  # section 10: what the text shows of one item at most
NOTE_ROOM_BYTES = 400  # for the notes of what was left out, in card, body and HTML
SMALL_PROMPT_BYTES = 4_096  # a prompt this small gets shorter by what it can spare, not by half

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Cards(Enum):
    """Which cards ride along."""

    BOTH = "both"
    V1 = "v1"
    NONE = "none"


class Previews(Enum):
    """How much of the preview the text may lose."""

    CUT = "cut"
    DROP = "drop"  # items may be dropped whole
    NONE = "none"


@dataclass(frozen=True, slots=True)
class _Stage:
    cards: Cards
    html: bool
    previews: Previews


_BAREST = _Stage(Cards.NONE, False, Previews.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    content: dict[str, JsonValue]
    size: int
    digest: str | None
    whole: bool


def compose(  # noqa: PLR0911 - a case per message
    message: Message, *, shared: bool = False, budget_bytes: int = PLAIN_BUDGET_BYTES, shrink: int = 0
) -> tuple[Envelope, ...]:
    """Put a message into words that fit an event: shorter with each `shrink`, empty when nothing shorter is left.

    `shared` says that several agents speak in the room, so that a message must name its own.
    """
    match message:
        case Prompt(request=request):
            return _compose_prompt(prepare(request, shared=shared), budget_bytes, shrink)
        case Closing(request=request):
            return compose_closing(request, shared=shared, budget_bytes=budget_bytes, shrink=shrink)
        case Replaced():
            return compose_replaced(message, budget_bytes=budget_bytes, shrink=shrink)
        case Seed():
            return compose_seed(message) if shrink == 0 else ()
        case Poll():
            return compose_poll(message, budget_bytes=budget_bytes) if shrink == 0 else ()
        case PollEnd():
            return compose_poll_end(message) if shrink == 0 else ()
        case Words():
            return compose_words(message, shared=shared, budget_bytes=budget_bytes, shrink=shrink)
        case _:
            return compose_speech(message, budget_bytes=budget_bytes, shrink=shrink)


def _compose_prompt(material: Material, budget: int, shrink: int) -> tuple[Envelope, ...]:
    draft = _choose(material, budget)
    for step in range(1, shrink + 1):
        if draft is None:
            return ()
        if step < len(SHRINKS):
            part, whole = SHRINKS[step]
            limit = min(budget * part // whole, max(draft.size // 2, SMALL_PROMPT_BYTES), draft.size - 1)
            shorter = _choose(material, limit) or _draft(material, _BAREST, limit)
        else:
            shorter = _draft(material, _BAREST, 0)
        draft = shorter if shorter.size < draft.size else None
    if draft is None:
        return ()
    return (Envelope(event_type=MESSAGE, content=draft.content, digest=draft.digest, whole=draft.whole),)


def _choose(material: Material, limit: int) -> _Draft | None:
    """The richest draft within the limit, in the order of section 11."""
    return next((draft for draft in _draft_all(material, limit) if draft.size <= limit), None)


def _draft_all(material: Material, limit: int) -> Iterator[_Draft]:
    html = material.request.style is PromptStyle.FULL
    v1 = Cards.V1
    if len(material.request.options) <= OPTIONS_MAX:
        stages = [_Stage(Cards.BOTH, html, Previews.CUT), _Stage(Cards.BOTH, False, Previews.CUT)]
        for stage in (*stages, _Stage(Cards.BOTH, False, Previews.DROP)):
            draft = _draft(material, stage, limit)
            if faults := (*validate(draft.content), *find_unclean(draft.content)):
                fields = sorted({fault.field for fault in faults})
                log.error("prompt.card_refused", request_id=material.request.request_id, fields=fields)
                v1 = Cards.NONE  # rule 11: prose only
                break
            yield draft
    yield _draft(material, _Stage(v1, html, Previews.CUT), limit)
    for previews in (Previews.DROP, Previews.NONE):
        yield _draft(material, _Stage(v1, False, previews), limit)
        yield _draft(material, _Stage(Cards.NONE, False, previews), limit)


def _draft(material: Material, stage: _Stage, limit: int) -> _Draft:
    nothing = Fitted(items=(), missing=frozenset(range(len(material.items))))
    in_text = in_card = nothing
    if stage.previews is Previews.NONE:
        in_text = replace(nothing, left_out=sum(count_bytes(read_item(item)) for item in material.items))
    elif material.small:
        everything = Fitted(items=material.items)
        draft = _write_draft(material, stage, everything, everything)
        if draft.size > limit and stage.previews is Previews.CUT:
            return draft  # the HTML goes before anything small is cut
        if draft.size <= limit and (draft.size <= CARD_BYTES or _measure_card(draft.content) <= CARD_BYTES):
            return draft
    if stage.previews is not Previews.NONE:
        bare = _write_draft(material, stage, nothing, nothing)
        if bare.size > limit:
            return bare
        room = limit - bare.size - NOTE_ROOM_BYTES
        full = material.request.style is PromptStyle.FULL
        if stage.cards is Cards.BOTH:
            free = CARD_BYTES - _measure_card(bare.content) - NOTE_ROOM_BYTES
            free = free if free >= 0 else CROWDED_CARD_BYTES
            # what the text shows it shows twice, as body and as HTML
            free = min(free, room // 3 if full else room)
            in_card = fit_items(material.items, allowance=free, cost=measure_item, text_bytes=CARD_BYTES)
        if full:
            in_text = fit_items(
                material.items,
                allowance=room - in_card.cost,
                cost=measure_marked_up if stage.html else measure_written,
                text_bytes=TEXT_BYTES,
                may_drop=stage.previews is Previews.DROP,
            )
    return _write_draft(material, stage, in_card, in_text)


def _write_draft(material: Material, stage: _Stage, in_card: Fitted, in_text: Fitted) -> _Draft:
    request = material.request
    content, digest = _write_prompt(material, stage, in_card, in_text)
    missing = in_card.missing if stage.cards is Cards.BOTH else frozenset(range(len(material.items)))
    if request.style is PromptStyle.FULL:
        missing &= in_text.missing
    cut_option = any(option.label_cut or len(option.line) > LINE_CHARACTERS for option in request.options)
    return _Draft(
        content=content,
        size=len(encode_canonical(content)),
        digest=digest,
        whole=not missing and not cut_option,
    )


def _write_prompt(
    material: Material, stage: _Stage, in_card: Fitted, in_text: Fitted
) -> tuple[dict[str, JsonValue], str | None]:
    request = material.request
    items = (*in_text.items, *note_left_out(in_text.left_out))
    content = write_message("m.text", render_prompt(request, items, shared=material.shared), html=stage.html)
    content["m.mentions"] = mention(request.mentions)
    if stage.cards is Cards.NONE:
        return clean(content), None
    if stage.cards is Cards.V1:
        return clean(content | build_v1(request, title=material.title)), None
    label_cut = any(option.label_cut for option in request.options)
    notes = (
        *note_left_out(in_card.left_out + material.title_lost),
        *((note("the name of an option is cut"),) if label_cut else ()),
    )
    card, digest = build_card(
        request,
        (*material.tool, *in_card.items, *notes),
        title=material.title,
        complete=request.description.complete and not (in_card.missing or notes),
    )
    return content | card, digest


def _measure_card(content: JsonObject) -> int:
    outside = {"msgtype", "body", "format", "formatted_body", "m.mentions"}
    return len(encode_canonical({key: value for key, value in content.items() if key not in outside}))
