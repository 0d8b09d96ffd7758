"""When what is due: a heap, so that looking at it costs what is due, and not what there is."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: Entries of the heap that nothing is due by any more, beside as many as there are keys.
_STALE_MAX: Final = 64


class Timers(Generic[Key]):
    """Keys, each with the time at which it is due. Times are of one clock that only grows.

    What is set again or dropped leaves its entry in the heap, where it is passed over later. Once there are
    more of these than of keys, the heap is made anew. Keys that are due at the same time come in the order in
    which they were set.
    """

    def __init__(self) -> None:
        #: When each key is due, and which of the entries in the heap is its own.
        self._due: dict[Key, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def __iter__(self) -> Iterator[Key]:
        return iter(self._due)

    def set(self, key: Key, due_us: int) -> None:
        """Lets a key be due at this time, instead of the one that it was due at."""
        self._number += 1
        self._due[key] = (due_us, self._number)
        if len(self._heap) >= 2 * len(self._due) + _STALE_MAX:
            self._heap = [(due, at, known) for known, (due, at) in self._due.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (due_us, self._number, key))

    def drop(self, key: Key) -> None:
        """Forgets a key, if it is known."""
        self._due.pop(key, None)

    def due(self, now_us: int, count: int | None = None) -> list[Key]:
        """Returns the keys that are due, the first `count` of them, in their order. They stay due until they
        are dropped or set again.
        """
        found: list[tuple[int, int, Key]] = []
        while self._heap and self._heap[0][0] <= now_us and (count is None or len(found) < count):
            due_us, number, key = heapq.heappop(self._heap)
            if self._due.get(key) == (due_us, number):
                found.append((due_us, number, key))
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [key for _, _, key in found]
