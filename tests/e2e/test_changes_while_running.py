"""What changes under a running bridge, the whole program on a real Synapse: encryption comes on, an identity is another."""

from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest

from bridge.core.changes import StorePin
from bridge.core.model import Millis, UserId
from bridge.demo.homeserver import Homeserver, call
from bridge.matrix.crypto.identity import Identity
from bridge.ops.folder import open_state_folder
from bridge.store.ledger import SqliteLedger
from tests.e2e.stage import ALLOW, REJECT
from tests.e2e.test_lying_homeserver import Json, ask, clear_sends, hear, meet, playing
from tests.peers.nio_person import NioPerson
from tests.peers.service import running

ENCRYPTION = {"algorithm": "m.megolm.v1.aes-sha2"}


@pytest.mark.parametrize("strict", [False, True])
async def test_encryption_that_comes_on_while_a_prompt_waits_is_answered_and_ended_encrypted(
    synapse: Homeserver, tmp_path: Path, strict: bool
) -> None:
    """Clear text no longer counts for it, the encrypted answer does, and its ending is nothing that the server can read."""
    async with playing(synapse, tmp_path, encrypted=False, strict=strict) as (scene, alice):
        async with running(scene.config) as run:
            await run.until(lambda: run.logged("matrix.joined"), seconds=30)
            prompt = await scene.ask(alice)
            before = len(scene.evil.sent)
            ask(synapse, alice.token, "PUT", f"/rooms/{quote(scene.room)}/state/m.room.encryption/", ENCRYPTION)
            clear = f"/rooms/{quote(scene.room)}/send/m.room.message/clear"
            ask(synapse, alice.token, "PUT", clear, {"msgtype": "m.text", "body": "#1 1"})
            await meet(scene, alice)
            await hear(alice, "came unencrypted into an encrypted room")
            assert [] == scene.agent.answers(7)
            await alice.say(scene.room, "#1 3")
            ending = await hear(alice, "Permission was asked (#1)")
        assert [REJECT] == scene.agent.answers(7)
        assert prompt["event_id"] == ending["content"]["m.relates_to"]["event_id"]
        assert [] == clear_sends(scene, after=before)


async def test_a_pinned_identity_that_is_replaced_is_refused_aloud_also_after_a_restart(
    synapse: Homeserver, tmp_path: Path
) -> None:
    async with playing(synapse, tmp_path, trust="pinned") as (scene, alice):
        user, state = UserId(alice.user_id), tmp_path / "state"
        found = ask(synapse, alice.token, "POST", "/keys/query", {"device_keys": {user: []}})
        master = next(iter(found["master_keys"][user]["keys"].values()))
        open_state_folder(state)
        ledger = await SqliteLedger.open(state / "ledger.db")
        await ledger.commit([StorePin(user=user, master=master)], at=Millis(0))
        await ledger.close()
        async with running(scene.config) as run:
            await meet(scene, alice)
            await scene.ask(alice)
            await alice.say(scene.room, "1")
            await hear(alice, "done")
            assert [ALLOW] == scene.agent.answers(7)
            replace_identity(synapse, alice)
            scene.agent.do({"ask": 8})
            await hear(alice, "Permission needed (#2)")
            await alice.say(scene.room, "1")
            await hear(alice, "your identity is not the one that was verified")
            await run.until(lambda: run.logged("trust.identity_changed", user_id=user), seconds=30)
            assert [] == scene.agent.answers(8)
        alice.seen.clear()
        scene.new_agent()
        scene.write(alice.user_id, trust="pinned")
        async with running(scene.config):
            scene.agent.do({"ask": 9})
            await hear(alice, "Permission needed (#3)")
            await alice.say(scene.room, "1")
            await hear(alice, "your identity is not the one that was verified")
            assert [] == scene.agent.answers(9)


def replace_identity(synapse: Homeserver, who: NioPerson) -> None:
    """What a client does whose person resets their identity: a new one, with the password, that signs the same device."""
    user, olm = UserId(who.user_id), cast("Any", who.nio.olm)
    found = ask(synapse, who.token, "POST", "/keys/query", {"device_keys": {user: []}})
    device: Json = found["device_keys"][user][who.device_id]
    device.pop("unsigned", None)
    new = Identity.new()
    path = "/_matrix/client/v3/keys/device_signing/upload"
    upload: Json = {**new.to_upload(user, who.device_id, olm.sign_json)}
    asked = call(synapse.base_url, "POST", path, upload, token=who.token)
    assert 401 == asked.status
    proof = {"type": "m.login.password", "session": asked.body["session"], "password": who.password}
    proof |= {"identifier": {"type": "m.id.user", "user": user}}
    assert 200 == call(synapse.base_url, "POST", path, upload | {"auth": proof}, token=who.token).status
    signed = {user: {who.device_id: new.sign_device(user, device)}}
    assert ask(synapse, who.token, "POST", "/keys/signatures/upload", signed)["failures"] == {}
