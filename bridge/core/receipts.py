"""Answers over the control socket: the same rules and the same race as in the room, with a receipt at the end.

Above it: broker. Below it: attempts, endings. A refusal of the caller consumes nothing (interface.md, Control socket).
"""

from bridge.core import endings
from bridge.core.attempts import late_reason, late_record
from bridge.core.effects import Receipt
from bridge.core.errors import InvalidOption, InvalidRevision, LocalAnswersOff, SessionNotFound
from bridge.core.events import AnsweredLocally
from bridge.core.model import LocalAnswers, Meaning, Phase, Reason, Via
from bridge.core.state import Entry, Step


def respond(step: Step, answered: AnsweredLocally) -> None:
    """`permission.respond`: the same race; a refusal of the caller consumes nothing (interface.md, Control socket)."""
    state, ticket = step.state, answered.ticket
    session = state.sessions.get(answered.session_id)
    entry = state.entries.get(answered.request_id)
    if session is None:
        step.do(Receipt(ticket=ticket, error=SessionNotFound("There is no such session.")))
    elif entry is None or entry.request.session_id != answered.session_id:
        step.do(Receipt(ticket=ticket, reason=Reason.REQUEST_NOT_FOUND))
    elif entry.request.phase is not Phase.PENDING:
        _refuse_late(step, entry, answered)
    elif answered.revision is not None and answered.revision != entry.request.revision:
        sentence = f"The request is at revision {entry.request.revision} now."
        step.do(Receipt(ticket=ticket, error=InvalidRevision(sentence)))
    else:
        _respond_pending(step, entry, answered)


def _respond_pending(step: Step, entry: Entry, answered: AnsweredLocally) -> None:
    request, ticket = entry.request, answered.ticket
    option = next((o for o in request.options if o.option_id == answered.option_id), None)
    rule = step.state.agents[request.agent].local_answers
    if option is None:
        step.do(Receipt(ticket=ticket, error=InvalidOption(tuple(o.option_id for o in request.options))))
    elif option.meaning is not Meaning.REJECT and rule is LocalAnswers.OFF:
        sentence = "Only a refusal counts here: local_answers is not set for this agent."
        step.do(Receipt(ticket=ticket, error=LocalAnswersOff(sentence)))
    elif option.meaning is not Meaning.REJECT and rule is LocalAnswers.OTHER_USERS and not answered.trusted:
        sentence = "Only a refusal counts from a user that a harness runs as."
        step.do(Receipt(ticket=ticket, error=LocalAnswersOff(sentence)))
    elif step.at >= request.expires_at:
        endings.run_out(step, entry)
        _refuse_late(step, step.state.entries[request.request_id], answered)
    else:
        endings.answer(step, entry, option, by=answered.by, via=Via.LOCAL, event_id=None, ticket=ticket)


def _refuse_late(step: Step, entry: Entry, answered: AnsweredLocally) -> None:
    option = next((o for o in entry.request.options if o.option_id == answered.option_id), None)
    step.do(
        late_record(step, entry, option, by=answered.by, via=Via.LOCAL, event_id=None),
        Receipt(ticket=answered.ticket, reason=late_reason(entry)),
    )
