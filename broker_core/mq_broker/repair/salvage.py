"""Reads a damaged journal: all whole turns, and the readable entries of damaged ones.

Recovery stops at the first wrong byte. Here each segment is read by itself. It consists of whole turns and of
stretches between them that cannot be read as turns. A stretch may still have readable entries. The checksum
of a frame covers its place and its turn, so an entry cannot be mistaken for another one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from mq_broker.journal import frames
from mq_broker.journal.disk import Disk, DiskFile
from mq_broker.journal.frames import (
    ALIGNMENT,
    MAGIC_NUMBER,
    TRAILER_BYTES,
    BodyPlace,
    Frame,
    FrameKind,
    Reading,
)
from mq_broker.journal.packs import Manifest, pack_name
from mq_broker.journal.recovery import JournalPosition, Turn, TurnReader, candidates
from mq_broker.journal.segments import FIRST_POSITION, Segment, Segments
from mq_broker.journal.snapshots import SnapshotStore
from mq_wire.checksum import crc32
from mq_wire.errors import JournalDamaged

#: How many trailers are tried to find that of a turn. Remains of other turns may come before it.
_TRAILERS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class LeftEntry:
    """A readable entry of a damaged turn. `body` is None if it is damaged, or if the entry has none; `place`
    is None only if the entry has none.
    """

    turn: int
    generation: int
    index: int
    header: memoryview
    body: memoryview | None
    place: BodyPlace | None


@dataclass(slots=True)
class Stretch:
    """Bytes [start, end) of a segment that hold no whole turn.

    Attributes:
        wrong_at: position of the first broken frame.
        entries: the readable entries.
        counts: number of entries by turn, for turns with a readable trailer.
        padded: whether there are only zeros between the last entry and the place of the trailer.
        turn, generation: the highest ones of all readable frames; 0 if there are none.
    """

    segment: int
    start: int
    end: int
    wrong_at: int
    reading: Reading
    entries: list[LeftEntry] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    padded: bool = False
    turn: int = 0
    generation: int = 0


class SalvageReader(TurnReader):
    """Reads segments one by one, damaged or not."""

    def read(self, segment: Segment) -> Iterator[Turn | Stretch]:
        """Yields the turns and stretches of a segment, in order. The last item is the stretch after the last
        whole turn, which is usually unused.

        `position` is the end of the last whole turn, which may be in an earlier segment.
        """
        view = self._segments.whole(segment)
        at = FIRST_POSITION
        while at < len(view):
            turn = self._next_here(segment, at)
            if turn is None:
                found = self._search(segment, view, at)
                stop = found.start if found is not None else len(view)
                if stop > at:
                    yield self._left(segment.number, view, at, stop)
                if found is None:
                    return
                turn = found
            yield turn
            self.position = turn.end
            at = turn.end.position

    def _next_here(self, segment: Segment, at: int) -> Turn | None:
        """Returns the turn after the last one if it begins at `at`."""
        found = self._read_turn(segment.number, at)
        return None if isinstance(found, Reading) else found

    def _search(self, segment: Segment, view: memoryview, first: int) -> Turn | None:
        """Returns the next whole turn from `first` on that is newer than the last one."""
        last = self.position
        places = candidates(view, first, segment.sector_bytes)
        for position in places:
            frame = frames.decode(view, segment.number, position, self._seed)
            if not isinstance(frame, Frame) or frame.turn <= last.turn or frame.generation < last.generation:
                continue
            start = position
            if frame.kind is FrameKind.TRAILER:
                trailer = frames.decode_trailer_header(frame.header)
                start = trailer.start if trailer is not None else -1
            found = self._read_at(segment, view, start, frame, places)
            if found is not None:
                return found
        self.position = last
        return None

    def _read_at(
        self, segment: Segment, view: memoryview, start: int, frame: Frame, places: list[int]
    ) -> Turn | None:
        """Reads the turn of `frame` that begins at `start`. Its trailer has this start and the CRC of the
        previous trailer, which the reader needs.
        """
        last = self.position
        behind = np.searchsorted(places, frame.position)
        for position in places[int(behind) : int(behind) + _TRAILERS_MAX]:
            closing = frames.decode(view, segment.number, position, self._seed)
            if (
                not isinstance(closing, Frame)
                or closing.kind is not FrameKind.TRAILER
                or closing.turn != frame.turn
            ):
                continue
            trailer = frames.decode_trailer_header(closing.header)
            if trailer is None or trailer.start != start or start < FIRST_POSITION:
                continue
            for generation in (closing.generation, closing.generation - 1):
                self.position = JournalPosition(
                    segment.number, start, closing.turn - 1, generation, trailer.previous_crc
                )
                found = self._read_turn(segment.number, start)
                self.position = last
                if not isinstance(found, Reading):
                    return found
        return None

    def _left(self, number: int, view: memoryview, start: int, end: int) -> Stretch:
        """Returns the stretch between two positions, with everything readable in it."""
        stretch = Stretch(number, start, end, -1, Reading.UNWRITTEN)
        last = self.position
        words = np.frombuffer(view[start : end // 4 * 4], "<u4")
        at = start
        for position in (
            np.flatnonzero(words[:: ALIGNMENT // 4] == MAGIC_NUMBER) * ALIGNMENT + start
        ).tolist():
            frame = frames.decode(view, number, position, self._seed) if position >= at else Reading.STALE
            if not isinstance(frame, Frame):
                continue
            if frame.turn <= last.turn or frame.generation < last.generation or frame.end > end:
                continue
            stretch.turn, stretch.generation = (
                max(stretch.turn, frame.turn),
                max(stretch.generation, frame.generation),
            )
            body = _body_alone(view, frame)
            if frame.kind is FrameKind.ENTRY:
                place = frame.place() if frame.has_body else None
                stretch.entries.append(
                    LeftEntry(frame.turn, frame.generation, frame.index, frame.header, body, place)
                )
                if stretch.wrong_at < 0 and (
                    position > at or (frame.has_body and frames.body_of(view, frame) is None)
                ):
                    stretch.wrong_at = at if position > at else position
            elif frame.kind is FrameKind.TRAILER:
                stretch.counts[frame.turn] = frame.index
                continue
            at = frame.end if body is not None or not frame.has_body else frame.body_position
        gap = end - TRAILER_BYTES - at
        stretch.padded = 0 <= gap <= len(frames.ZEROS) and frames.is_zero(view, at, at + gap)
        if stretch.wrong_at < 0:
            stretch.wrong_at = at
        found = frames.decode(view, number, stretch.wrong_at, self._seed)
        stretch.reading = found if isinstance(found, Reading) else Reading.BROKEN
        return stretch


def _body_alone(view: memoryview, frame: Frame) -> memoryview | None:
    """Returns the body if its checksum is right. The padding around it is not checked."""
    body = view[frame.body_position : frame.body_position + frame.body_size]
    return body if frame.has_body and crc32(body) == frame.body_crc else None


def is_whole(segments: Segments, place: BodyPlace) -> bool:
    """Whether the bytes at a place exist and have the checksum that they were stored with."""
    segment = segments.get(place.segment)
    if segment is None:
        return False
    try:
        body = segments.part(place.segment, place.position, place.size)
    except JournalDamaged:
        return False
    return len(body) == place.size and crc32(body) == place.crc


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot in the folder, damaged or not.

    Attributes:
        number: of its manifest.
        manifest: None if it is damaged.
        lost: keys of damaged parts.
        damages: (file, position, what is wrong).
    """

    number: int
    manifest: Manifest | None
    lost: tuple[str, ...]
    damages: tuple[tuple[str, int, str], ...]

    @property
    def whole(self) -> bool:
        return self.manifest is not None and not self.lost


class SnapshotSalvage(SnapshotStore):
    """Reads all snapshots of a folder, damaged or not. `found` has them, the newest first."""

    def _find(self) -> None:
        self.found: list[Snapshot] = []
        for number in self._numbers("manifest-", ".mqm")[::-1]:
            try:
                manifest = self._packs.manifest(number)
            except JournalDamaged as error:
                self.found.append(Snapshot(number, None, (), (_told(error),)))
                continue
            lost, damages = [], []
            for key, place in manifest.parts.items():
                try:
                    self.part(manifest, key)
                except JournalDamaged as error:
                    lost.append(key)
                    damages.append((pack_name(place.segment), place.position, _told(error)[2]))
            self.found.append(Snapshot(number, manifest, tuple(lost), tuple(damages)))

    def part(self, manifest: Manifest, key: str) -> bytes:
        """Returns one part. Raises JournalDamaged if it is damaged or missing."""
        ((_, body),) = self._packs.parts(manifest, {key: manifest.parts[key]})
        return body


def _told(error: JournalDamaged) -> tuple[str, int, str]:
    """Splits the message of an error into file, position and what is wrong."""
    where, _, what = str(error).partition(": ")
    name, _, position = where.partition(", position ")
    if not position:
        name, _, what = where.partition(" ")
    return name, int(position or 0), what


class Relabelled:
    """A disk that shows some files of another disk under the names that belong to their content, or hides
    them.

    Args:
        disk: the disk with the files.
        names: shown name -> name on the disk; None hides the name.
    """

    def __init__(self, disk: Disk, names: dict[str, str | None]) -> None:
        self._disk = disk
        self.names = names
        self.sector_bytes = disk.sector_bytes

    def create(self, name: str) -> DiskFile:
        return self._disk.create(name)

    def open(self, name: str) -> DiskFile:
        actual = self.names.get(name, name)
        if actual is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._disk.open(actual)

    def list_names(self) -> list[str]:
        shown = {name for name in self._disk.list_names() if name not in self.names}
        return sorted(shown | {name for name, actual in self.names.items() if actual is not None})

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def remove(self, name: str) -> None:
        self._disk.remove(name)

    def sync_directory(self) -> None:
        self._disk.sync_directory()

    def free_bytes(self) -> int:
        return self._disk.free_bytes()
