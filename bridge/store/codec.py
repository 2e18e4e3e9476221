"""Requests and decisions as JSON text, and back, whole.

Above it: `records`, `reads` and `writes`. Below it: the model. It knows no table and no SQL.

All text is ASCII, everything else stands as a JSON escape: SQLite refuses lone surrogates, and an agent may use them in
an `optionId` that must go back code point for code point (rule 17). What cannot be read back is `LedgerDamaged`.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager

from bridge.core.errors import LedgerDamaged
from bridge.core.model import (
    AgentName,
    CallRef,
    Cancelled,
    Decision,
    Description,
    Ending,
    Essence,
    EventId,
    Field,
    JsonObject,
    JsonValue,
    Meaning,
    Millis,
    Option,
    Outcome,
    Phase,
    PreviewItem,
    PromptStyle,
    Request,
    RequestId,
    RoomId,
    Scope,
    Selected,
    SessionId,
    Subject,
    Text,
    Unsatisfied,
    UserId,
    Via,
)


def dump(value: JsonObject) -> str:
    """Write a JSON object in ASCII; integers of any size stay exact."""
    return json.dumps(value, separators=(",", ":"), default=dict)


def escape(text: str) -> str:
    """Write a text as ASCII; an ordinary id stays as it is."""
    return json.dumps(text)[1:-1]


def unescape(text: str) -> str:
    """Read what `escape` wrote."""
    with _damage():
        return _text(json.loads(f'"{text}"'))


def load_object(text: str) -> dict[str, JsonValue]:
    """Read a JSON object that `dump` wrote."""
    with _damage():
        return _object(json.loads(text))


def outcome_json(outcome: Outcome | None) -> dict[str, JsonValue] | None:
    """Show an outcome as ACP's JSON object; None where nothing can be written any more."""
    match outcome:
        case Selected(option_id):
            return {"outcome": "selected", "optionId": option_id}
        case Cancelled():
            return {"outcome": "cancelled"}
        case Unsatisfied():
            return {"error": "permission_policy_unsatisfied"}
        case None:
            return None


def dump_request(request: Request) -> str:
    """Write a request but for what the ledger keeps beside it: event id, decision, ending and whether it was delivered."""
    return dump(
        {
            "request_id": request.request_id,
            "session_id": request.session_id,
            "request_seq": request.request_seq,
            "agent": request.agent,
            "call": request.call,
            "tool_call_id": request.tool_call_id,
            "room": request.room,
            "number": request.number,
            "description": _description_json(request.description),
            "options": [_option_json(option) for option in request.options],
            "asked_at": request.asked_at,
            "expires_at": request.expires_at,
            "revision": request.revision,
            "placed": request.placed,
            "whole": request.whole,
            "style": request.style,
            "mentions": list(request.mentions),
            "nonce": request.nonce,
            "strict": request.strict,
        }
    )


def load_request(
    text: str, *, event_id: EventId | None, decision: Decision | None, ended: bool, delivered: bool
) -> Request:
    """Read a request that `dump_request` wrote and put it together with what was kept beside it."""
    phase = Phase.ENDED if ended else Phase.PENDING if decision is None else Phase.DECIDED
    with _damage():
        read = _object(json.loads(text))
        return Request(
            request_id=RequestId(_text(read["request_id"])),
            session_id=SessionId(_text(read["session_id"])),
            request_seq=_number(read["request_seq"]),
            agent=AgentName(_text(read["agent"])),
            call=CallRef(_number(read["call"])),
            tool_call_id=_text(read["tool_call_id"]),
            room=RoomId(_text(read["room"])),
            number=_number(read["number"]),
            description=_description(read["description"]),
            options=tuple(_option(option) for option in _list(read["options"])),
            asked_at=Millis(_number(read["asked_at"])),
            expires_at=Millis(_number(read["expires_at"])),
            revision=_number(read["revision"]),
            phase=phase,
            decision=decision,
            delivered=delivered,
            event_id=event_id,
            placed=_flag(read["placed"]),
            whole=_flag(read["whole"]),
            style=PromptStyle(_text(read["style"])),
            mentions=tuple(UserId(_text(person)) for person in _list(read["mentions"])),
            nonce=_text(read.get("nonce", "")),  # version 1 of the tables knew neither
            strict=_flag(read.get("strict", False)),
        )


def dump_decision(decision: Decision) -> str:
    """Write a decision."""
    return dump(
        {
            "ending": decision.ending,
            "outcome": outcome_json(decision.outcome),
            "option": None if decision.option is None else _option_json(decision.option),
            "by": decision.by,
            "via": decision.via,
            "event_id": decision.event_id,
            "device_id": decision.device_id,
            "at": decision.at,
        }
    )


def load_decision(text: str) -> Decision:
    """Read a decision that `dump_decision` wrote."""
    with _damage():
        read = _object(json.loads(text))
        via = _text_or_none(read["via"])
        event_id = _text_or_none(read["event_id"])
        return Decision(
            ending=Ending(_text(read["ending"])),
            outcome=_outcome(read["outcome"]),
            option=None if read["option"] is None else _option(read["option"]),
            by=_text_or_none(read["by"]),
            via=None if via is None else Via(via),
            event_id=None if event_id is None else EventId(event_id),
            device_id=_text_or_none(read.get("device_id")),  # rows of the first version have none
            at=Millis(_number(read["at"])),
        )


@contextmanager
def _damage() -> Generator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerDamaged("The ledger is damaged: a row in it cannot be read.") from error


def _option_json(option: Option) -> dict[str, JsonValue]:
    return {
        "option_id": option.option_id,
        "name": option.name,
        "kind": option.kind,
        "label": option.label,
        "line": option.line,
        "card_id": option.card_id,
        "meaning": option.meaning,
        "scope": option.scope,
        "label_cut": option.label_cut,
    }


def _option(value: JsonValue) -> Option:
    read = _object(value)
    scope = _text_or_none(read["scope"])
    return Option(
        option_id=_text(read["option_id"]),
        name=_text(read["name"]),
        kind=_text_or_none(read["kind"]),
        label=_text(read["label"]),
        line=_text(read["line"]),
        card_id=_text(read["card_id"]),
        meaning=Meaning(_text(read["meaning"])),
        scope=None if scope is None else Scope(scope),
        label_cut=_flag(read["label_cut"]),
    )


def _description_json(description: Description) -> dict[str, JsonValue]:
    essence = description.essence
    return {
        "title": description.title,
        "tool_kind": description.tool_kind,
        "subjects": [
            {"kind": subject.kind, "members": dict(subject.members), "known": subject.known}
            for subject in description.subjects
        ],
        "preview": [_preview_json(item) for item in description.preview],
        "notes": list(description.notes),
        "essence": {
            "command": essence.command,
            "paths": list(essence.paths),
            "diffs": list(essence.diffs),
            "url": essence.url,
        },
    }


def _description(value: JsonValue) -> Description:
    read = _object(value)
    essence = _object(read["essence"])
    return Description(
        title=_text(read["title"]),
        tool_kind=_text_or_none(read["tool_kind"]),
        subjects=tuple(_subject(subject) for subject in _list(read["subjects"])),
        preview=tuple(_preview(item) for item in _list(read["preview"])),
        notes=_texts(read["notes"]),
        essence=Essence(
            command=_text_or_none(essence["command"]),
            paths=_texts(essence["paths"]),
            diffs=_texts(essence["diffs"]),
            url=_text_or_none(essence["url"]),
        ),
    )


def _subject(value: JsonValue) -> Subject:
    read = _object(value)
    return Subject(kind=_text(read["kind"]), members=_object(read["members"]), known=_flag(read["known"]))


def _preview_json(item: PreviewItem) -> list[JsonValue]:
    match item:
        case Field(label, value):
            return ["field", label, value]
        case Text(label, text):
            return ["text", label, text]


def _preview(value: JsonValue) -> PreviewItem:
    kind, label, text = _list(value)
    if kind == "field":
        return Field(_text(label), _text(text))
    if kind == "text":
        return Text(_text(label), _text(text))
    raise ValueError(kind)


def _outcome(value: JsonValue) -> Outcome | None:
    if value is None:
        return None
    read = _object(value)
    if read == outcome_json(Cancelled()):
        return Cancelled()
    if read == outcome_json(Unsatisfied()):
        return Unsatisfied()
    return Selected(_text(read["optionId"]))


def _object(value: JsonValue) -> dict[str, JsonValue]:
    if isinstance(value, dict):
        return value
    raise TypeError


def _list(value: JsonValue) -> list[JsonValue]:
    if isinstance(value, list):
        return value
    raise TypeError


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    raise TypeError


def _text_or_none(value: JsonValue) -> str | None:
    return None if value is None else _text(value)


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(_text(item) for item in _list(value))


def _number(value: JsonValue) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError


def _flag(value: JsonValue) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError
