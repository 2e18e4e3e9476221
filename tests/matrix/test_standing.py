from bridge.core.events import RoomSeen, RoomState
from bridge.core.model import RoomId, UserId
from bridge.matrix.events import Source
from bridge.matrix.standing import Replacement, Standing

ROOM = RoomId("!r")
BOT = UserId("@bot:hs")


def member(user: str, membership: str) -> Source:
    return {"type": "m.room.member", "state_key": user, "content": {"membership": membership}}


def state(kind: str, content: dict[str, object], key: str = "") -> Source:
    return {"type": kind, "state_key": key, "content": content}


def standing(*sources: Source) -> Standing:
    made = Standing(ROOM, BOT)
    made.enter(sources, whole=True)
    return made


def test_a_room_is_not_joined_until_it_is_seen() -> None:
    assert RoomSeen(room=ROOM, state=RoomState.NOT_JOINED, people=0) == Standing(ROOM, BOT).seen()


def test_people_are_who_is_joined_other_than_the_bot() -> None:
    found = standing(member(BOT, "join"), member("@a:hs", "join"), member("@b:hs", "invite"), member("@c:hs", "leave"))
    assert RoomSeen(room=ROOM, state=RoomState.JOINED, people=1) == found.seen()


def test_somebody_who_leaves_is_no_longer_counted() -> None:
    found = standing(member("@a:hs", "join"), member("@b:hs", "join"))
    found.see(member("@a:hs", "ban"))
    assert found.seen().people == 1


def test_whole_state_forgets_who_was_there_before() -> None:
    found = standing(member("@a:hs", "join"))
    found.enter([member("@b:hs", "join")], whole=True)
    assert found.seen().people == 1


def test_changed_state_adds_to_what_was_known() -> None:
    found = standing(member("@a:hs", "join"))
    found.enter([member("@b:hs", "join")], whole=False)
    assert found.seen().people == 2


def test_a_room_that_is_encrypted_stays_so() -> None:
    found = standing(state("m.room.encryption", {"algorithm": "m.megolm.v1.aes-sha2"}))
    found.see(state("m.room.encryption", {}))
    found.enter([], whole=True)
    assert (found.seen().state, found.encrypted) == (RoomState.ENCRYPTED, True)


def test_a_bridge_that_can_seal_can_speak_in_an_encrypted_room() -> None:
    made = Standing(ROOM, BOT, seals=True)
    made.enter([state("m.room.encryption", {})], whole=True)
    assert RoomSeen(room=ROOM, state=RoomState.JOINED, people=0, encrypted=True) == made.seen()


def test_a_tombstone_names_the_room_that_follows_and_who_says_so() -> None:
    source = {"sender": "@admin:hs", **state("m.room.tombstone", {"replacement_room": "!new"})}
    assert Replacement(RoomId("!new"), UserId("@admin:hs")) == standing(source).replaced


def test_a_tombstone_that_names_no_room_still_closes_it() -> None:
    found = standing(state("m.room.tombstone", {"replacement_room": 5}))
    assert (Replacement(None, None), RoomState.REPLACED) == (found.replaced, found.seen().state)


def test_who_is_joined_is_known_by_id() -> None:
    assert {"@a:hs"} == standing(member(BOT, "join"), member("@a:hs", "join"), member("@b:hs", "invite")).people


def test_the_bots_own_join_is_where_its_membership_began() -> None:
    renamed = {"unsigned": {"prev_content": {"membership": "join"}}, **member(BOT, "join")}
    rejoined = {"unsigned": {"prev_content": {"membership": "leave"}}, **member(BOT, "join")}
    outside, inside = Standing(ROOM, BOT), standing()
    assert (0, None) == (outside.own_join([member(BOT, "join")]), inside.own_join([member(BOT, "join")]))
    assert (None, 1) == (inside.own_join([renamed]), inside.own_join([renamed, rejoined, renamed]))
    assert outside.own_join([member("@a:hs", "join"), member(BOT, "leave")]) is None


def test_a_tombstone_replaces_the_room_encrypted_or_not() -> None:
    found = standing(state("m.room.encryption", {}), state("m.room.tombstone", {"replacement_room": "!new"}))
    assert RoomState.REPLACED is found.seen().state


def test_a_tombstone_that_was_taken_back_replaces_nothing() -> None:
    found = standing(state("m.room.tombstone", {"replacement_room": "!new"}))
    found.see(state("m.room.tombstone", {}))
    assert RoomState.JOINED is found.seen().state


def test_a_message_that_calls_itself_a_tombstone_is_none() -> None:
    found = standing()
    found.see({"type": "m.room.tombstone", "content": {"replacement_room": "!trap"}})
    found.see(state("m.room.encryption", {}, key="other"))
    assert RoomState.JOINED is found.seen().state


def test_after_a_kick_nobody_is_there() -> None:
    found = standing(member("@a:hs", "join"))
    found.leave()
    assert (RoomSeen(room=ROOM, state=RoomState.NOT_JOINED, people=0), False) == (found.seen(), found.joined)
