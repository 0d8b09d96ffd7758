"""What the journal takes and what it could still take: the half of `Journal` that reckons."""

from __future__ import annotations

from mq_broker.journal.disk import Disk
from mq_broker.journal.frames import TRAILER_BYTES
from mq_broker.journal.pool import SegmentPool
from mq_broker.journal.recovery import JournalPosition
from mq_broker.journal.segments import FIRST_POSITION, Segment, Segments
from mq_broker.journal.settings import JournalSettings
from mq_broker.journal.turn import TurnBuilder


class JournalSpace:
    """Figures of a journal, in bytes."""

    _disk: Disk
    _settings: JournalSettings
    _pool: SegmentPool
    _segments: Segments
    _position: JournalPosition
    _hand: TurnBuilder | None

    def _current(self) -> Segment:
        raise NotImplementedError

    def _start_in(self, segment: Segment) -> int:
        raise NotImplementedError

    def segments(self) -> list[tuple[int, int, int]]:
        """Returns (number, first turn, last turn) of each segment that is kept, in order.

        A segment whose header is damaged shows the first turn of the next one, so that it is reclaimed later,
        never too early.
        """
        rows: list[tuple[int, int, int]] = []
        following = self._position.turn + 1
        for segment in reversed(list(self._segments)):
            first = following if segment.first_turn is None else segment.first_turn
            rows.append((segment.number, first, following - 1))
            following = first
        return rows[::-1]

    @property
    def turn_bytes_max(self) -> int:
        """Room for one turn in a new segment of the largest size, in bytes."""
        return self._settings.segment_bytes - FIRST_POSITION - self._segments.sector_bytes

    @property
    def state_bytes_max(self) -> int:
        """Room for entries in a segment that is kept back for state, in bytes: what needs no more can always
        be written.
        """
        return self._pool.reserve_bytes - FIRST_POSITION - self._segments.sector_bytes - TRAILER_BYTES

    @property
    def lacks_reserve(self) -> bool:
        """Whether a segment that is kept back for state is in use, and the disk has no room for another."""
        return self._pool.is_short

    @property
    def rest_bytes(self) -> int:
        """Room for entries in the segment that is being written, in bytes."""
        segment = self._current()
        start = self._hand.position if self._hand is not None else self._start_in(segment)
        return max(segment.size - start - TRAILER_BYTES - 2 * segment.sector_bytes, 0)

    @property
    def empty_segments(self) -> int:
        """How many files are ready, those that are kept back included."""
        return len(self._pool)

    def keep_free(self, size_bytes: int) -> None:
        """New segments leave so many bytes free from now on, and what the settings say."""
        self._pool.spare_bytes = self._settings.spare_bytes + size_bytes

    def size_of(self, segment: int) -> int:
        """Returns the size of a segment's file in bytes. Raises DataLost when it is gone."""
        return self._segments[segment].size

    def bytes_since(self, position: JournalPosition | None) -> int:
        """Returns about how many bytes were written behind a position; None = all that is kept."""
        first = 0 if position is None else position.segment
        size = sum(
            segment.size for segment in self._segments if first <= segment.number < self._position.segment
        )
        return size + self._position.position - (0 if position is None else position.position)

    def used_bytes(self) -> int:
        """Returns the bytes of all segments, whatever is live in them; the pool is not counted."""
        return sum(segment.size for segment in self._segments)

    def free_bytes(self) -> int:
        """Returns how many bytes can still be written: free space of the disk, the pool, and the rest of the
        current segment.
        """
        rest = self._current().size - self._start_in(self._current())
        return self._disk.free_bytes() + self._pool.total_bytes() + rest
