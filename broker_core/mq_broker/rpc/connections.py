"""Connections as the operating system sees them: how many bytes came over each, and how long it has been
idle. gRPC does not tell this.

gRPC hands over only whole messages, and receives one for each call at the same time. The bytes that gRPC
holds of a connection are those that the system received on it, less those that gRPC handed over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import stat
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mq_wire.errors import InvalidOption

#: Positions in `struct tcp_info`: milliseconds since the last data (u32), received bytes (u64).
_TCP_INFO_BYTES: Final = 256
_LAST_DATA_MS_AT: Final = 52
_RECEIVED_AT: Final = 128
#: Open files that connections leave to the journal and the snapshots.
FILES_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection that was accepted on our port.

    Attributes:
        peer: its address, in the form that gRPC uses.
        received: bytes that were read from it since it began.
        idle_ms: milliseconds since the last data came.
        file: its file descriptor, for `end`.
    """

    peer: str
    received: int
    idle_ms: int
    file: int


def open_files() -> int:
    """Returns how many files and sockets this process has open; 0 if the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def connections(port: int) -> Iterator[Connection]:
    """Yields the connections to `port`; none if the system does not list them."""
    try:
        files = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError), _borrowed(file) as link:
            if link is not None and link.getsockname()[1] == port:
                yield _connection(link, file)


def _connection(link: socket.socket, file: int) -> Connection:
    host, number = link.getpeername()[:2]
    host = host.removeprefix("::ffff:")
    peer = f"ipv6:%5B{host}%5D:{number}" if ":" in host else f"ipv4:{host}:{number}"
    info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(info) < _RECEIVED_AT + 8:
        return Connection(peer, 0, 0, file)
    waiting = struct.unpack("i", fcntl.ioctl(link, termios.FIONREAD, bytes(4)))[
        0
    ]  # not read yet: the system's memory, not ours
    received = struct.unpack_from("<Q", info, _RECEIVED_AT)[0] - waiting
    return Connection(peer, received, struct.unpack_from("<I", info, _LAST_DATA_MS_AT)[0], file)


def end(connection: Connection, port: int) -> None:
    """Closes a connection, unless its file descriptor belongs to another one by now."""
    with contextlib.suppress(OSError), _borrowed(connection.file) as link:
        if (
            link is not None
            and link.getsockname()[1] == port
            and _connection(link, connection.file).peer == connection.peer
        ):
            link.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(file: int) -> Iterator[socket.socket | None]:
    """Context with a second handle of one of gRPC's TCP connections; None if the file is no TCP
    connection.
    """
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        yield None
        return
    with socket.socket(fileno=os.dup(file)) as link:
        is_tcp = link.family in (socket.AF_INET, socket.AF_INET6) and link.type == socket.SOCK_STREAM
        yield link if is_tcp else None


def connections_that_fit(connections: int) -> int:
    """Raises this process's limit on open files as far as needed and possible. Returns for how many of so
    many connections it is enough, beside FILES_KEPT.

    Raises:
        InvalidOption: it is not enough for any connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    files = wanted if soft == resource.RLIM_INFINITY else soft
    if files <= FILES_KEPT:
        raise InvalidOption(
            f"this process may have {files} files open, the broker needs {FILES_KEPT} and one for each "
            "connection: raise the limit (ulimit -n, LimitNOFILE=)"
        )
    return min(connections, files - FILES_KEPT)
