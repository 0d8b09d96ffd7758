"""A bound on bytes that were received and not handed over yet. gRPC receives a message of each call before it
can be told to wait, so a thread watches the connections.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import grpc

from mq_broker import memory
from mq_broker.log import say
from mq_broker.rpc import connections
from mq_broker.rpc.bounds import host_of
from mq_broker.rpc.connections import Connection
from mq_wire.errors import Busy, MqError

#: Seconds between two looks at memory. When it has grown by _GROWTH_BYTES, the connections are checked.
_LOOK_S: Final = 0.05
_GROWTH_BYTES: Final = 32 << 20
#: Estimated overhead of a message on the wire: headers of its call, and HTTP/2 frames (one hundredth of its
#: size).
_MESSAGE_BYTES: Final = 512
_FRAMES_SHARE: Final = 100
#: Seconds between two counts of connections. When seven eighths of the limit are open, idle connections are
#: closed until three quarters are left.
_COUNT_S: Final = 1.0
#: How many seconds after the last growth of memory free memory is given back to the system. It is done
#: several times, since some memory is freed late.
_GIVEN_BACK: Final = (1, 2, 4, 8, 16, 64)
#: How many connections more than the limit may be remembered before closed ones are forgotten.
_GONE_MAX: Final = 4096


class _Link:
    """A connection: estimated bytes that were handed over from it, and its calls that are reading."""

    __slots__ = ("calls", "consumed")

    def __init__(self) -> None:
        self.consumed = 0
        self.calls: dict[_Reading, None] = {}


class _Reading:
    """An iterator over the requests of one call, which counts their bytes."""

    __slots__ = ("_link", "_requests", "context", "refuse")

    def __init__(self, link: _Link, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        self._link, self._requests, self.context = link, requests, context
        self.refuse: Callable[[MqError], object] | None = None

    def __iter__(self) -> _Reading:
        return self

    def __next__(self) -> bytes:
        message = next(self._requests)
        self._link.consumed += len(message) + len(message) // _FRAMES_SHARE + _MESSAGE_BYTES
        return message

    def end(self, error: MqError) -> None:
        """Ends the call: the first time with `refuse`, if it is set, and otherwise by cancelling it."""
        refuse, self.refuse = self.refuse, None
        if refuse is None:
            self.context.cancel()
        else:
            refuse(error)


class Arrivals:
    """The watch over all connections. If they hold more than `limit` received bytes that were not handed
    over, the calls of the connections with most such bytes are ended.

    Args:
        limit: bytes.
        connections_max: when nearly as many connections are open, idle ones are closed. The host with most
            idle connections comes first.
    """

    def __init__(self, limit: int, connections_max: int) -> None:
        self._limit, self._connections_max = limit, connections_max
        self._links: dict[str, _Link] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._files_before = 0

    def start(self, port: int) -> None:
        """Starts to watch the connections to `port`."""
        self._files_before = connections.open_files()
        self._thread = threading.Thread(target=self._watch, args=(port,), name="mq-arrivals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops watching."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def reading(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Iterator[bytes]]:
        """Context with the requests of a call, whose bytes are counted for its connection."""
        peer = context.peer()
        with self._lock:
            link = self._links.get(peer)
            if link is None:
                link = self._links[peer] = _Link()
            reading = _Reading(link, requests, context)
            link.calls[reading] = None
        try:
            yield reading
        finally:
            with self._lock:
                link.calls.pop(reading, None)

    def tell_instead(self, context: grpc.ServicerContext, refuse: Callable[[MqError], object]) -> None:
        """Sets the function that ends a call with an error. Without it, or if it has been called, the call is
        cancelled.
        """
        with self._lock:
            link = self._links.get(context.peer())
            for reading in link.calls if link is not None else ():
                if reading.context is context:
                    reading.refuse = refuse

    def _watch(self, port: int) -> None:
        known, counted, calm = memory.anonymous_bytes(), time.monotonic(), 0
        while not self._ended.wait(_LOOK_S):
            now = memory.anonymous_bytes()
            if now > known + _GROWTH_BYTES:
                self.look(list(connections.connections(port)))
                known, calm = memory.anonymous_bytes(), 0
            known = min(known, now)
            if time.monotonic() - counted >= _COUNT_S:
                counted = time.monotonic()
                calm += 1
                if calm in _GIVEN_BACK:
                    memory.give_back()
                is_many = connections.open_files() - self._files_before > self._connections_max * 7 // 8
                if is_many or len(self._links) > _GONE_MAX + self._connections_max:
                    self._end_idle(list(connections.connections(port)), port)

    def look(self, links: list[Connection]) -> None:
        """Ends calls of the connections with most unhandled bytes, if all together have more than the
        limit.
        """
        held: list[tuple[int, str, int]] = []
        with self._lock:
            for each in links:
                link = self._links.get(each.peer)
                if link is not None:
                    link.consumed = min(link.consumed, each.received)
                    held.append((each.received - link.consumed, each.peer, each.received))
        total = sum(size for size, _, _ in held)
        if total <= self._limit:
            return
        for size, peer, received in sorted(held, reverse=True):
            self._refuse(peer, size, received)
            total -= size
            if total <= self._limit // 2:
                return

    def _refuse(self, peer: str, size: int, received: int) -> None:
        with self._lock:
            link = self._links[peer]
            link.consumed = received
            calls = list(link.calls)
        words = f"{len(calls)} calls of one connection are ended: it sent {size} bytes of incomplete requests"
        say(logging.WARNING, "received_too_much", words, peer=peer)
        error = Busy(
            f"this connection has sent {size} bytes of requests that are incomplete or waiting; all "
            f"connections together may have {self._limit} (receive_bytes_total_max): complete requests "
            "before beginning others, send less at a time, or raise the limit"
        )
        for call in calls:
            call.end(error)

    def _end_idle(self, links: list[Connection], port: int) -> None:
        with self._lock:
            present = {each.peer for each in links}
            for peer in [
                peer for peer, link in self._links.items() if not link.calls and peer not in present
            ]:
                del self._links[peer]
            busy = {peer for peer, link in self._links.items() if link.calls}
        excess = len(links) - self._connections_max * 3 // 4
        if excess <= 0 or len(links) <= self._connections_max * 7 // 8:
            return
        of_host: dict[str, list[Connection]] = {}
        for each in links:
            if each.peer not in busy:
                of_host.setdefault(host_of(each.peer), []).append(each)
        for idle in sorted(of_host.values(), key=len, reverse=True):
            idle.sort(key=lambda each: each.idle_ms, reverse=True)
            for each in idle[:excess]:
                connections.end(each, port)
            say(
                logging.WARNING,
                "idle_connections",
                f"{min(excess, len(idle))} idle connections of one host are closed: others need their place",
                host=host_of(idle[0].peer),
                connections=len(links),
                connections_max=self._connections_max,
            )
            excess -= len(idle)
            if excess <= 0:
                return
