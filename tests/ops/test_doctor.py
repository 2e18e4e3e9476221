import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bridge.core.errors import (
    AgentStartFailed,
    CredentialsRefused,
    HomeserverUnreachable,
    MatrixError,
    RequestRefused,
)
from bridge.core.events import RoomState
from bridge.core.model import AgentName, PolicyName, UserId
from bridge.ops import doctor
from bridge.ops.login import Account

BOT = UserId("@bot:hs")
AMY, BO = UserId("@amy:hs"), UserId("@bo:hs")
AGENT = doctor.AgentPlan(
    name=AgentName("claude"),
    room="!room",
    approvers=frozenset({AMY, BO}),
    policy=PolicyName.ASK,
    mode="default",
    reactions=True,
)
ROOM = doctor.RoomReport(state=RoomState.JOINED, may_send=True, may_react=True, people=frozenset({BOT, AMY, BO}))
HARNESS = doctor.HarnessReport(name="scripted 1.0", modes=("default", "auto"), mode="auto", uid=os.getuid() + 1)


@dataclass(slots=True)
class FakeHomeserver:
    account: Account | MatrixError = field(default_factory=lambda: Account(user_id=BOT, device_id="D1"))
    room: doctor.RoomReport | MatrixError = ROOM

    async def whoami(self) -> Account:
        if isinstance(self.account, MatrixError):
            raise self.account
        return self.account

    async def inspect(self, room: str) -> doctor.RoomReport:
        assert room == "!room"
        if isinstance(self.room, MatrixError):
            raise self.room
        return self.room


@dataclass(slots=True)
class Doctor:
    """One run of `check` over what stands here."""

    state_dir: Path
    homeserver: FakeHomeserver = field(default_factory=FakeHomeserver)
    harness: doctor.HarnessReport | AgentStartFailed = HARNESS
    agent: doctor.AgentPlan = AGENT
    device_id: str | None = "D1"
    warnings: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list[str])

    async def check(self) -> int:
        plan = doctor.Plan(
            config=Path("/c.toml"),
            warnings=self.warnings,
            state_dir=self.state_dir,
            user_id=BOT,
            device_id=self.device_id,
            agents=(self.agent,),
        )
        return await doctor.check(plan, self.homeserver, self._probe, self.lines.append)

    async def _probe(self, name: AgentName) -> doctor.HarnessReport:
        assert name == "claude"
        if isinstance(self.harness, AgentStartFailed):
            raise self.harness
        return self.harness

    def find(self, level: str) -> str:
        """The one line of this level."""
        (line,) = [line for line in self.lines if line.startswith(level)]
        return " ".join(line.split())


@pytest.fixture
def patient(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path / "state")


def loosen(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)


def put_a_file_in_the_way(folder: Path) -> None:
    folder.touch()


async def test_all_is_well(patient: Doctor) -> None:
    code = await patient.check()
    assert (code, {line.split()[0] for line in patient.lines}) == (0, {"ok"})
    assert [line[9 : line.index(":")] for line in patient.lines] == [
        "config",
        "state folder",
        "homeserver",
        "token",
        "room of claude",
        "approvers of claude",
        "harness of claude",
    ]


async def test_a_warning_of_the_config_is_shown_and_fails_nothing(patient: Doctor) -> None:
    patient.warnings = ("agents.claude.approvers lists @mybot:hs, which looks like a bot.",)
    assert await patient.check() == 0
    assert "@mybot:hs" in patient.find("warning")


async def test_a_state_folder_that_cannot_be_used_fails(patient: Doctor) -> None:
    put_a_file_in_the_way(patient.state_dir)
    assert await patient.check() == 1
    assert "Give it to the user who runs the bridge." in patient.find("failed")


async def test_a_loose_state_folder_is_closed_and_said(patient: Doctor) -> None:
    loosen(patient.state_dir)
    assert await patient.check() == 0
    assert "its mode is 0700 now" in patient.find("warning")


@pytest.mark.parametrize(
    ("account", "expected"),
    [
        (HomeserverUnreachable("No connection."), "failed homeserver: No connection. See matrix.homeserver."),
        (CredentialsRefused("It is refused."), "failed token: It is refused. Run `acp-matrix-bridge login`."),
        (Account(user_id=AMY, device_id="D1"), "failed token: it is @amy:hs's, but matrix.user_id is @bot:hs"),
        (Account(user_id=BOT, device_id="D2"), "failed token: it is of device D2, but the state folder belongs to D1"),
    ],
)
async def test_an_account_that_cannot_be_used_ends_with_3_and_no_word_on_rooms(
    account: Account | MatrixError, expected: str, patient: Doctor
) -> None:
    patient.homeserver.account = account
    assert await patient.check() == 3
    assert patient.find("failed").startswith(expected)
    assert not [line for line in patient.lines if "room of" in line]
    assert [line for line in patient.lines if "harness of" in line]


async def test_a_state_folder_without_a_device_takes_any(patient: Doctor) -> None:
    patient.device_id = None
    assert await patient.check() == 0


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (replace(ROOM, state=RoomState.NOT_JOINED), "the bot is not in !room; invite @bot:hs."),
        (replace(ROOM, state=RoomState.ENCRYPTED), "!room is encrypted, which this version cannot do"),
        (replace(ROOM, state=RoomState.REPLACED), "!room was upgraded; put the new room into the config."),
        (replace(ROOM, may_send=False), "@bot:hs may not send messages in !room; raise its power level."),
    ],
)
async def test_a_room_that_cannot_be_used_fails_and_says_what_to_do(
    room: doctor.RoomReport, expected: str, patient: Doctor
) -> None:
    patient.homeserver.room = room
    assert await patient.check() == 1
    assert patient.find("failed").startswith(f"failed room of claude: {expected}")


async def test_an_invitation_that_run_will_accept_is_no_failure(patient: Doctor) -> None:
    patient.homeserver.room = replace(ROOM, state=RoomState.NOT_JOINED, invited=True, people=frozenset[UserId]())
    assert await patient.check() == 0
    assert patient.find("warning").startswith(
        "warning room of claude: the bot is invited to !room and joins when `run`"
    )
    assert not [line for line in patient.lines if "approvers of" in line]


async def test_a_room_that_the_homeserver_refuses_fails(patient: Doctor) -> None:
    patient.homeserver.room = RequestRefused("There is no such alias.", status=404, errcode="M_NOT_FOUND")
    assert await patient.check() == 3
    assert "There is no such alias. See agents.claude.room." in patient.find("failed")


async def test_a_bot_that_may_not_react_is_a_warning_only_where_it_would(patient: Doctor) -> None:
    patient.homeserver.room = replace(ROOM, may_react=False)
    assert await patient.check() == 0
    assert "set reactions = false" in patient.find("warning")
    patient.agent = replace(AGENT, reactions=False)
    patient.lines.clear()
    await patient.check()
    assert {line.split()[0] for line in patient.lines} == {"ok"}


@pytest.mark.parametrize(
    ("people", "policy", "level", "code"),
    [
        ({AMY}, PolicyName.ASK, "warning approvers of claude: not in the room: @bo:hs; invite them.", 0),
        (
            set[UserId](),
            PolicyName.ASK,
            "failed approvers of claude: not in the room: @amy:hs, @bo:hs; invite them.",
            1,
        ),
        (set[UserId](), PolicyName.ALLOW_ALL, "warning approvers of claude: not in the room: @amy:hs, @bo:hs", 0),
    ],
)
async def test_absent_approvers_are_named_and_fail_when_nobody_could_answer(
    people: set[UserId], policy: PolicyName, level: str, code: int, patient: Doctor
) -> None:
    patient.homeserver.room = replace(ROOM, people=frozenset(people))
    patient.agent = replace(AGENT, policy=policy)
    assert await patient.check() == code
    assert patient.find(level.split(maxsplit=1)[0]).startswith(level)


@pytest.mark.parametrize("agent", [replace(AGENT, room=None), replace(AGENT, approvers=frozenset[UserId]())])
async def test_without_room_or_approvers_there_is_nothing_to_say_of_them(
    agent: doctor.AgentPlan, patient: Doctor
) -> None:
    patient.agent = agent
    assert await patient.check() == 0
    assert not [line for line in patient.lines if "approvers of" in line]


async def test_a_harness_that_does_not_start_ends_with_4(patient: Doctor) -> None:
    patient.harness = AgentStartFailed("There is no such program.")
    assert await patient.check() == 4
    assert "There is no such program. See agents.claude.command." in patient.find("failed")


async def test_a_mode_that_is_not_offered_ends_with_4_and_names_those_that_are(patient: Doctor) -> None:
    patient.agent = replace(AGENT, mode="ask")
    assert await patient.check() == 4
    assert 'offers "default", "auto"' in patient.find("failed")


async def test_an_agent_whose_mode_nobody_chose_is_a_warning(patient: Doctor) -> None:
    patient.agent = replace(AGENT, mode=None)
    assert await patient.check() == 0
    assert 'starts in the mode "auto" of "default", "auto"' in patient.find("warning")


async def test_the_first_that_failed_gives_the_exit_code(patient: Doctor) -> None:
    patient.homeserver.room = replace(ROOM, state=RoomState.NOT_JOINED)
    patient.harness = AgentStartFailed("There is no such program.")
    assert await patient.check() == 1


async def test_a_harness_under_the_bridges_own_user_is_warned_about(patient: Doctor) -> None:
    patient.harness = replace(HARNESS, uid=os.getuid())
    assert await patient.check() == 0
    assert "can read the bridge's token and ledger" in patient.find("warning")


async def test_a_harness_cannot_steer_the_terminal_by_its_name(patient: Doctor) -> None:
    patient.harness = replace(HARNESS, name="x\x1b[2J\u202e")
    await patient.check()
    assert all(line.isprintable() for line in patient.lines)
