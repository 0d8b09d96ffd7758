"""Rows on their way into the sink: exact envelope types, absent columns absent, bad rows refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mq_wire import envelope
from mq_wire.errors import InvalidRecords, Unsupported
from pyspark_mq.spark.options import SinkOptions
from pyspark_mq.spark.outgoing import GATHER_ROWS, envelope_columns, gathered, routed


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_null_priority_is_the_default() -> None:
    records = envelope_columns(batch(value=pa.array(["a", "b"]), priority=pa.array([9, None], pa.int32())))
    assert records.column("priority").to_pylist() == [9, 4]


def test_columns_without_a_value_are_left_out() -> None:
    nothing = pa.nulls(2, pa.string())
    records = envelope_columns(
        batch(value=pa.array(["a", "b"]), key=nothing, message_id=nothing, offset=pa.array([1, 2]))
    )
    assert records.schema.names == ["value"]


def test_expiry_is_refused_where_it_is_asked_for() -> None:
    kind = envelope.TIMESTAMP_TYPE
    assert envelope_columns(batch(value=pa.array([b"a"]), expires_at=pa.nulls(1, kind))).schema.names == [
        "value"
    ]
    with pytest.raises(Unsupported, match="expires_at has values"):
        envelope_columns(batch(value=pa.array([b"a"]), expires_at=pa.array([5], kind)))


def test_rows_are_routed_in_order() -> None:
    options = SinkOptions.parse({"routebycolumns": "true"})
    rows = batch(
        Value=pa.array(["1", "2", "3", "4"]),
        QUEUE=pa.array(["b", "a", "b", "a"]),
        partition=pa.array([0, 1, 2, 3], pa.int32()),
    )
    found = {queue: records.to_pydict() for queue, records in routed(rows, options)}
    assert found == {
        "b": {"value": ["1", "3"], "partition": [0, 2]},
        "a": {"value": ["2", "4"], "partition": [1, 3]},
    }


def test_option_queue_beats_column_queue() -> None:
    rows = batch(value=pa.array(["1"]), queue=pa.array(["b"]), partition=pa.array([3], pa.int32()))
    assert [
        (queue, records.schema.names) for queue, records in routed(rows, SinkOptions.parse({"queue": "a"}))
    ] == [("a", ["value"])]
    both = SinkOptions.parse({"queue": "a", "routebycolumns": "true"})
    assert [(queue, records.schema.names) for queue, records in routed(rows, both)] == [
        ("a", ["value", "partition"])
    ]


def test_a_row_without_a_queue_is_refused() -> None:
    rows = batch(value=pa.array(["1"]), queue=pa.nulls(1, pa.string()))
    with pytest.raises(InvalidRecords, match="column queue is null"):
        list(routed(rows, SinkOptions.parse({"routebycolumns": "true"})))


def test_small_batches_are_joined_and_empty_ones_dropped() -> None:
    small = batch(value=pa.array([b"x"] * 10_000))
    sizes = [
        joined.num_rows for joined in gathered(iter([small.slice(0, 0), *[small] * 9]), 1000, lambda: 0.0)
    ]
    assert sum(sizes) == 90_000
    assert sizes[0] >= GATHER_ROWS
    assert len(sizes) == 2


def test_gathering_ends_after_the_linger_time() -> None:
    small = batch(value=pa.array([b"x"]))
    times = iter([0.0, 0.01, 0.04, 0.06, 1.0, 1.01])
    assert [joined.num_rows for joined in gathered(iter([small] * 4), 50, lambda: next(times))] == [3, 1]
