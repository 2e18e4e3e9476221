"""The case files, taken apart into single runs.

Above it: the test modules. Below it: the JSON files. It knows which steps make several runs of one case, and refuses to know
what any step does.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOGETHER_AFTER = (0, 3, 30)  # how many turns of the event loop the second of two racing steps lets pass

Json = dict[str, Any]

CLAIM_KEYS = ("room", "record", "wire", "process", "never")
"""Where sentences stand that hold for a whole run; of `never` some items are responses, which the machine compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One fresh run of a case: its steps in order, and what must be true at the end."""

    case: str
    kind: str
    level: str
    needs: tuple[str, ...]
    name: str | None  # of `runs`
    variant: str  # which of several ways to play the same steps; "" when there is one
    steps: tuple[Json, ...]
    expected: Json

    @property
    def label(self) -> str:
        """A name for reports."""
        return "/".join(part for part in (self.case, self.name, self.variant) if part)

    @property
    def claims(self) -> tuple[str, ...]:
        """Every sentence that must hold for this run."""
        found = [claim for key in CLAIM_KEYS for claim in self.expected.get(key, ()) if isinstance(claim, str)]
        return (*found, *(self.expected[key] for key in ("each", "each_run") if key in self.expected))


def read_cases() -> list[Json]:
    """Every case of every file, each with its `kind`."""
    files = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.json")))
    return [{**case, "kind": file["kind"]} for file in files for case in file["cases"]]


def expand(case: Json) -> list[Run]:
    """All runs of one case."""
    named: dict[str | None, list[Json]] = case["input"].get("runs") or {None: case["input"]["steps"]}
    return [
        Run(
            case=case["id"],
            kind=case["kind"],
            level=case["level"],
            needs=tuple(case.get("needs", ())),
            name=name,
            variant=" ".join(word for word in words if word),
            steps=tuple(step for step in steps if set(step) - {"note"}),
            expected=case["expected"]["runs"][name] if name is not None else case["expected"],
        )
        for name, given in named.items()
        for words, steps in _ways(given)
    ]


def _ways(steps: list[Json]) -> Iterator[tuple[list[str], list[Json]]]:
    """Each way to play these steps: a word for it, and the steps."""
    for choice in itertools.product(*map(_ways_of_one, steps)):
        yield [word for word, _ in choice], [step for _, played in choice for step in played]


def _ways_of_one(step: Json) -> list[tuple[str, list[Json]]]:
    match step:
        case {"each_in_a_fresh_run": choices}:
            return [(str(number), [one]) for number, one in enumerate(choices, 1)]
        case {"at_once": [first, second]}:
            together = [
                (f"together {turns}", [{"together": [first, second], "turns": turns}]) for turns in TOGETHER_AFTER
            ]
            return [("in order", [first, second]), ("the other way round", [second, first]), *together]
        case _:
            return [("", [step])]
