"""A homeserver that lies: everything passes through here to a real one, and a test changes what comes back."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

Json = dict[str, Any]
KEPT = ("Authorization", "Content-Type")
LONGEST_S = 60.0  # a long poll of 30 s, on a machine that does other things as well


class Evil:
    """What a test sets: `lies`, each of which may change a parsed answer, and `gates`, waited for before a request."""

    def __init__(self, url: str) -> None:
        self._target = url
        self.url = ""
        self.lies: list[Callable[[str, Json], None]] = []
        self.gates: dict[str, Callable[[], Awaitable[object]]] = {}  # by a part of the path
        self.sent: list[tuple[str, Json]] = []  # path, unquoted, and body of each PUT

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if request.method == "PUT":
            self.sent.append((request.path, json.loads(raw)))
        for part, gate in list(self.gates.items()):
            if part in request.path:
                await gate()
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        timeout = aiohttp.ClientTimeout(total=LONGEST_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=True) as http,
            http.request(
                request.method, self._target + request.raw_path, data=raw or None, headers=headers
            ) as response,
        ):
            body = await response.read()
            if response.status == 200 and response.content_type == "application/json":
                answer = json.loads(body)
                for lie in list(self.lies):
                    lie(request.path, answer)
                body = json.dumps(answer).encode()
            return web.Response(body=body, status=response.status, content_type=response.content_type)


@asynccontextmanager
async def lying(url: str) -> AsyncGenerator[Evil]:
    """The lying homeserver in front of the one at this address."""
    evil = Evil(url)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", evil.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    evil.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield evil
    finally:
        await runner.cleanup()


def timelines(answer: Json) -> list[tuple[str, list[Json]]]:
    """The timelines in a sync's answer, to be changed."""
    joined = answer.get("rooms", {}).get("join", {})
    return [(room, said["timeline"]["events"]) for room, said in joined.items() if "timeline" in said]
