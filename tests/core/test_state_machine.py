"""One rule per event (style.md, section 4): whatever happens in whatever order, the promises of design.md hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.core.changes import StoreDecision, StoreEnding, StoreSessionEnd
from bridge.core.effects import Respond, Send
from bridge.core.events import (
    AgentGone,
    DeadlineReached,
    Redacted,
    RoomSeen,
    RoomState,
    SendFailed,
    SessionDeleted,
    ShuttingDown,
    TooLarge,
    ToolCallChanged,
    TurnCancelled,
    TurnEnded,
    Withdrawn,
)
from bridge.core.events import NotDelivered as Unwritten
from bridge.core.messages import Closing
from bridge.core.model import Cancelled, EventId, Meaning, Phase, RequestId, Selected, UserId, Via
from tests.core.play import ALICE, ALLOW, BOB, CLAUDE, MALLORY, OPTIONS, ROOM, SESSION, Play, agent, describe

PEOPLE = st.sampled_from([ALICE, BOB])
WORDS = st.sampled_from(["1", "2", "3", "4", "Allow once", "reject", "yes", "confirm", "#1 1", "#2 3", "!cancel"])
STRANGERS = st.sampled_from([MALLORY, UserId("@Alice:ex.org"), UserId("@alice:evil.example")])
ENOUGH = 5  # requests before everything may end: what comes after that asks nothing more


class Requests(RuleBasedStateMachine):
    """Requests of one agent in one room, and everything that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(agent(expires_after=60_000, reactions=True))
        self.asked: list[RequestId] = []
        self.by_person = 0  # how many decisions with an allow a person's own act brought about
        self.dead = False

    def pick(self, number: int) -> RequestId | None:
        open_ones = [r for r in self.asked if self.play.request(r).phase is not Phase.ENDED]
        return open_ones[number % len(open_ones)] if open_ones else None

    def allowed(self) -> int:
        return sum(
            1
            for e in self.play.all_effects
            if isinstance(e, StoreDecision) and e.decision.option and e.decision.option.meaning is not Meaning.REJECT
        )

    def check_no_new_allow(self) -> None:
        assert self.by_person == self.allowed()

    @precondition(lambda self: not self.dead)
    @rule(whole=st.booleans(), posted=st.booleans())
    def asks(self, whole: bool, posted: bool) -> None:
        if len(self.asked) < 30:
            self.asked.append(self.play.ask(whole=whole, posted=posted))
            self.check_no_new_allow()

    @rule(number=st.integers(0, 9))
    def the_message_arrives(self, number: int) -> None:
        request_id = self.pick(number)
        if (
            request_id
            and self.play.request(request_id).event_id is None
            and self.play.state.entries[request_id].transaction_id is not None
        ):
            self.play.post(request_id)
            self.check_no_new_allow()

    @rule(text=WORDS, sender=PEOPLE)
    def somebody_writes(self, text: str, sender: UserId) -> None:
        self.play.say(text, sender)
        self.by_person = self.allowed()

    @rule(number=st.integers(0, 9), text=WORDS, sender=PEOPLE)
    def somebody_replies(self, number: int, text: str, sender: UserId) -> None:
        request_id = self.pick(number)
        if request_id and self.play.request(request_id).event_id:
            phase = self.play.request(request_id).phase
            others = {r: self.play.request(r).phase for r in self.asked if r != request_id}
            self.play.reply(request_id, text, sender)
            assert others == {r: self.play.request(r).phase for r in others}
            if phase is not Phase.PENDING:
                self.check_no_new_allow()
            self.by_person = self.allowed()

    @rule(number=st.integers(0, 9), key=st.sampled_from(["1", "3", "👍"]), sender=PEOPLE)
    def somebody_reacts(self, number: int, key: str, sender: UserId) -> None:
        request_id = self.pick(number)
        if request_id and self.play.request(request_id).event_id:
            whole = self.play.request(request_id).whole
            before = self.allowed()
            self.play.react(self.play.event_of(request_id), key, sender)
            assert whole or self.allowed() == before, "what was not shown whole is confirmed before it is allowed"
            self.by_person = self.allowed()

    @rule(text=WORDS, sender=STRANGERS)
    def a_stranger_writes(self, text: str, sender: UserId) -> None:
        before = len(self.play.outcomes)
        self.play.say(text, sender)
        assert before == len(self.play.outcomes)

    @rule(number=st.integers(0, 9), sender=STRANGERS)
    def a_stranger_reacts_and_replies(self, number: int, sender: UserId) -> None:
        request_id = self.pick(number)
        if request_id and self.play.request(request_id).event_id:
            before = len(self.play.outcomes)
            self.play.react(self.play.event_of(request_id), "1", sender)
            self.play.reply(request_id, "1", sender)
            assert before == len(self.play.outcomes)

    @rule(number=st.integers(0, 9))
    def the_socket_refuses_an_allow(self, number: int) -> None:
        request_id = self.pick(number)
        if request_id:
            self.play.answer_locally(request_id, ALLOW.option_id)
            self.check_no_new_allow()

    @rule(number=st.integers(0, 9))
    def the_socket_takes_a_refusal(self, number: int) -> None:
        request_id = self.pick(number)
        if request_id:
            self.play.answer_locally(request_id, "opt-reject")
            assert self.play.request(request_id).phase is not Phase.PENDING
            self.check_no_new_allow()

    @rule(number=st.integers(0, 9))
    def the_response_is_written(self, number: int) -> None:
        request_id = self.pick(number)
        if request_id and self.play.request(request_id).phase is Phase.DECIDED:
            self.play.deliver(request_id)
            assert self.play.request(request_id).phase is Phase.ENDED
            assert self.play.request(request_id).delivered

    @rule(number=st.integers(0, 9))
    def the_response_cannot_be_written(self, number: int) -> None:
        request_id = self.pick(number)
        if request_id and self.play.request(request_id).phase is Phase.DECIDED:
            self.play.step(Unwritten(agent=CLAUDE, call=self.play.request(request_id).call))
            assert not self.play.request(request_id).delivered

    @rule(number=st.integers(0, 9))
    def the_agent_withdraws(self, number: int) -> None:
        request_id = self.pick(number)
        if request_id:
            self.play.step(Withdrawn(agent=CLAUDE, call=self.play.request(request_id).call))
            assert self.play.request(request_id).phase is not Phase.PENDING
            self.check_no_new_allow()

    @rule(number=st.integers(0, 9), command=st.sampled_from(["pytest -q", "rm -rf /", "ls"]))
    def the_agent_changes_what_it_asks(self, number: int, command: str) -> None:
        request_id = self.pick(number)
        if request_id:
            call = self.play.request(request_id).call
            what = describe(command=command)
            self.play.step(ToolCallChanged(session_id=SESSION, tool_call_id="call_1", description=what, call=call))
            self.check_no_new_allow()

    @rule()
    def the_turn_ends(self) -> None:
        self.play.step(TurnEnded(agent=CLAUDE, session_id=SESSION, stop_reason="end_turn"))
        self.check_no_new_allow()

    @rule(by=PEOPLE)
    def the_turn_is_cancelled(self, by: UserId) -> None:
        self.play.step(TurnCancelled(session_id=SESSION, by=by))
        self.check_no_new_allow()

    @precondition(lambda self: len(self.asked) > ENOUGH)
    @rule()
    def the_session_is_deleted(self) -> None:
        self.play.step(SessionDeleted(session_id=SESSION))
        self.check_no_new_allow()

    @precondition(lambda self: len(self.asked) > ENOUGH)
    @rule()
    def the_bridge_shuts_down(self) -> None:
        self.play.step(ShuttingDown())
        assert all(self.play.request(r).phase is not Phase.PENDING for r in self.asked)
        self.check_no_new_allow()

    @precondition(lambda self: len(self.asked) > ENOUGH)
    @rule()
    def the_agent_dies(self) -> None:
        before = len(self.play.outcomes)
        self.play.step(AgentGone(agent=CLAUDE, session_id=SESSION))
        assert before == len(self.play.outcomes)
        assert all(self.play.request(r).phase is Phase.ENDED for r in self.asked)
        self.check_no_new_allow()

    @rule(state=st.sampled_from(list(RoomState)))
    def the_room_changes(self, state: RoomState) -> None:
        self.play.step(RoomSeen(room=ROOM, state=state, people=2))
        self.play.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=2))
        self.check_no_new_allow()

    @rule(number=st.integers(0, 9), large=st.booleans())
    def a_message_cannot_be_sent(self, number: int, large: bool) -> None:
        request_id = self.pick(number)
        transaction_id = self.play.state.entries[request_id].transaction_id if request_id else None
        if transaction_id:
            failure = TooLarge(transaction_id=transaction_id)
            self.play.step(failure if large else SendFailed(transaction_id=transaction_id, sentence="no"))
            self.check_no_new_allow()

    @rule(number=st.integers(0, 9))
    def a_message_is_removed(self, number: int) -> None:
        request_id = self.pick(number)
        if request_id and self.play.request(request_id).event_id:
            self.play.step(Redacted(room=ROOM, sender=BOB, target=self.play.event_of(request_id)))
            self.check_no_new_allow()

    @rule(seconds=st.sampled_from([1.0, 6.0, 61.0]), number=st.integers(0, 9))
    def time_passes(self, seconds: float, number: int) -> None:
        self.play.wait(seconds)
        request_id = self.pick(number)
        if request_id:
            self.play.step(DeadlineReached(request_id=request_id))
        self.check_no_new_allow()

    @invariant()
    def no_request_gets_two_responses(self) -> None:
        calls = [e.call for e in self.play.all_effects if isinstance(e, Respond)]
        assert len(calls) == len(set(calls))

    @invariant()
    def no_request_is_decided_or_ends_twice(self) -> None:
        decided = [e.request_id for e in self.play.all_effects if isinstance(e, StoreDecision)]
        ended = [e.request_id for e in self.play.all_effects if isinstance(e, StoreEnding)]
        assert len(decided) == len(set(decided))
        assert len(ended) == len(set(ended))
        assert set(ended) <= set(decided)

    @invariant()
    def no_two_events_share_a_transaction_id(self) -> None:
        sent = [e.transaction_id for e in self.play.all_effects if isinstance(e, Send) and e.transaction_id]
        assert len(sent) == len(set(sent))

    @invariant()
    def the_session_ends_once(self) -> None:
        assert sum(isinstance(e, StoreSessionEnd) for e in self.play.all_effects) <= 1

    @invariant()
    def no_prompt_is_closed_twice_or_before_its_end(self) -> None:
        closed = [
            e.message.request for e in self.play.all_effects if isinstance(e, Send) and isinstance(e.message, Closing)
        ]
        assert len(closed) == len({r.event_id for r in closed})
        assert all(r.phase is Phase.ENDED for r in closed)

    @invariant()
    def every_response_is_an_offered_option_of_a_person_or_a_refusal(self) -> None:
        for request_id in self.asked:
            decision = self.play.request(request_id).decision
            if decision is None or decision.outcome is None or isinstance(decision.outcome, Cancelled):
                continue
            assert isinstance(decision.outcome, Selected)
            assert decision.outcome.option_id in {o.option_id for o in OPTIONS}
            assert decision.by in {ALICE, BOB, "local:ann"} or decision.via is Via.EXPIRY

    @invariant()
    def what_waits_is_what_is_pending(self) -> None:
        room = self.play.state.rooms[ROOM]
        pending = {r for r in self.asked if self.play.request(r).phase is Phase.PENDING}
        assert pending == set(room.waiting.values())
        assert pending == set(self.play.state.sessions[SESSION].waiting)
        assert sum(room.offers.values()) == len(pending)
        assert bool(room.forms) == bool(pending)


class NothingIsForgotten(Requests.TestCase):
    settings = settings(max_examples=150, stateful_step_count=30, deadline=None, print_blob=True)


def test_a_state_holds_the_event_of_every_posted_prompt() -> None:
    play = Play()
    asked = play.ask()
    assert play.state.shown[EventId("$prompt1r1")].request_id == asked
