"""What has arrived becomes one turn of the journal, is synced, and only then the replies go.

There is one pen, and who holds it is the only writer. The engine's thread takes it for what other threads have handed over; a thread
that has to wait for its answer anyway takes it itself when it is free (`answer`), which saves two changes of threads a call.

The engine's thread does nothing but `turn`, again and again. Who never calls `start` may call that instead, with clocks of its own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from mq_broker.core.broker import Broker
from mq_broker.core.commands import (
    Acknowledge,
    AddCredit,
    Ask,
    CloseRun,
    CloseSession,
    ListPage,
    OpenSession,
    Publish,
    ReleaseView,
    ResolveFetch,
    RowsView,
    Tick,
)
from mq_broker.engine import events
from mq_broker.engine.housekeeping import Housekeeping
from mq_broker.engine.rows import RowReader
from mq_broker.journal.frames import frame_bytes
from mq_broker.journal.journal import Journal
from mq_wire.errors import BrokerUnavailable, Busy, InternalError, MqError, StorageFailed, StoreFull
from mq_wire.v1.admin_pb2 import ListDestinationsRequest, StatsRequest
from mq_wire.v1.common_pb2 import RowsHeader
from mq_wire.v1.produce_pb2 import CommitStagedRequest, DiscardStagedRequest, ListMarkersRequest, ListStagedRequest
from mq_wire.v1.subscribe_pb2 import ListConsumersRequest, OpenBrowseRequest, PlanRequest, ReleaseConsumerRequest

#: A turn takes no more than this many commands or bytes, so that the first of them need not wait long.
TURN_COMMANDS_MAX: Final = 2048
TURN_BYTES_MAX: Final = 16 << 20
#: Room for the entries of one command without records; a plan names up to millions of rows.
STATE_BYTES: Final = 1 << 20
PLAN_BYTES: Final = 24 << 20
#: Journal header of a published batch, at most.
PUBLISH_HEADER_BYTES: Final = 2048
TICK_S: Final = 1.0

_NEVER: Final = float("inf")
#: These need no room in the journal: consuming goes on when the disk is full, and what holds segments lets go of them.
_WRITE_NOTHING: Final = (
    AddCredit,
    Ask,
    ReleaseView,
    StatsRequest,
    ListPage,
    ListDestinationsRequest,
    OpenBrowseRequest,
    ListConsumersRequest,
    ListStagedRequest,
    ListMarkersRequest,
)
#: These happen to memory in any case; what they would write is left out when the disk is full.
_NEVER_REFUSED: Final = (CloseSession, CloseRun, Tick)

Done = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ends the engine."""


class Engine:
    """Owns the core and the writing side of the journal.

    Args:
        broker: the core, recovered.
        journal: open for writing; the core's sink.
        housekeeping: snapshots and space.
        now_us: wall clock, microseconds.
        on_failure: told once when storage failed or the core has a bug that left a turn half-made; the process must end.
        monotonic: seconds that only grow: when a tick is due.
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
        self._rows = RowReader(journal)
        self._inbox: queue.SimpleQueue[tuple[Any, Done]] = queue.SimpleQueue()
        self._replies: list[tuple[Done, Any]] = []
        self._waiters: dict[str, list[threading.Event]] = {}
        self._waiters_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pen = threading.Lock()
        self._pen_claimed = False
        self._stopping = self._stopped = self._told_short = False
        self._next_tick = monotonic() + TICK_S
        self.failed: BaseException | None = None

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
        """Hands a command over. `done` gets the reply, or the error as a value, on the engine's thread once it is durable."""
        if self.failed is not None:
            done(StorageFailed(f"the broker's storage failed ({self.failed}): it restarts and recovers from disk"))
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

        Only for commands that need not stand behind others of their client: they may overtake what was submitted before.
        """
        busy = self._pen_claimed or not self._inbox.empty()
        if busy or self.failed is not None or self._stopping or not self._pen.acquire(blocking=False):
            return self.call(command, timeout)
        try:
            if self._stopping:
                raise BrokerUnavailable("the broker is stopping: try again when it is back")
            answers: list[Any] = []
            self._handle(command, answers.append, self._now_us())
            self._finish_turn()
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

    def read(self, view: RowsView, columns: int, batch_rows_max: int, start_row: int = 0) -> Iterator[tuple[RowsHeader, pa.Buffer]]:
        """Yields the rows of a pinned view as record batches, on the caller's thread. See `RowReader.read`."""
        return self._rows.read(view, columns, batch_rows_max, start_row)

    def damaged_frames(self, view: RowsView) -> list[int]:
        """Returns the base offsets of damaged frames of a pinned view, on the caller's thread. See `RowReader.damaged_frames`."""
        return self._rows.damaged_frames(view)

    def wait_for_rows(self, destination: str, timeout: float) -> None:
        """Returns when rows became ready in a destination, at the latest after `timeout` seconds."""
        event = threading.Event()
        with self._waiters_lock:
            self._waiters.setdefault(destination, []).append(event)
        event.wait(timeout)
        with self._waiters_lock:
            waiting = self._waiters.get(destination, [])
            if event in waiting:
                waiting.remove(event)
            if not waiting:
                self._waiters.pop(destination, None)

    @property
    def has_arrivals(self) -> bool:
        """Whether commands wait for the next turn."""
        return not self._inbox.empty()

    def turn(self, wait_s: float = 0.0) -> None:
        """Makes what has arrived one turn, if anything arrives within `wait_s` seconds or a tick is due. For the engine's thread only.

        Raises:
            StorageFailed: nothing that was not synced was answered, nor will be; `on_failure` has been told. So with any other error.
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
            command, done = self._inbox.get(timeout=0.0 if is_cleaning else min(self._next_tick - now, wait_s))
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
            self._housekeeping.step(self._broker, self._now_us())
            if stop:
                self._housekeeping.finish(self._broker)
                self._journal.close()
                self._stopped = True

    def _fail(self, error: BaseException) -> None:
        # Nothing that was not synced may be answered, and nothing may be written on top of it: the process ends here.
        self.failed = error
        if self._on_failure is not None:
            self._on_failure(error)

    def _take(self, command: Any, done: Done) -> bool:
        """Handles a command and what else has arrived, up to the bounds of a turn. Returns whether to stop."""
        now_us = self._now_us()
        size, count = 0, 0
        while not isinstance(command, _Stop):
            size += self._handle(command, done, now_us)
            count += 1
            if count >= TURN_COMMANDS_MAX or size >= TURN_BYTES_MAX:
                return False
            try:
                command, done = self._inbox.get_nowait()
            except queue.Empty:
                return False
        return True

    def _handle(self, command: Any, done: Done, now_us: int) -> int:
        size = _size_bound(command)
        ledger = self._broker.ledger
        before = ledger.entries
        try:
            self._make_room(command, size)
            reply = self._broker.handle(command, now_us)
        except StorageFailed:
            raise
        except MqError as error:
            reply = error
        except Exception as error:
            if ledger.entries != before:
                raise
            reply = InternalError(f"{type(error).__name__} while handling {type(command).__name__}: {error}. Please report it")
            reply.__cause__ = error
        if isinstance(command, StatsRequest) and not isinstance(reply, MqError):
            reply.broker.turns = self._journal.position.turn
            reply.broker.journal_bytes = self._journal.used_bytes()
            reply.broker.segments = len(self._journal.segments())
        self._replies.append((done, reply))
        return size if isinstance(command, Publish) else 0

    def _make_room(self, command: Any, size: int) -> None:
        """A turn lies in one segment: what would not fit any more goes into the next one.

        Raises:
            StoreFull: for commands that may write and can be refused.
        """
        ledger = self._broker.ledger
        ledger.has_room = True
        if self._writes_nothing(command):
            return
        try:
            self._reserve(command, size)
        except StoreFull as full:
            is_session_end = isinstance(command, ReleaseConsumerRequest) and command.session
            if not isinstance(command, _NEVER_REFUSED) and not is_session_end:
                held = self._broker.holders_of_space()
                raise StoreFull(f"{full}; {held}" if held else str(full)) from None
            ledger.has_room = False

    def _writes_nothing(self, command: Any) -> bool:
        if isinstance(command, OpenSession):
            return command.open.destination in self._broker.state.by_name
        return isinstance(command, _WRITE_NOTHING) or (isinstance(command, ResolveFetch) and bool(command.open.browse))

    def _reserve(self, command: Any, size: int) -> None:
        size = min(size, self._journal.turn_bytes_max // 2)
        if not self._journal.fits(size):
            self._finish_turn()
            self._journal.reserve(size, for_state=not isinstance(command, Publish))
        elif isinstance(command, Publish):
            self._journal.reserve(size)

    def _finish_turn(self) -> None:
        """Writes and syncs, then answers, then hands out rows: nothing leaves before it is on disk."""
        self._journal.commit()
        replies, self._replies = self._replies, []
        for done, reply in replies:
            done(reply)
        self._tell()
        stirred = self._broker.state.stirred
        if stirred:
            self._wake(stirred)
            self._broker.dispatch(self._now_us())

    def _tell(self) -> None:
        """Says what is on the disk now, and whether there is room for more."""
        ledger = self._broker.ledger
        if ledger.notices:
            notices, ledger.notices = ledger.notices, []
            events.tell(notices)
        if self._journal.is_short is not self._told_short:
            self._told_short = self._journal.is_short
            events.tell_room(self._journal.is_short, self._journal.free_bytes())

    def _wake(self, destinations: set[str]) -> None:
        if not self._waiters:
            return
        with self._waiters_lock:
            for name in destinations & self._waiters.keys():
                for event in self._waiters.pop(name):
                    event.set()


def _ignore(reply: Any) -> None:
    """For commands whose reply says nothing."""


def _size_bound(command: Any) -> int:
    """Returns what the entries of a command take in the journal at most."""
    if isinstance(command, Publish):
        return frame_bytes(PUBLISH_HEADER_BYTES, command.records.size) + STATE_BYTES // 16
    if isinstance(command, (PlanRequest, CloseSession, ReleaseConsumerRequest)):
        return PLAN_BYTES
    if isinstance(command, Acknowledge):
        # A range that shares its Roaring container with no other takes about 32 bytes.
        return STATE_BYTES + 32 * sum(len(starts) for _, starts, _ in command.partitions)
    if isinstance(command, (CommitStagedRequest, DiscardStagedRequest)):
        return STATE_BYTES + 2 * command.ByteSize()
    return STATE_BYTES
