"""Cuts what one micro-batch reads into Spark tasks.

A task costs about 12 ms before it reads a row, so few rows go into one task, and many partitions with few
rows each share tasks; large ranges are one task per broker partition, or more where `minPartitions` and
`maxRecordsPerPartition` say so.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

#: Up to here another task costs more than it saves.
TASK_ROWS_SMALL: Final = 50_000
TASK_BYTES_SMALL: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Numbers [first, last) of one broker partition that hold `rows` rows of about `bytes` bytes together."""

    partition: int
    first: int
    last: int
    rows: int
    bytes: int

    def split(self, pieces: int) -> list[Part]:
        """Returns up to `pieces` parts of about equally many numbers."""
        numbers = self.last - self.first
        pieces = max(1, min(pieces, numbers))
        edges = [self.first + numbers * i // pieces for i in range(pieces + 1)]
        return [
            Part(self.partition, first, last, -(-self.rows // pieces), -(-self.bytes // pieces))
            for first, last in pairwise(edges)
        ]


def plan_tasks(
    parts: Iterable[Part], min_partitions: int = 0, max_records_per_partition: int = 0
) -> list[tuple[Part, ...]]:
    """Returns the tasks for `parts`, each with the parts that it reads one after the other; parts without
    rows are left out.

    Args:
        parts: in the order of their partitions.
        min_partitions: at least so many tasks where there are as many numbers; 0 = no wish.
        max_records_per_partition: no task reads more numbers than this; 0 = no limit.
    """
    filled = [part for part in parts if part.rows]
    if max_records_per_partition:
        pieces = [
            piece
            for part in filled
            for piece in part.split(-(-(part.last - part.first) // max_records_per_partition))
        ]
        tasks = _group(pieces, max_records_per_partition)
    else:
        pieces = filled
        tasks = _group(pieces, TASK_ROWS_SMALL)
    if len(tasks) < min_partitions:
        tasks = [(piece,) for piece in _split_until(pieces, min_partitions)]
    return tasks


def _group(parts: Sequence[Part], rows_max: int) -> list[tuple[Part, ...]]:
    """Puts small neighbours together while they stay small together."""
    rows_small = min(rows_max, TASK_ROWS_SMALL)
    tasks: list[tuple[Part, ...]] = []
    group: list[Part] = []
    rows = size = 0
    for part in parts:
        numbers = part.last - part.first
        if group and (rows + numbers > rows_small or size + part.bytes > TASK_BYTES_SMALL):
            tasks.append(tuple(group))
            group, rows, size = [], 0, 0
        group.append(part)
        rows, size = rows + numbers, size + part.bytes
    if group:
        tasks.append(tuple(group))
    return tasks


def _split_until(parts: Sequence[Part], wanted: int) -> list[Part]:
    """Cuts the largest parts until there are `wanted`, or nothing is left to cut."""
    heap = [(-(part.last - part.first), index, 1) for index, part in enumerate(parts)]
    heapq.heapify(heap)
    pieces = [1] * len(parts)
    for _ in range(wanted - len(parts)):
        if not heap:
            break
        _, index, count = heapq.heappop(heap)
        numbers = parts[index].last - parts[index].first
        if count < numbers:
            pieces[index] = count + 1
            heapq.heappush(heap, (-numbers // (count + 1), index, count + 1))
    return [piece for part, count in zip(parts, pieces, strict=True) for piece in part.split(count)]
