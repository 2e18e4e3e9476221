"""A request as a poll beside its prompt, and the end of that poll, as the events that are sent (MSC3381).

Above it: prompt. Below it: notices and render. Pure. The names are the unstable ones, which all clients that show polls read
and write. A poll never takes the place of the prompt: some clients show none, and it holds no preview.
"""

from collections.abc import Iterator

from bridge.core.messages import Poll, PollEnd
from bridge.core.model import JsonValue
from bridge.core.ports import Envelope
from bridge.core.safetext import cut_line
from bridge.matrix.notices import clean
from bridge.matrix.render import show_option, show_title, summarise_closing
from bridge.matrix.size import encode_canonical

START = "org.matrix.msc3381.poll.start"
END = "org.matrix.msc3381.poll.end"
TEXT = "org.matrix.msc1767.text"
DISCLOSED = "org.matrix.msc3381.poll.disclosed"
REPLACED = "This poll is closed, since a newer message takes its place. Please answer that one."
SHORT_ANSWER_CHARACTERS = 60  # of each answer, where the whole ones do not fit; the prompt shows them whole


def compose_poll(poll: Poll, *, budget_bytes: int) -> tuple[Envelope, ...]:
    """The poll; none where not even short answers fit, since the prompt does without it."""
    for content in map(clean, _write_polls(poll)):
        if len(encode_canonical(content)) <= budget_bytes:
            return (Envelope(event_type=START, content=content),)
    return ()


def _write_polls(poll: Poll) -> Iterator[dict[str, JsonValue]]:
    question = f"Permission needed (#{poll.request.number}): {show_title(poll.request)}"
    lines = [show_option(option) for option in poll.request.options]
    short = [cut_line(line, SHORT_ANSWER_CHARACTERS).text for line in lines]
    listed = "\n".join((question, *(f"{number}. {line}" for number, line in enumerate(lines, start=1))))
    for text, answers in ((listed, lines), (question, lines), (question, short)):
        yield {
            TEXT: text,  # what clients show that know of polls but cannot draw them, and notifications
            START: {
                "kind": DISCLOSED,
                "max_selections": 1,
                "question": {TEXT: question, "msgtype": "m.text", "body": question},
                "answers": [{"id": id_, TEXT: line} for id_, line in zip(poll.answers, answers, strict=True)],
            },
            "m.mentions": {},  # the prompt has rung already
        }


def compose_poll_end(message: PollEnd) -> tuple[Envelope, ...]:
    """No more votes; the text says how it ended, as the prompt's edit does."""
    request = message.request
    ended = request.decision is not None
    content: dict[str, JsonValue] = {
        TEXT: summarise_closing(request) if ended else REPLACED,
        END: {},
        "m.relates_to": {"rel_type": "m.reference", "event_id": message.poll},
        "m.mentions": {},
    }
    return (Envelope(event_type=END, content=clean(content)),)
