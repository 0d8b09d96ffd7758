"""Which journal segments still hold rows that somebody can get, and which of those rows are worth
moving out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mq_broker.core.model.destination import Destination
from mq_broker.core.model.log import FrameIndex
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.state import State
from mq_broker.core.touching import CHUNK_BITS


@dataclass(frozen=True, slots=True)
class Survivors:
    """Rows of one frame that somebody can still get; `selection` has them all under one nominal priority."""

    destination: Destination
    partition: int
    base: int
    selection: Selection
    size_bytes: int


def touched(state: State) -> list[Destination]:
    """Returns the destinations of which anything changed since the last snapshot: nobody else's floor can
    have risen.
    """
    numbers = {part[1] for part in state.dirty if part[0] in ("log", "rows", "consumers")}
    return [destination for number, destination in state.by_number.items() if number in numbers]


def trim(state: State) -> None:
    """Forgets frames below the floors of every partition that changed."""
    for destination in touched(state):
        for number, partition in enumerate(destination.partitions):
            if len(partition.log.index().bases):
                chunks = np.unique(partition.log.trim(destination.floor(number)) >> np.uint64(CHUNK_BITS))
                # Also where nothing else has changed: a snapshot would keep them for ever.
                state.dirty.update(("rows", destination.number, number, chunk) for chunk in chunks.tolist())


def live_segments(state: State) -> set[int]:
    """Returns the segments of which any frame is still in some index, or staged."""
    logs = [partition.log for destination in state.by_number.values() for partition in destination.partitions]
    columns = [log.index().frames["segment"] for log in logs if log.frames]
    columns.extend(held.frames.table["segment"] for held in state.staged.values())
    return set(np.unique(np.concatenate(columns)).tolist()) if columns else set()


def reclaimable(state: State, segments: list[int]) -> list[int]:
    """Returns those of `segments` without frames and without pins."""
    trim(state)
    live = live_segments(state)
    return [segment for segment in segments if segment not in live and segment not in state.pins]


def changed_segments(state: State) -> set[int]:
    """Returns the segments of frames that lie in changed parts. A trimmed frame is in none: ask before
    `trim`.
    """
    found: set[int] = set()
    for kind, *which in state.dirty:
        destination = state.by_number.get(which[0]) if kind == "rows" else None  # type: ignore[call-overload]
        if destination is not None:
            _, number, chunk = which
            log = destination.partitions[number].log
            found |= log.index().segments(chunk << CHUNK_BITS, (chunk + 1) << CHUNK_BITS)  # type: ignore[operator]
    return found


def remains(state: State, segment: int) -> tuple[int, int]:
    """Returns how many frames of a segment are left, and about how many bytes copies of what somebody can
    still get would take.

    Quick also where it is full of small frames: neighbours are counted together.
    """
    frames = size_bytes = 0
    for destination, number, index, at in _frames_in(state, segment):
        frames += len(at)
        for run in np.split(at, np.flatnonzero(np.diff(at) != 1) + 1):
            low, high = (
                int(index.bases[run[0]]),
                int(index.bases[run[-1]]) + int(index.frames["span"][run[-1]]),
            )
            size_bytes += index.bytes_to_copy(destination.live(number, low, high))
    return frames, size_bytes


def survivors(state: State, segment: int) -> Iterator[Survivors]:
    """Yields what is left of the frames in a segment, frames without survivors included (their selection is
    empty).
    """
    for destination, number, index, found in _frames_in(state, segment):
        for at in found.tolist():
            base, span = int(index.bases[at]), int(index.frames["span"][at])
            left = destination.live(number, base, base + span)
            selection = Selection.of([(0, left)])
            yield Survivors(
                destination, number, base, selection, index.bytes_of(selection) if selection.rows else 0
            )


def _frames_in(state: State, segment: int) -> Iterator[tuple[Destination, int, FrameIndex, np.ndarray]]:
    """Yields (destination, partition, its index, places in it) of the frames in a segment."""
    for destination in list(state.by_number.values()):
        for number, partition in enumerate(destination.partitions):
            if partition.log.frames:
                index = partition.log.index()
                at = np.flatnonzero(index.frames["segment"] == segment)
                if len(at):
                    yield destination, number, index, at


def holds_staged(state: State, segment: int) -> bool:
    """Returns whether rows of a staged set lie in the segment; those stay where they are until they are
    committed.
    """
    return any((held.frames.table["segment"] == segment).any() for held in state.staged.values())
