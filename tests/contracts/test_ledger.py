"""What `core.ports.Ledger` promises, over the fake and over SQLite."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.core.changes import (
    Change,
    Snapshot,
    StoreEncrypted,
    StoreEnding,
    StoreLateAnswer,
    StoreMoved,
    StorePin,
    StorePosted,
    StoreRevision,
    StoreSent,
    StoreSessionEnd,
    StoreTaken,
    StoreUnlocked,
    StoreUnseen,
)
from bridge.core.errors import AlreadyDecided, LedgerError, LedgerFull
from bridge.core.model import (
    Cancelled,
    Decision,
    Ending,
    EventId,
    JsonValue,
    Millis,
    Option,
    Outcome,
    Phase,
    Reason,
    RequestId,
    RoomId,
    Selected,
    SessionId,
    SyncToken,
    TransactionId,
    Unsatisfied,
    UserId,
    Via,
)
from bridge.core.ports import Ledger
from bridge.store.ledger import SqliteLedger
from bridge.store.reads import CLOSED_KEPT, TAKEN_KEPT
from tests.fakes.ledger import MemoryLedger
from tests.store.values import (
    AGENT,
    ALICE,
    ALLOW,
    AT,
    LOCKED,
    RECORD,
    REJECT,
    ROOM,
    SESSION,
    ask,
    decide,
    end,
    make_answer,
    make_request,
    queue,
    start,
)

POSTED = StorePosted(request_id=make_request().request_id, event_id=EventId("$p1"), digest="d", revision=1)


@pytest.fixture(params=["memory", "sqlite"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = MemoryLedger() if request.param == "memory" else await SqliteLedger.open(tmp_path / "ledger.db")
    yield opened
    await opened.close()


async def last_fields(ledger: Ledger, *changes: Change) -> dict[str, JsonValue]:
    return (await ledger.commit(changes, at=AT))[-1].fields


async def test_a_new_ledger_is_empty(ledger: Ledger) -> None:
    expected = Snapshot(
        next_numbers={},
        open=(),
        closed=(),
        unseen=frozenset(),
        taken=(),
        outgoing=(),
        sync_token=None,
        sessions=(),
    )
    assert expected == await ledger.load()
    assert await ledger.history() == []


async def test_nothing_to_store_is_no_row(ledger: Ledger) -> None:
    assert await ledger.commit([], at=AT) == []


async def test_a_request_comes_back_whole(ledger: Ledger) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request)], at=AT)
    assert (request,) == (await ledger.load()).open


async def test_what_a_poll_and_a_strict_agent_need_comes_back(ledger: Ledger) -> None:
    request = replace(make_request(), nonce="n0nce", strict=True)
    await ledger.commit([start(), ask(request)], at=AT)
    assert (request,) == (await ledger.load()).open


async def test_what_a_new_request_says_of_its_end_is_not_believed(ledger: Ledger) -> None:
    request = make_request()
    ended = replace(request, phase=Phase.ENDED, decision=make_answer(), delivered=True)
    await ledger.commit([start(), ask(ended)], at=AT)
    assert (request,) == (await ledger.load()).open


@pytest.mark.parametrize("outcome", [Selected("Ünï / 1 "), Cancelled(), Unsatisfied(), None])
async def test_a_decided_request_is_open_and_keeps_its_decision(ledger: Ledger, outcome: Outcome | None) -> None:
    request = make_request()
    decision = Decision(ending=Ending.CANCELLED, outcome=outcome, at=AT)
    await ledger.commit([start(), ask(request), decide(request, decision)], at=AT)
    assert (replace(request, phase=Phase.DECIDED, decision=decision),) == (await ledger.load()).open


async def test_an_ended_request_is_closed_and_says_how(ledger: Ledger) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request), POSTED, decide(request), end(request)], at=AT)
    expected = replace(request, phase=Phase.ENDED, decision=make_answer(), delivered=True, event_id=EventId("$p1"))
    found = await ledger.load()
    assert ((), (expected,)) == (found.open, found.closed)


async def test_a_revision_takes_the_place_of_the_request(ledger: Ledger) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request), POSTED], at=AT)
    revised = replace(
        request,
        revision=2,
        description=replace(request.description, title="Run more"),
        placed=True,
        whole=False,
        event_id=EventId("$old"),
    )
    assert await ledger.commit([StoreRevision(request=revised)], at=AT) == []
    assert (revised,) == (await ledger.load()).open


async def test_a_revision_does_not_touch_the_decision(ledger: Ledger) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request), decide(request), StoreRevision(request=request)], at=AT)
    assert (replace(request, phase=Phase.DECIDED, decision=make_answer()),) == (await ledger.load()).open


async def test_the_message_of_an_earlier_revision_is_not_where_answers_belong(ledger: Ledger) -> None:
    request = replace(make_request(), revision=2)
    rows = await ledger.commit([start(), ask(request), POSTED], at=AT)
    assert (request,) == (await ledger.load()).open
    assert rows[-1].type == "permission_posted"


async def test_the_first_decision_wins_and_the_second_takes_nothing_with_it(ledger: Ledger) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request), decide(request)], at=AT, token=SyncToken("s1"))
    before = await ledger.load()
    late = [StoreTaken(EventId("$late")), decide(request, make_answer(REJECT))]
    with pytest.raises(AlreadyDecided):
        await ledger.commit(late, at=AT, token=SyncToken("s2"))
    assert before == await ledger.load()
    assert len(await ledger.history()) == 3


async def test_a_sequence_has_no_gap_where_a_transaction_was_refused(ledger: Ledger) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request), decide(request)], at=AT)
    with pytest.raises(AlreadyDecided):
        await ledger.commit([POSTED, decide(request)], at=AT)
    assert [row.sequence for row in await ledger.commit([end(request)], at=AT)] == [4]


ENDED = [start(), ask(make_request()), decide(make_request()), end(make_request())]


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ([start()], start()),
        ([], StoreSessionEnd(session_id=SESSION, reason="gone")),
        ([start(), StoreSessionEnd(session_id=SESSION, reason="gone")], StoreSessionEnd(session_id=SESSION, reason="")),
        ([], ask(make_request())),
        ([start(), ask(make_request())], ask(replace(make_request(), number=2))),
        ([start(), ask(make_request(2))], ask(replace(make_request(1), number=3))),
        ([start(), ask(make_request(2))], ask(replace(make_request(3), number=1))),
        ([start()], POSTED),
        ([start()], decide(make_request())),
        ([start()], StoreRevision(request=make_request())),
        (
            [start(), ask(make_request(1)), ask(make_request(2))],
            StoreRevision(request=replace(make_request(2), number=1)),
        ),
        ([start(), ask(make_request())], end(make_request())),
        (ENDED, end(make_request(), Ending.SHUTDOWN)),
        ([queue(make_request())], queue(make_request(2))),
        ([queue(make_request()), StoreSent(transaction_id=TransactionId("t1"), event_id=None)], queue(make_request())),
        ([], StoreSent(transaction_id=TransactionId("t1"), event_id=None)),
    ],
)
async def test_a_change_that_contradicts_the_ledger_is_refused_whole(
    ledger: Ledger, before: list[Change], refused: Change
) -> None:
    await ledger.commit(before, at=AT, token=SyncToken("s1"))
    kept = await ledger.load()
    with pytest.raises(LedgerError) as raised:
        await ledger.commit([StoreTaken(EventId("$x")), refused], at=AT)
    assert LedgerError is raised.type
    assert kept == await ledger.load()


async def test_history_rows_are_numbered_per_session(ledger: Ledger) -> None:
    other = SessionId("acps_2")
    changes = [start(), start(other), ask(make_request()), ask(make_request(1, session_id=other, room=RoomId("!b")))]
    rows = await ledger.commit(changes, at=AT)
    assert [(SESSION, 1), (other, 1), (SESSION, 2), (other, 2)] == [(row.session_id, row.sequence) for row in rows]
    assert {"2026-11-07T10:29:58.114Z"} == {row.timestamp for row in rows}
    assert rows == await ledger.history()


async def test_a_reader_gets_what_follows_its_numbers_in_the_order_of_storing(ledger: Ledger) -> None:
    other = SessionId("acps_2")
    await ledger.commit([start(), start(other), ask(make_request())], at=AT)
    await ledger.commit([ask(make_request(1, session_id=other, room=RoomId("!b"))), ask(make_request(2))], at=Millis(0))
    after = {SESSION: 1, SessionId("acps_unknown"): 9}
    found = await ledger.history(after)
    assert [(other, 1), (SESSION, 2), (other, 2), (SESSION, 3)] == [(row.session_id, row.sequence) for row in found]
    assert [row.sequence for row in await ledger.history(after, session_id=SESSION)] == [2, 3]
    assert await ledger.history(session_id=SessionId("acps_unknown")) == []


async def test_session_rows_name_the_agent(ledger: Ledger) -> None:
    rows = await ledger.commit([start(), StoreSessionEnd(session_id=SESSION, reason="It ended.")], at=AT)
    assert [(row.type, row.fields) for row in rows] == [
        ("session_started", {"agent": AGENT}),
        ("session_ended", {"agent": AGENT, "reason": "It ended."}),
    ]


async def test_a_request_row_holds_the_native_fields_flat_and_exact(ledger: Ledger) -> None:
    rows = await ledger.commit([start(), ask(make_request())], at=AT)
    expected = {"request_id": f"{SESSION}:1", "agent": AGENT, "room_id": ROOM, **RECORD}
    assert ("permission_request", expected) == (rows[-1].type, rows[-1].fields)
    assert rows == await ledger.history()


async def test_a_request_row_has_meta_only_when_it_was_sent(ledger: Ledger) -> None:
    fields = await last_fields(ledger, start(), ask(make_request(), {"toolCall": {}, "options": []}))
    assert sorted(fields) == ["agent", "options", "request_id", "room_id", "toolCall"]


async def test_an_agent_cannot_name_our_fields(ledger: Ledger) -> None:
    fields = await last_fields(ledger, start(), ask(make_request(), {"request_id": "x", "agent": "y", "room_id": "z"}))
    assert {"request_id": f"{SESSION}:1", "agent": AGENT, "room_id": ROOM} == fields


async def test_a_posted_row_names_message_digest_and_revision(ledger: Ledger) -> None:
    fields = await last_fields(ledger, start(), ask(make_request()), POSTED)
    assert {"request_id": f"{SESSION}:1", "event_id": "$p1", "digest": "d", "revision": 1} == fields


async def test_an_answer_row_says_who_chose_what_and_how(ledger: Ledger) -> None:
    fields = await last_fields(ledger, start(), ask(make_request()), decide(make_request()))
    assert fields == {
        "request_id": f"{SESSION}:1",
        "status": "accepted",
        "outcome": {"outcome": "selected", "optionId": "a\udfff"},
        "by": ALICE,
        "via": "reaction",
        "event_id": "$answer",
        "waited_ms": 1500,
    }


async def test_an_answer_row_names_the_device_that_it_came_encrypted_from(ledger: Ledger) -> None:
    answer = replace(make_answer(), device_id="PHONE")
    fields = await last_fields(ledger, start(), ask(make_request()), decide(make_request(), answer))
    assert "PHONE" == fields["device_id"]
    (request,) = (await ledger.load()).open
    assert request.decision is not None
    assert "PHONE" == request.decision.device_id


async def test_an_expiry_row_is_an_answer_by_nobody(ledger: Ledger) -> None:
    expiry = Decision(ending=Ending.EXPIRED, outcome=Cancelled(), via=Via.EXPIRY, at=AT)
    fields = await last_fields(ledger, start(), ask(make_request()), decide(make_request(), expiry))
    assert fields == {
        "request_id": f"{SESSION}:1",
        "status": "accepted",
        "outcome": {"outcome": "cancelled"},
        "by": None,
        "via": "expiry",
        "event_id": None,
        "waited_ms": 1500,
    }


@pytest.mark.parametrize("ending", [ending for ending in Ending if ending not in {Ending.ANSWERED, Ending.EXPIRED}])
async def test_a_decision_that_is_no_answer_has_no_response_row(ledger: Ledger, ending: Ending) -> None:
    request = make_request()
    await ledger.commit([start(), ask(request)], at=AT)
    decision = Decision(ending=ending, outcome=None, at=AT)
    assert await ledger.commit([decide(request, decision)], at=AT) == []
    rows = await ledger.commit([end(request, ending)], at=AT)
    expected = {"request_id": request.request_id, "ending": ending.value, "delivered": True}
    assert [("permission_ended", expected)] == [(row.type, row.fields) for row in rows]


@pytest.mark.parametrize(("option", "outcome"), [(ALLOW, {"outcome": "selected", "optionId": "a\udfff"}), (None, None)])
async def test_a_late_answer_row_says_why_it_did_not_count(
    ledger: Ledger, option: Option | None, outcome: JsonValue
) -> None:
    late = StoreLateAnswer(
        request_id=make_request().request_id,
        reason=Reason.ALREADY_RESOLVED,
        option=option,
        by="local:alice",
        via=Via.LOCAL,
        event_id=None,
        waited=Millis(7),
    )
    fields = await last_fields(ledger, *ENDED, late)
    assert fields == {
        "request_id": f"{SESSION}:1",
        "status": "not_pending",
        "reason": "already_resolved",
        "outcome": outcome,
        "by": "local:alice",
        "via": "local",
        "event_id": None,
        "waited_ms": 7,
    }


async def test_room_numbers_go_on_after_the_last(ledger: Ledger) -> None:
    other = RoomId("!b")
    await ledger.commit([start(), ask(make_request(1)), ask(make_request(2)), ask(make_request(3, room=other))], at=AT)
    assert {ROOM: 3, other: 4} == (await ledger.load()).next_numbers


async def test_a_revision_with_a_number_of_its_own_takes_it_for_good(ledger: Ledger) -> None:
    revised = replace(make_request(), revision=2, number=4)
    await ledger.commit([start(), ask(make_request()), StoreRevision(request=revised)], at=AT)
    found = await ledger.load()
    assert ({ROOM: 5}, (revised,)) == (found.next_numbers, found.open)
    assert await ledger.commit([StoreRevision(request=replace(revised, placed=True))], at=AT) == []
    assert {ROOM: 5} == (await ledger.load()).next_numbers


async def test_a_request_that_nobody_is_asked_takes_no_room_number(ledger: Ledger) -> None:
    first, second = (replace(make_request(seq), number=0) for seq in (1, 2))
    await ledger.commit([start(), ask(first), ask(second)], at=AT)
    found = await ledger.load()
    assert ({ROOM: 1}, (first, second)) == (found.next_numbers, found.open)


async def test_outgoing_events_wait_in_order_until_they_have_left(ledger: Ledger) -> None:
    request = make_request()
    first, second, third = (queue(request, name) for name in ("t9", "t1", "t5"))
    await ledger.commit([first, second, replace(third, request_id=None)], at=AT)
    assert await ledger.commit([StoreSent(transaction_id=first.transaction_id, event_id=EventId("$1"))], at=AT) == []
    assert (second, replace(third, request_id=None)) == (await ledger.load()).outgoing


async def test_an_event_that_was_withheld_may_have_left_after_all(ledger: Ledger) -> None:
    queued = queue(make_request())
    await ledger.commit([queued, StoreSent(transaction_id=queued.transaction_id, event_id=None)], at=AT)
    await ledger.commit([StoreSent(transaction_id=queued.transaction_id, event_id=EventId("$1"))], at=AT)
    assert (await ledger.load()).outgoing == ()


async def test_the_polls_of_open_requests_are_found_until_they_were_ended(ledger: Ledger) -> None:
    first, second = make_request(1), make_request(2)
    polls = [queue(request, f"{request.request_id}/1/0/poll") for request in (first, second)]
    await ledger.commit(
        [start(), ask(first), ask(second), *polls, queue(first, f"{first.request_id}/1/0/prompt")], at=AT
    )
    sent = [StoreSent(transaction_id=poll.transaction_id, event_id=EventId(f"$v{n}")) for n, poll in enumerate(polls)]
    await ledger.commit(
        [*sent, StoreSent(transaction_id=TransactionId(f"{first.request_id}/1/0/prompt"), event_id=EventId("$p"))],
        at=AT,
    )
    assert ((first.request_id, EventId("$v0")), (second.request_id, EventId("$v1"))) == (await ledger.load()).polls
    await ledger.commit([queue(first, f"{first.request_id}/ended/$v0")], at=AT)
    assert ((second.request_id, EventId("$v1")),) == (await ledger.load()).polls
    await ledger.commit(
        [decide(second), StoreEnding(request_id=second.request_id, ending=Ending.ANSWERED, delivered=True)], at=AT
    )
    assert () == (await ledger.load()).polls


async def test_unseen_is_remembered_until_the_person_writes(ledger: Ledger) -> None:
    bob = UserId("@bob:ex.org")
    both = [StoreUnseen(room=ROOM, person=person, on=True) for person in (ALICE, bob, ALICE)]
    await ledger.commit([*both, StoreUnseen(room=ROOM, person=bob, on=False)], at=AT)
    await ledger.commit([StoreUnseen(room=RoomId("!b"), person=bob, on=False)], at=AT)
    assert frozenset({(ROOM, ALICE)}) == (await ledger.load()).unseen


async def test_what_cannot_be_read_yet_is_kept_as_it_came_until_it_is_done_with(ledger: Ledger) -> None:
    second, third = (replace(LOCKED, event_id=EventId(name)) for name in ("$a", "$z"))
    await ledger.commit([LOCKED, second, third, replace(LOCKED, raw="again")], at=AT, token=SyncToken("s1"))
    assert (LOCKED, second, third) == (await ledger.load()).locked
    await ledger.commit([StoreUnlocked(second.event_id), StoreUnlocked(EventId("$unknown"))], at=AT)
    assert (LOCKED, third) == (await ledger.load()).locked


async def test_a_pin_takes_the_place_of_an_earlier_one(ledger: Ledger) -> None:
    bob = UserId("@bob:ex.org")
    pins = [(ALICE, "one"), (bob, "two"), (ALICE, "three")]
    await ledger.commit([StorePin(user=user, master=master) for user, master in pins], at=AT)
    assert ((ALICE, "three"), (bob, "two")) == (await ledger.load()).pins


async def test_a_room_that_was_encrypted_once_is_remembered(ledger: Ledger) -> None:
    await ledger.commit([StoreEncrypted(ROOM), StoreEncrypted(RoomId("!b")), StoreEncrypted(ROOM)], at=AT)
    assert frozenset({ROOM, RoomId("!b")}) == (await ledger.load()).encrypted


async def test_upgrades_come_back_in_the_order_in_which_they_were_followed(ledger: Ledger) -> None:
    b, a = RoomId("!b"), RoomId("!a")
    steps = ((ROOM, b), (b, a), (a, ROOM))
    await ledger.commit([StoreMoved(old=old, new=new) for old, new in steps], at=AT)
    assert steps == (await ledger.load()).moved


async def test_the_token_moves_with_what_was_taken(ledger: Ledger) -> None:
    taken = [StoreTaken(EventId(name)) for name in ("$b", "$a", "$b")]
    await ledger.commit(taken, at=AT, token=SyncToken("s1"))
    await ledger.commit([], at=AT, token=SyncToken("s2"))
    await ledger.commit([StoreTaken(EventId("$c"))], at=AT)
    found = await ledger.load()
    assert (found.sync_token, found.taken) == ("s2", ("$b", "$a", "$c"))


async def test_the_youngest_taken_events_are_loaded(ledger: Ledger) -> None:
    names = [EventId(f"${number}") for number in range(TAKEN_KEPT + 3)]
    await ledger.commit([StoreTaken(name) for name in names], at=AT)
    assert tuple(names[3:]) == (await ledger.load()).taken


async def test_the_youngest_closed_requests_of_each_room_are_loaded(ledger: Ledger) -> None:
    requests = [make_request(number) for number in range(1, CLOSED_KEPT + 3)]
    last = make_request(CLOSED_KEPT + 3, room=RoomId("!b"))
    order = [last, *reversed(requests)]
    await ledger.commit([start(), *map(ask, requests), ask(last)], at=AT)
    for request in order:
        await ledger.commit([decide(request), end(request)], at=AT)
    expected: list[RequestId] = [last.request_id, *(request.request_id for request in order[3:])]
    assert expected == [request.request_id for request in (await ledger.load()).closed]


async def test_ended_sessions_are_not_loaded(ledger: Ledger) -> None:
    other = SessionId("acps_2")
    await ledger.commit([start(), start(other), StoreSessionEnd(session_id=SESSION, reason="gone")], at=AT)
    assert ((other, AGENT),) == (await ledger.load()).sessions


async def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    await ledger.close()
    await ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        await ledger.load()


async def test_the_fake_fails_on_demand_and_keeps_nothing() -> None:
    ledger = MemoryLedger()
    ledger.fail_next(LedgerFull("The disk is full."))
    with pytest.raises(LedgerFull):
        await ledger.commit([start()], at=AT, token=SyncToken("s1"))
    assert (ledger.records, ledger.token) == ((), None)
    await ledger.commit([start()], at=AT, token=SyncToken("s1"))
    assert (len(ledger.records), ledger.token) == (1, "s1")
