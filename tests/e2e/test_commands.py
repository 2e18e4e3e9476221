"""The commands against a real service, a real homeserver and the control socket between them."""

import json
from pathlib import Path

import pytest

from bridge.app.device import discard_keys
from bridge.demo.homeserver import Account, Homeserver
from tests.e2e.stage import ALLOW, REJECT, playing, setting_up
from tests.peers.devices import at_work
from tests.peers.service import command, running


async def test_what_waits_is_shown_refused_from_here_and_then_stands_in_the_history(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with playing(synapse, tmp_path) as (stage, _):
        prompt = await stage.start_turn(7)
        request_id = prompt["content"]["request_id"]
        code, out, _ = await command(stage.config, "pending", "--json")
        shown = json.loads(out)
        assert (0, request_id, "claude", 1, prompt["event_id"]) == (
            code,
            *(shown[key] for key in ("request_id", "agent", "number", "event_id")),
        )
        refused = await command(stage.config, "answer", request_id, "opt-else")
        assert (1, "") == refused[:2]
        assert "Offered: opt-allow, opt-always, opt-reject." in refused[2]
        accepted = await command(stage.config, "answer", request_id, "opt-reject")
        assert (0, "Accepted: the agent was answered with opt-reject.\n", "") == accepted
        late = await command(stage.config, "answer", request_id, "opt-reject")
        assert (1, "") == late[:2]
        assert "already_resolved" in late[2]
        edit = await stage.edited(prompt)
        code, out, _ = await command(stage.config, "history", "--json")
    assert [REJECT] == stage.agent.answers(7)
    assert 'answered: "Reject".' in edit
    assert "local:" in edit
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert [
        "session_started",
        "permission_request",
        "permission_posted",
        "permission_response",
        "permission_ended",
        "permission_response",
    ] == types


async def test_without_a_service_the_history_is_still_read_and_nothing_else(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with setting_up(synapse, tmp_path) as stage:
        async with running(stage.config) as bridge:
            prompt = await stage.start_turn(7)
            await stage.alice.reply(stage.room, prompt["event_id"], "1")
            await stage.heard("done")
            assert await bridge.end() == 0
        code, out, _ = await command(stage.config, "history", "--json")
        assert (0, "session_ended") == (code, json.loads(out.splitlines()[-1])["type"])
        code, _, sentence = await command(stage.config, "pending")
        assert (1, True) == (code, sentence.startswith("The bridge is not running"))


@pytest.mark.parametrize("local_answers", [False, True])
async def test_a_harness_that_allows_its_own_request_over_the_control_socket_is_refused(
    synapse: Homeserver, tmp_path: Path, *, local_answers: bool
) -> None:
    async with playing(synapse, tmp_path, local_answers=local_answers) as (stage, _):
        stage.agent.do({"wait": {"method": "session/prompt"}}, {"ask": 7})
        await stage.until_joined()
        await stage.alice.person.say(stage.room, "go")
        prompt = await stage.prompt()
        asked = {key: prompt["content"][key] for key in ("session_id", "request_id")} | {"option_id": "opt-allow"}
        line = {"method": "permission.respond", "params": asked}
        stage.agent.do({"call": str(tmp_path / "state" / "control.sock"), "line": line}, {"ask": 8})
        second = await stage.prompt(2)
        (reply,) = [line["called"] for line in stage.agent.read if "called" in line]
        assert reply["error"]["data"]["code"] == "local_answers_off"
        assert [] == stage.alice.edits(stage.room, prompt["event_id"])
        stage.agent.do({"wait": {"id": 7}}, {"wait": {"id": 8}}, {"end_turn": "end_turn", "text": "done"})
        await stage.alice.reply(stage.room, prompt["event_id"], "1")
        await stage.alice.reply(stage.room, second["event_id"], "3")
        await stage.heard("done")
    assert ([ALLOW], [REJECT]) == (stage.agent.answers(7), stage.agent.answers(8))


async def test_after_a_login_with_a_password_the_service_runs_on_the_kept_token(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with setting_up(synapse, tmp_path) as stage:
        password = tmp_path / "password"
        password.write_text(stage.bot.password)
        stage.write_config(access_token_file=None, password_file=str(password))
        code, out, _ = await command(stage.config, "login")
        assert code == 0
        assert f'user_id = "{stage.bot.user_id}"' in out
        kept = tmp_path / "state" / "access_token"
        assert (0o600, False) == (kept.stat().st_mode & 0o777, kept.read_text().strip() in out)
        password.unlink()
        stage.write_config(access_token_file=None)
        async with running(stage.config):
            prompt = await stage.start_turn(7)
            await stage.alice.reply(stage.room, prompt["event_id"], "Allow once")
            await stage.heard("done")
    assert [ALLOW] == stage.agent.answers(7)


async def test_a_wrong_password_ends_with_a_sentence_and_no_token(synapse: Homeserver, tmp_path: Path) -> None:
    async with setting_up(synapse, tmp_path) as stage:
        password = tmp_path / "password"
        password.write_text("Giraffe-wrong-17")
        stage.write_config(access_token_file=None, password_file=str(password))
        code, out, sentence = await command(stage.config, "login")
    assert (3, "", 1) == (code, out, len(sentence.splitlines()))
    assert "Giraffe" not in sentence
    assert not (tmp_path / "state" / "access_token").exists()


async def test_check_finds_nothing_wrong_where_the_service_runs_well(synapse: Homeserver, tmp_path: Path) -> None:
    async with setting_up(synapse, tmp_path) as stage:
        await stage.enter("bob")
        code, out, _ = await command(stage.config, "check")
        assert code == 0
        assert "warning  room of claude: " in out
        async with running(stage.config) as bridge:
            await stage.until_joined()
            assert await bridge.end() == 0
        code, out, _ = await command(stage.config, "check")
    expected = (
        *("config", "state folder", "homeserver", "token", "encryption", "room of claude", "approvers of claude"),
        *("harness of claude", "rate limit"),
    )
    assert (0, dict.fromkeys(expected, "ok") | {"users": "warning"}) == (code, read_levels(out))


def read_levels(out: str) -> dict[str, str]:
    """How each subject of `check` went."""
    return {line.split(maxsplit=1)[1].partition(": ")[0]: line.split()[0] for line in out.splitlines()}


async def test_check_beside_a_bridge_in_an_encrypted_room(synapse: Homeserver, tmp_path: Path) -> None:
    """Alice has a device that she signed, Bob none; the bridge's files are as they were, and it goes on."""
    async with setting_up(synapse, tmp_path) as stage:
        await stage.enter("bob")
        content = {"algorithm": "m.megolm.v1.aes-sha2"}
        await stage.alice.person.ask("PUT", f"/rooms/{stage.room}/state/m.room.encryption", content)
        stage.write_config(encryption=True)
        alice, bob = (stage.people[name].person.user_id for name in ("alice", "bob"))
        person = stage.alice.person
        account = Account(user_id=alice, device_id=person.device_id, access_token=person.token, password="")
        async with at_work(synapse.base_url, account, tmp_path / "alice") as device:
            await device.sign()
        async with running(stage.config) as bridge:
            await stage.until_joined()
            code, out, err = await command(stage.config, "check")
            beside = read_levels(out)
            assert await bridge.end() == 0
        code_alone, alone, _ = await command(stage.config, "check")
    assert (0, "", 0) == (code, err, code_alone)
    assert "and the running bridge has them open." in out
    assert "the running bridge" not in alone
    assert beside == read_levels(alone)
    assert beside == dict.fromkeys(
        (
            *("config", "state folder", "homeserver", "token", "encryption", "device", "fallback key"),
            *("room of claude", "approvers of claude", f"devices of {alice} for claude"),
            *("harness of claude", "rate limit"),
        ),
        "ok",
    ) | dict.fromkeys((f"devices of {bob} for claude", "users"), "warning")


async def test_check_says_what_a_bridge_says_that_runs_without_its_keys(synapse: Homeserver, tmp_path: Path) -> None:
    async with setting_up(synapse, tmp_path) as stage:
        content = {"algorithm": "m.megolm.v1.aes-sha2"}
        await stage.alice.person.ask("PUT", f"/rooms/{stage.room}/state/m.room.encryption", content)
        stage.write_config(encryption=True)
        async with running(stage.config) as bridge:
            await stage.until_joined()
            assert await bridge.end() == 0
        discard_keys(tmp_path / "state")
        async with running(stage.config):
            code, beside, _ = await command(stage.config, "check")
        alone = (await command(stage.config, "check"))[1]
    assert code == 3
    assert "failed   encryption: the running bridge encrypts nothing. The homeserver has other keys" in beside
    assert "failed   room of claude: " in beside
    assert "login --new-device" in alone
