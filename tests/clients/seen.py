"""What a person sees in their client, and what any client here can do: the port between the trials and the real clients.

Above it: `trials`. Below it: nothing; `jsperson` and `commander` implement it. It refuses to know which client it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A message as its reader has it: decrypted, with the text of its last edit.

    `shield` is what the client shows beside it: none, grey or red; empty where the client knows no such thing.
    """

    event: str
    sender: str
    kind: str
    text: str
    edited: bool
    shield: str = ""
    content: Json = field(default_factory=dict[str, Any])


class Client(Protocol):
    """A person with a real client, logged in."""

    name: str  # with its version
    user_id: str
    sees_edits: bool  # whether `look` shows the last text of a message, or each edit as a message

    async def create_room(self, guest: str, *, encrypted: bool) -> str: ...

    async def until_joined(self, room: str, user: str) -> None: ...

    async def say(self, room: str, text: str) -> None: ...

    async def answer(self, surface: str, room: str, prompt: Shown, text: str) -> None: ...

    async def look(self, room: str) -> list[Shown]: ...

    async def until(self, room: str, find: Callable[[Shown], bool], *, what: str) -> Shown: ...


class DidNotCome(Exception):
    """What a person waited for was not shown in time."""


def relation(surface: str, event: str, key: str) -> tuple[str, Json]:
    """The type and the content of an answer to an event, as clients send them (client-server API, "Relationships")."""
    text: dict[str, Any] = {"msgtype": "m.text", "body": key, "m.mentions": {}}
    match surface:
        case "text":
            return "m.room.message", text
        case "reply":
            return "m.room.message", text | {"m.relates_to": {"m.in_reply_to": {"event_id": event}}}
        case "thread":
            falling_back = {"m.in_reply_to": {"event_id": event}, "is_falling_back": True}
            return "m.room.message", text | {"m.relates_to": {"rel_type": "m.thread", "event_id": event} | falling_back}
        case "reaction":
            return "m.reaction", {"m.relates_to": {"rel_type": "m.annotation", "event_id": event, "key": key}}
        case _:
            raise AssertionError(surface)
