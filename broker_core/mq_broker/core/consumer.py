"""A durable consumer that replays ranges (a Spark query): its delivery numbers, plans, runs and boundaries (design.md sections 2, 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mq_broker.core.selection import Selection
from mq_wire.errors import DataLost, InvalidRequest, OffsetsUnknown

#: Partition -> the next delivery number. A partition without entry stands at 0.
Positions = dict[int, int]


@dataclass(slots=True)
class Plan:
    """One decision of what takes the next delivery numbers. Once read, it never changes until it is acknowledged."""

    number: int
    run: int
    time_us: int
    assignments: dict[int, tuple[int, Selection]]
    end: Positions
    returned: bool = False
    acknowledged: bool = False
    opened_by_run: int = 0
    read_by_run: int = 0
    failed_attempts: int = 0
    #: (query id, batch id) of those who read it.
    batches: set[tuple[str, int]] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return 0 if self.returned else sum(selection.rows for _, selection in self.assignments.values())

    @property
    def read_since_opened(self) -> bool:
        """Whether the last run that opened it also read it: an attempt that is not counted among the failed ones yet."""
        return self.read_by_run > 0 and self.read_by_run >= self.opened_by_run

    @property
    def pending(self) -> bool:
        """Whether its rows are still waiting for an acknowledgement."""
        return not (self.returned or self.acknowledged)


@dataclass(slots=True)
class Consumer:
    """One incarnation. `plans` holds what is pending and what the last acknowledgement covered, oldest first.

    `floor` is the boundary before the oldest of `plans`; everything before it is no longer kept.
    """

    name: str
    incarnation: bytes
    run: int
    minted_by_run: int
    minted_time_us: int
    next_plan: int = 1
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
        plan = self.plans.get(number)
        return plan.end if plan is not None else self.floor

    def locate(self, positions: Positions) -> int:
        """Returns the number of the last plan that lies before `positions`.

        Raises:
            OffsetsUnknown: beyond all that was ever assigned.
            DataLost: before what is still kept.
            InvalidRequest: not a boundary that this broker ever gave.
        """
        asked = {partition: number for partition, number in positions.items() if number}
        for plan in reversed(self.plans.values()):
            if plan.end == asked:
                return plan.number
        oldest = next(iter(self.plans), self.next_plan)
        if asked == self.floor:
            return oldest - 1
        for partition, number in sorted(asked.items()):
            if number > self.next.get(partition, 0):
                raise OffsetsUnknown(
                    f"consumer {self.label!r} was never given delivery number {number} of partition {partition} (the next one is "
                    f"{self.next.get(partition, 0)}): was the broker restored from an older backup? Start a query with a new checkpoint"
                )
        if all(number <= self.floor.get(partition, 0) for partition, number in asked.items()):
            raise DataLost(
                f"consumer {self.label!r} acknowledged everything up to {self.floor} and it is no longer kept, but {asked} was asked for: "
                "the checkpoint lost its last batches, or is an old copy. Start with a new checkpoint, or set failOnDataLoss=false"
            )
        if any(not plan.assignments for plan in self.plans.values()):  # `mq repair` left a gap: plans always have rows
            raise OffsetsUnknown(
                f"{asked} is no boundary of consumer {self.label!r} that is known any more: the plan that ended there was lost when the "
                "broker's data directory was repaired. Its rows are delivered again; start the query with a new checkpoint"
            )
        raise InvalidRequest(f"{asked} is no boundary that consumer {self.label!r} was given: pass offsets on unchanged")

    def locate_kept(self, positions: Positions) -> tuple[int, bool]:
        """As `locate`, but positions before what is kept are the floor. Returns also whether they were."""
        try:
            return self.locate(positions), False
        except DataLost:
            return next(iter(self.plans), self.next_plan) - 1, True

    def between(self, after: int, through: int) -> list[Plan]:
        """Returns the plans (after, through]."""
        return [plan for number, plan in self.plans.items() if after < number <= through]

    def add(self, plan: Plan) -> None:
        self.plans[plan.number] = plan
        self.next_plan = plan.number + 1
        self.next = plan.end

    def acknowledge(self, through: int) -> list[Plan]:
        """Marks plans as done and lets go of what the acknowledgement before had covered; returns the plans let go.

        The last acknowledged range stays readable, because Spark's checkpoint files may be less durable than our journal.
        """
        gone = [plan for number, plan in self.plans.items() if number <= self.acknowledged_plan]
        self.floor = self.boundary(self.acknowledged_plan)
        for plan in gone:
            del self.plans[plan.number]
        for number, plan in self.plans.items():
            if number <= through and not plan.returned:
                plan.acknowledged = True
        self.acknowledged_plan = through
        return gone


def end_of(start: Positions, assignments: dict[int, tuple[int, Selection]]) -> Positions:
    """Returns the positions behind `assignments` that begin at `start`."""
    return {**start, **{partition: first + selection.rows for partition, (first, selection) in assignments.items()}}
