"""The tokens of one device: renewed before or after they run out, one renewal at a time, none used that is not kept.

Above it: the client, which asks the homeserver for new ones, and app, which keeps them. Below it: the error tree and
the event readers. It refuses to know files and HTTP.

A homeserver gives the next pair for a refresh token, and forgets the old pair once the new one is used (client-server
API, "Refreshing access tokens"; matrix.md, section 7). So a new pair is stored first: whoever is cut off before that
still holds an old pair that works, and nobody is ever left with tokens that are dead and in no file.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import structlog

from bridge.core.errors import BridgeError, CredentialsRefused, HomeserverUnreachable, MatrixError, RequestRefused
from bridge.matrix import events
from bridge.matrix.events import Source

log = structlog.stdlib.get_logger()

EARLY_S = 30.0  # renewed this long before its end: longer than a request takes, and a tenth of what the shortest live
LIFE_MOST_MS = 10 * 365 * 86_400_000  # ten years: numbers of JSON have no bound, and a float has one
EARLY_MOST_PART = 0.25  # but never in the last quarter of a life that is shorter than that, or it would begin at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a device is let in with, as secret as a password. `renew_at`: Unix time in seconds; None: it does not end."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    renew_at: float | None = None


Keep = Callable[[Tokens], None]
"""Stores tokens so that they survive a power cut. Raises `BridgeError` when it cannot."""

Refresh = Callable[[str], Awaitable[Tokens]]
"""The next tokens for a refresh token. Raises the errors of `MatrixError`."""

LogIn = Callable[[], Awaitable[Tokens | None]]
"""New tokens for the same device by other means, or None where there are none. Raises the errors of `MatrixError`."""


def read_tokens(answer: Source, access_token: str, *, before: str | None = None) -> Tokens:
    """The tokens in an answer to a login or a refresh; without a new refresh token the one from `before` stays good."""
    life_ms = answer.get("expires_in_ms")
    renew_at = None
    if isinstance(life_ms, int | float) and not isinstance(life_ms, bool) and life_ms > 0:
        life_s = min(life_ms, LIFE_MOST_MS) / 1000
        renew_at = time.time() + life_s - min(EARLY_S, life_s * EARLY_MOST_PART)
    return Tokens(
        access_token=access_token, refresh_token=events.text(answer, "refresh_token") or before, renew_at=renew_at
    )


def _keep_nothing(_tokens: Tokens) -> None:
    """For tokens that cannot be renewed."""


async def _refuse_refresh(_refresh_token: str) -> Tokens:
    raise CredentialsRefused("These tokens cannot be renewed.")


async def _open_nothing() -> Tokens | None:
    return None


class TokenHolder:
    """The tokens in use. Without `refresh` and `log_in` they are what they are."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        keep: Keep = _keep_nothing,
        refresh: Refresh = _refuse_refresh,
        log_in: LogIn = _open_nothing,
    ) -> None:
        self._tokens = tokens
        self._keep = keep
        self._refresh = refresh
        self._log_in = log_in
        self._lock = anyio.Lock()
        self._refused: str | None = None  # the refresh token that the homeserver does not take

    @property
    def access_token(self) -> str:
        """The one to use now; empty before a login."""
        return self._tokens.access_token

    async def prepare(self) -> str:
        """The access token for the next request, renewed when its end is near.

        A renewal that fails here is no reason not to ask: the old token may still do.
        """
        if self._is_due():
            async with self._lock:
                if self._is_due():  # nobody else has renewed it meanwhile
                    try:
                        await self._use_refresh_token()
                    except MatrixError as error:
                        log.info("matrix.token_not_renewed_early", why=str(error))
        return self.access_token

    async def renew(self, used: str, refused: CredentialsRefused) -> bool:
        """Whether there is another token than `used`, which was refused: somebody else's new one, or one made now.

        Raises what stands in the way for the moment. Of several tasks that meet the refusal one renews, the others wait.
        A refusal of a token that is no longer in use says nothing: the server forgets the old ones without a word.
        """
        async with self._lock:
            if used != self.access_token:
                return True
            if not refused.soft:
                return False
            try:
                return await self._use_refresh_token() or await self._use_login()
            except HomeserverUnreachable as away:  # whatever became of the renewal, the request itself was refused
                raise HomeserverUnreachable(str(away)) from None

    def _is_due(self) -> bool:
        tokens = self._tokens
        usable = tokens.refresh_token is not None and tokens.refresh_token != self._refused
        return usable and tokens.renew_at is not None and time.time() >= tokens.renew_at

    async def _use_refresh_token(self) -> bool:
        refresh_token = self._tokens.refresh_token
        if refresh_token is None or refresh_token == self._refused:
            return False
        try:
            tokens = await self._refresh(refresh_token)
        except (CredentialsRefused, RequestRefused) as error:
            log.warning("matrix.refresh_refused", why=str(error))
            self._refused = refresh_token
            return False
        self._store(tokens)
        log.info("matrix.token_renewed", by="refresh")
        return True

    async def _use_login(self) -> bool:
        try:
            tokens = await self._log_in()
        except (CredentialsRefused, RequestRefused) as error:
            log.error("matrix.login_refused", why=str(error))  # noqa: TRY400 - the sentence says it all
            return False
        if tokens is None:
            return False
        self._store(tokens)
        log.warning("matrix.token_renewed", by="password")
        return True

    def _store(self, tokens: Tokens) -> None:
        """Stored, then used; there is no await between the two, so both happen or neither."""
        try:
            self._keep(tokens)
        except BridgeError as error:
            log.error("matrix.tokens_not_kept", why=str(error))  # noqa: TRY400 - the sentence says it all
            raise HomeserverUnreachable("The renewed access token could not be stored.") from None
        self._tokens = tokens
