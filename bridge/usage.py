"""The words of the command line: every command and option, and what is read from each.

Above it: cli. Below it: commands, which do what is asked; nothing heavy is imported for `--help` and `--version`.
"""

import argparse
from pathlib import Path

from bridge import commands

DISTRIBUTION = "acp-matrix-bridge"


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that costs as much as all the rest of the start."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        from importlib import metadata  # noqa: PLC0415 - see above

        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print(DISTRIBUTION, version)  # noqa: T201 - what was asked for
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
    words = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = words.add_parser("run", parents=[common], help="serve the agents and rooms of the config until SIGTERM")
    run.set_defaults(act=commands.run)

    demo = words.add_parser("demo", parents=[common], help="try it on this machine: homeserver, agent and person")
    demo.add_argument(
        "--answer", action="append", default=[], metavar="TEXT", help="what the person replies; repeat for more replies"
    )
    demo.add_argument("--encrypted", action="store_true", help="in an encrypted room, with a client that encrypts")
    demo.add_argument("--json", action="store_true", help="print the outcome only")
    demo.add_argument("--check", action="store_true", help="run `check` against it, and nothing else")
    demo.set_defaults(act=commands.demo)

    login = words.add_parser("login", parents=[common], help="open the bridge's Matrix account and keep its token")
    _add_login(login)
    setup = words.add_parser(
        "setup", parents=[common], help="walk through all of it: account, room, people, agent, config"
    )
    _add_setup(setup)

    check = words.add_parser("check", parents=[common], help="try each thing that `run` needs")
    check.add_argument(
        "--ask",
        nargs="?",
        const="",
        metavar="AGENT",
        help="then ask a harmless question in the agent's room, and wait for an answer from a Matrix client",
    )
    check.set_defaults(act=commands.check)

    verify = words.add_parser(
        "verify", parents=[common], help="compare emoji with an approver's client and pin who it is"
    )
    verify.add_argument(
        "user", metavar="USER", nargs="?", help="ask this approver's client; default: wait until one asks"
    )
    verify.add_argument("--list", action="store_true", help="show whose identity is pinned, and do nothing else")
    verify.add_argument("--json", action="store_true", help="with --list: print JSON lines")
    verify.set_defaults(act=commands.verify)

    pending = words.add_parser("pending", parents=[common], help="show what waits, for how long, and where")
    pending.add_argument("--json", action="store_true", help="print JSON lines")
    pending.set_defaults(act=commands.pending)

    history = words.add_parser("history", parents=[common], help="show the durable record")
    history.add_argument("--agent", metavar="NAME", help="of this agent only")
    history.add_argument("--session", metavar="ID", help="of this session only")
    history.add_argument("--after", type=_read_count, metavar="SEQ", help="what follows this number; needs --session")
    history.add_argument("--follow", action="store_true", help="go on with each new record")
    history.add_argument("--json", action="store_true", help="print JSON lines")
    history.set_defaults(act=commands.history)

    answer = words.add_parser("answer", parents=[common], help="answer a waiting request on this machine")
    answer.add_argument("request_id", metavar="REQUEST_ID")
    answer.add_argument("option_id", metavar="OPTION_ID")
    answer.add_argument("--session", metavar="ID", help="the request's session; default: from its id")
    answer.set_defaults(act=commands.answer)
    return parser


def _add_login(login: argparse.ArgumentParser) -> None:
    login.add_argument("--homeserver", metavar="URL", help="its address or server name")
    login.add_argument("--user", metavar="ID", help="the bridge's user id, such as @bridge:example.org")
    login.add_argument(
        "--token-file", metavar="FILE", help="take the access token from this file; - for standard input"
    )
    login.add_argument("--sso", action="store_true", help="log in through a browser")
    login.add_argument(
        "--new-device", action="store_true", help="make a new device though the token works: its keys are lost"
    )
    login.add_argument("--recovery-key", action="store_true", help="ask for the account's recovery key if it is needed")
    login.add_argument(
        "--recovery-key-file", metavar="FILE", help="take the recovery key from this file; - for standard input"
    )
    login.add_argument(
        "--reset-identity", action="store_true", help="replace the account's cross-signing identity by a new one"
    )
    login.add_argument("--no-encryption", action="store_true", help="make no keys: encrypted rooms are not wanted")
    login.add_argument("--state-dir", type=Path, metavar="DIR", help="where to keep it; default: the config's, ./state")
    login.set_defaults(act=commands.login)


def _add_setup(setup: argparse.ArgumentParser) -> None:
    setup.add_argument("--homeserver", metavar="URL", help="its address or server name")
    setup.add_argument("--user", metavar="ID", help="the bridge's user id, such as @bridge:example.org")
    setup.add_argument("--sso", action="store_true", help="log in through a browser")
    setup.add_argument(
        "--token-file", metavar="FILE", help="take the access token from this file; - for standard input"
    )
    setup.add_argument("--no-encryption", action="store_true", help="make an unencrypted room, and no keys")
    setup.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="where to keep it all; default: state beside the config"
    )
    setup.set_defaults(
        act=commands.setup, new_device=False, recovery_key=False, recovery_key_file=None, reset_identity=False
    )
