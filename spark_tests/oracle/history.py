"""What clients did and saw in one run, written down while they do it.

What a client never learned (time-outs, broken connections) is *unknown*: it may have happened or not, and
either is right.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spark_tests.oracle.marked import Ids, Rows

Longs = NDArray[np.int64]

OFFSET_BITS: Final = 40
_PARTITION_BITS: Final = 12
#: Stream of reads that are in no particular order.
UNORDERED: Final = -1
#: Delivery count that nobody looked at.
UNCOUNTED: Final = -1


class History:
    """What clients did and saw. Thread-safe; rows come and stay as arrays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamps = itertools.count(1)
        self._queues: dict[str, int] = {}
        self._tables: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _COLUMNS}
        self._groups = 0
        self._group_outcomes: dict[int, tuple[bool, int]] = {}
        self._commits_asked: dict[int, int] = {}
        self._ranges: dict[tuple[object, ...], tuple[int, list[bytes]]] = {}
        self._replays_differ: list[str] = []
        self._notes: list[str] = []
        self.damaged = 0

    def stamp(self) -> int:
        """A moment: larger than all before."""
        return next(self._stamps)

    # -- sending -------------------------------------------------------------------------------------------

    def group(self) -> int:
        """Begins a set of messages that must arrive all or none."""
        with self._lock:
            self._groups += 1
            return self._groups

    def attempted(self, ids: Ids, group: int = 0) -> None:
        """These are about to be sent; until more is known their outcome is unknown. Again is allowed: a
        program that starts anew.
        """
        self._add("attempted", ids, group, self.stamp())

    def acknowledged(self, ids: Ids, queue: str = "", partitions: Any = -1, offsets: Any = -1) -> None:
        """These are promised, with their places where the promise names them."""
        with self._lock:
            places = self._place(queue, partitions, offsets) if queue else -1
        self._add("acknowledged", ids, places, self.stamp())

    def refused(self, ids: Ids) -> None:
        """These are certain not to be stored: refused, never sent, or discarded."""
        self._add("refused", ids)

    def group_committing(self, group: int) -> None:
        """The broker is about to be asked to make a set visible: until now nobody may read any of it. Again
        is allowed.
        """
        with self._lock:
            self._commits_asked.setdefault(group, self.stamp())

    def group_ended(self, group: int, *, committed: bool) -> None:
        """A set is certain to be visible as a whole, or never."""
        with self._lock:
            self._group_outcomes[group] = committed, self.stamp()

    # -- reading -------------------------------------------------------------------------------------------

    def read(
        self,
        queue: str,
        rows: Rows,
        began: int,
        stream: int = UNORDERED,
        *,
        falling: bool = False,
        counts: Any = UNCOUNTED,
    ) -> None:
        """These were handed over.

        Args:
            queue: where from.
            rows: in the order in which they came.
            began: a stamp from before the broker was asked.
            stream: number of a reading in which, per partition and priority, offsets only grow; from
                `new_stream`.
            falling: the queue is quiet, so in this stream the priority never rises either.
            counts: delivery counts, one for each row or one for all. They never fall.
        """
        with self._lock:
            self.damaged += rows.damaged
            places = self._place(queue, rows.partitions, rows.offsets)
        self._add("read", rows.ids, places, rows.priorities, began, stream, falling, counts, self.stamp())

    def new_stream(self) -> int:
        return self.stamp()

    def confirmed(self, queue: str, rows: Rows) -> None:
        """The broker has confirmed that these are done: they must never come again. Only what is certain."""
        with self._lock:
            places = self._place(queue, rows.partitions, rows.offsets)
        self._add("confirmed", places, self.stamp())

    def kept(self, ids: Ids) -> None:
        """These wait where they came from, found there at the very end: not lost. What was also read will
        come a second time.
        """
        self._add("kept", ids)

    def read_range(self, key: tuple[object, ...], rows: Rows) -> None:
        """A range that can be replayed was read to its end. The same key must bring the same rows, and no
        other key any of them.
        """
        content = [array.tobytes() for array in (rows.ids, rows.partitions, rows.offsets, rows.priorities)]
        with self._lock:
            number, before = self._ranges.setdefault(key, (len(self._ranges), content))
            if before != content:
                self._replays_differ.append(f"{key}: {len(before[0]) // 8} rows first, then {len(rows)}")
        self._add("range_read", rows.ids, number)

    def note(self, what: str) -> None:
        """Something that must not be, found on the way."""
        with self._lock:
            self._notes.append(what)

    # -- for `check` ---------------------------------------------------------------------------------------

    def table(self, name: str) -> dict[str, Longs]:
        """One kind of event as columns, in the order in which it was written down."""
        with self._lock:
            chunks = list(self._tables[name])
        columns = zip(*chunks, strict=True) if chunks else ([np.empty(0, np.int64)] for _ in _COLUMNS[name])
        return {column: np.concatenate(parts) for column, parts in zip(_COLUMNS[name], columns, strict=True)}

    def outcomes(self) -> dict[int, tuple[bool, int]]:
        """Sets whose end is certain: whether they were committed, and when that was learnt."""
        with self._lock:
            return dict(self._group_outcomes)

    def commits_asked(self) -> dict[int, int]:
        """When the commit of a set was asked for first. Empty where clients do not say."""
        with self._lock:
            return dict(self._commits_asked)

    def findings(self) -> tuple[list[str], list[str]]:
        """Ranges whose replays differ, and notes."""
        with self._lock:
            return list(self._replays_differ), list(self._notes)

    def place_name(self, place: int) -> str:
        """`orders/2@1042`."""
        queue = next(
            name
            for name, number in self._queues.items()
            if number == place >> (OFFSET_BITS + _PARTITION_BITS)
        )
        partition = (place >> OFFSET_BITS) & ((1 << _PARTITION_BITS) - 1)
        return f"{queue}/{partition}@{place & ((1 << OFFSET_BITS) - 1)}"

    def _add(self, name: str, *columns: Any) -> None:
        if len(columns[0]):
            rows = len(columns[0])
            chunk = tuple(
                np.array(c, np.int64) if np.ndim(c) else np.full(rows, c, np.int64) for c in columns
            )
            assert all(len(column) == rows for column in chunk), name
            with self._lock:
                self._tables[name].append(chunk)

    def _place(self, queue: str, partitions: Any, offsets: Any) -> Any:
        number = self._queues.setdefault(queue, len(self._queues))
        log = (number << _PARTITION_BITS) | np.asarray(partitions, np.int64)
        return (log << OFFSET_BITS) | np.asarray(offsets, np.int64)


_COLUMNS: Final = {
    "attempted": ("id", "group", "stamp"),
    "acknowledged": ("id", "place", "stamp"),
    "refused": ("id",),
    "read": ("id", "place", "priority", "began", "stream", "falling", "count", "stamp"),
    "confirmed": ("place", "stamp"),
    "range_read": ("id", "range"),
    "kept": ("id",),
}
