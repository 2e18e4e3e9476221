"""Rules 13 to 16: who may answer, which request is meant, what counts, and what people are told."""

from dataclasses import replace

import pytest

from bridge.core.changes import StoreLateAnswer, StoreUnseen
from bridge.core.effects import Conversation
from bridge.core.messages import NotAllowed, NotAnOption, TooLate, WhichPrompt, WrongNumber
from bridge.core.model import AgentName, Ending, EventId, Meaning, Phase, RequestId, Selected, UserId, Via
from tests.core.play import ALICE, ALLOW, BOB, MALLORY, NOTHING_FOUND, REJECT, Play, agent, option

ELSEWHERE = EventId("$elsewhere")


@pytest.fixture
def play() -> Play:
    return Play()


def decided(play: Play, request_id: RequestId) -> str | None:
    decision = play.request(request_id).decision
    return None if decision is None or decision.option is None else decision.option.option_id


def test_a_bare_number_answers_the_only_waiting_prompt(play: Play) -> None:
    asked = play.ask()
    play.say("1")
    assert decided(play, asked) == "opt-allow"
    assert [outcome for _, outcome in play.outcomes] == [Selected("opt-allow")]


@pytest.mark.parametrize("text", ["1", "allow once", "opt-allow", "#1 1", "#1 Allow once"])
def test_number_name_id_and_room_number_all_answer(play: Play, text: str) -> None:
    asked = play.ask()
    play.say(text)
    assert decided(play, asked) == "opt-allow"


def test_a_reply_answers_its_own_prompt_though_two_wait(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(second, "3")
    assert (decided(play, first), decided(play, second)) == (None, "opt-reject")


def test_a_reaction_answers_its_own_prompt_though_two_wait(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.react(play.event_of(first), "1\ufe0f\u20e3")
    assert (decided(play, first), decided(play, second)) == ("opt-allow", None)
    decision = play.request(first).decision
    assert decision is not None
    assert (decision.via, decision.by) == (Via.REACTION, ALICE)


def test_a_thread_is_noted_as_the_surface(play: Play) -> None:
    asked = play.ask()
    play.say("3", ALICE, play.event_of(asked), in_thread=True)
    decision = play.request(asked).decision
    assert decision is not None
    assert decision.via is Via.THREAD


@pytest.mark.parametrize("key", ["\U0001f44d", "\u2705", "9\ufe0f\u20e3", "0\ufe0f\u20e3"])
def test_a_reaction_that_names_no_option_is_nothing(play: Play, key: str) -> None:
    asked = play.ask()
    play.react(play.event_of(asked), key)
    assert play.effects == []
    assert play.request(asked).phase is Phase.PENDING


def test_a_reaction_on_anything_but_a_prompt_is_nothing(play: Play) -> None:
    play.ask()
    play.react(ELSEWHERE, "1")
    assert play.effects == []


def test_bare_text_with_two_waiting_decides_nothing_and_names_both(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.say("1")
    (told,) = play.told()
    assert isinstance(told, WhichPrompt)
    assert [r.request_id for r in told.waiting] == [first, second]
    assert play.outcomes == []


def test_no_more_than_ten_waiting_prompts_are_named(play: Play) -> None:
    for _ in range(12):
        play.ask()
    play.say("1")
    (told,) = play.told(WhichPrompt)
    assert isinstance(told, WhichPrompt)
    assert (len(told.waiting), told.more) == (10, 2)


def test_text_that_was_written_before_the_prompt_stood_in_the_timeline_decides_nothing(play: Play) -> None:
    asked = play.ask(posted=False)
    play.say("1")
    assert play.request(asked).phase is Phase.PENDING
    assert isinstance(play.told()[0], WhichPrompt)
    play.say("#1 1")
    assert play.request(asked).phase is Phase.PENDING


def test_bare_text_just_after_another_prompt_closed_decides_nothing(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(first, "1")
    play.wait(4.9)
    play.say("1")
    assert decided(play, second) is None
    assert isinstance(play.told()[0], WhichPrompt)
    play.wait(0.2)
    play.say("1")
    assert decided(play, second) == "opt-allow"


def test_a_clock_that_was_set_back_makes_nothing_look_just_closed(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(first, "1")
    play.wait(-86_400)
    play.say("1")
    assert decided(play, second) == "opt-allow"


def test_a_person_who_may_still_see_an_ended_prompt_is_asked_once_which_one_she_means(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.react(play.event_of(first), "3", BOB)
    assert StoreUnseen(room=play.request(first).room, person=ALICE, on=True) in play.effects
    play.wait(60)
    play.say("1")
    assert decided(play, second) is None
    assert isinstance(play.told()[0], WhichPrompt)
    assert StoreUnseen(room=play.request(first).room, person=ALICE, on=False) in play.effects
    play.say("2")
    assert decided(play, second) == "opt-always"


def test_whoever_reacted_since_has_seen_the_ended_prompt(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.react(play.event_of(first), "3", BOB)
    play.react(ELSEWHERE, "\U0001f440")
    play.wait(12)
    play.say("1")
    assert decided(play, second) == "opt-allow"


def test_the_one_who_ended_a_prompt_may_go_on_with_bare_text(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.react(play.event_of(first), "1")
    play.wait(30)
    play.say("3")
    assert decided(play, second) == "opt-reject"


def test_a_stranger_who_tries_is_told_once_and_no_more_than_three_are_told(play: Play) -> None:
    asked = play.ask()
    told = 0
    for stranger in ("@m1:x", "@m1:x", "@m2:x", "@m3:x", "@m4:x", "@m4:x"):
        play.say("1", UserId(stranger))
        told += len(play.told(NotAllowed))
        play.react(play.event_of(asked), "1", UserId(stranger))
        told += len(play.told(NotAllowed))
    assert told == 3
    assert play.outcomes == []
    assert play.request(asked).phase is Phase.PENDING


def test_a_stranger_among_two_waiting_prompts_is_told_once(play: Play) -> None:
    play.ask()
    play.ask()
    play.say("1", MALLORY)
    assert len(play.told(NotAllowed)) == 1
    play.say("1", MALLORY)
    assert play.effects == []


@pytest.mark.parametrize("sender", ["@Alice:ex.org", "@alice:EX.org", "@alice:other.org", "alice"])
def test_only_the_exact_user_id_counts(play: Play, sender: str) -> None:
    play.ask()
    play.say("1", UserId(sender))
    assert play.outcomes == []


def test_a_wrong_number_is_refused_with_the_list(play: Play) -> None:
    asked = play.ask()
    for text in ("0", "4", "007", "-1", "1.0", "\u0662"):
        play.say(text)
        assert isinstance(play.told()[0], NotAnOption)
    assert play.request(asked).phase is Phase.PENDING


def test_other_words_in_a_reply_to_the_prompt_are_refused(play: Play) -> None:
    asked = play.ask()
    play.reply(asked, "yes")
    assert isinstance(play.told()[0], NotAnOption)
    assert play.request(asked).phase is Phase.PENDING


def test_the_number_of_a_prompt_alone_is_refused_with_the_list(play: Play) -> None:
    play.ask()
    play.say("#1")
    assert isinstance(play.told()[0], NotAnOption)


@pytest.mark.parametrize("text", ["yes", "1 please", "allow", "what does it do?", "fix #12 please"])
def test_other_text_is_conversation(play: Play, text: str) -> None:
    asked = play.ask()
    (effect,) = play.say(text)
    assert isinstance(effect, Conversation)
    assert play.request(asked).phase is Phase.PENDING


def test_a_name_is_an_attempt_as_long_as_one_waiting_prompt_offers_it(play: Play) -> None:
    lists = [(option(f"a{n}", f"Allow command {n}", Meaning.APPROVE), REJECT) for n in (1, 2, 2)]
    _, second, third = [play.ask(options=options) for options in lists]
    for ended in (second, third):
        play.say("allow command 2")
        assert len(play.told(WhichPrompt)) == 1
        play.reply(ended, "2")
    play.say("allow command 2")
    assert play.did(Conversation)
    play.say("reject")
    assert len(play.told(WhichPrompt)) == 1


def test_a_reply_to_something_else_is_conversation(play: Play) -> None:
    asked = play.ask()
    (effect,) = play.say("1", ALICE, ELSEWHERE)
    assert isinstance(effect, Conversation)
    assert play.request(asked).phase is Phase.PENDING


def test_a_reply_that_names_another_prompt_in_front_is_told_so(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(first, "#2 1")
    assert isinstance(play.told()[0], WrongNumber)
    assert (decided(play, first), decided(play, second)) == (None, None)


def test_a_message_aimed_at_two_prompts_answers_neither(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.say("1", ALICE, play.event_of(first), play.event_of(second))
    assert isinstance(play.told()[0], WhichPrompt)
    assert play.outcomes == []


def test_a_room_number_in_a_reply_to_something_else_is_asked_about(play: Play) -> None:
    asked = play.ask()
    play.say("#1 1", ALICE, ELSEWHERE)
    assert isinstance(play.told()[0], WhichPrompt)
    assert decided(play, asked) is None


@pytest.mark.parametrize("text", ["#99 1", "#99"])
def test_an_unknown_room_number_gets_the_list_of_the_one_that_waits(play: Play, text: str) -> None:
    asked = play.ask()
    play.say(text, MALLORY)
    assert [type(message) for message in play.told()] == [NotAllowed]
    play.say(text)
    assert [type(message) for message in play.told()] == [NotAnOption]
    assert decided(play, asked) is None


def test_an_unknown_room_number_with_several_waiting_is_asked_about(play: Play) -> None:
    play.ask()
    play.ask()
    play.say("#99 1")
    assert isinstance(play.told()[0], WhichPrompt)


def test_an_unknown_room_number_before_other_words_is_conversation(play: Play) -> None:
    play.ask()
    (effect,) = play.say("#99 is the issue I mean")
    assert isinstance(effect, Conversation)


def test_a_message_with_the_id_of_another_request_counts_for_no_one(play: Play) -> None:
    asked = play.ask()
    for text, targets in (("1", ()), ("#1 1", ()), ("1", (play.event_of(asked),))):
        assert play.say(text, ALICE, *targets, foreign_request=RequestId("acps_3f0c:11")) == []
    play.say("1", foreign_request=asked)
    assert decided(play, asked) == "opt-allow"


def test_empty_text_is_nothing(play: Play) -> None:
    play.ask()
    for text in ("", " ", "\u200b"):
        assert play.say(text) == []


def test_a_command_is_never_an_answer(play: Play) -> None:
    asked = play.ask()
    (effect,) = play.reply(asked, "!cancel")
    assert isinstance(effect, Conversation)


def test_a_late_answerer_is_told_who_won_and_it_is_on_record(play: Play) -> None:
    asked = play.ask()
    play.say("3", BOB)
    play.deliver(asked)
    play.say("1")
    (told,) = play.told()
    assert isinstance(told, TooLate)
    assert told.request.decision is not None
    assert (told.request.decision.by, told.request.decision.option) == (BOB, REJECT)
    (record,) = play.did(StoreLateAnswer)
    assert isinstance(record, StoreLateAnswer)
    assert (record.by, record.option) == (ALICE, ALLOW)
    assert len(play.outcomes) == 1


def test_after_a_minute_bare_text_is_conversation_again(play: Play) -> None:
    asked = play.ask()
    play.say("3", BOB)
    play.deliver(asked)
    play.wait(60)
    assert isinstance(play.say("1")[0], Conversation)


def test_bare_text_that_would_not_have_answered_is_conversation_at_once(play: Play) -> None:
    play.ask()
    play.say("3", BOB)
    assert isinstance(play.say("thanks")[0], Conversation)


def test_a_late_reaction_is_told_once(play: Play) -> None:
    asked = play.ask()
    play.say("3", BOB)
    play.deliver(asked)
    play.react(play.event_of(asked), "1")
    told = [message.sender for message in play.told(TooLate) if isinstance(message, TooLate)]
    assert told == [ALICE]  # the word stands under the prompt, which names nobody
    play.react(play.event_of(asked), "2")
    assert play.told() == []


def test_words_under_an_ended_prompt_go_to_its_agent(play: Play) -> None:
    asked = play.ask()
    play.say("3", BOB)
    play.deliver(asked)
    effect = play.reply(asked, "why did you want that?")[0]
    assert isinstance(effect, Conversation)
    assert effect.aimed == "claude"


def test_the_number_of_an_ended_prompt_is_told_how_it_ended(play: Play) -> None:
    asked = play.ask()
    play.say("3", BOB)
    play.deliver(asked)
    play.say("#1 1")
    assert isinstance(play.told()[0], TooLate)


def test_an_approver_of_another_agent_in_the_room_may_not_answer() -> None:
    play = Play(agent(approvers=frozenset({BOB})))
    asked = play.ask()
    play.say("1", ALICE)
    assert isinstance(play.told()[0], NotAllowed)
    play.say("1", BOB)
    assert play.request(asked).phase is Phase.DECIDED


def test_an_answer_at_the_very_instant_of_expiry_is_late() -> None:
    play = Play(agent(expires_after=5_000))
    asked = play.ask()
    play.wait(5)
    play.say("1")
    decision = play.request(asked).decision
    assert decision is not None
    assert (decision.ending, decision.option) == (Ending.EXPIRED, REJECT)
    assert isinstance(play.told()[0], TooLate)


def test_nobody_answers_a_prompt_whose_agent_the_config_does_not_know_any_more() -> None:
    play = Play()
    asked = play.ask()
    event_id = play.event_of(asked)
    play.reply(asked, "3")
    play.deliver(asked)
    later = Play(agent(name=AgentName("codex")), found=replace(NOTHING_FOUND, closed=(play.request(asked),)))
    later.say("1", ALICE, event_id)
    assert [type(m) for m in later.told()] == [NotAllowed]
    later.react(event_id, "1", BOB)
    assert later.outcomes == []


def test_a_stranger_who_names_a_prompt_by_its_number_is_told_once_and_decides_nothing(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.say("#1 1", MALLORY)
    assert isinstance(play.told()[0], NotAllowed)
    play.reply(first, "#2 1", MALLORY)
    assert play.told() == []
    assert (decided(play, first), decided(play, second)) == (None, None)


def test_a_message_aimed_at_two_ended_prompts_is_passed_over(play: Play) -> None:
    first, second = play.ask(), play.ask()
    play.reply(first, "1")
    play.reply(second, "1")
    play.say("1", ALICE, play.event_of(first), play.event_of(second))
    assert play.told() == []
    assert len(play.outcomes) == 2
