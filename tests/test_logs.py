import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from bridge import logs

HIDDEN = 'syt_s3"cret/ü'


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root, library = logging.getLogger(), logging.getLogger("nio")
    handlers, level, hushed = root.handlers, root.level, library.level
    library.setLevel(logging.NOTSET)  # the demo's person hushes it for the whole of a process, which a test may share
    monkeypatch.setattr(logs, "_hidden", [])
    yield
    logging.captureWarnings(capture=False)
    root.handlers, root.level = handlers, level
    library.setLevel(hushed)
    structlog.reset_defaults()


def _set_up(*, debug: bool = False, terminal: bool = False) -> io.StringIO:
    stream = io.StringIO()
    logs.set_up(debug=debug, stream=stream, terminal=terminal)
    logs.hide(HIDDEN)
    return stream


def _fail(sentence: str, _local: str = "") -> None:
    raise ValueError(sentence)


def _read(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    return json.loads(line)


def test_an_event_is_one_json_line_with_its_level_and_the_time_in_utc() -> None:
    stream = _set_up()
    structlog.get_logger().info("permission.answered", request_id="acps_1:2")
    event = _read(stream)
    assert (event["event"], event["level"], event["request_id"]) == ("permission.answered", "info", "acps_1:2")
    assert event["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    "value",
    [
        HIDDEN,
        f"Bearer {HIDDEN}",
        {"deep": [{"header": HIDDEN}]},
        {HIDDEN: 1},
        (HIDDEN,),
        ValueError(HIDDEN),
        "https://hs/sync?access_token=syt_s3%22cret%2F%C3%BC",
        json.dumps({"token": HIDDEN}),
        json.dumps({"token": HIDDEN}, ensure_ascii=False),
        repr({"token": HIDDEN}),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_hidden_value_shows_in_no_field_in_any_form(value: object, terminal: bool) -> None:
    stream = _set_up(terminal=terminal)
    structlog.get_logger().info("x", field=value)
    assert "cret" not in stream.getvalue()
    assert logs.MASK in stream.getvalue()


def test_a_hidden_value_shows_in_no_traceback() -> None:
    stream = _set_up()
    try:
        _fail(HIDDEN)
    except ValueError:
        structlog.get_logger().exception("x")
    assert "ValueError: ***" in _read(stream)["exception"]
    assert "cret" not in stream.getvalue()


def test_a_traceback_shows_no_values_of_variables() -> None:
    stream = _set_up(terminal=True)
    try:
        _fail("told", "value of " + "a variable")
    except ValueError:
        structlog.get_logger().exception("x")
    assert "told" in stream.getvalue()
    assert "value of a variable" not in stream.getvalue()


def test_a_secret_that_holds_another_is_hidden_whole() -> None:
    stream = _set_up()
    logs.hide("abc")
    logs.hide("abcdef")
    structlog.get_logger().info("x", field="abcdef abc")
    assert _read(stream)["field"] == "*** ***"


def test_a_secret_that_is_none_any_more_is_shown_and_others_are_not() -> None:
    logs.hide("old/token")
    logs.hide("new/token")
    logs.forget("old/token")
    assert logs.redact(None, "", {"event": "old/token new/token new%2Ftoken"})["event"] == "old/token *** ***"


def test_an_empty_secret_hides_nothing() -> None:
    stream = _set_up()
    logs.hide("")
    structlog.get_logger().info("x", field="plain")
    assert _read(stream)["field"] == "plain"


def test_debug_events_are_for_debug_alone() -> None:
    quiet = _set_up()
    structlog.get_logger().debug("x")
    loud = _set_up(debug=True)
    structlog.get_logger().debug("y")
    assert (quiet.getvalue(), _read(loud)["event"]) == ("", "y")


def test_a_quiet_log_holds_warnings_alone_unless_it_is_for_debug() -> None:
    stream = io.StringIO()
    logs.set_up(quiet=True, stream=stream)
    structlog.get_logger().info("x")
    structlog.get_logger().warning("y")
    assert _read(stream)["event"] == "y"
    stream = io.StringIO()
    logs.set_up(debug=True, quiet=True, stream=stream)
    structlog.get_logger().debug("z")
    assert _read(stream)["event"] == "z"


def test_a_librarys_warning_takes_the_same_way_out() -> None:
    stream = _set_up()
    logging.getLogger("aiohttp.client").info("not this")
    logging.getLogger("aiohttp.client").warning("bad header %s", HIDDEN)
    event = _read(stream)
    assert (event["event"], event["logger"], event["level"]) == ("bad header ***", "aiohttp.client", "warning")


def test_of_a_library_that_quotes_events_only_the_place_is_logged() -> None:
    stream = _set_up()
    logging.getLogger("nio.responses").warning("Error validating response: the words of a person")
    event = _read(stream)
    assert (event["event"], event["logger"]) == ("library.warning", "nio.responses")
    assert "person" not in stream.getvalue()


def test_with_debug_such_a_librarys_words_are_shown() -> None:
    stream = _set_up(debug=True)
    logging.getLogger("nio.responses").warning("Error validating response")
    assert _read(stream)["event"] == "Error validating response"


def test_a_warning_of_python_is_logged() -> None:
    stream = _set_up()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        logging.getLogger("py.warnings").warning("old")
    assert _read(stream)["logger"] == "py.warnings"


def test_a_logger_made_before_the_set_up_follows_it() -> None:
    log = structlog.get_logger()
    stream = _set_up()
    log.info("x")
    assert _read(stream)["event"] == "x"


def test_the_log_goes_to_stderr_as_json_where_that_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up()
    structlog.get_logger().info("x")
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["event"]) == ("", "x")


def test_nothing_that_is_logged_steers_the_terminal() -> None:
    stream = _set_up(terminal=True)
    room = "!r\x1b[2J\x9b31m\n\u202e"
    try:
        _fail(room)
    except ValueError:
        structlog.get_logger().exception("matrix.invite_ignored", room=room, rooms=[room])
    shown = stream.getvalue()
    assert shown.count("!r\\x1b[2J\\x9b31m") == 3
    assert not any(steering in shown for steering in ("\x1b[2J", "\x9b", "\u202e"))
    assert "\nTraceback (most recent call last):\n" in shown
