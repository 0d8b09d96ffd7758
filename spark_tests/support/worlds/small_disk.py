"""A broker on one small device for journal and snapshots, and what its clients do when it is full: take what
is there, row by row.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from mq_broker.core.commands import (
    Acknowledge,
    AddCredit,
    HoldRun,
    OpenSession,
    ReleaseView,
    ResolveFetch,
    RowsView,
    Settings,
    Tick,
)
from mq_broker.engine.engine import Engine
from mq_broker.engine.housekeeping import SnapshotSettings
from mq_broker.engine.opening import recover
from mq_broker.journal.settings import JournalSettings
from mq_broker.testing.memory_disk import MemoryDisk
from mq_wire.errors import StoreFull
from mq_wire.v1 import produce_pb2 as produce
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from spark_tests.support.clock import FakeClock
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.disks import JOURNAL
from spark_tests.support.worlds.lists import CLUSTER

SMALL: Final = JournalSettings(
    segment_bytes=64 << 10,
    first_bytes=16 << 10,
    spare_bytes=4 << 10,
    sector_bytes=512,
    fill_in_background=False,
    maps_max=4,
)
#: What is remembered for ever is as small as the disk.
_SETTINGS: Final = Settings(
    default_partitions=2,
    run_grace_us=5_000_000,
    staged_ttl_us=600_000_000,
    kept_ended=8,
    queries_max=8,
    kept_boundaries=8,
    kept_batches=8,
)
_BATCH_ROWS: Final = 8


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    """Writes snapshots on the thread of the engine."""
    work()
    return lambda: None


class SmallDisk:
    """An engine on a device of so many bytes. `restart` goes on with another process, in one of three
    ways.
    """

    def __init__(
        self, rng: random.Random, capacity_bytes: int = 280 << 10, first_bytes: int = 16 << 10
    ) -> None:
        self.rng, self.clock = rng, FakeClock()
        self.disks = MemoryDisk(capacity_bytes=capacity_bytes), MemoryDisk(capacity_bytes=capacity_bytes)
        self._settings = dataclasses.replace(SMALL, first_bytes=first_bytes)
        self.ids = self.sent = self.refusals = 0
        self.engine: Engine
        self._open(created=False)

    def _open(self, *, created: bool) -> None:
        journal, snapshots = self.disks
        journal.beside, snapshots.beside = snapshots, journal
        snapshot_settings = SnapshotSettings(bytes=1 << 40, interval_us=1 << 60)
        self.broker, self.journal, self.housekeeping = recover(
            journal, snapshots, CLUSTER, JOURNAL, _SETTINGS, self._settings, snapshot_settings,
            created=created, new_id=self._new_id, aside=at_once,
        )  # fmt: skip
        self.engine = Engine(
            self.broker, self.journal, self.housekeeping, self.clock.wall_us, monotonic=self.clock.monotonic_s
        )

    def _new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    def restart(self, how: str) -> None:
        """Stops in order, is killed, or loses its power."""
        if how == "stop":
            self.engine.stop()
        elif how == "cut":
            self.disks = self.disks[0].crash(self.rng), self.disks[1].crash(self.rng)
        if how != "cut":
            self.disks = self.disks[0].reopen(), self.disks[1].reopen()
        self._open(created=True)

    def answer(self, command: Any) -> Any:
        return self.engine.answer(command)

    def seconds_pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            self.engine.submit(Tick(), lambda reply: None)
            for _ in range(4):
                self.engine.turn()

    def publish(self, staged: produce.StagedSet | None = None, queue: str = "q") -> None:
        """One batch of the one producer, or of a staged set's own."""
        who, first = (("c" * 32, 0), self.sent) if staged is None else ((staged.token.hex(), 0), 0)
        rows = [(b"%d" % (self.sent + row) + bytes(self.rng.randrange(200)), 4) for row in range(_BATCH_ROWS)]
        self.answer(
            commands.publish(queue, self.rng.randrange(2) if staged else 0, who, first, rows, staged=staged)
        )
        self.sent += _BATCH_ROWS * (staged is None)

    def stage(self, number: int, epoch: int = 1, query: str = "staging") -> produce.StagedSet:
        staged = produce.StagedSet(
            token=number.to_bytes(16, "big"), epoch=epoch, query_id=query, batch_id=number, run_id="run"
        )
        self.publish(staged)
        return staged

    def fill(self) -> None:
        """Publishes until that is refused."""
        for _ in range(10_000):
            try:
                self.publish()
            except StoreFull:
                return
        raise AssertionError("the disk never became full")

    @property
    def depth(self) -> int:
        queue = self.broker.state.by_name["q"]
        return queue.queue.ready_rows() + queue.queue.assigned_rows()

    @property
    def used(self) -> int:
        return sum(disk.used_bytes() for disk in self.disks)


class Consumers:
    """Takes rows off the queue one by one, in the ways there are. What a restart ends is begun anew."""

    def __init__(self, disk: SmallDisk) -> None:
        self._disk = disk
        self._views: list[RowsView] = []
        self._session = self._run = 0
        self._who: wire.ConsumerRef | None = None
        self._next: dict[int, int] = {}
        self._query = self._batch = 0
        self.done = 0

    def restarted(self) -> None:
        self._session = 0
        self._views.clear()
        self._run = 0

    def acknowledge_one(self) -> None:
        """A connected consumer with credit for one row at a time."""
        answer = self._disk.answer
        if not self._session:
            opening = OpenConsumer(destination="q", credit=Credit(rows=1, bytes=1 << 40))
            self._session = answer(OpenSession(opening, self._views.append)).session
        elif not self._views:
            answer(AddCredit(self._session, 1, 1 << 20))
        while self._views:
            view = self._views.pop()
            (offset,) = view.selection.offsets()
            answer(ReleaseView(view))
            self.done += answer(
                Acknowledge(self._session, [(view.partition, np.array([offset]), np.array([offset + 1]))])
            )

    def plan_few(self) -> None:
        """A query with batches of a row or two, now and then with a new checkpoint."""
        answer = self._disk.answer
        if not self._run or self._who is None or self._disk.rng.random() < 0.1:
            self._run = answer(HoldRun(0))
            if self._disk.rng.random() < 0.5:
                self._who = None
        answer(HoldRun(self._run))
        if self._who is None:
            self._who, self._next = wire.ConsumerRef(destination="q", consumer="night"), {}
            self._query, self._batch = self._query + 1, 0
        self._who.run = self._run
        plan = answer(
            wire.PlanRequest(
                who=self._who, start=commands.positions(self._next), max_rows=self._disk.rng.choice([1, 2])
            )
        )
        if plan.idle:
            return
        self._who.incarnation, self._who.destination_id = plan.incarnation, plan.destination_id
        start, end = commands.positions(self._next), plan.end
        parts = answer(wire.OpenRangeRequest(who=self._who, start=start, end=end)).parts
        for part in parts:
            fetch = wire.OpenFetch(who=self._who, partition=part.partition, first=part.first, last=part.last)
            fetch.query_id, fetch.batch_id = f"night-{self._query}", self._batch
            for view in answer(ResolveFetch(fetch)):
                answer(ReleaseView(view))
        if self._disk.rng.random() < 0.1:
            return  # this batch is read again
        answer(wire.AcknowledgeRangeRequest(who=self._who, end=end))
        self._next, self._batch = dict(end.next), self._batch + 1
        self.done += plan.rows

    def release(self) -> None:
        """An operator takes the rows of the query away."""
        if self._who is not None and self._who.incarnation:
            self._disk.answer(wire.ReleaseConsumerRequest(destination="q", consumer="night"))
            self._who = None

    def writer(self) -> None:
        """A writer takes an epoch, and looks whether its queue is there."""
        self._disk.answer(produce.TakeEpochRequest())


def drain(disk: SmallDisk, ways: list[str], restarts: float) -> None:
    """Consumes until nothing is left. No command on the way is refused."""
    rng, consumers = disk.rng, Consumers(disk)
    for _ in range(40_000):
        if not disk.depth:
            return
        getattr(consumers, rng.choice(ways))()
        if rng.random() < 0.2:
            disk.seconds_pass(1)
        if rng.random() < restarts:
            disk.restart(rng.choice(["stop", "kill", "cut"]))
            consumers.restarted()
    raise AssertionError(f"{disk.depth} rows are left")


def check_healed(disk: SmallDisk, rows: int) -> None:
    """After a moment as many rows are taken as at first, nearly."""
    sent = disk.sent
    for _ in range(10):
        disk.fill()
        if disk.sent - sent > rows // 2:
            return
        disk.seconds_pass(2)
    raise AssertionError(f"{disk.sent - sent} rows are taken now, {rows} were at first")
