"""Producers that nobody closed: what they have taken is sent all the same, when they are collected or when
the process ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from mq_wire.errors import MqError
from pyspark_mq.client import forks
from pyspark_mq.client.log import LOG

if TYPE_CHECKING:
    from pyspark_mq.client.gathering import Gathering

#: How long the end of a process is held up, at most, for all of them together.
_EXIT_S: Final = 10.0


class _Unclosed:
    """The inner halves of this process's open producers."""

    def __init__(self) -> None:
        self.open: dict[int, Gathering] = {}
        # A destructor may run anywhere, also where a lock is held: it may put, and nothing else.
        self.collected: SimpleQueue[Gathering] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.pid = 0

    def forked(self, parent: int) -> None:
        """In a child: the parent's are the parent's."""
        for gathering in self.open.values():
            forks.keep_for_ever(gathering)
        self.open, self.collected, self.thread = {}, SimpleQueue(), None


_unclosed: Final = _Unclosed()


def opened(gathering: Gathering) -> None:
    """A producer was made."""
    if _unclosed.pid != os.getpid():
        _unclosed.pid = os.getpid()
        forks.watch(_unclosed)
        _flush_children_of_multiprocessing()
    _unclosed.open[id(gathering)] = gathering
    if _unclosed.thread is None:
        _unclosed.thread = threading.Thread(target=_close_collected, name="mq-unclosed", daemon=True)
        _unclosed.thread.start()


def closed(gathering: Gathering) -> None:
    """A producer was closed."""
    _unclosed.open.pop(id(gathering), None)


def collected(gathering: Gathering) -> None:
    """A producer was collected without being closed. Takes no lock."""
    _unclosed.collected.put(gathering)


def _close_collected() -> None:
    waiting = _unclosed.collected
    while True:
        gathering = waiting.get()
        # A slow one must not hold up the others.
        threading.Thread(target=_close, args=(gathering,), name="mq-unclosed-one", daemon=True).start()


def _close(gathering: Gathering) -> None:
    gathering.close()
    try:
        for sending in gathering.flush(None):
            LOG.warning(
                "a message of an unclosed producer of queue %r was not sent: %s",
                gathering.queue,
                sending.error(),
            )
    except MqError as error:
        LOG.warning(
            "messages of an unclosed producer of queue %r may not be sent: %s", gathering.queue, error
        )
    finally:
        closed(gathering)
        gathering.finish()


def _flush_children_of_multiprocessing() -> None:
    """Processes that multiprocessing has forked end without `atexit`."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _flush_at_exit, exitpriority=0)


def _flush_at_exit() -> None:
    until = time.monotonic() + _EXIT_S
    for gathering in list(_unclosed.open.values()):
        try:
            rows, reason = gathering.flush_at_exit(until)
        except Exception as error:  # the next one is to be flushed too
            rows, reason = -1, repr(error)
        if rows and sys.stderr is not None:
            what = f"{rows} messages" if rows > 0 else "messages"
            sys.stderr.write(
                f"pyspark_mq: {what} to queue {gathering.queue!r} were not confirmed before this process "
                f"ended: {reason}\n"
                "pyspark_mq: close the producer, best with `with Producer(...) as producer:`, and it "
                "raises an error instead\n"
            )
            sys.stderr.flush()


atexit.register(_flush_at_exit)
