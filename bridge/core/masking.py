"""Masks secrets in text that is shown or logged; the harness always gets the raw value (design.md, rule 9).

Above it: the preview, and whoever logs or shows what an agent wrote. Below it: safetext, for what counts as hidden.
Tokens with a form of their own are in the tables here; secrets that only their name gives away are found by
`core.namedsecrets`. It is no promise that nothing leaks: it keeps the tokens that people's tools really print out of a
room's history. What a shell would run inside a value (`$(…)`, backticks) is never masked, so that nothing to be decided
can hide behind a mask.

Every pattern is linear: it is tried only where its fixed start stands, its repetitions are possessive or bounded, and
what it runs over cannot hold its own start again.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from bridge.core.namedsecrets import MASK, Span, find_named, is_expanded
from bridge.core.safetext import find_hidden


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of secret with a form of its own: one of `starts` (in this case), not in the middle of a word, then `rest`.

    The group `secret` of `rest` is masked; all else is kept.
    """

    name: str
    starts: tuple[str, ...]
    rest: str


# The lines of a key as they stand in a file, indented, in a diff or in JSON text. No blank within a line, so that the
# words of a command do not pass for one.
_KEY_LINE = r"[A-Za-z0-9+/=\\]++"
_KEY_LINES = _KEY_LINE + r"(?:\r?\n(?![-+ \t]{0,40}-----)[ \t]{0,40}[-+]?[ \t]{0,40}" + _KEY_LINE + ")*+"
_KEY_HEADERS = r"(?:\s|\\[nr])*+(?:[A-Za-z-]{4,20}: [^\n\\]*+(?:\s|\\[nr])*+){0,4}[-+]?"
_SCHEMES = r"(?:[Bb]earer|[Bb]asic|BEARER|BASIC|[Tt]oken|[Bb]ot|Digest|Negotiate|[Aa]pi[Kk]ey)\s++"
_HAS_DIGIT = r"(?=[A-Za-z._~+/=:-]*+[0-9])"

FORMS: tuple[Form, ...] = (
    Form("GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"(?P<secret>[A-Za-z0-9]{20,})"),
    Form("GitHub fine-grained token", ("github_pat_",), r"(?P<secret>[A-Za-z0-9_]{20,})"),
    Form(
        "GitLab token",
        (
            *("glpat-", "gldt-", "glrt-", "glrtr-", "glcbt-", "glptt-", "glft-", "glsoat-"),
            *("glimt-", "glagent-", "gloas-", "glffct-", "glwt-", "GR1348941"),
        ),
        r"(?P<secret>[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]{2,}){0,3})",
    ),
    Form(
        "Slack token",
        (
            "xoxa-",
            "xoxb-",
            "xoxc-",
            "xoxd-",
            "xoxe-",
            "xoxp-",
            "xoxr-",
            "xoxs-",
            "xoxe.xoxp-",
            "xoxe.xoxb-",
            "xapp-",
            "xwfp-",
        ),
        r"(?P<secret>[A-Za-z0-9-]{10,})",
    ),
    Form("Slack webhook", ("hooks.slack.com/",), r"(?:services|workflows|triggers)/(?P<secret>[A-Za-z0-9/_-]{20,})"),
    Form("AWS access key id", ("AKIA", "ASIA", "ABIA", "ACCA"), r"(?P<secret>[A-Z2-7]{16})(?![A-Za-z0-9])"),
    Form("Google API key", ("AIza",), r"(?P<secret>[A-Za-z0-9_-]{35})"),
    Form("Google OAuth access token", ("ya29.",), r"(?P<secret>[A-Za-z0-9_.-]{20,})"),
    Form("Google OAuth refresh token", ("1//0",), r"(?P<secret>[A-Za-z0-9_-]{30,})"),
    Form("Google OAuth client secret", ("GOCSPX-",), r"(?P<secret>[A-Za-z0-9_-]{20,})"),
    Form("Anthropic key", ("sk-ant-",), r"(?:[a-z]{2,8}\d{2}-)?(?P<secret>[A-Za-z0-9_-]{16,})"),
    Form(
        "OpenAI key of a project",
        ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"),
        r"(?P<secret>[A-Za-z0-9_-]{16,})",
    ),
    Form("OpenAI key", ("sk-", "sk-or-", "sk-or-v1-"), r"(?P<secret>[A-Za-z0-9]{20,})"),
    Form("Stripe key", ("sk_live_", "sk_test_", "rk_live_", "rk_test_"), r"(?P<secret>[A-Za-z0-9]{10,})"),
    Form("Stripe webhook secret", ("whsec_",), r"(?P<secret>[A-Za-z0-9+/=]{16,})"),
    Form("npm token", ("npm_",), r"(?P<secret>[A-Za-z0-9]{30,})"),
    Form("Python index token", ("pypi-AgE",), r"(?P<secret>[A-Za-z0-9_-]{16,})"),
    Form("Hugging Face token", ("hf_",), r"(?P<secret>[A-Za-z0-9]{30,})"),
    Form("Matrix token of Synapse", ("syt_", "syr_", "syl_"), r"(?P<secret>[A-Za-z0-9_+/=-]{20,})"),
    Form(
        "Matrix token of the authentication service",
        ("mct_", "mcr_", "mat_", "mar_"),
        r"(?P<secret>[A-Za-z0-9]{16,}+_[A-Za-z0-9]{6})(?![A-Za-z0-9])",
    ),
    Form(
        "JSON Web Token",
        ("eyJ",),
        r"(?<![_-]eyJ)(?P<secret>[A-Za-z0-9_-]{5,}+\.eyJ[A-Za-z0-9_-]{2,}+(?:\.[A-Za-z0-9_-]*+)?)",
    ),
    Form(
        "private key",
        ("PRIVATE KEY-----", "PRIVATE KEY BLOCK-----"),
        _KEY_HEADERS + r"(?P<secret>" + _KEY_LINES + r")(?=\s*+[-+]?\s*+-----END )",
    ),
    Form(  # only what looks like the long lines of a key file
        "private key whose end is missing",
        ("PRIVATE KEY-----", "PRIVATE KEY BLOCK-----"),
        _KEY_HEADERS + r"(?P<secret>(?:[A-Za-z0-9+/=]{40,}+(?:\s|\\[nr]){0,4}+[-+]?)++)",
    ),
    Form(
        "Bearer header",
        ("Bearer", "bearer", "BEARER"),
        r"\s++(?=[A-Za-z._~+/-]*+[0-9])(?P<secret>[A-Za-z0-9._~+/=-]{16,})",
    ),
    Form("Basic header", ("Basic", "basic", "BASIC"), r"\s++(?P<secret>[A-Za-z0-9+/]{6,}+={1,2})"),
    Form(
        "Authorization header",
        ("Authorization", "authorization", "AUTHORIZATION"),
        r"[\"']?\s*+[:=]\s*+[\"']?(?:"
        + _SCHEMES
        + "|"
        + _HAS_DIGIT
        + r")(?P<secret>[A-Za-z0-9._~+/=:-]{4,}+)(?![(\[])",
    ),
    Form(
        "password in a URL",
        ("://",),
        r"[^\s/?#:@'\"<>`]{0,512}+:"
        r"(?P<secret>(?:[^\s/@'\"`<>]|@(?=[^\s/?#'\"`<>@]*+@)){1,512})@(?=[^\s/?#'\"])",
    ),
    Form("token in a URL", ("://",), r"(?P<secret>(?=[a-z_-]*+[A-Z0-9])[A-Za-z0-9_-]{20,512})@(?=[^\s/?#'\"])"),
)


def _compile(form: Form, start: str) -> re.Pattern[str]:
    """The start comes first, since a pattern that begins with fixed text is found many times quicker."""
    start = re.escape(start)
    boundary = "" if form.starts == ("://",) else f"(?<![A-Za-z0-9]{start})"
    return re.compile(start + boundary + form.rest)


_PATTERNS = tuple((start, _compile(form, start)) for form in FORMS for start in form.starts)


def mask(text: str) -> tuple[str, int]:
    """The text without its secrets, and how many there were. Masking twice changes nothing more.

    Hidden characters inside a secret do not protect it: it is looked for as if they were not there.
    """
    stripped, places = _strip_hidden(text)
    spans = _merge(sorted(_find(stripped)))
    pieces: list[str] = []
    end = 0
    for first, last in spans:
        start, stop = (first, last) if places is None else (places.find(first), places.find(last - 1) + 1)
        pieces += [text[end:start], MASK]
        end = stop
    return ("".join([*pieces, text[end:]]), len(spans)) if spans else (text, 0)


def _find(text: str) -> Iterator[Span]:
    for start, pattern in _PATTERNS:
        if start in text:
            for found in pattern.finditer(text):
                if not is_expanded(found["secret"]):
                    yield found.span("secret")
    yield from find_named(text)


def _merge(spans: Iterable[Span]) -> list[Span]:
    """Spans that touch or overlap are one secret."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


@dataclass(frozen=True, slots=True)
class _Places:
    """Where characters of the stripped text stand in the whole one: `gone[i]` were taken out up to `at[i]`."""

    at: list[int]
    gone: list[int]

    def find(self, position: int) -> int:
        before = bisect_right(self.at, position)
        return position + (self.gone[before - 1] if before else 0)


def _strip_hidden(text: str) -> tuple[str, _Places | None]:
    """The text without hidden characters; hidden white space stays, since it parts words."""
    hidden = [
        character for character in find_hidden(text) if not character.isspace() or character in "\x1c\x1d\x1e\x1f"
    ]
    if not hidden:
        return text, None
    runs = [found.span() for found in re.finditer(f"[{re.escape(''.join(hidden))}]+", text)]
    gone = list(accumulate(end - start for start, end in runs))
    at = [start - before for (start, _), before in zip(runs, [0, *gone], strict=False)]
    return text.translate(dict.fromkeys(map(ord, hidden))), _Places(at, gone)
