"""What a write task stages: durable when it returns, and gone when it does not. Without a JVM."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import InvalidRecords
from mq_wire.v1 import admin_pb2, produce_pb2
from pyspark_mq import Connection
from pyspark_mq.spark.options import SinkOptions
from pyspark_mq.spark.staged_rows import StagedRows
from pyspark_mq.spark.staging import stage
from spark_tests.support.waiting import wait_until


def rows(count: int = 3) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"v"] * count, "queue": ["a", "b", "a"] * (count // 3)})


def staged_rows(broker: LocalBroker) -> int:
    return int(Connection.shared(broker.address).call("Stats", admin_pb2.StatsRequest()).broker.staged_rows)


def run(broker: LocalBroker, batches: Iterator[pa.RecordBatch]) -> StagedRows:
    options = SinkOptions.parse({"broker": broker.address, "routebycolumns": "true", "lingerms": "0"})
    return stage(batches, options, socket.gethostname(), epoch=1, query_id="q1")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_a_task_that_fails_throws_away_what_it_has_staged(
    module_broker: LocalBroker, error: type[BaseException]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows()
        wait_until(lambda: staged_rows(module_broker) == 3, message="both queues have their rows")
        yield rows()
        raise error("the task ends here")

    with pytest.raises(error):
        run(module_broker, batches())
    assert staged_rows(module_broker) == 0


def test_a_task_that_fails_with_rows_on_their_way_leaves_none_behind(module_broker: LocalBroker) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows()
        raise ValueError("the task ends here")

    with pytest.raises(ValueError, match="ends here"):
        run(module_broker, batches())
    assert staged_rows(module_broker) == 0


def test_rows_that_cannot_be_messages_end_the_task_and_its_set(module_broker: LocalBroker) -> None:
    without = pa.RecordBatch.from_arrays(
        [pa.array([b"v"]), pa.array([None], pa.string())], names=["value", "queue"]
    )
    with pytest.raises(InvalidRecords):
        run(module_broker, iter([rows(), without]))
    assert staged_rows(module_broker) == 0


def test_a_set_says_at_once_which_queue_its_commit_will_name(module_broker: LocalBroker) -> None:
    """Two sinks under one query id: the newer epoch of the second leaves alone what the first has staged."""
    tasks = []
    for epoch, queue in ((1, "first"), (2, "second")):
        options = SinkOptions.parse({"broker": module_broker.address, "queue": queue})
        batch = rows().select(["value"])
        tasks.append((queue, stage(iter([batch]), options, socket.gethostname(), epoch=epoch, query_id="q2")))
    for queue, done in tasks:
        commit = produce_pb2.CommitStagedRequest(
            tokens=[produce_pb2.StagedToken(token=done.token, rows=3)],
            target=queue,
            owner="query:q2",
            version=0,
            rows=3,
            query_id="q2",
        )
        assert Connection.shared(module_broker.address).call("CommitStaged", commit).rows == 3


def test_what_was_staged_waits_for_its_commit(module_broker: LocalBroker) -> None:
    done = run(module_broker, iter([rows(), rows()]))
    assert (done.rows, staged_rows(module_broker)) == (6, 6)
    (held,) = (
        Connection.shared(module_broker.address)
        .call("ListStaged", produce_pb2.ListStagedRequest(query_id="q1"))
        .sets
    )
    assert (held.token, held.rows, list(held.destinations)) == (done.token, 6, ["a", "b"])
    assert (held.target, held.HasField("target")) == ("", True)
    Connection.shared(module_broker.address).call(
        "DiscardStaged", produce_pb2.DiscardStagedRequest(tokens=[done.token])
    )
