"""A connected consumer: its credit and the rows that it holds. It lives as long as its stream; nothing of it
is on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from mq_broker.core.commands import RowsView
from mq_broker.core.model.lanes import Lanes
from mq_broker.core.model.log import FrameIndex
from mq_broker.core.model.selection import Selection
from mq_wire.errors import MqError
from mq_wire.v1.consume_pb2 import Asked, Drained

#: Deliveries whose order is remembered one by one; the older half of more of them is taken together.
_DELIVERIES_MAX: Final = 4096


@dataclass(slots=True)
class Outbox:
    """What a session was given and has not sent. Batches are counted as it sends them, bytes are estimated. A
    full one must be half empty before it takes more, so that not every batch that leaves is followed by a
    look for another one.
    """

    batches_max: int
    bytes_max: int
    batches: int = 0
    bytes: int = 0
    is_full: bool = False

    @property
    def batches_left(self) -> int:
        return self.batches_max - self.batches

    @property
    def delivery_bytes_max(self) -> int:
        """One delivery takes no more than this: the next ones are on their way while it is sent."""
        return self.bytes_max // 2

    def put(self, batches: int, size_bytes: int) -> None:
        self.batches += batches
        self.bytes += size_bytes
        self.is_full = self.batches >= self.batches_max or self.bytes >= self.bytes_max

    def take(self, batches: int, size_bytes: int) -> bool:
        """Returns whether there is room again since this was sent."""
        self.batches -= batches
        self.bytes -= size_bytes
        if not self.is_full or self.batches > self.batches_max // 2 or self.bytes > self.bytes_max // 2:
            return False
        self.is_full = False
        return True


@dataclass(slots=True)
class Session:
    """`delivered` remembers the order of deliveries, so that rows the application never saw are not charged
    (docs/rules.md, "Two counts of a row").
    """

    number: int
    destination: str
    batch_rows_max: int
    credit_rows: int
    credit_bytes: int
    deliver: Callable[[RowsView], None]
    tell: Callable[[Asked | Drained | MqError], None]
    outbox: Outbox
    #: What it says of itself, and where it came from: for operators.
    client: str = ""
    peer: str = ""
    held: dict[int, Lanes] = field(default_factory=dict)
    held_rows: int = 0
    #: Rows handed to the application so far, by its credit: what was granted beyond the first grant.
    seen_rows: int = 0
    #: Rows handed to the application and still held, by partition, as its client reports them; None where it
    #: reports none.
    handed: dict[int, BitMap64] | None = None
    delivered: deque[tuple[int, Selection]] = field(default_factory=deque)
    #: Whose turn it is among the partitions.
    turn: int = 0
    #: Of `Ask`, not answered yet. Bounded by who submits them.
    questions: deque[int] = field(default_factory=deque)

    def wants_rows(self) -> bool:
        return self.credit_rows > 0 and self.credit_bytes > 0

    def take(self, partition: int, selection: Selection, size_bytes: int) -> None:
        """Holds rows that are on their way to the consumer."""
        self.held.setdefault(partition, Lanes()).add(selection.lanes)
        self.held_rows += selection.rows
        self.credit_rows -= selection.rows
        self.credit_bytes -= size_bytes
        self.outbox.put(self._batches(selection.rows), size_bytes)
        if self.handed is not None:
            return
        self.delivered.append((partition, selection))
        if len(self.delivered) > _DELIVERIES_MAX:
            self._shorten_delivered()

    def sent(self, rows: int, size_bytes: int) -> bool:
        """A delivery has left the outbox; returns whether that has room again."""
        return self.outbox.take(self._batches(rows), size_bytes)

    def _batches(self, rows: int) -> int:
        return -(-rows // self.batch_rows_max)

    def _shorten_delivered(self) -> None:
        """Takes the older half together, by partition and priority: which of *these* rows was seen before
        which is not known any more.
        """
        rows: dict[int, dict[int, BitMap64]] = {}
        for _ in range(_DELIVERIES_MAX // 2):
            partition, selection = self.delivered.popleft()
            lanes = rows.setdefault(partition, {})
            for priority, offsets in selection.lanes:
                if priority in lanes:
                    lanes[priority] |= offsets
                else:
                    lanes[priority] = offsets.copy()
        together = [
            (partition, Selection.of(sorted(lanes.items(), reverse=True)))
            for partition, lanes in sorted(rows.items())
        ]
        self.delivered.extendleft(reversed(together))

    def report(self) -> None:
        """From now on its client says exactly what was handed over; until now its credit told."""
        if self.handed is None:
            self.handed = self.seen()
            self.delivered.clear()

    def hand_over(self, partition: int, offsets: BitMap64) -> None:
        """The application was handed these rows; those that it does not hold any more do not matter."""
        self.report()
        assert self.handed is not None
        if held := offsets - self.missing(partition, offsets):
            self.handed[partition] = self.handed.get(partition, BitMap64()) | held

    def missing(self, partition: int, offsets: BitMap64) -> BitMap64:
        """Returns those of `offsets` that this session does not hold."""
        left = offsets
        for lane in self.held[partition].offsets if partition in self.held else ():
            left = left - lane
        return left

    def release(self, partition: int, offsets: BitMap64) -> None:
        """Lets go of rows, all of which it holds."""
        lanes = self.held[partition]
        before = lanes.rows
        lanes.discard(offsets)
        self.held_rows -= before - lanes.rows
        self._forget_handed(partition, offsets)
        self._forget_delivered()

    def _forget_handed(self, partition: int, offsets: BitMap64) -> None:
        if self.handed is not None and partition in self.handed:
            self.handed[partition] -= offsets
            if not self.handed[partition]:
                del self.handed[partition]

    def drop(self, partition: int, offsets: BitMap64, index: FrameIndex) -> None:
        """Lets go of rows that cannot be delivered, as if they had never been on their way: their credit
        comes back.
        """
        if partition not in self.held:
            return
        dropped = Selection.of((p, lane & offsets) for p, lane in self.held[partition].selection().lanes)
        if not dropped.rows:
            return
        self.credit_rows += dropped.rows
        self.credit_bytes += index.bytes_of(dropped)
        self.delivered = deque(
            (p, rows.without(offsets) if p == partition else rows) for p, rows in self.delivered
        )
        self.held[partition].discard(offsets)
        self.held_rows -= dropped.rows
        self._forget_handed(partition, offsets)

    def _forget_delivered(self) -> None:
        # The head of the record may go once nothing of it is held; it is the only part that can be long done.
        while self.delivered:
            partition, selection = self.delivered[0]
            lanes = self.held.get(partition)
            if lanes is not None and any(
                lanes.offsets[p].intersect(offsets) for p, offsets in selection.lanes
            ):
                return
            self.delivered.popleft()
            self.seen_rows -= selection.rows

    def held_by_partition(self, unsent: tuple[RowsView, ...] = ()) -> dict[int, BitMap64]:
        """Returns the rows that it holds, without those of views that never left."""
        rows = {partition: BitMap64().union(*lanes.offsets) for partition, lanes in self.held.items()}
        for view in unsent:
            rows[view.partition] -= view.selection.offsets()
        return {partition: offsets for partition, offsets in rows.items() if offsets}

    def seen(self) -> dict[int, BitMap64]:
        """Returns, per partition, the held rows that were handed to the application, as far as it is
        known.
        """
        if self.handed is not None:
            return dict(self.handed)
        rows: dict[int, BitMap64] = {}
        left = self.seen_rows
        for partition, selection in self.delivered:
            if left <= 0:
                break
            shown = selection.slice(0, left).offsets()
            left -= selection.rows
            held = BitMap64().union(*self.held[partition].offsets)
            if common := shown & held:
                rows[partition] = rows.get(partition, BitMap64()) | common
        return rows
