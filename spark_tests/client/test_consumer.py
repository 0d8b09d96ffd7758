"""The consumer against a real broker: what is delivered, what an acknowledgement means, what happens when the
stream breaks.
"""

from __future__ import annotations

import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import (
    ClientClosed,
    InvalidName,
    InvalidOption,
    InvalidRequest,
    NotAssigned,
    SessionClosed,
)
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection, Consumer, Message, Producer
from spark_tests.support.waiting import wait_until


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


def fill(address: str, queue: str, rows: int, **columns: list[object]) -> None:
    """Puts b"0", b"1" ... into partition 0, or where `columns` say."""
    data = {"value": [b"%d" % i for i in range(rows)], "partition": [0] * rows, **columns}
    with Producer(address, queue=queue) as producer:
        producer.send_batch(pa.table(data)).result(20)


def make(address: str, queue: str) -> None:
    with Connection(address) as connection:
        connection.call("CreateDestination", admin_pb2.CreateDestinationRequest(name=queue))


def drain(consumer: Consumer, timeout: float = 0.5) -> list[Message]:
    return list(consumer.messages(timeout=timeout))


def left(address: str, queue: str) -> list[tuple[bytes, int]]:
    """Values and delivery counts of what is still in the queue."""
    with Consumer(address, queue=queue) as consumer:
        messages = drain(consumer)
        consumer.acknowledge(messages)
        return [(message.value, message.delivery_count) for message in messages]


def test_a_message_tells_everything(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue) as producer:
        producer.send(
            b"v",
            key=b"k",
            priority=9,
            headers=[("a", b"1"), ("a", b"2")],
            partition=3,
            message_id="m",
            correlation_id="c",
            type="t",
        ).result(10)
    with Consumer(module_broker.address, queue=queue) as consumer:
        message = consumer.receive(timeout=10)
        assert message is not None
        assert (message.value, message.key, message.priority, message.headers) == (b"v", b"k", 9, {"a": b"2"})
        assert message.header_pairs == [("a", b"1"), ("a", b"2")]
        assert (message.queue, message.partition, message.offset, message.delivery_count) == (queue, 3, 0, 1)
        assert (message.message_id, message.correlation_id, message.type, message.reply_to) == (
            "m",
            "c",
            "t",
            None,
        )
        assert message.timestamp.tzinfo is not None
        consumer.acknowledge(message)
        assert consumer.receive(timeout=0.1) is None
    assert left(module_broker.address, queue) == []


def test_higher_priorities_come_first_across_partitions(module_broker: LocalBroker, queue: str) -> None:
    priorities = [i % 10 for i in range(200)]
    fill(module_broker.address, queue, 200, priority=list(priorities), partition=[i % 4 for i in range(200)])
    with Consumer(module_broker.address, queue=queue) as consumer:
        got = [message.priority for message in drain(consumer)]
    assert got == sorted(priorities, reverse=True)


def test_exactly_the_acknowledged_messages_are_gone(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 100)
    with Consumer(module_broker.address, queue=queue) as consumer:
        messages = drain(consumer)
        assert [message.offset for message in messages] == list(range(100))
        for message in messages[::3]:
            consumer.acknowledge(message)
    assert left(module_broker.address, queue) == [(b"%d" % i, 2) for i in range(100) if i % 3]


def test_acknowledging_up_to_a_message_spares_what_came_later(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 100)
    with Consumer(module_broker.address, queue=queue, prefetch=10) as consumer:
        messages = [consumer.receive(timeout=10) for _ in range(60)]
        assert all(messages)
        consumer.acknowledge(messages[50])
        consumer.acknowledge_up_to(messages[41])  # type: ignore[arg-type]
        consumer.acknowledge_up_to(messages[20])  # type: ignore[arg-type]
        consumer.flush(10)
    assert [int(value) for value, _ in left(module_broker.address, queue)] == [
        i for i in range(42, 100) if i != 50
    ]


def test_batches_hold_the_columns_and_can_be_acknowledged_in_parts(
    module_broker: LocalBroker, queue: str
) -> None:
    fill(
        module_broker.address,
        queue,
        1000,
        partition=[i % 4 for i in range(1000)],
        priority=[i % 2 for i in range(1000)],
    )
    seen: list[int] = []
    with Consumer(module_broker.address, queue=queue, prefetch=100) as consumer:
        for batch in consumer.batches(max_rows=5000, timeout=0.5):
            assert {"key", "value", "partition", "offset", "priority", "timestamp", "delivery_count"} <= set(
                batch.schema.names
            )
            seen += [int(value) for value in batch.column("value").to_pylist()]
            even = pa.array([int(value) % 2 == 0 for value in batch.column("value").to_pylist()])
            consumer.acknowledge(batch.filter(even))
    assert sorted(seen) == list(range(1000))
    assert sorted(int(value) for value, _ in left(module_broker.address, queue)) == list(range(1, 1000, 2))


def test_batches_are_no_larger_than_asked(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 1000)
    with Consumer(module_broker.address, queue=queue) as consumer:
        sizes, offsets = [], []
        for batch in consumer.batches(max_rows=7, timeout=0.5, columns=["value"]):
            assert batch.schema.names == ["value", "partition", "offset"]
            sizes.append(batch.num_rows)
            offsets += batch.column("offset").to_pylist()
            consumer.acknowledge(batch)
    assert max(sizes) == 7
    assert offsets == list(range(1000))


def test_messages_and_batches_continue_each_other(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 50)
    with Consumer(module_broker.address, queue=queue) as consumer:
        first = [consumer.receive(timeout=10) for _ in range(5)]
        batch = next(consumer.batches(max_rows=5, timeout=10))
        then = next(iter(consumer))
        offsets = (
            [message.offset for message in first if message]
            + batch.column("offset").to_pylist()
            + [then.offset]
        )
    assert offsets == list(range(11))


def test_only_what_was_handed_over_counts_as_delivered(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 20)
    with Consumer(module_broker.address, queue=queue) as consumer:
        for _ in range(3):
            assert consumer.receive(timeout=10)
    assert left(module_broker.address, queue) == [(b"%d" % i, 2 if i < 3 else 1) for i in range(20)]


def test_prefetch_bounds_what_waits_here(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 30)
    with (
        Consumer(module_broker.address, queue=queue, prefetch=10) as hoarder,
        Consumer(module_broker.address, queue=queue) as other,
    ):
        assert hoarder.receive(timeout=10)
        rest = drain(other)
        # One in hand and at most ten waiting here.
        assert 19 <= len(rest) < 30
        other.acknowledge(rest)
        mine = drain(hoarder)
        hoarder.acknowledge(mine)
        assert len(mine) + 1 + len(rest) == 30


def test_unacknowledged_messages_are_bounded_and_named_in_a_warning(
    module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 100)
    with Consumer(module_broker.address, queue=queue, prefetch=10, max_unacknowledged=25) as consumer:
        with pytest.warns(UserWarning, match="max_unacknowledged"):
            held = drain(consumer)
        assert len(held) == 25
        consumer.acknowledge(held)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rest: list[int] = []
            while len(rest) < 75:
                message = consumer.receive(timeout=10)
                assert message is not None
                consumer.acknowledge(message)
                rest.append(message.offset)
        assert rest == list(range(25, 100))


def test_two_consumers_share_a_queue_without_overlap(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 5000, partition=[i % 4 for i in range(5000)])
    seen: list[tuple[int, int]] = []

    def work() -> None:
        with Consumer(module_broker.address, queue=queue, prefetch=50) as consumer:
            for message in consumer.messages(timeout=1.0):
                seen.append((message.partition, message.offset))
                consumer.acknowledge(message)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(seen) == Counter((partition, offset) for partition in range(4) for offset in range(1250))
    assert left(module_broker.address, queue) == []


def test_several_threads_share_a_consumer(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 3000)
    seen: list[int] = []
    with Consumer(module_broker.address, queue=queue, prefetch=100) as consumer:

        def work() -> None:
            for message in consumer.messages(timeout=1.0):
                seen.append(message.offset)
                consumer.acknowledge(message)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(3000))
    assert left(module_broker.address, queue) == []


def test_a_failed_acknowledgement_reaches_the_caller_once(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 10)
    with Consumer(module_broker.address, queue=queue, prefetch=1) as consumer:
        batch = next(consumer.batches(max_rows=1, timeout=10))
        at = batch.schema.get_field_index("offset")
        never_given = batch.set_column(at, batch.schema.field(at), pa.array([9], batch.schema.field(at).type))
        consumer.acknowledge(never_given)
        with pytest.raises(NotAssigned):
            consumer.flush(10)
        consumer.flush(10)


def test_a_message_that_is_acknowledged_twice_costs_no_other(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 10)
    with Consumer(module_broker.address, queue=queue) as consumer:
        messages = [consumer.receive(timeout=10) for _ in range(10)]
        first, *others = [message for message in messages if message is not None]
        consumer.acknowledge(first)
        consumer.flush(10)
        consumer.acknowledge(others)
        consumer.acknowledge(first)
        consumer.flush(10)
    with Consumer(module_broker.address, queue=queue) as consumer:
        assert consumer.receive(timeout=0.2) is None


def test_what_cannot_be_acknowledged_is_refused(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 10)
    with Consumer(module_broker.address, queue=queue) as consumer:
        batch = next(consumer.batches(timeout=10))
        with pytest.raises(InvalidRequest, match="metadata"):
            consumer.acknowledge(batch.replace_schema_metadata(None))
        with pytest.raises(InvalidRequest, match="str"):
            consumer.acknowledge(["text"])
        with pytest.raises(InvalidOption, match="max_rows=0"):
            consumer.batches(max_rows=0)
        with pytest.raises(InvalidOption, match="colour"):
            consumer.batches(columns=["colour"])
        wrong: Any
        for wrong in (None, 7, object(), b"x"):
            with pytest.raises(InvalidRequest, match=type(wrong).__name__):
                consumer.acknowledge(wrong)
            with pytest.raises(InvalidRequest, match=type(wrong).__name__):
                consumer.acknowledge_up_to(wrong)
    with pytest.raises(InvalidOption, match="prefetch=0"):
        Consumer(module_broker.address, queue=queue, prefetch=0)
    with pytest.raises(InvalidName, match=r"the queue is missing: write Consumer\(queue=...\)"):
        Consumer(module_broker.address)
    for wrong in ("10", 1.5, True, None):
        with pytest.raises(InvalidOption, match="max_unacknowledged"):
            Consumer(module_broker.address, queue=queue, max_unacknowledged=wrong)


def test_times_that_are_none_are_refused(module_broker: LocalBroker, queue: str) -> None:
    make(module_broker.address, queue)
    with Consumer(module_broker.address, queue=queue) as consumer:
        for wrong in (-1, "1", float("nan"), True):
            calls: list[Callable[[Any], object]] = [
                consumer.receive, consumer.flush, consumer.close, lambda t: list(consumer.messages(t)),
                lambda t: consumer.batches(timeout=t),
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(InvalidOption, match="seconds"):
                    call(wrong)
        fill(module_broker.address, queue, 2)
        for long in (1e10, float("inf")):
            assert consumer.receive(timeout=long) is not None
        consumer.flush(1e10)


def test_a_closed_consumer_ends_loops_and_refuses_calls(module_broker: LocalBroker, queue: str) -> None:
    make(module_broker.address, queue)
    consumer = Consumer(module_broker.address, queue=queue)
    assert consumer.receive(timeout=0.05) is None
    ended = threading.Event()

    def work() -> None:
        for _ in consumer:
            pass
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    consumer.close()
    consumer.close()
    assert ended.wait(10)
    with pytest.raises(ClientClosed):
        consumer.receive(timeout=0)


def test_a_waiting_consumer_gets_what_is_sent_later(module_broker: LocalBroker, queue: str) -> None:
    make(module_broker.address, queue)
    with (
        Consumer(module_broker.address, queue=queue) as consumer,
        Producer(module_broker.address, queue=queue) as producer,
    ):
        assert consumer.receive(timeout=0.05) is None
        for i in range(20):
            producer.send(b"%d" % i).result(10)
            message = consumer.receive(timeout=10)
            assert message is not None
            assert message.value == b"%d" % i
            consumer.acknowledge(message)


def test_after_a_killed_broker_it_receives_on_and_refuses_stale_acknowledgements(
    broker: LocalBroker, queue: str
) -> None:
    fill(broker.address, queue, 100)
    with Consumer(broker.address, queue=queue, prefetch=10) as consumer:
        stale = consumer.receive(timeout=10)
        batch = next(consumer.batches(max_rows=3, timeout=10))
        assert stale is not None
        broker.kill()
        broker.start()
        fresh = consumer.receive(timeout=20)
        assert fresh is not None
        for old in (stale, batch):
            with pytest.raises(SessionClosed):
                consumer.acknowledge(old)
        with pytest.raises(SessionClosed):
            consumer.acknowledge_up_to(stale)
        consumer.acknowledge(fresh)
        rest = [fresh.offset]
        while len(rest) < 100:
            message = consumer.receive(timeout=10)
            assert message is not None
            consumer.acknowledge(message)
            rest.append(message.offset)
        consumer.flush(10)
        assert sorted(rest) == list(range(100))
    assert left(broker.address, queue) == []


def test_acknowledgements_lost_with_the_connection_are_told(broker: LocalBroker, queue: str) -> None:
    fill(broker.address, queue, 10)
    with Consumer(broker.address, queue=queue) as consumer:
        messages = [consumer.receive(timeout=10) for _ in range(10)]
        broker.kill()
        try:
            consumer.acknowledge([message for message in messages if message])
        except SessionClosed:
            return  # the break was noticed first: told at once
        with pytest.raises(SessionClosed):
            wait_until(lambda: consumer.flush(1))
