"""One rule per event (style.md, section 4): whatever happens in whatever order, the promises of design.md hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.core.changes import StoreAsked, StoreDecision, StoreEnding, StoreLocked, StoreRevision, StoreSessionEnd
from bridge.core.effects import Conversation, Respond, Send
from bridge.core.events import (
    AgentGone,
    DeadlineReached,
    Redacted,
    RoomMoved,
    RoomSeen,
    RoomState,
    SendFailed,
    SessionDeleted,
    ShuttingDown,
    StillLocked,
    TooLarge,
    ToolCallChanged,
    TurnCancelled,
    TurnEnded,
    Unlocked,
    Verified,
    Withdrawn,
)
from bridge.core.events import NotDelivered as Unwritten
from bridge.core.messages import Closing, PollEnd, SendAgain
from bridge.core.model import Cancelled, EventId, Meaning, Phase, RequestId, RoomId, Seal, Selected, UserId, Via
from bridge.core.polls import make_answer_ids
from tests.core.play import (
    ALICE,
    ALLOW,
    BOB,
    CLAUDE,
    MALLORY,
    MASTER,
    OPTIONS,
    ROOM,
    SESSION,
    SIGNED,
    UNSIGNED,
    Play,
    agent,
    describe,
)

PEOPLE = st.sampled_from([ALICE, BOB])
WORDS = st.sampled_from(["1", "2", "3", "4", "Allow once", "reject", "yes", "confirm", "#1 1", "#2 3", "!cancel"])
STRANGERS = st.sampled_from([MALLORY, UserId("@Alice:ex.org"), UserId("@alice:evil.example")])
BAD_SEALS = [UNSIGNED, Seal(device_id=None, signed=True, master=MASTER)]
ENOUGH = 5  # requests before everything may end: what comes after that asks nothing more


class Requests(RuleBasedStateMachine):
    """Requests of one agent in one room, and everything that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(agent(expires_after=60_000, reactions=True, polls=True))
        self.asked: list[RequestId] = []
        self.by_person = 0  # how many decisions with an allow a person's own act brought about
        self.dead = False
        self.locked: list[tuple[EventId, set[tuple[RequestId, int]]]] = []  # and the prompts that stood before it

    def pick(self, number: int) -> RequestId | None:
        open_ones = [r for r in self.asked if self.play.request(r).phase is not Phase.ENDED]
        return open_ones[number % len(open_ones)] if open_ones else None

    def polls_of(self, request_id: RequestId | None) -> list[EventId]:
        ballots = self.play.state.entries[request_id].ballots if request_id else ()
        return [ballot.event_id for ballot in ballots if ballot.event_id]

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

    @rule(number=st.integers(0, 9))
    def the_poll_arrives(self, number: int) -> None:
        request_id = self.pick(number)
        ballots = self.play.state.entries[request_id].ballots if request_id else ()
        if request_id and ballots and ballots[-1].event_id is None:
            poll = self.play.post_poll(request_id)
            assert self.play.state.shown[poll].poll
            self.check_no_new_allow()

    @rule(number=st.integers(0, 9), choice=st.integers(0, len(OPTIONS)), old=st.booleans(), sender=PEOPLE)
    def somebody_votes(self, number: int, choice: int, old: bool, sender: UserId) -> None:
        request_id = self.pick(number)
        polls = self.polls_of(request_id)
        if request_id is None or not polls:
            return
        poll = polls[0 if old else -1]
        before, allowed = self.play.request(request_id), self.allowed()
        counts = self.play.state.shown[poll].revision == before.revision and choice < len(OPTIONS)
        others = {r: self.play.request(r).phase for r in self.asked if r != request_id}
        ids = (*make_answer_ids(before), "made up")
        self.play.vote(poll, ids[choice], sender=sender)
        after = self.play.request(request_id)
        assert others == {r: self.play.request(r).phase for r in others}
        assert counts or after == before, "an answer of another revision's poll decides nothing"
        assert before.whole or allowed == self.allowed(), "what was not shown whole is confirmed before it is allowed"
        if before.phase is not Phase.PENDING:
            assert after == before
        self.by_person = self.allowed()

    @rule(number=st.integers(0, 9), sender=STRANGERS)
    def a_stranger_votes(self, number: int, sender: UserId) -> None:
        request_id = self.pick(number)
        polls = self.polls_of(request_id)
        if request_id and polls:
            before = len(self.play.outcomes)
            self.play.vote(polls[-1], make_answer_ids(self.play.request(request_id))[0], sender=sender)
            assert before == len(self.play.outcomes)

    @precondition(lambda self: self.play.state.rooms[ROOM].encrypted)
    @rule(number=st.integers(0, 9), sender=PEOPLE, seal=st.sampled_from([*BAD_SEALS, None]))
    def somebody_votes_from_a_bad_device(self, number: int, sender: UserId, seal: Seal | None) -> None:
        request_id = self.pick(number)
        polls = self.polls_of(request_id)
        if request_id and polls:
            before = len(self.play.outcomes)
            self.play.vote(polls[-1], make_answer_ids(self.play.request(request_id))[0], sender=sender, seal=seal)
            assert before == len(self.play.outcomes)

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
        encrypted = self.play.state.rooms[ROOM].encrypted or state is RoomState.ENCRYPTED
        self.play.step(RoomSeen(room=ROOM, state=state, people=2, encrypted=encrypted))
        self.play.step(RoomSeen(room=ROOM, state=RoomState.JOINED, people=2, encrypted=encrypted))
        self.play.seal = SIGNED if encrypted else None
        self.check_no_new_allow()

    @rule()
    def the_room_is_encrypted(self) -> None:
        waiting = len(self.play.state.rooms[ROOM].waiting)
        self.play.encrypt()
        assert waiting == len(self.play.state.rooms[ROOM].waiting)
        self.check_no_new_allow()

    @rule(number=st.integers(0, 9), text=WORDS, sender=PEOPLE, seal=st.sampled_from(BAD_SEALS))
    def somebody_writes_from_a_bad_device(self, number: int, text: str, sender: UserId, seal: Seal) -> None:
        request_id = self.pick(number)
        target = self.play.request(request_id).event_id if request_id else None
        before = len(self.play.outcomes)
        self.play.say(text, sender, *([target] if target else []), seal=seal)
        assert self.play.did(Conversation) == []
        assert before == len(self.play.outcomes)

    @rule(text=WORDS, sender=PEOPLE)
    def somebody_writes_in_clear_text_into_an_encrypted_room(self, text: str, sender: UserId) -> None:
        self.play.say(text, sender, seal=None, exposed=True)
        assert [e for e in self.play.effects if not isinstance(e, Send)] == []

    @rule(sender=PEOPLE)
    def a_message_cannot_be_read(self, sender: UserId) -> None:
        event_id = self.play.lock(sender)
        stood = {r: self.play.request(r) for r in self.asked if self.play.request(r).placed}
        self.locked.append((event_id, {(r, request.revision) for r, request in stood.items()}))
        assert [StoreLocked] == [type(e) for e in self.play.effects]

    @rule(number=st.integers(0, 9))
    def its_sender_is_asked_again(self, number: int) -> None:
        if self.locked:
            event_id, _ = self.locked[number % len(self.locked)]
            late = self.play.state.locked[event_id]
            self.play.step(StillLocked(room=ROOM, sender=late.sender, event_id=event_id))
            assert {SendAgain} >= {type(m) for m in self.play.told()}

    @rule(number=st.integers(0, 9), text=WORDS, aim=st.integers(0, 9))
    def it_is_read_after_all(self, number: int, text: str, aim: int) -> None:
        if self.locked:
            event_id, there = self.locked.pop(number % len(self.locked))
            aimed = self.pick(aim)
            targets = [e for e in [self.play.request(aimed).event_id if aimed else None] if e]
            sender = self.play.state.locked[event_id].sender
            pending = {r for r in self.asked if self.play.request(r).phase is Phase.PENDING}
            self.play.say(text, sender, *targets, event_id=event_id)
            decided = {
                (r, self.play.request(r).revision) for r in pending if self.play.request(r).phase is not Phase.PENDING
            }
            assert decided <= there, "it counts for nothing that came after it"
            self.play.step(Unlocked(room=ROOM, event_id=event_id))
            assert event_id not in self.play.state.locked
            self.by_person = self.allowed()

    @rule(person=PEOPLE, master=st.sampled_from(["masterkey", "another"]))
    def a_person_is_verified(self, person: UserId, master: str) -> None:
        self.play.step(Verified(user=person, master=master))
        assert master == self.play.state.pins[person]
        self.check_no_new_allow()

    @precondition(lambda self: len(self.asked) > ENOUGH)
    @rule()
    def the_room_is_upgraded_elsewhere_and_back(self) -> None:
        elsewhere = RoomId(f"!next{len(self.asked)}:ex.org")
        self.play.step(RoomMoved(old=ROOM, new=elsewhere))
        assert self.play.state.agents[CLAUDE].room == elsewhere
        assert len(self.play.state.rooms[ROOM].waiting) == 0
        self.play.step(RoomMoved(old=elsewhere, new=ROOM))
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
    def a_poll_is_open_only_while_its_request_waits(self) -> None:
        ends = [e.message.poll for e in self.play.all_effects if isinstance(e, Send) and isinstance(e.message, PollEnd)]
        assert len(ends) == len(set(ends))
        for request_id in self.asked:
            polls = self.polls_of(request_id)
            if self.play.request(request_id).phase is Phase.ENDED:
                assert set(polls) <= set(ends)
            assert set(polls[:-1]) <= set(ends)

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

    @invariant()
    def no_room_number_is_given_twice(self) -> None:
        asked = [e.request for e in self.play.all_effects if isinstance(e, StoreAsked) and e.request.number]
        revised = [e.request for e in self.play.all_effects if isinstance(e, StoreRevision)]
        first: dict[int, tuple[RequestId, str | None]] = {}
        for request in (*asked, *revised):
            what = (request.request_id, request.description.essence.command if request.strict else None)
            assert first.setdefault(request.number, what)[0] == request.request_id
            if request.strict and request.revision > 1:
                assert first[request.number] == what, "under strict a number names one question"
        assert self.play.state.rooms[ROOM].next_number == 1 + max(first, default=0)


class StrictRequests(Requests):
    """The same where the homeserver is believed nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(agent(expires_after=60_000, reactions=True, polls=True, strict=True))
        self.play.encrypt()

    @rule(number=st.integers(0, 9), text=WORDS, sender=PEOPLE, command=st.sampled_from(["ls", "rm -rf /"]))
    def an_answer_is_kept_back_until_the_request_has_changed(
        self, number: int, text: str, sender: UserId, command: str
    ) -> None:
        request_id = self.pick(number)
        if request_id is None or self.play.request(request_id).phase is not Phase.PENDING:
            return
        old = self.play.request(request_id)
        self.the_agent_changes_what_it_asks(number, command)
        if self.play.request(request_id).revision == old.revision:
            return
        self.the_message_arrives(number)
        before = {r: self.play.request(r).phase for r in self.asked}
        for target in (None, self.play.request(request_id).event_id):
            self.play.say(f"#{old.number} {text}", sender, *([target] if target else []))
        assert before == {r: self.play.request(r).phase for r in self.asked}


class NothingIsForgotten(Requests.TestCase):
    settings = settings(max_examples=150, stateful_step_count=30, print_blob=True)


class NothingIsForgottenUnderStrict(StrictRequests.TestCase):
    settings = settings(max_examples=100, stateful_step_count=30, deadline=None, print_blob=True)


def test_a_state_holds_the_event_of_every_posted_prompt() -> None:
    play = Play()
    asked = play.ask()
    assert play.state.shown[EventId("$prompt1r1")].request_id == asked
