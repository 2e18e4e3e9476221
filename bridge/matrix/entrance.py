"""The homeserver's entrance: which ways in it offers, a login by each of them, and the renewal of tokens.

Above it: app. Below it: a client without a token of its own. It refuses to know people, files, and which way to choose.
"""

from dataclasses import dataclass
from urllib.parse import quote

from bridge.core.errors import CredentialsRefused, HomeserverUnreachable, RequestRefused
from bridge.core.model import JsonObject, UserId
from bridge.matrix import events
from bridge.matrix.client import Client
from bridge.matrix.events import Source
from bridge.matrix.tokens import Tokens, read_tokens

DEVICE_NAME = "acp-matrix-bridge"
FORBIDDEN = 403  # what the specification gives for a wrong password, and Synapse for a refresh token that is used up

PASSWORD = "m.login.password"  # noqa: S105 - the name of a way in
TOKEN = "m.login.token"  # noqa: S105 - the name of a way in


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a login gave."""

    user_id: UserId
    device_id: str
    tokens: Tokens


async def read_flows(client: Client) -> tuple[str, ...]:
    """The ways to log in that the homeserver offers."""
    answer = await client.call("GET", "login")
    return tuple(flow for item in events.objects(answer, "flows") if (flow := events.text(item, "type")))


async def log_in_by_password(client: Client, user: UserId, password: str, device_id: str) -> Login:
    """Log in on this device.

    Done once in the life of a state folder: each new device is one more that people see, and Synapse allows a handful
    of logins before a wait of minutes (matrix.md, section 5).
    """
    identifier: JsonObject = {"type": "m.id.user", "user": user}
    return await _log_in(client, device_id, {"type": PASSWORD, "identifier": identifier, "password": password})


async def log_in_by_token(client: Client, login_token: str, device_id: str) -> Login:
    """Log in on this device with the token that a browser brought back."""
    return await _log_in(client, device_id, {"type": TOKEN, "token": login_token})


async def _log_in(client: Client, device_id: str, proof: JsonObject) -> Login:
    wish: JsonObject = {
        "device_id": device_id,
        "initial_device_display_name": DEVICE_NAME,
        "refresh_token": True,
        **proof,
    }
    try:
        answer = await client.call("POST", "login", body=wish)
    except CredentialsRefused:
        raise CredentialsRefused("The homeserver did not accept this login.") from None
    except RequestRefused as refused:
        if refused.status != FORBIDDEN:
            raise
        raise CredentialsRefused("The homeserver did not accept this login.") from None
    return Login(
        user_id=UserId(_needed(answer, "user_id")),
        device_id=_needed(answer, "device_id"),
        tokens=read_tokens(answer, _needed(answer, "access_token")),
    )


async def refresh(client: Client, refresh_token: str) -> Tokens:
    """The next tokens of the refresh token's device; those before live until one of these is used.

    Raises `CredentialsRefused` when there are no next ones.
    """
    wish: JsonObject = {"refresh_token": refresh_token}
    try:
        answer = await client.call("POST", "refresh", body=wish)
    except (CredentialsRefused, RequestRefused):  # also 404: a homeserver that renews nothing any more
        raise CredentialsRefused("The homeserver did not renew the access token.", soft=True) from None
    return read_tokens(answer, _needed(answer, "access_token"), before=refresh_token)


def make_browser_address(homeserver: str, redirect: str) -> str:
    """Where a browser logs in (client-server API, "Client login via SSO"); it is sent back to `redirect` with a token."""
    return f"{homeserver.rstrip('/')}/_matrix/client/v3/login/sso/redirect?redirectUrl={quote(redirect, safe='')}"


def _needed(answer: Source, key: str) -> str:
    found = events.text(answer, key)
    if not found:
        raise HomeserverUnreachable("What answered is no homeserver, or not a whole one.", perhaps_done=True)
    return found
