"""Record batches from users, checked and cut into what goes on the wire. All checks come before anything is
queued.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mq_wire import envelope
from mq_wire.checksum import crc32
from mq_wire.errors import InvalidRecords, LimitExceeded, Unsupported
from mq_wire.limits import (
    HEADERS_PER_ROW_MAX,
    MESSAGE_BYTES_MAX,
    PRIORITIES,
    RECORDS_BYTES_MAX,
    RECORDS_ROWS_MAX,
    RESERVED_HEADER_PREFIX,
    VALUE_BYTES_MAX,
)
from pyspark_mq.client.partitioner import partitions_of

#: Size of a slice of several rows that surely fits into RECORDS_BYTES_MAX when it is serialised.
PIECE_BYTES_MAX: Final = RECORDS_BYTES_MAX - (64 << 10)
NOT_YET_COLUMNS: Final = frozenset(name for name, bit in envelope.BIT.items() if bit & envelope.NOT_YET)
#: Columns that a batch may have: the envelope's and, to choose the partition oneself, `partition`.
COLUMN_NAMES: Final = (*(name for name in envelope.BIT if name not in NOT_YET_COLUMNS), "partition")
_TEXT_LIKE: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES_LIKE: Final = (
    *_TEXT_LIKE,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


@dataclass(frozen=True, slots=True)
class Records:
    """Rows in envelope form.

    Attributes:
        batch: envelope columns in envelope order; no `priority` where all rows have the same.
        priority_plus_one: 1-10 where all rows have priority 0-9; 0 where the column says, or 4 where there is
            none.
        partitions: partition of each row, -1 = any; None = any for all.
    """

    batch: pa.RecordBatch
    priority_plus_one: int
    partitions: NDArray[np.int32] | None

    def settled(self, any_partition: Callable[[], int]) -> Records:
        """Gives rows that may go anywhere one partition, if others of the batch are bound to one.

        As a batch of their own they could overtake, or be overtaken by, bound ones that land in the same
        partition.
        """
        partitions = self.partitions
        if partitions is None or partitions.min() >= 0 or partitions.max() < 0:
            return self
        return replace(self, partitions=np.where(partitions >= 0, partitions, np.int32(any_partition())))


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows for one partition, as they travel."""

    rows: int
    columns: int
    priority_plus_one: int
    records: pa.Buffer | None
    crc32: int

    @classmethod
    def skip(cls, rows: int) -> Piece:
        """Returns what gives up the sequences of `rows` rows."""
        return cls(rows, 0, 0, None, 0)


def to_records(data: pa.RecordBatch, partitions: int) -> Records:
    """Checks a batch and returns it in envelope form; copies only what has another type.

    Args:
        data: columns `value` (binary or string, no nulls) and optionally those of COLUMN_NAMES.
        partitions: how many the destination has.

    Raises:
        InvalidRecords: an unknown, doubled or wrongly typed column; a null value; a priority or partition
            that does not exist.
        Unsupported: a column that this version does not act upon.
        LimitExceeded: too many headers in a row.
    """
    names = data.schema.names
    for name in names:
        check_column_name(name, COLUMN_NAMES)
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise InvalidRecords(f"column {doubled!r} is there {names.count(doubled)} times: keep one")
    if "value" not in names:
        raise InvalidRecords(
            f"there is no column 'value' among {', '.join(names) or 'no columns'}: rename the one that "
            f"holds the messages"
        )
    columns = {name: data.column(name) for name in names}
    priority_plus_one, priority = _priorities(columns.pop("priority", None))
    wanted = _wanted_partitions(columns.pop("partition", None), partitions)
    converted = {name: _convert(name, column) for name, column in columns.items()}
    if converted["value"].null_count:
        raise InvalidRecords(
            f"column 'value' has {converted['value'].null_count} null values: every message needs one; use "
            f"an empty one"
        )
    if "headers" in converted:
        _check_headers(converted["headers"])
    if priority is not None:
        converted["priority"] = priority
    mask = sum(envelope.BIT[name] for name in converted)
    schema = envelope.schema_of(mask)
    batch = pa.RecordBatch.from_arrays([converted[name] for name in schema.names], schema=schema)
    return Records(batch, priority_plus_one, partitions_for(converted.get("key"), wanted, partitions))


def check_column_name(name: str, known: Iterable[str]) -> None:
    """Refuses a column that no message has.

    Raises:
        Unsupported: a column of the envelope that this version does not act upon.
        InvalidRecords: no such column; with the one that was meant, perhaps.
    """
    if name in NOT_YET_COLUMNS:
        raise Unsupported(f"column {name!r} is not in this version: leave it out")
    known = set(known)
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(sorted(known))}"
        raise InvalidRecords(f"column {name!r} is not one of a message: {hint}")


def _priorities(column: pa.Array | None) -> tuple[int, pa.Array | None]:
    if column is None or not len(column):
        return 0, None
    if not pa.types.is_integer(column.type):
        raise InvalidRecords(f"column 'priority' is {column.type}, not an integer: cast it to int8")
    if column.null_count:
        raise InvalidRecords(
            f"column 'priority' has {column.null_count} null values: fill them, such as with 4"
        )
    low, high = pc.min_max(column).as_py().values()
    if low < 0 or high >= PRIORITIES:
        raise InvalidRecords(f"priority {low if low < 0 else high} is outside 0 to {PRIORITIES - 1}")
    return (low + 1, None) if low == high else (0, column.cast(pa.int8()))


def _wanted_partitions(column: pa.Array | None, partitions: int) -> NDArray[np.int32] | None:
    if column is None or not len(column):
        return None
    if not pa.types.is_integer(column.type):
        raise InvalidRecords(f"column 'partition' is {column.type}, not an integer: cast it to int32")
    low, high = pc.min_max(column).as_py().values()
    if low is None:
        return None
    if low < 0 or high >= partitions:
        raise InvalidRecords(
            f"partition {low if low < 0 else high} is not one of this queue's 0 to {partitions - 1}"
        )
    return np.asarray(column.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False), np.int32)


def partitions_for(
    keys: pa.Array | None, wanted: NDArray[np.int32] | None, partitions: int
) -> NDArray[np.int32] | None:
    """Returns the partition of each row: the one wanted, else the key's, else -1; None = -1 for all."""
    if keys is None or keys.null_count == len(keys):
        return wanted
    if not keys.null_count:
        hashed = partitions_of(keys, partitions)
    else:
        has_key = np.asarray(keys.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        hashed = np.full(len(keys), -1, np.int32)
        hashed[has_key] = partitions_of(keys.drop_null(), partitions)
    return hashed if wanted is None else np.where(wanted >= 0, wanted, hashed)


def _convert(name: str, column: pa.Array) -> pa.Array:
    """Returns a column with the envelope's type; strings pass as their UTF-8 bytes, without a copy."""
    target = envelope.schema_of(envelope.VALUE | envelope.BIT[name]).field(name).type
    if column.type == target:
        return column
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), target)
    if target == pa.binary():
        allowed, expected = any(is_kind(kind) for is_kind in _BYTES_LIKE), "binary or string"
    elif target == pa.string():
        allowed, expected = any(is_kind(kind) for is_kind in _TEXT_LIKE), "string"
    elif target == envelope.TIMESTAMP_TYPE:
        allowed, expected = pa.types.is_timestamp(kind) and kind.tz is not None, "timestamp with a time zone"
    else:
        allowed = pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
        expected = "list<struct<key, value>> or map"
    if not allowed:
        raise InvalidRecords(f"column {name!r} is {column.type}, not {expected}: cast it")
    try:
        return _headers(column) if name == "headers" else column.cast(target)
    except pa.ArrowException as error:
        raise InvalidRecords(
            f"column {name!r} of type {column.type} cannot be sent as {target}: {error}: cast it, or send "
            f"smaller batches"
        ) from None


def _headers(column: pa.Array) -> pa.Array:
    """Returns maps, or lists of structs of two fields named otherwise or typed otherwise, as the envelope's
    headers.
    """
    if pa.types.is_map(column.type):
        keys, values = column.keys, column.items
    else:
        pairs = column.values
        if not pa.types.is_struct(pairs.type) or pairs.type.num_fields != 2:
            raise InvalidRecords(
                f"column 'headers' is {column.type}, not list<struct<key, value>> or map: cast it"
            )
        keys, values = pairs.field("key"), pairs.field("value")
    pair = envelope.HEADERS_TYPE.value_type
    structs = pa.StructArray.from_arrays(
        [keys.cast(pa.string()), values.cast(pa.binary())], fields=[pair.field(0), pair.field(1)]
    )
    mask = column.is_null() if column.null_count else None
    offsets = column.offsets.cast(pa.int32())
    if mask is not None and column.offset:
        # Arrow takes no mask beside sliced offsets: move them to the front.
        offsets = pa.array(offsets.to_numpy())
    return pa.ListArray.from_arrays(offsets, structs, type=envelope.HEADERS_TYPE, mask=mask)


def _check_headers(column: pa.Array) -> None:
    longest = pc.max(pc.list_value_length(column)).as_py() or 0
    if longest > HEADERS_PER_ROW_MAX:
        raise LimitExceeded(f"a message has {longest} headers, over the limit of {HEADERS_PER_ROW_MAX}")
    keys = column.flatten().field("key")
    if keys.null_count:
        raise InvalidRecords(f"column 'headers' has {keys.null_count} null names: every header needs one")
    if pc.any(pc.starts_with(keys, RESERVED_HEADER_PREFIX)).as_py():
        raise InvalidRecords(
            f"column 'headers' has names that begin with {RESERVED_HEADER_PREFIX!r}: they belong to the "
            f"broker, choose others"
        )


def check_message(value_bytes: int, message_bytes: int) -> None:
    """Refuses a message that fits into no batch, or whose value leaves no room for a key and headers.

    Args:
        message_bytes: value, key, names and values of headers, and other texts together.

    Raises:
        LimitExceeded: see VALUE_BYTES_MAX and MESSAGE_BYTES_MAX.
    """
    if value_bytes > VALUE_BYTES_MAX or message_bytes > MESSAGE_BYTES_MAX:
        raise LimitExceeded(
            f"a message of {message_bytes} bytes, {value_bytes} of them its value, is over the limit of "
            f"{MESSAGE_BYTES_MAX} with key and "
            f"headers, {VALUE_BYTES_MAX} for the value: store it elsewhere and send a reference"
        )


def _bytes_of(column: pa.Array) -> int:
    """Returns how many bytes of texts and binaries are in a column, without what Arrow stores beside them."""
    if pa.types.is_list(column.type):
        pairs = column.flatten()
        return _bytes_of(pairs.field("key")) + _bytes_of(pairs.field("value"))
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        return 0
    return pc.sum(pc.binary_length(column)).as_py() or 0


def slices(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Cuts a batch into slices of about `bytes_max` bytes and at most RECORDS_ROWS_MAX rows.

    Raises:
        LimitExceeded: see `check_message`.
    """
    rows, size = batch.num_rows, batch.nbytes
    if rows <= RECORDS_ROWS_MAX and size <= bytes_max:
        yield batch
        return
    if rows == 1:
        if size > VALUE_BYTES_MAX:
            check_message(
                _bytes_of(batch.column("value")), sum(_bytes_of(column) for column in batch.columns)
            )
        yield batch
        return
    parts = max(2, -(-size // bytes_max), -(-rows // RECORDS_ROWS_MAX))
    step = max(1, -(-rows // parts))
    for at in range(0, rows, step):
        yield from slices(batch.slice(at, step), bytes_max)


def to_piece(batch: pa.RecordBatch, priority_plus_one: int) -> Piece:
    """Serialises rows for the wire. Columns without any value in these rows stay away; a priority that all
    share becomes a number.
    """
    named = zip(batch.schema.names, batch.columns, strict=True)
    dropped = [name for name, column in named if name != "value" and column.null_count == batch.num_rows]
    if "priority" in batch.schema.names:
        low, high = pc.min_max(batch.column("priority")).as_py().values()
        if low == high:
            dropped.append("priority")
            priority_plus_one = low + 1
    if dropped:
        batch = batch.select([name for name in batch.schema.names if name not in dropped])
    records = envelope.encode(batch)
    return Piece(
        batch.num_rows, envelope.columns_of(batch.schema), priority_plus_one, records, crc32(records)
    )


def by_partition(records: Records) -> Iterator[tuple[int, NDArray[np.int64] | None, pa.RecordBatch]]:
    """Yields (partition, row numbers, rows) for each partition that rows go to; partition -1 = any, row
    numbers None = all rows.
    """
    if records.partitions is None:
        yield -1, None, records.batch
        return
    low, high = int(records.partitions.min()), int(records.partitions.max())
    if low == high:
        yield low, None, records.batch
        return
    order = np.argsort(records.partitions, kind="stable")
    cuts = np.flatnonzero(np.diff(records.partitions[order])) + 1
    for rows in np.split(order, cuts):
        yield int(records.partitions[rows[0]]), rows, records.batch.take(pa.array(rows))


def cut(records: Records, bytes_max: int) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    """Yields (partition, rows, priority_plus_one) of each piece of about `bytes_max` bytes; partition -1 =
    any.
    """
    for partition, _, rows in by_partition(records):
        for piece in slices(rows, bytes_max):
            yield partition, piece, records.priority_plus_one
