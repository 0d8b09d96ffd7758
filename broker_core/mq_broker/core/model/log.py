"""The log of one partition: where its rows lie in the journal, as NumPy columns, one entry a frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
from pyroaring import BitMap64

from mq_broker.core.model.selection import Selection, offsets_array
from mq_broker.core.stored import newer
from mq_wire import envelope


class Place(Protocol):
    """Where the journal keeps one body (mq_broker.journal.frames.BodyPlace)."""

    @property
    def segment(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def crc(self) -> int: ...


class KeptPlace(NamedTuple):
    """A place that was read from a snapshot."""

    segment: int
    position: int
    size: int
    crc: int


#: One frame, as snapshots keep it: fields are only ever added at the end. `priority` -1 = the rows differ;
#: `span` = offsets covered; `rows` = how many of them its bytes hold.
FRAME: Final = np.dtype(
    [
        ("base", "<u8"),
        ("span", "<u4"),
        ("columns", "<u4"),
        ("segment", "<u8"),
        ("position", "<u8"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("producer", "<u4"),
        ("priority", "<i4"),
        ("shift", "<i8"),
        ("time_us", "<i8"),
        ("rows", "<u4"),
    ]
)
#: What version 0.1.0 wrote: no `rows`.
_FRAME_1: Final = np.dtype([(name, FRAME[name]) for name in (FRAME.names or ())[:-1]])
#: About what a frame takes in the journal beside its rows.
FRAME_OVERHEAD_BYTES: Final = 200

#: Where nothing was appended yet: of many thousand partitions most may be empty.
_NO_FRAMES: Final = np.zeros(0, FRAME)
_NO_BASES: Final = np.zeros(0, np.uint64)

#: Counting up to an offset takes as long as spelling out about so many.
_RANK_ROWS: Final = 256


def frames_of(data: bytes, frame_bytes: int) -> np.ndarray:
    """Returns the frames that a snapshot keeps, each in so many bytes (0 = as version 0.1.0 wrote them).

    Raises:
        DataDirectoryUnusable: a newer version wrote them.
    """
    layout = {0: _FRAME_1, FRAME.itemsize: FRAME}.get(frame_bytes)
    if layout is None:
        raise newer(f"the snapshot has an index of frames with {frame_bytes} bytes each")
    if len(data) % layout.itemsize:
        raise newer(f"the snapshot has an index of {len(data)} bytes, for frames of {layout.itemsize} each")
    known = np.frombuffer(data, layout)
    if (known["columns"] & ~np.uint32(envelope.ALL_COLUMNS)).any():
        raise newer(f"the snapshot has an index of frames with columns {int(known['columns'].max()):#x}")
    if layout is FRAME:
        return known
    frames = np.zeros(len(known), FRAME)
    for name in _FRAME_1.names or ():
        frames[name] = known[name]
    frames["rows"] = known["span"]
    return frames


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The frames of a partition at one moment; later appends do not show, so any thread may read it.

    `sparse` holds, by base offset, the offsets that are left in a frame whose survivors were moved.
    """

    bases: np.ndarray
    frames: np.ndarray
    producers: list[str]
    sparse: dict[int, BitMap64]

    def between(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the index range of the frames that hold any offset of [start, stop)."""
        first = int(np.searchsorted(self.bases, np.uint64(start), side="right")) - 1
        return max(first, 0), int(np.searchsorted(self.bases, np.uint64(stop), side="left"))

    def at(self, base: int) -> np.void | None:
        """Returns the frame whose base offset is `base`."""
        found = int(np.searchsorted(self.bases, np.uint64(base)))
        return self.frames[found] if found < len(self.bases) and int(self.bases[found]) == base else None

    def segments(self, start: int, stop: int) -> frozenset[int]:
        """Returns the journal segments that hold rows of [start, stop)."""
        first, last = self.between(start, stop)
        return frozenset(self.frames["segment"][first:last].tolist())

    def rows_per_frame(self, offsets: BitMap64) -> tuple[int, np.ndarray]:
        """Returns the first frame that `offsets` touches, and how many of them lie in it and in each that
        follows.
        """
        low, high = offsets.min(), offsets.max()
        first, last = self.between(low, high + 1)
        if last - first == 1:
            return first, np.array([len(offsets)])
        if high - low + 1 == len(offsets):
            edges = np.append(self.bases[first + 1 : last].astype(np.int64), high + 1)
            return first, np.diff(edges, prepend=low)
        if (last - first) * _RANK_ROWS < len(offsets):
            ranks = [offsets.rank(base - 1) for base in self.bases[first + 1 : last].tolist()]
            return first, np.diff(np.array([*ranks, len(offsets)]), prepend=0)
        edges = np.searchsorted(offsets_array(offsets), self.bases[first + 1 : last].astype(np.int64))
        return first, np.diff(np.append(edges, len(offsets)), prepend=0)

    def bytes_of(self, selection: Selection) -> int:
        """Returns the estimated bytes of the rows: each has its frame's mean size."""
        total = 0.0
        for _, offsets in selection.lanes:
            first, counts = self.rows_per_frame(offsets)
            total += float((counts * self._mean_bytes(first, len(counts))).sum())
        return int(total)

    def rows_within(self, selection: Selection, budget_bytes: int, *, whole_frames: bool = False) -> int:
        """Returns how many rows of the selection, in order, fit into `budget_bytes` by estimate.

        `whole_frames`: no frame is cut but the first one, since half a frame is written anew for each half.
        """
        rows, left = 0, float(budget_bytes)
        for _, offsets in selection.lanes:
            first, counts = self.rows_per_frame(offsets)
            means = self._mean_bytes(first, len(counts))
            running = np.cumsum(counts * means)
            whole = int(np.searchsorted(running, left, side="right"))
            rows += int(counts[:whole].sum())
            if whole < len(counts) and whole_frames and rows:
                return rows
            if whole < len(counts):
                used = float(running[whole - 1]) if whole else 0.0
                return rows + min(int((left - used) / float(means[whole])), int(counts[whole]))
            left -= float(running[-1])
        return rows

    def _mean_bytes(self, first: int, count: int) -> np.ndarray:
        frames = self.frames[first : first + count]
        means: np.ndarray = frames["size"] / np.maximum(frames["rows"], 1)
        return means

    def bytes_to_copy(self, offsets: BitMap64) -> int:
        """Returns about how many bytes of journal it takes to write these rows again, each frame by itself.

        With what a frame takes beside its rows: a segment full of copies must never look mostly dead.
        """
        if not offsets:
            return 0
        first, counts = self.rows_per_frame(offsets)
        return int(
            (counts * self._mean_bytes(first, len(counts)) + FRAME_OVERHEAD_BYTES * (counts > 0)).sum()
        )


class PartitionLog:
    """Append-only index with a floor: frames below it hold no row that anybody can still get."""

    __slots__ = (
        "_bases",
        "_count",
        "_frames",
        "_producer_numbers",
        "_start",
        "_view",
        "next_offset",
        "producers",
        "size_bytes",
        "span",
        "sparse",
    )

    def __init__(self) -> None:
        self.next_offset = 0
        #: Of all frames: their bytes in the journal, and the offsets that they cover. Never summed up.
        self.size_bytes = self.span = 0
        self.producers: list[str] = [""]
        self.sparse: dict[int, BitMap64] = {}
        self._producer_numbers = {"": 0}
        self._frames, self._bases = _NO_FRAMES, _NO_BASES
        self._start = self._count = 0
        self._view: FrameIndex | None = None

    @property
    def frames(self) -> int:
        """How many frames there are."""
        return self._count

    def append(
        self,
        rows: int,
        columns: int,
        place: Place,
        priority: int,
        producer: str,
        first_sequence: int,
        time_us: int,
    ) -> int:
        """Adds a frame at the end and returns the base offset that its rows get."""
        base = self.next_offset
        frame = (
            base,
            rows,
            columns,
            place.segment,
            place.position,
            place.size,
            place.crc,
            self.number_of(producer),
            priority,
        )
        self._push((*frame, first_sequence - base if producer else 0, time_us, rows))
        self.next_offset = base + rows
        return base

    def extend(self, frames: np.ndarray) -> int:
        """Adds frames (`FRAME`) at the end, and returns the base offset that the first of them gets. Base
        offsets are filled in.
        """
        base = self.next_offset
        after = np.cumsum(frames["span"], dtype=np.uint64) + np.uint64(base)
        frames["base"] = after - frames["span"]
        end = self._make_room(len(frames))
        self._frames[end : end + len(frames)] = frames
        self._bases[end : end + len(frames)] = frames["base"]
        self._sum(frames, 1)
        self._count += len(frames)
        self._view = None
        self.next_offset = int(after[-1])
        return base

    def _push(self, frame: tuple[int, ...]) -> None:
        end = self._make_room(1)
        self._frames[end] = frame
        self._bases[end] = frame[0]
        self.span += frame[1]
        self.size_bytes += frame[5]
        self._count += 1
        self._view = None

    def _sum(self, frames: np.ndarray, sign: int) -> None:
        self.size_bytes += sign * int(frames["size"].sum())
        self.span += sign * int(frames["span"].sum())

    def _make_room(self, frames: int) -> int:
        """Returns where so many frames more can be written."""
        end = self._start + self._count
        if end + frames > len(self._frames):
            # Old arrays stay as they are: readers may hold views of them.
            size = max(16, 2 * (self._count + frames))
            grown, bases = np.zeros(size, FRAME), np.zeros(size, np.uint64)
            grown[: self._count] = self._frames[self._start : end]
            bases[: self._count] = self._bases[self._start : end]
            self._frames, self._bases, self._start = grown, bases, 0
            end = self._count
        return end

    def number_of(self, producer: str) -> int:
        """Returns the number under which frames name this producer."""
        number = self._producer_numbers.get(producer)
        if number is None:
            number = self._producer_numbers[producer] = len(self.producers)
            self.producers.append(producer)
        return number

    def index(self) -> FrameIndex:
        """Returns the frames as they are now."""
        if self._view is None:
            window = slice(self._start, self._start + self._count)
            self._view = FrameIndex(self._bases[window], self._frames[window], self.producers, self.sparse)
        return self._view

    def move(self, base: int, columns: int, place: Place, left: BitMap64) -> int:
        """Points the frame at `base` to where its surviving offsets `left` were copied; returns the segment
        it was in.
        """
        index = self.index()
        at = int(np.searchsorted(index.bases, np.uint64(base)))
        frames = self._frames.copy()
        frame = frames[self._start + at]
        old = int(frame["segment"])
        self.size_bytes += place.size - int(frame["size"])
        frame["segment"], frame["position"], frame["size"], frame["crc"] = (
            place.segment,
            place.position,
            place.size,
            place.crc,
        )
        frame["columns"], frame["rows"] = columns, len(left)
        self._frames, self.sparse, self._view = frames, {**self.sparse, base: left}, None
        return old

    def insert(self, frame: tuple[int, ...], left: BitMap64) -> None:
        """Adds a frame among the others, where damage left none: a repair has found its rows `left`
        elsewhere.
        """
        index = self.index()
        at = int(np.searchsorted(index.bases, np.uint64(frame[0])))
        self._sum(np.array([frame], FRAME), 1)
        self._frames = np.insert(index.frames, at, np.array(frame, FRAME))
        self._bases = np.insert(index.bases, at, np.uint64(frame[0]))
        self._start, self._count, self._view = 0, self._count + 1, None
        self.sparse = {**self.sparse, frame[0]: left}

    def bury(self, base: int) -> None:
        """Takes the frame at `base`, of which no row is left, out of the index."""
        index = self.index()
        at = int(np.searchsorted(index.bases, np.uint64(base)))
        self._sum(index.frames[at : at + 1], -1)
        self._frames = np.delete(index.frames, at)
        self._bases = np.delete(index.bases, at)
        self._start, self._count, self._view = 0, self._count - 1, None

    def trim(self, floor: int) -> np.ndarray:
        """Forgets the frames that lie wholly below `floor`; returns their base offsets."""
        index = self.index()
        if not self._count or int(index.bases[0]) + int(index.frames["span"][0]) > floor:
            return np.zeros(0, np.uint64)
        count = int(np.searchsorted(index.bases, np.uint64(floor), side="right")) - 1
        if int(index.bases[count]) + int(index.frames["span"][count]) <= floor:
            count += 1
        trimmed = index.bases[:count].copy()
        self._sum(index.frames[:count], -1)
        if self.sparse:
            gone = set(trimmed.tolist())
            self.sparse = {base: left for base, left in self.sparse.items() if base not in gone}
        self._start += count
        self._count -= count
        self._view = None
        return trimmed

    def restore(self, frames: np.ndarray, sparse: dict[int, BitMap64]) -> None:
        """Takes frames of a snapshot, in order, before anything is appended."""
        end = self._make_room(len(frames))
        self._frames[end : end + len(frames)] = frames
        self._bases[end : end + len(frames)] = frames["base"]
        self._count += len(frames)
        self._sum(frames, 1)
        self.sparse = {**self.sparse, **sparse}
        self._view = None

    def count_sparse(self) -> None:
        """Says of each frame whose survivors were moved how many rows are left; version 0.1.0 did not."""
        bases = np.array(sorted(self.sparse), np.uint64)
        index = self.index()
        at = np.searchsorted(index.bases, bases)
        index.frames["rows"][at] = [len(self.sparse[base]) for base in bases.tolist()]

    def restore_producers(self, producers: Iterable[str], next_offset: int) -> None:
        """Takes some of the table that the frames of a snapshot point into, in order, and the next offset (0
        = told before).
        """
        self.next_offset = max(self.next_offset, next_offset)
        for producer in producers:
            self.number_of(producer)

    def compact_producers(self) -> bool:
        """Forgets producers of whom no frame is left, where they are many; returns whether it did, which
        renumbers the others.
        """
        if len(self.producers) < 1024 + 4 * self._count:
            return False
        index = self.index()
        kept = np.union1d(index.frames["producer"], [0])
        frames = self._frames.copy()
        window = frames[self._start : self._start + self._count]
        window["producer"] = np.searchsorted(kept, window["producer"])
        self._frames, self._view = frames, None
        self.producers = [self.producers[number] for number in kept.tolist()]
        self._producer_numbers = {producer: number for number, producer in enumerate(self.producers)}
        return True
