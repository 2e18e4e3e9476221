"""A person whose room keys get lost on their way, and come later: nio sends the message all the same (matrix.md, fault 3)."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from nio.responses import ShareGroupSessionResponse

from tests.peers.nio_person import NioPerson


class Kept:
    """Key messages that were not sent."""

    def __init__(self, person: NioPerson) -> None:
        self._nio: Any = person.nio
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    async def send(self, original: Any, response: type, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - nio's own
        if response is ShareGroupSessionResponse:
            self._calls.append((args, more))
            raise TimeoutError
        return await original(response, *args, **more)

    async def bring(self) -> None:
        """They get through after all."""
        for args, more in self._calls:
            await self._nio._send(ShareGroupSessionResponse, *args, **more)


@contextmanager
def losing_keys(person: NioPerson) -> Generator[Kept]:
    """What this person says here is sent without its key. A new key is begun before and after."""
    nio = cast("Any", person.nio)
    kept, original = Kept(person), nio._send
    nio.olm.outbound_group_sessions.clear()

    async def send(response: type, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - nio's own
        return await kept.send(original, response, *args, **more)

    nio._send = send
    try:
        yield kept
    finally:
        nio._send = original
        nio.olm.outbound_group_sessions.clear()
