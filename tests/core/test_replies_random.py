# ruff: noqa: RUF001 (characters that look like others are what is tested)
"""Random texts against an oracle that reads rule 15 in another way: slowly, and from the option's side."""

import os
import random
import string
import unicodedata
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import JsonValue, Option
from bridge.core.options import read_options
from bridge.core.replies import Choices, Fits, choose, is_lone_number, is_nothing, split_number, without_mention
from bridge.core.safetext import escape_line

TEXTS = int(os.environ.get("FUZZ_TEXTS", "100000"))  # a soak sets more
SEED = int(os.environ.get("FUZZ_SEED", "20261107"))
LONG = "Allow this and everything like it for the rest of the session in this folder, please"
LISTS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("allow_once", "Allow once"), ("allow_always", "Always allow"), ("reject_once", "Reject"), ("no", "Never allow")),
    (("a", "Yes"), ("b", "Yes, and don't ask again"), ("c", "No."), ("d", '"Quoted"'), ("5", "1. Yes"), ("f", "2")),
    (("x", "Same"), ("y", "same "), ("z", LONG), ("w", LONG + " and elsewhere"), ("reject", "Allow"), ("v", "Reject")),
    tuple((f"o{n}", f"Choice {n}") for n in range(1, 12)),
    (
        ("", "Straße\n2. Reject"),
        ("n" * 201, "café – (1)"),
        ("1", ""),
        ("12", "\u200b"),
        ("e", "‘Wait.’"),
        ("g", "x" * 250),
    ),
)
HIDDEN = "\u200b\u200d\ufeff\u202e\u00ad\ufe0f\u20e3\u2066\0"
PIECES = [
    *("1", "2", "5", "6", "11", "12", "0", "01", "9" * 30, "١", "२", "①", "²", "１", "⒈", "🔟", "1\ufe0f\u20e3", "❷"),
    *(".", ")", "(", '"', "'", "“", "”", "‘", "’", "„", "`", "…", "!", ",", ":", "#", "-", "–", "+", " ", "  ", "\u00a0"),
    *("\n", ". ", "yes", "no", "please", "allow", "ok", "not", "👍", "[", "]", "\ud800", "\u0301", "ß", "İ", "ﬁ", *HIDDEN),
]  # fmt: skip


def offer(named: Sequence[tuple[str, str]]) -> tuple[Option, ...]:
    raw: list[JsonValue] = [{"optionId": option_id, "name": name, "kind": "allow_once"} for option_id, name in named]
    options = read_options(raw).options
    assert len(options) == len(named)
    return options


def plain(text: str) -> str:
    """The text as it is compared, but for list marks, quotes and the full stop."""
    kept = ""
    for character in text.replace("🔟", "10"):
        code = ord(character)
        hidden = unicodedata.category(character) in ("Cc", "Cf") and not character.isspace()
        nothing = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code < 0xFDF0 or 0xFFF0 <= code < 0xFFF9 or code == 0x2065
        selector = 0xFE00 <= code < 0xFE10 or 0xE0000 <= code < 0xE1000 or 0x180B <= code < 0x1810
        if not (hidden or nothing or selector or character in "\u034f\u115f\u1160\u17b4\u17b5\u20e3\u2800\u3164\uffa0"):
            kept += character
    kept = unicodedata.normalize("NFKC", kept.replace("″", '"'))
    kept = unicodedata.normalize("NFKC", kept.casefold())
    for odd, even in zip("‘’‚‛′ʼ‹›“”„‟«»‐‑‒–—―−", "''''''''" + '""""""' + "-------", strict=True):
        kept = kept.replace(odd, even)
    return " ".join(kept.split())


def readings(said: str) -> set[str]:
    """Every way to read a plain text as one word in tolerated clothes; the barest is the one that counts."""
    for before, after in (("(", ")"), ("", ")"), ("", ".")):
        inner = said[len(before) : -1]
        if said.startswith(before) and said.endswith(after) and inner and all(map(str.isdecimal, inner)):
            return {inner}
    dressed = {said}
    for quote in ("", '"', "'", "`"):
        for left, right in ((quote, quote), (quote, quote + "."), (quote, "." + quote)):
            inner = said[len(left) : len(said) - len(right)]
            if said == left + inner + right and inner.strip():
                dressed.add(inner.strip())
    return {min(dressed, key=len)}


class Oracle:
    """All that may name one of these options, spelled out."""

    def __init__(self, options: Sequence[Option]) -> None:
        self.words: list[set[str]] = []
        self.lines: list[set[str]] = []
        for number, option in enumerate(options, start=1):
            names = [option.name, option.label, option.line]
            ids = [option.option_id, option.card_id, escape_line(option.card_id)]
            short = [name[:60] + "..." for name in names[:2] if len(name) > 60]
            self.words.append(
                {word for text in [*names, *ids, *short] for word in readings(plain(text))} | {str(number)}
            )
            listed = [*names, f"{option.label} [{escape_line(option.card_id)}]"]
            self.lines.append({word for text in listed for word in readings(plain(text))})
            self.words[-1].discard("")
            self.lines[-1].discard("")

    def named_by(self, text: str) -> int | Fits:
        said = plain(text)
        number, _, rest = said.partition(". ")
        forms = readings(said)
        if number.isdecimal() and number.isascii():
            forms |= {f"{number}. {word}" for word in readings(rest)}
        fits = {
            place
            for place, (words, lines) in enumerate(zip(self.words, self.lines, strict=True))
            if forms & (words | {f"{place + 1}. {line}" for line in lines})
        }
        if len(fits) == 1:
            return fits.pop()
        return Fits.SEVERAL if fits else Fits.NONE


def random_texts(random_: random.Random, options: Sequence[Option]) -> Iterator[str]:
    """Texts near an answer: forms of an option with something added, taken away or written in another way."""
    forms = [text for option in options for text in (option.name, option.label, option.line, option.option_id)]
    forms += [f"{n}. {option.line}" for n, option in enumerate(options, start=1)] + [LONG[:60] + "…"]
    while True:
        text = "".join(random_.choices(PIECES, k=random_.randrange(4)))
        if random_.random() < 0.7:
            form = random_.choice(forms)
            text = random_.choice(["", text]) + form + random_.choice(["", "", text, ".", '"'])
            text = random_.choice(['"' + text, text, text])
        for _ in range(random_.choice([0, 0, 1, 2])):
            place = random_.randrange(len(text) + 1)
            change = random_.randrange(5)
            if change == 0:
                text = text[:place] + random_.choice(PIECES) + text[place:]
            elif change == 1:
                text = text[:place] + text[place + 1 :]
            elif change == 2:
                text = text[:place] + random_.choice(HIDDEN) + text[place:]
            elif change == 3:
                text = text.swapcase()
            else:  # the same in full-width forms
                text = "".join(chr(ord(c) + 0xFEE0) if c in string.ascii_letters + string.digits else c for c in text)
        yield text


@pytest.mark.parametrize("named", LISTS, ids=range(len(LISTS)))
def test_a_random_text_names_an_option_only_by_one_of_its_forms(named: tuple[tuple[str, str], ...]) -> None:
    options = offer(named)
    choices = Choices(options)
    oracle = Oracle(options)
    random_ = random.Random(SEED)  # noqa: S311 (nothing here is secret, and a failure must come again)
    texts = random_texts(random_, options)
    counts = dict.fromkeys(["named", *Fits], 0)
    for _ in range(TEXTS // len(LISTS)):
        text = next(texts)
        chosen = choices.named_by(text)
        expected = oracle.named_by(text)
        actual = chosen if isinstance(chosen, Fits) else options.index(chosen)
        assert expected == actual, f"{text!a} with FUZZ_SEED={SEED}"
        counts[actual if isinstance(actual, Fits) else "named"] += 1
    assert min(counts["named"], counts[Fits.NONE]) > TEXTS // len(LISTS) // 20, counts


near = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=5).map("".join)
lists = st.lists(st.tuples(near, near), max_size=5, unique_by=lambda named: named[0])


@given(lists, near, st.integers(0, 4), st.sampled_from(["", ".", "?", '"']))
def test_a_random_text_and_random_options_agree_with_the_oracle(
    named: list[tuple[str, str]], text: str, place: int, end: str
) -> None:
    raw: list[JsonValue] = [{"optionId": option_id, "name": name} for option_id, name in named]
    options = read_options(raw).options
    oracle = Oracle(options)
    for said in (text, *(option.line + end for option in options[place : place + 1])):
        chosen = choose(said, options)
        assert oracle.named_by(said) == (chosen if isinstance(chosen, Fits) else options.index(chosen))


@given(st.text())
def test_no_text_breaks_any_reading(text: str) -> None:
    number, rest = split_number(without_mention(text, ("@bot:hs", "Bot"))[0])
    assert number is None or number > 0
    assert not (is_nothing(rest) and is_lone_number(rest))
    assert not (is_nothing(text) and choose(text, offer(LISTS[0])) is not Fits.NONE)
