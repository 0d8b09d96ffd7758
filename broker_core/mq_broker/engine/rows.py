"""Rows on their way out: which slices of which frames, and record batches of them, without touching a row.

A frame that leaves whole goes out as the bytes that came in. Only what is scattered (mixed priorities) or
merged (small frames) is decoded and written anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from mq_broker.core.commands import RowsView
from mq_broker.core.model.counts import counts_of
from mq_broker.engine.pieces import Piece, cut, joined, offsets_of
from mq_broker.journal.frames import BodyPlace
from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import JournalPosition
from mq_wire import envelope
from mq_wire.errors import DataLost, JournalDamaged
from mq_wire.limits import HEADER_BYTES_MAX, RECORDS_BYTES_MAX, RECORDS_ROWS_MAX
from mq_wire.v1.common_pb2 import RowsHeader

#: Above this a merged batch is not filled up any further: room is left for Arrow's padding and metadata.
_MERGED_BYTES: Final = RECORDS_BYTES_MAX - (256 << 10)
#: What one null takes at most, in a column of any of the envelope's types: a timestamp and its share of the
#: validity bits.
_NULL_BYTES: Final = 9
#: One row, before Arrow adds its metadata. Version 0.1.0 stored batches whose columns share bytes: apart they
#: may take more.
_ROW_BYTES_MAX: Final = RECORDS_BYTES_MAX - (4 << 10)
#: What a header takes at most: for a producer beside its name, for an offset, for a run (six numbers), and
#: for the rest.
_NAME_BYTES: Final = 4
_OFFSET_BYTES: Final = 8
_RUN_BYTES: Final = 40
_FIXED_BYTES: Final = 1024


class RowReader:
    """Reads views from the journal's mapped segments. Safe for many threads.

    A body's checksum is verified each time it is used, not once: a mapped page may leave memory in between
    and come back rotten, and Arrow offsets that nobody checked can end the process.

    Args:
        journal: that has the frames.
        recovered: where the journal ended when this process began. Frames before that may have been stored by
            a version that took what clients refuse now: those leave written anew.
    """

    def __init__(self, journal: Journal, recovered: JournalPosition | None = None) -> None:
        self._journal = journal
        self._recovered = (recovered.segment, recovered.position) if recovered is not None else (0, 0)

    def read(
        self, view: RowsView, columns: int = 0, batch_rows_max: int = 0, start_row: int = 0
    ) -> Iterator[tuple[RowsHeader, pa.Buffer]]:
        """Yields (header, Arrow IPC record batch) pairs of the view's rows in order.

        Args:
            view: pinned rows.
            columns: envelope columns wanted; 0 = all. The value always comes along, since no envelope is
                without.
            batch_rows_max: rows of one batch; 0 = up to RECORDS_ROWS_MAX.
            start_row: begin behind so many rows.

        Raises:
            JournalDamaged, DataLost: rotten bytes, or a segment that is not there; nothing of them leaves.
                `damaged_frames` says which.
        """
        wanted = (columns or envelope.ALL_COLUMNS) | envelope.VALUE
        limit = min(batch_rows_max or RECORDS_ROWS_MAX, RECORDS_ROWS_MAX)
        delivery = view.first_delivery + start_row
        for group in _grouped(view, limit, start_row):
            for fitting in _fitting(view, group):
                for header, records in self._batches(view, fitting, wanted, delivery):
                    delivery += header.rows
                    yield header, records

    def damaged_frames(self, view: RowsView) -> list[int]:
        """Returns the base offsets of the frames of a view whose bytes are not those that were stored, or are
        not there at all.

        And those with a row that no message can hold.
        """
        index = view.frames
        found: list[int] = []
        for _, offsets in view.selection.lanes:
            first, counts = index.rows_per_frame(offsets)
            for at in (np.flatnonzero(counts) + first).tolist():
                try:
                    body = self._body(index.frames[at])
                    if not self._may_leave(index.frames[at], body):
                        _check_rows(envelope.decode_trusted(body, int(index.frames[at]["columns"])))
                except (JournalDamaged, DataLost):
                    found.append(int(index.bases[at]))
        return sorted(set(found))

    def _batches(
        self, view: RowsView, group: list[Piece], wanted: int, delivery: int
    ) -> Iterator[tuple[RowsHeader, pa.Buffer]]:
        frames = view.frames.frames
        if len(group) == 1:
            piece = group[0]
            frame = frames[piece.frame]
            held = int(frame["columns"])
            # The priority column may stay: readers take priorities from the header.
            if piece.rows == self._stored_rows(view, piece) and not held & ~(wanted | envelope.PRIORITY):
                body = self._body(frame)
                if self._may_leave(frame, body):
                    yield _header(view, group, held, delivery), body
                    return
        # Groups are made by mean row sizes: the large rows of several frames, or columns that only some of
        # them have, may go beyond. So may rows of one frame alone whose columns share bytes: those are cut
        # until they fit.
        merged = _Merged()
        left = group[::-1]
        while left:
            piece = left.pop()
            batch = self._decoded(view, piece, wanted)
            if merged.pieces and merged.bytes_with(batch) > _MERGED_BYTES:
                yield _header(view, merged.pieces, merged.columns, delivery), merged.encode()
                delivery += merged.rows
                merged = _Merged()
                left.append(piece)  # decoded once more: who took the rows may have been slow
            elif batch.nbytes > _ROW_BYTES_MAX and piece.rows > 1:
                left += reversed([half for half in cut(piece, piece.rows // 2) if half is not None])
            else:
                if batch.nbytes > _ROW_BYTES_MAX:
                    _check_rows(batch)
                merged.add(piece, batch)
        yield _header(view, merged.pieces, merged.columns, delivery), merged.encode()

    def _may_leave(self, frame: np.void, body: pa.Buffer) -> bool:
        """Whether any client takes the bytes of a frame as they are."""
        return (int(frame["segment"]), int(frame["position"])) >= self._recovered or envelope.is_plain(
            body, int(frame["columns"])
        )

    @staticmethod
    def _stored_rows(view: RowsView, piece: Piece) -> int:
        kept = view.frames.sparse.get(int(view.frames.bases[piece.frame]))
        return int(view.frames.frames[piece.frame]["span"]) if kept is None else len(kept)

    def _body(self, frame: np.void) -> pa.Buffer:
        place = BodyPlace(
            int(frame["segment"]), int(frame["position"]), int(frame["size"]), int(frame["crc"])
        )
        return self._journal.body(place)

    def _decoded(self, view: RowsView, piece: Piece, wanted: int) -> pa.RecordBatch:
        frame = view.frames.frames[piece.frame]
        held = int(frame["columns"])
        batch = envelope.decode_trusted(self._body(frame), held)
        kept = held & wanted & ~envelope.PRIORITY
        if kept != held:
            batch = batch.select(envelope.schema_of(kept).names)
        if piece.indices is not None:
            return batch.take(pa.array(piece.indices))
        return batch.slice(piece.start, piece.rows)


def _check_rows(batch: pa.RecordBatch) -> None:
    """Refuses a row that no message can hold. The batch must have come from bytes that are larger than they
    look.
    """
    for at in range(batch.num_rows if batch.nbytes > _ROW_BYTES_MAX else 0):
        size = batch.slice(at, 1).nbytes
        if size > _ROW_BYTES_MAX:
            raise DataLost(
                f"its columns share bytes on the disk, apart they take {size}, over the limit of "
                f"{RECORDS_BYTES_MAX}"
            )


class _Merged:
    """Rows of several frames that will be one record batch, with all columns that any of them has; nulls
    stand where one lacks it.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.columns = self.rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._bytes = self._values = 0

    def bytes_with(self, batch: pa.RecordBatch) -> int:
        """Returns how large it would be at most with `batch`."""
        columns = (self.columns | envelope.columns_of(batch.schema)).bit_count()
        nulls = columns * (self.rows + batch.num_rows) - self._values - batch.num_columns * batch.num_rows
        size: int = self._bytes + batch.nbytes + nulls * _NULL_BYTES
        return size

    def add(self, piece: Piece, batch: pa.RecordBatch) -> None:
        self.pieces.append(piece)
        self._batches.append(batch)
        self.columns |= envelope.columns_of(batch.schema)
        self.rows += batch.num_rows
        self._bytes += batch.nbytes
        self._values += batch.num_columns * batch.num_rows

    def encode(self) -> pa.Buffer:
        if len(self._batches) == 1:
            return envelope.encode(self._batches[0])
        schema = envelope.schema_of(self.columns)
        table = pa.Table.from_batches([_padded(batch, schema) for batch in self._batches])
        return envelope.encode(table.combine_chunks().to_batches()[0])


def _padded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.num_columns == len(schema):
        return batch
    has = batch.schema.names
    columns = [batch.column(f.name) if f.name in has else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _grouped(view: RowsView, limit: int, start_row: int) -> Iterator[list[Piece]]:
    """Yields the pieces of one record batch after the other. A piece that fits no more is cut."""
    group: list[Piece] = []
    rows, size = 0, 0.0
    selection = view.selection.slice(start_row, view.selection.rows)
    for whole in joined(view.frames, selection.lanes):
        frame = view.frames.frames[whole.frame]
        mean = int(frame["size"]) / max(int(frame["rows"]), 1)
        piece: Piece | None = whole
        while piece is not None:
            if group and (rows + piece.rows > limit or size + piece.rows * mean > _MERGED_BYTES):
                yield group
                group, rows, size = [], 0, 0.0
            head, piece = cut(piece, limit)
            group.append(head)
            rows, size = rows + head.rows, size + head.rows * mean
    if group:
        yield group


def _fitting(view: RowsView, group: list[Piece]) -> Iterator[list[Piece]]:
    """Yields the group in as few halves as have headers of `HEADER_BYTES_MAX`, so that what is delivered
    always fits into one message.
    """
    producers = {int(view.frames.frames[piece.frame]["producer"]) for piece in group}
    names = sum(len(view.frames.producers[number].encode()) + _NAME_BYTES for number in producers)
    rows = sum(piece.rows for piece in group)
    if names + rows * (_OFFSET_BYTES + _RUN_BYTES) + _FIXED_BYTES <= HEADER_BYTES_MAX or rows == 1:
        yield group
        return
    if (
        names
        + rows * _OFFSET_BYTES
        + sum(len(_counts(view, piece)) for piece in group) * _RUN_BYTES
        + _FIXED_BYTES
        <= HEADER_BYTES_MAX
    ):
        yield group
        return
    head: list[Piece] = []
    left, tail = rows // 2, group
    while left:
        first, rest = cut(tail[0], left)
        head.append(first)
        left -= first.rows
        tail = tail[1:] if rest is None else [rest, *tail[1:]]
    yield from _fitting(view, head)
    yield from _fitting(view, tail)


def _header(view: RowsView, group: list[Piece], columns: int, delivery: int) -> RowsHeader:
    frames = view.frames.frames
    rows = sum(piece.rows for piece in group)
    header = RowsHeader(
        partition=view.partition, rows=rows, columns=columns, log_id=view.log_id, first_delivery=delivery
    )
    base = group[0].base_offset
    expected = base
    for piece in group:
        if piece.offsets is not None or piece.base_offset != expected:
            header.offsets = np.concatenate([offsets_of(p) for p in group]).astype("<i8").tobytes()
            break
        expected += piece.rows
    header.base_offset = base
    numbers: dict[int, int] = {}
    for piece in group:
        frame = frames[piece.frame]
        producer = int(frame["producer"])
        if producer not in numbers:
            numbers[producer] = len(numbers)
            header.producers.append(view.frames.producers[producer])
        for run_rows, count in _counts(view, piece):
            header.run_rows.append(run_rows)
            header.append_time_us.append(int(frame["time_us"]))
            header.priority.append(piece.priority)
            header.delivery_count.append(count)
            header.producer.append(numbers[producer])
            header.sequence_shift.append(int(frame["shift"]))
    return header


def _counts(view: RowsView, piece: Piece) -> list[tuple[int, int]]:
    """Returns (rows, delivery count) runs of a piece: 1 and what was counted with its range, failures, and
    how often it was handed out.
    """
    low = piece.base_offset
    high = low + piece.rows if piece.offsets is None else int(piece.offsets[-1]) + 1
    found = [bits for bits in view.counts if any(known.range_cardinality(low, high) for known in bits)]
    if not found:
        return [(piece.rows, view.delivery_count)]
    offsets = offsets_of(piece)
    counts = sum((counts_of(bits, offsets) for bits in found), np.full(len(offsets), view.delivery_count))
    edges = np.flatnonzero(np.diff(counts)) + 1
    starts = np.concatenate(([0], edges))
    return list(zip(np.diff(np.append(starts, piece.rows)).tolist(), counts[starts].tolist(), strict=True))
