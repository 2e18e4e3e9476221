"""Sentences about who decided what, what the room is told of it, and what decides nothing."""

import json
import re

from tests.cases.claims import (
    answers_to,
    closing,
    everything_shown,
    holds,
    only,
    read,
    reply_target,
    said,
    written_by,
)
from tests.cases.life import ALICE, BOB
from tests.cases.stage import Stage
from tests.cases.verdict import all_responses, canonical, read_body, strings
from tests.cases.wording import write_response

MALLORY, DAN = "@mallory:evil.example", "@dan:far.example"
REFUSAL = "That is not one of the options, so nothing has been approved."
LIST = "1. Allow once\n2. Always allow\n3. Reject"

# ------------------------------------------------------------------------------------------------- what decides nothing


@holds("edit-01", "any response for id 1")
@holds("edit-03", "any response for id 1")
@holds("mention-03", "any response for id 1")
@holds("echo-01", "any response for id 1")
@holds("echo-03", "any response for id 1")
@holds("echo-04", "any response for id 1")
@holds("echo-06", "any response for id 1")
@holds("react-04", "any response for id 1")
@holds("react-06", "any response for id 1")
@holds("redact-01", "any response for id 1")
@holds("redact-03", "any response for id 1")
@holds("reply-03", "any response for id 1")
@holds("reply-04", "any response for id 1")
@holds("reply-06", "any response for id 1")
@holds("stale-06", "any response for id 1")
@holds("auth-03", "any response for id 1")
@holds("auth-05", "any response for id 1")
@holds("size-01", "any response for id 1", run="the attachment fails: allow, and what confirms nothing")
def there_is_no_response_for_1(stage: Stage) -> None:
    assert answers_to(stage, 1) == []


@holds("replay-01", "any response for id 1")
@holds("replay-07", "any response for id 1")
def history_is_neither_an_answer_nor_words_for_the_agent(stage: Stage) -> None:
    assert answers_to(stage, 1) == []
    assert words_for_the_agent(stage) == ["begin"]


def words_for_the_agent(stage: Stage) -> list[str]:
    """What the agent was prompted with."""
    return [line["params"]["prompt"][0]["text"] for line in stage.lines() if line.get("method") == "session/prompt"]


@holds("frame-06", "any response for id 2")
@holds("stale-04", "any response for id 2", run="just closed")
@holds("stale-04", "any response for id 2", run="closed a while ago: the first text")
def there_is_no_response_for_2(stage: Stage) -> None:
    assert answers_to(stage, 2) == []


@holds("frame-03", "the prompt closed by the update")
def only_the_answer_closes_the_prompt(stage: Stage) -> None:
    assert f'{ALICE} answered: "Allow once".' in closing(stage)


@holds("edit-03", "after 11: the refusal of rule 16 and the list, once")
def the_typo_is_refused_once(stage: Stage) -> None:
    refusal = only(said(stage, REFUSAL))
    assert LIST in read_body(refusal)
    assert reply_target(refusal) == "$t"


@holds("edit-03", "after the edit: no answer is taken; a new message is needed")
def the_edit_is_no_answer(stage: Stage) -> None:
    assert len(stage.notices) == 1  # the refusal above: the edit gets no word, and nothing else has happened
    assert stage.ending("P1") == "pending"


@holds("reply-03", "the text is queued as the next prompt, and the room is told so")
def the_text_is_queued(stage: Stage) -> None:
    assert reply_target(only(said(stage, "Queued", "next prompt"))) == written_by(stage, ALICE)[-1]
    (status,) = stage.lives[-1].relay.status()
    assert status.queued == 1


# ------------------------------------------------------------------------------------------------------- several prompts


def assert_which(stage: Stage, person: str, *waiting: int) -> None:
    """This person is told, and nobody else is, which of the prompts wait and how to answer one of them."""
    notice = only(stage.notices)
    assert reply_target(notice) == written_by(stage, person)[-1]
    text = read(notice)
    assert [int(number) for number in re.findall(r"^#(\d+): Run tests$", read_body(notice), re.MULTILINE)] == list(
        waiting
    )
    assert "reply to its message" in text
    assert f"for example: #{waiting[0]} 1" in text


@holds("two-01", "says which two prompts wait and how to answer one of them", run="a bare number")
def both_prompts_are_named(stage: Stage) -> None:
    assert_which(stage, ALICE, 1, 2)


@holds("two-01", "a guess at the oldest", "a guess at the newest", run="a bare number")
def nobody_guesses(stage: Stage) -> None:
    assert all_responses(stage) == []


@holds("stale-04", "@bob:ex.org is told which prompt waits and how to answer it", run="just closed")
def bob_is_told_which_prompt_waits(stage: Stage) -> None:
    assert_which(stage, BOB, 2)


@holds(
    "stale-04",
    "@alice:ex.org is told which prompt waits and how to answer it",
    run="closed a while ago: the first text",
)
def alice_is_told_which_prompt_waits(stage: Stage) -> None:
    assert_which(stage, ALICE, 2)


@holds("two-04", "two separate prompts, each naming its own command")
def each_prompt_names_its_own_command(stage: Stage) -> None:
    first, second = only(stage.prompts("P1")), only(stage.prompts("P2"))
    assert first.event_id != second.event_id
    assert "Run ls" in read(first)
    assert "rm -rf" not in "".join(strings(first.content))
    assert "rm -rf build" in read(second)


@holds("two-04", "the first request dropped or refused when the second comes")
def the_first_request_stays(stage: Stage) -> None:
    assert [stage.ending(name) for name in ("P1", "P2")] == ["answered", "answered"]
    assert not any("error" in line for line in all_responses(stage))


@holds("fatigue-01", "thirty separate prompts")
def there_are_thirty_prompts(stage: Stage) -> None:
    prompts = [only(stage.prompts(f"P{number}")) for number in range(1, 31)]
    assert len({prompt.event_id for prompt in prompts}) == 30
    assert [stage.request(f"P{number}").number for number in range(1, 31)] == list(range(1, 31))


@holds("fatigue-01", "says which prompts wait and how to answer one")
def the_first_ten_are_named_and_the_rest_counted(stage: Stage) -> None:
    assert_which(stage, ALICE, *range(1, 11))
    assert "and 20 more" in read(only(stage.notices))


@holds("fatigue-01", "no single word or key answers more than one prompt", "several prompts approved by one message")
def one_word_answers_no_thirty_prompts(stage: Stage) -> None:
    assert {stage.ending(f"P{number}") for number in range(1, 31)} == {"pending"}
    assert not any("all of them" in text or "#1-" in text for text in everything_shown(stage).split("\n"))


@holds("fatigue-01", "an allow option marked as the default")
def no_option_is_a_default(stage: Stage) -> None:
    prompt = stage.prompts("P1")[0]
    assert re.search("default|recommend|suggest", json.dumps(prompt.content), re.IGNORECASE) is None
    assert re.findall("<li>(.*?)</li>", prompt.content["formatted_body"]) == ["Allow once", "Always allow", "Reject"]


# ----------------------------------------------------------------------------------------------- the end, and who is told


@holds("cancel-01", "both prompts are edited")
def both_prompts_say_that_the_turn_was_cancelled(stage: Stage) -> None:
    assert "cancelled the turn" in closing(stage, "P1")
    assert "cancelled the turn" in closing(stage, "P2")


@holds("cancel-01", "a request left open")
def no_request_is_left_open(stage: Stage) -> None:
    assert len(all_responses(stage)) == 2
    assert not any(entry.request.phase == "pending" for entry in stage.lives[-1].relay.state.entries.values())


@holds("cancel-02", "the prompt is edited: withdrawn by the agent")
def the_prompt_says_that_the_agent_withdrew_it(stage: Stage) -> None:
    assert "The agent took its question back" in closing(stage)


def assert_final_text(stage: Stage, name: str = "P1") -> None:
    """What the room says at the end is what the agent was sent."""
    sent = only(answers_to(stage, 1))
    text = closing(stage, name)
    if canonical(sent) == canonical(write_response({"id": 1, "cancelled": True})):
        assert '"cancelled" was sent to the agent' in text
        assert "answered:" not in text
        assert "Allow once" not in text
        assert stage.ending(name) == "cancelled"
    else:
        assert canonical(sent) == canonical(write_response({"id": 1, "selected": "opt-allow"}))
        assert f'{ALICE} answered: "Allow once".' in text
        assert "cancelled" not in text
        assert stage.ending(name) == "answered"


@holds("tell-04", "the text says what was sent", "Allow once shown while cancelled was sent")
@holds("race-03", "the final text says what was sent")
def the_final_text_is_true(stage: Stage) -> None:
    assert_final_text(stage)


@holds("race-01", "two responses for id 1")
@holds("race-03", "two responses for id 1")
def there_is_one_response(stage: Stage) -> None:
    assert len(answers_to(stage, 1)) == 1


@holds("race-01", "names @bob:ex.org as the one who answered")
@holds("size-01", "names @bob:ex.org as the one who answered", run="the attachment fails: allow, then somebody refuses")
def the_room_names_bob(stage: Stage) -> None:
    assert f'{BOB} answered: "Reject".' in closing(stage)


@holds("race-01", "@alice:ex.org is told so")
def alice_is_told_that_bob_won(stage: Stage) -> None:
    notice = only(said(stage, "came too late", f'{BOB} answered: "Reject".'))
    assert reply_target(notice) == written_by(stage, ALICE)[-1]


@holds("replay-06", "names @dan:far.example as the one who answered")
def the_room_names_dan(stage: Stage) -> None:
    assert f'{DAN} answered: "Allow once".' in closing(stage)


@holds("stale-01", "@bob:ex.org is told that @alice:ex.org has answered, and with what")
def bob_is_told_who_won(stage: Stage) -> None:
    notice = only(said(stage, "came too late", f'{ALICE} answered: "Reject".'))
    assert reply_target(notice) == written_by(stage, BOB)[-1]


@holds("stale-01", "the late text sent or queued as a prompt for the agent")
def the_late_text_goes_nowhere(stage: Stage) -> None:
    assert words_for_the_agent(stage) == ["begin"]
    (status,) = stage.lives[-1].relay.status()
    assert status.queued == 0


@holds("stale-03", "one clear word to @alice:ex.org, no loop of the same message")
def alice_hears_one_word(stage: Stage) -> None:
    notice = only(said(stage, "too late", f"{BOB} cancelled the turn"))
    assert reply_target(notice) == stage.prompts("P1")[0].event_id  # of a reaction, clients show no reply
    assert ALICE in read(notice)


@holds("stale-03", "the prompt shown as waiting again")
def the_prompt_stays_closed(stage: Stage) -> None:
    assert len(stage.prompts("P1")) == 1
    assert "cancelled the turn" in closing(stage)


@holds(
    "replay-03",
    "a harness that died with it gets nothing (ending agent_gone), and @alice:ex.org is told so",
    "the answer dropped only because it is older than the start",
)
def alice_is_told_that_the_agent_is_gone(stage: Stage) -> None:
    assert stage.ending("P1") == "agent_gone"
    assert all_responses(stage) == []
    notice = only(said(stage, "came too late", "The agent ended before anybody answered."))
    assert reply_target(notice) == written_by(stage, ALICE)[-1]
    late = only(stage.rows("permission_response", "P1"))
    assert (late.fields["status"], late.fields["reason"], late.fields["by"]) == ("not_pending", "adapter_exited", ALICE)


@holds("redact-03", "the prompt is posted again once, or its loss is reported")
def the_prompt_is_posted_again(stage: Stage) -> None:
    first, again = stage.prompts("P1")
    assert read_body(first) == read_body(again)


@holds("redact-04", "the same rule every time; the text says what was sent")
def a_reaction_counts_until_it_is_removed(stage: Stage) -> None:
    assert_final_text(stage)
    assert stage.ending("P1") == "answered"


@holds("time-01", "a live answer dropped as old")
def the_live_answer_counts(stage: Stage) -> None:
    assert f'{ALICE} answered: "Allow once".' in closing(stage)


@holds("time-06", "an event's time field never decides who wins")
def the_earliest_time_wins_nothing(stage: Stage) -> None:
    accepted = only(stage.rows("permission_response", "P1"))
    assert (accepted.fields["status"], accepted.fields["event_id"]) == ("accepted", written_by(stage, ALICE)[-1])
    assert accepted.timestamp.startswith("2026-11-01T04:00:0")  # ours, not the event's


# --------------------------------------------------------------------------------------------------------- who may not


@holds("auth-01", "@mallory:evil.example is told once that only approvers may answer")
def mallory_is_told_once(stage: Stage) -> None:
    notice = only(said(stage, MALLORY, "not one of the people who may answer"))
    assert reply_target(notice) == written_by(stage, MALLORY)[0]


@holds("auth-07", "the stranger is told once; the bot says nothing to the other 199", "200 messages from the bot")
def the_stranger_is_told_once(stage: Stage) -> None:
    assert len(written_by(stage, MALLORY)) == 200
    assert reply_target(only(stage.notices)) == written_by(stage, MALLORY)[0]
    prompt = only(stage.prompts("P1"))
    assert len(stage.sent) == 2 + len(stage.seeds(prompt))


# --------------------------------------------------------------------------------------------- what was not shown whole


@holds(
    "size-01",
    "says that the whole text could not be delivered, and asks for a second, explicit confirmation of Allow once",
    "the question is a message of its own that names @alice:ex.org and how to confirm",
    run="the attachment fails: allow",
)
def a_second_step_is_asked_for(stage: Stage) -> None:
    question = only(stage.notices)
    text = read(question)
    assert f'{ALICE}, you chose "Allow once" for #1' in text
    assert "not all of what it asks could be shown" in text
    assert "reply to this message with the option's whole name, or with the word confirm" in text
    assert question.content["m.mentions"] == {"user_ids": [ALICE]}
    assert reply_target(question) == written_by(stage, ALICE)[-1]


@holds("size-01", "a reject needs no second step", run="the attachment fails: reject")
def a_refusal_needs_no_second_step(stage: Stage) -> None:
    assert stage.notices == []
    assert f'{ALICE} answered: "Reject".' in closing(stage)


# ------------------------------------------------------------------------------------------------ options that fit nobody


@holds("opt-01", "a notice: the agent asked without offering a choice")
def the_room_hears_that_nothing_was_offered(stage: Stage) -> None:
    assert "offered nothing to choose from" in read(only(stage.sent))


@holds("opt-01", "the request left open", "any optionId")
def an_empty_list_is_answered_cancelled(stage: Stage) -> None:
    assert "optionId" not in json.dumps(only(all_responses(stage)))


@holds("opt-03", "says that the agent's choices cannot be told apart", run="different options")
def the_room_hears_that_choices_share_an_id(stage: Stage) -> None:
    assert "two different options the same id" in read(only(stage.sent))
