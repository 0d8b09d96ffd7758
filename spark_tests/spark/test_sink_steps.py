"""The sinks without Spark around them: the calls that Spark makes, against a real broker, and what happens
between them.
"""

from __future__ import annotations

import pickle
import socket
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from mq_wire.errors import BrokerUnavailable, Unsupported
from mq_wire.v1 import produce_pb2
from pyspark_mq import Connection, Consumer
from pyspark_mq.client import run as run_module
from pyspark_mq.spark import sink as sink_module
from pyspark_mq.spark.datasource import MqDataSource
from pyspark_mq.spark.options import SinkOptions
from pyspark_mq.spark.sink import MqBatchWriter, MqStreamWriter
from pyspark_mq.spark.staged_rows import StagedRows
from pyspark_mq.spark.staging import stage
from spark_tests.spark.queries import numbered

if TYPE_CHECKING:
    from mq_broker import LocalBroker

pytestmark = pytest.mark.timeout(50)

SCHEMA = StructType([StructField("value", BinaryType())])


def options_of(address: str, queue: str, **options: object) -> SinkOptions:
    return SinkOptions.parse(
        {"broker": address, "queue": queue} | {name: str(value) for name, value in options.items()}
    )


def waiting_in(address: str, queue: str) -> list[int]:
    """Takes everything out of a queue."""
    with Consumer(address, queue=queue) as consumer:
        return [
            int(value)
            for batch in consumer.batches(timeout=0.5)
            for value in batch.column("value").to_pylist()
        ]


def test_a_write_whose_rows_are_visible_has_succeeded(
    broker: LocalBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker goes between the commit and the forgetting of its marker: an error now would make the user
    write everything again.
    """
    writer = MqBatchWriter(options_of(broker.address, queue), SCHEMA)
    staged = writer.write(iter([numbered(0, 100)]))
    forget = sink_module.forget_marker

    def forget_without_broker(options: SinkOptions, owner: str) -> None:
        broker.kill()
        forget(options, owner)

    monkeypatch.setattr(sink_module, "forget_marker", forget_without_broker)
    writer.commit([staged])
    broker.start()
    assert sorted(waiting_in(broker.address, queue)) == list(range(100))


def test_a_write_with_an_unknown_outcome_says_so(
    broker: LocalBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = MqBatchWriter(options_of(broker.address, queue), SCHEMA)
    staged = writer.write(iter([numbered(0, 100)]))
    broker.kill()
    monkeypatch.setattr(sink_module, "COMMIT_RETRY_S", 0.3)
    with pytest.raises(BrokerUnavailable, match=r"became visible is not known.*txnAppId"):
        writer.commit([staged])


@pytest.mark.parametrize("target", ["here", ""])
def test_a_staged_set_names_what_its_commit_will_name(
    module_broker: LocalBroker, queue: str, target: str
) -> None:
    """Writers of other targets of the same query leave it alone."""
    rows = numbered(0, 10)
    if target:
        options = options_of(module_broker.address, queue)
    else:
        options = SinkOptions.parse({"broker": module_broker.address, "routebycolumns": "true"})
        rows = rows.append_column("queue", pa.array([queue] * 10))
    query = f"query-of-{queue}"
    staged = stage(iter([rows]), options, socket.gethostname(), query_id=query, batch_id=3, run_id="run")
    listed = Connection.shared(module_broker.address).call(
        "ListStaged", produce_pb2.ListStagedRequest(query_id=query)
    )
    (found,) = listed.sets
    assert (found.token, found.batch_id, list(found.destinations)) == (staged.token, 3, [queue])
    assert found.HasField("target")
    assert found.target == (queue if target else "")


def test_an_absent_broker_fails_a_write_as_fast_as_a_read(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any task waits: when Spark asks for a batch's writer, and when it pickles a stream's for its
    tasks.
    """
    monkeypatch.setattr(run_module, "FIRST_CONTACT_S", 0.3)
    with pytest.raises(BrokerUnavailable, match="mq broker"):
        MqDataSource({"broker": "mq://127.0.0.1:9", "queue": queue}).writer(SCHEMA, overwrite=False)
    with pytest.raises(BrokerUnavailable, match="mq broker"):
        pickle.dumps(MqStreamWriter(options_of("mq://127.0.0.1:9", queue), SCHEMA))


def test_a_continuous_query_is_named_as_the_cause(module_broker: LocalBroker, queue: str) -> None:
    """Spark then comes with as many empty messages as there are tasks, and never lets a task write."""
    writer = MqStreamWriter(options_of(module_broker.address, queue), SCHEMA)
    with pytest.raises(Unsupported, match=r"trigger\(continuous=\.\.\.\).*processingTime"):
        writer.commit([None, None], 0)


def test_commit_messages_of_older_tasks_are_understood() -> None:
    old = StagedRows.__new__(StagedRows)
    old.__dict__.update(token=b"t" * 16, rows=5)
    assert (old.query_id, old.batch_id) == ("", -1)
