import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import config
from bridge.core.errors import ConfigError
from bridge.core.model import (
    ENDLESS_MS,
    Agent,
    AgentName,
    Listen,
    LocalAnswers,
    PolicyName,
    PromptStyle,
    RoomId,
    Trust,
    UserId,
)

SMALLEST = """\
state_dir = "/state"
[matrix]
homeserver = "https://hs"
user_id = "@bot:hs"
[agents.claude]
command = ["agent"]
approvers = ["@amy:hs"]
"""


def load(folder: Path, text: str = SMALLEST) -> config.Config:
    path = folder / "config.toml"
    path.write_text(text)
    return config.load(path)


def load_agent(folder: Path, line: str) -> config.AgentSection:
    return load(folder, SMALLEST + line + "\n").agents["claude"]


def find_faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return [line.removeprefix(f"{folder}/config.toml, ") for line in str(caught.value).splitlines()]


def find_fault(folder: Path, line: str, *, of: str = SMALLEST) -> str:
    (fault,) = find_faults(folder, of + line + "\n")
    return fault


def test_the_smallest_config_gets_the_defaults_of_the_interface(tmp_path: Path) -> None:
    agent = load(tmp_path).agents["claude"]
    assert (agent.policy, agent.expires_after, agent.prompt_style) == (PolicyName.ASK, ENDLESS_MS, PromptStyle.FULL)
    assert (agent.reactions, agent.mentions, agent.local_answers) == (True, "approvers", LocalAnswers.OFF)
    assert (agent.listen, agent.mode, agent.cwd, agent.room) == (None, None, None, None)
    assert (agent.trust, agent.strict, agent.polls) == (Trust.CROSS_SIGNED, False, False)
    assert not load(tmp_path).matrix.follow_upgrades


def test_what_the_core_decides_by_is_made_of_an_agents_section(tmp_path: Path) -> None:
    section = load_agent(
        tmp_path,
        'policy = "allow_all"\nprompt_style = "brief"\nreactions = false\nmentions = "none"\nlisten = "mention"\n'
        'expires_after = "90s"\nlocal_answers = true\nusers = ["@bo:hs"]\ntrust = "pinned"\npolls = true',
    )
    assert Agent(
        name=AgentName("claude"),
        room=RoomId("!r"),
        approvers=frozenset({UserId("@amy:hs")}),
        users=frozenset({UserId("@bo:hs")}),
        policy=PolicyName.ALLOW_ALL,
        prompt_style=PromptStyle.BRIEF,
        reactions=False,
        mentions=False,
        listen=Listen.MENTION,
        expires_after=90_000,  # pyright: ignore[reportArgumentType] - a number of milliseconds
        local_answers=LocalAnswers.OTHER_USERS,
        trust=Trust.PINNED,
        polls=True,
    ) == config.agent_rules("claude", section, RoomId("!r"))


def test_a_strict_agent_is_strict(tmp_path: Path) -> None:
    assert config.agent_rules("claude", load_agent(tmp_path, "strict = true"), None).strict


def test_approvers_may_prompt_the_agent_where_no_users_are_named(tmp_path: Path) -> None:
    rules = config.agent_rules("claude", load(tmp_path).agents["claude"], None)
    assert (rules.approvers, Listen.AUTO) == (rules.users, rules.listen)


def test_nobody_may_prompt_where_the_users_are_named_and_empty(tmp_path: Path) -> None:
    assert frozenset() == config.agent_rules("claude", load_agent(tmp_path, "users = []"), None).users


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("never", ENDLESS_MS), ("90s", 90_000), ("15m", 900_000), ("24h", 86_400_000), ("2d", 172_800_000)],
)
def test_a_span_is_read(text: str, milliseconds: int, tmp_path: Path) -> None:
    assert milliseconds == load_agent(tmp_path, f'expires_after = "{text}"').expires_after


@pytest.mark.parametrize("value", ['"0s"', '"1.5h"', '"2w"', '"-1s"', '"90"', '"٣s"', '"1h\\n"', "90", "true", '""'])
def test_what_is_no_span_is_refused(value: str, tmp_path: Path) -> None:
    assert "line 8: agents.claude.expires_after must be" in find_fault(tmp_path, f"expires_after = {value}")


@pytest.mark.parametrize("value", ["2147484s", "25d", "9999999999d"])
def test_a_span_beyond_the_bound_is_refused(value: str, tmp_path: Path) -> None:
    assert "longer than 24 days" in find_fault(tmp_path, f'expires_after = "{value}"')


@pytest.mark.parametrize(
    ("value", "expected"),
    [("false", LocalAnswers.OFF), ("true", LocalAnswers.OTHER_USERS), ('"same-user"', LocalAnswers.SAME_USER)],
)
def test_local_answers_has_three_values(value: str, expected: LocalAnswers, tmp_path: Path) -> None:
    assert expected == load_agent(tmp_path, f"local_answers = {value}").local_answers


@pytest.mark.parametrize("room", ["!abc:hs.example", "!Xw0_opaque-of-version-12", "#agents:hs:8448"])
def test_a_room_is_an_id_or_an_alias(room: str, tmp_path: Path) -> None:
    assert room == load_agent(tmp_path, f'room = "{room}"').room


@pytest.mark.parametrize("homeserver", ["https://hs.example", "http://127.0.0.1:8008", "hs.example:8448", "[::1]:8008"])
def test_a_homeserver_is_an_address_or_a_server_name(homeserver: str, tmp_path: Path) -> None:
    assert homeserver == load(tmp_path, SMALLEST.replace("https://hs", homeserver + "/")).matrix.homeserver


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('policy = "yolo"', "policy is refused: invalid_permission_policy; it must be ask, allow_all or reject_all."),
        ("policy = true", "policy is refused: invalid_permission_policy; it must be ask, allow_all or reject_all."),
        ('mentions = "room"', 'mentions must be "approvers" or "none".'),
        ('listen = "auto"', 'listen must be "all" or "mention".'),
        ('prompt_style = "x"', 'prompt_style must be "full" or "brief".'),
        ('reactions = "true"', "reactions must be true or false, without quotes."),
        ("reactions = 1", "reactions must be true or false, without quotes."),
        ('local_answers = "yes"', 'local_answers must be false, true or "same-user".'),
        ('cwd = "project"', "cwd must be an absolute path, one that begins with /."),
        ("cwd = 1", "cwd must be a text in quotes."),
        ('room = "room"', "room must be a room id such as !abc:example.org or an alias such as #agents:example.org."),
        (
            'room = "#agents"',
            "room must be a room id such as !abc:example.org or an alias such as #agents:example.org.",
        ),
        ("room = 1", "room must be a text in quotes."),
        ('users = ["@*:hs"]', "users must be an exact user id such as @alice:example.org; patterns are not taken."),
        ('users = ["amy"]', "users must be a full user id such as @alice:example.org."),
        ('users = ["@amy"]', "users must be a full user id such as @alice:example.org."),
        ('users = "@amy:hs"', 'users must be a list, such as ["…"].'),
        ('trust = "verified"', 'trust must be "any", "cross_signed" or "pinned".'),
        ("strict = 1", "strict must be true or false, without quotes."),
        ("polls = 1", "polls must be true or false, without quotes."),
        (
            'strict = true\nprompt_style = "brief"',
            'strict is refused beside prompt_style = "brief": a brief prompt shows no number, and only that would count.',
        ),
        ('mode = ""', "mode is empty; leave the key out instead."),
        ('env = { "A=B" = "c" }', "env holds a name or a value that no environment can hold."),
        ("env = { A = 5 }", "env.A must be a text in quotes."),
        ('env = "A=B"', "env must be a section of its own, in [ ]."),
        ('pass_env = ["A*"]', "pass_env must list names of variables, such as ANTHROPIC_API_KEY."),
        (
            'pass_env = ["ACP_MATRIX_BRIDGE_ACCESS_TOKEN"]',
            "pass_env would hand the bridge's own secrets to the agent; leave the variable out.",
        ),
        ('polcy = "ask"', "polcy is no key of the config; the nearest one is policy."),
        ('user_id = "@a:hs"', "user_id is no key of the config; the nearest one is matrix.user_id."),
        ("xyzzy = 1", "xyzzy is no key of the config; the nearest one is "),
    ],
)
def test_a_fault_of_an_agent_names_key_line_and_what_is_wrong(line: str, expected: str, tmp_path: Path) -> None:
    assert find_fault(tmp_path, line).startswith(f"line 8: agents.claude.{expected}")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"@bot:hs"', '"bot"', "line 4: matrix.user_id must be a full user id such as @alice:example.org."),
        ("[agents", "usr_id = 1\n[agents", "line 5: matrix.usr_id is no key of the config; the nearest one is user_id."),
        ('homeserver = "https://hs"', "", "line 2: matrix.homeserver is missing."),
        ('state_dir = "/state"', "", "line 1: state_dir is missing."),
        ('state_dir = "/state"', 'state_dir = "/state"\nroom = "!a"', "line 2: room is no key of the config; the nearest one is agents.NAME.room."),
        ('command = ["agent"]', "", "line 5: agents.claude.command is missing."),
        ('["agent"]', '"agent"', 'line 6: agents.claude.command must be a list, such as ["…"].'),
        ('["agent"]', "[]", 'line 6: agents.claude.command must name a program, such as ["claude-agent-acp"].'),
        ("agents.claude", "agents.Claude", "line 5: agents.Claude is no name for an agent: small letters, digits, - and _ only, a letter or digit first."),
        ('"@amy:hs"', "", 'line 7: agents.claude.approvers is empty: under policy "ask" somebody must be allowed to answer.'),
        ('approvers = ["@amy:hs"]', "", 'line 5: agents.claude.approvers is empty: under policy "ask" somebody must be allowed to answer.'),
        ("@amy:hs", "@bot:hs", "line 7: agents.claude.approvers lists the bridge's own id, which never answers."),
        ("@amy:hs", "@a*y:hs", "line 7: agents.claude.approvers must be an exact user id such as @alice:example.org; patterns are not taken."),
    ],
)  # fmt: skip
def test_a_fault_names_the_line_of_its_key_or_section(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert [expected] == find_faults(tmp_path, SMALLEST.replace(old, new))


@pytest.mark.parametrize(
    "homeserver", ["https://", "https://u:pw@hs", "https://hs/path", "ftp://hs", "h s", "", "https://hs?x=1"]
)
def test_what_is_no_homeserver_is_refused_and_not_repeated(homeserver: str, tmp_path: Path) -> None:
    (fault,) = find_faults(tmp_path, SMALLEST.replace("https://hs", homeserver))
    assert "line 3: matrix.homeserver must be an address" in fault
    assert "pw" not in fault


def test_no_agents_is_a_fault(tmp_path: Path) -> None:
    assert find_faults(tmp_path, SMALLEST[: SMALLEST.index("[agents")] + "\n[agents]\n") == [
        "line 6: agents is empty: name at least one agent."
    ]


def test_an_agent_that_is_no_section_is_a_fault(tmp_path: Path) -> None:
    text = 'agents.claude = "x"\n' + SMALLEST[: SMALLEST.index("[agents")]
    assert find_faults(tmp_path, text) == ["line 1: agents.claude must be a section of its own, in [ ]."]


def test_every_fault_is_listed_in_the_files_order(tmp_path: Path) -> None:
    faults = find_faults(tmp_path, SMALLEST.replace("homeserver", "homserver") + 'listen = "x"\nmode = 1\n')
    assert [fault.partition(":")[0] for fault in faults] == ["line 2", "line 3", "line 8", "line 9"]


def test_the_line_is_right_behind_values_of_several_lines(tmp_path: Path) -> None:
    text = 'env = { A = """\n[agents.x]\nlisten = 1\n""" }\nusers = [\n  "@amy:hs",\n  "@*:hs",\n]\nlisten = "x"'
    faults = find_faults(tmp_path, SMALLEST + text)
    assert [fault.partition(":")[0] for fault in faults] == ["line 12", "line 16"]


@pytest.mark.parametrize("place", ["", "[matrix]\n", "[agents.claude]\n"])
@pytest.mark.parametrize("key", ["access_token", "password", "token"])
def test_a_secret_in_the_file_is_refused_with_a_hint_and_never_repeated(place: str, key: str, tmp_path: Path) -> None:
    written = f'{key} = "syt_very_secret"\n'
    text = SMALLEST.replace(place, place + written) if place else written + SMALLEST
    (fault,) = find_faults(tmp_path, text)
    hint = "matrix.password_file" if key == "password" else "matrix.access_token_file"
    assert hint in fault
    assert "syt_very_secret" not in fault


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_no_text_brings_about_more_than_a_config_error(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, suppress(ConfigError):
        load(Path(folder), SMALLEST + text)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"state_dir = \n", "line 1: this is not TOML."),
        (b"a = 1\nb = [\n", "this is not TOML."),
        (b"a = '\xff'", "this is not TOML."),
    ],
)
def test_what_is_no_toml_is_said_with_its_line(raw: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert str(caught.value).endswith(expected)


def test_a_config_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        config.load(tmp_path / "none.toml")


def test_relative_paths_lie_beside_the_config(tmp_path: Path) -> None:
    found = load(tmp_path, SMALLEST.replace('"/state"', '"state"').replace("[agents", 'password_file = "pw"\n[agents'))
    assert (tmp_path / "state", tmp_path / "pw") == (found.state_dir, found.matrix.password_file)
    assert (tmp_path / "state/access_token", tmp_path / "state/ledger.db") == (
        found.saved_token_file,
        found.ledger_file,
    )


@pytest.mark.parametrize("user", ["@agentbot:hs", "@my_bot_2:hs", "@telegram-Bridge:hs"])
def test_an_approver_that_looks_like_a_bot_is_warned_about(user: str, tmp_path: Path) -> None:
    found = load(tmp_path, SMALLEST.replace("@amy:hs", user) + 'room = "!r"')
    (warning,) = found.warnings
    assert user in warning


@pytest.mark.parametrize("user", ["@abbot.son:hs", "@amy:bot", "@robots:hs"])
def test_a_person_is_not_taken_for_a_bot(user: str, tmp_path: Path) -> None:
    assert load(tmp_path, SMALLEST.replace("@amy:hs", user) + 'room = "!r"').warnings == ()


@pytest.mark.parametrize(
    ("homeserver", "count"), [("http://hs", 1), ("http://127.0.0.1:8008", 0), ("http://localhost", 0)]
)
def test_a_token_that_travels_unencrypted_is_warned_about(homeserver: str, count: int, tmp_path: Path) -> None:
    text = SMALLEST.replace("https://hs", homeserver) + 'room = "!r"'
    assert count == len(load(tmp_path, text).warnings)


def test_trust_in_any_device_is_warned_about(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, SMALLEST + 'room = "!r"\ntrust = "any"\n').warnings
    assert warning.startswith('agents.claude.trust is "any": in an encrypted room')


def test_an_agent_without_a_room_is_warned_about(tmp_path: Path) -> None:
    assert load(tmp_path).warnings == (
        "agents.claude has no room: what would be asked there is answered as cancelled.",
    )


def test_the_named_config_comes_first_then_the_environments_then_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").touch()
    environ = {"ACP_MATRIX_BRIDGE_CONFIG": "/env.toml"}
    assert Path("/named.toml") == config.find(Path("/named.toml"), environ)
    assert Path("/env.toml") == config.find(None, environ)
    assert Path("config.toml") == config.find(None, {"ACP_MATRIX_BRIDGE_CONFIG": ""})


def test_without_any_config_the_error_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "SYSTEM_PATH", tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"\./config\.toml.*`acp-matrix-bridge setup` makes one"):
        config.find(None, {})


def test_the_token_is_taken_from_file_then_environment_then_saved_login(tmp_path: Path) -> None:
    named = SMALLEST.replace("/state", str(tmp_path)).replace("[agents", 'access_token_file = "t"\n[agents')
    (tmp_path / "t").write_text("from-file\n")
    (tmp_path / "access_token").write_text("saved\n")
    environ = {"ACP_MATRIX_BRIDGE_ACCESS_TOKEN": "from-environment", "ACP_MATRIX_BRIDGE_PASSWORD": "pw"}
    unnamed = load(tmp_path, SMALLEST.replace("/state", str(tmp_path)))
    tokens = [
        config.read_secrets(load(tmp_path, named), environ).access_token,
        config.read_secrets(unnamed, environ).access_token,
        config.read_secrets(unnamed, {}).access_token,
    ]
    assert [token.get_secret_value() for token in tokens if token] == ["from-file", "from-environment", "saved"]


def test_a_password_is_taken_from_file_or_environment(tmp_path: Path) -> None:
    named = load(tmp_path, SMALLEST.replace("[agents", 'password_file = "p"\n[agents'))
    (tmp_path / "p").write_text("pass word\n")
    environ = {"ACP_MATRIX_BRIDGE_PASSWORD": "other"}
    passwords = [config.read_password(named, environ), config.read_password(load(tmp_path), environ)]
    assert [password.get_secret_value() for password in passwords if password] == ["pass word", "other"]


def test_a_secret_is_not_in_the_text_of_what_holds_it(tmp_path: Path) -> None:
    secrets = config.read_secrets(load(tmp_path), {"ACP_MATRIX_BRIDGE_PASSWORD": "hunter2pw"})
    found = load_agent(tmp_path, 'env = { KEY = "hunter2pw" }')
    assert "hunter2pw" not in repr(secrets) + str(secrets) + repr(found)


def test_without_token_and_password_the_error_names_login(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="acp-matrix-bridge login"):
        config.read_secrets(load(tmp_path), {})


@pytest.mark.parametrize("content", [b"", b" \n", b"one\ntwo\n", b"\xff\xfe"])
def test_a_file_that_holds_no_one_secret_is_refused_and_not_repeated(content: bytes, tmp_path: Path) -> None:
    found = load(tmp_path, SMALLEST.replace("[agents", 'access_token_file = "t"\n[agents'))
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(ConfigError, match="must hold the secret and nothing else") as caught:
        config.read_secrets(found, {})
    assert "two" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    found = load(tmp_path, SMALLEST.replace("[agents", 'access_token_file = "t"\n[agents'))
    with pytest.raises(ConfigError, match=r"matrix\.access_token_file: the file .* cannot be read"):
        config.read_secrets(found, {"ACP_MATRIX_BRIDGE_ACCESS_TOKEN": "x"})
