"""The agent's list of options, made ready to be put to people (permission-v2.md, sections 6 and 7).

Above it: `acp.agent`, which puts the result into `Asked`. Below it: `core.replies`, which says what would name an option,
`core.safetext`, `core.masking`, the model. It never reads a meaning out of a name or an id, never puts options in another
order, and leaves none out but those that cannot be answered with.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bridge.core.masking import mask
from bridge.core.model import JsonValue, Meaning, Misfit, Option, Scope
from bridge.core.replies import Choices, is_nothing, normalise
from bridge.core.safetext import count_utf16, cut_line, escape_line

CARD_ID_MAX_UTF16 = 200  # permission-v2.md, section 2: `options[].id`
LABEL_MAX_UTF16 = 200  # section 2: `options[].label`; counted so that JavaScript and JSON Schema both agree
LINE_MAX_CHARS = 300  # section 11: what the prose shows of a name

LISTS_REMEMBERED = 64  # agents offer the same few lists over and over, and people wait while one is read
REMEMBERED_MAX_CHARS = 1_000  # of all ids, names and kinds of a list; longer ones are rare and not kept

_OF_KIND: Mapping[str, tuple[Meaning, Scope]] = {
    "allow_once": (Meaning.APPROVE, Scope.ONCE),
    "allow_always": (Meaning.APPROVE, Scope.ALWAYS),
    "reject_once": (Meaning.REJECT, Scope.ONCE),
    "reject_always": (Meaning.REJECT, Scope.ALWAYS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionList:
    """What a raw list came to: the options, or why they cannot be put to people (then there are none).

    `dropped` items had no usable id; `masked` secrets were taken out of names, so the preview is not complete (section 9).
    """

    options: tuple[Option, ...]
    misfit: Misfit | None
    dropped: int
    masked: int = 0


def read_options(raw: Sequence[JsonValue]) -> OptionList:
    """Make a raw list of options ready to be shown, or say why it cannot be put to people (rule 6)."""
    by_id: dict[str, dict[str, JsonValue]] = {}
    dropped = 0
    same_id = False
    for item in raw:
        match item:
            case {"optionId": str(option_id)}:
                same_id |= not _is_same(by_id.setdefault(option_id, item), item)
            case _:
                dropped += 1
    if not by_id:
        return OptionList(options=(), misfit=Misfit.NOTHING_TO_CHOOSE, dropped=dropped)
    if same_id:
        return OptionList(options=(), misfit=Misfit.SAME_ID, dropped=dropped)
    offers = tuple(_read_offer(option_id, item) for option_id, item in by_id.items())
    size = sum(len(offer.option_id) + len(offer.name) + len(offer.kind or "") for offer in offers)
    options, masked = (_remember_shown if size <= REMEMBERED_MAX_CHARS else _show)(offers)
    if not options:
        return OptionList(options=(), misfit=Misfit.NOT_TELLABLE, dropped=dropped)
    return OptionList(options=options, misfit=None, dropped=dropped, masked=masked)


@dataclass(frozen=True, slots=True)
class _Offer:
    """What counts of one raw option."""

    option_id: str
    name: str
    kind: str | None


def _read_offer(option_id: str, item: Mapping[str, JsonValue]) -> _Offer:
    name, kind = item.get("name"), item.get("kind")
    return _Offer(option_id, name if isinstance(name, str) else "", kind if isinstance(kind, str) else None)


def _show(offers: tuple[_Offer, ...]) -> tuple[tuple[Option, ...], int]:
    """The options as they are shown, and how many secrets were masked in them; none where people could not tell them apart."""
    options, masked = _shown(offers)
    return (options, masked) if _are_tellable(options) else ((), masked)


_remember_shown = lru_cache(maxsize=LISTS_REMEMBERED)(_show)


def _shown(offers: Sequence[_Offer]) -> tuple[tuple[Option, ...], int]:
    """The options with label, line and card id, and how many secrets were masked in them."""
    options: list[Option] = []
    taken = {offer.option_id for offer in offers}
    masked = 0
    for number, offer in enumerate(offers, start=1):
        option_id, name, kind = offer.option_id, offer.name, offer.kind
        card_id = _card_id(option_id, number, taken)
        taken.add(card_id)
        safe_name, secrets = mask(name)
        masked += secrets
        shown = escape_line(card_id if is_nothing(safe_name) else safe_name)
        label = _cut_label(shown)
        meaning, scope = _OF_KIND.get(kind or "", (Meaning.CHOOSE, None))
        options.append(
            Option(
                option_id=option_id,
                name=name,
                kind=kind,
                label=label,
                line=cut_line(shown, LINE_MAX_CHARS).text,
                card_id=card_id,
                meaning=meaning,
                scope=scope,
                label_cut=label != shown,
            )
        )
    doubtful = _doubtful(options)
    return tuple(
        replace(option, line=f"{option.line} [{escape_line(option.card_id)}]") if option in doubtful else option
        for option in options
    ), masked


def _card_id(option_id: str, number: int, taken: Collection[str]) -> str:
    """The id that the card may carry: the agent's own, or an alias where that does not fit or holds a secret."""
    broken = any(character == "\0" or "\ud800" <= character <= "\udfff" for character in option_id)
    if option_id and not broken and count_utf16(option_id) <= CARD_ID_MAX_UTF16 and not mask(option_id)[1]:
        return option_id
    alias = f"opt:{number}"
    while alias in taken:
        alias += "_"
    return alias


def _cut_label(shown: str) -> str:
    """At most 200 UTF-16 units, cut at a character; so at most 200 code points too."""
    if count_utf16(shown) <= LABEL_MAX_UTF16:
        return shown
    kept = shown[: LABEL_MAX_UTF16 - 1]
    while count_utf16(kept) > LABEL_MAX_UTF16 - 1:
        kept = kept[:-1]
    return kept + "\u2026"


def _doubtful(options: Sequence[Option]) -> set[Option]:
    """The options whose number or name another option also answers to: their line shows the id (section 7)."""
    by_word: dict[str, set[int]] = {}
    for number, option in enumerate(options, start=1):
        for word in _shown_words(number, option):
            by_word.setdefault(word, set()).add(number)
    by_id: dict[str, set[int]] = {}
    for number, option in enumerate(options, start=1):
        by_id.setdefault(normalise(option.option_id), set()).add(number)
    return {
        option
        for number, option in enumerate(options, start=1)
        if by_id.get(str(number), set()) - {number}
        or any(by_word[word] != {number} for word in _shown_words(number, option))
    }


def _shown_words(number: int, option: Option) -> set[str]:
    return {str(number), normalise(option.name), normalise(option.label)} - {""}


def _are_tellable(options: Sequence[Option]) -> bool:
    """Whether each option has a number, a shown name or a shown id that names it alone."""
    choices = Choices(options)
    return all(
        any(choices.named_by(word) is option for word in (str(number), option.label, escape_line(option.card_id)))
        for number, option in enumerate(options, start=1)
    )


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two JSON values are equal, `1` and `true` being different; without recursion, they may be deep."""
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pairs.extend((left[key], right[key]) for key in left)
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs.extend(zip(left, right, strict=True))
        elif type(left) is not type(right) or (left is not right and left != right):
            return False
    return True
