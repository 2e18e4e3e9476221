"""The config file: TOML in, frozen models or plain sentences out (interface.md, Config).

Above it: app and the command line. Below it: values, the core's nouns. It opens nothing but the config file and the files of
secrets that it names, and no sentence of it repeats a value that could be a secret.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from bridge import values
from bridge.core import model
from bridge.core.errors import ConfigError
from bridge.core.model import ENDLESS_MS, LocalAnswers, PolicyName, PromptStyle, Trust

PATH_VARIABLE = "ACP_MATRIX_BRIDGE_CONFIG"
TOKEN_VARIABLE, PASSWORD_VARIABLE = values.TOKEN_VARIABLE, values.PASSWORD_VARIABLE
SYSTEM_PATH = Path("/etc/acp-matrix-bridge/config.toml")
SAVED_TOKEN_NAME = "access_token"  # noqa: S105 - the name of the file that `login` leaves in the state folder
LEDGER_NAME = "ledger.db"

_WRITTEN_SECRETS = frozenset({"access_token", "password", "token"})


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class MatrixSection(_Section):
    """`[matrix]`: which account the bridge speaks as."""

    homeserver: values.HomeserverText
    user_id: values.UserIdText
    access_token_file: values.ResolvedPath | None = None
    password_file: values.ResolvedPath | None = None
    encryption: StrictBool = True
    follow_upgrades: StrictBool = False


class AgentSection(_Section):
    """`[agents.NAME]`: one harness, its room, and who may answer it."""

    command: values.Command
    cwd: values.AbsolutePath | None = None
    env: values.Environment = {}
    pass_env: values.VariableNames = ()
    room: values.RoomText | None = None
    approvers: tuple[values.UserIdText, ...] = ()
    users: tuple[values.UserIdText, ...] | None = None
    policy: values.Policy = PolicyName.ASK
    mode: Annotated[str, Field(min_length=1)] | None = None
    auth_method: Annotated[str, Field(min_length=1)] | None = None
    local_answers: values.WhoAnswersLocally = LocalAnswers.OFF
    expires_after: values.Span = ENDLESS_MS
    prompt_style: PromptStyle = PromptStyle.FULL
    reactions: StrictBool = True
    mentions: Literal["approvers", "none"] = "approvers"
    listen: Literal["all", "mention"] | None = None  # None: by the number of people in the room (rule 16)
    trust: Trust = Trust.CROSS_SIGNED
    strict: StrictBool = False
    polls: StrictBool = False

    @model_validator(mode="after")
    def _somebody_may_answer(self) -> Self:
        if self.policy is PolicyName.ASK and not self.approvers:
            raise values.fault('is empty: under policy "ask" somebody must be allowed to answer', key="approvers")
        return self

    @model_validator(mode="after")
    def _a_strict_answer_has_a_number_to_name(self) -> Self:
        if self.strict and self.prompt_style is PromptStyle.BRIEF:
            sentence = (
                'is refused beside prompt_style = "brief": a brief prompt shows no number, and only that would count'
            )
            raise values.fault(sentence, key="strict")
        return self


class Config(_Section):
    """The whole file, checked."""

    state_dir: values.ResolvedPath
    matrix: MatrixSection
    agents: Annotated[dict[values.AgentNameText, AgentSection], Field(min_length=1)]

    @model_validator(mode="after")
    def _the_bot_never_answers(self) -> Self:
        for name, agent in self.agents.items():
            if self.matrix.user_id in agent.approvers:
                raise values.fault("lists the bridge's own id, which never answers", key=f"agents.{name}.approvers")
        return self

    @property
    def saved_token_file(self) -> Path:
        """Where `login` leaves its token."""
        return self.state_dir / SAVED_TOKEN_NAME

    @property
    def ledger_file(self) -> Path:
        """Where the ledger lies."""
        return self.state_dir / LEDGER_NAME

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and probably not meant, one sentence each."""
        found: list[str] = []
        if re.match(r"http://(?!(localhost|127\.0\.0\.1|\[::1\])(:|$))", self.matrix.homeserver):
            found.append("matrix.homeserver is an http address: the access token travels unencrypted.")
        for name, agent in self.agents.items():
            if agent.room is None and agent.policy is not PolicyName.REJECT_ALL:
                found.append(f"agents.{name} has no room: what would be asked there is answered as cancelled.")
            if agent.trust is Trust.ANY:
                found.append(
                    f'agents.{name}.trust is "any": in an encrypted room whoever runs a homeserver can add a device to an'
                    " account there, and so answer as its owner."
                )
            found += [
                f"agents.{name}.approvers lists {user}, which looks like a bot: a program would approve."
                for user in agent.approvers
                if re.match(r"@([^:]*_bot|[^:]*(bot|bridge):)", user, re.IGNORECASE)
            ]
        return tuple(found)


def agent_rules(name: str, section: AgentSection, room: model.RoomId | None) -> model.Agent:
    """The part of an agent's section that the core decides by; `room` is the id behind an alias."""
    users = section.approvers if section.users is None else section.users
    return model.Agent(
        name=model.AgentName(name),
        room=room,
        approvers=frozenset(map(model.UserId, section.approvers)),
        users=frozenset(map(model.UserId, users)),
        policy=section.policy,
        prompt_style=section.prompt_style,
        reactions=section.reactions,
        mentions=section.mentions == "approvers",
        listen=model.Listen(section.listen or "auto"),
        expires_after=section.expires_after,
        local_answers=section.local_answers,
        trust=section.trust,
        strict=section.strict,
        polls=section.polls,
    )


def find(named: Path | None, environ: Mapping[str, str]) -> Path:
    """The config file to use: the named one, the environment's, `./config.toml`, the system's."""
    if named is not None:
        return named
    if environ.get(PATH_VARIABLE):
        return Path(environ[PATH_VARIABLE])
    for path in (Path("config.toml"), SYSTEM_PATH):
        if path.exists():
            return path
    raise ConfigError(
        f"There is no config: neither ./config.toml nor {SYSTEM_PATH} exists; "
        "`acp-matrix-bridge setup` makes one, or name yours with --config."
    )


def load(path: Path) -> Config:
    """Read and check the whole file. Raises `ConfigError`, one sentence a line for every fault."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"The config {path} cannot be read: {error.strerror}.") from error
    try:
        source = raw.decode()
        document = tomllib.loads(source)
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML
        place = re.search(r"\(at line (\d+)", str(error))
        raise ConfigError(f"{path}{f', line {place[1]}' if place else ''}: this is not TOML.") from error
    try:
        return Config.model_validate(document, context={"folder": path.absolute().parent})
    except ValidationError as error:
        faults = [_describe(details) for details in error.errors(include_url=False, include_input=False)]
    lines = _locate([fault.key for fault in faults], source)
    placed = sorted(zip(lines, faults, strict=True), key=lambda pair: pair[0])
    raise ConfigError("\n".join(f"{path}, line {line}: {fault.sentence}" for line, fault in placed))


class _Fault(NamedTuple):
    key: tuple[str, ...]
    sentence: str


_SENTENCES = {  # by pydantic's type of error: what follows the key's name
    "missing": "is missing",
    "bool_type": "must be true or false, without quotes",
    "string_type": "must be a text in quotes",
    "path_type": "must be a text in quotes",
    "tuple_type": 'must be a list, such as ["…"]',
    "model_type": "must be a section of its own, in [ ]",
    "dict_type": "must be a section of its own, in [ ]",
    "string_too_short": "is empty; leave the key out instead",
    "too_short": "is empty: name at least one agent",
}


def _describe(details: ErrorDetails) -> _Fault:
    """One sentence for a fault that pydantic found, naming the key and never its value."""
    context = details.get("ctx", {})
    key = tuple(part for part in details["loc"] if isinstance(part, str) and part != "[key]")
    if context.get("key"):
        key = (*key, *str(context["key"]).split("."))
    if details["type"] == "extra_forbidden":
        return _Fault(key, _describe_unknown(key))
    if details["type"] == "bridge_fault":
        what = str(context["sentence"])
    elif "expected" in context:
        what = "must be " + str(context["expected"]).replace("'", '"')
    else:
        what = _SENTENCES.get(details["type"], f"cannot be used: {details['msg']}")
    return _Fault(key, f"{'.'.join(key) or 'the config'} {what}.")


def _describe_unknown(key: tuple[str, ...]) -> str:
    name = ".".join(key)
    if key[-1] in _WRITTEN_SECRETS:
        kind = "password" if key[-1] == "password" else "access_token"
        variable = PASSWORD_VARIABLE if kind == "password" else TOKEN_VARIABLE
        return (
            f"{name} is refused, since secrets do not belong in the config: "
            f"put it into a file of its own, name that in matrix.{kind}_file, or set ${variable}."
        )
    models = {"": Config, "matrix.": MatrixSection, "agents.NAME.": AgentSection}
    own = "" if len(key) == 1 else "matrix." if key[0] == "matrix" else "agents.NAME."
    elsewhere = [place + key[-1] for place, section in models.items() if key[-1] in section.model_fields]
    known = (elsewhere or difflib.get_close_matches(key[-1], models[own].model_fields, n=1, cutoff=0))[0]
    return f"{name} is no key of the config; the nearest one is {known}."


def _locate(keys: Sequence[tuple[str, ...]], source: str) -> list[int]:
    """The line in which each key, or else the section that should hold it, begins.

    TOML's own reader finds it: the first statements that parse and hold the key end with the statement that wrote it.
    """
    found: dict[tuple[str, ...], int] = {}
    wanted = {key[:length] for key in keys for length in range(1, len(key) + 1)}
    lines = source.split("\n")
    begin = 0  # of the statement that is being read
    for end in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a value of several lines
        for key in wanted - found.keys():
            if _holds(document, key):
                found[key] = begin + 1
        begin = end
    return [next((found[key[:n]] for n in range(len(key), 0, -1) if key[:n] in found), 1) for key in keys]


def _holds(document: dict[str, Any], key: tuple[str, ...]) -> bool:
    here: object = document
    for part in key:
        if not isinstance(here, dict) or part not in here:
            return False
        here = cast("dict[str, object]", here)[part]
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What the account is opened with. The password is for when the token is missing or refused."""

    access_token: SecretStr | None
    password: SecretStr | None


def read_secrets(config: Config, environ: Mapping[str, str] = os.environ) -> Secrets:
    """What opens the account. Raises `ConfigError` when there is neither a token nor a password."""
    token = (
        _read_file("matrix.access_token_file", config.matrix.access_token_file)
        or _wrap(environ.get(TOKEN_VARIABLE))
        or _read_file("The saved login", config.saved_token_file, needed=False)
    )
    secrets = Secrets(access_token=token, password=read_password(config, environ))
    if secrets.access_token is None and secrets.password is None:
        raise ConfigError("There is no access token: run `acp-matrix-bridge login`, or name matrix.access_token_file.")
    return secrets


def read_password(config: Config, environ: Mapping[str, str] = os.environ) -> SecretStr | None:
    """The password, where one is named: `login` needs no token for it."""
    return _read_file("matrix.password_file", config.matrix.password_file) or _wrap(environ.get(PASSWORD_VARIABLE))


def _wrap(value: str | None) -> SecretStr | None:
    return SecretStr(value) if value else None


def _read_file(key: str, path: Path | None, *, needed: bool = True) -> SecretStr | None:
    if path is None or not (needed or os.path.lexists(path)):
        return None
    try:
        value = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{key}: the file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        value = ""
    if len(value.splitlines()) != 1:
        # Without the cause: a decoding error would carry the bytes.
        raise ConfigError(f"{key}: the file {path} must hold the secret and nothing else, on one line.") from None
    return SecretStr(value)
