import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import anyio
import anyio.from_thread
import pytest

import bridge
import bridge.demo
from bridge import cli, config, logs
from bridge.core.changes import Record
from bridge.core.errors import AgentStartFailed, BridgeError, CredentialsRefused, LedgerError
from bridge.demo.encrypting import EncryptingPerson
from bridge.demo.person import Person
from bridge.ops import control
from bridge.ops.login import Wish
from tests.fakes.control_target import OTHER, REQUEST, SESSION, FakeControlTarget, make_record

CONFIG = """\
state_dir = "state"
[matrix]
homeserver = "https://hs"
user_id = "@bot:hs"
[agents.claude]
command = ["agent"]
room = "!r"
approvers = ["@amy:hs"]
"""
ROOT = Path(__file__).parents[1]


@dataclass(slots=True)
class FakeApp:
    """`bridge.app` and `bridge.demo.play`: they do what a test says."""

    act: Callable[[], int] = lambda: 0
    configs: list[config.Config] = field(default_factory=list[config.Config])
    verified: list[str | None] = field(default_factory=list[str | None])
    listed: list[bool] = field(default_factory=list[bool])
    wishes: list[Wish] = field(default_factory=list[Wish])
    asked: list[str] = field(default_factory=list[str])
    demos: list[tuple[list[str], bool, type]] = field(default_factory=list[tuple[list[str], bool, type]])

    def run(self, loaded: config.Config) -> int:
        self.configs.append(loaded)
        return self.act()

    def check(self, loaded: config.Config, path: Path) -> int:
        assert path.name == "config.toml"
        return self.run(loaded)

    def ask(self, loaded: config.Config, agent: str) -> dict[str, object]:
        self.configs.append(loaded)
        self.asked.append(agent)
        return {"ending": "answered", "by": "@alice:hs", "via": "message", "event_id": "$q"}

    def verify(self, loaded: config.Config, user: str | None) -> int:
        self.verified.append(user)
        return self.run(loaded)

    def list_verified(self, loaded: config.Config, *, as_json: bool) -> int:
        self.listed.append(as_json)
        return self.run(loaded)

    def login(self, wish: Wish) -> int:
        self.wishes.append(wish)
        return self.act()

    def check_demo(self, client: type) -> int:
        self.demos.append((["check"], False, client))
        return 3

    def play(self, answers: list[str], json_only: bool, client: type) -> int:
        self.demos.append((answers, json_only, client))
        return self.act()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACP_MATRIX_BRIDGE_ACCESS_TOKEN", "syt_token")
    monkeypatch.delenv("ACP_MATRIX_BRIDGE_CONFIG", raising=False)
    monkeypatch.delenv("ACP_MATRIX_BRIDGE_PASSWORD", raising=False)
    monkeypatch.setattr(config, "SYSTEM_PATH", tmp_path / "etc.toml")
    monkeypatch.setattr(logs, "set_up", _set_up_nothing)
    monkeypatch.setattr(logs, "_hidden", [])
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "state").mkdir(mode=0o700)


def _set_up_nothing(*, debug: bool, quiet: bool = False) -> None:
    del debug, quiet


def _put_in_place(monkeypatch: pytest.MonkeyPatch, package: ModuleType, name: str, **names: object) -> None:
    module = ModuleType(f"{package.__name__}.{name}")
    for key, value in names.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(package, name, module, raising=False)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    fake = FakeApp()
    names = {name: getattr(fake, name) for name in ("run", "check", "login", "ask", "verify", "list_verified")}
    _put_in_place(monkeypatch, bridge, "app", **names)
    _put_in_place(monkeypatch, bridge.demo, "play", run=fake.play, check=fake.check_demo)
    return fake


@pytest.fixture
def service(tmp_path: Path) -> Generator[FakeControlTarget]:
    """A running bridge: its control socket, in a thread of its own."""
    target = FakeControlTarget(records=[make_record(1), make_record(1, session=OTHER, agent="codex"), make_record(2)])
    with anyio.from_thread.start_blocking_portal() as portal:
        task, _ = portal.start_task(control.serve, tmp_path / "state", target)
        yield target
        task.cancel()


def _run_python(*words: str) -> subprocess.CompletedProcess[str]:
    # Unmeasured: what counts the lines would import what the program must not.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, env=environment
    )


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(word: str) -> None:
    code = (
        "import sys; from bridge import cli\n"
        f"try: cli.main([{word!r}])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = _run_python("-c", code)
    heavy = {"pydantic", "anyio", "asyncio", "structlog", "nio", "aiohttp", "sqlite3", "logging", "tomllib"}
    assert heavy & set(done.stderr.split()) == set()
    assert "acp-matrix-bridge" in done.stdout


def test_the_package_runs_as_a_module() -> None:
    done = _run_python("-m", "bridge", "--help")
    assert done.returncode == 0
    commands = ("run", "demo", "login", "check", "verify", "pending", "history", "answer")
    assert [name for name in commands if f"\n    {name} " not in done.stdout] == []


@pytest.mark.parametrize("words", [[], ["nope"], ["answer"], ["history", "--after", "-1"], ["history", "--after", "٣"]])
def test_a_wrong_command_line_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_service_command_gets_the_config_and_gives_its_exit_code(command: str, app: FakeApp) -> None:
    app.act = lambda: 4
    assert cli.main([command]) == 4
    assert app.configs[0].matrix.user_id == "@bot:hs"


def test_check_says_its_lines_alone_and_run_logs_what_happens(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def set_up(*, debug: bool, quiet: bool = False) -> None:
        del debug
        asked.append(quiet)

    monkeypatch.setattr(logs, "set_up", set_up)
    for command in ("check", "run"):
        cli.main([command])
    assert asked == [True, False]
    assert len(app.configs) == 2


def test_check_asks_in_the_room_itself_where_no_bridge_runs(app: FakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.main(["check", "--ask"])
    assert ["claude"] == app.asked
    assert "answered by @alice:hs" in capsys.readouterr().out


def test_check_has_the_running_bridge_ask(
    app: FakeApp, service: FakeControlTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    service.reply = {"ending": "session_deleted", "event_id": "$q"}
    assert 1 == cli.main(["check", "--ask", "claude"])
    assert [] == app.asked
    assert "it ended: session_deleted" in capsys.readouterr().out


def test_check_names_the_agents_when_there_is_no_such_one(app: FakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == cli.main(["check", "--ask", "nobody"])
    assert "There is no agent nobody in the config; it has claude." in capsys.readouterr().err
    assert [] == app.asked


def test_the_secrets_are_hidden_in_the_log_before_the_service_runs(app: FakeApp) -> None:
    app.act = lambda: len(logs.redact(None, "", {"event": "Bearer syt_token"})["event"])
    assert cli.main(["run"]) == len("Bearer ***")


def test_a_service_without_any_credentials_ends_with_2(
    app: FakeApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ACP_MATRIX_BRIDGE_ACCESS_TOKEN")
    assert cli.main(["run"]) == 2
    assert "acp-matrix-bridge login" in capsys.readouterr().err
    assert app.configs == []


def test_the_config_is_named_before_or_after_the_command(app: FakeApp, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(CONFIG.replace("@bot", "@other"))
    for words in (["--config", "other.toml", "run"], ["run", "--config", "other.toml"]):
        cli.main(words)
    assert [loaded.matrix.user_id for loaded in app.configs] == ["@other:hs", "@other:hs"]


def test_a_config_error_is_said_plainly_and_ends_with_2(
    app: FakeApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG + 'polcy = "ask"\n')
    assert cli.main(["run"]) == 2
    assert (
        capsys.readouterr().err
        == "config.toml, line 9: agents.claude.polcy is no key of the config; the nearest one is policy.\n"
    )
    assert app.configs == []


def _raise(error: BaseException) -> Callable[[], int]:
    def act() -> int:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BridgeError("It failed."), 1),
        (CredentialsRefused("It failed."), 3),
        (AgentStartFailed("It failed."), 4),
        (ExceptionGroup("wrapped", [ExceptionGroup("twice", [AgentStartFailed("It failed.")])]), 4),
    ],
)
def test_an_error_is_one_sentence_and_its_exit_code(
    error: Exception, code: int, app: FakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    app.act = _raise(error)
    assert cli.main(["run"]) == code
    assert capsys.readouterr().err == "It failed.\n"


@pytest.mark.parametrize("error", [ValueError("the text of a person"), ExceptionGroup("x", [ValueError(), KeyError()])])
def test_a_fault_of_the_bridge_is_called_one_and_its_words_are_not_repeated(
    error: Exception, app: FakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    app.act = _raise(error)
    assert cli.main(["run"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("There was an error inside the bridge")
    assert len(shown.splitlines()) == 1
    assert "person" not in shown


def test_the_traceback_is_for_debug(app: FakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    app.act = _raise(BridgeError("It failed."))
    assert cli.main(["run", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_quietly_with_130(app: FakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    app.act = _raise(KeyboardInterrupt())
    assert (cli.main(["run"]), capsys.readouterr().err) == (130, "")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = "import sys; from bridge import cli, commands; commands.pending = lambda _: print('x'); sys.exit(cli.main(['pending']))"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", code], cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_opened_before_anything_else_gets_their_numbers(closed: str) -> None:
    code = "import os, sys; from bridge import cli; cli.main(['pending']); sys.exit(os.open('/dev/null', 0) < 3)"
    done = subprocess.run(  # noqa: S603 - our own interpreter
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0


def test_the_demo_gets_its_answers_in_their_order(app: FakeApp) -> None:
    cli.main(["demo"])
    cli.main(["demo", "--answer", "1", "--answer", "Allow once", "--json"])
    cli.main(["demo", "--encrypted"])
    assert app.demos == [([], False, Person), (["1", "Allow once"], True, Person), ([], False, EncryptingPerson)]


def test_the_demo_can_be_checked_and_asks_nobody_then(app: FakeApp) -> None:
    assert 3 == cli.main(["demo", "--check"])
    assert 3 == cli.main(["demo", "--check", "--encrypted"])
    assert app.demos == [(["check"], False, Person), (["check"], False, EncryptingPerson)]
    assert 2 == cli.main(["demo", "--check", "--json"])
    assert 2 == cli.main(["demo", "--check", "--answer", "1"])


def test_login_takes_what_the_config_says(app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACP_MATRIX_BRIDGE_PASSWORD", "pw")
    cli.main(["login"])
    (wish,) = app.wishes
    assert (wish.homeserver, wish.user_id, wish.token_file) == (
        "https://hs",
        "@bot:hs",
        tmp_path / "state/access_token",
    )
    assert (wish.access_token, wish.password) == (None, "pw")


def test_login_works_before_there_is_a_config(app: FakeApp, tmp_path: Path) -> None:
    (tmp_path / "config.toml").unlink()
    (tmp_path / "t").write_text("syt_given\n")
    cli.main(["login", "--user", "@b:hs", "--homeserver", "hs", "--token-file", "t", "--state-dir", "there"])
    (wish,) = app.wishes
    assert (wish.homeserver, wish.user_id, wish.token_file) == ("hs", "@b:hs", tmp_path / "there/access_token")
    assert wish.access_token == "syt_given"


def test_login_asks_for_what_nobody_said(app: FakeApp, tmp_path: Path) -> None:
    (tmp_path / "config.toml").unlink()
    cli.main(["login"])
    assert app.wishes == [Wish(token_file=tmp_path / "state" / "access_token")]


def test_login_takes_the_password_of_the_environment_before_there_is_a_config(
    app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").unlink()
    monkeypatch.setenv("ACP_MATRIX_BRIDGE_PASSWORD", "pw")
    cli.main(["login"])
    assert app.wishes[0].password == "pw"
    assert logs.redact(None, "", {"event": "pw"})["event"] == "***"


def test_login_hands_on_how_it_is_wanted(app: FakeApp, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("EsTx ABCD\n")
    cli.main(["login"])
    cli.main(["login", "--sso", "--new-device", "--recovery-key", "--reset-identity", "--no-encryption"])
    cli.main(["login", "--recovery-key-file", "key"])
    plain, all_of_them, key = app.wishes
    wanted = ("by_browser", "new_device", "ask_recovery_key", "reset_identity")
    assert [getattr(plain, name) for name in wanted] == [False] * 4
    assert [getattr(all_of_them, name) for name in wanted] == [True] * 4
    assert (plain.encryption, all_of_them.encryption) == (True, False)
    assert (plain.recovery_key, key.recovery_key) == (None, "EsTx ABCD")


def test_login_makes_no_keys_where_the_config_wants_no_encryption(app: FakeApp, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.replace("[agents", "encryption = false\n[agents", 1))
    cli.main(["login"])
    assert not app.wishes[0].encryption


def test_login_takes_a_browser_or_a_token(app: FakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["login", "--sso", "--token-file", "-"]) == 2
    assert "not both" in capsys.readouterr().err
    assert app.wishes == []


def test_login_with_a_named_config_that_is_missing_is_an_error(app: FakeApp) -> None:
    assert cli.main(["login", "--config", "none.toml"]) == 2
    assert app.wishes == []


def test_a_token_comes_over_standard_input(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "read", lambda: "syt_given\n")
    cli.main(["login", "--token-file", "-"])
    assert app.wishes[0].access_token == "syt_given"


@pytest.mark.parametrize("content", ["", "two words"])
def test_a_token_file_that_holds_no_token_is_refused(
    content: str, app: FakeApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").write_text(content)
    assert cli.main(["login", "--token-file", "t"]) == 2
    assert cli.main(["login", "--token-file", "none"]) == 2
    assert "two words" not in capsys.readouterr().err
    assert app.wishes == []


@pytest.mark.usefixtures("service")
def test_pending_is_a_table_or_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pending"]) == 0
    assert f"{REQUEST}  #3  claude" in capsys.readouterr().out
    assert cli.main(["pending", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request_id"] == REQUEST


@pytest.mark.parametrize("words", [["pending"], ["answer", REQUEST, "allow_once"], ["history", "--follow"]])
def test_without_a_running_bridge_its_commands_say_so(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    assert capsys.readouterr().err.startswith("The bridge is not running")


def _read_json(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    records = [cast("dict[str, Any]", json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    return [(record["session_id"], record["sequence"]) for record in records]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [(SESSION, 1), (OTHER, 1), (SESSION, 2)]),
        (["--session", SESSION], [(SESSION, 1), (SESSION, 2)]),
        (["--session", SESSION, "--after", "1"], [(SESSION, 2)]),
        (["--agent", "codex"], [(OTHER, 1)]),
        (["--agent", "claude", "--session", SESSION, "--after", "1"], [(SESSION, 2)]),
    ],
)
@pytest.mark.usefixtures("service")
def test_history_shows_what_is_asked_for(
    words: list[str], expected: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["history", "--json", *words]) == 0
    assert _read_json(capsys) == expected


def test_a_record_without_its_agents_name_belongs_to_its_sessions_agent(
    service: FakeControlTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    service.records.append(
        Record(sequence=2, session_id=OTHER, timestamp="2026-11-07T10:29:58Z", type="permission_posted", fields={})
    )
    cli.main(["history", "--json", "--agent", "codex"])
    assert _read_json(capsys) == [(OTHER, 1), (OTHER, 2)]


@pytest.mark.usefixtures("service")
def test_history_is_a_table_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["history", "--session", SESSION, "--after", "1"])
    assert capsys.readouterr().out == f"2026-11-07 10:29:58  {SESSION}  2  session of claude started\n"


def test_after_without_a_session_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", "--after", "3"]) == 2
    assert "--session" in capsys.readouterr().err


def test_history_is_read_from_the_ledger_while_the_bridge_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Path, object]] = []

    def read_history(path: Path, **wanted: object) -> list[Record]:
        asked.append((path, wanted))
        return [make_record(7)]

    import bridge.store  # noqa: PLC0415 - only this test stands in for a module of it

    _put_in_place(monkeypatch, bridge.store, "ledger", read_history=read_history)
    assert cli.main(["history", "--json", "--session", SESSION, "--after", "6", "--agent", "claude"]) == 0
    wanted = {"after": {SESSION: 6}, "session_id": SESSION, "agent": "claude"}
    assert asked == [(tmp_path / "state" / "ledger.db", wanted)]
    assert _read_json(capsys) == [(SESSION, 7)]


def test_history_without_bridge_and_ledger_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_history(_path: Path, **_wanted: object) -> list[Record]:
        raise LedgerError("There is no ledger.")

    import bridge.store  # noqa: PLC0415 - as above

    _put_in_place(monkeypatch, bridge.store, "ledger", read_history=read_history)
    assert (cli.main(["history"]), capsys.readouterr().err) == (1, "There is no ledger.\n")


def test_following_ends_with_the_bridge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = FakeControlTarget(records=[make_record(1)])
    with anyio.from_thread.start_blocking_portal() as portal:
        task, _ = portal.start_task(control.serve, tmp_path / "state", target)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(cli.main(["history", "--follow", "--json"])))
        thread.start()

        async def publish_when_followed() -> None:
            with anyio.fail_after(5):
                while not target.readers:
                    await anyio.lowlevel.checkpoint()
                target.publish(make_record(2))

        portal.call(publish_when_followed)
        task.cancel()
        thread.join(5)
    shown = capsys.readouterr()
    assert codes == [1]
    assert shown.err == "The bridge has ended; there are no more records to follow.\n"
    assert json.loads(shown.out.splitlines()[0])["sequence"] == 1


def test_an_answer_is_accepted_once(service: FakeControlTarget, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["answer", REQUEST, "allow_once"]) == 0
    assert capsys.readouterr().out == "Accepted: the agent was answered with allow_once.\n"
    assert cli.main(["answer", REQUEST, "reject_once"]) == 1
    assert "it was answered before" in capsys.readouterr().err
    assert service.decided == {REQUEST: "allow_once"}


@pytest.mark.usefixtures("service")
def test_an_answer_that_counts_for_nothing_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["answer", REQUEST, "nope"]) == 1
    assert "Offered: allow_once, reject_once" in capsys.readouterr().err


@pytest.mark.usefixtures("service")
def test_the_session_of_an_answer_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["answer", REQUEST, "allow_once", "--session", OTHER]) == 1
    assert "no such request in this session" in capsys.readouterr().err


def test_what_is_no_request_id_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["answer", "12", "allow_once"]) == 2
    assert "`pending`" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------------- verify


@pytest.mark.parametrize(("words", "user"), [([], None), (["@amy:hs"], "@amy:hs")])
def test_verify_is_about_one_person_or_whoever_asks(app: FakeApp, words: list[str], user: str | None) -> None:
    assert cli.main(["verify", *words]) == 0
    assert app.verified == [user]


@pytest.mark.parametrize(("words", "as_json"), [(["--list"], False), (["--list", "--json"], True)])
def test_verify_lists_who_is_pinned(app: FakeApp, words: list[str], as_json: bool) -> None:
    assert cli.main(["verify", *words]) == 0
    assert app.listed == [as_json]
    assert app.verified == []


@pytest.mark.parametrize("words", [["--json"], ["--list", "@amy:hs"]])
@pytest.mark.usefixtures("app")
def test_options_of_verify_that_contradict_each_other_end_with_2(words: list[str]) -> None:
    assert cli.main(["verify", *words]) == 2
