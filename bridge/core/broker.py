"""What becomes of a permission request: `step(state, event, at)` gives the next state and what is to be done.

Above it: relay, the one caller. Below it: answers (who said what about which request), posting (its messages in
the room), locked and trusting (encrypted rooms), rooms, endings (the table of transitions). No I/O: effects are carried out by the relay, the ledger first, then the harness, then the room. The clock
is what the caller says it is: `at`, in Unix milliseconds.
"""

from dataclasses import replace

from bridge.core import answers, endings, locked, polls, posting, receipts, rooms, trusting
from bridge.core.changes import (
    Priority,
    Snapshot,
    StoreAsked,
    StoreSession,
    StoreSessionEnd,
)
from bridge.core.effects import CancelTurn, CloseSession, Effect, Log, Refuse, Respond, Send, WakeAt, Withhold
from bridge.core.endings import Cause
from bridge.core.events import (
    AgentGone,
    AnsweredLocally,
    Asked,
    Composed,
    DeadlineReached,
    Delivered,
    Echoed,
    Event,
    Locked,
    NotDelivered,
    Reacted,
    Redacted,
    RoomMoved,
    RoomSeen,
    RoomState,
    Said,
    SendFailed,
    Sent,
    SessionDeleted,
    SessionStarted,
    ShuttingDown,
    StartFailed,
    StillLocked,
    TooLarge,
    ToolCallChanged,
    TurnCancelled,
    TurnEnded,
    Unlocked,
    Verified,
    Voted,
    Withdrawn,
)
from bridge.core.messages import AgentNote, Unaskable
from bridge.core.model import (
    AgentName,
    JsonObject,
    Millis,
    Option,
    Outcome,
    Phase,
    Request,
    RequestId,
    RoomId,
    Selected,
    SessionId,
    TransactionId,
    Unsatisfied,
)
from bridge.core.policy import decide
from bridge.core.state import Entry, Leaving, Session, Shown, State, Step

NOWHERE = RoomId("")  # the room of a request whose agent has none


def step(state: State, event: Event, at: Millis) -> tuple[State, list[Effect]]:
    """Take one event. What is not expected now changes nothing."""
    work = Step(state, at)
    _take(work, event)
    return work.state, work.effects


def recover(state: State, found: Snapshot, at: Millis) -> tuple[State, list[Effect]]:
    """End what the last run left open: its harnesses are gone (rule 20).

    A prompt that was on its way may stand in the room already. It is sent once more, which is the same event, and is edited
    as soon as its id is known (AO-19); so it is not withheld, and that holds for the requests that had ended, too.
    """
    work = Step(state, at)
    unsent = {out.request_id: out.transaction_id for out in found.outgoing if out.priority is Priority.PROMPT}
    for request in found.closed:
        _recover_polls(work, work.state.entries[request.request_id], found)
        transaction_id = unsent.get(request.request_id)
        if transaction_id is not None and request.event_id is None:
            work.put(replace(work.state.entries[request.request_id], transaction_id=transaction_id))
            work.leave(transaction_id, Leaving(request.request_id, request.revision))
    for request in found.open:
        if request.session_id not in work.state.sessions:
            work.put_session(request.session_id, Session(agent=request.agent, ended=True))
        entry = Entry(request=request, transaction_id=unsent.get(request.request_id))
        if request.event_id is not None:
            entry = replace(entry, transaction_id=TransactionId(f"{request.request_id}/{request.revision}/0/prompt"))
            work.show(request.event_id, Shown(request.request_id, request.revision))
        elif entry.transaction_id is not None:
            work.leave(entry.transaction_id, Leaving(request.request_id, request.revision))
        entry = _recover_polls(work, entry, found)
        work.wait(entry)
        if request.phase is Phase.DECIDED:
            work.settle(entry)
        endings.end(work, entry, Cause.GONE)
    for session_id, _agent in found.sessions:
        _end_session(work, session_id, "bridge_restarted")
    return work.state, [effect for effect in work.effects if not isinstance(effect, Withhold)]


def _recover_polls(work: Step, entry: Entry, found: Snapshot) -> Entry:
    request_id = entry.request.request_id
    known = [event_id for asked, event_id in found.polls if asked == request_id]
    leaving = [out.transaction_id for out in found.outgoing if out.request_id == request_id]
    return polls.recover_polls(work, entry, known, [each for each in leaving if each.endswith(polls.SUFFIX)])


def refuse(state: State, effect: Refuse, at: Millis) -> tuple[State, list[Effect]]:
    """Tell the sender of these words, once, that their device is not accepted (see `Refuse`)."""
    work = Step(state, at)
    trusting.refuse(work, effect.said, state.agents[effect.agent])
    return work.state, work.effects


def waiting_of(state: State, agent: AgentName) -> tuple[Request, ...]:
    """What waits of one agent, oldest first."""
    found = [
        state.entries[request_id].request
        for session in state.sessions.values()
        if session.agent == agent
        for request_id in session.waiting
    ]
    return tuple(sorted(found, key=lambda request: (request.asked_at, request.session_id, request.request_seq)))


def _take(work: Step, event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 - one line an event, so that pyright finds a forgotten one
    match event:
        case SessionStarted():
            _open_session(work, event)
        case Asked():
            _ask(work, event)
        case StartFailed():
            pass  # nothing was asked yet; core.turns tells the room
        case ToolCallChanged():
            _hear_of_change(work, event)
        case Withdrawn() | Delivered() | NotDelivered():
            _hear_of_call(work, event)
        case TurnEnded():
            _end_turn(work, event)
        case TurnCancelled():
            _cancel_turn(work, event)
        case AgentGone():
            _lose_agent(work, event)
        case RoomSeen():
            rooms.see(work, event)
        case Said():
            answers.hear(work, event)
        case Reacted():
            answers.react(work, event)
        case Voted():
            answers.vote(work, event)
        case Locked() | StillLocked() | Unlocked():
            locked.hear(work, event)
        case Verified():
            trusting.pin(work, event)
        case RoomMoved():
            rooms.follow(work, event)
        case Redacted():
            posting.lose_message(work, event.target)
        case Echoed():
            posting.place(work, event)
        case Sent():
            posting.bind(work, event.transaction_id, event.event_id)
        case SendFailed() | TooLarge():
            posting.fail_to_send(work, event)
        case Composed():
            posting.note_composed(work, event)
        case AnsweredLocally():
            receipts.respond(work, event)
        case SessionDeleted():
            _delete_session(work, event)
        case DeadlineReached():
            _reach_deadline(work, event.request_id)
        case ShuttingDown():  # pragma: no branch - the last of all events
            work.state = replace(work.state, closing=True)
            waiting = [r for session in work.state.sessions.values() for r in session.waiting]
            endings.end_all(work, waiting, Cause.SHUTDOWN)


# ------------------------------------------------------------------------------------------------------------ sessions


def _open_session(work: Step, event: SessionStarted) -> None:
    _know_session(work, event.session_id, event.agent)
    room = work.state.agents[event.agent].room
    if event.mode_note is not None and room is not None:
        work.do(Send(room=room, message=AgentNote(event.agent, event.mode_note), priority=Priority.NOTICE))


def _know_session(work: Step, session_id: SessionId, agent: AgentName) -> Session:
    """The session, stored with the first that is heard of it: the ledger keeps no request of a session it does not know."""
    session = work.state.sessions.get(session_id)
    if session is None:
        session = Session(agent=agent)
        work.put_session(session_id, session)
        work.do(StoreSession(session_id=session_id, agent=agent))
    return session


def _end_session(work: Step, session_id: SessionId, reason: str) -> None:
    """A session ends once, though it may be deleted and its agent may go after that."""
    session = work.state.sessions.get(session_id)
    if session is not None and not session.ended:
        work.put_session(session_id, replace(session, ended=True))
        work.do(StoreSessionEnd(session_id=session_id, reason=reason))


def _end_turn(work: Step, event: TurnEnded) -> None:
    session = work.state.sessions.get(event.session_id)
    if session is not None:
        endings.end_all(work, session.waiting, Cause.CANCEL)
        work.put_session(event.session_id, replace(work.state.sessions[event.session_id], cancelling=False))


def _cancel_turn(work: Step, event: TurnCancelled) -> None:
    session = work.state.sessions.get(event.session_id)
    if session is not None:
        work.do(CancelTurn(agent=session.agent, session_id=event.session_id))
        endings.end_all(work, session.waiting, Cause.CANCEL, by=event.by)
        work.put_session(event.session_id, replace(work.state.sessions[event.session_id], cancelling=True))


def _delete_session(work: Step, event: SessionDeleted) -> None:
    session = work.state.sessions.get(event.session_id)
    if session is not None and not session.ended:
        endings.end_all(work, session.waiting, Cause.DELETE)
        work.do(CloseSession(agent=session.agent, session_id=event.session_id))
        _end_session(work, event.session_id, "session_deleted")


def _lose_agent(work: Step, event: AgentGone) -> None:
    if event.session_id is None:
        return
    entries = (work.state.entries[request_id] for request_id in work.state.calls.values())
    mine = [entry.request.request_id for entry in entries if entry.request.session_id == event.session_id]
    endings.end_all(work, mine, Cause.GONE)
    _end_session(work, event.session_id, "agent_gone")


# -------------------------------------------------------------------------------------------------------------- asking


def _ask(work: Step, event: Asked) -> None:
    agent = work.state.agents[event.agent]
    session = _know_session(work, event.session_id, event.agent)
    over = _is_over(work, session)
    chosen = None if event.misfit or over else decide(agent.policy, event.options, event.description.subjects)
    if chosen is not None:
        _answer_by_policy(work, event, chosen)
        return
    room = work.state.rooms.get(agent.room) if agent.room is not None else None
    usable = room is not None and room.state in (None, RoomState.JOINED) and bool(agent.approvers)
    askable = usable and event.misfit is None and over is None
    work.put_session(event.session_id, replace(session, next_seq=session.next_seq + 1))
    request_id = RequestId(f"{event.session_id}:{session.next_seq}")
    request = Request(
        request_id=request_id,
        session_id=event.session_id,
        request_seq=session.next_seq,
        agent=event.agent,
        call=event.call,
        tool_call_id=event.tool_call_id,
        room=agent.room if agent.room is not None else NOWHERE,
        number=room.next_number if room is not None and askable else 0,
        description=event.description,
        options=event.options,
        asked_at=work.at,
        expires_at=Millis(work.at + agent.expires_after),
        style=agent.prompt_style,
        strict=agent.strict and room is not None and room.encrypted,
        mentions=tuple(sorted(agent.approvers)) if agent.mentions else (),
        nonce=event.nonce,
    )
    entry = Entry(request=request)
    work.do(StoreAsked(request=request, record=event.record, raw=event.raw))
    work.wait(entry)
    if askable:
        posting.post(work, entry)
        work.do(WakeAt(request_id=request_id, at=request.expires_at))
        return
    if usable and event.misfit is not None and over is None:
        notice = Unaskable(event.agent, event.description.title, event.misfit)
        work.do(Send(room=request.room, message=notice, priority=Priority.NOTICE))
    endings.end(work, entry, over or Cause.NO_WAY)


def _is_over(work: Step, session: Session) -> Cause | None:
    """Why nothing may be asked there any more: a request that crosses an ending is answered `cancelled` (rule 18)."""
    if work.state.closing:
        return Cause.SHUTDOWN
    if session.ended:
        return Cause.DELETE
    return Cause.CANCEL if session.cancelling else None


def _reach_deadline(work: Step, request_id: RequestId) -> None:
    """The time is over, unless the clock was set back meanwhile: then the same deadline comes once more."""
    entry = work.state.entries.get(request_id)
    if entry is None or entry.request.phase is not Phase.PENDING:
        return
    if work.at >= entry.request.expires_at:
        endings.run_out(work, entry)
    else:
        work.do(WakeAt(request_id=request_id, at=entry.request.expires_at))


def _answer_by_policy(work: Step, event: Asked, chosen: Option | Unsatisfied) -> None:
    """Neither posted nor in the history; logged and counted (AO-08)."""
    outcome: Outcome = chosen if isinstance(chosen, Unsatisfied) else Selected(chosen.option_id)
    fields: JsonObject = {
        "agent": event.agent,
        "session_id": event.session_id,
        "policy": work.state.agents[event.agent].policy.value,
        "outcome": "unsatisfied" if isinstance(chosen, Unsatisfied) else "selected",
    }
    work.do(
        Respond(agent=event.agent, call=event.call, outcome=outcome),
        Log("permission.answered_by_policy", fields, warning=isinstance(chosen, Unsatisfied)),
    )


# ------------------------------------------------------------------------------------------------ what the harness says


def _hear_of_call(work: Step, event: Withdrawn | Delivered | NotDelivered) -> None:
    request_id = work.state.calls.get(event.call)
    if request_id is None:
        return
    entry = work.state.entries[request_id]
    match event:
        case Withdrawn():
            endings.end(work, entry, Cause.WITHDRAW)
        case Delivered():
            endings.deliver(work, entry, Cause.WRITTEN)
        case NotDelivered():  # pragma: no branch - the last of the three
            endings.deliver(work, entry, Cause.NOT_WRITTEN)


def _hear_of_change(work: Step, event: ToolCallChanged) -> None:
    """Only the request that the update speaks of: two that wait may share a tool call id."""
    request_id = work.state.calls.get(event.call)
    if request_id is not None:
        posting.compare(work, work.state.entries[request_id], event)
