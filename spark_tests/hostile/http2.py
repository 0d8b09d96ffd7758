"""HTTP/2 by hand: frames that no library would send, or not that slowly, or without ever reading."""

from __future__ import annotations

import socket
import struct
from typing import Final

from mq_wire.service import METHODS

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE: Final = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    """A SETTINGS frame; `window` = bytes that the other side may send on a stream before it is told that we have read."""
    pairs = [struct.pack(">HI", INITIAL_WINDOW_SIZE, values["window"])] if "window" in values else []
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def field(name: str, value: str) -> bytes:
    """One header, literally: neither indexed nor compressed. Both shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call_headers(method: str, stream: int, *more: bytes) -> bytes:
    """The HEADERS frame that begins a gRPC call; `method` is a name of ours, or a whole path."""
    path = METHODS[method].path if method in METHODS else method
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    block = b"".join(field(name, value) for name, value in fields.items()) + field("content-type", "application/grpc")
    return frame(HEADERS, END_HEADERS, stream, block + b"".join(more))


def call_data(message: bytes, stream: int, *, end: bool = True) -> bytes:
    """The DATA frames of one gRPC message."""
    data = b"\x00" + len(message).to_bytes(4, "big") + message
    pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    return b"".join(frame(DATA, END_STREAM if end and piece is pieces[-1] else 0, stream, piece) for piece in pieces)


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
