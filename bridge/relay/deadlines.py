"""When the relay must look at a request again: a heap of deadlines by the wall clock."""

import heapq
from collections.abc import Callable

import anyio

from bridge.core.model import Millis, RequestId

LONGEST_SLEEP_S = 30.0  # the wall clock may jump: deadlines are looked at again at least this often
SLACK = 1_000  # deadlines of ended requests are swept out when they outnumber the open ones by this many


class Deadlines:
    """Calls `reached` for each request whose time has come; requests that ended meanwhile are the callee's to ignore."""

    def __init__(
        self, *, clock: Callable[[], Millis], reached: Callable[[RequestId], None], is_open: Callable[[RequestId], bool]
    ) -> None:
        self._clock, self._reached, self._is_open = clock, reached, is_open
        self._heap: list[tuple[Millis, RequestId]] = []
        self._added = anyio.Event()

    def add(self, at: Millis, request_id: RequestId, *, open_count: int) -> None:
        """Remember a deadline; those of ended requests are swept out when they are many."""
        heapq.heappush(self._heap, (at, request_id))
        if len(self._heap) > 2 * open_count + SLACK:
            self._heap = [deadline for deadline in self._heap if self._is_open(deadline[1])]
            heapq.heapify(self._heap)
        self._added.set()

    def wake(self) -> None:
        """Call `reached` for every deadline that has come by the clock."""
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            self._reached(heapq.heappop(self._heap)[1])

    async def watch(self) -> None:
        """Wake at each deadline, until cancelled."""
        while True:
            self.wake()
            self._added = anyio.Event()
            pause = LONGEST_SLEEP_S
            if self._heap:
                pause = min(pause, max(0.0, (self._heap[0][0] - self._clock()) / 1000))
            with anyio.move_on_after(pause):
                await self._added.wait()
