"""A reader with a checkpoint, as Spark's micro-batches are one: plans, reads ranges, crashes anywhere, starts
anew and reads them again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mq_wire.errors import BrokerUnavailable, RunFenced
from mq_wire.v1 import subscribe_pb2
from mq_wire.v1.common_pb2 import Positions
from pyspark_mq.client.columns import Rows as Delivered
from pyspark_mq.client.columns import delivered_schema, envelope_mask
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.fetch import Fetch
from pyspark_mq.client.run import Run
from spark_tests.oracle.history import UNORDERED
from spark_tests.oracle.marked import Rows, rows_of
from spark_tests.support.crew.actor import PATIENCE_S, Actor, World

_COLUMNS: Final = ("value", "partition", "offset", "priority")
#: How often each point of danger ends the program.
_CRASHES: Final = 0.03
_SCHEMA: Final = delivered_schema(_COLUMNS)


class _Crash(Exception):
    """This program ends here."""


@dataclass(frozen=True)
class Checkpoint:
    """What survives a crash: where the last finished batch ended, and the end of the next one where that was
    written down.

    Attributes:
        previous: start of the last finished batch; it stays readable until the next one is acknowledged.
    """

    who: subscribe_pb2.ConsumerRef
    done: dict[int, int] = field(default_factory=dict)
    planned: dict[int, int] | None = None
    previous: dict[int, int] | None = None


class RangeReader(Actor):
    """Reads one queue exactly once, whatever happens to it and the broker."""

    def __init__(self, world: World, queue: str, number: int, *, named: bool) -> None:
        super().__init__(world, f"RangeReader-{number}")
        self.queue = queue
        self._checkpoint = Checkpoint(
            subscribe_pb2.ConsumerRef(destination=queue, consumer=f"reader-{number}" if named else "")
        )
        self._stream = self.history.new_stream()
        self._read: dict[tuple[object, ...], Rows] = {}  # complete and not confirmed yet
        self._connection: Connection | None = None
        self._held: Run | None = None
        self._is_numbered = False
        # an older start of this program that does not know it yet
        self._zombie: tuple[Connection, Run] | None = None
        self._is_idle = False

    def step(self) -> None:
        try:
            self._one_batch()
        except _Crash:
            self._end_program()
            if self.rng.random() < 0.2:
                self._replay_the_last_batch()

    def finish(self) -> None:
        """Reads until nothing is left; by now nobody sends any more."""
        while True:
            with suppress(_Crash):
                self._one_batch()
                # What a run that crashed had planned comes back after a grace time only.
                if self._is_idle and not self.world.stats(self.queue).depth_rows:
                    break
                continue
            self._end_program()
        self._end_program()
        self._end_zombie()

    def _one_batch(self) -> None:
        self._begin_program()
        if self._checkpoint.planned is None:
            self._plan()
        planned = self._checkpoint.planned
        if planned is None:
            return
        self._may_crash()
        for again in range(1 + (self.rng.random() < 0.3)):
            self._read_range(self._checkpoint.done, planned, is_first=not again)
        self._may_crash()
        self._checkpoint = replace(
            self._checkpoint, previous=self._checkpoint.done, done=planned, planned=None
        )
        self._may_crash()
        if self.rng.random() < 0.5:
            request = subscribe_pb2.AcknowledgeRangeRequest(who=self._who(), end=Positions(next=planned))
            self._call("AcknowledgeRange", request)
            self._confirm()

    def _plan(self) -> None:
        request = subscribe_pb2.PlanRequest(
            who=self._who(),
            start=Positions(next=self._checkpoint.done),
            max_rows=self.rng.choice([1, 100, 2000, 50_000]),
            max_bytes=64 << 20,
            wait_ms=50,
            create=True,
        )
        plan = self._call("Plan", request)
        self._is_idle = plan.idle
        self._confirm()
        if plan.idle:
            return
        if self.rng.random() < _CRASHES:  # before the offsets were written down
            if not self._checkpoint.who.incarnation and not self._checkpoint.who.consumer:
                # nobody knows that incarnation: what it was given comes back when its run has ended
                self._stream = UNORDERED
            raise _Crash
        who = self._who()
        who.cluster_id, who.destination_id, who.incarnation = (
            plan.cluster_id,
            plan.destination_id,
            plan.incarnation,
        )
        who.run = 0
        self._checkpoint = replace(self._checkpoint, who=who, planned=dict(plan.end.next))

    def _read_range(self, start: dict[int, int], end: dict[int, int], *, is_first: bool) -> None:
        request = subscribe_pb2.OpenRangeRequest(
            who=self._who(), start=Positions(next=start), end=Positions(next=end)
        )
        opened = self._call("OpenRange", request)
        if any(part.rows for part in opened.parts):
            self._wake_zombie(request)
        self._may_crash()
        for part in opened.parts:
            key = (self.queue, self._checkpoint.who.incarnation, part.partition, part.first, part.last)
            began = self.history.stamp()
            rows = self._fetch(part)
            if len(rows) != part.rows and not (self.world.sessions_overlap and not rows):
                self.history.note(
                    f"{self.name}: {len(rows)} rows in a range that was opened with {part.rows}: {key}"
                )
            self.history.read_range(key, rows)
            if is_first:
                self.history.read(self.queue, rows, began, UNORDERED if key in self._read else self._stream)
                self._read[key] = rows

    def _fetch(self, part: subscribe_pb2.RangePart) -> Rows:
        assert self._connection is not None
        request = subscribe_pb2.OpenFetch(
            who=self._who(),
            partition=part.partition,
            first=part.first,
            last=part.last,
            columns=envelope_mask(_COLUMNS),
            batch_rows_max=self.rng.choice([0, 100]),
        )
        fetch = Fetch(self._connection, request, rows_max=2000, bytes_max=1 << 20)
        fetch.start()
        taken: list[Rows] = []
        next_number = part.first
        try:
            for header, records in fetch:
                if header.first_delivery < next_number:
                    self.history.note(
                        f"{self.name}: number {header.first_delivery} came again within one read, "
                        f"{next_number} was next"
                    )
                next_number = header.first_delivery + header.rows
                taken.append(rows_of(Delivered(header, records, self.queue).record_batch(_SCHEMA)))
                self._may_crash(0.01)
        finally:
            fetch.close()
        return Rows.joined(taken)

    def _confirm(self) -> None:
        """Everything read so far lies below what the broker has just acknowledged."""
        for rows in self._read.values():
            self.history.confirmed(self.queue, rows)
            self.progress += len(rows)
        self._read = {}

    def _replay_the_last_batch(self) -> None:
        """A checkpoint that lost its last commit: the batch before comes again, with the same rows."""
        last = self._checkpoint
        if last.previous is None or last.planned is not None:
            return
        try:
            self._begin_program()
            self._read_range(last.previous, last.done, is_first=False)
        except _Crash:
            self._end_program()

    # -- the program ---------------------------------------------------------------------------------------

    def _may_crash(self, probability: float = _CRASHES) -> None:
        if self.rng.random() < probability:
            raise _Crash

    def _begin_program(self) -> None:
        if self._held is None:
            self._connection = Connection(self.world.address)
            self._held = Run(self._connection)

    def _end_program(self) -> None:
        """Ends this start of the program, or leaves it hanging somewhere, to be followed by another all the
        same.
        """
        if self._held is not None and self._connection is not None:
            # One that ends before it has its number would get one later than the next start: it would not be
            # the older one.
            if self._zombie is None and self._is_numbered and self.rng.random() < 0.3:
                self._zombie = self._connection, self._held
            else:
                self._held.close()
                self._connection.close()
        self._held = self._connection = None
        self._is_numbered = False

    def _wake_zombie(self, request: subscribe_pb2.OpenRangeRequest) -> None:
        """The older start goes on with the batch that the newer one has in hand: it must learn that it was
        replaced.
        """
        if self._zombie is None:
            return
        connection, run = self._zombie
        stale = subscribe_pb2.OpenRangeRequest()
        stale.CopyFrom(request)
        stale.who.run = run.number()
        try:
            connection.call("OpenRange", stale, retry_timeout=PATIENCE_S)
        except RunFenced:
            self._end_zombie()
        else:
            self.history.note(
                f"{self.name}: run {stale.who.run} could open a range that run {request.who.run} had opened"
            )

    def _end_zombie(self) -> None:
        if self._zombie is not None:
            connection, run = self._zombie
            run.close()
            connection.close()
        self._zombie = None

    def _who(self) -> subscribe_pb2.ConsumerRef:
        assert self._held is not None
        who = subscribe_pb2.ConsumerRef()
        who.CopyFrom(self._checkpoint.who)
        try:
            who.run = self._held.number()
        except BrokerUnavailable:
            if self._is_numbered:
                raise
            # no broker within the time that a first contact gets: this program fails, and is started again
            raise _Crash from None
        self._is_numbered = True
        return who

    def _call(self, method: str, request: object) -> Any:
        assert self._connection is not None
        return self._connection.call(method, request, retry_timeout=PATIENCE_S)
