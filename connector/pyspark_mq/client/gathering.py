"""The inner half of a producer: rows that gather into batches, and those who wait. Threads and receipts know
this half only.

So a `Producer` that its program forgets is collected although its threads work on: they send what it has
taken, then they end.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from mq_wire.errors import ClientClosed, InvalidRecords, MqError, SendOutcomeUnknown, SendTimeout
from pyspark_mq.client import forks
from pyspark_mq.client.accumulator import OpenBatch
from pyspark_mq.client.arguments import seconds
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.publish_stream import stream_for_one_more
from pyspark_mq.client.publishing import Publishing
from pyspark_mq.client.records import Piece
from pyspark_mq.client.sending import OutgoingBatch, Sending
from pyspark_mq.client.window import Window

#: How often an ending process looks whether the stream that flushes is still open.
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a producer gathers, and for how long.

    Attributes:
        window_bytes: most that may be unanswered, gathering rows included.
        batch_rows, batch_bytes: most of a gathered batch.
        linger_s: how long rows are gathered while others are under way.
        send_timeout: seconds until what could not be made durable fails.
    """

    window_bytes: int
    batch_rows: int
    batch_bytes: int
    linger_s: float
    send_timeout: float


class Gathering:
    """Rows on their way into the window of one producer. Thread-safe.

    Attributes:
        lock: of everything here and in `publishing`.
        owns_connection: whether closing closes the connection too.
    """

    def __init__(
        self,
        connection: Connection,
        window: Window,
        queue: str,
        partitions: int,
        bounds: Bounds,
    ) -> None:
        self.queue: Final = queue
        self.connection: Final = connection
        self.partitions: Final = partitions
        self.owns_connection = False
        self._bounds: Final = bounds
        self._window_bytes, self._batch_rows, self._batch_bytes = (
            bounds.window_bytes,
            bounds.batch_rows,
            bounds.batch_bytes,
        )
        self._closing = False
        self._sticky = uuid.uuid4().int % partitions
        # `_building` orders batches: it is taken before the lock, and held from when rows leave the
        # accumulator until they are queued.
        self._building = threading.Lock()
        self._open = OpenBatch(self)
        self.publishing: Final = Publishing(
            connection, stream_for_one_more(connection), queue, window, bounds.send_timeout, self
        )
        self.lock = self.publishing.lock
        forks.watch(self)

    def forked(self, parent: int) -> None:
        """In a child: refuses everything, and sends nothing of what was taken."""
        self.publishing.forked(parent)
        self.lock = self.publishing.lock
        self._building = threading.Lock()
        self._open = OpenBatch(self)

    # -- for the stream ------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """When the rows being gathered are to leave; infinity where there are none."""
        gathering = self._open
        return gathering.due if gathering.values else float("inf")

    def flush_due(self) -> None:
        """Lets the rows leave that have lingered enough."""
        gathering = self._open
        if gathering.due <= time.monotonic():
            self._flush_open(gathering)

    # -- what is taken -------------------------------------------------------------------------------------

    def take_message(
        self, value: bytes, key: bytes | None, priority: int, sparse: dict[str, Any] | None, size: int
    ) -> tuple[Sending, int]:
        """Takes one message of `size` bytes; waits for room. Returns what it was taken with, and its row
        there.

        Raises:
            SendTimeout: the window stayed full; nothing was taken.
            MqError: the producer is closed or has failed.
        """
        publishing = self.publishing
        with self.lock:
            if publishing.used + size > self._window_bytes or publishing.broken or self._closing:
                self._wait_for_room(size)
            batch = self._open
            values = batch.values
            row = len(values)
            values.append(value)
            batch.keys.append(key)
            batch.priorities.append(priority)
            batch.bytes += size
            publishing.used += size
            if sparse:
                for name, content in sparse.items():
                    batch.sparse.setdefault(name, {})[row] = content
            is_due = (
                batch.bytes >= self._batch_bytes
                or row + 1 >= self._batch_rows
                or (row == 0 and self._starts(batch))
            )
        if is_due:
            self._flush_open(batch)
        return batch.sending, row

    def begin_batch(self) -> Sending:
        """Lets everything leave that was taken before, and returns what a batch is to be taken with, piece by
        piece, until `end_batch`.

        Raises:
            MqError: the producer is closed or has failed.
        """
        self._check_open()
        self._flush_open(None)
        return Sending(self)

    def take_piece(self, sending: Sending, partition: int, piece: Piece) -> None:
        """Takes a piece of a batch, for any partition where that is below 0; waits and raises as
        `take_message`.
        """
        with self.lock:
            outgoing = OutgoingBatch(sending, self.next_sticky() if partition < 0 else partition, piece)
            self._wait_for_room(outgoing.size)
            sending.batches.append(outgoing)
            sending.left += 1
            self.publishing.enqueue(outgoing)

    def end_batch(self, sending: Sending) -> None:
        """No piece more will come."""
        with self.lock:
            self.publishing.answered(sending)

    # -- from the accumulator into the window --------------------------------------------------------------

    def _starts(self, batch: OpenBatch) -> bool:
        """The first row of a batch: returns whether it is to leave at once."""
        if not self.publishing.window.batches:
            return True
        batch.due = time.monotonic() + self._bounds.linger_s
        self.publishing.linger_until(batch.due)
        return False

    def _flush_open(self, which: OpenBatch | None) -> None:
        """Moves gathered rows into the window: all there are, or only `which`, if nobody has moved it yet."""
        with self._building:
            with self.lock:
                batch = self._open
                if not batch.values or (which is not None and batch is not which):
                    return
                self._open = OpenBatch(self)
            sending = batch.sending
            try:
                outgoing = batch.to_batches(self.partitions, self.next_sticky)
            except Exception as error:
                # Every row was checked when it was taken: this is a bug, and it is told like any other
                # failure.
                outgoing = [OutgoingBatch(sending, -1, Piece.skip(len(batch.values)))]
                outgoing[0].error = InvalidRecords(
                    f"{len(batch.values)} messages cannot be made a batch: {error}: please report it"
                )
            with self.lock:
                sending.batches = outgoing
                sending.left += len(outgoing)
                self.publishing.used -= batch.bytes
                for each in outgoing:
                    if each.error is not None or self.publishing.broken is not None:
                        each.error = each.error or self.publishing.broken
                        self.publishing.answered(sending, failed=True)
                    else:
                        self.publishing.enqueue(each)
                self.publishing.answered(sending)
                self.publishing.progress.notify_all()

    def next_sticky(self) -> int:
        """Returns a partition for rows that may go anywhere: another one each time."""
        self._sticky = (self._sticky + 1) % self.partitions
        return self._sticky

    # -- waiting -------------------------------------------------------------------------------------------

    def wait_for(self, sending: Sending, timeout: float | None) -> None:
        """Sends what still lingers and returns when `sending` is answered.

        Raises:
            SendOutcomeUnknown: not within `timeout` seconds.
        """
        timeout = seconds("timeout", timeout)
        if self.publishing.inherited is not None:
            raise self.publishing.inherited
        gathering = self._open
        if gathering.sending is sending:
            self._flush_open(gathering)
        deadline = None if timeout is None else time.monotonic() + timeout
        if sending.left == 1:
            self.publishing.send_now(sending, timeout)
        with self.publishing.progress:
            while sending.left:
                if not self.publishing.wait(_left(deadline)) and _left(deadline) == 0 and sending.left:
                    raise SendOutcomeUnknown(
                        f"queue {self.queue!r} gave no answer within {timeout} s: "
                        "the message is still being tried; ask again, or allow more time"
                    )

    def flush(self, timeout: float | None) -> list[Sending]:
        """Sends everything that was taken and returns, when all of it has its outcome, what failed without
        anybody being told.

        Raises:
            SendOutcomeUnknown: not within `timeout` seconds.
        """
        timeout = seconds("timeout", timeout)
        publishing = self.publishing
        if publishing.inherited is not None:
            raise publishing.inherited
        deadline = None if timeout is None else time.monotonic() + timeout
        self._flush_open(None)
        with self.lock:
            while publishing.window.batches:
                if not publishing.wait(_left(deadline)) and _left(deadline) == 0:
                    raise SendOutcomeUnknown(
                        f"{publishing.window.batches} batches to queue {self.queue!r} are not answered "
                        f"after {timeout} s: "
                        "they are still being tried; flush again"
                    )
            return publishing.take_untold()

    def flush_at_exit(self, until: float) -> tuple[int, str]:
        """Sends everything that was taken while this process ends. Returns how many messages were not
        confirmed, and why not.
        """
        publishing = self.publishing
        until = min(until, time.monotonic() + self._bounds.send_timeout)
        self._flush_open(None)
        publishing.stream.stop_opening()
        while publishing.window.batches and (left := until - time.monotonic()) > 0:
            publishing.drain(until)
            with self.lock:
                if publishing.window.batches and publishing.stream.live:
                    publishing.progress.wait(min(left, _LOOK_S))
        with self.lock:
            untold = publishing.take_untold()
            rows = publishing.window.rows_unanswered + sum(
                batch.rows for each in untold for batch in each.batches if batch.error is not None
            )
        reason = next(
            (str(error) for each in untold if (error := each.error()) is not None),
            "no answer in time; see that the broker runs",
        )
        return rows, reason

    @property
    def inherited(self) -> MqError | None:
        """In a forked process: why it refuses everything."""
        return self.publishing.inherited

    @property
    def rows_stored(self) -> int:
        """Rows that the broker has confirmed."""
        return self.publishing.window.rows_stored

    def close(self) -> bool:
        """Nothing more is taken. Returns whether anything was until now."""
        with self.lock:
            was_open, self._closing = not self._closing, True
            return was_open

    def finish(self) -> None:
        """Ends it, once everything is flushed."""
        try:
            self.publishing.end()
        finally:
            if self.owns_connection:
                self.connection.close()

    def _wait_for_room(self, size: int) -> None:
        """Waits, with the lock, until `size` more bytes fit; an empty window takes anything."""
        publishing = self.publishing
        deadline = time.monotonic() + self._bounds.send_timeout
        while True:
            self._check_open()
            if publishing.used + size <= self._window_bytes or publishing.used == 0:
                return
            if self._open.values:
                self._open.due = 0.0  # no more will come to it
                publishing.linger_until(0.0)
            if not publishing.wait(_left(deadline)) and _left(deadline) == 0:
                raise SendTimeout(
                    f"the window of {self._window_bytes} bytes to queue {self.queue!r} was full for "
                    f"{self._bounds.send_timeout} s: "
                    "see that the broker runs and has room; this message was not taken"
                )

    def _check_open(self) -> None:
        """Refuses what comes to a producer that is closed or has failed.

        Raises:
            ClientClosed: it is closed.
            MqError: why it failed.
        """
        if self.publishing.broken is not None and not self._closing:
            raise self.publishing.broken
        if self._closing:
            raise ClientClosed(f"the producer of queue {self.queue!r} is closed: make a new one")


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
