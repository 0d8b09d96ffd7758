"""Record batches that would kill, fill or fool who trusts them. Broker and clients decode with the same code,
and refuse them alike.

Those that go over a real socket stand in spark_tests/rpc/test_bad_records.py.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest

from mq_broker.memory import anonymous_bytes
from mq_wire import envelope
from mq_wire.errors import InvalidRecords, LimitExceeded, Unsupported
from spark_tests.hostile.payloads import foreign_records
from spark_tests.hostile.traffic import rows

_VALUE: Final = envelope.VALUE


def encoded(columns: int, **values: list[Any]) -> bytes:
    schema = envelope.schema_of(columns)
    message: bytes = (
        pa.record_batch([pa.array(values[f.name], f.type) for f in schema], schema=schema)
        .serialize()
        .to_pybytes()
    )
    return message


def two_values(*offsets: int) -> bytes:
    return encoded(_VALUE, value=[b"x" * 5] * 2).replace(
        struct.pack("<3i", 0, 5, 10), struct.pack("<3i", *offsets)
    )


def headers(*pairs: Any) -> bytes:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch([pa.array([b"v"]), pa.array([list(pairs)], kind)], names=["value", "headers"])
    message: bytes = batch.serialize().to_pybytes()
    return message


def at_time(time_us: int) -> bytes:
    return encoded(_VALUE | envelope.BIT["created_at"], value=[b"v"], created_at=[time_us])


def with_length(length: int) -> bytes:
    good = encoded(_VALUE, value=[b"v"])
    return good[:4] + struct.pack("<I", length) + good[8:]


def everywhere(number: int, size: int) -> list[bytes]:
    """A good message with this number at every place of its metadata."""
    good = encoded(_VALUE | envelope.KEY, key=[None, b"k"], value=[b"v", b"w"])
    (length,) = struct.unpack_from("<I", good, 4)
    return [
        good[:at] + number.to_bytes(size, "little") + good[at + size :]
        for at in range(0, 8 + length - size + 1, 2)
    ]


_TIMES: Final = _VALUE | envelope.BIT["created_at"]
_CASES: Final[dict[str, tuple[Callable[[], bytes], int, int, type[Exception]]]] = {
    "last offset beyond the data": (lambda: two_values(0, 5, 2_000_000_000), _VALUE, 2, InvalidRecords),
    "negative offset": (lambda: two_values(0, -5, 10), _VALUE, 2, InvalidRecords),
    "negative first offset": (lambda: two_values(-10, 5, 10), _VALUE, 2, InvalidRecords),
    "decreasing offsets": (lambda: two_values(0, 10, 5), _VALUE, 2, InvalidRecords),
    "a header without a name": (
        lambda: headers({"key": None, "value": b"x"}),
        _VALUE | envelope.HEADERS,
        1,
        InvalidRecords,
    ),
    "no header where one is announced": (lambda: headers(None), _VALUE | envelope.HEADERS, 1, InvalidRecords),
    "a million headers": (
        lambda: headers(*[{"key": "", "value": None}] * 10**6),
        _VALUE | envelope.HEADERS,
        1,
        LimitExceeded,
    ),
    "a time after every calendar": (lambda: at_time(2**63 - 1), _TIMES, 1, InvalidRecords),
    "a time before every calendar": (lambda: at_time(-(2**63)), _TIMES, 1, InvalidRecords),
    "the first moment of the year 10000": (
        lambda: at_time(253_402_300_800_000_000),
        _TIMES,
        1,
        InvalidRecords,
    ),
    "metadata longer than the message": (lambda: with_length(2**31), _VALUE, 1, InvalidRecords),
    "metadata of no length": (lambda: with_length(0), _VALUE, 1, InvalidRecords),
    "2^31 - 1 rows in 224 bytes": (
        lambda: foreign_records()["a million million rows"],
        _VALUE,
        12,
        InvalidRecords,
    ),
    "2,000 columns": (lambda: foreign_records()["2,000 columns"], _VALUE, 12, InvalidRecords),
    "sixty levels of lists": (lambda: foreign_records()["deep"], _VALUE, 12, InvalidRecords),
    "zstd": (lambda: foreign_records()["zstd"], _VALUE, 12, InvalidRecords),
    "lz4": (lambda: foreign_records()["lz4"], _VALUE, 12, InvalidRecords),
    "rows of a negative number": (lambda: encoded(_VALUE, value=[b"v"]), _VALUE, -1, LimitExceeded),
    "columns that nobody knows": (lambda: encoded(_VALUE, value=[b"v"]), _VALUE | 1 << 63, 1, Unsupported),
}


@pytest.mark.parametrize("name", _CASES)
def test_it_is_refused_before_it_costs_anything(name: str) -> None:
    make, columns, count, error = _CASES[name]
    records = make()
    before, began = anonymous_bytes(), time.process_time()
    with pytest.raises(error):
        envelope.decode(records, columns, count)
    assert time.process_time() - began < 0.5
    assert anonymous_bytes() - before < 64 << 20


@pytest.mark.parametrize("name", foreign_records())
def test_records_of_another_schema_are_refused_or_mean_the_same(name: str) -> None:
    """Where a foreign column has the layout of ours, its bytes are taken as ours, and are valid as such."""
    records = foreign_records()[name]
    for columns in (
        _VALUE,
        _VALUE | envelope.HEADERS,
        _VALUE | envelope.BIT["message_id"],
        _TIMES,
        _VALUE | envelope.PRIORITY,
    ):
        try:
            batch = envelope.decode(records, columns, 12)
        except (InvalidRecords, LimitExceeded):
            continue
        assert batch.schema == envelope.schema_of(columns)
        batch.validate(full=True)
        batch.to_pylist()


@pytest.mark.parametrize(
    "number", [0, 1, 4, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 8, 2**64 - 1]
)
def test_no_number_in_the_metadata_is_followed_blindly(number: int) -> None:
    for size in (2, 4, 8):
        for records in everywhere(number & (1 << 8 * size) - 1, size):
            try:
                envelope.decode(records, _VALUE | envelope.KEY, 2).to_pylist()
            except (InvalidRecords, LimitExceeded):
                continue


def test_what_calendars_and_names_allow_is_taken() -> None:
    for time_us in (-62_135_596_800_000_000, 0, 253_402_300_799_999_999):
        assert envelope.decode(at_time(time_us), _TIMES, 1).to_pylist()[0]["created_at"] is not None
    assert envelope.decode(headers({"key": "", "value": None}), _VALUE | envelope.HEADERS, 1).num_rows == 1
    full = rows(100).slice(13, 40)
    assert envelope.decode(envelope.encode(full), envelope.columns_of(full.schema), 40).equals(full)
