"""Rows on their way out: a budget of bytes for what was read and is not taken yet by who asked for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from mq_broker.core.commands import RowsView
from mq_wire.errors import Busy
from mq_wire.limits import RPC_BYTES_MAX

#: What one message takes: its records, a copy behind their header, and gRPC's own.
_COPIES: Final = 2
#: Reckoned before anything is read, when it may be as large as a message can be.
_LARGEST: Final = _COPIES * RPC_BYTES_MAX
#: Less is not counted.
_SMALL_BYTES: Final = 64 << 10
#: In a view with more rows nobody adds up frames.
_ROWS_LOOKED_AT: Final = 1024
#: Who waits for room looks so often whether somebody does not read.
_LOOK_S: Final = 0.1
#: Where others wait, a connection that has a quarter of the budget has so long to read, any other one so long.
_UNREAD_S: Final = 0.5
_UNREAD_FEW_S: Final = 10.0


class _Hold:
    """What one stream has taken."""

    __slots__ = ("amount", "cancel", "peer", "since")

    def __init__(self, peer: str, cancel: Callable[[], object]) -> None:
        self.peer, self.cancel = peer, cancel
        self.amount = 0
        self.since = 0.0


class _Waiter:
    __slots__ = ("amount", "event", "hold")

    def __init__(self, hold: _Hold, amount: int) -> None:
        self.hold, self.amount, self.event = hold, amount, threading.Event()


class Outgoing:
    """The budget of all streams. Room goes first to the connection that has least.

    Who does not read keeps its room from nobody for long: where others wait for it, its stream is cancelled, and may be opened anew.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._of_peer: Counter[str] = Counter()
        self._holds: dict[_Hold, None] = {}
        self._waiters: list[_Waiter] = []
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are read and not taken."""
        return self._used

    def paced(
        self, view: RowsView, batches: Iterator[tuple[Any, pa.Buffer]], peer: str, cancel: Callable[[], object], gone: Callable[[], bool]
    ) -> Iterator[tuple[Any, pa.Buffer]]:
        """Yields `batches`, each when there is room for it; the next is asked for when it is on its way.

        Args:
            view: where they come from.
            peer: whose stream it is.
            cancel: ends the stream.
            gone: whether the stream has ended.

        Raises:
            Busy: the stream has ended while it waited.
        """
        reckoned = size_of(view)
        hold = _Hold(peer, cancel)
        while True:
            self._take(hold, reckoned, gone)
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                self._correct(hold, _COPIES * batch[1].size)
                yield batch
            finally:
                self._correct(hold, 0)

    def _take(self, hold: _Hold, amount: int, gone: Callable[[], bool]) -> None:
        if amount < _SMALL_BYTES:
            return
        with self._lock:
            if not self._waiters and self._fits(amount):
                self._give(hold, amount)
                return
            waiter = _Waiter(hold, amount)
            self._waiters.append(waiter)
        while not waiter.event.wait(_LOOK_S):
            with self._lock:
                if waiter.event.is_set():
                    break
                if gone():
                    self._waiters.remove(waiter)
                    raise Busy("the stream ended before there was room for its rows: open another one")
                unread = self._unread()
            for cancel in unread:
                cancel()

    def _fits(self, amount: int) -> bool:
        return not self._used or self._used + amount <= self._limit

    def _give(self, hold: _Hold, amount: int) -> None:
        self._used += amount
        self._of_peer[hold.peer] += amount
        hold.amount, hold.since = amount, time.monotonic()
        self._holds[hold] = None

    def _unread(self) -> list[Callable[[], object]]:
        """Returns what cancels the streams whose clients do not read."""
        now = time.monotonic()
        found = []
        for hold in self._holds:
            patience = _UNREAD_S if self._of_peer[hold.peer] > self._limit // 4 else _UNREAD_FEW_S
            if now - hold.since > patience:
                found.append(hold.cancel)
        return found

    def _correct(self, hold: _Hold, amount: int) -> None:
        """What was reckoned is known now, or is gone."""
        if not hold.amount:
            return
        amount = 0 if amount < _SMALL_BYTES else amount
        with self._lock:
            self._used += amount - hold.amount
            self._of_peer[hold.peer] += amount - hold.amount
            hold.amount = amount
            if not amount:
                del self._holds[hold]
                if not self._of_peer[hold.peer]:
                    del self._of_peer[hold.peer]
            while self._waiters:
                first = min(self._waiters, key=lambda waiter: self._of_peer[waiter.hold.peer])
                if not self._fits(first.amount):
                    return
                self._waiters.remove(first)
                self._give(first.hold, first.amount)
                first.event.set()


def size_of(view: RowsView) -> int:
    """Returns how many bytes a message of a view's rows may take in memory: those of their frames, and never more than the largest."""
    if view.selection.rows > _ROWS_LOOKED_AT:
        return _LARGEST
    size = 0
    for _, offsets in view.selection.lanes:
        first, counts = view.frames.rows_per_frame(offsets)
        sizes = view.frames.frames["size"][first : first + len(counts)]
        size += int(sizes[counts > 0].sum(dtype="i8"))
    return min(_COPIES * size, _LARGEST)
