"""Delivered rows as Arrow columns: what the broker says in run lengths, expanded, beside the columns that the
producer sent.

One `RowsHeader` and its records become one RecordBatch with exactly the columns that the reader asks for, in
its order and types. Nothing here loops over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_wire import envelope
from mq_wire.errors import InternalError, InvalidOption
from mq_wire.limits import PARTITIONS_MAX, PRIORITIES
from mq_wire.v1.common_pb2 import RowsHeader

__all__ = ["DELIVERED", "Rows", "delivered_schema", "envelope_mask"]

#: Every column that a reader can ask for, Kafka's names first, with the type that it has unless the reader's
#: schema says another.
DELIVERED: Final[pa.Schema] = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("queue", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", envelope.TIMESTAMP_TYPE, nullable=False),  # broker append time
        pa.field("headers", envelope.HEADERS_TYPE),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("delivery_count", pa.int32(), nullable=False),  # 1 = first delivery
        pa.field("message_id", pa.string()),
        pa.field("producer", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("expires_at", envelope.TIMESTAMP_TYPE),
        pa.field("delivery", pa.binary(), nullable=False),  # opaque: names this row of this consumer
        *(
            pa.field(name, envelope.schema_of(envelope.VALUE | envelope.BIT[name]).field(name).type)
            for name in (
                "created_at",
                "deliver_at",
                "group_id",
                "correlation_id",
                "reply_to",
                "type",
                "trace_context",
            )
        ),
    ]
)

#: What the columns of offsets and delivery numbers, and of delivery counts, can hold.
_OFFSET_MAX: Final = 2**63 - 1
_COUNT_MAX: Final = 2**31 - 1
#: Layout of `delivery`: version, partition, delivery number. Big-endian, so that bytes sort as deliveries do.
_DELIVERY: Final = np.dtype([("version", "u1"), ("partition", ">u4"), ("number", ">u8")])
_DELIVERY_VERSION: Final = 1


def delivered_schema(names: Iterable[str]) -> pa.Schema:
    """Returns the schema of the named columns, in their order.

    Raises:
        InvalidOption: a name that is not in DELIVERED.
    """
    names = list(names)
    unknown = [name for name in names if name not in DELIVERED.names]
    if unknown:
        raise InvalidOption(
            f"column {unknown[0]!r} is not delivered: choose from {', '.join(DELIVERED.names)}"
        )
    return pa.schema([DELIVERED.field(name) for name in names])


def envelope_mask(names: Iterable[str]) -> int:
    """Returns the presence mask of the envelope columns that must travel so that the named columns can be
    built.

    `value` is always in it: the envelope knows no rows without. `priority` never is: the broker knows it
    beside the records.
    """
    return envelope.VALUE | sum(
        {envelope.BIT[name] for name in names if name in envelope.BIT and name not in ("priority", "value")}
    )


class Rows:
    """The rows of one delivery; columns are built when asked for, and only once.

    Args:
        header: what goes before the records.
        records: one Arrow IPC record batch of the columns in `header.columns`.
        queue: name of the destination.

    Raises:
        InternalError: header and records contradict each other.
        InvalidRecords: the records are not a record batch as `header` describes it.
    """

    __slots__ = ("_batch", "_columns", "_header", "_repeats", "partition", "queue", "rows")

    def __init__(self, header: RowsHeader, records: memoryview, queue: str) -> None:
        self.partition: Final[int] = header.partition
        self.rows: Final[int] = header.rows
        self._header, self.queue = header, queue
        runs = len(header.run_rows)
        if runs != 1 or header.run_rows[0] != self.rows:
            self._repeats: NDArray[np.int64] | None = np.fromiter(header.run_rows, np.int64, runs)
            if self._repeats.sum() != self.rows:
                raise InternalError(
                    f"the broker sent runs of {self._repeats.sum()} rows for a delivery of {self.rows}: "
                    f"please report it"
                )
        else:
            self._repeats = None
        for field in (header.append_time_us, header.priority, header.delivery_count):
            if len(field) != runs:
                raise InternalError(
                    f"the broker sent {len(field)} run values for {runs} runs: please report it"
                )
        _check_ranges(header)
        self._batch = envelope.decode(records, header.columns, self.rows)
        self._columns: dict[str, pa.Array] = {}

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Offset of each row in its partition's log."""
        header = self._header
        if header.offsets:
            offsets = np.frombuffer(header.offsets, "<i8")
            if len(offsets) != self.rows:
                raise InternalError(
                    f"the broker sent {len(offsets)} offsets for a delivery of {self.rows} rows: please "
                    f"report it"
                )
            return offsets
        return np.arange(header.base_offset, header.base_offset + self.rows, dtype=np.int64)

    @property
    def first_delivery(self) -> int:
        """Delivery number of the first row; the others follow without gaps."""
        return self._header.first_delivery

    def column(self, name: str) -> pa.Array:
        """Returns one column, with its type in DELIVERED."""
        column = self._columns.get(name)
        if column is None:
            build = _BUILDERS.get(name)
            column = self._columns[name] = build(self) if build else self._sent(name)
        return column

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the rows with exactly the fields of `schema`; a field's type may differ from DELIVERED's
        where Arrow can cast.
        """
        columns = []
        for field in schema:
            column = self.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        if not columns:
            # Arrow has no other way to say how many rows a batch without columns holds.
            return pa.RecordBatch.from_struct_array(pa.array([{}] * self.rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    # -- builders ------------------------------------------------------------------------------------------

    def _sent(self, name: str) -> pa.Array:
        at = self._batch.schema.get_field_index(name)
        if at >= 0:
            return self._batch.column(at)
        return pa.nulls(self.rows, DELIVERED.field(name).type)

    def _per_run(self, values: Any, dtype: type) -> NDArray[Any]:
        if self._repeats is None:
            return np.full(self.rows, values[0], dtype)
        return np.repeat(np.fromiter(values, dtype, len(values)), self._repeats)

    def _queue_column(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.queue, pa.string()), self.rows)

    def _partition_column(self) -> pa.Array:
        return _wrap(np.full(self.rows, self.partition, np.int32), pa.int32())

    def _offset_column(self) -> pa.Array:
        return _wrap(self.offsets, pa.int64())

    def _timestamp_column(self) -> pa.Array:
        return _wrap(self._per_run(self._header.append_time_us, np.int64), envelope.TIMESTAMP_TYPE)

    def _priority_column(self) -> pa.Array:
        return _wrap(self._per_run(self._header.priority, np.int32), pa.int32())

    def _delivery_count_column(self) -> pa.Array:
        return _wrap(self._per_run(self._header.delivery_count, np.int32), pa.int32())

    def _producer_column(self) -> pa.Array:
        header = self._header
        if not header.producer:
            return pa.nulls(self.rows, pa.string())
        names = pa.array([name or None for name in header.producers], pa.string())
        return names.take(_wrap(self._per_run(header.producer, np.int32), pa.int32()))

    def _sequence_column(self) -> pa.Array:
        header = self._header
        if not header.producer or len(header.sequence_shift) != len(header.producer):
            return pa.nulls(self.rows, pa.int64())
        sequences = self.offsets + self._per_run(header.sequence_shift, np.int64)
        if all(header.producers):
            return _wrap(sequences, pa.int64())
        unknown = np.fromiter((not name for name in header.producers), np.bool_, len(header.producers))
        return pa.array(sequences, pa.int64(), mask=unknown[self._per_run(header.producer, np.int32)])

    def _delivery_column(self) -> pa.Array:
        rows = np.empty(self.rows, _DELIVERY)
        rows["version"] = _DELIVERY_VERSION
        rows["partition"] = self.partition
        rows["number"] = np.arange(self.first_delivery, self.first_delivery + self.rows, dtype=np.uint64)
        ends = np.arange(0, (self.rows + 1) * _DELIVERY.itemsize, _DELIVERY.itemsize, dtype=np.int32)
        return pa.Array.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(ends), pa.py_buffer(rows)])


_BUILDERS: Final[dict[str, Callable[[Rows], pa.Array]]] = {
    "queue": Rows._queue_column,
    "partition": Rows._partition_column,
    "offset": Rows._offset_column,
    "timestamp": Rows._timestamp_column,
    "priority": Rows._priority_column,
    "delivery_count": Rows._delivery_count_column,
    "producer": Rows._producer_column,
    "sequence": Rows._sequence_column,
    "delivery": Rows._delivery_column,
}


def _check_ranges(header: RowsHeader) -> None:
    """Refuses numbers that no column can hold: they would be errors of Arrow or NumPy at whoever looks at the
    column first.
    """
    runs, rows = len(header.run_rows), header.rows
    what = ""
    if header.partition >= PARTITIONS_MAX:
        what = f"partition {header.partition}"
    elif header.base_offset + rows > _OFFSET_MAX or header.first_delivery + rows > _OFFSET_MAX:
        what = f"offsets from {header.base_offset} and delivery numbers from {header.first_delivery} on"
    elif header.offsets and len(header.offsets) != 8 * rows:
        what = f"{len(header.offsets)} bytes of offsets for {rows} rows"
    elif max(header.priority, default=0) >= PRIORITIES or max(header.delivery_count, default=0) > _COUNT_MAX:
        what = f"priority {max(header.priority)} and delivery count {max(header.delivery_count)}"
    elif (
        header.append_time_us
        and not 0 <= min(header.append_time_us) <= max(header.append_time_us) <= envelope.TIME_US_MAX
    ):
        what = f"append times from {min(header.append_time_us)} to {max(header.append_time_us)} us"
    elif header.producer and (len(header.producer) != runs or max(header.producer) >= len(header.producers)):
        what = (
            f"{len(header.producers)} producers, of whom {len(header.producer)} runs name up to number "
            f"{max(header.producer)}"
        )
    if what:
        raise InternalError(f"the broker sent a delivery with {what}, which cannot be: please report it")


def _wrap(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Returns an Arrow array over NumPy's memory."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
