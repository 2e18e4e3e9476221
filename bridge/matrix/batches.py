"""What one sync answer says, by room, and what it says of keys and devices; and a page of older events.

Above it: the client, which asks, and whoever reads a batch. Below it: the event readers. It trusts no type: what is misshapen
is as if it were not there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from bridge.core.model import RoomId, SyncToken, UserId
from bridge.matrix import events
from bridge.matrix.events import Source

KEY_ALGORITHM = "signed_curve25519"  # of one-time and fallback keys; the only one there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What one sync says of one room: `state` as it was before `events`, both oldest first."""

    events: tuple[Source, ...] = ()
    state: tuple[Source, ...] = ()
    limited: bool = False  # there are older events since the last sync, before `prev_batch`
    prev_batch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBatch:
    """One sync answer, by room. `left`: what happened there up to the moment that the bot was out of it."""

    next_batch: SyncToken
    rooms: Mapping[RoomId, Timeline] = field(default_factory=dict[RoomId, Timeline])
    invites: Mapping[RoomId, UserId | None] = field(default_factory=dict[RoomId, UserId | None])
    left: Mapping[RoomId, Timeline] = field(default_factory=dict[RoomId, Timeline])
    to_device: tuple[Source, ...] = ()
    devices_changed: frozenset[UserId] = frozenset()
    devices_left: frozenset[UserId] = frozenset()
    one_time_keys: int = 0  # how many of ours the server still holds; none when it does not say (matrix.md, fault 9)
    fallback_unused: bool = False  # whether the server holds a fallback key of ours that nobody has used


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Older events of a room, newest first; `end` is where the next page begins, None when there is none."""

    events: tuple[Source, ...]
    end: str | None


def read_batch(answer: Source, next_batch: SyncToken, bot: UserId) -> SyncBatch:
    """The batch in the answer to a sync of this bot's."""
    found = events.mapping(answer, "rooms")
    invites = events.mapping(found, "invite")
    devices = events.mapping(answer, "device_lists")
    count = events.mapping(answer, "device_one_time_keys_count").get(KEY_ALGORITHM)
    return SyncBatch(
        to_device=events.objects(events.mapping(answer, "to_device"), "events"),
        devices_changed=frozenset(UserId(user) for user in strings(devices, "changed")),
        devices_left=frozenset(UserId(user) for user in strings(devices, "left")),
        one_time_keys=count if isinstance(count, int) and not isinstance(count, bool) else 0,
        fallback_unused=KEY_ALGORITHM in strings(answer, "device_unused_fallback_key_types"),
        next_batch=next_batch,
        rooms=_timelines(events.mapping(found, "join")),
        invites={RoomId(room): _find_inviter(events.mapping(invites, room), bot) for room in invites},
        left=_timelines(events.mapping(found, "leave")),
    )


def _find_inviter(invite: Source, bot: UserId) -> UserId | None:
    for source in events.objects(events.mapping(invite, "invite_state"), "events"):
        member = events.membership(source)
        if member is not None and member.user == bot and member.now == "invite":
            return events.sender(source)
    return None


def _timelines(rooms: Source) -> dict[RoomId, Timeline]:
    found: dict[RoomId, Timeline] = {}
    for room in rooms:
        info = events.mapping(rooms, room)
        timeline = events.mapping(info, "timeline")
        found[RoomId(room)] = Timeline(
            events=events.objects(timeline, "events"),
            state=events.objects(events.mapping(info, "state"), "events"),
            limited=timeline.get("limited") is True,
            prev_batch=events.text(timeline, "prev_batch"),
        )
    return found


def strings(answer: Source, key: str) -> tuple[str, ...]:
    """The texts in the list under `key`; whatever else is in it is left out."""
    value = answer.get(key)
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))
