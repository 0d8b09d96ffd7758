"""Records that would kill, fill or fool a broker that trusts them: refused by name, and the broker lives."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from mq_wire import envelope
from mq_wire.limits import RECORDS_BYTES_MAX, RECORDS_ROWS_MAX
from spark_tests.support.wire import Wire, batch_of, values_of

VALUE = envelope.VALUE


def encoded(batch: pa.RecordBatch) -> bytes:
    message: bytes = batch.serialize().to_pybytes()
    return message


def with_offsets(*offsets: int) -> bytes:
    """Two values of five bytes, whose offsets then say what they like: Arrow itself would not write them."""
    return encoded(batch_of([b"x" * 5] * 2)).replace(
        struct.pack("<3i", 0, 5, 10), struct.pack("<3i", *offsets)
    )


def compressed(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    bomb: bytes = messages[1].serialize().to_pybytes()
    assert len(bomb) < batch.nbytes / 100
    return bomb


def bad_utf8() -> bytes:
    ids = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    return encoded(pa.record_batch([pa.array([b"v"]), ids], names=["value", "message_id"]))


def huge_null_column() -> bytes:
    """Claims 2^31 - 1 rows in some 200 bytes."""
    return encoded(pa.record_batch([pa.nulls(2**31 - 1)], names=["value"]))


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


#: name -> (records, header fields, code)
CASES: dict[str, tuple[Callable[[], bytes], dict[str, int], str]] = {
    "empty": (lambda: b"", {"rows": 1}, "INVALID_RECORDS"),
    "garbage": (lambda: b"\x00" * 300, {"rows": 1}, "INVALID_RECORDS"),
    "a whole stream instead of a message": (
        lambda: stream_of(batch_of(values_of(4))),
        {"rows": 4},
        "INVALID_RECORDS",
    ),
    "a schema message": (
        lambda: batch_of(values_of(4)).schema.serialize().to_pybytes(),
        {"rows": 4},
        "INVALID_RECORDS",
    ),
    "last offset 2,000,000,000": (lambda: with_offsets(0, 5, 2_000_000_000), {"rows": 2}, "INVALID_RECORDS"),
    "negative offset": (lambda: with_offsets(0, -5, 10), {"rows": 2}, "INVALID_RECORDS"),
    "decreasing offsets": (lambda: with_offsets(0, 10, 5), {"rows": 2}, "INVALID_RECORDS"),
    "text that is not UTF-8": (
        bad_utf8,
        {"rows": 1, "columns": VALUE | envelope.BIT["message_id"]},
        "INVALID_RECORDS",
    ),
    "null column of 2^31 - 1 rows": (huge_null_column, {"rows": 2**31 - 1}, "LIMIT_EXCEEDED"),
    "null column, few rows in the header": (huge_null_column, {"rows": 10}, "INVALID_RECORDS"),
    "other columns than the header says": (
        lambda: encoded(batch_of(values_of(4), key=values_of(4))),
        {"rows": 4, "columns": VALUE},
        "INVALID_RECORDS",
    ),
    "fewer columns than the header says": (
        lambda: encoded(batch_of(values_of(4))),
        {"rows": 4, "columns": VALUE | envelope.KEY},
        "INVALID_RECORDS",
    ),
    "more rows in the header": (lambda: encoded(batch_of(values_of(4))), {"rows": 5}, "INVALID_RECORDS"),
    "fewer rows in the header": (lambda: encoded(batch_of(values_of(4))), {"rows": 3}, "INVALID_RECORDS"),
    "no rows": (lambda: encoded(batch_of([])), {"rows": 0}, "LIMIT_EXCEEDED"),
    "too many rows": (
        lambda: encoded(batch_of([b""] * (RECORDS_ROWS_MAX + 1))),
        {"rows": RECORDS_ROWS_MAX + 1},
        "LIMIT_EXCEEDED",
    ),
    "too many bytes": (lambda: encoded(batch_of([b"x" * RECORDS_BYTES_MAX])), {"rows": 1}, "LIMIT_EXCEEDED"),
    "compressed bomb": (
        lambda: compressed(batch_of([bytes(500_000)] * 100)),
        {"rows": 100},
        "INVALID_RECORDS",
    ),
    "null value": (
        lambda: encoded(pa.record_batch([pa.array([b"a", None], pa.binary())], names=["value"])),
        {"rows": 2},
        "INVALID_RECORDS",
    ),
    "no value column": (
        lambda: encoded(batch_of(values_of(2)).select([])),
        {"rows": 2, "columns": envelope.KEY},
        "INVALID_RECORDS",
    ),
    "columns of a newer envelope": (
        lambda: encoded(batch_of(values_of(2))),
        {"rows": 2, "columns": VALUE | 1 << 40},
        "UNSUPPORTED",
    ),
    "another schema": (lambda: encoded(batch_of(values_of(2))), {"rows": 2, "schema_id": 3}, "UNSUPPORTED"),
    "priority column with 10": (
        lambda: encoded(batch_of(values_of(2), priority=[4, 10])),
        {"rows": 2, "columns": VALUE | envelope.PRIORITY},
        "INVALID_RECORDS",
    ),
    "priority column with -1": (
        lambda: encoded(batch_of(values_of(2), priority=[-1, 4])),
        {"rows": 2, "columns": VALUE | envelope.PRIORITY},
        "INVALID_RECORDS",
    ),
    "priority 10 for all": (
        lambda: encoded(batch_of(values_of(2))),
        {"rows": 2, "priority_plus_one": 11},
        "INVALID_RECORDS",
    ),
    "1,001 headers": (
        lambda: encoded(batch_of([b"v"], headers=[[{"key": "k", "value": b""}] * 1001])),
        {"rows": 1, "columns": VALUE | envelope.HEADERS},
        "LIMIT_EXCEEDED",
    ),
    "expiry, which is not acted upon yet": (
        lambda: encoded(batch_of([b"v"], expires_at=[0])),
        {"rows": 1, "columns": VALUE | envelope.BIT["expires_at"]},
        "UNSUPPORTED",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_records_are_refused_and_nothing_is_changed(wire: Wire, queue_name: str, name: str) -> None:
    records, fields, code = CASES[name]
    publisher = wire.publisher(queue_name)
    publisher.send(batch_of(values_of(1)))
    publisher.put_raw(records(), **{"columns": VALUE, "first_sequence": 1, **fields})
    answer = publisher.answer()
    assert answer.error.code == code, answer
    assert answer.error.message
    # The same stream goes on, with the sequence that was refused.
    assert publisher.send(batch_of(values_of(1)), first_sequence=1).receipt.base_offset == 1
    assert wire.stats(queue_name).enqueued_rows == 2


def test_flipped_bits_never_harm_the_broker(wire: Wire, queue_name: str, rng: Any) -> None:
    good = encoded(
        batch_of(values_of(50), key=values_of(50), message_id=[f"id-{number}" for number in range(50)])
    )
    columns = VALUE | envelope.KEY | envelope.BIT["message_id"]
    stored = refused = 0
    publisher = wire.publisher(queue_name)
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        publisher.put_raw(bytes(damaged), rows=50, columns=columns, first_sequence=50 * stored)
        answer = publisher.answer()
        if answer.HasField("receipt"):
            stored += 1
        else:
            assert answer.error.code == "INVALID_RECORDS", answer
            refused += 1
    assert refused > 30
    assert wire.stats(queue_name).ready_rows == 50 * stored
