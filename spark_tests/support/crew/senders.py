"""Producers: record batches, single messages, a name that outlives its program, and staged sets."""

from __future__ import annotations

import secrets
from collections import deque
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_wire.errors import (
    BrokerUnavailable,
    ClientClosed,
    MqError,
    SendOutcomeUnknown,
    SendTimeout,
    StorageFailed,
    StoreFull,
)
from mq_wire.limits import TOKEN_BYTES
from mq_wire.v1 import produce_pb2
from pyspark_mq import Producer
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.receipts import BatchReceipt, Receipt
from spark_tests.oracle.marked import Ids, ids_of, values_of
from spark_tests.support.crew.actor import PATIENCE_S, Actor, World

_UNANSWERED_MAX: Final = 8
_BATCH_ROWS_MAX: Final = 1500


class Sender(Actor):
    """Sends to one queue under a number of its own, counting up."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, f"{type(self).__name__}-{number}")
        self.queue, self.number = queue, number
        self._sent = 0

    def _ids(self, count: int) -> Ids:
        """Returns the ids of the next messages, which count as attempted from here on."""
        ids = ids_of(self.number, range(self._sent, self._sent + count))
        self._sent += count
        return ids

    def _priorities(self, count: int) -> NDArray[np.int64]:
        """One for all as often as a mixture: the broker stores these in different ways."""
        mixed = self.rng.random() < 0.5
        return np.array(
            [self.rng.randrange(10) for _ in range(count)] if mixed else [self.rng.randrange(10)] * count
        )

    def _producer(self, send_timeout: float = PATIENCE_S, **options: object) -> Producer:
        return Producer(
            self.world.address, queue=self.queue, window_bytes=1 << 19, linger_ms=1,
            send_timeout=send_timeout, connect_timeout=PATIENCE_S, **options,  # type: ignore[arg-type]
        )  # fmt: skip


class BatchSender(Sender):
    """Record batches, into one partition or many."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, number)
        self._unanswered: deque[tuple[BatchReceipt, Ids, NDArray[np.int64] | None]] = deque()
        self._open: Producer | None = None

    def step(self) -> None:
        producer = self._open = self._open or self._producer()
        ids = self._ids(self.rng.randint(1, _BATCH_ROWS_MAX))
        priorities = self._priorities(len(ids))
        columns = {"value": values_of(ids, priorities), "priority": priorities}
        partitions = None
        if self.rng.random() < 0.5:
            partitions = np.array([self.rng.randrange(producer.partitions) for _ in ids])
            columns["partition"] = partitions
        self.history.attempted(ids)
        self._unanswered.append((producer.send_batch(pa.record_batch(columns)), ids, partitions))
        while len(self._unanswered) > self.rng.randint(0, _UNANSWERED_MAX):
            self._settle()

    def finish(self) -> None:
        while self._unanswered:
            self._settle()
        if self._open is not None:
            self._open.close(PATIENCE_S)

    def _settle(self) -> None:
        """Waits for the oldest answer and writes down the place of each row."""
        receipt, ids, chosen = self._unanswered.popleft()
        receipt.result(PATIENCE_S)
        acknowledge(self, receipt, ids, chosen)


def acknowledge(sender: Sender, receipt: BatchReceipt, ids: Ids, chosen: NDArray[np.int64] | None) -> None:
    """Writes down what a receipt promises. Within a partition, its ranges go along with the rows."""
    partitions = np.empty(len(ids), np.int64)
    offsets = np.full(len(ids), -1)
    taken: dict[int, int] = {}
    for partition, base, rows, _ in receipt.ranges:
        assert base is not None
        begin = taken.get(partition if chosen is not None else -1, 0)
        taken[partition if chosen is not None else -1] = begin + rows
        of_partition = np.arange(len(ids)) if chosen is None else np.flatnonzero(chosen == partition)
        at = of_partition[begin : begin + rows]
        partitions[at] = partition
        offsets[at] = base + np.arange(rows)
    assert (offsets >= 0).all(), f"a receipt of {len(ids)} rows with the ranges {receipt.ranges}"
    sender.history.acknowledged(ids, sender.queue, partitions, offsets)
    sender.progress += len(ids)


class HastySender(Sender):
    """Gives up where the broker is away for a moment, and now and then dies: what it was told of each batch
    must be true.
    """

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, number)
        self._unanswered: deque[tuple[BatchReceipt, Ids]] = deque()
        self._open: Producer | None = None

    def step(self) -> None:
        producer = self._open = self._open or self._producer(send_timeout=0.3)
        ids = self._ids(self.rng.randint(1, 100))
        # One partition, so one batch on the wire, and one outcome.
        columns = {
            "value": values_of(ids, np.full(len(ids), 4)),
            "partition": np.full(len(ids), self.rng.randrange(producer.partitions)),
        }
        self.history.attempted(ids)
        try:
            self._unanswered.append((producer.send_batch(pa.record_batch(columns)), ids))
        except SendTimeout:
            self.history.refused(ids)
        while len(self._unanswered) > _UNANSWERED_MAX:
            self._settle()
        if self.rng.random() < 0.01:
            self._die()

    def finish(self) -> None:
        while self._unanswered:
            self._settle()
        self._die()

    def _die(self) -> None:
        if self._open is not None:
            with suppress(SendOutcomeUnknown, SendTimeout, StoreFull):  # the receipts tell
                self._open.close(timeout=0)
        self._open = None
        while self._unanswered:
            self._settle()

    def _settle(self) -> None:
        receipt, ids = self._unanswered.popleft()
        try:
            [(partition, base, rows, _)] = receipt.result(PATIENCE_S).ranges
        except (SendTimeout, StoreFull):
            self.history.refused(ids)
        except (SendOutcomeUnknown, ClientClosed):
            return
        else:
            assert base is not None
            assert rows == len(ids)
            self.history.acknowledged(ids, self.queue, partition, base + np.arange(rows))
            self.progress += rows


class SingleSender(Sender):
    """Single messages, gathered by the producer, or one at a time, each awaited."""

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, number)
        self._unanswered: deque[tuple[list[Receipt], Ids]] = deque()
        self._open: Producer | None = None

    def step(self) -> None:
        producer = self._open = self._open or self._producer()
        waits_for_each = self.rng.random() < 0.3
        while waits_for_each and self._unanswered:
            self._settle()
        ids = self._ids(self.rng.randint(1, 20 if waits_for_each else 100))
        priorities = self._priorities(len(ids))
        partition = self.rng.choice([None, self.rng.randrange(producer.partitions)])
        self.history.attempted(ids)
        receipts = []
        for value, priority in zip(values_of(ids, priorities).to_pylist(), priorities.tolist(), strict=True):
            receipts.append(producer.send(value, priority=priority, partition=partition))
            if waits_for_each:
                receipts[-1].result(PATIENCE_S)
        self._unanswered.append((receipts, ids))
        while len(self._unanswered) > self.rng.randint(0, _UNANSWERED_MAX):
            self._settle()

    def finish(self) -> None:
        while self._unanswered:
            self._settle()
        if self._open is not None:
            self._open.close(PATIENCE_S)

    def _settle(self) -> None:
        receipts, ids = self._unanswered.popleft()
        for receipt in receipts:
            receipt.result(PATIENCE_S)
        partitions, offsets = (
            [receipt.partition for receipt in receipts],
            [receipt.offset for receipt in receipts],
        )
        self.history.acknowledged(ids, self.queue, partitions, offsets)
        self.progress += len(ids)


class NamedSender(Sender):
    """A program with a stable name that breaks off and starts anew: what its name has stored tells it where
    to go on.

    Each partition counts for itself, under the number `number + partition`.
    """

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, number)
        self._unanswered: list[tuple[BatchReceipt, int, int]] = []
        self._open: Producer | None = None
        self._next: dict[int, int] = {}
        self._tried: dict[int, int] = {}  # partition -> how many were ever attempted
        self._promised: dict[int, int] = {}  # partition -> how many are certain to be stored

    def step(self) -> None:
        if self._open is None or self.rng.random() < 0.05:
            self._begin_anew()
        producer = self._open
        assert producer is not None
        partition, count = self.rng.randrange(producer.partitions), self.rng.randint(1, 300)
        begin = self._next.get(partition, 0)
        self._next[partition] = begin + count
        self._tried[partition] = max(self._tried.get(partition, 0), begin + count)
        ids = ids_of(self.number + partition, range(begin, begin + count))
        # The same message must have the same priority each time it is sent.
        priorities = (ids * 7919) % 10
        self.history.attempted(ids)
        columns = {
            "value": values_of(ids, priorities),
            "priority": priorities,
            "partition": np.full(count, partition),
        }
        self._unanswered.append((producer.send_batch(pa.record_batch(columns)), partition, begin))
        if len(self._unanswered) > _UNANSWERED_MAX:
            self._settle()

    def finish(self) -> None:
        self._settle()
        if self._open is not None:
            self._open.close(PATIENCE_S)

    def _settle(self) -> None:
        for receipt, partition, begin in self._unanswered:
            receipt.result(PATIENCE_S)
            self._write_down(receipt, partition, begin)
        self._unanswered = []

    def _write_down(self, receipt: BatchReceipt, partition: int, begin: int) -> None:
        for _, base, rows, _ in receipt.stored:
            assert base is not None
            ids = ids_of(self.number + partition, range(begin, begin + rows))
            self.history.acknowledged(ids, self.queue, partition, base + np.arange(rows))
            begin += rows
            self._promised[partition] = max(self._promised.get(partition, 0), begin)
            self.progress += rows

    def _begin_anew(self) -> None:
        """As after a crash of the program: whatever was on its way is left to itself, or even still at
        work.
        """
        old, is_alive = self._open, self.rng.random() < 0.5
        if old is not None and not is_alive:
            self._abandon(old)
        self._open = self._producer(name=f"named-{self.number}")
        if old is not None and is_alive:
            self._abandon(old)
        for partition in range(self._open.partitions):
            stored, last_offset = self._open.stored.get(partition, (0, -1))
            promised, tried = self._promised.get(partition, 0), self._tried.get(partition, 0)
            if not promised <= stored <= tried:
                self.history.note(
                    f"{self.name}: {stored} rows stored in partition {partition}, with {promised} promised "
                    f"and {tried} tried"
                )
            if stored:
                self.history.acknowledged(
                    ids_of(self.number + partition, [stored - 1]), self.queue, partition, last_offset
                )
                self.history.acknowledged(ids_of(self.number + partition, range(promised, stored)))
            self._next[partition], self._promised[partition] = stored, max(stored, promised)

    def _abandon(self, producer: Producer) -> None:
        with suppress(MqError):  # of batches that are unanswered now, or refused since a newer epoch is there
            producer.close(timeout=0)
        for receipt, partition, begin in self._unanswered:
            self._write_down(receipt, partition, begin)
        self._unanswered = []


class StagingSender(Sender):
    """Write tasks and their driver: sets of staged rows, committed in one step, or discarded, or
    forgotten.
    """

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, queue, number)
        self._connection = Connection(world.address)
        self._batch = 0

    def step(self) -> None:
        group = self.history.group()
        query_id = f"query-{self.number}"
        epoch = self._connection.call(
            "TakeEpoch", produce_pb2.TakeEpochRequest(), retry_timeout=PATIENCE_S
        ).epoch
        tokens = []
        for _ in range(self.rng.randint(1, 3)):
            token = secrets.token_bytes(TOKEN_BYTES)
            staged = produce_pb2.StagedSet(
                token=token, epoch=epoch, query_id=query_id, batch_id=self._batch, run_id="run"
            )
            tokens.append(produce_pb2.StagedToken(token=token, rows=self._stage(staged, group)))
        request = produce_pb2.CommitStagedRequest(
            tokens=tokens, target=self.queue, rows=sum(token.rows for token in tokens)
        )
        fate = self.rng.random()
        if fate < 0.15:
            self._discard(tokens, group)
        elif fate < 0.3:
            self.history.group_ended(group, committed=False)  # the driver died: nobody will ever commit these
        elif fate < 0.5:
            self._commit_once(request, group)
        else:
            request.owner, request.version, request.run_id = f"query:{query_id}", self._batch, "run"
            self._commit(request, group)

    def finish(self) -> None:
        self._connection.close()

    def _stage(self, staged: produce_pb2.StagedSet, group: int) -> int:
        rows = 0
        with self._producer(staged=staged) as producer:
            for _ in range(self.rng.randint(1, 4)):
                ids = self._ids(self.rng.randint(1, 400))
                priorities = self._priorities(len(ids))
                self.history.attempted(ids, group)
                producer.send_batch(
                    pa.record_batch({"value": values_of(ids, priorities), "priority": priorities})
                )
                rows += len(ids)
        return rows

    def _commit(self, request: produce_pb2.CommitStagedRequest, group: int) -> None:
        """An idempotent commit is tried until it is answered; a second time it changes nothing."""
        self.history.group_committing(group)
        for _ in range(self.rng.randint(1, 2)):
            response = self._connection.call("CommitStaged", request, retry_timeout=PATIENCE_S)
            assert response.rows == request.rows, f"{response.rows} rows committed of {request.rows}"
        self.history.group_ended(group, committed=True)
        self._batch += 1
        self.progress += request.rows

    def _commit_once(self, request: produce_pb2.CommitStagedRequest, group: int) -> None:
        """A commit without a marker has one attempt; where the answer is missing, all is there or nothing."""
        self.history.group_committing(group)
        try:
            self._connection.call("CommitStaged", request, retry_timeout=None)
        except (BrokerUnavailable, StorageFailed):
            return
        except StoreFull:
            self.history.group_ended(group, committed=False)
            return
        self.history.group_ended(group, committed=True)
        self._batch += 1
        self.progress += request.rows

    def _discard(self, tokens: list[produce_pb2.StagedToken], group: int) -> None:
        request = produce_pb2.DiscardStagedRequest(tokens=[token.token for token in tokens])
        self._connection.call("DiscardStaged", request, retry_timeout=PATIENCE_S)
        self.history.group_ended(group, committed=False)
