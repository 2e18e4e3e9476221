"""A homeserver on loopback that can do what the bridge asks of one, and fail in every way a real one fails.

It keeps rooms as one stream of events, so sync tokens, gaps, joins and echoes behave as on Synapse. Everything that came
over the wire is in `requests`; everything that was sent, once per transaction id, in `sent`.
"""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.peers.keys import Keys

API = "/_matrix/client/v3"
UNKNOWN_TOKEN = {"errcode": "M_UNKNOWN_TOKEN", "error": "Unknown token"}
SOFT_LOGOUT = UNKNOWN_TOKEN | {"soft_logout": True}
FORBIDDEN = {"errcode": "M_FORBIDDEN", "error": "no"}
NOT_FOUND = {"errcode": "M_NOT_FOUND", "error": "no"}

TO_DEVICE = ""  # where the stream holds what is for the device and for no room

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What becomes of one call instead of its answer, or after it was carried out (`done`)."""

    status: int = 500
    body: Json | str | bytes = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    drop: bool = False  # the connection is closed without an answer
    torn: bool = False  # half an answer, then the connection is closed
    gate: asyncio.Event | None = None  # the call goes on as usual once this is set
    done: bool = False
    echo: bool = False  # the error repeats the request's address and headers, as some proxies do


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as it came."""

    operation: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SentEvent:
    """One event that the bot sent."""

    room: str
    type: str
    txn: str
    content: Json
    event_id: str


class Homeserver:
    """One account's view of a homeserver."""

    def __init__(self) -> None:
        self.user_id = "@bot:hs"
        self.token = "tok-Zebra-91"
        self.device_id = "DEV"
        self.password = "pw-Giraffe-17"
        self.timeline_limit = 100
        self.display_name: str | None = "Bridge"
        self.delegate: str | None = None
        self.guards_state = False  # whether the state of a room is for those who are in it, as it mostly is
        self.flows = ["m.login.password", "m.login.token"]
        self.refresh_token: str | None = None  # the only one that counts; None: a login gives none
        self.login_token = "login-Okapi-5"
        self.life_ms = 300_000  # of a token that can be renewed
        self.keys = Keys(self.user_id, self.device_id)
        self.requests: list[Seen] = []
        self.sent: list[SentEvent] = []
        self.stream: list[tuple[str, Json]] = []
        self.scripted: deque[Json] = deque()  # sync answers given as they are, before any other
        self.aliases: dict[str, str] = {}
        self._invites: dict[str, tuple[int, str]] = {}
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._always: dict[str, Fault] = {}
        self._changed = asyncio.Condition()
        self._closing = False
        self._parked: int | None = None  # where in the stream a sync waits for more
        self.url = ""

    # ------------------------------------------------------------------------------------------ what a test arranges

    def fail(self, operation: str, *faults: Fault) -> None:
        """The next calls of this operation fail so, one after the other."""
        self._faults[operation].extend(faults)

    def fail_always(self, operation: str, fault: Fault | None) -> None:
        """Every call of this operation fails so, until told otherwise."""
        if fault is None:
            self._always.pop(operation, None)
        else:
            self._always[operation] = fault

    def count(self, operation: str) -> int:
        return sum(seen.operation == operation for seen in self.requests)

    def room(self, room: str = "!room", *people: str, joined: bool = True, encrypted: bool = False) -> str:
        """A room with these people in it, and the bot."""
        self.state(room, "m.room.create", "", {"room_version": "12"}, "@admin:hs")
        for user in people or ("@alice:hs",):
            self.member(room, user, "join")
        if encrypted:
            self.state(room, "m.room.encryption", "", {"algorithm": "m.megolm.v1.aes-sha2"}, "@admin:hs")
        if joined:
            self.member(room, self.user_id, "join")
        return room

    def say(self, room: str, text: str, sender: str = "@alice:hs", **content: object) -> str:
        return self.put(room, "m.room.message", {"msgtype": "m.text", "body": text} | content, sender)

    def react(self, room: str, target: str, key: str, sender: str = "@alice:hs") -> str:
        relates = {"rel_type": "m.annotation", "event_id": target, "key": key}
        return self.put(room, "m.reaction", {"m.relates_to": relates}, sender)

    def put(self, room: str, kind: str, content: Json, sender: str, **more: object) -> str:
        """Any event, into the stream."""
        event_id = f"$e{len(self.stream)}"
        event: Json = {"type": kind, "sender": sender, "event_id": event_id, "content": content} | more
        self.stream.append((room, event))
        self.wake()
        return event_id

    def state(self, room: str, kind: str, key: str, content: Json, sender: str) -> str:
        before = self.current(room).get((kind, key))
        unsigned = {"unsigned": {"prev_content": before["content"]}} if before else {}
        return self.put(room, kind, content, sender, state_key=key, **unsigned)

    def member(self, room: str, user: str, membership: str, sender: str | None = None) -> str:
        return self.state(room, "m.room.member", user, {"membership": membership}, sender or user)

    def invite(self, room: str, sender: str = "@alice:hs") -> None:
        self._invites[room] = (len(self.stream), sender)
        self.member(room, self.user_id, "invite", sender)

    def send_to_device(self, event: Json) -> None:
        """An event for the bot's device; it comes with the next sync, and again until that was stored."""
        self.stream.append((TO_DEVICE, event))
        self.wake()

    def token_now(self) -> str:
        return f"s{len(self.stream)}"

    def current(self, room: str, until: int | None = None) -> dict[tuple[str, str], Json]:
        return {
            (event["type"], event["state_key"]): event
            for at, event in self.stream[:until]
            if at == room and "state_key" in event
        }

    def membership(self, room: str, until: int | None = None) -> str:
        member = self.current(room, until).get(("m.room.member", self.user_id))
        return member["content"]["membership"] if member else "leave"

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something that came over the wire makes this true."""
        async with self._changed:
            await self._changed.wait_for(true)

    async def until_followed(self) -> None:
        """Wait until the bot has stored all that happened, and waits for more."""
        await self.until(lambda: self._parked == len(self.stream))

    def wake(self) -> None:
        """Let whoever waits look again."""

        async def wake() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.get_running_loop().create_task(wake())
        task.add_done_callback(lambda _: None)

    # -------------------------------------------------------------------------------------------------------- serving

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["Homeserver"]:
        app = web.Application(client_max_size=2**24)
        for method, path, operation, handler in (
            ("GET", "/.well-known/matrix/client", "well_known", self._well_known),
            ("GET", "/_matrix/client/versions", "versions", self._versions),
            ("GET", f"{API}/login", "login_flows", self._login_flows),
            ("POST", f"{API}/login", "login", self._login),
            ("POST", f"{API}/refresh", "refresh", self._refresh),
            ("POST", f"{API}/logout", "logout", self._logout),
            ("GET", f"{API}/account/whoami", "whoami", self._whoami),
            ("GET", f"{API}/sync", "sync", self._sync),
            ("GET", f"{API}/profile/{{user}}/displayname", "profile", self._profile),
            ("GET", f"{API}/directory/room/{{alias}}", "alias", self._alias),
            ("POST", f"{API}/join/{{room}}", "join", self._join),
            ("POST", f"{API}/rooms/{{room}}/leave", "leave", self._leave),
            ("GET", f"{API}/rooms/{{room}}/joined_members", "members", self._members),
            ("GET", f"{API}/rooms/{{room}}/state", "room_state", self._room_state),
            ("GET", f"{API}/rooms/{{room}}/state/{{type}}/{{key:.*}}", "state", self._state_event),
            ("GET", f"{API}/rooms/{{room}}/messages", "messages", self._messages),
            ("PUT", f"{API}/rooms/{{room}}/typing/{{user}}", "typing", self._typing),
            ("POST", "/_matrix/media/v3/upload", "upload", self._upload),
            ("PUT", f"{API}/rooms/{{room}}/send/{{type}}/{{txn}}", "send", self._send),
            *self.keys.routes(),
        ):
            app.router.add_route(method, path, self._served(operation, handler))
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self._closing = True
            async with self._changed:
                self._changed.notify_all()
            await runner.cleanup()

    def _served(self, operation: str, handler: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def serve(request: web.Request) -> web.StreamResponse:
            self.requests.append(
                Seen(
                    operation=operation,
                    path=request.path,
                    query=dict(request.query),
                    headers=dict(request.headers),
                    body=await request.read(),
                    at=asyncio.get_running_loop().time(),
                )
            )
            self.wake()
            faults = self._faults[operation]
            fault = faults.popleft() if faults else self._always.get(operation)
            if fault is not None and fault.gate is not None:
                await fault.gate.wait()
                fault = None
            if fault is None or fault.done:
                answer = self._unknown(request, operation) or await handler(request)
                if fault is None:
                    return answer
            return await self._failed(request, fault)

        return serve

    def _unknown(self, request: web.Request, operation: str) -> web.Response | None:
        open_to_all = operation in ("well_known", "versions", "login", "login_flows", "refresh")
        if open_to_all or request.headers.get("Authorization") == f"Bearer {self.token}":
            return None
        return web.json_response(UNKNOWN_TOKEN, status=401)

    async def _failed(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.drop or fault.torn:
            response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
            if fault.torn:
                await response.prepare(request)
                await response.write(b'{"next_batch"')
            if request.transport is not None:
                request.transport.close()
            return response
        said = fault.body
        if fault.echo:
            said = {"errcode": "M_UNKNOWN", "error": f"{request.method} {request.url} {dict(request.headers)}"}
        body = json.dumps(said) if isinstance(said, dict) else said
        return web.Response(
            status=fault.status, body=body, content_type=fault.content_type, headers=dict(fault.headers)
        )

    async def _well_known(self, _: web.Request) -> web.Response:
        if self.delegate is None:
            return web.Response(status=404, text="<h1>Not found</h1>", content_type="text/html")
        return web.json_response({"m.homeserver": {"base_url": self.delegate}})

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"versions": ["v1.11", "v1.12"]})

    async def _login_flows(self, _: web.Request) -> web.Response:
        return web.json_response({"flows": [{"type": flow} for flow in self.flows]})

    async def _login(self, request: web.Request) -> web.Response:
        wish = await request.json()
        if wish["type"] not in self.flows:
            return web.json_response({"errcode": "M_UNKNOWN", "error": "Unknown login type"}, status=400)
        right = self.password if wish["type"] == "m.login.password" else self.login_token
        if wish.get("password", wish.get("token")) != right:
            return web.json_response(FORBIDDEN, status=403)
        self.device_id = wish["device_id"]
        given = {"user_id": self.user_id, "device_id": self.device_id, "access_token": self.token}
        return web.json_response(given | self._renewal())

    async def _refresh(self, request: web.Request) -> web.Response:
        """The next pair. Unlike a real one it forgets the old pair at once, not when the new one is used."""
        if self.refresh_token is None or (await request.json())["refresh_token"] != self.refresh_token:
            return web.json_response(FORBIDDEN, status=403)
        self.token, self.refresh_token = f"{self.token}+", f"{self.refresh_token}+"
        return web.json_response({"access_token": self.token} | self._renewal())

    def _renewal(self) -> Json:
        if self.refresh_token is None:
            return {}
        return {"refresh_token": self.refresh_token, "expires_in_ms": self.life_ms}

    async def _logout(self, _: web.Request) -> web.Response:
        self.token = ""
        return web.json_response({})

    async def _whoami(self, _: web.Request) -> web.Response:
        return web.json_response({"user_id": self.user_id, "device_id": self.device_id})

    async def _profile(self, _: web.Request) -> web.Response:
        if self.display_name is None:
            return web.json_response(NOT_FOUND, status=404)
        return web.json_response({"displayname": self.display_name})

    async def _alias(self, request: web.Request) -> web.Response:
        room = self.aliases.get(request.match_info["alias"])
        if room is None:
            return web.json_response(NOT_FOUND, status=404)
        return web.json_response({"room_id": room, "servers": ["hs"]})

    async def _join(self, request: web.Request) -> web.Response:
        room = request.match_info["room"]
        if self.membership(room) not in ("invite", "join"):
            return web.json_response(FORBIDDEN, status=403)
        self._invites.pop(room, None)
        if self.membership(room) != "join":
            self.member(room, self.user_id, "join")
        return web.json_response({"room_id": room})

    async def _leave(self, request: web.Request) -> web.Response:
        self.member(request.match_info["room"], self.user_id, "leave")
        return web.json_response({})

    async def _members(self, request: web.Request) -> web.Response:
        state = self.current(request.match_info["room"])
        joined = {
            key: {"display_name": None}
            for (kind, key), event in state.items()
            if kind == "m.room.member" and event["content"]["membership"] == "join"
        }
        return web.json_response({"joined": joined})

    async def _room_state(self, request: web.Request) -> web.Response:
        return web.json_response(list(self.current(request.match_info["room"]).values()))

    async def _state_event(self, request: web.Request) -> web.Response:
        if self.membership(request.match_info["room"]) in ("invite", "leave") and self.guards_state:
            return web.json_response(FORBIDDEN, status=403)
        found = self.current(request.match_info["room"]).get((request.match_info["type"], request.match_info["key"]))
        if found is None:
            return web.json_response(NOT_FOUND, status=404)
        return web.json_response(found["content"])

    async def _upload(self, _: web.Request) -> web.Response:
        return web.json_response({"content_uri": f"mxc://hs/{self.count('upload')}"})

    async def _typing(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _send(self, request: web.Request) -> web.Response:
        where = request.match_info
        if self.membership(where["room"]) != "join":
            return web.json_response(FORBIDDEN, status=403)
        known = next((event for event in self.sent if event.txn == where["txn"]), None)
        if known is None:
            content = await request.json()
            event_id = self.put(
                where["room"], where["type"], content, self.user_id, unsigned={"transaction_id": where["txn"]}
            )
            known = SentEvent(
                room=where["room"], type=where["type"], txn=where["txn"], content=content, event_id=event_id
            )
            self.sent.append(known)
            self.wake()
        return web.json_response({"event_id": known.event_id})

    async def _messages(self, request: web.Request) -> web.Response:
        room, limit = request.match_info["room"], int(request.query["limit"])
        start, stop = int(request.query["from"][1:]), int(request.query.get("to", "s0")[1:])
        found = [(at, event) for at, (where, event) in enumerate(self.stream) if where == room and stop <= at < start]
        page = found[-limit:][::-1]
        answer: Json = {"chunk": [event for _, event in page], "start": f"s{start}"}
        if len(found) > limit:
            answer["end"] = f"s{page[-1][0]}"
        return web.json_response(answer)

    async def _sync(self, request: web.Request) -> web.Response:
        if self.scripted:
            return web.json_response(self.scripted.popleft())
        since_text = request.query.get("since", "s0")
        if not (since_text.startswith("s") and since_text[1:].isdigit()):
            return web.json_response({"errcode": "M_UNKNOWN", "error": "bad token"}, status=400)
        since, timeout = int(since_text[1:]), int(request.query["timeout"]) / 1000
        whole = "full_state" in request.query or "since" not in request.query
        try:
            async with asyncio.timeout(timeout):
                async with self._changed:
                    self._parked = since
                    self._changed.notify_all()
                    await self._changed.wait_for(
                        lambda: whole or bool(self.scripted) or self._closing or len(self.stream) > since
                    )
        except TimeoutError:
            pass
        finally:
            self._parked = None
        if self.scripted:
            return web.json_response(self.scripted.popleft())
        return web.json_response(self._batch(request.query.get("since"), since, whole=whole))

    def _batch(self, given: str | None, since: int, *, whole: bool) -> Json:
        join: Json = {}
        leave: Json = {}
        invite: Json = {}
        for room in dict.fromkeys(where for where, _ in self.stream if where != TO_DEVICE):
            changed = any(where == room for where, _ in self.stream[since:])
            now, before = self.membership(room), self.membership(room, since) if given else "leave"
            if now == "join" and (changed or whole):
                fresh = before != "join"
                join[room] = self._joined(room, 0 if fresh else since, whole=whole or fresh, start=since)
            elif now == "invite" and changed:
                member = self.current(room)[("m.room.member", self.user_id)]
                invite[room] = {"invite_state": {"events": [member]}}
            elif before == "join" and changed:
                leave[room] = self._joined(room, since, whole=False, start=since)
        to_device = [event for where, event in self.stream[since:] if where == TO_DEVICE]
        return {
            "next_batch": self.token_now(),
            "to_device": {"events": to_device},
            "rooms": {"join": join, "leave": leave, "invite": invite},
        }

    def _joined(self, room: str, first: int, *, whole: bool, start: int) -> Json:
        found = [at for at, (where, _) in enumerate(self.stream) if where == room and at >= first]
        shown = found[-self.timeline_limit :] if self.timeline_limit else []
        begin = shown[0] if shown else len(self.stream)
        state = self.current(room, begin)
        if not whole:
            old = self.current(room, start)
            state = {key: event for key, event in state.items() if old.get(key) is not event}
        return {
            "state": {"events": list(state.values())},
            "timeline": {
                "events": [self.stream[at][1] for at in shown],
                "limited": len(shown) < len(found),
                "prev_batch": f"s{begin}",
            },
        }
