"""The turn that is being collected: frames that will be written and synced together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mq_broker.journal import frames
from mq_broker.journal.frames import ALIGNMENT, TRAILER_BYTES, ZEROS, BodyPlace, FrameKind, Trailer
from mq_wire.checksum import crc32

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Buffers below this size are copied into one: the copy costs less than one more buffer in the system call.
_JOIN_BYTES_MAX: Final = 32 << 10


class TurnBuilder:
    """Collects the entries of one turn. `add` knows the place of each entry at once. Nothing is written here.

    Args:
        seed: of the journal (`frames.seed_of`).
        segment: number of the segment that the turn lies in.
        start: position where the turn begins, a multiple of `sector_bytes`.
        turn: number of the turn.
        generation: generation of the turn.
        sector_bytes: of the segment.
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
        #: Position of the next entry.
        self.position = start
        #: Number of entries.
        self.entries = 0

    def end_with(self, size_bytes: int) -> int:
        """Returns the position where the turn would end if frames of this size (`frames.frame_bytes`) and the
        trailer were added.
        """
        return frames.align(self.position + size_bytes + TRAILER_BYTES, self._sector_bytes)

    def add(self, header: bytes, body: Buffer | None, body_crc: int | None) -> BodyPlace | None:
        """Adds an entry. Returns the place that its body will have, or None if there is no body. The body
        must not change until the turn is written.
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
        return BodyPlace(self._segment, at, size, body_crc)

    def seal(self, previous_crc: int) -> tuple[Sequence[Buffer], int, int]:
        """Closes the turn with its trailer. Returns the buffers to write at `start`, the trailer's CRC, and
        the position where the turn ends.
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
    """Joins small buffers that are neighbours. Large buffers stay as they are."""
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
