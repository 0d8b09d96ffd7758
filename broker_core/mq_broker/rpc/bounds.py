"""What keeps one client from taking what the others need: counted streams, counted bytes."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from mq_wire.errors import BrokerUnavailable, Busy


class Budget:
    """An amount that is taken and given back. Whoever wants more than there is waits.

    An amount over the limit is given when nothing else is out, so that nothing waits for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, amount: int) -> bool:
        """Takes `amount`, after waiting where necessary. False = closed meanwhile, nothing taken."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._closed or not self._used or self._used + amount <= self._limit)
            self._waiting -= 1
            if not self._closed:
                self._used += amount
            return not self._closed

    def try_take(self, amount: int) -> bool:
        """Takes `amount` where there is as much; returns whether."""
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
        """Sends all away who wait, now and later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def stopping() -> BrokerUnavailable:
    """Returns the error for calls that end because the broker does."""
    return BrokerUnavailable("the broker is stopping: connect again when it is back")


class FirstRequests:
    """Calls that have begun and sent no request yet. Each holds a thread, so there are so many and no more.

    Beyond that the oldest of the connection that has most of them must go: who keeps many open keeps nobody else out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._silent = 0
        self._of_peer: dict[str, dict[grpc.ServicerContext, None]] = {}
        self._lock = threading.Lock()

    @property
    def silent(self) -> int:
        """How many there are."""
        return self._silent

    def of(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Returns the first request of a call; None where its client ended it without.

        Raises:
            grpc.RpcError: the client is gone, or was silent for longer than all the others.
        """
        peer = context.peer()
        with self._lock:
            self._of_peer.setdefault(peer, {})[context] = None
            self._silent += 1
            oldest = None
            if self._silent > self._limit:
                # Rare, and among few: each connection can have its share, the limit is for all of them together.
                loudest = max(self._of_peer, key=lambda name: len(self._of_peer[name]))
                oldest = next(iter(self._of_peer[loudest]))
                self._drop(loudest, oldest)
        if oldest is not None:
            oldest.cancel()
        try:
            return next(requests, None)
        finally:
            with self._lock:
                self._drop(peer, context)

    def _drop(self, peer: str, context: grpc.ServicerContext) -> None:
        calls = self._of_peer.get(peer, {})
        if context in calls:
            del calls[context]
            self._silent -= 1
            if not calls:
                del self._of_peer[peer]


class LiveStreams:
    """All open streams: so many and no more, not all of them from one connection, each told when the broker stops."""

    def __init__(self, limit: int, per_connection: int) -> None:
        self._limit, self._per_connection = limit, per_connection
        self._open = 0
        self._of_peer: Counter[str] = Counter()
        self._wakes: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self.stopping = False

    @contextlib.contextmanager
    def counted(self, peer: str) -> Iterator[None]:
        """One stream of the connection from `peer`, from here to the end of the block.

        Raises:
            Busy: too many are open.
            BrokerUnavailable: the broker is stopping.
        """
        with self._lock:
            self.check_running()
            if self._open >= self._limit:
                raise Busy(f"{self._open} streams are open, the limit (streams_max) is {self._limit}: close some, or raise it")
            if self._of_peer[peer] >= self._per_connection:
                raise Busy(
                    f"{self._of_peer[peer]} streams of one connection are open, the limit (streams_per_connection_max) is "
                    f"{self._per_connection}: close some, use more connections, or raise it"
                )
            self._open += 1
            self._of_peer[peer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                self._of_peer[peer] -= 1
                if not self._of_peer[peer]:
                    del self._of_peer[peer]

    @contextlib.contextmanager
    def told_to_stop(self, wake: Callable[[], object]) -> Iterator[None]:
        """Calls `wake` when the broker stops before the end of the block."""
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
        """Raises `BrokerUnavailable` where the broker is stopping."""
        if self.stopping:
            raise stopping()

    def stop(self) -> None:
        """Tells every stream to end."""
        with self._lock:
            self.stopping = True
            wakes = list(self._wakes.values())
        for wake in wakes:
            wake()
