"""What passes between the core and one agent's session (acp.md, sections 4 to 8; requirements.md, section 5)."""

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.core.events import AgentGone, Asked, Delivered, NotDelivered, ToolCallChanged, TurnEnded, Withdrawn
from bridge.core.model import CallRef, Cancelled, JsonValue, Selected, SessionId, Unsatisfied
from tests.acp.driving import AGENT, SESSION, driving, make_harnesses, request_line
from tests.fakes.inbox import Inbox
from tests.fakes.process import FakeProcess

pytestmark = pytest.mark.anyio

# ------------------------------------------------------------------------------------------------------------ answering


async def test_the_chosen_option_goes_back_in_the_nested_outcome() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = await driven.asked("abc")
            driven.respond(asked, Selected("opt-allow"))
            assert await driven.inbox.take(Delivered) == Delivered(agent=AGENT, call=asked.call)
            outcome = {"outcome": "selected", "optionId": "opt-allow"}
            assert driven.answers() == [{"id": "abc", "result": {"outcome": outcome}}]


async def test_an_unsatisfied_policy_is_an_error_with_its_code() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.respond(await driven.asked(), Unsatisfied())
            await driven.inbox.take(Delivered)
            expected = {
                "code": -32603,
                "message": "Internal error",
                "data": {"code": "permission_policy_unsatisfied"},
            }
            assert driven.answers() == [{"id": 7, "error": expected}]


async def test_a_second_response_is_not_sent_and_is_logged() -> None:
    with anyio.fail_after(5), capture_logs() as logs:
        async with driving() as driven:
            asked = await driven.asked()
            driven.respond(asked, Cancelled())
            driven.respond(asked, Selected("opt-allow"))
            await driven.inbox.take(Delivered)
            driven.respond(asked, Selected("opt-allow"))
            await driven.asked(8)
            assert driven.answers() == [{"id": 7, "result": {"outcome": {"outcome": "cancelled"}}}]
    errors = [entry["event"] for entry in logs if entry["log_level"] == "error"]
    assert errors == ["permission.not_waiting"] * 2


async def test_three_that_wait_are_answered_in_any_order() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = [await driven.asked(number) for number in (1, 2, 3)]
            for index in (2, 0, 1):
                driven.respond(asked[index])
            for _ in range(3):
                await driven.inbox.take(Delivered)
            assert [answer["id"] for answer in driven.answers()] == [3, 1, 2]


async def test_every_request_has_a_nonce_of_its_own_that_the_log_does_not_know() -> None:
    with anyio.fail_after(5), capture_logs() as logs:
        async with driving() as driven:
            asked = [await driven.asked(number) for number in (1, 2)]
            nonces = {each.nonce for each in asked}
            assert len(nonces) == 2
            assert all(len(nonce) == 32 for nonce in nonces)
    assert not any(nonce in repr((logs, asked)) for nonce in nonces)


async def test_an_id_used_again_after_its_answer_is_a_new_request() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            first = await driven.asked(7)
            driven.respond(first)
            second = await driven.asked(7)
            assert second.call != first.call
            driven.respond(first)
            driven.respond(second, Cancelled())
            await driven.inbox.take(Delivered)
            await driven.inbox.take(Delivered)
            assert [answer["id"] for answer in driven.answers()] == [7, 7]


async def test_an_id_that_waits_asked_again_leaves_the_first_waiting() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            first = await driven.asked(7)
            driven.fake.say(request_line(7))
            await driven.fake.hear(id=None)
            driven.respond(first)
            await driven.inbox.take(Delivered)
            assert driven.inbox.kinds().count("Asked") == 1
            assert [answer["id"] for answer in driven.answers()] == [None, 7]


async def test_a_response_that_cannot_be_written_is_told_before_the_agent_is_gone() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked, unanswered = await driven.asked(1), await driven.asked(2)
            driven.fake.close_stdin()
            driven.respond(asked)
            await driven.inbox.take(AgentGone)
            driven.respond(unanswered)
            driven.prompt()
            assert driven.inbox.events[-2:] == [
                NotDelivered(agent=AGENT, call=asked.call),
                AgentGone(agent=AGENT, session_id=SESSION, exit_code=None),
            ]


# ----------------------------------------------------------------------------------------------------------- withdrawing


@pytest.mark.parametrize("request_id", ["7", 7.0, True, None, 8, [7]], ids=repr)
async def test_only_the_very_id_is_withdrawn(request_id: JsonValue) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            await driven.asked(7)
            driven.fake.say({"method": "$/cancel_request", "params": {"requestId": request_id}})
            driven.fake.say({"method": "$/cancel_request", "params": {}})
            driven.fake.say({"method": "$/cancel_request", "params": {"requestId": 7}})
            await driven.inbox.take(Withdrawn)
            assert driven.inbox.kinds() == ["SessionStarted", "Asked", "Withdrawn"]


async def test_an_id_that_was_answered_is_not_withdrawn() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.respond(await driven.asked(7))
            driven.fake.say({"method": "$/cancel_request", "params": {"requestId": 7}})
            await driven.asked(8)
            assert "Withdrawn" not in driven.inbox.kinds()


# -------------------------------------------------------------------------------------------------------------- merging


async def test_what_the_updates_said_is_shown_with_the_request() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.update(sessionUpdate="tool_call_update", toolCallId="c9", rawInput={"command": "mkdir /srv/x"})
            driven.fake.update(sessionUpdate="tool_call", toolCallId="c9", title="bash", kind="execute", rawInput={})
            asked = await driven.asked(toolCall={"toolCallId": "c9", "title": "external_directory", "rawInput": {}})
            shown = asked.description
            assert (shown.title, shown.tool_kind, shown.essence.command) == (
                "external_directory",
                "execute",
                "mkdir /srv/x",
            )
            assert asked.record["toolCall"] == {"toolCallId": "c9", "title": "external_directory", "rawInput": {}}


async def test_an_update_of_what_is_asked_is_told_with_the_request_it_speaks_of() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            asked = await driven.asked()
            driven.fake.update(sessionUpdate="tool_call_update", toolCallId="c1", rawInput={"command": "curl evil"})
            changed = await driven.inbox.take(ToolCallChanged)
            assert (changed.session_id, changed.tool_call_id, changed.call) == (SESSION, "c1", asked.call)
            assert (changed.description.title, changed.description.essence.command) == ("Run tests", "curl evil")


async def test_two_requests_about_one_tool_call_each_have_their_own_view() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            first = await driven.asked(1, toolCall={"toolCallId": "c1", "rawInput": {"command": "rm -rf /"}})
            second = await driven.asked(2, toolCall={"toolCallId": "c1", "rawInput": {"command": "ls"}})
            driven.fake.update(sessionUpdate="tool_call_update", toolCallId="c1", title="New")
            changes = [await driven.inbox.take(ToolCallChanged), await driven.inbox.take(ToolCallChanged)]
            told = {change.call: change.description.essence.command for change in changes}
            assert told == {first.call: "rm -rf /", second.call: "ls"}


@pytest.mark.parametrize(
    "update",
    [
        {"toolCallId": "c1", "status": "in_progress"},
        {"toolCallId": "c1", "rawInput": {}},
        {"toolCallId": "c1", "title": "Run tests"},
        {"toolCallId": "c1", "status": "failed", "rawInput": {"command": "other", "cwd": "/"}},
        {"toolCallId": "c1", "status": "completed", "title": "Done"},
        {"toolCallId": "c2", "rawInput": {"command": "other"}},
    ],
    ids=repr,
)
async def test_what_changes_nothing_that_is_asked_is_not_told(update: dict[str, JsonValue]) -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            await driven.asked()
            driven.fake.update("h-1", sessionUpdate="tool_call_update", **update)
            driven.fake.update("another-session", sessionUpdate="tool_call_update", toolCallId="c1", title="other")
            await driven.asked(8)
            assert driven.inbox.kinds() == ["SessionStarted", "Asked", "Asked"]


async def test_an_update_after_the_answer_is_not_told() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.respond(await driven.asked())
            driven.fake.update(sessionUpdate="tool_call_update", toolCallId="c1", title="other")
            await driven.asked(8, toolCall={"toolCallId": "c2"})
            assert "ToolCallChanged" not in driven.inbox.kinds()


async def test_a_child_sessions_request_belongs_to_the_session_of_the_connection() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.fake.update("h-child", sessionUpdate="tool_call", toolCallId="c1", kind="edit")
            asked = await driven.asked(sessionId="h-child")
            assert (asked.session_id, asked.description.tool_kind) == (SESSION, "edit")
            assert "h-child" not in str(asked.record)


# ---------------------------------------------------------------------------------------------------------------- turns


async def end_of(reply: dict[str, JsonValue], *, cancel: bool = False) -> TurnEnded:
    """The end of a turn that the agent answers like this."""
    async with driving() as driven:
        driven.prompt("do it")
        if cancel:
            driven.harnesses.cancel(AGENT, SESSION)
        prompted = await driven.fake.hear(method="session/prompt")
        assert prompted["params"] == {"sessionId": "h-1", "prompt": [{"type": "text", "text": "do it"}]}
        driven.fake.say({"id": prompted["id"], **reply})
        return await driven.inbox.take(TurnEnded)


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"])
async def test_a_turn_ends_for_the_agents_reason(reason: str) -> None:
    with anyio.fail_after(5):
        expected = TurnEnded(agent=AGENT, session_id=SESSION, stop_reason=reason)
        assert await end_of({"result": {"stopReason": reason}}) == expected


@pytest.mark.parametrize("result", [{"stopReason": "\u202eodd"}, {"stopReason": 7}, {}, None], ids=repr)
async def test_any_other_reason_is_unknown(result: JsonValue) -> None:
    with anyio.fail_after(5):
        assert (await end_of({"result": result})).stop_reason == "unknown"


async def test_a_failed_turn_says_so_without_the_agents_words() -> None:
    with anyio.fail_after(5):
        ended = await end_of({"error": {"code": -32603, "message": "secret"}})
        assert (ended.stop_reason, ended.error) == ("error", "The agent ended the turn with error -32603.")


async def test_an_error_after_a_cancel_is_a_cancelled_turn() -> None:
    with anyio.fail_after(5):
        ended = await end_of({"error": {"code": -32603, "message": "secret"}}, cancel=True)
        assert (ended.stop_reason, ended.error) == ("cancelled", None)


async def test_the_words_of_a_turn_are_the_agents_own_of_that_turn() -> None:
    def chunk(kind: str, text: str, session: str = "h-1") -> None:
        driven.fake.update(session, sessionUpdate=kind, content={"type": "text", "text": text})

    with anyio.fail_after(5):
        async with driving() as driven:
            chunk("agent_message_chunk", "before any turn")
            await driven.asked()
            for words in ("first", "second"):
                driven.prompt()
                prompted = await driven.fake.hear(method="session/prompt")
                chunk("agent_thought_chunk", "hm")
                chunk("user_message_chunk", "echo")
                chunk("agent_message_chunk", "of a child", "h-child")
                chunk("agent_message_chunk", words)
                driven.fake.update(sessionUpdate="tool_call", toolCallId="c1", title="t")
                chunk("agent_message_chunk", "done")
                driven.fake.reply(prompted, {"stopReason": "end_turn"})
                assert (await driven.inbox.take(TurnEnded)).text == f"{words}\n\ndone"


async def test_a_cancel_is_written_before_the_responses_that_follow_it() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            driven.prompt()
            asked = [await driven.asked(1), await driven.asked(2)]
            driven.harnesses.cancel(AGENT, SESSION)
            for one in asked:
                driven.respond(one, Cancelled())
            for _ in asked:
                await driven.inbox.take(Delivered)
            written = [line.get("method", line.get("id")) for line in driven.fake.lines[-3:]]
            assert written == ["session/cancel", 1, 2]
            assert driven.fake.lines[-3] == {
                "jsonrpc": "2.0",
                "method": "session/cancel",
                "params": {"sessionId": "h-1"},
            }


async def test_what_is_meant_for_another_session_is_not_sent() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            count = len(driven.fake.lines)
            driven.harnesses.prompt(AGENT, SessionId("acps_old"), "x")
            driven.harnesses.cancel(AGENT, SessionId("acps_old"))
            driven.harnesses.close(AGENT, SessionId("acps_old"))
            driven.respond(await driven.asked())
            await driven.inbox.take(Delivered)
            assert len(driven.fake.lines) == count + 1


@pytest.mark.parametrize(
    ("offered", "method"),
    [({"close": {}, "delete": {}}, "session/close"), ({"delete": {}}, "session/delete"), ({}, None)],
    ids=repr,
)
async def test_a_session_is_closed_in_the_way_that_the_agent_offers(offered: JsonValue, method: str | None) -> None:
    greeting: JsonValue = {"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": offered}}
    with anyio.fail_after(5):
        async with driving({"initialize": greeting}) as driven:
            driven.harnesses.close(AGENT, SESSION)
            driven.harnesses.cancel(AGENT, SESSION)
            await driven.fake.hear(method="session/cancel")
            sent = [line["method"] for line in driven.fake.lines[2:-1]]
            assert sent == ([method] if method else [])


async def test_a_mode_that_the_agent_changes_to_is_noted_in_the_log() -> None:
    with anyio.fail_after(5), capture_logs() as logs:
        async with driving() as driven:
            for mode in ("default", "yolo"):
                driven.fake.update(sessionUpdate="current_mode_update", currentModeId=mode)
            await driven.asked()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["agent.mode_skips_questions"]


# ------------------------------------------------------------------------------------------------- before the session


async def test_what_is_asked_before_the_session_is_known_is_asked_after_it() -> None:
    fake, inbox = FakeProcess({"session/new": None}), Inbox()
    with anyio.fail_after(5):
        async with make_harnesses(fake, inbox) as harnesses, anyio.create_task_group() as group:

            async def answer() -> None:
                asked = await fake.hear(method="session/new")
                fake.say(request_line(20))
                fake.say(request_line(21))
                fake.say({"method": "$/cancel_request", "params": {"requestId": 21}})
                fake.reply(asked, {"sessionId": "h-1"})

            group.start_soon(answer)
            await harnesses.start(AGENT)
            await inbox.take(Asked)
            assert (await fake.hear(id=21))["result"] == {"outcome": {"outcome": "cancelled"}}
    assert inbox.kinds()[:2] == ["SessionStarted", "Asked"]
    assert inbox.kinds().count("Asked") == 1


async def test_numbers_of_calls_are_unique_across_sessions() -> None:
    with anyio.fail_after(5):
        async with driving() as driven:
            first = await driven.asked()
            driven.fake.exit(0)
            await driven.harnesses.stop(AGENT)
            assert first.call == CallRef(1)
