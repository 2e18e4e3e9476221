"""What people are promised, shown with everything real: the program `run`, Synapse, agents as processes, people over HTTP."""

import signal
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.demo.homeserver import Homeserver
from tests.e2e.stage import ALLOW, CANCELLED, REJECT, playing, setting_up
from tests.peers.service import END_S, running

POLL = "org.matrix.msc3381.poll"
KEYCAP_3 = "3\ufe0f\u20e3"


# ---------------------------------------------------------------------------------------------------------------- answers


async def test_of_two_people_who_answer_at_once_the_first_wins_and_the_other_is_told(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with playing(synapse, tmp_path) as (stage, _):
        bob = await stage.enter("bob")
        prompt = await stage.start_turn(7)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.alice.reply, stage.room, prompt["event_id"], "1")
            tasks.start_soon(bob.react, stage.room, prompt["event_id"], KEYCAP_3)
        await stage.heard("done")
        late = await stage.heard("came too late")
        edit = await stage.edited(prompt)
    winner, name, result = ("bob", "Reject", REJECT) if "bob" in edit else ("alice", "Allow once", ALLOW)
    told = f'{stage.people[winner].person.user_id} answered: "{name}".'
    assert [result] == stage.agent.answers(7)
    assert told in edit
    assert told in late
    responses = [record.fields for record in stage.history if record.type == "permission_response"]
    assert [("accepted", None), ("not_pending", "already_resolved")] == [
        (row["status"], row.get("reason")) for row in responses
    ]


async def test_somebody_who_may_not_answer_decides_nothing(synapse: Homeserver, tmp_path: Path) -> None:
    async with playing(synapse, tmp_path) as (stage, _):
        carol = await stage.enter("carol")
        prompt = await stage.start_turn(7)
        await carol.reply(stage.room, prompt["event_id"], "1")
        await stage.heard("you are not one of the people who may answer #1")
        assert [] == stage.agent.answers(7)
        await stage.alice.reply(stage.room, prompt["event_id"], "reject")
        await stage.heard("done")
    assert [REJECT] == stage.agent.answers(7)


async def test_a_vote_in_the_poll_beside_the_prompt_answers_it_and_the_poll_ends(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with playing(synapse, tmp_path, polls=True, reactions=False) as (stage, _):
        prompt = await stage.start_turn(7)
        (poll,) = await stage.alice.until(lambda: stage.alice.events(stage.room, f"{POLL}.start"))
        shown = poll["content"][f"{POLL}.start"]
        assert "(#1)" in shown["question"]["org.matrix.msc1767.text"]
        relation = {"rel_type": "m.reference", "event_id": poll["event_id"]}
        for chosen in (
            ["made up"],
            [shown["answers"][0]["id"], shown["answers"][2]["id"]],
            [shown["answers"][2]["id"]],
        ):
            vote = {"m.relates_to": relation, f"{POLL}.response": {"answers": chosen}}
            await stage.alice.person.put(stage.room, f"{POLL}.response", vote)
        await stage.heard("done")
        (end,) = await stage.alice.until(lambda: stage.alice.events(stage.room, f"{POLL}.end"))
        edit = await stage.edited(prompt)
    assert [REJECT] == stage.agent.answers(7)
    assert relation == end["content"]["m.relates_to"]
    assert 'answered: "Reject".' in edit
    (answered,) = [record.fields for record in stage.history if record.type == "permission_response"]
    assert answered["via"] == "poll"


# -------------------------------------------------------------------------------------------------------- how things end


async def test_when_the_agent_dies_its_prompt_says_so_and_a_late_answer_is_told(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with playing(synapse, tmp_path) as (stage, _):
        stage.agent.do({"wait": {"method": "session/prompt"}}, {"ask": 7})
        await stage.until_joined()
        await stage.alice.person.say(stage.room, "go")
        prompt = await stage.prompt()
        stage.agent.do({"exit": 3})
        edit = await stage.edited(prompt)
        await stage.heard("claude has ended with exit code 3.")
        await stage.alice.reply(stage.room, prompt["event_id"], "1")
        late = await stage.heard("came too late")
    assert "The agent ended before anybody answered. Nothing has been approved." in edit
    assert "The agent ended before anybody answered." in late
    assert [("agent_gone", False)] == stage.endings()


async def test_after_a_power_cut_the_old_prompt_is_over_and_the_next_one_has_the_next_number(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with setting_up(synapse, tmp_path) as stage:
        async with running(stage.config) as bridge:
            prompt = await stage.start_turn(7)
            await bridge.kill()
        async with running(stage.config) as bridge:
            edit = await stage.edited(prompt)
            await stage.alice.person.say(stage.room, "1")
            late = await stage.heard("came too late")
            stage.agent.ask_in_turn(8)
            await stage.alice.person.say(stage.room, "go on")
            second = await stage.prompt(2)
            await stage.alice.reply(stage.room, second["event_id"], "1")
            await stage.heard("done")
            assert await bridge.end() == 0
    assert "The agent ended before anybody answered." in edit
    assert "The agent ended before anybody answered." in late
    assert ["go", "go on"] == stage.agent.told()
    assert ([], [ALLOW]) == (stage.agent.answers(7), stage.agent.answers(8))
    assert [("agent_gone", False), ("answered", True)] == stage.endings()


async def test_sigterm_answers_all_that_waits_and_ends_in_order(synapse: Homeserver, tmp_path: Path) -> None:
    async with playing(synapse, tmp_path) as (stage, bridge):
        first = await stage.start_turn(7, 8)
        second = await stage.prompt(2)
        bridge.send_signal(signal.SIGTERM)
        assert await bridge.ended(seconds=END_S) == 0
        edits = [await stage.edited(prompt) for prompt in (first, second)]
    assert ([CANCELLED], [CANCELLED]) == (stage.agent.answers(7), stage.agent.answers(8))
    assert [True, True] == ["The bridge was stopped before anybody answered." in edit for edit in edits]
    assert [("shutdown", True)] * 2 == stage.endings()


async def test_while_the_homeserver_is_away_nothing_is_lost_and_nothing_said_twice(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with playing(synapse, tmp_path) as (stage, bridge):
        stage.agent.do({"wait": {"method": "session/prompt"}}, {"ask": 7})
        await stage.until_joined()
        await stage.alice.person.say(stage.room, "go")
        first = await stage.prompt()
        await anyio.to_thread.run_sync(synapse.kill)
        try:
            stage.agent.do({"ask": 8})
            await bridge.until(lambda: bridge.logged("matrix.send_delayed"), seconds=END_S)
        finally:
            await anyio.to_thread.run_sync(synapse.start)
        second = await stage.prompt(2)
        await stage.alice.reply(stage.room, second["event_id"], "3")
        await stage.alice.reply(stage.room, first["event_id"], "1")
        edits = [await stage.edited(prompt) for prompt in (second, first)]
        stage.agent.do({"wait": {"id": 7}}, {"wait": {"id": 8}}, {"end_turn": "end_turn", "text": "done"})
        await stage.heard("done")
        assert len(stage.alice.prompts(stage.room)) == 2
    assert [True, True] == ["answered:" in edit for edit in edits]
    assert ([ALLOW], [REJECT]) == (stage.agent.answers(7), stage.agent.answers(8))


# ----------------------------------------------------------------------------------------------------------------- rooms


async def test_an_encrypted_room_is_refused_and_nothing_is_said_there(synapse: Homeserver, tmp_path: Path) -> None:
    async with setting_up(synapse, tmp_path) as stage:
        await stage.alice.person.ask(
            "PUT", f"/rooms/{stage.room}/state/m.room.encryption/", {"algorithm": "m.megolm.v1.aes-sha2"}
        )
        async with running(stage.config) as bridge:
            await stage.until_joined()
            await bridge.until(lambda: bridge.logged("agent.session_started"), seconds=END_S)
            stage.agent.do({"ask": 7})
            await bridge.until(lambda: bridge.logged("permission.ended", ending="undeliverable"), seconds=END_S)
            assert await bridge.end() == 0
        await stage.alice.look()
        assert [] == stage.alice.messages(stage.room)
    assert [CANCELLED] == stage.agent.answers(7)
    assert [("undeliverable", True)] == stage.endings()


async def test_an_invite_that_comes_while_the_bridge_runs_is_taken(synapse: Homeserver, tmp_path: Path) -> None:
    async with setting_up(synapse, tmp_path, invited=False) as stage, running(stage.config):
        await stage.invite(stage.bot.user_id)
        prompt = await stage.start_turn(7)
        await stage.alice.reply(stage.room, prompt["event_id"], "1")
        await stage.heard("done")
    assert [ALLOW] == stage.agent.answers(7)


async def test_what_an_agent_could_not_be_started_for_is_said_in_a_room_that_the_bot_only_now_enters(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with setting_up(synapse, tmp_path, "claude", "codex") as stage:
        stage.agents["codex"].command = ["/no/such/program"]
        stage.write_config()
        async with running(stage.config):
            await stage.heard("codex: Agent codex was not started: there is no command /no/such/program.")


async def test_two_agents_in_one_room_each_hear_and_ask_for_themselves(synapse: Homeserver, tmp_path: Path) -> None:
    async with playing(synapse, tmp_path, "claude", "codex") as (stage, _):
        await stage.until_joined()
        for agent in stage.agents.values():
            agent.ask_in_turn(7)
        await stage.alice.person.say(stage.room, "go")
        await stage.heard("Several agents are here: claude, codex.")
        await stage.alice.person.say(stage.room, "codex: list the files")
        first = await stage.prompt()
        await stage.alice.person.say(stage.room, "claude: run the tests")
        second = await stage.prompt(2)
        await stage.alice.person.say(stage.room, "1")
        await stage.heard("Several requests wait here")
        await stage.alice.reply(stage.room, second["event_id"], "3")
        await stage.alice.reply(stage.room, first["event_id"], "1")
        await stage.heard("claude: done")
        await stage.heard("codex: done")
    assert first["content"]["body"].startswith("Permission needed by codex (#1):")
    assert second["content"]["body"].startswith("Permission needed by claude (#2):")
    claude, codex = stage.agents["claude"], stage.agents["codex"]
    assert (["run the tests"], ["list the files"]) == (claude.told(), codex.told())
    assert ([REJECT], [ALLOW]) == (claude.answers(7), codex.answers(7))
