"""The duplicate audit of a partition as a part of a snapshot, and back."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Final

from mq_broker.core.audit import Audit, ProducerMark, Range
from mq_broker.core.stored import newer
from mq_wire.store.v1 import store_pb2 as store

#: Producers of one element: their ranges take 2.6 MB at most.
_PRODUCERS: Final = 256
_RANGE_BYTES: Final = 40


def export(audit: Audit) -> Iterator[bytes]:
    """Yields the audit as elements of its part. Whole lists at a time: all other calls wait meanwhile."""
    marks = audit.marks()
    while some := list(islice(marks, _PRODUCERS)):
        known = [mark for _, mark in some]
        table = store.AuditTable(
            producer_ids=[producer for producer, _ in some],
            epochs=[mark.epoch for mark in known],
            next_sequences=[mark.next_sequence for mark in known],
            rows=[mark.rows for mark in known],
            last_offsets=[mark.last_offset for mark in known],
            used=[mark.used for mark in known],
            ranges=[len(mark.table) * mark.table.itemsize // _RANGE_BYTES for mark in known],
            range_table=b"".join(mark.table.tobytes() for mark in known),
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
    ranges_in, size = sum(table.ranges), len(table.range_table)
    if size != ranges_in * _RANGE_BYTES:
        raise newer(f"the snapshot has {ranges_in} ranges of audits in {size} bytes, not {_RANGE_BYTES} each")
    at = 0
    for producer, *numbers, ranges in zip(
        table.producer_ids,
        table.epochs,
        table.next_sequences,
        table.rows,
        table.last_offsets,
        table.used,
        table.ranges,
        strict=True,
    ):
        mark = ProducerMark(*numbers)
        mark.table = array("q", table.range_table[at : at + ranges * _RANGE_BYTES])
        at += ranges * _RANGE_BYTES
        audit.restore(producer, mark)
