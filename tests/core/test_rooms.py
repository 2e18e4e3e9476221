"""The life of a room: encrypted for good, and followed where it was upgraded to."""

from dataclasses import replace

from bridge.core.changes import StoreEncrypted, StoreMoved
from bridge.core.effects import Log, Send
from bridge.core.events import RoomMoved, RoomSeen, RoomState
from bridge.core.messages import Moved
from bridge.core.model import AgentName, Ending, Phase, RequestId, RoomId
from tests.core.play import ALICE, BOB, CLAUDE, NOTHING_FOUND, ROOM, Play, agent

CODEX = AgentName("codex")
NEW, NEWER = RoomId("!new"), RoomId("!newer")


def ending(play: Play, asked: RequestId) -> Ending | None:
    decision = play.request(asked).decision
    return None if decision is None else decision.ending


def test_that_a_room_is_encrypted_is_stored_once() -> None:
    play = Play()
    play.encrypt()
    assert play.did(StoreEncrypted) == [StoreEncrypted(ROOM)]
    play.encrypt()
    assert play.did(StoreEncrypted) == []


def test_a_room_that_is_encrypted_and_cannot_be_spoken_in_is_encrypted() -> None:
    play = Play()
    play.step(RoomSeen(room=ROOM, state=RoomState.ENCRYPTED, people=2))
    assert play.state.rooms[ROOM].encrypted


def test_what_waits_goes_on_to_wait_when_encryption_is_switched_on() -> None:
    play = Play()
    asked = play.ask()
    play.encrypt()
    assert play.request(asked).phase is Phase.PENDING


def test_nothing_is_asked_in_clear_text_where_the_server_takes_encryption_back() -> None:
    play = Play()
    play.encrypt()
    waiting = play.ask()
    play.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=2))
    logged = {e.event: e.warning for e in play.effects if isinstance(e, Log)}
    assert logged["room.encryption_taken_back"] is True
    assert (ending(play, waiting), ending(play, play.ask())) == (Ending.UNDELIVERABLE, Ending.UNDELIVERABLE)


def test_nor_where_it_does_so_over_a_restart() -> None:
    play = Play(found=replace(NOTHING_FOUND, encrypted=frozenset({ROOM})))
    assert ending(play, play.ask()) is Ending.UNDELIVERABLE
    play.encrypt()
    assert ending(play, play.ask()) is None


def test_an_upgrade_that_is_followed_takes_agents_and_people_along_and_ends_what_waits() -> None:
    play = Play(agent(), agent(name=CODEX, approvers=frozenset({BOB})))
    waiting = play.ask()
    play.step(RoomMoved(old=ROOM, new=NEW))
    assert [a.room for a in play.state.agents.values()] == [NEW, NEW]
    assert play.state.persons[NEW] == {ALICE, BOB}
    assert ROOM not in play.state.persons
    assert ending(play, waiting) is Ending.UNDELIVERABLE
    assert play.did(StoreMoved) == [StoreMoved(old=ROOM, new=NEW)]
    assert [(e.room, e.message) for e in play.effects if isinstance(e, Send) and isinstance(e.message, Moved)] == [
        (NEW, Moved((CLAUDE, CODEX)))
    ]


def test_what_is_asked_next_is_asked_in_the_new_room() -> None:
    play = Play()
    play.step(RoomMoved(old=ROOM, new=NEW))
    play.step(RoomSeen(room=NEW, state=RoomState.JOINED, people=2))
    asked = play.request(play.ask())
    assert (asked.room, asked.number) == (NEW, 1)


def test_agents_of_other_rooms_stay() -> None:
    play = Play(agent(), agent(name=CODEX, room=NEWER))
    play.step(RoomMoved(old=ROOM, new=NEW))
    assert [a.room for a in play.state.agents.values()] == [NEW, NEWER]


def test_agents_that_meet_in_a_room_bring_their_people_together() -> None:
    play = Play(agent(approvers=frozenset({ALICE})), agent(name=CODEX, room=NEW, approvers=frozenset({BOB})))
    play.step(RoomMoved(old=ROOM, new=NEW))
    assert play.state.persons[NEW] == {ALICE, BOB}


def test_an_upgrade_is_followed_once() -> None:
    play = Play()
    play.step(RoomMoved(old=ROOM, new=NEW))
    play.step(RoomMoved(old=ROOM, new=NEW))
    assert play.effects == []


def test_an_upgrade_is_no_way_out_of_encryption() -> None:
    for seen_first in (True, False):
        play = Play()
        play.encrypt()
        clear = RoomSeen(room=NEW, state=RoomState.JOINED, people=2)
        if seen_first:
            play.step(clear)
        play.step(RoomMoved(old=ROOM, new=NEW))
        assert play.did(StoreEncrypted) == [StoreEncrypted(NEW)]
        if not seen_first:
            play.step(clear)
        assert ending(play, play.ask()) is Ending.UNDELIVERABLE
        play.step(replace(clear, encrypted=True))
        assert ending(play, play.ask()) is None


def test_upgrades_that_were_followed_before_a_restart_still_lead() -> None:
    moved = ((ROOM, NEW), (RoomId("!else"), RoomId("!where")), (NEW, NEWER))
    play = Play(found=replace(NOTHING_FOUND, moved=moved))
    assert play.state.agents[CLAUDE].room == NEWER
    assert play.state.persons[NEWER] == {ALICE, BOB}
