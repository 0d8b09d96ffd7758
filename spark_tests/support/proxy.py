"""A TCP proxy on loopback that misbehaves: cuts, delays, throttles, goes silent in one direction or both, and
swallows answers.

    with Proxy(broker.address) as proxy:
        Producer(proxy.address, ...)
        proxy.cut()

A thread per connection and direction. Bytes pass in order or not at all, as TCP has it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Final

#: Directions. Requests go to the broker, answers to the client.
REQUESTS: Final = "requests"
ANSWERS: Final = "answers"

_CHUNK_BYTES: Final = 1 << 16
#: SO_LINGER that makes close() send a reset.
_RESET: Final = struct.pack("ii", 1, 0)
_CONNECT_TIMEOUT_S: Final = 5.0


class Proxy:
    """Stands before a broker. What is set holds for all connections, those that come later too, until `heal`.

    Args:
        address: of the broker, `mq://host:port`.

    Attributes:
        address: where clients connect.
        swallowed: bytes that were thrown away.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("mq://").rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address: Final = f"mq://127.0.0.1:{self._listener.getsockname()[1]}"
        self.swallowed = 0
        self._changed = threading.Condition()
        self._links: set[_Link] = set()
        self._silent: frozenset[str] = frozenset()
        self._swallowing = False
        self._delay_s = 0.0
        self._bytes_per_s = 0.0
        self._bytes_left: dict[str, int] = {}
        self._closed = False

    # -- faults --------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Resets all connections."""
        with self._changed:
            links = list(self._links)
        for link in links:
            link.reset()

    def cut_after(self, size_bytes: int, direction: str) -> None:
        """Resets all connections when so many bytes more have passed in one direction, wherever that is in a
        frame.
        """
        with self._changed:
            self._bytes_left[direction] = size_bytes

    def silence(self, *directions: str) -> None:
        """Connections stay open, new ones are taken, and nothing passes in these directions."""
        with self._changed:
            self._silent = frozenset(directions)

    def silence_present(self, *directions: str) -> None:
        """As `silence`, for the connections that there are now, until they end."""
        with self._changed:
            for link in self._links:
                link.silent = frozenset(directions)

    def swallow(self) -> None:
        """Answers are taken from the broker and thrown away. What the connections say afterwards makes no
        sense: `cut` them.
        """
        with self._changed:
            self._swallowing = True

    def slow_down(self, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        """Every 64 KiB or less waits so long, and passes no faster than this (0 = as fast as may be)."""
        with self._changed:
            self._delay_s, self._bytes_per_s = delay_s, bytes_per_s

    def heal(self) -> None:
        """Everything passes again; connections of which something was thrown away are reset."""
        with self._changed:
            self._silent, self._swallowing, self._delay_s, self._bytes_per_s = frozenset(), False, 0.0, 0.0
            self._bytes_left.clear()
            links = [link for link in self._links if link.torn]
            self._changed.notify_all()
        for link in links:
            link.reset()

    @property
    def connections(self) -> int:
        """Connections that are open."""
        with self._changed:
            return len(self._links)

    # -- life ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
        self.heal()
        # A closed listener does not wake whoever accepts on it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), name="proxy-connect", daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self._target, timeout=_CONNECT_TIMEOUT_S)
        except OSError:
            _reset(client)  # the broker is away: so are we
            return
        for end in (client, broker):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, client, broker)
        with self._changed:
            self._links.add(link)
            is_late = self._closed
        link.start()
        if is_late:
            link.reset()

    # -- for links -----------------------------------------------------------------------------------------

    def passes(self, link: _Link, direction: str, chunk: bytes) -> bytes:
        """Returns what of `chunk` is to be sent on, once it may; ends `link` where that is due."""
        with self._changed:
            self._changed.wait_for(lambda: link.ended or direction not in self._silent | link.silent)
            passed = self._kept(link, direction, chunk)
            if len(passed) < len(chunk):
                self.swallowed += len(chunk) - len(passed)
                link.torn.add(direction)
            pause_s = self._delay_s + (len(chunk) / self._bytes_per_s if self._bytes_per_s else 0.0)
            if passed and pause_s:
                until = time.monotonic() + pause_s
                while (
                    not link.ended
                    and self._delay_s + self._bytes_per_s
                    and (rest := until - time.monotonic()) > 0
                ):
                    self._changed.wait(rest)
        return passed

    def _kept(self, link: _Link, direction: str, chunk: bytes) -> bytes:
        """Returns as much of `chunk` as is not to be thrown away."""
        if direction in link.torn or (self._swallowing and direction == ANSWERS):
            return b""
        left = self._bytes_left.get(direction)
        if left is None:
            return chunk
        self._bytes_left[direction] = left - len(chunk)
        return chunk[: max(0, left)]

    def ends(self, link: _Link, direction: str) -> None:
        """Returns when the other side may hear that one has gone: where nothing passes, that does not
        either.
        """
        with self._changed:
            self._changed.wait_for(lambda: link.ended or direction not in self._silent | link.silent)

    def is_due(self, direction: str) -> bool:
        """Whether as many bytes have passed as connections were to live for; True once."""
        with self._changed:
            if self._bytes_left.get(direction, 1) > 0:
                return False
            self._bytes_left.clear()
            return True

    def forget(self, link: _Link) -> None:
        with self._changed:
            self._links.discard(link)
            self._changed.notify_all()


class _Link:
    """One connection: a socket to the client, one to the broker."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        self._lock = threading.Lock()
        self.ended = False
        self.silent: frozenset[str] = frozenset()
        #: Directions of which something is missing: nothing may follow, until the link is reset.
        self.torn: set[str] = set()

    def start(self) -> None:
        for source, sink, direction in (
            (self._client, self._broker, REQUESTS),
            (self._broker, self._client, ANSWERS),
        ):
            threading.Thread(
                target=self._pump, args=(source, sink, direction), name=f"proxy-{direction}", daemon=True
            ).start()

    def reset(self) -> None:
        """Ends both sides, without a good-bye."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        for end in (self._client, self._broker):
            # Wakes whoever reads from it.
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RD)
            end.close()
        self._proxy.forget(self)

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                passed = self._proxy.passes(self, direction, chunk)
                if passed:
                    sink.sendall(passed)
                if self._proxy.is_due(direction):
                    self._proxy.cut()
        self._proxy.ends(self, direction)
        self.reset()


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()
