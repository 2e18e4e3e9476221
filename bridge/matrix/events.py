"""What one raw room event says, field by field, whatever anybody put into it.

Above it: inbox, standing and the sync loop. Below it: nothing of ours but the id types. It refuses to know what an event
means for a request, and it trusts no type: any field may be missing or of another type, and then it is None or empty
(matrix.md, section 9).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from bridge.core.model import EventId, TransactionId, UserId

Source: TypeAlias = Mapping[str, object]

MESSAGE = "m.room.message"
REACTION = "m.reaction"
REDACTION = "m.room.redaction"
CREATE = "m.room.create"
VOTE = "org.matrix.msc3381.poll.response"  # what clients send
VOTE_STABLE = "m.poll.response"
MEMBER = "m.room.member"
ENCRYPTION = "m.room.encryption"
ENCRYPTED = "m.room.encrypted"
TOMBSTONE = "m.room.tombstone"

TEXT = "m.text"
VERIFICATION = "m.key.verification."  # how the types of all events of a verification begin

THREAD = "m.thread"
EDIT = "m.replace"
ANNOTATION = "m.annotation"
REFERENCE = "m.reference"

SELECTIONS = "m.selections"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What `m.relates_to` points at. `true_reply`: the replied-to event is not there only for clients without threads."""

    rel_type: str | None = None
    event_id: EventId | None = None
    key: str | None = None
    replied_to: EventId | None = None
    true_reply: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One `m.room.member` event: who, what they are now, and what they were where the server says so."""

    user: UserId
    now: str | None
    before: str | None


def text(of: Source, key: str) -> str | None:
    """The string under `key`, or None."""
    value = of.get(key)
    return value if isinstance(value, str) else None


def mapping(of: Source, key: str) -> Source:
    """The object under `key`, or an empty one."""
    value = of.get(key)
    return cast("Source", value) if isinstance(value, dict) else {}


def objects(of: Source, key: str) -> tuple[Source, ...]:
    """The objects in the list under `key`; whatever else is in it is left out."""
    value = of.get(key)
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(cast("Source", item) for item in items if isinstance(item, dict))


def kind(source: Source) -> str | None:
    """The event's type."""
    return text(source, "type")


def event_id(source: Source) -> EventId | None:
    """The event's id."""
    return _event_id(source, "event_id")


def sender(source: Source) -> UserId | None:
    """The full user id of who sent it."""
    found = text(source, "sender")
    return UserId(found) if found else None


def content(source: Source) -> Source:
    """The event's content; empty once the event was redacted."""
    return mapping(source, "content")


def is_state(source: Source) -> bool:
    """Whether it is a state event; one with an odd `state_key` is still none that somebody said."""
    return "state_key" in source


def is_sealed(source: Source) -> bool:
    """Whether it is an encrypted message."""
    return kind(source) == ENCRYPTED and not is_state(source)


def is_verification(source: Source) -> bool:
    """Whether it is a step of a verification in a room; the first one is a message, so that old clients show it."""
    found = text(content(source), "msgtype") if kind(source) == MESSAGE else kind(source)
    return found is not None and found.startswith(VERIFICATION) and not is_state(source)


def transaction_id(source: Source) -> TransactionId | None:
    """The transaction id under which this very device sent it; the server tells it to nobody else."""
    found = text(mapping(source, "unsigned"), "transaction_id")
    return TransactionId(found) if found else None


def relation(source: Source) -> Relation:
    """What it points at."""
    relates = mapping(content(source), "m.relates_to")
    falling_back = relates.get("is_falling_back")
    return Relation(
        rel_type=text(relates, "rel_type"),
        event_id=_event_id(relates, "event_id"),
        key=text(relates, "key"),
        replied_to=_event_id(mapping(relates, "m.in_reply_to"), "event_id"),
        true_reply=falling_back is None or falling_back is False,
    )


def mentioned(source: Source) -> tuple[str, ...]:
    """The user ids in `m.mentions`."""
    users = mapping(content(source), "m.mentions").get("user_ids")
    items = cast("list[object]", users) if isinstance(users, list) else []
    return tuple(item for item in items if isinstance(item, str))


def selected(source: Source) -> tuple[str, ...] | None:
    """The answer ids of a vote, in the unstable or the stable form; empty when it was taken back.

    None when it is no vote: no list, something else than ids in it, or two forms that disagree.
    """
    said = content(source)
    found = {_ids(said[SELECTIONS])} if SELECTIONS in said else set[tuple[str, ...] | None]()
    if VOTE in said:
        found.add(_ids(mapping(said, VOTE).get("answers")))
    return found.pop() if len(found) == 1 else None


def _ids(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    items = cast("list[object]", value)
    ids = tuple(item for item in items if isinstance(item, str))
    return ids if len(ids) == len(items) else None


def redacts(source: Source) -> EventId | None:
    """The event that a redaction removed.

    The field moved into the content with room version 11. Servers fill in the old place for us, and below version 11
    the content is whatever its sender wrote: so the old place is looked at first.
    """
    return _event_id(source, "redacts") or _event_id(content(source), "redacts")


def membership(source: Source) -> Membership | None:
    """Whose membership a state event changes, or None when it changes none."""
    user = text(source, "state_key")
    if kind(source) != MEMBER or not user:
        return None
    before = mapping(mapping(source, "unsigned"), "prev_content")
    return Membership(user=UserId(user), now=text(content(source), "membership"), before=text(before, "membership"))


def _event_id(of: Source, key: str) -> EventId | None:
    found = text(of, key)
    return EventId(found) if found else None
