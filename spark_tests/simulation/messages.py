"""Marked messages as the broker takes and gives them, built and read without the price of a whole client."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_wire import envelope
from mq_wire.limits import PRIORITY_DEFAULT
from mq_wire.v1.common_pb2 import RowsHeader
from pyspark_mq.client.records import Piece
from spark_tests.oracle.marked import Ids, Rows, checked_rows, words_of

#: Words of a value: the id, the priority and two that follow from both.
WORDS: Final = 4
_VALUE_BYTES: Final = WORDS * 8
_NONE: Final = np.empty(0, np.int64)


class _Template(NamedTuple):
    """Records of so many rows, and where in them the values and the priorities lie."""

    content: bytes
    values_at: int
    priorities_at: int


@cache
def _template(rows: int, mixed: bool) -> _Template:
    ends = np.arange(0, (rows + 1) * _VALUE_BYTES, _VALUE_BYTES, dtype=np.int32)
    values = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(bytes(rows * _VALUE_BYTES))]
    )
    columns = envelope.VALUE | (envelope.PRIORITY if mixed else 0)
    arrays = [values, pa.array([0] * rows, pa.int8())][: 1 + mixed]
    records = envelope.encode(pa.RecordBatch.from_arrays(arrays, schema=envelope.schema_of(columns)))
    batch = envelope.decode_trusted(records, columns)
    places = [
        batch.column(0).buffers()[2].address,
        batch.column(1).buffers()[1].address if mixed else records.address,
    ]
    return _Template(records.to_pybytes(), places[0] - records.address, places[1] - records.address)


def piece_of(ids: Ids, priorities: NDArray[np.int64]) -> Piece:
    """Returns messages for one partition as they travel: a column of priorities only where they differ."""
    rows = len(ids)
    mixed = bool((priorities != priorities[0]).any())
    template = _template(rows, mixed)
    content = bytearray(template.content)
    content[template.values_at : template.values_at + rows * _VALUE_BYTES] = words_of(
        ids, priorities, WORDS
    ).tobytes()
    columns, uniform = envelope.VALUE, 0
    if mixed:
        columns |= envelope.PRIORITY
        content[template.priorities_at : template.priorities_at + rows] = priorities.astype(np.int8).tobytes()
    elif priorities[0] != PRIORITY_DEFAULT:
        uniform = int(priorities[0]) + 1
    return Piece(rows, columns, uniform, pa.py_buffer(bytes(content)), zlib.crc32(content))


def lanes_of(piece: Piece) -> int | NDArray[np.int8]:
    """Returns the priorities of a piece as the core takes them: one number, or one a row."""
    if piece.columns & envelope.PRIORITY:
        assert piece.records is not None
        at = _template(piece.rows, mixed=True).priorities_at
        return np.frombuffer(piece.records, np.int8, piece.rows, at)
    return piece.priority_plus_one - 1 if piece.priority_plus_one else PRIORITY_DEFAULT


def rows_of(batches: Iterable[tuple[RowsHeader, pa.Buffer]]) -> Rows:
    """Returns what delivered batches say, checked against themselves."""
    return Rows.joined([_rows(header, records) for header, records in batches])


def counts_of(batches: Iterable[tuple[RowsHeader, pa.Buffer]]) -> NDArray[np.int64]:
    """Returns the delivery count of each row."""
    counts = [np.repeat(np.array(header.delivery_count, np.int64), header.run_rows) for header, _ in batches]
    return np.concatenate([_NONE, *counts])


def _rows(header: RowsHeader, records: pa.Buffer) -> Rows:
    rows = header.rows
    assert sum(header.run_rows) == rows, f"runs of {list(header.run_rows)} rows in a delivery of {rows}"
    values = envelope.decode(records, header.columns, rows).column("value")
    ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + rows + 1]
    assert ends[-1] - ends[0] == rows * _VALUE_BYTES, "values of another length than any that was sent"
    content = np.frombuffer(values.buffers()[2], np.uint8)[ends[0] : ends[-1]]
    offsets = np.frombuffer(header.offsets, "<i8") if header.offsets else header.base_offset + np.arange(rows)
    assert len(offsets) == rows, f"{len(offsets)} offsets for {rows} rows"
    priorities = (
        np.repeat(header.priority, header.run_rows)
        if len(header.run_rows) > 1
        else np.full(rows, header.priority[0])
    )
    return checked_rows(content, np.full(rows, header.partition), offsets, priorities, WORDS)
