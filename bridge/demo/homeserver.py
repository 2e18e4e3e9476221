"""A Synapse of our own on loopback, in one folder, for trying and testing; and one HTTP call to it.

Above it: `play`, and the tests that want a real homeserver. Below it: the `matrix-synapse` package of the `demo` extra,
run as a program of its own (it is AGPL: never imported, never part of the product). It refuses to know the bridge, the
rooms, and what is said in them.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import importlib.util
import json
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from bridge.core.errors import DemoFailed
from bridge.core.model import JsonObject

HOST = "127.0.0.1"
SERVER_NAME = "localhost"
READY_TIMEOUT_S = 120.0
"""A start takes 2 to 5 s; a loaded machine with two cores has taken ten times as long."""
STOP_TIMEOUT_S = 20.0
"""It stops within a second; after this it is killed, since only a throw-away database can suffer."""
POLL_INTERVAL_S = 0.05
CALL_TIMEOUT_S = 30.0
"""For one request on loopback; a loaded machine may keep it waiting."""
BCRYPT_ROUNDS = 4
"""The lowest that there is (Synapse takes 12): the passwords are random and die with the folder, so that a hash which is slow on
purpose, a quarter of a second for each user, would guard nothing."""
LOG_TAIL_LINES = 5

Limits = Literal["off", "default"]

# Every limit of Synapse that a person or a test could meet; names from its configuration manual, "Ratelimiting".
_FAST = {"per_second": 10_000, "burst_count": 10_000}
_LIMITS_OFF = {
    "rc_message": _FAST,
    "rc_registration": _FAST,
    "rc_login": {"address": _FAST, "account": _FAST, "failed_attempts": _FAST},
    "rc_admin_redaction": _FAST,
    "rc_joins": {"local": _FAST, "remote": _FAST},
    "rc_joins_per_room": _FAST,
    "rc_invites": {"per_room": _FAST, "per_user": _FAST, "per_issuer": _FAST},
    "rc_media_create": _FAST,
    "rc_key_requests": _FAST,
    "rc_presence": {"per_user": _FAST},
    "rc_room_creation": _FAST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of the homeserver with one device."""

    user_id: str
    device_id: str
    access_token: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the homeserver answered; `body` is empty when it was no JSON object."""

    status: int
    body: JsonObject


def call(  # a free function: the person of the demo and the tests speak to any homeserver with it
    base_url: str, method: str, path: str, body: object = None, *, token: str = "", timeout_s: float = CALL_TIMEOUT_S
) -> Answer:
    """One request of the client-server API; raises `OSError` or `http.client.HTTPException` when nothing answers."""
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=timeout_s)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        raw = response.read()
    try:
        parsed: Any = json.loads(raw or b"{}")
    except ValueError:
        parsed = {}
    return Answer(status=response.status, body=cast("JsonObject", parsed) if isinstance(parsed, dict) else {})


class Homeserver:
    """One Synapse in one folder. Started again after `stop` or `kill`, it goes on with the same database and port."""

    def __init__(self, folder: Path, *, limits: Limits = "off", extra: Mapping[str, Any] | None = None) -> None:
        """`extra`: more keys of Synapse's config, for what a test wants of it."""
        self.folder = folder
        self.base_url = f"http://{HOST}:{_free_port()}"
        self._limits = limits
        self._extra = dict(extra or {})
        self._secret = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Of the running server; None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Start and return once it answers. `waiting` is called many times a second; what it raises ends the start."""
        if importlib.util.find_spec("synapse") is None:
            raise DemoFailed(
                "The demo needs a homeserver: install the package with its extra, acp-matrix-bridge[demo]."
            )
        self._write_files()
        with (self.folder / "output.log").open("ab") as output:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "synapse.app.homeserver", "-c", "homeserver.yaml"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us: we end it in our own order
            )
        try:
            self._wait_until_ready(process, waiting)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask it to end and wait; kill it when it does not. Does nothing when none runs."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def register(self, name: str, *, admin: bool = False) -> Account:
        """A new user with a device, through the shared secret, which spends none of the login limit."""
        password = secrets.token_urlsafe(9)
        path = "/_synapse/admin/v1/register"
        nonce = str(call(self.base_url, "GET", path).body["nonce"])
        # Synapse's admin API, "Shared-Secret Registration": the hash function is its choice.
        signed = "\0".join([nonce, name, password, "admin" if admin else "notadmin"]).encode()
        mac = hmac.new(self._secret.encode(), signed, hashlib.sha1).hexdigest()
        wanted = {"nonce": nonce, "username": name, "password": password, "admin": admin, "mac": mac}
        answer = call(self.base_url, "POST", path, wanted)
        if answer.status != HTTPStatus.OK:
            raise DemoFailed(f"The homeserver refused the user {name!r} with status {answer.status}.")
        made = {key: str(answer.body[key]) for key in ("user_id", "device_id", "access_token")}
        return Account(**made, password=password)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_ready(self, process: subprocess.Popen[bytes], waiting: Callable[[], None]) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            waiting()
            if process.poll() is not None:
                raise DemoFailed(f"The homeserver ended with {process.returncode}: {self._last_words()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"The homeserver did not answer within {READY_TIMEOUT_S:.0f} s.")
            time.sleep(POLL_INTERVAL_S)

    def _answers(self) -> bool:
        try:
            return call(self.base_url, "GET", "/_matrix/client/versions", timeout_s=2).status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def _last_words(self) -> str:
        text = (self.folder / "output.log").read_text(encoding="utf-8", errors="replace")
        return " / ".join(text.strip().splitlines()[-LOG_TAIL_LINES:])

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        _write_private(self.folder / "homeserver.yaml", json.dumps(self._config(), indent=1))  # JSON is YAML
        _write_private(self.folder / "log.yaml", json.dumps(self._log_config(), indent=1))
        key = self.folder / "signing.key"
        if not key.exists():  # the line that its own `--generate-keys` would write, without another start of Python
            seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
            _write_private(key, f"ed25519 a_{secrets.token_hex(2)} {seed}\n")

    def _config(self) -> dict[str, Any]:
        port = int(self.base_url.rpartition(":")[2])
        listener = {"port": port, "type": "http", "bind_addresses": [HOST], "resources": [{"names": ["client"]}]}
        config: dict[str, Any] = {
            "server_name": SERVER_NAME,
            "public_baseurl": f"{self.base_url}/",
            "listeners": [listener],
            "database": {"name": "sqlite3", "args": {"database": str(self.folder / "homeserver.db")}},
            "log_config": str(self.folder / "log.yaml"),
            "media_store_path": str(self.folder / "media"),
            "signing_key_path": str(self.folder / "signing.key"),
            "registration_shared_secret": self._secret,
            "macaroon_secret_key": hashlib.sha256(self._secret.encode()).hexdigest(),  # the same after a restart
            "bcrypt_rounds": BCRYPT_ROUNDS,
            "form_secret": hashlib.sha256(b"form" + self._secret.encode()).hexdigest(),
            "report_stats": False,
            "trusted_key_servers": [],
            "federation_domain_whitelist": [],  # it speaks to nobody but us
            "url_preview_enabled": False,
        }
        return config | (_LIMITS_OFF if self._limits == "off" else {}) | self._extra

    def _log_config(self) -> dict[str, Any]:
        handler = {
            "class": "logging.FileHandler",
            "formatter": "plain",
            "filename": str(self.folder / "homeserver.log"),
        }
        return {
            "version": 1,
            "formatters": {"plain": {"format": "%(asctime)s %(name)s %(levelname)s %(message)s"}},
            "handlers": {"file": handler},
            "root": {"level": "WARNING", "handlers": ["file"]},
            "disable_existing_loggers": False,
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
