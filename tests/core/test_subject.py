import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import Essence, Field, JsonObject, JsonValue, Subject, Text
from bridge.core.safetext import is_hidden
from bridge.core.subject import describe, normalise_path

CWD = "/srv/app"
NAMES = st.sampled_from(
    [
        *("title", "name", "kind", "content", "locations", "rawInput", "_meta", "subject", "toolCall", "description"),
        *("command", "commands", "cwd", "url", "diff", "type", "text", "path", "line", "oldText", "newText", "patch"),
        *("approvalSubject", "holder", "label", "origin", "port", "host", "stages", "argv", "argvComplete"),
    ]
)
WORDS = st.sampled_from(
    [
        *(
            "",
            " ",
            "diff",
            "content",
            "text",
            "terminal",
            "image",
            "execute",
            "edit",
            "read",
            "fetch",
            "quantum",
            "shell",
        ),
        *("network", "https://h:1/", "/a/b", "ls\n-l", "computerUseTakeover", "\ud800\u202e\x00", "PASSWORD=hunter2"),
    ]
)
ANY_JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
TEXT_BLOCK: dict[str, JsonValue] = {"type": "content", "content": {"type": "text", "text": "why\nnot"}}


def _items(tool_call: JsonObject) -> list[tuple[str, str]]:
    preview = describe(tool_call, cwd=CWD).preview
    return [(item.label, item.value if isinstance(item, Field) else item.text) for item in preview]


def _subjects(tool_call: JsonObject) -> list[tuple[str, JsonObject, bool]]:
    return [(subject.kind, subject.members, subject.known) for subject in describe(tool_call, cwd=CWD).subjects]


def _diff(path: str, old: str | None, new: str | None) -> JsonValue:
    return {"type": "diff", "path": path, "oldText": old, "newText": new}


def test_the_golden_request_gives_its_four_items() -> None:
    described = describe(
        {
            "toolCallId": "tc1",
            "title": "Run the test suite",
            "kind": "execute",
            "rawInput": {"command": "bun test"},
            "locations": [{"path": "apps/hub"}],
        },
        cwd=CWD,
    )
    preview = (
        Field("Tool", "Run the test suite"),
        Field("Kind", "execute"),
        Text("Command", "bun test"),
        Field("Location", "apps/hub"),
    )
    assert preview == described.preview
    assert (described.title, described.tool_kind, described.complete) == ("Run the test suite", "execute", True)
    assert Essence(command="bun test", paths=("apps/hub",), diffs=(), url=None) == described.essence
    shell = Subject(kind="shell", members={"command": "bun test", "stages": [], "workspaceRoot": CWD})
    assert (shell,) == described.subjects


def test_all_items_stand_in_the_order_of_section_9() -> None:
    labels = [
        label
        for label, _ in _items(
            {
                "title": "Fetch",
                "kind": "fetch",
                "rawInput": {"command": "curl", "cwd": "/w", "url": "https://h.example/x", "more": 1},
                "locations": [{"path": "a", "line": 3}, {"path": "b"}],
                "content": [TEXT_BLOCK, _diff("a", "x\n", "y\n"), _diff("b", None, "z\n")],
                "_meta": {"approvalSubject": {"kind": "tool", "toolName": "t"}},
            }
        )
    ]
    by_the_agent = [f"{label} (as the agent describes it)" for label in ("Kind", "Tool name")]
    rows = ["Tool", "Kind", "Command", "Directory", "URL", "Host", "Port", "Protocol", "Location", "Location"]
    assert [*rows, "Change: a", "Change: b", "Details", "Input", *by_the_agent] == labels


@pytest.mark.parametrize(
    ("tool_call", "title"),
    [
        ({}, "an action"),
        ({"title": None}, "an action"),
        ({"title": 7}, "an action"),
        ({"title": ""}, "an action"),
        ({"title": " ", "name": "Bash"}, "Bash"),
        ({"title": "", "kind": "execute"}, "execute"),
        ({"title": "Run\n1. Allow once"}, r'"Run\n1. Allow once"'),
        ({"title": "psql postgres://app:hunter2pw@db/x"}, "psql postgres://app:[masked]@db/x"),
    ],
)
def test_the_title_is_one_escaped_and_masked_line(tool_call: JsonObject, title: str) -> None:
    assert (title, ("Tool", title)) == (describe(tool_call, cwd=CWD).title, _items(tool_call)[0])


@pytest.mark.parametrize(
    ("kind", "shown"), [("execute", "execute"), ("a\nb", r'"a\nb"'), ("", None), (None, None), (7, None)]
)
def test_the_kind_is_kept_escaped_or_left_out(kind: JsonValue, shown: str | None) -> None:
    assert shown == describe({"title": "t", "kind": kind}, cwd=CWD).tool_kind


NAMED: dict[str, JsonValue] = {"toolName": "t"}
SHELL: dict[str, JsonValue] = {"command": "ls", "stages": [], "workspaceRoot": CWD}


@pytest.mark.parametrize(
    ("tool_call", "subjects"),
    [
        ({"kind": "execute"}, [("tool", NAMED, True)]),
        ({"rawInput": {"command": "ls"}}, [("tool", NAMED, True)]),
        ({"subject": {"command": "ls"}}, [("shell", SHELL, True)]),
        ({"kind": "quantum", "subject": {"command": "ls"}}, [("quantum", NAMED, False)]),
        ({"kind": "quantum", "locations": [{"path": "/x"}]}, [("quantum", NAMED, False)]),
        ({"kind": "read"}, [("tool", NAMED, True)]),
        ({"kind": "fetch"}, [("tool", NAMED, True)]),
        ({"kind": "other"}, [("tool", NAMED, True)]),
        ({"kind": "other", "rawInput": {"url": "https://h/"}}, [("tool", NAMED, True)]),
        (
            {"kind": "search", "locations": [{"path": "/etc/passwd"}]},
            [("fileAccess", {"path": "/etc/passwd", "access": "read", **NAMED}, True)],
        ),
        (
            {"kind": "edit", "locations": [{"path": f"{CWD}/a/../b.txt"}], "content": [_diff(f"{CWD}/b.txt", "", "x")]},
            [("fileAccess", {"path": "b.txt", "access": "write", **NAMED}, True)],
        ),
        (
            {"kind": "move", "locations": [{"path": f"{CWD}/a"}, {"path": "/srv/app2/x"}]},
            [
                ("fileAccess", {"path": "a", "access": "write", **NAMED}, True),
                ("fileAccess", {"path": "/srv/app2/x", "access": "write", **NAMED}, True),
            ],
        ),
    ],
)
def test_a_tool_call_becomes_a_typed_subject(
    tool_call: JsonObject, subjects: list[tuple[str, JsonObject, bool]]
) -> None:
    assert subjects == _subjects({"title": "t", **tool_call})


@pytest.mark.parametrize(
    ("url", "members"),
    [
        ("https://h.example/x", {"host": "h.example", "protocol": "https"}),
        ("HTTPS://h.example:8443", {"host": "h.example", "port": 8443, "protocol": "https"}),
        ("http://me:pw@h.example?x", {"host": "h.example", "protocol": "http"}),
        ("http://[::1]:80/", {"host": "[::1]", "port": 80, "protocol": "http"}),
        ("http://h:/", {"host": "h", "protocol": "http"}),
        ("http://h:70000/", {"host": "h", "protocol": "http"}),
    ],
)
def test_a_fetch_names_its_host_and_what_the_url_says(url: str, members: JsonObject) -> None:
    assert [("network", {**members, **NAMED}, True)] == _subjects(
        {"title": "t", "kind": "fetch", "rawInput": {"url": url}}
    )


@pytest.mark.parametrize(
    "url",
    [
        "h.example/x",
        "https://",
        "https://a\\@b/",
        "https://a@b@c/",
        "https://a\u200bb/",
        "https://a b/",
        "https://h:x/",
        7,
        "",
    ],
)
def test_a_url_that_is_not_plain_is_no_network_subject_but_is_shown(url: JsonValue) -> None:
    tool_call: JsonObject = {"title": "t", "kind": "fetch", "rawInput": {"url": url}}
    assert describe(tool_call, cwd=CWD).subjects[0].kind == "tool"
    assert _items(tool_call)[-1][0] == "Input"


def test_a_port_out_of_range_is_left_out_and_noted() -> None:
    tool_call: JsonObject = {"title": "t", "kind": "fetch", "rawInput": {"url": "http://h:70000/"}}
    assert describe(tool_call, cwd=CWD).notes == ("the port is not valid",)
    assert ("Port", "any port") in _items(tool_call)


def test_a_host_outside_ascii_is_shown_in_its_other_form_too() -> None:
    items = _items({"title": "t", "kind": "fetch", "rawInput": {"url": "https://\u0430pple.example/x"}})
    assert ("Host", "\u0430pple.example (xn--pple-43d.example)") in items


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        (f"{CWD}/a/../b.txt", "b.txt"),
        ("b.txt", "b.txt"),
        ("./a//b", "a/b"),
        ("../x", "/srv/x"),
        ("/etc/passwd", "/etc/passwd"),
        ("/srv/app2/x", "/srv/app2/x"),
        ("/../../x", "/x"),
        (CWD, "."),
        ("/", "/"),
        ("C:\\x", "C:\\x"),
        ("\\\\host\\x", "\\\\host\\x"),
        ("file:///etc", "file:///etc"),
    ],
)
def test_a_path_is_normalised_by_its_text(path: str, normal: str) -> None:
    assert normal == normalise_path(path, CWD)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("x\n", "y\n", "@@ -1 +1 @@\n-x\n+y"),
        (None, "y\n", "new file\n@@ -0,0 +1 @@\n+y"),
        ("", "y\n", "new file\n@@ -0,0 +1 @@\n+y"),
        (None, "", "new file"),
        ("x\n", "x\n", "no change"),
        (None, None, "not given"),
    ],
)
def test_a_change_is_shown_as_a_diff(old: str | None, new: str | None, text: str) -> None:
    assert ("Change: a", text) == _items({"title": "t", "content": [_diff("a", old, new)]})[-1]


def test_a_ready_patch_is_shown_as_it_is() -> None:
    item: JsonValue = {"type": "diff", "patch": {"text": "@@ x"}}
    assert _items({"title": "t", "content": [item]})[-1] == ("Change", "@@ x")


def test_ten_locations_are_shown_and_the_others_counted() -> None:
    def locate(count: int) -> JsonObject:
        return {"title": "t", "locations": [{"path": f"p{n}", "line": n} for n in range(count)]}

    assert [("Location", f"p{n}:{n}") for n in range(10)] == _items(locate(12))[1:]
    notes = [describe(locate(count), cwd=CWD).notes for count in (10, 11, 12)]
    assert notes == [(), ("1 location left out",), ("2 locations left out",)]


@pytest.mark.parametrize(
    ("tool_call", "shown"),
    [
        ({"rawInput": {"command": "ls", "commands": ["ls"], "timeout": 5}}, '{\n  "timeout": 5\n}'),
        ({"rawInput": {"command": "ls", "commands": ["ls", "rm"]}}, '{\n  "commands": [\n    "ls",\n    "rm"\n  ]\n}'),
        ({"rawInput": {"command": "ls"}}, None),
        ({"rawInput": {"title": "t", "message": "echo"}}, '{\n  "message": "echo"\n}'),
        ({"rawInput": {"description": "why\nnot"}, "content": [TEXT_BLOCK]}, None),
        ({"rawInput": {"file": "a", "old": "x", "new": "y"}, "content": [_diff("a", "x", "y")]}, None),
        (
            {"rawInput": {"from": "a", "to": "b"}, "locations": [{"path": "a"}, {"path": "b"}]},
            '{\n  "from": "a",\n  "to": "b"\n}',
        ),
        ({"rawInput": {"diff": "--- a\n@@ -1,2 +1,2 @@\n-x\n+y\n z\n"}, "content": [_diff("a", "x", "y")]}, None),
        (
            {"rawInput": {"diff": "@@\n-x\n+y\n+evil"}, "content": [_diff("a", "x", "y")]},
            '{\n  "diff": "@@\\n-x\\n+y\\n+evil"\n}',
        ),
        ({"rawInput": {"diff": "@@"}}, '{\n  "diff": "@@"\n}'),
        ({"rawInput": "a\nb"}, "a\nb"),
        ({"rawInput": [1]}, "[\n  1\n]"),
        ({"rawInput": {}}, None),
        (
            {"rawInput": {"token": "hunter2", "big": 1e400, "n": 9007199254740993}},
            '{\n  "big": Infinity,\n  "n": 9007199254740993,\n  "token": "[masked]"\n}',
        ),
    ],
)
def test_the_input_is_what_stands_nowhere_above(tool_call: JsonObject, shown: str | None) -> None:
    assert shown == dict(_items({"title": "t", **tool_call})).get("Input")


@pytest.mark.parametrize(
    ("tool_call", "notes"),
    [
        ({"title": "t"}, ("the agent gave only a title",)),
        ({"title": "t", "kind": "execute"}, ("the agent gave only a title",)),
        ({}, ("the agent did not say what it wants to do",)),
        ({"kind": "execute", "content": [TEXT_BLOCK]}, ("the agent named no command",)),
        ({"kind": "quantum", "rawInput": {"a": 1}}, ("the kind of action is unknown",)),
        ({"title": "t", "rawInput": {"a": "PASSWORD=hunter2"}}, ("a secret is masked",)),
        ({"title": 7, "name": [], "rawInput": 1}, ("a field has the wrong type",)),
        ({"title": "t", "content": [_diff("a", None, None)]}, ("a change does not say what is changed",)),
        ({"title": "t", "content": [{"type": "content", "content": {"type": "image"}}]}, ("an image is not shown",)),
        ({"title": "t", "rawInput": {"command": "ls"}, "content": [{"type": "terminal"}]}, ()),
        ({"title": "a\u202eb", "rawInput": 1}, ()),
    ],
)
def test_the_notes_say_why_a_preview_is_not_complete(tool_call: JsonObject, notes: tuple[str, ...]) -> None:
    described = describe(tool_call, cwd=CWD)
    assert (notes, not notes) == (described.notes, described.complete)


@pytest.mark.parametrize(
    ("foreign", "known"),
    [
        ({"kind": "fileAccess", "path": "/x"}, True),
        ({"kind": "quantum", "path": "/x"}, False),
        ({"path": "/x"}, False),
        ({"kind": 7}, False),
        ("quantum", False),
    ],
)
def test_an_unknown_subject_of_the_agents_own_stops_automatic_allows(foreign: JsonValue, known: bool) -> None:
    tool_call: JsonObject = {"title": "t", "rawInput": {"a": 1}, "_meta": {"approvalSubject": foreign, "x": "hidden"}}
    described = describe(tool_call, cwd=CWD)
    assert described.subjects[0].kind == "tool"
    assert known == all(subject.known for subject in described.subjects)
    assert known == described.complete


@pytest.mark.parametrize("meta", [None, 7, {}, {"approvalSubject": None}, {"secret": "x"}])
def test_nothing_else_of_meta_and_raw_output_is_shown(meta: JsonValue) -> None:
    tool_call: JsonObject = {"title": "t", "rawInput": {"a": 1}, "_meta": meta, "rawOutput": {"b": 2}}
    assert [label for label, _ in _items(tool_call)] == ["Tool", "Input"]


def test_the_essence_holds_raw_values() -> None:
    essence = describe(
        {
            "title": "t",
            "kind": "fetch",
            "rawInput": {"command": "PASSWORD=hunter2", "url": "https://h/\n"},
            "locations": [{"path": "a\u202e", "line": 1}],
            "content": [_diff("b", "x", "y"), {"type": "diff", "path": "c", "patch": "@@"}],
        },
        cwd=CWD,
    ).essence
    raw = Essence(command="PASSWORD=hunter2", paths=("a\u202e", "b", "c"), diffs=("b\0x\0y", "@@"), url="https://h/\n")
    assert raw == essence


def test_a_diff_that_stands_only_in_the_raw_input_belongs_to_the_essence() -> None:
    assert describe({"rawInput": {"diff": "@@"}}, cwd=CWD).essence.diffs == ("@@",)


def test_members_that_are_added_elsewhere_leave_the_essence_alone() -> None:
    before: JsonObject = {"title": "t", "rawInput": {"command": "ls"}}
    after: JsonObject = {
        "title": "u",
        "status": "failed",
        "rawInput": {"command": "ls", "cwd": "/w", "description": "x"},
    }
    assert describe(before, cwd=CWD).essence == describe(after, cwd=CWD).essence


@given(st.dictionaries(NAMES, ANY_JSON), st.sampled_from(["/srv/app", "", "relative", "/"]))
def test_any_value_in_any_place_is_described_and_nothing_hidden_is_shown(tool_call: JsonObject, cwd: str) -> None:
    described = describe(tool_call, cwd=cwd)
    assert described.subjects
    for item in (*described.preview, Field("title", described.title), Field("kind", described.tool_kind or "")):
        shown, kept = (item.value, "") if isinstance(item, Field) else (item.text, "\n\t")
        assert not [c for c in item.label + shown if is_hidden(c) and c not in kept + "\ufe0e\ufe0f"]
        assert "hunter2" not in shown


def test_a_large_tool_call_is_described_in_linear_time() -> None:
    rows: list[JsonValue] = [{"k": "v"}] * 20_000
    tool_call: JsonObject = {
        "title": "x" * 1_000_000,
        "kind": "execute",
        "rawInput": {"command": "echo a b;\n" * 100_000, "rows": rows},
        "content": [_diff("a", "a\nb\n" * 200_000, "b\na\n" * 200_000)],
    }
    start = time.process_time()
    describe(tool_call, cwd=CWD)
    assert time.process_time() - start < 20  # about 1
