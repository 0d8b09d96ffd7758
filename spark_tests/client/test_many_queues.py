"""One connection sends to thousands of queues: they share a few streams."""

from __future__ import annotations

import socket
import threading

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import InvalidRecords
from mq_wire.v1 import admin_pb2, produce_pb2
from pyspark_mq import Connection, Producer
from pyspark_mq.spark.options import SinkOptions
from pyspark_mq.spark.staging import stage

#: A broker takes 1,000 streams of one connection, all kinds together.
QUEUES = 1010


def ready(connection: Connection, prefix: str) -> list[int]:
    listed = connection.call("ListDestinations", admin_pb2.ListDestinationsRequest(prefix=prefix))
    return sorted(destination.ready_rows for destination in listed.destinations)


@pytest.mark.timeout(300)
def test_a_task_routes_to_more_queues_than_a_connection_has_streams(module_broker: LocalBroker) -> None:
    with Connection(module_broker.address) as connection:
        options = SinkOptions(broker=module_broker.address, route_by_columns=True)
        queues = pa.array([f"routed.{number}" for number in range(QUEUES)])
        batches = [
            pa.record_batch({"queue": queues, "value": pa.array([b"%d" % turn] * QUEUES, pa.binary())})
            for turn in range(3)
        ]
        done = stage(iter(batches), options, socket.gethostname())
        assert done.rows == 3 * QUEUES
        assert len(Connection.shared(module_broker.address).publish_streams) <= 4
        request = produce_pb2.CommitStagedRequest(
            tokens=[produce_pb2.StagedToken(token=done.token, rows=done.rows)], rows=done.rows
        )
        connection.call("CommitStaged", request)
        assert ready(connection, "routed.") == [3] * QUEUES


@pytest.mark.timeout(300)
def test_producers_of_one_connection_share_its_streams_fairly(module_broker: LocalBroker) -> None:
    with Connection(module_broker.address) as connection:
        producers = [Producer(queue=f"shared.{number}", connection=connection) for number in range(100)]
        busy, stop = producers[0], threading.Event()
        batch = pa.record_batch({"value": pa.array([b"x" * 100] * 10_000)})

        def flood() -> None:
            while not stop.is_set():
                busy.send_batch(batch)

        flooding = threading.Thread(target=flood)
        flooding.start()
        receipts = [producer.send(b"%d" % turn) for turn in range(20) for producer in producers[1:]]
        for receipt in receipts:
            assert receipt.result(30).offset is not None
        stop.set()
        flooding.join()
        assert sum(thread.name == "mq-producer" for thread in threading.enumerate()) <= 5
        for producer in producers:
            producer.close()
        assert ready(connection, "shared.")[:99] == [20] * 99


def test_a_producer_that_fails_leaves_its_neighbours_alone(module_broker: LocalBroker) -> None:
    with Connection(module_broker.address) as connection:
        names = ["neighbour.0", *(f"neighbour.{number}" for number in range(1, 9))]
        producers = [
            Producer(queue=name, name="fenced" if name == names[0] else None, connection=connection)
            for name in names
        ]
        for producer in producers:
            producer.send(b"1").result(10)
        newer = Producer(queue=names[0], name="fenced", connection=connection)
        failed = [producers[0].send(b"%d" % i) for i in range(100)]
        receipts = [producer.send(b"%d" % i) for i in range(100) for producer in producers[1:]]
        for receipt in receipts:
            receipt.result(10)
        for receipt in failed:
            with pytest.raises(Exception, match="fenced"):
                receipt.result(10)
        with pytest.raises(InvalidRecords):
            producers[1].send(None)  # type: ignore[arg-type]
        newer.close()
        for producer in producers:
            producer.close()
        assert ready(connection, "neighbour.") == [1] + [101] * 8
