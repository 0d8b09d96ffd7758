"""Which journal segments still hold rows that somebody can get."""

from __future__ import annotations

from collections import Counter

from mq_broker.core.state import State


def trim(state: State) -> None:
    """Forgets frames below every partition's floor."""
    for destination in state.by_number.values():
        for number, partition in enumerate(destination.partitions):
            if len(partition.log.index().bases):
                partition.log.trim(destination.floor(number))


def live_frames(state: State) -> Counter[int]:
    """Returns how many frames of each segment somebody can still get."""
    counts: Counter[int] = Counter()
    for destination in state.by_number.values():
        counts.update(destination.segments())
    for held in state.staged.values():
        counts.update(frame.place.segment for frame in held.frames)
    return counts


def reclaimable(state: State, segments: list[int]) -> list[int]:
    """Returns those of `segments` without frames and without pins."""
    trim(state)
    live = live_frames(state)
    return [segment for segment in segments if segment not in live and segment not in state.pins]
