"""`setup`: walks a newcomer from nothing to a question that was answered in a room, and can be taken up where it stopped.

Above it: app, which wires the homeserver and the question. Below it: `ops.login` (the account), `ops.harnesses` (what is
installed), a `Guide` (everything that asks a homeserver) and a `Terminal`. What was reached is kept in the state folder, so that
`setup` again goes on from there; a config that exists is never overwritten.
"""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from bridge.core.errors import BridgeError, ConfigError, RequestRefused
from bridge.core.model import AgentName, RoomId, UserId
from bridge.ops.folder import open_state_folder, write_private
from bridge.ops.harnesses import KnownHarness, find_installed, read_known
from bridge.ops.login import Terminal

PROGRESS_NAME = "setup.json"
JOIN_POLL_S = 2.0  # how often the room is looked at while people accept the invitation
ROOM_NAME = "Coding agents"
DEMO_HARNESS = "demo"  # the scripted agent that ships with the bridge


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a set-up has come."""

    homeserver: str = ""
    user_id: str = ""
    approvers: tuple[str, ...] = ()
    room: str = ""
    agent: str = ""


class Guide(Protocol):
    """The bot's account, once it is logged in. Raises the errors of `MatrixError`."""

    async def create_room(self, name: str, invited: tuple[UserId, ...], *, encrypted: bool) -> RoomId:
        """A private room with these people invited."""
        ...

    async def join(self, room: str) -> RoomId:
        """Join a room that is there, named by its id or alias. Raises `RequestRefused` where the bot may not."""
        ...

    async def joined(self, room: RoomId) -> frozenset[UserId]:
        """Who is in it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What `setup` is to make: the config at `config`, its state beside it; `encrypted` says whether the room is to be."""

    config: Path
    state_dir: Path
    encrypted: bool = True


async def walk(
    errand: Errand,
    terminal: Terminal,
    *,
    log_in: Callable[[Progress], Awaitable[tuple[Progress, Guide]]],
    ask_in_room: Callable[[AgentName], Awaitable[int]],
    pause: Callable[[float], Awaitable[None]],
) -> int:
    """The whole way; returns the exit code of the question at its end."""
    open_state_folder(errand.state_dir)
    progress = _read(errand)
    if progress != Progress():
        begun = errand.state_dir / PROGRESS_NAME
        terminal.say(f"Going on with the set-up that was begun here; for other people or another room remove {begun}.")
    terminal.say("1 of 5: the bot's account. It must be an account of its own, not yours.")
    progress, guide = await log_in(progress)
    _keep(errand, progress)
    if errand.config.exists():
        terminal.say(f"2 to 4 of 5: {errand.config} exists already and stays as it is.")
        agent = progress.agent
    else:
        progress = await _make_room(errand, progress, terminal, guide)
        _keep(errand, progress)
        await _wait_for_people(progress, terminal, guide, pause)
        harness, cwd = _choose_harness(terminal)
        _write_config(errand, progress, harness, cwd)
        progress = replace(progress, agent=harness.name)
        _keep(errand, progress)
        terminal.say(f"The config is in {errand.config}.")
        agent = harness.name
    terminal.say("5 of 5: a question in the room. Answer it from your Matrix client; nothing is run.")
    code = await ask_in_room(AgentName(agent))
    if code == 0:
        terminal.say(f"All is set up. Start the bridge with: acp-matrix-bridge --config {errand.config} run")
    return code


async def _make_room(errand: Errand, progress: Progress, terminal: Terminal, guide: Guide) -> Progress:
    terminal.say("2 of 5: the room and the people who may answer in it.")
    approvers = progress.approvers or _ask_people(terminal, progress.user_id)
    if progress.room:
        return replace(progress, approvers=approvers)
    while own := terminal.ask("The id of a room that you have made, or Enter for a new private one: "):
        if not own.startswith(("!", "#")):
            terminal.say("This is no room; an id begins with !, an alias with #.")
            continue
        try:
            return replace(progress, approvers=approvers, room=await guide.join(own))
        except RequestRefused:
            terminal.say(f"{progress.user_id} cannot join it: invite it there, or see whether the id is right.")
    room = await guide.create_room(ROOM_NAME, tuple(map(UserId, approvers)), encrypted=errand.encrypted)
    sealed = "encrypted" if errand.encrypted else "unencrypted"
    terminal.say(f'The private, {sealed} room "{ROOM_NAME}" is made: {room}')
    return replace(progress, approvers=approvers, room=room)


def _ask_people(terminal: Terminal, bot: str) -> tuple[str, ...]:
    while True:
        line = terminal.ask("Who may answer? Full user ids with blanks between them, such as @you:example.org: ")
        people = tuple(dict.fromkeys(line.replace(",", " ").split()))
        wrong = [person for person in people if not person.startswith("@") or ":" not in person]
        if wrong:
            terminal.say(f"{wrong[0]} is no full user id; it should look like @you:example.org.")
        elif bot in people:
            terminal.say("The bot itself cannot be one of them.")
        elif people:
            return people


async def _wait_for_people(
    progress: Progress, terminal: Terminal, guide: Guide, pause: Callable[[float], Awaitable[None]]
) -> None:
    terminal.say("3 of 5: accept the invitation in your Matrix client. (Ctrl-C stops; `setup` again goes on here.)")
    waiting: frozenset[str] | None = None
    while True:
        absent = frozenset(progress.approvers) - await guide.joined(RoomId(progress.room))
        if absent != waiting:
            waiting = absent
            if not absent:
                terminal.say("Everybody is in the room.")
                return
            terminal.say(f"Waiting for {', '.join(sorted(absent))} to join ...")
        await pause(JOIN_POLL_S)


def _choose_harness(terminal: Terminal) -> tuple[KnownHarness, Path]:
    known = read_known()
    installed = find_installed(known)
    terminal.say("4 of 5: the agent.")
    for number, harness in enumerate(installed, 1):
        terminal.say(f"  {number}. {harness.title} ({' '.join(harness.command)})")
    missing = [harness for harness in known if harness not in installed]
    for harness in missing:
        terminal.say(f"  -  {harness.title} is not installed: {harness.install}")
    terminal.say("  0. none yet: a scripted agent that only asks, to try the room with")
    while True:
        answer = terminal.ask("Which one? ")
        if answer == "0":
            chosen = make_demo_harness()
            break
        if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(installed):
            chosen = installed[int(answer) - 1]
            break
        terminal.say(f"Please type a number from 0 to {len(installed)}.")
    for variable in chosen.pass_env:
        if not os.environ.get(variable):
            terminal.say(f"Note: {variable} is not set here; {chosen.title} needs it, or a login of its own.")
    while True:
        folder = terminal.ask(f"The folder it works in [{Path.cwd()}]: ") or str(Path.cwd())
        path = Path(folder).expanduser()
        if path.is_absolute() and path.is_dir():
            return chosen, path
        terminal.say(f"{folder} is no folder with an absolute path.")


def make_demo_harness() -> KnownHarness:
    """The scripted agent that ships with the bridge, run by this very Python."""
    return KnownHarness(
        name=DEMO_HARNESS,
        title="the scripted agent",
        program=sys.executable,
        command=(sys.executable, "-m", "bridge.demo.agent"),
        install="",
    )


def _write_config(errand: Errand, progress: Progress, harness: KnownHarness, cwd: Path) -> None:
    lines = [
        f"state_dir = {_quote(str(errand.state_dir))}",
        "",
        "[matrix]",
        f"homeserver = {_quote(progress.homeserver)}",
        f"user_id = {_quote(progress.user_id)}",
        *([] if errand.encrypted else ["encryption = false"]),
        "",
        f"[agents.{harness.name}]",
        f"command = {_quote_list(harness.command)}",
        f"cwd = {_quote(str(cwd))}",
        f"room = {_quote(progress.room)}",
        f"approvers = {_quote_list(progress.approvers)}",
        *([f"pass_env = {_quote_list(harness.pass_env)}"] if harness.pass_env else []),
        *([f"mode = {_quote(harness.mode)}"] if harness.mode else []),
        *([f"auth_method = {_quote(harness.auth_method)}"] if harness.auth_method else []),
        "",
    ]
    try:
        with errand.config.open("x", encoding="utf-8") as file:
            file.write("\n".join(lines))
    except OSError as error:
        raise ConfigError(f"The config {errand.config} cannot be written: {error.strerror}.") from error


def _read(errand: Errand) -> Progress:
    path = errand.state_dir / PROGRESS_NAME
    try:
        return TypeAdapter(Progress).validate_json(path.read_bytes())
    except FileNotFoundError:
        return Progress()
    except (OSError, ValidationError) as error:
        raise BridgeError(f"{path} cannot be read; remove it to begin the set-up anew.") from error


def _keep(errand: Errand, progress: Progress) -> None:
    write_private(errand.state_dir / PROGRESS_NAME, json.dumps(asdict(progress)) + "\n")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML is written like one of JSON


def _quote_list(texts: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_quote, texts))}]"
