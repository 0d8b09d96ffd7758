"""Who has read what of a destination: a queue has one subscription, number 0.

"Who holds a row" is answered here and nowhere else (`Subscription.holders`). A row is *unacknowledged* from
the moment it is stored until an entry says that it is done. Ready rows, rows of connected consumers and rows
of plans are shares of these. Floors, figures and what the cleaner moves follow from the two sets that are
kept of each partition (`Backlog`), never from a search of the holders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import numpy as np
from pyroaring import BitMap64, FrozenBitMap64

from mq_broker.core.model.counts import RowCounts
from mq_broker.core.model.durable_consumer import Consumer, Plan
from mq_broker.core.model.facets import Facets
from mq_broker.core.model.lanes import Lanes, Ready
from mq_broker.core.model.selection import Lane, Selection, range_bitmap, remove
from mq_broker.core.model.session import Session

#: The subscription of a queue.
QUEUE: Final = 0
#: Rows of no partition. Of many thousand partitions most may be empty, and a bitmap takes 265 bytes.
_NONE: Final = cast("BitMap64", FrozenBitMap64())


def _union(known: BitMap64, offsets: BitMap64) -> BitMap64:
    return offsets.copy() if known is _NONE else known | offsets


class Backlog:
    """The rows of one partition that somebody can still get.

    `unacknowledged` and `kept` change with entries alone, and never share a row. Which of the unacknowledged
    ones are `ready` changes when rows change hands: a restart makes all ready that no plan holds.
    """

    __slots__ = ("failed", "handed_out", "kept", "ready", "rows", "unacknowledged")

    def __init__(self) -> None:
        self.ready = Lanes()
        self.unacknowledged = _NONE
        #: How many of these there are.
        self.rows = 0
        #: Acknowledged, and kept for a checkpoint that may have lost its last batch.
        self.kept = _NONE
        #: How often it was about this row alone that it came back, and how often it came back as one of
        #: several (docs/rules.md, "Two counts of a row").
        self.failed = RowCounts()
        self.handed_out = RowCounts()

    @property
    def counts(self) -> tuple[tuple[BitMap64, ...], ...]:
        """The bits of both counts, as they are now."""
        return tuple(counts.bits for counts in (self.failed, self.handed_out) if counts.bits)

    def append(self, base: int, facets: Facets, rows: int) -> None:
        """Takes new rows, which are ready."""
        if self.unacknowledged is _NONE:
            self.unacknowledged = BitMap64()
        self.unacknowledged.add_range(base, base + rows)
        self.rows += rows
        self.ready.add_rows(base, facets.priority, rows)

    def append_runs(self, base: int, runs: Iterable[tuple[int | np.ndarray, int]]) -> None:
        """Takes new rows: so many of one priority, or with these priorities, then so many more ..."""
        if self.unacknowledged is _NONE:
            self.unacknowledged = BitMap64()
        end = base
        for priorities, rows in runs:
            self.ready.add_rows(end, priorities, rows)
            end += rows
        self.unacknowledged.add_range(base, end)
        self.rows += end - base

    def restore(self, lanes: Iterable[Lane]) -> None:
        """Takes rows that a snapshot or a repair knows to be ready."""
        for priority, offsets in lanes:
            self.ready.add([(priority, offsets)])
            self._take(offsets)

    def restore_plan(self, plan: Plan, offsets: BitMap64) -> None:
        """Takes the rows of a plan that a snapshot or a repair tells of."""
        if plan.acknowledged:
            self.kept = _union(self.kept, offsets)
        else:
            self._take(offsets)

    def _take(self, offsets: BitMap64) -> None:
        known = self.unacknowledged.intersection_cardinality(offsets)
        if self.unacknowledged is _NONE:
            self.unacknowledged = offsets.copy()
        else:
            self.unacknowledged |= offsets
        self.rows += len(offsets) - known

    def plan(self, selection: Selection) -> None:
        """Ready rows become those of a plan."""
        self.ready.remove(selection.lanes)

    def give_back(self, selection: Selection) -> None:
        """Makes rows ready again, but for those that are done or damaged."""
        self.ready.add((priority, offsets & self.unacknowledged) for priority, offsets in selection.lanes)

    def acknowledge(self, offsets: BitMap64) -> None:
        """Rows are done, whoever holds them."""
        before = self.unacknowledged.intersection_cardinality(offsets)
        if before:
            remove(self.unacknowledged, offsets)
            self.rows -= before
        # At recovery they are still ready, since what a connected consumer holds is not on disk.
        self.ready.discard(offsets)
        self.failed.forget(offsets)
        self.handed_out.forget(offsets)

    def keep(self, offsets: BitMap64) -> None:
        """Rows of a plan are done, and kept for now."""
        self.kept = _union(self.kept, offsets & self.unacknowledged)
        self.acknowledge(offsets)

    def lose(self, offsets: BitMap64) -> None:
        """Nobody can get these rows any more: they are let go, or their bytes are damaged."""
        self.acknowledge(offsets)
        if self.kept:
            self.kept = self.kept - offsets

    def floor(self) -> int | None:
        """Returns the lowest offset that somebody can still get, None where there is none."""
        held = (self.unacknowledged, self.kept)
        return min((offsets.min() for offsets in held if offsets), default=None)

    def live(self, low: int, high: int) -> BitMap64:
        """Returns the offsets of [low, high) that somebody can still get."""
        window = range_bitmap(low, high)
        return (self.unacknowledged & window) | (self.kept & window)


class Ended(NamedTuple):
    """How an incarnation ended. `successor` is empty where an operator released it, or `shared`: it was one
    of two readers of one query.
    """

    successor: bytes
    consumer: str
    shared: bool = False


class Holder(NamedTuple):
    """Rows of one partition that somebody has. `who` is None where they are ready. `lanes` are not copies:
    look at them, and do not change or keep them.
    """

    who: Session | Plan | None
    lanes: Sequence[Lane]

    @property
    def survives(self) -> bool:
        """Whether a restart leaves the rows with their holder."""
        return isinstance(self.who, Plan)


def lanes_of(holders: Iterable[Holder], window: BitMap64 | None = None) -> dict[int, BitMap64]:
    """Returns what holders have together, by priority; None = wherever it lies. Not to be changed."""
    lanes: dict[int, BitMap64] = {}
    for holder in holders:
        for priority, offsets in holder.lanes:
            held = offsets if window is None else offsets & window
            lanes[priority] = lanes[priority] | held if priority in lanes else held
    return lanes


@dataclass(slots=True)
class Subscription:
    """Lanes, counts and consumers of one reader of a destination, or of all that share one.

    Attributes:
        number: within the destination.
        backlogs: one for each partition.
        consumers: durable ones, by incarnation.
        ended: incarnations that ended, the last ones, oldest first.
        sessions: connected consumers.
        changes: how often anything of a durable consumer changed, in this process.
        ready: what is ready, of all partitions together.
    """

    number: int
    backlogs: list[Backlog]
    consumers: dict[bytes, Consumer] = field(default_factory=dict)
    ended: dict[bytes, Ended] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    changes: int = 0
    ready: Ready = field(default_factory=Ready)

    def __post_init__(self) -> None:
        for number, backlog in enumerate(self.backlogs):
            backlog.ready.join(self.ready, number)

    def grow(self) -> None:
        """Takes one partition more."""
        self.backlogs.append(Backlog())
        self.backlogs[-1].ready.join(self.ready, len(self.backlogs) - 1)

    def holders(self, partition: int) -> Iterator[Holder]:
        """Yields who has which unacknowledged rows of a partition: no row twice, and none left out."""
        ready = self.backlogs[partition].ready
        yield Holder(None, ready.lanes())
        for session in self.sessions.values():
            if partition in session.held:
                yield Holder(session, session.held[partition].lanes())
        for _, plan in self.plans():
            if plan.pending and partition in plan.assignments:
                yield Holder(plan, plan.assignments[partition][1].lanes)

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

    def ready_rows(self) -> int:
        return sum(self.ready.counts)

    def assigned_rows(self) -> int:
        """How many rows connected consumers and plans hold; damaged ones are nobody's."""
        return sum(backlog.rows for backlog in self.backlogs) - self.ready_rows()
