import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.core.errors import DemoFailed
from bridge.demo import agent, play
from bridge.demo.encrypting import EncryptingPerson
from bridge.demo.person import Person
from tests.peers.untraced import untraced

STUB = Path(__file__).with_name("stub_bridge.py")
ROOT = Path(__file__).parents[2]
DEMO_TIMEOUT_S = 60.0

Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Plays with a stub for the bridge; afterwards nothing may be left of it."""
    monkeypatch.setattr(play, "SERVICE", (sys.executable, str(STUB)))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def run_demo(*answers: str, json_only: bool = False, fault: str = "") -> tuple[int, list[str]]:
        monkeypatch.setenv("STUB_FAULT", fault)
        code = play.run(list(answers), json_only)
        return code, capsys.readouterr().out.splitlines()

    with untraced():
        yield run_demo
    assert list(tmp_path.iterdir()) == []
    assert find_processes(tmp_path) == []


def find_processes(folder: Path) -> list[str]:
    """The command lines that name something in the folder."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = str((entry / "cwd").readlink())
        except OSError:
            continue  # it ended meanwhile
        if str(folder) in command + where:
            found.append(command)
    return found


def test_the_transcript_shows_messages_edits_reactions_and_harmless_escapes(run: Run) -> None:
    code, lines = run("Reject")
    assert lines == [
        "    you | Please run the tests.",
        " bridge | bun test --coverage",
        "        | 1. Allow once",
        "        | 2. Always allow",
        "        | 3. Reject",
        " bridge | (reacts) 1\ufe0f\u20e3",
        "    you | Reject",
        " bridge | (edits) bun test --coverage: over",
        r" bridge | \x1b[2J This demo runs no command.",
        '{"outcome":"selected","optionId":"reject_once"}',
    ]
    assert code == 0


def test_with_json_only_there_is_nothing_but_the_outcome(run: Run) -> None:
    assert run("1", json_only=True) == (0, ['{"outcome":"selected","optionId":"allow_once"}'])


def test_answers_are_given_in_turn_until_one_decides(run: Run) -> None:
    code, lines = run("perhaps", "2", "1")
    assert (code, lines[-1]) == (0, '{"outcome":"selected","optionId":"allow_always"}')
    assert "        (not sent, nothing waits any more: 1)" in lines


def test_a_last_answer_that_decides_nothing_cancels_the_turn(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "SILENCE_S", 0.5)
    code, lines = run("perhaps", "")
    assert (code, lines[-1]) == (1, '{"outcome":"cancelled"}')
    assert "    you | !cancel" in lines


def test_a_bridge_that_ends_by_itself_is_reported_with_its_last_words(run: Run) -> None:
    with pytest.raises(DemoFailed, match="The bridge ended with 1: no config today"):
        run("1", fault="ends")


@pytest.mark.parametrize(
    ("fault", "limit", "sentence"),
    [
        ("silent", "JOIN_TIMEOUT_S", "The bridge did not join the room: it said nothing."),
        ("no-prompt", "PROMPT_TIMEOUT_S", "No prompt came into the room: it said nothing."),
        ("deaf", "ANSWER_TIMEOUT_S", "The agent did not hear that its turn was cancelled."),
    ],
)
def test_a_bridge_that_does_not_do_its_part_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: str, limit: str, sentence: str
) -> None:
    monkeypatch.setattr(play, limit, 1.0)
    with pytest.raises(DemoFailed, match=sentence):
        run("1", fault=fault)


def test_a_bridge_that_does_not_end_when_asked_is_killed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "STOP_TIMEOUT_S", 1.0)
    code, _ = run("1", fault="stubborn")
    assert code == 0


def test_a_check_of_the_demo_shows_its_lines_their_sum_and_ends_with_its_code(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    del run
    assert play.check() == 3
    assert capsys.readouterr().out.splitlines() == [
        "ok       room: fine.",
        "warning  users: the same.",
        "failed   token: gone: see there.",
        "ok       one: it",
        "demo: 2 ok, 1 warning (users), 1 failed (token).",
    ]


@pytest.mark.parametrize("client", [Person, EncryptingPerson])
def test_check_finds_nothing_wrong_with_the_demo_itself(
    client: type[Person], capsys: pytest.CaptureFixture[str]
) -> None:
    """The bridge itself and no stub. That the agent runs as the same user is true there, too."""
    assert play.check(client) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"demo: {12 if client.encrypts else 9} ok, 1 warning (users), 0 failed."
    )


def test_a_terminal_hands_out_whole_lines_and_then_the_end() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream:
        terminal = play.Terminal(stream)
        os.write(writing, "one\ntwö".encode())
        assert (terminal.lines(), terminal.ended) == (["one"], False)
        os.write(writing, b"\nthree")
        os.close(writing)
        assert (terminal.lines(), terminal.ended) == (["twö", "three"], True)


def test_a_person_at_a_terminal_talks_with_the_room_until_the_end_of_input(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream, os.fdopen(writing, "w") as keyboard:
        monkeypatch.setattr("sys.stdin", stream)
        show = play.Play.show

        def type_when_shown(self: play.Play, text: str) -> None:
            show(self, text)
            if "(reacts)" in text:  # the last part of the prompt
                keyboard.write("1\n")
                keyboard.flush()
            elif agent.CLOSING_WORDS in text:
                keyboard.close()

        monkeypatch.setattr(play.Play, "show", type_when_shown)
        keyboard.write("\nhello\n")
        keyboard.flush()
        code, lines = run()
    assert code == 0
    assert "  user        @you:localhost" in lines
    assert "    you | hello" not in lines


@pytest.mark.parametrize(
    ("moment", "number", "call", "code"),
    [
        ("starting the homeserver", signal.SIGTERM, "run([], False)", 0),
        ("starting the bridge", signal.SIGHUP, "run([], False)", 0),
        ("password", signal.SIGINT, "run([], False)", 0),
        ("failed", signal.SIGINT, "check()", 1),
    ],
)
def test_a_signal_at_any_moment_leaves_no_process_and_no_folder(
    tmp_path: Path, moment: str, number: signal.Signals, call: str, code: int
) -> None:
    program = f"import sys; from bridge.demo import play; play.SERVICE = {(sys.executable, str(STUB))!r}; sys.exit(play.{call})"
    env = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    env |= {"STUB_FAULT": "slow-check"} if call == "check()" else {}
    keyboard, terminal = pty.openpty()
    with subprocess.Popen(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-c", program],
        env=env,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        try:
            assert any(moment in line for line in demo.stdout)
            demo.send_signal(number)
            demo.send_signal(number)  # impatience must not cut the cleaning up short
            demo.communicate(timeout=DEMO_TIMEOUT_S)
        finally:
            demo.kill()
    os.close(keyboard)
    os.close(terminal)
    assert (demo.returncode, find_processes(tmp_path), list(tmp_path.iterdir())) == (code, [], [])
