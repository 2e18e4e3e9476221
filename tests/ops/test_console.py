import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator

import anyio
import pytest

from bridge.core.errors import ConfigError
from bridge.ops.console import Console


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The person's end of a terminal whose other end is our standard input."""
    theirs, ours = os.openpty()
    with os.fdopen(ours, closefd=True) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield theirs
    os.close(theirs)


def echoes(descriptor: int) -> bool:
    return bool(termios.tcgetattr(descriptor)[3] & termios.ECHO)


def test_what_is_typed_is_stripped_and_what_is_said_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def type_text(_question: str) -> str:
        return " text "

    monkeypatch.setattr("builtins.input", type_text)
    Console().say("hello")
    assert (Console().ask("?"), capsys.readouterr().out) == ("text", "hello\n")


def test_without_a_terminal_the_error_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_question: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    monkeypatch.setattr("getpass.getpass", end)
    for ask in (Console().ask, Console().ask_secret):
        with pytest.raises(ConfigError, match="--token-file"):
            ask("?")


@pytest.mark.parametrize("asks", [Console.ask, Console.ask_secret])
def test_ctrl_c_ends_a_question_at_once(monkeypatch: pytest.MonkeyPatch, asks: Callable[[Console, str], str]) -> None:
    def type_too_late(_question: str) -> str:
        signal.raise_signal(signal.SIGINT)
        return "typed after Ctrl-C"

    taken: list[str] = []

    async def ask() -> None:
        taken.append(asks(Console(), "?"))

    monkeypatch.setattr("builtins.input", type_too_late)
    monkeypatch.setattr("getpass.getpass", type_too_late)
    with pytest.raises(KeyboardInterrupt):
        anyio.run(ask)
    assert taken == []


async def test_a_line_is_waited_for_and_not_shown(terminal: int) -> None:
    found: list[str] = []

    async def wait() -> None:
        found.append(await Console().wait_for_line())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            os.write(terminal, b" http://127.0.0.1:1/x?loginToken=t \n")
    assert found == ["http://127.0.0.1:1/x?loginToken=t"]
    os.set_blocking(terminal, False)
    with pytest.raises(BlockingIOError):
        os.read(terminal, 100)
    assert echoes(sys.stdin.fileno())


@pytest.mark.usefixtures("terminal")
async def test_a_wait_that_is_cancelled_leaves_the_terminal_as_it_was() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Console().wait_for_line)
        await anyio.wait_all_tasks_blocked()
        assert not echoes(sys.stdin.fileno())
        tasks.cancel_scope.cancel()
    assert echoes(sys.stdin.fileno())


@pytest.mark.parametrize("name", ["/dev/null", "closed", "pipe"])
async def test_where_nobody_can_type_it_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    stdin = os.fdopen(reader) if name == "pipe" else open("/dev/null")  # noqa: ASYNC230, PTH123, SIM115
    monkeypatch.setattr(sys, "stdin", stdin)
    if name == "closed":
        stdin.close()
    with anyio.fail_after(5), pytest.raises(ConfigError, match="nobody to ask"):
        await Console().wait_for_line()
    stdin.close()
    if name != "pipe":
        os.close(reader)
