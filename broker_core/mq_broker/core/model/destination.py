"""A queue: its partitions, where rows are stored, and its subscriptions, which say who has read what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from mq_broker.core.model.audit import Audit, AuditMemory
from mq_broker.core.model.log import PartitionLog
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.subscription import QUEUE, Backlog, Subscription

#: Of so many partitions the oldest row is looked for each time somebody asks; of more, so often.
_EXACT_MAX: Final = 200
_OLDEST_KEPT_US: Final = 1_000_000


class Partition:
    """One log: its frames, who sent what, and which rows are damaged. Who has read what of it is told by
    subscriptions.
    """

    __slots__ = ("audit", "changes", "duplicates", "log", "quarantined")

    def __init__(self, memory: AuditMemory) -> None:
        self.log = PartitionLog()
        self.audit = Audit(memory)
        self.duplicates = 0
        #: How often its rows changed, in this process: rows that only change hands are no change.
        self.changes = 0
        #: Rows whose bytes are damaged or gone: never ready again, whoever held them.
        self.quarantined = BitMap64()

    def lost_of(self, selection: Selection) -> BitMap64:
        """Returns those of the rows whose bytes are damaged or gone."""
        return selection.offsets() & self.quarantined if self.quarantined else BitMap64()


@dataclass(slots=True)
class Destination:
    """A queue under its name: stored rows, and the subscriptions that read them.

    `number` is local to this broker and never reused, `destination_id` is for everybody. A queue has one
    subscription, number 0.
    """

    number: int
    name: str
    destination_id: bytes
    partitions: list[Partition]
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    #: How often rows of any partition changed, in this process.
    changes: int = 0
    #: What was told of its partitions, and at how many changes.
    described: tuple[int, bytes] | None = None
    #: The age of the oldest row, and how long that holds.
    _oldest_us: int | None = None
    _oldest_until_us: int = -1

    def __post_init__(self) -> None:
        self.subscriptions[QUEUE] = Subscription(QUEUE, [Backlog() for _ in self.partitions])
        for number, partition in enumerate(self.partitions):
            partition.audit.place = (self.number, number)

    @property
    def queue(self) -> Subscription:
        """The subscription of a queue."""
        return self.subscriptions[QUEUE]

    def grow(self, partition: Partition) -> None:
        """Takes one partition more, for a repair."""
        partition.audit.place = (self.number, len(self.partitions))
        self.partitions.append(partition)
        for subscription in self.subscriptions.values():
            subscription.grow()

    @property
    def durable_consumers(self) -> int:
        """How many there are."""
        return sum(len(subscription.consumers) for subscription in self.subscriptions.values())

    @property
    def enqueued(self) -> int:
        """Rows that ever got an offset."""
        return sum(partition.log.next_offset for partition in self.partitions)

    def floor(self, number: int) -> int:
        """Returns the offset below which nobody can get a row of this partition any more."""
        floors = [subscription.backlogs[number].floor() for subscription in self.subscriptions.values()]
        return min(
            (low for low in floors if low is not None), default=self.partitions[number].log.next_offset
        )

    def live(self, number: int, low: int, high: int) -> BitMap64:
        """Returns the offsets of [low, high) that somebody can still get, and whose bytes are whole as far
        as we know.
        """
        left = BitMap64()
        for subscription in self.subscriptions.values():
            left |= subscription.backlogs[number].live(low, high)
        return left

    def oldest_time_us(self, monotonic_us: int) -> int | None:
        """Returns the append time of the oldest row that is not acknowledged.

        Of a destination with very many partitions it is found out once a second.
        """
        if self._oldest_until_us > monotonic_us:
            return self._oldest_us
        times = []
        for number, partition in enumerate(self.partitions):
            if partition.log.frames:
                low = min(
                    (
                        subscription.backlogs[number].unacknowledged.min()
                        for subscription in self.subscriptions.values()
                        if subscription.backlogs[number].rows
                    ),
                    default=None,
                )
                if low is not None:
                    index = partition.log.index()
                    times.append(int(index.frames["time_us"][index.between(low, low + 1)[0]]))
        self._oldest_us = min(times, default=None)
        if len(self.partitions) > _EXACT_MAX:
            self._oldest_until_us = monotonic_us + _OLDEST_KEPT_US
        return self._oldest_us
