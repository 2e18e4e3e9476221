"""What becomes of a person's words to the agent: one turn at a time, later words queue and are told so (rule 16).

Above it: relay. Below it: replies (commands, names in front). It knows nothing of requests: words that may be an answer never
get here before `core.answers` has said that they are none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from immutables import Map

from bridge.core.changes import Priority
from bridge.core.effects import Conversation, Effect, EndTurn, Refuse, Send, StartTurn, TellStatus, Typing
from bridge.core.events import (
    AgentGone,
    Event,
    RoomMoved,
    RoomSeen,
    Said,
    SendFailed,
    Sent,
    SessionDeleted,
    SessionStarted,
    ShuttingDown,
    StartFailed,
    TooLarge,
    TurnEnded,
)
from bridge.core.messages import (
    AgentNote,
    CancelSent,
    Gone,
    Help,
    Message,
    NoAgent,
    NothingToCancel,
    Queued,
    QueueFull,
    TurnFailed,
    WhichAgent,
    WhichTurn,
    Words,
)
from bridge.core.model import Agent, AgentName, EventId, Listen, RoomId, SessionId, TransactionId
from bridge.core.replies import addressed, command, is_nothing
from bridge.core.state import without

QUEUE_HOLDS = 20  # rule 16
WORDS_KEPT = 200  # messages of an agent that a reply may still be aimed at
QUIET_ENDS = frozenset({"end_turn", "cancelled"})  # stop reasons that need no word of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One agent's side of the conversation."""

    session_id: SessionId | None = None
    starting: bool = True  # its harness is on its way: words wait for its session
    running: bool = False
    queue: tuple[str, ...] = ()
    spoken: int = 0  # how many messages of the agent were made: keeps transaction ids apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Everything the conversation is decided by."""

    agents: Mapping[AgentName, Agent]
    talks: Map[AgentName, Talk]
    people: Map[RoomId, int] = field(default_factory=Map[RoomId, int])
    leaving: Map[TransactionId, AgentName] = field(default_factory=Map[TransactionId, AgentName])
    words: Map[EventId, AgentName] = field(default_factory=Map[EventId, AgentName])
    words_order: tuple[EventId, ...] = ()
    closing: bool = False  # the bridge ends: that its harnesses go is no news


class _Step:
    __slots__ = ("effects", "state")

    def __init__(self, state: Turns) -> None:
        self.state = state
        self.effects: list[Effect] = []

    def put(self, agent: AgentName, talk: Talk) -> None:
        self.state = replace(self.state, talks=self.state.talks.set(agent, talk))

    def tell(self, room: RoomId, message: Message, transaction_id: TransactionId | None = None) -> None:
        self.effects.append(Send(room=room, message=message, priority=Priority.NOTICE, transaction_id=transaction_id))


def begin(agents: tuple[Agent, ...]) -> Turns:
    """No session yet, nobody has spoken."""
    return Turns(agents={a.name: a for a in agents}, talks=Map({a.name: Talk() for a in agents}))


def step(state: Turns, event: Event | Conversation) -> tuple[Turns, list[Effect]]:  # noqa: C901 - one line an event
    """Take one event; what has nothing to do with the conversation changes nothing."""
    work = _Step(state)
    match event:
        case SessionStarted():
            _begin(work, event)
        case RoomSeen():
            work.state = replace(state, people=state.people.set(event.room, event.people))
        case Sent():
            _bind(work, event)
        case Conversation():
            _hear(work, event)
        case TurnEnded():
            _end_turn(work, event)
        case StartFailed():
            _note(work, event)
        case AgentGone():
            _lose_agent(work, event)
        case SessionDeleted():
            _lose_session(work, event)
        case SendFailed() | TooLarge():
            work.state = replace(state, leaving=without(state.leaving, event.transaction_id))
        case RoomMoved():
            moved = {
                name: replace(agent, room=event.new) if agent.room == event.old else agent
                for name, agent in state.agents.items()
            }
            work.state = replace(state, agents=moved)
        case ShuttingDown():
            work.state = replace(state, closing=True)
        case _:
            pass
    return work.state, work.effects


def _begin(work: _Step, event: SessionStarted) -> None:
    """What was said while the harness started is its first turn; what was said to an earlier session is not."""
    agent, talk = work.state.agents[event.agent], work.state.talks[event.agent]
    waiting = talk.queue if talk.session_id is None and not work.state.closing else ()
    work.put(
        event.agent,
        Talk(
            session_id=event.session_id,
            starting=False,
            running=bool(waiting),
            queue=waiting[1:],
            spoken=talk.spoken,
        ),
    )
    for text in waiting[:1]:
        _start(work, agent, event.session_id, text)


def _hear(work: _Step, heard: Conversation) -> None:
    said = heard.said
    here = [a for a in work.state.agents.values() if a.room == said.room]
    mine = [a for a in here if said.sender in a.users]
    if not mine:
        return
    accepting = [a for a in mine if a.name not in heard.refused]
    words = command(said.text)
    if words is not None:
        if accepting:
            _obey(work, said, accepting, *words)
        else:
            work.effects.append(Refuse(said, mine[0].name))
        return
    named, text = addressed(said.text, [a.name for a in here])
    agent = _meant(work, heard, here, named)
    if not _is_for_agents(work, said, here, named=named is not None):
        return
    if agent is None:
        work.tell(said.room, WhichAgent(tuple(a.name for a in mine), said.event_id))
    elif said.sender not in agent.users or is_nothing(text):
        return
    elif agent.name in heard.refused:
        work.effects.append(Refuse(said, agent.name))
    else:
        _say(work, agent, said, text)


def _meant(work: _Step, heard: Conversation, here: list[Agent], named: str | None) -> Agent | None:
    """The agent whose name begins the text, or whose message it answers, or the only one here."""
    name = named or heard.aimed
    if name is None:
        name = next((work.state.words[t] for t in heard.said.targets if t in work.state.words), None)
    if name is None:
        return here[0] if len(here) == 1 else None
    return work.state.agents.get(AgentName(name))  # an old prompt's agent may be gone from the config


def _is_for_agents(work: _Step, said: Said, here: list[Agent], *, named: bool) -> bool:
    """Whether the bot listens to this text: every line, or only what mentions it or begins with an agent's name."""
    crowd = work.state.people.get(said.room, 1) > 1
    rule = next((a.listen for a in here if a.listen is not Listen.AUTO), Listen.AUTO)
    listens_to_all = rule is Listen.ALL or (rule is Listen.AUTO and not crowd)
    return listens_to_all or named or said.mentions_bot


def _say(work: _Step, agent: Agent, said: Said, text: str) -> None:
    talk = work.state.talks[agent.name]
    if work.state.closing or (talk.session_id is None and not talk.starting):
        work.tell(said.room, NoAgent(agent.name, said.event_id))
    elif talk.session_id is not None and not talk.running:
        work.put(agent.name, replace(talk, running=True))
        _start(work, agent, talk.session_id, text)
    elif len(talk.queue) >= QUEUE_HOLDS:
        work.tell(said.room, QueueFull(agent.name, said.event_id))
    else:
        work.put(agent.name, replace(talk, queue=(*talk.queue, text)))
        work.tell(said.room, Queued(agent.name, len(talk.queue), said.event_id))


def _start(work: _Step, agent: Agent, session_id: SessionId, text: str) -> None:
    if agent.room is None:  # words come from the agent's room
        raise AssertionError("unreachable")
    work.effects.append(StartTurn(agent=agent.name, session_id=session_id, text=text))
    work.effects.append(Typing(room=agent.room, on=True))


def _end_turn(work: _Step, event: TurnEnded) -> None:
    agent, talk = work.state.agents[event.agent], work.state.talks[event.agent]
    if talk.session_id != event.session_id:
        return
    if agent.room is not None:
        if event.text.strip():
            transaction_id = TransactionId(f"{event.session_id}/words/{talk.spoken}")
            talk = replace(talk, spoken=talk.spoken + 1)
            work.state = replace(work.state, leaving=work.state.leaving.set(transaction_id, event.agent))
            work.tell(agent.room, Words(event.agent, event.text), transaction_id)
        if event.error is not None or event.stop_reason not in QUIET_ENDS:
            work.tell(agent.room, TurnFailed(event.agent, event.stop_reason, event.error))
    if talk.queue and not work.state.closing:
        work.put(event.agent, replace(talk, queue=talk.queue[1:]))
        _start(work, agent, event.session_id, talk.queue[0])
        return
    work.put(event.agent, replace(talk, running=False))
    _stop_typing(work, agent)


def _stop_typing(work: _Step, agent: Agent) -> None:
    """It goes on while another agent works in the same room."""
    others = [a for a in work.state.agents.values() if a.room == agent.room and work.state.talks[a.name].running]
    if agent.room is not None and not others:
        work.effects.append(Typing(room=agent.room, on=False))


def _lose_agent(work: _Step, event: AgentGone) -> None:
    agent, talk = work.state.agents[event.agent], work.state.talks[event.agent]
    if talk.session_id not in (None, event.session_id):
        return  # a new one runs already
    work.put(event.agent, Talk(starting=False, spoken=talk.spoken))
    _stop_typing(work, agent)
    if agent.room is not None and not work.state.closing:
        work.tell(agent.room, Gone(event.agent, event.exit_code))


def _lose_session(work: _Step, event: SessionDeleted) -> None:
    """The harness may go on to run, but nobody can speak to it: no turn begins, and none is waited for."""
    for name, talk in sorted(work.state.talks.items()):
        if talk.session_id == event.session_id:
            work.put(name, Talk(starting=False, spoken=talk.spoken))
            _stop_typing(work, work.state.agents[name])


def _note(work: _Step, event: StartFailed) -> None:
    room = work.state.agents[event.agent].room
    work.put(event.agent, Talk(starting=False))
    if room is not None:
        work.tell(room, AgentNote(event.agent, event.sentence))


def _bind(work: _Step, event: Sent) -> None:
    agent = work.state.leaving.get(event.transaction_id)
    if agent is None:
        return
    order = (*work.state.words_order, event.event_id)
    words = work.state.words.set(event.event_id, agent)
    for old in order[:-WORDS_KEPT]:
        words = words.delete(old)
    work.state = replace(
        work.state,
        leaving=work.state.leaving.delete(event.transaction_id),
        words=words,
        words_order=order[-WORDS_KEPT:],
    )


# ------------------------------------------------------------------------------------------------------------- commands


def _obey(work: _Step, said: Said, mine: list[Agent], word: str, rest: str) -> None:
    match word:
        case "help":
            work.tell(said.room, Help())
        case "status":
            work.effects.append(TellStatus(said.room))
        case "cancel":
            _cancel(work, said, mine, rest.strip())
        case _:
            work.tell(said.room, Help(unknown=word))


def _cancel(work: _Step, said: Said, mine: list[Agent], name: str) -> None:
    """End the running turn; what was queued behind it is dropped too, since its author wants the agent to stop."""
    running = [a for a in mine if work.state.talks[a.name].running]
    if name:
        known = [a for a in mine if a.name.casefold() == name.casefold()]
        if not known:
            work.tell(said.room, WhichAgent(tuple(a.name for a in mine), said.event_id))
            return
        running = [a for a in known if a in running]
    if not running:
        work.tell(said.room, NothingToCancel(said.event_id))
    elif len(running) > 1:
        work.tell(said.room, WhichTurn(tuple(a.name for a in running), said.event_id))
    else:
        agent = running[0]
        talk = work.state.talks[agent.name]
        if talk.session_id is None:
            raise AssertionError("unreachable")
        work.put(agent.name, replace(talk, queue=()))
        work.effects.append(EndTurn(session_id=talk.session_id, by=said.sender))
        work.tell(said.room, CancelSent(agent.name, len(talk.queue)))
