"""The threads that calls run on. They are made before a call is accepted, so that no accepted call waits for
a thread that the system refuses.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Final

from mq_broker.config import BrokerConfig
from mq_broker.log import say
from mq_broker.rpc.thread_limits import ThreadLimit, tightest
from mq_wire.errors import Busy, InvalidOption

#: Threads that are left to gRPC, to snapshots and to the shutdown.
KEPT: Final = 32
#: Most calls without their first request.
SILENT_MAX: Final = 1024
#: Fewest threads with which a broker can serve clients.
_LEAST: Final = 48
#: Idle threads that are kept.
_SPARE: Final = 64
#: Least number of seconds between two reads of the system's limits, which are named in errors.
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Shares:
    """How many calls of each kind have threads.

    Attributes:
        streams: streams; each has one thread or two.
        waits: plans that wait for rows.
        silent: calls without their first request.
        short: calls that are answered at once; their threads are made at the start.
        cause: the limit of the system because of which they are fewer than in the settings; "" = they are
            not.
    """

    streams: int
    waits: int
    silent: int
    short: int
    cause: str = ""

    @classmethod
    def of(cls, config: BrokerConfig, limit: ThreadLimit | None) -> Shares:
        """Returns the shares of the settings, or smaller ones if `limit` does not allow as many threads.

        Raises:
            InvalidOption: the limit leaves too few threads to serve clients.
        """
        wanted = cls(config.streams_max, config.waits_max, SILENT_MAX, config.unary_threads)
        if limit is None or limit.left >= wanted.threads + KEPT:
            return wanted
        left = limit.left - KEPT
        if left < _LEAST:
            raise InvalidOption(
                f"a broker needs at least {_LEAST + KEPT} threads, and {limit.words}, of which "
                f"{limit.used} are in use: raise the limit"
            )
        short = min(wanted.short, max(8, left // 8))
        silent, waits = min(SILENT_MAX, max(8, left // 8)), min(wanted.waits, max(4, left // 16))
        return cls(
            min(wanted.streams, (left - short - silent - waits) // 2), waits, silent, short, limit.words
        )

    @property
    def threads(self) -> int:
        """Number of threads for calls of all kinds."""
        return 2 * self.streams + self.waits + self.silent + self.short


def shares_now(config: BrokerConfig) -> Shares:
    """Returns the shares that this system allows. Logs a warning if they are smaller than those of the
    settings.

    Raises:
        InvalidOption: the system allows too few threads to serve clients.
    """
    shares = Shares.of(config, tightest())
    if shares.cause:
        say(
            logging.WARNING, "few_threads",
            f"{shares.streams} streams instead of {config.streams_max} (streams_max), each takes two "
            f"threads: {shares.cause}",
            streams=shares.streams, waits=shares.waits, unary_threads=shares.short,
        )  # fmt: skip
    return shares


class Workers(Executor):
    """The threads of all calls. They are reused.

    `short` threads are made at the start and always left for calls that are answered at once. Calls that last
    longer, such as streams and silent calls, reserve their threads first; `reserve` makes threads if
    necessary. No other code starts threads for calls. gRPC's serving thread, which submits calls, must not:
    it would end for good if the system refused a thread.

    Raises:
        InvalidOption: the first threads cannot be made.
    """

    def __init__(self, short: int) -> None:
        self._short = short
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._made = self._numbers = self._reserved = 0
        self._ended = False
        self._lock = threading.Lock()
        self._why, self._looked_at = "", -_LOOK_S
        try:
            self.reserve(0)
        except Busy as error:
            self.shutdown()
            raise InvalidOption(f"the broker cannot start: {error}") from None

    @property
    def made(self) -> int:
        """Number of threads, without those that are about to end."""
        return self._made

    @property
    def reserved(self) -> int:
        """Number of reserved threads."""
        return self._reserved

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queues a call. It never fails and never waits, since gRPC's serving thread calls it."""
        future: Future[Any] = Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def reserve(self, count: int = 1) -> None:
        """Reserves threads for a call that lasts, until `release`.

        Raises:
            Busy: the system gives no more threads; nothing was reserved.
        """
        with self._lock:
            while self._made < self._reserved + count + self._short and not self._ended:
                thread = threading.Thread(target=self._run, name=f"mq-rpc_{self._numbers}", daemon=True)
                try:
                    thread.start()
                except (RuntimeError, MemoryError) as error:
                    raise self._refused(error) from None
                self._threads.add(thread)
                self._made, self._numbers = self._made + 1, self._numbers + 1
            self._reserved += count

    def release(self, count: int = 1) -> None:
        """Gives reserved threads back. Some idle threads are kept; others end, since each takes 60 KB."""
        with self._lock:
            self._reserved -= count
            for _ in range(self._made - self._reserved - self._short - _SPARE):
                if not self._ended:
                    self._made -= 1
                    self._work.put(None)

    def _refused(self, error: BaseException) -> Busy:
        now = time.monotonic()
        if now >= self._looked_at + _LOOK_S:  # `tightest` reads files of every process
            limit = tightest()
            self._why = "look at its limits and its memory"
            if limit is not None and limit.left < KEPT:
                self._why = f"{limit.words}, of which {limit.used} are in use"
            self._looked_at = now
        made = self._made
        return Busy(
            f"the system gives this broker no thread beside its {made} ({error}): {self._why}; "
            "close streams, or raise the limit"
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the queued calls."""
        with self._lock:
            self._ended = True
            threads = list(self._threads)
            for _ in range(self._made):
                self._work.put(None)
        for thread in threads if wait else ():
            thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except BaseException as error:  # gRPC does not look at the result
                say(
                    logging.ERROR,
                    "bug",
                    f"a call ended with {type(error).__name__}: {error}; please report it",
                    error=error,
                )
                future.set_exception(error)
            del item, future, work  # keep no objects of a call while waiting for the next one
        with self._lock:
            self._threads.discard(threading.current_thread())


class Waits:
    """Bounds the number of waiting calls, and reserves a thread for each."""

    def __init__(self, limit: int, workers: Workers) -> None:
        self._left = threading.BoundedSemaphore(limit)
        self._workers = workers

    def enter(self) -> bool:
        """Returns whether one more call may wait. If so, it must call `leave` afterwards."""
        if not self._left.acquire(blocking=False):
            return False
        try:
            self._workers.reserve()
        except Busy:
            self._left.release()
            return False
        return True

    def leave(self) -> None:
        """Ends the wait of one call."""
        self._workers.release()
        self._left.release()
