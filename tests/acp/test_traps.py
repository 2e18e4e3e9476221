"""What our side must survive: every row of the table in acp.md, section 14, through the whole adapter."""

import json

import anyio
import pytest

from bridge.core.events import AgentGone, Asked, Delivered, Event, Withdrawn
from bridge.core.model import Cancelled, JsonObject, JsonValue, Meaning, Selected
from tests.acp.driving import AGENT, OPTIONS, driving, error, make_harnesses, request_line
from tests.fakes.inbox import Inbox
from tests.fakes.process import FakeProcess

pytestmark = pytest.mark.anyio

PARSE_ERROR: JsonObject = {"id": None, "error": {"code": -32700, "message": "Parse error"}}
INVALID_REQUEST: JsonObject = {"id": None, "error": {"code": -32600, "message": "Invalid request"}}
INVALID_PARAMS: JsonObject = {"code": -32602, "message": "Invalid params"}

MALFORMED: list[dict[str, JsonValue]] = [
    {"options": None},
    {"options": {}},
    {"options": "all"},
    {"options": ["allow"]},
    {"options": [[]]},
    {"toolCall": None},
    {"toolCall": []},
    {"toolCall": {}},
    {"toolCall": {"toolCallId": None}},
    {"toolCall": {"toolCallId": 1}},
    {"sessionId": 1},
]


def raw_request(call_id: str, raw_input: str = "{}") -> bytes:
    """A permission request with an id and a rawInput as they are written here."""
    line = json.dumps(request_line("ID", toolCall={"toolCallId": "c1", "rawInput": "RAW"}))
    return line.replace('"ID"', call_id).replace('"RAW"', raw_input).encode() + b"\n"


@pytest.mark.parametrize("line", [b'[{"jsonrpc":"2.0","id":1,"method":"x"}]\n', b"42\n", b"null\n", b"[1,2]\n"])
async def test_a_batch_or_a_scalar_is_an_invalid_request_and_the_next_is_asked(line: bytes) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say(line)
            await driven.asked()
            await driven.fake.hear(error={"code": -32600, "message": "Invalid request"})
            assert driven.answers() == [INVALID_REQUEST]


@pytest.mark.parametrize(
    "line",
    [b"this is not json\n", b'{"id":1,"method":"\xff\xfe"}\n', raw_request("1", "[" * 3_000 + "]" * 3_000)],
    ids=["text", "bytes", "deep"],
)
async def test_what_cannot_be_read_is_a_parse_error_and_the_next_is_asked(line: bytes) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say(line)
            await driven.asked()
            await driven.fake.hear(error={"code": -32700, "message": "Parse error"})
            assert driven.answers() == [PARSE_ERROR]


async def test_a_five_megabyte_line_is_asked() -> None:
    with anyio.fail_after(30):
        async with driving() as driven:
            asked = await driven.asked(toolCall={"toolCallId": "c1", "rawInput": {"command": "x" * 5_000_000}})
            assert asked.description.essence.command == "x" * 5_000_000


async def test_a_line_of_33_mib_is_refused_and_the_next_is_asked() -> None:
    with anyio.fail_after(60):
        async with driving() as driven:
            for _ in range(33):
                driven.fake.say(b"x" * 1024 * 1024)
            driven.fake.say(b"\n")
            await driven.asked()
            await driven.fake.hear(error={"code": -32700, "message": "Parse error"})
            assert driven.answers() == [PARSE_ERROR]


@pytest.mark.parametrize(
    "number", ["NaN", "1e400", "123456789012345678901234567890", "1.0", "0.1000000000000000000001"]
)
async def test_no_number_is_lost_rounded_or_written_as_no_json(number: str) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say(raw_request("7", f'{{"n": {number}}}'))
            asked = await driven.inbox.take(Asked)
            record = json.dumps(asked.record, allow_nan=False)
            assert number in record
            assert number in asked.raw


@pytest.mark.parametrize("call_id", ["7", '"7"', "null", "1.5", "9223372036854775813"])
async def test_ids_are_echoed_exactly(call_id: str) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say(raw_request(call_id))
            driven.respond(await driven.inbox.take(Asked))
            await driven.inbox.take(Delivered)
            expected = f'{{"jsonrpc":"2.0","id":{call_id},"result":{{"outcome":{{"outcome":"selected"'
            assert expected in driven.fake.written.decode()


@pytest.mark.parametrize("call_id", ['{"a":1}', "[1]", "true", "1e400"])
async def test_what_is_no_id_is_refused(call_id: str) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say(raw_request(call_id))
            await driven.fake.hear(error={"code": -32600, "message": "Invalid request"})
            assert driven.answers() == [INVALID_REQUEST]
            assert driven.inbox.kinds() == ["SessionStarted"]


async def test_lone_surrogates_go_back_as_they_came() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            options: list[JsonValue] = [{"optionId": "a\udfff", "name": "A", "kind": "allow_once"}]
            asked = await driven.asked(toolCall={"toolCallId": "c1", "title": "\ud800"}, options=options)
            driven.respond(asked, Selected(asked.options[0].option_id))
            await driven.inbox.take(Delivered)
            assert b'"optionId":"a\\udfff"' in driven.fake.written
            assert json.dumps(asked.record).isascii()


async def test_meta_decides_nothing_and_is_kept() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            meta: JsonValue = {"session_id": "EVIL", "options": ["fake"], "sessionId": "EVIL"}
            asked = await driven.asked(_meta=meta)
            assert asked.session_id == "acps_0000000000000001"
            assert [option.option_id for option in asked.options] == ["opt-allow", "opt-reject"]
            assert asked.record["_meta"] == meta


async def test_a_snake_case_field_is_an_unknown_field() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = await driven.asked(session_id="EVIL", tool_call={"toolCallId": "EVIL"})
            assert asked.tool_call_id == "c1"
            assert set(asked.record) == {"toolCall", "options"}
            assert "EVIL" in asked.raw


@pytest.mark.parametrize("kind", ["allow_for_session", 0, None])
async def test_an_option_of_an_unknown_kind_is_offered_and_means_choose(kind: JsonValue) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = await driven.asked(options=[{"optionId": "s", "name": "For the session", "kind": kind}])
            assert [option.meaning for option in asked.options] == [Meaning.CHOOSE]


@pytest.mark.parametrize("change", MALFORMED, ids=json.dumps)
async def test_malformed_params_get_a_fixed_text_and_nobody_is_asked(change: dict[str, JsonValue]) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say(request_line(7, **change))
            assert error(await driven.fake.hear(id=7)) == INVALID_PARAMS
            assert driven.inbox.kinds() == ["SessionStarted"]


@pytest.mark.parametrize("missing", ["options", "toolCall", "sessionId"])
async def test_a_missing_part_gets_a_fixed_text_and_nobody_is_asked(missing: str) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            line = request_line(7)
            params = line["params"]
            assert isinstance(params, dict)
            del params[missing]
            driven.fake.say(line)
            assert error(await driven.fake.hear(id=7)) == INVALID_PARAMS
            assert driven.inbox.kinds() == ["SessionStarted"]


async def test_an_option_without_a_string_id_is_dropped() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = await driven.asked(options=[{"optionId": 1, "name": "One"}, OPTIONS[1]])
            assert [option.option_id for option in asked.options] == ["opt-reject"]


async def test_unknown_fields_are_kept_in_the_record_and_an_unknown_update_is_ignored() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.update(sessionUpdate="from_the_future", toolCallId="c1", title="other")
            tool_call: JsonValue = {"toolCallId": "c1", "title": "t", "new": [1]}
            options: list[JsonValue] = [{"optionId": "a", "name": "A", "kind": "allow_once", "new": {"x": 2}}]
            asked = await driven.asked(toolCall=tool_call, options=options)
            assert asked.record == {"toolCall": tool_call, "options": options}


async def test_odd_members_of_a_tool_call_are_no_reason_not_to_ask() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            odd: JsonValue = {"toolCallId": "c1", "title": 42, "kind": "frobnicate", "content": [{"type": "weird"}]}
            asked = await driven.asked(toolCall=odd)
            assert (asked.description.title, asked.description.tool_kind) == ("frobnicate", "frobnicate")


async def test_a_withdrawn_request_is_told_and_gets_one_answer() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = await driven.asked(7)
            driven.fake.say({"method": "$/cancel_request", "params": {"requestId": 7}})
            assert await driven.inbox.take(Withdrawn) == Withdrawn(agent=AGENT, call=asked.call)
            driven.respond(asked, Cancelled())
            driven.respond(asked, Selected("opt-allow"))
            await driven.inbox.take(Delivered)
            await driven.asked(8)
            assert driven.answers() == [{"id": 7, "result": {"outcome": {"outcome": "cancelled"}}}]


@pytest.mark.parametrize("how", ["exit", "close_stdout"])
async def test_an_end_while_one_waits_is_told_and_nothing_is_written(how: str) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = await driven.asked()
            written = driven.fake.written
            if how == "exit":
                driven.fake.exit(3)
            else:
                driven.fake.close_stdout()
            gone = await driven.inbox.take(AgentGone)
            driven.respond(asked)
            assert gone.exit_code == (3 if how == "exit" else None)
            assert driven.fake.written == written
            assert driven.inbox.events[-1] is gone


@pytest.mark.parametrize(
    "method", ["terminal/create", "fs/read_text_file", "elicitation/create", "_x/y", "craft/z", "session/new"]
)
async def test_what_is_not_built_is_an_unknown_method(method: str) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say({"id": "t", "method": method, "params": {}})
            expected = {"code": -32601, "message": "Method not found", "data": {"method": method}}
            assert error(await driven.fake.hear(id="t")) == expected


async def test_responses_to_nothing_are_ignored() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say({"id": 99, "result": {}})
            driven.fake.say({"id": 1, "result": {"protocolVersion": 2}})  # ours, and answered long ago
            await driven.asked()
            assert driven.answers() == []


async def test_a_fault_of_ours_has_a_fixed_text_and_the_next_is_asked() -> None:
    class Faulty(Inbox):
        def deliver(self, event: Event) -> None:
            if isinstance(event, Asked) and event.tool_call_id == "bad":
                raise RuntimeError("the secret of the handler")
            super().deliver(event)

    fake, inbox = FakeProcess(), Faulty()
    with anyio.fail_after(5):
        async with make_harnesses(fake, inbox) as harnesses:
            await harnesses.start(AGENT)
            fake.say(request_line("a", toolCall={"toolCallId": "bad"}))
            fake.say(request_line("b"))
            assert error(await fake.hear(id="a")) == {"code": -32603, "message": "Internal error"}
            assert (await inbox.take(Asked)).tool_call_id == "c1"


async def test_line_ends_blank_lines_and_a_missing_version_are_read() -> None:
    line = json.dumps({key: value for key, value in request_line(7).items() if key != "jsonrpc"}).encode()
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.say(b"\xef\xbb\xbf" + line.replace(b'"id": 7', b'"id": 1') + b"\r\n\r\n  \n")
            driven.fake.say(line)
            driven.fake.exit(0)
            first, second = await driven.inbox.take(Asked), await driven.inbox.take(Asked)
            await driven.inbox.take(AgentGone)
            assert first.tool_call_id == second.tool_call_id
            assert driven.answers() == []
