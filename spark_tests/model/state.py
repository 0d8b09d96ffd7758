"""What the model is made of: rows, producers, sessions, plans and staged sets, as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field

READY, DONE = ("ready",), ("done",)
Holder = tuple[object, ...]


def identity(number: int) -> bytes:
    """Returns the `number`-th identity that was given: 16 bytes."""
    return number.to_bytes(16, "big")


@dataclass(slots=True)
class Row:
    """One message. `holder` is READY, DONE, ("session", number) or ("plan", incarnation, plan)."""

    partition: int
    offset: int
    value: bytes
    priority: int
    producer: str
    sequence: int
    time_us: int
    failed: int = 0
    handed_out: int = 0
    holder: Holder = READY

    @property
    def delivery_count(self) -> int:
        """What a consumer reads, if the row is not counted with others."""
        return 1 + self.failed + self.handed_out


@dataclass(slots=True)
class Batch:
    """What the audit remembers of one stored (or skipped: base None) batch."""

    first: int
    rows: int
    crc: int
    base: int | None
    time_us: int


@dataclass(slots=True)
class Mark:
    """One producer in one partition."""

    epoch: int
    next: int = 0
    rows: int = 0
    last_offset: int = -1
    batches: list[Batch] = field(default_factory=list)
    used: int = 0


@dataclass(slots=True)
class Partition:
    """`rows[i]` has offset i. `marks` has the producer heard of longest ago first."""

    rows: list[Row] = field(default_factory=list)
    marks: list[tuple[str, Mark]] = field(default_factory=list)
    duplicates: int = 0

    def mark(self, producer: str) -> Mark | None:
        for name, mark in self.marks:
            if name == producer:
                return mark
        return None


@dataclass(slots=True)
class Session:
    """A connected consumer. `delivered` are all rows it ever got, in order; the application saw the first
    `seen` of them, or, where `handed` is not None, those.
    """

    number: int
    destination: str
    credit: int
    seen: int = 0
    delivered: list[Row] = field(default_factory=list)
    handed: list[Row] | None = None

    @property
    def held(self) -> list[Row]:
        return [row for row in self.delivered if row.holder == ("session", self.number)]

    @property
    def shown(self) -> list[Row]:
        """What the application had in its hands and has not settled."""
        known = self.delivered[: self.seen] if self.handed is None else self.handed
        return [row for row in self.held if any(row is other for other in known)]


@dataclass(slots=True)
class Plan:
    """`rows[p]` are the rows of partition p in delivery order, from number `first[p]` on."""

    number: int
    run: int
    rows: dict[int, list[Row]]
    first: dict[int, int]
    end: dict[int, int]
    returned: bool = False
    acknowledged: bool = False
    opened_by: int = 0
    read_by: int = 0
    failed: int = 0
    batches: set[tuple[str, int]] = field(default_factory=set)
    serial: int = 0
    committed: bool = False
    #: Given back unread so long ago that nobody knows where it ended.
    dropped: bool = False

    @property
    def used(self) -> bool:
        """Whether a batch has ended here."""
        return self.acknowledged or (self.opened_by if self.returned else self.read_by) > 0

    @property
    def pending(self) -> bool:
        return not self.returned and not self.acknowledged

    @property
    def count(self) -> int:
        return sum(len(rows) for rows in self.rows.values())


@dataclass(slots=True)
class Consumer:
    """One incarnation. `plans` are all it ever had; rows of those up to `forgotten` are not kept, boundaries
    up to `unknown` not known.
    """

    name: str
    incarnation: bytes
    run: int
    minted_by: int
    plans: list[Plan] = field(default_factory=list)
    acknowledged: int = 0
    forgotten: int = 0
    unknown: int = 0

    @property
    def next(self) -> dict[int, int]:
        return self.plans[-1].end if self.plans else {}

    def kept(self) -> list[Plan]:
        return [plan for plan in self.plans[self.forgotten :] if not plan.dropped]

    def past(self) -> list[Plan]:
        """Returns those of which only the boundary is known."""
        return [plan for plan in self.plans[self.unknown : self.forgotten] if not plan.dropped]

    def boundary(self, plan: int) -> dict[int, int]:
        return self.plans[plan - 1].end if plan else {}


@dataclass(slots=True)
class Destination:
    """A queue."""

    number: int
    name: str
    id: bytes
    partitions: list[Partition]
    consumers: dict[bytes, Consumer] = field(default_factory=dict)
    ended: dict[bytes, tuple[bytes, str, bool]] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        return [row for partition in self.partitions for row in partition.rows]


@dataclass(slots=True)
class StagedBatch:
    """Rows of one batch of a set: (value, priority)."""

    destination: str
    partition: int
    first: int
    crc: int
    rows: list[tuple[bytes, int]]


@dataclass(slots=True)
class StagedSet:
    """What one token holds. `target` None: its writer did not say, and it may be any."""

    epoch: int
    query: str
    batch: int
    target: str | None
    time_us: int = 0
    #: The last sign of life as the process knows it; None after a start, until time passes.
    seen_us: int | None = None
    batches: list[StagedBatch] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(len(batch.rows) for batch in self.batches)


@dataclass(slots=True)
class Query:
    """`reads`: batch -> plans cut before it was first read. `readers`: destination number -> (Spark run, our
    run, incarnation).
    """

    reads: dict[int, int] = field(default_factory=dict)
    readers: dict[int, tuple[str, int, bytes]] = field(default_factory=dict)
