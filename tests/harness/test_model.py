import json
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.harness import model

CALL = model.ToolCall("bash", {"command": "true"})
TOOLS = [{"name": "bash"}]
CALLED_CHAT = {"role": "assistant", "tool_calls": [{"id": "call_1"}]}
RESULT_CHAT = {"role": "tool", "content": "ok"}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def post(url: str, path: str, body: object, headers: dict[str, str] | None = None) -> str:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=5)
    connection.request("POST", path, json.dumps(body), headers or {})
    text = connection.getresponse().read().decode()
    connection.close()
    return text


@pytest.mark.parametrize(
    ("messages", "tools", "expected"),
    [
        ([said(model.TRIGGER)], TOOLS, CALL),
        ([said(model.TRIGGER)], [], model.OTHERWISE),
        ([said(model.TRIGGER), CALLED_CHAT, RESULT_CHAT], TOOLS, model.AFTER_THE_CALL),
        ([said(model.TRIGGER), CALLED_CHAT, RESULT_CHAT, said("hello")], TOOLS, model.OTHERWISE),
        ([said(model.TRIGGER), CALLED_CHAT, RESULT_CHAT, said(model.TRIGGER)], TOOLS, CALL),
    ],
)
def test_the_conversation_alone_decides_what_comes_next(
    messages: list[Any], tools: list[Any], expected: model.ToolCall | str
) -> None:
    conversation = model.Chat().read({"messages": messages, "tools": tools})
    assert expected == conversation.next(CALL)


@pytest.mark.parametrize(
    ("language", "body"),
    [
        (
            model.Responses(),
            {"input": [said(model.TRIGGER), {"type": "function_call"}, {"type": "function_call_output"}]},
        ),
        (
            model.Messages(),
            {
                "messages": [
                    said(model.TRIGGER),
                    {"role": "assistant", "content": [{"type": "tool_use"}]},
                    {"role": "user", "content": [{"type": "tool_result", "content": "ok"}]},
                ]
            },
        ),
        (
            model.Gemini(),
            {
                "contents": [
                    {"role": "user", "parts": [{"text": model.TRIGGER}]},
                    {"role": "model", "parts": [{"functionCall": {"name": "bash"}}]},
                    {"role": "user", "parts": [{"functionResponse": {"name": "bash"}}]},
                ]
            },
        ),
    ],
)
def test_a_call_is_made_once_in_every_language(
    language: model.Responses | model.Messages | model.Gemini, body: dict[str, Any]
) -> None:
    first = {key: value[:1] for key, value in body.items()}
    assert [language.read(each | {"tools": TOOLS}).next(CALL) for each in (first, body)] == [CALL, model.AFTER_THE_CALL]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/x:streamGenerateContent?alt=sse"]
)
def test_a_stream_carries_the_words(path: str) -> None:
    with model.serve(CALL) as server:
        text = post(server.url, path, {"stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    assert model.OTHERWISE in json.dumps(events)


def test_a_plain_request_gets_a_plain_answer() -> None:
    with model.serve(CALL) as server:
        answer = json.loads(post(server.url, "/v1/chat/completions", {"messages": [said("hello")]}))
    assert answer["choices"][0]["message"]["content"] == model.OTHERWISE


def test_a_body_in_chunks_is_read_whole() -> None:
    with model.serve(CALL) as server:
        connection = HTTPConnection(server.url.removeprefix("http://"), timeout=5)
        body = json.dumps({"messages": [said("hello")]}).encode()
        connection.request("POST", "/v1/chat/completions", iter([body[:5], body[5:]]), encode_chunked=True)
        answer = json.loads(connection.getresponse().read())
        connection.close()
    assert answer["choices"][0]["message"]["content"] == model.OTHERWISE


def test_what_the_script_does_not_know_is_answered_all_the_same() -> None:
    with model.serve(CALL) as server:
        assert json.loads(post(server.url, "/v1/messages/count_tokens", {})) == {"input_tokens": 1, "totalTokens": 1}
