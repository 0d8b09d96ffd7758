"""Those who look, and those who make and delete queues."""

from __future__ import annotations

from typing import Final

import numpy as np

from mq_wire.errors import DataLost, DestinationExists, MqError, UnknownDestination
from mq_wire.v1 import admin_pb2 as admin
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.consume_pb2 import Credit, OpenConsumer
from pyspark_mq.client.window import Window
from spark_tests.oracle.marked import Rows, ids_of
from spark_tests.simulation.client import Asking, Client, Steps, World
from spark_tests.simulation.links import ConsumeLink, FetchLink
from spark_tests.simulation.producers import Batch, Outlet

#: Far from the numbers of producers whose messages count.
_SIDE_PRODUCER: Final = 1 << 20
#: Of an administrator that waits for a word of the broker, which it hears sooner, or sees that the connection
#: is lost.
_END_STEPS: Final = 400


class Browser(Client):
    """Reads a queue without taking anything."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, f"browser {number}")
        self.queue = queue

    def body(self) -> Steps:
        while not self.world.is_finishing:
            for _ in range(self.rng.randint(1, 30)):
                yield None
            opened = yield from self.ask(wire.OpenBrowseRequest(destination=self.queue))
            if not isinstance(opened, MqError):
                yield from self._look(opened)

    def _look(self, opened: wire.OpenBrowseResponse) -> Asking:
        for part in opened.parts:
            fetch = wire.OpenFetch(
                browse=opened.browse, partition=part.partition, first=part.first, last=part.last
            )
            link: FetchLink = self.network.opened(FetchLink(self.network, fetch))
            taken: list[Rows] = []
            while not link.is_broken or link.down:
                yield link
                while link.down:
                    message = link.down.popleft()
                    if message[0] == "end":
                        self._judge(part, Rows.joined(taken))
                        link.end()
                    else:
                        taken.append(self.world.saw(message[1]))
            if link.error is not None and not isinstance(link.error, DataLost):
                self.history.note(f"{self.name}: {link.error}")

    def _judge(self, part: wire.RangePart, rows: Rows) -> None:
        self.counts["parts browsed"] += 1
        if len(rows) != part.rows or len(np.unique(rows.offsets)) != len(rows):
            self.history.note(
                f"{self.name}: {len(rows)} rows of a view of {part.rows}, {len(np.unique(rows.offsets))} "
                f"different ones"
            )
        self.world.browsed.append((self.queue, rows))


class Operator(Client):
    """Takes a durable consumer's rows away from it now and then: its checkpoint is of no use any more."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, f"operator {number}")
        self.queue = queue

    def body(self) -> Steps:
        while not self.world.is_finishing:
            for _ in range(self.rng.randint(5, 40)):
                yield None
            listed = yield from self.ask(wire.ListConsumersRequest(destination=self.queue))
            if isinstance(listed, MqError) or not listed.consumers:
                continue
            consumer = self.rng.choice([*listed.consumers])
            if consumer.session:
                yield from self._end(consumer.session)
                continue
            request = wire.ReleaseConsumerRequest(destination=self.queue, incarnation=consumer.incarnation)
            released = yield from self.ask(request)
            if not isinstance(released, MqError):
                self.counts["releases"] += 1
                self.counts["releases of rows that the sink had committed"] += released.acknowledged_rows > 0

    def _end(self, session: int) -> Asking:
        ended = yield from self.ask(wire.ReleaseConsumerRequest(session=session), retry=False)
        self.counts["sessions ended by operators"] += not isinstance(ended, MqError)


class Administrator(Client):
    """Makes a queue, uses it a little, deletes it: a queue of the same name is another one then."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"administrator {number}")
        self.queue = f"side-{number}"
        self._sent = 0

    def body(self) -> Steps:
        known = b""
        while not self.world.is_finishing:
            for _ in range(self.rng.randint(1, 20)):
                yield None
            made = yield from self.ask(
                admin.CreateDestinationRequest(name=self.queue, partitions=self.world.partitions)
            )
            if isinstance(made, MqError):
                self._expect(made, DestinationExists)
                continue
            if made.destination_id == known:
                self.history.note(f"{self.name}: a queue that was deleted is there again")
            link = yield from self._use()
            yield from self._look()
            deleted = yield from self.ask(
                admin.DeleteDestinationRequest(name=self.queue, destination_id=made.destination_id)
            )
            if isinstance(deleted, MqError):
                self._expect(deleted)
            else:
                known = made.destination_id
                self.counts["queues deleted"] += 1
                yield from self._await_end(link)

    def _await_end(self, link: ConsumeLink) -> Asking:
        """Who waits on a queue that is deleted is told."""
        for _ in range(_END_STEPS):
            if link.is_broken:
                break
            yield None
        else:
            self.history.note(f"{self.name}: a consumer of a deleted queue is left waiting")
        if link.error is not None:
            self._expect(link.error, UnknownDestination)
            self.counts["consumers of deleted queues told"] += 1
        link.end()

    def _use(self) -> Asking:
        producer = f"{self.rng.getrandbits(128):032x}"
        outlet = Outlet(self, self.queue, Window(self.queue, producer, 0), is_counted=False)
        opening = OpenConsumer(destination=self.queue, credit=Credit(rows=10, bytes=1 << 40))
        link: ConsumeLink = self.network.opened(ConsumeLink(self.network, self.queue, opening))
        for _ in range(self.rng.randint(1, 4)):
            count = self.rng.randint(1, 20)
            ids = ids_of(_SIDE_PRODUCER, range(self._sent, self._sent + count))
            self._sent += count
            outlet.add(Batch(self.rng.randrange(self.world.partitions), ids, np.full(count, 4)))
            outlet.work()
            yield None
        outlet.close()
        if self.rng.random() < 0.3:
            link.end()
        return link

    def _look(self) -> Asking:
        for request in (
            admin.DescribeDestinationRequest(name=self.queue),
            admin.ListDestinationsRequest(),
            wire.ListConsumersRequest(),
            admin.StatsRequest(destination=self.queue),
        ):
            reply = yield from self.ask(request)
            if isinstance(reply, MqError):
                self._expect(reply)  # nobody else deletes it, and what we delete late is another one
            elif isinstance(reply, admin.StatsResponse):
                stats = reply.destination
                if (
                    stats.depth_rows != stats.ready_rows + stats.assigned_rows
                    or sum(stats.ready_by_priority) != stats.ready_rows
                ):
                    self.history.note(f"{self.name}: figures that do not add up: {stats}")

    def _expect(self, error: MqError, *kinds: type[MqError]) -> None:
        self.counts[f"administrator: {type(error).__name__}"] += 1
        if error.code != "STORE_FULL" and not isinstance(error, kinds):
            self.history.note(f"{self.name}: {type(error).__name__}: {error}")
