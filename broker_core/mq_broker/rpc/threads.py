"""Threads that calls run on: made before they are promised, so that nobody who was let in waits for one that
the system refuses.
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

#: Left to others in this process: gRPC's own, snapshots, the end.
KEPT: Final = 32
#: Calls whose first request has not come.
SILENT_MAX: Final = 1024
#: With fewer a broker would serve nobody.
_LEAST: Final = 48
#: Threads that stay where nobody needs them at present.
_SPARE: Final = 64
#: The limits of the system are looked at for an error no more often than this.
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Shares:
    """How many threads each kind of call may have.

    Attributes:
        streams: streams; each has one thread or two.
        waits: plans that wait for rows.
        silent: calls whose first request has not come.
        short: calls that are answered at once; made at the start.
        cause: the limit of the system that makes them fewer than the settings say; "" where none does.
    """

    streams: int
    waits: int
    silent: int
    short: int
    cause: str = ""

    @classmethod
    def of(cls, config: BrokerConfig, limit: ThreadLimit | None) -> Shares:
        """Returns what the settings say, or what `limit` leaves of it.

        Raises:
            InvalidOption: it leaves too little to serve anybody.
        """
        wanted = cls(config.streams_max, config.waits_max, SILENT_MAX, config.unary_threads)
        if limit is None or limit.left >= wanted.threads + KEPT:
            return wanted
        left = limit.left - KEPT
        if left < _LEAST:
            raise InvalidOption(
                f"a broker needs {_LEAST + KEPT} threads at least, and {limit.words}, of which "
                f"{limit.used} are in use: raise the limit"
            )
        short = min(wanted.short, max(8, left // 8))
        silent, waits = min(SILENT_MAX, max(8, left // 8)), min(wanted.waits, max(4, left // 16))
        return cls(
            min(wanted.streams, (left - short - silent - waits) // 2), waits, silent, short, limit.words
        )

    @property
    def threads(self) -> int:
        """Of all kinds together."""
        return 2 * self.streams + self.waits + self.silent + self.short


def shares_now(config: BrokerConfig) -> Shares:
    """Returns the shares that this system allows, and says so where they are less than the settings ask for.

    Raises:
        InvalidOption: it allows too few to serve anybody.
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
    """The threads of all calls, used again and again.

    So many are there from the start that `short` calls are always answered beside those that last. What
    lasts, a stream or a call that is silent, reserves its thread first, which makes one where there is none
    to spare. Nothing else starts threads: gRPC's own serving thread, which hands calls over here, would end
    for good where the system refuses one.

    Raises:
        InvalidOption: not even those can be made.
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
        """How many threads there are, without those that are about to end."""
        return self._made

    @property
    def reserved(self) -> int:
        """How many of them have something that lasts."""
        return self._reserved

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hands a call over. Never fails and never waits: gRPC's serving thread asks."""
        future: Future[Any] = Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def reserve(self, count: int = 1) -> None:
        """Promises threads to something that lasts, until `release`.

        Raises:
            Busy: the system gives no more of them; nothing was reserved.
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
        """Gives reserved threads back. Some stay for others: a thread takes 60 KB."""
        with self._lock:
            self._reserved -= count
            for _ in range(self._made - self._reserved - self._short - _SPARE):
                if not self._ended:
                    self._made -= 1
                    self._work.put(None)

    def _refused(self, error: BaseException) -> Busy:
        now = time.monotonic()
        if now >= self._looked_at + _LOOK_S:  # it takes a look at every process
            limit = tightest()
            self._why = "look at its limits and its memory"
            if limit is not None and limit.left < KEPT:
                self._why = f"{limit.words}, of which {limit.used} are in use"
            self._looked_at = now
        made = self._made
        return Busy(
            f"the system gives this broker no thread beside its {made} ({error}): {self._why}; close "
            f"streams, or raise the limit"
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads when they have done what was handed over."""
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
            except BaseException as error:  # gRPC looks at no result
                say(
                    logging.ERROR,
                    "bug",
                    f"a call ended with {type(error).__name__}: {error}; please report it",
                    error=error,
                )
                future.set_exception(error)
            del item, future, work  # nothing of a call is kept while there is none
        with self._lock:
            self._threads.discard(threading.current_thread())


class Waits:
    """Calls that wait for rows: so many, each on a thread that is reserved for it."""

    def __init__(self, limit: int, workers: Workers) -> None:
        self._left = threading.BoundedSemaphore(limit)
        self._workers = workers

    def enter(self) -> bool:
        """Lets one more wait; returns whether it may."""
        if not self._left.acquire(blocking=False):
            return False
        try:
            self._workers.reserve()
        except Busy:
            self._left.release()
            return False
        return True

    def leave(self) -> None:
        """One has waited."""
        self._workers.release()
        self._left.release()
