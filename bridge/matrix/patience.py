"""How long to wait before something that failed is tried again.

Above it: outbox, sync and rooms. Below it: nothing.
"""

import random
from dataclasses import dataclass

DOUBLINGS_MOST = 16  # beyond this the wait is capped anyway, and a power of two must not grow without end


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Back-off with jitter: doubled with each failure in a row, capped.

    Capped at 8 s: that is how late a prompt is after an outage at worst, and what a request costs a server that only
    just came back is small.
    """

    first_s: float = 0.5
    most_s: float = 8.0

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row, the first being 1."""
        doubled = self.first_s * 2 ** min(max(failures - 1, 0), DOUBLINGS_MOST)
        return min(self.most_s, doubled) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


def worth_a_line(failures: int) -> bool:
    """Whether this failure in a row is logged: the first, then ever fewer, so that an outage does not fill the log."""
    return failures & (failures - 1) == 0
