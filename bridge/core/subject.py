"""Says what a tool call asks for: typed, ready to be shown, and what of it must not change unnoticed.

Sections 8 and 9 of permission-v2.md, and AC-19 of requirements.md.

Above it: policy, broker, and the adapter that turns frames into events. Below it: toolcall and preview. The tool call is the
merged one and raw; any value may stand in any place, and none raises. It asks nobody and opens no path: paths are
normalised by their text alone.
"""

import re

from bridge.core.diff import list_changed_lines, write_diff
from bridge.core.model import Description, Essence, Field, JsonObject, JsonValue, Subject
from bridge.core.preview import KIND_UNKNOWN, KNOWN_KINDS, PORT_INVALID, Preview, add_reach, describe_subject, is_port
from bridge.core.safetext import find_hidden
from bridge.core.toolcall import Change, Location, ToolCall, read_tool_call

LOCATIONS_SHOWN = 10  # section 9, row 6

NO_TITLE = "an action"
ONLY_A_TITLE = "the agent gave only a title"
NO_COMMAND = "the agent named no command"
NOTHING_SAID = "the agent did not say what it wants to do"
BY_THE_AGENT = " (as the agent describes it)"

_READING = frozenset({"read", "search"})
_WRITING = frozenset({"edit", "delete", "move"})
_KINDS = _READING | _WRITING | {"execute", "fetch", "other", "think", "switch_mode"}

_URL = re.compile(
    r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]{0,30})://(?:[^/?#\\\s@]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[^/?#\\\s@:\[\]]{1,253})(?::(?P<port>[0-9]{0,9}))?(?=[/?#]|\Z)",
)
_OPAQUE_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\|[A-Za-z][A-Za-z0-9+.-]*://")


def describe(tool_call: JsonObject, *, cwd: str) -> Description:
    """What a merged tool call asks for, ready to be shown: whole, masked, escaped.

    `notes` holds the reasons found here, without the words in front of them (`a secret is masked`). The item `Note` is
    not in `preview`: whoever cuts the preview to fit knows more reasons, and appends it.
    The essence and the subjects hold raw values.
    """
    call = read_tool_call(tool_call)
    subjects = _find_subjects(call, cwd)
    preview = Preview()
    for reason in call.oddities:
        preview.note(reason)
    title = preview.show_line(call.title or call.name or call.kind or NO_TITLE)
    preview.items.append(Field("Tool", title))
    _preview_call(call, subjects, preview)
    meta = tool_call.get("_meta")
    foreign = meta.get("approvalSubject") if isinstance(meta, dict) else None
    if foreign is not None:
        subjects = (*subjects, *_read_foreign_subject(foreign, preview))
    return Description(
        title=title,
        tool_kind=None if call.kind is None else preview.show_line(call.kind),
        subjects=subjects,
        preview=tuple(preview.items),
        notes=tuple(preview.notes),
        essence=_extract_essence(call),
    )


def normalise_path(path: str, cwd: str) -> str:
    """A path by its text alone: relative to `cwd` when inside it, else absolute (MS-08)."""
    if _OPAQUE_PATH.match(path):
        return path
    base = _resolve(cwd)
    parts = _resolve(path if path.startswith("/") else f"{cwd}/{path}")
    if parts[: len(base)] == base:
        return "/".join(parts[len(base) :]) or "."
    return "/" + "/".join(parts)


def _resolve(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return parts


# ------------------------------------------------------------------------------------------------------------ subjects


def _find_subjects(call: ToolCall, cwd: str) -> tuple[Subject, ...]:
    """Section 8. `toolName` stands for every kind but `shell`."""
    named: dict[str, JsonValue] = {} if call.tool_name is None else {"toolName": call.tool_name}
    if call.kind is not None and call.kind not in _KINDS:
        return (Subject(kind=call.kind, members=named, known=False),)
    if call.command is not None and (call.kind == "execute" or call.is_command_subject):
        return (Subject(kind="shell", members={"command": call.command, "stages": [], "workspaceRoot": cwd}),)
    if call.kind in _READING | _WRITING and call.paths:
        access = "read" if call.kind in _READING else "write"
        paths = dict.fromkeys(normalise_path(path, cwd) for path in call.paths)
        return tuple(Subject(kind="fileAccess", members={"path": path, "access": access, **named}) for path in paths)
    url = _match_url(call)
    if url is None:
        return (Subject(kind="tool", members=named),)
    port: dict[str, JsonValue] = {"port": int(url["port"])} if _has_valid_port(url) else {}
    return (
        Subject(kind="network", members={"host": url["host"], **port, "protocol": url["protocol"].lower(), **named}),
    )


def _match_url(call: ToolCall) -> re.Match[str] | None:
    """The URL that is to be fetched. One that programs would read differently is none."""
    url = _URL.match(call.url) if call.kind == "fetch" and call.url is not None else None
    return None if url is None or find_hidden(url["host"]) else url


def _has_valid_port(url: re.Match[str]) -> bool:
    return bool(url["port"]) and is_port(int(url["port"]))


def _read_foreign_subject(foreign: JsonValue, preview: Preview) -> tuple[Subject, ...]:
    """What the agent itself says under `_meta`: shown as its words. Only an unknown kind counts, against allowing."""
    members: JsonObject = foreign if isinstance(foreign, dict) else {"approvalSubject": foreign}
    kind = members.get("kind")
    preview.suffix = BY_THE_AGENT
    describe_subject(kind, members, preview)
    if isinstance(kind, str) and kind in KNOWN_KINDS:
        return ()
    return (Subject(kind=kind if isinstance(kind, str) else "", members=members, known=False),)


def _extract_essence(call: ToolCall) -> Essence:
    """Raw values of what is compared. Copilot's `diff` is compared too: its edits stand nowhere else."""
    diffs = [change.patch or f"{change.path}\0{change.old or ''}\0{change.new or ''}" for change in call.changes]
    diff = call.members.get("diff")
    return Essence(
        command=call.command,
        paths=call.paths,
        diffs=(*diffs, diff) if isinstance(diff, str) and diff and not diffs else tuple(diffs),
        url=call.url,
    )


# ------------------------------------------------------------------------------------------------------------- preview


def _preview_call(call: ToolCall, subjects: tuple[Subject, ...], preview: Preview) -> None:
    """Rows 2 to 9 of section 9."""
    if call.kind is not None:
        preview.add_field("Kind", call.kind)
    if call.command is not None:
        preview.add_text("Command", call.command)
    if call.directory is not None:
        preview.add_field("Directory", call.directory)
    if call.url is not None and subjects[0].kind == "network":
        _preview_network(call.url, subjects[0], preview)
    _preview_locations(call.locations, preview)
    for change in call.changes:
        preview.add_text(f"Change: {change.path}" if change.path else "Change", _write_change(change))
    if call.details:
        preview.add_text("Details", "\n\n".join(call.details))
    rest = _find_rest(call, subjects)
    if rest:
        preview.add_json("Input", rest)
    _note_what_is_missing(call, preview)
    if not subjects[0].known:
        preview.note(KIND_UNKNOWN)


def _note_what_is_missing(call: ToolCall, preview: Preview) -> None:
    if not call.says_more:
        preview.note(ONLY_A_TITLE if call.tool_name else NOTHING_SAID)
    elif call.kind == "execute" and call.command is None:
        preview.note(NO_COMMAND)


def _preview_network(url: str, subject: Subject, preview: Preview) -> None:
    preview.add_field("URL", url)
    add_reach(subject.members, preview)
    parsed = _URL.match(url)
    if parsed is not None and parsed["port"] and not _has_valid_port(parsed):
        preview.note(PORT_INVALID)


def _preview_locations(locations: tuple[Location, ...], preview: Preview) -> None:
    for location in locations[:LOCATIONS_SHOWN]:
        preview.add_field("Location", location.path if location.line is None else f"{location.path}:{location.line}")
    left = len(locations) - LOCATIONS_SHOWN
    if left > 0:
        preview.note(f"{left:,} {'location' if left == 1 else 'locations'} left out")


def _write_change(change: Change) -> str:
    if change.patch is not None:
        return change.patch
    if change.new is None:
        return "not given"
    diff = write_diff(change.old or "", change.new)
    if not change.old:
        return f"new file\n{diff}" if diff else "new file"
    return diff or "no change"


def _find_rest(call: ToolCall, subjects: tuple[Subject, ...]) -> JsonValue:
    """What of rawInput stands nowhere above. Of several paths each keeps its name: they are no longer told apart."""
    if not isinstance(call.raw_input, dict):
        return call.raw_input
    shown = {call.command, call.directory, call.title, *call.details}
    shown.update(text for change in call.changes for text in (change.old, change.new, change.patch))
    if len(call.paths) == 1:
        shown.update(call.paths)
    if subjects[0].kind == "network":
        shown.add(call.url)
    return {
        name: value
        for name, value in call.raw_input.items()
        if name not in call.command_members
        and not (isinstance(value, str) and (value in shown or (name == "diff" and _repeats_change(value, call))))
    }


def _repeats_change(diff: str, call: ToolCall) -> bool:
    """Whether a diff says again what the one change that is shown says (opencode and Copilot send both)."""
    return len(call.changes) == 1 and list_changed_lines(diff) == list_changed_lines(_write_change(call.changes[0]))
