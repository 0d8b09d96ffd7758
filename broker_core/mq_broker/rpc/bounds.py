"""Bounds on streams and bytes, so that one client cannot take what other clients need."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import pyarrow as pa

from mq_broker.core.commands import RowsView
from mq_broker.rpc.outgoing import Pace, paced, room_for_rows
from mq_broker.rpc.room import Hold
from mq_broker.rpc.threads import Workers
from mq_wire.errors import BrokerUnavailable, Busy

#: The last fifth of all streams is for connections with fewer streams than this. (The last tenth is for hosts
#: that do not have all the others.)
_SMALL_CONNECTION: Final = 16


class Budget:
    """An amount that callers take and give back. A caller that wants more than is left waits.

    An amount above the limit can be taken when nothing else is taken, so that no caller waits for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, amount: int) -> bool:
        """Takes `amount`; waits if necessary. Returns False, and takes nothing, if the budget was closed."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(
                lambda: self._closed or not self._used or self._used + amount <= self._limit
            )
            self._waiting -= 1
            if not self._closed:
                self._used += amount
            return not self._closed

    def try_take(self, amount: int) -> bool:
        """Takes `amount` without waiting. Returns whether it was there."""
        with self._changed:
            fits = not self._closed and (not self._used or self._used + amount <= self._limit)
            self._used += amount * fits
            return fits

    def give(self, amount: int) -> None:
        """Gives `amount` back."""
        with self._changed:
            self._used -= amount
            if self._waiting:
                self._changed.notify_all()

    def close(self) -> None:
        """Wakes all waiters and refuses later ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Share:
    """The part of a common budget that one stream takes, up to a limit of its own."""

    def __init__(self, limit: int, total: Budget) -> None:
        self._own, self._total = Budget(limit), total

    def take(self, amount: int) -> bool:
        """Takes `amount`; waits if necessary. Returns False, and takes nothing, if it was closed."""
        if not self._own.take(amount):
            return False
        if not self._total.take(amount):
            self._own.give(amount)
            return False
        return True

    def give(self, amount: int) -> None:
        """Gives `amount` back."""
        self._own.give(amount)
        self._total.give(amount)

    def close(self) -> None:
        """Wakes waiters of this stream and refuses later ones."""
        self._own.close()


def stopping() -> BrokerUnavailable:
    """Returns the error for calls that end because the broker stops."""
    return BrokerUnavailable("the broker is stopping: connect again when it is back")


def host_of(peer: str) -> str:
    """Returns a peer's address without its port."""
    return peer.rpartition(":")[0]


class _Served(threading.local):
    """The stream that this thread serves, and how many of its reserved threads are not used yet."""

    context: grpc.ServicerContext | None = None
    threads: int = 0


class LiveStreams:
    """All open streams. Their number is bounded: in all, for each connection and for each host. Each stream
    is told when the broker stops.

    Args:
        limit: most streams.
        per_connection: most streams of one connection.
        workers: where threads for streams are reserved.
        cause: why the limit is lower than the setting, for the error; "" if it is not.
        received: most bytes of unanswered acknowledgements, of one stream and of all.
        outgoing: most bytes of rows that were read for clients and not received by them.
    """

    def __init__(
        self,
        limit: int,
        per_connection: int,
        workers: Workers | None = None,
        cause: str = "",
        received: tuple[int, int] = (1 << 30, 1 << 30),
        outgoing: int = 1 << 30,
    ) -> None:
        self._limit, self._per_connection, self._workers = limit, per_connection, workers
        self._allowed = (
            f"{cause}, enough for {limit} streams" if cause else f"the limit (streams_max) is {limit}"
        )
        self._received_max, self._received = received[0], Budget(received[1])
        self._outgoing = room_for_rows(outgoing)
        self._open = 0
        self._of_peer: Counter[str] = Counter()
        self._of_host: Counter[str] = Counter()
        self._wakes: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._served = _Served()
        self.stopping = False

    @contextlib.contextmanager
    def counted(
        self, peer: str, threads: int = 1, context: grpc.ServicerContext | None = None
    ) -> Iterator[None]:
        """Context of one stream of the connection from `peer`. Reserves so many threads; the first is this
        one.

        Raises:
            Busy: too many streams are open.
            BrokerUnavailable: the broker is stopping.
        """
        host = host_of(peer)
        with self._lock:
            self.check_running()
            self._check_room(peer, host)
            if self._workers is not None:
                self._workers.reserve(threads)
            self._open += 1
            self._of_peer[peer] += 1
            self._of_host[host] += 1
        self._served.threads, self._served.context = threads - 1, context
        try:
            yield
        finally:
            unused, self._served.threads, self._served.context = self._served.threads, 0, None
            with self._lock:
                self._open -= 1
                for counter, name in ((self._of_peer, peer), (self._of_host, host)):
                    counter[name] -= 1
                    if not counter[name]:
                        del counter[name]
            if self._workers is not None:
                self._workers.release(1 + unused)

    def _check_room(self, peer: str, host: str) -> None:
        mine, theirs = self._of_peer[peer], self._of_host[host]
        if self._open >= self._limit:
            raise Busy(f"{self._open} streams are open, {self._allowed}: close some, or raise it")
        if mine >= self._per_connection:
            raise Busy(
                f"{mine} streams of one connection are open, the limit (streams_per_connection_max) is "
                f"{self._per_connection}: close some, use more connections, or raise it"
            )
        kept = self._limit // 5
        if mine >= _SMALL_CONNECTION and self._open >= self._limit - kept:
            raise Busy(
                f"{self._open} streams are open, {mine} of them of this connection; {self._allowed}, and "
                f"the last {kept} are kept for connections with fewer than {_SMALL_CONNECTION}: "
                "close some, or raise it"
            )
        if theirs >= self._limit - self._limit // 10:
            raise Busy(
                f"{theirs} streams of this host are open; {self._allowed}, and the last "
                f"{self._limit // 10} are kept for other hosts: close some, or raise it"
            )

    def share_of_received(self) -> Share:
        """Returns the bound on the unanswered acknowledgements of one stream, in bytes."""
        return Share(self._received_max, self._received)

    def paced(
        self, view: RowsView, batches: Iterator[tuple[Any, pa.Buffer]]
    ) -> Iterator[tuple[Any, pa.Buffer]]:
        """Yields the batches of a view, each when there is room for it (`outgoing.paced`). For the stream
        that this thread serves.
        """
        context = self._served.context
        if context is None:
            return batches
        return paced(self.pace(context), view, batches)

    def pace(self, context: grpc.ServicerContext) -> Pace:
        """Returns the room for rows of one stream."""
        hold = Hold(context.peer(), context.cancel)
        return Pace(self._outgoing, hold, lambda: self.stopping or not context.is_active())

    def aside(self, work: Callable[..., object], *args: Any) -> None:
        """Runs `work` on the second thread of the stream that this thread serves."""
        workers = self._workers
        if workers is None or not self._served.threads:
            threading.Thread(target=work, args=args, name="mq-reader", daemon=True).start()
            return

        def working() -> None:
            try:
                work(*args)
            finally:
                workers.release()

        self._served.threads -= 1
        workers.submit(working)

    @contextlib.contextmanager
    def told_to_stop(self, wake: Callable[[], object]) -> Iterator[None]:
        """Context in which `wake` is called if the broker stops."""
        key = object()
        with self._lock:
            self._wakes[key] = wake
            late = self.stopping
        if late:
            wake()
        try:
            yield
        finally:
            with self._lock:
                del self._wakes[key]

    def check_running(self) -> None:
        """Raises `BrokerUnavailable` if the broker is stopping."""
        if self.stopping:
            raise stopping()

    def stop(self) -> None:
        """Tells every stream to end."""
        with self._lock:
            self.stopping = True
            wakes = list(self._wakes.values())
        for wake in wakes:
            wake()
