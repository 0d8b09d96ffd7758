"""What was handed to the application and not acknowledged, in the order of its delivery: the memory behind
cumulative acknowledgement.

Exact acknowledgements are only noted here, and taken out when that pays or when somebody asks, a whole array
at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]

#: Acknowledged rows that may stay noted before they are taken out.
_NOTED_MAX: Final = 1 << 16


class Ranges(NamedTuple):
    """Offsets as half-open ranges, ascending and apart: `first[i]` to `last[i]` - 1."""

    first: Offsets
    last: Offsets

    @classmethod
    def of(cls, offsets: Offsets) -> Ranges:
        """Returns the ranges of offsets in any order, each counted once."""
        if (
            len(offsets)
            and offsets[-1] - offsets[0] + 1 == len(offsets)
            and (len(offsets) == 1 or (np.diff(offsets) == 1).all())
        ):
            return cls(offsets[:1], offsets[-1:] + 1)
        return cls.union([cls(offsets, offsets + 1)])

    @classmethod
    def union(cls, parts: list[Ranges]) -> Ranges:
        """Returns the ranges that cover all of `parts`; those that touch become one."""
        if len(parts) == 1 and len(parts[0].first) == 1:
            return parts[0]
        first = np.concatenate([part.first for part in parts])
        last = np.concatenate([part.last for part in parts])
        order = np.argsort(first, kind="stable")
        first, reach = first[order], np.maximum.accumulate(last[order])
        begins = np.ones(len(first), np.bool_)
        begins[1:] = first[1:] > reach[:-1]
        return cls(first[begins], reach[np.append(np.flatnonzero(begins[1:]), len(first) - 1)])

    @property
    def rows(self) -> int:
        """How many offsets they cover."""
        return int((self.last - self.first).sum())

    def holds(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Returns for each offset whether it is in a range."""
        at = np.searchsorted(self.first, offsets, "right") - 1
        return (at >= 0) & (offsets < self.last[at])

    def to_bytes(self) -> bytes:
        """Returns them as they travel: pairs of little-endian int64."""
        return np.stack([self.first, self.last], axis=1).astype("<i8").tobytes()


class _Entry(NamedTuple):
    """What is left of one delivery: offsets, and their rows in it."""

    serial: int
    offsets: Offsets
    rows: NDArray[np.int64]


class Outstanding:
    """Of one session."""

    __slots__ = ("_entries", "_noted", "_noted_rows")

    def __init__(self) -> None:
        self._entries: dict[int, deque[_Entry]] = {}
        self._noted: dict[int, list[Ranges]] = {}
        self._noted_rows = 0

    def hand_over(self, serial: int, partition: int, offsets: Offsets) -> None:
        """Notes that the application has, or is about to have, the rows of a delivery."""
        self._entries.setdefault(partition, deque()).append(_Entry(serial, offsets, np.arange(len(offsets))))

    def acknowledged(self, partition: int, ranges: Ranges) -> None:
        """Notes that these offsets were acknowledged, exactly."""
        self._noted.setdefault(partition, []).append(ranges)
        self._noted_rows += ranges.rows
        if self._noted_rows >= _NOTED_MAX:
            for each in list(self._noted):
                self._take_out(each)

    def up_to(self, partition: int, serial: int, row: int) -> Ranges | None:
        """Takes out all that was handed over up to and with this row of this delivery, and returns it; None
        where nothing is left.
        """
        self._take_out(partition)
        entries = self._entries.get(partition, deque())
        taken: list[Offsets] = []
        while entries and entries[0].serial < serial:
            taken.append(entries.popleft().offsets)
        if entries and entries[0].serial == serial:
            entry = entries.popleft()
            count = int(np.searchsorted(entry.rows, row, "right"))
            if count:
                taken.append(entry.offsets[:count])
            if count < len(entry.rows):
                entries.appendleft(_Entry(serial, entry.offsets[count:], entry.rows[count:]))
        return Ranges.union([Ranges.of(offsets) for offsets in taken]) if taken else None

    def _take_out(self, partition: int) -> None:
        noted = self._noted.pop(partition, None)
        if noted is None:
            return
        done = Ranges.union(noted)
        self._noted_rows -= sum(ranges.rows for ranges in noted)
        kept: deque[_Entry] = deque()
        for entry in self._entries.get(partition, ()):
            left = ~done.holds(entry.offsets)
            if left.all():
                kept.append(entry)
            elif left.any():
                kept.append(_Entry(entry.serial, entry.offsets[left], entry.rows[left]))
        self._entries[partition] = kept
