"""The terminal's side of `verify`: what is shown, and which words decide."""

import os
import pty
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TextIO

import anyio
import pytest

from bridge.core.model import UserId
from bridge.matrix.crypto.steps import Code
from bridge.matrix.verification import NOT_KEPT, NOT_SENT
from bridge.ops import verify
from bridge.ops.verify import Terminal, ask_whether_same, list_pins, show_failure, show_pin, show_pinned

AMY = UserId("@amy:hs")
BOB = UserId("@bob:hs")
EMOJI = [("🐶", "Dog"), ("🐱", "Cat")]
NUMBERS = (1000, 2000, 3000)


@dataclass
class Script(Terminal):
    """Somebody who types these lines, and then is gone."""

    types: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])

    def say(self, line: str) -> None:
        self.lines.append(line)

    async def ask(self, question: str) -> str | None:
        self.lines.append(question)
        return self.types.pop(0) if self.types else None


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["yes"], True),
        (["Y"], True),
        (["no"], False),
        (["n"], False),
        (["", "what?", "yes, I think", "1", "no"], False),
        ([""], None),
        ([], None),
    ],
)
async def test_only_a_plain_yes_or_no_decides(types: list[str], expected: bool | None) -> None:
    assert expected is await ask_whether_same(Script(types=types), AMY, "PHONE", EMOJI, NUMBERS)


async def test_emoji_come_with_their_names_and_the_numbers_below() -> None:
    script = Script(types=["yes"])
    await ask_whether_same(script, AMY, "PHONE", EMOJI, NUMBERS)
    shown = "\n".join(script.lines)
    assert "🐶  Dog\n    🐱  Cat\n    or the numbers  1000  2000  3000" in shown


async def test_without_emoji_the_numbers_stand_alone() -> None:
    script = Script(types=["yes"])
    await ask_whether_same(script, AMY, "PHONE", [], NUMBERS)
    assert "    1000  2000  3000" in script.lines


async def test_a_device_id_cannot_steer_the_terminal() -> None:
    script = Script(types=["yes"])
    await ask_whether_same(script, AMY, "PHONE\n\x1b[2J", EMOJI, NUMBERS)
    assert "\x1b" not in "".join(script.lines)
    assert "\x1b" not in show_failure(AMY, "\x1b[2J", by_us=False)
    assert "\x1b" not in show_pinned(AMY, "\x1b[2J")


@pytest.mark.parametrize("code", [*Code, NOT_KEPT, NOT_SENT])
def test_every_way_to_fail_has_its_words(code: str) -> None:
    assert code in verify._WHY  # pyright: ignore[reportPrivateUsage] - every code has its sentence
    assert "Nothing was pinned" in show_failure(AMY, code, by_us=True)


def test_who_is_pinned_and_who_is_not_is_listed() -> None:
    lines = list_pins({AMY, BOB}, [(UserId("@zoe:hs"), "abcdefgh"), (AMY, "ABCDEFGHI")])
    assert [
        {"user_id": "@amy:hs", "approver": True, "master_key": "ABCDEFGHI"},
        {"user_id": "@bob:hs", "approver": True, "master_key": None},
        {"user_id": "@zoe:hs", "approver": False, "master_key": "abcdefgh"},
    ] == lines
    assert [
        "@amy:hs  pinned      ABCD EFGH I",
        "@bob:hs  not pinned",
        "@zoe:hs  pinned      abcd efgh  (no approver any more)",
    ] == [show_pin(line) for line in lines]


# ------------------------------------------------------------------------------------------------ a real terminal


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """Where a person types; the program's standard input is a terminal."""
    typing, descriptor = pty.openpty()
    with open(descriptor, encoding="utf-8", closefd=True) as stdin:  # noqa: PTH123 - a descriptor has no path
        monkeypatch.setattr(sys, "stdin", stdin)
        yield typing
    os.close(typing)


async def test_a_yes_from_before_the_question_is_none(keyboard: int, capsys: pytest.CaptureFixture[str]) -> None:
    os.write(keyboard, b"yes\n")
    said: list[str | None] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                said.append(await Terminal().ask("Same? "))

            tasks.start_soon(ask)
            while "Same? " not in capsys.readouterr().out:
                await anyio.lowlevel.checkpoint()
            os.write(keyboard, b"no\n")
    assert ["no"] == said


async def test_a_question_can_be_withdrawn(keyboard: int) -> None:
    del keyboard
    with anyio.move_on_after(0) as scope:
        await Terminal().ask("Same? ")
    assert scope.cancelled_caught


@pytest.mark.usefixtures("capsys")
async def test_lines_of_a_pipe_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    with open(reading, encoding="utf-8") as stdin:  # noqa: PTH123, ASYNC230
        monkeypatch.setattr(sys, "stdin", stdin)
        assert ["one", "two", None] == [await Terminal().ask("?") for _ in range(3)]


@pytest.mark.usefixtures("capsys")
async def test_where_nobody_can_type_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="utf-8") as nothing:  # noqa: PTH123, ASYNC230
        monkeypatch.setattr(sys, "stdin", nothing)
        assert await Terminal().ask("?") is None
    closed: TextIO = nothing
    monkeypatch.setattr(sys, "stdin", closed)
    assert await Terminal().ask("?") is None
