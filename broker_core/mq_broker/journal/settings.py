"""Settings of the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq_wire.errors import InvalidOption

SEGMENT_BYTES_DEFAULT: Final = 128 << 20
SEGMENT_BYTES_MIN: Final = 16 << 10
#: Twice the size of the largest batch. An empty data directory has four files of this size.
FIRST_BYTES_DEFAULT: Final = 8 << 20
#: Larger files would only delay the reuse of their space. Positions in them would still fit into 32 bits.
SEGMENT_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How the journal uses its folder.

    Args:
        segment_bytes: largest size of a segment file, a multiple of 4096. Existing segments keep their size.
        first_bytes: size of the first segment files, and of the files that are kept back for state. Sizes
            double with each file that rows take.
        pool_segments: `pool_segments - 1` empty files are kept ready for rows. Of recycled segments, twice
            `pool_segments` are kept; more are removed.
        reserves: number of empty files that are kept back for state. 0 if nothing is written afterwards.
        spare_bytes: bytes that new segment files leave free on the disk, at least. A segment is reused only
            after a snapshot, and a snapshot needs room: without it, a full disk would stay full for ever.
        sector_bytes: number of bytes that the device writes atomically, 512 or 4096; None asks the disk.
        fill_in_background: whether a thread fills pool files. Tests switch it off, so that all steps happen
            in a fixed order.
        maps_max: number of segments that stay mapped for readers; other segments are mapped again on use.

    Raises:
        InvalidOption: a value that is not allowed.
    """

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    first_bytes: int = FIRST_BYTES_DEFAULT
    pool_segments: int = 2
    reserves: int = 2
    spare_bytes: int = 0
    sector_bytes: int | None = None
    fill_in_background: bool = True
    maps_max: int = 256

    def __post_init__(self) -> None:
        if self.segment_bytes % 4096 or not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise InvalidOption(
                f"segment_bytes is {self.segment_bytes}: take a multiple of 4096 from {SEGMENT_BYTES_MIN} "
                f"to {SEGMENT_BYTES_MAX}"
            )
        if self.first_bytes % 4096 or self.first_bytes < SEGMENT_BYTES_MIN:
            raise InvalidOption(
                f"first_bytes is {self.first_bytes}: take a multiple of 4096 from {SEGMENT_BYTES_MIN} on"
            )
        if self.pool_segments < 2:
            raise InvalidOption(f"pool_segments is {self.pool_segments}: take 2 or more")
        if self.spare_bytes < 0:
            raise InvalidOption(f"spare_bytes is {self.spare_bytes}: take 0 or more")
        if self.sector_bytes not in (None, 512, 4096):
            raise InvalidOption(
                f"sector_bytes is {self.sector_bytes}: take 512 or 4096, or leave it out to ask the device"
            )
        if self.maps_max < 2:
            raise InvalidOption(f"maps_max is {self.maps_max}: take 2 or more")


#: For tests: a new segment begins after a few operations, and nothing happens in the background.
TINY: Final = JournalSettings(
    segment_bytes=16 << 10, pool_segments=2, sector_bytes=512, fill_in_background=False, maps_max=2
)
