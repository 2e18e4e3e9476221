"""Finds secrets that have no form of their own: what stands after a secret's name, or after a tool's option for one.

Above it: masking, and the preview for the members of JSON objects. Below it: nothing. It weighs two faults: a password
left readable in a room's history, and a harmless value masked, which hides from people what they decide on. So a
variable's name, a placeholder, an expression of a program and all that a shell would run stay readable.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

MASK = "[masked]"

LONGEST_NAME = 64
"""Characters of a name that are looked at; environment variables and JSON members have fewer."""

LONGEST_QUOTED = 4096
"""Characters between two quotes that can be one secret; beyond that it is a text that happens to hold quotes."""

NAMES_REMEMBERED = 1024
"""Names whose verdict is kept: a text names the same few members over and over."""

SHORTEST_QUOTED = 3
SHORTEST_BARE = 4
SHORTEST_IN_PROSE = 6  # where only a digit tells a value from a word or a type

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tool:
    """A command-line tool whose option carries a secret. `login`: the value is `user:password`."""

    name: str
    option: str
    login: bool = False


TOOLS: tuple[Tool, ...] = (
    Tool(r"curl", r"(?:-[uU]|--(?:proxy-)?user(?![\w-]))[ \t]*=?[ \t]*", login=True),
    Tool(r"(?:mysql(?:dump|admin|import|show)?|mariadb(?:-dump|-admin)?)", r"-p"),
    Tool(r"sshpass", r"-p[ \t]*"),
    Tool(r"redis-cli", r"-a[ \t]+"),
    Tool(r"(?:docker|podman|buildah|helm(?:[ \t]+registry)?)[ \t]+login", r"-p[ \t]+"),
)

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
_AFTER_NAME = (
    r"(?:[_-]?(?:value|base64|base|raw))?[_-]?[0-9]{0,3}(?P<quote>\\?[\"']?\]?)"
    r"(?P<sign>[ \t]{0,8}(?::=|=>|=(?![=>~])|:(?![:=?+-]))[ \t]{0,8}|[ \t]{1,8})"
)
_NAME_ENDS = tuple(  # small letters: they are looked for in a text that was made so
    (ending, re.compile(ending + _AFTER_NAME))
    for ending in ("password", "passwd", "passphrase", "passwort", "pass", "pwd", "secret", "token", "key", "auth")
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ENDINGS = ("password", "passwd", "passphrase", "passwort", "secret", "apikey", "token")
_KEYS = frozenset(
    [
        "api",
        "secret",
        "access",
        "private",
        "auth",
        "encryption",
        "signing",
        "master",
        "account",
        "storage",
        "shared",
        "service",
    ]
)
_PASSES = frozenset(
    [
        "db",
        "database",
        "user",
        "root",
        "admin",
        "smtp",
        "imap",
        "mail",
        "ftp",
        "ssh",
        "sudo",
        "http",
        "proxy",
        "mysql",
        "pg",
        "redis",
        "login",
    ]
)
_NO_TOKENS = frozenset(
    [
        "pad",
        "eos",
        "bos",
        "unk",
        "mask",
        "sep",
        "cls",
        "stop",
        "special",
        "page",
        "next",
        "prev",
        "start",
        "end",
        "first",
        "last",
        "max",
        "min",
        "num",
        "per",
        "new",
        "cancel",
        "cancellation",
        "continuation",
        "current",
        "syntax",
        "each",
    ]
)
_SUFFIXES = frozenset(["value", "base64", "base", "raw"])

_EXPANDED = re.compile(r"\$|\\?\{|<|%[A-Za-z_(]|\*+\Z|[xX.]+\Z|\[masked\]|\[?REDACTED", re.ASCII)
_RUNS_WORDS = re.compile(r"(?=.*['\"])(?=.*[\s;|&<>])", re.DOTALL)
_NO_SECRET = re.compile(
    r"""(?:[0-9]{1,3}|true|false|yes|no|on|off|null|none|nil|undefined|str|string|text|bool|boolean|any|object|optional
    |required|password|passwd|passphrase|secret|token|u?int[0-9]*|float[0-9]*|bytes[0-9]*|base64|sha[0-9]+|utf-?8
    |change[-_]?me|(?:your|my|the|some|a)[-_ ].{0,60})\Z
    |arn:|[a-z][a-z0-9+.-]{1,20}://|(?:\.{1,2}|~|/(?:etc|home|mnt|opt|root|run|srv|tmp|usr|var|dev|proc|workspace))/""",
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
_STOP_WORDS = frozenset(
    [
        "is",
        "to",
        "and",
        "or",
        "for",
        "the",
        "in",
        "with",
        "as",
        "if",
        "when",
        "option",
        "flag",
        "parameter",
        "argument",
        "instead",
        "from",
        "via",
        "by",
        "can",
        "must",
        "should",
        "will",
        "was",
        "not",
        "are",
        "of",
        "on",
        "at",
    ]
)
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z", re.ASCII)
_QUOTED = re.compile(
    r"[rbufRBUF]?(?:\\\"(?P<escaped>[^\"\\\n]{1,4096}+)\\\"|\"(?P<double>(?:[^\"\\\n]|\\[^\n]){1,4096}+)\"|'(?P<single>[^'\n]{1,4096}+)')"
)
_SHELL_WORD = re.compile(r"[^\s'\"`;|&<>()]{1,1024}+")
_BARE_WORD = re.compile(r"[^\s'\"`;|&<>(){}\[\],\\]{1,1024}+")

_TOOL = re.compile(
    "|".join(
        [
            *(rf"(?P<tool{index}>(?<![\w-]){tool.name}(?![\w-]))" for index, tool in enumerate(TOOLS)),
            r"(?P<end>(?<!\\)\n|\||&&)",
            r"(?P<option>(?<=\s)-{1,2}[A-Za-z])",
        ]
    ),
    re.ASCII,
)
_TOOL_HINTS = ("curl", "mysql", "mariadb", "sshpass", "redis-cli", "login")
_OPTIONS = tuple(re.compile(tool.option) for tool in TOOLS)


def is_expanded(value: str) -> bool:
    """Whether a shell or a template puts the value in, or it was masked before: no secret, and not to be hidden."""
    return any(sign in value for sign in ("$(", "${", "`")) or _EXPANDED.match(value) is not None


@lru_cache(maxsize=NAMES_REMEMBERED)
def is_secret_name(name: str) -> bool:
    """Whether what a variable, member, header or option of this name holds is a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _SUFFIXES):
        words.pop()
    before, last = ["", "", *words][-2:]
    match last:
        case "token":
            return before not in _NO_TOKENS
        case "key":
            return before in _KEYS
        case "pass":
            return before in _PASSES
        case "pwd":
            return before not in {"", "old"}
        case "auth":
            return name.startswith("_")
        case _:
            return last.endswith(_ENDINGS)


def is_secret_value(value: str) -> bool:
    """Whether the value of a secret's name is the secret itself: neither a reference, a placeholder nor a sentence."""
    return (
        len(value) >= SHORTEST_QUOTED
        and _is_plain(value)
        and (_has_digit(value) or not any(character.isspace() for character in value))
    )


def find_named(text: str) -> Iterator[Span]:
    """Where the secrets stand that their name, or the tool they are given to, shows."""
    lowered = text.replace("İ", "I").lower()  # the one letter whose small form is longer
    for ending, pattern in _NAME_ENDS:
        if ending in lowered:
            found = pattern.search(lowered)
            while found is not None:
                span = _find_value(text, found)
                if span is not None:
                    yield span
                found = pattern.search(lowered, found.end() if span is None else span[1])
    if any(hint in text for hint in _TOOL_HINTS):
        yield from _find_for_tools(text)


def _is_plain(value: str) -> bool:
    return not (is_expanded(value) or _RUNS_WORDS.match(value) or _NO_SECRET.match(value))


def _has_digit(value: str) -> bool:
    return any(character.isdigit() for character in value)


def _find_value(text: str, found: re.Match[str]) -> Span | None:
    window = text[max(found.start() - LONGEST_NAME, 0) : found.start()]
    lead = window.rstrip(_NAME_CHARACTERS)
    name = window[len(lead) :] + text[found.start() : found.start("quote")]
    if found["sign"].isspace() and not name.startswith("--"):  # a word of a sentence
        return None
    if not is_secret_name(name.lstrip("-.")):
        return None
    quoted = _QUOTED.match(text, found.end())
    if quoted is None:
        return _find_bare(text, found, name=name, lead=lead.rstrip(" "))
    group = quoted.lastgroup or 0
    is_secret = _is_plain(quoted[group]) if name.isupper() else is_secret_value(quoted[group])
    return quoted.span(group) if is_secret else None


def _find_bare(text: str, found: re.Match[str], *, name: str, lead: str) -> Span | None:
    """A value without quotes: as a shell, an env file, an ini file, YAML or a header writes it."""
    sign = found["sign"]
    is_loud = name.isupper() and sign == "="
    word = (_SHELL_WORD if is_loud else _BARE_WORD).match(text, found.end())
    if word is None or not _is_plain(word[0]):
        return None
    value = word[0]
    if is_loud:
        return word.span()
    if text[word.end() : word.end() + 1] in {"(", "["} or _DOTTED.match(value):  # an expression of a program
        return None
    if sign.isspace():
        is_secret = not value.startswith("-") and value.lower() not in _STOP_WORDS
    elif sign == "=" and not lead.endswith(("(", ",")):  # else it may be an argument by name
        is_secret = len(value) >= SHORTEST_BARE
    elif sign.startswith("=") and sign.strip() == "=" and sign != "=":  # `TOKEN= command`
        is_secret = False
    elif (
        sign == ":" and not found["quote"] and "-" not in name
    ):  # `token:value` is no YAML; a header may lack the blank
        is_secret = False
    elif name.isupper() and "_" in name:
        is_secret = len(value) >= SHORTEST_BARE
    else:
        is_secret = len(value) >= SHORTEST_IN_PROSE and _has_digit(value) and not value.isdigit()
    return word.span() if is_secret else None


def _find_for_tools(text: str) -> Iterator[Span]:
    current: int | None = None
    for found in _TOOL.finditer(text):
        group = found.lastgroup or ""
        if group.startswith("tool"):
            current = int(group.removeprefix("tool"))
        elif group == "end":
            current = None
        elif current is not None:
            span = _find_option(text, found.start(), current)
            if span is not None:
                yield span


def _find_option(text: str, at: int, tool: int) -> Span | None:
    option = _OPTIONS[tool].match(text, at)
    if option is None:
        return None
    quoted = _QUOTED.match(text, option.end())
    word = _SHELL_WORD.match(text, option.end()) if quoted is None else quoted
    if word is None:
        return None
    start, end = word.span(word.lastgroup or 0)
    if TOOLS[tool].login:
        start += len(text[start:end].partition(":")[0]) + 1
    value = text[start:end]
    return (start, end) if value and not is_expanded(value) and not _RUNS_WORDS.match(value) else None
