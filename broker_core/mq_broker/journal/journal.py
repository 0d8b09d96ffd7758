"""The journal: a chain of segments with everything that is durable, written in turns with one sync each.

    journal = Journal.create(disk, settings, uuid)     # once, for a new data directory
    # at every start; read all of `turns` before the first `add`
    journal, turns = Journal.recover(disk, settings, uuid, start)

    if not journal.space.fits(size):             # the collected turn would not fit into its segment
        journal.commit()
    journal.reserve(size)                  # raises StoreFull, before anything is changed
    place = journal.add(header, body)      # no I/O
    journal.commit()                       # durable now: replies may leave

One thread writes. Any thread may call `body`. A failed write or sync is final: every later call raises
StorageFailed, and the next recovery finds out what is on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from mq_broker.journal import frames
from mq_broker.journal.disk import Disk, DiskFile, remedy_of
from mq_broker.journal.frames import TRAILER_BYTES, BodyPlace
from mq_broker.journal.pool import SegmentPool
from mq_broker.journal.recovery import BEGINNING, JournalPosition, Turn, TurnReader
from mq_broker.journal.segments import FIRST_POSITION, Segments, segment_name
from mq_broker.journal.settings import JournalSettings
from mq_broker.journal.space import JournalSpace, Tail
from mq_broker.journal.turn import TurnBuilder
from mq_wire.checksum import crc32
from mq_wire.errors import InternalError, JournalDamaged, LimitExceeded, StorageFailed, StoreFull

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

_INTERRUPTED: Final = "a write was interrupted"


class Journal:
    """See the module. Made by `create` or `recover`.

    Attributes:
        space: figures in bytes, and what fits into the collected turn.
        is_short: rows were refused because there was no segment for them, and none were accepted since.
    """

    def __init__(self, disk: Disk, settings: JournalSettings, uuid: UUID, position: JournalPosition) -> None:
        self._disk = disk
        self._settings = settings
        self._seed = frames.seed_of(uuid)
        self._pool = SegmentPool(disk, settings)
        self._segments = Segments(disk, settings, uuid, self._pool)
        self._tail = Tail(position)
        self.space = JournalSpace(disk, settings, self._tail, self._segments, self._pool)
        self._file: DiskFile | None = None
        self.is_short = False
        #: Why the journal has failed, or None. Set before each write and cleared after it, so that an
        #: interrupted write counts as failed.
        self._failure: BaseException | str | None = None

    @classmethod
    def create(cls, disk: Disk, settings: JournalSettings, uuid: UUID) -> Journal:
        """Makes a new journal with a first, empty turn. Removes segments that an unfinished attempt left.

        Args:
            disk: folder that only the journal uses.
            settings: sizes.
            uuid: a new one for the new journal; it seeds all checksums.

        Raises:
            StoreFull, StorageFailed: no room for a segment, or a write failed.
        """
        for name in disk.list_names():
            if name.startswith("segment-"):
                disk.remove(name)
        return cls.open_behind(disk, settings, uuid, BEGINNING)

    @classmethod
    def open_behind(
        cls, disk: Disk, settings: JournalSettings, uuid: UUID, position: JournalPosition
    ) -> Journal:
        """Opens the journal in a new segment behind `position`, without reading existing segments. The new
        segment's number is at least `position.segment`.
        """
        journal = cls(disk, settings, uuid, position)
        journal._segments.find(needed_from=None)
        journal._segments.number_min = position.segment
        try:
            journal._pool.start()
        except OSError as error:
            raise journal._fail(error) from error
        journal._open_generation()
        return journal

    @classmethod
    def recover(
        cls, disk: Disk, settings: JournalSettings, uuid: UUID, start: JournalPosition | None = None
    ) -> tuple[Journal, Iterator[Turn]]:
        """Opens an existing journal.

        Args:
            disk: folder of the journal.
            settings: sizes; existing segments keep their sizes.
            uuid: of the journal.
            start: position that the snapshot covers; None without snapshot.

        Returns:
            The journal, and the turns after `start`. The journal accepts writes once the iterator is
            exhausted. By then the last turn has been written again in place and synced, because it may have
            been only in the operating system's cache, and a new generation is open.

        Raises (also from the iterator):
            JournalDamaged: acknowledged data is damaged or missing; nothing was changed.
            DataDirectoryUnusable: files of an unknown version or of another journal.
            StoreFull, StorageFailed: no room to open a generation, or a write failed.
        """
        journal = cls(disk, settings, uuid, start or BEGINNING)
        journal._segments.find(needed_from=journal._tail.position.segment)
        return journal, journal._replay(TurnReader(journal._segments, journal._seed, start))

    def _replay(self, reader: TurnReader) -> Iterator[Turn]:
        yield from reader
        self._tail.position = reader.position
        self._failure = _INTERRUPTED
        try:
            self._settle(reader.last)
            self._pool.start()
            self._give_back_unused()
        except OSError as error:
            raise self._fail(error) from error
        self._failure = None
        if not (reader.is_fresh and self._fits_device()):
            self._open_generation()

    def _settle(self, last: Turn | None) -> None:
        """Writes the last turn again and syncs it. After a failed sync it may be only in the cache; all
        earlier turns were synced.
        """
        self._tail.segment = self._segments[self._tail.position.segment]
        self._file = self._disk.open(segment_name(self._tail.segment.number))
        if last is not None:
            view = self._segments.whole(self._tail.segment)
            self._file.write_at([bytes(view[last.start : last.end.position])], last.start)
            self._file.sync()

    def _give_back_unused(self) -> None:
        """Recycles segments after the last turn: nothing in them was ever acknowledged."""
        assert self._tail.segment is not None
        assert self._file is not None
        self._segments.note_next(self._tail.segment, self._file, exists=False)
        unused = [
            segment.number for segment in self._segments if segment.number > self._tail.position.segment
        ]
        self._segments.recycle(unused)

    def _open_generation(self) -> None:
        """Writes and syncs an empty turn of the next generation. After it, frames of older generations do not
        count.
        """
        if not self._fits_device() or not self._tail.has_room(self._tail.current(), 0):
            self._roll(0, (0,))
        self._begin(self._tail.position.generation + 1)
        self._write()

    def _fits_device(self) -> bool:
        """Whether the segment was made for sectors as large as the device's. On a device with larger sectors,
        a new turn could tear the turn before it; a new segment is needed then.
        """
        return (
            self._tail.segment is not None and self._tail.segment.sector_bytes >= self._segments.sector_bytes
        )

    def add(self, header: bytes, body: Buffer | None = None, body_crc: int | None = None) -> BodyPlace | None:
        """Adds an entry to the collected turn. Nothing is written yet.

        Args:
            header: opaque bytes.
            body: opaque bytes that must not change before `commit`, or None.
            body_crc: `zlib.crc32` of the body, if the caller knows it; otherwise it is computed.

        Returns:
            The place that the body will have, or None without body.
        """
        hand = self._tail.hand
        if hand is None or self._failure is not None:
            self._check()
            hand = self._begin(self._tail.position.generation)
        size = frames.frame_bytes(len(header), None if body is None else memoryview(body).nbytes)
        if hand.end_with(size) > self._tail.current().size:
            self.reserve(size, for_state=True)
            hand = self._tail.hand or self._begin(self._tail.position.generation)
        return hand.add(header, body, body_crc)

    def reserve(self, size_bytes: int, *, for_state: bool = False, left: int = 0) -> None:
        """Makes sure that entries of this size can be added. Begins a new segment if the current one is too
        full.

        Args:
            size_bytes: sum of `frames.frame_bytes` of all entries that belong together.
            for_state: the entries may use the segments that are kept back for state. So acknowledgements,
                which free space, go on when rows are refused.
            left: number of kept-back segments that must remain even then.

        Raises:
            StoreFull: the disk has no room for another segment; nothing was changed.
            LimitExceeded: the entries do not fit into any segment.
            StorageFailed: a write failed.
        """
        self._check()
        if self.space.fits(size_bytes):
            if not for_state:
                if not self._ensure(0, self._settings.reserves):
                    raise self._store_full(size_bytes)
                self.is_short = False
            return
        if size_bytes + TRAILER_BYTES > self.space.turn_bytes_max:
            raise LimitExceeded(
                f"entries of {size_bytes} bytes do not fit into a segment of {self._settings.segment_bytes} "
                "bytes: send smaller batches or raise journal.segment_bytes"
            )
        hand = self._tail.hand
        if hand is not None and hand.entries:
            raise InternalError(
                f"turn {hand.turn} has no room for {size_bytes} bytes more: commit it before reserving"
            )
        # State takes a kept-back segment only if the pool cannot fill another file.
        self._roll(
            size_bytes,
            (self._settings.reserves, min(left, self._settings.reserves))
            if for_state
            else (self._settings.reserves,),
        )

    def commit(self) -> int:
        """Writes and syncs the collected turn; returns its number. Without entries it writes nothing and
        returns the number of the last turn.

        Raises:
            StorageFailed: the turn may be on the disk or not. Every later call raises it too.
        """
        self._check()
        if self._tail.hand is not None and self._tail.hand.entries:
            self._write()
        return self._tail.position.turn

    def body(self, place: BodyPlace, *, verify: bool = True) -> pa.Buffer:
        """Returns a body as a view of the mapped segment, without a copy. The segment must not be reclaimed
        while the buffer is in use.

        Args:
            place: from `add` or recovery; its turn must be committed.
            verify: whether to check the CRC. Without the check, damaged bytes are returned.

        Raises:
            JournalDamaged: the CRC is wrong, or the device cannot read the bytes.
            DataLost: the segment is no longer kept.
            StorageFailed: the segment could not be mapped.
        """
        import pyarrow as pa

        view = self._segments.part(place.segment, place.position, place.size)
        if verify and crc32(view) != place.crc:
            raise JournalDamaged(
                f"segment {place.segment}, position {place.position}: {place.size} bytes do not have the "
                f"checksum {place.crc:#010x} that they were stored with: these rows are lost here; "
                "restore them from their source"
            )
        return pa.py_buffer(view)

    def reclaim(self, segment: int) -> None:
        """Returns a segment without live data to the pool, to be used again.

        The segment must come before the one where the older kept snapshot ends
        (`SnapshotStore.older_position`): recovery may begin in that one, even if the snapshot covers all its
        turns.

        Raises:
            InternalError: the segment is being written.
            DataLost: the segment is no longer kept.
        """
        self._check()
        if segment == self._tail.current().number:
            raise InternalError(
                f"segment {segment} is being written: reclaim it after the next one has begun"
            )
        try:
            self._segments.recycle([segment])
        except OSError as error:
            raise self._fail(error) from error

    @property
    def position(self) -> JournalPosition:
        """Position after the last committed turn."""
        return self._tail.position

    @property
    def next_turn(self) -> int:
        """Number of the turn that is being collected."""
        return self._tail.position.turn + 1

    def give_way(self, wanted: tuple[int, ...], left: int) -> bool:
        """Removes empty files so that other files have room. See `SegmentPool.give_way`.

        Raises:
            StorageFailed: a file could not be removed.
        """
        self._check()
        try:
            return self._pool.give_way(wanted, left)
        except OSError as error:
            raise self._fail(error) from error

    def close(self) -> None:
        """Stops the background work and closes the file. Drops the collected turn."""
        self._tail.segment = None
        self._pool.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check(self) -> None:
        """Raises StorageFailed if an earlier write failed."""
        if self._failure is not None:
            raise StorageFailed(
                f"the journal failed earlier ({self._failure}): restart the broker, "
                "which then recovers everything that is on the disk"
            ) from (self._failure if isinstance(self._failure, BaseException) else None)
        self._tail.current()

    def _fail(self, error: OSError) -> StorageFailed:
        self._failure = error
        return StorageFailed(
            f"the journal could not be written after turn {self._tail.position.turn}: {error}: "
            f"{remedy_of(error)}, then restart the broker"
        )

    def _begin(self, generation: int) -> TurnBuilder:
        segment = self._tail.current()
        start, turn = self._tail.start_in(segment), self._tail.position.turn + 1
        self._tail.hand = TurnBuilder(
            self._seed, segment.number, start, turn, generation, segment.sector_bytes
        )
        return self._tail.hand

    def _write(self) -> None:
        hand, file = self._tail.hand, self._file
        assert hand is not None
        assert file is not None
        buffers, crc, end = hand.seal(self._tail.position.trailer_crc)
        assert end <= self._tail.current().size, (end, hand.turn)
        self._failure = _INTERRUPTED
        try:
            file.write_at(buffers, hand.start)
            file.sync()
        except OSError as error:
            raise self._fail(error) from error
        self._failure = None
        self._tail.position = JournalPosition(
            self._tail.current().number, end, hand.turn, hand.generation, crc
        )
        self._tail.hand = None

    def _roll(self, size_bytes: int, left: tuple[int, ...]) -> None:
        """Begins the next segment, with room for entries of this size. The pool keeps the first number of
        files in `left` that is possible.
        """
        self._tail.hand = None
        sector_bytes = self._segments.sector_bytes
        needed = frames.align(FIRST_POSITION + size_bytes + TRAILER_BYTES, sector_bytes) + sector_bytes
        chosen = next((count for count in left if self._ensure(needed, count)), None)
        if chosen is None:
            raise self._store_full(needed)
        self.is_short = self.is_short and chosen < self._settings.reserves
        self._failure = _INTERRUPTED
        try:
            segment, file = self._segments.open_next(self._tail.position.turn + 1, needed, chosen)
            if self._tail.segment is not None and self._file is not None:
                self._segments.note_next(self._tail.segment, self._file, exists=True)
                self._file.close()
        except OSError as error:
            raise self._fail(error) from error
        self._failure = None
        self._tail.segment, self._file = segment, file

    def _ensure(self, size_bytes: int, left: int) -> bool:
        try:
            return self._pool.ensure(size_bytes, left)
        except StorageFailed as error:
            self._failure = error
            raise

    def _store_full(self, size_bytes: int) -> StoreFull:
        self.is_short = True
        return self._pool.refusal(size_bytes)
