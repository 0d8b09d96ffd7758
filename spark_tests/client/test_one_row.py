"""Batches of one row that are written without Arrow are the ones that Arrow writes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_wire import envelope, one_row
from mq_wire.errors import MqError
from pyspark_mq.client.partitioner import partition_of, partitions_of

values = st.binary(max_size=200)
keys = st.none() | values


def columns_of(key: bytes | None) -> int:
    return envelope.VALUE if key is None else envelope.VALUE | envelope.KEY


def by_arrow(value: bytes, key: bytes | None) -> bytes:
    columns = {"value": value} if key is None else {"key": key, "value": value}
    arrays = [pa.array([content], pa.binary()) for content in columns.values()]
    schema = envelope.schema_of(columns_of(key))
    return bytes(memoryview(envelope.encode(pa.RecordBatch.from_arrays(arrays, schema=schema))))


@given(values, keys)
def test_the_bytes_are_those_of_arrow(value: bytes, key: bytes | None) -> None:
    records = one_row.encode(value, key)
    assert records == by_arrow(value, key)
    assert one_row.is_one_row(memoryview(records), columns_of(key))


@pytest.mark.parametrize("size", [0, one_row.BYTES_MAX, one_row.BYTES_MAX + 1])
def test_long_ones_are_left_to_arrow(size: int) -> None:
    records = one_row.encode(bytes(size), bytes(size))
    assert (records is None) == (size > one_row.BYTES_MAX)
    whole = by_arrow(bytes(size), bytes(size))
    assert one_row.is_one_row(memoryview(whole), columns_of(b"")) == (size <= one_row.BYTES_MAX)


@given(values, keys, st.data())
def test_what_is_taken_for_one_is_valid(value: bytes, key: bytes | None, data: st.DataObject) -> None:
    damaged = bytearray(by_arrow(value, key))
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3)):
        damaged[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    records = bytes(damaged[:cut])
    for columns in (envelope.VALUE, envelope.VALUE | envelope.KEY, envelope.ALL_COLUMNS):
        if one_row.is_one_row(memoryview(records), columns):
            assert envelope.decode(records, columns, 1).num_rows == 1
    try:
        envelope.decode(records, columns_of(key), 1)
    except MqError:
        assert not one_row.is_one_row(memoryview(records), columns_of(key))


@given(values, st.integers(1, 1000))
def test_one_key_goes_where_an_array_of_it_goes(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == partitions_of(pa.array([key], pa.binary()), partitions)[0]
