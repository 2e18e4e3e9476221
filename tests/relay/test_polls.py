"""Polls between core, ledger and rooms: sent after their prompt, kept with its request, and a vote counts once."""

from bridge.core.events import Voted
from bridge.core.messages import Poll, PollEnd, TooLate
from bridge.core.model import EventId, RequestId, Selected
from bridge.core.polls import make_answer_ids
from tests.core.play import ALICE, BOB, NONCE, OPTIONS, ROOM, agent
from tests.relay.rig import Rig


def vote(rig: Rig, request_id: RequestId, poll: EventId, number: int, event_id: str) -> Voted:
    answer = make_answer_ids(rig.relay.state.entries[request_id].request)[number - 1]
    return Voted(room=ROOM, sender=ALICE, event_id=EventId(event_id), target=poll, answers=(answer,))


async def take_poll(rig: Rig, request_id: RequestId) -> EventId:
    (ballot,) = rig.relay.state.entries[request_id].ballots
    poll = rig.rooms.take(ballot.transaction_id)
    await rig.quiet()
    return poll


async def test_a_vote_reaches_the_harness_and_the_poll_ends_once_it_is_there() -> None:
    rig = Rig(agent(polls=True))
    async with rig.begun():
        asked = await rig.ask()
        poll = await take_poll(rig, asked)
        await rig.sync(vote(rig, asked, poll, 3, "$v"))
        assert [outcome for _, outcome in rig.responses] == [Selected(OPTIONS[2].option_id)]
        assert rig.worded(PollEnd) == []
        rig.agents.write(rig.responses[0][0])
        await rig.quiet()
        assert len(rig.worded(PollEnd)) == 1


async def test_a_poll_is_stored_with_its_request_and_the_nonce_is_in_nothing_that_is_sent_or_recorded() -> None:
    rig = Rig(agent(polls=True))
    async with rig.begun():
        asked = await rig.ask()
        assert len(rig.worded(Poll)) == 1
        (poll,) = (await rig.ledger.load()).outgoing
        assert (poll.request_id, poll.transaction_id) == (asked, f"{asked}/1/1/poll")
        assert NONCE not in repr((rig.rooms.sent, rig.ledger.records))


async def test_the_same_vote_counts_once_in_a_batch_and_in_the_next() -> None:
    rig = Rig(agent(polls=True))
    async with rig.begun():
        asked = await rig.ask()
        poll = await take_poll(rig, asked)
        late = vote(rig, asked, poll, 1, "$twice")
        await rig.sync(rig.said("3", sender=BOB))
        await rig.sync(late, late)
        await rig.sync(late)
        assert late.event_id in (await rig.ledger.load()).taken
        rig.agents.write(rig.responses[0][0])
        await rig.quiet()
        assert len(rig.worded(TooLate)) == 1
        assert len([record for record in rig.ledger.records if record.fields.get("status") == "not_pending"]) == 1
