"""Whether something that a person did is an answer, to which request, and what they are told if it is not.

Above it: broker. Below it: replies (what a text says), attempts (what an attempt does), trusting (from which device), locked (which
could not be read at once). Rules 13 to 16 of design.md.
Whatever is not clearly an answer to one request decides nothing; it is refused aloud where it was clearly meant as one, and
is conversation where it was not.
"""

from dataclasses import dataclass, replace
from heapq import nsmallest

from bridge.core import trusting
from bridge.core.attempts import (
    Attempt,
    ask_to_confirm,
    decide,
    is_approver,
    is_from_accepted_device,
    may_answer,
    take,
    tell,
    tell_late,
)
from bridge.core.changes import StoreUnseen
from bridge.core.effects import Conversation
from bridge.core.events import Reacted, Said, Voted
from bridge.core.locked import stood, stood_prompt
from bridge.core.messages import NeedsNumber, WhichPrompt, WrongNumber
from bridge.core.model import AgentName, Meaning, Option, Phase, Request, RoomId, UserId, Via
from bridge.core.polls import read_vote
from bridge.core.replies import (
    Fits,
    choose,
    command,
    confirms,
    has_form,
    is_confirmation,
    is_lone_number,
    is_nothing,
    split_number,
)
from bridge.core.state import Entry, Room, Shown, Step

JUST_CLOSED_MS = 5_000  # rule 14: a bare text may still be meant for the prompt that closed a moment ago
TOLD_LATE_MS = 60_000  # rule 16: for a minute a bare text that fits the prompt that closed last is told how it ended
LISTED = 10  # prompts named when somebody must say which one they mean; more would not be read


@dataclass(frozen=True, slots=True)
class Aim:
    """What a message points at among the bot's own events."""

    entry: Entry
    shown: Shown


def hear(step: Step, said: Said) -> None:
    """A text message of somebody else in a bound room."""
    if not trusting.is_heard(step, said):
        return
    if not is_nothing(said.text):
        _weigh(step, said, step.room(said.room))
    if said.event_id not in step.state.locked:
        _note_presence(step, said.room, said.sender)


def _weigh(step: Step, said: Said, room: Room) -> None:
    number, rest = split_number(said.text)
    aims = _find_aims(step, said)
    if command(said.text) is not None:
        _converse(step, said)
    elif len({aim.entry.request.request_id for aim in aims}) > 1:
        _ask_which(step, said, [aim.entry for aim in aims])
    elif aims:
        _weigh_aimed(step, said, aims[0], number, rest)
    elif number is not None:
        _weigh_numbered(step, said, room, number, rest)
    elif said.targets:
        _converse(step, said)
    else:
        _weigh_bare(step, said, room)


def _find_aims(step: Step, said: Said) -> list[Aim]:
    found: list[Aim] = []
    for target in said.targets:
        shown = step.state.shown.get(target)
        entry = step.state.entries.get(shown.request_id) if shown else None
        if shown is not None and entry is not None and entry.request.room == said.room:
            found.append(Aim(entry, shown))
    # in a thread the prompt is its root, and a reply there to the question of rule 10 is still a reply to the question
    return sorted(found, key=lambda aim: not aim.shown.confirmation)


def _weigh_aimed(step: Step, said: Said, aim: Aim, number: int | None, rest: str) -> None:
    """A reply to a message of a request, or a message in its thread."""
    entry, request, attempt = aim.entry, aim.entry.request, _attempt(said)
    if _speaks_of_another(said, request):
        return
    if number is not None and number not in (request.number, entry.number_of(aim.shown.revision)):
        if may_answer(step, entry, attempt):
            tell(step, said.room, WrongNumber(request, number, said.event_id))
    elif aim.shown.confirmation:
        _weigh_confirmation(step, said, aim, number, rest)
    elif request.phase is not Phase.PENDING:
        _weigh_late(step, said, entry, rest)
    elif not may_answer(step, entry, attempt):
        return
    elif aim.shown.revision != request.revision:
        tell_late(step, entry, aim.shown.revision, attempt, None)
    elif not stood_prompt(step, said.event_id, entry):
        _ask_which(step, said, [entry])
    elif request.strict and number is None:  # whoever carries the message can change what it replies to
        tell(step, said.room, NeedsNumber(request, said.sender, said.event_id))
    else:
        take(step, entry, choose(rest, request.options), attempt)


def _weigh_confirmation(step: Step, said: Said, aim: Aim, number: int | None, rest: str) -> None:
    """A reply to the question of rule 10: only the person who chose, with the option's whole name or `confirm`.

    Under `strict` never with the name: who said it twice may not have seen the question, and the server can make a reply to it
    of anything.
    """
    entry, request, attempt = aim.entry, aim.entry.request, _attempt(said)
    asked = next((c for c in entry.confirmations if c.event_id in said.targets), None)
    if request.phase is not Phase.PENDING or asked is None:
        if may_answer(step, entry, attempt):
            tell_late(step, entry, aim.shown.revision, attempt, None)
    elif not may_answer(step, entry, attempt) or said.sender != asked.sender:
        return
    elif not stood(step, said.event_id, asked.place):
        _ask_which(step, said, [entry])
    elif request.strict and number is None:
        tell(step, said.room, NeedsNumber(request, said.sender, said.event_id))
    elif is_confirmation(rest, request.options) if request.strict else confirms(rest, asked.option):
        decide(step, entry, asked.option, attempt)
    else:
        fits = choose(rest, request.options)
        if isinstance(fits, Option) and fits.meaning is Meaning.REJECT:
            decide(step, entry, fits, attempt)
        else:
            ask_to_confirm(step, entry, asked.option, attempt)


def _weigh_late(step: Step, said: Said, entry: Entry, rest: str) -> None:
    """It points at a request that is decided: an attempt is told how it ended, other words go to its agent."""
    fits = choose(rest, entry.request.options)
    if fits is Fits.NONE and rest and not is_lone_number(rest):
        _converse(step, said, entry.request.agent)
    elif may_answer(step, entry, _attempt(said)):
        option = fits if isinstance(fits, Option) else None
        tell_late(step, entry, entry.request.revision, _attempt(said), option)


def _weigh_numbered(step: Step, said: Said, room: Room, number: int, rest: str) -> None:
    """`#12 1`: the room number names the prompt (rule 14)."""
    entry = _find_numbered(step, room, number)
    if entry is None:
        if room.waiting and (not rest or is_lone_number(rest) or _fits_any(room, rest)):
            _refuse_number(step, said, room)
        else:
            _converse(step, said)
    elif _speaks_of_another(said, entry.request):
        return
    elif entry.request.phase is not Phase.PENDING:
        _weigh_late(step, said, entry, rest)
    elif number != entry.request.number:  # the agent has changed what it asked under this number
        if may_answer(step, entry, _attempt(said)):
            tell_late(step, entry, entry.old_numbers.index(number) + 1, _attempt(said), None)
    elif said.targets or not _is_placed(step, said, entry) or _may_mean_the_message_before(step, said, room, entry):
        _ask_which(step, said, [entry])  # it points at something else, or was written before the prompt
    elif may_answer(step, entry, _attempt(said)):
        take(step, entry, choose(rest, entry.request.options) if rest else Fits.NONE, _attempt(said))


def _refuse_number(step: Step, said: Said, room: Room) -> None:
    """No prompt has this number: an attempt that fits nothing gets the list, or the names of what waits (rule 16)."""
    if len(room.waiting) > 1:
        _ask_which_waits(step, said, room)
        return
    (request_id,) = room.waiting.values()
    entry = step.state.entries[request_id]
    if may_answer(step, entry, _attempt(said)):
        take(step, entry, Fits.NONE, _attempt(said))


def _find_numbered(step: Step, room: Room, number: int) -> Entry | None:
    request_id = room.waiting.get(number)
    if request_id is not None:
        return step.state.entries[request_id]
    others = (step.state.entries[request_id] for request_id in (*room.waiting.values(), *reversed(room.closed)))
    return next((entry for entry in others if number in (entry.request.number, *entry.old_numbers)), None)


def _weigh_bare(step: Step, said: Said, room: Room) -> None:
    """Text that points at nothing: an answer only where it can mean one prompt to this person (rule 14)."""
    if not room.waiting:
        _weigh_after_the_last(step, said, room)
    elif not (is_lone_number(said.text) or _fits_any(room, said.text)):
        _converse(step, said)
    elif len(room.waiting) > 1:
        _ask_which_waits(step, said, room)
    else:
        (request_id,) = room.waiting.values()
        _weigh_bare_for(step, said, room, step.state.entries[request_id])


def _weigh_bare_for(step: Step, said: Said, room: Room, entry: Entry) -> None:
    request = entry.request
    if _speaks_of_another(said, request) or not may_answer(step, entry, _attempt(said)):
        return
    if _is_unseen(step, said, room) or not _is_placed(step, said, entry):
        _ask_which(step, said, [entry])
    elif request.strict:
        tell(step, said.room, NeedsNumber(request, said.sender, said.event_id))
    else:
        take(step, entry, choose(said.text, request.options), _attempt(said))


def _may_mean_the_message_before(step: Step, said: Said, room: Room, entry: Entry) -> bool:
    """A request that was asked anew keeps its number: this may have been written under what it asked before.

    Under `strict` it has a new one, so the old number says by itself what was meant.
    """
    request = entry.request
    return not request.strict and request.revision > 1 and _is_unseen(step, said, room)


def _is_unseen(step: Step, said: Said, room: Room) -> bool:
    """Whether the person may still have had before them what closed, without their doing, when they wrote (rule 14)."""
    late = step.state.locked.get(said.event_id)
    unseen = said.sender in room.unseen or (late is not None and late.unseen)
    return unseen or _closed_within(step, said, room, JUST_CLOSED_MS)


def _weigh_after_the_last(step: Step, said: Said, room: Room) -> None:
    """Nothing waits: for a minute a text that would have answered the last prompt is told how that one ended."""
    closed = (step.state.entries[request_id] for request_id in reversed(room.closed))
    entry = next((entry for entry in closed if entry.request.event_id is not None), None)
    fits = choose(said.text, entry.request.options) if entry is not None else Fits.NONE
    if (
        entry is not None
        and isinstance(fits, Option)
        and _closed_within(step, said, room, TOLD_LATE_MS)
        and is_approver(step, entry.request, said.sender)
    ):
        if is_from_accepted_device(step, entry.request, _attempt(said)):
            tell_late(step, entry, entry.request.revision, _attempt(said), fits, again=True)
    else:
        _converse(step, said)


def react(step: Step, reacted: Reacted) -> None:
    """A reaction of somebody else. One that names no option, or stands under anything but a prompt, is nothing."""
    shown = step.state.shown.get(reacted.target)
    entry = step.state.entries.get(shown.request_id) if shown else None
    if shown is not None and entry is not None and not shown.confirmation and entry.request.room == reacted.room:
        _weigh_reaction(step, reacted, entry, shown)
    strict = step.room(reacted.room).encrypted and any(
        agent.strict for agent in step.state.agents.values() if agent.room == reacted.room
    )
    if not strict:  # a forged one would say that they have seen what they have not
        _note_presence(step, reacted.room, reacted.sender)


def _weigh_reaction(step: Step, reacted: Reacted, entry: Entry, shown: Shown) -> None:
    request = entry.request
    if request.strict:  # the server reads reactions, and can forge them
        return
    option = choose(reacted.key, request.options)
    attempt = Attempt(sender=reacted.sender, via=Via.REACTION, event_id=reacted.event_id, under=reacted.target)
    if not isinstance(option, Option) or not may_answer(step, entry, attempt):
        return
    if request.phase is not Phase.PENDING or shown.revision != request.revision:
        tell_late(step, entry, shown.revision, attempt, option)
    else:
        take(step, entry, option, attempt)


def vote(step: Step, voted: Voted) -> None:
    """A vote of somebody else. One that names no single answer of a poll of ours is nothing, wherever it stands.

    Its place in sync order needs no look: nobody knows a poll's answer ids before it stands in the room.
    """
    shown = step.state.shown.get(voted.target)
    entry = step.state.entries.get(shown.request_id) if shown else None
    if shown is None or entry is None or not shown.poll or entry.request.room != voted.room:
        return
    option = read_vote(entry.request, shown.revision, voted.answers)
    if option is None or not trusting.is_heard(step, voted):
        return
    _weigh_vote(step, voted, entry, shown, option)
    if voted.event_id not in step.state.locked:
        _note_presence(step, voted.room, voted.sender)


def _weigh_vote(step: Step, voted: Voted, entry: Entry, shown: Shown, option: Option) -> None:
    attempt = Attempt(sender=voted.sender, via=Via.POLL, event_id=voted.event_id, under=voted.target, message=voted)
    if not may_answer(step, entry, attempt):
        return
    if entry.request.phase is not Phase.PENDING or shown.revision != entry.request.revision:
        tell_late(step, entry, shown.revision, attempt, option)
    else:
        take(step, entry, option, attempt)


def _attempt(said: Said) -> Attempt:
    via = Via.THREAD if said.in_thread else Via.MESSAGE
    return Attempt(sender=said.sender, via=via, event_id=said.event_id, under=said.event_id, message=said)


def _converse(step: Step, said: Said, aimed: AgentName | None = None) -> None:
    step.do(Conversation(said, aimed, trusting.find_refusing(step, said)))


def _is_placed(step: Step, said: Said, entry: Entry) -> bool:
    """Whether the current message stood in the room when this was written."""
    return entry.request.placed and stood_prompt(step, said.event_id, entry)


def _speaks_of_another(said: Said, request: Request) -> bool:
    """A message that carries another `request_id` in its content counts for no one (V2-34)."""
    return said.foreign_request is not None and said.foreign_request != request.request_id


def _closed_within(step: Step, said: Said, room: Room, span_ms: int) -> bool:
    """Whether a prompt had just closed when this was written, or has closed since.

    A clock that was set back makes no span of it: then nothing counts as just closed.
    """
    late = step.state.locked.get(said.event_id)
    if late is not None and room.closed_place > late.place:
        return True
    return room.closed_at is not None and 0 <= (step.at if late is None else late.at) - room.closed_at < span_ms


def _fits_any(room: Room, text: str) -> bool:
    return has_form(text, room.forms)


def _ask_which_waits(step: Step, said: Said, room: Room) -> None:
    numbers = nsmallest(LISTED, room.waiting)
    _ask_which(step, said, [step.state.entries[room.waiting[n]] for n in numbers], len(room.waiting) - LISTED)


def _ask_which(step: Step, said: Said, entries: list[Entry], more: int = 0) -> None:
    """Say which prompts wait and how to answer one; a stranger hears only, and once, that they may not."""
    if not any(is_approver(step, entry.request, said.sender) for entry in entries):
        if not any(said.sender in entry.strangers for entry in entries):
            may_answer(step, entries[0], _attempt(said))
        return
    waiting = tuple(entry.request for entry in entries if entry.request.phase is Phase.PENDING)
    if waiting:
        tell(step, said.room, WhichPrompt(waiting, max(0, more), said.sender, said.event_id))


def _note_presence(step: Step, room: RoomId, person: UserId) -> None:
    """From here on this person has seen what the room shows now (rule 14)."""
    value = step.room(room)
    if person in value.unseen:
        step.put_room(room, replace(value, unseen=value.unseen - {person}))
        step.do(StoreUnseen(room=room, person=person, on=False))
