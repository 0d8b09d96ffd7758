"""Reads everything in a data directory, damaged or not: the findings, and the state as far as it is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import numpy as np

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.commands import Settings
from mq_broker.journal import frames
from mq_broker.journal.disk import SECTOR_BYTES_SMALL, Disk
from mq_broker.journal.frames import Reading
from mq_broker.journal.pool import SegmentPool
from mq_broker.journal.recovery import BEGINNING, JournalPosition, Turn
from mq_broker.journal.segments import FIRST_POSITION, Segment, Segments, segment_name, size_in
from mq_broker.journal.settings import JournalSettings
from mq_broker.repair.aftermath import Aftermath
from mq_broker.repair.findings import Finding
from mq_broker.repair.gaps import Gaps
from mq_broker.repair.labels import relabel_segments, relabel_snapshots
from mq_broker.repair.replay import Replay
from mq_broker.repair.salvage import LeftEntry, SalvageReader, SnapshotSalvage, Stretch, is_whole
from mq_wire.errors import JournalDamaged

#: The inspection forgets no producers and no queries; it leaves this to the running broker.
_SETTINGS: Final = Settings(
    anonymous_producers_max=1 << 31,
    anonymous_producers_total_max=1 << 31,
    queries_max=1 << 31,
    query_ends_max=1 << 31,
)


class _NoSink:
    """A sink for a broker that decides nothing."""

    def add(self, header: bytes, body: object, body_crc: int | None) -> None:
        raise AssertionError("an inspection writes nothing")


@dataclass(slots=True)
class _Pending:
    """A stretch that is either unused or damaged, which is not known yet. `tail`: no whole turn follows it in
    its segment.
    """

    stretch: Stretch
    tail: bool


class Inspection:
    """Reads everything when it is made, and changes nothing. It takes as much memory as the state of a
    broker.

    Attributes:
        findings: each damage, in the order of the files.
        broker: has the state, without the lost rows.
        segments: of the journal, under their own numbers.
        position: where a repair goes on: behind the last turn and generation of which there is any trace.
        damaged: numbers of segments with any damage.

    Raises:
        JournalDamaged: there is no whole snapshot, and the journal's beginning is gone: there is no state to
            start from.
        DataDirectoryUnusable: files of another journal or of a newer version.
    """

    def __init__(self, journal_disk: Disk, snapshot_disk: Disk, cluster_id: bytes, journal_id: UUID) -> None:
        self.journal_id = journal_id
        self.journal_disk, self.findings = relabel_segments(journal_disk, journal_id)
        self.snapshot_disk, misplaced = relabel_snapshots(snapshot_disk, journal_id)
        self.findings += misplaced
        self.broker = Broker(cluster_id, _SETTINGS, _NoSink(), lambda: os.urandom(16))
        self.gaps = Gaps(self.broker.state)
        self.replay = Replay(self.gaps)
        # A start would not find segments under a wrong name, so they count as damaged.
        self.damaged = {
            int(name[8:18]) for name, actual in self.journal_disk.names.items() if actual is not None
        }
        self.turns = self.bytes = self.snapshots = 0
        self.position = BEGINNING
        settings = JournalSettings(fill_in_background=False)
        self.segments = Segments(
            self.journal_disk, settings, journal_id, SegmentPool(self.journal_disk, settings)
        )
        self.segments.find(needed_from=None)
        self._missing: dict[int, Finding] = {}
        self._unsound: list[tuple[int, int, int, Finding | None]] = []
        self._sound: list[tuple[int, int, int]] = []
        self._aftermath = Aftermath(self.broker.state, self.gaps)
        self._pending: list[_Pending] = []
        self._base = self._read_snapshots()
        self._last = BEGINNING
        self._read_journal()
        self._aftermath.settle(self.findings)
        self._check_rows()

    # ---- snapshots

    def _read_snapshots(self) -> JournalPosition:
        store = SnapshotSalvage(self.snapshot_disk, self.journal_id)
        self.snapshots = len(store.found)
        whole = next((found for found in store.found if found.whole), None)
        for found in store.found:
            for name, position, what in found.damages:
                self.findings.append(Finding(self.snapshot_disk.names.get(name) or name, position, what))
        if whole is not None and whole.manifest is not None:
            parts = ((key, store.part(whole.manifest, key)) for key in whole.manifest.parts)
            snapshot.restore(self.broker.state, parts)
            return whole.manifest.position
        if self.segments.get(1) is None:
            raise JournalDamaged(
                "all snapshots are damaged, and the beginning of the journal was reclaimed: the content of "
                "the queues cannot be known. Restore the data directory from a copy"
            )
        return BEGINNING

    # ---- journal

    def _read_journal(self) -> None:
        reader = SalvageReader(self.segments, frames.seed_of(self.journal_id), None)
        known = [segment.sector_bytes for segment in self.segments if segment.first_turn is not None]
        before = 0
        for segment in self.segments:
            self._miss(before + 1, segment.number)
            before = segment.number
            headless = None
            if segment.first_turn is None:
                segment.sector_bytes = known[0] if known else segment.sector_bytes
                headless = self._find(segment.number, 0, self._what_is_with(segment))
            if segment.size <= FIRST_POSITION:
                self._pending.append(
                    _Pending(Stretch(segment.number, 0, segment.size, 0, Reading.UNWRITTEN), tail=True)
                )
            for item, tail in _with_tail(reader.read(segment)):
                if isinstance(item, Stretch):
                    self._pending.append(_Pending(item, tail))
                else:
                    self._take(item)
        self._end()
        last = self.segments.get(before)
        if last is not None and last.followed:
            self._miss(before + 1, before + 2)
        absent = [finding for number, finding in self._missing.items() if number > self._last.segment]
        if absent:
            for finding in absent:
                self._lose_end(finding, self._size)
        elif (
            last is not None
            and headless is not None
            and (self._last.segment < before or last.size % 4096 or self._is_short(last))
        ):
            self._lose_end(headless, self._size)

    def _lose_end(self, finding: Finding, size: int) -> None:
        """Notes that everything after the last known turn is lost."""
        self._aftermath.lose_state(size)
        finding.undo(self._last.turn + 1, 0)
        # A lost segment has at most one turn per sector. New turns get higher numbers; so the next inspection
        # also sees the gap.
        turn = self.position.turn + size // SECTOR_BYTES_SMALL
        self.position = replace(self.position, segment=self.position.segment + 1, turn=turn, trailer_crc=0)

    def _header_of(self, segment: Segment) -> bytes:
        file = self.journal_disk.open(segment_name(segment.number))
        header = file.read_at(0, FIRST_POSITION)
        file.close()
        return header

    def _is_short(self, segment: Segment) -> bool:
        return size_in(self._header_of(segment)) not in (None, segment.size)

    def _what_is_with(self, segment: Segment) -> str:
        said = size_in(self._header_of(segment))
        return "the header is damaged" if said is None else f"the file has {segment.size} of {said} bytes"

    def _miss(self, first: int, stop: int) -> None:
        """Notes the missing segments of [first, stop). Those before the snapshot were reclaimed; others are
        lost.
        """
        for number in range(first, stop):
            if number >= self._base.segment:
                self._missing[number] = Finding(segment_name(number), 0, "the file is missing")
                self.findings.append(self._missing[number])

    def _take(self, turn: Turn) -> None:
        """Applies a whole turn. Its number shows whether the stretches before it are unused or damaged."""
        if self._pending or turn.number != self._last.turn + 1:
            self._judge(turn.number, turn.end.generation)
        self.turns += 1
        self.bytes += turn.end.position - turn.start
        self._sound.append((turn.end.segment, turn.start, turn.end.position))
        self._last = turn.end
        if turn.number > self._base.turn:
            for header, body, place in turn.entries:
                self.replay.entry(header, body, place)

    def _judge(self, following: int, generation: int) -> None:
        """Decides for each pending stretch whether it is unused or damaged; turn `following` is the next
        whole turn.
        """
        first = self._last.turn + 1
        missing = following - first if self._last.turn or first > self._base.turn else 0
        lost = [
            pending.stretch
            for pending in self._pending
            if not pending.tail or (missing and self._should_be_in(pending.stretch, first))
        ]
        for pending in self._pending:
            if pending.stretch not in lost:
                self._unsound.append(
                    (pending.stretch.segment, pending.stretch.start, pending.stretch.end, None)
                )
        self._pending.clear()
        for stretch in lost:
            self._damage(stretch, first, following - 1)
        if following - 1 > self._base.turn and (missing or lost):
            first = max(first, self._base.turn + 1)
            absent = [finding for number, finding in self._missing.items() if self._last.segment < number]
            self._salvage(lost, first, following - 1, generation, absent)

    def _should_be_in(self, stretch: Stretch, first: int) -> bool:
        """Whether the missing turn `first` must have been in this stretch at the end of a segment, not in the
        next segment or in a missing one.
        """
        following = self.segments.get(stretch.segment + 1)
        if following is None or following.first_turn is None:
            return bool(stretch.turn)
        return first < following.first_turn

    def _damage(self, stretch: Stretch, first: int, last: int) -> Finding:
        turns = f"turn {first} is damaged" if first >= last else f"turns {first} to {last} are damaged"
        finding = self._find(stretch.segment, stretch.wrong_at, f"{turns} ({stretch.reading.value})")
        self._unsound.append((stretch.segment, stretch.start, stretch.end, finding))
        return finding

    def _find(self, number: int, position: int, what: str) -> Finding:
        name = segment_name(number)
        finding = Finding(self.journal_disk.names.get(name) or name, position, what)
        self.findings.append(finding)
        self.damaged.add(number)
        return finding

    def _salvage(
        self, lost: list[Stretch], first: int, last: int, generation: int, absent: list[Finding]
    ) -> None:
        """Applies the readable entries of turns [first, last], and notes that other entries may be lost."""
        entries = sorted(
            (
                entry
                for stretch in lost
                for entry in stretch.entries
                if first <= entry.turn <= last and entry.generation <= generation
            ),
            key=lambda entry: (entry.turn, entry.generation, entry.index),
        )
        findings = (
            [finding for *_, finding in self._unsound if finding is not None][-len(lost) :] if lost else []
        )
        findings += absent
        self.gaps.blame = findings[0] if findings else None
        for entry in entries:
            self.replay.entry(entry.header, entry.body, entry.place)
        if not self._is_all(lost, entries, first, last, generation):
            size = sum(stretch.end - stretch.start for stretch in lost) + self._size * len(absent)
            self._aftermath.lose_state(size)
            for finding in findings:
                finding.undo(first, last)

    @property
    def _size(self) -> int:
        return max((segment.size for segment in self.segments), default=0)

    def _is_all(
        self, lost: list[Stretch], entries: list[LeftEntry], first: int, last: int, generation: int
    ) -> bool:
        """Whether all entries of the damaged turn are readable. Then no decision is lost, only bytes of rows
        at most.
        """
        if first > last:
            return True
        if len(lost) != 1 or first != last:
            return False
        stretch = lost[0]
        sector_bytes = self.segments[stretch.segment].sector_bytes
        if not entries and stretch.counts.get(first) != 0:  # a turn without entries opens a generation
            return generation > self._last.generation and stretch.end - stretch.start == sector_bytes
        if [entry.index for entry in entries] != list(range(len(entries))):
            return False
        if first in stretch.counts:
            return stretch.counts[first] == len(entries)
        end = stretch.start + sum(
            frames.frame_bytes(len(entry.header), entry.place.size if entry.place is not None else None)
            for entry in entries
        )
        return stretch.padded and frames.align(end + frames.TRAILER_BYTES, sector_bytes) == stretch.end

    def _end(self) -> None:
        """Judges the bytes after the last whole turn. They are a torn tail, unless a later turn was begun
        after them: then they are damaged.
        """
        last = self._last
        seen = max((pending.stretch.turn for pending in self._pending), default=0)
        generation = max((pending.stretch.generation for pending in self._pending), default=0)
        turn = max(last.turn, self._base.turn)
        if seen >= last.turn + 2 or self._base.turn > last.turn or not last.turn:
            what = [pending.stretch for pending in self._pending if pending.stretch.segment >= last.segment]
            turn, generation = max(turn, seen), max(generation, last.generation, self._base.generation)
            ends = max(seen - 1, self._base.turn)
            for stretch in what:
                self._damage(stretch, last.turn + 1, ends)
            first = max(last.turn + 1, self._base.turn + 1)
            self._salvage(what, first, ends, generation, [])
            if self._base.turn > last.turn and what:
                self._aftermath.lose_state(
                    sum(stretch.end - stretch.start for stretch in what if stretch.turn)
                )
        for pending in self._pending:
            self._unsound.append((pending.stretch.segment, pending.stretch.start, pending.stretch.end, None))
        self._pending.clear()
        names = self.journal_disk.names.keys() | {segment_name(number) for number in self._missing}
        hidden = [int(name[8:18]) for name in names]
        self.position = JournalPosition(
            max([*hidden, *(segment.number for segment in self.segments)], default=0) + 1,
            FIRST_POSITION,
            turn,
            max(generation, last.generation, self._base.generation),
            last.trailer_crc if turn == last.turn else 0,
        )

    # ---- rows

    def _check_rows(self) -> None:
        """Checks the bytes of every frame outside of whole turns. Removes rows whose bytes are missing or
        damaged.
        """
        rows = sorted((segment << 32 | start, segment << 32 | end) for segment, start, end in self._sound)
        starts = np.array([start for start, _ in rows], np.uint64)
        ends = np.array([end for _, end in rows], np.uint64)
        for destination in self.broker.state.by_number.values():
            for number, partition in enumerate(destination.partitions):
                index = partition.log.index()
                keys = index.frames["segment"] << np.uint64(32) | index.frames["position"]
                at = np.searchsorted(starts, keys, side="right") - 1
                sound = (
                    (at >= 0) & (keys < ends[np.maximum(at, 0)]) if len(rows) else np.zeros(len(keys), bool)
                )
                for frame in index.frames[~sound]:
                    place = frames.BodyPlace(
                        *(int(frame[field]) for field in ("segment", "position", "size", "crc"))
                    )
                    if not is_whole(self.segments, place):
                        base, span = int(frame["base"]), int(frame["span"])
                        live = destination.live(number, base, base + span)
                        if live:  # otherwise the segment may have been reclaimed after the snapshot
                            self._aftermath.lose_rows(destination, number, live, self._finding_of(place))
                        partition.log.bury(base)
        for token, held in list(self.broker.state.staged.items()):
            broken = [
                frame.place for frame in held.frames if not is_whole(self.segments, _place(frame.place))
            ]
            if broken:
                self._aftermath.drop_set(token, self._finding_of(_place(broken[0])))
        self._aftermath.lose_holes()

    def _finding_of(self, place: frames.BodyPlace) -> Finding:
        for segment, start, end, finding in self._unsound:
            if finding is not None and segment == place.segment and start <= place.position < end:
                return finding
        if self.segments.get(place.segment) is None:
            if place.segment not in self._missing:
                self._missing[place.segment] = Finding(segment_name(place.segment), 0, "the file is missing")
                self.findings.append(self._missing[place.segment])
            return self._missing[place.segment]
        return self._find(
            place.segment,
            place.position,
            f"{place.size} bytes do not have the checksum that they were stored with",
        )


def _place(place: object) -> frames.BodyPlace:
    return frames.BodyPlace(*(getattr(place, name) for name in ("segment", "position", "size", "crc")))


def _with_tail(items: Iterator[Turn | Stretch]) -> Iterator[tuple[Turn | Stretch, bool]]:
    """Yields each item, and whether it is the last one of its segment."""
    before: Turn | Stretch | None = None
    for item in items:
        if before is not None:
            yield before, False
        before = item
    if before is not None:
        yield before, True
