"""A question goes the way of every other request, through a real relay between fakes."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from anyio.abc import ObjectReceiveStream

from bridge.app.questions import DETAIL, TITLE, Questions, Reply
from bridge.core.changes import Record
from bridge.core.messages import Closing, Prompt
from bridge.core.model import AgentName, CallRef, Ending, EventId, Outcome, Selected, SessionId
from tests.core.play import ALICE, CLAUDE, SESSION
from tests.fakes.agents import Closed, Prompted, Responded, TurnCancelSent
from tests.relay.rig import Rig

OURS = SessionId("acps_00000000000000ff")


class Asking(Rig):
    """A rig whose harnesses stand behind the questions."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = Questions(
            self.agents,
            deliver=self.deliver,
            subscribe=self._subscribe,
            new_session_id=lambda: OURS,
            new_nonce=lambda: "",
        )
        self.relay._agents = self.questions  # pyright: ignore[reportPrivateUsage] - the rig makes its relay itself

    def _subscribe(self) -> AbstractAsyncContextManager[ObjectReceiveStream[Record]]:
        return self.relay.subscribe()

    @asynccontextmanager
    async def asking(self, limit_s: float = 60) -> AsyncGenerator[list[Reply]]:
        """The question's prompt stands in the room; what became of it is in the list once the block is left."""
        found: list[Reply] = []

        async def ask() -> None:
            found.append(await self.questions.ask(CLAUDE, limit_s))

        async with self.begun(), anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not self.worded(Prompt):
                await anyio.lowlevel.checkpoint()
            await self.quiet()
            request_id = next(iter(self.relay.state.calls.values()))
            await self.post(request_id)
            yield found


async def test_an_answer_comes_back_with_who_gave_it_and_how() -> None:
    rig = Asking()
    async with rig.asking() as found:
        await rig.sync(rig.said("1", event_id="$answer"))
    (reply,) = found
    assert ("works", str(ALICE), "message", "answered") == (reply.option, reply.by, reply.via, reply.ending)
    assert reply.event_id is not None
    assert [] == rig.agents.acts  # no harness heard of it


async def test_the_question_says_that_nothing_is_run() -> None:
    rig = Asking()
    async with rig.asking():
        (prompt,) = rig.worded(Prompt)
        assert isinstance(prompt, Prompt)
        assert TITLE == prompt.request.description.title
        assert prompt.request.description.complete
        assert DETAIL in str(prompt.request.description.preview)
        await rig.sync(rig.said("2"))


async def test_a_question_that_nobody_answers_is_taken_back() -> None:
    rig = Asking()
    async with rig.begun():
        reply = await rig.questions.ask(CLAUDE, limit_s=0)
        await rig.quiet()
        assert (None, None) == (reply.option, reply.ending)
        (entry,) = rig.relay.state.entries.values()
        assert entry.request.decision is not None
        assert Ending.SESSION_DELETED is entry.request.decision.ending


async def test_a_question_beside_a_real_request_leaves_that_one_alone() -> None:
    rig = Asking()
    async with rig.asking() as found:
        request_id = await rig.ask()
        real = rig.relay.state.entries[request_id].request
        assert real.event_id is not None
        await rig.sync(rig.said("1", real.event_id))
        (question,) = (e.request for e in rig.relay.state.entries.values() if e.request.session_id == OURS)
        assert question.event_id is not None
        await rig.sync(rig.said("2", EventId(question.event_id)))
    assert ["no"] == [reply.option for reply in found]
    responses: list[tuple[CallRef, Outcome]] = [(CallRef(1), Selected("opt-allow"))]
    assert responses == rig.responses
    assert [] != rig.worded(Closing)


async def test_everything_else_goes_to_the_harness() -> None:
    rig = Asking()
    rig.questions.respond(CLAUDE, CallRef(7), Selected("x"))
    rig.questions.prompt(CLAUDE, SESSION, "words")
    rig.questions.cancel(CLAUDE, SESSION)
    rig.questions.close(AgentName("claude"), SESSION)
    assert [
        Responded(CLAUDE, CallRef(7), Selected("x")),
        Prompted(CLAUDE, SESSION, "words"),
        TurnCancelSent(CLAUDE, SESSION),
        Closed(CLAUDE, SESSION),
    ] == rig.agents.acts
