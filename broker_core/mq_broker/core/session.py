"""A connected consumer: its credit and the rows that it holds. It lives as long as its stream; nothing of it is on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pyroaring import BitMap64

from mq_broker.core.commands import RowsView
from mq_broker.core.lanes import Lanes
from mq_broker.core.log import FrameIndex
from mq_broker.core.selection import Selection
from mq_wire.errors import MqError
from mq_wire.v1.consume_pb2 import Asked


@dataclass(slots=True)
class Session:
    """`delivered` remembers the order of deliveries, so that rows the application never saw are not charged (semantics.md A.6)."""

    number: int
    destination: str
    batch_rows_max: int
    credit_rows: int
    credit_bytes: int
    deliver: Callable[[RowsView], None]
    tell: Callable[[Asked | MqError], None]
    #: What it says of itself, and where it came from: for operators.
    client: str = ""
    peer: str = ""
    held: dict[int, Lanes] = field(default_factory=dict)
    held_rows: int = 0
    #: Rows handed to the application so far: what was credited beyond the first grant.
    seen_rows: int = 0
    delivered: deque[tuple[int, Selection]] = field(default_factory=deque)
    #: Whose turn it is among the partitions.
    turn: int = 0

    def wants_rows(self) -> bool:
        return self.credit_rows > 0 and self.credit_bytes > 0

    def take(self, partition: int, selection: Selection, size_bytes: int) -> None:
        """Holds rows that are on their way to the consumer."""
        self.held.setdefault(partition, Lanes()).add(selection.lanes)
        self.held_rows += selection.rows
        self.credit_rows -= selection.rows
        self.credit_bytes -= size_bytes
        self.delivered.append((partition, selection))

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
        self._forget_delivered()

    def drop(self, partition: int, offsets: BitMap64, index: FrameIndex) -> None:
        """Lets go of rows that cannot be delivered, as if they had never been on their way: their credit comes back."""
        if partition not in self.held:
            return
        dropped = Selection.of((p, lane & offsets) for p, lane in self.held[partition].selection().lanes)
        if not dropped.rows:
            return
        self.credit_rows += dropped.rows
        self.credit_bytes += index.bytes_of(dropped)
        self.delivered = deque((p, rows.without(offsets) if p == partition else rows) for p, rows in self.delivered)
        self.held[partition].discard(offsets)
        self.held_rows -= dropped.rows

    def _forget_delivered(self) -> None:
        # The head of the record may go once nothing of it is held; it is the only part that can be long done.
        while self.delivered:
            partition, selection = self.delivered[0]
            lanes = self.held.get(partition)
            if lanes is not None and any(lanes.offsets[p].intersect(offsets) for p, offsets in selection.lanes):
                return
            self.delivered.popleft()
            self.seen_rows -= selection.rows

    def seen(self) -> dict[int, BitMap64]:
        """Returns, per partition, the held rows that were handed to the application."""
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
