"""Where the parts meet: the only place that knows them all (design.md, section 3).

Above it: cli. Below it: everything else. The parts get plain values from here, never the config.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from bridge.app.inspection import inspect
from bridge.app.newcomer import set_up
from bridge.app.opening import log_in_here
from bridge.app.service import ask as ask_alone
from bridge.app.service import serve
from bridge.app.verifying import list_pinned, verify_with
from bridge.config import Config
from bridge.core.errors import BridgeError
from bridge.core.model import AgentName, JsonObject
from bridge.ops.console import Console
from bridge.ops.login import Wish
from bridge.ops.setup import Errand
from bridge.ops.verify import Terminal

__all__ = ["ask", "check", "list_verified", "login", "run", "setup", "verify"]


T = TypeVar("T")
R = TypeVar("R")


def run(config: Config) -> int:
    """Serve every agent of the config until SIGTERM, SIGINT or SIGHUP; returns the exit code (interface.md, Commands)."""
    return _run(serve, config)


def check(config: Config, path: Path) -> int:
    """Try each thing that `run` needs, and say a line each."""
    return _run(partial(inspect, path=path), config)


def ask(config: Config, agent: AgentName) -> JsonObject:
    """A harmless question in the agent's room, where no bridge runs: what became of it, as the control socket says it."""
    return _run(partial(_ask, config), agent)


async def _ask(config: Config, agent: AgentName) -> JsonObject:
    return (await ask_alone(config, agent)).to_json()


def login(wish: Wish) -> int:
    """Open the bridge's account, keep its token, and print the config to paste."""
    return _run(log_in_here, wish)


def setup(errand: Errand, wish: Wish) -> int:
    """Walk a newcomer from nothing to a question that was answered in a room."""
    return _run(partial(set_up, wish=wish, console=Console()), errand)


def verify(config: Config, user: str | None) -> int:
    """Compare emoji with an approver's client, at this terminal, and pin their identity."""
    return _run(partial(verify_with, user=user, terminal=Terminal()), config)


def list_verified(config: Config, *, as_json: bool) -> int:
    """Show whose identity is pinned, and whose is not."""
    return list_pinned(config, Terminal(), as_json=as_json)


def _run(work: Callable[[T], Awaitable[R]], given: T) -> R:
    """A task group wraps what went wrong; people are told the one sentence inside."""
    try:
        return anyio.run(work, given)
    except BaseExceptionGroup as group:
        found, others = group.split(BridgeError)
        if found is None or others is not None:
            raise
        inner: BaseException = found
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        raise inner from None
