"""Reads a merged tool call as an agent sent it: every member of its right type or absent, and what was odd about it.

Above it: subject. Below it: the model. Any JSON value may stand in any place and none raises; nothing is judged, masked
or shown here (acp.md, section 6; permission-v2.md, sections 8 and 9).
"""

import shlex
from dataclasses import dataclass

from bridge.core.model import JsonObject, JsonValue

WRONG_TYPE = "a field has the wrong type"
NO_CHANGE = "a change does not say what is changed"

_NOT_SHOWN = {
    "image": "an image is not shown",
    "audio": "a sound is not shown",
    "resource": "a resource is not shown",
    "resource_link": "a link to a resource is not shown",
}
_UNKNOWN_CONTENT = "content of an unknown type is not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place in a file, as written."""

    path: str
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A diff item. `patch` is a ready one (v2), else there are two texts; neither: nothing says what is changed."""

    path: str
    old: str | None = None
    new: str | None = None
    patch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call whose members have their right types. Empty and blank texts count as absent."""

    title: str | None
    name: str | None
    kind: str | None
    raw_input: JsonValue
    members: JsonObject  # those of rawInput, where it is an object
    command: str | None
    command_members: frozenset[str]  # which members of rawInput say it
    is_command_subject: bool  # v2: the command stands in the request itself
    directory: str | None
    url: str | None
    locations: tuple[Location, ...]
    changes: tuple[Change, ...]
    details: tuple[str, ...]
    says_more: bool  # than its title and kind
    oddities: tuple[str, ...]  # why a preview of it cannot be complete

    @property
    def tool_name(self) -> str | None:
        """What the agent calls its tool."""
        return self.name or self.title or self.kind

    @property
    def paths(self) -> tuple[str, ...]:
        """Of locations and changes, as written, each once."""
        paths = [location.path for location in self.locations] + [change.path for change in self.changes if change.path]
        return tuple(dict.fromkeys(paths))


class _Reader:
    """Takes members by their type; one of another type is as if absent, and noted."""

    def __init__(self) -> None:
        self.oddities: list[str] = []

    def take_text(self, value: JsonValue) -> str | None:
        if value is not None and not isinstance(value, str):
            self.oddities.append(WRONG_TYPE)
        return value if isinstance(value, str) else None

    def take_string(self, value: JsonValue) -> str | None:
        text = self.take_text(value)
        return text if text is not None and text.strip() else None

    def take_list(self, value: JsonValue) -> list[JsonValue]:
        if value is not None and not isinstance(value, list):
            self.oddities.append(WRONG_TYPE)
        return value if isinstance(value, list) else []

    def take_object(self, value: JsonValue) -> JsonObject:
        if value is not None and not isinstance(value, dict):
            self.oddities.append(WRONG_TYPE)
        return value if isinstance(value, dict) else {}


def read_tool_call(tool_call: JsonObject) -> ToolCall:
    """The tool call, its members taken by their types."""
    reader = _Reader()
    outer = reader.take_object(tool_call.get("subject"))  # v2: what is asked stands one level deeper
    tool_call = {**reader.take_object(outer.get("toolCall")), **tool_call}
    raw_input = tool_call.get("rawInput")
    members: JsonObject = raw_input if isinstance(raw_input, dict) else {}
    v2_command = reader.take_string(outer.get("command"))
    command, command_members = _read_command(members, reader)
    raw_content = reader.take_list(tool_call.get("content"))
    content = [item for value in raw_content if (item := _read_content(value, reader)) is not None]
    descriptions = [reader.take_string(holder.get("description")) for holder in (outer, tool_call)]
    raw_locations = reader.take_list(tool_call.get("locations"))
    locations = [location for item in raw_locations if (location := _read_location(item, reader))]
    return ToolCall(
        title=reader.take_string(tool_call.get("title")),
        name=reader.take_string(tool_call.get("name")),
        kind=reader.take_string(tool_call.get("kind")),
        raw_input=raw_input,
        members=members,
        command=v2_command if command is None else command,
        command_members=command_members,
        is_command_subject=v2_command is not None,
        directory=reader.take_string(members.get("cwd")) or reader.take_string(outer.get("cwd")),
        url=reader.take_string(members.get("url")),
        locations=tuple(locations),
        changes=tuple(item for item in content if isinstance(item, Change)),
        details=tuple([item for item in content if isinstance(item, str)] + [text for text in descriptions if text]),
        says_more=any((raw_input, raw_content, raw_locations, v2_command, *descriptions)),
        oddities=tuple(reader.oddities),
    )


def _read_command(members: JsonObject, reader: _Reader) -> tuple[str | None, frozenset[str]]:
    """The command and the members that say it; a list under `command` is an argv, under `commands` one line each."""
    command, commands = members.get("command"), members.get("commands")
    argv, lines = list_strings(command), list_strings(commands)
    for value, strings in ((command, argv), (commands, lines)):
        if strings is None and value is not None and not (value is command and isinstance(command, str)):
            reader.oddities.append(WRONG_TYPE)
    joined = "\n".join(lines) if lines else None
    if isinstance(command, str) and command.strip():
        shown = command
    elif argv:
        shown = shlex.join(argv)
    else:
        return joined, frozenset({"commands"} if joined is not None else ())
    return shown, frozenset({"command", "commands"} if joined == shown else {"command"})


def _read_location(value: JsonValue, reader: _Reader) -> Location | None:
    location = reader.take_object(value)
    path, line = reader.take_string(location.get("path")), location.get("line")
    if path is None:
        reader.oddities.append(WRONG_TYPE)
        return None
    if line is not None and (isinstance(line, bool) or not isinstance(line, int)):
        reader.oddities.append(WRONG_TYPE)
        line = None
    return Location(path=path, line=line)


def _read_content(value: JsonValue, reader: _Reader) -> Change | str | None:
    """A change, a text, or None: a terminal only says where output will appear, what else cannot be shown is noted."""
    item = reader.take_object(value)
    match item.get("type"), item.get("content"):
        case "diff", _:
            return _read_change(item, reader)
        case "content", {"type": "text", "text": str(text)}:
            return text if text.strip() else None
        case "terminal", _:
            pass
        case "content", {"type": "image" | "audio" | "resource" | "resource_link" as kind}:
            reader.oddities.append(_NOT_SHOWN[kind])
        case _:
            reader.oddities.append(_UNKNOWN_CONTENT)
    return None


def _read_change(item: JsonObject, reader: _Reader) -> Change:
    patch = item.get("patch")
    if isinstance(patch, dict):
        patch = patch.get("text")
    path, old, new = (reader.take_text(item.get(name)) for name in ("path", "oldText", "newText"))
    if new is None and not isinstance(patch, str):
        reader.oddities.append(NO_CHANGE)
    return Change(path=path or "", old=old, new=new, patch=patch if isinstance(patch, str) and new is None else None)


def list_strings(value: JsonValue) -> list[str] | None:
    """The list, when it is one of strings only; else None."""
    if not isinstance(value, list):
        return None
    strings = [item for item in value if isinstance(item, str)]
    return strings if len(strings) == len(value) else None
