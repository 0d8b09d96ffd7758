"""Record batches that are small on the wire and large wherever they are looked at."""

from __future__ import annotations

import struct
import uuid
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mq_wire import envelope, framing
from mq_wire.v1.produce_pb2 import PublishHeader, PublishResponse
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Target
from spark_tests.support.wire import Wire

_ROWS: Final = 12
_QUEUE: Final = "amplified"
#: Columns that are bytes or text, so that any of them can lie where another one does.
_TEXTS: Final = ("key", "value", "message_id", "correlation_id", "reply_to", "type", "trace_context")


def with_metadata(entries: int, value_bytes: int, *, one_table: bool) -> bytes:
    """An Arrow message of one row with so many `custom_metadata` entries that share one value; or all are one
    and the same entry.
    """
    batch = pa.record_batch([pa.array([b"v"], pa.binary())], names=["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={"k": "v"})
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message: bytes = reader.read_next_message().serialize().to_pybytes()
    (length,) = struct.unpack_from("<I", message, 4)
    meta, body = bytearray(message[8 : 8 + length]), message[8 + length :]
    (table,) = struct.unpack_from("<I", meta)
    vtable = table - struct.unpack_from("<i", meta, table)[0]
    (slot,) = struct.unpack_from("<H", meta, vtable + 4 + 2 * 4)
    vector = len(meta)
    struct.pack_into("<I", meta, table + slot, vector - (table + slot))
    # The vector, the one vtable that all entries share, the entries, the name and the value: offsets always
    # point forward.
    tables = 1 if one_table else entries
    shape = vector + 4 + 4 * entries
    first = shape + 8
    name = first + 12 * tables
    value = name + 8
    starts = first + 12 * (np.arange(entries) % tables)
    places = vector + 4 + 4 * np.arange(entries)
    meta += (
        struct.pack("<I", entries)
        + (starts - places).astype("<u4").tobytes()
        + struct.pack("<4H", 8, 12, 4, 8)
    )
    own = first + 12 * np.arange(tables)
    meta += np.column_stack([own - shape, name - (own + 4), value - (own + 8)]).astype("<i4").tobytes()
    meta += struct.pack("<I4s", 1, b"k") + struct.pack("<I", value_bytes) + bytes(value_bytes + 1)
    meta += bytes(-len(meta) % 8)
    return b"\xff\xff\xff\xff" + struct.pack("<I", len(meta)) + bytes(meta) + body


def with_one_buffer(size: int) -> tuple[bytes, int]:
    """An Arrow message whose seven columns have one buffer between them, and two priorities; and its presence
    mask.
    """
    texts = ["x" * (size // _ROWS)] * _ROWS
    arrays: dict[str, Any] = dict.fromkeys(_TEXTS, texts) | {"priority": [0, 9] * (_ROWS // 2)}
    fields = [field for field in envelope.COLUMNS if field.name in arrays]
    columns = sum(envelope.BIT[field.name] for field in fields)
    batch = pa.record_batch(
        [pa.array(arrays[field.name], field.type) for field in fields], schema=pa.schema(fields)
    )
    message = batch.serialize().to_pybytes()
    (length,) = struct.unpack_from("<I", message, 4)
    meta, body = bytearray(message[8 : 8 + length]), message[8 + length :]
    buffers = [
        (node.address, node.size) for array in batch.columns for node in array.buffers() if node is not None
    ]
    assert buffers
    pairs = pairs_of(meta)
    large = [at for at in pairs if struct.unpack_from("<2q", meta, at)[1] >= len(texts[0]) * _ROWS]
    start, room = struct.unpack_from("<2q", meta, large[0])
    kept = bytearray(body[:start]) + body[start : start + room + (-room % 8)]
    for at in pairs:
        place, taken = struct.unpack_from("<2q", meta, at)
        if at in large:
            struct.pack_into("<2q", meta, at, start, room)
        elif place >= start:
            moved = len(kept)
            kept += body[place : place + taken + (-taken % 8)]
            struct.pack_into("<2q", meta, at, moved, taken)
    table = struct.unpack_from("<I", meta)[0]
    vtable = table - struct.unpack_from("<i", meta, table)[0]
    struct.pack_into("<q", meta, table + struct.unpack_from("<H", meta, vtable + 4 + 2 * 3)[0], len(kept))
    return b"\xff\xff\xff\xff" + struct.pack("<I", len(meta)) + bytes(meta) + bytes(kept), columns


def pairs_of(meta: bytearray) -> list[int]:
    """Returns where the (offset, length) of each buffer stand in a message's metadata."""
    table = struct.unpack_from("<I", meta)[0]

    def at(place: int, slot: int) -> int:
        vtable = place - struct.unpack_from("<i", meta, place)[0]
        field = place + struct.unpack_from("<H", meta, vtable + 4 + 2 * slot)[0]
        return int(field + struct.unpack_from("<I", meta, field)[0])

    vector = at(at(table, 2), 2)
    return [vector + 4 + 16 * number for number in range(struct.unpack_from("<I", meta, vector)[0])]


def request(records: bytes, rows: int, columns: int) -> bytes:
    """A PublishRequest of a producer that nobody knows."""
    header = PublishHeader(destination=_QUEUE, producer_id=uuid.uuid4().hex, rows=rows, columns=columns)
    return framing.join(header.SerializeToString(), memoryview(records))


def send(wire: Wire, message: bytes) -> PublishResponse:
    """Calls Send with bytes as they are."""
    answer: PublishResponse = wire.call("Send", message)
    return answer


def metadata(target: Target) -> None:
    """40,000 entries that share one value of 3 MB; 400,000 that are one; a batch of 1 MB that is taken where
    it is not looked at.
    """
    wire = target.wire()
    for entries, size, one_table in (
        (40_000, 3_200_000, False),
        (400_000, 2_000_000, True),
        (2000, 1_000_000, False),
    ):
        answer = send(wire, request(with_metadata(entries, size, one_table=one_table), 1, envelope.VALUE))
        assert answer.error.code == "INVALID_RECORDS", answer


def shared_buffers(target: Target) -> None:
    """Seven columns of 4.1 MB that are one; other rows of the queue are delivered all the same."""
    wire = target.wire()
    records, columns = with_one_buffer(4_100_000)
    for _ in range(target.times(3)):
        answer = send(wire, request(records, _ROWS, columns))
        assert answer.error.code == "INVALID_RECORDS", answer


def unread_damage(target: Target) -> None:
    """Batches at the limit, refused for their last column, one after the other."""
    records = bytearray(with_one_buffer(4_000_000)[0])
    body = http2.message(request(bytes(records), _ROWS + 1, envelope.VALUE))
    client = target.client()
    for _ in range(target.times(20)):
        client.send(client.call("Send"), body, end=True)


ATTACKS: Final = (
    Attack("metadata that shares its value", metadata, seconds=0.5),
    Attack("columns that share their bytes", shared_buffers, seconds=0.2),
    Attack("batches that are refused", unread_damage, seconds=0.5),
)
