"""Rule 16, the conversation: one turn at a time, later words queue, commands, several agents and people in a room."""

from dataclasses import replace

import pytest

from bridge.core import turns
from bridge.core.effects import Conversation, Effect, EndTurn, Refuse, Send, StartTurn, TellStatus, Typing
from bridge.core.events import (
    AgentGone,
    Echoed,
    RoomMoved,
    RoomSeen,
    RoomState,
    Said,
    SendFailed,
    Sent,
    SessionDeleted,
    SessionStarted,
    ShuttingDown,
    StartFailed,
    TooLarge,
    TurnEnded,
)
from bridge.core.messages import (
    AgentNote,
    CancelSent,
    Gone,
    Help,
    Message,
    NoAgent,
    NothingToCancel,
    Queued,
    QueueFull,
    TurnFailed,
    WhichAgent,
    WhichTurn,
    Words,
)
from bridge.core.model import Agent, AgentName, EventId, Listen, RoomId, SessionId, UserId
from tests.core.play import ALICE, BOB, CLAUDE, MALLORY, ROOM, SESSION, agent

CODEX = AgentName("codex")
OTHER = SessionId("acps_fedcba9876543210")


class Talkers:
    """The conversation, played event by event."""

    def __init__(self, *agents: Agent, people: int = 1, started: bool = True) -> None:
        self.state = turns.begin(agents or (agent(),))
        self.effects: list[Effect] = []
        self._events = 0
        self.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=people))
        for each, session in zip(self.state.agents, (SESSION, OTHER), strict=False):
            if started:
                self.step(SessionStarted(agent=each, session_id=session))

    def step(self, event: turns.Event | Conversation) -> list[Effect]:
        self.state, self.effects = turns.step(self.state, event)
        return self.effects

    def say(self, text: str, sender: UserId = ALICE, aimed: AgentName | None = None, **more: object) -> list[Effect]:
        self._events += 1
        said = Said(room=ROOM, sender=sender, event_id=EventId(f"$e{self._events}"), text=text)
        return self.step(
            Conversation(replace(said, **more), aimed)  # pyright: ignore[reportArgumentType] - tests name the fields
        )

    def end(self, text: str = "", stop: str = "end_turn", error: str | None = None) -> list[Effect]:
        ended = TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason=stop, text=text, error=error)
        return self.step(ended)

    @property
    def told(self) -> list[Message]:
        return [e.message for e in self.effects if isinstance(e, Send)]

    @property
    def started(self) -> list[tuple[str, str]]:
        return [(e.agent, e.text) for e in self.effects if isinstance(e, StartTurn)]

    def say_from_bad_device(self, text: str, *refusing: AgentName) -> list[Effect]:
        said = Said(room=ROOM, sender=ALICE, event_id=EventId("$bad"), text=text)
        return self.step(Conversation(said, refused=frozenset(refusing)))


def pair(**changes: object) -> tuple[Agent, Agent]:
    return agent(**changes), agent(name=CODEX, **changes)


def test_words_start_a_turn_and_a_typing_notice() -> None:
    talk = Talkers()
    talk.say("write the tests")
    assert talk.effects == [
        StartTurn(agent=CLAUDE, session_id=SESSION, text="write the tests"),
        Typing(room=ROOM, on=True),
    ]


def test_the_agents_words_are_posted_when_the_turn_ends() -> None:
    talk = Talkers()
    talk.say("go")
    talk.end("I did.")
    assert talk.told == [Words(CLAUDE, "I did.")]
    assert Typing(room=ROOM, on=False) in talk.effects
    talk.end("  \n")
    assert talk.told == []


@pytest.mark.parametrize(
    ("stop", "error", "said"), [("refusal", None, 1), ("cancelled", None, 0), ("x", "It broke.", 1)]
)
def test_an_end_that_people_should_know_is_said(stop: str, error: str | None, said: int) -> None:
    talk = Talkers()
    talk.say("go")
    talk.end(stop=stop, error=error)
    assert len(talk.told) == said
    assert all(isinstance(m, TurnFailed) for m in talk.told)


def test_later_words_queue_and_are_told_so_and_follow_in_order() -> None:
    talk = Talkers()
    talk.say("one")
    talk.say("two")
    assert talk.told == [Queued(CLAUDE, 0, EventId("$e2"))]
    talk.say("three")
    assert talk.told == [Queued(CLAUDE, 1, EventId("$e3"))]
    talk.end()
    assert talk.started == [("claude", "two")]
    talk.end()
    assert talk.started == [("claude", "three")]


def test_the_queue_holds_twenty_and_says_when_it_is_full() -> None:
    talk = Talkers()
    for number in range(21):
        talk.say(f"words {number}")
    talk.say("one too many")
    assert talk.told == [QueueFull(CLAUDE, EventId("$e22"))]


def test_a_turn_of_another_session_ends_nothing() -> None:
    talk = Talkers()
    talk.say("go")
    talk.step(TurnEnded(agent=CLAUDE, session_id=OTHER, stop_reason="end_turn", text="old"))
    assert talk.effects == []


def test_only_users_are_heard_and_others_get_no_word() -> None:
    talk = Talkers()
    assert talk.say("do it", MALLORY) == []
    assert talk.say("!status", MALLORY) == []


def test_words_for_an_agent_that_is_still_starting_wait_for_its_session() -> None:
    talk = Talkers(started=False)
    talk.say("one")
    assert talk.told == [Queued(CLAUDE, 0, EventId("$e1"))]
    talk.say("two")
    talk.step(SessionStarted(agent=CLAUDE, session_id=SESSION))
    assert talk.started == [("claude", "one")]
    talk.end()
    assert talk.started == [("claude", "two")]


def test_words_for_an_agent_that_could_not_be_started_are_told_so() -> None:
    talk = Talkers(started=False)
    talk.step(StartFailed(agent=CLAUDE, sentence="It was not found."))
    talk.say("go")
    assert talk.told == [NoAgent(CLAUDE, EventId("$e1"))]


def test_an_agent_that_goes_ends_its_turn_and_forgets_its_queue() -> None:
    talk = Talkers()
    talk.say("one")
    talk.say("two")
    talk.step(AgentGone(agent=CLAUDE, session_id=SESSION, exit_code=3))
    assert talk.told == [Gone(CLAUDE, 3)]
    assert Typing(room=ROOM, on=False) in talk.effects
    talk.say("three")
    assert talk.told == [NoAgent(CLAUDE, EventId("$e3"))]


def test_the_going_of_an_earlier_session_does_not_end_the_new_one() -> None:
    talk = Talkers()
    talk.step(SessionStarted(agent=CLAUDE, session_id=OTHER))
    assert talk.step(AgentGone(agent=CLAUDE, session_id=SESSION)) == []
    talk.say("go")
    assert talk.started == [("claude", "go")]


def test_a_deleted_session_takes_no_more_words_and_waits_for_no_end_of_its_turn() -> None:
    talk = Talkers(*pair())
    talk.say("claude: go")
    talk.step(SessionDeleted(session_id=SESSION))
    assert talk.effects == [Typing(room=ROOM, on=False)]
    talk.say("claude: go")
    assert talk.told == [NoAgent(CLAUDE, EventId("$e2"))]
    talk.say("codex: go")
    assert talk.started == [("codex", "go")]


def test_typing_goes_on_while_another_agent_works_in_the_room() -> None:
    talk = Talkers(*pair())
    talk.say("claude: go")
    talk.say("codex: go")
    assert Typing(room=ROOM, on=False) not in talk.end()


def test_no_turn_begins_while_the_bridge_ends() -> None:
    talk = Talkers()
    talk.say("one")
    talk.say("two")
    talk.step(ShuttingDown())
    talk.end(stop="cancelled")
    assert talk.started == []
    talk.say("three")
    assert talk.told == [NoAgent(CLAUDE, EventId("$e3"))]


def test_words_that_can_never_be_sent_leave_nothing_behind() -> None:
    talk = Talkers()
    for too_large in (False, True):
        talk.say("go")
        (send,) = [e for e in talk.end("Here.") if isinstance(e, Send)]
        txn = send.transaction_id
        assert txn is not None
        talk.step(TooLarge(transaction_id=txn) if too_large else SendFailed(transaction_id=txn, sentence="no"))
    assert len(talk.state.leaving) == 0


def test_when_the_bridge_ends_it_is_no_news_that_its_harnesses_go() -> None:
    talk = Talkers()
    talk.step(ShuttingDown())
    talk.step(AgentGone(agent=CLAUDE, session_id=SESSION, exit_code=0))
    assert talk.told == []


def test_a_harness_that_could_not_be_started_is_said_in_its_room() -> None:
    talk = Talkers(agent(), agent(name=CODEX, room=None), started=False)
    talk.step(StartFailed(agent=CLAUDE, sentence="It was not found."))
    assert talk.told == [AgentNote(CLAUDE, "It was not found.")]
    assert talk.step(StartFailed(agent=CODEX, sentence="It was not found.")) == []


def test_an_agent_without_a_room_goes_and_ends_turns_in_silence() -> None:
    state = turns.begin((agent(room=None),))
    state, effects = turns.step(state, SessionStarted(agent=CLAUDE, session_id=SESSION))
    assert effects == []
    state, effects = turns.step(
        state, TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="end_turn", text="hello")
    )
    assert effects == []
    _, effects = turns.step(state, AgentGone(agent=CLAUDE, session_id=SESSION))
    assert effects == []


# --------------------------------------------------------------------------------------------------- several agents


def test_where_agents_share_a_room_the_name_in_front_says_whose_words_they_are() -> None:
    talk = Talkers(*pair())
    talk.say("codex: write the tests")
    assert talk.started == [("codex", "write the tests")]


def test_where_agents_share_a_room_words_without_a_name_are_asked_about() -> None:
    talk = Talkers(*pair())
    talk.say("write the tests")
    assert talk.told == [WhichAgent((CLAUDE, CODEX), EventId("$e1"))]


def test_words_under_an_agents_prompt_or_message_are_for_that_agent() -> None:
    talk = Talkers(*pair())
    talk.say("why?", aimed=CODEX)
    assert talk.started == [("codex", "why?")]
    talk.say("claude: go")
    sent = [e for e in talk.end("Here.") if isinstance(e, Send)]
    assert sent[0].transaction_id is not None
    talk.step(Sent(transaction_id=sent[0].transaction_id, event_id=EventId("$words")))
    talk.say("and now?", targets=(EventId("$words"),))
    assert talk.started == [("claude", "and now?")]


def test_words_under_a_prompt_of_an_agent_that_the_config_dropped_are_asked_about() -> None:
    talk = Talkers()
    talk.say("why?", aimed=CODEX)
    assert talk.told == [WhichAgent((CLAUDE,), EventId("$e1"))]


def test_only_the_latest_messages_of_agents_are_remembered() -> None:
    talk = Talkers()
    for number in range(turns.WORDS_KEPT + 1):
        talk.say("go")
        (send,) = [e for e in talk.end("Here.") if isinstance(e, Send)]
        assert send.transaction_id is not None
        talk.step(Sent(transaction_id=send.transaction_id, event_id=EventId(f"$w{number}")))
    assert len(talk.state.words) == turns.WORDS_KEPT
    assert EventId("$w0") not in talk.state.words


def test_events_that_are_not_of_the_conversation_change_nothing() -> None:
    talk = Talkers()
    before = talk.state
    talk.step(Sent(transaction_id=turns.TransactionId("n/1"), event_id=EventId("$x")))
    talk.step(Echoed(room=ROOM, event_id=EventId("$x"), transaction_id=None))
    assert (talk.state, talk.effects) == (before, [])


def test_a_user_of_one_agent_does_not_speak_to_the_other() -> None:
    talk = Talkers(agent(), agent(name=CODEX, users=frozenset({BOB})))
    assert talk.say("codex: go", ALICE) == []


# --------------------------------------------------------------------------------------------------- several people


@pytest.mark.parametrize(
    ("listen", "people", "text", "mentions", "heard"),
    [
        (Listen.AUTO, 1, "go", False, True),
        (Listen.AUTO, 2, "go", False, False),
        (Listen.AUTO, 2, "go", True, True),
        (Listen.AUTO, 2, "claude: go", False, True),
        (Listen.ALL, 5, "go", False, True),
        (Listen.MENTION, 1, "go", False, False),
        (Listen.MENTION, 1, "go", True, True),
    ],
)
def test_which_lines_are_for_the_agent(listen: Listen, people: int, text: str, mentions: bool, heard: bool) -> None:
    talk = Talkers(agent(listen=listen), people=people)
    talk.say(text, mentions_bot=mentions)
    assert (talk.started == [("claude", "go")]) is heard
    assert talk.told == []


def test_a_name_alone_says_nothing_to_the_agent() -> None:
    talk = Talkers()
    talk.say("claude:")
    assert talk.started == []


# --------------------------------------------------------------------------------------------------------- commands


def test_help_and_status_and_what_does_not_exist() -> None:
    talk = Talkers()
    talk.say("!help")
    assert talk.told == [Help()]
    talk.say("!STATUS")
    assert talk.effects == [TellStatus(ROOM)]
    talk.say("!frobnicate now")
    assert talk.told == [Help(unknown="frobnicate")]


def test_cancel_ends_the_running_turn_and_drops_what_was_queued() -> None:
    talk = Talkers()
    talk.say("one")
    talk.say("two")
    talk.say("!cancel")
    assert talk.effects[0] == EndTurn(session_id=SESSION, by=ALICE)
    assert talk.told == [CancelSent(CLAUDE, 1)]
    talk.end(stop="cancelled")
    assert talk.started == []


def test_cancel_without_a_running_turn_says_so() -> None:
    talk = Talkers()
    talk.say("!cancel")
    assert talk.told == [NothingToCancel(EventId("$e1"))]


def test_cancel_with_two_running_turns_asks_which() -> None:
    talk = Talkers(*pair())
    talk.say("claude: one")
    talk.say("codex: two")
    talk.say("!cancel")
    assert talk.told == [WhichTurn((CLAUDE, CODEX), EventId("$e3"))]
    talk.say("!cancel Codex")
    assert talk.effects[0] == EndTurn(session_id=OTHER, by=ALICE)
    talk.say("!cancel gemini")
    assert talk.told == [WhichAgent((CLAUDE, CODEX), EventId("$e5"))]


def test_words_from_a_device_that_their_agent_does_not_accept_are_refused_and_not_taken() -> None:
    talk = Talkers(*pair())
    (refusal,) = talk.say_from_bad_device("codex: go", CODEX)
    assert isinstance(refusal, Refuse)
    assert refusal.agent == CODEX
    talk.say_from_bad_device("claude: go", CODEX)
    assert talk.started == [("claude", "go")]


def test_a_command_counts_for_the_agents_that_accept_its_device() -> None:
    talk = Talkers(*pair())
    talk.say("claude: go")
    talk.say("codex: go")
    talk.say_from_bad_device("!cancel", CODEX)
    assert [e.session_id for e in talk.effects if isinstance(e, EndTurn)] == [SESSION]
    (refusal,) = talk.say_from_bad_device("!cancel", CLAUDE, CODEX)
    assert isinstance(refusal, Refuse)
    assert refusal.agent == CLAUDE


def test_where_a_room_was_upgraded_its_agents_listen_and_speak_in_the_new_one() -> None:
    talk = Talkers(agent(), agent(name=CODEX, room=RoomId("!other")))
    new = RoomId("!new")
    talk.step(RoomMoved(old=ROOM, new=new))
    talk.say("go")
    assert talk.effects == []
    talk.say("go", room=new)
    assert talk.started == [("claude", "go")]
    talk.end("I did.")
    assert [e.room for e in talk.effects if isinstance(e, Send)] == [new]
    assert [a.room for a in talk.state.agents.values()] == [new, RoomId("!other")]
