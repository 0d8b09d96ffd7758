"""Consumers: message by message with exact and cumulative acknowledgement, and in batches; they leave and
come again.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import numpy as np

from mq_wire.errors import BrokerUnavailable, SessionClosed
from pyspark_mq import Consumer, Message
from spark_tests.oracle.history import UNORDERED
from spark_tests.oracle.marked import Rows, rows_of, rows_of_messages
from spark_tests.support.crew.actor import PATIENCE_S, Actor, World

#: How long a receiver waits before it looks whether it shall end.
_GLANCE_S: Final = 0.1
#: Message by message each may take a round trip, which is long on a busy machine; confirmations are not to
#: wait for two hundred of them.
_STEP_S: Final = 1.0
_SESSION_KEY: Final = b"mq.session"


class Receiver(Actor):
    """Takes from one queue. What it acknowledges counts as done once a flush has gone well, and as unknown if
    not.
    """

    def __init__(self, world: World, queue: str, number: int) -> None:
        super().__init__(world, f"{type(self).__name__}-{number}")
        self.queue = queue
        self._open: Consumer | None = None
        self._pending: list[Rows] = []

    def finish(self) -> None:
        self._confirm()
        self._close()

    def _consumer(self) -> Consumer:
        if self._open is None:
            prefetch = self.rng.choice([None, 1, 10, 5000])
            self._open = Consumer(
                self.world.address, queue=self.queue, prefetch=prefetch, connect_timeout=PATIENCE_S
            )
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            with suppress(SessionClosed):
                self._open.close(PATIENCE_S)
        self._open = None
        self._pending = []

    def _confirm(self) -> None:
        if self._open is None:
            return
        try:
            self._open.flush(PATIENCE_S)
        except SessionClosed:
            self._pending = []
        for rows in self._pending:
            self.history.confirmed(self.queue, rows)
            self.progress += len(rows)
        self._pending = []


class MessageReceiver(Receiver):
    """Message by message."""

    def step(self) -> None:
        began = self.history.stamp()
        consumer = self._consumer()
        messages: list[Message] = []
        until = time.monotonic() + _STEP_S
        for _ in range(self.rng.randint(1, 200)):
            if messages and time.monotonic() > until:
                break
            try:
                message = consumer.receive(timeout=0.0 if messages else _GLANCE_S)
            except BrokerUnavailable:
                break  # a broker that is away is not an empty queue; another glance later
            if message is None:
                break
            messages.append(message)
        if not messages:
            return
        self.history.read(self.queue, rows_of_messages(messages), began)
        with suppress(SessionClosed):
            if self.rng.random() < 0.3:
                self._acknowledge_up_to(consumer, messages)
            else:
                self._acknowledge_some(consumer, messages)
        if self.rng.random() < 0.3:
            self._confirm()
        if self.rng.random() < 0.02:
            self._close()  # what it kept back goes to others

    def _acknowledge_some(self, consumer: Consumer, messages: list[Message]) -> None:
        chosen = [message for message in messages if self.rng.random() < 0.95]
        for message in chosen:
            self._drop_if_refused(consumer, message, cumulative=False)
        if chosen:
            self._pending.append(rows_of_messages(chosen))

    def _acknowledge_up_to(self, consumer: Consumer, messages: list[Message]) -> None:
        """Everything of the last message's partition that came with it in one session, for whose identity
        there is no public name.
        """
        last = messages[-1]
        covered = [
            message
            for message in messages
            if message.partition == last.partition and message._delivery.session is last._delivery.session
        ]  # fmt: skip
        self._drop_if_refused(consumer, last, cumulative=True)
        self._pending.append(rows_of_messages(covered))

    def _drop_if_refused(self, consumer: Consumer, message: Message, *, cumulative: bool) -> None:
        """Acknowledges; if anything failed since the last flush, all that is not confirmed yet is unknown."""
        try:
            (consumer.acknowledge_up_to if cumulative else consumer.acknowledge)(message)
        except SessionClosed:
            self._pending = []
            raise


class BatchReceiver(Receiver):
    """In Arrow batches.

    Args:
        alone: nobody else takes from the queue, so that within a session offsets only grow.
    """

    def __init__(self, world: World, queue: str, number: int, *, alone: bool = False) -> None:
        super().__init__(world, queue, number)
        self._alone = alone and not world.sessions_overlap
        self._streams: dict[bytes, int] = {}

    def step(self) -> None:
        consumer = self._consumer()
        began = self.history.stamp()
        with suppress(BrokerUnavailable):  # it is away, and this consumer goes on when it is back
            self._take(consumer, began)
        if self.rng.random() < 0.05:
            self._close()

    def _take(self, consumer: Consumer, began: int) -> None:
        for batch in consumer.batches(self.rng.choice([1, 100, 10_000]), timeout=_GLANCE_S):
            rows = rows_of(batch)
            session = batch.schema.metadata[_SESSION_KEY]
            stream = (
                self._streams.setdefault(session, self.history.new_stream()) if self._alone else UNORDERED
            )
            self.history.read(self.queue, rows, began, stream)
            keep = (
                np.array([self.rng.random() < 0.95 for _ in range(len(rows))])
                if self.rng.random() < 0.5
                else np.ones(len(rows), bool)
            )
            try:
                consumer.acknowledge(batch.filter(keep))
                self._pending.append(rows[keep])
            except SessionClosed:
                self._pending = []
            if self.rng.random() < 0.3:
                self._confirm()
            if self.rng.random() < 0.2:
                break
            began = self.history.stamp()


def drain(world: World, queue: str) -> None:
    """Takes all that is left of a quiet queue, with one consumer, and acknowledges it."""
    stream = world.history.new_stream()
    with Consumer(world.address, queue=queue, connect_timeout=PATIENCE_S) as consumer:
        began = world.history.stamp()
        for batch in consumer.batches(timeout=1.0):
            rows = rows_of(batch)
            world.history.read(queue, rows, began, stream, falling=True)
            consumer.acknowledge(batch)
            consumer.flush(PATIENCE_S)
            world.history.confirmed(queue, rows)
            began = world.history.stamp()
