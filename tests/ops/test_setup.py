import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from bridge import config
from bridge.core.errors import BridgeError, HomeserverUnreachable, RequestRefused
from bridge.core.model import AgentName, RoomId, UserId
from bridge.ops.setup import PROGRESS_NAME, Errand, Guide, Progress, walk

BOT = "@bridge:example.org"
ALICE, BOB = UserId("@alice:example.org"), UserId("@bob:example.org")
ROOM = RoomId("!made")


class Person:
    """Types these lines; any question beyond them is a fault of the test."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        self.read: list[str] = []

    def ask(self, question: str) -> str:
        self.read.append(question)
        return self.lines.pop(0)

    def ask_secret(self, question: str) -> str:
        raise NotImplementedError(question)

    def say(self, line: str) -> None:
        self.read.append(line)


class Server:
    """People come into the room one look after the other."""

    def __init__(self, *looks: Iterable[UserId]) -> None:
        self.looks = [frozenset(look) for look in looks]
        self.made: list[tuple[tuple[UserId, ...], bool]] = []

    async def create_room(self, name: str, invited: tuple[UserId, ...], *, encrypted: bool) -> RoomId:
        assert name
        self.made.append((invited, encrypted))
        return ROOM

    async def join(self, room: str) -> RoomId:
        if room == "#ours:example.org":
            return ROOM
        raise RequestRefused("The homeserver refused (403 M_FORBIDDEN).", status=403, errcode="M_FORBIDDEN")

    async def joined(self, room: RoomId) -> frozenset[UserId]:
        assert ROOM == room
        return self.looks.pop(0)


async def take(
    folder: Path, person: Person, server: Guide, *, code: int = 0, encrypted: bool = True
) -> tuple[int, list[AgentName]]:
    asked: list[AgentName] = []

    async def log_in(progress: Progress) -> tuple[Progress, Guide]:
        return replace(progress, homeserver="https://example.org", user_id=BOT), server

    async def ask_in_room(agent: AgentName) -> int:
        asked.append(agent)
        return code

    async def pause(_seconds: float) -> None:
        return None

    errand = Errand(config=folder / "config.toml", state_dir=folder / "state", encrypted=encrypted)
    return await walk(errand, person, log_in=log_in, ask_in_room=ask_in_room, pause=pause), asked


async def test_a_newcomer_ends_with_a_config_that_run_can_use(tmp_path: Path) -> None:
    server = Server([], [ALICE], [ALICE, BOB])
    person = Person([f"{ALICE} {BOB}", "", "0", str(tmp_path)])
    code, asked = await take(tmp_path, person, server)
    assert (0, [AgentName("demo")]) == (code, asked)
    assert [((ALICE, BOB), True)] == server.made
    loaded = config.load(tmp_path / "config.toml")
    assert (BOT, ROOM) == (loaded.matrix.user_id, loaded.agents["demo"].room)
    assert (ALICE, BOB) == loaded.agents["demo"].approvers
    assert any("Waiting for @alice:example.org, @bob:example.org" in line for line in person.read)
    assert any(line.startswith("Waiting for @bob") for line in person.read)


async def test_nothing_in_the_progress_file_is_open_to_others(tmp_path: Path) -> None:
    await take(tmp_path, Person([ALICE, "", "0", str(tmp_path)]), Server([ALICE]))
    assert 0o600 == (tmp_path / "state" / PROGRESS_NAME).stat().st_mode & 0o777


async def test_a_set_up_that_was_stopped_goes_on_in_the_same_room(tmp_path: Path) -> None:
    class Away(Server):
        async def joined(self, room: RoomId) -> frozenset[UserId]:
            raise HomeserverUnreachable(f"no connection while {room} was looked at")

    with pytest.raises(HomeserverUnreachable):
        await take(tmp_path, Person([ALICE, ""]), Away())
    server = Server([ALICE])
    code, _ = await take(tmp_path, Person(["0", str(tmp_path)]), server)
    assert (0, []) == (code, server.made)
    assert ROOM == config.load(tmp_path / "config.toml").agents["demo"].room


async def test_a_config_that_exists_is_left_as_it_is_and_its_agent_is_asked_about(tmp_path: Path) -> None:
    await take(tmp_path, Person([ALICE, "", "0", str(tmp_path)]), Server([ALICE]), code=1)
    before = (tmp_path / "config.toml").read_bytes()
    code, asked = await take(tmp_path, Person([]), Server())
    assert (0, [AgentName("demo")]) == (code, asked)
    assert before == (tmp_path / "config.toml").read_bytes()


async def test_wrong_ids_are_asked_for_again(tmp_path: Path) -> None:
    person = Person(["alice", BOT, ALICE, "", "9", "0", "relative", str(tmp_path)])
    await take(tmp_path, person, Server([ALICE]))
    assert any("alice is no full user id" in line for line in person.read)
    assert any("The bot itself" in line for line in person.read)
    assert any("Please type a number" in line for line in person.read)
    assert any("no folder" in line for line in person.read)


async def test_a_progress_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / PROGRESS_NAME).write_text(json.dumps([1]))
    with pytest.raises(BridgeError, match="remove it to begin"):
        await take(tmp_path, Person([]), Server())


async def test_a_room_of_their_own_is_joined_and_asked_for_again_until_the_bot_may(tmp_path: Path) -> None:
    person = Person([ALICE, "kitchen", "!not-invited", "#ours:example.org", "0", str(tmp_path)])
    server = Server([ALICE])
    await take(tmp_path, person, server)
    assert [] == server.made
    assert ROOM == config.load(tmp_path / "config.toml").agents["demo"].room
    assert 1 == sum(line.startswith("This is no room") for line in person.read)
    assert 1 == sum(line.startswith(f"{BOT} cannot join it: invite it there") for line in person.read)


@pytest.mark.parametrize("encrypted", [True, False])
async def test_the_config_makes_keys_only_where_they_are_wanted(tmp_path: Path, encrypted: bool) -> None:
    server = Server([ALICE])
    await take(tmp_path, Person([ALICE, "", "0", str(tmp_path)]), server, encrypted=encrypted)
    assert [((ALICE,), encrypted)] == server.made
    assert encrypted is config.load(tmp_path / "config.toml").matrix.encryption
