import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import JsonObject, JsonValue
from bridge.core.toolcall import NO_CHANGE, WRONG_TYPE, Change, Location, list_strings, read_tool_call

NAMES = st.sampled_from(
    [
        *(
            "title",
            "name",
            "kind",
            "status",
            "content",
            "locations",
            "rawInput",
            "rawOutput",
            "_meta",
            "subject",
            "toolCall",
        ),
        *("command", "commands", "cwd", "url", "diff", "type", "text", "path", "line", "oldText", "newText", "patch"),
        *(
            "description",
            "approvalSubject",
            "holder",
            "label",
            "origin",
            "port",
            "host",
            "stages",
            "argv",
            "argvComplete",
        ),
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
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=6),
    max_leaves=30,
)


@given(st.dictionaries(NAMES, ANY_JSON))
def test_any_value_in_any_place_is_read(tool_call: JsonObject) -> None:
    call = read_tool_call(tool_call)
    assert all(call.paths)


@pytest.mark.parametrize(
    ("raw_input", "command", "members", "oddities"),
    [
        ({"command": "ls"}, "ls", {"command"}, ()),
        ({"command": ["bash", "-c", "a b"]}, "bash -c 'a b'", {"command"}, ()),
        ({"commands": ["a", "b"]}, "a\nb", {"commands"}, ()),
        ({"command": "a", "commands": ["a"]}, "a", {"command", "commands"}, ()),
        ({"command": "a", "commands": ["a", "b"]}, "a", {"command"}, ()),
        ({"command": " ", "commands": ["a"]}, "a", {"commands"}, ()),
        ({"command": [], "commands": []}, None, set[str](), ()),
        ({"command": ["a", 1]}, None, set[str](), (WRONG_TYPE,)),
        ({"command": 7, "commands": "a"}, None, set[str](), (WRONG_TYPE, WRONG_TYPE)),
        ({}, None, set[str](), ()),
        (["ls"], None, set[str](), ()),
    ],
)
def test_a_command_is_found_in_the_raw_input(
    raw_input: JsonValue, command: str | None, members: set[str], oddities: tuple[str, ...]
) -> None:
    call = read_tool_call({"rawInput": raw_input})
    assert (command, members, oddities) == (call.command, call.command_members, call.oddities)


def test_a_v2_subject_says_command_directory_and_description() -> None:
    call = read_tool_call({"subject": {"type": "command", "command": "ls", "cwd": "/w", "description": "lists"}})
    assert (call.command, call.directory, call.details, call.is_command_subject) == ("ls", "/w", ("lists",), True)


def test_a_v2_subject_may_hold_the_tool_call() -> None:
    call = read_tool_call(
        {"subject": {"type": "tool_call", "toolCall": {"title": "inner", "kind": "edit"}}, "title": "outer"}
    )
    assert (call.title, call.kind) == ("outer", "edit")


@pytest.mark.parametrize(
    ("item", "changes", "oddities"),
    [
        ({"path": "a", "oldText": "x", "newText": "y"}, (Change(path="a", old="x", new="y"),), ()),
        ({"path": "a", "oldText": None, "newText": "y"}, (Change(path="a", new="y"),), ()),
        ({"path": "a", "patch": {"text": "@@"}}, (Change(path="a", patch="@@"),), ()),
        ({"path": "a", "patch": "@@"}, (Change(path="a", patch="@@"),), ()),
        ({"path": "a"}, (Change(path="a"),), (NO_CHANGE,)),
        ({"path": 7, "oldText": 7, "newText": "y"}, (Change(path="", new="y"),), (WRONG_TYPE, WRONG_TYPE)),
    ],
)
def test_a_change_is_read(item: dict[str, JsonValue], changes: tuple[Change, ...], oddities: tuple[str, ...]) -> None:
    call = read_tool_call({"content": [{"type": "diff", **item}]})
    assert (changes, oddities) == (call.changes, call.oddities)


def test_texts_are_details_and_a_terminal_is_nothing() -> None:
    content: list[JsonValue] = [
        {"type": "content", "content": {"type": "text", "text": "one"}},
        {"type": "content", "content": {"type": "text", "text": " "}},
        {"type": "terminal", "terminalId": "t"},
        {"type": "content", "content": {"type": "text", "text": "two"}},
    ]
    call = read_tool_call({"content": content, "description": "three"})
    assert (call.details, call.oddities) == (("one", "two", "three"), ())


@pytest.mark.parametrize(
    ("item", "oddity"),
    [
        ({"type": "content", "content": {"type": "image"}}, "an image is not shown"),
        ({"type": "content", "content": {"type": "audio"}}, "a sound is not shown"),
        ({"type": "content", "content": {"type": "resource"}}, "a resource is not shown"),
        ({"type": "content", "content": {"type": "resource_link"}}, "a link to a resource is not shown"),
        ({"type": "content", "content": {"type": "text", "text": 7}}, "content of an unknown type is not shown"),
        ({"type": "hologram"}, "content of an unknown type is not shown"),
    ],
)
def test_content_that_cannot_be_shown_is_noted(item: JsonValue, oddity: str) -> None:
    assert (oddity,) == read_tool_call({"content": [item]}).oddities


def test_locations_keep_their_lines_and_bad_ones_are_noted() -> None:
    locations: list[JsonValue] = [
        {"path": "a"},
        {"path": "a", "line": 3},
        {"path": "b", "line": None},
        {"path": "c", "line": "3"},
        {"path": "d", "line": True},
        {"path": 7},
        {},
    ]
    call = read_tool_call({"locations": locations})
    read = (("a", None), ("a", 3), ("b", None), ("c", None), ("d", None))
    assert tuple(Location(path=path, line=line) for path, line in read) == call.locations
    assert {WRONG_TYPE} == set(call.oddities)
    assert call.paths == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *(("title", 7), ("name", []), ("kind", {}), ("content", "x"), ("locations", {}), ("subject", "x")),
        *(("rawInput", {"url": 7}), ("rawInput", {"cwd": []}), ("content", [7])),
    ],
)
def test_a_wrong_type_is_noted_and_else_absent(member: str, value: JsonValue) -> None:
    assert WRONG_TYPE in read_tool_call({member: value}).oddities


@pytest.mark.parametrize(
    ("tool_call", "name"),
    [({"name": "n", "title": "t"}, "n"), ({"name": "", "title": "t"}, "t"), ({"kind": "k"}, "k"), ({}, None)],
)
def test_the_tool_is_called_by_the_first_of_name_title_and_kind(tool_call: JsonObject, name: str | None) -> None:
    assert name == read_tool_call(tool_call).tool_name


@pytest.mark.parametrize(
    ("tool_call", "says_more"),
    [
        ({"title": "t", "kind": "fetch", "rawInput": {}, "content": [], "locations": []}, False),
        ({"rawInput": "x"}, True),
        ({"locations": [{"path": "a"}]}, True),
        ({"subject": {"command": "ls"}}, True),
        ({"description": "d"}, True),
    ],
)
def test_it_says_whether_there_is_more_than_a_title(tool_call: JsonObject, says_more: bool) -> None:
    assert says_more == read_tool_call(tool_call).says_more


@pytest.mark.parametrize(("value", "strings"), [(["a"], ["a"]), ([], []), (["a", 1], None), ("a", None), (None, None)])
def test_only_a_list_of_strings_is_one(value: JsonValue, strings: list[str] | None) -> None:
    assert strings == list_strings(value)
