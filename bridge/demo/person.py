"""The person of the demo, as their Matrix client has it: what they write, and what they see in one room.

Above it: `play`, the tests, and `encrypting`, which does the same with encryption. Below it: `homeserver`, for one HTTP
call. It refuses to know the bridge and what any of it means.
"""

import os
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Literal, cast
from urllib.parse import quote

from bridge.core.errors import DemoFailed
from bridge.core.model import JsonObject
from bridge.demo.homeserver import Account, call

SYNC_WAIT_MS = 500
"""One look at the room; also how long a Ctrl-C may go unheard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An event as the person sees it: who, what, and what it is about (the edited or reacted-to event, or empty)."""

    event_id: str
    sender: str
    kind: Literal["message", "edit", "reaction"]
    text: str
    about: str
    own_device: bool

    def line(self) -> str:
        """One or more lines of the transcript."""
        who = self.sender.removeprefix("@").partition(":")[0]
        mark = {"message": "", "edit": "(edits) ", "reaction": "(reacts) "}[self.kind]
        first, *rest = printable(self.text).splitlines() or [""]
        return "\n".join([f"{who:>7} | {mark}{first}", *(f"{'':>7} | {line}" for line in rest)])


class Person:
    """The person's Matrix client: plain HTTP, no state but the place up to which the room has been seen."""

    encrypts = False
    """Whether the room that it creates is encrypted."""
    HINT = "Log in with a desktop client if you like; this terminal is the same person."

    def __init__(self, base_url: str, account: Account) -> None:
        self.account = account
        self._base_url = base_url
        self._since = ""
        self._sent = 0

    def close(self) -> None:
        """Let go of whatever is open."""

    def create_room(self, guest: str) -> str:
        """A private room with the guest invited; returns its id."""
        wanted = {"preset": "private_chat", "name": "acp-matrix-bridge demo", "invite": [guest]}
        return str(self._call("POST", "/createRoom", wanted | {"initial_state": self._room_state()})["room_id"])

    def say(self, room: str, text: str, *, reply_to: str = "") -> str:
        """A text message, as a reply when asked; returns its event id."""
        content: dict[str, Any] = {"msgtype": "m.text", "body": text, "m.mentions": {}}
        if reply_to:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
        self._sent += 1
        return self._send(room, f"{os.getpid()}-{self._sent}", content)

    def has_joined(self, room: str, user: str) -> bool:
        """Whether the other has joined."""
        return user in cast("JsonObject", self._call("GET", f"/rooms/{quote(room)}/joined_members")["joined"])

    def look(self, room: str) -> list[Seen]:
        """What is new in the room; waits for it a moment."""
        wait = f"/sync?timeout={SYNC_WAIT_MS if self._since else 0}"
        batch: Any = self._call("GET", wait + (f"&since={quote(self._since)}" if self._since else ""))
        self._since = batch["next_batch"]
        joined = batch.get("rooms", {}).get("join", {}).get(room, {})
        events: list[Any] = joined.get("timeline", {}).get("events", [])
        return [seen for event in events if (seen := read_event(event)) is not None]

    def _room_state(self) -> list[JsonObject]:
        """What the room is to have from its beginning."""
        return []

    def _send(self, room: str, transaction: str, content: JsonObject) -> str:
        path = f"/rooms/{quote(room)}/send/m.room.message/{transaction}"
        return str(self._call("PUT", path, content)["event_id"])

    def _call(self, method: str, path: str, body: object = None) -> JsonObject:
        try:
            answer = call(self._base_url, method, f"/_matrix/client/v3{path}", body, token=self.account.access_token)
        except (OSError, HTTPException) as error:
            raise DemoFailed("The demo's homeserver does not answer any more.") from error
        if answer.status != HTTPStatus.OK:
            raise DemoFailed(f"The demo's homeserver refused {method} {path} with status {answer.status}.")
        return answer.body


def read_event(event: Any) -> Seen | None:  # noqa: ANN401 - JSON from the wire
    """What the person sees of an event; None for what is not shown."""
    content: Any = event.get("content", {})
    relation: Any = content.get("m.relates_to", {})
    match event["type"]:
        case "m.reaction":
            kind, text = "reaction", relation.get("key", "")
        case "m.room.message" if relation.get("rel_type") == "m.replace":
            kind, text = "edit", content.get("m.new_content", {}).get("body", "")
        case "m.room.message" if "body" in content:
            kind, text = "message", content["body"]
        case _:
            return None
    return Seen(
        event_id=event["event_id"],
        sender=event["sender"],
        kind=kind,
        text=str(text),
        about=relation.get("event_id", ""),
        own_device="transaction_id" in event.get("unsigned", {}),
    )


def printable(text: str) -> str:
    """Text of others for a terminal: what would steer it is shown as an escape."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
