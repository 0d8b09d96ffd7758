"""A budget of bytes for what slow clients may block: requests that are being received, and rows that are
being sent.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from mq_wire.errors import Busy

#: Seconds between two checks by a waiting call for clients that do not go on.
_LOOK_S: Final = 0.1


class Hold:
    """The amount that one call has taken. `cancel` ends the call; it is None while the call waits for the
    broker.
    """

    __slots__ = ("amount", "cancel", "peer", "since")

    def __init__(self, peer: str, cancel: Callable[[], object]) -> None:
        self.peer = peer
        self.cancel: Callable[[], object] | None = cancel
        self.amount = 0
        self.since = 0.0


class _Waiter:
    __slots__ = ("amount", "event", "hold")

    def __init__(self, hold: Hold, amount: int) -> None:
        self.hold, self.amount, self.event = hold, amount, threading.Event()


class Room:
    """The budget. The connection that has least gets room first.

    A client that does not go on cannot block room for long: if other calls wait for room, its call is
    cancelled. The client may make the call again.

    Args:
        limit: bytes.
        patience_s: seconds until a call is cancelled, if its connection has more than a quarter of the room.
        patience_with_few_s: the same for a connection with less. Both are shorter when more connections wait.
    """

    def __init__(self, limit: int, patience_s: float, patience_with_few_s: float) -> None:
        self._limit, self._patience_s, self._patience_with_few_s = limit, patience_s, patience_with_few_s
        self._used = 0
        self._of_peer: Counter[str] = Counter()
        self._holds: dict[Hold, None] = {}
        self._waiters: list[_Waiter] = []
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Number of taken bytes."""
        return self._used

    def take(self, hold: Hold, amount: int, gone: Callable[[], bool]) -> None:
        """Takes `amount` for `hold`; waits if necessary.

        Raises:
            Busy: `gone` returned True while the call waited.
        """
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
                    raise Busy("the call ended before there was room for it: make it again")
                cancelled = self._held_up()
            for cancel in cancelled:
                cancel()

    def correct(self, hold: Hold, amount: int) -> None:
        """Replaces the estimated amount of `hold` by the real one; 0 gives all of it back."""
        if not hold.amount:
            return
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

    def _fits(self, amount: int) -> bool:
        return not self._used or self._used + amount <= self._limit

    def _give(self, hold: Hold, amount: int) -> None:
        self._used += amount
        self._of_peer[hold.peer] += amount
        hold.amount, hold.since = amount, time.monotonic()
        self._holds[hold] = None

    def _held_up(self) -> list[Callable[[], object]]:
        """Returns the `cancel` functions of the calls whose clients do not go on."""
        now = time.monotonic()
        crowd = max(1.0, len({waiter.hold.peer for waiter in self._waiters}) / 2)
        found = []
        for hold in self._holds:
            patience = (
                self._patience_s if self._of_peer[hold.peer] > self._limit // 4 else self._patience_with_few_s
            )
            if hold.cancel is not None and now - hold.since > patience / crowd:
                found.append(hold.cancel)
        return found
