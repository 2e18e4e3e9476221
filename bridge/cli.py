# ruff: noqa: PLC0415, T201 - it prints, and imports what shows a traceback only for one
"""The command line: which command, and how it ends (interface.md, Commands).

Above it: the shell. Below it: usage and the commands. Every error becomes one plain sentence and an exit code here; a traceback is shown for `--debug` alone.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import cast

from bridge.core.errors import BridgeError
from bridge.usage import make_parser

EXIT_INTERRUPTED = 130  # as shells say it: 128 and SIGINT


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code and never raises for what a person can bring about."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the locale cannot show is no reason to fail
    args = make_parser().parse_args(words)
    try:
        code: int = args.act(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not find the pipe broken once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BridgeError.exit_code
    except Exception as error:  # noqa: BLE001 - the one guard at the top
        return _report(error, debug=args.debug)
    return code


def _open_closed_streams() -> None:
    """A service may be started without standard streams: what is opened next must not get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end


def _report(error: BaseException, *, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    cause = _unwrap(error)
    if isinstance(cause, BridgeError):
        print(cause, file=sys.stderr)
        return cause.exit_code
    print(
        f"There was an error inside the bridge ({type(cause).__name__}); that is a fault of the bridge, not yours. "
        "Please report it, with what `--debug` shows when you run the command again.",
        file=sys.stderr,
    )
    return BridgeError.exit_code


def _unwrap(error: BaseException) -> BaseException:
    """The one error that a task group has wrapped."""
    group = cast("BaseExceptionGroup[BaseException] | None", error if hasattr(error, "exceptions") else None)
    return _unwrap(group.exceptions[0]) if group is not None and len(group.exceptions) == 1 else error
