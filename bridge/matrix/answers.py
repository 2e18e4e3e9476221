"""What a homeserver's answer to one request means: status, headers and body together.

Above it: the client. Below it: the event readers. It refuses to know how the answer came here. The status counts as
much as the body: a proxy in front of the homeserver answers with HTML, and a captive portal does so with status 200.
"""

import json
import re
from collections.abc import Mapping
from typing import cast

from bridge.core.errors import (
    CredentialsRefused,
    EventTooLarge,
    HomeserverUnreachable,
    ProofNeeded,
    RateLimited,
    RequestRefused,
)
from bridge.core.model import JsonObject
from bridge.matrix import events
from bridge.matrix.events import Source

RETRY_AFTER_MOST_S = 60.0  # a server may say a day; a prompt that waits a minute is late enough
RETRY_AFTER_UNSAID_S = 5.0  # Synapse's default limit lets one event pass in five seconds

REQUEST_TIMEOUT = 408
PAYLOAD_TOO_LARGE = 413
TOO_MANY_REQUESTS = 429
GATEWAY_TIMEOUT = 504

CREDENTIAL_CODES = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED"})
ERRCODE = re.compile(r"[A-Za-z0-9_.]{1,100}")  # anything else is no code and is not repeated in a sentence of ours
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")  # also of whole pairs, which stay what they are
PAGE = re.compile(r"https://[!-~]{1,2000}")  # plain ASCII: it is shown on a terminal, for a person to open

NO_JSON = object()


def to_wire(content: JsonObject) -> bytes:
    """JSON as UTF-8, without escapes: six bytes for each letter of most languages would make events too large."""
    try:
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # a float that JSON cannot say, or a lone surrogate (MX-07)
        raise RequestRefused("The event is no valid JSON.", status=0, errcode="M_BAD_JSON") from None


def from_wire(raw: bytes) -> object:
    """The body's JSON, or NO_JSON: also for bytes that are no UTF-8, and for what is nested beyond any stack.

    Half of a surrogate pair, which JSON can say and nothing else takes (an address, a database), becomes a `?`: no id and no
    token of an honest homeserver has one.
    """
    try:
        found: object = json.loads(raw)
        if SURROGATE.search(raw):
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return NO_JSON
    return found


def judge(status: int, headers: Mapping[str, str], said: object) -> None:
    """Return when the request was done; raise what else became of it."""
    body: Source = events.mapping({"body": said}, "body")
    errcode = events.text(body, "errcode") or ""
    errcode = errcode if ERRCODE.fullmatch(errcode) else ""
    if 200 <= status < 300:  # noqa: PLR2004
        return
    code = f"{status} {errcode}".rstrip()
    if status == TOO_MANY_REQUESTS or errcode == "M_LIMIT_EXCEEDED":
        wait_s = _retry_after(headers, body)
        # what is waited for here is capped, so a person is told "at least"
        raise RateLimited(f"The homeserver asks to wait for {wait_s:.0f} s or more.", retry_after=wait_s)
    if status == PAYLOAD_TOO_LARGE or _is_too_large(errcode, body):
        raise EventTooLarge(f"The homeserver found the event too large ({code}).", status=status, errcode=errcode)
    if status >= 500 or status == REQUEST_TIMEOUT or said is NO_JSON:  # noqa: PLR2004
        # 504: somebody passed it on and did not wait for the end
        raise HomeserverUnreachable(f"The homeserver could not do it ({code}).", perhaps_done=status == GATEWAY_TIMEOUT)
    if status == 401 and errcode not in CREDENTIAL_CODES and isinstance(body.get("flows"), list):  # noqa: PLR2004
        # user-interactive authentication: the token is fine, this one act wants more (client-server API, section 5.6)
        raise ProofNeeded(
            "The homeserver wants proof of who asks.",
            session=events.text(body, "session") or "",
            flows=_flows(body),
            page=_page(body),
        )
    if status == 401 or errcode in CREDENTIAL_CODES:  # noqa: PLR2004
        soft = body.get("soft_logout") is True  # absent means false (client-server API, "Soft logout")
        raise CredentialsRefused(f"The homeserver does not accept the access token ({code}).", soft=soft)
    raise RequestRefused(f"The homeserver refused ({code}).", status=status, errcode=errcode)


def _flows(body: Source) -> tuple[tuple[str, ...], ...]:
    offered = (flow.get("stages") for flow in events.objects(body, "flows"))
    return tuple(
        tuple(stage for stage in cast("list[object]", stages) if isinstance(stage, str))
        for stages in offered
        if isinstance(stages, list)
    )


def _page(body: Source) -> str | None:
    """The page that a stage names for a person's browser (client-server API, "OAuth authentication")."""
    stages = events.mapping(body, "params")
    named = (events.text(events.mapping(stages, stage), "url") for stage in stages)
    return next((page for page in named if page and PAGE.fullmatch(page)), None)


def _is_too_large(errcode: str, body: Source) -> bool:
    """`M_BAD_JSON` is also how a server may say that a field is too long (matrix.md, section 4)."""
    sentence = (events.text(body, "error") or "").lower()
    return errcode == "M_TOO_LARGE" or (errcode == "M_BAD_JSON" and ("too long" in sentence or "too large" in sentence))


def _retry_after(headers: Mapping[str, str], body: Source) -> float:
    """The longer of what header and body ask for; the body's field is deprecated since Matrix 1.10, proxies have none."""
    told = [wait for wait in (_seconds(headers.get("Retry-After")), _millis(body.get("retry_after_ms"))) if wait]
    return min(RETRY_AFTER_MOST_S, max(told, default=RETRY_AFTER_UNSAID_S))


def _millis(value: object) -> float | None:
    """Whatever number it is: JSON's integers have no bound, and Python's json reads NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return RETRY_AFTER_MOST_S if value >= RETRY_AFTER_MOST_S * 1000 else value / 1000


def _seconds(value: str | None) -> float | None:
    """Seconds only: the header's other form, a date, would need both clocks to agree."""
    if value is None or not re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,10})?", value, re.ASCII):
        return None
    return float(value)
