"""Envelope version 1: the columns of a message, and decoding of record batches from untrusted bytes.

A batch need not have all columns. Its presence mask says which it has (bit i = COLUMNS[i]), always in this
order; absent columns take no bytes. Bytes from the wire are decoded with *our* schema for the mask, never
with the sender's. Before decoding, their metadata is checked against their length: one crafted Arrow offset
can crash the process, and one compressed buffer can fill its memory.
"""

from __future__ import annotations

import itertools
import struct
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mq_wire.errors import InvalidRecords, LimitExceeded, Unsupported
from mq_wire.limits import HEADERS_PER_ROW_MAX, PRIORITIES, RECORDS_BYTES_MAX, RECORDS_ROWS_MAX

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")

#: Version 1 never changes, except that columns may be added at the end.
COLUMNS: Final[tuple[pa.Field, ...]] = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary(), nullable=False),
    pa.field("headers", HEADERS_TYPE),
    pa.field("priority", pa.int8(), nullable=False),
    pa.field("message_id", pa.string()),
    pa.field("created_at", TIMESTAMP_TYPE),
    pa.field("expires_at", TIMESTAMP_TYPE),
    pa.field("deliver_at", TIMESTAMP_TYPE),
    pa.field("group_id", pa.string()),
    pa.field("correlation_id", pa.string()),
    pa.field("reply_to", pa.string()),
    pa.field("type", pa.string()),
    pa.field("trace_context", pa.string()),
    pa.field("persistent", pa.bool_(), nullable=False),
)
BIT: Final[dict[str, int]] = {field.name: 1 << i for i, field in enumerate(COLUMNS)}
KEY, VALUE, HEADERS, PRIORITY = BIT["key"], BIT["value"], BIT["headers"], BIT["priority"]
ALL_COLUMNS: Final = (1 << len(COLUMNS)) - 1
#: Years 1 to 9999. Python's datetime has no other years: a consumer would fail when it reads such a time.
TIME_US_MIN: Final = -62_135_596_800_000_000
TIME_US_MAX: Final = 253_402_300_799_999_999
#: Columns that have bits but no implementation yet. Brokers without the feature refuse them.
NOT_YET: Final = BIT["expires_at"] | BIT["deliver_at"] | BIT["group_id"] | BIT["persistent"]

_SCHEMAS: Final[dict[int, pa.Schema]] = {}


def schema_of(columns: int) -> pa.Schema:
    """Returns the Arrow schema of a presence mask.

    Raises:
        Unsupported: the mask has columns of a newer envelope.
        InvalidRecords: the mask lacks the column `value`.
    """
    schema = _SCHEMAS.get(columns)
    if schema is None:
        if columns & ~ALL_COLUMNS:
            raise Unsupported(
                f"envelope columns {columns:#x} hold bits beyond {ALL_COLUMNS:#x}, the known ones: "
                "update this side of the connection"
            )
        if not columns & VALUE:
            raise InvalidRecords(
                f"envelope columns {columns:#x} do not include 'value': every message needs a value"
            )
        schema = _SCHEMAS[columns] = pa.schema([field for i, field in enumerate(COLUMNS) if columns >> i & 1])
    return schema


def columns_of(schema: pa.Schema) -> int:
    """Returns the presence mask of a schema whose fields are envelope columns."""
    return sum(BIT[name] for name in schema.names)


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """Returns `batch` as one uncompressed Arrow IPC message without schema. A slice takes only its own
    bytes.
    """
    at = batch.schema.get_field_index("headers")
    if at >= 0 and batch.column(at).offset == 0 and batch.num_rows and batch.column(at).offsets[0].as_py():
        # Arrow 18 writes a list column wrongly when its first offset is not 0 and it is not a slice. A copy
        # has offset 0.
        batch = batch.set_column(
            at, batch.schema.field(at), batch.column(at).take(pa.array(np.arange(batch.num_rows)))
        )
    return batch.serialize()


def decode(records: pa.Buffer | bytes | memoryview, columns: int, rows: int) -> pa.RecordBatch:
    """Returns the record batch in `records`, fully validated and without copying it.

    Raises:
        LimitExceeded: more than RECORDS_BYTES_MAX bytes or RECORDS_ROWS_MAX rows, or a row with more than
            HEADERS_PER_ROW_MAX headers.
        InvalidRecords: not an uncompressed record batch of exactly these columns and rows; a null where none
            is allowed; a priority outside 0 to 9; a time outside the years 1 to 9999.
        Unsupported: the mask has columns of a newer envelope.
    """
    buffer = records if isinstance(records, pa.Buffer) else pa.py_buffer(records)
    if buffer.size > RECORDS_BYTES_MAX:
        raise LimitExceeded(
            f"a record batch of {buffer.size} bytes is over the limit of {RECORDS_BYTES_MAX}: "
            "send smaller batches"
        )
    if not 0 < rows <= RECORDS_ROWS_MAX:
        raise LimitExceeded(
            f"a record batch of {rows} rows is outside 1 to {RECORDS_ROWS_MAX}: send smaller batches"
        )
    schema = schema_of(columns)
    _check_metadata(memoryview(buffer), rows, schema)
    try:
        batch = pa.ipc.read_record_batch(buffer, schema)
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, SystemError) as error:
        raise InvalidRecords(
            f"the records are not a valid Arrow record batch of {schema.names}: {error}"
        ) from None
    _check_contents(batch, rows)
    return batch


def decode_trusted(records: pa.Buffer, columns: int) -> pa.RecordBatch:
    """Returns the record batch in `records` without validation. Only for bytes that `decode` accepted when
    they arrived and whose checksum is still right.
    """
    return pa.ipc.read_record_batch(_without_custom_metadata(records), schema_of(columns))


def is_plain(records: pa.Buffer, columns: int) -> bool:
    """Whether stored bytes may be sent to clients unchanged. False for some batches that version 0.1.0
    accepted and that `decode` refuses today.
    """
    view = memoryview(records)
    try:
        _check_metadata(
            view,
            _Table.root(view[8 : 8 + _read(view, "<I", 4)]).table(2).scalar(0, "<q", 0),
            schema_of(columns),
        )
    except InvalidRecords:
        return False
    return True


def _without_custom_metadata(records: pa.Buffer) -> pa.Buffer:
    """Returns the message without its custom metadata. Version 0.1.0 stored such metadata, and Arrow takes
    gigabytes of memory to read a megabyte of it.
    """
    view = memoryview(records)
    table = _Table.root(view[8 : 8 + _read(view, "<I", 4)])
    if not table.has(_CUSTOM_METADATA):
        return records
    cut = bytearray(view)
    struct.pack_into("<H", cut, 8 + table.entry(_CUSTOM_METADATA), 0)
    return pa.py_buffer(bytes(cut))


def _check_contents(batch: pa.RecordBatch, rows: int) -> None:
    if batch.num_rows != rows:
        raise InvalidRecords(f"the records hold {batch.num_rows} rows, their header says {rows}")
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise InvalidRecords(
                f"column {field.name!r} has {column.null_count} null values: it must have none"
            )
        if field.name == "priority":
            low, high = pc.min_max(column).as_py().values()
            if low < 0 or high >= PRIORITIES:
                raise InvalidRecords(f"priority {low if low < 0 else high} is outside 0 to {PRIORITIES - 1}")
        elif field.name == "headers":
            _check_headers(column)
        elif field.type == TIMESTAMP_TYPE:
            low, high = pc.min_max(column.view(pa.int64())).as_py().values()
            if low is not None and (low < TIME_US_MIN or high > TIME_US_MAX):
                raise InvalidRecords(
                    f"column {field.name!r} has the time {low if low < TIME_US_MIN else high} us since 1970, "
                    "which is outside the years 1 to 9999"
                )


def _check_headers(column: pa.ListArray) -> None:
    longest = pc.max(pc.list_value_length(column)).as_py() or 0
    if longest > HEADERS_PER_ROW_MAX:
        raise LimitExceeded(f"a message has {longest} headers, over the limit of {HEADERS_PER_ROW_MAX}")
    entries = column.flatten()
    if nameless := entries.null_count or entries.field("key").null_count:
        raise InvalidRecords(
            f"column 'headers' has {nameless} headers without a name: every header needs one"
        )


# Arrow IPC metadata is a flatbuffer (Message.fbs): Message{version, header_type, header: RecordBatch,
# bodyLength}, RecordBatch{length, nodes: [{length, null_count}], buffers: [{offset, length}], compression,
# ...}. Later fields are refused: Arrow makes objects of them that are thousands of times larger than their
# bytes.
_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_CUSTOM_METADATA: Final = 4
_COMPRESSION: Final = 3
_NODES_OF: Final[dict[pa.DataType, int]] = {HEADERS_TYPE: 4}
_BUFFERS_OF: Final[dict[pa.DataType, int]] = {HEADERS_TYPE: 2 + 1 + 3 + 3, pa.binary(): 3, pa.string(): 3}


def _check_metadata(message: memoryview, rows: int, schema: pa.Schema) -> None:
    """Refuses metadata that would make Arrow's reader allocate too much, decompress, or read beyond the
    message.

    Raises:
        InvalidRecords: with the reason.
    """
    try:
        continuation, length = struct.unpack_from("<II", message, 0)
        body_bytes = len(message) - 8 - length
        if continuation != _CONTINUATION or body_bytes < 0:
            _refuse("it does not begin with an IPC message header")
        table = _Table.root(message[8 : 8 + length])
        if table.scalar(1, "<B", 0) != _RECORD_BATCH:
            _refuse("it is not a record batch message")
        if table.scalar(3, "<q", 0) != body_bytes:
            _refuse(f"its body is {body_bytes} bytes long, its metadata says {table.scalar(3, '<q', 0)}")
        if table.has_from(_CUSTOM_METADATA):
            _refuse("it has custom metadata: send it without custom metadata")
        batch = table.table(2)
        if batch.has(_COMPRESSION):
            _refuse("it is compressed: send it uncompressed")
        if batch.has_from(_COMPRESSION + 1):
            _refuse("its metadata has fields behind `compression`: send it without them")
        if batch.scalar(0, "<q", 0) != rows:
            _refuse(f"it claims {batch.scalar(0, '<q', 0)} rows, its header says {rows}")
        nodes, buffers = batch.pairs(1), batch.pairs(2)
    except (struct.error, IndexError):
        raise InvalidRecords(
            "the records are not an Arrow record batch: their metadata points outside of itself"
        ) from None
    expected_nodes = sum(_NODES_OF.get(field.type, 1) for field in schema)
    expected_buffers = sum(_BUFFERS_OF.get(field.type, 2) for field in schema)
    if len(nodes) != expected_nodes or len(buffers) != expected_buffers:
        _refuse(f"{len(nodes)} fields in {len(buffers)} buffers are not the columns {schema.names}")
    if any(not 0 <= nulls <= count <= max(rows, body_bytes) for count, nulls in nodes):
        _refuse("a column claims more values or nulls than its bytes can hold")
    if any(offset < 0 or size < 0 or offset + size > body_bytes for offset, size in buffers):
        _refuse("a buffer reaches beyond the body")
    filled = sorted((offset, offset + size) for offset, size in buffers if size)
    if any(start < end for (_, end), (start, _) in itertools.pairwise(filled)):
        _refuse("two buffers share bytes: give every buffer its own bytes")


def _refuse(reason: str) -> NoReturn:
    raise InvalidRecords(f"the records are not an Arrow record batch as expected: {reason}")


class _Table:
    """One flatbuffer table. Every access is checked against the size of the buffer."""

    __slots__ = ("_at", "_data", "_slots", "_vtable")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - _read(data, "<i", at)
        self._slots = (_read(data, "<H", self._vtable) - 4) // 2

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, _read(data, "<I", 0))

    def _field(self, slot: int) -> int:
        offset = _read(self._data, "<H", self._vtable + 4 + 2 * slot) if slot < self._slots else 0
        return self._at + offset if offset else 0

    def has(self, slot: int) -> bool:
        return self._field(slot) != 0

    def has_from(self, slot: int) -> bool:
        """Whether the table has this slot or any slot after it."""
        return any(self.has(at) for at in range(slot, self._slots))

    def entry(self, slot: int) -> int:
        """Returns the position of the slot's entry in the vtable. The entry holds the position of the
        field.
        """
        return self._vtable + 4 + 2 * slot

    def scalar(self, slot: int, form: str, default: int) -> int:
        at = self._field(slot)
        return _read(self._data, form, at) if at else default

    def table(self, slot: int) -> _Table:
        at = self._field(slot)
        if not at:
            raise IndexError(slot)
        return _Table(self._data, at + _read(self._data, "<I", at))

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        at = self._field(slot)
        if not at:
            return []
        at += _read(self._data, "<I", at)
        count = _read(self._data, "<I", at)
        if count > (len(self._data) - at) // 16:
            raise IndexError(count)
        values = struct.unpack_from(f"<{2 * count}q", self._data, at + 4)
        return list(zip(values[::2], values[1::2], strict=True))


def _read(data: memoryview, form: str, at: int) -> int:
    if at < 0:
        raise IndexError(at)
    value: int = struct.unpack_from(form, data, at)[0]
    return value
