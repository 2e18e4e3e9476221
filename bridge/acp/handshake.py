"""From a started agent to a session that asks: initialize, authenticate, session/new, mode (acp.md, section 3).

Above it: agent. Below it: connection and schema. Whatever goes wrong is one `AgentStartFailed` with a sentence for
people; it refuses to know processes and what the session is used for.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from bridge.acp.connection import Connection
from bridge.acp.jsonrpc import AUTH_REQUIRED
from bridge.acp.schema import Greeting, Modes, read_greeting, read_modes, read_session_id
from bridge.core.errors import AgentClosed, AgentStartFailed, CallFailed
from bridge.core.model import JsonValue

PROTOCOL_VERSION = 1
CLIENT_NAME = "acp-matrix-bridge"
NAMED_LIMIT_COUNT = 20  # modes or methods of the agent that a sentence names
NAMED_LIMIT_CHARS = 80  # of each; ids are short words, Copilot's are addresses

# Modes in which an agent does some or all things without asking, or refuses them without asking. The second table holds
# those whose name other agents give to something else: they count only where the other mode is offered beside them.
UNASKING_MODES = frozenset(
    {
        "acceptEdits",  # claude-agent-acp, claude-code-acp
        "accept-edits",  # mistral-vibe
        "accept_edits",  # hermes-agent
        "agent-full-access",  # codex-acp
        "auto",  # claude-agent-acp, qwen-code, gptme
        "auto-approve",  # mistral-vibe
        "auto-edit",  # qwen-code
        "autoEdit",  # gemini-cli
        "autopilot",  # Copilot
        "bypassPermissions",  # claude-agent-acp
        "dontAsk",  # claude-agent-acp, claude-code-acp
        "dont_ask",  # hermes-agent
        "full-access",  # agentao
        "yolo",  # gemini-cli, qwen-code
    }
)
UNASKING_BESIDE = {"agent": "agent-full-access"}  # codex-acp; in fast-agent and Copilot `agent` asks

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session that is ready for its first prompt."""

    harness_session_id: str
    greeting: Greeting
    mode_note: str | None
    mode: str | None = None  # the one it is in
    modes: tuple[str, ...] = ()  # those it offers


def note_mode(mode: str | None, offered: tuple[str, ...]) -> str | None:
    """A sentence for people when the session's mode is known to skip questions."""
    if mode is None:
        return None
    word = mode.rpartition("#")[2]  # Copilot's modes are addresses that end in the word
    if word in UNASKING_MODES or UNASKING_BESIDE.get(word) in offered:
        return f"The session is in mode {word}, in which the agent may act without asking."
    return None


async def open_session(
    connection: Connection, *, name: str, version: str, cwd: str, mode: str | None, auth_method: str | None
) -> OpenedSession:
    """Bring the agent `name` to a session in the mode that was asked for. Raises `AgentStartFailed`."""
    result = await _ask(
        name,
        connection.call(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "clientInfo": {"name": CLIENT_NAME, "version": version},
                "clientCapabilities": {},
            },
        ),
    )
    greeting = read_greeting(result)
    if greeting.protocol_version != PROTOCOL_VERSION:
        raise AgentStartFailed(f"Agent {name} does not speak version {PROTOCOL_VERSION} of the Agent Client Protocol.")
    if auth_method is not None:
        await _authenticate(connection, name, auth_method, greeting)
    result = await _open(connection, name, cwd, greeting)
    session_id = read_session_id(result)
    if session_id is None:
        raise AgentStartFailed(f"Agent {name} opened a session without an id.")
    modes = read_modes(result)
    current = modes[0].current if modes else None
    if mode is not None:
        current = await _set_mode(connection, name, session_id, mode, modes)
    offered = _all_of(modes)
    return OpenedSession(
        harness_session_id=session_id,
        greeting=greeting,
        mode_note=note_mode(current, offered),
        mode=current,
        modes=offered,
    )


async def _authenticate(connection: Connection, name: str, method: str, greeting: Greeting) -> None:
    try:
        await connection.call("authenticate", {"methodId": method})
    except CallFailed as failed:
        raise AgentStartFailed(
            f"Agent {name} did not accept the auth_method {method} (error {failed.code}). "
            f"{_offer('Its methods are', greeting.auth_methods)}"
        ) from None
    except AgentClosed:
        raise _ended_early(name) from None


async def _open(connection: Connection, name: str, cwd: str, greeting: Greeting) -> JsonValue:
    try:
        return await connection.call("session/new", {"cwd": cwd, "mcpServers": []})
    except CallFailed as failed:
        if failed.code != AUTH_REQUIRED:
            raise AgentStartFailed(f"Agent {name} opened no session (error {failed.code}).") from None
        raise AgentStartFailed(
            f"Agent {name} wants a login first. {_offer('Its methods are', greeting.auth_methods)}"
        ) from None
    except AgentClosed:
        raise _ended_early(name) from None


async def _set_mode(connection: Connection, name: str, session_id: str, mode: str, modes: tuple[Modes, ...]) -> str:
    way = next((way for way in modes if mode in way.offered), None)
    if way is None:
        raise AgentStartFailed(f"Agent {name} has no mode {mode}. {_offer('Its modes are', _all_of(modes))}")
    if way.current == mode:
        return mode
    if way.config_id is None:
        await _ask(name, connection.call("session/set_mode", {"sessionId": session_id, "modeId": mode}))
        return mode
    params: dict[str, JsonValue] = {"sessionId": session_id, "configId": way.config_id, "value": mode}
    result = await _ask(name, connection.call("session/set_config_option", params))
    for now in read_modes(result):
        if now.config_id == way.config_id and now.current not in {None, mode}:
            raise AgentStartFailed(f"Agent {name} did not change to mode {mode}.")
    return mode


def _all_of(modes: tuple[Modes, ...]) -> tuple[str, ...]:
    """Each mode once: claude-agent-acp offers the same ones in both ways."""
    return tuple(dict.fromkeys(one for way in modes for one in way.offered))


async def _ask(name: str, call: Awaitable[_T]) -> _T:
    try:
        return await call
    except CallFailed as failed:
        raise AgentStartFailed(f"Agent {name} could not be used. {failed}") from None
    except AgentClosed:
        raise _ended_early(name) from None


def _ended_early(name: str) -> AgentStartFailed:
    return AgentStartFailed(f"Agent {name} ended before it had a session.")


def _offer(words: str, ids: tuple[str, ...]) -> str:
    """A sentence that names what an agent offers; its ids are the agent's text, so each is quoted, as ASCII."""
    if not ids:
        return "It offers none."
    more = f" and {len(ids) - NAMED_LIMIT_COUNT} more" if len(ids) > NAMED_LIMIT_COUNT else ""
    return f"{words} {', '.join(ascii(one[:NAMED_LIMIT_CHARS]) for one in ids[:NAMED_LIMIT_COUNT])}{more}."
