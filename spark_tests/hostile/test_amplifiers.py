"""Record batches that are small on the wire and large wherever they are looked at."""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa
import pytest

from mq_wire import envelope
from mq_wire.errors import InvalidRecords

_COLUMNS: Final = envelope.KEY | envelope.VALUE


def batch() -> pa.RecordBatch:
    schema = envelope.schema_of(_COLUMNS)
    return pa.record_batch(
        [pa.array([b"k" * 100] * 3, pa.binary()), pa.array([b"v" * 100] * 3, pa.binary())], schema=schema
    )


def with_custom_metadata(entries: int) -> bytes:
    """As a foreign writer may send it, and as version 0.1.0 stored it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch().schema) as writer:
        writer.write_batch(batch(), custom_metadata={f"key {number}": "x" * 100 for number in range(entries)})
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message: bytes = reader.read_next_message().serialize().to_pybytes()
    return message


def with_shared_buffers(shift: int) -> bytes:
    """The values lie where the keys do, `shift` bytes further on."""
    message = bytearray(batch().serialize().to_pybytes())
    (length,) = struct.unpack_from("<I", message, 4)
    table: Any = envelope._Table.root(memoryview(bytes(message))[8 : 8 + length]).table(2)
    pairs = table.pairs(2)
    places = [bytes(message).index(struct.pack("<2q", *pair), 8) for pair in pairs]
    (offset, size) = pairs[2]
    struct.pack_into("<2q", message, places[5], offset + shift, size - shift)
    return bytes(message)


def test_metadata_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidRecords, match="custom metadata"):
        envelope.decode(with_custom_metadata(3), _COLUMNS, 3)


def test_metadata_that_an_earlier_version_stored_is_not_looked_at() -> None:
    stored = pa.py_buffer(with_custom_metadata(1000))
    assert envelope.decode_trusted(stored, _COLUMNS).equals(batch())


@pytest.mark.parametrize("shift", [0, 8])
def test_buffers_that_share_bytes_are_refused(shift: int) -> None:
    with pytest.raises(InvalidRecords, match="share bytes"):
        envelope.decode(with_shared_buffers(shift), _COLUMNS, 3)


def test_what_arrow_writes_is_taken() -> None:
    for rows in (batch(), batch().slice(1, 1), batch().slice(0, 1)):
        assert envelope.decode(envelope.encode(rows), _COLUMNS, rows.num_rows).equals(rows)
