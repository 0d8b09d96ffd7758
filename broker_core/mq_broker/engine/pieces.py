"""Which slices of which frames hold some rows, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyroaring import BitMap64

from mq_broker.core.model.log import FrameIndex
from mq_broker.core.model.selection import Lane, offsets_array, range_bitmap

#: Scattered offsets that are spelled out at a time: a view may hold millions, and wait long for who does not
#: read.
_WINDOW_ROWS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one frame: `rows` from `start` on, or those at `indices` (ascending). `offsets` is None where
    they are contiguous.
    """

    frame: int
    priority: int
    rows: int
    start: int
    indices: np.ndarray | None
    offsets: np.ndarray | None
    base_offset: int


def pieces(index: FrameIndex, priority: int, offsets: BitMap64) -> Iterator[Piece]:
    """Returns, in order, which rows of which frames hold `offsets`."""
    low, high = offsets.min(), offsets.max()
    first, counts = index.rows_per_frame(offsets)
    contiguous = high - low + 1 == len(offsets)
    window, window_at = np.zeros(0, np.int64), 0
    at = 0
    for frame, rows in enumerate(counts.tolist(), first):
        if not rows:
            continue
        base = int(index.bases[frame])
        kept = index.sparse.get(base)
        if contiguous and kept is None:
            start = low + at - base
            yield Piece(frame, priority, rows, start, None, None, low + at)
        else:
            if at + rows > window_at + len(window):
                end = base + max(int(index.frames[frame]["span"]), _WINDOW_ROWS)
                window = (
                    np.arange(low + at, low + at + rows)
                    if contiguous
                    else offsets_array(offsets & range_bitmap(max(base, low), end))
                )
                window_at = at
            yield _scattered(frame, priority, base, window[at - window_at : at - window_at + rows], kept)
        at += rows


def joined(index: FrameIndex, lanes: Iterable[Lane]) -> Iterator[Piece]:
    """Returns the pieces of several lanes in order. Parts of one lane that meet within a frame are one
    piece.
    """
    last: Piece | None = None
    for priority, offsets in lanes:
        for piece in pieces(index, priority, offsets):
            if last is not None and (last.frame, last.priority) == (piece.frame, piece.priority):
                last = _together(last, piece)
                continue
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last


def _together(one: Piece, other: Piece) -> Piece:
    """Returns the rows of both, which lie in one frame, one behind the other."""
    rows = one.rows + other.rows
    indices = offsets = None
    if one.indices is not None or other.indices is not None or one.start + one.rows != other.start:
        indices = np.concatenate([_indices(one), _indices(other)])
    if (
        one.offsets is not None
        or other.offsets is not None
        or one.base_offset + one.rows != other.base_offset
    ):
        offsets = np.concatenate([offsets_of(one), offsets_of(other)])
    return Piece(one.frame, one.priority, rows, one.start, indices, offsets, one.base_offset)


def _scattered(frame: int, priority: int, base: int, offsets: np.ndarray, kept: BitMap64 | None) -> Piece:
    indices = offsets - base if kept is None else np.searchsorted(offsets_array(kept), offsets)
    rows, first = len(offsets), int(offsets[0])
    together = int(indices[-1]) - int(indices[0]) + 1 == rows
    return Piece(
        frame,
        priority,
        rows,
        int(indices[0]),
        None if together else indices,
        None if int(offsets[-1]) - first + 1 == rows else offsets,
        first,
    )


def cut(piece: Piece, rows: int) -> tuple[Piece, Piece | None]:
    if piece.rows <= rows:
        return piece, None
    halves = []
    for low, high in ((0, rows), (rows, piece.rows)):
        indices = None if piece.indices is None else piece.indices[low:high]
        offsets = None if piece.offsets is None else piece.offsets[low:high]
        halves.append(
            Piece(
                piece.frame,
                piece.priority,
                high - low,
                piece.start + low if indices is None else int(indices[0]),
                indices,
                offsets,
                piece.base_offset + low if offsets is None else int(offsets[0]),
            )
        )
    return halves[0], halves[1]


def offsets_of(piece: Piece) -> np.ndarray:
    return (
        piece.offsets
        if piece.offsets is not None
        else np.arange(piece.base_offset, piece.base_offset + piece.rows)
    )


def _indices(piece: Piece) -> np.ndarray:
    return piece.indices if piece.indices is not None else np.arange(piece.start, piece.start + piece.rows)
