"""Messages given one by one, gathered as Python lists until they are worth a batch.

`Producer.send` appends to the lists itself: that is the whole price of a message.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_wire import envelope, one_row
from mq_wire.checksum import crc32
from mq_wire.errors import InvalidRecords, LimitExceeded
from mq_wire.limits import HEADERS_PER_ROW_MAX, PRIORITIES, RESERVED_HEADER_PREFIX
from pyspark_mq.client.partitioner import partition_of
from pyspark_mq.client.records import (
    PIECE_BYTES_MAX,
    Piece,
    Records,
    by_partition,
    check_column_name,
    check_message,
    partitions_for,
    slices,
    to_piece,
)
from pyspark_mq.client.sending import OutgoingBatch, Sending, Waiter

#: What a message takes beside its value and key, in bytes: offsets, paddings, its part of the batch's header.
ROW_OVERHEAD_BYTES: Final = 16
VALID_PRIORITIES: Final = frozenset(range(PRIORITIES))

_TEXT_COLUMNS: Final = frozenset({"message_id", "correlation_id", "reply_to", "type", "trace_context"})
_OTHER_COLUMNS: Final = _TEXT_COLUMNS | {"created_at"}
_TYPE_OF: Final[dict[str, pa.DataType]] = {field.name: field.type for field in envelope.COLUMNS}


class OpenBatch:
    """Rows being gathered. `sparse` holds, per column that most rows lack, row -> value."""

    __slots__ = ("bytes", "due", "keys", "priorities", "sending", "sparse", "values")

    def __init__(self, waiter: Waiter) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.priorities: list[int] = []
        self.sparse: dict[str, dict[int, Any]] = {}
        self.bytes = 0
        self.due = 0.0  # when it has lingered enough
        self.sending = Sending(waiter)

    def to_records(self, partitions: int) -> Records:
        """Returns the rows as columns, those only that some row has. What `Producer.send` has checked is not
        checked again.
        """
        rows = len(self.values)
        columns: dict[str, pa.Array] = {"value": pa.array(self.values, pa.binary())}
        if self.keys.count(None) < rows:
            columns["key"] = pa.array(self.keys, pa.binary())
        priority = self.priorities[0]
        if self.priorities.count(priority) < rows:
            columns["priority"] = pa.array(self.priorities, pa.int8())
        wanted = None
        for name, values in self.sparse.items():
            if name == "partition":
                wanted = np.array([values.get(row, -1) for row in range(rows)], np.int32)
            else:
                columns[name] = pa.array([values.get(row) for row in range(rows)], _TYPE_OF[name])
        schema = envelope.schema_of(sum(envelope.BIT[name] for name in columns))
        batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        return Records(
            batch,
            0 if "priority" in columns else priority + 1,
            partitions_for(columns.get("key"), wanted, partitions),
        )

    def to_batches(self, partitions: int, any_partition: Callable[[], int]) -> list[OutgoingBatch]:
        """Returns the rows as batches for the wire, one per partition or more, and notes in `sending` where
        each row went.

        `any_partition` chooses for rows that may go anywhere.
        """
        if len(self.values) == 1 and not self.sparse:
            records_of_one = one_row.encode(self.values[0], self.keys[0])
            if records_of_one is not None:
                return [self._one_row(records_of_one, partitions, any_partition)]
        records = self.to_records(partitions).settled(any_partition)
        batches: list[OutgoingBatch] = []
        numbers_of: list[NDArray[np.int64]] = []  # which rows are in which batch
        for partition, numbers, part in by_partition(records):
            done = 0
            for rows in slices(part, PIECE_BYTES_MAX):
                numbers_of.append(
                    np.arange(done, done + rows.num_rows)
                    if numbers is None
                    else numbers[done : done + rows.num_rows]
                )
                done += rows.num_rows
                piece = to_piece(rows, records.priority_plus_one)
                batches.append(
                    OutgoingBatch(self.sending, any_partition() if partition < 0 else partition, piece)
                )
        if len(batches) > 1:
            batch_of, place_of = np.empty(len(self.values), np.int32), np.empty(len(self.values), np.int32)
            for i, numbers in enumerate(numbers_of):
                batch_of[numbers], place_of[numbers] = i, np.arange(len(numbers))
            self.sending.routes = batch_of, place_of
        return batches

    def _one_row(self, records: bytes, partitions: int, any_partition: Callable[[], int]) -> OutgoingBatch:
        key = self.keys[0]
        columns = envelope.VALUE if key is None else envelope.VALUE | envelope.KEY
        piece = Piece(1, columns, self.priorities[0] + 1, pa.py_buffer(records), crc32(records))
        return OutgoingBatch(
            self.sending, any_partition() if key is None else partition_of(key, partitions), piece
        )


def as_bytes(value: object, what: str) -> bytes:
    """Returns `value` as bytes.

    Raises:
        InvalidRecords: it is not bytes-like; with what to do about it.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if value is None:
        raise InvalidRecords(f"{what} is None: every message needs one; use b'' for an empty one")
    remedy = ": encode it, such as text.encode()" if isinstance(value, str) else ": serialise it yourself"
    raise InvalidRecords(f"{what} is {type(value).__name__}, not bytes{remedy}")


def check_size(value: bytes, key: bytes | None, sparse: dict[str, Any] | None) -> None:
    """Refuses a message that is too large; `sparse` as `sparse_columns` returns it.

    Raises:
        LimitExceeded: see `mq_wire.limits`.
    """
    size = len(value) + len(key or b"")
    for name, content in (sparse or {}).items():
        if name == "headers":
            size += sum(len(pair["key"].encode()) + len(pair["value"] or b"") for pair in content)
        elif name in _TEXT_COLUMNS:
            size += len(content.encode())
    check_message(len(value), size)


def check_priority(priority: object) -> None:
    """Refuses what is not an integer from 0 to 9.

    Raises:
        InvalidRecords: with the value.
    """
    if type(priority) is not int or priority not in VALID_PRIORITIES:
        raise InvalidRecords(f"priority {priority!r} is not an integer from 0 to {PRIORITIES - 1}")


def sparse_columns(
    headers: Mapping[str, bytes] | Iterable[tuple[str, bytes]] | None,
    partition: int | None,
    partitions: int,
    others: dict[str, Any],
) -> tuple[dict[str, Any], int]:
    """Returns the checked values of the columns that most messages lack, and their size in bytes.

    Raises:
        InvalidRecords: an unknown column or a value of the wrong type.
        Unsupported: a column that this version does not act upon.
        LimitExceeded: too many headers.
    """
    columns: dict[str, Any] = {}
    size = 0
    if headers is not None:
        pairs, size = _header_pairs(headers)
        if pairs:
            columns["headers"] = pairs
    if partition is not None:
        if type(partition) is not int or not 0 <= partition < partitions:
            raise InvalidRecords(f"partition {partition!r} is not one of this queue's 0 to {partitions - 1}")
        columns["partition"] = partition
    for name, value in others.items():
        check_column_name(name, _OTHER_COLUMNS)
        if value is None:
            continue
        if name in _TEXT_COLUMNS:
            size += _check_text(value, name)
        if name == "created_at" and not (isinstance(value, datetime.datetime) and value.tzinfo is not None):
            raise InvalidRecords(
                f"created_at is {value!r}, not a datetime with a time zone: use datetime.now(timezone.utc)"
            )
        columns[name] = value
        size += ROW_OVERHEAD_BYTES
    return columns, size


def _header_pairs(
    headers: Mapping[str, bytes] | Iterable[tuple[str, bytes]],
) -> tuple[list[dict[str, Any]], int]:
    pairs, size = [], 0
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        size += _check_text(name, "a header name")
        if name.startswith(RESERVED_HEADER_PREFIX):
            raise InvalidRecords(
                f"header {name!r}: names that begin with {RESERVED_HEADER_PREFIX!r} belong to the broker: "
                f"choose another"
            )
        content = None if value is None else as_bytes(value, f"header {name!r}")
        pairs.append({"key": name, "value": content})
        size += len(content or b"") + ROW_OVERHEAD_BYTES
    if len(pairs) > HEADERS_PER_ROW_MAX:
        raise LimitExceeded(f"a message has {len(pairs)} headers, over the limit of {HEADERS_PER_ROW_MAX}")
    return pairs, size


def _check_text(text: object, what: str) -> int:
    """Returns the size of a string in UTF-8."""
    if not isinstance(text, str):
        raise InvalidRecords(f"{what} is {type(text).__name__}, not str")
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRecords(f"{what} {text!r} is no valid text: {error}") from None
