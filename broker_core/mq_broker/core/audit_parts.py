"""The duplicate audit of a partition as a part of a snapshot, and back."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np

from mq_broker.core.model.audit import RANGE_NUMBERS, Audit, ProducerMark, Range
from mq_broker.core.stored import newer
from mq_wire.store.v1 import store_pb2 as store

#: Producers of one element: their ranges take 2 MB at most.
_PRODUCERS: Final = 256
#: The numbers of a range, in the order of `Range`.
_COLUMNS: Final = ("range_first", "range_rows", "range_crc", "range_base", "range_time_us")


def export(audit: Audit) -> Iterator[bytes]:
    """Yields the audit as elements of its part. Whole lists at a time: all other calls wait meanwhile."""
    marks = audit.marks()
    while some := list(islice(marks, _PRODUCERS)):
        known = [mark for _, mark in some]
        numbers = array("q", b"".join(mark.table.tobytes() for mark in known)).tolist()
        columns: dict[str, Any] = {name: numbers[at::RANGE_NUMBERS] for at, name in enumerate(_COLUMNS)}
        table = store.AuditTable(
            producer_ids=[producer for producer, _ in some],
            epochs=[mark.epoch for mark in known],
            next_sequences=[mark.next_sequence for mark in known],
            rows=[mark.rows for mark in known],
            last_offsets=[mark.last_offset for mark in known],
            used=[mark.used for mark in known],
            ranges=[len(mark.table) // RANGE_NUMBERS for mark in known],
            **columns,
        )
        yield store.LogPart(audit_tables=[table]).SerializeToString()


def restore(audit: Audit, part: store.LogPart) -> None:
    """Takes over what one piece of a part has. `AuditMemory.restore` must follow when all are there.

    Raises:
        DataDirectoryUnusable: a newer version wrote it.
    """
    for known in part.audits:  # formats 1 and 2
        mark = ProducerMark(
            known.epoch, known.next_sequence, known.rows, known.last_offset if known.rows else -1
        )
        columns = (
            known.range_first,
            known.range_rows,
            known.range_crc,
            known.range_base,
            known.range_time_us,
        )
        for row in zip(*columns, strict=True):
            mark.note(Range(*row))
        audit.restore(known.producer_id, mark)
    for table in part.audit_tables:
        _restore_table(audit, table)


def _restore_table(audit: Audit, table: store.AuditTable) -> None:
    columns = [np.array(getattr(table, name), np.int64) for name in _COLUMNS]
    ranges_in = sum(table.ranges)
    if any(len(column) != ranges_in for column in columns):
        sizes = ", ".join(str(len(column)) for column in columns)
        raise newer(f"the snapshot has {ranges_in} ranges of audits in lists of {sizes} numbers")
    numbers = array("q", np.column_stack(columns).tobytes())
    at = 0
    for producer, *known, ranges in zip(
        table.producer_ids,
        table.epochs,
        table.next_sequences,
        table.rows,
        table.last_offsets,
        table.used,
        table.ranges,
        strict=True,
    ):
        mark = ProducerMark(*known)
        mark.table = numbers[at : at + ranges * RANGE_NUMBERS]
        at += ranges * RANGE_NUMBERS
        audit.restore(producer, mark)
