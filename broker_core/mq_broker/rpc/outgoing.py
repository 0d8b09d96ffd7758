"""A bound on rows that were read for clients: a batch is read when there is room for it, and takes the room
until its client has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from mq_broker.core.commands import RowsView
from mq_broker.rpc.room import Hold, Room
from mq_wire.limits import RPC_BYTES_MAX

#: Memory of one message, in multiples of its size: header and records, and gRPC's copy.
_COPIES: Final = 2
#: Largest memory of one message; taken before reading when the size is not known.
_LARGEST: Final = _COPIES * RPC_BYTES_MAX
#: Smaller batches are not counted.
_SMALL_BYTES: Final = 64 << 10
#: In views with more rows, the sizes of frames are not added up.
_ROWS_LOOKED_AT: Final = 1024
#: How long a client need not read while others wait, if its connection has much of the room, and if it has
#: little.
_UNREAD_S: Final = 0.5
_UNREAD_WITH_FEW_S: Final = 10.0


def room_for_rows(limit: int) -> Room:
    """Returns the room of all streams, in bytes."""
    return Room(limit, _UNREAD_S, _UNREAD_WITH_FEW_S)


class Pace:
    """The room of one call: it has one batch at a time.

    Args:
        room: of all streams.
        hold: of the call.
        gone: whether the call has ended.
    """

    def __init__(self, room: Room, hold: Hold, gone: Callable[[], bool]) -> None:
        self._room, self._hold, self._gone = room, hold, gone

    def take(self, reckoned: int) -> None:
        """Takes room for a batch of at most `reckoned` bytes (`size_of`) that is to be read.

        Raises:
            Busy: the call ended while it waited.
        """
        if reckoned >= _SMALL_BYTES:
            self._room.take(self._hold, reckoned, self._gone)

    def correct(self, records: pa.Buffer) -> None:
        """A batch was read, of this size."""
        size = _COPIES * records.size
        self._room.correct(self._hold, size if size >= _SMALL_BYTES else 0)

    def give(self) -> None:
        """The batch was sent, or there was none: gives the room back."""
        self._room.correct(self._hold, 0)


def paced(
    pace: Pace, view: RowsView, batches: Iterator[tuple[Any, pa.Buffer]]
) -> Iterator[tuple[Any, pa.Buffer]]:
    """Yields the batches of `view`, each when there is room for it. A batch gives its room back when the next
    one is asked for.

    Raises:
        Busy: the call ended while it waited.
    """
    reckoned = size_of(view)
    while True:
        pace.take(reckoned)
        try:
            batch = next(batches, None)
            if batch is None:
                return
            pace.correct(batch[1])
            yield batch
        finally:
            pace.give()


def size_of(view: RowsView) -> int:
    """Returns the most memory that a message of a view's rows can take, from the sizes of their frames."""
    if view.selection.rows > _ROWS_LOOKED_AT:
        return _LARGEST
    size = 0
    for _, offsets in view.selection.lanes:
        first, counts = view.frames.rows_per_frame(offsets)
        sizes = view.frames.frames["size"][first : first + len(counts)]
        size += int(sizes[counts > 0].sum(dtype="i8"))
    return min(_COPIES * size, _LARGEST)
