"""Batches from users: what is taken, how it is cut, and what is refused with which words."""

from __future__ import annotations

import datetime
import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq_wire import envelope
from mq_wire.errors import InvalidRecords, LimitExceeded, MqError, Unsupported
from mq_wire.limits import RECORDS_BYTES_MAX, RECORDS_ROWS_MAX
from pyspark_mq.client.accumulator import OpenBatch, sparse_columns
from pyspark_mq.client.partitioner import partitions_of
from pyspark_mq.client.records import cut, slices, to_piece, to_records

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def round_trip(data: pa.RecordBatch) -> list[dict[str, Any]]:
    """What the broker would read."""
    records = to_records(data, 4)
    piece = to_piece(records.batch, records.priority_plus_one)
    assert piece.records is not None
    assert piece.crc32 == zlib.crc32(piece.records)
    rows: list[dict[str, Any]] = envelope.decode(piece.records, piece.columns, piece.rows).to_pylist()
    if piece.priority_plus_one:
        rows = [{**row, "priority": piece.priority_plus_one - 1} for row in rows]
    return rows


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view()],
)
def test_values_of_every_kind_of_bytes(kind: pa.DataType) -> None:
    assert round_trip(batch(value=pa.array(["ä", ""], pa.string()).cast(kind))) == [
        {"value": "ä".encode()},
        {"value": b""},
    ]


def test_dictionaries_and_fixed_size_values() -> None:
    assert round_trip(batch(value=pa.array(["a", "b", "a"]).dictionary_encode())) == [
        {"value": b"a"},
        {"value": b"b"},
        {"value": b"a"},
    ]
    assert round_trip(batch(value=pa.array([b"ab"], pa.binary(2)))) == [{"value": b"ab"}]


def test_every_column_arrives() -> None:
    row = {
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        "priority": 7,
        "message_id": "m",
        "created_at": NOW,
        "correlation_id": "c",
        "reply_to": "r",
        "type": "t",
        "trace_context": "x",
    }
    types = {field.name: field.type for field in envelope.COLUMNS}
    assert round_trip(
        batch(**{name: pa.array([value, value], types[name]) for name, value in row.items()})
    ) == [row, row]


def test_one_priority_for_all_needs_no_column() -> None:
    records = to_records(batch(value=[b"a", b"b"], priority=[9, 9]), 4)
    assert (records.priority_plus_one, records.batch.schema.names) == (10, ["value"])


def test_headers_as_maps_also_sliced_and_with_nulls() -> None:
    maps = pa.array(
        [[("x", "y")], None, [("a", "1"), ("b", "2")], []], pa.map_(pa.string(), pa.string())
    ).slice(1)
    assert round_trip(batch(value=[b"1", b"2", b"3"], headers=maps)) == [
        {"value": b"1", "headers": None},
        {"value": b"2", "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]},
        {"value": b"3", "headers": []},
    ]


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"key": [b"k"]}, InvalidRecords, "no column 'value'"),
        ({"value": [b"a", None]}, InvalidRecords, "1 null"),
        ({"value": [1]}, InvalidRecords, "int64"),
        ({"value": [b"a"], "priority": [10]}, InvalidRecords, "priority 10"),
        ({"value": [b"a"], "priority": [-1]}, InvalidRecords, "priority -1"),
        ({"value": [b"a", b"b"], "priority": [1, None]}, InvalidRecords, "null"),
        ({"value": [b"a"], "priority": ["1"]}, InvalidRecords, "not an integer"),
        ({"value": [b"a"], "partition": [4]}, InvalidRecords, "partition 4"),
        ({"value": [b"a"], "prioritty": [4]}, InvalidRecords, "did you mean 'priority'"),
        ({"value": [b"a"], "expires_at": [NOW]}, Unsupported, "expires_at"),
        ({"value": [b"a"], "headers": [["a"]]}, InvalidRecords, "headers"),
        ({"value": [b"a"], "headers": [[{"key": "mq.x", "value": b""}]]}, InvalidRecords, "mq."),
        ({"value": [b"a"], "headers": [[{"key": "a", "value": b""}] * 1001]}, LimitExceeded, "1001"),
        ({"value": [b"a"], "message_id": [b"m"]}, InvalidRecords, "message_id"),
        ({"value": [b"a"], "created_at": [datetime.datetime(2026, 1, 1)]}, InvalidRecords, "time zone"),
    ],
)
def test_refused(columns: dict[str, Any], error: type[MqError], words: str) -> None:
    with pytest.raises(error, match=words):
        to_records(batch(**columns), 4)


def test_a_value_too_large_for_any_batch_is_refused() -> None:
    with pytest.raises(LimitExceeded, match=str(RECORDS_BYTES_MAX)):
        list(cut(to_records(batch(value=[b"a", b"x" * RECORDS_BYTES_MAX]), 4), 1 << 20))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(200, 10_000))
def test_slices_hold_every_row_once_and_fit(sizes: list[int], bytes_max: int) -> None:
    whole = batch(value=pa.array([bytes([i % 256]) * size for i, size in enumerate(sizes)], pa.binary()))
    parts = list(slices(whole, bytes_max))
    assert pa.Table.from_batches(parts).column("value").to_pylist() == whole.column("value").to_pylist()
    assert all(part.nbytes <= bytes_max or part.num_rows == 1 for part in parts)


def test_many_tiny_rows_are_cut_by_rows() -> None:
    assert (
        max(part.num_rows for part in slices(batch(value=pa.array([b""] * (RECORDS_ROWS_MAX + 1))), 1 << 22))
        <= RECORDS_ROWS_MAX
    )


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.binary(max_size=3)), st.one_of(st.none(), st.integers(0, 2))),
        min_size=1,
        max_size=40,
    )
)
def test_rows_go_where_partition_or_key_say(rows: list[tuple[bytes | None, int | None]]) -> None:
    data = batch(
        value=pa.array([b"%d" % i for i in range(len(rows))]),
        key=pa.array([key for key, _ in rows], pa.binary()),
        partition=pa.array([partition for _, partition in rows], pa.int32()),
    )
    seen: list[bytes] = []
    for partition, part, _ in cut(to_records(data, 3), 1 << 20):
        mine = [int(value) for value in part.column("value").to_pylist()]
        assert mine == sorted(mine)
        seen += part.column("value").to_pylist()
        for i in mine:
            key, wanted = rows[i]
            hashed = int(partitions_of(pa.array([key], pa.binary()), 3)[0]) if key is not None else -1
            assert partition == (wanted if wanted is not None else hashed)
    assert sorted(seen) == sorted(data.column("value").to_pylist())


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 2)), min_size=1, max_size=40), st.integers(0, 2))
def test_rows_that_may_go_anywhere_keep_their_order_among_those_that_may_not(
    wanted: list[int | None], free: int
) -> None:
    open_batch = gathered(
        [(b"%d" % i, None, 4, {} if to is None else {"partition": to}) for i, to in enumerate(wanted)]
    )
    whole = batch(
        value=pa.array([b"%d" % i for i in range(len(wanted))]), partition=pa.array(wanted, pa.int32())
    )
    order: list[dict[int, list[int]]] = [{}, {}]
    for each in open_batch.to_batches(3, lambda: free):
        assert each.records is not None
        values = envelope.decode(each.records, each.columns, each.rows).column("value").to_pylist()
        order[0].setdefault(each.partition, []).extend(map(int, values))
    for partition, rows, _ in cut(to_records(whole, 3).settled(lambda: free), 1 << 20):
        order[1].setdefault(free if partition < 0 else partition, []).extend(
            map(int, rows.column("value").to_pylist())
        )
    for rows_of in order:
        assert all(rows == sorted(rows) for rows in rows_of.values())
        assert {row: to for to, rows in rows_of.items() for row in rows} == {
            i: free if to is None else to for i, to in enumerate(wanted)
        }


def gathered(rows: list[tuple[bytes, bytes | None, int, dict[str, Any]]]) -> OpenBatch:
    out = OpenBatch(None)  # type: ignore[arg-type]
    for i, (value, key, priority, sparse) in enumerate(rows):
        out.values.append(value)
        out.keys.append(key)
        out.priorities.append(priority)
        for name, content in sparse.items():
            out.sparse.setdefault(name, {})[i] = content
    return out


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=5), st.one_of(st.none(), st.binary(max_size=3)), st.integers(0, 9)),
        min_size=1,
        max_size=50,
    )
)
def test_gathered_messages_find_their_batch_again(rows: list[tuple[bytes, bytes | None, int]]) -> None:
    sparse = sparse_columns({"h": b"1"}, None, 4, {"message_id": "m"})[0]
    open_batch = gathered([(*row, sparse if i % 3 == 0 else {}) for i, row in enumerate(rows)])
    batches = open_batch.to_batches(4, lambda: 2)
    open_batch.sending.batches = batches
    decoded = []
    for each in batches:
        assert each.records is not None
        decoded.append(envelope.decode(each.records, each.columns, each.rows).to_pylist())
    for i, (value, key, priority) in enumerate(rows):
        mine, place = open_batch.sending.of_row(i)
        got = decoded[batches.index(mine)][place]
        assert got["value"] == value
        assert got.get("key") == key
        assert (mine.priority_plus_one - 1 if mine.priority_plus_one else got.get("priority", 4)) == priority
        assert got.get("message_id") == ("m" if i % 3 == 0 else None)
        assert got.get("headers") == ([{"key": "h", "value": b"1"}] if i % 3 == 0 else None)
        assert mine.partition == (
            2 if key is None else int(partitions_of(pa.array([key], pa.binary()), 4)[0])
        )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (({"mq.a": b""}, None, 4, {}), InvalidRecords),
        (({1: b""}, None, 4, {}), InvalidRecords),
        (({"a": "text"}, None, 4, {}), InvalidRecords),
        (({"\ud800": b""}, None, 4, {}), InvalidRecords),
        (([("a", b"")] * 1001, None, 4, {}), LimitExceeded),
        ((None, 4, 4, {}), InvalidRecords),
        ((None, True, 4, {}), InvalidRecords),
        ((None, None, 4, {"mesage_id": "x"}), InvalidRecords),
        ((None, None, 4, {"message_id": 5}), InvalidRecords),
        ((None, None, 4, {"created_at": datetime.datetime(2026, 1, 1)}), InvalidRecords),
        ((None, None, 4, {"group_id": "g"}), Unsupported),
    ],
)
def test_refused_in_send(arguments: Any, error: type[MqError]) -> None:
    with pytest.raises(error):
        sparse_columns(*arguments)
