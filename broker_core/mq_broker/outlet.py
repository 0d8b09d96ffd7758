"""Writing to a standard file that may be a pipe which nobody reads, without being held up for ever."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable
from typing import Final, TextIO

#: A pipe that says that it can be written takes so many bytes at once: PIPE_BUF of Linux.
_PIECE_BYTES: Final = 4096
#: Looked so often whether to go on waiting, in milliseconds.
_POLL_MS: Final = 100


def write_while(stream: TextIO, text: str, may_wait: Callable[[], bool]) -> None:
    """Writes all of `text`, waiting for whoever reads as long as `may_wait` says.

    Past Python's own buffers and their locks: a thread that waits here stands in nobody's way, also not at
    the end of the interpreter.

    Raises:
        TimeoutError: it may wait no longer; a part may have been written.
        OSError: the stream is closed, or takes no more.
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
        with contextlib.suppress(BlockingIOError):  # others write there too
            rest = rest[os.write(descriptor, rest[:_PIECE_BYTES]) :]


def within(seconds: float) -> Callable[[], bool]:
    """Returns what says for so long that one may wait."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # as in tests, or closed
        return None
