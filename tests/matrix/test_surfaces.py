"""Every surface that people answer on, in the form of each client, through the inbox into the core (matrix.md, section 9).

The prompt offers `Allow once`, `Always allow` and `Reject`; what is expected is the number of the option that was decided.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.core.events import Event, RoomSeen, RoomState, Sent
from bridge.core.model import EventId, Meaning, Option, RoomId, Seal, UserId
from bridge.core.polls import make_answer_ids
from bridge.matrix import events, inbox
from tests.core.play import ALICE, BOT, OPTIONS, ROOM, Play, agent, option

FOLDER = Path(__file__).parents[1] / "events"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
NAME = "Permit Bot"
PROMPT, POLL = EventId("$prompt"), EventId("$poll")
SEAL = Seal(device_id="PHONE", signed=True, master="m")
LINK = f"https://matrix.to/#/{BOT}"
PILL = f'<a href="{LINK}">{NAME}</a>'
NOBODY: dict[str, Any] = {"m.mentions": {}}
MENTION: dict[str, Any] = {"m.mentions": {"user_ids": [BOT]}}
REPLY: dict[str, Any] = {"m.in_reply_to": {"event_id": PROMPT}}
THREAD: dict[str, Any] = {"rel_type": "m.thread", "event_id": PROMPT}
QUOTE = f"> <{BOT}> Permission needed (#1): Run tests\n> \n> 1. Allow once\n> 2. Always allow\n> 3. Reject\n\n"


def stage(
    *, options: tuple[Option, ...] = OPTIONS, prompt: EventId = PROMPT, poll: EventId = POLL, encrypted: bool = False
) -> Play:
    """A room in which one prompt waits, with its poll."""
    play = Play(agent(polls=True))
    if encrypted:
        play.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=2, encrypted=True))
    request_id = play.ask(options=options, posted=False)
    transaction_id = play.state.entries[request_id].transaction_id
    assert transaction_id is not None
    play.step(Sent(transaction_id=transaction_id, event_id=prompt))
    place(play, prompt)
    for ballot in play.state.entries[request_id].ballots:
        play.step(Sent(transaction_id=ballot.transaction_id, event_id=poll))
    return play


def place(play: Play, event_id: EventId) -> None:
    echo = inbox.read({"sender": BOT, "event_id": event_id, "type": "m.room.message"}, room=ROOM, bot=BOT, names=())
    assert echo is not None
    play.step(echo)


def decided(play: Play) -> int | None:
    """The number of the option that was decided for, from 1."""
    (entry,) = play.state.entries.values()
    decision = entry.request.decision
    if decision is None or decision.option is None:
        return None
    return entry.request.options.index(decision.option) + 1


def answer(source: dict[str, Any], *, encrypted: bool = False, exposed: bool = False) -> int | None:
    """What somebody's event decides."""
    play = stage(encrypted=encrypted)
    sealed = None if exposed or not encrypted else SEAL
    found = inbox.read(source, room=ROOM, bot=BOT, names=(NAME,), seal=sealed, exposed=exposed)
    if found is not None:
        play.step(found)
    return decided(play)


def event(content: dict[str, Any], kind: str = "m.room.message") -> dict[str, Any]:
    return {"type": kind, "sender": ALICE, "event_id": "$e", "content": content}


def text(body: str, relates: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any content
    return event({"msgtype": "m.text", "body": body} | ({"m.relates_to": relates} if relates else {}) | more)


def reaction(key: str, target: EventId = PROMPT) -> dict[str, Any]:
    return event({"m.relates_to": {"rel_type": "m.annotation", "event_id": target, "key": key}}, "m.reaction")


ANSWERS = {
    "text": text("2"),
    "text, as Element Web sends it": text("2 ", **NOBODY),
    "text, an option's name": text("always allow"),
    "text, nheko's list": text(
        "2.", formatted_body='<ol start="2">\n<li></li>\n</ol>\n', format="org.matrix.custom.html"
    ),
    "text, its number in front": text("#1 2"),
    "reply, Element Web and X": text("2", REPLY),
    "reply, nheko with its quote": text(
        f"{QUOTE}2", REPLY, **{"im.nheko.relations.v1.relations": [{"rel_type": "im.nheko.relations.v1.in_reply_to"}]}
    ),
    "reply, cinny with its quote": text(f"{QUOTE}2", REPLY, formatted_body=f"<mx-reply>{PILL}</mx-reply>2"),
    "reply to the poll": text("2", {"m.in_reply_to": {"event_id": POLL}}),
    "thread, js-sdk": text("2", THREAD | {"is_falling_back": True}),
    "thread, Element Web": text("2", THREAD | {"is_falling_back": True, "m.in_reply_to": {"event_id": "$last"}}),
    "thread, a true reply in it": text("2", THREAD | {"is_falling_back": False} | REPLY),
    "thread, unsaid whether it falls back": text("2", THREAD | REPLY),
    "thread of the poll": text("2", {"rel_type": "m.thread", "event_id": POLL, "is_falling_back": True}),
    "reaction, a keycap with VS16": reaction("2\ufe0f\u20e3"),
    "reaction, a keycap without VS16": reaction("2\u20e3"),
    "reaction, the bare number": reaction("2"),
    "reaction, the name": reaction("Always allow"),
    "reaction on the poll": reaction("2\ufe0f\u20e3", POLL),
    "mention, Element Web's display name": text(f"{NAME}: 2", **MENTION, formatted_body=f"{PILL}: 2"),
    "mention, Element X Android's link": text(f"[{BOT}]({LINK}) 2", **MENTION, formatted_body=f"{PILL} 2"),
    "mention, a link with the name": text(f"[{NAME}]({LINK}) 2", **MENTION),
    "mention, Element X iOS's user id": text(f"{BOT} 2", **MENTION, formatted_body=f"{PILL} 2"),
    "mention, nheko's name": text(f"{NAME}: 2", **MENTION, formatted_body=f"{PILL}: 2"),
    "mention, cinny's at sign": text(f"@{NAME} 2", **MENTION, formatted_body=f"{PILL} 2"),
    "mention at the end": text(f"2 {BOT}", **MENTION),
    "mention in a reply with its quote": text(f"{QUOTE}{NAME}: 2", REPLY),
}


@pytest.mark.parametrize("surface", ANSWERS)
def test_every_client_can_answer_on_every_surface(surface: str) -> None:
    assert answer(ANSWERS[surface]) == 2


@pytest.mark.parametrize("surface", ANSWERS)
def test_every_surface_answers_in_an_encrypted_room(surface: str) -> None:
    assert answer(ANSWERS[surface], encrypted=True) == 2


@pytest.mark.parametrize("surface", [name for name in ANSWERS if not name.startswith("reaction")])
def test_text_that_came_in_clear_into_an_encrypted_room_answers_nothing(surface: str) -> None:
    assert answer(ANSWERS[surface], encrypted=True, exposed=True) is None


@pytest.mark.parametrize(
    "source",
    [
        text("2", THREAD | {"event_id": "$other"} | REPLY | {"is_falling_back": True}),
        text("2", {"m.in_reply_to": {"event_id": "$other"}}),
        text(f"{QUOTE}2"),
        text("", REPLY, formatted_body="2"),
        text("", **MENTION, formatted_body=f"{PILL}: 2"),
        reaction("👍"),
        reaction("2\ufe0f\u20e3", EventId("$other")),
        text("* 2", {"rel_type": "m.replace", "event_id": "$mine"}, **{"m.new_content": {"body": "2"}}),
    ],
)
def test_what_only_looks_like_an_answer_is_none(source: dict[str, Any]) -> None:
    assert answer(source) is None


def vote(play: Play, *numbers: int, stable: bool = False) -> dict[str, Any]:
    (entry,) = play.state.entries.values()
    ids = make_answer_ids(entry.request)
    chosen = [ids[number - 1] for number in numbers]
    form = {"m.selections": chosen} if stable else {events.VOTE: {"answers": chosen}}
    relation = {"m.relates_to": {"rel_type": "m.reference", "event_id": POLL}}
    return event(relation | form, events.VOTE_STABLE if stable else events.VOTE)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize(("numbers", "expected"), [((2,), 2), ((), None), ((1, 2), None)])
def test_a_vote_of_either_name_answers_when_it_is_for_one_option(
    numbers: tuple[int, ...], expected: int | None, stable: bool
) -> None:
    assert answer(vote(stage(), *numbers, stable=stable)) == expected


# ------------------------------------------------------------------------------------------------------- recorded events


def to_ours(source: dict[str, Any], room: dict[str, Any], play: Play) -> dict[str, Any]:
    """A recorded vote with the answer id that our poll would have had in the place of the recorded poll's."""
    chosen = source.get("content", {}).get(events.VOTE)
    if chosen is None:
        return source
    target = source["content"]["m.relates_to"]["event_id"]
    (entry,) = play.state.entries.values()
    ours = make_answer_ids(entry.request)
    answers: list[str] = [ours[room["polls"][target].index(each)] for each in chosen["answers"]]
    return source | {"content": source["content"] | {events.VOTE: {"answers": answers}}}


@pytest.mark.parametrize("name", sorted(EXPECTED["events"]))
def test_a_recorded_event_decides_what_its_sender_chose(name: str) -> None:
    """All of `expected.json`: one prompt waits, its sender may answer, from a device that is accepted."""
    expected = EXPECTED["events"][name]
    room = EXPECTED["rooms"][expected["room"]]
    named = zip(room["option_ids"], room["options"], strict=True)
    options = tuple(option(id_, label, Meaning.CHOOSE) for id_, label in named)
    poll = EventId(next(iter(room["polls"]), POLL))
    play = stage(options=options, prompt=EventId(room["prompt"]), poll=poll, encrypted=room["encrypted"])
    source = to_ours(json.loads((FOLDER / f"{name}.json").read_text()), room, play)
    seal = SEAL if room["encrypted"] else None
    found = inbox.read(source, room=ROOM, bot=UserId(room["bot"]), names=(room["bot_name"],), seal=seal)
    if found is not None:
        play.step(move(found))
    number = decided(play)
    assert expected["option"] == (None if number is None else number - 1)


def move(found: Event) -> Event:
    """The recorded sender is one who may answer here; the event is one of our room already."""
    return replace(found, sender=ALICE) if hasattr(found, "sender") else found  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.wire.json")), ids=lambda path: path.name)
def test_what_the_server_stores_shows_the_relation_and_answers_nothing(path: Path) -> None:
    """Megolm hides all but the relation, which a homeserver can read, and therefore move."""
    wire, clear = json.loads(path.read_text()), json.loads(path.with_name(path.name.replace(".wire", "")).read_text())
    if wire["type"] != "m.room.encrypted":
        assert events.kind(wire) in {events.REACTION, events.REDACTION}
        return
    shown, said = events.relation(wire), events.relation(clear)
    assert shown == replace(said, key=None)
    assert wire["content"].keys() >= {"ciphertext", "algorithm"}
    assert not {"body", "msgtype", events.VOTE}.intersection(wire["content"])
    found = inbox.read(wire, room=RoomId("!r"), bot=BOT, names=())
    assert found is None


def test_every_recorded_event_is_expected_and_every_expected_one_recorded() -> None:
    clear = {path.stem for path in FOLDER.glob("*.json")} - {"expected"}
    wire = {name for name in clear if name.endswith(".wire")}
    assert clear - wire == set(EXPECTED["events"])
    assert (len(clear - wire), len(wire)) == (38, 22)
