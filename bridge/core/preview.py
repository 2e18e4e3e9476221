"""What people are shown of a tool call or a subject: items in a fixed order, masked, then escaped; and why some is missing.

Above it: subject. Below it: masking and safetext, which every value passes here exactly once, and diff. It knows neither
what the subject of a tool call is nor how much fits an event: nothing is cut here (permission-v2.md, sections 9 and 10).
"""

import json
import re
import shlex
import unicodedata
from dataclasses import dataclass, field

from bridge.core.masking import MASK, mask
from bridge.core.model import Field, JsonObject, JsonValue, PreviewItem, Text
from bridge.core.namedsecrets import is_secret_name, is_secret_value
from bridge.core.safetext import escape_block, escape_line
from bridge.core.toolcall import WRONG_TYPE, list_strings

DEEPEST_JSON = 40
"""Levels of JSON that are shown: real tool calls have under ten, and a writer's recursion ends somewhere."""

LARGEST_INDENTED = 256 * 1024
"""Characters of JSON up to which it is indented; beyond, indentation could make it many times larger."""

BITS_OF_DECIMALS = 10_000
"""Whole numbers up to this size are written in decimals; Python refuses to for much larger ones."""

MASKED_NOTE = "a secret is masked"
TOO_DEEP = "a value is nested too deeply to be shown"
KIND_UNKNOWN = "the kind of action is unknown"
PORT_INVALID = "the port is not valid"
ARGUMENTS_UNKNOWN = "not all arguments of the command are known"

KNOWN_KINDS = frozenset({"shell", "fileAccess", "network", "unixSocket", "process", "tool", "computerUseTakeover"})
ANY_PORT = "any port"
LARGEST_PORT = 65_535
LONGEST_HOST = 253  # characters of a name in DNS

_FIELDS_OF_KIND: dict[str, tuple[tuple[str, str], ...]] = {  # member, label; all of them strings
    "shell": (("workspaceRoot", "Workspace"),),
    "fileAccess": (("path", "Path"), ("access", "Access")),
    "unixSocket": (("path", "Socket"),),
    "process": (("control", "Control"), ("target", "Target")),
}
_LABEL_ENDS = re.compile("[.\u3002\uff0e\uff61]")
_HOLDER_TIMES = frozenset({"since", "until", "at"})


@dataclass(slots=True)
class Preview:
    """Collects the items of one preview, and each reason why it is not complete once."""

    items: list[PreviewItem] = field(default_factory=list[PreviewItem])
    notes: list[str] = field(default_factory=list[str])
    suffix: str = ""  # behind every label, for what only the agent says

    def add_field(self, label: str, value: str) -> None:
        """A value in one line."""
        self.items.append(Field(escape_line(label) + self.suffix, self.show_line(value)))

    def add_text(self, label: str, text: str) -> None:
        """A text that keeps its lines. `label` may hold text of the agent."""
        self.items.append(Text(self.show_line(label) + self.suffix, escape_block(self._mask(text))))

    def add_json(self, label: str, value: JsonValue) -> None:
        """A value as sorted, indented JSON; a text as itself."""
        if isinstance(value, str):
            self.add_text(label, value)
            return
        safe = self._prepare(value, DEEPEST_JSON)
        text = _dump(safe)
        if len(text) <= LARGEST_INDENTED:
            text = json.dumps(safe, indent=2, sort_keys=True, ensure_ascii=False)
        self.items.append(Text(label + self.suffix, escape_block(text)))

    def add_member(self, label: str, value: JsonValue) -> None:
        """A member of unknown meaning in one line: a text as itself, anything else as JSON."""
        if isinstance(value, str) and not (is_secret_name(label) and is_secret_value(value)):
            self.add_field(label, value)
            return
        prepared = self._prepare({label: value}, DEEPEST_JSON)
        shown = next(iter(prepared.values())) if isinstance(prepared, dict) else prepared
        self.items.append(
            Field(self.show_line(label) + self.suffix, escape_line(shown if isinstance(shown, str) else _dump(shown)))
        )

    def show_line(self, text: str) -> str:
        """A text masked and escaped to one line."""
        return escape_line(self._mask(text))

    def note(self, reason: str) -> None:
        """A reason why the preview is not complete, kept once."""
        if reason not in self.notes:
            self.notes.append(reason)

    def _mask(self, text: str) -> str:
        masked, secrets = mask(text)
        if secrets:
            self.note(MASKED_NOTE)
        return masked

    def _prepare(self, value: JsonValue, depth: int) -> JsonValue:
        """JSON with its texts masked, as they are before quotes and backslashes are added, and no deeper than `depth`."""
        match value:
            case str():
                return self._mask(value)
            case bool() | float() | None:
                return value
            case int():
                return value if value.bit_length() <= BITS_OF_DECIMALS else hex(value)
            case _ if depth == 0 and value:
                self.note(TOO_DEEP)
                return "…"
            case list():
                return [self._prepare(item, depth - 1) for item in value]
            case _:
                return self._prepare_members(value, depth - 1)

    def _prepare_members(self, members: JsonObject, depth: int) -> dict[str, JsonValue]:
        prepared: dict[str, JsonValue] = {}
        for name, value in members.items():
            shown_name = self._mask(name)
            while shown_name in prepared:  # two names that masking made equal
                shown_name += "'"
            if isinstance(value, str) and is_secret_name(name) and is_secret_value(value):
                self.note(MASKED_NOTE)
                prepared[shown_name] = MASK
            elif isinstance(value, str) and name.lower().endswith("authorization"):
                prepared[shown_name] = self._mask(f"Authorization: {value}").removeprefix("Authorization: ")
            else:
                prepared[shown_name] = self._prepare(value, depth)
        return prepared


def _dump(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def describe_subject(kind: JsonValue, members: JsonObject, preview: Preview | None = None) -> Preview:
    """The items of an MSP `ApprovalSubject` of any kind, and why they are not all of it (MS-01 to MS-16).

    Goes on with `preview` when one is given. A kind that is unknown, or no string, shows its members, sorted.
    """
    preview = Preview() if preview is None else preview
    if not isinstance(kind, str) or kind not in KNOWN_KINDS:
        _describe_unknown(kind, members, preview)
        return preview
    preview.add_field("Kind", kind)
    match kind:
        case "shell":
            _describe_command(members, preview)
        case "network":
            add_reach(members, preview)
        case "computerUseTakeover":
            _describe_holder(members.get("holder"), preview)
        case _:
            pass
    for member, label in _FIELDS_OF_KIND.get(kind, ()):
        _add_string(members.get(member), label, preview)
    if kind != "shell":  # neither a tool's name nor an origin belongs to a shell (MS-07, MS-13)
        _add_string(members.get("toolName"), "Tool name", preview)
        if members.get("origin") is not None:
            preview.add_member("Triggered by (unverified)", members["origin"])
    return preview


def _describe_unknown(kind: JsonValue, members: JsonObject, preview: Preview) -> None:
    preview.note(KIND_UNKNOWN)
    if kind is not None:
        preview.add_member("Kind", kind)
    for name in sorted(members):
        if name != "kind":
            preview.add_member(name, members[name])


def add_reach(members: JsonObject, preview: Preview) -> None:
    """Host, port and protocol of a network subject (MS-11). A grant without a port covers every port, and so it says."""
    host = members.get("host")
    _add_string(write_host(host) if isinstance(host, str) else host, "Host", preview)
    port = members.get("port")
    if port is not None and not is_port(port):
        preview.note(PORT_INVALID)
        port = None
    preview.add_field("Port", ANY_PORT if port is None else str(port))
    _add_string(members.get("protocol"), "Protocol", preview)


def write_host(host: str) -> str:
    """A host; where it has letters outside ASCII also in its `xn--` form, which look-alike letters do not survive."""
    if host.isascii() or len(host) > LONGEST_HOST:
        return host
    labels = _LABEL_ENDS.split(unicodedata.normalize("NFKC", host).lower())
    return f"{host} ({'.'.join(map(_encode_label, labels))})"


def _encode_label(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


def is_port(value: JsonValue) -> bool:
    """Whether a value is a port's number (MS-16)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_PORT


def _add_string(value: JsonValue, label: str, preview: Preview) -> None:
    if isinstance(value, str):
        preview.add_field(label, value)
    elif value is not None:
        preview.note(WRONG_TYPE)


def _describe_command(members: JsonObject, preview: Preview) -> None:
    command, stages = members.get("command"), members.get("stages")
    if isinstance(command, str):
        preview.add_text("Command", command)
    else:
        preview.note(WRONG_TYPE)
    if not isinstance(stages, list):
        if stages is not None:
            preview.note(WRONG_TYPE)
        return
    for number, stage in enumerate(stages, start=1):
        argv = stage.get("argv") if isinstance(stage, dict) else None
        words = list_strings(argv)
        preview.add_member(f"Stage {number}/{len(stages)}", shlex.join(words) if words else stage)
        if isinstance(stage, dict) and stage.get("argvComplete") is False:
            preview.note(ARGUMENTS_UNKNOWN)


def _describe_holder(holder: JsonValue, preview: Preview) -> None:
    """Who holds the screen: label and times, never an id or anything else (MS-14)."""
    if not isinstance(holder, dict):
        if holder is not None:
            preview.note(WRONG_TYPE)
        return
    _add_string(holder.get("label"), "Holder", preview)
    for name in sorted(holder):
        value = holder[name]
        if (name in _HOLDER_TIMES or name.endswith("At")) and isinstance(value, str | int | float):
            preview.add_member(f"Holder {name}", value)
