"""What people in the room read: one function for the words of a prompt, one for its ending, one for everything else.

Above it: prompt. Below it: doubts, layout, size, safetext and the messages of core. Text only: it knows no event, no budget and
no card. The words are those of design.md, section 4. Approval is advice to the agent, so no sentence claims that
something was let through or held back; each says what was asked, what was answered and what was sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bridge.core.messages import (
    AgentNote,
    AgentStatus,
    CancelSent,
    Confirm,
    DeviceRefused,
    Exposed,
    Gone,
    Help,
    Moved,
    NeedsNumber,
    NoAgent,
    NotAllowed,
    NotAnOption,
    NothingToCancel,
    NotStored,
    PromptLost,
    Queued,
    QueueFull,
    Replaced,
    SendAgain,
    Status,
    TooLate,
    TurnFailed,
    Unaskable,
    WhichAgent,
    WhichPrompt,
    WhichTurn,
    WrongNumber,
)
from bridge.core.model import (
    AgentName,
    Decision,
    Ending,
    EventId,
    Misfit,
    Option,
    PreviewItem,
    PromptStyle,
    Request,
    UserId,
)
from bridge.core.safetext import cut_line, escape_line
from bridge.matrix.doubts import Doubtful, tell_how, tell_how_to_confirm, warn
from bridge.matrix.layout import Block, Choices, Lines, Paragraph, Preview
from bridge.matrix.size import LINE_CHARACTERS

HOW_TO_ANSWER = "Reply with the number, or the option's name."  # AgentPod's sentence, word for word
NOT_AN_OPTION = "That is not one of the options, so nothing has been approved."  # rule 16, word for word
NOTHING_APPROVED = "Nothing has been approved."
REPLACED = "The agent has changed what it asks. Please answer the newer message{}; answers to this one no longer count."

KEYCAPS = ("1️⃣", "2️⃣", "3️⃣", "4️⃣", "5️⃣", "6️⃣", "7️⃣", "8️⃣", "9️⃣", "🔟")

_UNANSWERED = {
    Ending.ANSWERED: "It ended without an answer that can be named.",
    Ending.CANCELLED: "The turn ended before anybody answered.",
    Ending.WITHDRAWN: "The agent took its question back before anybody answered.",
    Ending.EXPIRED: "Nobody answered in time.",
    Ending.AGENT_GONE: "The agent ended before anybody answered.",
    Ending.SESSION_DELETED: "The session was deleted before anybody answered.",
    Ending.SHUTDOWN: "The bridge was stopped before anybody answered.",
    Ending.UNDELIVERABLE: "The question could not be put to people.",
}
_MISFITS = {
    Misfit.NOTHING_TO_CHOOSE: "offered nothing to choose from",
    Misfit.SAME_ID: "gave two different options the same id",
    Misfit.NOT_TELLABLE: "offered options that no answer could tell apart",
    Misfit.TOO_LONG: "offered options that are too long for one message",
}
_STOPS = {
    "refusal": "{agent} declined to go on with this turn.",
    "max_tokens": "{agent} reached its limit of tokens, so this turn ended early.",
    "max_turn_requests": "{agent} reached its limit of requests for one turn, so this turn ended early.",
    "cancelled": "The turn of {agent} was cancelled.",
}

Spoken: TypeAlias = (
    NotAnOption
    | NotAllowed
    | WhichPrompt
    | WrongNumber
    | TooLate
    | Confirm
    | Unaskable
    | NotStored
    | PromptLost
    | Queued
    | QueueFull
    | WhichAgent
    | WhichTurn
    | NothingToCancel
    | CancelSent
    | NoAgent
    | TurnFailed
    | Gone
    | AgentNote
    | Status
    | Help
    | Moved
    | Doubtful
)
"""Every message but prompts, their edits, seeds and the agent's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """A message in blocks: `reply_to` is the event it answers, `mentions` are those who must act (their phones ring)."""

    blocks: tuple[Block, ...]
    reply_to: EventId | None = None
    mentions: tuple[UserId, ...] = ()


# ----------------------------------------------------------------------------------------------------------- prompts


def show_title(request: Request) -> str:
    """The title as prompts, cards and endings show it."""
    return _shorten(request.description.title)


def show_option(option: Option) -> str:
    """An option's name as the prose shows it."""
    return _shorten(option.line)


def render_prompt(request: Request, items: Sequence[PreviewItem], *, shared: bool) -> tuple[Block, ...]:
    """A prompt around the preview items that fit; `brief` is AgentPod's text to the letter (section 10)."""
    choices = Choices(tuple(show_option(option) for option in request.options))
    if request.style is PromptStyle.BRIEF:
        return Paragraph(f"Permission needed: {show_title(request)}"), choices, Paragraph(HOW_TO_ANSWER)
    by = f" by {request.agent}" if shared else ""
    blocks: list[Block] = [Paragraph(show_title(request), strong=f"Permission needed{by} (#{request.number}):")]
    if request.revision > 1:
        blocks.append(Paragraph("The agent changed what it asks. This message replaces the earlier one."))
    if items:
        blocks.append(Preview(tuple(items)))
    return *blocks, choices, Paragraph(tell_how(request) if request.strict else HOW_TO_ANSWER)


def render_closing(request: Request, items: Sequence[PreviewItem], *, shared: bool = False) -> tuple[Block, ...]:
    """What stands in a prompt's place once it ended: what was asked, and what really went to the agent (rule 12)."""
    preview = (Preview(tuple(items)),) if items else ()
    strong = f"{_asked(request, shared=shared)}:"
    return Paragraph(show_title(request), strong=strong), *preview, Paragraph(tell_ending(request))


def summarise_closing(request: Request, *, shared: bool = False) -> str:
    """The same in one line, for clients that know no edits."""
    return f"{_asked(request, shared=shared)}: {show_title(request).rstrip('.')}. {tell_ending(request)}"


def render_replaced(message: Replaced) -> tuple[Block, ...]:
    """What stands in a prompt's place once the agent changed what it asks (AC-19)."""
    asked, instead = _tell_replaced(message)
    return Paragraph(show_title(message.request), strong=f"{asked}:"), Paragraph(instead)


def summarise_replaced(message: Replaced) -> str:
    """The same in one line, for clients that know no edits."""
    return ". ".join(_tell_replaced(message))


def _tell_replaced(message: Replaced) -> tuple[str, str]:
    request = message.request
    newer = f", {_name(request)}" if request.number != message.old_number else ""
    return _asked(replace(request, number=message.old_number)), REPLACED.format(newer)


def tell_ending(request: Request) -> str:
    """How a request ended, in one line: who chose what, or why nobody did; and whether it reached the agent."""
    decision = request.decision
    if decision is None:
        return "It still waits for an answer."
    if decision.option is not None and decision.by is not None:
        answered = f"{_who(decision.by)} answered: {_quote(decision.option)}."
        return answered if request.delivered else f"{answered} This answer did not reach the agent."
    # on expiry a reject option goes to the agent (rule 5), else `cancelled`
    outcome = '"cancelled"' if decision.option is None else _quote(decision.option)
    sent = f" {outcome} was sent to the agent." if request.delivered else ""
    return f"{_tell_unanswered(decision)}{sent} {NOTHING_APPROVED}"


def _tell_unanswered(decision: Decision) -> str:
    if decision.ending is Ending.CANCELLED and decision.by is not None:
        return f"{_who(decision.by)} cancelled the turn before anybody answered."
    return _UNANSWERED[decision.ending]


# ---------------------------------------------------------------------------------------------------- everything else


def render_speech(message: Spoken) -> Speech:  # noqa: C901, PLR0911, PLR0912 - a case per message: pyright finds the forgotten one
    """The words of every message that is sent once and never edited."""
    match message:
        case NotAnOption(request=request, answer=answer):
            choices = Choices(tuple(show_option(option) for option in request.options))
            how = (Paragraph(tell_how(request)),) if request.strict else ()
            return Speech(blocks=(Paragraph(NOT_AN_OPTION), choices, *how), reply_to=answer)
        case NotAllowed(request=request, sender=sender, answer=answer):
            text = f"{_who(sender)}, you are not one of the people who may answer {_name(request)}. {NOTHING_APPROVED}"
            return _say(text, reply_to=answer)
        case WhichPrompt():
            return Speech(blocks=_render_which_prompt(message), reply_to=message.answer)
        case WrongNumber(request=request, number=number, answer=answer):
            text = (
                f"This replies to {_name(request)} but begins with #{number}, so it is not clear which one is meant."
                f" {NOTHING_APPROVED} Please reply to the message you mean, without another number in front."
            )
            return _say(text, reply_to=answer)
        case TooLate(request=request, sender=sender, answer=answer):
            return _say(f"{_who(sender)}, {_tell_too_late(request)}", reply_to=answer)
        case Confirm():
            return _render_confirm(message)
        case Unaskable(agent=agent, title=title, misfit=misfit):
            text = (
                f"{agent} asked for permission ({_shorten(title)}) but {_MISFITS[misfit]}."
                f" It was told that this request is cancelled. {NOTHING_APPROVED}"
            )
            return _say(text)
        case NotStored(request=request):
            text = (
                f"Your answer to {_name(request)} could not be stored yet, so the request still waits."
                f" {NOTHING_APPROVED} It is tried again, and counts as soon as it can be stored."
            )
            return _say(text, reply_to=request.event_id)
        case PromptLost(request=request):
            text = (
                f"The message of {_name(request)} was removed again. It still waits for an answer and is not posted"
                f" a third time. To answer it, write #{request.number} and the number of an option."
            )
            return _say(text, mentions=request.mentions)
        case Queued(agent=agent, ahead=ahead, answer=answer):
            before = f", with {_count(ahead, 'other')} before it" if ahead else ""
            text = (
                f"Queued for {agent} as the next prompt{before}. It decides nothing about a request that waits."
                " To stop the running turn, write !cancel."
            )
            return _say(text, reply_to=answer)
        case QueueFull(agent=agent, answer=answer):
            text = f"The queue of {agent} is full, so this was not taken. Please send it again later, or write !cancel."
            return _say(text, reply_to=answer)
        case WhichAgent(agents=agents, answer=answer):
            text = (
                f"Several agents are here: {', '.join(agents)}. Please begin with a name, for example: {agents[0]}: …"
            )
            return _say(f"{text} Nothing was passed on.", reply_to=answer)
        case WhichTurn(agents=agents, answer=answer):
            text = (
                f"These agents are working: {', '.join(agents)}. Please say which one, for example: !cancel {agents[0]}"
            )
            return _say(text, reply_to=answer)
        case NothingToCancel(answer=answer):
            return _say("No turn is running, so there is nothing to cancel.", reply_to=answer)
        case CancelSent(agent=agent, dropped=dropped):
            also = f" Dropped with it: {_count(dropped, 'queued prompt')}." if dropped else ""
            return _say(f"{agent} was asked to stop its turn.{also}")
        case NoAgent(agent=agent, answer=answer):
            return _say(f"{agent} is not there at the moment, so this was not passed on.", reply_to=answer)
        case TurnFailed():
            return _say(_tell_turn_failed(message))
        case Gone(agent=agent, exit_code=exit_code):
            code = "" if exit_code is None else f" with exit code {exit_code}"
            return _say(f"{agent} has ended{code}. What it asked can no longer be answered.")
        case AgentNote(agent=agent, sentence=sentence):
            return _say(f"{agent}: {escape_line(sentence)}")
        case Status(agents=agents):
            blocks = tuple(Lines(_describe_agent(agent)) for agent in agents)
            return Speech(blocks=blocks or (Paragraph("No agent is set up for this room."),))
        case Help(unknown=unknown):
            return Speech(blocks=_render_help(unknown))
        case Moved(agents=agents):
            text = (
                f"This room takes the place of one that was upgraded. Who asks here from now on: {', '.join(agents)}."
            )
            return _say(f"{text} What still waited in the old room has ended there.")
        case DeviceRefused() | NeedsNumber() | Exposed() | SendAgain():
            return _say(warn(message), reply_to=message.answer, mentions=(message.sender,))


def _say(text: str, *, reply_to: EventId | None = None, mentions: tuple[UserId, ...] = ()) -> Speech:
    return Speech(blocks=(Paragraph(text),), reply_to=reply_to, mentions=mentions)


def _render_which_prompt(message: WhichPrompt) -> tuple[Block, ...]:
    waiting = message.waiting
    if not waiting:
        return (Paragraph(f"No request waits here any more. {NOTHING_APPROVED}"),)
    if len(waiting) == 1 and not message.more:
        why = f"The request you may still see has ended or changed, and this one waits now. {NOTHING_APPROVED}"
    else:
        why = f"Several requests wait here, so it is not clear which one you mean. {NOTHING_APPROVED}"
    several = len({request.agent for request in waiting}) > 1
    lines = tuple(
        f"{_name(request)}{f', {request.agent}' if several else ''}: {show_title(request)}" for request in waiting
    )
    more = (f"and {message.more} more",) if message.more else ()
    how = f"Please reply to its message, or write its number first, for example: {_name(waiting[0])} 1"
    return Paragraph(why), Lines((*lines, *more)), Paragraph(how)


def _tell_too_late(request: Request) -> str:
    if request.decision is None:  # it waits on, in a newer message (AC-19)
        return (
            "the agent has changed what it asks, so your answer does not count."
            f" Please answer the newer message, {_name(request)}."
        )
    return f"your answer to {_name(request)} came too late. {tell_ending(request)}"


def _render_confirm(message: Confirm) -> Speech:
    name = _quote(message.option)
    text = (
        f"{_who(message.sender)}, you chose {name} for {_name(message.request)}, but not all of what it asks could be"
        " shown, neither in the message nor as a file. Nothing has been approved yet."
    )
    request = message.request
    how = f"To choose it all the same, {tell_how_to_confirm(request)} {request.agent} goes on waiting until then."
    return Speech(blocks=(Paragraph(text), Paragraph(how)), reply_to=message.answer, mentions=(message.sender,))


def _tell_turn_failed(message: TurnFailed) -> str:
    if message.sentence is not None:
        return f"The turn of {message.agent} ended with an error: {escape_line(message.sentence)}"
    known = _STOPS.get(message.stop_reason)
    if known is not None:
        return known.format(agent=message.agent)
    return f"The turn of {message.agent} ended: {_shorten(escape_line(message.stop_reason))}"


def _describe_agent(agent: AgentStatus) -> tuple[str, ...]:
    if agent.session_id is None:
        return (f"{agent.agent}: not there at the moment",)
    doing = "working" if agent.turn_running else "idle"
    queued = f", {_count(agent.queued, 'prompt')} queued" if agent.queued else ""
    waiting = tuple(f"waits for an answer: #{number} {_shorten(title)}" for number, title in agent.waiting)
    return f"{agent.agent}: {doing}{queued}", *(waiting or ("nothing waits for an answer",))


def _render_help(unknown: str | None) -> tuple[Block, ...]:
    start = () if unknown is None else (Paragraph(f"There is no command {_shorten(escape_line(unknown))}."),)
    return (
        *start,
        Lines(
            (
                "!help: this text",
                "!status: what the agents do and which requests wait",
                "!cancel: ends the running turn; with several agents: !cancel NAME",
            )
        ),
        Paragraph(
            "To answer a request, reply to its message with the number or the whole name of an option, or react with"
            " the number. You can also write its number first, for example: #12 1. While only one request waits, the"
            " number or name alone is enough."
        ),
        Paragraph("Everything else you write goes to the agent as its next prompt."),
        Paragraph(
            "An approval is advice to the agent, not a sandbox: your answer is passed on to it, and what it does with"
            " it is up to the agent."
        ),
    )


def _asked(request: Request, *, shared: bool = False) -> str:
    by = f" by {request.agent}" if shared else ""
    number = "" if request.style is PromptStyle.BRIEF else f" (#{request.number})"
    return f"Permission was asked{by}{number}"


def _name(request: Request) -> str:
    return f"#{request.number}"


def _quote(option: Option) -> str:
    return f'"{show_option(option)}"'


def _who(user: str | AgentName) -> str:
    return _shorten(escape_line(user))


def _shorten(line: str) -> str:
    return cut_line(line, LINE_CHARACTERS).text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
