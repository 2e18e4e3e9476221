"""The terminal that a command was started in.

Above it: app. Below it: the standard streams. It knows no question and no answer.
"""

import getpass
import os
import signal
import sys
import termios
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio

from bridge.core.errors import ConfigError

NOBODY = "There is nobody to ask: give --homeserver and --user, and --token-file or matrix.password_file."
PIECE_BYTES = 4096  # the longest line that a terminal gives


class Console:
    """Asks and tells the person at the terminal; implements `ops.login.Terminal`."""

    @property
    def present(self) -> bool:
        """Whether somebody can be asked."""
        return sys.stdin.isatty()

    def ask(self, question: str) -> str:
        """A line of text. Raises `ConfigError` without a terminal."""
        return _read(lambda: input(question))

    def ask_secret(self, question: str) -> str:
        """A line that is not shown. Raises `ConfigError` without a terminal."""
        with warnings.catch_warnings():
            # without a terminal it reads the line that was piped in, which nobody sees either
            warnings.simplefilter("ignore", getpass.GetPassWarning)
            return _read(lambda: getpass.getpass(question))

    async def wait_for_line(self) -> str:
        """A line that is not shown, whenever it comes; may be cancelled. Raises `ConfigError` without a terminal.

        No thread reads: one that waits in `input` would keep the command from ending.
        """
        raw = b""
        try:
            descriptor = sys.stdin.fileno()
            with _unshown(descriptor):
                while not raw.endswith(b"\n"):
                    await anyio.wait_readable(descriptor)
                    piece = os.read(descriptor, PIECE_BYTES)
                    if not piece:
                        raise ConfigError(NOBODY)
                    raw += piece
        except (OSError, ValueError) as error:  # no descriptor, or one that cannot be waited for, such as /dev/null
            raise ConfigError(NOBODY) from error
        return raw.decode(errors="replace").strip()

    def say(self, line: str) -> None:
        """A line for the person, at once."""
        print(line, flush=True)  # noqa: T201 - the terminal is what this class is


def _read(ask: Callable[[], str]) -> str:
    try:
        with _interruptible():
            return ask().strip()
    except EOFError as error:
        raise ConfigError(NOBODY) from error


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C end the question: asyncio's own handler cancels only what waits in its loop, and would be heard at Enter."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _unshown(descriptor: int) -> Generator[None]:
    """Switch the terminal's echo off; what is no terminal has none."""
    if not os.isatty(descriptor):
        yield
        return
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~termios.ECHO  # the local modes, in the order that tcgetattr gives
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
