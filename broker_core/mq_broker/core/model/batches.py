"""The batches of one staged set, as NumPy columns: there may be a million of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mq_broker.core.model.facets import Facets
from mq_broker.core.model.log import FRAME, KeptPlace, Place
from mq_wire.limits import AUDIT_RANGES
from mq_wire.store.v1.store_pb2 import Records, Staged

#: `priority` -1 = the rows differ; `before` = the batch before it of the same partition, -1 = it is the
#: first one.
BATCH: Final = np.dtype(
    [
        ("destination", "<u4"),
        ("partition", "<u4"),
        ("first_sequence", "<u8"),
        ("rows", "<u4"),
        ("columns", "<u4"),
        ("records_crc", "<u4"),
        ("segment", "<u8"),
        ("position", "<u8"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("before", "<i4"),
        ("priority_plus_one", "<u4"),
        ("priority", "<i1"),
    ]
)
_NONE: Final = np.zeros(0, BATCH)
_PARTITION_BITS: Final = 32
_PARTITION_MASK: Final = (1 << _PARTITION_BITS) - 1


def _key(destination: int, partition: int) -> int:
    return destination << _PARTITION_BITS | partition


@dataclass(frozen=True, slots=True)
class StagedFrame:
    """One batch of a set. `entry` has what is its own; what all batches of the set have in common is left
    out.
    """

    entry: Staged
    place: Place
    facets: Facets


class Batches:
    """The batches of a set in the order of their arrival. Iterating yields a `StagedFrame` for each."""

    __slots__ = ("_count", "_last", "_table", "priorities")

    def __init__(self) -> None:
        self._table = _NONE
        self._count = 0
        #: Destination and partition -> the last batch for it.
        self._last: dict[int, int] = {}
        #: Batch -> the priority of each row, where they differ.
        self.priorities: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StagedFrame]:
        for at, known in enumerate(self.table.tolist()):
            batch = dict(zip(BATCH.names or (), known, strict=True))
            yield StagedFrame(
                Staged(
                    destination=batch["destination"],
                    partition=batch["partition"],
                    records=Records(
                        rows=batch["rows"],
                        columns=batch["columns"],
                        priority_plus_one=batch["priority_plus_one"],
                    ),
                    first_sequence=batch["first_sequence"],
                    records_crc=batch["records_crc"],
                ),
                KeptPlace(batch["segment"], batch["position"], batch["size"], batch["crc"]),
                Facets(self.priorities[at] if batch["priority"] < 0 else batch["priority"]),
            )

    @property
    def table(self) -> np.ndarray:
        """All batches, one row each (`BATCH`): a view, not to be changed."""
        return self._table[: self._count]

    def add(self, entry: Staged, place: Place, facets: Facets) -> None:
        """Adds a batch at the end."""
        at, key = self._count, _key(entry.destination, entry.partition)
        if at == len(self._table):
            grown = np.zeros(at + max(1, at // 2), BATCH)
            grown[:at] = self._table
            self._table = grown
        records = entry.records
        self._table[at] = (
            entry.destination,
            entry.partition,
            entry.first_sequence,
            records.rows,
            records.columns,
            entry.records_crc,
            place.segment,
            place.position,
            place.size,
            place.crc,
            self._last.get(key, -1),
            records.priority_plus_one,
            facets.frame_priority,
        )
        if facets.frame_priority < 0:
            # A copy: the column of a request would keep the whole request in memory.
            self.priorities[at] = np.array(facets.priority, np.int8)
        self._last[key] = at
        self._count += 1

    def move(self, entry: Staged, place: Place) -> None:
        """Points a batch to a copy of it; one that is not there is left out."""
        table = self.table
        for at in np.flatnonzero(
            (table["destination"] == entry.destination)
            & (table["partition"] == entry.partition)
            & (table["first_sequence"] == entry.first_sequence)
        ).tolist():
            for name in ("segment", "position", "size", "crc"):
                table[name][at] = getattr(place, name)

    def next_sequence(self, destination: int, partition: int) -> int:
        """Returns the sequence number of the next row for a partition."""
        at = self._last.get(_key(destination, partition))
        return 0 if at is None else int(self._table["first_sequence"][at]) + int(self._table["rows"][at])

    def newest(self, destination: int, partition: int) -> Iterator[tuple[int, int, int]]:
        """Yields first sequence number, rows and checksum of the last batches for a partition, the newest
        first: as many as are recognised when they come again.
        """
        at, table = self._last.get(_key(destination, partition), -1), self._table
        for _ in range(AUDIT_RANGES):
            if at < 0:
                return
            batch = table[at]
            yield int(batch["first_sequence"]), int(batch["rows"]), int(batch["records_crc"])
            at = int(batch["before"])

    @property
    def partitions(self) -> int:
        """How many partitions have rows of the set."""
        return len(self._last)

    def ends(self) -> Iterator[tuple[int, int, int]]:
        """Yields (destination, partition, rows), in the order of the first batches for each."""
        for key in self._last:
            destination, partition = key >> _PARTITION_BITS, key & _PARTITION_MASK
            yield destination, partition, self.next_sequence(destination, partition)


#: Rows of a partition in the order of their offsets: so many of one priority, or with these priorities.
Runs = list[tuple[int | np.ndarray, int]]


def in_partitions(sets: Sequence[Batches], time_us: int) -> Iterator[tuple[int, int, np.ndarray, Runs]]:
    """Yields the batches of sets, one behind the other, by partition: (destination, partition, frames without
    base offsets, priorities).
    """
    if not sets:
        return
    table = np.concatenate([batches.table for batches in sets])
    starts = np.cumsum([0, *(len(batches) for batches in sets)]).tolist()
    mixed = {
        start + at: priorities
        for start, batches in zip(starts, sets, strict=False)
        for at, priorities in batches.priorities.items()
    }
    keys = table["destination"].astype(np.uint64) << np.uint64(_PARTITION_BITS) | table["partition"]
    order = np.argsort(keys, kind="stable")
    table, keys = table[order], keys[order]
    frames = np.zeros(len(table), FRAME)
    for name in ("columns", "segment", "position", "size", "crc", "priority", "rows"):
        frames[name] = table[name]
    frames["span"], frames["time_us"] = table["rows"], time_us
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    runs, begins = _runs(table, order, mixed, is_first)
    edges = [*np.flatnonzero(is_first).tolist(), len(keys)]
    of_runs = np.searchsorted(begins, edges).tolist()
    for at, (first, last) in enumerate(itertools.pairwise(edges)):
        key = int(keys[first])
        yield (
            key >> _PARTITION_BITS,
            key & _PARTITION_MASK,
            frames[first:last],
            runs[of_runs[at] : of_runs[at + 1]],
        )


def _runs(
    table: np.ndarray, numbers: np.ndarray, mixed: dict[int, np.ndarray], is_first: np.ndarray
) -> tuple[Runs, np.ndarray]:
    """Returns all runs, and which batch each begins with; `is_first` = the batch is the first one of its
    partition.
    """
    priorities = table["priority"]
    differs = is_first | (priorities < 0)
    differs[1:] |= priorities[1:] != priorities[:-1]
    begins = np.flatnonzero(differs)
    rows = np.add.reduceat(table["rows"].astype(np.int64), begins).tolist()
    found = zip(priorities[begins].tolist(), numbers[begins].tolist(), rows, strict=True)
    return [(mixed[number] if priority < 0 else priority, count) for priority, number, count in found], begins
