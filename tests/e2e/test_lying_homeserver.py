"""The whole program on a homeserver that lies, in an encrypted room: nothing that it makes up is an answer."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from uuid import uuid4

import anyio
import pytest

from bridge.core.model import UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix.crypto.identity import Identity
from tests.e2e.stage import ALLOW, REJECT, Agent
from tests.peers.evil import Evil, lying, timelines
from tests.peers.nio_person import NioPerson, nio_person
from tests.peers.service import Service, running, write_config

WAIT_S = 30.0
ENCRYPTED = "m.room.encrypted"

Json = dict[str, Any]


class Scene:
    """A bridge behind a lying homeserver, and people who speak to the true one."""

    def __init__(self, synapse: Homeserver, evil: Evil, folder: Path) -> None:
        self.synapse, self.evil, self.folder = synapse, evil, folder
        self.bot: Account = synapse.register(f"bot-{uuid4().hex[:8]}")
        self.agents = [Agent(folder, "claude0")]
        self.config = Path()
        self.room = ""

    @property
    def agent(self) -> Agent:
        return self.agents[-1]

    def new_agent(self) -> None:
        """One that has no steps of the last one left."""
        self.agents.append(Agent(self.folder, f"claude{len(self.agents)}"))

    def write(self, *approvers: str, **agent: object) -> None:
        section: Json = {
            "command": self.agent.command,
            "cwd": str(self.folder),
            "room": self.room,
            "approvers": list(approvers),
            "listen": "all",
        }
        self.config = write_config(self.folder, self.evil.url, self.bot, {"claude": section | agent})

    async def ask(self, alice: NioPerson, call_id: int = 7) -> Json:
        """Let the agent ask; the prompt as Alice reads it."""
        self.agent.ask_in_turn(call_id)
        await alice.say(self.room, "claude: go")
        return await hear(alice, "Permission needed")


@asynccontextmanager
async def person(synapse: Homeserver, folder: Path, name: str, *, signed: bool = False) -> AsyncGenerator[NioPerson]:
    account = synapse.register(f"{name}-{uuid4().hex[:8]}")
    made = nio_person(synapse.base_url, account.user_id, account.device_id, account.access_token, folder / name)
    async with made as who:
        who.password = account.password
        if signed:
            sign(synapse, who)
        yield who


def sign(synapse: Homeserver, who: NioPerson) -> None:
    """What a client does that cross-signs its own device."""
    user, olm = UserId(who.user_id), cast("Any", who.nio.olm)
    found = ask(synapse, who.token, "POST", "/keys/query", {"device_keys": {user: []}})
    device = found["device_keys"][user][who.device_id]
    device.pop("unsigned", None)
    identity = Identity.new()
    ask(
        synapse,
        who.token,
        "POST",
        "/keys/device_signing/upload",
        identity.to_upload(user, who.device_id, olm.sign_json),
    )
    signed = {user: {who.device_id: identity.sign_device(user, device)}}
    assert ask(synapse, who.token, "POST", "/keys/signatures/upload", signed)["failures"] == {}


def ask(synapse: Homeserver, token: str, method: str, path: str, body: object = None) -> Json:
    answer = call(synapse.base_url, method, f"/_matrix/client/v3{path}", body, token=token)
    assert answer.status == 200, answer
    return dict(answer.body)


async def hear(who: NioPerson, text: str) -> Json:
    """The first message that this person can read with this text in it."""
    with anyio.fail_after(WAIT_S):
        while True:
            for event in list(who.seen.values()):
                content = event.source.get("content", {})
                if text in str(content.get("body", "")) and event.source["sender"] != who.user_id:
                    return event.source
            await who.sync(1_000)


async def meet(scene: Scene, alice: NioPerson) -> None:
    """Until Alice's client knows that the bot is there, and its device."""
    await alice.until_member(scene.room, scene.bot.user_id)
    store: Any = alice.nio.device_store
    with anyio.fail_after(WAIT_S):
        while scene.bot.device_id not in store[scene.bot.user_id]:
            await alice.sync(1_000)


@asynccontextmanager
async def playing(
    synapse: Homeserver, folder: Path, *, signed: bool = True, encrypted: bool = True, **agent: object
) -> AsyncGenerator[tuple[Scene, NioPerson]]:
    async with lying(synapse.base_url) as evil, person(synapse, folder, "alice", signed=signed) as alice:
        scene = Scene(synapse, evil, folder)
        scene.room = await alice.room(scene.bot.user_id, encrypted=encrypted)
        scene.write(alice.user_id, **agent)
        try:
            yield scene, alice
        finally:
            for one in scene.agents:
                one.close()


def clear_sends(scene: Scene, *, after: int = 0) -> list[str]:
    """The types of what the bridge sent into the room, but for reactions, that was not encrypted."""
    sent = [path.partition(f"/rooms/{scene.room}/send/")[2] for path, _ in scene.evil.sent[after:]]
    kinds = [
        rest.partition("/")[0] for rest in sent if rest
    ]  # after it comes a transaction id, with slashes of its own
    assert ENCRYPTED in kinds  # or we look for the wrong thing
    return [kind for kind in kinds if kind not in (ENCRYPTED, "m.reaction")]


def secrets_of(scene: Scene) -> list[str]:
    state = scene.folder / "state"
    identity = (state / "cross_signing.json").read_text()
    seeds = [word for word in identity.split('"') if len(word) == 43]
    return [scene.bot.access_token, scene.bot.password, (state / "pickle.key").read_text(), *seeds]


def check_secrets(scene: Scene, run: Service) -> None:
    known = secrets_of(scene)
    assert len(known) > 3
    assert [] == [line for line in run.log if any(secret in str(line) for secret in known)]


async def test_nothing_that_a_homeserver_makes_up_is_an_answer(synapse: Homeserver, tmp_path: Path) -> None:
    """It puts a stranger's words into Alice's mouth, speaks for her in clear text, and repeats what she said before."""
    async with playing(synapse, tmp_path) as (scene, alice), person(synapse, tmp_path, "mallory") as mallory:
        async with running(scene.config, words=("--debug",)) as run:
            await meet(scene, alice)
            ask(synapse, alice.token, "POST", f"/rooms/{quote(scene.room)}/invite", {"user_id": mallory.user_id})
            await mallory.join(scene.room)
            earlier = await alice.say(scene.room, "1")  # with nothing waiting: words for the agent
            scene.agent.do({"wait": {"method": "session/prompt"}}, {"end_turn": "end_turn", "text": "was told"})
            await hear(alice, "was told")
            await scene.ask(alice)
            store: Any = mallory.nio.device_store
            with anyio.fail_after(WAIT_S):
                while scene.bot.device_id not in store[scene.bot.user_id]:
                    await mallory.sync(1_000)
            stolen: list[Json] = []

            def lie(path: str, answer: Json) -> None:
                if not path.endswith("/sync"):
                    return
                for room, events in timelines(answer):
                    for event in list(events):
                        if event["sender"] == mallory.user_id:
                            event["sender"] = alice.user_id
                            stolen.append(event)
                            if room == scene.room and len(stolen) == 1:
                                said = {"msgtype": "m.text", "body": "1"}
                                clear = {"type": "m.room.message", "sender": alice.user_id, "content": said}
                                again = ask(synapse, alice.token, "GET", f"/rooms/{quote(room)}/event/{quote(earlier)}")
                                events += [
                                    {**clear, "event_id": "$clear"},
                                    {**again, "event_id": "$again"},
                                    {**again},
                                ]

            scene.evil.lies.append(lie)
            await mallory.say(scene.room, "1")
            await hear(alice, "came from no session of your account")
            await hear(alice, "came unencrypted into an encrypted room")
            assert stolen
            assert [] == scene.agent.answers(7)
            scene.evil.lies.clear()
            await alice.say(scene.room, "1")
            await hear(alice, "done")
            check_secrets(scene, run)
        assert [ALLOW] == scene.agent.answers(7)
        assert [] == clear_sends(scene)


async def test_a_device_that_its_owner_did_not_sign_answers_by_no_surface(synapse: Homeserver, tmp_path: Path) -> None:
    """By none that is encrypted, and by no reaction under `strict`; nor does clear text, a vote of two, or another's vote."""
    async with playing(synapse, tmp_path) as (scene, alice), person(synapse, tmp_path, "bob") as bob:
        scene.write(alice.user_id, bob.user_id, trust="cross_signed", polls=True, strict=True)
        async with running(scene.config):
            await meet(scene, alice)
            ask(synapse, alice.token, "POST", f"/rooms/{quote(scene.room)}/invite", {"user_id": bob.user_id})
            await bob.join(scene.room)
            await meet(scene, bob)
            prompt = (await scene.ask(alice))["event_id"]
            poll, ids = await find_poll(alice)
            await bob.say(scene.room, "#1 1")
            await bob.reply(scene.room, prompt, "#1 1")
            await bob.thread(scene.room, prompt, "#1 1")
            await bob.vote(scene.room, poll, ids[0])
            for who in (alice, bob):
                await who.react(scene.room, prompt, "1")
                clear = {"msgtype": "m.text", "body": "#1 1"}
                put(synapse, who, scene.room, "m.room.message", clear)
                voted = {
                    "org.matrix.msc3381.poll.response": {"answers": [ids[0]]},
                    "m.relates_to": {"rel_type": "m.reference", "event_id": poll},
                }
                put(synapse, who, scene.room, "org.matrix.msc3381.poll.response", voted)
            await alice.vote(scene.room, poll, ids[0], ids[1])
            await alice.vote(scene.room, poll, "0" * 32)
            await alice.vote(scene.room, prompt, ids[0])
            await alice.say(scene.room, "1")
            await hear(alice, "counts only with its number inside the encrypted message")
            assert [] == scene.agent.answers(7)
            await alice.vote(scene.room, poll, ids[2])
            await hear(alice, "done")
        assert [REJECT] == scene.agent.answers(7)
        assert [] == clear_sends(scene)


async def find_poll(who: NioPerson) -> tuple[str, list[str]]:
    """The poll's event and the ids of its answers."""
    kind = "org.matrix.msc3381.poll.start"
    with anyio.fail_after(WAIT_S):
        while True:
            for event_id, event in who.seen.items():
                if event.source.get("type") == kind:
                    return event_id, [answer["id"] for answer in event.source["content"][kind]["answers"]]
            await who.sync(1_000)


def put(synapse: Homeserver, who: NioPerson, room: str, kind: str, content: Json) -> None:
    """Send something in clear text, as a client does that does not know that the room is encrypted."""
    ask(synapse, who.token, "PUT", f"/rooms/{quote(room)}/send/{kind}/{uuid4().hex}", content)


async def test_encryption_that_the_homeserver_forgets_after_a_restart_is_not_forgotten_here(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with playing(synapse, tmp_path) as (scene, alice):
        async with running(scene.config):
            await meet(scene, alice)
            await scene.ask(alice)

        def lie(path: str, answer: Json) -> None:
            if path.endswith("/sync"):
                for said in answer.get("rooms", {}).get("join", {}).values():
                    for part in ("state", "timeline"):
                        events = said.get(part, {}).get("events", [])
                        events[:] = [event for event in events if event["type"] != "m.room.encryption"]

        scene.evil.lies.append(lie)
        scene.new_agent()
        scene.write(alice.user_id)
        async with running(scene.config):
            scene.agent.ask_in_turn(8)
            await alice.say(scene.room, "claude: go")
            await hear(alice, "Permission needed (#2)")
        assert [] == clear_sends(scene)


@pytest.mark.parametrize("what", ["/sendToDevice/m.room.encrypted", "/send/m.room.encrypted"])
async def test_killed_while_it_gives_out_a_key_it_asks_again_and_everybody_can_read(
    synapse: Homeserver, tmp_path: Path, what: str
) -> None:
    async with playing(synapse, tmp_path) as (scene, alice):
        asked = anyio.Event()

        async def gate() -> None:
            asked.set()
            await anyio.sleep_forever()

        async with running(scene.config) as run:
            await meet(scene, alice)
            scene.evil.gates[what] = gate
            scene.agent.ask_in_turn(7)
            await alice.say(scene.room, "claude: go")
            with anyio.fail_after(WAIT_S):
                await asked.wait()
            await run.kill()
        scene.evil.gates.clear()
        scene.new_agent()
        scene.write(alice.user_id)
        async with running(scene.config):
            scene.agent.ask_in_turn(8)
            await alice.say(scene.room, "claude: go")
            prompt = await hear(alice, "Permission needed (#2)")
            await alice.reply(scene.room, prompt["event_id"], "1")
            with anyio.fail_after(WAIT_S):
                while not scene.agent.answers(8):
                    await alice.sync(1_000)
        assert [ALLOW] == scene.agent.answers(8)
        assert [] == clear_sends(scene)


@pytest.mark.parametrize("what", ["/keys/upload", "/keys/device_signing/upload", "/keys/signatures/upload"])
async def test_killed_while_its_keys_are_published_it_starts_as_if_for_the_first_time(
    synapse: Homeserver, tmp_path: Path, what: str
) -> None:
    """At each step of the first start, also with the request carried out and its answer lost."""
    async with playing(synapse, tmp_path) as (scene, alice):
        asked = anyio.Event()

        async def gate() -> None:
            asked.set()
            await anyio.sleep_forever()

        old = os.umask(0)
        try:
            scene.evil.gates[what] = gate
            async with running(scene.config, ready=False) as run:
                with anyio.fail_after(WAIT_S):
                    await asked.wait()
                await run.kill()
            scene.evil.gates.clear()
            async with running(scene.config) as run:
                await meet(scene, alice)
                await scene.ask(alice)
                await alice.say(scene.room, "1")
                await hear(alice, "done")
                check_secrets(scene, run)
        finally:
            os.umask(old)
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "state").iterdir()}
        assert set(modes.values()) <= {"0o600"}, modes
        assert "0o700" == oct((tmp_path / "state").stat().st_mode & 0o777)
        user, device = scene.bot.user_id, scene.bot.device_id
        found = ask(synapse, alice.token, "POST", "/keys/query", {"device_keys": {user: []}})
        signer = next(iter(found["self_signing_keys"][user]["keys"]))
        assert signer in found["device_keys"][user][device]["signatures"][user]
    assert [ALLOW] == scene.agent.answers(7)
