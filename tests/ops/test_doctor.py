import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pytest

from bridge.core.errors import (
    AgentStartFailed,
    BridgeError,
    CredentialsRefused,
    HomeserverUnreachable,
    IdentityUnusable,
    KeysDamaged,
    KeysLost,
    LedgerError,
    MatrixError,
    RateLimited,
    RequestRefused,
)
from bridge.core.events import RoomState
from bridge.core.model import AgentName, PolicyName, Seal, Trust, UserId
from bridge.ops import doctor, findings
from bridge.ops.findings import DeviceReport, Keys, PersonReport, RunningBridge
from bridge.ops.login import Account

T = TypeVar("T")

BOT = UserId("@bot:hs")
AMY, BO = UserId("@amy:hs"), UserId("@bo:hs")
AGENT = findings.AgentPlan(
    name=AgentName("claude"),
    room="!room",
    approvers=frozenset({AMY, BO}),
    policy=PolicyName.ASK,
    mode="default",
    reactions=True,
)
ROOM = findings.RoomReport(state=RoomState.JOINED, may_send=True, may_react=True, people=frozenset({BOT, AMY, BO}))
HARNESS = findings.HarnessReport(name="scripted 1.0", modes=("default", "auto"), mode="auto", uid=os.getuid() + 1)


SEALED = replace(ROOM, encrypted=True)
MASTER = "amys-master"
SIGNED = Seal(device_id="PHONE", signed=True, master=MASTER)
UNSIGNED = Seal(device_id="LAPTOP", signed=False, master=MASTER)
PERSON = PersonReport(seals=(SIGNED, UNSIGNED), pinned=MASTER)


def give(answer: T | BridgeError) -> T:
    if isinstance(answer, BridgeError):
        raise answer
    return answer


@dataclass(slots=True)
class FakeHomeserver:
    account: Account | MatrixError = field(default_factory=lambda: Account(user_id=BOT, device_id="D1"))
    room: findings.RoomReport | MatrixError = ROOM
    keys: Keys | MatrixError = Keys.SAME
    device: DeviceReport | MatrixError = field(
        default_factory=lambda: DeviceReport(fingerprint="abcd efgh", problem=None)
    )
    fallback: bool | MatrixError = True
    people: dict[UserId, PersonReport | BridgeError] = field(default_factory=lambda: {AMY: PERSON, BO: PERSON})
    times_limited: int = 0

    async def whoami(self) -> Account:
        return give(self.account)

    async def inspect(self, room: str) -> findings.RoomReport:
        assert room == "!room"
        return give(self.room)

    async def compare_keys(self, device_id: str) -> Keys:
        assert device_id == "D1"
        return give(self.keys)

    async def inspect_device(self, device_id: str) -> DeviceReport:
        assert device_id == "D1"
        return give(self.device)

    async def has_fallback_key(self) -> bool:
        return give(self.fallback)

    async def inspect_person(self, user: UserId) -> PersonReport:
        return give(self.people[user])


@dataclass(slots=True)
class Doctor:
    """One run of `check` over what stands here."""

    state_dir: Path
    homeserver: FakeHomeserver = field(default_factory=FakeHomeserver)
    harness: findings.HarnessReport | AgentStartFailed = HARNESS
    agent: findings.AgentPlan = AGENT
    device_id: str | None = "D1"
    warnings: tuple[str, ...] = ()
    encryption: bool = True
    bridge: RunningBridge | None = None
    lines: list[str] = field(default_factory=list[str])

    async def check(self) -> int:
        plan = findings.Plan(
            config=Path("/c.toml"),
            warnings=self.warnings,
            state_dir=self.state_dir,
            homeserver="https://hs",
            user_id=BOT,
            device_id=self.device_id,
            encryption=self.encryption,
            agents=(self.agent,),
            bridge=self.bridge,
        )
        return await doctor.check(plan, self.homeserver, self._probe, self.lines.append)

    async def _probe(self, name: AgentName) -> findings.HarnessReport:
        assert name == "claude"
        if isinstance(self.harness, AgentStartFailed):
            raise self.harness
        return self.harness

    def find(self, level: str) -> str:
        """The one line of this level."""
        (line,) = [line for line in self.lines if line.startswith(level)]
        return " ".join(line.split())

    def of(self, subject: str) -> str:
        """The one line on this subject."""
        (line,) = [line for line in self.lines if line[9:].startswith(f"{subject}: ")]
        return " ".join(line.split())

    def subjects(self) -> list[str]:
        """What there was a line on."""
        return [line[9:].partition(": ")[0] for line in self.lines]


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
    assert patient.subjects() == [
        "config",
        "state folder",
        "homeserver",
        "token",
        "encryption",
        "device",
        "fallback key",
        "room of claude",
        "approvers of claude",
        "harness of claude",
        "rate limit",
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
    assert not {"room of claude", "encryption"} & set(patient.subjects())
    assert "harness of claude" in patient.subjects()


async def test_a_state_folder_without_a_device_takes_any(patient: Doctor) -> None:
    patient.device_id = None
    assert await patient.check() == 0


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (replace(ROOM, state=RoomState.NOT_JOINED), "the bot is not in !room; invite @bot:hs."),
        (replace(ROOM, state=RoomState.REPLACED), "!room was upgraded; put the new room into the config."),
        (replace(ROOM, may_send=False), "@bot:hs may not send messages in !room; raise its power level."),
    ],
)
async def test_a_room_that_cannot_be_used_fails_and_says_what_to_do(
    room: findings.RoomReport, expected: str, patient: Doctor
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
    agent: findings.AgentPlan, patient: Doctor
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


# ---------------------------------------------------------------------------------------------------------- encryption


async def test_all_is_well_in_an_encrypted_room(patient: Doctor) -> None:
    patient.homeserver.room = SEALED
    patient.bridge = RunningBridge(no_encryption=None, times_limited=0)
    assert await patient.check() == 0
    assert {line.split()[0] for line in patient.lines} == {"ok"}
    assert patient.of("encryption").endswith("and the running bridge has them open.")
    assert patient.of("device").endswith("D1 is signed by its account. Its fingerprint: abcd efgh")
    assert patient.of("room of claude").endswith("the bot is in !room, which is encrypted, and may send there.")
    assert [subject for subject in patient.subjects() if subject.startswith("devices of")] == [
        "devices of @amy:hs for claude",
        "devices of @bo:hs for claude",
    ]
    assert patient.of("devices of @amy:hs for claude").endswith(
        '2 with keys, 1 of them signed by their owner; trust = "cross_signed" accepts 1.'
    )


async def test_encryption_that_is_switched_off_is_said_and_nothing_more_is_asked(patient: Doctor) -> None:
    patient.encryption = False
    patient.homeserver.keys = patient.homeserver.device = patient.homeserver.fallback = KeysLost("unasked")
    assert await patient.check() == 0
    assert "(encryption = false)" in patient.of("encryption")
    assert not {"device", "fallback key"} & set(patient.subjects())
    patient.homeserver.room = SEALED
    assert await patient.check() == 1
    assert "!room is encrypted, and the config says encryption = false" in patient.find("failed")


@pytest.mark.parametrize(
    ("keys", "expected", "code"),
    [
        (Keys.NOT_MADE, "warning encryption: device D1 has no keys yet; `run` makes them", 0),
        (Keys.NOT_PUBLISHED, "warning encryption: the homeserver has no keys of device D1 yet; `run` publishes", 0),
        (Keys.LOST, "failed encryption: the keys of device D1 that the homeserver shows are not in the state", 3),
        (KeysDamaged("They are torn."), "failed encryption: They are torn. To get new ones, run `acp-matrix-bridge", 3),
        (KeysLost("They are another's."), "failed encryption: They are another's. To get new ones, run `acp-matrix", 3),
        (HomeserverUnreachable("It is away."), "failed encryption: It is away.", 3),
    ],
)
async def test_keys_that_cannot_be_used_say_why_and_what_to_do(
    keys: Keys | MatrixError, expected: str, code: int, patient: Doctor
) -> None:
    patient.homeserver.keys = keys
    assert await patient.check() == code
    assert patient.of("encryption").startswith(expected)
    assert not {"device", "fallback key"} & set(patient.subjects())


@pytest.mark.parametrize("keys", [Keys.LOST, KeysDamaged("They are torn.")])
async def test_an_encrypted_room_fails_where_nothing_can_be_encrypted(
    keys: Keys | MatrixError, patient: Doctor
) -> None:
    patient.homeserver.keys, patient.homeserver.room = keys, SEALED
    await patient.check()
    assert patient.of("room of claude").startswith("failed room of claude: !room is encrypted, and nothing can be")
    assert "devices of @amy:hs for claude" not in patient.subjects()


@pytest.mark.parametrize("keys", [Keys.NOT_MADE, Keys.NOT_PUBLISHED])
async def test_an_encrypted_room_is_fine_where_run_will_make_the_keys(keys: Keys, patient: Doctor) -> None:
    patient.homeserver.keys, patient.homeserver.room = keys, SEALED
    assert await patient.check() == 0
    assert patient.of("room of claude").startswith("ok ")


async def test_a_token_of_no_device_is_a_warning_until_a_room_is_encrypted(patient: Doctor) -> None:
    patient.homeserver.account, patient.device_id = Account(user_id=BOT, device_id=""), None
    assert await patient.check() == 0
    assert "this token belongs to no device" in patient.find("warning")
    patient.homeserver.room = SEALED
    assert await patient.check() == 1


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (Keys.SAME, "warning encryption: the running bridge encrypts nothing. It is so. The keys can be used now: re"),
        (Keys.LOST, "failed encryption: the running bridge encrypts nothing. It is so."),
    ],
)
async def test_a_running_bridge_without_encryption_says_why(keys: Keys, expected: str, patient: Doctor) -> None:
    patient.bridge = RunningBridge(no_encryption="It is so.", times_limited=0)
    patient.homeserver.keys, patient.homeserver.room = keys, SEALED
    await patient.check()
    assert patient.of("encryption").startswith(expected)
    assert patient.of("room of claude").startswith("failed")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (DeviceReport(fingerprint="x", problem="It is not signed. Do this."), "It is not signed. Do this."),
        (IdentityUnusable("The file is torn."), "The file is torn."),
    ],
)
async def test_a_device_that_clients_will_not_trust_is_a_warning(
    device: DeviceReport | MatrixError, expected: str, patient: Doctor
) -> None:
    patient.homeserver.device = device
    assert await patient.check() == 0
    assert patient.find("warning") == f"warning device: {expected}"


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [(False, "the homeserver has none that is unused; `run`"), (HomeserverUnreachable("It is away."), "It is away.")],
)
async def test_a_missing_fallback_key_is_a_warning(
    fallback: bool | MatrixError, expected: str, patient: Doctor
) -> None:
    patient.homeserver.fallback = fallback
    assert await patient.check() == 0
    assert patient.find("warning").startswith(f"warning fallback key: {expected}")


# ------------------------------------------------------------------------------------------------- approvers' devices


@pytest.mark.parametrize(
    ("trust", "seals", "pinned", "expected"),
    [
        (Trust.CROSS_SIGNED, (), None, "none. They need a client that encrypts, and to be logged in there."),
        (Trust.CROSS_SIGNED, (UNSIGNED,), None, "none. They verify their session in its own client"),
        (Trust.ANY, (), None, "none. They need a client that encrypts"),
        (Trust.PINNED, (SIGNED,), None, "none. To pin them, stop the bridge and run `acp-matrix-bridge verify @amy:hs"),
        (Trust.PINNED, (UNSIGNED,), MASTER, "none. They verify their session in its own client"),
        (Trust.PINNED, (SIGNED,), "another", "none. Ask them, not in the room, whether they made a new identity; if"),
    ],
)
async def test_an_approver_without_a_device_that_counts_is_told_what_to_do(
    trust: Trust, seals: tuple[Seal, ...], pinned: str | None, expected: str, patient: Doctor
) -> None:
    patient.homeserver.room, patient.agent = SEALED, replace(AGENT, trust=trust)
    patient.homeserver.people[AMY] = PersonReport(seals=seals, pinned=pinned)
    assert await patient.check() == 0
    line = patient.find("warning")
    assert line.startswith("warning devices of @amy:hs for claude: ")
    assert f'trust = "{trust}" accepts {expected}' in line


@pytest.mark.parametrize(
    ("trust", "seals", "pinned", "expected"),
    [
        (Trust.ANY, (UNSIGNED,), None, '1 with keys, 0 of them signed by their owner; trust = "any" accepts 1.'),
        (Trust.PINNED, (SIGNED, SIGNED), MASTER, '; the pinned identity is theirs; trust = "pinned" accepts 2.'),
    ],
)
async def test_a_device_that_counts_is_counted(
    trust: Trust, seals: tuple[Seal, ...], pinned: str | None, expected: str, patient: Doctor
) -> None:
    patient.homeserver.room, patient.agent = SEALED, replace(AGENT, trust=trust)
    patient.homeserver.people[AMY] = PersonReport(seals=seals, pinned=pinned)
    await patient.check()
    line = patient.of("devices of @amy:hs for claude")
    assert line.startswith("ok ")
    assert line.endswith(expected)


@pytest.mark.parametrize(
    ("pinned", "expected"),
    [
        (None, "; no identity is pinned; "),
        (MASTER, "; the pinned identity is theirs; "),
        ("another", "; the pinned identity is not the one that the homeserver shows; "),
    ],
)
async def test_a_pin_is_said_where_it_matters(pinned: str | None, expected: str, patient: Doctor) -> None:
    patient.homeserver.room = SEALED
    patient.homeserver.people[AMY] = PersonReport(seals=(SIGNED,), pinned=pinned)
    await patient.check()
    assert "pinned" not in patient.of("devices of @amy:hs for claude")
    patient.agent = replace(AGENT, trust=Trust.PINNED)
    patient.lines.clear()
    await patient.check()
    assert expected in patient.of("devices of @amy:hs for claude")


@pytest.mark.parametrize(
    ("policy", "level", "code"), [(PolicyName.ASK, "failed", 1), (PolicyName.ALLOW_ALL, "warning", 0)]
)
async def test_it_fails_where_no_approver_has_a_device_that_counts(
    policy: PolicyName, level: str, code: int, patient: Doctor
) -> None:
    patient.homeserver.room, patient.agent = SEALED, replace(AGENT, policy=policy)
    patient.homeserver.people = dict.fromkeys((AMY, BO), PersonReport(seals=(UNSIGNED,), pinned=None))
    assert await patient.check() == code
    assert patient.of("devices of @amy:hs for claude").startswith(level)
    assert patient.of("devices of @bo:hs for claude").startswith(level)


@pytest.mark.parametrize("error", [HomeserverUnreachable("It is away."), LedgerError("It is torn.")])
async def test_devices_that_cannot_be_asked_for_are_a_warning(error: BridgeError, patient: Doctor) -> None:
    patient.homeserver.room = SEALED
    patient.homeserver.people = {AMY: error, BO: PersonReport(seals=(), pinned=None)}
    assert await patient.check() == 0
    assert patient.of("devices of @amy:hs for claude") == f"warning devices of @amy:hs for claude: {error}"


# --------------------------------------------------------------------------------------------------------- rate limits


@pytest.mark.parametrize(("here", "there"), [(2, 0), (0, 2), (1, 1)])
async def test_a_limit_that_was_met_is_said_with_what_the_admin_can_do(here: int, there: int, patient: Doctor) -> None:
    patient.homeserver.times_limited = here
    patient.bridge = RunningBridge(no_encryption=None, times_limited=there)
    assert await patient.check() == 0
    line = patient.find("warning")
    assert line.startswith("warning rate limit: the homeserver answered M_LIMIT_EXCEEDED 2 times")
    assert line.endswith("https://hs/_synapse/admin/v1/users/%40bot%3Ahs/override_ratelimit")


async def test_where_no_limit_was_met_the_readme_is_named(patient: Doctor) -> None:
    await patient.check()
    assert "README under What it does not do" in patient.of("rate limit")


async def test_a_homeserver_that_limits_at_once_is_no_wrong_address(patient: Doctor) -> None:
    patient.homeserver.account, patient.homeserver.times_limited = RateLimited("Wait.", retry_after=1.0), 1
    assert await patient.check() == 3
    assert patient.find("failed") == "failed homeserver: Wait. Try again later."
    assert "override_ratelimit" in patient.of("rate limit")
