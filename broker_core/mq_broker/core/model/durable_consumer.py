"""A durable consumer that replays ranges (a Spark query): its delivery numbers, plans, runs and boundaries
(docs/rules.md, "Plans and delivery numbers", "Runs and incarnations").
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from mq_broker.core.model.selection import Selection
from mq_wire.errors import DataLost, InvalidRequest, OffsetsUnknown

#: Partition -> the next delivery number. A partition without entry stands at 0.
Positions = dict[int, int]


@dataclass(slots=True)
class Plan:
    """One decision of what takes the next delivery numbers. Once read, it never changes until it is
    acknowledged.

    `serial`: how many plans of all consumers had been cut with it; 0 where a version that did not count cut
    it, so before all others. `committed`: our sink has committed the batch that read it.
    `emptied`: it was returned, and which rows it had is not kept.
    """

    number: int
    run: int
    time_us: int
    assignments: dict[int, tuple[int, Selection]]
    packed_end: bytes
    returned: bool = False
    acknowledged: bool = False
    opened_by_run: int = 0
    read_by_run: int = 0
    failed_attempts: int = 0
    #: (query id, batch id) of those who read it.
    batches: set[tuple[str, int]] = field(default_factory=set)
    serial: int = 0
    committed: bool = False
    emptied: bool = False

    @property
    def end(self) -> Positions:
        """The boundary behind it: packed, since a queue may have a thousand partitions, and a consumer many
        plans.
        """
        return unpacked(self.packed_end)

    @property
    def rows(self) -> int:
        return 0 if self.returned else sum(selection.rows for _, selection in self.assignments.values())

    @property
    def read_since_opened(self) -> bool:
        """Whether the last run that opened it also read it: an attempt that is not counted among the failed
        ones yet.
        """
        return self.read_by_run > 0 and self.read_by_run >= self.opened_by_run

    @property
    def pending(self) -> bool:
        """Whether its rows are still waiting for an acknowledgement."""
        return not (self.returned or self.acknowledged)

    @property
    def used(self) -> bool:
        """Whether a batch of the checkpoint may end here, with what it holds: whoever asks again must get the
        same boundary.

        A returned plan counts where it was opened since: that batch ran, and was empty.
        """
        return self.acknowledged or (self.opened_by_run if self.returned else self.read_by_run) > 0

    def past(self, start: Positions) -> Past:
        """Returns what is left of it once its rows are let go; its numbers begin at `start`."""
        own = {partition: selection.rows for partition, (_, selection) in self.assignments.items()}
        return Past(
            self.number,
            self.serial,
            self.packed_end,
            packed(own or between(start, self.end)),
            self.returned,
            self.used,
        )


@dataclass(frozen=True, slots=True)
class Past:
    """What is left of a plan whose rows are no longer kept: its boundary, packed, since a consumer has a
    hundred of these.

    `numbers` are the delivery numbers that it took in each partition; of a returned plan they never had rows
    that anybody read.
    """

    number: int
    serial: int
    packed_end: bytes
    packed_numbers: bytes
    returned: bool
    used: bool

    @property
    def end(self) -> Positions:
        return unpacked(self.packed_end)

    @property
    def numbers(self) -> Positions:
        return unpacked(self.packed_numbers)

    @property
    def rows(self) -> int:
        """Rows that can still be read."""
        return 0

    def held(self, partition: int, first: int, last: int) -> bool:
        """Whether any of the numbers [first, last) of a partition had rows, which are not kept."""
        end = self.end.get(partition, 0)
        return not self.returned and max(end - self.numbers.get(partition, 0), first) < min(end, last)


@dataclass(slots=True)
class Consumer:
    """One incarnation. `plans` holds what is pending and what the last acknowledgement covered, oldest first.

    `past` has the boundaries before those, oldest first: a checkpoint that lost batches must find each of
    them again. `floor` is the boundary before the oldest of all; what lies before it is not known any more.
    """

    name: str
    incarnation: bytes
    run: int
    minted_by_run: int
    minted_time_us: int
    next_plan: int = 1
    past: dict[int, Past] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    next: Positions = field(default_factory=dict)
    floor: Positions = field(default_factory=dict)
    acknowledged_plan: int = 0

    @property
    def label(self) -> str:
        """How messages name it."""
        return self.name or self.incarnation.hex()

    def pending(self) -> Iterator[Plan]:
        return (plan for plan in self.plans.values() if plan.pending)

    def boundary(self, number: int) -> Positions:
        """Returns the positions behind plan `number`, or the floor."""
        plan = self.plans.get(number) or self.past.get(number)
        return plan.end if plan is not None else self.floor

    @property
    def oldest(self) -> int:
        """The number of the oldest plan whose boundary is known; the next one where there is none."""
        return next(iter(self.past), next(iter(self.plans), self.next_plan))

    @property
    def last_past(self) -> int:
        """The number of the last plan whose rows are no longer kept; 0 where there is none."""
        return next(reversed(self.past), 0)

    @property
    def is_unproven(self) -> bool:
        """Whether nothing was ever read or acknowledged."""
        return (
            not self.acknowledged_plan
            and not self.past
            and not any(plan.read_by_run for plan in self.plans.values())
        )

    @property
    def keeps(self) -> bool:
        """Whether it has acknowledged everything and rows are kept all the same."""
        return next(iter(self.plans), self.next_plan) <= self.acknowledged_plan and not any(self.pending())

    def used_after(self, number: int) -> Plan | Past | None:
        """Returns the first plan behind plan `number` that a batch ended with."""
        if number < self.last_past:
            for past in self.past.values():
                if past.number > number and past.used:
                    return past
        return next((plan for plan in self.plans.values() if plan.number > number and plan.used), None)

    def locate(self, positions: Positions) -> int:
        """Returns the number of the last plan that lies before `positions`.

        Raises:
            OffsetsUnknown: beyond all that was ever assigned.
            DataLost: before what is still kept.
            InvalidRequest: not a boundary that this broker ever gave.
        """
        asked = {partition: number for partition, number in positions.items() if number}
        wanted = packed(asked)
        for known in chain[Plan | Past](reversed(self.plans.values()), reversed(self.past.values())):
            if known.packed_end == wanted:
                return known.number
        if asked == self.floor:
            return self.oldest - 1
        for partition, number in sorted(asked.items()):
            if number > self.next.get(partition, 0):
                raise OffsetsUnknown(
                    f"consumer {self.label!r} was never given delivery number {number} of partition "
                    f"{partition} (the next one is "
                    f"{self.next.get(partition, 0)}): was the broker restored from an older backup? Start "
                    f"a query with a new checkpoint"
                )
        if all(number <= self.floor.get(partition, 0) for partition, number in asked.items()):
            raise DataLost(
                f"consumer {self.label!r} acknowledged everything up to {self.floor} and it is no longer "
                f"kept, but {asked} was asked for: "
                "the checkpoint lost its last batches, or is an old copy. Start with a new checkpoint. "
                "failOnDataLoss=false goes on without these rows: the batch is then empty, and a sink of "
                "format mq that has it already refuses it"
            )
        if any(
            not plan.assignments and not plan.emptied for plan in self.plans.values()
        ):  # `mq repair` left a gap: plans always have rows
            raise OffsetsUnknown(
                f"{asked} is no boundary of consumer {self.label!r} that is known any more: the plan that "
                f"ended there was lost when the "
                "broker's data directory was repaired. Its rows are delivered again; start the query with "
                "a new checkpoint"
            )
        raise InvalidRequest(
            f"{asked} is no boundary of consumer {self.label!r} that is known: pass offsets on unchanged. "
            f"Where they are, they are of "
            "a plan that was given back unread long ago: start the query with a new checkpoint"
        )

    def locate_kept(self, positions: Positions) -> tuple[int, bool]:
        """As `locate`, but positions before what is kept are the floor. Returns also whether they were."""
        try:
            return self.locate(positions), False
        except DataLost:
            return self.oldest - 1, True

    def between(self, after: int, through: int) -> list[Plan]:
        """Returns the plans (after, through]."""
        return [plan for number, plan in self.plans.items() if after < number <= through]

    def passed_over(self, through: int) -> int:
        """Returns how many plans up to `through` a batch may have ended with, or still hold their rows."""
        return sum(
            number <= through and (plan.used or not plan.returned) for number, plan in self.plans.items()
        )

    def drop_returned(self, kept_max: int) -> None:
        """Forgets plans that were given back before anybody opened them, but for the last `kept_max`: no
        batch ended with them.
        """
        unused = [number for number, plan in self.plans.items() if plan.emptied and not plan.used]
        for number in unused[: max(len(unused) - kept_max, 0)]:
            del self.plans[number]

    def add(self, plan: Plan) -> None:
        self.plans[plan.number] = plan
        self.next_plan = plan.number + 1
        self.next = plan.end

    def acknowledge(self, through: int) -> None:
        """Marks plans as done. The last acknowledged range stays readable: Spark's files may be less durable
        than our journal.
        """
        for number, plan in self.plans.items():
            if number <= through and not plan.returned:
                plan.acknowledged = True
        self.acknowledged_plan = through

    def mark_committed(self, batch: tuple[str, int]) -> bool:
        """Marks what was read for a batch (query id, batch id) as committed; returns whether there was
        anything.
        """
        found = [plan for plan in self.plans.values() if batch in plan.batches and not plan.committed]
        for plan in found:
            plan.committed = True
        return bool(found)

    def forget(self, through: int, boundaries_max: int) -> None:
        """Lets go of the rows of plans up to `through`, and of all boundaries before them but the last
        `boundaries_max`.
        """
        at = self.boundary(self.last_past)
        for number in [number for number in self.plans if number <= through]:
            plan = self.plans.pop(number)
            self.past[number], at = plan.past(at), plan.end
        while len(self.past) > boundaries_max:
            oldest = next(iter(self.past))
            self.floor = self.past.pop(oldest).end


def end_of(start: Positions, assignments: dict[int, tuple[int, Selection]]) -> Positions:
    """Returns the positions behind `assignments` that begin at `start`."""
    return {
        **start,
        **{partition: first + selection.rows for partition, (first, selection) in assignments.items()},
    }


def between(start: Positions, end: Positions) -> Positions:
    """Returns how many numbers of each partition lie between two boundaries."""
    return {
        partition: number - start.get(partition, 0)
        for partition, number in end.items()
        if number > start.get(partition, 0)
    }


def packed(positions: Positions) -> bytes:
    """Returns positions in little memory, equal for equal ones."""
    pairs = sorted((partition, number) for partition, number in positions.items() if number)
    return array("Q", [value for pair in pairs for value in pair]).tobytes()


def unpacked(body: bytes) -> Positions:
    """Returns what `packed` was given, without zeros."""
    values = array("Q", body).tolist()
    return dict(zip(values[::2], values[1::2], strict=True))
