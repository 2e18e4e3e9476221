"""From one raw timeline event of a bound room to the core event it is, if it is any.

Above it: the sync loop. Below it: the event readers and the text rules of core.replies. It refuses to know who may
answer, which prompts wait and what a text chooses: it only says what somebody did (design.md, rules 13 to 15).
"""

from collections.abc import Collection
from dataclasses import replace

from bridge.core.events import Echoed, Event, Reacted, Redacted, Said, Voted
from bridge.core.model import EventId, RequestId, RoomId, Seal, UserId
from bridge.core.replies import without_fallback, without_mention
from bridge.matrix import events
from bridge.matrix.events import Source


def read(
    source: Source,
    *,
    room: RoomId,
    bot: UserId,
    names: Collection[str],
    seal: Seal | None = None,
    exposed: bool = False,
) -> Event | None:
    """What the event is for the core: Said, Reacted, Voted, Redacted, Echoed, or None when it is nothing that counts.

    `names` are what people call the bot in a text: its display name; agents' names do not belong here. `seal` vouches for
    what came encrypted; `exposed` is what came in clear text although the room was encrypted by then.
    """
    sender, event_id = events.sender(source), events.event_id(source)
    if events.is_state(source) or sender is None or event_id is None:
        return None
    if sender == bot:
        return Echoed(room=room, event_id=event_id, transaction_id=events.transaction_id(source))
    found: Event | None = None
    match events.kind(source):
        case events.MESSAGE:
            found = _said(source, room=room, sender=sender, event_id=event_id, bot=bot, names=names)
        case events.REACTION:
            found = _reacted(source, room, sender, event_id)
        case events.VOTE | events.VOTE_STABLE:
            found = _voted(source, room, sender, event_id)
        case events.REDACTION:
            target = events.redacts(source)
            found = None if target is None else Redacted(room=room, sender=sender, target=target)
        case _:
            pass
    return replace(found, seal=seal, exposed=exposed) if isinstance(found, Said | Voted) else found


def _said(
    source: Source, *, room: RoomId, sender: UserId, event_id: EventId, bot: UserId, names: Collection[str]
) -> Said | None:
    content, relation = events.content(source), events.relation(source)
    body = events.text(content, "body")
    if events.text(content, "msgtype") != events.TEXT or body is None or relation.rel_type == events.EDIT:
        return None
    if relation.replied_to is not None:
        body = without_fallback(body)
    words, called = without_mention(body, (bot, *names))
    request_id = events.text(content, "request_id")
    return Said(
        room=room,
        sender=sender,
        event_id=event_id,
        text=words,
        targets=_targets(relation),
        in_thread=relation.rel_type == events.THREAD,
        mentions_bot=called or bot in events.mentioned(source),
        foreign_request=None if request_id is None else RequestId(request_id),
    )


def _targets(relation: events.Relation) -> tuple[EventId, ...]:
    """The thread root, then the replied-to event where that is a true reply.

    A relation of a kind we do not know still points at something, so its text is no bare text (rule 14).
    """
    replied = relation.replied_to if relation.true_reply or relation.rel_type != events.THREAD else None
    return tuple(dict.fromkeys(target for target in (relation.event_id, replied) if target is not None))


def _reacted(source: Source, room: RoomId, sender: UserId, event_id: EventId) -> Reacted | None:
    relation = events.relation(source)
    if relation.rel_type != events.ANNOTATION or relation.event_id is None or relation.key is None:
        return None
    return Reacted(room=room, sender=sender, event_id=event_id, key=relation.key, target=relation.event_id)


def _voted(source: Source, room: RoomId, sender: UserId, event_id: EventId) -> Voted | None:
    relation, answers = events.relation(source), events.selected(source)
    if relation.rel_type != events.REFERENCE or relation.event_id is None or answers is None:
        return None
    return Voted(room=room, sender=sender, event_id=event_id, target=relation.event_id, answers=answers)
