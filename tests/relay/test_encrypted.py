"""What encrypted rooms need of the relay: stored with the batch that it came in, found again by the next start."""

import pytest

from bridge.core import locked
from bridge.core.changes import StoreLocked, StoreTaken, StoreUnlocked
from bridge.core.errors import LedgerFull
from bridge.core.events import Locked, RoomMoved, RoomSeen, RoomState, Said, StillLocked, Unlocked, Verified
from bridge.core.messages import DeviceRefused, Moved, SendAgain, Status
from bridge.core.model import AgentName, EventId, RoomId, SyncToken, Trust
from bridge.relay.weighing import Start
from tests.core.play import ALICE, MASTER, ROOM, SIGNED, UNSIGNED, agent
from tests.relay.rig import Rig

NEW = RoomId("!new")
JOINED = RoomSeen(room=ROOM, state=RoomState.JOINED, people=1, encrypted=True)
LOCKED = Locked(room=ROOM, sender=ALICE, event_id=EventId("$l"), raw='{"type":"m.room.encrypted"}')
STORED = StoreLocked(event_id=LOCKED.event_id, room=ROOM, sender=ALICE, raw=LOCKED.raw)
UNLOCKED = Unlocked(room=ROOM, event_id=LOCKED.event_id)


def opened(text: str) -> Said:
    return Said(room=ROOM, sender=ALICE, event_id=LOCKED.event_id, text=text, seal=SIGNED)


async def test_what_cannot_be_read_yet_is_stored_with_the_token_of_its_batch_or_not_at_all() -> None:
    rig = Rig()
    async with rig.begun():
        rig.ledger.fail_next(LedgerFull("full"))
        with pytest.raises(LedgerFull):
            await rig.sync(LOCKED, since="s1")
        assert len(rig.relay.state.locked) == 0
        await rig.sync(LOCKED, since="s2")
    start = await Rig(ledger=rig.ledger).relay.load()
    assert (SyncToken("s2"), (STORED,)) == (start.token, start.locked)


async def test_a_batch_that_is_given_again_after_its_message_was_read_locks_nothing() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.sync(LOCKED, LOCKED)
        await rig.happens(opened("hello"), UNLOCKED)
        await rig.sync(LOCKED, opened("hello"))
        assert rig.agents.prompts == ["hello"]
        assert rig.ledger.diary.count(StoreLocked) == 1
        assert len(rig.relay.state.locked) == 0


async def test_what_was_dropped_never_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked, "LOCKED_KEPT", 0)
    rig = Rig()
    async with rig.begun():
        await rig.sync(LOCKED)
        assert [StoreLocked, StoreUnlocked, StoreTaken] == rig.ledger.diary[-3:]
        await rig.happens(opened("hello"))
        assert rig.agents.prompts == []


async def test_a_start_hands_the_rooms_what_they_go_on_from_and_goes_on_itself() -> None:
    rig = Rig(agent(trust=Trust.PINNED))
    async with rig.begun():
        await rig.sync(JOINED, LOCKED)
        await rig.happens(Verified(user=ALICE, master=MASTER), RoomMoved(old=ROOM, new=NEW))
        assert rig.worded(Moved) == [Moved((AgentName("claude"),))]
    again = Rig(agent(trust=Trust.PINNED), ledger=rig.ledger)
    start = await again.relay.load()
    expected = Start(token=SyncToken("s"), locked=(STORED,), encrypted=frozenset({ROOM, NEW}), moved=((ROOM, NEW),))
    assert expected == start
    assert {ALICE: MASTER} == dict(again.relay.state.pins)


async def test_after_an_upgrade_the_status_and_words_of_the_new_room_are_its_agents_also_over_a_restart() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.happens(RoomMoved(old=ROOM, new=NEW))
    again = Rig(ledger=rig.ledger)
    async with again.running():
        await again.sync(Said(room=NEW, sender=ALICE, event_id=EventId("$1"), text="!status"))
        (told,) = [(room, message) for message, room, _ in again.rooms.composed if isinstance(message, Status)]
        assert (NEW, ["claude"]) == (told[0], [a.agent for a in told[1].agents])
        assert again.relay.state.agents[AgentName("claude")].room == NEW


async def test_words_for_an_agent_that_does_not_accept_their_device_are_refused_once_and_go_nowhere() -> None:
    codex = AgentName("codex")
    rig = Rig(agent(trust=Trust.ANY), agent(name=codex))
    async with rig.begun():
        await rig.sync(JOINED)
        for number in range(2):
            words = Said(
                room=ROOM,
                sender=ALICE,
                event_id=EventId(f"${number}"),
                text="codex: go",
                seal=UNSIGNED,
                mentions_bot=True,
            )
            await rig.sync(words)
        assert rig.worded(DeviceRefused) == [DeviceRefused(ALICE, EventId("$0"), "LAPTOP")]
        assert rig.agents.prompts == []


async def test_a_message_that_stays_unreadable_is_asked_for() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.sync(JOINED, LOCKED)
        await rig.happens(StillLocked(room=ROOM, sender=ALICE, event_id=LOCKED.event_id, withheld=True))
        assert rig.worded(SendAgain) == [SendAgain(ALICE, LOCKED.event_id, withheld=True)]
