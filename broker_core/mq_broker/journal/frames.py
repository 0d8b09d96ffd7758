"""Frames, version 1: the layout of one entry in a journal segment or of one part in a snapshot pack. All
numbers are little-endian.

    position   a multiple of 64
       +---------------------------------------------------------------+
     0 | magic "MQJF"                  | version | kind  | flags       |
     8 | header size                   | body size                     |
    16 | segment number                                                |
    24 | position of this frame in the segment                         |
    32 | turn                                                          |
    40 | generation                    | index                         |
    48 | zero                                                          |
    56 | body CRC                      | header CRC                    |
       +---------------------------------------------------------------+
    64 | header: header size bytes, opaque here                        |
       | zeros up to a multiple of 64                                  |
       | body: body size bytes, opaque here (an Arrow IPC record batch)|
       | zeros up to a multiple of 64                                  |
       +---------------------------------------------------------------+

- *body CRC* is `zlib.crc32` of the body, or 0 without body. A reader that knows the place of a body can check
  it without reading the header.
- *header CRC* covers bytes 0-59 (including place and body CRC) and the header. It is seeded with the CRC of
  the journal's uuid, because a payload may contain frames of another journal. It covers the place, because
  disks may write to the wrong place, and recycled files are full of old frames.
- *index* numbers the entries of a turn from 0. In a trailer it is the number of entries.
- *flags*: 1 = HAS_BODY. With the flag, a body size of 0 means an empty body; without it there is no body.

A turn is a run of entries closed by a trailer. It begins and ends on a sector boundary:

    | entry 0 | entry 1 | ... | zeros | trailer |

The trailer is the last 128 bytes of the turn, so that it can be found from the end. Its header has 64 bytes:

     0 | position where the turn begins                                |
     8 | header CRC of the turn before | CRC over the entries' CRCs    |
    16 | zeros

The header CRCs of the trailers thus form a chain over all turns of the journal. These layouts never change. A
new layout gets a new version number, and the old reader stays. A new kind or flag needs no new version: a
program that does not know it refuses the journal.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final
from uuid import UUID

from mq_wire.checksum import crc32
from mq_wire.errors import DataDirectoryUnusable

VERSION: Final = 1
MAGIC: Final = b"MQJF"
#: The magic as a number in the byte order of the file, for searches with NumPy.
MAGIC_NUMBER: Final = int.from_bytes(MAGIC, "little")
ALIGNMENT: Final = 64
FIXED_BYTES: Final = 64
TRAILER_BYTES: Final = 128
HAS_BODY: Final = 1
FLAGS_KNOWN: Final = HAS_BODY
#: Slices of it are used as padding; slicing does not copy.
ZEROS: Final = memoryview(bytes(4096))

_PREFIX: Final = struct.Struct("<4sBBHIIQQQIIQI")
_FIXED: Final = struct.Struct("<4sBBHIIQQQIIQII")
_TRAILER: Final = struct.Struct("<QII48x")
_CRC: Final = struct.Struct("<I")

assert _FIXED.size == FIXED_BYTES == _PREFIX.size + _CRC.size
assert FIXED_BYTES + _TRAILER.size == TRAILER_BYTES


class FrameKind(IntEnum):
    """What a frame holds."""

    ENTRY = 1
    TRAILER = 2
    #: A part of a snapshot, in a pack. The header is the key, the body is the part.
    PART = 3
    #: The table of contents of a snapshot; the only frame of its file.
    MANIFEST = 4


_KINDS: Final = frozenset(FrameKind)


class Reading(Enum):
    """Why there is no frame at a position."""

    UNWRITTEN = "never written"
    STALE = "left over from an earlier use of the file"
    BROKEN = "unfinished or damaged"


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """The place of one body: segment number, position and size in bytes, and the CRC of the body."""

    segment: int
    position: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame with the right header CRC, at its own place. Its body is not checked yet."""

    kind: FrameKind
    segment: int
    position: int
    turn: int
    generation: int
    index: int
    header: memoryview
    has_body: bool
    body_position: int
    body_size: int
    body_crc: int
    crc: int

    @property
    def end(self) -> int:
        """Position after the frame and its padding."""
        return align(self.body_position + self.body_size, ALIGNMENT)

    def place(self) -> BodyPlace:
        """Returns the place of the body."""
        return BodyPlace(self.segment, self.body_position, self.body_size, self.body_crc)


@dataclass(frozen=True, slots=True)
class Trailer:
    """The content of a trailer: position where its turn begins, CRC of the previous trailer, and CRC over the
    entries' CRCs.
    """

    start: int
    previous_crc: int
    entries_crc: int


def align(position: int, grain: int) -> int:
    """Rounds up to a multiple of `grain`, a power of two."""
    return (position + grain - 1) & -grain


def seed_of(uuid: UUID) -> int:
    """Returns the start value for all header CRCs of the journal with this uuid."""
    return crc32(uuid.bytes)


def frame_bytes(header_size: int, body_size: int | None) -> int:
    """Returns the size of a frame in bytes, with its padding."""
    return align(FIXED_BYTES + header_size, ALIGNMENT) + align(body_size or 0, ALIGNMENT)


def encode_head(
    seed: int,
    kind: FrameKind,
    header: bytes,
    body_size: int | None,
    body_crc: int,
    place: tuple[int, int],
    turn: tuple[int, int, int],
) -> tuple[bytes, int]:
    """Returns the bytes of a frame before its body, padding included, and its header CRC.

    Args:
        place: segment and position.
        turn: turn, generation and index.
    """
    flags = 0 if body_size is None else HAS_BODY
    prefix = _PREFIX.pack(
        MAGIC, VERSION, kind, flags, len(header), body_size or 0, *place, *turn, 0, body_crc
    )
    crc = crc32(header, crc32(prefix, seed))
    return b"".join((prefix, _CRC.pack(crc), header, ZEROS[: -len(header) % ALIGNMENT])), crc


def encode_trailer_header(trailer: Trailer) -> bytes:
    """Returns the header of a trailer frame."""
    return _TRAILER.pack(trailer.start, trailer.previous_crc, trailer.entries_crc)


def decode_trailer_header(header: memoryview) -> Trailer | None:
    """Returns the content of a trailer, or None if the header does not have the size of one."""
    if len(header) != _TRAILER.size:
        return None
    return Trailer(*_TRAILER.unpack(header))


def add_entry_crc(entries_crc: int, crc: int) -> int:
    """Returns the CRC over the entries' CRCs, extended by one entry."""
    return crc32(_CRC.pack(crc), entries_crc)


def decode(view: memoryview, segment: int, position: int, seed: int) -> Frame | Reading:
    """Reads the frame at `position` of a segment or pack; `view` is the whole file. The body is not checked.

    Returns the frame, or the reason why there is none at this position.

    Raises:
        DataDirectoryUnusable: the frame is right, but this program does not know its version, kind or flags.
    """
    if position % ALIGNMENT or position + FIXED_BYTES > len(view):
        return Reading.BROKEN
    fixed = _FIXED.unpack_from(view, position)
    (
        magic,
        version,
        kind,
        flags,
        header_size,
        body_size,
        at_segment,
        at_position,
        turn,
        generation,
        index,
        _,
        body_crc,
        crc,
    ) = fixed
    if magic != MAGIC:
        unwritten = view[position : position + FIXED_BYTES] == ZEROS[:FIXED_BYTES]
        return Reading.UNWRITTEN if unwritten else Reading.BROKEN
    body_position = align(position + FIXED_BYTES + header_size, ALIGNMENT)
    if align(body_position + body_size, ALIGNMENT) > len(view):
        return Reading.BROKEN
    header = view[position + FIXED_BYTES : position + FIXED_BYTES + header_size]
    if crc32(header, crc32(view[position : position + _PREFIX.size], seed)) != crc:
        return Reading.BROKEN
    if (at_segment, at_position) != (segment, position):
        return Reading.STALE
    if version != VERSION or kind not in _KINDS or flags & ~FLAGS_KNOWN:
        raise DataDirectoryUnusable(
            f"segment {segment}, position {position}: this program (version {VERSION}) does not know frames "
            f"of version {version}, kind {kind}, flags {flags:#x}: "
            "start the newer version of mq broker that wrote it"
        )
    return Frame(
        FrameKind(kind), segment, position, turn, generation, index,
        header, bool(flags & HAS_BODY), body_position, body_size, body_crc, crc,
    )  # fmt: skip


def crc_of(body: bytes) -> int:
    """Returns the body CRC."""
    return crc32(body)


def body_of(view: memoryview, frame: Frame) -> memoryview | None:
    """Returns the body of a frame, or None if its CRC or the padding around it is wrong. A frame without body
    gives an empty one.
    """
    header_end = frame.position + FIXED_BYTES + len(frame.header)
    body_end = frame.body_position + frame.body_size
    if not is_zero(view, header_end, frame.body_position) or not is_zero(view, body_end, frame.end):
        return None
    body = view[frame.body_position : body_end]
    return body if crc32(body) == frame.body_crc else None


def is_zero(view: memoryview, start: int, end: int) -> bool:
    """Whether these bytes, at most 4096, are zeros. Padding is checked so that damage in any byte of a turn
    is found.
    """
    return view[start:end] == ZEROS[: end - start]
