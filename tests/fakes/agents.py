"""Harnesses without a harness: what the core sent is written down, and a test says what became of it."""

from dataclasses import dataclass, field

from bridge.core.events import Delivered, NotDelivered
from bridge.core.model import AgentName, CallRef, Outcome, SessionId
from bridge.core.ports import Deliver


@dataclass(frozen=True, slots=True)
class Responded:
    agent: AgentName
    call: CallRef
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Prompted:
    agent: AgentName
    session_id: SessionId
    text: str


@dataclass(frozen=True, slots=True)
class TurnCancelSent:
    agent: AgentName
    session_id: SessionId


@dataclass(frozen=True, slots=True)
class Closed:
    agent: AgentName
    session_id: SessionId


@dataclass(slots=True)
class FakeAgents:
    """Implements `core.ports.Agents`.

    With `at_once` every response is delivered as soon as it is queued; else the test says when, and whether.
    """

    deliver: Deliver
    at_once: bool = False
    acts: list[Responded | Prompted | TurnCancelSent | Closed] = field(
        default_factory=list[Responded | Prompted | TurnCancelSent | Closed]
    )
    _open: dict[CallRef, AgentName] = field(default_factory=dict[CallRef, AgentName])
    _answered: set[CallRef] = field(default_factory=set[CallRef])

    @property
    def responses(self) -> list[tuple[CallRef, Outcome]]:
        """What was answered, in order."""
        return [(act.call, act.outcome) for act in self.acts if isinstance(act, Responded)]

    @property
    def prompts(self) -> list[str]:
        """What the agents were told, in order."""
        return [act.text for act in self.acts if isinstance(act, Prompted)]

    def respond(self, agent: AgentName, call: CallRef, outcome: Outcome) -> None:
        if call in self._answered:
            raise AssertionError(f"call {call} was answered twice")
        self._answered.add(call)
        self.acts.append(Responded(agent, call, outcome))
        self._open[call] = agent
        if self.at_once:
            self.write(call)

    def prompt(self, agent: AgentName, session_id: SessionId, text: str) -> None:
        self.acts.append(Prompted(agent, session_id, text))

    def cancel(self, agent: AgentName, session_id: SessionId) -> None:
        self.acts.append(TurnCancelSent(agent, session_id))

    def close(self, agent: AgentName, session_id: SessionId) -> None:
        self.acts.append(Closed(agent, session_id))

    def write(self, call: CallRef) -> None:
        """The response has reached the harness."""
        self.deliver(Delivered(agent=self._open.pop(call), call=call))

    def lose(self, call: CallRef) -> None:
        """The response could not be written."""
        self.deliver(NotDelivered(agent=self._open.pop(call), call=call))
