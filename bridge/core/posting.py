"""The messages of a request in its room: posted, bound to their event ids, posted anew, and how sending them may fail.

Above it: broker. Below it: endings. A request has one current message at a time; an answer counts only for that one. Every
message has a transaction id that no other event ever has (matrix.md, section 4).
"""

from dataclasses import replace

from bridge.core import endings
from bridge.core.changes import Priority, StorePosted, StoreRevision
from bridge.core.effects import Send, Withhold
from bridge.core.endings import Cause
from bridge.core.events import Composed, Echoed, SendFailed, TooLarge, ToolCallChanged
from bridge.core.messages import Prompt, PromptLost, Replaced, Seed, Unaskable
from bridge.core.model import Essence, EventId, Misfit, Phase, TransactionId
from bridge.core.polls import begin_poll, bind_poll, end_polls, withhold_polls
from bridge.core.state import Confirmation, Entry, Leaving, Shown, Step, without

SEEDS_AT_MOST = 10  # there are keycaps for ten numbers; each costs one event of the room's rate limit


def post(work: Step, entry: Entry) -> Entry:
    """Queue the message of the current revision, under a transaction id that no other event has."""
    request = entry.request
    transaction_id = TransactionId(f"{request.request_id}/{request.revision}/{entry.posts}/prompt")
    entry = work.put(replace(entry, transaction_id=transaction_id, posts=entry.posts + 1, seeded=0))
    work.leave(transaction_id, Leaving(request.request_id, request.revision))
    work.do(
        Send(
            room=request.room,
            message=Prompt(request),
            priority=Priority.PROMPT,
            transaction_id=transaction_id,
            shrink=entry.shrink,
        )
    )
    return entry


def note_composed(work: Step, event: Composed) -> None:
    """Remember the digest of the message, and whether it shows people all of the request (rule 10)."""
    entry = work.state.entries.get(event.request_id)
    if entry is not None and entry.request.revision == event.revision:
        work.put(replace(entry, digest=event.digest, request=replace(entry.request, whole=event.whole)))


def compare(work: Step, entry: Entry, event: ToolCallChanged) -> None:
    """AC-19: what was shown must stay as it was; if it does not, it is asked anew and only answers after that count.

    The message that people know is closed by somebody else: bare text may still be meant for it (rule 14). Under `strict` the
    new message has a number of its own: a server that kept an answer back until now would else have it count for what
    nobody has seen.
    """
    request = entry.request
    if request.phase is not Phase.PENDING or not _changed(request.description.essence, event.description.essence):
        return
    old = () if request.event_id is None else (request.event_id,)
    olds, unedited = (*entry.old_events, *old), (*entry.unedited, *old)
    if entry.transaction_id is not None and request.event_id is None:
        work.do(Withhold(entry.transaction_id))
    for number in range(1, entry.seeded + 1):
        work.do(Withhold(endings.seed_id(entry, number)))
    withhold_polls(work, entry)
    request = replace(
        request,
        revision=request.revision + 1,
        description=event.description,
        event_id=None,
        placed=False,
        whole=True,
    )
    entry = replace(entry, old_numbers=(*entry.old_numbers, request.number))
    if request.strict:
        entry = work.renumber(entry, request)
        request = entry.request
    work.do(StoreRevision(request=request))
    work.put_room(request.room, replace(work.room(request.room), closed_at=work.at))
    endings.mark_unseen(work, entry, None)
    entry = replace(entry, request=request, old_events=olds, unedited=unedited, confirmations=(), shrink=0)
    post(work, end_polls(work, entry))


def _changed(shown: Essence, now: Essence) -> bool:
    pairs = (
        (shown.command, now.command),
        (shown.paths or None, now.paths or None),
        (shown.diffs or None, now.diffs or None),
        (shown.url, now.url),
    )
    return any(new is not None and new != old for old, new in pairs)


def bind(work: Step, transaction_id: TransactionId, event_id: EventId) -> None:
    """An event of ours has its id: from the homeserver's answer, or from the timeline if that comes first."""
    leaving = work.state.leaving.get(transaction_id)
    if leaving is None:
        return
    work.state = replace(work.state, leaving=without(work.state.leaving, transaction_id))
    entry = work.state.entries.get(leaving.request_id)
    if entry is None or leaving.again is not None:
        return
    work.show(event_id, Shown(leaving.request_id, leaving.revision, leaving.confirmation, leaving.poll))
    if leaving.poll:
        bind_poll(work, entry, transaction_id, event_id)
    elif leaving.confirmation:
        asked = tuple(
            replace(c, event_id=event_id) if c.transaction_id == transaction_id else c for c in entry.confirmations
        )
        work.put(replace(entry, confirmations=asked))
    elif transaction_id != entry.transaction_id:
        _bind_old(work, replace(entry, old_events=(*entry.old_events, event_id)), event_id)
    else:
        _post_bound(work, entry, event_id)


def _post_bound(work: Step, entry: Entry, event_id: EventId) -> None:
    request = replace(entry.request, event_id=event_id)
    entry = work.put(replace(entry, request=request))
    work.do(
        StorePosted(request_id=request.request_id, event_id=event_id, digest=entry.digest, revision=request.revision)
    )
    if request.phase is Phase.ENDED:
        endings.close_prompt(work, request, event_id)
    elif request.phase is Phase.PENDING:
        for old in entry.unedited:
            _say_replaced(work, entry, old)
        entry = work.put(replace(entry, unedited=()))
        begin_poll(work, entry)
        _seed(work, work.state.entries[request.request_id], event_id)


def _bind_old(work: Step, entry: Entry, event_id: EventId) -> None:
    """A message arrives that was replaced meanwhile: people are told where to answer, or how it ended."""
    request = entry.request
    if request.phase is Phase.ENDED:
        endings.close_prompt(work, request, event_id)
    elif request.phase is Phase.PENDING and request.event_id is not None:
        _say_replaced(work, entry, event_id)
    else:  # the new message is not there yet, or the ending is about to be told
        entry = replace(entry, unedited=(*entry.unedited, event_id))
    work.put(entry)


def _seed(work: Step, entry: Entry, event_id: EventId) -> None:
    request = entry.request
    count = len(request.options)
    if request.strict or not work.state.agents[request.agent].reactions or count > SEEDS_AT_MOST:
        return
    entry = work.put(replace(entry, seeded=count))
    for number in range(1, count + 1):
        work.do(
            Send(
                room=request.room,
                message=Seed(request.request_id, event_id, number),
                priority=Priority.SEED,
                transaction_id=endings.seed_id(entry, number),
            )
        )


def _say_replaced(work: Step, entry: Entry, old: EventId) -> None:
    request = entry.request
    message = Replaced(request, old, entry.number_of(work.state.shown[old].revision))
    endings.edit(work, request, message, f"{request.request_id}/replaced/{old}")


def place(work: Step, event: Echoed) -> None:
    """Our own event stands in the timeline: only what follows it there came after it (MX-02)."""
    if event.transaction_id is not None:
        bind(work, event.transaction_id, event.event_id)
    shown = work.state.shown.get(event.event_id)
    entry = work.state.entries.get(shown.request_id) if shown else None
    if shown is None or entry is None:
        return
    if shown.confirmation:
        work.put(replace(entry, confirmations=tuple(_place_question(work, c, event) for c in entry.confirmations)))
    elif entry.request.event_id == event.event_id and not entry.request.placed:
        work.put(replace(entry, place=work.mark_place(), request=replace(entry.request, placed=True)))


def _place_question(work: Step, asked: Confirmation, event: Echoed) -> Confirmation:
    return replace(asked, place=work.mark_place()) if asked.event_id == event.event_id and not asked.place else asked


def lose_message(work: Step, event_id: EventId) -> None:
    """A moderator removed the message of a waiting request: it is posted again once, then its loss is said."""
    shown = work.state.shown.get(event_id)
    entry = work.state.entries.get(shown.request_id) if shown else None
    if entry is None or entry.request.event_id != event_id or entry.request.phase is not Phase.PENDING:
        return
    request = entry.request
    if entry.reposted:
        work.do(Send(room=request.room, message=PromptLost(request), priority=Priority.NOTICE))
        return
    for number in range(1, entry.seeded + 1):
        work.do(Withhold(endings.seed_id(entry, number)))
    withhold_polls(work, entry)
    work.state = replace(work.state, shown=without(work.state.shown, event_id))
    entry = replace(entry, reposted=True, request=replace(request, event_id=None, placed=False))
    post(work, end_polls(work, entry))


def fail_to_send(work: Step, event: SendFailed | TooLarge) -> None:
    """A prompt that is too large is posted shorter; one that can never be posted ends `undeliverable` (rule 4)."""
    leaving = work.state.leaving.get(event.transaction_id)
    if leaving is None:
        return
    work.state = replace(work.state, leaving=without(work.state.leaving, event.transaction_id))
    if leaving.again is not None:
        if isinstance(event, TooLarge):
            _send_shorter(work, leaving, leaving.again)
        return
    entry = work.state.entries.get(leaving.request_id)
    if entry is None:
        return
    if event.transaction_id != entry.transaction_id or entry.request.phase is not Phase.PENDING:
        return
    if isinstance(event, TooLarge):
        post(work, replace(entry, shrink=entry.shrink + 1))
    else:
        if event.too_long:  # the preview can go, the options cannot
            request = entry.request
            notice = Unaskable(request.agent, request.description.title, Misfit.TOO_LONG)
            work.do(Send(room=request.room, message=notice, priority=Priority.NOTICE))
        endings.end(work, replace(entry, transaction_id=None), Cause.NO_WAY)


def _send_shorter(work: Step, leaving: Leaving, send: Send) -> None:
    transaction_id = TransactionId(f"{send.transaction_id}/shorter")
    send = replace(send, shrink=send.shrink + 1, transaction_id=transaction_id)
    work.leave(transaction_id, replace(leaving, again=send))
    work.do(send)
