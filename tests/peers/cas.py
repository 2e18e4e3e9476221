"""A login page of its own, as the CAS protocol has it: whoever opens it is logged in, as whom the test says.

Synapse sends a browser to `/login`, which sends it back with a ticket, and then asks `/proxyValidate` whose ticket that
is (CAS protocol 2.0, sections 2.1 and 2.6).
"""

import html
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

ANSWER = """<cas:serviceResponse xmlns:cas="http://www.yale.edu/tp/cas">
<cas:authenticationSuccess><cas:user>{user}</cas:user></cas:authenticationSuccess></cas:serviceResponse>"""


class LoginPage:
    """The page; `user` is who logs in there next."""

    def __init__(self) -> None:
        self.user = "nobody"
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["LoginPage"]:
        app = web.Application()
        app.router.add_get("/login", self._login)
        app.router.add_get("/proxyValidate", self._validate)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _login(self, request: web.Request) -> web.Response:
        service = request.query["service"]
        mark = "&" if "?" in service else "?"
        raise web.HTTPFound(f"{service}{mark}ticket=ST-{self.user}")

    async def _validate(self, request: web.Request) -> web.Response:
        user = request.query["ticket"].removeprefix("ST-")
        return web.Response(text=ANSWER.format(user=html.escape(user)), content_type="application/xml")


async def log_in_with_a_browser(address: str) -> str:
    """Open the address as a browser does, confirm what the homeserver asks, and give where the person is sent back to.

    Synapse shows a page that names the program which gets the login; its link is what a person presses.
    """
    async with aiohttp.ClientSession() as browser, browser.get(address) as page:
        text = await page.text()
        assert page.status == 200, text
    links = [html.unescape(link) for link in re.findall(r'href="([^"]*loginToken=[^"]*)"', text)]
    assert len(links) == 1, text
    return links[0]
