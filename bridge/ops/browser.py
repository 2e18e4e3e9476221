"""A login in the person's browser: the one call that brings its token back, to this machine or over the terminal.

Above it: app, for `login --sso`. Below it: a loopback socket and the terminal. It knows no homeserver: it is given the
address to open, and gives a login token, which lives for two minutes and works once. The token is in no sentence and in
no log. The path of the call is random, so that no other page or program of this machine can hand us a token of its own.
"""

import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream

from bridge.core.errors import ConfigError

HOST = "127.0.0.1"  # no other machine reaches it
WAIT_S = 600.0  # for the whole login: a person may have to find a password and a second factor first
CALL_S = 10.0  # for a browser to send one request
HEAD_MOST_BYTES = 16_384  # more than any browser sends; a request that is longer is none of ours
TOKEN_MOST = 4096  # of characters: the longest that a line of a terminal can hold

PAGE = """HTTP/1.1 {status}\r
Content-Type: text/plain; charset=utf-8\r
Content-Length: {length}\r
Cache-Control: no-store\r
Referrer-Policy: no-referrer\r
Connection: close\r
\r
{text}"""

Ask = Callable[[], Awaitable[str]]
"""A line that the person types or pastes, not shown; may be cancelled. Raises `ConfigError` where there is nobody."""

Say = Callable[[str], None]


async def fetch_login_token(make_address: Callable[[str], str], *, ask: Ask, say: Say, wait_s: float = WAIT_S) -> str:
    """Show the address to open, and wait for the token to come back. Raises `ConfigError` when it does not.

    `make_address` gives the address to open for the one that the browser is to be sent back to.
    """
    path = f"/{secrets.token_urlsafe(24)}"
    found: list[str] = []
    async with await anyio.create_tcp_listener(local_host=HOST, local_port=0) as listener:
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - anyio's, not Django's
        back = f"http://{HOST}:{port}{path}"
        for line in (
            "Open this address in a browser, and log in there as the bridge:",
            "",
            f"    {make_address(back)}",
            "",
            "If that browser runs on another machine, it ends on a page that it cannot open, whose address begins with",
            f"http://{HOST}: copy that whole address, paste it here (it is not shown) and press Enter.",
        ):
            say(line)
        with anyio.move_on_after(wait_s):
            async with anyio.create_task_group() as tasks:

                def end(token: str) -> None:
                    found.append(token)
                    tasks.cancel_scope.cancel()

                async def serve(stream: SocketStream) -> None:
                    async with stream:
                        token = await _answer(stream, path)
                    if token is not None:
                        end(token)

                tasks.start_soon(_read_lines, path, ask, say, end)
                await listener.serve(serve)
    if not found:
        raise ConfigError(f"Nobody has logged in within {wait_s / 60:.0f} minutes. Run the command again.")
    return found[0]


async def _answer(stream: SocketStream, path: str) -> str | None:
    """Read one request and answer it; the token, when it was the call."""
    head, token = b"", None
    with suppress(TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError), anyio.fail_after(CALL_S):
        # any of these: a browser that opens connections ahead of time, or one that is gone
        while b"\r\n\r\n" not in head and len(head) <= HEAD_MOST_BYTES:
            head += await stream.receive()
        request = re.match(rb"GET (/[!-~]*) HTTP/1\.[01]\r\n", head)
        token = _read_token(request[1].decode(), path) if request else None
        status, text = ("404 Not Found", "Nothing is here.")
        if token is not None:
            status, text = ("200 OK", "The bridge goes on. You can close this window.")
        await stream.send(PAGE.format(status=status, length=len(text), text=text).encode())
    return token


async def _read_lines(path: str, ask: Ask, say: Say, end: Callable[[str], None]) -> None:
    while True:
        try:
            line = await ask()
        except ConfigError:
            return  # nobody is there to paste: the call may still come
        token = _read_token(line, path)
        if token is not None:
            end(token)
            return
        if line:
            say("That is not the address. It begins with http://127.0.0.1: and has loginToken= in it.")


def _read_token(address: str, path: str) -> str | None:
    """The token in the address that the browser was sent back to; None in any other."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    tokens = parse_qs(parts.query).get("loginToken", [])
    if not secrets.compare_digest(parts.path.encode(), path.encode()) or len(tokens) != 1:
        return None
    return tokens[0] if tokens[0].isprintable() and len(tokens[0]) <= TOKEN_MOST else None
