"""A throw-away Synapse on loopback with SQLite, and people who use it with plain HTTP."""

import base64
import hashlib
import hmac
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio

from tests.peers.untraced import untraced

READY_S = 60.0
STOP_S = 20.0
FAST = "{per_second: 10000, burst_count: 10000}"
CONFIG = """\
server_name: "localhost"
listeners:
  - {{port: {port}, type: http, bind_addresses: ["127.0.0.1"], resources: [{{names: [client]}}]}}
database: {{name: sqlite3, args: {{database: "{folder}/homeserver.db"}}}}
media_store_path: "{folder}/media"
signing_key_path: "{folder}/signing.key"
log_config: "{folder}/log.yaml"
registration_shared_secret: "{secret}"
macaroon_secret_key: "{secret}"
form_secret: "{secret}"
bcrypt_rounds: 4
report_stats: false
server_notices: {{system_mxid_localpart: notices, room_name: "Server Notices", auto_join: false}}
trusted_key_servers: []
federation_domain_whitelist: []
{limits}
"""
LOG = """\
version: 1
handlers: {{file: {{class: logging.FileHandler, filename: "{folder}/homeserver.log"}}}}
root: {{level: WARNING, handlers: [file]}}
disable_existing_loggers: false
"""
LIMITS_OFF = f"""\
rc_message: {FAST}
rc_registration: {FAST}
rc_login: {{address: {FAST}, account: {FAST}, failed_attempts: {FAST}}}
rc_joins: {{local: {FAST}, remote: {FAST}}}
rc_joins_per_room: {FAST}
rc_invites: {{per_room: {FAST}, per_user: {FAST}, per_issuer: {FAST}}}
rc_room_creation: {FAST}
"""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """An account on the server, used with plain HTTP."""

    url: str
    http: aiohttp.ClientSession
    user_id: str
    token: str
    device_id: str
    password: str

    async def ask(self, method: str, path: str, body: Json | None = None) -> Json:
        headers = {"Authorization": f"Bearer {self.token}"}
        address = f"{self.url}/_matrix/client/v3{path}"
        async with self.http.request(method, address, json=body or {}, headers=headers) as answer:
            said = await answer.json()
            assert answer.status == 200, said
            return said

    async def room(self, *invited: str, version: str | None = None) -> str:
        wish: Json = {"invite": list(invited), "preset": "private_chat"}
        answer = await self.ask("POST", "/createRoom", wish | ({"room_version": version} if version else {}))
        return answer["room_id"]

    async def say(self, room: str, text: str, **content: object) -> str:
        return await self.put(room, "m.room.message", {"msgtype": "m.text", "body": text} | content)

    async def put(self, room: str, kind: str, content: Json) -> str:
        path = f"/rooms/{quote(room, safe='')}/send/{kind}/{secrets.token_hex(8)}"
        return (await self.ask("PUT", path, content))["event_id"]


class Synapse:
    """A running server."""

    def __init__(self, url: str, secret: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._secret = secret
        self._http = http

    async def notice(self, admin: Person, user_id: str, text: str) -> None:
        """The server itself says something to a user, in a room of its own."""
        wish = {"user_id": user_id, "content": {"msgtype": "m.server_notice", "body": text}}
        headers = {"Authorization": f"Bearer {admin.token}"}
        address = f"{self.url}/_synapse/admin/v1/send_server_notice"
        async with self._http.post(address, json=wish, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    async def person(self, name: str, *, admin: bool = False) -> Person:
        """A new account whose name begins so; made with the shared secret, which spends no login."""
        name, password = f"{name}-{secrets.token_hex(4)}", secrets.token_urlsafe(12)
        address = f"{self.url}/_synapse/admin/v1/register"
        async with self._http.get(address) as answer:
            nonce = (await answer.json())["nonce"]
        spoken = f"{nonce}\0{name}\0{password}\0{'admin' if admin else 'notadmin'}"
        mac = hmac.new(self._secret.encode(), spoken.encode(), hashlib.sha1).hexdigest()
        wish = {"nonce": nonce, "username": name, "password": password, "admin": admin, "mac": mac}
        async with self._http.post(address, json=wish) as answer:
            made = await answer.json()
        return Person(
            url=self.url,
            http=self._http,
            user_id=made["user_id"],
            token=made["access_token"],
            device_id=made["device_id"],
            password=password,
        )


@asynccontextmanager
async def synapse(folder: Path, *, limited: bool = False) -> AsyncGenerator[Synapse]:
    """A server in this folder; `limited`: with the limits that it has out of the box."""
    port, secret = _free_port(), secrets.token_hex(16)
    names: Mapping[str, object] = {
        "folder": folder,
        "port": port,
        "secret": secret,
        "limits": "" if limited else LIMITS_OFF,
    }
    (folder / "homeserver.yaml").write_text(CONFIG.format_map(names))
    (folder / "log.yaml").write_text(LOG.format_map(names))
    seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
    (folder / "signing.key").write_text(f"ed25519 a_test {seed}\n")
    command = [sys.executable, "-m", "synapse.app.homeserver", "-c", str(folder / "homeserver.yaml")]
    with (folder / "output.log").open("wb") as output, untraced():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)  # noqa: ASYNC220, S603
    try:
        async with aiohttp.ClientSession() as http:
            server = Synapse(f"http://127.0.0.1:{port}", secret, http)
            with anyio.fail_after(READY_S):
                while not await _answers(http, server.url):
                    assert process.poll() is None, (folder / "output.log").read_text()
                    await anyio.sleep(0.05)  # another process: nothing to wait on
            yield server
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/_matrix/client/versions") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
