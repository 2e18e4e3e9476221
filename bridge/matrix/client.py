"""The homeserver, as calls that return plain values or raise one of our errors. The one module that knows nio.

Above it: outbox, sync, rooms and the command line. Below it: nio's AsyncClient (0.26.0). It refuses to know what the
events mean and when to try again.

Of nio only the transport is used: `AsyncClient.send`, which neither repeats nor reads.
nio's own calls lose too much (matrix.md, section 3): they wait inside for as long as a server says, read 429 by half,
report a 502 and a 200 with HTML as the same "unknown error", turn events that they do not like into `BadEvent`, forget
the token on a soft logout and then raise something else, and skip a sync answer that they have seen before. Here every
call goes through `_try`, where status, headers and body are judged in one place, and events stay the dictionaries that
the server sent.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, cast
from urllib.parse import quote, urlencode

import aiohttp
from nio import AsyncClient, AsyncClientConfig

from bridge.core.errors import CredentialsRefused, EventTooLarge, HomeserverUnreachable, RateLimited, RequestRefused
from bridge.core.model import EventId, JsonObject, RoomId, SyncToken, TransactionId, UserId
from bridge.matrix import answers, events
from bridge.matrix.batches import Page, SyncBatch, read_batch, strings
from bridge.matrix.events import Source
from bridge.matrix.tokens import TokenHolder, Tokens

REQUEST_S = 30.0  # for anything but a sync: a homeserver that needs longer for one event is as good as away
SYNC_GRACE_S = 30.0  # on top of the long poll's own time: until then the server is slow, after it frozen
FIRST_SYNC_S = 300.0  # a first sync with full state of big rooms takes Synapse minutes; nio sets no limit at all
UPLOAD_S = 120.0  # files are tens of kilobytes, seldom megabytes; a slow line is given time for those
ANSWER_MOST_BYTES = 64 * 1024 * 1024  # a first sync of big rooms is a tenth of it; more would fill the memory
PAGE_EVENTS = 100  # Synapse gives at most 100 timeline events a room and sync, whatever the filter says
MEDIA_UPLOAD = "/_matrix/media/v3/upload"  # the one call of the content repository that stayed there (v1.11)

# nio neither waits nor repeats, and keeps no token of its own: both are ours (matrix.md, section 1).
CONFIG = AsyncClientConfig(
    max_limit_exceeded=0,
    max_timeouts=0,
    request_timeout=REQUEST_S,
    store_sync_tokens=False,
    encryption_enabled=False,
)


class Client:
    """One account on one device of one homeserver. The access token goes into the Authorization header only.

    `access_token` is one that cannot be renewed; `tokens` hold those that perhaps can.
    """

    def __init__(
        self,
        homeserver: str,
        *,
        user_id: str = "",
        device_id: str = "",
        access_token: str = "",
        tokens: TokenHolder | None = None,
    ) -> None:
        self._nio = AsyncClient(homeserver.rstrip("/"), user_id, device_id, config=CONFIG)
        self._nio.user_id = user_id  # the constructor's `user` is only what a login begins with
        self._tokens = tokens or TokenHolder(Tokens(access_token=access_token))
        self.times_limited = 0  # how often the homeserver has asked for patience (M_LIMIT_EXCEEDED)

    @property
    def user_id(self) -> UserId:
        """Whose account it is; empty before a login."""
        return UserId(self._nio.user_id)

    async def close(self) -> None:
        """Close the connections."""
        await self._nio.close()

    # ------------------------------------------------------------------------------------------------- the account

    async def versions(self) -> tuple[str, ...]:
        """The versions of the specification that the homeserver supports; needs no token."""
        return strings(await self._try("GET", "/_matrix/client/versions", None, token=""), "versions")

    async def delegate(self) -> str | None:
        """The address that this server names for its homeserver, in the file that clients look for first; needs no token.

        None where it names none: the file is missing, or what stands there is a page for people.
        """
        status, _, said = await self._ask("GET", "/.well-known/matrix/client", token="")
        if status >= 500:  # noqa: PLR2004 - it has one, perhaps, and cannot say so now
            raise HomeserverUnreachable(f"The server could not say where its homeserver is ({status}).")
        named = events.text(events.mapping(events.mapping({"body": said}, "body"), "m.homeserver"), "base_url")
        return named.rstrip("/") if status == 200 and named and named.startswith("https://") else None  # noqa: PLR2004

    async def log_out(self) -> None:
        """End this device on the homeserver, with its token and its keys."""
        await self._call("POST", _path("logout"), body={})

    async def whoami(self) -> tuple[UserId, str]:
        """The user and the device that the token belongs to; the device is empty when the server names none."""
        answer = await self._call("GET", _path("account", "whoami"))
        return UserId(_needed(answer, "user_id")), events.text(answer, "device_id") or ""

    async def display_name(self, user: UserId) -> str | None:
        """The display name of a user's profile, or None."""
        answer = await self._find("GET", _path("profile", user, "displayname"))
        return None if answer is None else events.text(answer, "displayname")

    # ---------------------------------------------------------------------------------------------------- the rooms

    async def resolve_alias(self, alias: str) -> RoomId:
        """The room behind an alias."""
        return RoomId(_needed(await self._call("GET", _path("directory", "room", alias)), "room_id"))

    async def join(self, room: RoomId, *, via: str | None = None) -> None:
        """Join a room, through this server where ours is not in it; nothing happens when the bot is in it already."""
        # `server_name` is what `via` was called before version 1.12 of the specification
        query = None if via is None else {"via": via, "server_name": via}
        await self._call("POST", _path("join", room), query=query, body={})

    async def leave(self, room: RoomId) -> None:
        """Leave a room."""
        await self._call("POST", _path("rooms", room, "leave"), body={})

    async def joined_members(self, room: RoomId) -> frozenset[UserId]:
        """Who is joined in a room."""
        answer = await self._call("GET", _path("rooms", room, "joined_members"))
        return frozenset(UserId(user) for user in events.mapping(answer, "joined"))

    async def room_state(self, room: RoomId) -> tuple[Source, ...]:
        """All state events of a room."""
        answer = await self._call("GET", _path("rooms", room, "state"), lists=True)
        return events.objects(answer, "list")

    async def state_content(self, room: RoomId, kind: str, state_key: str = "") -> Source | None:
        """The content of one state event, or None where there is none."""
        # a path that ends in an empty segment is what the specification asks for with an empty state key
        return await self._find("GET", f"{_path('rooms', room, 'state', kind)}/{quote(state_key, safe='')}")

    async def typing(self, room: RoomId, *, on: bool, timeout_ms: int) -> None:
        """Say that the bot is typing, for so long, or no longer."""
        wish: JsonObject = {"typing": True, "timeout": timeout_ms} if on else {"typing": False}
        await self._call("PUT", _path("rooms", room, "typing", self._nio.user_id), body=wish)

    async def send(self, room: RoomId, event_type: str, content: JsonObject, txn: TransactionId) -> EventId:
        """Send one event under its transaction id; the same id again gives the same event (matrix.md, section 4)."""
        answer = await self._call("PUT", _path("rooms", room, "send", event_type, txn), body=content)
        return EventId(_needed(answer, "event_id"))

    async def upload(self, data: bytes, *, filename: str | None, content_type: str) -> str:
        """Put a file into the content repository: its `mxc://` address. Repeated, it makes a second file."""
        target = MEDIA_UPLOAD if filename is None else f"{MEDIA_UPLOAD}?{urlencode({'filename': filename})}"
        try:
            answer = await self._renewing(
                lambda token: self._try(
                    "POST", target, BytesIO(data), token=token, content_type=content_type, limit_s=UPLOAD_S
                )
            )
        except EventTooLarge as refused:
            raise EventTooLarge(
                "The homeserver takes no file of this size.", status=refused.status, errcode=refused.errcode
            ) from None
        return _needed(answer, "content_uri")

    # ------------------------------------------------------------------------------------------------- what happened

    async def sync(
        self, since: SyncToken | None, *, timeout_ms: int, full_state: bool, rooms: Collection[RoomId]
    ) -> SyncBatch:
        """What happened in these rooms since the token; waits up to `timeout_ms` for something to happen.

        Invites to other rooms come as well, so that they can be logged.
        """
        query = {"timeout": str(timeout_ms), "filter": _filter(rooms)}
        if since is not None:
            query["since"] = since
        if full_state:
            query["full_state"] = "true"
        limit_s = FIRST_SYNC_S if full_state else timeout_ms / 1000 + SYNC_GRACE_S
        answer = await self._call("GET", _path("sync"), query=query, limit_s=limit_s)
        return read_batch(answer, SyncToken(_needed(answer, "next_batch")), self.user_id)

    async def messages(self, room: RoomId, start: str, stop: str | None) -> Page:
        """One page of a room's events backwards from `start`, not beyond `stop`."""
        query = {"dir": "b", "from": start, "limit": str(PAGE_EVENTS)} | ({} if stop is None else {"to": stop})
        answer = await self._call("GET", _path("rooms", room, "messages"), query=query)
        return Page(events=events.objects(answer, "chunk"), end=events.text(answer, "end"))

    # ------------------------------------------------------------------------------------------------------ one call

    async def call(
        self, method: str, *parts: str, query: Mapping[str, str] | None = None, body: JsonObject | None = None
    ) -> Source:
        """Any other call of the client-server API (v3), judged like the rest; `parts` of the path are quoted here."""
        return await self._call(method, _path(*parts), query=query, body=body)

    async def find(self, *parts: str) -> Source | None:
        """A GET of the client-server API (v3): its answer, or None where there is none."""
        return await self._find("GET", _path(*parts))

    async def _find(self, method: str, path: str) -> Source | None:
        try:
            return await self._call(method, path)
        except RequestRefused as refused:
            if refused.status == 404:  # noqa: PLR2004 - the one status that means "there is none"
                return None
            raise

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        limit_s: float = REQUEST_S,
        lists: bool = False,
    ) -> Source:
        """One request, judged. `lists`: the answer is a list, and comes back under the key `list`."""
        data = None if body is None else answers.to_wire(body)
        target = f"{path}?{urlencode(query)}" if query else path
        return await self._renewing(
            lambda token: self._try(method, target, data, token=token, limit_s=limit_s, lists=lists)
        )

    async def _renewing(self, ask: Callable[[str], Awaitable[Source]]) -> Source:
        """What `ask` brings with our token; once more with the next one, where that had run out."""
        token = await self._tokens.prepare()
        try:
            return await ask(token)
        except CredentialsRefused as refused:
            if not await self._tokens.renew(token, refused):
                raise
        return await ask(self._tokens.access_token)

    async def _try(
        self,
        method: str,
        target: str,
        data: bytes | BytesIO | None,
        *,
        token: str,
        content_type: str = "application/json",
        limit_s: float = REQUEST_S,
        lists: bool = False,
    ) -> Source:
        status, headers, said = await self._ask(
            method, target, data, token=token, content_type=content_type, limit_s=limit_s
        )
        try:
            answers.judge(status, headers, said)
        except RateLimited:
            self.times_limited += 1
            raise
        if lists and isinstance(said, list):
            return {"list": cast("list[object]", said)}
        if not isinstance(said, dict):
            raise HomeserverUnreachable("What answered is no homeserver, or not a whole one.", perhaps_done=True)
        return cast("Source", said)

    async def _ask(
        self,
        method: str,
        target: str,
        data: bytes | BytesIO | None = None,  # aiohttp warns of a megabyte that is no file
        *,
        token: str,
        content_type: str = "application/json",
        limit_s: float = REQUEST_S,
    ) -> tuple[int, Mapping[str, str], object]:
        """One request, not judged: status, headers and the body's JSON."""
        headers = {"Content-Type": content_type}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if self._nio.client_session is None:
            self._nio.client_session = _session()
        with _translated():
            response = await self._nio.send(method, target, cast("Any", data), headers, timeout=limit_s)
            async with response:
                raw = await _read(response)
        return response.status, response.headers, answers.from_wire(raw)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, as long as it is of a size that a homeserver can mean."""
    pieces, size = list[bytes](), 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_MOST_BYTES:
            raise HomeserverUnreachable("The homeserver's answer is larger than any should be.", perhaps_done=True)
    return b"".join(pieces)


def _session() -> aiohttp.ClientSession:
    """The connections, made here and not by nio because of what aiohttp otherwise does behind our back.

    It repeats a PUT whose connection broke. When the first try was done and the second is refused, nobody would know
    that the event is there (design.md, rule 19).
    """
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_S))
    session._retry_connection = False  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - there is no public switch
    return session


@contextmanager
def _translated() -> Generator[None]:
    """Exceptions of the transport become ours. Their own text is left behind: it may hold addresses and headers."""
    try:
        yield
    except aiohttp.ClientConnectorError:
        failure = HomeserverUnreachable("No connection to the homeserver.")
    except TimeoutError:
        failure = HomeserverUnreachable("The homeserver did not answer in time.", perhaps_done=True)
    except (aiohttp.ClientError, OSError):
        failure = HomeserverUnreachable("The connection to the homeserver broke.", perhaps_done=True)
    else:
        return
    raise failure from None


def _path(*parts: str) -> str:
    return "/_matrix/client/v3/" + "/".join(quote(part, safe="") for part in parts)


def _filter(rooms: Collection[RoomId]) -> str:
    """Only what is read: no typing, receipts, presence or account data, and of the state only what `standing` keeps."""
    nothing: JsonObject = {"types": []}
    return json.dumps(
        {
            "presence": nothing,
            "account_data": nothing,
            "room": {
                "rooms": sorted(rooms),
                "account_data": nothing,
                "ephemeral": nothing,
                "state": {"types": [events.MEMBER, events.ENCRYPTION, events.TOMBSTONE]},
                "timeline": {"limit": PAGE_EVENTS},
            },
        },
        separators=(",", ":"),
    )


def _needed(answer: Source, key: str) -> str:
    found = events.text(answer, key)
    if not found:
        raise HomeserverUnreachable("What answered is no homeserver, or not a whole one.", perhaps_done=True)
    return found
