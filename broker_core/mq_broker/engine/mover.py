"""Reads stored rows and writes them again elsewhere: the one room that does."""

from __future__ import annotations

from typing import Final

from mq_broker.core.broker import Broker
from mq_broker.core.handlers.quarantine import quarantine_frames
from mq_broker.core.handlers.views import make_view, unpin
from mq_broker.core.model.facets import Facets
from mq_broker.core.retention import Survivors
from mq_broker.core.touching import CHUNK_BITS
from mq_broker.engine.events import tell_lost
from mq_broker.engine.rows import RowReader
from mq_broker.journal.frames import frame_bytes
from mq_broker.journal.journal import Journal
from mq_wire.checksum import crc32
from mq_wire.errors import DataLost, JournalDamaged, MqError
from mq_wire.store.v1.store_pb2 import Entry, Moved, Records

#: An entry that names rows of one frame takes no more.
_QUARANTINED_BYTES: Final = 16 << 10


class Mover:
    """Copies what is left of a frame, under the same offsets, to the end of the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._rows = journal, RowReader(journal, journal.position)

    def move(self, broker: Broker, one: Survivors, now_us: int) -> int | None:
        """Writes the rows of one frame again, as part of the turn in hand; returns how many bytes.

        Damaged rows are quarantined instead, and a frame without rows leaves the index. None = the rows must
        stay where they are.

        Raises:
            StoreFull: no room; nothing was changed.
        """
        state = broker.state
        partition = one.destination.partitions[one.partition]
        index = partition.log.index()
        first, last = index.between(one.base, one.base + 1)
        if (
            first == last
            or int(index.bases[first]) != one.base
            or state.by_number.get(one.destination.number) is not one.destination
        ):
            return 0  # trimmed or deleted since
        # What is left may have shrunk since the work was laid out; moving a dead row is harmless, losing one
        # is not.
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
        if len(batches) > 1:
            # Columns that share bytes, which version 0.1.0 stored: apart they are more than a frame holds.
            return None
        header, records = batches[0]
        uniform = int(frame["priority"])
        moved = Moved(
            destination=one.destination.number,
            partition=one.partition,
            offsets=left.lanes[0][1].serialize(),
            records=Records(
                rows=header.rows, columns=header.columns, priority_plus_one=uniform + 1 if uniform >= 0 else 1
            ),
            append_time_us=int(frame["time_us"]),
            producer_id=index.producers[int(frame["producer"])],
            sequence_shift=int(frame["shift"]),
        )
        self._make_room(frame_bytes(moved.ByteSize() + 64, records.size))
        broker.ledger.record_copy(
            Entry(time_us=now_us, moved=moved), records, crc32(records), Facets(max(uniform, 0))
        )
        return int(records.size)

    def _make_room(self, size_bytes: int) -> None:
        if not self._journal.space.fits(size_bytes):
            self._journal.commit()
            self._journal.reserve(size_bytes, for_state=True, left=1)  # where any are kept back

    def _set_aside(self, broker: Broker, one: Survivors, error: MqError) -> None:
        """Damaged survivors stay behind; the frame goes with the next step, since nothing is left of it."""
        self._make_room(frame_bytes(_QUARANTINED_BYTES, None))
        index = one.destination.partitions[one.partition].log.index()
        taken = quarantine_frames(broker.ledger, one.destination, one.partition, index, [one.base])
        if taken:
            tell_lost(one.destination.name, one.partition, taken, error)
        one.destination.partitions[one.partition].log.bury(one.base)
