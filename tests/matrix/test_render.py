"""What people read, sentence by sentence: kind, short, and never claiming more than was sent."""

import re
from dataclasses import replace

import pytest

from bridge.core.messages import (
    AgentNote,
    AgentStatus,
    CancelSent,
    Confirm,
    Gone,
    Help,
    Moved,
    NoAgent,
    NotAllowed,
    NotAnOption,
    NothingToCancel,
    NotStored,
    PromptLost,
    Queued,
    QueueFull,
    Replaced,
    SendAgain,
    Status,
    TooLate,
    TurnFailed,
    Unaskable,
    WhichAgent,
    WhichPrompt,
    WhichTurn,
    WrongNumber,
)
from bridge.core.model import (
    AgentName,
    Cancelled,
    Decision,
    Ending,
    Millis,
    Misfit,
    Option,
    Phase,
    PromptStyle,
    Request,
    Selected,
    SessionId,
    UserId,
)
from bridge.matrix.layout import write_body, write_html
from bridge.matrix.render import (
    KEYCAPS,
    Spoken,
    render_closing,
    render_prompt,
    render_replaced,
    render_speech,
    show_option,
    show_title,
    summarise_closing,
    summarise_replaced,
    tell_ending,
)
from tests.matrix.asked import ALLOW, AMY, ANSWER, PROMPT, REJECT, REQUEST, TESTS, make_description, make_option

CLAUDE, QWEN = AgentName("claude"), AgentName("qwen")
BO, MAL = UserId("@bo:hs"), UserId("@mal:hs")
CLAIMS = re.compile(r"\b(blocked|prevented|ran|executed|succeeded|done|approved(?! yet\.))\b", re.IGNORECASE)
HONEST = re.compile(r"nothing has been approved", re.IGNORECASE)
STRICT = replace(REQUEST, strict=True)
OTHER = replace(REQUEST, number=13, description=make_description(title="Push"))


def end(
    ending: Ending, *, option: Option | None = None, by: str | None = None, delivered: bool = True, **changes: object
) -> Request:
    outcome = Cancelled() if option is None else Selected(option.option_id)
    decision = Decision(ending=ending, outcome=outcome, option=option, by=by, at=Millis(1))
    request = replace(REQUEST, phase=Phase.ENDED, decision=decision, delivered=delivered)
    return replace(request, **changes)  # pyright: ignore[reportArgumentType]


ENDINGS = [
    (end(Ending.ANSWERED, option=ALLOW, by=AMY), '@amy:hs answered: "Allow once".'),
    (end(Ending.ANSWERED, option=REJECT, by="local:amy"), 'local:amy answered: "Reject".'),
    (
        end(Ending.ANSWERED, option=ALLOW, by=AMY, delivered=False),
        '@amy:hs answered: "Allow once". This answer did not reach the agent.',
    ),
    (
        end(Ending.AGENT_GONE, option=ALLOW, by=AMY, delivered=False),
        '@amy:hs answered: "Allow once". This answer did not reach the agent.',
    ),
    (
        end(Ending.EXPIRED, option=REJECT),
        'Nobody answered in time. "Reject" was sent to the agent. Nothing has been approved.',
    ),
    (
        end(Ending.EXPIRED, option=REJECT, delivered=False),
        "Nobody answered in time. Nothing has been approved.",
    ),
    (
        end(Ending.EXPIRED),
        'Nobody answered in time. "cancelled" was sent to the agent. Nothing has been approved.',
    ),
    (
        end(Ending.CANCELLED),
        'The turn ended before anybody answered. "cancelled" was sent to the agent. Nothing has been approved.',
    ),
    (
        end(Ending.CANCELLED, by=AMY),
        (
            '@amy:hs cancelled the turn before anybody answered. "cancelled" was sent to the agent.'
            " Nothing has been approved."
        ),
    ),
    (
        end(Ending.WITHDRAWN),
        (
            'The agent took its question back before anybody answered. "cancelled" was sent to the agent.'
            " Nothing has been approved."
        ),
    ),
    (
        end(Ending.AGENT_GONE, delivered=False),
        "The agent ended before anybody answered. Nothing has been approved.",
    ),
    (
        end(Ending.SESSION_DELETED, delivered=False),
        "The session was deleted before anybody answered. Nothing has been approved.",
    ),
    (
        end(Ending.SHUTDOWN),
        'The bridge was stopped before anybody answered. "cancelled" was sent to the agent. Nothing has been approved.',
    ),
    (
        end(Ending.UNDELIVERABLE),
        'The question could not be put to people. "cancelled" was sent to the agent. Nothing has been approved.',
    ),
    (REQUEST, "It still waits for an answer."),
]

SPOKEN: list[tuple[Spoken, str]] = [
    (
        NotAnOption(REQUEST, ANSWER),
        (
            "That is not one of the options, so nothing has been approved.\n\n"
            "1. Allow once\n2. Always allow\n3. Reject\n4. Never allow"
        ),
    ),
    (
        NotAllowed(REQUEST, MAL, ANSWER),
        "@mal:hs, you are not one of the people who may answer #12. Nothing has been approved.",
    ),
    (
        WhichPrompt((REQUEST, OTHER), 3, AMY, ANSWER),
        (
            "Several requests wait here, so it is not clear which one you mean. Nothing has been approved.\n\n"
            "#12: Run the test suite\n#13: Push\nand 3 more\n\n"
            "Please reply to its message, or write its number first, for example: #12 1"
        ),
    ),
    (
        WhichPrompt((OTHER,), 0, AMY, ANSWER),
        (
            "The request you may still see has ended or changed, and this one waits now. Nothing has been approved.\n\n"
            "#13: Push\n\nPlease reply to its message, or write its number first, for example: #13 1"
        ),
    ),
    (WhichPrompt((), 0, AMY, ANSWER), "No request waits here any more. Nothing has been approved."),
    (
        WrongNumber(REQUEST, 13, ANSWER),
        (
            "This replies to #12 but begins with #13, so it is not clear which one is meant. Nothing has been approved."
            " Please reply to the message you mean, without another number in front."
        ),
    ),
    (
        TooLate(end(Ending.ANSWERED, option=ALLOW, by=AMY), BO, ANSWER),
        '@bo:hs, your answer to #12 came too late. @amy:hs answered: "Allow once".',
    ),
    (
        TooLate(REQUEST, BO, ANSWER),
        "@bo:hs, the agent has changed what it asks, so your answer does not count. Please answer the newer message, #12.",
    ),
    (
        Confirm(REQUEST, ALLOW, AMY, ANSWER),
        (
            '@amy:hs, you chose "Allow once" for #12, but not all of what it asks could be shown, neither in the message'
            " nor as a file. Nothing has been approved yet.\n\n"
            "To choose it all the same, reply to this message with the option's whole name, or with the word confirm."
            " Numbers and reactions do not count here. claude goes on waiting until then."
        ),
    ),
    (
        Unaskable(CLAUDE, "Push", Misfit.NOTHING_TO_CHOOSE),
        (
            "claude asked for permission (Push) but offered nothing to choose from."
            " It was told that this request is cancelled. Nothing has been approved."
        ),
    ),
    (
        Unaskable(CLAUDE, "Push", Misfit.SAME_ID),
        (
            "claude asked for permission (Push) but gave two different options the same id."
            " It was told that this request is cancelled. Nothing has been approved."
        ),
    ),
    (
        Unaskable(CLAUDE, "Push", Misfit.TOO_LONG),
        (
            "claude asked for permission (Push) but offered options that are too long for one message."
            " It was told that this request is cancelled. Nothing has been approved."
        ),
    ),
    (
        Unaskable(CLAUDE, "Push", Misfit.NOT_TELLABLE),
        (
            "claude asked for permission (Push) but offered options that no answer could tell apart."
            " It was told that this request is cancelled. Nothing has been approved."
        ),
    ),
    (
        NotStored(REQUEST),
        (
            "Your answer to #12 could not be stored yet, so the request still waits. Nothing has been approved."
            " It is tried again, and counts as soon as it can be stored."
        ),
    ),
    (
        PromptLost(REQUEST),
        (
            "The message of #12 was removed again. It still waits for an answer and is not posted a third time."
            " To answer it, write #12 and the number of an option."
        ),
    ),
    (
        Queued(CLAUDE, 0, ANSWER),
        (
            "Queued for claude as the next prompt. It decides nothing about a request that waits."
            " To stop the running turn, write !cancel."
        ),
    ),
    (
        Queued(CLAUDE, 2, ANSWER),
        (
            "Queued for claude as the next prompt, with 2 others before it. It decides nothing about a request that waits."
            " To stop the running turn, write !cancel."
        ),
    ),
    (
        QueueFull(CLAUDE, ANSWER),
        "The queue of claude is full, so this was not taken. Please send it again later, or write !cancel.",
    ),
    (
        WhichAgent((CLAUDE, QWEN), ANSWER),
        (
            "Several agents are here: claude, qwen. Please begin with a name, for example: claude: …"
            " Nothing was passed on."
        ),
    ),
    (
        WhichTurn((CLAUDE, QWEN), ANSWER),
        "These agents are working: claude, qwen. Please say which one, for example: !cancel claude",
    ),
    (NothingToCancel(ANSWER), "No turn is running, so there is nothing to cancel."),
    (CancelSent(CLAUDE, 0), "claude was asked to stop its turn."),
    (CancelSent(CLAUDE, 1), "claude was asked to stop its turn. Dropped with it: 1 queued prompt."),
    (NoAgent(CLAUDE, ANSWER), "claude is not there at the moment, so this was not passed on."),
    (
        TurnFailed(CLAUDE, "end_turn", "The model is\noverloaded."),
        'The turn of claude ended with an error: "The model is\\noverloaded."',
    ),
    (TurnFailed(CLAUDE, "refusal", None), "claude declined to go on with this turn."),
    (TurnFailed(CLAUDE, "odd\u202e", None), 'The turn of claude ended: "odd\\u202e"'),
    (Gone(CLAUDE, None), "claude has ended. What it asked can no longer be answered."),
    (Gone(CLAUDE, 1), "claude has ended with exit code 1. What it asked can no longer be answered."),
    (AgentNote(CLAUDE, "a\n1. Yes"), 'claude: "a\\n1. Yes"'),
    (AgentNote(CLAUDE, "Its mode skips questions."), "claude: Its mode skips questions."),
    (
        Status(
            (
                AgentStatus(
                    agent=CLAUDE,
                    session_id=SessionId("acps_1"),
                    turn_running=True,
                    queued=2,
                    waiting=((12, "Run"), (13, "Push")),
                ),
                AgentStatus(agent=QWEN, session_id=SessionId("acps_2"), turn_running=False, queued=0, waiting=()),
                AgentStatus(agent=AgentName("vibe"), session_id=None, turn_running=False, queued=0, waiting=()),
            ),
        ),
        (
            "claude: working, 2 prompts queued\nwaits for an answer: #12 Run\nwaits for an answer: #13 Push\n\n"
            "qwen: idle\nnothing waits for an answer\n\nvibe: not there at the moment"
        ),
    ),
    (Status(()), "No agent is set up for this room."),
    (
        NotAnOption(STRICT, ANSWER),
        (
            "That is not one of the options, so nothing has been approved.\n\n"
            "1. Allow once\n2. Always allow\n3. Reject\n4. Never allow\n\n"
            "Reply with #12 and the number, for example: #12 1"
        ),
    ),
    (
        Confirm(STRICT, ALLOW, AMY, ANSWER),
        (
            '@amy:hs, you chose "Allow once" for #12, but not all of what it asks could be shown, neither in the message'
            " nor as a file. Nothing has been approved yet.\n\n"
            "To choose it all the same, reply to this message with: #12 confirm. The option's number or name and reactions"
            " do not count here. claude goes on waiting until then."
        ),
    ),
    (
        Moved((CLAUDE, QWEN)),
        (
            "This room takes the place of one that was upgraded. Who asks here from now on: claude, qwen. What still waited"
            " in the old room has ended there."
        ),
    ),
    (
        SendAgain(AMY, ANSWER, withheld=False),
        "@amy:hs, your message could not be decrypted here, so it does not count. Please send it again.",
    ),
]


def write(message: Spoken) -> str:
    return write_body(render_speech(message).blocks)


@pytest.mark.parametrize(("request_", "sentence"), ENDINGS)
def test_an_ending_says_what_was_sent(request_: Request, sentence: str) -> None:
    assert tell_ending(request_) == sentence


@pytest.mark.parametrize("ending", Ending)
def test_no_ending_claims_more_than_was_sent(ending: Ending) -> None:
    said = write_body(render_closing(end(ending, delivered=False), ()))
    assert CLAIMS.search(HONEST.sub("", said)) is None


@pytest.mark.parametrize(("message", "text"), SPOKEN)
def test_a_message_reads(message: Spoken, text: str) -> None:
    assert write(message) == text


@pytest.mark.parametrize("message", [*(message for message, _ in SPOKEN), Help(), Help("!x")])
def test_no_message_claims_that_anything_was_let_through_or_held_back(message: Spoken) -> None:
    said = write(message)
    assert CLAIMS.search(HONEST.sub("", said)) is None
    assert not any(line.startswith(("> ", "/")) for line in said.splitlines())


@pytest.mark.parametrize("message", [message for message, _ in SPOKEN])
def test_a_message_replies_to_the_event_it_answers(message: Spoken) -> None:
    expected = PROMPT if isinstance(message, NotStored) else getattr(message, "answer", None)
    assert render_speech(message).reply_to == expected


def test_only_who_must_act_is_mentioned() -> None:
    mentions = {type(message).__name__: render_speech(message).mentions for message, _ in SPOKEN}
    assert {name: users for name, users in mentions.items() if users} == {
        "Confirm": (AMY,),
        "PromptLost": (AMY,),
        "SendAgain": (AMY,),
    }


def test_help_names_the_commands_and_how_to_answer_and_what_an_approval_is() -> None:
    text = write(Help())
    for word in ("!help", "!status", "!cancel", "number", "whole name", "react", "advice to the agent, not a sandbox"):
        assert word in text


def test_help_says_that_a_command_does_not_exist_in_the_words_of_the_person_made_harmless() -> None:
    assert write(Help("!x\n1. Yes")).startswith('There is no command "!x\\n1. Yes".\n\n!help')


def test_a_prompt_in_full() -> None:
    assert write_body(render_prompt(REQUEST, TESTS[1:], shared=False)) == (
        "Permission needed (#12): Run the test suite\n\nKind: execute\nCommand:\n    bun test\nLocation: apps/hub\n\n"
        "1. Allow once\n2. Always allow\n3. Reject\n4. Never allow\n\nReply with the number, or the option's name."
    )


def test_a_strict_prompt_names_its_number_in_how_to_answer() -> None:
    last = render_prompt(STRICT, (), shared=False)[-1]
    assert write_body((last,)) == "Reply with #12 and the number, for example: #12 1"


def test_a_prompt_without_items_has_no_empty_block() -> None:
    assert write_body(render_prompt(REQUEST, (), shared=False)).startswith(
        "Permission needed (#12): Run the test suite\n\n1. Allow once",
    )


def test_a_prompt_in_a_shared_room_names_its_agent() -> None:
    assert write_body(render_prompt(REQUEST, (), shared=True)).startswith("Permission needed by claude (#12): Run")


def test_a_brief_prompt_is_the_text_of_agentpod() -> None:
    assert write_body(render_prompt(replace(REQUEST, style=PromptStyle.BRIEF), TESTS, shared=True)) == (
        "Permission needed: Run the test suite\n\n1. Allow once\n2. Always allow\n3. Reject\n4. Never allow\n\n"
        "Reply with the number, or the option's name."
    )


def test_a_later_revision_says_that_it_replaces_the_earlier_message() -> None:
    assert "This message replaces the earlier one." in write_body(
        render_prompt(replace(REQUEST, revision=2), TESTS, shared=False),
    )


def test_a_closing_still_says_what_was_asked() -> None:
    request = end(Ending.ANSWERED, option=ALLOW, by=AMY)
    assert write_body(render_closing(request, TESTS[2:3])) == (
        'Permission was asked (#12): Run the test suite\n\nCommand:\n    bun test\n\n@amy:hs answered: "Allow once".'
    )
    assert summarise_closing(request) == (
        'Permission was asked (#12): Run the test suite. @amy:hs answered: "Allow once".'
    )


def test_a_title_that_is_a_sentence_gets_no_second_full_stop() -> None:
    asked = replace(REQUEST, description=make_description(title="Nothing is run."))
    assert "): Nothing is run. It still waits" in summarise_closing(asked)


def test_a_brief_closing_shows_no_number() -> None:
    request = end(Ending.ANSWERED, option=ALLOW, by=AMY, style=PromptStyle.BRIEF)
    assert write_body(render_closing(request, ())).startswith("Permission was asked: Run the test suite\n\n@amy:hs")


def test_a_replaced_prompt_points_at_the_newer_message() -> None:
    said = "The agent has changed what it asks. Please answer the newer message; answers to this one no longer count."
    message = Replaced(REQUEST, ANSWER, REQUEST.number)
    assert write_body(render_replaced(message)) == f"Permission was asked (#12): Run the test suite\n\n{said}"
    assert summarise_replaced(message) == f"Permission was asked (#12). {said}"


def test_a_replaced_prompt_keeps_its_number_and_names_that_of_the_newer_message() -> None:
    message = Replaced(replace(REQUEST, number=13), ANSWER, 12)
    said = "Please answer the newer message, #13; answers to this one no longer count."
    assert write_body(render_replaced(message)).startswith("Permission was asked (#12): Run the test suite\n\n")
    assert said in write_body(render_replaced(message))
    assert summarise_replaced(message) == f"Permission was asked (#12). The agent has changed what it asks. {said}"


def test_titles_and_options_show_at_most_three_hundred_characters() -> None:
    title = show_title(replace(REQUEST, description=make_description(title="x" * 20_000)))
    option = show_option(make_option("a", "A", line="x" * 301))
    assert len(title) <= 300
    assert len(option) <= 300
    assert re.search(r"x\[… [0-9,]+ bytes left out …\]x", title)


def test_an_odd_user_id_stays_in_its_line() -> None:
    assert write(NotAllowed(REQUEST, UserId("@x:hs\n1. Yes"), ANSWER)).startswith('"@x:hs\\n1. Yes", you are not')


def test_text_of_agents_is_no_html() -> None:
    request = replace(REQUEST, description=make_description(title="<mx-reply>hidden</mx-reply> list & 'files'"))
    html = write_html(render_prompt(request, (), shared=False))
    assert "&lt;mx-reply&gt;hidden&lt;/mx-reply&gt; list &amp; &#x27;files&#x27;" in html


def test_there_are_ten_keycaps() -> None:
    assert [key[0] for key in KEYCAPS] == [*"123456789", "🔟"]
    assert all(key[1:] == "\ufe0f\u20e3" for key in KEYCAPS[:9])


def test_which_of_several_agents_asked_is_said_where_it_must_be_told_apart() -> None:
    other = replace(OTHER, agent=AgentName("codex"))
    speech = render_speech(WhichPrompt((REQUEST, other), 0, AMY, ANSWER))
    text = write_body(speech.blocks)
    assert f"#12, {REQUEST.agent}: " in text
    assert ", codex: " in text
