"""What a change puts into the history, field by field (interface.md, History record).

Above it: `writes`, which numbers and stores it. Below it: the model and `codec`. It knows no table and no clock.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from bridge.core.changes import (
    StoreAsked,
    StoreDecision,
    StoreEnding,
    StoreLateAnswer,
    StorePosted,
    StoreSession,
    StoreSessionEnd,
)
from bridge.core.model import AgentName, Ending, JsonValue, Millis, Selected
from bridge.store.codec import outcome_json

Recorded: TypeAlias = (
    StoreSession | StoreSessionEnd | StoreAsked | StorePosted | StoreDecision | StoreLateAnswer | StoreEnding
)
"""The changes that a reader of the history hears of."""

Entry = tuple[str, dict[str, JsonValue]]
"""A history row's type and the fields that its type adds."""

RESPONDED = frozenset({Ending.ANSWERED, Ending.EXPIRED})
"""The decisions that answer the request itself; what else ends it shows in `permission_ended` alone."""

TYPES: Mapping[type[Recorded], str] = {
    StoreSession: "session_started",
    StoreSessionEnd: "session_ended",
    StoreAsked: "permission_request",
    StorePosted: "permission_posted",
    StoreDecision: "permission_response",
    StoreLateAnswer: "permission_response",
    StoreEnding: "permission_ended",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stamp(at: Millis) -> str:
    """Write a time as RFC 3339 in UTC, with milliseconds and `Z`."""
    return (_EPOCH + timedelta(milliseconds=at)).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def enter(change: Recorded, agent: AgentName) -> Entry | None:
    """Make the history row of a change in a session of `agent`; None for a decision that nobody took part in."""
    if isinstance(change, StoreDecision) and change.decision.ending not in RESPONDED:
        return None
    fields: dict[str, JsonValue]
    match change:
        case StoreSession():
            fields = {"agent": agent}
        case StoreSessionEnd():
            fields = {"agent": agent, "reason": change.reason}
        case StoreAsked():
            fields = _asked(change)
        case StorePosted():
            fields = _posted(change)
        case StoreDecision():
            fields = _accepted(change)
        case StoreLateAnswer():
            fields = _late(change)
        case StoreEnding():
            fields = _ended(change)
    return TYPES[type(change)], fields


def _asked(change: StoreAsked) -> dict[str, JsonValue]:
    request = change.request
    ours: dict[str, JsonValue] = {"request_id": request.request_id, "agent": request.agent, "room_id": request.room}
    return {**ours, **change.record, **ours}  # an agent's field never takes the place of ours


def _posted(change: StorePosted) -> dict[str, JsonValue]:
    return {
        "request_id": change.request_id,
        "event_id": change.event_id,
        "digest": change.digest,
        "revision": change.revision,
    }


def _accepted(change: StoreDecision) -> dict[str, JsonValue]:
    decision = change.decision
    return {
        "request_id": change.request_id,
        "status": "accepted",
        "outcome": outcome_json(decision.outcome),
        "by": decision.by,
        "via": None if decision.via is None else decision.via.value,
        "event_id": decision.event_id,
        **({} if decision.device_id is None else {"device_id": decision.device_id}),
        "waited_ms": change.waited,
    }


def _late(change: StoreLateAnswer) -> dict[str, JsonValue]:
    chosen = None if change.option is None else Selected(change.option.option_id)
    return {
        "request_id": change.request_id,
        "status": "not_pending",
        "reason": change.reason.value,
        "outcome": outcome_json(chosen),
        "by": change.by,
        "via": change.via.value,
        "event_id": change.event_id,
        "waited_ms": change.waited,
    }


def _ended(change: StoreEnding) -> dict[str, JsonValue]:
    return {"request_id": change.request_id, "ending": change.ending.value, "delivered": change.delivered}
