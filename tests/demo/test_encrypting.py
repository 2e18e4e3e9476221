# pyright: reportPrivateUsage=false
"""Two people with the demo's encrypting client in one room: each is the other's witness."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from nio import AsyncClient, AsyncClientConfig
from nio.store import SqliteMemoryStore

from bridge.core.errors import DemoFailed
from bridge.core.model import UserId
from bridge.demo import play
from bridge.demo.encrypting import CLEAR, EncryptingPerson
from bridge.demo.homeserver import Account, Homeserver, call
from bridge.demo.person import Seen
from bridge.matrix.crypto.identity import read_published
from bridge.matrix.crypto.signing import is_signed_by

LOOKS = 40  # each waits up to half a second
Make = Callable[[str], EncryptingPerson]


@pytest.fixture
def make(synapse: Homeserver, request: pytest.FixtureRequest) -> Iterator[Make]:
    people: list[EncryptingPerson] = []

    def make_person(name: str) -> EncryptingPerson:
        account = synapse.register(f"{name}-{abs(hash(request.node.name))}")
        people.append(EncryptingPerson(synapse.base_url, account))
        return people[-1]

    yield make_person
    for person in people:
        person.close()


def meet(homeserver: Homeserver, alice: EncryptingPerson, bob: EncryptingPerson) -> str:
    """A room of both, known to both."""
    room = alice.create_room(bob.account.user_id)
    call(homeserver.base_url, "POST", f"/_matrix/client/v3/join/{room}", {}, token=bob.account.access_token)
    look_until(alice, room, lambda _: alice.has_joined(room, bob.account.user_id))
    bob.look(room)
    return room


def look_until(person: EncryptingPerson, room: str, found: Callable[[list[Seen]], bool]) -> list[Seen]:
    seen: list[Seen] = []
    for _ in range(LOOKS):
        seen += person.look(room)
        if found(seen):
            return seen
    raise AssertionError(seen)


def wire(homeserver: Homeserver, person: EncryptingPerson, room: str, event_id: str) -> Any:  # noqa: ANN401 - JSON
    """An event as the homeserver has it."""
    path = f"/_matrix/client/v3/rooms/{room}/event/{event_id}"
    return call(homeserver.base_url, "GET", path, token=person.account.access_token).body


def test_what_a_person_says_is_encrypted_and_read_by_the_other(synapse: Homeserver, make: Make) -> None:
    alice, bob = make("alice"), make("bob")
    room = meet(synapse, alice, bob)
    first = alice.say(room, "Guten Tag, Äpfel")
    reply = bob.say(room, "1", reply_to=first)
    assert wire(synapse, alice, room, first)["type"] == "m.room.encrypted"
    heard = look_until(bob, room, lambda seen: len(seen) == 2)
    assert [(each.event_id, each.text, each.own_device) for each in heard] == [
        (first, "Guten Tag, Äpfel", False),
        (reply, "1", True),
    ]


def is_signed(homeserver: Homeserver, account: Account, device_id: str) -> bool:
    """Whether the identity that the homeserver shows vouches for this device of the account."""
    wanted: Any = {"device_keys": {account.user_id: []}}
    path = "/_matrix/client/v3/keys/query"
    answer: Any = call(homeserver.base_url, "POST", path, wanted, token=account.access_token).body
    published = read_published(answer, UserId(account.user_id))
    assert published is not None
    assert published.self_signing_key is not None
    device = answer["device_keys"][account.user_id].get(device_id)
    return is_signed_by(device, account.user_id, published.self_signing_key)


def test_the_persons_device_is_signed_by_their_identity(synapse: Homeserver, make: Make) -> None:
    account = make("alice").account
    assert is_signed(synapse, account, account.device_id)


def test_a_client_that_the_person_logs_in_later_is_verified_by_this_one(synapse: Homeserver, make: Make) -> None:
    alice, bob = make("alice"), make("bob")
    room = meet(synapse, alice, bob)
    account = alice.account
    wanted = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": account.user_id},
        "password": account.password,
    }
    made: Any = call(synapse.base_url, "POST", "/_matrix/client/v3/login", wanted).body
    later = Account(password="", **{key: made[key] for key in ("user_id", "device_id", "access_token")})
    client = AsyncClient(
        synapse.base_url, later.user_id, later.device_id, config=AsyncClientConfig(store=SqliteMemoryStore)
    )
    client.restore_login(later.user_id, later.device_id, later.access_token)
    alice._run(client.keys_upload())
    alice._run(client.close())
    look_until(alice, room, lambda _: is_signed(synapse, account, later.device_id))
    cast("Any", client.olm).store.database.close()


def test_a_message_that_came_in_clear_text_is_marked(synapse: Homeserver, make: Make) -> None:
    alice, bob = make("alice"), make("bob")
    room = meet(synapse, alice, bob)
    content = {"msgtype": "m.text", "body": "1"}
    path = f"/_matrix/client/v3/rooms/{room}/send/m.room.message/clear"
    call(synapse.base_url, "PUT", path, content, token=bob.account.access_token)
    seen = look_until(alice, room, bool)
    assert [each.text for each in seen] == [CLEAR + "1"]


def test_a_reaction_is_shown_as_it_is_since_nobody_encrypts_those(synapse: Homeserver, make: Make) -> None:
    alice, bob = make("alice"), make("bob")
    room = meet(synapse, alice, bob)
    first = alice.say(room, "hello")
    content = {"m.relates_to": {"rel_type": "m.annotation", "event_id": first, "key": "1"}}
    path = f"/_matrix/client/v3/rooms/{room}/send/m.reaction/react"
    call(synapse.base_url, "PUT", path, content, token=bob.account.access_token)
    seen = look_until(alice, room, lambda seen: len(seen) == 2)
    assert [(each.kind, each.text, each.about) for each in seen][1:] == [("reaction", "1", first)]


def test_a_message_whose_key_comes_later_is_shown_when_it_can_be_read(
    synapse: Homeserver, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = make("alice"), make("bob")
    room = meet(synapse, alice, bob)
    keys: Any = alice._keys
    take, held = keys.handle_to_device_event, list[Any]()
    monkeypatch.setattr(keys, "handle_to_device_event", held.append)
    bob.say(room, "the key is late")
    for _ in range(LOOKS):
        assert alice.look(room) == []
        if alice._unread and held:
            break
    for event in held:
        take(event)
    assert [each.text for each in alice.look(room)] == ["the key is late"]
    assert alice._unread == []


def test_nothing_is_sent_into_a_room_that_the_client_does_not_know_to_be_encrypted(
    synapse: Homeserver, make: Make
) -> None:
    alice, bob = make("alice"), make("bob")
    room = meet(synapse, alice, bob)
    alice._nio.rooms[room].encrypted = False
    with pytest.raises(DemoFailed, match="sends nothing"):
        alice.say(room, "secret")


def test_a_homeserver_that_is_gone_is_said_in_one_sentence(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = make("alice")
    monkeypatch.setattr(alice._nio, "homeserver", "http://127.0.0.1:9")
    with pytest.raises(DemoFailed, match=r"^The demo's homeserver does not answer any more\.$"):
        alice.look("!room")


def test_the_demo_in_an_encrypted_room_ends_as_the_one_in_clear_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = play.run(["1"], False, EncryptingPerson)
    said = capsys.readouterr().out
    assert (code, said.splitlines()[-1]) == (0, '{"outcome":"selected","optionId":"allow_once"}')
    assert ' answered: "Allow once".' in said
    assert CLEAR not in said
