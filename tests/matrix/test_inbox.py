import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.events import Echoed, Event, Reacted, Redacted, Said, Voted
from bridge.core.model import EventId, RequestId, RoomId, Seal, TransactionId, UserId
from bridge.matrix import inbox

FOLDER = Path(__file__).parents[1] / "events"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
ROOM = RoomId("!r")
BOT = UserId("@bot:ex.org")
ALICE = UserId("@alice:ex.org")
TEXT = {"msgtype": "m.text", "body": "1"}


def read(source: dict[str, Any]) -> Event | None:
    return inbox.read(source, room=ROOM, bot=BOT, names=("Bridge 2",))


def message(content: dict[str, Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401 - events hold anything
    return {"type": "m.room.message", "sender": ALICE, "event_id": "$e", "content": content} | more


def said(content: dict[str, Any], **more: Any) -> Said:  # noqa: ANN401 - events hold anything
    found = read(message(content, **more))
    assert isinstance(found, Said)
    return found


def recorded(name: str) -> tuple[Event | None, dict[str, Any]]:
    source = json.loads((FOLDER / f"{name}.json").read_text())
    room = EXPECTED["rooms"][EXPECTED["events"][name]["room"]]
    names = (room["bot_name"],)
    return inbox.read(source, room=ROOM, bot=UserId(room["bot"]), names=names), room


@pytest.mark.parametrize("name", sorted(EXPECTED["events"]))
def test_a_recorded_event_aims_where_its_sender_aimed(name: str) -> None:
    found, room = recorded(name)
    if isinstance(found, Voted):
        aim = "prompt" if found.target in room["polls"] else "other"
    elif isinstance(found, Said):
        aim = "bare" if not found.targets else "prompt" if room["prompt"] in found.targets else "other"
    elif isinstance(found, Reacted):
        aim = "prompt" if found.target == room["prompt"] else "other"
    else:
        aim = "other"
    assert EXPECTED["events"][name]["aim"] == aim


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nheko_number_dot", "2."),
        ("commander_markdown", "**1**"),
        ("plain_mention", "1"),
        ("plain_reply_fallback", "1"),
        ("plain_thread_reply", "2"),
        ("js_thread", "2"),
        ("plain_number_edited", "1"),
        ("nheko_reply_elsewhere", "3"),
    ],
)
def test_a_recorded_text_is_what_its_sender_typed(name: str, text: str) -> None:
    found, _ = recorded(name)
    assert isinstance(found, Said)
    assert text == found.text


@pytest.mark.parametrize(
    "name", ["nheko_emote", "commander_notice", "js_edit", "nio_edit", "plain_edit", "plain_emote"]
)
def test_a_recorded_emote_notice_or_edit_is_nothing(name: str) -> None:
    assert recorded(name)[0] is None


@pytest.mark.parametrize(
    "name", ["nio_prompt", "nio_poll", "plain_prompt", "plain_poll", "plain_poll_end", "plain_custom_type"]
)
def test_a_recorded_event_of_the_bot_is_an_echo(name: str) -> None:
    assert isinstance(recorded(name)[0], Echoed)


@pytest.mark.parametrize("name", ["nio_redaction", "plain_redaction_of_reaction"])
def test_a_recorded_redaction_names_what_it_removed(name: str) -> None:
    assert isinstance(recorded(name)[0], Redacted)


def test_plain_text_of_somebody_is_said() -> None:
    expected = Said(room=ROOM, sender=ALICE, event_id=EventId("$e"), text="1")
    assert expected == read(message(TEXT))


@pytest.mark.parametrize(
    "msgtype", ["m.notice", "m.emote", "m.image", "m.file", "m.audio", "m.location", "M.TEXT", None, ["m.text"]]
)
def test_only_m_text_is_said(msgtype: object) -> None:
    assert read(message({"msgtype": msgtype, "body": "1"})) is None


@pytest.mark.parametrize("body", [None, 5, ["1"], {"a": 1}])
def test_a_text_without_a_body_is_nothing(body: object) -> None:
    assert read(message({"msgtype": "m.text", "body": body})) is None


def test_an_edit_is_never_said_even_of_ones_own_old_text() -> None:
    edit = {"m.relates_to": {"rel_type": "m.replace", "event_id": "$chat"}, "m.new_content": TEXT}
    assert read(message(TEXT | edit)) is None


def test_an_edit_without_a_target_is_still_an_edit() -> None:
    assert read(message(TEXT | {"m.relates_to": {"rel_type": "m.replace"}})) is None


def test_a_state_event_of_any_type_is_nothing() -> None:
    assert read(message(TEXT, state_key="")) is None


def test_a_state_event_of_the_bot_is_no_echo() -> None:
    assert read({"type": "m.room.member", "sender": BOT, "event_id": "$j", "state_key": BOT, "content": {}}) is None


@pytest.mark.parametrize("missing", ["sender", "event_id", "type", "content"])
def test_an_event_that_lacks_a_field_is_nothing(missing: str) -> None:
    source = message(TEXT)
    del source[missing]
    assert read(source) is None


def test_an_own_event_is_echoed_with_its_transaction_id() -> None:
    expected = Echoed(room=ROOM, event_id=EventId("$e"), transaction_id=TransactionId("t1"))
    assert expected == read(message(TEXT, sender=BOT, unsigned={"transaction_id": "t1"}))


def test_an_own_event_from_another_device_is_echoed_without_one() -> None:
    expected = Echoed(room=ROOM, event_id=EventId("$e"), transaction_id=None)
    assert expected == read(message(TEXT, sender=BOT))


def test_a_sender_that_only_looks_like_the_bot_is_somebody_else() -> None:
    assert isinstance(read(message(TEXT, sender="@Bot:ex.org")), Said)


def test_the_fallback_of_a_reply_goes_off() -> None:
    body = "> <@bot:ex.org> 1. Allow once\n> 3. Reject\n\n3"
    reply = {"m.relates_to": {"m.in_reply_to": {"event_id": "$p"}}}
    assert said(TEXT | reply | {"body": body}).text == "3"


def test_a_quote_typed_by_hand_stays() -> None:
    body = "> 1\n\nwhat does this do?"
    assert body == said(TEXT | {"body": body}).text


def test_a_reply_points_at_the_event_it_replies_to() -> None:
    found = said(TEXT | {"m.relates_to": {"m.in_reply_to": {"event_id": "$p"}}})
    assert (found.targets, found.in_thread) == (("$p",), False)


def test_in_a_thread_the_root_decides_and_the_fallback_reply_means_nothing() -> None:
    thread = {
        "rel_type": "m.thread",
        "event_id": "$root",
        "m.in_reply_to": {"event_id": "$last"},
        "is_falling_back": True,
    }
    found = said(TEXT | {"m.relates_to": thread})
    assert (found.targets, found.in_thread) == (("$root",), True)


@pytest.mark.parametrize("more", [{"is_falling_back": False}, {}])
def test_a_true_reply_in_a_thread_counts_besides_the_root(more: dict[str, object]) -> None:
    thread = {"rel_type": "m.thread", "event_id": "$root", "m.in_reply_to": {"event_id": "$other"}} | more
    assert said(TEXT | {"m.relates_to": thread}).targets == ("$root", "$other")


def test_a_reply_to_the_root_inside_its_thread_is_one_target() -> None:
    thread = {"rel_type": "m.thread", "event_id": "$root", "m.in_reply_to": {"event_id": "$root"}}
    assert said(TEXT | {"m.relates_to": thread}).targets == ("$root",)


def test_a_relation_of_an_unknown_kind_makes_no_bare_text() -> None:
    assert said(TEXT | {"m.relates_to": {"rel_type": "org.example.pinned", "event_id": "$x"}}).targets == ("$x",)


def test_a_mention_in_the_text_goes_off_and_is_told() -> None:
    found = said(TEXT | {"body": "Bridge 2: 1"})
    assert (found.text, found.mentions_bot) == ("1", True)


def test_the_bots_own_id_is_a_mention_too() -> None:
    assert said(TEXT | {"body": "@bot:ex.org: 1"}).mentions_bot


def test_a_mention_in_the_content_alone_is_told() -> None:
    found = said(TEXT | {"m.mentions": {"user_ids": [BOT]}})
    assert (found.text, found.mentions_bot) == ("1", True)


def test_a_mention_of_somebody_else_is_none_of_the_bot() -> None:
    found = said(TEXT | {"body": "@carol:ex.org 1", "m.mentions": {"user_ids": ["@carol:ex.org"]}})
    assert (found.text, found.mentions_bot) == ("@carol:ex.org 1", False)


def test_a_request_id_in_the_content_is_handed_on() -> None:
    assert RequestId("acps_1:11") == said(TEXT | {"request_id": "acps_1:11"}).foreign_request


def test_a_request_id_that_is_no_string_is_none() -> None:
    assert said(TEXT | {"request_id": 11}).foreign_request is None


def test_a_reaction_is_handed_on_with_its_key() -> None:
    relates = {"rel_type": "m.annotation", "event_id": "$p", "key": "1\ufe0f\u20e3"}
    expected = Reacted(room=ROOM, sender=ALICE, event_id=EventId("$e"), key="1\ufe0f\u20e3", target=EventId("$p"))
    assert expected == read(message({"m.relates_to": relates}, type="m.reaction"))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"m.relates_to": {"rel_type": "m.annotation", "event_id": "$x", "key": {"a": 1}}},
        {"m.relates_to": {"rel_type": "m.annotation", "key": "1"}},
        {"m.relates_to": {"rel_type": "m.thread", "event_id": "$x", "key": "1"}},
    ],
)
def test_a_reaction_that_was_removed_or_is_misshapen_is_nothing(content: dict[str, Any]) -> None:
    assert read(message(content, type="m.reaction")) is None


def test_a_redaction_names_its_target() -> None:
    expected = Redacted(room=ROOM, sender=ALICE, target=EventId("$p"))
    assert expected == read(message({"redacts": "$p"}, type="m.room.redaction", redacts="$p"))


def test_a_redaction_of_nothing_is_nothing() -> None:
    assert read(message({}, type="m.room.redaction")) is None


@pytest.mark.parametrize(("name", "answers"), [("nio_poll_vote", ("a",)), ("plain_poll_vote", ("allow",))])
def test_a_recorded_vote_is_the_answers_that_its_sender_tapped(name: str, answers: tuple[str, ...]) -> None:
    found, _ = recorded(name)
    assert isinstance(found, Voted)
    assert answers == found.answers


UNSTABLE = "org.matrix.msc3381.poll.response"
REFERENCE = {"m.relates_to": {"rel_type": "m.reference", "event_id": "$poll"}}
VOTED = Voted(room=ROOM, sender=ALICE, event_id=EventId("$e"), target=EventId("$poll"), answers=("a",))


@pytest.mark.parametrize("kind", [UNSTABLE, "m.poll.response"])
@pytest.mark.parametrize("form", [{UNSTABLE: {"answers": ["a"]}}, {"m.selections": ["a"]}])
def test_a_vote_is_read_in_both_forms(kind: str, form: dict[str, object]) -> None:
    assert read(message(REFERENCE | form, type=kind)) == VOTED


def test_a_vote_in_both_forms_that_agree_is_one() -> None:
    assert read(message(REFERENCE | {UNSTABLE: {"answers": ["a"]}, "m.selections": ["a"]}, type=UNSTABLE)) == VOTED


@pytest.mark.parametrize("answers", [[], ["a", "b"]])
def test_none_or_several_answers_are_handed_on_as_they_came(answers: list[str]) -> None:
    found = read(message(REFERENCE | {"m.selections": answers}, type="m.poll.response"))
    assert isinstance(found, Voted)
    assert tuple(answers) == found.answers


@pytest.mark.parametrize(
    "form",
    [
        {},
        {UNSTABLE: ["a"]},
        {UNSTABLE: {"answers": "a"}},
        {UNSTABLE: {"answers": {"a": 1}}},
        {"m.selections": ["a", 5]},
        {"m.selections": [["a"]]},
        {UNSTABLE: {"answers": ["a"]}, "m.selections": ["b"]},
        {UNSTABLE: {"answers": ["a"]}, "m.selections": None},
    ],
)
def test_a_misshapen_vote_is_nothing(form: dict[str, object]) -> None:
    assert read(message(REFERENCE | form, type=UNSTABLE)) is None


@pytest.mark.parametrize("relation", [{}, {"rel_type": "m.reference"}, {"rel_type": "m.replace", "event_id": "$poll"}])
def test_a_vote_that_refers_to_no_poll_is_nothing(relation: dict[str, str]) -> None:
    content = {"m.relates_to": relation, UNSTABLE: {"answers": ["a"]}}
    assert read(message(content, type=UNSTABLE)) is None


@pytest.mark.parametrize("seal", [None, Seal(device_id="PHONE", signed=True, master="m")])
@pytest.mark.parametrize("exposed", [False, True])
def test_a_text_or_vote_carries_who_vouches_for_it(seal: Seal | None, exposed: bool) -> None:
    vote = message(REFERENCE | {"m.selections": ["a"]}, type="m.poll.response")
    for source in (message(TEXT), vote):
        found = inbox.read(source, room=ROOM, bot=BOT, names=(), seal=seal, exposed=exposed)
        assert isinstance(found, Said | Voted)
        assert (found.seal, found.exposed) == (seal, exposed)


@pytest.mark.parametrize(
    "kind", ["m.room.encrypted", "org.matrix.msc3381.poll.start", "m.poll.end", "m.sticker", "x.y"]
)
def test_other_types_are_nothing(kind: str) -> None:
    assert read(message(TEXT, type=kind)) is None


def test_the_servers_clock_decides_nothing() -> None:
    assert said(TEXT, origin_server_ts=1) == said(TEXT, origin_server_ts=2**50)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CONTENT = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("msgtype", "body", "m.relates_to", "m.mentions", "m.new_content", "request_id", "m.selections", UNSTABLE), JSON
    ),
)


@given(st.sampled_from(["m.room.message", "m.reaction", "m.room.redaction", UNSTABLE]), CONTENT | JSON)
def test_no_content_is_too_odd_to_be_read(kind: str, content: object) -> None:
    inbox.read({"type": kind, "sender": ALICE, "event_id": "$e", "content": content}, room=ROOM, bot=BOT, names=())
