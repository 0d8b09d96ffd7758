"""Moves the survivors of mostly dead segments, so that one old message does not pin a whole journal file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mq_broker.core import space
from mq_broker.core.apply import CHUNK_BITS
from mq_broker.core.broker import Broker
from mq_broker.core.quarantine import quarantine_frames
from mq_broker.core.space import Survivors
from mq_broker.core.views import make_view, unpin
from mq_broker.engine.quarantine import say
from mq_broker.engine.rows import RowReader
from mq_broker.journal.frames import frame_bytes
from mq_broker.journal.journal import Journal
from mq_wire.checksum import crc32
from mq_wire.errors import DataLost, JournalDamaged, MqError, StoreFull
from mq_wire.store.v1.store_pb2 import Entry, Moved, Records

#: Moved between two turns at most, so that nobody waits long for the cleaner.
STEP_BYTES: Final = 2 << 20
STEP_FRAMES: Final = 200
#: An entry that names rows of one frame takes no more.
_QUARANTINED_BYTES: Final = 16 << 10
#: A segment with more live bytes than this share stays as it is: moving it would cost more than it gives back.
LIVE_SHARE_MAX: Final = 0.25


class Cleaner:
    """Takes one segment after the other. Steps are taken by the engine when no turn is in hand; what a step moved is one turn."""

    def __init__(self, journal: Journal, segment_bytes: int) -> None:
        self._journal = journal
        self._segment_bytes = segment_bytes
        self._rows = RowReader(journal)
        self._work: Iterator[Survivors] | None = None

    @property
    def busy(self) -> bool:
        """Whether a segment is being cleaned."""
        return self._work is not None

    def consider(self, broker: Broker, segments: list[int]) -> None:
        """Begins with the first of `segments` (covered by the older snapshot, oldest first) that is worth it."""
        for segment in segments:
            if segment in broker.state.pins or space.holds_staged(broker.state, segment):
                continue
            left = list(space.survivors(broker.state, segment))
            if left and sum(one.size_bytes for one in left) <= self._segment_bytes * LIVE_SHARE_MAX:
                self._work = iter(left)
                return

    def clear(self, broker: Broker, segment: int) -> None:
        """Begins with this segment, however much is left in it."""
        self._work = iter(list(space.survivors(broker.state, segment)))

    def step(self, broker: Broker, now_us: int) -> bool:
        """Moves a little; returns whether the segment is done."""
        if self._work is None:
            return False
        size = 0
        try:
            for frames, one in enumerate(self._work, 1):
                size += self._move(broker, one, now_us)
                if size >= STEP_BYTES or frames >= STEP_FRAMES:
                    break
            else:
                self._work = None
        except StoreFull:
            self._work = None  # what was moved is moved; the rest stays where it is until there is room
            self._journal.commit()
            return False
        self._journal.commit()
        return self._work is None

    def _move(self, broker: Broker, one: Survivors, now_us: int) -> int:
        state = broker.state
        partition = one.destination.partitions[one.partition]
        index = partition.log.index()
        first, last = index.between(one.base, one.base + 1)
        if first == last or int(index.bases[first]) != one.base or state.by_number.get(one.destination.number) is not one.destination:
            return 0  # trimmed or deleted since
        # What is left may have shrunk since the work was laid out; moving a dead row is harmless, losing one is not.
        frame = index.frames[first]
        left = one.selection.without(partition.quarantined)
        if not left.rows:
            partition.log.bury(one.base)
            state.dirty.add(("rows", one.destination.number, one.partition, one.base >> CHUNK_BITS))
            return 0
        broker.ledger.now_us = now_us
        view = make_view(state, one.destination, one.partition, left)
        try:
            batches = [(header, records) for header, records in self._rows.read(view)]
        except (JournalDamaged, DataLost) as error:
            self._set_aside(broker, one, error)
            return 0
        finally:
            unpin(state, view.pins)
        assert len(batches) == 1, "survivors of one frame fit into one record batch"
        header, records = batches[0]
        uniform = int(frame["priority"])
        moved = Moved(
            destination=one.destination.number,
            partition=one.partition,
            offsets=left.lanes[0][1].serialize(),
            records=Records(rows=header.rows, columns=header.columns, priority_plus_one=uniform + 1 if uniform >= 0 else 1),
            append_time_us=int(frame["time_us"]),
            producer_id=index.producers[int(frame["producer"])],
            sequence_shift=int(frame["shift"]),
        )
        self._make_room(frame_bytes(moved.ByteSize() + 64, records.size))
        broker.ledger.record_rows(Entry(time_us=now_us, moved=moved), records, crc32(records), max(uniform, 0))
        return int(records.size)

    def _make_room(self, size_bytes: int) -> None:
        if not self._journal.fits(size_bytes):
            self._journal.commit()
            self._journal.reserve(size_bytes, for_state=True)

    def _set_aside(self, broker: Broker, one: Survivors, error: MqError) -> None:
        """Damaged survivors stay behind; the frame goes with the next step, since nothing is left of it."""
        self._make_room(frame_bytes(_QUARANTINED_BYTES, None))
        index = one.destination.partitions[one.partition].log.index()
        taken = quarantine_frames(broker.ledger, one.destination, one.partition, index, [one.base])
        if taken:
            say(one.destination.name, one.partition, taken, error)
        one.destination.partitions[one.partition].log.bury(one.base)
