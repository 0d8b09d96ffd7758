"""Rows on their way out, against a list of rows."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from mq_broker.core.commands import Publish, RowsView
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.log import FRAME, FrameIndex
from mq_broker.core.model.selection import Selection
from mq_broker.engine.pieces import pieces
from mq_broker.engine.rows import RowReader, _fitting, _grouped, _header
from mq_broker.journal.recovery import JournalPosition
from mq_wire import envelope
from mq_wire.errors import DataLost, JournalDamaged
from mq_wire.limits import HEADER_BYTES_MAX, RECORDS_BYTES_MAX, RECORDS_ROWS_MAX, RPC_BYTES_MAX
from mq_wire.v1.produce_pb2 import PublishHeader
from spark_tests.support.planting import Bug, Change
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.lists import ListWorld, rows_of
from spark_tests.support.worlds.shared_bytes import publish_shared

WHO = ("a" * 32, 0)
#: Everything was stored before this process began.
END = JournalPosition(1 << 40, 0, 0, 0, 0)


class Stored:
    """One partition with frames of rows, and views of them."""

    def __init__(self, *frames: list[tuple[bytes, int]], keys: frozenset[int] = frozenset()) -> None:
        self.world = ListWorld()
        self.rows: list[tuple[bytes, int]] = []
        for number, rows in enumerate(frames):
            self.world.handle(commands.publish("q", 0, WHO, len(self.rows), rows, keys=number in keys))
            self.rows += rows
        self.destination = self.world.broker.state.by_name["q"]
        self.partition = self.destination.partitions[0]
        self.reader = RowReader(self.world.sink)  # type: ignore[arg-type]

    def view(self, lanes: dict[int, list[int]], **more: Any) -> RowsView:
        selection = Selection.of(
            (priority, BitMap64(lanes[priority])) for priority in sorted(lanes, reverse=True)
        )
        return RowsView("q", 0, b"i" * 16, selection, 100, self.partition.log.index(), **more)


frames_of_rows = st.lists(
    st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=9),
    min_size=1,
    max_size=6,
)


@given(
    frames=frames_of_rows,
    data=st.data(),
    batch_rows_max=st.integers(0, 7),
    columns=st.sampled_from([0, envelope.VALUE]),
)
def test_any_rows_come_in_order_with_all_that_belongs_to_them(
    frames: list[list[tuple[bytes, int]]], data: st.DataObject, batch_rows_max: int, columns: int
) -> None:
    keys = data.draw(st.frozensets(st.integers(0, 5)))
    stored = Stored(*frames, keys=keys)
    wanted = data.draw(
        st.lists(st.booleans(), min_size=len(stored.rows), max_size=len(stored.rows)).filter(any)
    )
    failed = [data.draw(st.integers(0, 2)) for _ in stored.rows]
    lanes: dict[int, list[int]] = {}
    for offset, (_, priority) in enumerate(stored.rows):
        if wanted[offset]:
            lanes.setdefault(priority, []).append(offset)
    handed_out = [data.draw(st.integers(0, 3)) for _ in stored.rows]
    counts = tuple(
        tuple(BitMap64([o for o, times in enumerate(kind) if times >> bit & 1]) for bit in range(2))
        for kind in (failed, handed_out)
    )
    view = stored.view(lanes, delivery_count=3, counts=counts)
    start = data.draw(st.integers(0, view.selection.rows - 1))
    expected = [offset for priority in sorted(lanes, reverse=True) for offset in lanes[priority]]
    batches = [*stored.reader.read(view, columns, batch_rows_max, start)]
    rows = rows_of(batches, 0)
    assert [(row.number - 100, row.offset) for row in rows] == [*enumerate(expected)][start:]
    for row in rows:
        assert (row.value, row.priority) == stored.rows[row.offset]
        assert (row.delivery_count, row.producer, row.sequence) == (
            3 + failed[row.offset] + handed_out[row.offset],
            WHO[0],
            row.offset,
        )
    assert all(header.rows <= batch_rows_max for header, _ in batches) or not batch_rows_max
    for header, records in batches:
        keyed = header.columns & envelope.KEY
        assert not (columns and keyed)
        batch = envelope.decode(records, header.columns, header.rows)
        offsets = (
            np.frombuffer(header.offsets, "<i8")
            if header.offsets
            else header.base_offset + np.arange(header.rows)
        )
        for at, offset in enumerate(offsets.tolist() if keyed else []):
            frame = next(n for n, rows in enumerate(frames) if offset < sum(map(len, frames[: n + 1])))
            assert batch.column("key")[at].as_py() == (stored.rows[offset][0] if frame in keys else None)


def test_a_whole_frame_leaves_as_the_bytes_that_came() -> None:
    stored = Stored([(b"a", 4), (b"b", 4)], [(b"c", 4)])
    sent = [body for _, body, _ in stored.world.sink.entries if body is not None]
    batches = [*stored.reader.read(stored.view({4: [0, 1, 2]}), batch_rows_max=2)]
    assert [records.to_pybytes() for _, records in batches] == [body.to_pybytes() for body in sent]


def test_a_whole_frame_is_cut_down_to_the_columns_that_are_wanted() -> None:
    stored = Stored([(b"a", 4), (b"b", 4)], keys=frozenset({0}))
    ((header, records),) = stored.reader.read(stored.view({4: [0, 1]}), columns=envelope.VALUE)
    assert header.columns == envelope.VALUE
    assert envelope.decode(records, header.columns, 2).schema.names == ["value"]


def test_the_large_rows_of_many_frames_do_not_make_one_huge_batch() -> None:
    large = RECORDS_BYTES_MAX // 3
    frames = [[(bytes([n]) * large, 9), *((b"", 0) for _ in range(200))] for n in range(5)]
    stored = Stored(*frames)
    batches = [*stored.reader.read(stored.view({9: [n * 201 for n in range(5)]}))]
    assert [row.value[:1] for row in rows_of(batches, 0)] == [bytes([n]) for n in range(5)]
    assert [header.rows for header, _ in batches] == [2, 2, 1]


def test_columns_that_only_some_rows_have_do_not_make_a_batch_too_large() -> None:
    stored = Stored([(b"", 4)] * 100_000)
    schema = envelope.schema_of(envelope.ALL_COLUMNS & ~envelope.NOT_YET & ~envelope.PRIORITY)
    wide = pa.RecordBatch.from_arrays(
        [pa.array([b"v"] if f.name == "value" else [None], f.type) for f in schema], schema=schema
    )
    records = envelope.encode(wide)
    header = PublishHeader(
        destination="q",
        producer_id=WHO[0],
        first_sequence=100_000,
        rows=1,
        columns=envelope.columns_of(schema),
    )
    stored.world.handle(Publish(header, records, zlib.crc32(records), Facets(4)))
    batches = [*stored.reader.read(stored.view({4: [*range(100_001)]}))]
    assert max(records.size for _, records in batches) <= RECORDS_BYTES_MAX
    assert [(header.rows, header.columns) for header, _ in batches] == [
        (100_000, envelope.VALUE),
        (1, envelope.columns_of(schema)),
    ]


def rot_last(stored: Stored, before: bytes, after: bytes) -> None:
    header, body, place = stored.world.sink.entries[-1]
    assert body is not None
    stored.world.sink.entries[-1] = (header, pa.py_buffer(body.to_pybytes().replace(before, after)), place)


def test_rotten_bytes_never_leave() -> None:
    stored = Stored([(b"good", 4)], [(b"evil", 4)])
    rot_last(stored, b"evil", b"rot!")
    reading = stored.reader.read(stored.view({4: [0, 1]}), batch_rows_max=1)
    assert next(reading)[0].rows == 1
    with pytest.raises(JournalDamaged):
        next(reading)


def test_a_frame_that_rots_between_two_of_its_lanes_is_found() -> None:
    """It was whole when its first lane left; its pages were dropped, and came back from the disk as something
    else.
    """
    stored = Stored([(b"evil", 9), (b"evil", 4)])
    assert len([*stored.reader.read(stored.view({9: [0]}))]) == 1
    rot_last(stored, b"evil", b"rot!")
    with pytest.raises(JournalDamaged):
        [*stored.reader.read(stored.view({4: [1]}))]


def test_a_frame_that_rots_while_the_rows_before_it_are_taken_is_found() -> None:
    """How large its rows are was looked up before; they are too many for one batch with the others."""
    large = RECORDS_BYTES_MAX // 3
    stored = Stored(
        *[[(letter * large, 9), *((b"", 0) for _ in range(200))] for letter in (b"a", b"b", b"c")]
    )
    reading = stored.reader.read(stored.view({9: [0, 201, 402]}))
    assert next(reading)[0].rows == 2
    rot_last(stored, b"c" * large, b"x" * large)
    with pytest.raises(JournalDamaged):
        next(reading)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=8), st.data())
def test_pieces_are_the_rows_of_each_frame(spans: list[int], data: st.DataObject) -> None:
    stored = Stored(*[[(b"", 4)] * span for span in spans])
    wanted = sorted(data.draw(st.sets(st.integers(0, sum(spans) - 1), min_size=1)))
    found: list[int] = []
    index = stored.partition.log.index()
    for piece in pieces(index, 4, BitMap64(wanted)):
        inside = np.arange(piece.start, piece.start + piece.rows) if piece.indices is None else piece.indices
        offsets = (
            np.arange(piece.base_offset, piece.base_offset + piece.rows)
            if piece.offsets is None
            else piece.offsets
        )
        assert (int(index.bases[piece.frame]) + inside == offsets).all()
        assert inside.max() < spans[piece.frame]
        found += offsets.tolist()
    assert found == wanted


def test_a_scattered_view_is_spelled_out_in_parts() -> None:
    """Whoever asks for millions of scattered rows and does not read them must not hold their offsets in the
    broker's memory.
    """
    frames = np.zeros(1000, FRAME)
    frames["base"], frames["span"] = np.arange(1000, dtype=np.uint64) * 8192, 8192
    index = FrameIndex(frames["base"].copy(), frames, [""], {})
    offsets = BitMap64(np.arange(0, 8192 * 1000, 2, dtype=np.uint64))
    found = pieces(index, 4, offsets)
    first = next(found)
    tracemalloc.start()
    try:
        second = next(found)
        rest = sum(piece.rows for piece in found)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert first.rows + second.rows + rest == len(offsets)
    assert second.indices is not None
    assert peak_bytes < 12 << 20


def header_of(view: RowsView, reader: RowReader) -> int:
    """Reads all of a view; returns the bytes of its largest header."""
    largest = delivery = 0
    for header, records in reader.read(view):
        assert header.ByteSize() <= HEADER_BYTES_MAX
        assert header.ByteSize() + records.size + 1024 <= RPC_BYTES_MAX
        assert header.first_delivery == view.first_delivery + delivery
        delivery += header.rows
        largest = max(largest, header.ByteSize())
    assert delivery == view.selection.rows
    return largest


@pytest.mark.slow
def test_headers_fit_where_each_row_failed_as_often_as_no_neighbour() -> None:
    """Runs of one row each: without a bound their header alone fills a message, and the queue is blocked for
    good.
    """
    stored = Stored([(b"v" * 24, 4)] * RECORDS_ROWS_MAX)
    rows = np.arange(RECORDS_ROWS_MAX, dtype=np.uint64)
    attempts = (*(BitMap64(rows[rows % 200 > level]) for level in range(0, 200, 40)), BitMap64(rows[::2]))
    view = stored.view({4: rows.tolist()}, counts=(attempts,))
    largest = header_of(view, stored.reader)
    assert largest > HEADER_BYTES_MAX // 6


@pytest.mark.slow
def test_headers_fit_where_each_row_has_a_producer_of_its_own() -> None:
    world = ListWorld()
    names = [f"{number:0300d}" for number in range(17_000)]
    for name in names:
        world.handle(commands.publish("q", 0, (name, 0), 0, [(b"", 4)]))
    index = world.broker.state.by_name["q"].partitions[0].log.index()
    selection = Selection.of([(4, BitMap64(range(len(names))))])
    largest = header_of(RowsView("q", 0, b"i" * 16, selection, 0, index), RowReader(world.sink))  # type: ignore[arg-type]
    assert largest > HEADER_BYTES_MAX // 3


def shared(values: list[bytes]) -> Stored:
    """Rows whose columns share bytes, in two lanes, as a start finds them."""
    stored = Stored([(b"", 4)])
    command = publish_shared(values, "b" * 32, np.array([4, 9] * len(values), np.int8)[: len(values)])
    stored.world.handle(command)
    stored.reader = RowReader(stored.world.sink, END)  # type: ignore[arg-type]
    return stored


@pytest.mark.parametrize("offsets", [[*range(1, 13)], [*range(1, 13, 2)], [*range(7)]])
@pytest.mark.parametrize("columns", [0, envelope.KEY | envelope.VALUE])
def test_columns_that_share_bytes_are_cut_to_what_a_message_holds(offsets: list[int], columns: int) -> None:
    values = [bytes([97 + at]) * (340 << 10) for at in range(12)]
    stored = shared(values)
    batches = [*stored.reader.read(stored.view({4: offsets}), columns)]
    assert max(records.size for _, records in batches) <= RECORDS_BYTES_MAX
    assert all(
        envelope.decode(records, header.columns, header.rows) is not None for header, records in batches
    )
    rows = rows_of(batches, 0)
    assert [row.offset for row in rows] == offsets
    assert [row.value for row in rows] == [values[offset - 1] if offset else b"" for offset in offsets]
    assert [header.first_delivery for header, _ in batches] == [
        *np.cumsum([100, *(header.rows for header, _ in batches[:-1])])
    ]


def test_uncut_they_would_be_larger_than_any_message() -> None:
    cutting = Change(
        RowReader._batches, "elif batch.nbytes > _ROW_BYTES_MAX and piece.rows > 1:", "elif False:"
    )
    stored = shared([b"x" * (340 << 10)] * 12)
    with Bug("uncut", "columns that share bytes leave together", (cutting,), "none").planted():
        batches = [*stored.reader.read(stored.view({4: [*range(1, 13)]}))]
    assert max(records.size for _, records in batches) > RPC_BYTES_MAX


def test_small_rows_that_share_bytes_leave_whole_but_apart() -> None:
    stored = shared([b"x" * 100] * 3)
    ((header, records),) = stored.reader.read(stored.view({4: [1, 2, 3]}))
    assert envelope.decode(records, header.columns, 3).column("type").to_pylist() == ["x" * 100] * 3


def test_a_row_that_no_message_holds_is_lost_and_its_frame_is_named() -> None:
    stored = shared([b"y" * 100, b"x" * (RECORDS_BYTES_MAX - (4 << 10))])
    view = stored.view({4: [1, 2]})
    with pytest.raises(DataLost, match="share bytes"):
        [*stored.reader.read(view)]
    assert stored.reader.damaged_frames(view) == [1]


def test_what_came_since_the_start_leaves_as_it_is() -> None:
    stored = Stored([(b"a", 4)])
    reader = RowReader(stored.world.sink, JournalPosition(0, 0, 0, 0, 0))  # type: ignore[arg-type]
    ((_, records),) = reader.read(stored.view({4: [0]}))
    sent = stored.world.sink.entries[-1][1]
    assert sent is not None
    assert records.to_pybytes() == sent.to_pybytes()


@given(names=st.integers(1, 300), rows=st.integers(1, 4000), failed=st.booleans())
@settings(max_examples=10, deadline=None)
def test_a_header_is_no_larger_than_there_is_room_for(names: int, rows: int, failed: bool) -> None:
    """Each row of another producer with a long name, or every other one with failed attempts."""
    frames = np.zeros(rows, FRAME)
    frames["base"], frames["span"], frames["producer"], frames["size"] = (
        np.arange(rows),
        1,
        np.arange(rows),
        64,
    )
    index = FrameIndex(frames["base"].copy(), frames, ["n" * names + str(at) for at in range(rows)], {})
    attempts = (BitMap64(range(0, rows, 2)),) if failed else ()
    view = RowsView(
        "q", 0, b"i" * 16, Selection.of([(4, BitMap64(range(rows)))]), 0, index, counts=(attempts,)
    )
    for group in _grouped(view, RECORDS_ROWS_MAX, 0):
        for fitting in _fitting(view, group):
            assert _header(view, fitting, envelope.VALUE, 0).ByteSize() <= HEADER_BYTES_MAX


def test_rows_that_each_failed_on_their_own_leave_in_batches_whose_header_fits() -> None:
    stored = Stored([(b"", 4)] * 100_000)
    rows = BitMap64(range(0, 100_000, 2))
    attempts = tuple(rows for _ in range(3))
    batches = [*stored.reader.read(stored.view({4: [*range(100_000)]}, counts=(attempts,)))]
    assert sum(header.rows for header, _ in batches) == 100_000
    assert max(header.ByteSize() for header, _ in batches) <= HEADER_BYTES_MAX
