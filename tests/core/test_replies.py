# ruff: noqa: RUF001 (characters that look like others are what is tested)
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.core.model import JsonValue, Option
from bridge.core.options import read_options
from bridge.core.replies import (
    Fits,
    addressed,
    choose,
    command,
    confirms,
    is_lone_number,
    is_nothing,
    normalise,
    split_number,
    without_fallback,
    without_mention,
)

TESTS = Path(__file__).parents[1]
BOT = ("@bot:hs", "Permit Bot")
ROOM_NUMBER = 12
ALLOW, ALWAYS, REJECT, NEVER = 1, 2, 3, 4


def offer(*named: tuple[str, str]) -> tuple[Option, ...]:
    raw: list[JsonValue] = [{"optionId": option_id, "name": name, "kind": "allow_once"} for option_id, name in named]
    return read_options(raw).options


REQ = offer(
    ("allow_once", "Allow once"),
    ("allow_always", "Always allow"),
    ("reject_once", "Reject"),
    ("reject_always", "Never allow"),
)


def number_of(text: str, options: Sequence[Option] = REQ) -> int | Fits:
    chosen = choose(text, options)
    return chosen if isinstance(chosen, Fits) else options.index(chosen) + 1


def as_reply(text: str, options: Sequence[Option] = REQ) -> int | Fits:
    """What a reply to prompt 12 comes to, all of rule 15 applied."""
    number, said = split_number(without_mention(text, BOT)[0])
    return number_of(said, options) if number in (None, ROOM_NUMBER) else Fits.NONE


def as_bare_text(text: str, options: Sequence[Option]) -> tuple[str | None, str]:
    """The option id and what the room is told, with prompt 12 the only one that waits (rule 16)."""
    number, said = split_number(text)
    chosen = choose(said, options) if number in (None, ROOM_NUMBER) else Fits.NONE
    if isinstance(chosen, Option):
        return chosen.option_id, "answered"
    if is_nothing(text):
        return None, "nothing"
    tried = number is not None or is_lone_number(said) or chosen is Fits.SEVERAL
    return None, "refused" if tried else "queued"


# ------------------------------------------------------------------------------------------------ the grammar's tables


NAMES_THE_FIRST = (
    "1| 1 |1\n|\u00a01|\ufeff1|\u200b1|1.|1)|(1)|#12 1|１|1\ufe0f\u20e3|1\u20e3|@bot:hs 1|@bot:hs: 1|Permit Bot: 1|1 @bot:hs|"
    "Allow once|ALLOW ONCE|allow  once|Allow once.|\"Allow once\"|“Allow once”|‘Allow once’|'Allow once'|`Allow once`|"
    "“Allow once.”|“Allow once”.|„Allow once“|allow_once|Allow\u200b once|1. Allow once|1. “Allow once”.|#12 Allow once|"
    '1. Allow once [allow_once]|¹|①|⒈|𝟏|\u200e1|1\u200b|１．|"1"'
)


@pytest.mark.parametrize("text", NAMES_THE_FIRST.split("|"))
def test_a_whole_number_name_or_id_names_its_option(text: str) -> None:
    assert as_reply(text) == ALLOW


@pytest.mark.parametrize("text", ["4", "Never allow", "REJECT_ALWAYS", "4. Never allow", "4. never  ALLOW."])
def test_so_does_it_for_the_last_option(text: str) -> None:
    assert as_reply(text) == NEVER


NAMES_NONE = (
    "0|00|5|007|01|-1|+1|1.0|1,2|1 2|٢|१|🔟|1\u202e2|1..|(1|1:|3: not in this folder|@carol:hs 1|yes|y|ok|sure|go ahead|"
    "do it|allow|allow on|one|first|1 please|option 1|* 1|/1|#1|#12|#13 1|Allow once!|Allow once…|👍|✅|❌|| |\u200b|1. Reject|"
    '2. Allow once|01. Allow once|1. Allow once [reject_once]|1 Allow once|**1**|once|Allow once [allow_once]|""|.'
)


@pytest.mark.parametrize("text", NAMES_NONE.split("|"))
def test_everything_else_names_none(text: str) -> None:
    assert as_reply(text) is Fits.NONE


def test_a_monstrous_number_neither_raises_nor_names_anything() -> None:
    assert number_of("9" * 5000) is Fits.NONE
    assert is_lone_number("9" * 5000)
    assert split_number("#" + "9" * 5000 + " 1") == (None, "#" + "9" * 5000 + " 1")
    assert split_number("#12 " + "9" * 5000) == (12, "9" * 5000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("café", "cafe\u0301"),
        ("straße", "STRASSE"),
        ("Yes, and don't ask again", "Yes, and don’t ask again"),
        ("Allow – once", "allow - once"),
        ("Say “yes”", 'say "yes"'),
        ('"Quoted"', "quoted"),
        ('"Quoted"', '1. "\\"Quoted\\""'),
        ("Do it.", "do it"),
        ("Two\nlines", "two lines"),
        ("Two\nlines", '"Two\\nlines"'),
        (".", "."),
        ("«Oui»", "oui"),
    ],
)
def test_both_sides_are_compared_in_one_form(name: str, text: str) -> None:
    assert number_of(text, offer(("a", name), ("b", "Other"))) == 1


def test_a_name_that_begins_like_another_is_only_itself() -> None:
    options = offer(("a", "Yes"), ("b", "Yes, and don't ask again"))
    assert [number_of(text, options) for text in ("yes", "Yes, and don’t ask again", "Yes, and")] == [1, 2, Fits.NONE]


def test_the_short_form_of_a_long_name_counts_where_one_option_has_it() -> None:
    long = "Allow this and everything like it for the rest of the session in this folder, please"
    alone = offer(("a", long), ("b", "Reject"))
    shared = offer(("a", long), ("b", long + " and elsewhere"))
    assert number_of(long[:60] + "…", alone) == 1
    assert number_of(long[:59] + "…", alone) is Fits.NONE
    assert number_of(long[:60], alone) is Fits.NONE
    assert number_of(long[:60] + "…", shared) is Fits.SEVERAL


def test_a_text_that_fits_two_options_is_no_answer() -> None:
    assert number_of("same", offer(("a", "Same"), ("b", "same "))) is Fits.SEVERAL
    assert number_of("2", offer(("x", "2"), ("y", "1"))) is Fits.SEVERAL
    assert number_of("reject", offer(("reject", "Allow"), ("allow", "Reject"))) is Fits.SEVERAL
    assert number_of("1. Allow", offer(("a", "Allow"), ("b", "1. Allow"))) is Fits.SEVERAL


def test_a_reaction_reads_like_a_text() -> None:
    many = offer(*((f"o{n}", f"Choice {n}") for n in range(1, 13)))
    assert [number_of(key, many) for key in ("🔟", "9\ufe0f\u20e3", "1\ufe0f\u20e32\ufe0f\u20e3", "0\ufe0f\u20e3")] == [
        10,
        9,
        12,
        Fits.NONE,
    ]
    assert {number_of(key, many) for key in ("👍", "👍🏽", "✅", "👀")} == {Fits.NONE}


def test_a_text_longer_than_any_answer_is_none_at_once() -> None:
    marks = "a" + "\u0301" * 30_000 + "\u0327" * 30_000  # NFKC alone takes seconds for this
    assert (normalise(marks), number_of(marks), is_lone_number(marks)) == ("", Fits.NONE, False)
    assert number_of("1", offer(("a", marks), ("b", "B"))) == 1


# -------------------------------------------------------------------------------------------------------- the case files


def cases() -> list[Any]:
    rows: list[Any] = []
    for name in ("parse-number", "parse-name"):
        for case in json.loads((TESTS / "cases" / f"{name}.json").read_text("ascii"))["cases"]:
            given_options = case["input"]["steps"][0].get("options")
            rows += [
                pytest.param(row, given_options, id=f"{case['id']}-{place}")
                for place, row in enumerate(case["expected"]["rows"], start=1)
            ]
    return rows


@pytest.mark.parametrize(("row", "given_options"), cases())
def test_a_row_of_the_case_files_holds(row: dict[str, Any], given_options: list[JsonValue] | None) -> None:
    standard = offer(("opt-allow", "Allow once"), ("opt-always", "Always allow"), ("opt-reject", "Reject"))
    options = read_options(given_options).options if given_options else standard
    text = row["text"].replace("{{number_of_P1}}", str(ROOM_NUMBER))
    option_id, told = as_bare_text(text, options)
    assert option_id in row.get("answer_one_of", [row.get("answer")])
    if row.get("said"):
        assert row["said"] == told


def recordings() -> list[Any]:
    expected = json.loads((TESTS / "events" / "expected.json").read_text("utf-8"))
    return [
        pytest.param(json.loads((TESTS / "events" / f"{name}.json").read_text("utf-8")), room, want["option"], id=name)
        for name, want in expected["events"].items()
        if want["aim"] != "other" and not name.endswith("_vote")
        for room in [expected["rooms"][want["room"]]]
    ]


@pytest.mark.parametrize(("event", "room", "place"), recordings())
def test_a_recorded_answer_of_a_real_client_names_its_option(
    event: dict[str, Any], room: dict[str, Any], place: int | None
) -> None:
    relation = event["content"].get("m.relates_to", {})
    body = event["content"].get("body", relation.get("key"))
    text, _ = without_mention(
        without_fallback(body) if "m.in_reply_to" in relation else body, (room["bot"], room["bot_name"])
    )
    options = offer(*zip(room["option_ids"], room["options"], strict=True))
    assert number_of(text, options) == (Fits.NONE if place is None else place + 1)


# ----------------------------------------------------------------------------------------- confirming, and what is tried


@pytest.mark.parametrize("text", ["Allow once", "“allow ONCE.”", "confirm", "Confirm.", "`CONFIRM`"])
def test_the_whole_name_or_the_word_confirms(text: str) -> None:
    assert confirms(text, REQ[0])


@pytest.mark.parametrize("text", ["1", "1.", "allow_once", "1. Allow once", "yes", "Reject", "confirmed", "", "👍"])
def test_nothing_else_confirms(text: str) -> None:
    assert not confirms(text, REQ[0])


def test_a_number_never_confirms_even_where_it_is_the_name() -> None:
    (option,) = offer(("a", "1"))
    assert [confirms(text, option) for text in ("1", "(1)", "confirm")] == [False, False, True]


def test_an_option_without_a_name_is_confirmed_by_what_is_shown_instead() -> None:
    (option,) = offer(("go-ahead", ""))
    assert [confirms(text, option) for text in ("go-ahead", "")] == [True, False]


LONE_NUMBERS = "0|5|007|-1|+1|−1|1.0|1,2|٢|१|٫٥|（５）|(5)|5)|1\u202e2|🔟|❶| 99 |1\ufe0f\u20e3"


@pytest.mark.parametrize("text", LONE_NUMBERS.split("|"))
def test_digits_of_any_script_are_a_lone_number(text: str) -> None:
    assert is_lone_number(text)


NO_LONE_NUMBERS = "|+|-|.|1 2|1a|3:|#1|1/2|½|Ⅳ|一|five|5%"


@pytest.mark.parametrize("text", NO_LONE_NUMBERS.split("|"))
def test_other_text_is_no_lone_number(text: str) -> None:
    assert not is_lone_number(text)


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\u200b", "\ufeff\u00a0\u2800\u3164", "\ufe0f\u20e3", "\U000e0100\u180b\0"]
)
def test_invisible_text_is_nothing(text: str) -> None:
    assert is_nothing(text)


@pytest.mark.parametrize("text", ["1", ".", "\ud800", "👍", "\u0301"])
def test_visible_text_is_something(text: str) -> None:
    assert not is_nothing(text)


# --------------------------------------------------------------------- what stands round an answer: quote, mention, number


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("> <@bot:hs> Permission needed\n> 1. Allow once\n\n3", "3"),
        ("> a\n>\n> \n> b\n\n3\n\n4", "3\n\n4"),
        ("> a\r\n\r\n3", "3"),
        ("> a\n3", "3"),
        ("> a", ""),
        ("3\n> a", "3\n> a"),
        ("\n3", "\n3"),
        (">3", ">3"),
    ],
)
def test_the_quote_of_a_reply_is_taken_off(body: str, expected: str) -> None:
    assert expected == without_fallback(body)


LINK = "[@bot:hs](https://matrix.to/#/@bot:hs)"
CODED = r"[a \[b\] Bot](https://matrix.to/#/%40bot%3Ahs?via=hs&via=x)"


@pytest.mark.parametrize(
    "text",
    [
        *("@bot:hs 1", "@bot:hs: 1", "@bot:hs, 1", "@bot:hs,1", "@bot:hs\n1", "\u2068@bot:hs\u2069 1", "1 @bot:hs", "1, @bot:hs"),
        *("Permit Bot: 1", "permit  bot:1", "Permit Bot, 1", "Permit Bot：1", "@Permit Bot 1", "@Permit Bot: 1"),
        *("1 Permit Bot", "1, \u2068Permit Bot\u2069", "1, permit bot", "1 @Permit Bot", "1,@bot:hs", "1 \u2068@bot:hs\u2069"),
        *(f"{LINK} 1", f"{LINK}: 1", f"{LINK}, 1", f"{CODED} 1", f"1 {LINK}", f"1 {CODED}", f"1, {LINK}"),
    ],
)  # fmt: skip
def test_a_mention_of_the_bot_is_taken_off_at_either_end(text: str) -> None:
    assert without_mention(text, BOT)[1]
    assert normalise(without_mention(text, BOT)[0]) == "1"


@pytest.mark.parametrize("text", ["@bot:hs", "@bot:hs:", "Permit Bot:", "@Permit Bot", LINK, f" {CODED}: "])
def test_a_mention_alone_leaves_nothing(text: str) -> None:
    assert without_mention(text, BOT) == ("", True)


@pytest.mark.parametrize(
    "text",
    [
        *("1", "", "@carol:hs 1", "@bot:hs2 1", "@bot:hs:8448 1", "@BOT:hs 1", "Permit Bot 1", "Permit Bot", "a @bot:hs 1"),
        *("@permit:hs 1", "x@bot:hs", "1 2 permitbot", "a Permit Bot: 1", "@Permit Bot:hs 1"),
        *("[@bot:hs](https://matrix.to/#/@carol:hs) 1", "1 [@bot:hs](https://matrix.to/#/@carol:hs)"),
        *("x](https://matrix.to/#/@bot:hs)", f"see {LINK} there", "](https://matrix.to/#/@bot:hs) 1"),
        *(r"\[x](https://matrix.to/#/@bot:hs) 1", "[a [b](https://matrix.to/#/@bot:hs) 1"),
        "x " * 600,
    ],
)  # fmt: skip
def test_what_is_no_mention_of_the_bot_stays_as_it_was(text: str) -> None:
    assert without_mention(text, BOT) == (text, False)


def test_a_display_name_may_be_missing_or_look_like_anything() -> None:
    assert without_mention(" : 1", ("@bot:hs", "", "\u200b")) == (" : 1", False)
    assert without_mention("Bridge 2: 1", ("@bot:hs", "Bridge 2")) == ("1", True)
    assert without_mention("@Bridge 1", ("@bot:hs", "@Bridge")) == ("1", True)
    assert without_mention("Allow once", ("@bot:hs", "Allow")) == ("Allow once", False)
    assert without_mention("@carol:hs 1", ("@bot:hs", "Carol")) == ("@carol:hs 1", False)


def test_what_stands_beside_a_mention_is_kept_as_it_was_typed() -> None:
    assert without_mention("@bot:hs Fix  the 👩\u200d💻 “Build”", BOT) == ("Fix  the 👩\u200d💻 “Build”", True)


@pytest.mark.parametrize("unit", ["[", "\\[", "](https://matrix.to/#/", "@bot:hs", " ", ":", "> ", "#1", "("])
def test_long_hostile_text_takes_no_time(unit: str) -> None:
    text = unit * 20_000
    without_mention(text, BOT)
    addressed(text, ["claude"])
    command("!" + text)
    split_number(text)
    without_fallback(text)
    assert number_of(text) is Fits.NONE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#12 1", (12, "1")),
        ("#12", (12, "")),
        (" #12 ", (12, "")),
        ("\ufeff#12\u00a01", (12, "1")),
        ("#1 2", (1, "2")),
        ("#12\nAllow once\nnow", (12, "Allow once\nnow")),
        ("#121", (121, "")),
        ("#999999999 1", (999_999_999, "1")),
        *((text, (None, text)) for text in ("#12x", "#12.", "#12: 1", "# 12", "#0 1", "#012 1", "#1234567890 1", "#١ 1", "1 #12", "#", "")),
    ],
)  # fmt: skip
def test_a_room_number_in_front_is_split_off(text: str, expected: tuple[int | None, str]) -> None:
    assert expected == split_number(text)


# ------------------------------------------------------------------------------------------- words to an agent, to the bot


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("claude: do x", ("claude", "do x")),
        ("CLAUDE:do x", ("claude", "do x")),
        (" Claude , do  x ", ("claude", "do  x")),
        ("claude：做", ("claude", "做")),
        ("claude:", ("claude", "")),
        ("claude-2: do x", ("Claude-2", "do x")),
        ("claude: two: x", ("claude: two", "x")),
        *((text, (None, text)) for text in ("claude do x", "claude", "claudes: x", "ask claude: x", "@claude:hs x", "", ": x", "x: claude: y")),
    ],
)  # fmt: skip
def test_text_is_for_the_agent_whose_name_begins_it(text: str, expected: tuple[str | None, str]) -> None:
    assert expected == addressed(text, ["claude", "Claude-2", "claude: two", "x y"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("!cancel", ("cancel", "")),
        (" !CANCEL  Claude ", ("cancel", "Claude")),
        ("！cancel", ("cancel", "")),
        ("!cancel.", ("cancel", "")),
        ("\u200b!help\nme", ("help", "me")),
        ("!cancelled", ("cancelled", "")),
        ("!5", ("5", "")),
        ("!important: x", ("important:", "x")),
        *((text, None) for text in ("!!", "! x", "!", "!?", "cancel", "x !cancel", "", "!_x")),
    ],
)
def test_a_word_to_the_bot_begins_with_an_exclamation_mark(text: str, expected: tuple[str, str] | None) -> None:
    assert expected == command(text)
