"""The log: one event a line on stderr, JSON or for a terminal, with every known secret replaced by `***`.

Above it: app and the command line, which set it up; everybody logs through structlog. Below it: structlog, the
standard library's logging, whose warnings take the same way out, and safetext. It knows no event and no text of agents
or people.
"""

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO, cast
from urllib.parse import quote

import structlog

from bridge.core.safetext import find_hidden

MASK = "***"
_QUIET = ("nio", "peewee")  # their warnings quote events, and so the words of people
_hidden: list[str] = []  # every form of every secret, the longest first


def hide(secret: str) -> None:
    """From now on this value is shown as `***`, also in the forms it takes in an address, in JSON or in Python."""
    _hidden.extend(_forms(secret) - set(_hidden))
    _hidden.sort(key=len, reverse=True)


def forget(secret: str) -> None:
    """Hide this value no longer: a token that is dead. A list of all that ever were would slow every line down."""
    gone = _forms(secret)
    _hidden[:] = [form for form in _hidden if form not in gone]


def _forms(secret: str) -> set[str]:
    inside_quotes = (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret))
    return {secret, quote(secret, safe=""), *(form[1:-1] for form in inside_quotes)} - {""}


def set_up(
    *, debug: bool = False, quiet: bool = False, stream: TextIO | None = None, terminal: bool | None = None
) -> None:
    """Send every log event to `stream` (stderr): for people where it is a terminal, else as JSON lines.

    `quiet`: warnings and errors only, for a command whose own lines say what happens.
    """
    out: TextIO = stream or sys.stderr
    terminal = out.isatty() if terminal is None else terminal
    prepare: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,  # a plain traceback: the pretty ones show the values of variables
    ]
    render: list[structlog.typing.Processor] = [structlog.processors.JSONRenderer()]
    if terminal:
        plain = structlog.dev.plain_traceback
        render = [escape, structlog.dev.ConsoleRenderer(colors=True, exception_formatter=plain)]
    finish = [redact, *render]  # redacted last before the text is made, so that nothing is added after it
    structlog.configure(
        processors=[*prepare, *finish],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO
        ),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,  # module loggers made before this call follow it
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*prepare, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(() if debug else (_leave_out_words,)),
                *finish,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace every hidden value in every field; what is no plain value becomes its text first."""
    return cast("MutableMapping[str, Any]", _clean(event))


def escape(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Show what would steer a terminal, such as in an id that a homeserver made up; only a traceback has lines."""
    for key, value in event.items():
        if isinstance(value, str):
            for character in find_hidden(value) - ({"\n"} if key == "exception" else set()):
                value = value.replace(character, ascii(character)[1:-1])  # noqa: PLW2901 - one character after another
            event[key] = value
    return event


def _clean(value: object) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            for secret in _hidden:
                value = value.replace(secret, MASK)
            return value
        case Mapping():
            fields = cast("Mapping[object, object]", value)
            return {_clean(str(key)): _clean(field) for key, field in fields.items()}
        case list() | tuple() | set() | frozenset():
            return [_clean(item) for item in cast("list[object]", value)]
        case _:
            return _clean(repr(value))


def _leave_out_words(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Of a library that quotes what people write only the place is kept, unless `--debug` was asked for."""
    if str(event.get("logger")).partition(".")[0] in _QUIET:
        kept = {key: event[key] for key in ("level", "timestamp", "logger") if key in event}
        return {"event": "library.warning", **kept}
    return event
