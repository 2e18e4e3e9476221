"""The least that can pass for the bridge in the demo: one room, one agent, one request; no rule of the real one.

With it the demo is tested for what the real bridge would not do: end by itself, stay silent, or not listen to SIGTERM.
`STUB_FAULT` chooses: `ends`, `silent`, `stubborn`, `no-prompt`, `deaf`, `slow-check`. Its `check` finds something of each kind.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from bridge.demo import agent
from bridge.demo.homeserver import call

Json = dict[str, Any]
FAULT = os.environ.get("STUB_FAULT", "")
CANCELLED = {"outcome": "cancelled"}


class Room:
    def __init__(self, config: Json, room: str) -> None:
        self.base_url, self.user = config["homeserver"], config["user_id"]
        self.token = Path(config["access_token_file"]).read_text(encoding="utf-8")
        self.room, self.since, self.sent = room, "", itertools.count()

    def call(self, method: str, path: str, body: object = None) -> Json:
        return cast("Json", call(self.base_url, method, f"/_matrix/client/v3{path}", body, token=self.token).body)

    def send(self, content: Json, kind: str = "m.room.message") -> str:
        path = f"/rooms/{quote(self.room)}/send/{kind}/stub-{next(self.sent)}"
        return self.call("PUT", path, content)["event_id"]

    def heard(self) -> list[str]:
        """What others wrote since the last call."""
        batch = self.call("GET", f"/sync?timeout=200&since={self.since}" if self.since else "/sync?timeout=0")
        self.since = batch["next_batch"]
        events = batch.get("rooms", {}).get("join", {}).get(self.room, {}).get("timeline", {}).get("events", [])
        return [e["content"]["body"] for e in events if e["type"] == "m.room.message" and e["sender"] != self.user]


class Harness:
    def __init__(self, config: Json) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(  # noqa: S603 - the demo's own agent
            config["command"], env=config["env"], cwd=config["cwd"], stdin=pipe, stdout=pipe, text=True
        )

    def write(self, **message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def read_until(self, method: str) -> Json:
        assert self.process.stdout is not None
        return next(m for m in map(json.loads, self.process.stdout) if method in (m.get("method"), m.get("id")))


def answer(room: Room, harness: Harness, asked: Json, prompt: str) -> None:
    numbers = {str(n): option["optionId"] for n, option in enumerate(agent.OPTIONS, 1)}
    names = {option["name"]: option["optionId"] for option in agent.OPTIONS}
    while True:
        for text in room.heard():
            if text == "!cancel":
                harness.write(method="session/cancel", params={"sessionId": "demo-1"})
                outcome = CANCELLED
            elif chosen := (numbers | names).get(text):
                outcome = {"outcome": "selected", "optionId": chosen}
            else:
                if text:
                    room.send({"msgtype": "m.notice", "body": "That is not one of the options."})
                continue
            if FAULT == "deaf":
                continue
            harness.write(id=asked["id"], result={"outcome": outcome})
            closed = {"msgtype": "m.text", "body": f"{agent.COMMAND}: over"}
            relation = {"rel_type": "m.replace", "event_id": prompt}
            room.send({"msgtype": "m.text", "body": "* over", "m.new_content": closed, "m.relates_to": relation})
            return


def serve(config: Json) -> None:
    demo = config["agents"]["demo"]
    room = Room(config["matrix"], demo["room"])
    if FAULT == "silent":
        time.sleep(60)  # the fault itself: a bridge that never speaks, until the demo ends it
    room.call("POST", f"/join/{quote(room.room)}", {})
    harness = Harness(demo)
    harness.write(id=1, method="session/new", params={})
    while not room.heard() or FAULT == "no-prompt":
        pass
    harness.write(id="turn", method="session/prompt", params={"sessionId": "demo-1"})
    asked = harness.read_until("session/request_permission")
    lines = [f"{n}. {option['name']}" for n, option in enumerate(agent.OPTIONS, 1)]
    prompt = room.send({"msgtype": "m.text", "body": "\n".join([agent.COMMAND, *lines])})
    relation = {"rel_type": "m.annotation", "event_id": prompt, "key": "1\ufe0f\u20e3"}
    room.send({"m.relates_to": relation}, "m.reaction")
    answer(room, harness, asked, prompt)
    harness.read_until("turn")
    room.send({"msgtype": "m.text", "body": f"\x1b[2J {agent.CLOSING_WORDS}"})
    signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == "check":
        sys.stdout.write(
            "ok       room: fine.\nwarning  users: the same.\nfailed   token: gone: see there.\nok       one: it"
        )
        sys.stdout.flush()
        time.sleep(60 if FAULT == "slow-check" else 0)
        sys.exit(3)
    assert sys.argv[1:3] == ["run", "--config"]
    if FAULT == "ends":
        sys.exit("no config today")
    if FAULT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(tomllib.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))
