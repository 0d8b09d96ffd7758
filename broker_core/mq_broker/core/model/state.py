"""Everything the broker knows, in memory."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mq_broker.core.commands import Settings
from mq_broker.core.model.audit import AuditMemory
from mq_broker.core.model.destination import Destination
from mq_broker.core.model.frozen import Frozen, Shelf
from mq_broker.core.model.markers import Markers
from mq_broker.core.model.presence import Presence
from mq_broker.core.model.query import Query
from mq_broker.core.model.session import Session
from mq_broker.core.model.staged import StagedSets
from mq_broker.core.model.timers import Timers
from mq_wire.errors import DestinationRecreated, MqError, UnknownDestination


@dataclass(slots=True)
class BrowseView:
    """What `OpenBrowse` froze, for a limited time."""

    destination: str
    destination_id: bytes
    partitions: dict[int, Frozen]
    pins: frozenset[int]


@dataclass(slots=True)
class Totals:
    """Counts since this process started."""

    published: int = 0
    delivered: int = 0
    acknowledged: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class State:
    """Durable state is changed by `apply` alone; what follows `# volatile` lives as long as the process."""

    cluster_id: bytes
    settings: Settings
    epoch: int = 0
    next_destination: int = 1
    by_name: dict[str, Destination] = field(default_factory=dict)
    by_number: dict[int, Destination] = field(default_factory=dict)
    partitions_total: int = 0
    producers: dict[str, int] = field(default_factory=dict)
    audits: AuditMemory = field(init=False)
    staged: StagedSets = field(default_factory=StagedSets)
    markers: Markers = field(default_factory=Markers)
    #: Durable consumers of all destinations.
    consumers_total: int = 0
    queries: dict[str, Query] = field(default_factory=dict)
    #: Queues that they read and targets that they write, of all of them.
    query_ends: int = 0
    #: Plans of all consumers, ever: tells whether a plan was cut before a batch was first read or after.
    plans_cut: int = 0

    # volatile
    sessions: dict[int, Session] = field(default_factory=dict)
    next_session: int = 0
    presence: Presence = field(init=False)
    #: No query was idle when room for another one was looked for, and nothing has changed since that could
    #: have made one idle.
    is_crowded: bool = False
    browses: dict[bytes, BrowseView] = field(default_factory=dict)
    #: When each of them ends.
    browses_end: Timers[bytes] = field(default_factory=Timers)
    shelf: Shelf = field(default_factory=Shelf)
    pins: Counter[int] = field(default_factory=Counter)
    totals: Totals = field(default_factory=Totals)
    #: Destinations that may have rows for sessions that wait; who was first is looked at first.
    stirred: dict[str, None] = field(default_factory=dict)
    #: Destinations with new rows, or gone: who waits for rows looks again.
    news: set[str] = field(default_factory=set)
    #: Sessions that asked and are answered behind the rows, and why sessions were ended; both once the turn
    #: is on disk.
    asked: dict[int, Session] = field(default_factory=dict)
    farewells: list[tuple[Session, MqError]] = field(default_factory=list)
    #: Rows recognised as stored before, by destination and partition, that no entry counts yet.
    duplicates: Counter[tuple[int, int]] = field(default_factory=Counter)
    #: Damaged bytes were found. A snapshot is due: the next start should not have to read them, since then it
    #: would be refused.
    damage_found: bool = False
    #: All names in order, once somebody has asked for them.
    _names: list[str] | None = None
    #: (kind, ...) keys of snapshot parts that changed since the last snapshot.
    dirty: set[tuple[object, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings = self.settings
        self.audits = AuditMemory(settings.anonymous_producers_max, settings.anonymous_producers_total_max)
        self.next_session = self.settings.first_session
        self.presence = Presence(self.by_number)

    def stir(self, name: str, *, news: bool = True) -> None:
        """Lets the next dispatch look at a destination, and with `news` everybody who waits for rows
        of it.
        """
        self.stirred[name] = None
        if news:
            self.news.add(name)

    def add(self, destination: Destination) -> None:
        """Takes a new destination."""
        self.by_name[destination.name] = self.by_number[destination.number] = destination
        self.partitions_total += len(destination.partitions)
        if self._names is not None:
            bisect.insort(self._names, destination.name)

    def remove(self, number: int) -> None:
        """Lets go of a destination."""
        destination = self.by_number.pop(number)
        del self.by_name[destination.name]
        self.partitions_total -= len(destination.partitions)
        for partition in destination.partitions:
            partition.audit.close()
        if self._names is not None:
            del self._names[bisect.bisect_left(self._names, destination.name)]

    def consuming(self) -> list[Destination]:
        """Returns the destinations with durable consumers."""
        return [destination for destination in self.by_number.values() if destination.durable_consumers]

    def names(self, prefix: str, after: str) -> Iterator[str]:
        """Yields the names behind `after` that begin with a prefix, in order. They are sorted once, and asked
        for page by page.
        """
        if self._names is None:
            self._names = sorted(self.by_name)
        at = max(bisect.bisect_right(self._names, after), bisect.bisect_left(self._names, prefix))
        while at < len(self._names) and self._names[at].startswith(prefix):
            yield self._names[at]
            at += 1

    def destination(self, name: str) -> Destination:
        """Returns the destination of this name.

        Raises:
            UnknownDestination: there is none.
        """
        found = self.by_name.get(name)
        if found is None:
            raise UnknownDestination(
                f"there is no destination {name!r}: create it with `mq create {name}`, or check the name"
            )
        return found

    def destination_of(self, name: str, destination_id: bytes) -> Destination:
        """Returns the destination of this name, which must still be the one with this id (empty = any)."""
        found = self.by_name.get(name)
        if destination_id and (found is None or found.destination_id != destination_id):
            now = "does not exist any more" if found is None else "was deleted and created again"
            raise DestinationRecreated(
                f"destination {name!r} {now}: the offsets belong to {destination_id.hex()}. Start the "
                f"query with a new checkpoint"
            )
        return found if found is not None else self.destination(name)
