"""Record batches as version 0.1.0 took them from hostile writers: all columns point to the same bytes."""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from mq_broker.core.commands import Publish
from mq_broker.core.model.facets import Facets
from mq_wire import envelope
from mq_wire.v1.produce_pb2 import PublishHeader

_NAMES: Final = ("key", "value", "message_id", "correlation_id", "reply_to", "type", "trace_context")
COLUMNS: Final = sum(envelope.BIT[name] for name in _NAMES)


def shared_records(values: list[bytes]) -> bytes:
    """Returns a batch of seven columns which all have these (ASCII) values, stored once."""
    schema = envelope.schema_of(COLUMNS)
    one = pa.array(values, pa.binary())
    whole = envelope.encode(
        pa.RecordBatch.from_arrays([one.cast(field.type) for field in schema], schema=schema)
    )
    message = bytearray(memoryview(whole))
    (length,) = struct.unpack_from("<I", message, 4)
    view = memoryview(bytes(message))[8 : 8 + length]
    table: Any = envelope._Table.root(view)
    pairs = table.table(2).pairs(2)
    end = -(-sum(pairs[2]) // 8) * 8
    at = 0
    for number, pair in enumerate(pairs):
        at = bytes(message).index(struct.pack("<2q", *pair), at or 8, 8 + length)
        struct.pack_into("<2q", message, at, *pairs[number % 3])
        at += 16
    struct.pack_into("<q", message, 8 + table._field(3), end)
    return bytes(message[: 8 + length + end])


def publish_shared(values: list[bytes], producer: str, priorities: int | Any = 4) -> Publish:
    """Returns the command that stores them, behind all checks."""
    records = pa.py_buffer(shared_records(values))
    header = PublishHeader(destination="q", producer_id=producer, rows=len(values), columns=COLUMNS)
    return Publish(header, records, crc32(records), Facets(priorities))
