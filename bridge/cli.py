# ruff: noqa: PLC0415, T201 - a command imports what it needs when it runs, so that --help is quick; and it prints
"""The command line: which command, with which config, and how it ends (interface.md, Commands).

Above it: the shell. Below it: app, the demo and the control socket's client, each imported by the command that needs
it. Every error becomes one plain sentence and an exit code here; a traceback is shown for `--debug` alone.
"""

import argparse
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bridge.core.errors import BridgeError, CommandRefused, ConfigError, ControlError, NotRunning

if TYPE_CHECKING:
    from bridge.config import Config
    from bridge.core.model import JsonObject

DISTRIBUTION = "acp-matrix-bridge"
EXIT_INTERRUPTED = 130  # as shells say it: 128 and SIGINT


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code and never raises for what a person can bring about."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the locale cannot show is no reason to fail
    args = make_parser().parse_args(words)
    try:
        code: int = args.act(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not find the pipe broken once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BridgeError.exit_code
    except Exception as error:  # noqa: BLE001 - the one guard at the top
        return _report(error, debug=args.debug)
    return code


def _open_closed_streams() -> None:
    """A service may be started without standard streams: what is opened next must not get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end


def _report(error: BaseException, *, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    cause = _unwrap(error)
    if isinstance(cause, BridgeError):
        print(cause, file=sys.stderr)
        return cause.exit_code
    print(
        f"There was an error inside the bridge ({type(cause).__name__}); that is a fault of the bridge, not yours. "
        "Please report it, with what `--debug` shows when you run the command again.",
        file=sys.stderr,
    )
    return BridgeError.exit_code


def _unwrap(error: BaseException) -> BaseException:
    """The one error that a task group has wrapped."""
    group = cast("BaseExceptionGroup[BaseException] | None", error if hasattr(error, "exceptions") else None)
    return _unwrap(group.exceptions[0]) if group is not None and len(group.exceptions) == 1 else error


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that costs as much as all the rest of the start."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        from importlib import metadata

        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print(DISTRIBUTION, version)
        parser.exit()


def _read_count(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise argparse.ArgumentTypeError("must be a whole number")
    return int(word)


def _make_common() -> argparse.ArgumentParser:
    """The options that stand before or after the command; each parser needs its own, since a default is set on one."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="the config file; default: ./config.toml"
    )
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks, and log more of what happens"
    )
    return common


def make_parser() -> argparse.ArgumentParser:
    """Every command and option there is; the documents are held to it by a test."""
    common = _make_common()
    parser = argparse.ArgumentParser(
        prog=DISTRIBUTION,
        parents=[_make_common()],
        description="Approve from a Matrix room what a coding agent wants to do.",
    )
    parser.set_defaults(config=None, debug=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser("run", parents=[common], help="serve the agents and rooms of the config until SIGTERM")
    run.set_defaults(act=_run)

    demo = commands.add_parser("demo", parents=[common], help="try it on this machine: homeserver, agent and person")
    demo.add_argument(
        "--answer", action="append", default=[], metavar="TEXT", help="what the person replies; repeat for more replies"
    )
    demo.add_argument("--encrypted", action="store_true", help="in an encrypted room, with a client that encrypts")
    demo.add_argument("--json", action="store_true", help="print the outcome only")
    demo.set_defaults(act=_demo)

    login = commands.add_parser("login", parents=[common], help="open the bridge's Matrix account and keep its token")
    login.add_argument("--homeserver", metavar="URL", help="its address or server name")
    login.add_argument("--user", metavar="ID", help="the bridge's user id, such as @bridge:example.org")
    login.add_argument(
        "--token-file", metavar="FILE", help="take the access token from this file; - for standard input"
    )
    login.add_argument("--state-dir", type=Path, metavar="DIR", help="where to keep it; default: the config's, ./state")
    login.set_defaults(act=_login)

    check = commands.add_parser("check", parents=[common], help="try each thing that `run` needs")
    check.set_defaults(act=_check)

    pending = commands.add_parser("pending", parents=[common], help="show what waits, for how long, and where")
    pending.add_argument("--json", action="store_true", help="print JSON lines")
    pending.set_defaults(act=_pending)

    history = commands.add_parser("history", parents=[common], help="show the durable record")
    history.add_argument("--agent", metavar="NAME", help="of this agent only")
    history.add_argument("--session", metavar="ID", help="of this session only")
    history.add_argument("--after", type=_read_count, metavar="SEQ", help="what follows this number; needs --session")
    history.add_argument("--follow", action="store_true", help="go on with each new record")
    history.add_argument("--json", action="store_true", help="print JSON lines")
    history.set_defaults(act=_history)

    answer = commands.add_parser("answer", parents=[common], help="answer a waiting request on this machine")
    answer.add_argument("request_id", metavar="REQUEST_ID")
    answer.add_argument("option_id", metavar="OPTION_ID")
    answer.add_argument("--session", metavar="ID", help="the request's session; default: from its id")
    answer.set_defaults(act=_answer)
    return parser


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


def _run(args: argparse.Namespace) -> int:
    loaded = _load_for_service(args)
    from bridge import app

    return app.run(loaded)


def _check(args: argparse.Namespace) -> int:
    loaded = _load_for_service(args, quiet=True)
    from bridge import app, config

    return app.check(loaded, config.find(args.config, os.environ))


def _demo(args: argparse.Namespace) -> int:
    from bridge import logs
    from bridge.demo import play
    from bridge.demo.person import Person

    logs.set_up(debug=args.debug)
    client = Person
    if args.encrypted:
        from bridge.demo.encrypting import EncryptingPerson

        client = EncryptingPerson
    return play.run(args.answer, args.json, client)


def _login(args: argparse.Namespace) -> int:
    from bridge import app, config, logs
    from bridge.core.model import UserId
    from bridge.ops.login import Wish

    logs.set_up(debug=args.debug)
    try:
        path = config.find(args.config, os.environ)
    except ConfigError:  # the first login comes before the config
        loaded = password = None
    else:
        loaded = config.load(path)
        password = config.read_password(loaded)
    token = _read_token(args.token_file)
    for secret in (token, password.get_secret_value() if password else None):
        logs.hide(secret or "")
    user = args.user or (loaded.matrix.user_id if loaded else None)
    state_dir: Path = args.state_dir or (loaded.state_dir if loaded else Path("state"))
    return app.login(
        Wish(
            token_file=state_dir.absolute() / config.SAVED_TOKEN_NAME,
            homeserver=args.homeserver or (loaded.matrix.homeserver if loaded else None),
            user_id=UserId(user) if user else None,
            access_token=token,
            password=password.get_secret_value() if password else None,
        )
    )


def _read_token(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        token = (sys.stdin.read() if name == "-" else Path(name).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The token file {name} cannot be read.") from error
    if not token or len(token.split()) > 1:
        raise ConfigError(f"The token file {name} must hold the access token and nothing else.")
    return token


def _pending(args: argparse.Namespace) -> int:
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


def _history(args: argparse.Namespace) -> int:
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


def _answer(args: argparse.Namespace) -> int:
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
