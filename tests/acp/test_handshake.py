"""From a started agent to a session that asks (acp.md, section 3; design.md, rule 1)."""

import anyio
import pytest

from bridge.acp import agent as agent_module
from bridge.acp.handshake import note_mode
from bridge.core.errors import AgentStartFailed
from bridge.core.events import SessionStarted
from bridge.core.model import JsonValue
from tests.acp.driving import AGENT, SESSION, driving, make_harnesses
from tests.fakes.inbox import Inbox
from tests.fakes.process import FakeProcess

pytestmark = pytest.mark.anyio

MODES: dict[str, JsonValue] = {
    "sessionId": "h-1",
    "modes": {"currentModeId": "auto", "availableModes": [{"id": "default"}, {"id": "auto"}]},
}
CONFIG_MODES: JsonValue = {
    "sessionId": "h-1",
    "configOptions": [
        {"id": "model", "category": "model", "currentValue": "plan", "options": [{"value": "plan"}]},
        {"id": "how", "category": "mode", "currentValue": "build", "options": [{"value": "build"}, {"value": "plan"}]},
    ],
}
LOGIN: JsonValue = {"protocolVersion": 1, "authMethods": [{"id": "browser"}, {"id": "key\u202e\n"}]}


async def failure(replies: dict[str, JsonValue], **changes: object) -> str:
    """The sentence of a start that fails; the process is stopped and nothing is delivered."""
    fake, inbox = FakeProcess(replies), Inbox()
    with anyio.fail_after(5):
        async with make_harnesses(fake, inbox, **changes) as harnesses:
            with pytest.raises(AgentStartFailed) as raised:
                await harnesses.start(AGENT)
            assert fake.stopped
    assert inbox.events == []
    return str(raised.value)


async def test_the_greeting_and_the_session_are_asked_for_as_specified() -> None:
    with anyio.fail_after(5):
        async with driving(cwd="/srv") as driven:
            assert [(line["method"], line["params"]) for line in driven.fake.lines] == [
                (
                    "initialize",
                    {
                        "protocolVersion": 1,
                        "clientInfo": {"name": "acp-matrix-bridge", "version": "0.1.0"},
                        "clientCapabilities": {},
                    },
                ),
                ("session/new", {"cwd": "/srv", "mcpServers": []}),
            ]
            assert driven.inbox.events == [SessionStarted(agent=AGENT, session_id=SESSION)]


@pytest.mark.parametrize("version", [2, "1", 1.0, True, None], ids=repr)
async def test_another_version_is_no_agent_of_ours(version: JsonValue) -> None:
    sentence = await failure({"initialize": {"protocolVersion": version}})
    assert sentence == "Agent claude does not speak version 1 of the Agent Client Protocol."


async def test_authentication_is_asked_for_where_it_is_configured() -> None:
    with anyio.fail_after(5):
        async with driving({"initialize": LOGIN}, auth_method="browser") as driven:
            assert [line["method"] for line in driven.fake.lines] == ["initialize", "authenticate", "session/new"]
            assert driven.fake.lines[1]["params"] == {"methodId": "browser"}


async def test_a_refused_method_names_those_that_there_are() -> None:
    sentence = await failure(
        {"initialize": LOGIN, "authenticate": {"error": {"code": -32602, "message": "no"}}}, auth_method="x"
    )
    assert sentence == (
        "Agent claude did not accept the auth_method x (error -32602). Its methods are 'browser', 'key\\u202e\\n'."
    )


async def test_an_agent_that_wants_a_login_says_how() -> None:
    sentence = await failure({"initialize": LOGIN, "session/new": {"error": {"code": -32000, "message": "secret"}}})
    assert sentence == "Agent claude wants a login first. Its methods are 'browser', 'key\\u202e\\n'."


async def test_an_agent_that_wants_a_login_and_offers_none_says_so() -> None:
    sentence = await failure({"session/new": {"error": {"code": -32000, "message": "secret"}}})
    assert sentence == "Agent claude wants a login first. It offers none."


async def test_a_refused_session_is_told_without_the_agents_words() -> None:
    sentence = await failure({"session/new": {"error": {"code": -32603, "message": "secret"}}})
    assert sentence == "Agent claude opened no session (error -32603)."


async def test_a_refused_greeting_is_told_without_the_agents_words() -> None:
    sentence = await failure({"initialize": {"error": {"code": -32603, "message": "secret"}}})
    assert sentence == "Agent claude could not be used. The agent answered initialize with error -32603."


async def test_a_session_without_an_id_is_no_session() -> None:
    assert await failure({"session/new": {"sessionId": 7}}) == "Agent claude opened a session without an id."


@pytest.mark.parametrize("at", ["initialize", "authenticate", "session/new", "session/set_mode"])
async def test_an_agent_that_ends_on_its_way_says_with_which_code(at: str) -> None:
    fake, inbox = FakeProcess({"session/new": MODES, at: None}), Inbox()

    async def leave() -> None:
        await fake.hear(method=at)
        fake.exit(127)

    with anyio.fail_after(5):
        harnesses = make_harnesses(fake, inbox, auth_method="x", mode="default")
        async with harnesses, anyio.create_task_group() as group:
            group.start_soon(leave)
            with pytest.raises(AgentStartFailed) as raised:
                await harnesses.start(AGENT)
            assert str(raised.value) == "Agent claude ended before it had a session. Its exit code was 127."


async def test_an_agent_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "START_LIMIT_SECONDS", 0.05)
    assert await failure({"session/new": None}) == "Agent claude had no session after 0 s."


# ---------------------------------------------------------------------------------------------------------------- modes


async def test_a_mode_is_set_right_after_the_session() -> None:
    with anyio.fail_after(5):
        async with driving({"session/new": MODES}, mode="default") as driven:
            assert driven.fake.lines[-1]["method"] == "session/set_mode"
            assert driven.fake.lines[-1]["params"] == {"sessionId": "h-1", "modeId": "default"}
            assert driven.inbox.events == [SessionStarted(agent=AGENT, session_id=SESSION)]


async def test_a_mode_that_it_is_in_already_is_not_set() -> None:
    with anyio.fail_after(5):
        async with driving({"session/new": MODES}, mode="auto") as driven:
            assert driven.fake.lines[-1]["method"] == "session/new"


async def test_a_mode_that_is_a_config_option_is_set_as_one() -> None:
    with anyio.fail_after(5):
        async with driving({"session/new": CONFIG_MODES}, mode="plan") as driven:
            assert driven.fake.lines[-1]["method"] == "session/set_config_option"
            assert driven.fake.lines[-1]["params"] == {"sessionId": "h-1", "configId": "how", "value": "plan"}


async def test_a_config_option_that_did_not_change_is_a_failure() -> None:
    answer: JsonValue = {"configOptions": [{"id": "how", "category": "mode", "currentValue": "build", "options": []}]}
    sentence = await failure({"session/new": CONFIG_MODES, "session/set_config_option": answer}, mode="plan")
    assert sentence == "Agent claude did not change to mode plan."


async def test_a_mode_that_is_not_offered_names_those_that_are() -> None:
    sentence = await failure({"session/new": MODES}, mode="ask")
    assert sentence == "Agent claude has no mode ask. Its modes are 'default', 'auto'."


async def test_a_mode_that_is_offered_in_two_ways_is_named_once() -> None:
    """As claude-agent-acp 0.101 does it: as modes and as a config option."""
    values: JsonValue = [{"value": "default"}, {"value": "auto"}]
    option: JsonValue = {"id": "mode", "category": "mode", "currentValue": "auto", "options": values}
    both: JsonValue = {**MODES, "configOptions": [option]}
    with anyio.fail_after(5):
        async with driving({"session/new": both}) as driven:
            opened = driven.harnesses.opened(AGENT)
    assert opened is not None
    assert opened.modes == ("default", "auto")


async def test_a_value_of_another_option_is_no_mode() -> None:
    sentence = await failure({"session/new": {"sessionId": "h-1", "configOptions": []}}, mode="plan")
    assert sentence == "Agent claude has no mode plan. It offers none."


async def test_a_long_list_of_modes_is_not_named_whole() -> None:
    many: JsonValue = {"availableModes": [{"id": f"m{number}" + "x" * 200} for number in range(25)]}
    sentence = await failure({"session/new": {"sessionId": "h-1", "modes": many}}, mode="plan")
    assert sentence.endswith(" and 5 more.")
    assert len(sentence) < 2_000


async def test_a_refused_mode_is_a_failure() -> None:
    error: JsonValue = {"error": {"code": -32602, "message": "secret"}}
    sentence = await failure({"session/new": MODES, "session/set_mode": error}, mode="default")
    assert sentence == "Agent claude could not be used. The agent answered session/set_mode with error -32602."


async def test_a_session_in_a_mode_that_skips_questions_says_so() -> None:
    with anyio.fail_after(5):
        async with driving({"session/new": MODES}) as driven:
            note = "The session is in mode auto, in which the agent may act without asking."
            assert driven.inbox.events == [SessionStarted(agent=AGENT, session_id=SESSION, mode_note=note)]


@pytest.mark.parametrize(
    ("mode", "offered", "noted"),
    [
        ("accept-edits", ("ask",), True),
        ("bypassPermissions", (), True),
        ("yolo", (), True),
        ("agent", ("read-only", "agent", "agent-full-access"), True),  # codex-acp
        ("agent", ("agent",), False),  # fast-agent
        ("https://example.org/modes#agent", ("https://example.org/modes#plan",), False),  # Copilot
        ("https://example.org/modes#autopilot", (), True),
        ("default", ("auto",), False),
        ("plan", (), False),
        ("off", (), False),
        (None, (), False),
    ],
)
def test_which_modes_are_known_to_skip_questions(mode: str | None, offered: tuple[str, ...], noted: bool) -> None:
    assert (note_mode(mode, offered) is not None) is noted
