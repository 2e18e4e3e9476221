"""How each real agent is had and started: its public package, its settings for a scripted model, its names for things.

Above it: `run`. Below it: `model`, for the call that each is made to make. It refuses to know Matrix and the bridge.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.model import MODEL, ToolCall

FILE = "out.txt"
COMMAND = f"echo hi > {FILE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What goes into the bridge's config, and what the person answers."""

    command: list[str]
    env: dict[str, str]
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """More keys of the bridge's config for this agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A real agent. `start` gets the folder of its programs, its HOME and the model's address."""

    package: str
    call: ToolCall
    allow: str
    reject: str
    start: Callable[[Path, Path, str], Start]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def start_opencode(programs: Path, home: Path, url: str) -> Start:
    model = {"name": "Scripted", "tool_call": True, "limit": {"context": 200_000, "output": 8_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Scripted",
        "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
        "models": {MODEL: model},
    }
    settings = {
        "model": f"local/{MODEL}",
        "small_model": f"local/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"local": provider},
        "permission": {"edit": "ask", "bash": "ask", "webfetch": "ask", "external_directory": "ask"},
    }
    write(home / ".config/opencode/opencode.json", json.dumps(settings))
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")
    return Start(command=[str(programs / "opencode"), "acp"], env={f"OPENCODE_DISABLE_{each}": "1" for each in off})


def start_gemini(programs: Path, home: Path, url: str) -> Start:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    write(home / ".gemini/settings.json", json.dumps(settings))
    return Start(
        command=["node", str(programs / "gemini"), "--acp"],
        env={"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_MODEL": "gemini-2.5-pro"},
        keys={"auth_method": "gemini-api-key"},
    )


def start_claude(programs: Path, home: Path, url: str) -> Start:
    del home  # it needs no settings there
    quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY")
    return Start(
        command=["node", str(programs / "claude-agent-acp")],
        env={"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "x"} | dict.fromkeys(quiet, "1"),
    )


def start_codex(programs: Path, home: Path, url: str) -> Start:
    settings = f"""
model = "{MODEL}"
model_provider = "local"
approval_policy = "untrusted"
sandbox_mode = "read-only"
check_for_update_on_startup = false
[model_providers.local]
name = "Scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
requires_openai_auth = false
"""
    write(home / ".codex/config.toml", settings)
    return Start(command=[str(programs / "codex-acp")], env={"LOCAL_KEY": "x", "CODEX_HOME": str(home / ".codex")})


AGENTS = {
    "opencode": Agent(
        package="opencode-ai@1.18.33",
        call=ToolCall("bash", {"command": COMMAND, "description": "Write a greeting"}),
        allow="Allow once",
        reject="Reject",
        start=start_opencode,
    ),
    "gemini": Agent(
        package="@google/gemini-cli@0.61.0",
        call=ToolCall("run_shell_command", {"command": COMMAND, "description": "Write a greeting"}),
        allow="proceed_once",
        reject="cancel",
        start=start_gemini,
    ),
    "claude": Agent(
        package="@agentclientprotocol/claude-agent-acp@0.49.0",
        call=ToolCall("Bash", {"command": COMMAND, "description": "Write a greeting"}),
        allow="allow",
        reject="reject",
        start=start_claude,
    ),
    "codex": Agent(
        package="@zed-industries/codex-acp@0.16.0",
        call=ToolCall("exec_command", {"cmd": COMMAND}),
        allow="approved",
        reject="abort",
        start=start_codex,
    ),
}
