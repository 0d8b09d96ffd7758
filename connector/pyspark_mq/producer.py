"""The producer: messages and record batches in, receipts out, everything in between asynchronous and bounded."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from mq_wire.errors import ClientClosed, InvalidOption, InvalidRecords, MqError, SendOutcomeUnknown, SendTimeout
from mq_wire.limits import DEFAULT_ADDRESS, PRIORITY_DEFAULT, RECORDS_BYTES_MAX, RECORDS_ROWS_MAX
from mq_wire.names import check_client_name, check_destination
from mq_wire.v1 import admin_pb2, produce_pb2
from pyspark_mq.accumulator import ROW_OVERHEAD_BYTES, OpenBatch, as_bytes, check_priority, check_size, sparse_columns
from pyspark_mq.connection import Connection
from pyspark_mq.publishing import Publishing
from pyspark_mq.receipts import BatchReceipt, Receipt, Sending
from pyspark_mq.records import PIECE_BYTES_MAX, Piece, cut, to_piece, to_records
from pyspark_mq.window import OutgoingBatch, Window

#: Sending from one batch on while the next is gathered needs room for at least two.
_BATCHES_IN_WINDOW: Final = 2
#: Tables whose chunks are smaller, on average, are made one chunk first.
_CHUNK_ROWS_MIN: Final = 1 << 14


class Producer:
    """Sends to one queue. Thread-safe; what one thread sends stays in order within its partition and priority.

    Args:
        address: `mq://host:port`, or several to be tried in turn.
        queue: where to; created on first use where the broker allows it.
        name: stable name for duplicate protection across restarts of the program: `stored` then tells what this name has stored before, and
            an older instance of the same name is fenced. None = a random identity.
        window_bytes: most bytes that may be unanswered, gathering ones included; `send` waits beyond that.
        linger_ms: how long messages are gathered while others are under way; with nothing under way they leave at once.
        batch_rows: most messages of a gathered batch.
        batch_bytes: about the size of a batch on the wire; at most half of the window counts.
        send_timeout: seconds until a message that could not be made durable fails.
        connect_timeout: seconds that the constructor goes on trying where the broker cannot be reached.
        staged: stage the rows in this set instead of publishing them; no offsets then, and the first error is the last.
        connection: an existing connection to use, left open at close(); `address` is ignored.

    Raises:
        BrokerUnavailable: no broker answers.
        UnknownDestination: the queue does not exist and may not be created on first use.
        InvalidName, InvalidOption: a name or value that is not allowed.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        queue: str = "",
        *,
        name: str | None = None,
        window_bytes: int = 1 << 20,
        linger_ms: float = 5,
        batch_rows: int = 10_000,
        batch_bytes: int = 1 << 20,
        send_timeout: float = 30.0,
        connect_timeout: float = 10.0,
        staged: produce_pb2.StagedSet | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.queue: Final = check_destination(queue)
        self.name: Final = name if name is None else check_client_name(name, "producer")
        for option, value, low, high in (
            ("window_bytes", window_bytes, 1, float("inf")),
            ("linger_ms", linger_ms, 0, 60_000),
            ("batch_rows", batch_rows, 1, RECORDS_ROWS_MAX),
            ("batch_bytes", batch_bytes, 1, RECORDS_BYTES_MAX),
            ("send_timeout", send_timeout, 0.001, float("inf")),
        ):
            if not low <= value <= high:
                raise InvalidOption(f"{option}={value} is outside {low} to {high}")
        self._window_bytes, self._linger_s, self._batch_rows = window_bytes, linger_ms / 1000, batch_rows
        self._batch_bytes = max(1, min(batch_bytes, PIECE_BYTES_MAX, window_bytes // _BATCHES_IN_WINDOW))
        self._send_timeout = send_timeout
        self._owns_connection = connection is None
        self._connection = connection or Connection(address)
        try:
            self._begin(connect_timeout, staged)
        except BaseException:
            if self._owns_connection:
                self._connection.close()
            raise
        self._sticky = uuid.uuid4().int % self.partitions
        # `_building` orders batches: it is taken before the lock, and held from when rows leave the accumulator until they are queued.
        self._building = threading.Lock()
        self._open = OpenBatch(self)
        self._closing = self._closed = False

    def _begin(self, connect_timeout: float, staged: produce_pb2.StagedSet | None) -> None:
        request = admin_pb2.DescribeDestinationRequest(name=self.queue, create=True)
        described = self._connection.call("DescribeDestination", request, retry_timeout=connect_timeout)
        self.partitions: int = len(described.partitions)
        producer_id, epoch = uuid.uuid4().hex, 0
        #: For a named producer: partition -> (rows that this name has stored in it so far, offset of the last one).
        self.stored: dict[int, tuple[int, int]] = {}
        if self.name is not None:
            opening = produce_pb2.OpenProducerRequest(name=self.name, destination=self.queue)
            opened = self._connection.call("OpenProducer", opening, retry_timeout=connect_timeout)
            producer_id, epoch = opened.producer_id, opened.epoch
            self.stored.update({mark.partition: (mark.rows, mark.last_offset) for mark in opened.marks})
        window = Window(self.queue, producer_id, epoch, staged, is_named=self.name is not None)
        self._publishing = Publishing(self._connection, self.queue, window, self._send_timeout, self)
        self._lock = self._publishing.lock

    # -- sending ---------------------------------------------------------------------------------------------------------

    def send(
        self,
        value: bytes,
        key: bytes | None = None,
        priority: int = PRIORITY_DEFAULT,
        headers: Mapping[str, bytes] | Iterable[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        **columns: Any,
    ) -> Receipt:
        """Takes one message and returns its receipt at once; waits only while the window is full.

        Args:
            value: the message.
            key: messages of one key go to one partition, in order.
            priority: 0 to 9; higher ones are delivered first.
            headers: names and values, order and repetitions kept.
            partition: instead of the key's.
            columns: message_id, correlation_id, reply_to, type, trace_context (str) or created_at (datetime with time zone).

        Raises:
            InvalidRecords, LimitExceeded, Unsupported: the message is wrong; nothing was taken.
            SendTimeout: the window stayed full; nothing was taken.
            ClientClosed: the producer is closed. Once it is fenced or its broker was replaced: that error.
        """
        if value.__class__ is not bytes:
            value = as_bytes(value, "value")
        size = len(value) + ROW_OVERHEAD_BYTES
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(key, "key")
            size += len(key)
        if priority != PRIORITY_DEFAULT:
            check_priority(priority)
        sparse = None
        if headers is not None or partition is not None or columns:
            sparse, sparse_bytes = sparse_columns(headers, partition, self.partitions, columns)
            size += sparse_bytes
        if size > self._batch_bytes:
            check_size(size)
        publishing = self._publishing
        with self._lock:
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
            is_due = batch.bytes >= self._batch_bytes or row + 1 >= self._batch_rows or (row == 0 and self._starts(batch))
        if is_due:
            self._flush_open(batch)
        return Receipt(batch.sending, row)

    def send_batch(self, data: pa.RecordBatch | pa.Table) -> BatchReceipt:
        """Takes a record batch or table and returns its receipt; waits while the window is full.

        Columns: `value` (binary or string), optionally `key`, `priority` (0 to 9), `headers` (list<struct<key, value>> or map),
        `partition`, message_id, correlation_id, reply_to, type, trace_context, created_at. It is cut into slices as the wire likes.

        Raises:
            InvalidRecords, LimitExceeded, Unsupported: something in it is wrong; nothing of it was taken.
            SendTimeout: the window stayed full; what had been taken before goes its way, see the note of the error.
            ClientClosed: the producer is closed.
        """
        # Everything is checked before anything is sent.
        records = [to_records(chunk, self.partitions).settled(self._next_sticky) for chunk in _chunks(data) if chunk.num_rows]
        parts = [part for each in records for part in cut(each, self._batch_bytes)]
        sending = Sending(self)
        receipt = BatchReceipt(sending, data.num_rows)
        self._check_open()
        self._flush_open(None)
        sent_rows = 0
        try:
            for partition, rows, priority_plus_one in parts:
                # One at a time: serialising all of a large batch first would hold it in memory twice.
                piece = to_piece(rows, priority_plus_one)
                with self._lock:
                    outgoing = OutgoingBatch(sending, self._next_sticky() if partition < 0 else partition, piece)
                    self._wait_for_room(outgoing.size)
                    sending.batches.append(outgoing)
                    sending.left += 1
                    self._publishing.enqueue(outgoing)
                sent_rows += piece.rows
        except MqError as error:
            if sent_rows:
                error.add_note(f"{sent_rows} of {data.num_rows} rows of this batch had been handed to the wire before")
            raise
        finally:
            with self._lock:
                self._publishing.answered(sending)
        return receipt

    def flush(self, timeout: float | None = None) -> None:
        """Sends everything that was taken, and returns when all of it has its outcome.

        Args:
            timeout: seconds to wait; None = until send_timeout decides.

        Raises:
            SendOutcomeUnknown: answers are still missing after `timeout`; ask again.
            MqError: the first failure that no receipt has told yet, with a note of how many there were.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._flush_open(None)
        with self._lock:
            while self._publishing.window.batches:
                if not self._publishing.progress.wait(_left(deadline)) and _left(deadline) == 0:
                    raise SendOutcomeUnknown(
                        f"{self._publishing.window.batches} batches to queue {self.queue!r} are not answered after {timeout} s: "
                        "they are still being tried; flush again"
                    )
            errors = self._publishing.take_untold()
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"{len(errors)} sends to queue {self.queue!r} failed; this is the first")
            raise errors[0]

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then ends the stream. Afterwards the producer takes nothing more.

        Raises:
            MqError: as `flush`; the producer is closed all the same.
        """
        with self._lock:
            if self._closed:
                return
            self._closing = True
        try:
            self.flush(timeout)
        finally:
            self._closed = True
            self._publishing.end()
            if self._owns_connection:
                self._connection.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def rows_stored(self) -> int:
        """Rows that the broker has confirmed, duplicates included."""
        return self._publishing.window.rows_stored

    # -- for Publishing --------------------------------------------------------------------------------------------------

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

    # -- from the accumulator into the window ----------------------------------------------------------------------------

    def _starts(self, batch: OpenBatch) -> bool:
        """The first row of a batch: returns whether it is to leave at once."""
        if not self._publishing.window.batches:
            return True
        batch.due = time.monotonic() + self._linger_s
        self._publishing.work.notify_all()
        return False

    def _flush_open(self, which: OpenBatch | None) -> None:
        """Moves gathered rows into the window: all there are, or only `which`, if nobody has moved it yet."""
        with self._building:
            with self._lock:
                batch = self._open
                if not batch.values or (which is not None and batch is not which):
                    return
                self._open = OpenBatch(self)
            sending = batch.sending
            try:
                outgoing = batch.to_batches(self.partitions, self._next_sticky)
            except (MqError, pa.ArrowException) as error:
                # Every row was checked when it was taken: this is a bug, and it is told like any other failure.
                outgoing = [OutgoingBatch(sending, -1, Piece.skip(len(batch.values)))]
                outgoing[0].error = InvalidRecords(f"{len(batch.values)} messages cannot be made a batch: {error}: please report it")
            with self._lock:
                sending.batches = outgoing
                sending.left += len(outgoing)
                self._publishing.used -= batch.bytes
                for each in outgoing:
                    if each.error is not None or self._publishing.broken is not None:
                        each.error = each.error or self._publishing.broken
                        self._publishing.answered(sending, failed=True)
                    else:
                        self._publishing.enqueue(each)
                self._publishing.answered(sending)
                self._publishing.progress.notify_all()

    def _next_sticky(self) -> int:
        self._sticky = (self._sticky + 1) % self.partitions
        return self._sticky

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def wait_for(self, sending: Sending, timeout: float | None) -> None:
        """Sends what still lingers and returns when `sending` is answered.

        Raises:
            SendOutcomeUnknown: not within `timeout` seconds.
        """
        gathering = self._open
        if gathering.sending is sending:
            self._flush_open(gathering)
        deadline = None if timeout is None else time.monotonic() + timeout
        if sending.left == 1:
            self._publishing.send_now(sending, timeout)
        progress = self._publishing.progress
        with progress:
            while sending.left:
                if not progress.wait(_left(deadline)) and _left(deadline) == 0 and sending.left:
                    raise SendOutcomeUnknown(
                        f"queue {self.queue!r} gave no answer within {timeout} s: "
                        "the message is still being tried; ask again, or allow more time"
                    )

    def _wait_for_room(self, size: int) -> None:
        """Waits, with the lock, until `size` more bytes fit; an empty window takes anything."""
        publishing = self._publishing
        deadline = time.monotonic() + self._send_timeout
        while True:
            self._check_open()
            if publishing.used + size <= self._window_bytes or publishing.used == 0:
                return
            if self._open.values:
                self._open.due = 0.0  # no more will come to it
                publishing.work.notify_all()
            if not publishing.progress.wait(_left(deadline)) and _left(deadline) == 0:
                raise SendTimeout(
                    f"the window of {self._window_bytes} bytes to queue {self.queue!r} was full for {self._send_timeout} s: "
                    "see that the broker runs and has room; this message was not taken"
                )

    def _check_open(self) -> None:
        if self._publishing.broken is not None and not self._closing:
            raise self._publishing.broken
        if self._closing:
            raise ClientClosed(f"the producer of queue {self.queue!r} is closed: make a new one")


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _chunks(data: object) -> list[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        batches: list[pa.RecordBatch] = data.to_batches()
        # Many small chunks would become many small batches on the wire.
        if len(batches) > 1 and data.num_rows < len(batches) * _CHUNK_ROWS_MIN:
            batches = data.combine_chunks().to_batches()
        return batches
    raise InvalidRecords(f"send_batch takes an Arrow RecordBatch or Table, not {type(data).__name__}: use send() for single messages")
