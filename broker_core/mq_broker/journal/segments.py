"""Segments: the files of the journal, numbered without gaps in the order of their use.

The first 4096 bytes of `segment-<number>.mqj` are for its header, which has 64 bytes (little-endian, version
1; this layout never changes):

     0 | magic "MQJS"                  | version | zeros               |
     8 | uuid of the journal, 16 bytes                                 |
    24 | segment number                                                |
    32 | number of the first turn                                      |
    40 | size of the file                                              |
    48 | sector bytes                  | zeros                         |
    56 | zeros                         | CRC of bytes 0-59             |

Header and file are durable before the file gets its name, so a named segment with another header is damaged.
The turns begin at position 4096.

At position 64 a mark of 32 bytes says that there is a next segment. It is written once the next segment is
durable under its name, and before anything is written into that segment:

    64 | magic "MQJN"                  | CRC of the rest               |
    72 | uuid of the journal, 16 bytes                                 |
    88 | number of the next segment                                    |

Without the mark, the journal would seem to end here if the next file were lost. The mark is removed when a
next segment without turns is recycled.
"""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from mq_broker.journal.disk import Disk, DiskFile, read_in
from mq_broker.journal.pool import SegmentPool
from mq_broker.journal.settings import JournalSettings
from mq_wire.checksum import crc32
from mq_wire.errors import DataDirectoryUnusable, DataLost, JournalDamaged, StorageFailed

VERSION: Final = 1
MAGIC: Final = b"MQJS"
#: Position of the first turn in every segment.
FIRST_POSITION: Final = 4096
_HEADER: Final = struct.Struct("<4sB3x16sQQQI8xI")
_CRC_AT: Final = 60
assert _HEADER.size == 64
_NEXT_MAGIC: Final = b"MQJN"
_NEXT: Final = struct.Struct("<4sI16sQ")
_NEXT_AT: Final = _HEADER.size


def segment_name(number: int) -> str:
    """File name of the segment with this number."""
    return f"segment-{number:010d}.mqj"


@dataclass(slots=True)
class Segment:
    """One segment file. `first_turn` is None if its header is damaged, which is allowed only for segments
    that recovery need not read.
    """

    number: int
    first_turn: int | None
    size: int
    sector_bytes: int
    #: The header says that there is a next segment.
    followed: bool = False
    #: The device has read the whole segment without an error.
    is_read: bool = False
    view: memoryview | None = field(default=None, repr=False)


def encode_header(uuid: UUID, number: int, first_turn: int, size: int, sector_bytes: int) -> bytes:
    """Returns the header of a segment, padded to `FIRST_POSITION`."""
    header = _HEADER.pack(MAGIC, VERSION, uuid.bytes, number, first_turn, size, sector_bytes, 0)[:_CRC_AT]
    return (header + crc32(header).to_bytes(4, "little")).ljust(FIRST_POSITION, b"\0")


def decode_header(header: bytes, uuid: UUID, number: int, file_bytes: int) -> Segment:
    """Reads the header of segment `number`.

    Raises:
        JournalDamaged: the header is damaged, or belongs to another segment.
        DataDirectoryUnusable: the header has an unknown version or belongs to another journal.
    """
    name = segment_name(number)
    if len(header) < _HEADER.size:
        raise JournalDamaged(
            f"{name} has {file_bytes} bytes and no header: restore the data directory from a copy"
        )
    magic, version, of, at_number, first_turn, size, sector_bytes, crc = _HEADER.unpack_from(header)
    if magic != MAGIC or crc32(header[:_CRC_AT]) != crc:
        raise JournalDamaged(
            f"{name}, position 0: the header is damaged: restore the data directory from a copy"
        )
    if version != VERSION:
        raise DataDirectoryUnusable(
            f"{name} has version {version}, this program knows {VERSION}: start the mq broker that wrote it"
        )
    if of != uuid.bytes:
        raise DataDirectoryUnusable(
            f"{name} belongs to journal {UUID(bytes=of)}, not to {uuid}: do not mix files of data directories"
        )
    if at_number != number or size != file_bytes:
        raise JournalDamaged(
            f"{name} has {file_bytes} bytes and the header of segment {at_number} with {size} bytes: "
            "restore the data directory from a copy"
        )
    return Segment(number, first_turn, size, sector_bytes)


def encode_next(uuid: UUID, number: int) -> bytes:
    """Returns the mark which says that segment `number` has a next segment."""
    rest = _NEXT.pack(b"", 0, uuid.bytes, number + 1)[8:]
    return _NEXT_MAGIC + crc32(rest).to_bytes(4, "little") + rest


def size_in(header: bytes) -> int | None:
    """Returns the file size that a segment header states, or None if the header is damaged."""
    whole = (
        len(header) >= _HEADER.size
        and crc32(header[:_CRC_AT]).to_bytes(4, "little") == header[_CRC_AT : _HEADER.size]
    )
    return int(_HEADER.unpack_from(header)[5]) if whole else None


class Segments:
    """All segments of one journal, and their memory maps.

    The writer adds and recycles segments; any thread may map one. A map stays valid when its segment is
    recycled, but its bytes are overwritten. The core knows which segments other threads read (`State.pins`)
    and does not let them be recycled.

    Args:
        disk: the journal's folder.
        settings: sizes of new segments.
        uuid: of the journal.
        pool: source of new files.
    """

    def __init__(self, disk: Disk, settings: JournalSettings, uuid: UUID, pool: SegmentPool) -> None:
        self._disk = disk
        self._settings = settings
        self._uuid = uuid
        self._pool = pool
        self._lock = threading.Lock()
        self._by_number: dict[int, Segment] = {}
        self._mapped: list[Segment] = []
        #: Lowest number that a new segment may get.
        self.number_min = 1
        self.sector_bytes = settings.sector_bytes or disk.sector_bytes

    def find(self, needed_from: int | None) -> None:
        """Reads the headers of all segments in the folder.

        Args:
            needed_from: first segment that recovery reads. Segments before it may have damaged headers: their
                rows have checksums of their own. None = every segment may be damaged or missing.

        Raises:
            JournalDamaged: a segment that recovery reads is missing or has a damaged header.
            DataDirectoryUnusable: a segment of an unknown version or of another journal.
        """
        for name in self._disk.list_names():
            stem = name.removeprefix("segment-").removesuffix(".mqj")
            if not stem.isdecimal() or name != segment_name(int(stem)):
                continue
            number = int(stem)
            file = self._disk.open(name)
            size = file.size()
            header = file.read_at(0, _NEXT_AT + _NEXT.size)
            file.close()
            try:
                segment = decode_header(header, self._uuid, number, size)
                segment.followed = header[_NEXT_AT:] == encode_next(self._uuid, number)
            except JournalDamaged:
                if needed_from is not None and number >= needed_from:
                    raise
                segment = Segment(number, None, size, self.sector_bytes)
            self._by_number[number] = segment
        if needed_from is not None:
            self._check_all_there(needed_from)

    def _check_all_there(self, needed_from: int) -> None:
        last = max(self._by_number, default=0)
        end = last + self._by_number[last].followed if last else 0
        for number in range(needed_from, max(end, needed_from) + 1):
            if number not in self._by_number:
                raise JournalDamaged(
                    f"{segment_name(number)} is missing (recovery begins in segment {needed_from}, and the "
                    f"last segment is {end}): `mq verify` shows what is lost; put the file back, or let "
                    "`mq repair` do without it; nothing was changed"
                )

    def __iter__(self) -> Iterator[Segment]:
        return iter(sorted(self._by_number.values(), key=lambda segment: segment.number))

    def __getitem__(self, number: int) -> Segment:
        try:
            return self._by_number[number]
        except KeyError:
            raise _gone(number) from None

    def get(self, number: int) -> Segment | None:
        """Returns the segment, or None if it is not kept."""
        return self._by_number.get(number)

    def open_next(self, first_turn: int, size_bytes: int, left: int) -> tuple[Segment, DiskFile]:
        """Makes the next segment from a file of the pool. It is durable under its name before any turn is
        written into it.

        `size_bytes` and `left` must be the values that `SegmentPool.ensure` was called with.
        """
        number = max(max(self._by_number, default=0) + 1, self.number_min)
        (pool_name, size), file = self._pool.take(size_bytes, left)
        file.write_at([encode_header(self._uuid, number, first_turn, size, self.sector_bytes)], 0)
        file.sync()
        self._disk.rename(pool_name, segment_name(number))
        self._disk.sync_directory()
        segment = Segment(number, first_turn, size, self.sector_bytes)
        self._by_number[number] = segment
        return segment, file

    def note_next(self, segment: Segment, file: DiskFile, *, exists: bool) -> None:
        """Writes or removes the mark that there is a next segment, and syncs it."""
        if segment.followed != exists:
            file.write_at(
                [encode_next(self._uuid, segment.number) if exists else bytes(_NEXT.size)], _NEXT_AT
            )
            file.sync()
            segment.followed = exists

    def view(self, segment: Segment) -> memoryview:
        """Returns the segment's bytes as a read-only memory map, which also shows later writes."""
        view = segment.view
        if view is not None:
            return view
        with self._lock:
            if self._by_number.get(segment.number) is not segment:
                raise _gone(segment.number)
            if segment.view is not None:
                return segment.view
            file = self._disk.open(segment_name(segment.number))
            view = file.map()
            file.close()
            segment.view = view
            self._mapped.append(segment)
            if len(self._mapped) > self._settings.maps_max:
                # Slices that are in use keep the map alive.
                self._mapped.pop(0).view = None
            return view

    def whole(self, segment: Segment) -> memoryview:
        """Returns the same as `view`, after the device has read the whole segment. For recovery and repair,
        which read all of it.

        Raises:
            JournalDamaged: the device cannot read it.
        """
        view = self.view(segment)
        if not segment.is_read:
            try:
                read_in(view, 0, len(view))
            except OSError as error:
                raise JournalDamaged(
                    f"{segment_name(segment.number)}: {error}: copy the directory to another disk with a "
                    "tool that skips bad sectors, such as ddrescue, and run `mq repair` on the copy"
                ) from error
            segment.is_read = True
        return view

    def part(self, number: int, position: int, size: int) -> memoryview:
        """Returns `size` bytes of a segment as a view of its map, after the device has read them.

        Raises:
            DataLost: the segment is no longer kept.
            JournalDamaged: the device cannot read the bytes.
            StorageFailed: the segment could not be mapped.
        """
        try:
            whole = self.view(self[number])
        except OSError as error:
            raise _unmapped(number, error) from error
        try:
            read_in(whole, position, size)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise _unmapped(number, error) from error
            raise JournalDamaged(
                f"segment {number}, position {position}: {size} bytes: {error}: these rows are lost here"
            ) from error
        return whole[position : position + size]

    def recycle(self, numbers: Iterable[int]) -> None:
        """Moves segments into the pool."""
        with self._lock:
            free = [self[number] for number in numbers]
            for segment in free:
                del self._by_number[segment.number]
                if segment.view is not None:
                    self._mapped.remove(segment)
                    segment.view = None
        for segment in free:
            self._pool.give(segment_name(segment.number), segment.size)
        if free:
            # Otherwise a crash could bring back the old name with bytes from the next use of the file.
            self._disk.sync_directory()


def _unmapped(number: int, error: OSError) -> StorageFailed:
    remedy = {
        errno.ENOMEM: "raise the memory limit (ulimit -v, RLIMIT_AS, or that of the container)",
        errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE=)",
    }.get(error.errno or 0, "check the disk")
    return StorageFailed(f"segment {number} could not be mapped: {error}: {remedy}")


def _gone(number: int) -> DataLost:
    return DataLost(
        f"segment {number} is no longer kept: its rows were acknowledged or moved; look them up again"
    )
