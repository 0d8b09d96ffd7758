"""First requests: who has begun a call and said nothing yet, and how many large requests are read and answered at a time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc

from mq_broker.rpc.threads import Workers
from mq_wire.errors import Busy

#: Requests that are read at the same time. One may have 8 MB, and nobody knows before it is here.
READING_MAX: Final = 16
#: Whose request has not come by then leaves the place to others; it may come all the same.
_STALL_S: Final = 0.1
#: A connection with so many calls that are silent after that time takes no more of those places.
_STALLED_MAX: Final = 4
#: A larger request has its place until it is answered.
_LARGE_BYTES: Final = 64 << 10
#: Silent calls of one connection. Its oldest goes, once it has been silent for so long: many streams that begin at once may take that.
_PER_CONNECTION_MAX: Final = 256
_PER_CONNECTION_S: Final = 1.0


class _Call:
    """A call whose first request has not come."""

    __slots__ = ("began", "context", "is_stalled", "peer")

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context, self.peer, self.began = context, context.peer(), time.monotonic()
        self.is_stalled = False


class FirstRequests:
    """Calls that have begun and sent no request yet. Each holds a thread, so there are so many and no more.

    Beyond that the oldest of the connection that has most of them must go: who keeps many open keeps nobody else out.

    Args:
        limit: calls.
        workers: where their threads are reserved; None where they have some already.
        patience_s: nobody goes who has been silent for less; newcomers wait, or with `workers` None are let in.
    """

    def __init__(self, limit: int, workers: Workers | None = None, patience_s: float = 0.0) -> None:
        self._limit, self._workers, self._patience_s = limit, workers, patience_s
        self._silent = 0
        self._of_peer: dict[str, dict[_Call, None]] = {}
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._reading: dict[_Call, None] = {}
        self._large = 0

    @property
    def silent(self) -> int:
        """How many there are."""
        return self._silent

    def of(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Returns the first request of a call; None where its client ended it without.

        Raises:
            grpc.RpcError: the client is gone, or was silent for longer than all the others.
            Busy: the system gives no thread for it.
        """
        call = _Call(context)
        with self._lock:
            self._enter(call)
        try:
            return next(requests, None)
        finally:
            with self._lock:
                self._drop(call)

    @contextlib.contextmanager
    def read(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes | None]:
        """As `of`, for as long as the block takes to answer: so many large requests are in memory and no more."""
        call = _Call(context)
        is_large = False
        try:
            with self._lock:
                self._enter(call)
                self._take_room(call)
            message = next(requests, None)
            is_large = message is not None and len(message) > _LARGE_BYTES
            with self._lock:
                self._drop(call)
                self._large += is_large
                if is_large:
                    self._reading.pop(call, None)
                else:
                    self._leave_room(call)
            yield message
        finally:
            message = None
            with self._lock:
                self._drop(call)
                self._large -= is_large
                self._reading.pop(call, None)
                self._room.notify()

    def _enter(self, call: _Call) -> None:
        refusal: Busy | None = None
        while True:
            if self._silent < self._limit:
                try:
                    self._reserve()
                    break
                except Busy as error:
                    refusal = error
            oldest = self._oldest_of_loudest(call.peer)
            if oldest is None:
                raise refusal or Busy("this broker takes no calls")
            age = time.monotonic() - oldest.began
            if age >= self._patience_s:
                self._send_away(oldest)
            elif self._workers is None:
                break
            else:
                self._fewer.wait(self._patience_s - age)
        mine = self._of_peer.setdefault(call.peer, {})
        if len(mine) >= _PER_CONNECTION_MAX and time.monotonic() - next(iter(mine)).began > _PER_CONNECTION_S:
            self._send_away(next(iter(mine)))
            mine = self._of_peer.setdefault(call.peer, {})
        call.began = time.monotonic()
        mine[call] = None
        self._silent += 1

    def _reserve(self) -> None:
        if self._workers is not None:
            self._workers.reserve()

    def _oldest_of_loudest(self, newcomer: str) -> _Call | None:
        """Rare, and among few: each connection can have its share, the limit is for all of them together."""
        loudest = max(self._of_peer, key=lambda peer: len(self._of_peer[peer]) + (peer == newcomer), default=None)
        return None if loudest is None else next(iter(self._of_peer[loudest]))

    def _send_away(self, call: _Call) -> None:
        self._drop(call)
        call.context.cancel()

    def _drop(self, call: _Call) -> None:
        calls = self._of_peer.get(call.peer, {})
        if call in calls:
            del calls[call]
            self._silent -= 1
            if self._workers is not None:
                self._workers.release()
            if not calls:
                del self._of_peer[call.peer]
            self._fewer.notify()

    def _take_room(self, call: _Call) -> None:
        """Waits until few enough are read. Who is known to be silent need not: what it sends later is watched by its size."""
        while len(self._reading) + self._large >= READING_MAX:
            calls = self._of_peer.get(call.peer, {})
            if len(calls) > _STALLED_MAX and all(other.is_stalled for other, _ in zip(calls, range(_STALLED_MAX), strict=False)):
                call.is_stalled = True
                return
            oldest = next(iter(self._reading), None)
            left = None if oldest is None else _STALL_S - (time.monotonic() - oldest.began)
            if oldest is not None and left is not None and left <= 0:
                oldest.is_stalled = True
                del self._reading[oldest]
            else:
                self._room.wait(left)
        call.began = time.monotonic()
        self._reading[call] = None

    def _leave_room(self, call: _Call) -> None:
        if call in self._reading:
            del self._reading[call]
            self._room.notify()
