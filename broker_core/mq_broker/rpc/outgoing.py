"""Rows on their way out: read when there is room for them, which lasts until who asked for them has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from mq_broker.core.commands import RowsView
from mq_broker.rpc.room import Hold, Room
from mq_wire.limits import RPC_BYTES_MAX

#: What one message takes: its records behind their header, and gRPC's own copy.
_COPIES: Final = 2
#: Reckoned before anything is read, when it may be as large as a message can be.
_LARGEST: Final = _COPIES * RPC_BYTES_MAX
#: Less is not counted.
_SMALL_BYTES: Final = 64 << 10
#: In a view with more rows nobody adds up frames.
_ROWS_LOOKED_AT: Final = 1024
#: How long a client need not read while others wait.
_UNREAD_S: Final = 0.5
_UNREAD_WITH_FEW_S: Final = 10.0


def room_for_rows(limit: int) -> Room:
    """Returns the room of all streams, in bytes."""
    return Room(limit, _UNREAD_S, _UNREAD_WITH_FEW_S)


def paced(
    room: Room, view: RowsView, batches: Iterator[tuple[Any, pa.Buffer]], hold: Hold, gone: Callable[[], bool]
) -> Iterator[tuple[Any, pa.Buffer]]:
    """Yields the batches of `view`, each when there is room for it; the next is asked for when it is on its
    way.

    Raises:
        Busy: the stream has ended while it waited, as `gone` says.
    """
    reckoned = size_of(view)
    while True:
        if reckoned >= _SMALL_BYTES:
            room.take(hold, reckoned, gone)
        try:
            batch = next(batches, None)
            if batch is None:
                return
            size = _COPIES * batch[1].size
            room.correct(hold, size if size >= _SMALL_BYTES else 0)
            yield batch
        finally:
            room.correct(hold, 0)


def size_of(view: RowsView) -> int:
    """Returns how many bytes a message of a view's rows may take in memory: those of their frames, and never
    more than the largest.
    """
    if view.selection.rows > _ROWS_LOOKED_AT:
        return _LARGEST
    size = 0
    for _, offsets in view.selection.lanes:
        first, counts = view.frames.rows_per_frame(offsets)
        sizes = view.frames.frames["size"][first : first + len(counts)]
        size += int(sizes[counts > 0].sum(dtype="i8"))
    return min(_COPIES * size, _LARGEST)
