"""What the steps of a run say before its start: which agents there are, the config, and how the rooms and the keys are.

Above it: the test modules. Below it: reading and life. It refuses to know what any step does.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.cases.life import Setup
from tests.cases.reading import Run

Json = dict[str, Any]


def read_setup(run: Run) -> Setup:
    """The world that the bridge of this run starts in."""
    agents = {step["harness"]: step["session"] for step in _walk(run.steps) if "ask" in step and "harness" in step}
    config: Json = {}
    for step in run.steps:
        if "reload" not in step:
            config |= step.get("config", {})
    for step in run.steps:
        if step.get("room", {}).get("encrypted"):
            config["encrypted"] = True
        if step.get("fault") == "crypto_store_missing":
            config["keys_lost"] = True
    if "bot_display_name" in config:
        config["display_name"] = config.pop("bot_display_name")
    return Setup(agents=agents or {"A": "s1"}, **config)


def _walk(steps: Sequence[Json]) -> Iterator[Json]:
    for step in steps:
        yield step
        for name in ("each_in_a_fresh_run", "at_once", "together", "steps"):
            yield from _walk(step.get(name, ()))
