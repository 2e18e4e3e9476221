"""An ACP agent that does what a script says: a real program on stdio, without any library.

    python scripted_agent.py SCRIPT [LOG]

SCRIPT holds one step a line, as JSON. It may be a FIFO: then each step is done as it is written, and the agent is driven
from outside. Every line that the agent reads is appended to LOG at once. Requests of the client that have an entry in the
replies are answered by themselves; `session/prompt` waits for the step `end_turn`.

    {"replies": {METHOD: RESULT or {"error": {...}}}}   replace or add replies
    {"send": MESSAGE}                    one message; "jsonrpc" is added
    {"ask": ID, "toolCall": {...}, "options": [...], "session": S}   session/request_permission, each part optional
    {"update": {...}, "times": N}        session/update
    {"raw": TEXT} {"raw_b64": BASE64}    exactly these bytes, and a line feed unless "no_newline"
    {"repeat": TEXT, "times": N}         N times TEXT and one line feed, in pieces
    {"stderr_bytes": N}                  N bytes of lines to stderr
    {"wait": {...}}                      until a line has come that has these members and no earlier wait took
    {"end_turn": STOP_REASON}            answers the last session/prompt; "text" is said before
    {"exit": CODE} {"close_stdout": true} {"close_stdin": true} {"ignore_sigterm": true} {"stop_reading": true}
    {"call": SOCKET, "line": MESSAGE}    one call to a Unix socket; what came back goes to LOG as {"called": LINE}
    {"child": SECONDS, "own_session": B} a child that holds the pipes for so long; its process id goes to LOG
    {"ignore_eof": true}                 do not end with stdin

Steps that set the agent up (replies, ignore_sigterm, ignore_eof, stop_reading, stderr_bytes) and stand at the top of a file
are done before it reads anything.
"""

import base64
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

REPLIES: dict[str, Any] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []},
    "authenticate": {},
    "session/new": {"sessionId": "s1"},
    "session/set_mode": {},
    "session/set_config_option": {"configOptions": []},
    "session/close": {},
}
OPTIONS = [
    {"optionId": "opt-allow", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "opt-always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "opt-reject", "name": "Reject", "kind": "reject_once"},
]
PIECE_BYTES = 65_536
BEFORE_READING = {"replies", "ignore_sigterm", "ignore_eof", "stop_reading", "stderr_bytes"}  # at the top of a script


class ScriptedAgent:
    def __init__(self, log: Path | None) -> None:
        self.replies = dict(REPLIES)
        self.log = log
        self.arrived = threading.Condition()
        self.lines: list[dict[str, Any]] = []
        self.prompt_id: Any = None
        self.writing = threading.Lock()
        self.reading = True
        self.ignores_eof = False

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self) -> None:
        while self.reading and (line := self.read_line()):
            self.note(line)
            try:
                message: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                self.take(cast("dict[str, Any]", message))
        if self.reading and not self.ignores_eof:
            os._exit(0)

    def read_line(self) -> bytes:
        try:
            return sys.stdin.buffer.readline()
        except OSError:  # the step `close_stdin`
            self.ignores_eof = True
            return b""

    def take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        with self.arrived:
            self.lines.append(message)
            if method == "session/prompt":
                self.prompt_id = message["id"]
            self.arrived.notify_all()
        if "id" in message and method in self.replies:
            reply = self.replies[method]
            part = {"error": reply["error"]} if "error" in reply else {"result": reply}
            self.send({"id": message["id"], **part})

    def note(self, line: bytes) -> None:
        if self.log is not None:
            with self.log.open("ab") as file:
                file.write(line)

    # -------------------------------------------------------------------------------------------------------- writing

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        with self.writing:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    # ---------------------------------------------------------------------------------------------------------- steps

    def do(self, step: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - one case a step
        match step:
            case {"replies": replies}:
                self.replies.update(replies)
            case {"send": message}:
                self.send(message)
            case {"ask": call_id}:
                self.ask(call_id, step)
            case {"update": update}:
                message = {
                    "method": "session/update",
                    "params": {"sessionId": step.get("session", "s1"), "update": update},
                }
                for _ in range(step.get("times", 1)):
                    self.send(message)
            case {"raw": text}:
                self.write(text.encode("utf-8", "surrogatepass") + (b"" if step.get("no_newline") else b"\n"))
            case {"raw_b64": text}:
                self.write(base64.b64decode(text) + (b"" if step.get("no_newline") else b"\n"))
            case {"repeat": text, "times": times}:
                self.repeat(text.encode(), times)
            case {"stderr_bytes": count}:
                self.flood(count)
            case {"wait": members}:
                self.wait(members)
            case {"end_turn": reason}:
                self.end_turn(reason, step.get("text"))
            case {"exit": code}:
                os._exit(code)
            case {"close_stdout": _}:
                os.close(1)
            case {"close_stdin": _}:
                os.close(0)
            case {"ignore_sigterm": _}:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case {"stop_reading": _}:
                self.reading = False
            case {"ignore_eof": _}:
                self.ignores_eof = True
            case {"call": address, "line": message}:
                self.call(address, message)
            case {"child": seconds}:
                code = f"import time; time.sleep({seconds})"
                child = subprocess.Popen([sys.executable, "-c", code], start_new_session=step.get("own_session", False))  # noqa: S603
                self.note(json.dumps({"child": child.pid}).encode() + b"\n")
            case _:
                raise SystemExit(f"no such step: {step}")

    def ask(self, call_id: object, step: dict[str, Any]) -> None:
        tool_call = {
            "toolCallId": f"call_{call_id}",
            "title": "Run tests",
            "kind": "execute",
            "rawInput": {"command": "pytest -q"},
        }
        params = {
            "sessionId": step.get("session", "s1"),
            "toolCall": step.get("toolCall", tool_call),
            "options": step.get("options", OPTIONS),
        }
        self.send({"id": call_id, "method": "session/request_permission", "params": params})

    def repeat(self, text: bytes, times: int) -> None:
        at_once = max(1, PIECE_BYTES // len(text))
        for start in range(0, times, at_once):
            self.write(text * min(at_once, times - start))
        self.write(b"\n")

    def flood(self, count: int) -> None:
        line = b"stderr: " + b"x" * 71 + b"\n"
        for start in range(0, count, PIECE_BYTES):
            size = min(PIECE_BYTES, count - start)
            os.write(2, (line * (size // len(line) + 1))[:size])

    def call(self, address: str, message: dict[str, Any]) -> None:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(address)
            line.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, **message}).encode() + b"\n")
            self.note(json.dumps({"called": json.loads(line.makefile("rb").readline())}).encode() + b"\n")

    def wait(self, members: dict[str, Any]) -> None:
        def matching() -> dict[str, Any] | None:
            return next((line for line in self.lines if members.items() <= line.items()), None)

        with self.arrived:
            self.arrived.wait_for(lambda: matching() is not None)
            found = matching()
            assert found is not None
            self.lines.remove(found)

    def end_turn(self, reason: str, text: str | None) -> None:
        if text is not None:
            self.do({"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}})
        self.send({"id": self.prompt_id, "result": {"stopReason": reason}})


def main() -> None:
    agent = ScriptedAgent(Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    script = Path(sys.argv[1])
    reader = threading.Thread(target=agent.read, daemon=True)
    live = stat.S_ISFIFO(script.stat().st_mode)
    if live:
        reader.start()
    with script.open(encoding="utf-8") as steps:
        for line in steps:
            step = json.loads(line)
            if reader.ident is None and not BEFORE_READING & step.keys():
                reader.start()
            agent.do(step)
    if reader.ident is None:
        reader.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
