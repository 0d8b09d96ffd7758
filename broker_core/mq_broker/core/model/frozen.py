"""What browse views have frozen. Equal parts of a queue are kept once, however many views show them; all of
it has a budget in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyroaring import BitMap64

from mq_broker.core.model.destination import Destination
from mq_broker.core.model.log import FrameIndex
from mq_broker.core.model.selection import Selection, range_bitmap
from mq_broker.core.model.subscription import lanes_of

#: Offsets of one chunk: a row that comes or goes between two views costs the later one 32 KiB at most.
_CHUNK_BITS: Final = 18
#: What an empty bitmap takes with its entries here; a lane in a view; a partition; and a view.
_BITMAP_BYTES: Final = 400
_LANE_BYTES: Final = 80
_PARTITION_BYTES: Final = 600
_VIEW_BYTES: Final = 1000
#: A partition in a view that is shared with others.
_SHARED_BYTES: Final = 110


@dataclass(slots=True)
class _Chunk:
    """Rows of one priority among 2^18 offsets. `rows_bytes` are the rows' own, estimated; `size_bytes` is
    what it takes in memory.
    """

    offsets: BitMap64
    rows_bytes: int
    size_bytes: int
    holders: int = 0


@dataclass(slots=True, eq=False)
class Frozen:
    """A partition as it was: every row that was not acknowledged. A view's lanes may come in several parts of
    one priority.
    """

    key: tuple[int, int]
    version: tuple[int, int]
    selection: Selection
    index: FrameIndex
    rows_bytes: int
    chunks: dict[tuple[int, int], _Chunk]
    views: int = 0


class Shelf:
    """All that browse views hold. `size_bytes` is what that takes beside the queues themselves."""

    def __init__(self) -> None:
        self.size_bytes = 0
        #: (destination, partition) -> what the last view of it shows.
        self._last: dict[tuple[int, int], Frozen] = {}
        #: Frame tables that are shown: in how many partitions, and what one takes that its queue has replaced
        #: since.
        self._tables: dict[int, list[int]] = {}

    def freeze(self, destination: Destination, number: int) -> Frozen | None:
        """Returns a partition as it is now, sharing with the last view of it what is as it was; None where no
        row is left.

        It is no view's yet: `hold` it, or nothing of it is counted.
        """
        key = (destination.number, number)
        version = (destination.queue.changes, destination.partitions[number].changes)
        last = self._last.get(key)
        if last is not None and last.version == version:
            return last
        chunks: dict[tuple[int, int], _Chunk] = {}
        index = destination.partitions[number].log.index()
        for priority, offsets in waiting(destination, number).lanes:
            for at, part in _parts(offsets):
                known = last.chunks.get((priority, at)) if last is not None else None
                chunks[priority, at] = (
                    known if known is not None and known.offsets == part else _chunk(index, priority, part)
                )
        if not chunks:
            return None
        selection = Selection.of((priority, chunk.offsets) for (priority, _), chunk in chunks.items())
        return Frozen(
            key, version, selection, index, sum(chunk.rows_bytes for chunk in chunks.values()), chunks
        )

    def cost(self, parts: list[Frozen]) -> int:
        """Returns how many bytes more there are when a view holds these."""
        new = [frozen for frozen in parts if not frozen.views]
        chunks = {
            id(chunk): chunk.size_bytes
            for frozen in new
            for chunk in frozen.chunks.values()
            if not chunk.holders
        }
        return (
            sum(chunks.values())
            + sum(_own_bytes(frozen) for frozen in new)
            + _VIEW_BYTES
            + _SHARED_BYTES * len(parts)
        )

    def hold(self, parts: list[Frozen]) -> None:
        """One more view shows these."""
        self.size_bytes += self.cost(parts)
        for frozen in parts:
            frozen.views += 1
            if frozen.views > 1:
                continue
            for chunk in frozen.chunks.values():
                chunk.holders += 1
            table = _table(frozen.index)
            before = self._last.get(frozen.key)
            if before is not None and _table(before.index) is not table:
                self._replaced(_table(before.index))
            self._tables.setdefault(id(table), [0, 0])[0] += 1
            self._last[frozen.key] = frozen

    def drop(self, parts: list[Frozen]) -> None:
        """A view that showed these is gone."""
        self.size_bytes -= _VIEW_BYTES + _SHARED_BYTES * len(parts)
        for frozen in parts:
            frozen.views -= 1
            if frozen.views:
                continue
            self.size_bytes -= _own_bytes(frozen)
            for chunk in frozen.chunks.values():
                chunk.holders -= 1
                if not chunk.holders:
                    self.size_bytes -= chunk.size_bytes
            table = id(_table(frozen.index))
            self._tables[table][0] -= 1
            if not self._tables[table][0]:
                self.size_bytes -= self._tables.pop(table)[1]
            if self._last.get(frozen.key) is frozen:
                del self._last[frozen.key]

    def _replaced(self, table: np.ndarray) -> None:
        """The queue has another table by now: views alone hold this one."""
        counted = self._tables[id(table)]
        if not counted[1]:
            counted[1] = table.nbytes
            self.size_bytes += table.nbytes


def _table(index: FrameIndex) -> np.ndarray:
    table: np.ndarray = index.frames if index.frames.base is None else index.frames.base
    return table


def _own_bytes(frozen: Frozen) -> int:
    return _PARTITION_BYTES + _LANE_BYTES * len(frozen.chunks)


def _chunk(index: FrameIndex, priority: int, offsets: BitMap64) -> _Chunk:
    rows_bytes = index.bytes_of(Selection.of([(priority, offsets)]))
    return _Chunk(offsets, rows_bytes, _BITMAP_BYTES + len(offsets.serialize()))


def _parts(offsets: BitMap64) -> Iterator[tuple[int, BitMap64]]:
    """Yields (number of the chunk, offsets in it)."""
    low, high = offsets.min(), offsets.max()
    while True:
        at = low >> _CHUNK_BITS
        end = (at + 1) << _CHUNK_BITS
        if end > high:
            yield at, offsets & range_bitmap(low, high + 1)
            return
        yield at, offsets & range_bitmap(low, end)
        low = offsets.next_set_bit(end)


def waiting(destination: Destination, number: int) -> Selection:
    """Returns every row of a partition that is not acknowledged, whoever holds it, by priority."""
    lanes = lanes_of(destination.queue.holders(number))
    return Selection.of(sorted(lanes.items(), reverse=True))
