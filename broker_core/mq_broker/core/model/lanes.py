"""The ready rows of one partition: a FIFO per priority, each a Roaring bitmap of offsets.

Rules: docs/rules.md, "Priority".
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Final, cast

import numpy as np
from pyroaring import BitMap64, FrozenBitMap64

from mq_broker.core.model.selection import Lane, Selection, cut
from mq_wire.limits import PRIORITIES

#: A lane that never had a row. There are ten in a partition and a bitmap takes 265 bytes, so all of them are
#: this one, which cannot change.
_EMPTY: Final = cast("BitMap64", FrozenBitMap64())


class Ready:
    """What is ready in all partitions of a destination: how many rows of each priority, and in which
    partitions. Never summed up.
    """

    __slots__ = ("counts", "partitions")

    def __init__(self) -> None:
        self.counts = [0] * PRIORITIES
        self.partitions: list[set[int]] = [set() for _ in range(PRIORITIES)]

    def everywhere(self) -> list[int]:
        """Returns the partitions that have any rows, in order."""
        return sorted(set().union(*self.partitions))

    def in_turn(self, priority: int, first: int) -> list[int]:
        """Returns the partitions that have rows of a priority, from `first` on and around."""
        numbers = sorted(self.partitions[priority])
        at = bisect.bisect_left(numbers, first)
        return numbers[at:] + numbers[:at]


class Lanes:
    """Ten bitmaps and their sizes: the size of a Roaring bitmap is not free, and dispatch asks for it all the
    time.
    """

    __slots__ = ("_all", "_partition", "counts", "offsets")

    def __init__(self) -> None:
        self.offsets = [_EMPTY] * PRIORITIES
        self.counts = [0] * PRIORITIES
        self._all: Ready | None = None
        self._partition = 0

    def join(self, all_: Ready, partition: int) -> None:
        """Counts these rows, now and later, as those of one partition of a destination."""
        self._all, self._partition = all_, partition
        if any(self.counts):
            counts, self.counts = self.counts, [0] * PRIORITIES
            for priority, rows in enumerate(counts):
                self._count(priority, rows)

    def _count(self, priority: int, rows: int) -> None:
        before = self.counts[priority]
        after = self.counts[priority] = before + rows
        if self._all is not None:
            self._all.counts[priority] += rows
            if not before and after:
                self._all.partitions[priority].add(self._partition)
            elif before and not after:
                self._all.partitions[priority].remove(self._partition)

    def _lane(self, priority: int) -> BitMap64:
        """Returns the lane to add rows to."""
        lane = self.offsets[priority]
        if lane is _EMPTY:
            lane = self.offsets[priority] = BitMap64()
        return lane

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def add_range(self, priority: int, start: int, stop: int) -> None:
        """Adds offsets [start, stop), none of which is there."""
        self._lane(priority).add_range(start, stop)
        self._count(priority, stop - start)

    def add_rows(self, base: int, priorities: int | np.ndarray, rows: int) -> None:
        """Adds offsets base, base + 1 ..., each to the lane of its priority."""
        if isinstance(priorities, int):
            self.add_range(priorities, base, base + rows)
            return
        present = np.bincount(priorities, minlength=PRIORITIES)
        for priority in np.flatnonzero(present).tolist():
            self._lane(priority).update(
                BitMap64(np.flatnonzero(priorities == priority).astype(np.uint64) + np.uint64(base))
            )
            self._count(priority, int(present[priority]))

    def add(self, lanes: Iterable[Lane]) -> None:
        """Adds rows that came back. What is there already counts once."""
        for priority, offsets in lanes:
            if offsets:
                lane = self._lane(priority)
                known = lane.intersection_cardinality(offsets)
                lane |= offsets
                self._count(priority, len(offsets) - known)

    def remove(self, lanes: Iterable[Lane]) -> None:
        """Removes what of these rows is there."""
        for priority, offsets in lanes:
            known = self.offsets[priority].intersection_cardinality(offsets)
            if known:
                self.offsets[priority] -= offsets
                self._count(priority, -known)

    def discard(self, offsets: BitMap64) -> None:
        """Removes what of `offsets` is there, whatever its priority."""
        for priority, count in enumerate(self.counts):
            if count:
                common = self.offsets[priority].intersection_cardinality(offsets)
                if common:
                    self.offsets[priority] -= offsets
                    self._count(priority, -common)

    def head(self, priority: int, rows: int, below: int | None = None) -> BitMap64:
        """Returns the first `rows` offsets of a lane, of those under `below`; they stay where they are."""
        lane = self.offsets[priority]
        if below is not None:
            rows = min(rows, lane.rank(below - 1) if below else 0)
        if rows < self.counts[priority]:
            return cut(lane, 0, rows)
        return lane.copy() if self.counts[priority] else BitMap64()

    def count_below(self, priority: int, below: int | None) -> int:
        """Returns how many offsets of the lane are under `below` (None = all)."""
        if below is None or not self.counts[priority]:
            return self.counts[priority]
        return self.offsets[priority].rank(below - 1) if below else 0

    def lanes(self) -> list[Lane]:
        """Returns the lanes that have rows, highest priority first: themselves, not copies."""
        return [(p, self.offsets[p]) for p in reversed(range(PRIORITIES)) if self.counts[p]]

    def selection(self) -> Selection:
        """Returns everything that is ready, as a copy."""
        return Selection.of((priority, offsets.copy()) for priority, offsets in self.lanes())

    def lowest(self) -> int | None:
        """Returns the lowest ready offset."""
        return min((self.offsets[p].min() for p in range(PRIORITIES) if self.counts[p]), default=None)


def choose(lanes: Sequence[Lanes], rows: int, below: Sequence[int | None] | None = None) -> list[Selection]:
    """Returns, per partition, the next `rows` rows in all: strictly by priority across partitions, within one
    in equal shares.

    Nothing is removed. `below` bounds the offsets per partition. An empty lane's share goes to the others.
    """
    bounds = below if below is not None else [None] * len(lanes)
    chosen: list[list[Lane]] = [[] for _ in lanes]
    for priority in reversed(range(PRIORITIES)):
        if rows <= 0:
            break
        available = [lane.count_below(priority, bound) for lane, bound in zip(lanes, bounds, strict=True)]
        if not any(available):
            continue
        for partition, share in enumerate(equal_shares(available, rows)):
            if share:
                chosen[partition].append(
                    (priority, lanes[partition].head(priority, share, bounds[partition]))
                )
                rows -= share
    return [Selection.of(parts) for parts in chosen]


def equal_shares(available: Sequence[int], total: int) -> list[int]:
    """Returns how much of `total` each gets: as equal as `available` allows, the rest to the first ones."""
    if sum(available) <= total:
        return list(available)
    shares = [0] * len(available)
    open_ = [i for i, n in enumerate(available) if n]
    while total and open_:
        each, rest = divmod(total, len(open_))
        if not each:
            for i in open_[:rest]:
                shares[i] += 1
            break
        for i in open_:
            step = min(each, available[i] - shares[i])
            shares[i] += step
            total -= step
        open_ = [i for i in open_ if shares[i] < available[i]]
    return shares
