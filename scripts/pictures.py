# ruff: noqa: INP001, S603, S607 - a script beside the others; the programs it starts are those of the PATH
"""Take the README's pictures: `scripts/demo --encrypted` on one side, the desktop client nheko in a display of its own on the other.

It logs nheko in through its own settings file and opens the room, which is encrypted; the demo's person, whose account it
is, signs nheko's device. Then it has the demo ask, and waits for the prompt: the first picture. It types the answer into
nheko as a person would, and waits for the ending: the second picture. Everything lies in one folder that is removed at
the end.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("Xvfb", "openbox", "dbus-run-session", "nheko", "xdotool", "import", "convert")
PACKAGES = "nheko openbox xvfb xdotool imagemagick dbus-daemon fonts-noto-core fonts-noto-color-emoji"
PROMPT, ANSWER = "Please run the tests.", "1"
SEEDS_SHOWN = "(reacts) 3"
ENDING_SHOWN = "This demo runs no command."
WINDOW = (900, 700)
PANE = "620x590+278+70"
"""Of the window: what lies between the room's name and the line for writing."""
MESSAGE_BOX = (550, 675)
CANCEL = (833, 661)
ROOM_STATE = ("member", "power_levels", "join_rules", "history_visibility", "guest_access", "name")
HIDDEN = ("m.reaction", *(f"m.room.{kind}" for kind in ROOM_STATE))
"""What would stand in the timeline as lines of its own, between the messages."""
STEP_TIMEOUT_S = 120.0
LOOK_S = 0.5
DRAW_S = 4.0
"""nheko draws what it has from the server within a second; a loaded machine gets some more."""
STOP_S = 20.0

NHEKO = """\
[General]
run_without_secure_secrets_service=true
[auth]
access_token={access_token}
device_id={device_id}
home_server={home_server}
user_id=@{user_id}
[user]
theme=light
font_size=10
emoji_font_family=Noto Color Emoji
desktop_notifications=false
"""


def main() -> int:
    """Both pictures, into docs/images or the folder that is named."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        sys.stderr.write(f"missing: {' '.join(missing)}; apt-get install --no-install-recommends {PACKAGES}\n")
        return 1
    to = Path(sys.argv[1] if sys.argv[1:] else ROOT / "docs/images")
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="acp-matrix-bridge-pictures-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        demo = Demo(folder, stack)
        display = stack.enter_context(open_display(folder))
        stack.enter_context(running(["openbox"], display))
        prepare_client(folder, demo)
        quick = {"QT_QUICK_BACKEND": "software", "LIBGL_ALWAYS_SOFTWARE": "1", "HOME": str(folder)}
        stack.enter_context(running(["dbus-run-session", "nheko"], display | quick))
        window = open_room(display)
        demo.say(PROMPT)  # nheko has published its keys by now: what was encrypted before it could not read
        demo.wait_for(SEEDS_SHOWN)
        take(window, to / "prompt.png", display)
        click(display, window, MESSAGE_BOX)
        xdo(display, "type", ANSWER)
        xdo(display, "key", "Return")
        demo.wait_for(ENDING_SHOWN)
        take(window, to / "ending.png", display)
    return 0


class Demo:
    """The demo as a person at its terminal has it."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._said = folder / "demo.txt"
        out = stack.enter_context(self._said.open("wb"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bridge", "demo", "--encrypted"], cwd=ROOT, stdin=subprocess.PIPE, stdout=out
        )
        stack.callback(stop, self._process)
        self.wait_for("!help")
        self.homeserver, self.user, self.password, self.room = (
            re.findall(rf"^  {key} +(\S+)$", self._said.read_text(), re.MULTILINE)[0]
            for key in ("homeserver", "user", "password", "room")
        )

    def say(self, line: str) -> None:
        """Write a line as the person."""
        assert self._process.stdin is not None  # noqa: S101 - it was made with a pipe
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def wait_for(self, words: str) -> None:
        """Wait until the demo has shown these words."""
        wait(lambda: words in self._said.read_text() or None, f"the demo has not shown {words!r}")


def wait(reached: Callable[[], str | bool | None], otherwise: str) -> str:
    """Ask again until there is something."""
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while time.monotonic() < deadline:
        if found := reached():
            return str(found)
        time.sleep(LOOK_S)
    raise SystemExit(f"{otherwise} within {STEP_TIMEOUT_S:.0f} s.")


@contextlib.contextmanager
def running(command: list[str], more: dict[str, str]) -> Generator[None]:
    """A program with all that it starts, until the end of the block."""
    process = subprocess.Popen(
        command, env=os.environ | more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it in order, or in the end without."""
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def open_display(folder: Path) -> Generator[dict[str, str]]:
    """A display that nobody else uses; gives the environment that names it."""
    number = folder / "display"
    with number.open("wb") as out:
        command = ["Xvfb", "-displayfd", str(out.fileno()), "-screen", "0", "1000x800x24"]
        process = subprocess.Popen(command, pass_fds=[out.fileno()], stderr=subprocess.DEVNULL)
    try:
        yield {"DISPLAY": ":" + wait(lambda: number.read_text().strip(), "there is no display")}
    finally:
        stop(process)


def prepare_client(folder: Path, demo: Demo) -> None:
    """Log nheko in, and have it leave out who joined and what the room may."""
    identifier = {"type": "m.id.user", "user": demo.user}
    wanted = {"type": "m.login.password", "identifier": identifier, "password": demo.password}
    login = call(f"{demo.homeserver}/_matrix/client/v3/login", "POST", wanted)
    hidden = f"/_matrix/client/v3/user/{quote(demo.user)}/account_data/im.nheko.hidden_events"
    call(demo.homeserver + hidden, "PUT", {"hidden_event_types": HIDDEN}, login["access_token"])
    settings = folder / ".config/nheko/nheko.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(NHEKO.format(**login | {"home_server": demo.homeserver}), encoding="utf-8")


def call(url: str, method: str, body: object, token: str = "") -> dict[str, str]:
    """One request to the demo's homeserver."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)  # noqa: S310 - loopback
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - loopback
        return json.load(answer)


def xdo(display: dict[str, str], *words: str) -> str:
    """Keyboard, mouse and windows; gives what it prints, nothing when it finds nothing."""
    done = subprocess.run(
        ["xdotool", *words],
        env=os.environ | display,
        capture_output=True,
        text=True,
        check=False,
        timeout=STEP_TIMEOUT_S,
    )
    return done.stdout.strip()


def open_room(display: dict[str, str]) -> str:
    """Bring nheko to its only room; returns its window."""
    window = wait(lambda: xdo(display, "search", "--onlyvisible", "--name", "^nheko$"), "nheko has no window").split()[
        -1
    ]
    xdo(display, "windowsize", "--sync", window, *map(str, WINDOW))
    xdo(display, "windowactivate", "--sync", window)
    settle(window, display)
    click(display, window, CANCEL)  # it offers to set encryption up
    settle(window, display)
    xdo(display, "key", "ctrl+k")  # to a room by its name
    settle(window, display)
    xdo(display, "type", "acp")
    settle(window, display)
    xdo(display, "key", "Return")
    return window


def click(display: dict[str, str], window: str, place: tuple[int, int]) -> None:
    """With the mouse, somewhere in the window."""
    xdo(display, "mousemove", "--window", window, *map(str, place), "click", "1")


def settle(window: str, display: dict[str, str]) -> None:
    """Wait until nheko has drawn."""
    shots = look(window, display)
    last = next(shots)
    end = time.monotonic() + DRAW_S
    for shot in shots:
        if shot != last:
            last, end = shot, time.monotonic() + DRAW_S / 2
        elif time.monotonic() > end:
            return


def look(window: str, display: dict[str, str]) -> Iterator[bytes]:
    """The pane, again and again, as raw pixels."""
    environment = os.environ | display
    while True:
        command = ["import", "-window", window, "-crop", PANE, "rgb:-"]
        yield subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
        time.sleep(LOOK_S)


def take(window: str, to: Path, display: dict[str, str]) -> None:
    """The pane without its empty part."""
    settle(window, display)
    shot = to.with_suffix(".tmp.png")
    subprocess.run(["import", "-window", window, "-crop", PANE, "+repage", shot], env=os.environ | display, check=True)
    trim = ["-fuzz", "3%", "-trim", "+repage", "-bordercolor", "white", "-border", "12", "-strip", "-colors", "256"]
    subprocess.run(["convert", shot, *trim, f"PNG8:{to}"], check=True)
    shot.unlink()


if __name__ == "__main__":
    sys.exit(main())
