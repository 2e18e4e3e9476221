"""JSON-RPC framing and ids (acp.md, sections 1, 2 and 14)."""

import itertools
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.acp.jsonrpc import (
    ACTIVE_CALLS_LIMIT_COUNT,
    DEPTH_LIMIT_LEVELS,
    LINE_LIMIT_BYTES,
    Call,
    Failure,
    Ignored,
    Notice,
    NumberText,
    Peer,
    Refused,
    Reply,
)
from bridge.core.model import JsonValue

PARSE = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n'
INVALID = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid request"}}\n'


def call(peer: Peer, line: bytes) -> Call:
    (message,) = peer.feed(line + b"\n")
    assert isinstance(message, Call)
    return message


def refused(peer: Peer, line: bytes) -> Refused:
    (message,) = peer.feed(line + b"\n")
    assert isinstance(message, Refused)
    return message


def params_of(text: str) -> JsonValue:
    return call(Peer(), b'{"id":1,"method":"m","params":{"v":' + text.encode() + b"}}").params["v"]


# ------------------------------------------------------------------------------------------------------------- framing

CONVERSATION = (
    b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"first","params":{"a":"\xc3\xa9\xe2\x80\xa8"}}\r\n'
    b"\r\n  \n\n"
    b"[1,2]\n"
    b"not json\n"
    b"\xff\xfe\n"
    b'{"id":"\\ud83d\\ude00","method":"second"}\n' + (b"0123456789" * 10) + b'\n{"id":1,"result":{}}\n'
    b'{"id":7.0,"method":"last"}'
)


def everything(pieces: list[bytes]) -> list[str]:
    peer = Peer(line_limit=90)
    peer.request("initialize", {})
    found = [repr(message) for piece in pieces for message in peer.feed(piece)]
    return found + [repr(message) for message in peer.end()]


@given(st.sets(st.integers(0, len(CONVERSATION))))
def test_the_pieces_in_which_bytes_come_change_nothing(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(CONVERSATION)]
    pieces = [CONVERSATION[start:end] for start, end in itertools.pairwise(edges)]
    assert everything([CONVERSATION]) == everything(pieces)


def test_every_single_split_point_gives_the_same_messages() -> None:
    whole = everything([CONVERSATION])
    for cut in range(len(CONVERSATION)):
        assert whole == everything([CONVERSATION[:cut], CONVERSATION[cut:]])


def test_byte_by_byte_gives_the_same_messages() -> None:
    assert everything([CONVERSATION]) == everything([bytes([byte]) for byte in CONVERSATION])


def test_the_conversation_above_holds_what_it_should() -> None:
    kinds = [text.partition("(")[0] for text in everything([CONVERSATION])]
    assert kinds == ["Notice", "Refused", "Refused", "Refused", "Call", "Refused", "Reply", "Call"]


def test_a_line_of_exactly_the_limit_is_read() -> None:
    line = b'{"method":"m"}'
    assert [Notice("m", {}, len(line))] == Peer(line_limit=len(line)).feed(line + b"\n")


def test_a_line_over_the_limit_is_refused_once_and_the_next_one_is_read() -> None:
    peer = Peer(line_limit=20)
    found = peer.feed(b"x" * 21) + peer.feed(b"x" * 100) + peer.feed(b'xxx\n{"method":"m"}\n')
    assert [Refused(PARSE, -32700, "the line is too long", 0), Notice("m", {}, 14)] == found


def test_a_line_over_the_limit_at_the_end_of_the_stream_is_refused_once() -> None:
    peer = Peer(line_limit=20)
    found = peer.feed(b"x" * 30)
    assert ([Refused(PARSE, -32700, "the line is too long", 0)], []) == (found, peer.end())


def test_the_limit_of_a_line_is_32_mib() -> None:
    peer = Peer()
    padding = b'{"method":"m","params":{"p":"'
    fits = padding + b"x" * (LINE_LIMIT_BYTES - len(padding) - 3) + b'"}}'
    (message,) = peer.feed(fits + b"\n")
    assert isinstance(message, Notice)
    assert refused(peer, fits + b" ").answer == PARSE


def test_a_five_megabyte_request_is_a_request() -> None:
    assert params_of(f'"{"x" * 5_000_000}"') == "x" * 5_000_000


# ----------------------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    "text",
    [
        "7",
        '"7"',
        "null",
        "0",
        "-5",
        "1.5",
        "1.0",
        "-0.0",
        "9007199254740993",
        "9223372036854775813",
        "1" * 60,
        "0.1000000000000000055511151231257827",
        "1e-400",
        '"abc"',
        '"\\u00e9\\u2028"',
        '"a\\udfff"',
        '""',
    ],
)
def test_an_id_goes_back_with_its_value_and_its_type(text: str) -> None:
    peer = Peer()
    asked = call(peer, f'{{"id":{text},"method":"m"}}'.encode())
    assert f'{{"jsonrpc":"2.0","id":{text},"result":null}}\n'.encode() == peer.answer(asked, None)


@pytest.mark.parametrize("text", ["true", "false", "{}", '{"a":1}', "[]", "[1]", "1e400", "-1e400", "NaN", "Infinity"])
def test_what_can_be_no_id_is_refused_without_an_id(text: str) -> None:
    assert refused(Peer(), f'{{"id":{text},"method":"m"}}'.encode()).answer == INVALID


def test_ids_of_different_types_wait_side_by_side() -> None:
    peer = Peer()
    asked = [call(peer, f'{{"id":{text},"method":"m"}}'.encode()) for text in ("1", '"1"', "1.0", "null", '"null"')]
    assert asked == [peer.find(call_id) for call_id in (1, "1", 1.0, None, "null")]


@pytest.mark.parametrize("call_id", ["7", 7.0, True, [7], {"a": 7}, None, 8, NumberText("7e0"), NumberText("NaN")])
def test_a_waiting_request_is_found_by_its_own_id_alone(call_id: JsonValue) -> None:
    peer = Peer()
    call(peer, b'{"id":7,"method":"m"}')
    assert None is peer.find(call_id)


def test_an_id_that_still_waits_is_refused_without_an_id_and_the_first_still_waits() -> None:
    peer = Peer()
    first = call(peer, b'{"id":7,"method":"m"}')
    assert refused(peer, b'{"id":7,"method":"other"}').answer == INVALID
    assert first is peer.find(7)


def test_an_id_is_free_again_after_its_answer() -> None:
    peer = Peer()
    peer.answer(call(peer, b'{"id":7,"method":"m"}'), None)
    assert call(peer, b'{"id":7,"method":"again"}').method == "again"


@pytest.mark.parametrize("second", ["answer", "fail"])
def test_a_request_is_answered_once(second: str) -> None:
    peer = Peer()
    asked = call(peer, b'{"id":7,"method":"m"}')
    peer.answer(asked, None)
    call(peer, b'{"id":7,"method":"again"}')
    assert None is (peer.answer(asked, None) if second == "answer" else peer.fail(asked, -32603))


def test_one_agent_may_not_have_any_number_of_requests_waiting() -> None:
    peer = Peer()
    for number in range(ACTIVE_CALLS_LIMIT_COUNT):
        call(peer, b'{"id":%d,"method":"m"}' % number)
    answer = refused(peer, b'{"id":"late","method":"m"}').answer
    assert answer == b'{"jsonrpc":"2.0","id":"late","error":{"code":-32603,"message":"Internal error"}}\n'


# ------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    "line",
    [
        b"Loaded cached credentials.",
        b"\x1b[32mready\x1b[0m",
        b'{"id":1,"method":"m"',
        b"\xff\xfe log line",
        b'{"id":1,"method":"\x92"}',
        b'{"id":1,"method":"m","params":{"v":' + b"[" * 3_000 + b"]" * 3_000 + b"}}",
        b"[" * 200_000,
    ],
)
def test_what_is_not_json_is_a_parse_error_and_the_next_line_is_read(line: bytes) -> None:
    peer = Peer()
    assert refused(peer, line).answer == PARSE
    assert call(peer, b'{"id":1,"method":"next"}').method == "next"


@pytest.mark.parametrize(
    "line",
    [
        b"42",
        b"null",
        b"true",
        b'"ready"',
        b"1.0",
        b"[]",
        b'[{"jsonrpc":"2.0","id":1,"method":"x"},{"jsonrpc":"2.0","id":2,"method":"x"}]',
        b"{}",
        b'{"level":"info"}',
        b'{"method":7}',
        b'{"id":1,"method":null}',
    ],
)
def test_json_that_is_no_message_is_one_invalid_request_and_the_next_line_is_read(line: bytes) -> None:
    peer = Peer()
    assert refused(peer, line).answer == INVALID
    assert call(peer, b'{"id":1,"method":"next"}').method == "next"


@pytest.mark.parametrize("params", [b"[]", b"null", b"1", b'"x"', b"true"])
def test_params_that_are_no_object_are_invalid_and_the_id_is_free(params: bytes) -> None:
    peer = Peer()
    answer = refused(peer, b'{"id":"a","method":"m","params":' + params + b"}").answer
    assert answer == b'{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"Invalid params"}}\n'
    assert call(peer, b'{"id":"a","method":"m"}').method == "m"


def test_params_that_are_no_object_in_a_notification_are_ignored() -> None:
    assert [Ignored("the params of a notification are no object")] == Peer().feed(b'{"method":"m","params":[]}\n')


def test_a_missing_version_and_missing_params_are_tolerated() -> None:
    assert [Notice("m", {}, 14)] == Peer().feed(b'{"method":"m"}\n')


@pytest.mark.parametrize("levels", [DEPTH_LIMIT_LEVELS - 2, DEPTH_LIMIT_LEVELS - 1])
def test_depth_is_refused_only_beyond_the_limit(levels: int) -> None:
    """The message and its params are two levels themselves."""
    line = b'{"method":"m","params":{"v":' + b"[" * levels + b"]" * levels + b"}}\n"
    (message,) = Peer().feed(line)
    assert (levels == DEPTH_LIMIT_LEVELS - 2) is isinstance(message, Notice)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert params_of(json.dumps([[], {}] * 1_000)) == [[], {}] * 1_000


# ------------------------------------------------------------------------------------------------------------- replies


def test_a_reply_belongs_to_our_request_of_that_id() -> None:
    peer = Peer()
    own, line = peer.request("initialize", {"a": "\u00e9"})
    assert line == b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"a":"\\u00e9"}}\n'
    assert [Reply(own, {"x": 1})] == peer.feed(b'{"id":1,"result":{"x":1}}\n')


def test_ids_of_the_two_sides_mean_nothing_to_each_other() -> None:
    peer = Peer()
    peer.request("session/prompt", {})
    asked = call(peer, b'{"id":1,"method":"m"}')
    assert [Reply(1, None)] == peer.feed(b'{"id":1,"result":null}\n')
    assert asked is peer.find(1)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (b'{"code":-32000,"message":"Log in"}', Failure(-32000, "Log in")),
        (b'{"code":"x","message":7}', Failure(-32603, "")),
        (b"7", Failure(-32603, "")),
    ],
)
def test_an_error_is_read_whatever_its_shape(error: bytes, failure: Failure) -> None:
    peer = Peer()
    own, _ = peer.request("session/new", {})
    assert [Reply(own, None, failure)] == peer.feed(b'{"id":1,"error":' + error + b"}\n")


def test_a_reply_without_a_result_is_a_reply() -> None:
    """JavaScript leaves out a member that is `undefined`."""
    peer = Peer()
    own, _ = peer.request("session/set_mode", {})
    assert [Reply(own, None)] == peer.feed(b'{"id":1}\n')


@pytest.mark.parametrize("call_id", [b"2", b'"1"', b"1.0", b"true", b"null", b"[1]", b'{"a":1}'])
def test_a_response_to_nothing_is_ignored(call_id: bytes) -> None:
    peer = Peer()
    peer.request("initialize", {})
    assert [Ignored("a response to nothing")] == peer.feed(b'{"id":' + call_id + b',"result":{}}\n')


def test_a_second_response_to_one_request_is_ignored() -> None:
    peer = Peer()
    peer.request("initialize", {})
    found = peer.feed(b'{"id":1,"result":{}}\n{"id":1,"result":{}}\n')
    assert [Reply(1, {}), Ignored("a response to nothing")] == found


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "0.10000000000000000000001", "9" * 5_000]
)
def test_a_number_that_python_would_change_is_kept_as_its_text(text: str) -> None:
    value = params_of(text)
    assert (NumberText, text) == (type(value), value)


@pytest.mark.parametrize("text", ["1e99999999999999999999", "1e-99999999999999999999"])
def test_an_exponent_beyond_all_bounds_is_kept_as_its_text(text: str) -> None:
    assert NumberText(text) == params_of(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.0", 1.0),
        ("1.50", 1.5),
        ("0.1", 0.1),
        ("1E5", 100_000.0),
        ("-0.0", -0.0),
        ("123456789012345678901234567890", 123_456_789_012_345_678_901_234_567_890),
    ],
)
def test_other_numbers_are_numbers(text: str, value: float) -> None:
    assert (type(value), value) == (type(params_of(text)), params_of(text))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_a_float_can_hold_stays_one(value: float) -> None:
    assert (float, value) == (type(params_of(repr(value))), params_of(repr(value)))


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True))
def test_no_number_is_ever_rounded(text: str) -> None:
    value = params_of(text)
    kept = text if isinstance(value, NumberText) else repr(value)
    assert Fraction(text) == Fraction(kept)


# -------------------------------------------------------------------------------------------------------------- writing

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), TREES, max_size=3))
def test_what_one_side_writes_the_other_reads(params: dict[str, JsonValue]) -> None:
    ours, theirs = Peer(), Peer()
    _, line = ours.request("m", params)
    assert line.isascii()
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert params == call(theirs, line[:-1]).params
    assert [Notice("m", params, len(ours.notify("m", params)) - 1)] == theirs.feed(ours.notify("m", params))


def test_a_lone_surrogate_goes_back_as_the_escape_that_it_came_as() -> None:
    peer = Peer()
    asked = call(peer, b'{"id":1,"method":"m","params":{"optionId":"a\\udfff"}}')
    assert peer.answer(asked, asked.params) == b'{"jsonrpc":"2.0","id":1,"result":{"optionId":"a\\udfff"}}\n'


def test_an_error_has_a_fixed_text_and_its_data() -> None:
    peer = Peer()
    line = peer.fail(call(peer, b'{"id":1,"method":"x/y"}'), -32601, {"method": "x/y"})
    expected = b'{"code":-32601,"message":"Method not found","data":{"method":"x/y"}}'
    assert b'{"jsonrpc":"2.0","id":1,"error":' + expected + b"}\n" == line


def test_no_float_that_is_no_json_is_ever_written() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        Peer().request("m", {"v": float("nan")})
