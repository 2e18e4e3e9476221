"""A scripted model on loopback: real coding agents run on it, and do the same every time.

Above it: `run`, which starts an agent and a bridge round it. Below it: HTTP. It refuses to know the agents: it speaks the
four languages that they speak to a model (OpenAI's chat completions and responses, Anthropic's messages, Gemini's
generateContent), plain or streamed as the request wants, and reads from the conversation alone what comes next.
"""

import itertools
import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

MODEL = "scripted"
TRIGGER = "Please write the file."
"""The words of a person that make the model call its tool, once."""
AFTER_THE_CALL = "The file is dealt with."
OTHERWISE = "There is nothing more to do."
"""What the model says to all other words."""

Json = dict[str, Any]
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Conversation:
    """What decides the next step: the last words of a person, and whether a tool was called since."""

    words: str
    called: bool
    has_tools: bool

    def next(self, call: ToolCall) -> ToolCall | str:
        if TRIGGER not in self.words or not self.has_tools:  # a request without tools is for a title or a summary
            return OTHERWISE
        return AFTER_THE_CALL if self.called else call


def new_id(prefix: str) -> str:
    """Never the same twice: Claude Code takes messages with one id for one message."""
    return f"{prefix}{next(_NUMBERS)}"


def text_of(content: Any) -> str:  # noqa: ANN401 - JSON from the wire
    """The text of a message, a block, or a list of them."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)  # pyright: ignore[reportUnknownVariableType]
    return str(content.get("text") or "") if isinstance(content, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def follow(steps: Iterator[tuple[bool, str]], *, has_tools: bool) -> Conversation:
    """Steps in order: (True, "") for a call of a tool, (False, text) for words of a person."""
    words, called = "", False
    for is_call, text in steps:
        if is_call:
            called = True
        elif text.strip():
            words, called = text, False
    return Conversation(words, called, has_tools)


class Chat:
    """OpenAI chat completions."""

    def read(self, body: Json) -> Conversation:
        def steps() -> Iterator[tuple[bool, str]]:
            for message in body.get("messages", []):
                if message["role"] == "user":
                    yield False, text_of(message.get("content"))
                elif message.get("tool_calls"):
                    yield True, ""

        return follow(steps(), has_tools=bool(body.get("tools")))

    def write(self, step: ToolCall | str) -> tuple[Json, list[Json]]:
        head = {"id": new_id("chat-"), "created": 0, "model": MODEL}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if isinstance(step, str):
            message, reason = {"content": step}, "stop"
        else:
            function = {"name": step.name, "arguments": json.dumps(step.arguments)}
            call = {"index": 0, "id": new_id("call_"), "type": "function", "function": function}
            message, reason = {"tool_calls": [call]}, "tool_calls"
        choice = {"index": 0, "message": {"role": "assistant", "content": None} | message, "finish_reason": reason}
        chunk: Json = head | {"object": "chat.completion.chunk"}
        delta = {"index": 0, "delta": {"role": "assistant"} | message, "finish_reason": None}
        events: list[Json] = [
            chunk | {"choices": [delta]},
            chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            chunk | {"choices": [], "usage": usage},
        ]
        return head | {"object": "chat.completion", "choices": [choice], "usage": usage}, events


class Responses:
    """OpenAI responses."""

    def read(self, body: Json) -> Conversation:
        given = body.get("input", [])
        items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else given

        def steps() -> Iterator[tuple[bool, str]]:
            for item in items:
                if item.get("role") == "user":
                    yield False, text_of(item.get("content"))
                elif str(item.get("type")).endswith("_call"):
                    yield True, ""

        return follow(steps(), has_tools=bool(body.get("tools")))

    def write(self, step: ToolCall | str) -> tuple[Json, list[Json]]:
        events: list[Json] = []
        if isinstance(step, str):
            part: Json = {"type": "output_text", "text": step, "annotations": []}
            item: Json = {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": "completed"}
            item["content"] = [part]
            at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            events.append({"type": "response.output_text.delta", **at, "delta": step})
        else:
            item = {"type": "function_call", "id": new_id("fc_"), "call_id": new_id("call_"), "status": "completed"}
            item |= {"name": step.name, "arguments": json.dumps(step.arguments)}
        response: Json = {
            "id": new_id("resp_"),
            "object": "response",
            "model": MODEL,
            "status": "completed",
            "output": [item],
        }
        response["usage"] = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return response, [
            {"type": "response.created", "response": response | {"status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": item | {"status": "in_progress"}},
            *events,
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response},
        ]


class Messages:
    """Anthropic messages."""

    def read(self, body: Json) -> Conversation:
        def steps() -> Iterator[tuple[bool, str]]:
            for message in body.get("messages", []):
                content: str | list[Json] = message["content"]
                kinds = [block["type"] for block in content if not isinstance(block, str)]
                if "tool_use" in kinds:
                    yield True, ""
                elif message["role"] == "user" and "tool_result" not in kinds:  # beside a result stand reminders
                    yield False, text_of(content)

        return follow(steps(), has_tools=bool(body.get("tools")))

    def write(self, step: ToolCall | str) -> tuple[Json, list[Json]]:
        if isinstance(step, str):
            block: Json = {"type": "text", "text": step}
            empty: Json = block | {"text": ""}
            reason = "end_turn"
            delta = {"type": "text_delta", "text": step}
        else:
            block = {"type": "tool_use", "id": new_id("toolu_"), "name": step.name, "input": step.arguments}
            empty, reason = cast("Json", block | {"input": {}}), "tool_use"
            delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message: Json = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": MODEL, "usage": usage}
        ending = {"stop_reason": reason, "stop_sequence": None}
        start: Json = message | {"content": [], "stop_reason": None, "stop_sequence": None}
        return message | ending | {"content": [block]}, [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": ending, "usage": usage},
            {"type": "message_stop"},
        ]


class Gemini:
    """Gemini generateContent; its stream is the whole answer as one event."""

    def read(self, body: Json) -> Conversation:
        def steps() -> Iterator[tuple[bool, str]]:
            for message in body.get("contents", []):
                if message.get("role") != "model":
                    yield False, text_of(message["parts"])
                elif any("functionCall" in part for part in message["parts"]):
                    yield True, ""

        return follow(steps(), has_tools=bool(body.get("tools")))

    def write(self, step: ToolCall | str) -> tuple[Json, list[Json]]:
        called = None if isinstance(step, str) else {"functionCall": {"name": step.name, "args": step.arguments}}
        candidate = {"content": {"role": "model", "parts": [called or {"text": step}]}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = {"candidates": [candidate | {"index": 0}], "usageMetadata": usage}
        return answer, [answer]


LANGUAGES: dict[str, Chat | Responses | Messages | Gemini] = {
    "/chat/completions": Chat(),
    "/responses": Responses(),
    "/messages": Messages(),
    ":generateContent": Gemini(),
    ":streamGenerateContent": Gemini(),
}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, call: ToolCall) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.call = call

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride] - the one that made it

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass

    def do_GET(self) -> None:
        self._send("application/json", json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))

    def do_POST(self) -> None:
        body = json.loads(self._read())
        path = self.path.partition("?")[0]
        language = next((each for ending, each in LANGUAGES.items() if path.endswith(ending)), None)
        if language is None:  # counting of tokens, telemetry: whatever it is, it is none of the script's business
            self._send("application/json", json.dumps({"input_tokens": 1, "totalTokens": 1}))
            return
        whole, events = language.write(language.read(body).next(self.server.call))
        if not (body.get("stream") or ":stream" in path):
            self._send("application/json", json.dumps(whole))
            return
        lines = [
            f"event: {e['type']}\ndata: {json.dumps(e)}" if "type" in e else f"data: {json.dumps(e)}" for e in events
        ]
        lines += ["data: [DONE]"] if isinstance(language, Chat) else []
        self._send("text/event-stream", "".join(line + "\n\n" for line in lines))

    def _read(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        raw = b""
        while size := int(self.rfile.readline(), 16):
            raw += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return raw

    def _send(self, kind: str, text: str) -> None:
        raw = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def serve(call: ToolCall) -> Generator[Server]:
    """A model that makes this one call; it ends with the block."""
    with Server(call) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
