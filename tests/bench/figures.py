"""Figures, their goals, and how both are printed.

Above it: the measures. Below it: nothing. It knows no process and no clock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table. `goal` is in words, `met` None where there is none."""

    name: str
    unit: str
    runs: int
    median: float
    p95: float | None = None
    worst: float | None = None
    goal: str = ""
    met: bool | None = None
    ratios: dict[str, float] | None = None  # of the p95, to the p95 of each floor of the same minutes


def measure(
    name: str,
    values: Sequence[float],
    *,
    unit: str = "ms",
    most: float | None = None,
    floors: dict[str, "Figure"] | None = None,
) -> Figure:
    """The figure of these values; the goal is that the p95 is under `most`."""
    ordered = sorted(values)
    p95 = ordered[ceil(len(ordered) * 0.95) - 1]
    return Figure(
        name=name,
        unit=unit,
        runs=len(ordered),
        median=ordered[len(ordered) // 2],
        p95=p95,
        worst=ordered[-1],
        goal="" if most is None else f"p95 < {most:g} {unit}",
        met=None if most is None else p95 < most,
        ratios={floor: p95 / other.p95 for floor, other in (floors or {}).items() if other.p95},
    )


def compare(name: str, value: float, goal: str, *, met: bool, unit: str = "x", runs: int = 1) -> Figure:
    """A figure of one number."""
    return Figure(name=name, unit=unit, runs=runs, median=value, goal=goal, met=met)


def show(figures: Sequence[Figure]) -> str:
    """The table."""
    rows: list[tuple[str, ...]] = [("figure", "runs", "median", "p95", "worst", "to floor", "goal", "")]
    for figure in figures:
        ratios = " ".join(f"{name} {ratio:.2f}x" for name, ratio in (figure.ratios or {}).items())
        numbers = [
            "" if value is None else f"{value:,.{2 if value < 100 else 0}f} {figure.unit}"
            for value in (figure.median, figure.p95, figure.worst)
        ]
        word = {None: "", True: "met", False: "MISSED"}[figure.met]
        rows.append((figure.name, f"{figure.runs:,}", *numbers, ratios, figure.goal, word))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def dump(figure: Figure) -> str:
    """The figure as a JSON line."""
    fields = {name: getattr(figure, name) for name in Figure.__slots__}
    return json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in fields.items()})
