"""A process that stands still."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still within the block, with all its threads, and its connections stay open."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
