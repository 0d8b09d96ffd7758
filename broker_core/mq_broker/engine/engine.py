"""What has arrived becomes one turn of the journal, is synced, and only then the replies go.

There is one pen, and who holds it is the only writer. The engine's thread takes it for what other threads
have handed over; a thread that has to wait for its answer anyway takes it itself when it is free (`answer`),
which saves two changes of threads a call.

The engine's thread does nothing but `turn`, again and again. Who never calls `start` may call that instead,
with clocks of its own.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from mq_broker.core.broker import Broker
from mq_broker.core.commands import Publish, RowsView, Tick
from mq_broker.core.ledger import JournalFigures
from mq_broker.engine import events
from mq_broker.engine.housekeeping import Housekeeping
from mq_broker.engine.room import JournalRoom
from mq_broker.engine.rows import RowReader
from mq_broker.journal.journal import Journal
from mq_broker.journal.segments import segment_name
from mq_wire.errors import BrokerUnavailable, Busy, InternalError, MqError, StorageFailed, StoreFull
from mq_wire.v1.common_pb2 import RowsHeader

#: A turn takes no more than this many commands, bytes or seconds, so that the first of them need not wait
#: long.
TURN_COMMANDS_MAX: Final = 2048
TURN_BYTES_MAX: Final = 16 << 20
TURN_S_MAX: Final = 0.05
TICK_S: Final = 1.0

_NEVER: Final = float("inf")

Done = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ends the engine."""


@dataclass(frozen=True, slots=True)
class _More:
    """There are rows to hand out still: behind what has arrived in the meantime."""


class Engine:
    """Owns the core and the writing side of the journal.

    Args:
        broker: the core, recovered.
        journal: open for writing; the core's sink.
        housekeeping: snapshots and space.
        now_us: wall clock, microseconds.
        on_failure: told once when storage failed or the core has a bug that left a turn half-made; the
            process must end.
        monotonic: seconds that only grow, for everything that is measured.
    """

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        housekeeping: Housekeeping,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        on_failure: Callable[[BaseException], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker, self._journal, self._housekeeping = broker, journal, housekeeping
        self._now_us, self._on_failure, self._monotonic = now_us, on_failure, monotonic
        self._rows = RowReader(journal, journal.position)
        self._room = broker.ledger.room = JournalRoom(journal, broker, housekeeping)
        broker.ledger.figures = self._figures
        self._inbox: queue.SimpleQueue[tuple[Any, Done]] = queue.SimpleQueue()
        self._replies: list[tuple[Done, Any]] = []
        self._waiters: dict[str, list[threading.Event]] = {}
        self._waiters_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pen = threading.Lock()
        self._pen_claimed = False
        self._stopping = self._stopped = self._more_due = False
        self._room_news = events.RoomNews()
        self._next_tick = monotonic() + TICK_S
        self.failed: BaseException | None = None

    @property
    def file_in_hand(self) -> str:
        """Name of the journal's file that holds the last turn. Any thread may ask."""
        return segment_name(self._journal.position.segment)

    def start(self) -> None:
        """Begins to serve."""
        self._thread = threading.Thread(target=self._run, name="mq-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answers what has arrived, syncs, takes a snapshot and closes the journal."""
        if self._stopping:
            return
        self._stopping = True
        self._inbox.put((Tick(), _ignore))  # what is counted in memory is written down
        self._inbox.put((_Stop(), _ignore))
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            return
        while not self._stopped and self.failed is None:
            self.turn()

    def submit(self, command: Any, done: Done) -> None:
        """Hands a command over. `done` gets the reply, or the error as a value, on the engine's thread once
        it is durable.
        """
        if self.failed is not None:
            done(
                StorageFailed(
                    f"the broker's storage failed ({self.failed}): it restarts and recovers from disk"
                )
            )
        elif self._stopping:
            done(BrokerUnavailable("the broker is stopping: try again when it is back"))
        else:
            self._inbox.put((command, done))

    def call(self, command: Any, timeout: float | None = None) -> Any:
        """Returns the reply to a command once it is durable.

        Raises:
            MqError: as the command's handler says; Busy when there was no answer within `timeout` seconds.
        """
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.submit(command, answer.put)
        try:
            reply = answer.get(timeout=timeout)
        except queue.Empty:
            raise Busy(f"no answer within {timeout} s: the broker is overloaded, try again") from None
        if isinstance(reply, MqError):
            raise reply
        return reply

    def answer(self, command: Any, timeout: float | None = None) -> Any:
        """As `call`, on the caller's own thread where nobody else is writing or waiting.

        Only for commands that need not stand behind others of their client: they may overtake what was
            submitted before.
        """
        busy = self._pen_claimed or not self._inbox.empty()
        if busy or self.failed is not None or self._stopping or not self._pen.acquire(blocking=False):
            return self.call(command, timeout)
        try:
            if self._stopping:
                raise BrokerUnavailable("the broker is stopping: try again when it is back")
            answers: list[Any] = []
            self._handle(command, answers.append, self._now_us(), self._monotonic_us())
            self._finish_turn()
            if self._journal.space.lacks_reserve:
                self._housekeeping.step(self._broker, self._now_us(), self._monotonic_us())
        except BrokerUnavailable:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._pen.release()
        if isinstance(answers[0], MqError):
            raise answers[0]
        return answers[0]

    def read(
        self, view: RowsView, columns: int, batch_rows_max: int, start_row: int = 0
    ) -> Iterator[tuple[RowsHeader, pa.Buffer]]:
        """Yields the rows of a pinned view as record batches, on the caller's thread. See
        `RowReader.read`.
        """
        return self._rows.read(view, columns, batch_rows_max, start_row)

    def damaged_frames(self, view: RowsView) -> list[int]:
        """Returns the base offsets of damaged frames of a pinned view, on the caller's thread. See
        `RowReader.damaged_frames`.
        """
        return self._rows.damaged_frames(view)

    @contextlib.contextmanager
    def watching(self, destination: str) -> Iterator[threading.Event]:
        """An event that is set whenever rows become ready in a destination, until the end of the block: look
        first, then wait.
        """
        event = threading.Event()
        with self._waiters_lock:
            self._waiters.setdefault(destination, []).append(event)
        try:
            yield event
        finally:
            with self._waiters_lock:
                self._waiters[destination].remove(event)
                if not self._waiters[destination]:
                    del self._waiters[destination]

    @property
    def has_arrivals(self) -> bool:
        """Whether commands wait for the next turn."""
        return not self._inbox.empty()

    def turn(self, wait_s: float = 0.0) -> None:
        """Makes what has arrived one turn, if anything arrives within `wait_s` seconds or a tick is due. For
        the engine's thread only.

        Raises:
            StorageFailed: nothing that was not synced was answered, nor will be; `on_failure` has been told.
                So with any other error.
        """
        try:
            self._turn(wait_s)
        except BaseException as error:
            self._fail(error)
            raise

    def _run(self) -> None:
        try:
            while not self._stopped:
                self.turn(_NEVER)
        except MqError:
            pass  # on_failure was told

    def _turn(self, wait_s: float) -> None:
        now = self._monotonic()
        if now >= self._next_tick:
            self._inbox.put((Tick(self._journal.is_short), _ignore))
            self._next_tick = now + TICK_S
        is_cleaning = self._housekeeping.is_cleaning
        try:
            command, done = self._inbox.get(
                timeout=0.0 if is_cleaning else min(self._next_tick - now, wait_s)
            )
        except queue.Empty:
            if not is_cleaning:
                return
            command, done = None, _ignore  # nobody waits: the cleaner has the time
        self._pen_claimed = True  # the next to have it, however many ask
        with self._pen:
            self._pen_claimed = False
            stop = False
            if command is not None:
                stop = self._take(command, done)
                self._finish_turn()
            self._housekeeping.step(self._broker, self._now_us(), self._monotonic_us())
            if stop:
                self._housekeeping.finish(self._broker)
                self._journal.close()
                self._stopped = True

    def _fail(self, error: BaseException) -> None:
        # Nothing that was not synced may be answered, and nothing may be written on top of it: the process
        # ends here.
        self.failed = error
        if self._on_failure is not None:
            self._on_failure(error)

    def _take(self, command: Any, done: Done) -> bool:
        """Handles a command and what else has arrived, up to the bounds of a turn. Returns whether to
        stop.
        """
        now_us, monotonic_us = self._now_us(), self._monotonic_us()
        size, count, until = 0, 0, self._monotonic() + TURN_S_MAX
        while not isinstance(command, _Stop):
            if isinstance(command, _More):
                self._more_due = False
            else:
                size += self._handle(command, done, now_us, monotonic_us)
            count += 1
            if count >= TURN_COMMANDS_MAX or size >= TURN_BYTES_MAX or self._monotonic() >= until:
                return False
            try:
                command, done = self._inbox.get_nowait()
            except queue.Empty:
                return False
        return True

    def _monotonic_us(self) -> int:
        return round(self._monotonic() * 1_000_000)

    def _handle(self, command: Any, done: Done, now_us: int, monotonic_us: int) -> int:
        entries = self._broker.ledger.entries
        reply = self._reply_to(command, now_us, monotonic_us)
        if (
            isinstance(reply, StoreFull)
            and not isinstance(command, Publish)
            and entries == self._broker.ledger.entries
        ):
            # Not rows: what is kept back for state comes back behind snapshots, and they are not waited for,
            # they are taken.
            self._finish_turn()
            self._housekeeping.relieve(self._broker, monotonic_us)
            reply = self._reply_to(command, now_us, monotonic_us)
        if isinstance(reply, StoreFull):
            if isinstance(command, Publish):
                self._room_news.refused(monotonic_us, self._journal.space.free_bytes)
            if holders := self._broker.holders_of_space():
                reply = StoreFull(f"{reply}; {holders}")
        self._replies.append((done, reply))
        return int(command.records.size) if isinstance(command, Publish) else 0

    def _reply_to(self, command: Any, now_us: int, monotonic_us: int) -> Any:
        """Returns what the core answers, errors as values."""
        ledger = self._broker.ledger
        before = ledger.entries
        self._room.command = command
        try:
            reply = self._broker.handle(command, now_us, monotonic_us)
        except StorageFailed:
            raise
        except MqError as error:
            # Without the frames that it passed: this one is among them, so request and error would hold each
            # other until a collection.
            reply = error.with_traceback(None)
        except Exception as error:
            if ledger.entries != before:
                raise
            reply = InternalError(
                f"{type(error).__name__} while handling {type(command).__name__}: {error}. Please report it"
            )
            reply.__cause__ = error
        return reply

    def _figures(self) -> JournalFigures:
        journal = self._journal
        return JournalFigures(
            journal.position.turn, journal.space.used_bytes(), len(journal.space.segments())
        )

    def _finish_turn(self) -> None:
        """Writes and syncs, then answers, then hands out rows: nothing leaves before it is on disk."""
        self._journal.commit()
        replies, self._replies = self._replies, []
        for done, reply in replies:
            done(reply)
        self._tell()
        state = self._broker.state
        if state.news:
            news, state.news = state.news, set()
            self._wake(news)
        if state.stirred and self._broker.dispatch(self._now_us()) and not self._more_due:
            self._more_due = True
            self._inbox.put((_More(), _ignore))

    def _tell(self) -> None:
        """Says what is on the disk now, and whether there is room for more."""
        ledger = self._broker.ledger
        if ledger.notices:
            notices, ledger.notices = ledger.notices, []
            events.tell(notices)
        if not self._journal.is_short:
            self._room_news.taken(ledger.monotonic_us, self._journal.space.free_bytes)

    def _wake(self, destinations: set[str]) -> None:
        if not self._waiters:
            return
        with self._waiters_lock:
            for name in destinations & self._waiters.keys():
                for event in self._waiters[name]:
                    event.set()


def _ignore(reply: Any) -> None:
    """For commands whose reply says nothing."""
