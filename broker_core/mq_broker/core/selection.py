"""Rows of one partition in the order of their delivery."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap64

Lane = tuple[int, BitMap64]


@dataclass(frozen=True, slots=True)
class Selection:
    """Lanes of (priority, offsets), highest priority first; within a lane by offset. The bitmaps are never changed."""

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
                taken.append((priority, offsets if high - low == size else offsets[low:high]))
            at += size
        return Selection.of(taken)

    def offsets(self) -> BitMap64:
        """Returns all offsets as one bitmap, without their order."""
        return BitMap64().union(*(offsets for _, offsets in self.lanes)) if self.lanes else BitMap64()

    def span(self) -> tuple[int, int]:
        """Returns the lowest offset and the one after the highest. The selection must have rows."""
        return min(offsets.min() for _, offsets in self.lanes), max(offsets.max() for _, offsets in self.lanes) + 1


def range_bitmap(start: int, stop: int) -> BitMap64:
    """Returns offsets [start, stop)."""
    bitmap = BitMap64()
    bitmap.add_range(start, stop)
    return bitmap


def ranges_bitmap(starts: np.ndarray, stops: np.ndarray) -> BitMap64:
    """Returns the offsets of all [starts[i], stops[i])."""
    bitmap = BitMap64()
    single = stops - starts == 1
    if single.any():
        bitmap.update(BitMap64(starts[single].astype(np.uint64)))
    for start, stop in zip(starts[~single].tolist(), stops[~single].tolist(), strict=True):
        bitmap.add_range(start, stop)
    return bitmap


def offsets_array(offsets: BitMap64) -> np.ndarray:
    """Returns the offsets, ascending, as int64."""
    return np.asarray(offsets.to_array()).view(np.int64)
