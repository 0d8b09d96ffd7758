"""A queue: its partitions, and everything that holds rows of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyroaring import BitMap64

from mq_broker.core.audit import Audit
from mq_broker.core.durable_consumer import Consumer, Plan
from mq_broker.core.lanes import Lanes, Ready
from mq_broker.core.log import PartitionLog
from mq_broker.core.selection import Selection
from mq_broker.core.session import Session

#: Failed attempts of a row are counted up to here: each level of them is a bitmap.
ATTEMPTS_MAX: Final = 255
#: Of so many partitions and consumers the oldest row is looked for each time somebody asks; of more, so
#: often.
_EXACT_MAX: Final = 200
_OLDEST_KEPT_US: Final = 1_000_000


class Partition:
    """One log and the rows of it that are ready. A row that is neither ready nor held by anybody is
    acknowledged.
    """

    __slots__ = ("attempts", "audit", "changes", "duplicates", "log", "quarantined", "ready")

    def __init__(self, anonymous_producers_max: int) -> None:
        self.log = PartitionLog()
        self.ready = Lanes()
        self.audit = Audit(anonymous_producers_max)
        #: [k] = offsets with more than k failed attempts.
        self.attempts: list[BitMap64] = []
        self.duplicates = 0
        #: How often its rows changed, in this process: rows that only change hands are no change.
        self.changes = 0
        #: Rows whose bytes are damaged or gone: never ready again, whoever held them.
        self.quarantined = BitMap64()

    def give_back(self, selection: Selection) -> None:
        """Makes rows ready again."""
        self.ready.add(selection.lanes if not self.quarantined else selection.without(self.quarantined).lanes)

    def lost_of(self, selection: Selection) -> BitMap64:
        """Returns those of the rows whose bytes are damaged or gone."""
        return selection.offsets() & self.quarantined if self.quarantined else BitMap64()

    def charge(self, offsets: BitMap64, times: int = 1) -> None:
        """Counts `times` failed attempts more for each of these rows; no row has more than `ATTEMPTS_MAX`."""
        for _ in range(min(times, ATTEMPTS_MAX)):
            raised = offsets
            for level, known in enumerate(self.attempts):
                above = known & raised
                self.attempts[level] = known | raised
                raised = above
            if raised and len(self.attempts) < ATTEMPTS_MAX:
                self.attempts.append(raised.copy())

    def forget_attempts(self, offsets: BitMap64) -> None:
        """Drops the counts of rows that are done."""
        if self.attempts:
            self.attempts = [left for known in self.attempts if (left := known - offsets)]


class Ended(NamedTuple):
    """How an incarnation ended. `successor` is empty where an operator released it, or `shared`: it was one
    of two readers of one query.
    """

    successor: bytes
    consumer: str
    shared: bool = False


@dataclass(slots=True)
class Destination:
    """A queue under its name. `number` is local to this broker and never reused, `destination_id` is for
    everybody.
    """

    number: int
    name: str
    destination_id: bytes
    partitions: list[Partition]
    consumers: dict[bytes, Consumer] = field(default_factory=dict)
    #: Incarnations that ended, the last ones, oldest first.
    ended: dict[bytes, Ended] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    #: How often anything of a durable consumer changed, in this process.
    changes: int = 0
    #: The age of the oldest row, and how long that holds.
    _oldest_us: int | None = None
    _oldest_until_us: int = -1
    #: What is ready, of all partitions together.
    ready: Ready = field(default_factory=Ready)

    def __post_init__(self) -> None:
        for number, partition in enumerate(self.partitions):
            partition.ready.join(self.ready, number)

    def note_ended(self, incarnation: bytes, how: Ended, ended_max: int) -> None:
        """Remembers that an incarnation is over, and forgets those that ended long before."""
        self.ended[incarnation] = how
        while len(self.ended) > ended_max:
            del self.ended[next(iter(self.ended))]

    def consumer_named(self, name: str) -> Consumer | None:
        return next((c for c in self.consumers.values() if c.name == name), None) if name else None

    def minted_by(self, run: int) -> Consumer | None:
        """Returns the unnamed consumer that this run brought into being."""
        return next((c for c in self.consumers.values() if not c.name and c.minted_by_run == run), None)

    def plans(self) -> Iterator[tuple[Consumer, Plan]]:
        return ((consumer, plan) for consumer in self.consumers.values() for plan in consumer.plans.values())

    @property
    def enqueued(self) -> int:
        """Rows that ever got an offset."""
        return sum(partition.log.next_offset for partition in self.partitions)

    def ready_rows(self) -> int:
        return sum(self.ready.counts)

    def assigned_rows(self) -> int:
        held = sum(session.held_rows for session in self.sessions.values())
        return held + sum(plan.rows for _, plan in self.plans() if plan.pending)

    def floor(self, number: int, *, kept: bool = True) -> int:
        """Returns the offset below which nobody can get a row of this partition any more.

        `kept=False` leaves out what is acknowledged and only kept for a checkpoint that may have lost its
        last batch.
        """
        partition = self.partitions[number]
        lows = [partition.ready.lowest()]
        lows += [
            session.held[number].lowest() for session in self.sessions.values() if number in session.held
        ]
        lows += [
            plan.assignments[number][1].span()[0]
            for _, plan in self.plans()
            if number in plan.assignments
            and plan.assignments[number][1].rows
            and (plan.pending or (kept and not plan.returned))
        ]
        return min((low for low in lows if low is not None), default=partition.log.next_offset)

    def oldest_time_us(self, monotonic_us: int) -> int | None:
        """Returns the append time of the oldest row that is not acknowledged.

        Of a destination with very many partitions and consumers it is found out once a second.
        """
        if self._oldest_until_us > monotonic_us:
            return self._oldest_us
        times = []
        lows = self._lows()
        for number, low in lows.items():
            index = self.partitions[number].log.index()
            if len(index.bases):
                times.append(int(index.frames["time_us"][index.between(low, low + 1)[0]]))
        self._oldest_us = min(times, default=None)
        if len(lows) + len(self.sessions) + len(self.consumers) > _EXACT_MAX:
            self._oldest_until_us = monotonic_us + _OLDEST_KEPT_US
        return self._oldest_us

    def _lows(self) -> dict[int, int]:
        """Returns the lowest offset that is not acknowledged of each partition that has any."""
        lows: dict[int, int] = {}
        found = [(number, self.partitions[number].ready.lowest()) for number in self.ready.everywhere()]
        found += [
            (number, lanes.lowest())
            for session in self.sessions.values()
            for number, lanes in session.held.items()
        ]
        for consumer in self.consumers.values():
            for plan in consumer.pending():
                found += [
                    (number, rows.span()[0]) for number, (_, rows) in plan.assignments.items() if rows.rows
                ]
        for number, low in found:
            if low is not None:
                lows[number] = min(low, lows.get(number, low))
        return lows
