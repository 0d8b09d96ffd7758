"""The consumer: messages or record batches from a queue, acknowledged exactly or up to a point."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa

from mq_wire.errors import ClientClosed, InvalidName, InvalidRequest, MqError
from mq_wire.limits import DEFAULT_ADDRESS, RECORDS_ROWS_MAX
from mq_wire.names import check_destination
from mq_wire.v1 import admin_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.acknowledging import Verb
from pyspark_mq.client.arguments import check_count, check_timeout, not_copied
from pyspark_mq.client.columns import delivered_schema
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.consume_stream import stream_for_one_more
from pyspark_mq.client.consuming import Consuming
from pyspark_mq.client.message import Message
from pyspark_mq.client.outstanding import Offsets, Ranges
from pyspark_mq.client.receive_window import ReceiveWindow, Taken
from pyspark_mq.client.sessions import Session

#: ActiveMQ's default for queues.
PREFETCH_DEFAULT: Final = 1000
_SESSION_KEY: Final = b"mq.session"
_BATCH_COLUMNS: Final = (
    "key",
    "value",
    "partition",
    "offset",
    "timestamp",
    "headers",
    "priority",
    "delivery_count",
    "message_id",
)
#: What an acknowledgement needs of a batch.
_IDENTITY_COLUMNS: Final = ("partition", "offset")


class Consumer:
    """Receives from one queue. Thread-safe: several threads may receive and acknowledge, each message goes to
    one of them.

    Nothing is taken from the queue before the first call that receives. What is not acknowledged goes back
    when the consumer is closed or its process ends; what of it had been handed over comes with a higher
    `delivery_count`. After a broken connection the consumer receives on by itself; acknowledging what came
    before is refused, since it will be delivered again.

    Args:
        address: `mq://host:port`, or several to be tried in turn.
        queue: where from; it must be there.
        prefetch: most messages that wait here for the application. None = 1000, or two batches for who begins
            with `batches()`.
        max_unacknowledged: most messages that are handed over or waiting here, and not acknowledged.
        connect_timeout: seconds that the constructor goes on trying where the broker cannot be reached.
        connection: an existing connection to use, left open at close(); `address` is ignored.

    Raises:
        BrokerUnavailable: no broker answers.
        UnknownDestination: the queue does not exist.
        InvalidName, InvalidOption: a name or value that is not allowed.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        queue: str = "",
        *,
        prefetch: int | None = None,
        max_unacknowledged: int = 100_000,
        connect_timeout: float = 10.0,
        connection: Connection | None = None,
    ) -> None:
        if not queue:
            raise InvalidName("the queue is missing: write Consumer(queue=...)")
        self.queue: Final = check_destination(queue)
        for option, value in (("prefetch", prefetch), ("max_unacknowledged", max_unacknowledged)):
            if value is not None or option != "prefetch":
                check_count(value, option)
        self._batches_choose_prefetch = prefetch is None
        self._owns_connection = connection is None
        self._connection = connection or Connection(address)
        try:
            request = admin_pb2.DescribeDestinationRequest(name=self.queue)
            self._connection.call("DescribeDestination", request, retry_timeout=connect_timeout)
        except BaseException:
            if self._owns_connection:
                self._connection.close()
            raise
        window = ReceiveWindow(prefetch or PREFETCH_DEFAULT, max_unacknowledged)
        self._consuming = Consuming(
            self._connection,
            self.queue,
            window,
            functools.partial(stream_for_one_more, self._connection, self.queue),
        )
        self._closed = False
        forks.watch(self)

    def forked(self, parent: int) -> None:
        """In a child: refuses everything."""
        self._consuming.forked(parent)

    # -- receiving -----------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Message | None:
        """Returns the next message, or None where the broker had none within `timeout` seconds (None = wait
        for ever).

        Raises:
            BrokerUnavailable: none came within `timeout` seconds (one at least), and no broker could be
                asked; receive again later.
            Busy: the same, since the broker has too many consumers already, or another bound of it is
                reached.
            UnknownDestination, DestinationRecreated: the queue was deleted.
            SessionClosed: an operator ended this consumer.
            InvalidOption: a `timeout` that is none.
            ClientClosed: the consumer is closed.
            MqError: the broker refuses to deliver.
        """
        taken = self._consuming.take_row(timeout)
        return None if taken is None else Message(*taken)

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Yields messages until the broker had none within `timeout` seconds, or the consumer is closed.
        Raises as `receive`.
        """
        while not self._closed:
            try:
                message = self.receive(timeout)
            except ClientClosed:
                if self._consuming.inherited is not None:
                    raise
                return
            if message is None:
                return
            yield message

    def __iter__(self) -> Iterator[Message]:
        """Yields messages until the consumer is closed."""
        return self.messages()

    def batches(
        self, max_rows: int = 10_000, timeout: float | None = None, *, columns: Iterable[str] = _BATCH_COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        """Yields what is there as record batches of at most `max_rows` rows, until the broker had none within
        `timeout` seconds.

        Args:
            max_rows: 1 to 131072; a batch holds fewer where fewer have arrived.
            timeout: seconds to wait for a first row (None = for ever).
            columns: any of `pyspark_mq.columns.DELIVERED`; partition and offset are always there, for
                `acknowledge`.

        Raises:
            InvalidOption: an unknown column, a `max_rows` out of range, or a `timeout` that is none.
            MqError: as `receive`.
        """
        check_count(max_rows, "max_rows", RECORDS_ROWS_MAX)
        seconds = check_timeout(timeout)
        names = list(dict.fromkeys([*columns, *_IDENTITY_COLUMNS]))
        return self._batches(max_rows, seconds, delivered_schema(names))

    def _batches(self, max_rows: int, timeout: float, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        consuming = self._consuming
        if self._batches_choose_prefetch:
            consuming.wish_prefetch(2 * max_rows)
        while not self._closed:
            try:
                handed_over = consuming.take_rows(max_rows, timeout)
            except ClientClosed:
                if consuming.inherited is not None:
                    raise
                return
            if handed_over is None:
                return
            session, taken = handed_over
            yield _as_batch(taken, schema.with_metadata({_SESSION_KEY: session.token}))

    # -- acknowledging -------------------------------------------------------------------------------------

    def acknowledge(self, what: Message | pa.RecordBatch | pa.Table | Iterable[Message]) -> None:
        """Says that exactly these messages are done. Returns at once; `flush()` waits for the broker's
        confirmation.

        What became of acknowledgements later, lost with a connection or refused, is told by `flush()` and
        `close()`.

        Args:
            what: a message, several, or a record batch or table of `batches()`, also filtered or sliced.

        Raises:
            SessionClosed: they came before the connection broke and will be delivered again.
            InvalidRequest: not something that can be acknowledged.
        """
        self._settle(what, Verb.ACKNOWLEDGE)

    def release(
        self, what: Message | pa.RecordBatch | pa.Table | Iterable[Message], *, failed: bool = True
    ) -> None:
        """Gives exactly these messages back to the queue: they come again, to any consumer. Returns at once;
        `flush()` waits for the broker's confirmation.

        Args:
            what: as for `acknowledge`.
            failed: whether this counts as a failed attempt, which a higher `delivery_count` tells.

        Raises:
            SessionClosed: they came before the connection broke and will be delivered again.
            Unsupported: the broker is too old.
            InvalidRequest: not something that can be released.
        """
        self._settle(what, Verb.RELEASE if failed else Verb.RELEASE_UNCOUNTED)

    def acknowledge_up_to(self, message: Message) -> None:
        """Says that everything is done that was handed over from the partition of `message`, up to and with
        it.

        Raises:
            SessionClosed: it came before the connection broke and will be delivered again.
            InvalidRequest: not a message.
        """
        if not isinstance(message, Message):
            raise _not_settled(message)
        self._consuming.acknowledge_up_to(message._delivery, message._row)

    def flush(self, timeout: float | None = None) -> None:
        """Sends acknowledgements that still linger and waits until the broker has confirmed all.

        Raises:
            SendOutcomeUnknown: not all were confirmed within `timeout` seconds.
            MqError: the first failure of an acknowledgement that nobody has been told yet.
        """
        failures = self._consuming.flush(timeout)
        if failures:
            if len(failures) > 1:
                failures[0].add_note(
                    f"{len(failures)} acknowledgements on queue {self.queue!r} failed; this is the first"
                )
            raise failures[0]

    def close(self, timeout: float | None = 10.0) -> None:
        """Flushes acknowledgements and ends the session; what was not acknowledged goes back to the queue.

        Raises:
            MqError: as `flush`; the consumer is closed all the same.
        """
        check_timeout(timeout)
        if self._closed:
            return
        self._closed = True
        if self._consuming.inherited is not None:
            return  # it is the parent's to close
        try:
            self.flush(timeout)
        finally:
            self._consuming.end()
            if self._owns_connection:
                self._connection.close()

    def __reduce__(self) -> NoReturn:
        raise not_copied("consumer")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MqError as closing:
            if error is None:
                raise
            error.add_note(f"closing the consumer of queue {self.queue!r}: {closing}")

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or sys.is_finalizing():
            return
        self._closed = True
        # On a thread of its own: whoever drops the last reference, or collects the garbage, may hold our
        # lock.
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, and this process with it
            connection = self._connection if self._owns_connection else None
            threading.Thread(
                target=_abandon, args=(self._consuming, connection), name="mq-consumer-end", daemon=True
            ).start()
        warnings.warn(
            f"a consumer of queue {self.queue!r} was not closed: what it held goes back; close() it, or "
            f"use `with`",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def _settle(self, what: Message | pa.RecordBatch | pa.Table | Iterable[Message], verb: Verb) -> None:
        if isinstance(what, Message):
            rows = _rows_of_messages([what], verb)
        elif isinstance(what, pa.RecordBatch | pa.Table):
            rows = self._rows_of_batch(what)
        elif isinstance(what, Iterable) and not isinstance(what, bytes | str):
            rows = _rows_of_messages(list(what), verb)
        else:
            raise _not_settled(what, verb)
        self._consuming.settle({key: Ranges.of(offsets) for key, offsets in rows.items()}, verb)

    def _rows_of_batch(self, rows: pa.RecordBatch | pa.Table) -> dict[tuple[Session, int], Offsets]:
        token = (rows.schema.metadata or {}).get(_SESSION_KEY)
        if token is None or any(name not in rows.schema.names for name in _IDENTITY_COLUMNS):
            raise InvalidRequest(
                "this record batch does not say which rows it stands for: take one that batches() gave, or "
                "a part of it that keeps the columns partition and offset and the schema's metadata"
            )
        if not rows.num_rows:
            return {}
        session = self._consuming.session
        if token != session.token:
            session = Session(token)
            session.ended = "their session is over"
        partitions = rows.column("partition").to_numpy()
        offsets = rows.column("offset").to_numpy()
        if (partitions == partitions[0]).all():
            return {(session, int(partitions[0])): offsets}
        present = np.flatnonzero(np.bincount(partitions))
        return {(session, int(partition)): offsets[partitions == partition] for partition in present}


def _rows_of_messages(messages: list[Message], verb: Verb) -> dict[tuple[Session, int], Offsets]:
    offsets: dict[tuple[Session, int], list[int]] = {}
    for message in messages:
        if not isinstance(message, Message):
            raise _not_settled(message, verb)
        delivery = message._delivery
        offsets.setdefault((delivery.session, delivery.partition), []).append(
            delivery.list("offset")[message._row]
        )
    return {key: np.array(values, np.int64) for key, values in offsets.items()}


def _not_settled(what: object, verb: Verb = Verb.ACKNOWLEDGE) -> InvalidRequest:
    call = "acknowledge" if verb is Verb.ACKNOWLEDGE else "release"
    return InvalidRequest(
        f"{call} takes messages and record batches of this consumer, not {type(what).__name__}"
    )


def _abandon(consuming: Consuming, connection: Connection | None) -> None:
    consuming.end()
    if connection is not None:
        connection.close()


def _as_batch(taken: list[Taken], schema: pa.Schema) -> pa.RecordBatch:
    parts = []
    for delivery, first, count in taken:
        rows = delivery.record_batch(schema)
        parts.append(rows if count == delivery.rows else rows.slice(first, count))
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts, schema).combine_chunks().to_batches()[0]
