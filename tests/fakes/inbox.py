"""Where a test finds the events that an adapter delivers."""

from collections import deque
from typing import TypeVar

import anyio

from bridge.core.events import Event

E = TypeVar("E")


class Inbox:
    """A `Deliver` that keeps what came, in order; `events` has all of it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._untaken: deque[Event] = deque()
        self._something = anyio.Event()

    def deliver(self, event: Event) -> None:
        self.events.append(event)
        self._untaken.append(event)
        self._something.set()

    async def take(self, kind: type[E]) -> E:
        """The next event of this kind that was not taken; those of other kinds stay."""
        while True:
            for event in self._untaken:
                if isinstance(event, kind):
                    self._untaken.remove(event)
                    return event
            self._something = anyio.Event()
            await self._something.wait()

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]
