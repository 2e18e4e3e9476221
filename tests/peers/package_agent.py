"""An ACP agent on the agent side of the public package `agent-client-protocol`: it asks twice in every turn.

It says which modes it has, starts in one that skips questions, and tells afterwards what it was answered.
"""

import asyncio
from typing import cast

import acp
from acp.schema import (
    Implementation,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    SessionMode,
    SessionModeState,
    SetSessionModeResponse,
    TextContentBlock,
    ToolCallUpdate,
)

OPTIONS = [
    PermissionOption(option_id="once", name="Allow once", kind="allow_once"),
    PermissionOption(option_id="no", name="Reject", kind="reject_once"),
]


class PackageAgent:
    def __init__(self) -> None:
        self.client: acp.Client | None = None
        self.mode = "auto"
        self.cancelled = False

    def on_connect(self, conn: acp.Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_rest: object) -> acp.InitializeResponse:
        return acp.InitializeResponse(
            protocol_version=protocol_version, agent_info=Implementation(name="package", version="1")
        )

    async def new_session(self, cwd: str, **_rest: object) -> NewSessionResponse:
        modes = [SessionMode(id="auto", name="Auto"), SessionMode(id="ask", name=f"Ask in {cwd}")]
        return NewSessionResponse(
            session_id="p-1", modes=SessionModeState(current_mode_id=self.mode, available_modes=modes)
        )

    async def set_session_mode(self, session_id: str, mode_id: str, **_rest: object) -> SetSessionModeResponse:
        assert session_id == "p-1"
        self.mode = mode_id
        return SetSessionModeResponse()

    async def cancel(self, session_id: str, **_rest: object) -> None:
        assert session_id == "p-1"
        self.cancelled = True

    async def prompt(self, session_id: str, prompt: list[object], **_rest: object) -> PromptResponse:
        text = cast("TextContentBlock", prompt[0]).text
        client = self.client
        assert client is not None
        await client.session_update(
            session_id, acp.start_tool_call("c1", text, kind="execute", raw_input={"command": "pytest -q"})
        )
        answers = await asyncio.gather(
            *(
                client.request_permission(session_id, ToolCallUpdate(tool_call_id=tool_call_id), OPTIONS)
                for tool_call_id in ("c1", "c2")
            )
        )
        outcomes = [getattr(answer.outcome, "option_id", answer.outcome.outcome) for answer in answers]
        await client.session_update(session_id, acp.update_agent_message_text(f"{self.mode}: {' '.join(outcomes)}"))
        return PromptResponse(stop_reason="cancelled" if self.cancelled else "end_turn")


if __name__ == "__main__":
    asyncio.run(acp.run_agent(cast("acp.Agent", PackageAgent())))
