"""Many consumers of one connection: they share one stream and few threads, and nothing else."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import Busy, SessionClosed, UnknownDestination
from mq_wire.v1 import admin_pb2, subscribe_pb2
from pyspark_mq import Connection, Consumer, Message, Producer
from spark_tests.support.waiting import wait_until


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


@pytest.fixture
def connection(module_broker: LocalBroker) -> Iterator[Connection]:
    with Connection(module_broker.address) as connection:
        yield connection


def create(connection: Connection, *queues: str) -> None:
    for queue in queues:
        connection.call("CreateDestination", admin_pb2.CreateDestinationRequest(name=queue, partitions=1))


def fill(connection: Connection, queue: str, rows: int, size: int = 1) -> None:
    with Producer(queue=queue, connection=connection) as producer:
        for number in range(rows):
            producer.send(b"%d" % number + b" " * (size - 1))


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def counts(consumer: Consumer, rows: int) -> list[tuple[bytes, int]]:
    """Values and delivery counts of the next rows, in the order of the values."""
    found = []
    for _ in range(rows):
        message = consumer.receive(timeout=20)
        assert message is not None
        found.append((message.value.strip(), message.delivery_count))
    return sorted(found)


def test_two_hundred_consumers_are_one_stream_and_a_slow_one_holds_up_nobody(
    module_broker: LocalBroker, connection: Connection, queue: str
) -> None:
    queues = [f"{queue}.{number}" for number in range(200)]
    create(connection, *queues)
    # Much more than the window of a stream, and more than one consumer is granted at a time.
    fill(connection, queues[0], 100, size=1 << 20)
    with Consumer(queue=queues[1], connection=connection) as first:
        assert first.receive(timeout=0) is None
        mine, theirs = threading.active_count(), threads_of(module_broker.pid)
        consumers = [Consumer(queue=name, connection=connection) for name in queues]
        slow = consumers[0].receive(timeout=20)
        assert slow is not None
        for consumer in consumers[1:]:
            assert consumer.receive(timeout=0) is None
        assert threading.active_count() == mine
        assert threads_of(module_broker.pid) <= theirs + 8, "calls beside the stream may have taken some"
        for name in queues[2:]:
            fill(connection, name, 1)
        for consumer in consumers[2:]:
            message = consumer.receive(timeout=20)
            assert message is not None
            consumer.acknowledge(message)
            consumer.flush(timeout=20)
        assert sum(1 for _ in consumers[0].messages(timeout=1)) == 99, "it has waited for its reader"
        for consumer in consumers:
            consumer.close()
    assert wait_until(lambda: not [t for t in threading.enumerate() if t.name == "mq-consumer"])


def test_large_rows_are_held_back_by_bytes(connection: Connection, queue: str) -> None:
    create(connection, queue)
    fill(connection, queue, 150, size=1 << 20)
    with Consumer(queue=queue, connection=connection) as consumer:
        assert consumer.receive(timeout=20)

        def held() -> int:
            stats = connection.call("Stats", admin_pb2.StatsRequest(destination=queue)).destination
            return int(stats.assigned_rows)

        assert wait_until(lambda: held() >= 64)
        assert held() < 100
        assert sum(1 for _ in consumer.messages(timeout=1)) == 149


def test_what_ends_one_consumer_leaves_the_others_alone(connection: Connection, queue: str) -> None:
    create(connection, *(f"{queue}.{name}" for name in ("ended", "deleted", "stays")))
    ended, deleted, stays = (
        Consumer(queue=f"{queue}.{name}", connection=connection) for name in ("ended", "deleted", "stays")
    )
    with ended, deleted, stays:
        for consumer in (ended, deleted, stays):
            assert consumer.receive(timeout=0) is None
        (info,) = connection.call(
            "ListConsumers", subscribe_pb2.ListConsumersRequest(destination=f"{queue}.ended")
        ).consumers
        connection.call("ReleaseConsumer", subscribe_pb2.ReleaseConsumerRequest(session=info.session))
        with pytest.raises(SessionClosed, match="ended by an operator"):
            ended.receive(timeout=20)
        connection.call("DeleteDestination", admin_pb2.DeleteDestinationRequest(name=f"{queue}.deleted"))
        with pytest.raises(UnknownDestination, match="was deleted"):
            deleted.receive(timeout=20)
        fill(connection, f"{queue}.stays", 3)
        assert counts(stays, 3) == [(b"0", 1), (b"1", 1), (b"2", 1)]


def test_all_of_them_come_back_with_the_broker(broker: LocalBroker) -> None:
    queues = [f"q.{number}" for number in range(20)]
    with Connection(broker.address) as connection:
        create(connection, *queues)
        consumers = [Consumer(queue=name, connection=connection) for name in queues]
        for consumer in consumers:
            assert consumer.receive(timeout=0) is None
        broker.kill()
        broker.start()
        for name in queues:
            fill(connection, name, 1)
        for consumer in consumers:
            message = consumer.receive(timeout=30)
            assert message is not None
            consumer.acknowledge(message)
            consumer.close()


def test_one_consumer_too_many_waits_for_a_place(tmp_path: pathlib.Path) -> None:
    with (
        LocalBroker(tmp_path, sessions_per_stream_max=2) as broker,
        Connection(broker.address) as connection,
    ):
        create(connection, "orders")
        fill(connection, "orders", 1)
        one, two, three = (Consumer(queue="orders", connection=connection) for _ in range(3))
        with one, two, three:
            message = one.receive(timeout=20)
            assert message is not None
            assert two.receive(timeout=0) is None
            with pytest.raises(
                Busy, match=r"refuses to deliver .*the limit \(sessions_per_stream_max\) is 2"
            ):
                three.receive(timeout=0.1)
            two.close()
            assert three.receive(timeout=0) is None
            one.close()
            assert counts(three, 1) == [(b"0", 2)]


def test_released_messages_come_again(connection: Connection, queue: str) -> None:
    create(connection, queue)
    fill(connection, queue, 6)
    with Consumer(queue=queue, connection=connection) as consumer:
        messages = [consumer.receive(timeout=20) for _ in range(6)]
        kept: list[Message] = [message for message in messages if message is not None]
        consumer.release(kept[0])
        consumer.release(kept[1:3], failed=False)
        consumer.acknowledge(kept[3:])
        consumer.flush(timeout=20)
        assert counts(consumer, 3) == [(b"0", 2), (b"1", 1), (b"2", 1)]
    with Consumer(queue=queue, connection=connection) as consumer:
        (batch,) = consumer.batches(timeout=0)
        consumer.release(batch.slice(0, 1))
        consumer.acknowledge(batch.slice(1))
        consumer.flush(timeout=20)
        assert counts(consumer, 1) == [(b"0", 4)]


DYING = """
import os, sys
from pyspark_mq import Consumer
consumer = Consumer(sys.argv[1], queue=sys.argv[2])
consumer.receive(timeout=20)
os._exit(1)
"""


def test_a_message_that_kills_its_consumer_at_once_is_counted_each_time(
    module_broker: LocalBroker, connection: Connection, queue: str
) -> None:
    create(connection, queue)
    fill(connection, queue, 10)
    for _ in range(3):
        command = [sys.executable, "-c", DYING, module_broker.address, queue]
        subprocess.run(command, check=False, timeout=60)
        wait_until(
            lambda: (
                connection.call("Stats", admin_pb2.StatsRequest(destination=queue)).destination.ready_rows
                == 10
            )
        )
    with Consumer(queue=queue, connection=connection) as consumer:
        found = counts(consumer, 10)
        assert found[0] == (b"0", 4), found
