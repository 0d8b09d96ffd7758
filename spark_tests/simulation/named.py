"""A producer with a name that breaks off and starts anew: what the name has stored tells it where to
go on.
"""

from __future__ import annotations

from typing import Final

from mq_wire.errors import MqError
from mq_wire.v1.produce_pb2 import OpenProducerRequest, OpenProducerResponse
from pyspark_mq.client.window import Window
from spark_tests.oracle.marked import ids_of
from spark_tests.simulation.client import Asking, Steps, World
from spark_tests.simulation.producers import Batch, Outlet, Sender

_UNANSWERED_MAX: Final = 5


class NamedProducer(Sender):
    """Each partition counts for itself, under the number `number + partition`."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, f"named producer {number}")
        self.number = world.new_producer(world.partitions)
        self._outlet: Outlet | None = None
        # another start of this program that does not know that it was replaced
        self._older: Outlet | None = None
        self._next = [0] * world.partitions
        self._tried = [0] * world.partitions  # how many were ever attempted
        self._promised = [0] * world.partitions  # how many are certain to be stored

    def body(self) -> Steps:
        while not self.world.is_finishing:
            if self._outlet is None or self._outlet.broken is not None or self.rng.random() < 0.01:
                yield from self._begin_anew()
            assert self._outlet is not None
            if self._outlet.window.batches < _UNANSWERED_MAX:
                self._add(self._outlet)
            self._outlet.work()
            self._work_as_before()
            yield None
        while self._outlet is not None and self._outlet.broken is None and not self._outlet.window.idle:
            self._outlet.work()
            yield None
        for outlet in (self._outlet, self._older):
            if outlet is not None:
                outlet.close()

    def _add(self, outlet: Outlet) -> None:
        partition, count = self.rng.randrange(self.world.partitions), self.rng.randint(1, 20)
        begin = self._next[partition]
        self._next[partition] = begin + count
        self._tried[partition] = max(self._tried[partition], begin + count)
        ids = ids_of(self.number + partition, range(begin, begin + count))
        self.history.attempted(ids)
        # The same message must have the same priority each time it is sent.
        outlet.add(Batch(partition, ids, (ids * 7919) % 10))

    def _work_as_before(self) -> None:
        if self._older is not None:
            self._older.work()
            if self._older.broken is not None or self._older.window.idle:
                self._older.close()
                self._older = None

    def _begin_anew(self) -> Asking:
        """As after a crash of the program: whatever was on its way is left to itself, or even still at
        work.
        """
        if self._outlet is not None:
            if self._older is None and self.rng.random() < 0.5:
                self._older = self._outlet
            else:
                self._outlet.close()
        opened = yield from self.ask(
            OpenProducerRequest(name=self.name.replace(" ", "-"), destination=self.queue)
        )
        if isinstance(opened, MqError):
            self.counts["named producers not opened"] += 1
            self._outlet = None
            yield None
            yield from self._begin_anew()
            return
        self._go_on(opened)

    def _go_on(self, opened: OpenProducerResponse) -> None:
        self.counts["named producers opened"] += 1
        marks = {mark.partition: mark for mark in opened.marks}
        for partition in range(self.world.partitions):
            stored = marks[partition].rows if partition in marks else 0
            promised, tried = self._promised[partition], self._tried[partition]
            if not promised <= stored <= tried:
                self.history.note(
                    f"{self.name}: {stored} rows stored in partition {partition}, with {promised} promised "
                    f"and {tried} tried"
                )
            if stored:
                last = ids_of(self.number + partition, [stored - 1])
                self.history.acknowledged(last, self.queue, partition, marks[partition].last_offset)
                self.history.acknowledged(ids_of(self.number + partition, range(promised, stored)))
            self._next[partition], self._promised[partition] = stored, max(stored, promised)
        window = Window(self.queue, opened.producer_id, opened.epoch, is_named=True)
        self._outlet = Outlet(self, self.queue, window, promised=self._note)

    def _note(self, batch: Batch) -> None:
        end = int(batch.ids[-1]) - (int(batch.ids[-1]) >> 40 << 40) + 1
        self._promised[batch.partition] = max(self._promised[batch.partition], end)
