"""Reports of many runs as one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_tests.oracle.judge import Report

_COLUMNS: Final = (
    "run",
    "attempted",
    "acknowledged",
    "ok",
    "recovered",
    "unknown",
    "lost",
    "prefix/middle/postfix",
    "duplicated",
    "unexpected",
    "out of order",
    "other findings",
    "reads",
)


def summary(reports: Mapping[str, Report]) -> str:
    """Returns a table with one line per run, and the findings of those that have any."""
    return "\n".join(
        [table([_COLUMNS, *(_row(name, report) for name, report in reports.items())]), *_findings(reports)]
    )


def _row(name: str, report: Report) -> tuple[str, ...]:
    other = (
        sum(report.wrong.values())
        - sum(report.lost)
        - report.duplicated
        - report.unexpected
        - report.out_of_order
    )
    counts = (
        report.attempted,
        report.acknowledged,
        report.ok,
        report.recovered,
        report.unknown,
        sum(report.lost),
    )
    found = (report.duplicated, report.unexpected, report.out_of_order, other, report.reads)
    return (name, *map(_grouped, counts), "/".join(map(str, report.lost)), *map(_grouped, found))


def _findings(reports: Mapping[str, Report]) -> list[str]:
    return [f"{name}: {report}" for name, report in reports.items() if report.wrong]


def _grouped(count: int) -> str:
    return f"{count:,}"


def table(rows: list[tuple[str, ...]]) -> str:
    """Returns rows of cells as aligned text: the first row is the heading, the first column is left-aligned
    like all words.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
