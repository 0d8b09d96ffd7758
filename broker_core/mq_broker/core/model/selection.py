"""Rows of one partition in the order of their delivery."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyroaring import BitMap64

Lane = tuple[int, BitMap64]

#: Ranges of no more rows become a bitmap together, so many at a time.
_SPELLED_OUT_MAX: Final = 16
_RANGES_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Selection:
    """Lanes of (priority, offsets), highest priority first; within a lane by offset. The bitmaps are never
    changed.
    """

    lanes: tuple[Lane, ...]
    rows: int

    @classmethod
    def of(cls, lanes: Iterable[Lane]) -> Selection:
        """Returns the selection of `lanes` without the empty ones."""
        kept = tuple((priority, offsets) for priority, offsets in lanes if offsets)
        return cls(kept, sum(len(offsets) for _, offsets in kept))

    def slice(self, start: int, stop: int) -> Selection:
        """Returns rows [start, stop) in delivery order."""
        if start <= 0 and stop >= self.rows:
            return self
        taken, at = [], 0
        for priority, offsets in self.lanes:
            size = len(offsets)
            low, high = max(start - at, 0), min(stop - at, size)
            if low < high:
                taken.append((priority, offsets if high - low == size else cut(offsets, low, high)))
            at += size
        return Selection.of(taken)

    def without(self, offsets: BitMap64) -> Selection:
        """Returns the rows that are not among `offsets`."""
        return Selection.of((priority, lane - offsets) for priority, lane in self.lanes)

    def stretches(self, left_out: BitMap64) -> list[tuple[int, Selection]]:
        """Returns what lies between the rows of `left_out`: (place of the first row in this selection, rows),
        in delivery order.
        """
        left = self.without(left_out)
        if left.rows == self.rows:
            return [(0, self)]
        ordered = [
            np.isin(offsets_array(lane), offsets_array(left_out & lane), assume_unique=True)
            for _, lane in self.lanes
        ]
        edges = np.flatnonzero(np.diff(np.concatenate(([True], *ordered, [True]))))
        return [(start, self.slice(start, stop)) for start, stop in edges.reshape(-1, 2).tolist()]

    def offsets(self) -> BitMap64:
        """Returns all offsets as one bitmap, without their order."""
        return BitMap64().union(*(offsets for _, offsets in self.lanes)) if self.lanes else BitMap64()

    def span(self) -> tuple[int, int]:
        """Returns the lowest offset and the one after the highest. The selection must have rows."""
        return min(offsets.min() for _, offsets in self.lanes), max(
            offsets.max() for _, offsets in self.lanes
        ) + 1


def cut(offsets: BitMap64, low: int, high: int) -> BitMap64:
    """Returns offsets number [low, high). As slicing, a hundred times as fast where they are scattered."""
    return offsets & range_bitmap(offsets[low], offsets[high - 1] + 1) if low < high else BitMap64()


def remove(bitmap: BitMap64, offsets: BitMap64) -> None:
    """Takes `offsets`, of which there are some, out of `bitmap`; a range of them whatever its size."""
    low, stop = offsets.min(), offsets.max() + 1
    if stop - low == len(offsets):
        bitmap.remove_range(low, stop)
    else:
        bitmap -= offsets


def range_bitmap(start: int, stop: int) -> BitMap64:
    """Returns offsets [start, stop)."""
    bitmap = BitMap64()
    bitmap.add_range(start, stop)
    return bitmap


def ranges_bitmap(starts: np.ndarray, stops: np.ndarray) -> BitMap64:
    """Returns the offsets of all [starts[i], stops[i])."""
    bitmap = BitMap64()
    sizes = stops - starts
    short = sizes <= _SPELLED_OUT_MAX
    # Spelled out together, some at a time: one by one they would keep everybody else waiting.
    firsts, rows = starts[short], sizes[short]
    for at in range(0, len(firsts), _RANGES_AT_ONCE):
        some, counts = firsts[at : at + _RANGES_AT_ONCE], rows[at : at + _RANGES_AT_ONCE]
        ends = np.cumsum(counts)
        offsets = np.arange(int(ends[-1])) + np.repeat(some - (ends - counts), counts)
        bitmap.update(BitMap64(offsets.astype(np.uint64)))
    for start, stop in zip(starts[~short].tolist(), stops[~short].tolist(), strict=True):
        bitmap.add_range(start, stop)
    return bitmap


def ranges_of(offsets: BitMap64) -> list[tuple[int, int]]:
    """Returns the runs of consecutive offsets, as (first, last)."""
    if not offsets:
        return []
    array = offsets_array(offsets)
    breaks = np.flatnonzero(np.diff(array) != 1)
    return list(
        zip(
            array[np.append(0, breaks + 1)].tolist(),
            array[np.append(breaks, len(array) - 1)].tolist(),
            strict=True,
        )
    )


def shown(offsets: BitMap64, runs_max: int = 8) -> str:
    """Returns offsets for people: `3, 7-9 and 12 more`."""
    runs = ranges_of(offsets)
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:runs_max])
    left = sum(last - first + 1 for first, last in runs[runs_max:])
    return f"{text} and {left} more" if left else text


def offsets_array(offsets: BitMap64) -> np.ndarray:
    """Returns the offsets, ascending, as int64."""
    return np.asarray(offsets.to_array()).view(np.int64)
