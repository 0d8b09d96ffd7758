"""Moves the survivors of mostly dead segments, so that one old message does not pin a whole journal file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from mq_broker.core import retention
from mq_broker.core.broker import Broker
from mq_broker.core.model.state import State
from mq_broker.core.retention import Survivors
from mq_broker.engine.mover import Mover
from mq_broker.journal.journal import Journal
from mq_wire.errors import StoreFull

#: Moved between two turns at most, so that nobody waits long for the cleaner.
STEP_BYTES: Final = 2 << 20
STEP_FRAMES: Final = 200
#: Looked at between two turns at most; one takes a millisecond or two.
STEP_LOOKS: Final = 8
#: What a frame takes beside its rows when it moves.
_COPY_BYTES: Final = 1024
#: A segment with more live bytes than this share stays as it is: moving it would cost more than it gives
#: back.
LIVE_SHARE_MAX: Final = 0.25


class Cleaner:
    """Takes one segment after the other. Steps are taken by the engine when no turn is in hand; what a step
    moved is one turn.

    A step looks at some segments, or moves a little of one. What was looked at and left is `settled`: with
    many segments full of waiting rows, only those are looked at again in which something changed.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._mover = Mover(journal)
        self._segment = 0
        self._candidates: deque[int] = deque()
        self._settled: set[int] = set()
        self._work: Iterator[Survivors] | None = None
        #: Where the disk is full, all of a segment moves in one step: what came between could take the room
        #: of its rest.
        self._at_once = False

    @property
    def is_moving(self) -> bool:
        """Whether a segment is being cleaned."""
        return self._work is not None

    @property
    def busy(self) -> bool:
        """Whether a segment is being cleaned, or some are to be looked at."""
        return self.is_moving or bool(self._candidates)

    def note_changes(self, state: State) -> None:
        """Remembers where something changed since the last snapshot. To be called before parts are written or
        frames trimmed.
        """
        if any(part[0] == "gone" for part in state.dirty):
            self._settled.clear()  # the frames that would say where are gone too
        if self._settled:
            self._settled -= retention.changed_segments(state)

    def consider(self, segments: list[int]) -> None:
        """Looks at those of `segments` (covered by the older snapshot, oldest first) that may be worth it,
        and begins with the first.
        """
        self._settled.intersection_update(segments)
        self._candidates = deque(segment for segment in segments if segment not in self._settled)

    def clear(self, broker: Broker, segment: int) -> None:
        """Begins with this segment, however much is left in it."""
        self._work, self._segment = iter(list(retention.survivors(broker.state, segment))), segment

    def step(self, broker: Broker, now_us: int) -> bool:
        """Moves a little; returns whether the segment is done."""
        if self._work is None:
            for _ in range(min(STEP_LOOKS, len(self._candidates))):
                if self._begin(broker.state, self._candidates.popleft()):
                    break
            return False
        size = 0
        try:
            for frames, one in enumerate(self._work, 1):
                moved = self._mover.move(broker, one, now_us)
                if moved is None:
                    self._settled.add(self._segment)
                size += moved or 0
                if (size >= STEP_BYTES or frames >= STEP_FRAMES) and not self._at_once:
                    break
            else:
                self._work = None
        except StoreFull:
            self._work = None  # what was moved is moved; the rest stays where it is until there is room
            self._journal.commit()
            return False
        self._journal.commit()
        return self._work is None

    def _begin(self, state: State, segment: int) -> bool:
        """Begins with a segment where it is worth it; says whether it did."""
        if segment in state.pins or retention.holds_staged(state, segment):
            return False
        frames, size_bytes = retention.remains(state, segment)
        if frames and size_bytes <= self._journal.space.size_of(segment) * LIVE_SHARE_MAX:
            self._at_once = self._journal.is_short or self._journal.space.lacks_reserve
            if self._at_once and not self._has_room(frames * _COPY_BYTES + size_bytes + size_bytes // 4):
                return False
            self._candidates.clear()
            self._work, self._segment = iter(list(retention.survivors(state, segment))), segment
            return True
        self._settled.add(segment)
        return False

    def _has_room(self, size_bytes: int) -> bool:
        """Says whether so much fits into one segment and leaves one that is kept back for state."""
        if size_bytes <= self._journal.space.rest_bytes:
            return True
        if size_bytes > self._journal.space.state_bytes_max:
            return False
        try:
            self._journal.reserve(size_bytes, for_state=True, left=1)
        except StoreFull:
            return False
        return True
