"""Rules 13 and 14 for what could not be read at its place: what it says later counts only for what stood there then."""

from dataclasses import replace

import pytest

from bridge.core.changes import StoreLocked, StoreTaken, StoreUnlocked
from bridge.core.effects import Conversation, Log, Send
from bridge.core.events import Echoed, Locked, Sent, StillLocked, ToolCallChanged, Unlocked
from bridge.core.locked import LOCKED_KEPT
from bridge.core.messages import Confirm, SendAgain, TooLate, WhichPrompt
from bridge.core.model import CallRef, EventId, Phase, RequestId, RoomId, Selected, SessionId, UserId
from tests.core.play import ALICE, BOB, MALLORY, NOTHING_FOUND, ROOM, SESSION, Play, agent, describe

CAROL = UserId("@carol:ex.org")


@pytest.fixture
def play() -> Play:
    play = Play(agent(users=frozenset({ALICE, BOB, CAROL})))
    play.encrypt()
    return play


def phases(play: Play, *asked: RequestId) -> list[Phase]:
    return [play.request(request_id).phase for request_id in asked]


def test_a_locked_message_is_stored_as_it_came(play: Play) -> None:
    event_id = play.lock()
    assert play.effects == [StoreLocked(event_id=event_id, room=ROOM, sender=ALICE, raw="{}")]


def test_it_is_taken_once_though_its_batch_is_given_again(play: Play) -> None:
    event_id = play.lock()
    play.step(Locked(room=ROOM, sender=ALICE, event_id=event_id, raw="{}"))
    assert play.effects == []


def test_of_strangers_nothing_is_kept(play: Play) -> None:
    play.lock(MALLORY)
    assert play.effects == []


def test_what_is_done_with_is_forgotten_once(play: Play) -> None:
    event_id = play.lock()
    play.step(Unlocked(room=ROOM, event_id=event_id))
    assert play.effects == [StoreUnlocked(event_id)]
    play.step(Unlocked(room=ROOM, event_id=event_id))
    assert play.effects == []


@pytest.mark.parametrize("text", ["1", "#1 1"])
@pytest.mark.parametrize("aimed", [True, False])
def test_it_answers_a_prompt_that_stood_there(play: Play, text: str, aimed: bool) -> None:
    asked = play.ask()
    event_id = play.lock()
    play.open(event_id, text, *([play.event_of(asked)] if aimed else []))
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


@pytest.mark.parametrize("text", ["1", "#1 1", "Allow once"])
@pytest.mark.parametrize("aimed", [True, False])
def test_it_answers_no_prompt_that_came_after_it(play: Play, text: str, aimed: bool) -> None:
    event_id = play.lock()
    asked = play.ask()
    play.open(event_id, text, *([play.event_of(asked)] if aimed else []))
    assert [type(m) for m in play.told()] == [WhichPrompt]
    assert phases(play, asked) == [Phase.PENDING]


@pytest.mark.parametrize(("text", "aimed"), [("1", True), ("#1 1", True), ("#1 1", False)])
def test_it_answers_no_prompt_whose_message_was_posted_anew_after_it(play: Play, text: str, aimed: bool) -> None:
    asked = play.ask()
    event_id = play.lock()
    changed = describe(command="rm -rf /")
    play.step(ToolCallChanged(session_id=SESSION, tool_call_id="call_1", description=changed, call=CallRef(1)))
    play.post(asked)
    play.wait(60)
    play.open(event_id, text, *([play.event_of(asked)] if aimed else []))
    assert phases(play, asked) == [Phase.PENDING]


def send(play: Play, asked: RequestId, event_id: EventId) -> None:
    """The homeserver takes the message, and it is not seen in the timeline yet."""
    transaction_id = play.state.entries[asked].transaction_id
    assert transaction_id is not None
    play.step(Sent(transaction_id=transaction_id, event_id=event_id))


def test_it_answers_no_prompt_that_has_not_been_seen_in_the_room_yet(play: Play) -> None:
    asked = play.ask(posted=False)
    send(play, asked, EventId("$first"))
    play.open(play.lock(), "1", EventId("$first"))
    assert phases(play, asked) == [Phase.PENDING]


def test_nor_one_of_which_only_an_earlier_message_has(play: Play) -> None:
    asked = play.ask()
    event_id = play.lock()
    changed = describe(command="rm -rf /")
    play.step(ToolCallChanged(session_id=SESSION, tool_call_id="call_1", description=changed, call=CallRef(1)))
    send(play, asked, EventId("$second"))
    play.open(event_id, "1", EventId("$second"))
    assert phases(play, asked) == [Phase.PENDING]


def test_a_prompt_that_shows_up_again_in_the_timeline_keeps_its_place(play: Play) -> None:
    asked = play.ask()
    event_id = play.lock()
    play.step(Echoed(room=ROOM, event_id=play.event_of(asked), transaction_id=None))
    play.open(event_id, "1")
    assert phases(play, asked) == [Phase.DECIDED]


def test_bare_text_that_could_have_meant_two_prompts_decides_nothing_when_one_is_left(play: Play) -> None:
    first, second = play.ask(), play.ask()
    event_id = play.lock()
    play.reply(first, "3")
    play.wait(60)
    play.open(event_id, "1")
    assert [type(m) for m in play.told()] == [WhichPrompt]
    assert phases(play, second) == [Phase.PENDING]


def test_bare_text_that_came_just_after_a_prompt_closed_decides_nothing_however_late_it_is_read(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(first, "3")
    event_id = play.lock()
    play.wait(60)
    play.open(event_id, "1")
    assert phases(play, second) == [Phase.PENDING]


def test_bare_text_that_came_well_after_a_prompt_closed_answers_though_another_moment_is_now(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(first, "3")
    play.wait(6)
    event_id = play.lock()
    play.wait(60)
    play.open(event_id, "1")
    assert phases(play, second) == [Phase.DECIDED]


def test_bare_text_of_somebody_whose_phone_showed_an_old_prompt_then_decides_nothing(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(first, "3", BOB)
    play.wait(6)
    event_id = play.lock()
    play.say("hm")
    play.open(event_id, "1")
    assert phases(play, second) == [Phase.PENDING]


def test_what_was_written_before_an_ending_does_not_show_that_its_writer_has_seen_it(play: Play) -> None:
    first, second = play.ask(), play.ask()
    event_id = play.lock()
    play.reply(first, "3", BOB)
    play.wait(6)
    play.open(event_id, "hm")
    play.say("1")
    assert phases(play, second) == [Phase.PENDING]


def test_an_answer_whose_prompt_has_closed_since_is_told_how_and_goes_to_no_agent(play: Play) -> None:
    asked = play.ask()
    event_id = play.lock()
    play.reply(asked, "3", BOB)
    play.deliver(asked)
    play.wait(600)
    play.open(event_id, "1")
    assert [type(m) for m in play.told()] == [TooLate]
    assert play.did(Conversation) == []


def test_other_words_go_to_the_agent_when_they_can_be_read(play: Play) -> None:
    event_id = play.lock()
    play.open(event_id, "write the tests")
    assert len(play.did(Conversation)) == 1


def test_it_confirms_no_question_that_came_after_it(play: Play) -> None:
    asked = play.ask(whole=False)
    early = play.lock()
    play.reply(asked, "1")
    (send,) = [e for e in play.effects if isinstance(e, Send) and isinstance(e.message, Confirm)]
    assert send.transaction_id is not None
    question = EventId("$question")
    play.step(Sent(transaction_id=send.transaction_id, event_id=question))
    placed = Echoed(room=ROOM, event_id=question, transaction_id=send.transaction_id)
    play.step(placed)
    later = play.lock()
    play.step(placed)
    play.open(early, "confirm", question)
    assert play.outcomes == []
    play.open(later, "confirm", question)
    assert [o for _, o in play.outcomes] == [Selected("opt-allow")]


# ---------------------------------------------------------------------------------------------- what stays unreadable


def still(play: Play, event_id: EventId, *, withheld: bool = False) -> None:
    play.step(StillLocked(room=ROOM, sender=ALICE, event_id=event_id, withheld=withheld))


@pytest.mark.parametrize("withheld", [True, False])
def test_the_sender_is_asked_to_send_it_again(play: Play, withheld: bool) -> None:
    event_id = play.lock()
    still(play, event_id, withheld=withheld)
    assert play.told() == [SendAgain(ALICE, event_id, withheld)]


def test_they_are_asked_once_until_a_message_of_theirs_is_read(play: Play) -> None:
    first, second, third = play.lock(), play.lock(), play.lock()
    still(play, first)
    still(play, second)
    assert play.effects == []
    play.say("hello")
    still(play, third)
    assert [type(m) for m in play.told()] == [SendAgain]


def test_each_person_is_asked(play: Play) -> None:
    mine, theirs = play.lock(), play.lock(BOB)
    still(play, mine)
    play.step(StillLocked(room=ROOM, sender=BOB, event_id=theirs))
    assert play.told() == [SendAgain(BOB, theirs, withheld=False)]


def test_who_may_only_prompt_is_asked_too(play: Play) -> None:
    event_id = play.lock(CAROL)
    play.step(StillLocked(room=ROOM, sender=CAROL, event_id=event_id))
    assert [type(m) for m in play.told()] == [SendAgain]


def test_what_was_read_meanwhile_is_not_asked_for(play: Play) -> None:
    event_id = play.lock()
    play.open(event_id, "hello")
    still(play, event_id)
    assert play.effects == []


def test_in_a_room_that_is_not_encrypted_nobody_is_asked() -> None:
    play = Play()
    event_id = play.lock()
    still(play, event_id)
    assert play.effects == []


def test_who_is_on_no_list_any_more_is_not_asked() -> None:
    stored = StoreLocked(event_id=EventId("$old"), room=ROOM, sender=MALLORY, raw="{}")
    play = Play(found=replace(NOTHING_FOUND, locked=(stored,)))
    play.encrypt()
    play.step(StillLocked(room=ROOM, sender=MALLORY, event_id=EventId("$old")))
    assert play.effects == []


def test_no_more_are_kept_than_are_waited_for_and_what_is_dropped_never_counts(play: Play) -> None:
    first = play.lock()
    for _ in range(LOCKED_KEPT - 1):
        play.lock()
    assert play.did(StoreUnlocked) == []
    play.lock()
    assert play.did(StoreUnlocked) == [StoreUnlocked(first)]
    assert play.did(StoreTaken) == [StoreTaken(first)]
    assert [e.warning for e in play.effects if isinstance(e, Log)] == [True]
    assert len(play.state.locked) == len(play.state.locked_order) == LOCKED_KEPT


# ------------------------------------------------------------------------------------------------------ over a restart


@pytest.fixture
def restarted() -> Play:
    """A bridge that finds a message of its last run, still locked, and a prompt that had closed before it ended."""
    before = Play()
    asked = before.ask()
    before.reply(asked, "3", BOB)
    before.deliver(asked)
    stored = StoreLocked(event_id=EventId("$old"), room=ROOM, sender=ALICE, raw="{}")
    closed = replace(before.request(asked), request_id=RequestId("acps_old:1"), session_id=SessionId("acps_old"))
    play = Play(found=replace(NOTHING_FOUND, locked=(stored,), closed=(closed,), next_numbers={ROOM: 2}))
    play.encrypt()
    return play


@pytest.mark.parametrize("text", ["1", "#2 1"])
@pytest.mark.parametrize("aimed", [True, False])
def test_what_was_locked_before_a_restart_answers_nothing_asked_after_it(
    restarted: Play, text: str, aimed: bool
) -> None:
    asked = restarted.ask()
    restarted.wait(600)
    restarted.open(EventId("$old"), text, *([restarted.event_of(asked)] if aimed else []))
    assert phases(restarted, asked) == [Phase.PENDING]
    assert StoreUnlocked(EventId("$old")) in restarted.all_effects


def test_an_answer_that_is_read_after_a_restart_is_told_late_and_goes_to_no_agent(restarted: Play) -> None:
    restarted.wait(600)
    restarted.open(EventId("$old"), "1")
    assert [type(m) for m in restarted.told()] == [TooLate]
    assert restarted.did(Conversation) == []


def test_words_for_the_agent_still_arrive_after_a_restart(restarted: Play) -> None:
    restarted.open(EventId("$old"), "write the tests")
    assert len(restarted.did(Conversation)) == 1


def test_what_is_locked_in_a_room_without_agents_is_not_kept(play: Play) -> None:
    play.lock(ALICE, RoomId("!other:ex.org"))
    assert play.effects == []
