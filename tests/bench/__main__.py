# ruff: noqa: T201 - it prints
"""The benchmark: `python -m tests.bench`, without arguments. It prints a table, then one JSON line for each figure."""

import asyncio
import logging
import os
import platform
import signal
import sys
import time
from types import FrameType

import structlog

from tests.bench.figures import Figure, dump, show
from tests.bench.measures import (
    RUNS,
    WARM_UP_RUNS,
    measure_alone,
    measure_crowd,
    measure_latencies,
    measure_version,
)
from tests.bench.stage import make_folder, set_up


async def run() -> list[Figure]:
    figures = measure_version()
    with make_folder() as folder:
        async with set_up(folder) as (stage, homeserver):
            for measured in (
                measure_alone(stage, homeserver),
                measure_crowd(stage, homeserver),
                measure_latencies(stage, homeserver),
            ):
                async for figure in measured:
                    print(f"{time.monotonic() - BEGAN:5.0f} s  {figure.name}", file=sys.stderr, flush=True)
                    figures.append(figure)
    return figures


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # stdout is for the figures
    python = platform.python_version()
    print(f"Python {python}, {platform.system()} {platform.machine()}, {os.cpu_count()} processors", end=", ")
    print(f"load {os.getloadavg()[0]:.1f} before the start. Each latency: {WARM_UP_RUNS} runs to warm up, then {RUNS},")
    print("in turns with its floors. A p95 is only as good as the machine was quiet: the floors say how quiet.\n")
    sys.stdout.flush()
    figures = asyncio.run(run())
    print(show(figures), end="\n\n")
    for figure in figures:
        print(dump(figure))
    print(f"\n{time.monotonic() - BEGAN:.0f} s in all.", file=sys.stderr)
    return 0


def _end(number: int, _frame: FrameType | None) -> None:
    """Whoever ends the benchmark early still gets its processes and its folder removed."""
    raise SystemExit(128 + number)


BEGAN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
