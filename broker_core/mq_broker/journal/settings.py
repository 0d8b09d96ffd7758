"""Settings of the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq_wire.errors import InvalidOption

SEGMENT_BYTES_DEFAULT: Final = 128 << 20
SEGMENT_BYTES_MIN: Final = 16 << 10
#: Twice what the largest batch takes: an empty directory has four of these.
FIRST_BYTES_DEFAULT: Final = 8 << 20
#: Positions inside a segment fit into 32 bits many times over; larger files would only make space come back
#: later.
SEGMENT_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How the journal uses its folder.

    Args:
        segment_bytes: largest size of a segment file, a multiple of 4096. Segments that exist keep the size
            they have.
        first_bytes: size of the first segment files, and of the two that are kept back for state; from there
            on sizes double with use.
        pool_segments: one empty file less is kept ready for rows; twice as many recycled ones are kept, the
            rest is removed.
        reserves: so many empty files are kept back for state; none where nothing goes on afterwards.
        spare_bytes: what new segment files leave free on the disk, at least. Segments come back only behind a
            snapshot, which needs room as well: without any, a disk that is full would stay full for ever.
        sector_bytes: what the device writes atomically, 512 or 4096; None asks the disk.
        fill_in_background: fill pool files on a thread of their own; off in tests, where each step must come
            in order.
        maps_max: how many segments stay mapped for readers; others are mapped again when they are asked for.

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


#: For tests: everything rolls after a few operations, and nothing happens behind the test's back.
TINY: Final = JournalSettings(
    segment_bytes=16 << 10, pool_segments=2, sector_bytes=512, fill_in_background=False, maps_max=2
)
