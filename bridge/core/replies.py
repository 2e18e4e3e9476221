"""What a person's text means: which option it names, which prompt, which agent, or which command (design.md, rule 15).

Above it: `matrix.inbox` takes quote and mention off, the broker and `core.turns` ask the rest, `core.options` asks which
forms of an option are its own. Below it: the model and `core.safetext`. It knows no room, sender or prompt, so it never
says whether an answer counts, only what it says. Nothing here matches a part, a prefix or a synonym.
"""

import re
import unicodedata
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

from bridge.core.model import Option
from bridge.core.safetext import escape_line, find_hidden, is_hidden

ANSWER_MAX_CHARS = 2_000
"""Longer texts are no answers and longer raw names are compared by their label alone: people see at most 300 characters
of a name, and normalising takes time in the square of a run of combining marks."""
SHORT_NAME_CHARS = 60  # SuperMessage answers a longer name with this many code points and an ellipsis (rule 15)
NUMBER_MAX_DIGITS = 9  # of a room number: a room does not see a billion prompts, and int() stays quick
NAME_SCAN_CHARS = 512  # a display name has at most 255 bytes; invisible characters may be strewn in
OPTIONS_REMEMBERED = 512  # agents offer the same few options again and again, and their forms take longest to find

CONFIRM = "confirm"  # rule 10

_KEYCAP_TEN = "\U0001f51f"
_KEYCAP = "\u20e3"  # the frame of a keycap emoji; what is left of it is its digit
_PLAIN = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u2039\u203a", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
)
_QUOTED = re.compile(r"""(["'`])(.+)\1""", re.DOTALL)
_LIST_MARK = re.compile(r"\((\d+)\)|(\d+)[.)]")  # digits of any script: which of them are numbers is decided later
_COPIED_LINE = re.compile(r"([0-9]+)\. (.+)", re.DOTALL)
_ROOM_NUMBER = re.compile(rf"#([1-9][0-9]{{0,{NUMBER_MAX_DIGITS - 1}}})(?:\s+(.*))?", re.DOTALL)
_LONE_NUMBER_MARKS = frozenset("+-.,()\u00b1\u060c\u066b\u066c\u00b7\u3001\u3002")  # signs, dots and commas, list marks
_LINK_BASE = "](https://matrix.to/#/"
_LINK_TARGET = re.compile(r"([^)\s?]+)(?:\?[^)\s]*)?\)")
_ISOLATES = "[\u200b-\u200f\u2066-\u2069]*"  # some clients set a name apart with these
_ENDS_A_WORD = re.compile(rf"[\s,]{_ISOLATES}\Z")
_AFTER_USER_ID = re.compile(rf"{_ISOLATES}(?:[:,]?\s+|[:,]?\Z|,)")  # `@bot:hs:8448` is somebody else
_NAME_ENDS = ":,\uff1a\uff0c"  # also as Chinese and Japanese keyboards type them
_BETWEEN = re.compile(rf"\s*[{_NAME_ENDS}]?\s*")  # a mention and what is said
_AFTER_NAME = re.compile(f"[{_NAME_ENDS}]")
_AFTER_AT_NAME = re.compile(rf"[{_NAME_ENDS}]?(?:\s|\Z)")
_COMMAND = re.compile(r"[!\uff01](?=[^\W_])(\S+)\s*(.*)", re.DOTALL)


class Fits(StrEnum):
    """Why a text is no answer: no option fits it, or more than one does."""

    NONE = "none"
    SEVERAL = "several"


class Choices:
    """All texts that name one of these options, worked out once; a text that names two of them names none."""

    __slots__ = ("_by_form", "_options")

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = tuple(options)
        by_form: dict[str, set[int]] = {}
        for number, option in enumerate(self._options, start=1):
            for form in _forms(number, option):
                by_form.setdefault(form, set()).add(number)
        self._by_form: Mapping[str, Collection[int]] = by_form

    def named_by(self, text: str) -> Option | Fits:
        """The one option that the whole text names (rule 15)."""
        numbers = {number for form in _forms_of_text(text) for number in self._by_form.get(form, ())}
        if not numbers:
            return Fits.NONE
        if len(numbers) > 1:
            return Fits.SEVERAL
        return self._options[numbers.pop() - 1]


def choose(text: str, options: Sequence[Option]) -> Option | Fits:
    """The one option that the whole text or reaction key names (rule 15).

    Quote, mention and room number are off already. The forms: number, name, label, prose line, id, the id that the card
    carries, a copied line of the list, the short form that SuperMessage sends.
    """
    return Choices(options).named_by(text)


def list_forms(options: Sequence[Option]) -> frozenset[str]:
    """Every comparing form that names one of these options or more, for looking a text up among many lists."""
    return frozenset(form for number, option in enumerate(options, start=1) for form in _forms(number, option))


def has_form(text: str, forms: Container[str]) -> bool:
    """Whether the whole text is one of these forms, and so names an option, or several, of some list."""
    return any(form in forms for form in _forms_of_text(text))


def confirms(text: str, option: Option) -> bool:
    """Whether this reply to a confirmation confirms it: the option's whole name, or `confirm` (rule 10).

    Never a number, even where it is the option's name, and never the id, unless it stands for a missing name.
    """
    if is_lone_number(text):
        return False
    said = normalise(text)
    names = {normalise(name) for name in (option.name, option.label, option.line)}
    return bool(said) and (said == CONFIRM or said in names)


def word_to_confirm(options: Sequence[Option]) -> str:
    """What confirms and can be meant for nothing else: `confirm`, doubled for as long as an option is called that."""
    word = CONFIRM
    while choose(word, options) is not Fits.NONE:
        word = f"{word} {CONFIRM}"
    return word


def is_confirmation(text: str, options: Sequence[Option]) -> bool:
    """Whether this says nothing but that a choice is confirmed (rule 10 under `strict`)."""
    return normalise(text) == word_to_confirm(options)


def normalise(text: str) -> str:
    """The form in which texts, names and ids are compared (rule 15).

    Empty when nothing is left to compare, and for what is longer than any answer.
    """
    return _bare(_folded(text))


def is_nothing(text: str) -> bool:
    """Whether nothing visible is left of this text: it gets no word of ours (rule 16)."""
    return not _visible(text)


def is_lone_number(text: str) -> bool:
    """Whether the text is nothing but a number, in digits of any script with signs, dots or commas (MX-19)."""
    # character by character, so that 5000 digits cost no more than they weigh
    plain = "".join(unicodedata.normalize("NFKC", character) for character in set(_visible(text))).translate(_PLAIN)
    digits = {character for character in plain if character.isdigit()}
    return bool(digits) and _LONE_NUMBER_MARKS.issuperset(set(plain) - digits)


def without_fallback(body: str) -> str:
    """The body without the quote that older clients put before a reply. Only for what has `m.in_reply_to` (MX-04)."""
    lines = body.split("\n")
    quoted = 0
    while quoted < len(lines) and (lines[quoted].startswith("> ") or lines[quoted].rstrip() == ">"):
        quoted += 1
    if quoted and quoted < len(lines) and not lines[quoted].strip():
        quoted += 1
    return "\n".join(lines[quoted:])


def without_mention(text: str, names: Collection[str]) -> tuple[str, bool]:
    """The text without one mention of the bot at its start or end, and whether there was one.

    `names` are the bot's full user id and its display name. A user id or Markdown link stands for itself; a bare display
    name counts at the start only with `:` or `,` after it or `@` before it, since an option's name may begin with it.
    """
    user_ids = {name for name in names if name.startswith("@") and ":" in name}
    display_names = {_folded(name).removeprefix("@") for name in names if name not in user_ids} - {""}
    inner = _trimmed(text)
    rest = _after_mention(inner, user_ids, display_names)
    if rest is None:
        rest = _before_mention(inner, user_ids, display_names)
        if rest is not None:
            rest = _trimmed(rest).removesuffix(",")
    return (text, False) if rest is None else (_trimmed(rest), True)


def split_number(text: str) -> tuple[int | None, str]:
    """The room number in front and what follows it: `#12 1` names prompt 12 and says `1` (rule 14).

    `#12` alone names a prompt and says nothing. Anything else, `#12x` or `#012 1` too, names none and is kept whole.
    """
    found = _ROOM_NUMBER.fullmatch(_trimmed(text))
    return (int(found[1]), found[2] or "") if found else (None, text)


def addressed(text: str, names: Collection[str]) -> tuple[str | None, str]:
    """The agent whose name begins the text, and the rest: `claude: do x` is for `claude` (rule 16).

    A colon or comma must follow the name, so `test the parser` is not for an agent called `test`. The longest name wins.
    """
    folded = {_folded(name): name for name in names}
    inner = _trimmed(text)
    ends = [end for end in _ends_of_names(inner) if _AFTER_NAME.match(inner, end) and _folded(inner[:end]) in folded]
    return (folded[_folded(inner[: ends[-1]])], inner[ends[-1] + 1 :].strip()) if ends else (None, text)


def command(text: str) -> tuple[str, str] | None:
    """The word to the bot and what follows it: `!cancel claude` (interface.md, In the room); None: no such word.

    `!5` is one too, an unknown one: it is likelier a slip of an answer than words for the agent. `!!`, `! x` are text.
    """
    found = _COMMAND.fullmatch(_trimmed(text))
    return (normalise(found[1]), found[2]) if found else None


@lru_cache(OPTIONS_REMEMBERED)
def _forms(number: int, option: Option) -> frozenset[str]:
    """Every comparing form that names this option, whatever else it names."""
    card_id = escape_line(option.card_id)
    names = {normalise(name) for name in (option.name, option.label, option.line)}
    ids = {normalise(word) for word in (option.option_id, option.card_id, card_id)}
    shortened = {
        normalise(name[:SHORT_NAME_CHARS] + "\u2026")
        for name in (option.name, option.label)
        if len(name) > SHORT_NAME_CHARS
    }
    # a list that was given again shows the ids of all options, also of those whose line needs none
    copied = {f"{number}. {line}" for line in names | {normalise(f"{option.label} [{card_id}]")} if line}
    return frozenset(({str(number)} | names | ids | shortened | copied) - {""})


def _forms_of_text(text: str) -> Iterator[str]:
    """The comparing forms of a text: as a whole, and as a line of the list."""
    folded = _folded(text)
    yield _bare(folded)
    if copied := _COPIED_LINE.fullmatch(folded):
        yield f"{copied[1]}. {_bare(copied[2])}"


def _bare(folded: str) -> str:
    """Without a list mark round a number, or without one pair of quotes and one full stop at the end."""
    if mark := _LIST_MARK.fullmatch(folded):
        return mark[1] or mark[2]
    inner = folded.removesuffix(".")
    if quoted := _QUOTED.fullmatch(inner):
        inner = quoted[2] if folded.endswith(".") else quoted[2].removesuffix(".") or quoted[2]
    return inner.strip() or folded


def _folded(text: str) -> str:
    """Visible characters only, NFKC, no case, plain quotes and dashes, single spaces; empty when it is too long."""
    text = _visible(text)
    if len(text) > ANSWER_MAX_CHARS:
        return ""
    if text.isascii():  # nearly every name, id and answer: NFKC leaves it as it is
        return " ".join(text.lower().split())
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text.translate(_PLAIN)).casefold())
    return " ".join(text.translate(_PLAIN).split())


def _visible(text: str) -> str:
    """Without invisible characters, the frames of keycaps, and white space at the ends."""
    if text.isascii() and text.isprintable():
        return text.strip()
    unseen = filter(_is_invisible, {*find_hidden(text), _KEYCAP})
    return text.translate(dict.fromkeys(map(ord, unseen))).replace(_KEYCAP_TEN, "10").strip()


def _trimmed(text: str) -> str:
    """Without invisible characters and white space at the ends; what stands between is kept as it was typed."""
    start = next((place for place, character in enumerate(text) if _is_seen(character)), len(text))
    end = next((place for place in range(len(text), start, -1) if _is_seen(text[place - 1])), start)
    return text[start:end]


def _is_seen(character: str) -> bool:
    return not (character.isspace() or _is_invisible(character))


def _is_invisible(character: str) -> bool:
    """Hidden, but neither white space, which parts words, nor a lone surrogate, which is half of something."""
    hidden = is_hidden(character) and not (character.isspace() or unicodedata.category(character) == "Cs")
    return hidden or character == _KEYCAP


def _after_mention(text: str, user_ids: Iterable[str], display_names: Collection[str]) -> str | None:
    """What follows a mention at the start, or None."""
    head, found, tail = text.partition(_LINK_BASE)
    if found and head.startswith("[") and _unescaped_bracket(head) == 0:
        target = _LINK_TARGET.match(tail)
        if target and unquote(target[1]) in user_ids:
            return _BETWEEN.sub("", tail[target.end() :], count=1)
    for user_id in user_ids:
        if text.startswith(user_id) and (after := _AFTER_USER_ID.match(text, len(user_id))):
            return text[after.end() :]
    # `@carol:hs 1` is for the user of that id, also where the bot is called Carol
    follows = _AFTER_AT_NAME if text.startswith("@") else _AFTER_NAME
    ends = [
        end
        for end in _ends_of_names(text)
        if follows.match(text, end) and _folded(text[:end]).removeprefix("@") in display_names
    ]
    return _BETWEEN.sub("", text[ends[-1] :], count=1) if ends else None


def _before_mention(text: str, user_ids: Iterable[str], display_names: Collection[str]) -> str | None:
    """What stands before a mention at the end, or None."""
    head, found, tail = text.rpartition(_LINK_BASE)
    if found and (target := _LINK_TARGET.fullmatch(tail)) and unquote(target[1]) in user_ids:
        start = _unescaped_bracket(head)
        return None if start is None else text[:start]
    for user_id in user_ids:
        before = text.removesuffix(user_id)
        if before != text and _ENDS_A_WORD.search(before):
            return before
    first = max(0, len(text) - NAME_SCAN_CHARS)
    for place in range(first, len(text)):  # the longest name first
        if text[place].isspace() and _folded(text[place:]).removeprefix("@") in display_names:
            return text[:place]
    return None


def _ends_of_names(text: str) -> list[int]:
    """Where a name at the start of the text may end: at a colon, a comma, white space, or the text's end."""
    limit = text[:NAME_SCAN_CHARS]
    ends = [place for place, character in enumerate(limit) if character in _NAME_ENDS or character.isspace()]
    return [*ends, len(text)] if len(text) <= NAME_SCAN_CHARS else ends


def _unescaped_bracket(text: str) -> int | None:
    """Where the last `[` stands that no backslash escapes."""
    place = text.rfind("[")
    while place > 0 and text[place - 1] == "\\":
        place = text.rfind("[", 0, place)
    return None if place < 0 else place
