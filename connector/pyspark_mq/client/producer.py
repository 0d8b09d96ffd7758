"""The producer: messages and record batches in, receipts out, everything in between asynchronous and
bounded.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn

import pyarrow as pa

from mq_wire.errors import InvalidName, InvalidOption, InvalidRecords, MqError, SendOutcomeUnknown
from mq_wire.limits import DEFAULT_ADDRESS, PRIORITY_DEFAULT, RECORDS_BYTES_MAX, RECORDS_ROWS_MAX
from mq_wire.names import check_client_name, check_destination
from mq_wire.v1 import admin_pb2, produce_pb2
from pyspark_mq.client import unclosed
from pyspark_mq.client.accumulator import (
    ROW_OVERHEAD_BYTES,
    as_bytes,
    check_priority,
    check_size,
    sparse_columns,
)
from pyspark_mq.client.arguments import not_copied, seconds
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.gathering import Bounds, Gathering
from pyspark_mq.client.receipts import BatchReceipt, Receipt
from pyspark_mq.client.records import PIECE_BYTES_MAX, cut, to_piece, to_records
from pyspark_mq.client.sending import Sending
from pyspark_mq.client.window import Window

#: Sending from one batch on while the next is gathered needs room for at least two.
_BATCHES_IN_WINDOW: Final = 2
#: Tables whose chunks are smaller, on average, are made one chunk first.
_CHUNK_ROWS_MIN: Final = 1 << 14


class Producer:
    """Sends to one queue. Thread-safe; what one thread sends stays in order within its partition and
    priority.

    Close it, best with a `with` block. One that is forgotten still sends what it has taken, when it is
    collected (with a ResourceWarning) and, for up to 10 s, when the program ends; but then no error can be
    raised any more. After a fork the child makes its own.

    Args:
        address: `mq://host:port`, or several to be tried in turn.
        queue: where to; created on first use where the broker allows it.
        name: stable name for duplicate protection across restarts of the program: `stored` then tells what
            this name has stored before, and an older instance of the same name is fenced. None = a random
            identity.
        window_bytes: most bytes that may be unanswered, gathering ones included; `send` waits beyond that.
        linger_ms: how long messages are gathered while others are under way; with nothing under way they
            leave at once.
        batch_rows: most messages of a gathered batch.
        batch_bytes: about the size of a batch on the wire; at most half of the window counts.
        send_timeout: seconds until a message that could not be made durable fails.
        connect_timeout: seconds that the constructor goes on trying where the broker cannot be reached.
        staged: stage the rows in this set instead of publishing them; no offsets then, and the first error is
            the last.
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
        if not queue:
            given = (
                ""
                if address == DEFAULT_ADDRESS or "://" in address
                else f"; {address!r} was given as the address"
            )
            raise InvalidName(f"the queue is missing: write Producer(queue=...){given}")
        self.queue: Final = check_destination(queue)
        self.name: Final = name if name is None else check_client_name(name, "producer")
        numbers: tuple[tuple[str, Any, float, float], ...] = (
            ("window_bytes", window_bytes, 1, float("inf")),
            ("linger_ms", linger_ms, 0, 60_000),
            ("batch_rows", batch_rows, 1, RECORDS_ROWS_MAX),
            ("batch_bytes", batch_bytes, 1, RECORDS_BYTES_MAX),
        )
        for option, value, low, high in numbers:
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InvalidOption(f"{option}={value!r} is outside {low} to {high}")
        send_timeout = seconds("send_timeout", send_timeout, 0.001)
        connect_timeout = seconds("connect_timeout", connect_timeout)
        self._batch_bytes = max(
            1, min(int(batch_bytes), PIECE_BYTES_MAX, int(window_bytes // _BATCHES_IN_WINDOW))
        )
        bounds = Bounds(window_bytes, batch_rows, self._batch_bytes, linger_ms / 1000, send_timeout)
        opened = connection or Connection(address)
        try:
            window = self._begin(opened, connect_timeout, staged)
            gathering = Gathering(opened, window, self.queue, self.partitions, bounds)
        except BaseException:
            if connection is None:
                opened.close()
            raise
        gathering.owns_connection = connection is None
        self._gathering: Final = gathering
        self._closed = False
        unclosed.opened(gathering)

    def _begin(
        self, connection: Connection, connect_timeout: float, staged: produce_pb2.StagedSet | None
    ) -> Window:
        request = admin_pb2.DescribeDestinationRequest(name=self.queue, create=True)
        described = connection.call("DescribeDestination", request, retry_timeout=connect_timeout)
        self.partitions: int = len(described.partitions)
        producer_id, epoch = uuid.uuid4().hex, 0
        #: For a named producer: partition -> (rows that this name has stored in it so far, offset of the last
        #: one).
        self.stored: dict[int, tuple[int, int]] = {}
        if self.name is not None:
            opening = produce_pb2.OpenProducerRequest(name=self.name, destination=self.queue)
            opened = connection.call("OpenProducer", opening, retry_timeout=connect_timeout)
            producer_id, epoch = opened.producer_id, opened.epoch
            self.stored.update({mark.partition: (mark.rows, mark.last_offset) for mark in opened.marks})
        return Window(self.queue, producer_id, epoch, staged, is_named=self.name is not None)

    # -- sending -------------------------------------------------------------------------------------------

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
            columns: message_id, correlation_id, reply_to, type, trace_context (str) or created_at (datetime
                with time zone).

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
            check_size(value, key, sparse)
        return Receipt(*self._gathering.take_message(value, key, priority, sparse, size))

    def send_batch(self, data: pa.RecordBatch | pa.Table) -> BatchReceipt:
        """Takes a record batch or table and returns its receipt; waits while the window is full.

        Columns: `value` (binary or string), optionally `key`, `priority` (0 to 9), `headers`
        (list<struct<key, value>> or map), `partition`, message_id, correlation_id, reply_to, type,
        trace_context, created_at. It is cut into slices as the wire likes.

        Raises:
            InvalidRecords, LimitExceeded, Unsupported: something in it is wrong; nothing of it was taken.
            SendTimeout: the window stayed full; what had been taken before goes its way, see the note of the
                error.
            ClientClosed: the producer is closed.
        """
        gathering = self._gathering
        # Everything is checked before anything is sent.
        records = [
            to_records(chunk, self.partitions).settled(gathering.next_sticky)
            for chunk in _chunks(data)
            if chunk.num_rows
        ]
        parts = [part for each in records for part in cut(each, self._batch_bytes)]
        sending = gathering.begin_batch()
        sent_rows = 0
        try:
            for partition, rows, priority_plus_one in parts:
                # One at a time: serialising all of a large batch first would hold it in memory twice.
                piece = to_piece(rows, priority_plus_one)
                gathering.take_piece(sending, partition, piece)
                sent_rows += piece.rows
        except MqError as error:
            if sent_rows:
                error.add_note(
                    f"{sent_rows} of {data.num_rows} rows of this batch had been handed to the wire before"
                )
            raise
        finally:
            gathering.end_batch(sending)
        return BatchReceipt(sending, data.num_rows)

    def flush(self, timeout: float | None = None) -> None:
        """Sends everything that was taken, and returns when all of it has its outcome.

        Args:
            timeout: seconds to wait; None = until send_timeout decides.

        Raises:
            SendOutcomeUnknown: answers are still missing after `timeout`; ask again.
            MqError: the first failure that no receipt has told yet, with a note of how many there were.
        """
        self._raise_first(self._gathering.flush(timeout))

    def _raise_first(self, failed: list[Sending]) -> None:
        errors = [error for sending in failed if (error := sending.error()) is not None]
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"{len(errors)} sends to queue {self.queue!r} failed; this is the first")
            raise errors[0]

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then ends the stream. Afterwards the producer takes nothing more.

        Raises:
            MqError: as `flush`; the producer is closed all the same.
        """
        gathering = self._gathering
        if gathering.inherited is not None:
            self._closed = True  # it is the parent's to close
            return
        timeout = seconds("timeout", timeout)
        self._closed = True
        if not gathering.close():
            return
        try:
            failed = self._gathering.flush(timeout)
        except SendOutcomeUnknown as error:
            raise SendOutcomeUnknown(
                f"{str(error).partition(': ')[0]}: the producer is closed and does not try them any more. "
                "Whether they are stored is not known. To wait longer, call flush() before close()"
            ) from None
        else:
            self._raise_first(failed)
        finally:
            unclosed.closed(gathering)
            gathering.finish()

    def __reduce__(self) -> NoReturn:
        raise not_copied("producer")

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._gathering.inherited is not None:
            return
        unclosed.collected(self._gathering)
        warnings.warn(
            f"a producer of queue {self.queue!r} was not closed: what it has taken is sent now, and nobody "
            f"is told what fails; "
            "use `with Producer(...) as producer:`",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def rows_stored(self) -> int:
        """Rows that the broker has confirmed, duplicates included."""
        return self._gathering.rows_stored


def _chunks(data: object) -> list[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        batches: list[pa.RecordBatch] = data.to_batches()
        # Many small chunks would become many small batches on the wire.
        if len(batches) > 1 and data.num_rows < len(batches) * _CHUNK_ROWS_MIN:
            batches = data.combine_chunks().to_batches()
        return batches
    raise InvalidRecords(
        f"send_batch takes an Arrow RecordBatch or Table, not {type(data).__name__}: use send() for single "
        f"messages"
    )
