"""Reading the journal at a start: which turns count, and whether bad bytes are a torn tail or damage.

The rules, with *last* for the last turn that was accepted:

1. The next turn is number last + 1. It begins where *last* ended, or, when the writer had no room there, at
the front of the next segment.
2. A turn counts when every byte of it is right: frames in their place, bodies, padding, entries counted, and
its trailer holds the CRC of
   *last*'s trailer. Its generation is that of *last*, or the next one when it has no entries (it opens that
   generation).
3. Otherwise the journal ends here, and the bytes behind are a torn tail: one turn is in flight at a time, so
this one was never receipted.
4. Unless a frame or trailer of turn last + 2 or later, of the same or a newer generation, stands in its place
further behind: turn
   last + 1 was synced before that was begun, so acknowledged data is damaged. The same when the journal ends
   before the snapshot's turn.

Frames of older generations are remains of turns that were cut. They never reach number last + 2: a cut takes
away one turn, and the next generation opens with its number. After recovery the journal therefore opens a
generation, cut or not; but where the last one has just been opened and nothing was begun in it, that one
does.

What cannot be told apart: rot in the very last turn looks like a turn that was never finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from mq_broker.journal import frames
from mq_broker.journal.frames import MAGIC_NUMBER, TRAILER_BYTES, Frame, FrameKind, Place, Reading, Trailer
from mq_broker.journal.segments import FIRST_POSITION, Segment, Segments
from mq_wire.errors import JournalDamaged

_REMEDY: Final = (
    "`mq verify` shows what it costs, `mq repair` takes it out, or restore the data directory "
    "from a copy; nothing was changed"
)


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """The place behind one turn: its segment, the position where it ends, its number, generation and the CRC
    of its trailer.
    """

    segment: int
    position: int
    turn: int
    generation: int
    trailer_crc: int


#: Before the first turn of every journal.
BEGINNING: Final = JournalPosition(segment=1, position=FIRST_POSITION, turn=0, generation=0, trailer_crc=0)


class Entry(NamedTuple):
    """One entry as recovered: its header, its body and where that lies (None without body)."""

    header: memoryview
    body: memoryview | None
    place: Place | None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as recovered: its number, its entries, where it begins, and the position behind it.

    The views show the mapped segment; who keeps them beyond recovery copies.
    """

    number: int
    entries: list[Entry]
    start: int
    end: JournalPosition


class TurnReader:
    """Iterates over the turns behind a position; afterwards `position` is where the journal ends.

    Args:
        segments: of the journal.
        seed: of its header CRCs.
        start: the position that a snapshot covers, None to read all.
    """

    def __init__(self, segments: Segments, seed: int, start: JournalPosition | None) -> None:
        self._segments = segments
        self._seed = seed
        self._start = start
        self.position = start or BEGINNING
        #: The last turn that was read, None when there is none behind the start.
        self.last: Turn | None = None
        #: Whether the journal ends with the turn that opens a generation, and nothing was ever begun behind
        #: it: the next process may go on in that generation, and a start after a start writes nothing.
        self.is_fresh = False

    def __iter__(self) -> Iterator[Turn]:
        """Yields turns in order.

        Raises:
            JournalDamaged: acknowledged data is damaged, with segment, position and turn.
            DataDirectoryUnusable: frames of a newer version.
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
        """Reads the turn that begins there, if it is the next one and all of it is right."""
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
        """Raises JournalDamaged when the journal must go on behind `position`, or must not end before it."""
        end = self.position
        place = f"segment {end.segment}, position {end.position}"
        behind = list(self._behind())
        evidence = next((frame for frame in behind if frame.turn >= end.turn + 2), None)
        if evidence is not None:
            raise JournalDamaged(
                f"{place}: turn {end.turn + 1} is damaged ({reading.value}): turn {evidence.turn} stands "
                f"behind it at segment "
                f"{evidence.segment}, position {evidence.position}, so turn {end.turn + 1} had been "
                f"acknowledged: {_REMEDY}"
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
                f"({reading.value}): "
                f"files of different times were mixed, or the disk lost acknowledged data: {_REMEDY}"
            )

    def _ends_with(self, start: JournalPosition) -> bool:
        """Says whether the trailer of the snapshot's turn stands where the snapshot saw it."""
        view = self._segments.whole(self._segments[start.segment])
        at = start.position - TRAILER_BYTES
        frame = frames.decode(view, start.segment, at, self._seed) if at >= FIRST_POSITION else Reading.BROKEN
        return isinstance(frame, Frame) and (frame.turn, frame.generation, frame.crc) == (
            start.turn,
            start.generation,
            start.trailer_crc,
        )

    def _behind(self) -> Iterator[Frame]:
        """Yields frames behind the end that are no older than the last turn: of the turn that was in flight,
        or proof of a later one.
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
    """Returns the positions from `first` on where a turn could begin or its trailer stand, and where a
    frame's magic is.
    """
    words = np.frombuffer(view[: len(view) // 4 * 4], "<u4")
    found = []
    for phase in (first, first + sector_bytes - TRAILER_BYTES):
        hits = np.flatnonzero(words[phase // 4 :: sector_bytes // 4] == MAGIC_NUMBER)
        found += (hits * sector_bytes + phase).tolist()
    return sorted(found)
