"""An ACP agent that plays a recording of a real one: a real program on stdio, without any library.

    python replay_agent.py RECORDING SOCKET

It writes the frames that the agent wrote, in order, its noise and its stderr too, and waits where the agent's client did
something. Everything it reads, and everything it waits for, it tells over the Unix socket as a line of JSON:

    {"hello": RECORDING, "pid": N}
    {"read": MESSAGE}                    a line of the client
    {"waits": WHAT, "line": N}           the name of a method, or one of the words below
    {"lost": WHAT, "line": N}            the client closed stdin while the recording wanted something else of it; the agent ends

`answer`: for the answer to the request that line N of the recording answers. `stdin_close`: for the end of stdin. `sigterm`: for
that signal. `cue`: requests wait, and the next line may end them or speak of what they ask: a line on the socket lets it go on.

What a client sends is taken by its method, and what the agent answered then goes back under the client's own id. Passed over,
since this client would not send it: a second session with all that it is told; and every answer after the first to one request.
Before its end the agent waits for the answer to what it took back: a client owes one, which the recorded client did not send.
"""

import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Takes: TypeAlias = Callable[[Json], bool]

EOF, CUE, SIGTERM = "stdin_close", "cue", "sigterm"
SET_MODE = {"session/set_mode", "session/set_config_option"}  # a client may use either where an agent offers both
ORPHAN_S = 600  # what a launcher leaves behind lives until somebody ends it


def key_of(rpc_id: object) -> str:
    """An id with its JSON type: 1 and "1" are two ids."""
    return json.dumps(rpc_id)


class Player:
    def __init__(self, lines: list[Json], side: socket.socket) -> None:
        self.lines = lines
        self.side = side
        self.telling = threading.Lock()
        self.arrived: queue.SimpleQueue[Json | str] = queue.SimpleQueue()
        self.unused: list[Json] = []  # what came and was not waited for yet
        self.marks: set[str] = set()  # EOF, SIGTERM, CUE, once each has come
        self.first_session: str | None = None
        self.ids: dict[str, object] = {}  # an id of the recorded client -> the one of this client
        self.answered: set[str] = set()
        self.withdrawn: list[Json] = []
        self.uncued = False
        self.mute = False
        self.ended: Json = next(line for line in lines if line.get("event") == "exit")

    def tell(self, what: Json) -> None:
        with self.telling:
            self.side.sendall(json.dumps(what).encode() + b"\n")

    # ------------------------------------------------------------------------------------------------------- listening

    def note_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.arrived.put(SIGTERM)

    def read(self) -> None:
        for line in sys.stdin.buffer:
            message: Json = json.loads(line)
            self.tell({"read": message})
            self.arrived.put(message)
        self.arrived.put(EOF)

    def hear_cues(self) -> None:
        while self.side.recv(1):
            self.arrived.put(CUE)

    def wait(self, what: str, number: int, takes: Takes | None = None) -> Json | None:
        """The first message that `takes` takes; None once the mark of this name has come."""
        self.tell({"waits": what, "line": number})
        while True:
            for message in self.unused:
                if takes is not None and takes(message):
                    self.unused.remove(message)
                    return message
            if what in self.marks:
                self.marks -= {CUE}
                return None
            if EOF in self.marks and what == CUE:
                return None
            if EOF in self.marks and what != SIGTERM:
                self.tell({"lost": what, "line": number})
                os._exit(0)
            arrived = self.arrived.get()
            if isinstance(arrived, str):
                self.marks.add(arrived)
            else:
                self.unused.append(arrived)

    # --------------------------------------------------------------------------------------------------------- playing

    def play(self) -> None:
        for number, line in enumerate(self.lines, 1):
            match line["dir"]:
                case "in":
                    self.say(number, line["frame"])
                case "out" if "method" in line["frame"]:
                    self.await_request(number, line["frame"])
                case "out":
                    self.await_answer(number, line["frame"])
                case "noise":
                    self.write(line["line"])
                case "stderr":
                    os.write(2, line["line"].encode() + b"\n")
                case _:
                    self.obey(number, line)

    def say(self, number: int, frame: Json) -> None:
        if frame.get("method") == "session/request_permission":
            self.uncued = True
        elif self.uncued:
            self.uncued = False
            self.wait(CUE, number)
        if frame.get("method") == "$/cancel_request":
            self.withdrawn.append({"id": frame["params"]["requestId"]})
        if "method" not in frame:
            own = key_of(frame["id"])
            if own not in self.ids:
                return
            frame = frame | {"id": self.ids[own]}
            result: Json = frame.get("result") or {}
            self.first_session = self.first_session or result.get("sessionId")
        self.write(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))

    def write(self, line: str) -> None:
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()

    def await_request(self, number: int, frame: Json) -> None:
        method, session = frame["method"], frame["params"].get("sessionId")
        second = self.first_session is not None and (
            method == "session/new" or session not in (None, self.first_session)
        )
        if second or self.mute:
            return
        names = SET_MODE if method in SET_MODE else {method}
        message = self.wait(method, number, lambda message: message.get("method") in names)
        if message is not None and "id" in message:
            self.ids[key_of(frame["id"])] = message["id"]

    def await_answer(self, number: int, frame: Json) -> None:
        own = key_of(frame["id"])
        if own not in self.answered:
            self.answered.add(own)
            self.wait("answer", number, lambda message: "method" not in message and key_of(message.get("id")) == own)

    def obey(self, number: int, line: Json) -> None:
        match line["event"]:
            case "closing_stdin":
                self.wait(EOF, number)
            case "sigterm":
                self.wait(SIGTERM, number)
            case "stdout_eof":
                for request in self.withdrawn:
                    self.await_answer(number, request)
                os.close(1)
                self.mute = True
            case "exit":
                if line["after"][0] == SIGTERM:
                    self.wait(SIGTERM, number)
                self.die(line["returncode"])
            case _:
                pass  # what only the recorder did or saw

    def die(self, code: int) -> None:
        after = itertools.dropwhile(lambda line: line is not self.ended, self.lines)
        if any(line.get("event") == "leftover_processes" for line in after):
            subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({ORPHAN_S})"])  # noqa: S603 - it holds our pipes
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def main() -> None:
    recording, address = sys.argv[1:]
    lines = [json.loads(line) for line in Path(recording).read_bytes().splitlines()]
    with socket.socket(socket.AF_UNIX) as side:
        side.connect(address)
        player = Player(lines, side)
        signal.signal(signal.SIGTERM, player.note_signal)
        player.tell({"hello": recording, "pid": os.getpid()})
        for listen in (player.read, player.hear_cues):
            threading.Thread(target=listen, daemon=True).start()
        player.play()


if __name__ == "__main__":
    main()
