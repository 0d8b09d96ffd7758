"""The durable consumer without Spark: each row once for whoever keeps the boundary."""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import DataLost, RunFenced, UnknownDestination, WrongBroker
from mq_wire.v1 import subscribe_pb2
from pyspark_mq import Connection, Producer
from pyspark_mq.client.boundary import Boundary
from pyspark_mq.client.columns import Rows, delivered_schema, envelope_mask
from pyspark_mq.client.durable_consumer import DurableConsumer, Opened
from pyspark_mq.client.fetch import Fetch
from spark_tests.support.sizes import SEGMENT_BYTES

_COLUMNS = ("value", "delivery_count")
Row = tuple[int, int]


@contextmanager
def reading(
    connection: Connection, queue: str, name: str = "", *, accept_data_loss: bool = False
) -> Iterator[DurableConsumer]:
    consumer = DurableConsumer(connection, queue, name, accept_data_loss=accept_data_loss)
    try:
        yield consumer
    finally:
        consumer.close()


@pytest.fixture
def connection(module_broker: LocalBroker) -> Iterator[Connection]:
    with Connection(module_broker.address) as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"orders-{uuid.uuid4()}"


def fill(connection: Connection, queue: str, first: int, last: int) -> None:
    values = pa.array([b"%d" % number for number in range(first, last)], pa.binary())
    with Producer(queue=queue, connection=connection) as producer:
        producer.send_batch(pa.record_batch({"value": values}))


def rows_of(connection: Connection, opened: Opened, queue: str) -> list[Row]:
    """Number and delivery count of each row of a range."""
    found: list[Row] = []
    for part in (part for part in opened.parts if part.rows):
        request = subscribe_pb2.OpenFetch(
            who=opened.who,
            partition=part.partition,
            first=part.first,
            last=part.last,
            columns=envelope_mask(_COLUMNS),
        )
        fetch = Fetch(connection, request, rows_max=100, bytes_max=1 << 20)
        fetch.start()
        for header, records in fetch:
            batch = Rows(header, records, queue).record_batch(delivered_schema(_COLUMNS))
            found += zip(map(int, batch.column(0).to_pylist()), batch.column(1).to_pylist(), strict=True)
        fetch.close()
    return sorted(found)


def test_range_after_range_until_nothing_is_ready(connection: Connection, queue: str) -> None:
    fill(connection, queue, 0, 1000)
    with reading(connection, queue) as consumer:
        done, found = Boundary(), list[Row]()
        while (planned := consumer.plan(done, max_rows=300)).end is not None:
            opened = consumer.open(done, planned.end)
            rows = rows_of(connection, opened, queue)
            assert rows_of(connection, opened, queue) == rows, "a range reads the same again"
            found += rows
            done = planned.end
        assert sorted(found) == [(number, 1) for number in range(1000)]
        assert (planned.lag.rows, planned.data_loss) == (0, False)
        assert (done.destination, done.consumer, done.cluster_id) == (queue, "", connection.cluster_id)


def test_another_start_goes_on_where_the_boundary_says(broker: LocalBroker, queue: str) -> None:
    """The first one is killed with the broker, with one range acknowledged and one in hand."""
    with Connection(broker.address) as connection:
        fill(connection, queue, 0, 30)
        with reading(connection, queue, "bridge") as first:
            done = first.plan(Boundary(), max_rows=10).end
            assert done is not None
            first.open(Boundary(), done)
            first.acknowledge(done)
            planned = first.plan(done, max_rows=10).end
            assert planned is not None
            in_hand = rows_of(connection, first.open(done, planned), queue)
            broker.kill()
    broker.start()
    with Connection(broker.address) as connection, reading(connection, queue, "bridge") as second:
        again = second.plan(done, max_rows=20).end
        assert again == planned, "a batch never changes after it was read"
        rows = rows_of(connection, second.open(done, again), queue)
        assert rows == [(number, 2) for number, _ in in_hand]


def test_who_was_replaced_is_refused(connection: Connection, queue: str) -> None:
    fill(connection, queue, 0, 10)
    with reading(connection, queue, "twice") as old, reading(connection, queue, "twice") as new:
        end = old.plan(Boundary()).end
        assert end is not None
        old.open(Boundary(), end)
        assert new.open(Boundary(), end).parts
        with pytest.raises(RunFenced):
            old.plan(end)


def test_it_stops_at_the_end_of_what_was_there(connection: Connection, queue: str) -> None:
    with reading(connection, queue) as consumer:
        with pytest.raises(UnknownDestination, match=queue):
            consumer.stop_at_end()
        assert consumer.create_queue()
        assert not consumer.create_queue()
        fill(connection, queue, 0, 10)
        consumer.stop_at_end()
        fill(connection, queue, 10, 20)
        end = consumer.plan(Boundary()).end
        assert end is not None
        assert rows_of(connection, consumer.open(Boundary(), end), queue) == [(n, 1) for n in range(10)]
        assert consumer.plan(end).end is None


def test_what_is_no_longer_kept_is_refused_or_passed_over(connection: Connection, queue: str) -> None:
    fill(connection, queue, 0, 30)
    with reading(connection, queue, "late") as consumer:
        ends = [Boundary()]
        for _ in range(3):
            end = consumer.plan(ends[-1], max_rows=10).end
            assert end is not None
            assert len(rows_of(connection, consumer.open(ends[-1], end), queue)) == 10
            ends.append(end)
        assert consumer.plan(ends[-1]).end is None
        with pytest.raises(DataLost):
            consumer.open(ends[0], ends[1])
    with reading(connection, queue, "late", accept_data_loss=True) as lenient:
        opened = lenient.open(ends[0], ends[1])
        assert opened.data_loss
        assert rows_of(connection, opened, queue) == []


def test_another_broker_is_refused_by_who_has_a_boundary(
    broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    """Who has none yet begins anew there."""
    with Connection(broker.address) as connection:
        fill(connection, queue, 0, 10)
        with reading(connection, queue) as begun, reading(connection, "empty") as fresh:
            end = begun.plan(Boundary()).end
            assert end is not None
            fresh.create_queue()
            assert fresh.plan(Boundary()).end is None
            broker.kill()
            port = int(broker.address.rpartition(":")[2])
            with LocalBroker(tmp_path / "strange", port=port, segment_bytes=SEGMENT_BYTES) as strange:
                with Connection(strange.address) as other:
                    fill(other, "empty", 0, 10)
                with pytest.raises(WrongBroker, match="start with another checkpoint"):
                    begun.plan(end)
                found = fresh.plan(Boundary()).end
                assert found is not None
                assert rows_of(connection, fresh.open(Boundary(), found), "empty") == [
                    (number, 1) for number in range(10)
                ]
