"""Whose processes are gone: runs that nobody holds, and consumers that keep rows for a checkpoint all the
same.

Since when that is so is found out by a tick, from what changed since the one before. So a tick costs what
changed and what is due, however many consumers there are. All of it is derived: after a start every consumer
counts as changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mq_broker.core.model.destination import Destination
from mq_broker.core.model.durable_consumer import Consumer
from mq_broker.core.model.timers import Timers

#: Number of the destination, and incarnation.
Key = tuple[int, bytes]

#: Entries that change the run of a consumer, or which plans it has.
_OF_CONSUMERS: Final = frozenset(
    {
        "consumer_minted",
        "consumer_ended",
        "planned",
        "plans_returned",
        "plans_acknowledged",
        "plans_forgotten",
        "range_opened",
    }
)


class Presence:
    """Which runs are held, and since when others are not.

    Attributes:
        held: runs whose process is there.
        silent: runs of consumers that nobody holds: due when they were looked at last.
        alone: consumers that have acknowledged everything, keep rows, and are without a held run: due since
            then.
    """

    def __init__(self, destinations: dict[int, Destination]) -> None:
        self._destinations = destinations
        self.held: set[int] = set()
        self.silent: Timers[int] = Timers()
        self.alone: Timers[Key] = Timers()
        #: The run of each consumer, and the consumers of each run.
        self._runs: dict[int, dict[bytes, int]] = {}
        self._consumers: dict[int, dict[Key, None]] = {}
        #: Consumers whose run or plans changed; of which the index does not know yet.
        self._changed: dict[Key, None] = {}
        #: Runs and consumers that the next tick looks at.
        self._runs_due: dict[int, None] = {}
        self._consumers_due: dict[Key, None] = {}
        self._has_begun = False

    def note(self, kind: str, what: Any) -> None:
        """Takes down that an entry was recorded."""
        if kind in _OF_CONSUMERS:
            self._changed[what.destination, what.incarnation] = None
        elif kind == "destination_deleted":
            for incarnation in self._runs.get(what.destination, ()):
                self._changed[what.destination, incarnation] = None

    def hold(self, run: int) -> None:
        """A process is there."""
        self.held.add(run)
        self._turn(run)

    def release(self, run: int) -> None:
        """A process is gone."""
        self.held.discard(run)
        self._turn(run)

    def _turn(self, run: int) -> None:
        self.silent.drop(run)
        self._runs_due[run] = None

    def of_run(self, run: int) -> Iterator[tuple[Destination, Consumer]]:
        """Yields the consumers of a run."""
        self._index()
        for key in list(self._consumers.get(run, ())):
            consumer = self._find(key)
            if consumer is not None:
                yield self._destinations[key[0]], consumer

    def look_at_runs(self, now_us: int) -> None:
        """Finds out which runs are gone now, and were not when this was asked last, or are there again."""
        self._index()
        for run in self._runs_due:
            self._consumers_due.update(self._consumers.get(run, {}))
            if run in self.held or run not in self._consumers:
                self.silent.drop(run)
            elif run not in self.silent:
                self.silent.set(run, now_us)
        self._runs_due.clear()

    def look_at_consumers(self, now_us: int) -> None:
        """As `look_at_runs`, which comes before it, of the consumers that keep rows for nobody."""
        self._index()
        for key in self._consumers_due:
            consumer = self._find(key)
            if consumer is None or consumer.run in self.held or not consumer.keeps:
                self.alone.drop(key)
            elif key not in self.alone:
                self.alone.set(key, now_us)
        self._consumers_due.clear()

    def _index(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._changed |= {
                (number, incarnation): None
                for number, destination in self._destinations.items()
                for incarnation in destination.queue.consumers
            }
        changed, self._changed = self._changed, {}
        for key in changed:
            number, incarnation = key
            consumer = self._find(key)
            before, now = self._runs.get(number, {}).get(incarnation), consumer.run if consumer else None
            self._consumers_due[key] = None
            if before == now:
                continue
            self._runs_due |= {run: None for run in (before, now) if run is not None}
            if before is not None:
                self._forget(key, before)
            if now is not None:
                self._runs.setdefault(number, {})[incarnation] = now
                self._consumers.setdefault(now, {})[key] = None

    def _forget(self, key: Key, run: int) -> None:
        number, incarnation = key
        for known, group, item in ((self._runs, number, incarnation), (self._consumers, run, key)):
            members: dict[Any, Any] = known[group]
            del members[item]
            if not members:
                del known[group]

    def _find(self, key: Key) -> Consumer | None:
        destination = self._destinations.get(key[0])
        return destination.queue.consumers.get(key[1]) if destination is not None else None
