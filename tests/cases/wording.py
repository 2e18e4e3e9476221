"""The short forms of the case files, written out: frames of the agent, events of the room, and words in braces.

Above it: steps. Below it: nothing of the bridge but its line limit. Values in, values out.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from bridge.acp.jsonrpc import LINE_LIMIT_BYTES
from bridge.core.model import JsonValue
from tests.cases.life import ALICE, ROOM
from tests.fakes.sealing import seal

Json = dict[str, Any]

FAKE_TOKEN = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"  # two parts, so that no scanner takes it for a leak
OPTIONS = [
    {"optionId": "opt-allow", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "opt-always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "opt-reject", "name": "Reject", "kind": "reject_once"},
]
_REPEAT = re.compile(r"\{\{repeat:(.*?):(LIMIT\+)?(\d+)\}\}", re.DOTALL)
_ASK = re.compile(r"\{\{ask:(\d+)\}\}")
_NUMBER = re.compile(r"\{\{number_of_(P\d+|P_last)\}\}")
_NAME = re.compile(r"\$(P\d+|P_last|bot_notice|seed1_of_P\d+|confirm_of_P\d+)")

READABLE = "readable"  # the key of what people write so that the bridge can read it at once

Find = Callable[[str], str]


def write_ask(ask: Json, session: str) -> Json:
    """The frame of an `ask` step."""
    call_id = ask["ask"]
    usual = {
        "toolCallId": f"call_{call_id}",
        "title": "Run tests",
        "kind": "execute",
        "rawInput": {"command": "pytest -q"},
    }
    params = {
        "sessionId": ask.get("session", session),
        "toolCall": ask.get("toolCall", usual),
        "options": ask.get("options", OPTIONS),
    }
    return {"jsonrpc": "2.0", "id": call_id, "method": "session/request_permission", "params": params}


def write_line(step: Json) -> bytes:
    """The bytes of an `agent_raw` step."""
    raw = base64.b64decode(step["agent_raw_b64"]) if "agent_raw_b64" in step else step["agent_raw"].encode()
    return raw if step.get("no_newline") else raw + b"\n"


def write_events(events: list[Json]) -> Iterator[tuple[str, Json]]:
    """The events of a `sync` step, each with its room."""
    for event in events:
        for _ in range(event.get("times", 1)):
            yield _write_event(event.get("each", event))


def _write_event(event: Json) -> tuple[str, Json]:
    kind, content = _write_content(event)
    kept = {key: event[key] for key in ("state_key", "redacts", "unsigned") if key in event}
    if "id" in event:
        kept["event_id"] = event["id"]
    if "ts" in event:
        kept["origin_server_ts"] = event["ts"]
    return event.get("room", ROOM), {"type": kind, "sender": event.get("from", ALICE), "content": content, **kept}


def _write_content(event: Json) -> tuple[str, Json]:
    if "type" in event:
        return event["type"], event["content"]
    if "sealed" in event:
        return "m.room.encrypted", seal(
            "m.room.message", event["sealed"], room=event.get("room", ROOM), session=event["session"]
        )
    if "encrypted" in event:
        clear = {key: value for key, value in event.items() if key != "encrypted"}
        kind, content = _write_content({**clear, "text": event["encrypted"]})
        relates = {"m.relates_to": content.pop("m.relates_to")} if "m.relates_to" in content else {}  # it stays outside
        return "m.room.encrypted", seal(kind, content, room=event.get("room", ROOM), session=READABLE) | relates
    if "react" in event:
        relates = {"rel_type": "m.annotation", "event_id": event["to"], "key": event["react"]}
        return "m.reaction", {"m.relates_to": relates}
    content: Json = {"msgtype": "m.text", "body": event["text"], **event.get("content", {})}
    if "reply_to" in event:
        content["m.relates_to"] = {"m.in_reply_to": {"event_id": event["reply_to"]}}
    if "relates_to" in event:
        content["m.relates_to"] = event["relates_to"]
    if "edits" in event:
        content["m.new_content"] = {"msgtype": "m.text", "body": event["new"]}
        content["m.relates_to"] = {"rel_type": "m.replace", "event_id": event["edits"]}
    return "m.room.message", content


def write_response(short: Json) -> Json:
    """A response as the agent reads it; of an error only the code."""
    match short:
        case {"frame": frame}:
            return frame
        case {"id": call_id, "selected": option_id}:
            outcome = {"outcome": "selected", "optionId": option_id}
        case {"id": call_id, "cancelled": True}:
            outcome = {"outcome": "cancelled"}
        case {"id": call_id, "error": code}:
            return {"jsonrpc": "2.0", "id": call_id, "error": code}
        case _:
            raise AssertionError(f"no such response: {short}")
    return {"jsonrpc": "2.0", "id": call_id, "result": {"outcome": outcome}}


def fill(value: JsonValue, *, now_ms: int, number_of: Find, event_of: Find) -> Any:  # noqa: ANN401 - any JSON, as it came
    """Every short form in a step replaced by what it stands for."""

    def go(inner: JsonValue) -> JsonValue:
        match inner:
            case dict():
                return {key: go(member) for key, member in inner.items()}
            case list():
                return [go(item) for item in inner]
            case "{{true_now_ms}}":
                return now_ms
            case str():
                named = _NAME.fullmatch(inner)
                return event_of(named[1]) if named else _fill_text(inner, number_of)
            case _:
                return inner

    return go(value)


def _fill_text(text: str, number_of: Find) -> str:
    if "{{" not in text:
        return text
    text = text.replace("{{fake_token}}", FAKE_TOKEN)
    text = _REPEAT.sub(lambda found: found[1] * (int(found[3]) + (LINE_LIMIT_BYTES if found[2] else 0)), text)
    text = _NUMBER.sub(lambda found: number_of(found[1]), text)
    return _ASK.sub(lambda found: json.dumps(write_ask({"ask": int(found[1])}, "s1"), separators=(",", ":")), text)
