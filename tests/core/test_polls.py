"""Votes: rules 12 and 13 of design.md, MX-15. The poll stands beside its prompt, is decided like it, and ends with it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core import broker
from bridge.core.changes import Priority, StoreDecision, StoreLateAnswer, StoreOutgoing
from bridge.core.effects import Send, Withhold
from bridge.core.events import (
    Echoed,
    Locked,
    Redacted,
    RoomSeen,
    RoomState,
    SendFailed,
    Sent,
    TooLarge,
    ToolCallChanged,
)
from bridge.core.messages import (
    Closing,
    Confirm,
    DeviceRefused,
    Exposed,
    NotAllowed,
    NotAnOption,
    Poll,
    PollEnd,
    Prompt,
    Seed,
    TooLate,
)
from bridge.core.model import (
    AgentName,
    EventId,
    Meaning,
    Millis,
    Phase,
    Request,
    RequestId,
    RoomId,
    Seal,
    TransactionId,
    Trust,
    Via,
)
from bridge.core.polls import make_answer_ids, read_vote
from bridge.core.state import CLOSED_KEPT, begin
from tests.core.play import (
    ALICE,
    ALLOW,
    BOB,
    MALLORY,
    NONCE,
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

SIGNED = Seal(device_id="PHONE", signed=True, master="m")
UNSIGNED = Seal(device_id="PHONE", signed=False, master="m")


def polling(**changes: object) -> Play:
    return Play(agent(polls=True, **changes))


def asked(play: Play, *, whole: bool = True) -> tuple[RequestId, EventId, tuple[str, ...]]:
    """A request that waits, its poll and the poll's answer ids."""
    request_id = play.ask(whole=whole)
    return request_id, play.post_poll(request_id), make_answer_ids(play.request(request_id))


def sent(play: Play, kind: type[Poll | PollEnd]) -> list[Send]:
    return [e for e in play.all_effects if isinstance(e, Send) and isinstance(e.message, kind)]


def ended(play: Play) -> list[EventId]:
    return [e.message.poll for e in sent(play, PollEnd) if isinstance(e.message, PollEnd)]


def decided(play: Play) -> list[StoreDecision]:
    return [e for e in play.all_effects if isinstance(e, StoreDecision)]


def change(play: Play, command: str = "rm -rf /") -> None:
    (call,) = play.state.calls
    changed = ToolCallChanged(
        session_id=SESSION, tool_call_id="call_1", description=describe(command=command), call=call
    )
    play.step(changed)


# --------------------------------------------------------------------------------------------------------- how it begins


def test_the_poll_follows_its_prompt_under_an_id_of_its_own_and_comes_before_the_seeds() -> None:
    play = polling(reactions=True)
    request_id = play.ask(posted=False)
    assert sent(play, Poll) == []
    play.post(request_id)
    sends = [e for e in play.effects if isinstance(e, Send)]
    assert [type(e.message) for e in sends] == [Poll, Seed, Seed, Seed]
    assert (sends[0].transaction_id, sends[0].priority) == (f"{request_id}/1/1/poll", Priority.NOTICE)


def test_a_poll_has_one_answer_for_each_option() -> None:
    play = polling()
    request_id, _, answers = asked(play)
    (send,) = sent(play, Poll)
    assert send.message == Poll(replace(play.request(request_id), placed=False), answers)
    assert len(set(answers)) == len(OPTIONS)


@pytest.mark.parametrize("count", [1, 21])
def test_a_poll_that_clients_would_not_show_is_not_sent(count: int) -> None:
    play = polling()
    play.ask(options=tuple(option(f"o{n}", f"Option {n}", Meaning.APPROVE) for n in range(count)))
    assert sent(play, Poll) == []


@pytest.mark.parametrize("count", [2, 20])
def test_a_poll_has_as_many_answers_as_clients_show(count: int) -> None:
    play = polling()
    play.ask(options=tuple(option(f"o{n}", f"Option {n}", Meaning.APPROVE) for n in range(count)))
    assert len(sent(play, Poll)) == 1


def test_no_poll_where_polls_are_off() -> None:
    play = Play(agent(polls=False))
    play.ask()
    assert sent(play, Poll) == []


def test_no_poll_for_a_request_without_a_nonce() -> None:
    play = polling()
    request_id = play.ask()
    assert make_answer_ids(replace(play.request(request_id), nonce="")) == ()


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(1, 3)), min_size=2, max_size=2, unique=True))
def test_no_two_prompts_or_revisions_share_an_answer_id(which: list[tuple[str, int]]) -> None:
    play = polling()
    request = play.request(play.ask())
    first, second = (
        set(make_answer_ids(replace(request, request_id=RequestId(name), revision=revision)))
        for name, revision in which
    )
    assert not first & second


def test_answer_ids_change_with_the_nonce_and_do_not_show_it() -> None:
    play = polling()
    request = play.request(play.ask())
    answers = make_answer_ids(request)
    assert not set(answers) & set(make_answer_ids(replace(request, nonce="another")))
    assert not any(NONCE in answer for answer in answers)
    assert NONCE not in repr(request)


# ------------------------------------------------------------------------------------------------------------- who votes


@pytest.mark.parametrize("index", range(len(OPTIONS)))
def test_a_vote_decides_for_the_option_of_its_answer(index: int) -> None:
    play = polling()
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[index])
    decision = play.request(request_id).decision
    assert decision is not None
    assert (decision.option, decision.by, decision.via) == (OPTIONS[index], ALICE, Via.POLL)
    assert decision.event_id == "$e1"


def test_the_first_valid_vote_decides_and_a_later_one_is_told_once_who_won() -> None:
    play = polling()
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[2])
    play.vote(poll, answers[0], sender=BOB)
    assert play.told() == [TooLate(play.request(request_id), BOB, poll)]
    assert [e.by for e in play.did(StoreLateAnswer) if isinstance(e, StoreLateAnswer)] == [BOB]
    play.vote(poll, answers[1], sender=BOB)
    assert play.told() == []
    assert [each.decision.option for each in decided(play)] == [REJECT]


@pytest.mark.parametrize("chosen", [(), (0, 1), (0, 0), ("opt-allow",), ("",), ("1",), ("Allow once",)])
def test_anything_but_exactly_one_answer_of_the_poll_is_nothing(chosen: tuple[int | str, ...]) -> None:
    play = polling()
    _, poll, answers = asked(play)
    effects = play.vote(poll, *(each if isinstance(each, str) else answers[each] for each in chosen))
    assert effects == []


def test_an_answer_of_another_prompts_poll_fits_no_other() -> None:
    play = polling()
    first, _, answers = asked(play)
    _, other_poll, _ = asked(play)
    assert play.vote(other_poll, answers[0]) == []
    assert play.request(first).phase is Phase.PENDING


def test_a_vote_under_anything_but_a_poll_of_ours_is_nothing() -> None:
    play = polling()
    request_id, poll, answers = asked(play)
    assert play.vote(play.event_of(request_id), answers[0]) == []
    assert play.vote(EventId("$somebody's poll"), answers[0]) == []
    assert play.vote(poll, answers[0], room=RoomId("!elsewhere")) == []


def test_a_stranger_who_votes_is_told_once_that_they_may_not() -> None:
    play = polling()
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[0], sender=MALLORY)
    assert play.told() == [NotAllowed(play.request(request_id), MALLORY, poll)]
    play.vote(poll, answers[0], sender=MALLORY)
    assert play.told() == []
    assert play.request(request_id).phase is Phase.PENDING


def test_a_vote_for_what_was_not_shown_whole_is_confirmed_first() -> None:
    play = polling()
    request_id, poll, answers = asked(play, whole=False)
    play.vote(poll, answers[0])
    assert play.told() == [Confirm(play.request(request_id), ALLOW, ALICE, poll)]
    assert play.request(request_id).phase is Phase.PENDING
    play.vote(poll, answers[2], sender=BOB)
    assert play.request(request_id).phase is Phase.DECIDED


def test_a_vote_shows_that_its_sender_has_seen_the_room() -> None:
    play = polling()
    first, poll, answers = asked(play)
    asked(play)
    play.reply(first, "3", BOB)
    assert ALICE in play.state.rooms[ROOM].unseen
    play.vote(poll, answers[0])
    assert ALICE not in play.state.rooms[ROOM].unseen


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_reply_to_the_poll_is_a_reply_to_its_prompt(in_thread: bool) -> None:
    play = polling()
    request_id, poll, _ = asked(play)
    asked(play)
    play.say("3", ALICE, poll, in_thread=in_thread)
    assert play.request(request_id).phase is Phase.DECIDED


def test_a_reply_to_the_poll_that_fits_nothing_gets_the_list() -> None:
    play = polling()
    _, poll, _ = asked(play)
    play.say("yes", ALICE, poll)
    assert [type(message) for message in play.told()] == [NotAnOption]


def test_a_reaction_on_the_poll_is_one_on_its_prompt() -> None:
    play = polling()
    request_id, poll, _ = asked(play)
    play.react(poll, "1\ufe0f\u20e3")
    decision = play.request(request_id).decision
    assert decision is not None
    assert (decision.option, decision.via) == (ALLOW, Via.REACTION)


# -------------------------------------------------------------------------------------------------- in an encrypted room


def encrypted(**changes: object) -> Play:
    play = polling(**changes)
    play.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=2, encrypted=True))
    return play


@pytest.mark.parametrize("strict", [False, True])
def test_an_encrypted_vote_from_an_accepted_device_counts_under_strict_too(strict: bool) -> None:
    play = encrypted(strict=strict)
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[0], seal=SIGNED)
    assert play.request(request_id).phase is Phase.DECIDED


def test_a_vote_from_a_device_that_trust_does_not_accept_counts_for_nothing_and_is_told() -> None:
    play = encrypted()
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[0], seal=UNSIGNED)
    assert [type(message) for message in play.told()] == [DeviceRefused]
    assert play.request(request_id).phase is Phase.PENDING


def test_a_vote_counts_from_the_devices_of_its_own_agent_alone() -> None:
    strictest = agent(polls=True)
    other = replace(strictest, name=AgentName("codex"), trust=Trust.ANY)
    play = Play(strictest, other)
    play.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=2, encrypted=True))
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[0], seal=UNSIGNED)
    assert play.request(request_id).phase is Phase.PENDING


def test_a_vote_that_could_be_read_only_later_counts_and_says_nothing_of_what_its_sender_sees_now() -> None:
    play = encrypted()
    first, poll, answers = asked(play)
    asked(play)
    event_id = EventId("$locked")
    play.step(Locked(room=ROOM, sender=ALICE, event_id=event_id, raw="{}"))
    play.vote(poll, answers[2], sender=BOB, seal=SIGNED)
    assert play.request(first).phase is Phase.DECIDED
    play.vote(poll, answers[0], seal=SIGNED, event_id=event_id)
    assert play.told() == [TooLate(play.request(first), ALICE, poll)]
    assert ALICE in play.state.rooms[ROOM].unseen


@pytest.mark.parametrize("exposed", [False, True])
def test_a_vote_in_clear_text_counts_for_nothing(exposed: bool) -> None:
    play = encrypted()
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[0], exposed=exposed)
    assert [type(message) for message in play.told()] == [Exposed]
    assert play.request(request_id).phase is Phase.PENDING


def test_what_votes_for_nothing_gets_no_word_of_devices_either() -> None:
    play = encrypted()
    _, poll, _ = asked(play)
    assert play.vote(poll, "made up", exposed=True) == []


# ------------------------------------------------------------------------------------------------------------ how it ends


def test_the_poll_ends_with_its_prompt_after_the_edit() -> None:
    play = polling()
    request_id, poll, answers = asked(play)
    play.vote(poll, answers[0])
    assert ended(play) == []
    play.deliver(request_id)
    sends = [e for e in play.effects if isinstance(e, Send)]
    assert [type(e.message) for e in sends] == [Closing, PollEnd]
    assert sends[1].message == PollEnd(play.request(request_id), poll)
    assert sends[1].priority is Priority.EDIT


def test_a_poll_that_has_not_left_is_withheld_once_somebody_answers() -> None:
    play = polling()
    request_id = play.ask()
    (ballot,) = play.state.entries[request_id].ballots
    play.reply(request_id, "3")
    assert Withhold(ballot.transaction_id) in play.effects
    play.step(SendFailed(transaction_id=ballot.transaction_id, sentence="It was withheld."))
    play.deliver(request_id)
    assert ended(play) == []


def test_a_poll_that_is_there_is_not_withheld() -> None:
    play = polling()
    request_id, _, _ = asked(play)
    play.reply(request_id, "3")
    assert play.did(Withhold) == []


def test_a_poll_that_was_on_its_way_is_ended_when_it_arrives() -> None:
    play = polling()
    request_id = play.ask()
    play.reply(request_id, "3")
    play.deliver(request_id)
    assert ended(play) == []
    poll = play.post_poll(request_id)
    assert ended(play) == [poll]


def test_a_poll_that_arrives_between_decision_and_end_is_ended_once() -> None:
    play = polling()
    request_id = play.ask()
    play.reply(request_id, "3")
    poll = play.post_poll(request_id)
    assert ended(play) == []
    play.deliver(request_id)
    assert ended(play) == [poll]


def test_a_changed_request_ends_its_poll_and_brings_a_new_one() -> None:
    play = polling()
    request_id, old, answers = asked(play)
    change(play)
    assert ended(play) == [old]
    play.post(request_id)
    new = play.post_poll(request_id)
    assert len(sent(play, Poll)) == 2
    play.vote(old, answers[0])
    assert play.told() == [TooLate(play.request(request_id), ALICE, old)]
    assert play.vote(new, answers[0]) == []
    play.vote(new, make_answer_ids(play.request(request_id))[0])
    assert play.request(request_id).phase is Phase.DECIDED
    play.deliver(request_id)
    assert ended(play) == [old, new]


def test_a_changed_request_withholds_a_poll_that_has_not_left() -> None:
    play = polling()
    request_id = play.ask()
    (ballot,) = play.state.entries[request_id].ballots
    change(play)
    assert Withhold(ballot.transaction_id) in play.effects
    play.step(Sent(transaction_id=ballot.transaction_id, event_id=EventId("$late")))
    assert ended(play) == ["$late"]


def test_a_prompt_that_is_posted_again_gets_a_new_poll_and_a_vote_in_either_counts() -> None:
    play = polling()
    request_id, old, answers = asked(play)
    play.step(Redacted(room=ROOM, sender=BOB, target=play.event_of(request_id)))
    assert ended(play) == [old]
    play.post(request_id)
    new = play.post_poll(request_id)
    assert new != old
    play.vote(old, answers[2])
    assert play.request(request_id).phase is Phase.DECIDED


def test_a_prompt_that_is_posted_again_withholds_a_poll_that_has_not_left() -> None:
    play = polling()
    request_id = play.ask()
    (ballot,) = play.state.entries[request_id].ballots
    play.step(Redacted(room=ROOM, sender=BOB, target=play.event_of(request_id)))
    assert Withhold(ballot.transaction_id) in play.effects


def test_a_poll_that_is_too_large_leaves_its_prompt_as_it_was() -> None:
    play = polling()
    request_id = play.ask()
    (ballot,) = play.state.entries[request_id].ballots
    play.step(TooLarge(transaction_id=ballot.transaction_id))
    assert play.effects == []
    assert play.request(request_id).phase is Phase.PENDING


def test_the_polls_place_in_the_timeline_makes_no_prompt_placed() -> None:
    play = polling()
    request_id = play.ask(posted=False)
    transaction_id = play.state.entries[request_id].transaction_id
    assert transaction_id is not None
    play.step(Sent(transaction_id=transaction_id, event_id=EventId("$prompt")))
    poll = play.post_poll(request_id)
    play.step(Echoed(room=ROOM, event_id=poll, transaction_id=None))
    assert not play.request(request_id).placed


def test_the_polls_of_a_forgotten_request_are_forgotten() -> None:
    play = polling()
    first, poll, _ = asked(play)
    play.reply(first, "3")
    play.deliver(first)
    for _ in range(CLOSED_KEPT):
        request_id = play.ask()
        play.reply(request_id, "3")
        play.deliver(request_id)
    assert first not in play.state.entries
    assert poll not in play.state.shown


def test_a_poll_of_a_forgotten_request_that_never_left_is_not_waited_for() -> None:
    play = polling()
    for _ in range(CLOSED_KEPT + 1):
        request_id = play.ask()
        play.reply(request_id, "3")
        play.deliver(request_id)
    polls = [leaving for leaving in play.state.leaving.values() if leaving.poll]
    assert len(polls) == CLOSED_KEPT


# ---------------------------------------------------------------------------------------------------------- after a restart


def found_after(request: Request, *, closed: bool, unsent: bool = False) -> Play:
    """A bridge that starts with what another one left: this request, open or closed, and its poll."""
    out = StoreOutgoing(
        transaction_id=TransactionId(f"{request.request_id}/1/1/poll"),
        room=ROOM,
        event_type="poll",
        content={},
        priority=Priority.NOTICE,
        request_id=request.request_id,
    )
    found = replace(
        NOTHING_FOUND,
        closed=(request,) if closed else (),
        open=() if closed else (request,),
        outgoing=(out,) if unsent else (),
        polls=() if unsent or closed else ((request.request_id, EventId("$poll")),),
    )
    play = polling()
    state, effects = broker.recover(begin(play.state.rules, found), found, Millis(2_000_000))
    play.state, play.effects, play.all_effects = state, effects, effects
    return play


def test_the_poll_of_an_open_request_is_ended_after_a_restart_and_a_late_vote_is_told() -> None:
    earlier = polling()
    request = earlier.request(earlier.ask())
    play = found_after(request, closed=False)
    assert ended(play) == ["$poll"]
    play.vote(EventId("$poll"), make_answer_ids(request)[0])
    assert [type(message) for message in play.told()] == [TooLate]


@pytest.mark.parametrize("closed", [False, True])
def test_a_poll_that_was_on_its_way_is_ended_once_it_is_there_after_a_restart(closed: bool) -> None:
    earlier = polling()
    request_id = earlier.ask()
    if closed:
        earlier.reply(request_id, "3")
        earlier.deliver(request_id)
    play = found_after(earlier.request(request_id), closed=closed, unsent=True)
    assert (ended(play), play.did(Withhold)) == ([], [])
    play.step(Sent(transaction_id=TransactionId(f"{request_id}/1/1/poll"), event_id=EventId("$late")))
    assert ended(play) == ["$late"]
    assert [e for e in play.all_effects if isinstance(e, Send) and isinstance(e.message, Prompt)] == []


def test_a_vote_is_read_for_the_revision_of_its_poll() -> None:
    play = polling()
    request = play.request(play.ask())
    first = make_answer_ids(request)
    assert read_vote(request, 1, first[:1]) == ALLOW
    assert read_vote(request, 2, first[:1]) is None
