"""Reads the journal at a start: which turns count, and whether bad bytes are a torn tail or damage.

The rules, with *last* for the last turn that was accepted:

1. The next turn has the number last + 1. It begins where *last* ended, or at the start of the next segment if
   the writer had no room there.
2. A turn counts if every byte of it is right: frames are in their place, bodies and padding are right, the
   number of entries is right, and its trailer holds the CRC of *last*'s trailer. Its generation is that of
   *last*. A turn without entries may have the next generation: it opens that generation.
3. If the next turn does not count, the journal ends there, and the bytes behind its end are a torn tail. Only
   one turn is written at a time, so the torn turn was never acknowledged.
4. In two cases acknowledged data is damaged, and there is no torn tail. First: a frame or trailer of turn
   last + 2 or later, of the same or a newer generation, stands in its place behind the end. Turn last + 1 was
   synced before turn last + 2 began, so it was acknowledged. Second: the journal ends before the turn of the
   snapshot.

Frames of older generations are remains of torn turns. Their numbers are at most last + 1: a torn tail is one
turn, and the next generation begins with its number. So after every recovery the journal opens a new
generation, with or without a torn tail. It need not do so if the last turn opened a generation and no later
turn was begun.

One case cannot be detected: damage in the very last turn looks like a turn that was not finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from mq_broker.journal import frames
from mq_broker.journal.frames import (
    MAGIC_NUMBER,
    TRAILER_BYTES,
    BodyPlace,
    Frame,
    FrameKind,
    Reading,
    Trailer,
)
from mq_broker.journal.segments import FIRST_POSITION, Segment, Segments
from mq_wire.errors import JournalDamaged

_REMEDY: Final = (
    "`mq verify` shows what is lost, and `mq repair` takes the damage out; or restore the data directory "
    "from a copy; nothing was changed"
)


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """The end of one turn: segment and position where the turn ends, its number, its generation and the CRC
    of its trailer.
    """

    segment: int
    position: int
    turn: int
    generation: int
    trailer_crc: int


#: The position before the first turn of a journal.
BEGINNING: Final = JournalPosition(segment=1, position=FIRST_POSITION, turn=0, generation=0, trailer_crc=0)


class Entry(NamedTuple):
    """A recovered entry: header, body and the place of the body. Body and place are None without body."""

    header: memoryview
    body: memoryview | None
    place: BodyPlace | None


@dataclass(frozen=True, slots=True)
class Turn:
    """A recovered turn: number, entries, position in the segment where it begins, and its end.

    The entries are views of the mapped segment. Copy what is kept after recovery.
    """

    number: int
    entries: list[Entry]
    start: int
    end: JournalPosition


class TurnReader:
    """Iterates over the turns after a position. Afterwards `position` is the end of the journal.

    Args:
        segments: of the journal.
        seed: of the header CRCs.
        start: position that a snapshot covers; None reads all turns.
    """

    def __init__(self, segments: Segments, seed: int, start: JournalPosition | None) -> None:
        self._segments = segments
        self._seed = seed
        self._start = start
        self.position = start or BEGINNING
        #: The last turn that was read; None if there is none after `start`.
        self.last: Turn | None = None
        #: Whether the last turn opened a generation and no later turn was begun. Then this generation can be
        #: used, and the start writes nothing.
        self.is_fresh = False

    def __iter__(self) -> Iterator[Turn]:
        """Yields the turns in order.

        Raises:
            JournalDamaged: acknowledged data is damaged; the error names segment, position and turn.
            DataDirectoryUnusable: a frame has an unknown version, kind or flag.
        """
        while True:
            here = self._read_turn(self.position.segment, self.position.position)
            found = here
            if isinstance(here, Reading) and self._segments.get(self.position.segment + 1) is not None:
                found = self._read_turn(self.position.segment + 1, FIRST_POSITION)
            if isinstance(found, Reading):
                assert isinstance(here, Reading)
                self._check_end(here)
                return
            self.position = found.end
            self.last = found
            yield found

    def _read_turn(self, number: int, start: int) -> Turn | Reading:
        """Reads the turn that begins at `start`. Returns the reason if it is not the next turn or not
        right.
        """
        segment = self._segments[number]
        view = self._segments.whole(segment)
        expected = self.position.turn + 1
        entries: list[Entry] = []
        entries_crc = 0
        position = start
        generation = -1
        while True:
            frame = frames.decode(view, number, position, self._seed)
            if isinstance(frame, Reading) or frame.kind is not FrameKind.ENTRY:
                break
            body = frames.body_of(view, frame)
            if body is None:
                return Reading.BROKEN
            if not entries:
                generation = frame.generation
            if (frame.turn, frame.generation, frame.index) != (expected, generation, len(entries)):
                return Reading.STALE
            entries_crc = frames.add_entry_crc(entries_crc, frame.crc)
            entries.append(
                Entry(frame.header, body, frame.place())
                if frame.has_body
                else Entry(frame.header, None, None)
            )
            position = frame.end
        closing = self._read_trailer(segment, view, position)
        if isinstance(closing, Reading):
            return closing
        frame, trailer = closing
        if (frame.turn, frame.index) != (expected, len(entries)) or (
            entries and frame.generation != generation
        ):
            return Reading.STALE
        if trailer != Trailer(start, self.position.trailer_crc, entries_crc) or not self._follows(
            frame.generation, entries
        ):
            return Reading.STALE
        return Turn(
            expected,
            entries,
            start,
            JournalPosition(number, frame.end, expected, frame.generation, frame.crc),
        )

    def _follows(self, generation: int, entries: list[Entry]) -> bool:
        last = self.position.generation
        return generation == last or (generation == last + 1 and not entries)

    def _read_trailer(
        self, segment: Segment, view: memoryview, position: int
    ) -> tuple[Frame, Trailer] | Reading:
        """Reads the trailer of a turn whose last entry ends at `position`."""
        at = frames.align(position + TRAILER_BYTES, segment.sector_bytes) - TRAILER_BYTES
        if not frames.is_zero(view, position, at):
            return Reading.BROKEN
        frame = frames.decode(view, segment.number, at, self._seed)
        if isinstance(frame, Reading):
            return frame
        trailer = frames.decode_trailer_header(frame.header) if frame.kind is FrameKind.TRAILER else None
        if trailer is None or not frames.is_zero(view, at + TRAILER_BYTES, frame.end):
            return Reading.BROKEN
        return frame, trailer

    def _check_end(self, reading: Reading) -> None:
        """Raises JournalDamaged if the journal must not end at `position` (rule 4 of the module)."""
        end = self.position
        place = f"segment {end.segment}, position {end.position}"
        behind = list(self._behind())
        evidence = next((frame for frame in behind if frame.turn >= end.turn + 2), None)
        if evidence is not None:
            raise JournalDamaged(
                f"{place}: turn {end.turn + 1} is damaged ({reading.value}): turn {evidence.turn} follows it "
                f"at segment {evidence.segment}, position {evidence.position}, so turn {end.turn + 1} "
                f"had been acknowledged: {_REMEDY}"
            )
        if self.last is not None:
            self.is_fresh = not self.last.entries and not any(frame.turn == end.turn + 1 for frame in behind)
            return
        if self._start is None:
            raise JournalDamaged(
                f"{place}: turn 1 is damaged ({reading.value}), the journal has no readable turn: {_REMEDY}"
            )
        if not self._ends_with(self._start):
            raise JournalDamaged(
                f"{place}: the journal ends before turn {end.turn}, which the snapshot covers "
                f"({reading.value}): files of different times were mixed, or the disk lost "
                f"acknowledged data: {_REMEDY}"
            )

    def _ends_with(self, start: JournalPosition) -> bool:
        """Whether the trailer of the snapshot's turn is where the snapshot's position says."""
        view = self._segments.whole(self._segments[start.segment])
        at = start.position - TRAILER_BYTES
        frame = frames.decode(view, start.segment, at, self._seed) if at >= FIRST_POSITION else Reading.BROKEN
        return isinstance(frame, Frame) and (frame.turn, frame.generation, frame.crc) == (
            start.turn,
            start.generation,
            start.trailer_crc,
        )

    def _behind(self) -> Iterator[Frame]:
        """Yields frames behind the end that are not older than the last turn: frames of the turn that was not
        finished, and proofs of later turns.
        """
        for segment in self._segments:
            if segment.number < self.position.segment:
                continue
            first = self.position.position if segment.number == self.position.segment else FIRST_POSITION
            view = self._segments.whole(segment)
            for position in candidates(view, first, segment.sector_bytes):
                frame = frames.decode(view, segment.number, position, self._seed)
                if (
                    isinstance(frame, Frame)
                    and frame.turn >= self.position.turn + 1
                    and frame.generation >= self.position.generation
                ):
                    yield frame


def candidates(view: memoryview, first: int, sector_bytes: int) -> list[int]:
    """Returns the positions from `first` on where a turn could begin or its trailer could stand, and where
    the magic of a frame is.
    """
    words = np.frombuffer(view[: len(view) // 4 * 4], "<u4")
    found = []
    for phase in (first, first + sector_bytes - TRAILER_BYTES):
        hits = np.flatnonzero(words[phase // 4 :: sector_bytes // 4] == MAGIC_NUMBER)
        found += (hits * sector_bytes + phase).tolist()
    return sorted(found)
