import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import Field, JsonObject, JsonValue, Text
from bridge.core.preview import (
    ARGUMENTS_UNKNOWN,
    KIND_UNKNOWN,
    MASKED_NOTE,
    PORT_INVALID,
    TOO_DEEP,
    Preview,
    describe_subject,
    is_port,
    write_host,
)
from bridge.core.safetext import is_hidden
from bridge.core.toolcall import WRONG_TYPE

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
ANY_JSON: st.SearchStrategy[JsonValue] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
MEMBERS = st.sampled_from(
    [
        "kind",
        "command",
        "stages",
        "workspaceRoot",
        "path",
        "access",
        "host",
        "port",
        "protocol",
        "toolName",
        "origin",
        "holder",
    ]
)
KINDS = st.sampled_from(["shell", "fileAccess", "network", "unixSocket", "process", "tool", "computerUseTakeover", "x"])


def _nest(levels: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = [value]
    return value


def _fields(kind: JsonValue, members: JsonObject) -> list[tuple[str, str]]:
    return [
        (item.label, item.value if isinstance(item, Field) else item.text)
        for item in describe_subject(kind, members).items
    ]


def test_values_are_masked_and_then_escaped() -> None:
    preview = Preview()
    preview.add_field("A", "PASSWORD=hunter2\n")
    preview.add_text("B\n", "PASSWORD=hunter2\n\u202e")
    assert [Field("A", r'"PASSWORD=[masked]\n"'), Text(r'"B\n"', '"PASSWORD=[masked]\n\\u202e"')] == preview.items
    assert preview.notes == [MASKED_NOTE]


def test_json_is_sorted_and_indented() -> None:
    preview = Preview()
    preview.add_json("Input", {"b": [1, 1.5], "a": "é\n", "c": None, "d": True})
    text = '{\n  "a": "é\\n",\n  "b": [\n    1,\n    1.5\n  ],\n  "c": null,\n  "d": true\n}'
    assert [Text("Input", text)] == preview.items


def test_a_bare_text_is_shown_as_itself() -> None:
    preview = Preview()
    preview.add_json("Input", "a\nb")
    assert [Text("Input", "a\nb")] == preview.items


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": "hunter2"}, '{\n  "password": "[masked]"\n}'),
        ({"env": {"DB_PASSWORD": "hunter2"}}, '{\n  "env": {\n    "DB_PASSWORD": "[masked]"\n  }\n}'),
        ({"x": "a\nPASSWORD=hunter2"}, '{\n  "x": "a\\nPASSWORD=[masked]"\n}'),
        ({"Authorization": "Basic dXNlcjpwYXNz"}, '{\n  "Authorization": "Basic [masked]"\n}'),
        (
            {"T=1 PASSWORD=ab1": 1, "T=1 PASSWORD=ab2": 2},
            '{\n  "T=1 PASSWORD=[masked]": 1,\n  "T=1 PASSWORD=[masked]\'": 2\n}',
        ),
    ],
)
def test_secrets_in_json_are_masked(value: JsonValue, shown: str) -> None:
    preview = Preview()
    preview.add_json("Input", value)
    assert ([Text("Input", shown)], [MASKED_NOTE]) == (preview.items, preview.notes)


def test_json_that_nests_too_deeply_is_cut_there_and_says_so() -> None:
    preview = Preview()
    preview.add_json("Input", _nest(900))
    assert preview.notes == [TOO_DEEP]


def test_large_json_is_not_indented() -> None:
    preview = Preview()
    ones: list[JsonValue] = [1] * 200_000
    preview.add_json("Input", ones)
    assert len(preview.items[0].text if isinstance(preview.items[0], Text) else "") == 600_000


def test_a_huge_number_is_shown() -> None:
    preview = Preview()
    preview.add_member("n", 1 << 40_000)
    assert (preview.items[0].value if isinstance(preview.items[0], Field) else "")[:6] == "0x1000"


def test_a_member_with_a_secret_name_is_masked() -> None:
    preview = Preview()
    preview.add_member("password", "hunter2")
    assert [Field("password", "[masked]")] == preview.items


def test_an_unknown_kind_shows_its_members_sorted() -> None:
    members: JsonObject = {"kind": "quantum", "path": "/x", "foo": 1}
    assert _fields("quantum", members) == [("Kind", "quantum"), ("foo", "1"), ("path", "/x")]
    assert describe_subject("quantum", members).notes == [KIND_UNKNOWN]


@pytest.mark.parametrize(
    ("kind", "fields"), [(None, []), (7, [("Kind", "7")]), ("", [("Kind", "")]), ([], [("Kind", "[]")])]
)
def test_a_kind_that_is_no_known_string_is_unknown(kind: JsonValue, fields: list[tuple[str, str]]) -> None:
    assert (fields, [KIND_UNKNOWN]) == (_fields(kind, {}), describe_subject(kind, {}).notes)


@pytest.mark.parametrize(
    ("kind", "members", "fields", "notes"),
    [
        ("shell", {"command": "a\nb\nc"}, [("Command", "a\nb\nc")], []),
        (
            "shell",
            {"command": "a | b", "stages": [{"argv": ["a"]}, {"argv": ["b", "c d"]}], "workspaceRoot": "/w"},
            [("Command", "a | b"), ("Stage 1/2", "a"), ("Stage 2/2", "b 'c d'"), ("Workspace", "/w")],
            [],
        ),
        (
            "shell",
            {"command": "a", "stages": [{"argv": ["a"], "argvComplete": False}, 7], "origin": "x", "toolName": "t"},
            [("Command", "a"), ("Stage 1/2", "a"), ("Stage 2/2", "7")],
            [ARGUMENTS_UNKNOWN],
        ),
        ("shell", {"command": 7, "stages": {}}, [], [WRONG_TYPE]),
        (
            "fileAccess",
            {"path": "b.txt", "access": "write", "toolName": "edit"},
            [("Path", "b.txt"), ("Access", "write"), ("Tool name", "edit")],
            [],
        ),
        ("unixSocket", {"path": "/run/a\nAllow\u202e"}, [("Socket", r'"/run/a\nAllow\u202e"')], []),
        ("process", {"control": "kill", "target": "vim (123)"}, [("Control", "kill"), ("Target", "vim (123)")], []),
        ("network", {"host": "h.example"}, [("Host", "h.example"), ("Port", "any port")], []),
        (
            "network",
            {"host": "h.example", "port": 443, "protocol": "https"},
            [("Host", "h.example"), ("Port", "443"), ("Protocol", "https")],
            [],
        ),
        ("network", {"host": "h", "port": 70000}, [("Host", "h"), ("Port", "any port")], [PORT_INVALID]),
        ("network", {"host": 7, "port": "443"}, [("Port", "any port")], [WRONG_TYPE, PORT_INVALID]),
        ("tool", {"toolName": "t", "origin": "cron"}, [("Tool name", "t"), ("Triggered by (unverified)", "cron")], []),
        ("tool", {"toolName": 7}, [], [WRONG_TYPE]),
        (
            "computerUseTakeover",
            {"holder": {"label": "Ann", "since": "10:00", "sessionId": "s", "startedAt": 7, "at": {"sessionId": "s"}}},
            [("Holder", "Ann"), ("Holder since", "10:00"), ("Holder startedAt", "7")],
            [],
        ),
        ("computerUseTakeover", {"holder": "s"}, [], [WRONG_TYPE]),
        ("computerUseTakeover", {}, [], []),
    ],
)
def test_each_known_kind_shows_its_members(
    kind: str, members: JsonObject, fields: list[tuple[str, str]], notes: list[str]
) -> None:
    assert ([("Kind", kind), *fields], notes) == (_fields(kind, members), describe_subject(kind, members).notes)


@given(KINDS | ANY_JSON, st.dictionaries(MEMBERS | st.text(max_size=4), ANY_JSON))
def test_any_subject_is_described_and_shows_nothing_hidden(kind: JsonValue, members: JsonObject) -> None:
    for item in describe_subject(kind, members).items:
        value = item.value if isinstance(item, Field) else item.text
        kept = "\ufe0e\ufe0f" if isinstance(item, Field) else "\n\t\ufe0e\ufe0f"
        assert not [c for c in item.label + value if is_hidden(c) and c not in kept]


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("h.example", "h.example"),
        ("\u0430pple.example", "\u0430pple.example (xn--pple-43d.example)"),
        ("bücher\u3002example", "bücher\u3002example (xn--bcher-kva.example)"),
        ("é" * 300, "é" * 300),
    ],
)
def test_a_host_outside_ascii_is_shown_in_its_other_form_too(host: str, shown: str) -> None:
    assert shown == write_host(host)


@pytest.mark.parametrize(
    ("value", "valid"), [(0, True), (65535, True), (65536, False), (-1, False), (True, False), ("1", False)]
)
def test_a_port_is_an_integer_in_its_bounds(value: JsonValue, valid: bool) -> None:
    assert valid == is_port(value)
