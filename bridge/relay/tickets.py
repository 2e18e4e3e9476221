"""Where somebody waits for one result of the relay: a batch that is stored, or the receipt of an answer."""

from dataclasses import dataclass, field

import anyio

from bridge.core.model import Reason


@dataclass(slots=True)
class Ticket:
    """Somebody waits here for one result: a batch that is stored, or the receipt of an answer."""

    done: anyio.Event = field(default_factory=anyio.Event)
    reason: Reason | None = None
    error: Exception | None = None

    def finish(self, *, reason: Reason | None = None, error: Exception | None = None) -> None:
        """Give the result; the first one counts."""
        if not self.done.is_set():
            self.reason, self.error = reason, error
            self.done.set()

    async def wait(self) -> Reason | None:
        """The result, or its error raised."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.reason
