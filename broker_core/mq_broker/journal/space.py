"""The space of a journal: bytes in use, bytes that can still be written, and what fits into the current
segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.journal import frames
from mq_broker.journal.disk import Disk
from mq_broker.journal.frames import TRAILER_BYTES
from mq_broker.journal.pool import SegmentPool
from mq_broker.journal.recovery import JournalPosition
from mq_broker.journal.segments import FIRST_POSITION, Segment, Segments
from mq_broker.journal.settings import JournalSettings
from mq_broker.journal.turn import TurnBuilder
from mq_wire.errors import InternalError


@dataclass(slots=True)
class Tail:
    """Where a journal is written. The journal alone changes it.

    Attributes:
        position: after the last committed turn.
        segment: that is being written; None before the journal can be written, and once it is closed.
        hand: the turn that is being collected.
    """

    position: JournalPosition
    segment: Segment | None = None
    hand: TurnBuilder | None = None

    def current(self) -> Segment:
        """Returns the segment that is being written. Raises InternalError if there is none."""
        if self.segment is None:
            raise InternalError("the journal is closed, or not all of its recovered turns were read")
        return self.segment

    def start_in(self, segment: Segment) -> int:
        """Returns the position of the next turn: after the last turn, or at the start of a new segment."""
        return self.position.position if self.position.segment == segment.number else FIRST_POSITION

    def has_room(self, segment: Segment, size_bytes: int) -> bool:
        """Whether a new turn with entries of this size fits into a segment."""
        end = self.start_in(segment) + size_bytes + TRAILER_BYTES
        return frames.align(end, segment.sector_bytes) <= segment.size


class JournalSpace:
    """Figures of a journal, in bytes.

    Args:
        disk: folder of the journal.
        settings: sizes.
        tail: where the journal is written.
        segments: of the journal.
        pool: where its next segments come from.
    """

    def __init__(
        self, disk: Disk, settings: JournalSettings, tail: Tail, segments: Segments, pool: SegmentPool
    ) -> None:
        self._disk, self._settings = disk, settings
        self._tail, self._segments, self._pool = tail, segments, pool

    def segments(self) -> list[tuple[int, int, int]]:
        """Returns (number, first turn, last turn) of each segment that is kept, in order.

        A segment with a damaged header gets the first turn of the next segment. This may delay its
        reclaiming, but never makes it too early.
        """
        rows: list[tuple[int, int, int]] = []
        following = self._tail.position.turn + 1
        for segment in reversed(list(self._segments)):
            first = following if segment.first_turn is None else segment.first_turn
            rows.append((segment.number, first, following - 1))
            following = first
        return rows[::-1]

    @property
    def turn_bytes_max(self) -> int:
        """Bytes of the largest turn that a new segment can hold."""
        return self._settings.segment_bytes - FIRST_POSITION - self._segments.sector_bytes

    @property
    def state_bytes_max(self) -> int:
        """Bytes for entries in a segment that is kept back for state. Entries of up to this size can be
        written even when the disk is full.
        """
        return self._pool.reserve_bytes - FIRST_POSITION - self._segments.sector_bytes - TRAILER_BYTES

    @property
    def lacks_reserve(self) -> bool:
        """Whether fewer segments than intended are kept back for state, because the disk has no room."""
        return self._pool.is_short

    @property
    def rest_bytes(self) -> int:
        """Bytes for further entries in the segment that is being written."""
        segment = self._tail.current()
        start = self._tail.hand.position if self._tail.hand is not None else self._tail.start_in(segment)
        return max(segment.size - start - TRAILER_BYTES - 2 * segment.sector_bytes, 0)

    @property
    def empty_segments(self) -> int:
        """Number of empty files, including those that are kept back for state."""
        return len(self._pool)

    def keep_free(self, size_bytes: int) -> None:
        """From now on, new segments leave so many bytes free on the disk, in addition to `spare_bytes` of the
        settings.
        """
        self._pool.spare_bytes = self._settings.spare_bytes + size_bytes

    def size_of(self, segment: int) -> int:
        """Returns the size of a segment's file in bytes. Raises DataLost if the segment is no longer kept."""
        return self._segments[segment].size

    def bytes_since(self, position: JournalPosition | None) -> int:
        """Returns about how many bytes were written after a position; None = bytes of all kept turns."""
        first = 0 if position is None else position.segment
        size = sum(
            segment.size
            for segment in self._segments
            if first <= segment.number < self._tail.position.segment
        )
        return size + self._tail.position.position - (0 if position is None else position.position)

    def used_bytes(self) -> int:
        """Returns the size of all segment files in bytes, without the pool."""
        return sum(segment.size for segment in self._segments)

    def free_bytes(self) -> int:
        """Returns the free bytes of the disk, as the error of a full disk does."""
        return self._disk.free_bytes()

    def fits(self, size_bytes: int) -> bool:
        """Whether entries of this size (sum of `frames.frame_bytes`) fit into the collected turn and its
        segment.
        """
        hand, segment = self._tail.hand, self._tail.current()
        # The last sector is kept for the next start, which must not need a new segment.
        if hand is not None:
            return hand.end_with(size_bytes) <= segment.size - segment.sector_bytes
        return self._tail.has_room(segment, size_bytes + segment.sector_bytes)
