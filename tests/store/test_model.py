"""Whatever is committed, in whatever order, the ledger in SQLite and the one in memory agree, also after a reopening."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bridge.core.changes import (
    Change,
    Record,
    StoreDecision,
    StoreEncrypted,
    StoreEnding,
    StoreLateAnswer,
    StoreLocked,
    StoreMoved,
    StorePin,
    StorePosted,
    StoreRevision,
    StoreSent,
    StoreSession,
    StoreSessionEnd,
    StoreTaken,
    StoreUnlocked,
    StoreUnseen,
)
from bridge.core.errors import LedgerError
from bridge.core.model import (
    AgentName,
    Cancelled,
    Decision,
    Ending,
    EventId,
    Millis,
    Reason,
    Request,
    RequestId,
    RoomId,
    SessionId,
    SyncToken,
    TransactionId,
    UserId,
    Via,
)
from bridge.store.ledger import SqliteLedger
from tests.fakes.ledger import MemoryLedger
from tests.store.values import ALLOW, AT, ask, make_request, queue

# Few names, so that changes meet; odd ones, so that their spelling matters.
FIRST_SESSIONS = [SessionId("acps_1"), SessionId('"\ud800\\')]
SESSIONS = st.sampled_from([*FIRST_SESSIONS, SessionId("acps_3")])
ROOMS = st.sampled_from([RoomId("!a"), RoomId("!ü")])
NUMBERS = st.integers(0, 6)
EVENTS = st.sampled_from([EventId("$1"), EventId("$2\udfff")])
TRANSACTIONS = st.sampled_from([TransactionId("t1"), TransactionId("t2")])
PEOPLE = st.sampled_from([UserId("@alice:ex.org"), UserId("@bob:ex.org")])
PICKS = st.integers(0, 9)  # which of the requests so far; one past them is unknown
TOKENS = st.none() | st.sampled_from([SyncToken("s1"), SyncToken("s2")])
TIMES = st.integers(0, 2**41).map(Millis)
Result = list[Record] | type[LedgerError]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    made = make_request(draw(st.integers(1, 6)), session_id=draw(SESSIONS), room=draw(ROOMS))
    return replace(made, number=draw(NUMBERS), revision=draw(st.integers(1, 2)), placed=draw(st.booleans()))


class Ledgers(RuleBasedStateMachine):
    """Each rule gives one kind of change to both ledgers; some go out several at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "state" / "ledger.db"
        self.sqlite = self.runner.run(SqliteLedger.open(self.path))
        self.memory = MemoryLedger()
        self.batch: list[Change] = []
        self.asked: list[Request] = []
        for session in FIRST_SESSIONS:
            self.commit(StoreSession(session_id=session, agent=AgentName("claude")))

    def teardown(self) -> None:
        self.runner.run(self.sqlite.close())
        self.runner.close()
        self.folder.cleanup()

    async def _commit_to(
        self, ledger: SqliteLedger | MemoryLedger, changes: Sequence[Change], at: Millis, token: SyncToken | None
    ) -> Result:
        try:
            return await ledger.commit(changes, at=at, token=token)
        except LedgerError as error:
            return type(error)

    def commit(self, change: Change | None, at: Millis = AT, token: SyncToken | None = None) -> None:
        changes = [*self.batch, *([] if change is None else [change])]
        self.batch = []
        expected = self.runner.run(self._commit_to(self.memory, changes, at, token))
        assert expected == self.runner.run(self._commit_to(self.sqlite, changes, at, token))

    def request(self, pick: int) -> Request:
        return [*self.asked, make_request(99)][pick % (len(self.asked) + 1)]

    def pick(self, pick: int) -> RequestId:
        return self.request(pick).request_id

    @rule(session=SESSIONS, at=TIMES)
    def session_starts(self, session: SessionId, at: Millis) -> None:
        self.commit(StoreSession(session_id=session, agent=AgentName("agént")), at)

    @rule(session=SESSIONS)
    def session_ends(self, session: SessionId) -> None:
        self.commit(StoreSessionEnd(session_id=session, reason="\udfff"))

    @rule(session=SESSIONS, room=ROOMS, at=TIMES, posted=st.booleans())
    def request_is_asked(self, session: SessionId, room: RoomId, at: Millis, posted: bool) -> None:
        made = make_request(len(self.asked) + 1, session_id=session, room=room)
        made = made if posted else replace(made, number=0)
        self.asked.append(made)
        self.commit(ask(made), at)

    @rule(request=requests())
    def request_takes_any_number(self, request: Request) -> None:
        self.commit(ask(request))

    @rule(request=requests())
    def request_is_asked_in_a_batch(self, request: Request) -> None:
        self.batch.append(ask(request))

    @rule(
        pick=PICKS,
        revision=st.integers(1, 2),
        event_id=st.none() | EVENTS,
        placed=st.booleans(),
        number=st.none() | NUMBERS,
    )
    def request_is_revised(
        self, pick: int, revision: int, event_id: EventId | None, placed: bool, number: int | None
    ) -> None:
        revised = replace(self.request(pick), revision=revision, event_id=event_id, placed=placed)
        self.commit(StoreRevision(request=revised if number is None else replace(revised, number=number)))

    @rule(pick=PICKS, event_id=EVENTS, revision=st.integers(1, 2))
    def prompt_is_posted(self, pick: int, event_id: EventId, revision: int) -> None:
        self.commit(StorePosted(request_id=self.pick(pick), event_id=event_id, digest=None, revision=revision))

    @rule(pick=PICKS, ending=st.sampled_from(Ending), batched=st.booleans())
    def request_is_decided(self, pick: int, ending: Ending, batched: bool) -> None:
        decision = Decision(ending=ending, outcome=Cancelled(), at=Millis(1))
        change = StoreDecision(request_id=self.pick(pick), decision=decision, waited=Millis(1))
        if batched:
            self.batch.append(change)
        else:
            self.commit(change)

    @rule(pick=PICKS, event_id=st.none() | EVENTS)
    def answer_comes_late(self, pick: int, event_id: EventId | None) -> None:
        self.commit(
            StoreLateAnswer(
                request_id=self.pick(pick),
                reason=Reason.EXPIRED,
                option=ALLOW,
                by="@bob:ex.org",
                via=Via.MESSAGE,
                event_id=event_id,
                waited=Millis(2),
            )
        )

    @rule(pick=PICKS, ending=st.sampled_from(Ending), delivered=st.booleans())
    def request_ends(self, pick: int, ending: Ending, delivered: bool) -> None:
        self.commit(StoreEnding(request_id=self.pick(pick), ending=ending, delivered=delivered))

    @rule(room=ROOMS, person=PEOPLE, on=st.booleans())
    def person_has_not_seen(self, room: RoomId, person: UserId, on: bool) -> None:
        self.commit(StoreUnseen(room=room, person=person, on=on))

    @rule(request=requests(), name=TRANSACTIONS)
    def event_is_queued(self, request: Request, name: TransactionId) -> None:
        self.commit(queue(request, name))

    @rule(name=TRANSACTIONS, event_id=st.none() | EVENTS)
    def event_left(self, name: TransactionId, event_id: EventId | None) -> None:
        self.commit(StoreSent(transaction_id=name, event_id=event_id))

    @rule(event_id=EVENTS, token=TOKENS)
    def event_is_taken(self, event_id: EventId, token: SyncToken | None) -> None:
        self.commit(StoreTaken(event_id), token=token)

    @rule(event_id=EVENTS, room=ROOMS, sender=PEOPLE, token=TOKENS)
    def event_is_locked(self, event_id: EventId, room: RoomId, sender: UserId, token: SyncToken | None) -> None:
        self.commit(StoreLocked(event_id=event_id, room=room, sender=sender, raw="{\udfff}"), token=token)

    @rule(event_id=EVENTS)
    def event_is_unlocked(self, event_id: EventId) -> None:
        self.commit(StoreUnlocked(event_id))

    @rule(person=PEOPLE, master=st.sampled_from(["one", "ü"]))
    def person_is_pinned(self, person: UserId, master: str) -> None:
        self.commit(StorePin(user=person, master=master))

    @rule(room=ROOMS)
    def room_is_encrypted(self, room: RoomId) -> None:
        self.commit(StoreEncrypted(room))

    @rule(old=ROOMS, new=ROOMS)
    def room_moves(self, old: RoomId, new: RoomId) -> None:
        self.commit(StoreMoved(old=old, new=new))

    @rule(token=TOKENS)
    def sync_brings_nothing(self, token: SyncToken | None) -> None:
        self.commit(None, token=token)

    @rule(after=st.dictionaries(SESSIONS, NUMBERS), session=st.none() | SESSIONS)
    def history_is_read(self, after: dict[SessionId, int], session: SessionId | None) -> None:
        expected = self.runner.run(self.memory.history(after, session_id=session))
        assert expected == self.runner.run(self.sqlite.history(after, session_id=session))

    @rule()
    def bridge_starts_again(self) -> None:
        self.runner.run(self.sqlite.close())
        self.sqlite = self.runner.run(SqliteLedger.open(self.path))

    @invariant()
    def a_start_finds_the_same(self) -> None:
        assert self.runner.run(self.memory.load()) == self.runner.run(self.sqlite.load())

    @invariant()
    def no_sequence_has_a_gap(self) -> None:
        numbers: dict[SessionId, list[int]] = {}
        for record in self.runner.run(self.sqlite.history()):
            numbers.setdefault(record.session_id, []).append(record.sequence)
        assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


Ledgers.TestCase.settings = settings(max_examples=20, stateful_step_count=40)
test_both_ledgers_agree = Ledgers.TestCase
