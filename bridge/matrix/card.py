"""The decision card `dev.agentpod.permission.v2` and the older v1 card: made, and checked (permission-v2.md).

Above it: prompt. Below it: size and the model. Values only. It knows which members a card has and what may stand in
them, not how the message around them reads; the preview items are chosen and cut by its caller.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeGuard

from bridge.core.model import Field, JsonObject, JsonValue, Millis, Option, PreviewItem, Request
from bridge.matrix.size import encode_canonical, is_clean

EVENT_TYPE = "dev.agentpod.permission.v2"
V1_KEY = "dev.agentpod.permission"
SUBJECT_SCHEMA = "harness-permission/v1"
OPTIONS_MAX = 20  # section 2; beyond it a card would show a part that looks like the whole
V1_OPTIONS_MAX = 4  # SuperMessage draws four buttons
TEXT_CHARACTERS_MAX = 200  # of an option's id and of its label
INTEGER_MAX = 2**53 - 1  # what Matrix takes as a number

_HOUR, _MINUTE = "([01][0-9]|2[0-3])", "([0-5][0-9])"
_INSTANT = re.compile(  # [0-9], since \d takes digits of other scripts
    rf"([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})T{_HOUR}:{_MINUTE}:{_MINUTE}(?:\.([0-9]+))?(?:Z|([+-]){_HOUR}:{_MINUTE})"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_LAST_MS = (datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

Check = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a content is no card: the member (`options[0].meaning`; "" is the content itself) and what is wrong with it."""

    field: str
    sentence: str


@dataclass(frozen=True, slots=True)
class _Rule:
    member: str
    check: Check
    sentence: str
    required: bool = True


# ----------------------------------------------------------------------------------------------------------- making


def build_card(
    request: Request, preview: Sequence[PreviewItem], *, title: str, complete: bool
) -> tuple[dict[str, JsonValue], str]:
    """The v2 members and the v1 card, and the digest in them. `title` is the request's, cut like in the text."""
    subject: dict[str, JsonValue] = {
        "id": request.request_id,
        "schema": SUBJECT_SCHEMA,
        "revision": request.revision,
        "expires_at": write_instant(request.expires_at),
        "preview": [_write_item(item) for item in preview],
        "preview_complete": complete,
    }
    digest = compute_digest(subject)
    card: dict[str, JsonValue] = {
        "suite_event_type": EVENT_TYPE,
        "schema_version": 1,
        "request_id": request.request_id,
        "session_id": request.session_id,
        "request_seq": request.request_seq,
        "title": title,
        "options": [_write_option(option) for option in request.options],
        "subject": {**subject, "digest": digest},
        **build_v1(request, title=title),
    }
    if request.description.tool_kind:
        card["tool_kind"] = request.description.tool_kind
    return card, digest


def build_v1(request: Request, *, title: str) -> dict[str, JsonValue]:
    """The v1 card under its key, with the first four options."""
    options: list[JsonValue] = [
        {"option_id": option.card_id, "name": option.label} for option in request.options[:V1_OPTIONS_MAX]
    ]
    card: dict[str, JsonValue] = {
        "schema_version": 1,
        "session_id": request.session_id,
        "request_seq": request.request_seq,
        "title": title,
        "options": options,
    }
    return {V1_KEY: card}


def compute_digest(subject: JsonObject) -> str:
    """Section 12: over the subject without its own digest."""
    rest = {key: value for key, value in subject.items() if key != "digest"}
    return hashlib.sha256(encode_canonical(rest)).hexdigest()


def measure_item(item: PreviewItem) -> int:
    """Bytes that a preview item takes in a card, with the comma before it."""
    return len(encode_canonical(_write_item(item))) + 1


def write_instant(at: Millis) -> str:
    """`YYYY-MM-DDTHH:MM:SS.mmmZ`; a time after the year 9999 is its last millisecond."""
    moment = _EPOCH + timedelta(milliseconds=min(max(at, 0), _LAST_MS))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _write_item(item: PreviewItem) -> dict[str, JsonValue]:
    if isinstance(item, Field):
        return {"type": "field", "label": item.label, "value": item.value}
    return {"type": "text", "label": item.label, "text": item.text}


def _write_option(option: Option) -> dict[str, JsonValue]:
    written: dict[str, JsonValue] = {"id": option.card_id, "label": option.label, "meaning": option.meaning.value}
    if option.scope is not None:
        written["scope"] = option.scope.value
    return written


# --------------------------------------------------------------------------------------------------------- checking


def read_instant(text: str) -> Millis | None:
    """The time that a strict RFC 3339 date-time names (section 5), or None: no stock parser keeps to the grammar."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, offset_hour, offset_minute = match.groups()[6:]
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    offset = int(offset_hour or 0) * 60 + int(offset_minute or 0)
    minutes = (days * 24 + hour) * 60 + minute - (-offset if sign == "-" else offset)
    return Millis((minutes * 60 + second) * 1000 + int((fraction or "0")[:3].ljust(3, "0")))


def validate(content: object) -> tuple[Fault, ...]:
    """What keeps a content from being a v2 card, each with its member; unknown members are nobody's fault (V2-05)."""
    if not _is_object(content):
        return (Fault("", "is no object"),)
    faults: list[Fault] = []
    _check_members(content, "", _CONTENT_RULES, faults)
    if isinstance(options := content.get("options"), list):
        _check_options(options, faults)
    if _is_object(subject := content.get("subject")):
        _check_members(subject, "subject", _SUBJECT_RULES, faults)
        if isinstance(preview := subject.get("preview"), list):
            for number, item in enumerate(preview):
                _check_item(item, number, faults)
    return tuple(faults)


def find_unclean(content: JsonValue, field: str = "") -> tuple[Fault, ...]:
    """What no Matrix event may hold: floats, integers beyond 2^53-1, NUL and lone surrogates (section 2)."""
    if isinstance(content, str):
        return () if is_clean(content) else (Fault(field, "holds a NUL or a lone surrogate"),)
    if isinstance(content, float):
        return (Fault(field, "is a float"),)
    if isinstance(content, dict):
        members = content.items()
    elif isinstance(content, list):
        members = enumerate(content)
    else:
        return () if content is None or abs(content) <= INTEGER_MAX else (Fault(field, "is beyond 2^53-1"),)
    faults: list[Fault] = []
    for key, value in members:
        if not isinstance(value, str) or not is_clean(value):  # clean strings are most of a card: no path for them
            path = f"{field}[{key}]" if isinstance(key, int) else f"{field}.{key}".lstrip(".")
            faults += find_unclean(value, path)
    return tuple(faults)


def _check_members(holder: JsonObject, path: str, rules: tuple[_Rule, ...], faults: list[Fault]) -> None:
    for rule in rules:
        if rule.member not in holder:
            if rule.required:
                faults.append(Fault(f"{path}.{rule.member}".lstrip("."), "is missing"))
        elif not rule.check(holder[rule.member]):
            faults.append(Fault(f"{path}.{rule.member}".lstrip("."), rule.sentence))


def _check_options(options: list[JsonValue], faults: list[Fault]) -> None:
    if not 1 <= len(options) <= OPTIONS_MAX:
        faults.append(Fault("options", f"has {len(options)} items, not 1 to {OPTIONS_MAX}"))
    ids: list[str] = []
    for number, option in enumerate(options):
        if not _is_object(option):
            faults.append(Fault(f"options[{number}]", "is no object"))
            continue
        _check_members(option, f"options[{number}]", _OPTION_RULES, faults)
        if isinstance(option_id := option.get("id"), str):
            ids.append(option_id)
    if len(ids) != len(set(ids)):  # x-uniqueBy: JSON Schema cannot say it
        faults.append(Fault("options[].id", "names two options"))


def _check_item(item: JsonValue, number: int, faults: list[Fault]) -> None:
    path = f"subject.preview[{number}]"
    if not _is_object(item):
        faults.append(Fault(path, "is no object"))
        return
    kind = item.get("type")
    rules = _ITEM_RULES.get(kind, _UNKNOWN_ITEM_RULES) if isinstance(kind, str) else _UNKNOWN_ITEM_RULES
    _check_members(item, path, rules, faults)


def _is_object(value: object) -> TypeGuard[dict[str, JsonValue]]:
    return isinstance(value, dict)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_some_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= TEXT_CHARACTERS_MAX


def _is_label(value: object) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX


def _is_instant(value: object) -> bool:
    return isinstance(value, str) and read_instant(value) is not None


def _is_integer(value: object) -> bool:
    # 1.0 is a whole number to JSON Schema, and true is none
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _at_least(least: int) -> Check:
    return lambda value: _is_integer(value) and isinstance(value, (int, float)) and value >= least


def _one_of(*values: str) -> Check:
    return lambda value: isinstance(value, str) and value in values


_CONTENT_RULES = (
    _Rule("msgtype", _one_of("m.text"), "is not m.text", required=False),
    _Rule("body", _is_text, "is no string", required=False),
    _Rule("suite_event_type", _one_of(EVENT_TYPE), f"is not {EVENT_TYPE}"),
    _Rule("schema_version", _at_least(1), "is no whole number from 1"),
    _Rule("request_id", _is_some_text, "is no string, or empty"),
    _Rule("session_id", _is_some_text, "is no string, or empty"),
    _Rule("request_seq", _at_least(0), "is no whole number from 0"),
    _Rule("title", _is_text, "is no string"),
    _Rule("tool_kind", _is_some_text, "is no string, or empty", required=False),
    _Rule("options", _is_list, "is no list"),
    _Rule("subject", _is_object, "is no object"),
)
_OPTION_RULES = (
    _Rule("id", _is_id, "is no string of 1 to 200 characters"),
    _Rule("label", _is_label, "is no string of at most 200 characters"),
    _Rule("meaning", _one_of("approve", "reject", "choose"), "is no known meaning"),
    _Rule("scope", _one_of("once", "always"), "is no known scope", required=False),
)
_SUBJECT_RULES = (
    _Rule("id", _is_some_text, "is no string, or empty"),
    _Rule("digest", _is_some_text, "is no string, or empty"),
    _Rule("schema", _one_of(SUBJECT_SCHEMA), f"is not {SUBJECT_SCHEMA}"),
    _Rule("revision", _is_integer, "is no whole number"),
    _Rule("expires_at", _is_instant, "is no RFC 3339 date-time"),
    _Rule("preview", _is_list, "is no list"),
    _Rule("preview_complete", _is_flag, "is neither true nor false"),
)
_UNKNOWN_ITEM_RULES = (_Rule("type", _is_some_text, "is no string, or empty"),)
_ITEM_RULES = {
    "field": (_Rule("label", _is_text, "is no string"), _Rule("value", _is_text, "is no string")),
    "text": (_Rule("label", _is_text, "is no string"), _Rule("text", _is_text, "is no string")),
}
