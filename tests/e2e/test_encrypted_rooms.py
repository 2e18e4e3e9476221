"""The Matrix side in encrypted rooms, on a real Synapse, with people on another implementation than the bridge's."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import anyio
import pytest
from structlog.testing import capture_logs

from bridge.core.changes import Priority, StoreLocked
from bridge.core.events import (
    Echoed,
    Locked,
    Reacted,
    RoomSeen,
    RoomState,
    Said,
    SendFailed,
    Sent,
    StillLocked,
    Unlocked,
)
from bridge.core.model import EventId, JsonObject, RoomId, UserId
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.matrix.client import Client
from bridge.matrix.crypto.machine import Machine
from bridge.matrix.encryption import Encryption
from tests.peers.late_keys import losing_keys
from tests.peers.nio_person import NioPerson, nio_person
from tests.peers.running_rooms import Running, outgoing, running

WAIT_S = 20.0  # real servers and real keys, on a machine that does other things as well
SECRET = "rm -rf /tmp/build"
PROMPT: JsonObject = {"msgtype": "m.text", "body": SECRET}
ENCRYPTION = {"algorithm": "m.megolm.v1.aes-sha2"}

Json = dict[str, Any]


class Bot:
    """The bot's account, with its keys in a folder."""

    def __init__(self, synapse: Homeserver, folder: Path) -> None:
        self.url = synapse.base_url
        self.account: Account = synapse.register(f"bot-{uuid4().hex[:8]}")
        self.user = UserId(self.account.user_id)
        self._folder = folder / "bot"

    @asynccontextmanager
    async def at_work(
        self,
        *rooms: str,
        since: str | None = None,
        held: Sequence[StoreLocked] = (),
    ) -> AsyncGenerator[Running]:
        account = self.account
        client = Client(self.url, user_id=self.user, device_id=account.device_id, access_token=account.access_token)
        try:
            with Machine(self._folder, self.user, account.device_id, create=not self._folder.exists()) as machine:
                sealing = Encryption(client, machine)
                await sealing.start()
                async with running(
                    client,
                    bound={RoomId(room): False for room in rooms},
                    since=since,
                    bot=self.user,
                    sealing=sealing,
                    held=held,
                ) as run:
                    run.patience_s = WAIT_S
                    yield run
        finally:
            await client.close()


@pytest.fixture
def bot(synapse: Homeserver, tmp_path: Path) -> Bot:
    return Bot(synapse, tmp_path)


@pytest.fixture
async def alice(synapse: Homeserver, tmp_path: Path) -> AsyncIterator[NioPerson]:
    account = synapse.register(f"alice-{uuid4().hex[:8]}")
    person = nio_person(
        synapse.base_url, account.user_id, account.device_id, account.access_token, tmp_path / account.device_id
    )
    async with person as made:
        yield made


def ask(synapse: Homeserver, token: str, method: str, path: str, body: object = None) -> Json:
    answer = call(synapse.base_url, method, f"/_matrix/client/v3{path}", body, token=token)
    assert answer.status == HTTPStatus.OK, answer
    return dict(answer.body)


def raw(synapse: Homeserver, person: NioPerson, room: str, event_id: str) -> Json:
    """The event as the server has it."""
    return ask(synapse, person.token, "GET", f"/rooms/{quote(room)}/event/{quote(event_id)}")


async def enter(run: Running, alice: NioPerson, bot: Bot, room: str) -> None:
    """Until the bot is in, and Alice knows it."""
    await run.until(lambda: run.events(RoomSeen) and run.events(RoomSeen)[-1].state is RoomState.JOINED)
    await alice.until_member(room, bot.user)
    if run.events(RoomSeen)[-1].encrypted:
        await meet(alice, bot)


async def meet(alice: NioPerson, bot: Bot) -> None:
    """Until Alice's client knows the bot's device; nio asks for it only where a room is encrypted."""
    store: Any = alice.nio.device_store
    with anyio.fail_after(WAIT_S):
        while bot.account.device_id not in store[bot.user]:
            await alice.sync(1_000)


async def post(run: Running, room: str, txn: str = "t1", **more: Any) -> EventId:  # noqa: ANN401 - JSON
    """Send a prompt, and say which event it became, once it was seen in the room."""
    run.rooms.send(outgoing(txn, room=RoomId(room), content={**PROMPT, **more}))
    await run.until(lambda: any(echo.transaction_id == txn for echo in run.events(Echoed)))
    return next(echo.event_id for echo in run.events(Echoed) if echo.transaction_id == txn)


# --------------------------------------------------------------------------------------------------- asking, answering


async def test_a_prompt_is_read_by_people_and_not_by_the_server_and_answered_in_every_way(
    synapse: Homeserver, bot: Bot, alice: NioPerson
) -> None:
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        prompt = await post(run, room)
        assert SECRET == (await alice.read(prompt))["content"]["body"]
        on_server = raw(synapse, alice, room, prompt)
        assert ("m.room.encrypted", False) == (on_server["type"], SECRET in str(on_server))
        await alice.say(room, "1")
        await alice.reply(room, prompt, "2")
        await alice.thread(room, prompt, "3")
        await alice.react(room, prompt, "4")
        await run.until(lambda: run.events(Reacted))
    said = run.events(Said)
    assert [("1", ()), ("2", (prompt,)), ("3", (prompt,))] == [(one.text, one.targets) for one in said]
    assert {alice.device_id} == {one.seal.device_id if one.seal else None for one in said}
    assert ("4", prompt) == (run.events(Reacted)[0].key, run.events(Reacted)[0].target)
    assert run.events(RoomSeen)[-1].encrypted


async def test_a_seed_is_a_reaction_that_every_client_counts(synapse: Homeserver, bot: Bot, alice: NioPerson) -> None:
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        prompt = await post(run, room)
        relates: JsonObject = {"m.relates_to": {"rel_type": "m.annotation", "event_id": prompt, "key": "1"}}
        run.rooms.send(
            outgoing("s1", room=RoomId(room), content=relates, event_type="m.reaction", priority=Priority.SEED)
        )
        await run.until(lambda: len(run.delivered) == 2)
        sent = run.delivered[1]
        assert isinstance(sent, Sent)
        assert raw(synapse, alice, room, sent.event_id)["type"] == "m.reaction"


async def test_clear_text_in_an_encrypted_room_is_told_as_such(synapse: Homeserver, bot: Bot, alice: NioPerson) -> None:
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        path = f"/rooms/{quote(room)}/send/m.room.message/x"
        ask(synapse, alice.token, "PUT", path, {"msgtype": "m.text", "body": "1"})
        await run.until(lambda: run.events(Said))
    assert (True, None) == (run.events(Said)[0].exposed, run.events(Said)[0].seal)


async def test_encryption_that_is_switched_on_while_a_prompt_waits_holds_from_there_on(
    synapse: Homeserver, bot: Bot, alice: NioPerson
) -> None:
    room = await alice.room(bot.user, encrypted=False)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        prompt = await post(run, room)
        await alice.say(room, "before")
        await run.until(lambda: len(run.events(Said)) == 1)
        ask(synapse, alice.token, "PUT", f"/rooms/{quote(room)}/state/m.room.encryption/", ENCRYPTION)
        await run.until(lambda: run.events(RoomSeen)[-1].encrypted)
        path = f"/rooms/{quote(room)}/send/m.room.message/x"
        ask(synapse, alice.token, "PUT", path, {"msgtype": "m.text", "body": "in clear text"})
        await meet(alice, bot)
        await alice.reply(room, prompt, "after")
        await run.until(lambda: len(run.events(Said)) == 3)
        edit = {"m.new_content": dict(PROMPT), "m.relates_to": {"rel_type": "m.replace", "event_id": prompt}}
        ending = await post(run, room, "t2", **edit)
        assert (await alice.read(ending))["content"]["m.new_content"]["body"] == SECRET
    said = [(one.text, one.exposed, one.seal is not None) for one in run.events(Said)]
    assert [("before", False, False), ("in clear text", True, False), ("after", False, True)] == said
    assert ["m.room.message", "m.room.encrypted"] == [
        raw(synapse, alice, room, one)["type"] for one in (prompt, ending)
    ]
    relates = raw(synapse, alice, room, ending)["content"]["m.relates_to"]
    assert {"rel_type": "m.replace", "event_id": prompt} == relates


# ------------------------------------------------------------------------------------------------------- keys that fail


async def test_an_answer_whose_key_comes_late_still_counts(bot: Bot, alice: NioPerson) -> None:
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        with losing_keys(alice) as lost:
            locked = await alice.say(room, "1")
        await run.until(lambda: run.events(Locked))
        assert (locked, []) == (run.events(Locked)[0].event_id, run.events(Said))
        await lost.bring()
        await run.until(lambda: run.events(Said))
    said = run.events(Said)[0]
    assert ("1", locked, alice.device_id) == (said.text, said.event_id, said.seal.device_id if said.seal else None)
    assert [locked] == [event.event_id for event in run.events(Unlocked)]


async def test_an_answer_whose_key_comes_after_a_restart_still_counts(bot: Bot, alice: NioPerson) -> None:
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        with losing_keys(alice) as lost:
            await alice.say(room, "1")
        await run.until(lambda: run.events(Locked))
        locked, since = run.events(Locked)[0], run.taken[-1][1]
    row = StoreLocked(event_id=locked.event_id, room=locked.room, sender=locked.sender, raw=locked.raw)
    async with bot.at_work(room, since=since, held=[row]) as again:
        await lost.bring()
        await again.until(lambda: again.events(Said))
    assert (locked.event_id, "1") == (again.events(Said)[0].event_id, again.events(Said)[0].text)


async def test_an_answer_whose_key_never_comes_is_told_once(
    bot: Bot, alice: NioPerson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.matrix.held.ASK_AGAIN_S", 0.1)
    monkeypatch.setattr("bridge.matrix.held.UNREADABLE_S", 1.0)
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        with losing_keys(alice):
            locked = await alice.say(room, "1")
        await run.until(lambda: run.events(StillLocked))
        await alice.say(room, "2")
        await run.until(lambda: run.events(Said))
    assert [(locked, alice.user_id)] == [(one.event_id, one.sender) for one in run.events(StillLocked)]
    assert ["2"] == [one.text for one in run.events(Said)]


async def test_a_batch_that_could_not_be_stored_is_read_again_after_a_restart(bot: Bot, alice: NioPerson) -> None:
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        since = run.taken[-1][1]
        await alice.say(room, "1")
        await run.until(lambda: run.events(Said))
    async with bot.at_work(room, since=since) as again:
        await again.until(lambda: again.events(Said))
    assert run.events(Said) == again.events(Said)


async def test_poison_from_a_stranger_stops_nothing_also_after_a_restart_from_the_same_token(
    synapse: Homeserver, bot: Bot, alice: NioPerson
) -> None:
    mallory = synapse.register(f"mallory-{uuid4().hex[:8]}")
    room = await alice.room(bot.user)

    def poison() -> None:
        ciphertext = {quote_key: {"type": 0, "body": "!!"} for quote_key in (bot_key, "x")}
        content = {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": "k", "ciphertext": ciphertext}
        wish = {"messages": {bot.user: {bot.account.device_id: content}}}
        ask(synapse, mallory.access_token, "PUT", f"/sendToDevice/m.room.encrypted/{uuid4().hex}", wish)

    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        found = ask(synapse, mallory.access_token, "POST", "/keys/query", {"device_keys": {bot.user: []}})
        keys: Json = found["device_keys"][bot.user][bot.account.device_id]["keys"]
        bot_key = keys[f"curve25519:{bot.account.device_id}"]
        since = run.taken[-1][1]
        poison()
        await alice.say(room, "1")
        await run.until(lambda: run.events(Said))
    async with bot.at_work(room, since=since) as again:
        poison()
        await alice.say(room, "2")
        await again.until(lambda: len(again.events(Said)) == 2)
    assert (["1"], ["1", "2"]) == ([one.text for one in run.events(Said)], [one.text for one in again.events(Said)])


# ------------------------------------------------------------------------------------------------------------ room life


@pytest.mark.parametrize("version", ["12", "10"])
async def test_what_was_said_before_the_bot_came_is_no_answer_and_no_trouble(
    synapse: Homeserver, bot: Bot, alice: NioPerson, version: str
) -> None:
    state = [{"type": "m.room.encryption", "state_key": "", "content": ENCRYPTION}]
    wish = {"room_version": version, "preset": "private_chat", "initial_state": state}
    room = ask(synapse, alice.token, "POST", "/createRoom", wish)["room_id"]
    assert (":" in room) == (version == "10")
    await alice.until_in(room)
    with capture_logs() as logs:
        async with bot.at_work(room) as run:
            for number in range(12):
                await alice.say(room, str(number))
            ask(synapse, alice.token, "POST", f"/rooms/{quote(room)}/invite", {"user_id": bot.user})
            await enter(run, alice, bot, room)
            await alice.say(room, "after")
            await run.until(lambda: run.events(Said))
    assert (["after"], []) == ([one.text for one in run.events(Said)], run.events(Locked))
    assert [] == [line for line in logs if line["event"] in ("matrix.unreadable", "matrix.never_readable")]


@pytest.mark.parametrize("deed", ["kick", "ban"])
async def test_after_a_kick_or_ban_a_prompt_fails_at_once_and_the_operator_is_told(
    synapse: Homeserver, bot: Bot, alice: NioPerson, deed: str
) -> None:
    room = await alice.room(bot.user)
    with capture_logs() as logs:
        async with bot.at_work(room) as run:
            await enter(run, alice, bot, room)
            ask(synapse, alice.token, "POST", f"/rooms/{quote(room)}/{deed}", {"user_id": bot.user})
            await run.until(lambda: run.events(RoomSeen)[-1].state is RoomState.NOT_JOINED)
            run.rooms.send(outgoing("t1", room=RoomId(room)))
            await run.until(lambda: run.delivered)
    assert isinstance(run.delivered[0], SendFailed)
    told = [line["why"] for line in logs if line["event"] == "matrix.room_unusable" and line["room"] == room]
    assert RoomState.NOT_JOINED == told[-1]


async def test_somebody_who_comes_later_reads_what_is_said_from_then_on(
    synapse: Homeserver, bot: Bot, alice: NioPerson, tmp_path: Path
) -> None:
    account = synapse.register(f"bob-{uuid4().hex[:8]}")
    room = await alice.room(bot.user)
    async with bot.at_work(room) as run:
        await enter(run, alice, bot, room)
        await post(run, room)
        person = nio_person(
            synapse.base_url, account.user_id, account.device_id, account.access_token, tmp_path / "bob"
        )
        async with person as bob:
            ask(synapse, alice.token, "POST", f"/rooms/{quote(room)}/invite", {"user_id": bob.user_id})
            await bob.join(room)
            await run.until(lambda: run.events(RoomSeen)[-1].people == 2)
            second = await post(run, room, "t2")
            assert SECRET == (await bob.read(second))["content"]["body"]
