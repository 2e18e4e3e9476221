import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from bridge.core.errors import ConfigError
from bridge.ops import browser

TOKEN = "syl_secret"


@dataclass(slots=True)
class Person:
    """Somebody with a terminal and a browser."""

    back: str = ""
    said: list[str] = field(default_factory=list[str])
    tokens: list[str] = field(default_factory=list[str])
    asked: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)
    lines: list[str] | None = field(default_factory=list[str])  # None: there is no terminal

    async def ask(self) -> str:
        self.asked.set()
        if self.lines is None:
            raise ConfigError("There is nobody.")
        if not self.lines:
            await anyio.sleep_forever()
        return self.lines.pop(0)

    def address(self, back: str) -> str:
        self.back = back
        return f"https://hs/login?{back}"

    @property
    def port(self) -> int:
        found = re.match(r"http://127\.0\.0\.1:(\d+)/", self.back)
        assert found is not None
        return int(found[1])

    @property
    def path(self) -> str:
        return "/" + self.back.split("/", 3)[3]

    async def call(self, request: str) -> str:
        """One request as it stands; the answer, empty when the connection was closed without one."""
        stream = await anyio.connect_tcp("127.0.0.1", self.port)
        answer = b""
        async with stream:
            await stream.send(request.encode())
            try:
                while True:
                    answer += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return answer.decode()

    async def get(self, target: str) -> str:
        return await self.call(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


@asynccontextmanager
async def waiting(
    *, lines: Callable[[Person], list[str]] | None = lambda _: [], wait_s: float = 5
) -> AsyncGenerator[Person]:
    """A login that waits, with what its person pastes."""
    person = Person()

    def address(back: str) -> str:
        found = person.address(back)
        person.lines = None if lines is None else lines(person)
        return found

    async def run() -> None:
        person.tokens.append(
            await browser.fetch_login_token(address, ask=person.ask, say=person.said.append, wait_s=wait_s)
        )
        person.done.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await person.asked.wait()
            yield person
            tasks.cancel_scope.cancel()


async def test_the_call_of_the_browser_brings_the_token() -> None:
    async with waiting() as person:
        answer = await person.get(f"{person.path}?loginToken={TOKEN}")
        await person.done.wait()
    assert person.tokens == [TOKEN]
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert "You can close this window" in answer


async def test_the_page_is_not_stored_and_tells_no_other_page_where_it_was() -> None:
    async with waiting() as person:
        answer = await person.get(f"{person.path}?loginToken={TOKEN}")
    assert "Cache-Control: no-store\r\n" in answer
    assert "Referrer-Policy: no-referrer\r\n" in answer


async def test_the_person_is_shown_the_address_and_never_the_token() -> None:
    async with waiting() as person:
        answer = await person.get(f"{person.path}?loginToken={TOKEN}")
        await person.done.wait()
    assert f"    https://hs/login?{person.back}" in person.said
    assert TOKEN not in "".join([*person.said, answer])


@pytest.mark.parametrize(
    "target",
    [
        "/?loginToken=evil",
        "/favicon.ico",
        "PATH",
        "PATH?loginToken=",
        "PATH?loginToken=a&loginToken=b",
        "PATH/x?loginToken=evil",
        "PATH?loginToken=%0Aevil",
        "PATH?loginToken=" + "x" * 5000,
        "http://[/?loginToken=evil",
    ],
)
async def test_any_other_call_is_nothing_and_the_login_goes_on(target: str) -> None:
    async with waiting() as person:
        answer = await person.get(target.replace("PATH", person.path))
        assert answer == "" or answer.startswith("HTTP/1.1 404 ")
        assert person.tokens == []
        await person.get(f"{person.path}?loginToken={TOKEN}")
        await person.done.wait()
    assert person.tokens == [TOKEN]


@pytest.mark.parametrize("request_line", ["POST PATH?loginToken=evil HTTP/1.1", "GET PATH?loginToken=evil", "\0\1"])
async def test_only_a_get_of_http_counts(request_line: str) -> None:
    async with waiting() as person:
        answer = await person.call(request_line.replace("PATH", person.path) + "\r\nHost: x\r\n\r\n")
        assert answer.startswith("HTTP/1.1 404 ")
    assert person.tokens == []


async def test_a_request_without_end_is_cut_off() -> None:
    async with waiting() as person:
        with anyio.fail_after(browser.CALL_S / 2):  # not only when its time is over
            await person.call("GET / HTTP/1.1\r\n" + "X: y\r\n" * 10_000)
    assert person.tokens == []


async def test_no_other_address_of_the_machine_is_listened_on() -> None:
    async with waiting() as person:
        with pytest.raises(OSError, match="connect"):
            await anyio.connect_tcp("127.0.0.2", person.port)


async def test_a_connection_that_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "CALL_S", 0.05)
    async with waiting() as person:
        silent = await anyio.connect_tcp("127.0.0.1", person.port)
        await person.get(f"{person.path}?loginToken={TOKEN}")
        await person.done.wait()
        await silent.aclose()
    assert person.tokens == [TOKEN]


async def test_the_path_is_another_one_each_time() -> None:
    async with waiting() as first, waiting() as second:
        assert len(first.path) > 30
        assert first.path != second.path


async def test_nobody_listens_after_the_call() -> None:
    async with waiting() as person:
        await person.get(f"{person.path}?loginToken={TOKEN}")
        await person.done.wait()
        with pytest.raises(OSError, match="connect"):
            await anyio.connect_tcp("127.0.0.1", person.port)


async def test_the_address_of_the_page_that_could_not_be_opened_can_be_pasted() -> None:
    async with waiting(lines=lambda person: [f"{person.back}?loginToken={TOKEN}"]) as person:
        await person.done.wait()
    assert person.tokens == [TOKEN]


async def test_what_is_pasted_and_is_not_the_address_is_told_and_asked_for_again() -> None:
    def lines(person: Person) -> list[str]:
        return ["", TOKEN, f"http://127.0.0.1:1/?loginToken={TOKEN}", f"{person.back}?loginToken={TOKEN}"]

    async with waiting(lines=lines) as person:
        await person.done.wait()
    assert person.tokens == [TOKEN]
    assert [line for line in person.said if "not the address" in line] == [person.said[-1]] * 2
    assert TOKEN not in "".join(person.said)


async def test_without_a_terminal_the_call_still_counts() -> None:
    async with waiting(lines=None) as person:
        await person.get(f"{person.path}?loginToken={TOKEN}")
        await person.done.wait()
    assert person.tokens == [TOKEN]


async def test_a_login_that_nobody_makes_ends() -> None:
    person = Person()
    with anyio.fail_after(5), pytest.raises(ConfigError, match="Nobody has logged in"):
        await browser.fetch_login_token(person.address, ask=person.ask, say=person.said.append, wait_s=0.01)
