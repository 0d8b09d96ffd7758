"""What has come and was not handled: bounded by looking, since gRPC takes in a message of each call before it
can be asked to wait.
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

#: How often memory is looked at, and by how much it has grown when connections are.
_LOOK_S: Final = 0.05
_GROWTH_BYTES: Final = 32 << 20
#: What a message takes on the wire beside its bytes: headers of its call, frames.
_MESSAGE_BYTES: Final = 512
_FRAMES_SHARE: Final = 100
#: How often connections are counted. With seven eighths of those that are allowed, idle ones are ended until
#: it is three quarters.
_COUNT_S: Final = 1.0
#: Seconds after memory last grew, when what is free is given back: some of it is freed late.
_GIVEN_BACK: Final = (1, 2, 4, 8, 16, 64)
#: Connections that are known and gone, before they are looked for.
_GONE_MAX: Final = 4096


class _Link:
    """A connection: what was handed over of it, and which of its calls read."""

    __slots__ = ("calls", "consumed")

    def __init__(self) -> None:
        self.consumed = 0
        self.calls: dict[_Reading, None] = {}


class _Reading:
    """The requests of one call."""

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
        """Ends the call: with an error where somebody can say it, at once where that was not heard."""
        refuse, self.refuse = self.refuse, None
        if refuse is None:
            self.context.cancel()
        else:
            refuse(error)


class Arrivals:
    """The watch. Where all connections together have brought more than `limit` bytes that nobody has handled,
    the calls of those that have brought most are ended.

    Args:
        limit: bytes.
        connections_max: when they are nearly as many, those that are idle are ended, of the host that has
            most first.
    """

    def __init__(self, limit: int, connections_max: int) -> None:
        self._limit, self._connections_max = limit, connections_max
        self._links: dict[str, _Link] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._files_before = 0

    def start(self, port: int) -> None:
        """Begins to look at the connections to `port`."""
        self._files_before = connections.open_files()
        self._thread = threading.Thread(target=self._watch, args=(port,), name="mq-arrivals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def reading(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Iterator[bytes]]:
        """The requests of a call, counted for its connection."""
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
        """A call that is to end is told why by `refuse`, and cancelled only where that does not end it."""
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
        """Ends calls where too much has come."""
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
        words = f"{len(calls)} calls of one connection are ended: {size} bytes came and are not whole"
        say(logging.WARNING, "received_too_much", words, peer=peer)
        error = Busy(
            f"this connection has sent {size} bytes that are not whole requests, or wait for others; all "
            f"together may have {self._limit} "
            "(receive_bytes_total_max): finish what was begun, send less at a time, or raise it"
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
                f"{min(excess, len(idle))} idle connections of one host are ended, others need room",
                host=host_of(idle[0].peer),
                connections=len(links),
                connections_max=self._connections_max,
            )
            excess -= len(idle)
            if excess <= 0:
                return
