"""What entries name, and which parts of the snapshot they change."""

from __future__ import annotations

from typing import Final, Protocol

from mq_broker.core.model.destination import Destination, Partition
from mq_broker.core.model.durable_consumer import Consumer
from mq_broker.core.model.selection import Selection
from mq_broker.core.model.state import State
from mq_broker.core.model.subscription import Subscription

#: Chunk of the offsets that one snapshot part covers.
CHUNK_BITS: Final = 20


def partition_of(state: State, destination: int, partition: int) -> tuple[Destination, Partition]:
    found = state.by_number[destination]
    return found, found.partitions[partition]


def touch(state: State, destination: int, partition: int, start: int, stop: int) -> None:
    found = state.by_number[destination]
    found.changes += 1
    found.partitions[partition].changes += 1
    state.dirty.add(("log", destination, partition))
    for chunk in range(start >> CHUNK_BITS, ((stop - 1) >> CHUNK_BITS) + 1):
        state.dirty.add(("rows", destination, partition, chunk))


def touch_rows(state: State, destination: int, partition: int, selection: Selection) -> None:
    if selection.rows:
        touch(state, destination, partition, *selection.span())


class OfSubscription(Protocol):
    """An entry about what one subscription has read."""

    @property
    def destination(self) -> int: ...
    @property
    def subscription(self) -> int: ...


class OfConsumer(OfSubscription, Protocol):
    """An entry about one durable consumer."""

    @property
    def incarnation(self) -> bytes: ...


def subscription_of(state: State, what: OfSubscription) -> Subscription:
    return state.by_number[what.destination].subscriptions[what.subscription]


def consumer_of(state: State, what: OfConsumer) -> tuple[Destination, Subscription, Consumer]:
    state.dirty.add(("consumers", what.destination))
    subscription = subscription_of(state, what)
    subscription.changes += 1
    return state.by_number[what.destination], subscription, subscription.consumers[what.incarnation]
