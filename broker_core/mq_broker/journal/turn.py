"""The turn in hand: frames that will be written and synced together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mq_broker.journal import frames
from mq_broker.journal.frames import ALIGNMENT, TRAILER_BYTES, ZEROS, FrameKind, Place, Trailer
from mq_wire.checksum import crc32

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: From this size on a body goes to the disk as it is; smaller ones are joined, since a copy is cheaper than a
#: buffer more.
_JOIN_BYTES_MAX: Final = 32 << 10


class TurnBuilder:
    """Collects the entries of one turn. Places are known at once, nothing is written.

    Args:
        seed: of the journal (`frames.seed_of`).
        segment: number of the segment that the turn lies in.
        start: position where it begins, a multiple of `sector_bytes`.
        turn: its number.
        generation: its generation.
    """

    __slots__ = (
        "_buffers",
        "_entries_crc",
        "_sector_bytes",
        "_seed",
        "_segment",
        "entries",
        "generation",
        "position",
        "start",
        "turn",
    )

    def __init__(
        self, seed: int, segment: int, start: int, turn: int, generation: int, sector_bytes: int
    ) -> None:
        assert start % sector_bytes == 0, (start, sector_bytes)
        self._seed = seed
        self._segment = segment
        self._sector_bytes = sector_bytes
        self._buffers: list[Buffer] = []
        self._entries_crc = 0
        self.start = start
        self.turn = turn
        self.generation = generation
        #: Where the next entry goes.
        self.position = start
        #: How many entries there are.
        self.entries = 0

    def end_with(self, size_bytes: int) -> int:
        """Returns where the turn would end if entries of this size (`frames.frame_bytes`) were added and it
        were sealed.
        """
        return frames.align(self.position + size_bytes + TRAILER_BYTES, self._sector_bytes)

    def add(self, header: bytes, body: Buffer | None, body_crc: int | None) -> Place | None:
        """Adds an entry; returns where its body will lie, None without body. The body must not change until
        the turn is written.
        """
        place = (self._segment, self.position)
        turn = (self.turn, self.generation, self.entries)
        self.entries += 1
        if body is None:
            head, crc = frames.encode_head(self._seed, FrameKind.ENTRY, header, None, 0, place, turn)
            self._buffers.append(head)
            self._entries_crc = frames.add_entry_crc(self._entries_crc, crc)
            self.position += len(head)
            return None
        view = memoryview(body).cast("B")
        size = view.nbytes
        if body_crc is None:
            body_crc = crc32(view)
        head, crc = frames.encode_head(self._seed, FrameKind.ENTRY, header, size, body_crc, place, turn)
        self._buffers += (head, view, ZEROS[: -size % ALIGNMENT])
        self._entries_crc = frames.add_entry_crc(self._entries_crc, crc)
        at = self.position + len(head)
        self.position = at + frames.align(size, ALIGNMENT)
        return Place(self._segment, at, size, body_crc)

    def seal(self, previous_crc: int) -> tuple[Sequence[Buffer], int, int]:
        """Closes the turn with its trailer; returns what to write at `start`, the trailer's CRC, and where
        the turn ends.
        """
        end = self.end_with(0)
        at = end - TRAILER_BYTES
        header = frames.encode_trailer_header(Trailer(self.start, previous_crc, self._entries_crc))
        place = (self._segment, at)
        turn = (self.turn, self.generation, self.entries)
        trailer, crc = frames.encode_head(self._seed, FrameKind.TRAILER, header, None, 0, place, turn)
        self._buffers += (ZEROS[: at - self.position], trailer)
        return _joined(self._buffers), crc, end


def _joined(buffers: list[Buffer]) -> list[Buffer]:
    """Joins neighbours that are small; leaves large buffers as they are."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if memoryview(buffer).nbytes < _JOIN_BYTES_MAX:
            small.append(buffer)
            continue
        joined += (b"".join(small), buffer)
        small = []
    if small:
        joined.append(b"".join(small))
    return joined
