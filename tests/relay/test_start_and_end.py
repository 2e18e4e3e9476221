"""What a start finds, what an end waits for, and who follows the history."""

import anyio
import pytest

from bridge.core.changes import Priority
from bridge.core.events import RoomSeen, RoomState, TurnEnded
from bridge.core.messages import Closing, Prompt
from bridge.core.model import CallRef, Cancelled, Ending, Phase, RequestId
from tests.core.play import BOB, CLAUDE, ROOM, SESSION, agent
from tests.relay.rig import Rig

FIRST = RequestId(f"{SESSION}:1")


async def test_after_a_restart_a_waiting_prompt_ends_as_agent_gone_and_its_answerer_is_told() -> None:
    rig = Rig()
    async with rig.begun():
        asked = await rig.ask()
        event_id = rig.relay.state.entries[asked].request.event_id
        assert event_id is not None
    again = Rig(ledger=rig.ledger)
    async with again.running():
        (closing,) = [m for m in again.worded(Closing) if isinstance(m, Closing)]
        assert closing.request.decision is not None
        assert closing.request.decision.ending is Ending.AGENT_GONE
        await again.sync(again.said("1", event_id))
        assert [out.content["body"] for out in again.rooms.sent] == ["Closing", "TooLate"]
        assert again.responses == []


async def test_a_decision_that_did_not_reach_the_harness_before_a_restart_is_said_with_who_made_it() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.ask()
        await rig.sync(rig.said("1", sender=BOB))
    again = Rig(ledger=rig.ledger)
    async with again.running():
        (closing,) = [m for m in again.worded(Closing) if isinstance(m, Closing)]
        assert closing.request.decision is not None
        assert (closing.request.decision.by, closing.request.decision.ending) == (BOB, Ending.AGENT_GONE)
        assert not closing.request.delivered
        assert again.responses == []


async def test_a_prompt_that_was_on_its_way_is_sent_again_under_its_id_and_then_closed() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.happens(rig.asked())
        transaction_id = rig.transaction_of(FIRST)
    again = Rig(ledger=rig.ledger)
    async with again.running():
        assert [out.transaction_id for out in again.rooms.sent] == [transaction_id]
        event_id = again.rooms.take(transaction_id)
        await again.quiet()
        assert [m.request.event_id for m in again.worded(Closing) if isinstance(m, Closing)] == [event_id]
        assert again.rooms.withheld == []
        assert again.worded(Prompt) == []


async def test_a_closing_edit_that_was_on_its_way_is_sent_again_and_seeds_are_not() -> None:
    rig = Rig(agent(reactions=True))
    async with rig.begun():
        await rig.ask()
        await rig.sync(rig.said("3"))
        rig.agents.write(CallRef(1))
        await rig.quiet()
        closing = [out for out in rig.rooms.waiting.values() if out.priority is Priority.EDIT]
    again = Rig(ledger=rig.ledger)
    async with again.running():
        assert again.rooms.sent == closing
        assert (await rig.ledger.load()).outgoing != ()
        again.rooms.take_all()
        await again.quiet()
        assert (await rig.ledger.load()).outgoing == ()


async def test_room_numbers_and_requests_go_on_after_a_restart() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.ask()
    again = Rig(ledger=rig.ledger)
    async with again.running():
        await again.sync(RoomSeen(room=ROOM, state=RoomState.JOINED, people=1))
        await again.happens(again.asked())  # of a session that the last run began
        assert [outcome for _, outcome in again.responses] == [Cancelled()]


async def test_the_end_waits_until_every_harness_has_its_outcome() -> None:
    rig = Rig()
    async with rig.begun(), anyio.create_task_group() as tasks:
        await rig.ask(1)
        await rig.ask(2)
        ended = anyio.Event()

        async def end() -> None:
            await rig.relay.end_all(60)
            ended.set()

        tasks.start_soon(end)
        while len(rig.responses) < 2:
            await rig.quiet()
        rig.agents.write(CallRef(1))
        await rig.quiet()
        assert not ended.is_set()
        rig.agents.write(CallRef(2))
        await ended.wait()
        assert {e.request.phase for e in rig.relay.state.entries.values()} == {Phase.ENDED}
        await rig.happens(rig.asked(3))
        assert [call for call, _ in rig.responses] == [1, 2, 3]
        assert len(rig.worded(Prompt)) == 2


async def test_a_harness_that_does_not_read_does_not_hold_up_the_end() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.ask()
        await rig.relay.end_all(0)
        await rig.relay.settle(0)


async def test_the_end_waits_until_the_room_has_what_was_to_be_said() -> None:
    rig = Rig()
    async with rig.begun(), anyio.create_task_group() as tasks:
        await rig.happens(rig.asked())
        settled = anyio.Event()

        async def settle() -> None:
            await rig.relay.settle(60)
            settled.set()

        tasks.start_soon(settle)
        await anyio.wait_all_tasks_blocked()
        assert not settled.is_set()
        rig.rooms.take_all()
        await settled.wait()


async def test_history_is_followed_as_it_is_stored() -> None:
    rig = Rig()
    async with rig.begun(), rig.relay.subscribe() as rows:
        await rig.happens(rig.asked())
        assert (await rows.receive()).type == "permission_request"


async def test_a_reader_that_lags_too_far_behind_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.relay.loop.SUBSCRIBER_HOLDS", 1)
    rig = Rig()
    async with rig.begun(), rig.relay.subscribe() as slow, rig.relay.subscribe() as gone:
        gone.close()
        await rig.happens(rig.asked())
        await rig.happens(TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="end_turn"))
        rig.agents.write(CallRef(1))
        await rig.quiet()
        assert [row.type async for row in slow] == ["permission_request"]
