"""What one value of the config may be: a plain check each, and a sentence for what it may not be (interface.md, Config).

Above it: config, which names the keys. Below it: the core's nouns. It opens no file, and no sentence of it repeats a value.
"""

import re
from pathlib import Path
from typing import Annotated, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from bridge.core.model import ENDLESS_MS, LocalAnswers, Millis, PolicyName

TOKEN_VARIABLE = "ACP_MATRIX_BRIDGE_ACCESS_TOKEN"  # noqa: S105 - the name of a variable
PASSWORD_VARIABLE = "ACP_MATRIX_BRIDGE_PASSWORD"  # noqa: S105 - the name of a variable

ID_LIMIT_BYTES = 255  # Matrix: no user id, room id or alias is longer
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def fault(sentence: str, *, key: str = "") -> PydanticCustomError:
    """What is wrong with a value, or with the `key` below it."""
    return PydanticCustomError("bridge_fault", "{sentence}", {"sentence": sentence, "key": key})


def _check_user_id(value: str) -> str:
    if any(mark in value for mark in "*?"):
        raise fault("must be an exact user id such as @alice:example.org; patterns are not taken")
    if not re.fullmatch(r"@[^\s:]+:[^\s@]+", value) or len(value.encode()) > ID_LIMIT_BYTES:
        raise fault("must be a full user id such as @alice:example.org")
    return value


def _check_room(value: str) -> str:
    # Room ids are opaque: those of room version 12 have no server part. An alias always has one.
    if not re.fullmatch(r"![^\s]+|#[^\s:]+:[^\s]+", value) or len(value.encode()) > ID_LIMIT_BYTES:
        raise fault("must be a room id such as !abc:example.org or an alias such as #agents:example.org")
    return value


def _check_homeserver(value: str) -> str:
    # No user, path, query or fragment: an address with a password in it would end up in logs.
    if re.fullmatch(r"(https?://)?([A-Za-z0-9.\-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/*", value):
        return value.rstrip("/")
    raise fault("must be an address such as https://matrix.example.org or a server name such as example.org")


def _read_span(value: object) -> object:
    if value == "never":
        return ENDLESS_MS
    match = re.fullmatch(r"([1-9][0-9]{0,9})([smhd])", value) if isinstance(value, str) else None
    if match is None:
        raise fault('must be "never" or a span such as "90s", "15m", "24h" or "2d"')
    span = int(match[1]) * _UNIT_MS[match[2]]
    if span > ENDLESS_MS:
        raise fault('is longer than 24 days and 20 hours, the longest that a request may wait; write "never" for that')
    return span


def _read_local_answers(value: object) -> object:
    if isinstance(value, bool):
        return LocalAnswers.OTHER_USERS if value else LocalAnswers.OFF
    if value == "same-user":
        return LocalAnswers.SAME_USER
    raise fault('must be false, true or "same-user"')


def _read_policy(value: object) -> object:
    if value not in tuple(PolicyName):
        raise fault("is refused: invalid_permission_policy; it must be ask, allow_all or reject_all")
    return value


def _check_command(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0] or any("\0" in word for word in value):
        raise fault('must name a program, such as ["claude-agent-acp"]')
    return value


def _check_env(value: dict[str, str]) -> dict[str, str]:
    if any(not name or "=" in name or "\0" in name + text for name, text in value.items()):
        raise fault("holds a name or a value that no environment can hold")
    return value


def _check_pass_env(value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if name in {TOKEN_VARIABLE, PASSWORD_VARIABLE}:
            raise fault("would hand the bridge's own secrets to the agent; leave the variable out")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise fault("must list names of variables, such as ANTHROPIC_API_KEY")
    return value


def _check_agent_name(value: str) -> str:
    if re.fullmatch(r"[a-z0-9][a-z0-9_-]*", value):
        return value
    raise fault("is no name for an agent: small letters, digits, - and _ only, a letter or digit first")


def _resolve_path(value: Path, info: ValidationInfo) -> Path:
    folder = cast("dict[str, Path]", info.context or {}).get("folder", Path.cwd())
    return folder / value.expanduser()


def _check_absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise fault("must be an absolute path, one that begins with /")
    return value


UserIdText = Annotated[str, AfterValidator(_check_user_id)]
RoomText = Annotated[str, AfterValidator(_check_room)]
HomeserverText = Annotated[str, AfterValidator(_check_homeserver)]
AgentNameText = Annotated[str, AfterValidator(_check_agent_name)]
ResolvedPath = Annotated[Path, AfterValidator(_resolve_path)]  # a relative one lies beside the config file
AbsolutePath = Annotated[Path, AfterValidator(_check_absolute)]
Command = Annotated[tuple[str, ...], AfterValidator(_check_command)]
Environment = Annotated[dict[str, str], AfterValidator(_check_env), Field(repr=False)]
VariableNames = Annotated[tuple[str, ...], AfterValidator(_check_pass_env)]
Span = Annotated[Millis, BeforeValidator(_read_span)]
Policy = Annotated[PolicyName, BeforeValidator(_read_policy)]
WhoAnswersLocally = Annotated[LocalAnswers, BeforeValidator(_read_local_answers)]
