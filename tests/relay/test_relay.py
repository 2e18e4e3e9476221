"""One event, one transaction, then what it brings about: the ledger first, then the harness, then the room."""

import anyio
import pytest

from bridge.core.changes import StoreAsked, StoreOutgoing, StoreTaken
from bridge.core.errors import InvalidOption
from bridge.core.events import Echoed, Redacted, SessionDeleted, TurnEnded
from bridge.core.messages import CancelSent, Closing, Prompt, PromptLost, Status, Unaskable, Words
from bridge.core.model import Cancelled, EventId, Misfit, Phase, Reason, RequestId, Selected, SyncToken, TransactionId
from tests.core.play import ALICE, BOB, CLAUDE, ROOM, SESSION, agent
from tests.fakes.agents import Closed, TurnCancelSent
from tests.relay.rig import Ledger, Rig


async def test_a_prompt_and_its_transaction_id_are_stored_before_it_leaves() -> None:
    rig = Rig()
    async with rig.begun():
        sent_when_stored: list[int] = []
        commit = rig.ledger.commit

        async def watch(*args: object, **more: object) -> object:
            sent_when_stored.append(len(rig.rooms.sent))
            return await commit(*args, **more)  # pyright: ignore[reportArgumentType]

        rig.ledger.commit = watch  # pyright: ignore[reportAttributeAccessIssue]
        await rig.happens(rig.asked())
        assert sent_when_stored == [0]
        assert rig.ledger.diary[-2:] == [StoreAsked, StoreOutgoing]
        assert len(rig.rooms.sent) == 1


async def test_an_answer_reaches_the_harness_and_then_the_room_says_so() -> None:
    rig = Rig()
    async with rig.begun():
        asked = await rig.ask()
        await rig.sync(rig.said("1"))
        assert [outcome for _, outcome in rig.responses] == [Selected("opt-allow")]
        assert rig.worded(Closing) == []
        rig.agents.write(rig.responses[0][0])
        await rig.quiet()
        assert len(rig.worded(Closing)) == 1
        assert rig.relay.state.entries[asked].request.phase is Phase.ENDED
        assert [record.type for record in rig.ledger.records] == [
            "session_started",
            "permission_request",
            "permission_posted",
            "permission_response",
            "permission_ended",
        ]


async def test_a_batch_is_stored_with_its_token_before_it_is_done() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.sync(since="s7")
        assert rig.ledger.token == "s7"
    assert (await Rig(ledger=rig.ledger).relay.load()).token == SyncToken("s7")
    assert (await Rig(ledger=Ledger()).relay.load()).token is None


async def test_the_same_event_counts_once_in_a_batch_in_the_next_and_after_a_restart() -> None:
    rig = Rig(agent(users=frozenset({ALICE})))
    async with rig.begun():
        hello = rig.said("hello", event_id="$twice")
        await rig.sync(hello, hello)
        await rig.sync(hello)
        assert rig.agents.prompts == ["hello"]
        assert StoreTaken in rig.ledger.diary
    again = Rig(ledger=rig.ledger)
    async with again.running():
        await again.sync(hello)
        assert again.agents.prompts == []
        assert again.rooms.sent == []


async def test_only_so_many_events_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.relay.loop.TAKEN_KEPT", 2)
    rig = Rig()
    async with rig.begun():
        first, second, third = (rig.said("!help") for _ in range(3))
        await rig.sync(first, second, third)
        await rig.sync(second, third)
        assert len(rig.rooms.sent) == 3
        await rig.sync(first)
        assert len(rig.rooms.sent) == 4


async def test_words_begin_a_turn_and_what_the_agent_said_goes_to_the_room_in_parts() -> None:
    rig = Rig()
    rig.rooms.parts = 2
    async with rig.begun():
        await rig.sync(rig.said("write the tests"))
        assert rig.agents.prompts == ["write the tests"]
        await rig.happens(TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="end_turn", text="Done."))
        base = f"{SESSION}/words/0"
        assert [out.transaction_id for out in rig.rooms.sent] == [base, f"{base}/1"]
        assert rig.rooms.signs == [(ROOM, True), (ROOM, False)]
        assert len(rig.worded(Words)) == 1


async def test_cancel_goes_out_before_the_cancelled_outcomes_and_status_says_what_waits() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.sync(rig.said("go"))
        asked = await rig.ask()
        await rig.sync(rig.said("!status"))
        (status,) = [m for m in rig.worded(Status) if isinstance(m, Status)]
        assert status.agents == rig.relay.status()
        assert status.agents[0].waiting == ((1, "Run tests"),)
        await rig.sync(rig.said("!cancel"))
        acts = rig.agents.acts[1:]
        assert acts[0] == TurnCancelSent(CLAUDE, SESSION)
        assert [outcome for _, outcome in rig.responses] == [Cancelled()]
        assert len(rig.worded(CancelSent)) == 1
        await rig.happens(SessionDeleted(session_id=SESSION))
        assert rig.agents.acts[-1] == Closed(CLAUDE, SESSION)
        assert rig.relay.state.entries[asked].request.phase is Phase.DECIDED


async def test_an_answer_over_the_socket_is_accepted_once_the_harness_has_it() -> None:
    rig = Rig()
    async with rig.begun(), anyio.create_task_group() as tasks:
        asked = await rig.ask()
        results: list[Reason | None] = []

        async def answer() -> None:
            results.append(await rig.answer(asked, "opt-reject"))

        tasks.start_soon(answer)
        while not rig.responses:
            await rig.quiet()
        assert results == []
        rig.agents.write(rig.responses[0][0])
        await rig.quiet()
        while not results:
            await rig.quiet()
        assert results == [None]
        assert await rig.answer(asked, "opt-reject") is Reason.ALREADY_RESOLVED


async def test_a_refused_answer_over_the_socket_raises_and_consumes_nothing() -> None:
    rig = Rig()
    async with rig.begun():
        asked = await rig.ask()
        with pytest.raises(InvalidOption):
            await rig.answer(asked, "nope")
        assert rig.relay.state.entries[asked].request.phase is Phase.PENDING


async def test_a_prompt_that_has_not_left_is_taken_back_and_one_that_has_is_closed() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.happens(rig.asked(1), rig.asked(2))
        back, gone = (rig.transaction_of(RequestId(f"{SESSION}:{n}")) for n in (1, 2))
        rig.rooms.begin(gone)
        await rig.happens(TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="end_turn"))
        assert rig.rooms.withheld == [back]
        for call, _ in rig.responses:
            rig.agents.write(call)
        await rig.quiet()
        assert rig.worded(Closing) == []
        event_id = rig.rooms.take(gone)
        await rig.quiet()
        assert [m.request.event_id for m in rig.worded(Closing) if isinstance(m, Closing)] == [event_id]


async def test_a_prompt_that_is_too_large_gets_shorter_until_nothing_shorter_is_left() -> None:
    rig = Rig()
    async with rig.begun():
        await rig.happens(rig.asked())
        request_id = RequestId(f"{SESSION}:1")
        for _ in range(4):
            rig.rooms.find_too_large(rig.transaction_of(request_id))
            await rig.quiet()
        assert [shrink for message, _, shrink in rig.rooms.composed if isinstance(message, Prompt)] == [0, 1, 2, 3, 4]
        assert [outcome for _, outcome in rig.responses] == [Cancelled()]
        assert [m.misfit for m in rig.worded(Unaskable) if isinstance(m, Unaskable)] == [Misfit.TOO_LONG]


async def test_a_removed_prompt_is_posted_again_and_an_unknown_event_of_ours_changes_nothing() -> None:
    rig = Rig()
    async with rig.begun():
        asked = await rig.ask()
        event_id = rig.relay.state.entries[asked].request.event_id
        assert event_id is not None
        await rig.sync(
            Redacted(room=ROOM, sender=BOB, target=event_id),
            Echoed(room=ROOM, event_id=EventId("$other"), transaction_id=TransactionId("other")),
        )
        assert len(rig.worded(Prompt)) == 2
        assert rig.worded(PromptLost) == []


async def test_a_request_that_changes_twice_is_bound_each_time() -> None:
    rig = Rig()
    async with rig.begun():
        asked = await rig.ask()
        for command in ("ls", "rm -rf /"):
            await rig.happens(rig.changed(command))
            await rig.post(asked)
        event_id = rig.relay.state.entries[asked].request.event_id
        assert event_id is not None
        await rig.sync(rig.said("3", event_id))
        assert [outcome for _, outcome in rig.responses] == [Selected("opt-reject")]
