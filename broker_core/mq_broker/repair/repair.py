"""Repairs a data directory: damaged parts go to quarantine, the rest is kept.

The order of the steps lets a crash at any point leave a directory that can be repaired again:

1. Damaged files are copied to quarantine, with a report of what is lost.
2. A new segment is begun after all others. Live rows in damaged segments are copied into it.
3. Two snapshots of the state are written, so that a start needs no older file.
4. The damaged files are removed.

A file is removed only when its copy and its replacement are durable.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mq_broker.core import retention, snapshot
from mq_broker.engine.cleaner import Cleaner
from mq_broker.journal.disk import Disk
from mq_broker.journal.frames import BodyPlace, frame_bytes
from mq_broker.journal.journal import Journal
from mq_broker.journal.settings import SEGMENT_BYTES_DEFAULT, JournalSettings
from mq_broker.journal.snapshots import SnapshotStore
from mq_broker.repair.findings import Finding, lost_rows
from mq_broker.repair.inspection import Inspection
from mq_wire.checksum import crc32
from mq_wire.errors import StorageFailed, StoreFull
from mq_wire.store.v1.store_pb2 import Entry, Staged

REPORT: Final = "report.json"
_COPY_BYTES: Final = 8 << 20
_HEADER_ROOM: Final = 4096


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of a data directory. `aside` makes the quarantine folder of this repair and returns it."""

    journal: Disk
    snapshots: Disk
    aside: Callable[[], Disk]


def repair(folders: Folders, inspection: Inspection, settings: JournalSettings | None = None) -> Disk | None:
    """Repairs the damage that an inspection of the same folders has found. Returns the folder with the
    damaged files, or None if nothing is damaged. The inspection cannot be used afterwards.

    Args:
        folders: of the data directory.
        inspection: of these folders.
        settings: of the journal; by default, new segments are as large as the largest existing one.

    Raises:
        StoreFull: no room for copies, rows or snapshots; repair again when there is room.
        StorageFailed: a write failed; repair again.
    """
    if not inspection.findings:
        return None
    try:
        aside = folders.aside()
        damaged = _set_aside(folders, inspection.findings, aside)
        write_report(aside, inspection.findings, finished=False)
        _carry_on(folders, inspection, settings or _settings(inspection))
        for disk, names in damaged:
            for name in set(names) & set(disk.list_names()):
                disk.remove(name)
            disk.sync_directory()
        write_report(aside, inspection.findings, finished=True)
    except OSError as error:
        raise StorageFailed(
            f"the repair was interrupted: {error}: check the disk and repair again; nothing is lost by that"
        ) from error
    return aside


def _settings(inspection: Inspection) -> JournalSettings:
    sizes = [segment.size for segment in inspection.segments if segment.first_turn is not None]
    return JournalSettings(
        segment_bytes=max(sizes, default=SEGMENT_BYTES_DEFAULT), reserves=0, fill_in_background=False
    )


def _set_aside(folders: Folders, findings: list[Finding], aside: Disk) -> list[tuple[Disk, list[str]]]:
    """Copies every damaged file that exists. Returns their names, by disk."""
    damaged = []
    for disk in (folders.journal, folders.snapshots):
        names = sorted({finding.file for finding in findings} & set(disk.list_names()))
        for name in names:
            _copy(disk, aside, name)
        damaged.append((disk, names))
    aside.sync_directory()
    return damaged


def _copy(source: Disk, target: Disk, name: str) -> None:
    original, copy = source.open(name), target.create(name)
    try:
        size = original.size()
        if size > target.free_bytes():
            raise StoreFull(
                f"no room for a copy of {name} ({size} bytes): "
                "give the data directory more space, or move its quarantine away"
            )
        for position in range(0, size, _COPY_BYTES):
            copy.write_at([original.read_at(position, _COPY_BYTES)], position)
        copy.sync()
    finally:
        original.close()
        copy.close()


def write_report(aside: Disk, findings: list[Finding], *, finished: bool) -> None:
    """Writes the report with the findings, durably. `finished`: whether the repair is complete."""
    content = {
        "findings": [finding.as_json() for finding in findings],
        "finished": finished,
        "lost_rows": sum(len(offsets) for offsets in lost_rows(findings).values()),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    name = f"{REPORT}.new"
    if name in aside.list_names():
        aside.remove(name)
    file = aside.create(name)
    try:
        file.write_at([(json.dumps(content, indent=2) + "\n").encode()], 0)
        file.sync()
    finally:
        file.close()
    aside.rename(name, REPORT)
    aside.sync_directory()


def _carry_on(folders: Folders, inspection: Inspection, settings: JournalSettings) -> None:
    """Writes what the next start needs: the live rows of damaged segments, and two snapshots of the state."""
    broker = inspection.broker
    journal = Journal.open_behind(
        inspection.journal_disk, settings, inspection.journal_id, inspection.position
    )
    try:
        broker.ledger.sink = journal
        now_us = time.time_ns() // 1000
        cleaner = Cleaner(journal)
        for number in sorted(inspection.damaged):
            cleaner.clear(broker, number)
            while cleaner.busy:
                cleaner.step(broker, now_us)
        _move_staged(inspection, journal)
        journal.commit()
        left = inspection.damaged & retention.live_segments(broker.state)
        if left:
            raise StoreFull(
                f"no room for the rows of segments {sorted(left)}: "
                "give the data directory more space and repair again"
            )
        store = SnapshotStore(folders.snapshots, inspection.journal_id, any_state=True)
        for _ in range(2):
            snapshot.mark_all(broker.state)
            parts, _kept = snapshot.take(broker.state, ())
            store.write(journal.position, parts)
    finally:
        journal.close()


def _move_staged(inspection: Inspection, journal: Journal) -> None:
    """Copies the rows of staged sets out of damaged segments. The sets and the order of their rows stay the
    same.
    """
    broker = inspection.broker
    there = [
        (token, frame)
        for token, held in broker.state.staged.items()
        for frame in held.frames
        if frame.place.segment in inspection.damaged
    ]
    for token, frame in there:
        body = journal.body(
            BodyPlace(frame.place.segment, frame.place.position, frame.place.size, frame.place.crc)
        )
        copied = Staged()
        copied.CopyFrom(frame.entry)
        copied.token, copied.moved = token, True
        room = frame_bytes(copied.ByteSize() + _HEADER_ROOM, body.size)
        if not journal.space.fits(room):
            journal.commit()
            journal.reserve(room, for_state=True)
        broker.ledger.record_copy(Entry(staged=copied), body, crc32(body), frame.facets)
