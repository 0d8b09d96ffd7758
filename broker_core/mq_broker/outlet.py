"""Writes to a standard file with a bound on the time, since it may be a pipe that is never read."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable
from typing import Final, TextIO

#: Bytes that a writable pipe takes at once: PIPE_BUF of Linux.
_PIECE_BYTES: Final = 4096
#: Milliseconds between two checks whether to go on waiting.
_POLL_MS: Final = 100


def write_while(stream: TextIO, text: str, may_wait: Callable[[], bool]) -> None:
    """Writes all of `text`. Waits for the reader as long as `may_wait` returns True.

    It does not use Python's buffers and their locks. So a waiting thread blocks no other thread, nor the end
    of the interpreter.

    Raises:
        TimeoutError: `may_wait` returned False; a part may have been written.
        OSError: the stream is closed, or the write failed.
    """
    descriptor = _descriptor(stream)
    if descriptor is None:  # no file of the operating system
        stream.write(text)
        stream.flush()
        return
    rest = memoryview(text.encode("utf-8", "backslashreplace"))
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while rest:
        while not poll.poll(_POLL_MS):
            if not may_wait():
                raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
        with contextlib.suppress(BlockingIOError):  # another writer filled the pipe first
            rest = rest[os.write(descriptor, rest[:_PIECE_BYTES]) :]


def within(seconds: float) -> Callable[[], bool]:
    """Returns a `may_wait` that is True for so many seconds."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # as in tests, or closed
        return None
