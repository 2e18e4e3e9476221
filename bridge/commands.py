# ruff: noqa: PLC0415, T201 - a command imports what it needs when it runs, so that --help is quick; and it prints
"""What each command does: it reads the config, imports what it needs, and prints.

Above it: usage. Below it: app, the demo and the control socket's client. It returns the exit code, and raises what `cli` words.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bridge.core.errors import BridgeError, CommandRefused, ConfigError, ControlError, NotRunning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bridge.config import Config
    from bridge.core.model import JsonObject
    from bridge.ops.login import Wish


def _load(args: argparse.Namespace) -> "Config":
    from bridge import config

    return config.load(config.find(args.config, os.environ))


def _load_for_service(args: argparse.Namespace, *, quiet: bool = False) -> "Config":
    """The config, with the log set up and every secret hidden in it."""
    from bridge import config, logs

    loaded = _load(args)
    logs.set_up(debug=args.debug, quiet=quiet)
    secrets = config.read_secrets(loaded)
    for secret in (secrets.access_token, secrets.password):
        if secret is not None:
            logs.hide(secret.get_secret_value())
    return loaded


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    loaded = _load_for_service(args)
    from bridge import app

    return app.run(loaded)


def check(args: argparse.Namespace) -> int:
    """Try each thing, and where it is wished ask in the room."""
    loaded = _load_for_service(args, quiet=True)
    from bridge import app, config

    code = app.check(loaded, config.find(args.config, os.environ))
    return code if args.ask is None else _ask(loaded, args.ask) or code


def _ask(loaded: "Config", name: str) -> int:
    """Through the running bridge, else as one of our own."""
    from bridge import app
    from bridge.core.model import AgentName
    from bridge.ops import client, control, table

    agent = name or next(iter(loaded.agents))
    section = loaded.agents.get(agent)
    if section is None:
        raise ConfigError(f"There is no agent {agent} in the config; it has {', '.join(loaded.agents)}.")
    if section.room is None or not section.approvers:
        raise ConfigError(f"agents.{agent} has no room or no approvers: there is nobody to ask.")
    print(f"A question is in the room of {agent} now; answer it from your Matrix client ...", flush=True)
    try:
        path = control.socket_path(loaded.state_dir)
        reply: JsonObject = client.call(path, "question.ask", {"agent": agent}, timeout_s=client.QUESTION_TIMEOUT_S)
    except NotRunning:
        reply = app.ask(loaded, AgentName(agent))
    print(table.show_reply(agent, reply))
    return 0 if reply.get("ending") == "answered" else BridgeError.exit_code


def verify(args: argparse.Namespace) -> int:
    """Compare emoji with an approver, or show who is pinned."""
    if args.json and not args.list:
        raise ConfigError("--json belongs to --list.")
    if args.list and args.user is not None:
        raise ConfigError("--list shows everybody: give no USER.")
    loaded = _load(args) if args.list else _load_for_service(args, quiet=True)
    from bridge import app

    return app.list_verified(loaded, as_json=args.json) if args.list else app.verify(loaded, args.user)


def demo(args: argparse.Namespace) -> int:
    """All of it on this machine."""
    from bridge import logs
    from bridge.demo import play
    from bridge.demo.person import Person

    logs.set_up(debug=args.debug)
    client = Person
    if args.encrypted:
        from bridge.demo.encrypting import EncryptingPerson

        client = EncryptingPerson
    if args.check:
        if args.answer or args.json:
            raise ConfigError("--check asks nobody: give neither --answer nor --json with it.")
        return play.check(client)
    return play.run(args.answer, args.json, client)


def login(args: argparse.Namespace) -> int:
    """Open the account, and print the config to paste."""
    from bridge import app

    return app.login(_make_wish(args, args.state_dir))


def setup(args: argparse.Namespace) -> int:
    """Walk a newcomer through all of it."""
    from bridge import app, config
    from bridge.ops.setup import Errand

    path: Path = (args.config or Path("config.toml")).absolute()
    if path.exists():
        args.config = path
        state_dir = config.load(path).state_dir
    else:
        state_dir = args.state_dir or path.parent / "state"
    wish = _make_wish(args, state_dir)
    return app.setup(Errand(config=path, state_dir=state_dir.absolute(), encrypted=wish.encryption), wish)


def _make_wish(args: argparse.Namespace, state_dir: Path | None) -> "Wish":
    """What command line, config and environment say of the account already."""
    from bridge import config, logs
    from bridge.core.model import UserId
    from bridge.ops.login import Wish

    logs.set_up(debug=args.debug, quiet=True)
    try:
        path = config.find(args.config, os.environ)
    except ConfigError:  # the first login comes before the config
        loaded, password = None, os.environ.get(config.PASSWORD_VARIABLE)
    else:
        loaded = config.load(path)
        found = config.read_password(loaded)
        password = found.get_secret_value() if found else None
    if args.sso and args.token_file is not None:
        raise ConfigError("Give --sso or --token-file, not both.")
    token = _read_secret(args.token_file, "token file", "the access token", one_word=True)
    recovery_key = _read_secret(args.recovery_key_file, "recovery key file", "the recovery key", one_word=False)
    for secret in (token, recovery_key, password):
        logs.hide(secret or "")
    user = args.user or (loaded.matrix.user_id if loaded else None)
    folder = state_dir or (loaded.state_dir if loaded else Path("state"))
    return Wish(
        token_file=folder.absolute() / config.SAVED_TOKEN_NAME,
        homeserver=args.homeserver or (loaded.matrix.homeserver if loaded else None),
        user_id=UserId(user) if user else None,
        access_token=token,
        password=password or None,
        by_browser=args.sso,
        new_device=args.new_device,
        encryption=not args.no_encryption and (loaded is None or loaded.matrix.encryption),
        recovery_key=recovery_key,
        ask_recovery_key=args.recovery_key,
        reset_identity=args.reset_identity,
    )


def _read_secret(name: str | None, kind: str, what: str, *, one_word: bool) -> str | None:
    if name is None:
        return None
    try:
        secret = (sys.stdin.read() if name == "-" else Path(name).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The {kind} {name} cannot be read.") from error
    if not secret or len(secret.split() if one_word else secret.splitlines()) > 1:
        raise ConfigError(f"The {kind} {name} must hold {what} and nothing else.")
    return secret


def pending(args: argparse.Namespace) -> int:
    """Show what waits."""
    from datetime import UTC, datetime

    from bridge.ops import client, control, table

    result = client.call(control.socket_path(_load(args).state_dir), "permission.list", {})
    pending = cast("list[JsonObject]", result["pending"])
    if args.json:
        _print_json(pending)
    else:
        for line in table.show_pending(pending, datetime.now(UTC)):
            print(line)
    return 0


def history(args: argparse.Namespace) -> int:
    """Show the record."""
    if args.after is not None and args.session is None:
        raise ConfigError("--after belongs to one session: give --session as well.")
    from bridge.ops import table

    for record in _read_history(args):
        if args.json:
            _print_json([record])
        else:
            print(table.show_record(record), flush=args.follow)
    return 0


def _read_history(args: argparse.Namespace) -> "Iterator[JsonObject]":
    """From the running bridge, else from the ledger itself."""
    from bridge.ops import client, control

    loaded = _load(args)
    path = control.socket_path(loaded.state_dir)
    wanted: JsonObject = {"session_id": args.session} if args.session else {}
    agents: dict[object, object] = {}  # session to agent: only some records name theirs, the first of a session does
    try:
        records = client.follow(path, wanted) if args.follow else _read_once(path, wanted)
        for record in records:
            agents.setdefault(record["session_id"], record.get("agent"))
            mine = args.agent is None or agents[record["session_id"]] == args.agent
            if mine and cast("int", record["sequence"]) > (args.after or 0):
                yield record
    except NotRunning:
        if args.follow:
            raise
        yield from _read_ledger(args, loaded)
    else:
        if args.follow:
            raise ControlError("The bridge has ended; there are no more records to follow.")


def _read_once(path: Path, wanted: "JsonObject") -> "list[JsonObject]":
    from bridge.ops import client

    return cast("list[JsonObject]", client.call(path, "history.read", wanted)["records"])


def _read_ledger(args: argparse.Namespace, loaded: "Config") -> "Iterator[JsonObject]":
    from bridge.core.model import AgentName, SessionId
    from bridge.ops.control import record_to_json
    from bridge.store.ledger import read_history

    session = SessionId(args.session) if args.session else None
    records = read_history(
        loaded.ledger_file,
        after={session: args.after or 0} if session else None,
        session_id=session,
        agent=AgentName(args.agent) if args.agent else None,
    )
    return map(record_to_json, records)


def answer(args: argparse.Namespace) -> int:
    """Answer on this machine."""
    from bridge.ops import client, control, table

    session = args.session or args.request_id.rpartition(":")[0]
    if not session:
        raise ConfigError("REQUEST_ID should look like acps_0123456789abcdef:12; `pending` shows those that wait.")
    params = {"session_id": session, "request_id": args.request_id, "option_id": args.option_id}
    try:
        result = client.call(control.socket_path(_load(args).state_dir), "permission.respond", params)
    except CommandRefused as error:
        print(table.show_refusal(error), file=sys.stderr)
        return error.exit_code
    if result["status"] == "accepted":
        print(f"Accepted: the agent was answered with {table.show(args.option_id)}.")
        return 0
    print(table.show_reason(result["reason"]), file=sys.stderr)
    return ControlError.exit_code


def _print_json(lines: "Iterable[JsonObject]") -> None:
    import json

    for line in lines:
        print(json.dumps(line), flush=True)  # ASCII: nothing in it can steer a terminal
