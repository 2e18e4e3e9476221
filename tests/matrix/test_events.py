import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.matrix import events
from bridge.matrix.events import Membership, Relation, Source

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["type", "sender", "event_id", "content", "unsigned", "state_key", "redacts"]),
    JSON
    | st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            (
                "m.relates_to",
                "m.mentions",
                "m.selections",
                events.VOTE,
                "transaction_id",
                "prev_content",
                "membership",
                "redacts",
            ),
            JSON,
        ),
    ),
)


@given(FIELDS)
def test_no_event_is_too_odd_to_be_read(source: Source) -> None:
    events.kind(source)
    events.event_id(source)
    events.sender(source)
    events.relation(source)
    events.mentioned(source)
    events.selected(source)
    events.redacts(source)
    events.membership(source)
    events.transaction_id(source)


@pytest.mark.parametrize("odd", [None, 5, True, ["m.text"], {"a": 1}])
def test_a_field_of_another_type_is_none(odd: object) -> None:
    assert events.text({"type": odd}, "type") is None


@pytest.mark.parametrize("odd", ["text", ["list"], 3, None])
def test_an_odd_relation_points_at_nothing(odd: object) -> None:
    assert Relation(true_reply=True) == events.relation({"content": {"m.relates_to": odd}})


def test_a_reaction_says_what_it_is_on_and_with_which_key() -> None:
    relates = {"rel_type": "m.annotation", "event_id": "$p", "key": "1"}
    assert Relation(
        rel_type="m.annotation", event_id=events.event_id({"event_id": "$p"}), key="1", true_reply=True
    ) == (events.relation({"content": {"m.relates_to": relates}}))


@pytest.mark.parametrize(
    ("falling_back", "true_reply"), [(False, True), (None, True), (True, False), ("no", False), (1, False)]
)
def test_only_false_or_absent_is_falling_back_makes_a_true_reply(falling_back: object, true_reply: bool) -> None:
    assert true_reply is events.relation({"content": {"m.relates_to": {"is_falling_back": falling_back}}}).true_reply


def test_an_odd_is_falling_back_is_no_true_reply_even_when_it_equals_false() -> None:
    assert not events.relation({"content": {"m.relates_to": {"is_falling_back": 0}}}).true_reply


def test_objects_leaves_out_what_is_no_object() -> None:
    assert events.objects({"events": [{"a": 1}, 5, "x", None, {}]}, "events") == ({"a": 1}, {})


def test_objects_of_what_is_no_list_are_none() -> None:
    assert events.objects({"events": {"a": 1}}, "events") == ()


def test_mentions_are_strings_only() -> None:
    assert events.mentioned({"content": {"m.mentions": {"user_ids": ["@a:hs", 5, None]}}}) == ("@a:hs",)


def test_mentions_of_another_type_are_none() -> None:
    assert events.mentioned({"content": {"m.mentions": {"user_ids": "@a:hs"}}}) == ()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"redacts": "$old", "content": {"redacts": "$new"}}, "$old"),
        ({"content": {"redacts": "$new"}}, "$new"),
        ({"redacts": 5, "content": {"redacts": "$new"}}, "$new"),
        ({"content": {}}, None),
    ],
)
def test_the_place_that_the_server_fills_in_says_what_was_redacted(source: Source, target: str | None) -> None:
    assert target == events.redacts(source)


def test_a_membership_says_who_what_now_and_what_before() -> None:
    source = {
        "type": "m.room.member",
        "state_key": "@a:hs",
        "content": {"membership": "join"},
        "unsigned": {"prev_content": {"membership": "invite"}},
    }
    user = events.sender({"sender": "@a:hs"})
    assert user is not None
    assert Membership(user=user, now="join", before="invite") == events.membership(source)


@pytest.mark.parametrize("source", [{"type": "m.room.member"}, {"type": "m.room.name", "state_key": "@a:hs"}])
def test_what_is_no_member_event_has_no_membership(source: Source) -> None:
    assert events.membership(source) is None


def test_an_empty_id_is_none() -> None:
    assert (
        events.event_id({"event_id": ""}),
        events.sender({"sender": ""}),
        events.transaction_id({"unsigned": {"transaction_id": ""}}),
    ) == (None, None, None)


def test_any_state_key_makes_a_state_event() -> None:
    assert events.is_state({"state_key": None})
