"""Run lengths become columns, row by row as the header says."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_wire import envelope
from mq_wire.errors import InternalError, InvalidOption, InvalidRecords
from mq_wire.v1.common_pb2 import RowsHeader
from pyspark_mq.client.columns import DELIVERED, Rows, delivered_schema, envelope_mask


def records(values: list[bytes], **columns: pa.Array) -> tuple[bytes, int]:
    mask = envelope.VALUE | sum(envelope.BIT[name] for name in columns)
    schema = envelope.schema_of(mask)
    arrays = {"value": pa.array(values, pa.binary()), **columns}
    return envelope.encode(
        pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    ).to_pybytes(), mask


def header(rows: int, mask: int, **fields: Any) -> RowsHeader:
    defaults: dict[str, Any] = {
        "run_rows": [rows],
        "append_time_us": [0],
        "priority": [4],
        "delivery_count": [1],
    }
    return RowsHeader(rows=rows, columns=mask, **{**defaults, **fields})


RUN = st.tuples(
    st.integers(1, 5),
    st.integers(0, 2**50),
    st.integers(0, 9),
    st.integers(1, 7),
    st.integers(0, 2),
    st.integers(-5, 5),
)


@given(st.lists(RUN, min_size=1, max_size=6), st.booleans())
def test_every_row_is_what_its_run_says(
    runs: list[tuple[int, int, int, int, int, int]], is_sparse: bool
) -> None:
    rows = sum(run[0] for run in runs)
    offsets = [3 * row + 10 for row in range(rows)] if is_sparse else [10 + row for row in range(rows)]
    data, mask = records([b"%d" % row for row in range(rows)])
    names = ["p", "", "q"]
    delivery = Rows(
        RowsHeader(
            partition=3,
            rows=rows,
            columns=mask,
            base_offset=0 if is_sparse else 10,
            first_delivery=77,
            producers=names,
            offsets=np.array(offsets, "<i8").tobytes() if is_sparse else b"",
            run_rows=[run[0] for run in runs],
            append_time_us=[run[1] for run in runs],
            priority=[run[2] for run in runs],
            delivery_count=[run[3] for run in runs],
            producer=[run[4] for run in runs],
            sequence_shift=[run[5] for run in runs],
        ),
        memoryview(data),
        "orders",
    )
    batch = delivery.record_batch(DELIVERED)
    batch.validate(full=True)
    expected = [run for run in runs for _ in range(run[0])]
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    for row, (got, run) in enumerate(zip(batch.to_pylist(), expected, strict=True)):
        assert got["value"] == b"%d" % row
        assert (got["queue"], got["partition"], got["offset"]) == ("orders", 3, offsets[row])
        assert got["timestamp"] == epoch + datetime.timedelta(microseconds=run[1])
        assert (got["priority"], got["delivery_count"]) == (run[2], run[3])
        assert got["producer"] == (names[run[4]] or None)
        assert got["sequence"] == (offsets[row] + run[5] if names[run[4]] else None)
        assert got["delivery"] == b"\x01" + (3).to_bytes(4, "big") + (77 + row).to_bytes(8, "big")
        assert got["key"] is None


def test_asked_columns_come_in_the_asked_order_and_types() -> None:
    data, mask = records([b"a"], key=pa.array([b"k"]))
    schema = pa.schema([("offset", pa.int64()), ("value", pa.string()), ("priority", pa.int8())])
    batch = Rows(header(1, mask, base_offset=5), memoryview(data), "q").record_batch(schema)
    assert batch.schema == schema
    assert batch.to_pylist() == [{"offset": 5, "value": "a", "priority": 4}]


def test_no_columns_still_count_rows() -> None:
    data, mask = records([b"a", b"b"])
    assert Rows(header(2, mask), memoryview(data), "q").record_batch(pa.schema([])).num_rows == 2


def test_priority_comes_from_the_runs_even_where_the_records_have_one() -> None:
    data, mask = records([b"a"], priority=pa.array([1], pa.int8()))
    assert Rows(header(1, mask, priority=[9]), memoryview(data), "q").column("priority").to_pylist() == [9]


@pytest.mark.parametrize("fields", [{"run_rows": [3]}, {"priority": []}, {"offsets": b"\0" * 8}])
def test_a_header_that_contradicts_itself_is_a_fault_of_the_broker(fields: dict[str, object]) -> None:
    data, mask = records([b"a", b"b"])
    with pytest.raises(InternalError):
        Rows(header(2, mask, **fields), memoryview(data), "q").record_batch(DELIVERED)


def test_records_are_validated() -> None:
    data, mask = records([b"a", b"b"])
    with pytest.raises(InvalidRecords):
        Rows(header(2, mask), memoryview(data[:-8]), "q")


def test_unknown_column_is_refused() -> None:
    with pytest.raises(InvalidOption, match="offset"):
        delivered_schema(["offsets"])


def test_mask_holds_what_must_travel() -> None:
    assert envelope_mask(["offset", "key", "priority"]) == envelope.VALUE | envelope.KEY
    assert envelope_mask([]) == envelope.VALUE
