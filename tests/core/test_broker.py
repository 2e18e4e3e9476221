"""Asking, changing, withdrawing, ending and starting anew: what `broker.step` makes of each event."""

from dataclasses import replace

import pytest

from bridge.core import broker
from bridge.core.changes import Priority as Urgency
from bridge.core.changes import StoreAsked, StoreEnding, StoreOutgoing, StorePosted, StoreSession, StoreSessionEnd
from bridge.core.effects import CancelTurn, CloseSession, Log, Respond, Send, WakeAt, Withhold
from bridge.core.events import (
    AgentGone,
    DeadlineReached,
    Delivered,
    NotDelivered,
    RoomSeen,
    RoomState,
    SessionDeleted,
    SessionStarted,
    ShuttingDown,
    StartFailed,
    TurnCancelled,
    TurnEnded,
    Withdrawn,
)
from bridge.core.messages import AgentNote, Closing, Unaskable
from bridge.core.model import (
    ENDLESS_MS,
    AgentName,
    CallRef,
    Cancelled,
    Decision,
    Ending,
    EventId,
    Meaning,
    Millis,
    Misfit,
    Phase,
    PolicyName,
    RequestId,
    RoomId,
    Selected,
    SessionId,
    TransactionId,
    Unsatisfied,
    UserId,
    Via,
)
from bridge.core.state import CLOSED_KEPT, begin
from tests.core.play import (
    ALICE,
    ALLOW,
    BOB,
    CLAUDE,
    NOTHING_FOUND,
    OPTIONS,
    REJECT,
    ROOM,
    SESSION,
    Play,
    agent,
    describe,
    option,
)


def test_a_request_is_stored_before_it_is_posted() -> None:
    play = Play()
    play.ask(posted=False)
    kinds = [type(e) for e in play.effects]
    assert kinds == [StoreAsked, Send, WakeAt]


def test_requests_are_counted_per_session_and_per_room() -> None:
    play = Play()
    first, second = play.ask(), play.ask()
    assert (first, second) == (f"{SESSION}:1", f"{SESSION}:2")
    assert (play.request(first).number, play.request(second).number) == (1, 2)


def test_room_numbers_go_on_where_the_last_run_stopped() -> None:
    play = Play(found=replace(NOTHING_FOUND, next_numbers={ROOM: 12}))
    assert play.request(play.ask()).number == 12


def test_nothing_expires_before_the_bound_of_about_25_days() -> None:
    play = Play()
    asked = play.ask()
    assert play.request(asked).expires_at - play.request(asked).asked_at == ENDLESS_MS == 2147483647
    play.now = Millis(play.request(asked).expires_at - 1)
    assert play.step(DeadlineReached(request_id=asked)) == [WakeAt(request_id=asked, at=play.request(asked).expires_at)]
    play.wait(0.001)
    play.step(DeadlineReached(request_id=asked))
    assert [o for _, o in play.outcomes] == [Selected("opt-reject")]
    assert play.step(DeadlineReached(request_id=RequestId("acps_x:1"))) == []


@pytest.mark.parametrize("misfit", list(Misfit))
def test_what_cannot_be_put_to_people_is_cancelled_and_the_room_is_told(misfit: Misfit) -> None:
    play = Play()
    asked = play.ask(misfit=misfit, posted=False)
    assert [o for _, o in play.outcomes] == [Cancelled()]
    assert isinstance(play.told()[0], Unaskable)
    play.deliver(asked)
    assert StoreEnding(request_id=asked, ending=Ending.UNDELIVERABLE, delivered=True) in play.effects
    assert play.told() == []
    assert play.request(play.ask()).number == 1


@pytest.mark.parametrize("state", [RoomState.NOT_JOINED, RoomState.ENCRYPTED, RoomState.REPLACED])
def test_a_room_that_cannot_be_used_makes_requests_undeliverable_at_once(state: RoomState) -> None:
    play = Play()
    waiting = play.ask()
    play.step(RoomSeen(room=ROOM, state=state, people=2))
    play.deliver(waiting)
    asked = play.ask(posted=False)
    assert [o for _, o in play.outcomes] == [Cancelled(), Cancelled()]
    assert not any(isinstance(e, Send) for e in play.effects)
    for request_id in (waiting, asked):
        decision = play.request(request_id).decision
        assert decision is not None
        assert decision.ending is Ending.UNDELIVERABLE


def test_without_a_room_or_without_approvers_nobody_can_answer() -> None:
    for nobody in (agent(room=None), agent(approvers=frozenset[UserId]())):
        play = Play(nobody)
        play.ask(posted=False)
        assert [o for _, o in play.outcomes] == [Cancelled()]


def test_a_policy_answers_by_itself_and_leaves_no_trace_but_a_log_line() -> None:
    play = Play(agent(policy=PolicyName.ALLOW_ALL))
    play.ask(posted=False)
    assert [type(e) for e in play.effects] == [Respond, Log]
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]
    assert play.step(Delivered(agent=CLAUDE, call=CallRef(1))) == []


def test_a_policy_that_finds_nothing_is_an_error_and_approves_nothing() -> None:
    play = Play(agent(policy=PolicyName.REJECT_ALL))
    play.ask(options=(ALLOW,), posted=False)
    assert [o for _, o in play.outcomes] == [Unsatisfied()]


def test_a_policy_never_allows_an_unknown_subject() -> None:
    play = Play(agent(policy=PolicyName.ALLOW_ALL))
    play.ask(description=describe(kind="quantum"))
    assert play.outcomes == []


def test_seeds_follow_the_prompt_for_at_most_ten_options() -> None:
    play = Play(agent(reactions=True))
    play.ask()
    seeds = [e for e in play.effects if isinstance(e, Send) and e.priority is Urgency.SEED]
    assert len(seeds) == len(OPTIONS)
    assert len({s.transaction_id for s in seeds}) == len(OPTIONS)
    many = tuple(option(f"o{n}", f"Choice {n}", Meaning.APPROVE) for n in range(11))
    play.ask(options=many)
    assert not any(isinstance(e, Send) and e.priority is Urgency.SEED for e in play.effects)


def test_the_agent_withdraws_one_request() -> None:
    play = Play()
    first, second = play.ask(), play.ask()
    play.step(Withdrawn(agent=CLAUDE, call=play.request(first).call))
    assert play.outcomes == [(CallRef(1), Cancelled())]
    assert play.request(second).phase is Phase.PENDING
    assert play.step(Withdrawn(agent=CLAUDE, call=CallRef(99))) == []


def test_the_end_of_a_turn_ends_what_waits_in_its_session() -> None:
    play = Play()
    asked = play.ask()
    ended = TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="end_turn")
    play.step(ended)
    assert play.outcomes == [(CallRef(1), Cancelled())]
    decision = play.request(asked).decision
    assert decision is not None
    assert decision.ending is Ending.CANCELLED
    assert play.step(replace(ended, session_id=SessionId("acps_other"))) == []


def test_a_cancelled_turn_tells_the_harness_first_and_then_answers_all_that_waits() -> None:
    play = Play()
    play.ask()
    play.ask()
    play.step(TurnCancelled(session_id=SESSION, by=ALICE))
    order = [type(e) for e in play.effects if isinstance(e, CancelTurn | Respond)]
    assert order == [CancelTurn, Respond, Respond]
    play.say("1")
    assert len(play.outcomes) == 2
    assert play.step(TurnCancelled(session_id=SessionId("acps_other"), by=None)) == []


def test_who_cancels_the_turn_has_seen_its_prompts_end() -> None:
    play = Play()
    play.ask()
    play.step(TurnCancelled(session_id=SESSION, by=ALICE))
    assert play.state.rooms[ROOM].unseen == {BOB}


def test_a_harness_that_is_gone_ends_all_its_requests_written_or_not() -> None:
    play = Play()
    first, second = play.ask(), play.ask()
    play.reply(first, "1")
    play.step(AgentGone(agent=CLAUDE, session_id=SESSION, exit_code=1))
    for request_id in (first, second):
        assert StoreEnding(request_id=request_id, ending=Ending.AGENT_GONE, delivered=False) in play.effects
    assert StoreSessionEnd(session_id=SESSION, reason="agent_gone") in play.effects
    assert len(play.told(Closing)) == 2
    assert play.step(AgentGone(agent=CLAUDE, session_id=None)) == []


def test_an_answer_that_could_not_be_written_is_told_to_the_room() -> None:
    play = Play()
    asked = play.ask()
    play.say("1")
    play.step(NotDelivered(agent=CLAUDE, call=play.request(asked).call))
    (told,) = play.told(Closing)
    assert isinstance(told, Closing)
    assert not told.request.delivered


def test_shutdown_and_deletion_end_what_waits() -> None:
    play = Play()
    play.ask()
    play.step(ShuttingDown())
    assert play.outcomes == [(CallRef(1), Cancelled())]
    play = Play()
    play.ask()
    play.step(SessionDeleted(session_id=SESSION))
    assert CloseSession(agent=CLAUDE, session_id=SESSION) in play.effects
    assert play.outcomes == [(CallRef(1), Cancelled())]
    assert play.step(SessionDeleted(session_id=SessionId("acps_other"))) == []


def test_a_session_is_stored_and_a_mode_that_skips_questions_is_said_in_the_room() -> None:
    play = Play()
    other = SessionId("acps_2")
    assert play.step(SessionStarted(agent=CLAUDE, session_id=other)) == [StoreSession(session_id=other, agent=CLAUDE)]
    play.step(SessionStarted(agent=CLAUDE, session_id=other, mode_note="It may not ask."))
    assert isinstance(play.told()[0], AgentNote)


def test_a_request_of_a_session_that_was_never_announced_is_asked_all_the_same() -> None:
    play = Play()
    asked = play.ask(session_id=SessionId("acps_child"))
    assert play.request(asked).phase is Phase.PENDING


def test_old_ended_requests_are_forgotten_and_their_events_with_them() -> None:
    play = Play()
    first = play.ask()
    old = play.event_of(first)
    play.reply(first, "1")
    play.deliver(first)
    for _ in range(CLOSED_KEPT):
        asked = play.ask()
        play.reply(asked, "1")
        play.deliver(asked)
    assert first not in play.state.entries
    assert old not in play.state.shown
    assert len(play.state.rooms[ROOM].closed) == CLOSED_KEPT


def test_an_undelivered_old_request_is_not_forgotten_before_it_ends() -> None:
    play = Play()
    first = play.ask()
    play.reply(first, "1")
    for _ in range(CLOSED_KEPT + 1):
        asked = play.ask()
        play.reply(asked, "1")
        play.deliver(asked)
    assert first in play.state.entries
    assert len(play.state.rooms[ROOM].closed) == CLOSED_KEPT


def test_requests_of_a_harness_that_does_not_read_are_all_kept_until_they_end() -> None:
    play = Play()
    for _ in range(CLOSED_KEPT + 5):
        play.reply(play.ask(), "1")
    assert len(play.state.rooms[ROOM].closed) == CLOSED_KEPT + 5


def test_what_waits_of_an_agent_is_listed_oldest_first() -> None:
    play = Play()
    first = play.ask()
    play.wait(1)
    second = play.ask()
    assert [r.request_id for r in broker.waiting_of(play.state, CLAUDE)] == [first, second]
    assert broker.waiting_of(play.state, AgentName("other")) == ()


def queued(play: Play, request_id: RequestId) -> StoreOutgoing:
    transaction_id = play.state.entries[request_id].transaction_id
    assert transaction_id is not None
    return StoreOutgoing(
        transaction_id=transaction_id,
        room=ROOM,
        event_type="m.room.message",
        content={},
        priority=Urgency.PROMPT,
        request_id=request_id,
    )


def found_open(*, sent: bool, decided: bool) -> tuple[Play, RequestId]:
    """A start that finds one request open; its prompt was sent, or only queued; it was decided, or not."""
    play = Play()
    asked = play.ask(posted=sent)
    if decided:
        play.reply(asked, "1") if sent else play.step(TurnCancelled(session_id=SESSION, by=None))
    outgoing = () if sent else (queued(play, asked),)
    found = replace(NOTHING_FOUND, open=(play.request(asked),), outgoing=outgoing, sessions=((SESSION, CLAUDE),))
    later = Play()
    later.state = begin(later.state.rules, found)
    later.state, later.effects = broker.recover(later.state, found, later.now)
    return later, asked


@pytest.mark.parametrize("decided", [True, False])
def test_a_start_ends_what_the_last_run_left_open_and_edits_its_prompt(decided: bool) -> None:
    play, asked = found_open(sent=True, decided=decided)
    assert StoreEnding(request_id=asked, ending=Ending.AGENT_GONE, delivered=False) in play.effects
    assert StoreSessionEnd(session_id=SESSION, reason="bridge_restarted") in play.effects
    assert len(play.told(Closing)) == 1
    assert not any(isinstance(e, Respond) for e in play.effects)


def test_a_prompt_that_was_on_its_way_when_the_last_run_ended_is_closed_once_it_has_an_id() -> None:
    play, asked = found_open(sent=False, decided=False)
    assert play.told(Closing) == []
    assert play.did(Withhold) == []  # it may stand in the room: only sending it again tells
    transaction_id = play.state.entries[asked].transaction_id
    assert transaction_id is not None
    play.post(asked)
    assert len(play.told(Closing)) == 1
    assert any(isinstance(e, StorePosted) for e in play.effects)


def test_a_prompt_on_its_way_whose_request_had_ended_is_closed_once_it_has_an_id() -> None:
    play = Play()
    asked = play.ask(posted=False)
    play.step(TurnCancelled(session_id=SESSION, by=None))
    play.deliver(asked)
    found = replace(NOTHING_FOUND, closed=(play.request(asked),), outgoing=(queued(play, asked),))
    play.state, _ = broker.recover(begin(play.state.rules, found), found, play.now)
    play.post(asked)
    assert len(play.told(Closing)) == 1


def test_a_start_knows_the_prompts_that_ended_before_it() -> None:
    play = Play()
    asked = play.ask()
    event_id = play.event_of(asked)
    play.say("3", BOB)
    play.deliver(asked)
    later = Play(found=replace(NOTHING_FOUND, closed=(play.request(asked),), unseen=frozenset({(ROOM, ALICE)})))
    later.say("1", ALICE, event_id)
    assert len(later.told()) == 1
    assert later.outcomes == []


def test_a_start_survives_a_closed_request_without_message_or_decision() -> None:
    play = Play()
    bare = replace(play.request(play.ask(posted=False)), phase=Phase.ENDED, room=RoomId("!old:ex.org"))
    later = Play(found=replace(NOTHING_FOUND, closed=(bare,), unseen=frozenset({(RoomId("!old:ex.org"), ALICE)})))
    assert bare.request_id in later.state.entries


def test_a_request_that_was_decided_before_it_left_is_never_posted() -> None:
    play, asked = found_open(sent=False, decided=True)
    assert play.request(asked).phase is Phase.ENDED
    assert not play.request(asked).delivered


def test_decisions_name_the_option_and_the_person() -> None:
    play = Play()
    asked = play.ask()
    play.reply(asked, "3", BOB)
    assert play.request(asked).decision == Decision(
        ending=Ending.ANSWERED,
        outcome=Selected("opt-reject"),
        option=REJECT,
        by=BOB,
        via=Via.MESSAGE,
        event_id=EventId("$e1"),
        at=play.now,
    )


def test_transaction_ids_of_one_request_never_repeat() -> None:
    play = Play(agent(reactions=True))
    asked = play.ask(whole=False)
    play.say("1")
    play.say("1")
    play.reply(asked, "3")
    play.deliver(asked)
    ids = [e.transaction_id for e in play.all_effects if isinstance(e, Send) and e.transaction_id is not None]
    assert len(ids) == len(set[TransactionId](ids))


def test_a_harness_that_could_not_be_started_has_nothing_to_end() -> None:
    play = Play()
    assert play.step(StartFailed(agent=CLAUDE, sentence="It was not found.")) == []


def test_old_requests_that_were_never_shown_are_forgotten_too() -> None:
    play = Play()
    first = play.ask(misfit=Misfit.SAME_ID, posted=False)
    play.deliver(first)
    for _ in range(CLOSED_KEPT):
        play.deliver(play.ask(misfit=Misfit.SAME_ID, posted=False))
    assert first not in play.state.entries


def test_a_start_ends_a_request_whose_prompt_had_not_even_been_queued() -> None:
    play = Play()
    request = play.request(play.ask(posted=False))
    found = replace(NOTHING_FOUND, open=(request,), sessions=((SESSION, CLAUDE),))
    later = Play()
    later.state, later.effects = broker.recover(begin(later.state.rules, found), found, later.now)
    assert StoreEnding(request_id=request.request_id, ending=Ending.AGENT_GONE, delivered=False) in later.effects
    assert later.told(Closing) == []


def test_a_start_knows_a_session_once_however_many_of_its_requests_it_finds() -> None:
    play = Play()
    asked_twice = [play.ask(), play.ask()]
    for asked in asked_twice:
        play.reply(asked, "1")
        play.deliver(asked)
    later = Play(found=replace(NOTHING_FOUND, closed=tuple(map(play.request, asked_twice))))
    assert set(asked_twice) <= set(later.state.entries)
