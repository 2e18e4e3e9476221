import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import pytest

from bridge.core.errors import ConfigError, CredentialsRefused, HomeserverUnreachable, RateLimited, RequestRefused
from bridge.matrix.tokens import EARLY_S, TokenHolder, Tokens, read_tokens

SOFT = CredentialsRefused("It has run out.", soft=True)
HARD = CredentialsRefused("It was ended.")
AWAY = HomeserverUnreachable("It is away.", perhaps_done=True)


@dataclass(slots=True)
class Server:
    """Gives a1 with r1, a2 with r2 and so on; remembers what it was asked and what was kept, in order."""

    holder: TokenHolder = field(init=False)
    asked: list[str] = field(default_factory=list[str])
    kept: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # kept, and in use at that moment
    failures: list[Exception] = field(default_factory=list[Exception])
    full: bool = False
    password: bool = False
    gate: anyio.Event | None = None

    async def refresh(self, refresh_token: str) -> Tokens:
        self.asked.append(refresh_token)
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        number = len(self.asked)
        return Tokens(access_token=f"a{number}", refresh_token=f"r{number}")

    async def log_in(self) -> Tokens | None:
        self.asked.append("login")
        if self.failures:
            raise self.failures.pop(0)
        return Tokens(access_token="by password") if self.password else None

    def keep(self, tokens: Tokens) -> None:
        if self.full:
            raise ConfigError("No space is left.")
        self.kept.append((tokens.access_token, self.holder.access_token))


def hold(*, refreshes: bool = True, renew_at: float | None = None) -> Server:
    server = Server()
    tokens = Tokens(access_token="a0", refresh_token="r0" if refreshes else None, renew_at=renew_at)
    server.holder = TokenHolder(tokens, keep=server.keep, refresh=server.refresh, log_in=server.log_in)
    return server


async def together(*acts: Callable[[], Awaitable[object]]) -> None:
    async def run(act: Callable[[], Awaitable[object]]) -> None:
        await act()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for act in acts:
                tasks.start_soon(run, act)


async def test_a_new_pair_is_kept_while_the_old_one_is_still_in_use() -> None:
    server = hold()
    assert await server.holder.renew("a0", SOFT)
    assert (server.kept, server.holder.access_token) == ([("a1", "a0")], "a1")


async def test_what_cannot_be_kept_is_not_used_and_is_asked_for_again_with_the_old_token() -> None:
    server = hold()
    server.full = True
    with pytest.raises(HomeserverUnreachable, match="could not be stored") as caught:
        await server.holder.renew("a0", SOFT)
    assert (server.holder.access_token, caught.value.perhaps_done) == ("a0", False)
    server.full = False
    assert await server.holder.renew("a0", SOFT)
    assert server.asked == ["r0", "r0"]


async def test_tasks_that_meet_the_refusal_together_renew_once() -> None:
    server = hold()
    server.gate = anyio.Event()
    found: list[bool] = []

    async def meet() -> None:
        found.append(await server.holder.renew("a0", SOFT))

    async def open_gate() -> None:
        await anyio.wait_all_tasks_blocked()
        assert server.gate is not None
        server.gate.set()

    await together(meet, meet, meet, open_gate)
    assert (found, server.asked) == ([True] * 3, ["r0"])


async def test_a_refusal_of_a_token_that_is_no_longer_used_says_nothing() -> None:
    """Once the new token was used, a homeserver knows nothing of the old one: it looks like an ended session."""
    server = hold()
    await server.holder.renew("a0", SOFT)
    assert await server.holder.renew("a0", HARD)
    assert server.asked == ["r0"]


async def test_an_ended_session_is_not_renewed() -> None:
    server = hold()
    server.password = True
    assert not await server.holder.renew("a0", HARD)
    assert server.asked == []


@pytest.mark.parametrize("refusal", [SOFT, HARD, RequestRefused("No.", status=404, errcode="M_UNRECOGNIZED")])
async def test_a_refused_refresh_token_is_tried_once_and_the_password_after_it(refusal: Exception) -> None:
    server = hold()
    server.failures = [refusal]
    assert not await server.holder.renew("a0", SOFT)
    server.password = True
    assert await server.holder.renew("a0", SOFT)
    assert server.asked == ["r0", "login", "login"]
    assert server.kept == [("by password", "a0")]


async def test_a_token_that_nothing_renews_is_replaced_by_the_password() -> None:
    server = hold(refreshes=False)
    server.password = True
    assert await server.holder.renew("a0", SOFT)
    assert server.holder.access_token == "by password"


@pytest.mark.parametrize("refusal", [HARD, RequestRefused("No.", status=400, errcode="M_X")])
async def test_a_refused_password_leaves_nothing_to_try(refusal: Exception) -> None:
    server = hold(refreshes=False)
    server.failures = [refusal]
    assert not await server.holder.renew("a0", SOFT)


@pytest.mark.parametrize("passing", [AWAY, RateLimited("Wait.", retry_after=3)])
async def test_a_homeserver_that_is_away_spends_neither_refresh_token_nor_password(passing: Exception) -> None:
    server = hold()
    server.failures = [passing]
    with pytest.raises(type(passing)):
        await server.holder.renew("a0", SOFT)
    assert await server.holder.renew("a0", SOFT)
    assert server.asked == ["r0", "r0"]


async def test_a_renewal_that_was_perhaps_done_does_not_make_the_request_so() -> None:
    server = hold()
    server.failures = [AWAY]
    with pytest.raises(HomeserverUnreachable) as caught:
        await server.holder.renew("a0", SOFT)
    assert not caught.value.perhaps_done


async def test_a_cancelled_renewal_leaves_the_old_pair_and_lets_the_next_one_try() -> None:
    server = hold()
    server.gate = anyio.Event()
    with anyio.move_on_after(0.01) as scope:
        await server.holder.renew("a0", SOFT)
    server.gate.set()
    assert scope.cancelled_caught
    assert server.holder.access_token == "a0"
    with anyio.fail_after(5):
        assert await server.holder.renew("a0", SOFT)


async def test_tokens_are_renewed_a_little_before_their_end_and_once() -> None:
    server = hold(renew_at=time.time() - 1)
    server.gate = anyio.Event()

    async def open_gate() -> None:
        await anyio.wait_all_tasks_blocked()
        assert server.gate is not None
        server.gate.set()

    await together(server.holder.prepare, server.holder.prepare, open_gate)
    assert (await server.holder.prepare(), server.asked) == ("a1", ["r0"])


@pytest.mark.parametrize("renew_at", [None, time.time() + 1000], ids=["no end", "far end"])
async def test_tokens_whose_end_is_far_are_left_alone(renew_at: float | None) -> None:
    server = hold(renew_at=renew_at)
    assert (await server.holder.prepare(), server.asked) == ("a0", [])


async def test_an_early_renewal_that_fails_is_no_reason_not_to_ask() -> None:
    server = hold(renew_at=0)
    server.failures = [AWAY, SOFT]
    assert [await server.holder.prepare() for _ in range(3)] == ["a0"] * 3
    assert server.asked == ["r0", "r0"]  # the refused one is not tried a third time


async def test_without_other_means_tokens_are_what_they_are() -> None:
    holder = TokenHolder(Tokens(access_token="a", refresh_token="r", renew_at=0))
    assert await holder.prepare() == "a"
    assert not await holder.renew("a", SOFT)


@pytest.mark.parametrize(
    ("life_ms", "early_s"),
    [(300_000, EARLY_S), (20_000, 5.0), (0, None), (-1, None), ("300000", None), (True, None), (None, None)],
)
def test_an_end_is_read_with_some_time_to_spare(life_ms: object, early_s: float | None) -> None:
    renew_at = read_tokens({"expires_in_ms": life_ms}, "a").renew_at
    if early_s is None or not isinstance(life_ms, int):
        assert renew_at is None
    else:
        assert renew_at == pytest.approx(time.time() + life_ms / 1000 - early_s, abs=2)


@pytest.mark.parametrize("life_ms", [10**400, math.inf, math.nan])
def test_a_life_that_no_number_holds_does_not_break_the_login(life_ms: float) -> None:
    assert read_tokens({"expires_in_ms": life_ms}, "a").access_token == "a"


@pytest.mark.parametrize(("answer", "expected"), [({"refresh_token": "new"}, "new"), ({}, "old")])
def test_without_a_new_refresh_token_the_old_one_stays(answer: dict[str, object], expected: str) -> None:
    assert read_tokens(answer, "a", before="old").refresh_token == expected


def test_no_token_is_in_the_text_of_what_holds_it() -> None:
    assert "secret" not in repr(Tokens(access_token="secret1", refresh_token="secret2"))
