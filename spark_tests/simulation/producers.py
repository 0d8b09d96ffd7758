"""Clients that send: with the real window of unanswered batches, over links that break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_broker.core.commands import Publish
from mq_broker.core.model.facets import DEFAULT, Facets
from mq_wire.errors import InvalidRecords, MqError, SendOutcomeUnknown
from mq_wire.v1 import common_pb2, produce_pb2
from pyspark_mq.client.sending import OutgoingBatch
from pyspark_mq.client.window import Window
from spark_tests.oracle.marked import Ids, ids_of
from spark_tests.simulation.client import Client, Steps, World
from spark_tests.simulation.links import PublishLink
from spark_tests.simulation.messages import lanes_of, piece_of

_BATCH_ROWS_MAX: Final = 40
_UNANSWERED_MAX: Final = 6
_NOTHING: Final = pa.py_buffer(b"")


class Batch(OutgoingBatch):
    """A batch that knows its messages. `is_promised` once the broker has said that it has them, whoever heard
    it.
    """

    __slots__ = ("attempts", "ids", "is_promised", "lanes")

    def __init__(self, partition: int, ids: Ids, priorities: NDArray[np.int64]) -> None:
        piece = piece_of(ids, priorities)
        super().__init__(None, partition, piece)
        self.ids = ids
        self.lanes = lanes_of(piece)
        self.attempts = 0
        self.is_promised = False


class Outlet:
    """One window and its link: what `pyspark_mq.client.publishing` is, without threads.

    Args:
        client: whose it is.
        queue: where to.
        window: of unanswered batches.
        is_counted: whether a receipt promises the rows a place in the queue, which goes into the history.
        promised: told of each such receipt when it leaves the broker.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        window: Window,
        *,
        is_counted: bool = True,
        promised: Callable[[Batch], None] | None = None,
    ) -> None:
        self._client, self._queue, self.window, self._is_counted, self._told = (
            client,
            queue,
            window,
            is_counted,
            promised,
        )
        self._link: PublishLink | None = None
        self.broken: MqError | None = None

    def add(self, batch: Batch, timeout_s: float = 1e9) -> None:
        self.window.add(batch, self._client.world.now_s + timeout_s)

    def work(self) -> list[Batch]:
        """Takes answers and sends; returns the batches that have their outcome."""
        now_s = self._client.world.now_s
        settled = self._receive(now_s)
        if self.broken is None:
            self._send(now_s)
        return settled

    def expire(self, timeout_s: float) -> list[Batch]:
        """Gives up on what is too old."""
        return [
            batch
            for batch in self.window.expire(self._client.world.now_s, timeout_s)
            if isinstance(batch, Batch)
        ]

    def close(self) -> None:
        """Leaves what is unanswered to itself."""
        if self._link is not None:
            self._link.end()

    def _receive(self, now_s: float) -> list[Batch]:
        link, rng = self._link, self._client.rng
        settled: list[Batch] = []
        while link is not None and link.down and rng.random() < 0.9:
            request_id, reply = link.down.popleft()
            response = produce_pb2.PublishResponse(request_id=request_id)
            if isinstance(reply, MqError):
                response.error.CopyFrom(common_pb2.Error(code=reply.code, message=str(reply)))
            else:
                response.receipt.CopyFrom(reply)
            try:
                batch = self.window.answer(response, now_s)
            except MqError as error:
                self.broken = error
                link.end()
                return settled
            if isinstance(batch, Batch):
                settled.append(batch)
        if link is not None and link.is_broken and not link.down:
            self.window.disconnected()
            self._link = None
        return settled

    def _send(self, now_s: float) -> None:
        client = self._client
        if self._link is None:
            if self.window.idle:
                return
            self._link = client.network.opened(PublishLink(client.network))
        while client.rng.random() < 0.9:
            batch = self.window.next_batch(now_s)
            if batch is None:
                return
            self._put(self._link, batch)

    def _put(self, link: PublishLink, batch: OutgoingBatch) -> None:
        header = produce_pb2.PublishHeader.FromString(self.window.header(batch))
        if not isinstance(batch, Batch):
            self._client.counts["skips"] += 1
            link.send((batch.request_id, Publish(header, _NOTHING, 0, DEFAULT), lambda reply: None))
            return
        batch.attempts += 1
        command: Publish | MqError = Publish(header, batch.records, batch.crc32, Facets(batch.lanes))
        if (
            self._is_counted
            and self._told is None
            and batch.attempts == 1
            and self._client.rng.random() < 0.01
        ):
            command = InvalidRecords("damaged on its way")
        link.send((batch.request_id, command, lambda reply: self._promised(batch, reply)))

    def _promised(self, batch: Batch, reply: object) -> None:
        """The broker has answered, whether anybody hears it or not."""
        if isinstance(reply, produce_pb2.Receipt):
            assert reply.duplicates in (0, reply.rows), reply
            if reply.duplicates:
                self._client.counts["duplicates answered"] += 1
            if self._is_counted:
                batch.is_promised = True
                offsets = reply.base_offset + np.arange(reply.rows)
                self._client.history.acknowledged(batch.ids, self._queue, reply.partition, offsets)
                if self._told is not None:
                    self._told(batch)


class Sender(Client):
    """Knows how to make messages."""

    def __init__(self, world: World, queue: str, name: str) -> None:
        super().__init__(world, name)
        self.queue = queue
        self.number = 0
        self.sent = 0

    def new_messages(self) -> tuple[Ids, NDArray[np.int64]]:
        """Returns ids and priorities of some more messages."""
        count = self.rng.choice([1, 2, self.rng.randint(1, _BATCH_ROWS_MAX)])
        ids = ids_of(self.number, range(self.sent, self.sent + count))
        self.sent += count
        return ids, self.priorities(count)

    def priorities(self, count: int) -> NDArray[np.int64]:
        choice = self.world.priorities
        mixed = len(choice) > 1 and self.rng.random() < 0.4
        return np.array(
            [self.rng.choice(choice) for _ in range(count)] if mixed else [self.rng.choice(choice)] * count
        )


class Producer(Sender):
    """Sends batches to any partition, several at a time; sometimes dies and comes back as another."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, f"producer {number}")
        self._timeout_s = self.rng.choice([0.5, 5.0, 1e9])
        self._begin()

    def _begin(self) -> None:
        self.number, self.sent = self.world.new_producer(), 0
        self._outlet = Outlet(self, self.queue, Window(self.queue, f"{self.number:032x}", 0))

    def body(self) -> Steps:
        while not (self.world.is_finishing and self._outlet.window.idle):
            if not self.world.is_finishing:
                self._add()
            self._settle(self._outlet.work())
            self._settle(self._outlet.expire(self._timeout_s))
            if self._outlet.broken is not None or (not self.world.is_finishing and self.rng.random() < 0.003):
                self.counts["producers that died"] += 1
                self._outlet.close()
                self._begin()
            yield None
        self._outlet.close()

    def _add(self) -> None:
        if self._outlet.window.batches < _UNANSWERED_MAX and self.rng.random() < 0.8:
            ids, priorities = self.new_messages()
            self.history.attempted(ids)
            self._outlet.add(
                Batch(self.rng.randrange(self.world.partitions), ids, priorities), self._timeout_s
            )

    def _settle(self, batches: list[Batch]) -> None:
        for batch in batches:
            if batch.error is None:
                if not batch.is_promised:
                    self.history.note(
                        f"{self.name} was told that a batch is stored, the broker never said so"
                    )
            elif not isinstance(batch.error, SendOutcomeUnknown):
                self.counts[f"batches refused: {type(batch.error).__name__}"] += 1
                self.history.refused(batch.ids)
