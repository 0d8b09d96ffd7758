"""What was committed by whom, for ever: the same version of the same owner is never committed twice."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mq_wire.checksum import crc32

#: On disk for ever: the keys of parts of a snapshot are made of it.
BUCKETS: Final = 256
#: Owner of one batch write without a transaction of its own: the marker makes its commit safe to repeat, and
#: nobody asks for it again.
WRITE_OWNER: Final = "write:"
#: A write that is repeated after this long is no retry any more.
WRITE_MARKER_TTL_US: Final = 24 * 3600 * 1_000_000

#: (owner, target).
Key = tuple[str, str]


def bucket_of(name: str) -> int:
    """Returns the bucket of a query id or an owner."""
    return crc32(name.encode()) % BUCKETS


@dataclass(frozen=True, slots=True)
class Marker:
    """The last version that an owner (a query, an application) has committed to a target."""

    version: int
    run_id: str
    rows: int
    #: The streaming query that it worked for; "" where it did not say.
    query_id: str = ""
    #: Broker wall clock; 0 where it is not known.
    time_us: int = 0


@dataclass(slots=True)
class Markers:
    """By (owner, target), in the buckets that they have in a snapshot.

    `passing` are those of writes, which end by themselves: since when each is there, 0 where that is not
    known yet. They go round in it.
    """

    passing: dict[Key, int] = field(default_factory=dict)
    _buckets: list[dict[Key, Marker]] = field(default_factory=lambda: [{} for _ in range(BUCKETS)])
    #: The keys of each bucket in order, once somebody has asked for them.
    _sorted: list[list[Key] | None] = field(default_factory=lambda: [None] * BUCKETS)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return key in self._buckets[bucket_of(key[0])]

    def __getitem__(self, key: Key) -> Marker:
        return self._buckets[bucket_of(key[0])][key]

    def get(self, key: Key) -> Marker | None:
        """Returns the marker, or None."""
        return self._buckets[bucket_of(key[0])].get(key)

    def items(self) -> Iterator[tuple[Key, Marker]]:
        """Yields (key, marker), bucket by bucket."""
        return (item for bucket in self._buckets for item in bucket.items())

    def bucket(self, number: int) -> dict[Key, Marker]:
        """Returns the markers of one bucket, not to be changed."""
        return self._buckets[number]

    def behind(self, number: int, after: Key, prefix: str) -> Iterator[tuple[Key, Marker]]:
        """Yields the markers of one bucket behind the key `after`, of owners that begin with `prefix`, in
        order.
        """
        keys = self._sorted[number]
        if keys is None:
            keys = self._sorted[number] = sorted(self._buckets[number])
        at = max(bisect.bisect_right(keys, after), bisect.bisect_left(keys, (prefix, "")))
        while at < len(keys) and keys[at][0].startswith(prefix):
            yield keys[at], self._buckets[number][keys[at]]
            at += 1

    def of_owner(self, owner: str) -> list[Marker]:
        """Returns the markers of one owner on all of its targets."""
        return [marker for key, marker in self._buckets[bucket_of(owner)].items() if key[0] == owner]

    @property
    def lasting(self) -> int:
        """How many are remembered until an operator forgets them."""
        return self._count - len(self.passing)

    def put(self, key: Key, marker: Marker) -> None:
        """Remembers `marker` in place of an older one."""
        number = bucket_of(key[0])
        bucket, keys = self._buckets[number], self._sorted[number]
        if key not in bucket:
            self._count += 1
            if keys is not None:
                bisect.insort(keys, key)
        bucket[key] = marker
        if key[0].startswith(WRITE_OWNER):
            self.passing[key] = marker.time_us

    def pop(self, key: Key) -> Marker | None:
        """Forgets a marker; returns it, None where there was none."""
        number = bucket_of(key[0])
        marker, keys = self._buckets[number].pop(key, None), self._sorted[number]
        if marker is not None:
            self._count -= 1
            if keys is not None:
                del keys[bisect.bisect_left(keys, key)]
            self.passing.pop(key, None)
        return marker

    def over(self, now_us: int, looked_at_max: int) -> list[Key]:
        """Returns which of the next `looked_at_max` markers of writes have had their time; the others are
        looked at again a round later.
        """
        found = []
        for key in [key for key, _ in zip(self.passing, range(looked_at_max), strict=False)]:
            since = self.passing.pop(key) or now_us
            self.passing[key] = since
            if now_us - since > WRITE_MARKER_TTL_US:
                found.append(key)
        return found
