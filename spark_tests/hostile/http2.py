"""HTTP/2 by hand: frames that no library would send, or not that slowly, or without ever reading."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final, Self

from mq_wire.service import METHODS

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
ACK: Final = 1
INITIAL_WINDOW_SIZE: Final = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    """A SETTINGS frame; `window` = bytes that the other side may send on a stream before it is told that we
    have read.
    """
    pairs = [struct.pack(">HI", INITIAL_WINDOW_SIZE, values["window"])] if "window" in values else []
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def field(name: str, value: str) -> bytes:
    """One header, literally: neither indexed nor compressed. Both shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call_headers(method: str, stream: int, *more: bytes) -> bytes:
    """The HEADERS frame that begins a gRPC call; `method` is a name of ours, or a whole path."""
    path = METHODS[method].path if method in METHODS else method
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    block = b"".join(field(name, value) for name, value in fields.items()) + field(
        "content-type", "application/grpc"
    )
    return frame(HEADERS, END_HEADERS, stream, block + b"".join(more))


def call_data(message: bytes, stream: int, *, end: bool = True) -> bytes:
    """The DATA frames of one gRPC message."""
    data = b"\x00" + len(message).to_bytes(4, "big") + message
    pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    return b"".join(
        frame(DATA, END_STREAM if end and piece is pieces[-1] else 0, stream, piece) for piece in pieces
    )


def connected(port: int, first: bytes = b"") -> socket.socket:
    """A TCP connection on which `first` was sent."""
    link = socket.create_connection(("127.0.0.1", port), timeout=10)
    if first:
        link.sendall(first)
    return link


def sent(link: socket.socket, data: bytes) -> bool:
    """Sends what the other side takes; returns whether it still listens. Never waits for long."""
    link.settimeout(0.5)
    try:
        link.sendall(data)
    except OSError:
        return False
    return True


def is_closed(link: socket.socket) -> bool:
    """Whether the other side has closed the connection; what it had sent before is read."""
    link.settimeout(0)
    try:
        while link.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def message(body: bytes) -> bytes:
    """One gRPC message as it stands in DATA frames."""
    return b"\x00" + len(body).to_bytes(4, "big") + body


class Client:
    """A connection that keeps to flow control where it sends, answers pings and settings, and gives the other
    side room only where told.

    Args:
        window: bytes that the other side may send on each stream before we say that we have read.
        reads: whether we say so, and for the connection as a whole.
    """

    def __init__(self, port: int, *, window: int = 65_535, reads: bool = True) -> None:
        self._link = connected(port)
        self._reads = reads
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._room, self._initial = 65_535, 65_535  # of the connection, and of a new stream
        self._rooms: dict[int, int] = {}
        self._next = 1
        self.closed = False
        #: Bytes of DATA frames by stream; streams that the other side has ended; those that it has reset,
        #: with the code.
        self.received: Counter[int] = Counter()
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self._link.settimeout(None)
        self._write(PREFACE + settings(window=window))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def call(self, method: str, body: bytes | None = None, *, end: bool = True, timeout: float = 10.0) -> int:
        """Begins a call, with its first message if there is one; returns the number of its stream."""
        with self._changed:
            stream, self._next = self._next, self._next + 2
            self._rooms[stream] = self._initial
        self._write(call_headers(method, stream))
        if body is not None:
            self.send(stream, message(body), end=end, timeout=timeout)
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False, timeout: float = 10.0) -> None:
        """Sends bytes on a stream, as fast as the other side takes them.

        Raises:
            TimeoutError: for so many seconds it took none.
            ConnectionError: the connection or the stream has ended.
        """
        at = 0
        while at < len(data):
            with self._changed:
                if not self._changed.wait_for(
                    lambda: self._is_over(stream) or min(self._room, self._rooms[stream]) > 0, timeout
                ):
                    raise TimeoutError(f"stream {stream} has no room for {timeout} s")
                if self._is_over(stream):
                    raise ConnectionError(f"stream {stream} is over")
                size = min(16_384, len(data) - at, self._room, self._rooms[stream])
                self._room -= size
                self._rooms[stream] -= size
            last = end and at + size == len(data)
            self._write(frame(DATA, END_STREAM * last, stream, data[at : at + size]))
            at += size

    def reset(self, stream: int, code: int = 8) -> None:
        """Cancels a stream."""
        self._write(frame(RST_STREAM, 0, stream, code.to_bytes(4, "big")))

    def wait(self, streams: Sequence[int], timeout: float = 60.0) -> None:
        """Waits until streams are over.

        Raises:
            TimeoutError: one was not, after so many seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: all(map(self._is_over, streams)), timeout):
                raise TimeoutError(f"calls without an answer after {timeout} s")

    def grant(self, stream: int, size: int) -> None:
        """Lets the other side send more on a stream, 0 = on the connection."""
        self._write(frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big")))

    def raw(self, data: bytes) -> None:
        """Sends frames as they are."""
        self._write(data)

    def _is_over(self, stream: int) -> bool:
        return self.closed or stream in self.ended or stream in self.resets

    def _write(self, data: bytes) -> None:
        with self._sending:
            self._link.sendall(data)

    def _read(self) -> None:
        buffer = b""
        try:
            while received := self._link.recv(1 << 16):
                buffer += received
                while len(buffer) >= 9 and len(buffer) >= (end := 9 + int.from_bytes(buffer[:3], "big")):
                    stream = int.from_bytes(buffer[5:9], "big") & 0x7FFFFFFF
                    self._take(buffer[3], buffer[4], stream, buffer[9:end])
                    buffer = buffer[end:]
        except OSError:
            pass
        finally:
            with self._changed:
                self.closed = True
                self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        with self._changed:
            if kind == SETTINGS and not flags & ACK:
                for at in range(0, len(payload), 6):
                    name, value = struct.unpack_from(">HI", payload, at)
                    if name == INITIAL_WINDOW_SIZE:
                        for known in self._rooms:
                            self._rooms[known] += value - self._initial
                        self._initial = value
            elif kind == WINDOW_UPDATE:
                size = int.from_bytes(payload, "big")
                if stream:
                    self._rooms[stream] = self._rooms.get(stream, 0) + size
                else:
                    self._room += size
            elif kind == DATA:
                self.received[stream] += len(payload)
            elif kind == RST_STREAM:
                self.resets[stream] = int.from_bytes(payload, "big")
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                self.ended.add(stream)
            self._changed.notify_all()
        if kind == SETTINGS and not flags & ACK:
            self._write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, ACK, 0, payload))
        elif kind == DATA and payload and self._reads:
            self.grant(0, len(payload))
            if not flags & END_STREAM:
                self.grant(stream, len(payload))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._link.close()
