"""Readers with a checkpoint, as Spark's micro-batches are: they plan, read ranges, crash anywhere, start anew
and read them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mq_wire.errors import (
    CheckpointTooOld,
    DataLost,
    IncarnationSuperseded,
    MqError,
    RunFenced,
    SharedRange,
    StoreFull,
)
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.admin_pb2 import StatsRequest
from mq_wire.v1.common_pb2 import Positions
from spark_tests.oracle.marked import Rows
from spark_tests.simulation.client import Asking, Client, Steps, World
from spark_tests.simulation.links import FetchLink, RunLink

Key = tuple[object, ...]


class Crashed(Exception):
    """This program ends here."""


class Superseded(Exception):
    """Its checkpoint is of no use any more."""


class Refused(Exception):
    """Its checkpoint lost files, and the broker says so: somebody starts it with a new one, and frees what
    the old one holds.
    """


@dataclass(frozen=True)
class Checkpoint:
    """What survives a crash: where the last finished batch ended, and the end of the next one where that was
    written down.

    Attributes:
        starts: of the finished batches, oldest first. The last of these stays readable until the next one is
            acknowledged.
        query: under which the batches are numbered.
        batch: number of the next batch.
    """

    who: wire.ConsumerRef
    query: str
    batch: int = 0
    done: dict[int, int] = field(default_factory=dict)
    planned: dict[int, int] | None = None
    starts: tuple[dict[int, int], ...] = ()


class Reader(Client):
    """Reads one queue exactly once, whatever happens to it and the broker, as long as its checkpoint
    lives.
    """

    def __init__(self, world: World, queue: str, number: int, *, named: bool) -> None:
        super().__init__(world, f"{'named ' if named else ''}reader {number}")
        self.queue = queue
        self._consumer = f"reader-{number}" if named else ""
        self._crash_rate = self.rng.choice([0.0, 0.01, 0.04])
        self._loss_rate = self.rng.choice([0.0, 0.3, 0.6])
        self._queries = 0
        self._checkpoint = self._new_checkpoint()
        self._content: dict[Key, Rows] = {}  # of ranges that were read to their end
        self._unconfirmed: dict[Key, int] = {}  # and the batch that each was read for
        self._batches: dict[int, Rows] = {}  # of this checkpoint, as far as they were handed to a sink
        self._finished = 0
        self._incarnations: list[bytes] = []
        self._has_lost_files = False
        self._run = 0
        self._link: RunLink | None = None
        # an older start of this program that does not know it yet
        self._zombie: tuple[int, RunLink | None] | None = None
        self._is_idle = False

    def _new_checkpoint(self) -> Checkpoint:
        self._queries += 1
        query = f"{self.name.replace(' ', '-')}-{self._queries}"
        return Checkpoint(wire.ConsumerRef(destination=self.queue, consumer=self._consumer), query)

    def body(self) -> Steps:
        while True:
            try:
                yield from self._live()
            except Superseded:
                self.counts["checkpoints superseded"] += 1
                yield from self._free(self._lose_checkpoint())
            except Refused:
                self._end_program()
                yield from self._begin_anew()
            yield from self.work_as_before()
            if self.world.is_finishing:
                self._end_zombie()
            if self.world.is_quiet and self._is_idle and (yield from self._nothing_is_left()):
                break
            yield None
        self._end_program()
        self._end_zombie()

    def _live(self) -> Asking:
        try:
            yield from self._one_batch()
            yield from self._sometimes_begin_anew()
            if self.rng.random() < self._loss_rate and not self.world.is_finishing:
                raise Crashed
        except Crashed:
            self.counts["readers that crashed"] += 1
            self._end_program()
            if self.rng.random() < 0.2:
                yield from self._replay_the_last_batch()
            elif self.rng.random() < 0.7 and not self.world.is_finishing:
                self._lose_files(self.rng.choice([1, 1, 1, 2, 2, 99]))

    def _one_batch(self) -> Asking:
        if self._checkpoint.planned is None:
            yield from self._plan()
        planned = self._checkpoint.planned
        if planned is None:
            return
        self._may_crash()
        rows = Rows.joined([])
        batch = self._checkpoint.batch
        for _ in range(1 + (self.rng.random() < 0.2)):
            rows = yield from self._read_range(
                self._checkpoint.done, planned, batch, is_replay=batch < self._finished
            )
        self._compare_batch(batch, rows)
        self._may_crash()
        yield from self.sink(self._checkpoint.query, self._checkpoint.batch, rows)
        self._may_crash()
        starts = (*self._checkpoint.starts, self._checkpoint.done)
        self._checkpoint = replace(
            self._checkpoint, starts=starts, done=planned, planned=None, batch=batch + 1
        )
        self._finished = max(self._finished, batch + 1)
        self._may_crash()
        if self.rng.random() < 0.5:
            yield from self._acknowledge(planned)

    def sink(self, query: str, batch: int, rows: Rows) -> Asking:
        """What becomes of the rows; here nothing."""
        yield from ()

    def work_as_before(self) -> Asking:
        """Older starts of this program go on with what they had in hand; here nothing."""
        yield from ()

    def _plan(self) -> Asking:
        who = yield from self._who()
        request = wire.PlanRequest(
            who=who, start=Positions(next=self._checkpoint.done), max_rows=self.rng.choice([1, 20, 200, 0]),
            max_bytes=self.rng.choice([0, 300, 5000]), create=True,
        )  # fmt: skip
        if not self.world.is_finishing and self.rng.random() < 0.2:
            request.min_rows = self.rng.choice([1, 10, 30])
            request.bounded = self.rng.random() < 0.5
            for partition in range(self.world.partitions):
                request.available_below.next[partition] = self.rng.choice([0, 20, 100, 1000])
        plan = yield from self._call(request, everything_before=True)
        self._is_idle = plan.idle
        if plan.idle:
            return
        self._may_crash()  # before the offsets were written down
        kept = wire.ConsumerRef()
        kept.CopyFrom(self._checkpoint.who)
        kept.cluster_id, kept.destination_id, kept.incarnation = (
            plan.cluster_id,
            plan.destination_id,
            plan.incarnation,
        )
        self._checkpoint = replace(self._checkpoint, who=kept, planned=dict(plan.end.next))
        self._incarnations.append(plan.incarnation)

    def _acknowledge(self, end: dict[int, int]) -> Asking:
        who = yield from self._who()
        yield from self._call(
            wire.AcknowledgeRangeRequest(who=who, end=Positions(next=end)), everything_before=True
        )

    # -- reading -------------------------------------------------------------------------------------------

    def _read_range(
        self, start: dict[int, int], end: dict[int, int], batch: int, *, is_replay: bool = False
    ) -> Asking:
        who = yield from self._who()
        opened = yield from self._call(
            wire.OpenRangeRequest(who=who, start=Positions(next=start), end=Positions(next=end))
        )
        if any(part.rows for part in opened.parts):
            yield from self._wake_zombie(start, end)
        self._may_crash()
        found: list[Rows] = []
        for part in opened.parts:
            key = (self.queue, who.incarnation, part.partition, part.first, part.last)
            rows, counts, stamp = yield from self._fetch(part, batch)
            if len(rows) != part.rows and (len(rows) or any(len(other) for other in found)):
                self.history.note(
                    f"{self.name}: {len(rows)} rows in a range that was opened with {part.rows}: {key}"
                )
            self._compare(key, rows)
            if not is_replay:
                self.history.read(self.queue, self.world.saw(rows), stamp, counts=counts)
                self._unconfirmed[key] = batch
            found.append(rows)
        return Rows.joined(found)

    def _fetch(self, part: wire.RangePart, batch: int) -> Asking:
        """Returns the rows of a part, their delivery counts, and a moment from before the broker was asked
        for them.
        """
        following, stamp = part.first, self.history.stamp()
        taken: list[Rows] = []
        counted = [np.empty(0, np.int64)]
        while True:
            who = yield from self._who()
            link: FetchLink = self.network.opened(
                FetchLink(
                    self.network,
                    wire.OpenFetch(
                        who=who,
                        partition=part.partition,
                        first=following,
                        last=part.last,
                        query_id=self._checkpoint.query,
                        batch_id=batch,
                        spark_run_id=f"start {self._run}",
                    ),
                )
            )
            while not link.is_broken or link.down:
                yield link
                while link.down:
                    message = link.down.popleft()
                    if message[0] == "end":
                        link.end()
                        rows = Rows.joined(taken)
                        self._check_order(rows)
                        return rows, np.concatenate(counted), stamp
                    first, rows, _, counts = message
                    if first < following:
                        self.history.note(
                            f"{self.name}: number {first} came again within one read, {following} was next"
                        )
                    following = first + len(rows)
                    taken.append(rows)
                    counted.append(counts)
                    self._may_crash()
            if link.error is not None and not isinstance(link.error, StoreFull):
                self._judge(link.error)

    def _check_order(self, rows: Rows) -> None:
        """A plan is made by priority, and by age within one."""
        order = np.lexsort((rows.offsets, -rows.priorities))
        if (order != np.arange(len(rows))).any():
            self.history.note(f"{self.name}: rows of a plan that are not in the order of priority and offset")

    def _compare(self, key: Key, rows: Rows) -> None:
        before = self._content.setdefault(key, rows)
        if before is not rows:
            self.counts["ranges replayed"] += 1
            if not (np.array_equal(before.ids, rows.ids) and np.array_equal(before.offsets, rows.offsets)):
                self.history.note(
                    f"{self.name}: {key} brought {len(before)} rows first, then {len(rows)} or others"
                )

    def _replay_the_last_batch(self) -> Asking:
        """A checkpoint that lost its last commit: the batch before comes again, with the same rows."""
        last = self._checkpoint
        if not last.starts or last.planned is not None:
            return
        try:
            yield from self._read_range(last.starts[-1], last.done, last.batch - 1, is_replay=True)
        except Crashed:
            self._end_program()

    def _lose_files(self, count: int) -> None:
        """The last batches are not in the checkpoint any more: they come again, under the same numbers."""
        last = self._checkpoint
        count = min(count, len(last.starts))
        if not count or (len(last.starts) == 1 and self.rng.random() < 0.8):
            return
        batch = last.batch - count
        who = last.who if batch else wire.ConsumerRef(destination=self.queue, consumer=self._consumer)
        self._checkpoint = replace(
            last, who=who, batch=batch, done=last.starts[batch], planned=None, starts=last.starts[:batch]
        )
        self._has_lost_files = True
        self.counts[
            f"checkpoints that lost {min(count, 2)} batches" if batch else "checkpoints that lost all batches"
        ] += 1

    def _compare_batch(self, batch: int, rows: Rows) -> None:
        """A sink that knows the number passes over what comes under it again: it must be the same."""
        before = self._batches.setdefault(batch, rows)
        if before is not rows and not np.array_equal(np.sort(before.ids), np.sort(rows.ids)):
            self.history.note(
                f"{self.name}: batch {batch} had {len(before)} rows first, then {len(rows)} or others"
            )

    # -- calls ---------------------------------------------------------------------------------------------

    def _who(self) -> Asking:
        """Holds the run, anew where its link broke, and returns how this start of the program calls
        itself.
        """
        while self._link is None or self._link.is_broken:
            self._link = self.network.opened(
                RunLink(self.network, self._run, self._checkpoint.who.cluster_id)
            )
            yield self._link
            if self._link.error is not None and not isinstance(self._link.error, StoreFull):
                self.history.note(f"{self.name}: run {self._run} cannot be held: {self._link.error}")
                raise Crashed
            if self._link.is_broken:
                yield None
        self._run = self._link.run
        who = wire.ConsumerRef()
        who.CopyFrom(self._checkpoint.who)
        who.run = self._run
        return who

    def _call(self, request: Any, *, everything_before: bool = False) -> Asking:
        """Returns the reply. Where it confirms `everything_before`, that is written down when the reply
        leaves the broker.
        """
        following = self._checkpoint.batch
        keys = (
            tuple(key for key, batch in self._unconfirmed.items() if batch < following)
            if everything_before
            else ()
        )

        def answered(reply: object) -> None:
            if not isinstance(reply, MqError):
                self._confirm(keys)

        while True:
            reply = yield from self.ask(request, answered=answered)
            if not isinstance(reply, MqError):
                return reply
            if not isinstance(reply, StoreFull):
                self._judge(reply)
            yield None

    def _confirm(self, keys: tuple[Key, ...]) -> None:
        for key in sorted(self._unconfirmed.keys() & set(keys)):
            del self._unconfirmed[key]
            self.history.confirmed(self.queue, self._content[key])
            self.history.read_range(key, self._content[key])

    def _judge(self, error: MqError) -> None:
        self.counts[f"reader: {type(error).__name__}"] += 1
        if isinstance(error, IncarnationSuperseded):
            raise Superseded
        # Boundaries stay for ever, rows only until the disk is full and nobody is there who might ask for
        # them.
        is_lost = isinstance(error, DataLost) and bool(self._has_lost_files or self.counts["disks filled"])
        if is_lost or (self._has_lost_files and isinstance(error, (CheckpointTooOld, SharedRange))):
            self.counts["lost files refused"] += 1
            raise Refused
        self.history.note(f"{self.name}: {type(error).__name__}: {error}")
        raise Crashed

    # -- the program ---------------------------------------------------------------------------------------

    def _may_crash(self) -> None:
        if self.rng.random() < self._crash_rate and not self.world.is_finishing:
            raise Crashed

    def _end_program(self) -> None:
        """Ends this start of the program, or leaves it hanging somewhere, to be followed by another all the
        same.
        """
        if self._run and self._zombie is None and self.rng.random() < 0.3:
            self._zombie = self._run, self._link
        elif self._link is not None:
            self._link.end()
        self._run, self._link = 0, None

    def _wake_zombie(self, start: dict[int, int], end: dict[int, int]) -> Asking:
        """The older start goes on with the batch that the newer one has in hand: it must learn that it was
        replaced.
        """
        if self._zombie is None:
            return
        run, _ = self._zombie
        stale = wire.OpenRangeRequest(
            who=self._checkpoint.who, start=Positions(next=start), end=Positions(next=end)
        )
        stale.who.run = run
        reply = yield from self.ask(stale)
        self._end_zombie()
        if isinstance(reply, RunFenced):
            self.counts["zombies refused"] += 1
        elif not isinstance(reply, MqError):
            self.history.note(f"{self.name}: run {run} could open a range that run {self._run} had opened")

    def _end_zombie(self) -> None:
        if self._zombie is not None and self._zombie[1] is not None:
            self._zombie[1].end()
        self._zombie = None

    def _sometimes_begin_anew(self) -> Asking:
        """Somebody deletes the checkpoint."""
        if self.world.is_finishing or self.rng.random() >= 0.05:
            return
        self._end_program()
        yield from self._begin_anew()

    def _begin_anew(self) -> Asking:
        held = self._lose_checkpoint()
        self.counts["takeovers" if self._consumer or not held else "releases"] += 1
        yield from self._free(held)

    def _free(self, held: list[bytes]) -> Asking:
        """Without a name nobody takes over: an operator frees what the old checkpoint holds, and those before
        it, whose first batch it had lost.
        """
        for incarnation in held if not self._consumer else ():
            while True:
                reply = yield from self.ask(
                    wire.ReleaseConsumerRequest(destination=self.queue, consumer=incarnation.hex())
                )
                if not isinstance(reply, StoreFull):
                    break
                yield None

    def _lose_checkpoint(self) -> list[bytes]:
        """Begins with a new one; returns the incarnations that the old one may have had."""
        held = sorted(set(self._incarnations))
        self._checkpoint = self._new_checkpoint()
        self._batches, self._finished, self._incarnations, self._has_lost_files = {}, 0, [], False
        self._unconfirmed = {}  # whoever gets these rows next, it may be again
        return held

    def _nothing_is_left(self) -> Asking:
        reply = yield from self.ask(StatsRequest(destination=self.queue))
        return not isinstance(reply, MqError) and not reply.destination.depth_rows
