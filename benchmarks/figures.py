"""Figures: medians of several rounds, against the floors that this project sets itself, as a table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Figure:
    """One measured quantity.

    Attributes:
        floor: what it should be at least, or at most where `at_most`; None = for information.
        rounds: one value a round.
    """

    name: str
    unit: str
    floor: float | None = None
    at_most: bool = False
    note: str = ""
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def good(self) -> bool:
        if self.floor is None:
            return True
        return self.median <= self.floor if self.at_most else self.median >= self.floor


def measure(figure: Figure, rounds: int, run: Callable[[], float]) -> Figure:
    """Fills a figure with `rounds` values of `run`, behind one that is dropped: the first is always
    colder.
    """
    run()
    for _ in range(rounds):
        figure.rounds.append(run())
        sys.stderr.write(f"  {figure.name}: {shown(figure.rounds[-1])} {figure.unit}\n")
    return figure


def shown(value: float) -> str:
    """A number as people read it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(figures: list[Figure]) -> str:
    """All figures with median, range, floor and verdict, as aligned text."""
    rows = [("", "median", "lowest", "highest", "unit", "floor", "", "")]
    for figure in figures:
        floor = "" if figure.floor is None else f"{'<=' if figure.at_most else '>='} {shown(figure.floor)}"
        verdict = (
            ""
            if figure.floor is None
            else "ok"
            if figure.good
            else "BELOW"
            if not figure.at_most
            else "ABOVE"
        )
        values = (shown(figure.median), shown(min(figure.rounds)), shown(max(figure.rounds)))
        rows.append((figure.name, *values, figure.unit, floor, verdict, figure.note))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = {0, 4, 6, 7}
    lines = []
    for row in rows:
        padded = enumerate(zip(row, widths, strict=True))
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width) for column, (cell, width) in padded
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
