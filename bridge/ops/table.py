"""What `pending`, `history` and `answer` print for people: plain, narrow, and with nothing that steers a terminal.

Above it: the command line. Below it: the core's rules for text of others. It takes the control socket's JSON as it is.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import cast

from bridge.core.errors import CommandRefused
from bridge.core.masking import mask
from bridge.core.model import JsonObject, JsonValue, Reason
from bridge.core.safetext import escape_line

_REASONS = {
    Reason.ALREADY_RESOLVED: "it was answered before",
    Reason.PROMPT_CANCELLED: "it was cancelled",
    Reason.ADAPTER_EXITED: "the agent has ended",
    Reason.SESSION_DELETED: "its session was deleted",
    Reason.VM_SHUTDOWN: "the bridge was shut down",
    Reason.REQUEST_NOT_FOUND: "there is no such request in this session",
    Reason.EXPIRED: "it has expired",
    Reason.UNDELIVERABLE: "it could not be put to anybody",
}


def show(value: JsonValue) -> str:
    """A text of others on one line, its secrets masked; nothing for what is no text."""
    return escape_line(mask(value)[0]) if isinstance(value, str) else ""


def show_reason(reason: JsonValue) -> str:
    """Why an answer came to nothing."""
    return f"Not accepted: {_REASONS[Reason(reason)]} ({reason}). Nothing was sent to the agent."


def show_refusal(error: CommandRefused) -> str:
    """Why an answer counts for nothing, and what was offered where that is the reason."""
    offered = f" Offered: {', '.join(map(show, error.offered))}." if error.offered else ""
    return f"Not accepted: {error}{offered} Nothing was decided."


def show_reply(agent: str, reply: JsonObject) -> str:
    """What became of the question of `check --ask`, on one line."""
    of = defaultdict(str, ((key, show(value)) for key, value in reply.items()))
    if of["ending"] == "answered":
        waited, device = reply.get("waited_ms"), of["device_id"]
        seconds = f" after {waited / 1000:.1f} s" if isinstance(waited, int) else ""
        return (
            f"question in the room of {agent}: answered by {of['by']} with {of['option'] or 'nothing'}{seconds},"
            f" as a {of['via']}{f' from device {device}' if device else ''}."
        )
    if of["ending"] == "stopped":
        return f"question in the room of {agent}: it was stopped before anybody answered."
    if not of["event_id"]:
        why = "the bot is not in the room, may not write there, or the room is encrypted and its keys are missing"
        return f"question in the room of {agent}: it did not reach the room; {why}: see the lines above."
    why = f"it ended: {of['ending']}" if of["ending"] else "nobody answered in time"
    return f"question in the room of {agent}: it is in the room, but {why}."


def show_pending(pending: Sequence[JsonObject], now: datetime) -> Iterator[str]:
    """Three lines for each request: where and since when, what, and the option ids with their names."""
    if not pending:
        yield "Nothing waits."
    for item in pending:
        since = _show_span(now - datetime.fromisoformat(str(item["asked_at"])))
        yield f"{show(item['request_id'])}  #{item['number']}  {show(item['agent'])}  {since}  {show(item['room_id'])}"
        yield f"  {show(item['title'])}"
        for option in cast("list[dict[str, JsonValue]]", item["options"]):
            yield f"    {show(option['optionId'])}  {show(option.get('name'))}"


def show_record(record: JsonObject) -> str:
    """One line for a record of the history."""
    when = show(record["timestamp"])[:19].replace("T", " ")
    return f"{when}  {show(record['session_id'])}  {record['sequence']}  {_describe(record)}"


def _describe(record: JsonObject) -> str:
    of = defaultdict(str, ((key, show(value)) for key, value in record.items()))
    request = of["request_id"]
    match record["type"]:
        case "permission_request":
            text = f"{request} asked by {of['agent']}: {_show_member(record, 'toolCall', 'title') or 'an action'}"
        case "permission_posted":
            text = f"{request} posted"
        case "permission_response":
            chosen = _show_member(record, "outcome", "optionId") or "cancelled"
            text = f"{request} {of['reason'] or of['status']}: {chosen} by {of['by'] or 'nobody'} ({of['via']})"
        case "permission_ended":
            reached = "" if record.get("delivered") else ", and the agent did not get it"
            text = f"{request} ended: {of['ending']}{reached}"
        case "session_started":
            text = f"session of {of['agent']} started"
        case "session_ended":
            text = f"session of {of['agent']} ended: {of['reason']}"
        case _:
            text = of["type"]
    return text


def _show_member(record: JsonObject, key: str, member: str) -> str:
    value = record.get(key)
    return show(value.get(member)) if isinstance(value, dict) else ""


def _show_span(span: timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
