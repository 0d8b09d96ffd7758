"""Rows of a DataFrame on their way to the producer: joined to larger batches, routed, and without the columns
that are not sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from mq_wire.errors import InvalidRecords, Unsupported
from mq_wire.limits import PRIORITY_DEFAULT
from pyspark_mq.spark.reader import joined
from pyspark_mq.spark.schema import SINK_COLUMNS

if TYPE_CHECKING:
    from pyspark_mq.spark.options import SinkOptions

#: The JVM hands over at most 10,000 rows at a time; larger batches cost less each row.
GATHER_ROWS: Final = 65_536
GATHER_BYTES: Final = 2 << 20


def gathered(
    batches: Iterator[pa.RecordBatch], linger_ms: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[pa.RecordBatch]:
    """Joins neighbours until they have GATHER_ROWS rows or GATHER_BYTES bytes, or the first has waited for
    `linger_ms`.

    Time is looked at when a batch comes: a task that waits for its input has nothing else to send.
    """
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    due = 0.0
    for batch in batches:
        if not batch.num_rows:
            continue
        if not pending:
            due = clock() + linger_ms / 1000
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHER_ROWS or size >= GATHER_BYTES or clock() >= due:
            yield joined(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield joined(pending)


def routed(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields (queue, envelope columns) for the rows of a batch; several where rows are routed by the column
    queue.

    Raises:
        InvalidRecords: a row without a queue.
        Unsupported: a row with an expiry.
    """
    batch = batch.rename_columns([name.lower() for name in batch.schema.names])
    records = envelope_columns(batch, options.route_by_columns)
    if options.queue:
        yield options.queue, records
        return
    queues = batch.column(batch.schema.get_field_index("queue"))
    if queues.null_count:
        raise InvalidRecords(
            f"column queue is null in {queues.null_count} rows, and says where a row goes: fill it, or "
            f"filter these rows out"
        )
    encoded = queues.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    for code, queue in enumerate(encoded.dictionary.to_pylist()):
        rows = order[edges[code] : edges[code + 1]]
        yield queue, records if len(rows) == records.num_rows else records.take(pa.array(rows))


def envelope_columns(batch: pa.RecordBatch, with_partition: bool = False) -> pa.RecordBatch:
    """Returns the columns that are sent; with `partition` where the rows may name theirs (null = any).

    Columns in which every row is null are left out: an absent column costs nothing. Types, nulls and values
        are checked by the producer.
    """
    columns: dict[str, pa.Array] = {}
    for name in batch.schema.names:
        column = batch.column(batch.schema.get_field_index(name))
        if name == "expires_at" and column.null_count < len(column):
            raise Unsupported(
                "column expires_at has values, and expiry is not in this version: drop the column before "
                "writing to format mq"
            )
        if name == "priority":
            column = column.fill_null(PRIORITY_DEFAULT)
        if name == "value" or (
            (name in SINK_COLUMNS or (with_partition and name == "partition"))
            and column.null_count < len(column)
        ):
            columns[name] = column
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
