"""The source without Spark around it: the calls that Spark makes, against a real broker."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from mq_broker import LocalBroker
from mq_wire.errors import (
    BrokerUnavailable,
    DataLost,
    InvalidOption,
    RunFenced,
    UnknownDestination,
    WrongBroker,
)
from mq_wire.v1 import admin_pb2, subscribe_pb2
from pyspark_mq import Connection
from pyspark_mq.client import fetch as fetch_module
from pyspark_mq.client import run as run_module
from pyspark_mq.spark.browse import MqBatchReader
from pyspark_mq.spark.options import BrowseOptions, SourceOptions
from pyspark_mq.spark.reader import BATCH_ROWS_MIN, RangePartition
from pyspark_mq.spark.source import MqStreamReader
from spark_tests.spark.queries import fill
from spark_tests.support.sizes import SEGMENT_BYTES

if TYPE_CHECKING:
    import pathlib

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("delivery_count", IntegerType()),
    ]
)
Row = tuple[bytes, int, int, int]


@pytest.fixture
def readers() -> Iterator[list[MqStreamReader]]:
    """Collects the readers of a test, to end their runs."""
    made: list[MqStreamReader] = []
    yield made
    for reader in made:
        reader.stop()


def source(readers: list[MqStreamReader], address: str, queue: str, **options: object) -> MqStreamReader:
    given = {"broker": address, "queue": queue} | {name: str(value) for name, value in options.items()}
    readers.append(MqStreamReader(SourceOptions.parse(given), SCHEMA))
    return readers[-1]


def plan(reader: MqStreamReader, start: dict[str, Any] | None = None) -> dict[str, Any]:
    return reader.latestOffset(start or reader.initialOffset(), reader.getDefaultReadLimit())


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def read(reader: MqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    return [
        row for task in reader.partitions(start, end) for batch in reader.read(task) for row in rows_of(batch)
    ]


def test_idle_returns_the_very_start(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    reader = source(readers, module_broker.address, queue, idleWaitMs=0)
    start = reader.initialOffset()
    assert plan(reader, start) is start
    reader.commit(start)
    fill(module_broker.address, queue, 10)
    end = plan(reader, start)
    assert end != start
    assert plan(reader, end) is end
    assert reader.reportLatestOffset() is not None


def test_a_first_batch_without_rows_says_who_reads(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    """Spark runs batch 0 also where nothing is ready; its task has no rows, and joins the query where Spark
    tells which one it is.
    """
    reader = source(readers, module_broker.address, queue, idleWaitMs=0)
    start = plan(reader)
    (task,) = reader.partitions(start, start)
    assert isinstance(task, RangePartition)
    who = subscribe_pb2.ConsumerRef.FromString(task.who)
    assert (who.destination, who.cluster_id) == (queue, Connection.shared(module_broker.address).cluster_id)
    assert who.run
    assert list(reader.read(task)) == []
    fill(module_broker.address, queue, 10)
    end = plan(reader, start)
    assert all(isinstance(task, RangePartition) and task.parts for task in reader.partitions(start, end))
    assert list(reader.partitions(end, end)) == [], "only the first batch"


def test_a_range_reads_equal_rows_again_and_concurrently(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 30_000)
    reader = source(readers, module_broker.address, queue, maxRecordsPerPartition=4000, prefetchRows=700)
    start = reader.initialOffset()
    end = plan(reader, start)
    first = read(reader, start, end)
    found: list[list[Row]] = []
    threads = [threading.Thread(target=lambda: found.append(read(reader, start, end))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(first) == 30_000
    assert found == [first] * 3
    assert {row[3] for row in first} == {1}


def test_a_fetch_goes_on_where_it_broke(
    readers: list[MqStreamReader], broker: LocalBroker, queue: str
) -> None:
    """The broker dies between two batches of one read; not a row is missing or twice."""
    fill(broker.address, queue, 100_000)
    # Little credit, so that the broker still has most of the range when it dies.
    reader = source(readers, broker.address, queue, prefetchRows=2000, minPartitions=1)
    start = reader.initialOffset()
    end = plan(reader, start)
    tasks = reader.partitions(start, end)
    rows: list[Row] = []
    for number, task in enumerate(tasks):
        for at, batch in enumerate(reader.read(task)):
            rows += rows_of(batch)
            if number == 0 and at == 0:
                broker.kill()
                broker.start()
    assert sorted(int(row[0]) for row in rows) == list(range(100_000))
    again = plan(reader, end)
    assert again == end


def test_batches_are_neither_tiny_nor_huge(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 80_000, batch_rows=500)
    reader = source(readers, module_broker.address, queue)
    start = reader.initialOffset()
    for task in reader.partitions(start, plan(reader, start)):
        *full, last = [batch.num_rows for batch in reader.read(task)]
        assert all(rows >= BATCH_ROWS_MIN // 2 for rows in full)
        assert 0 < last <= 65_536


def test_a_second_start_fences_the_first(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    """A copied checkpoint, or an old process that lives on after a restart."""
    fill(module_broker.address, queue, 10)
    old = source(readers, module_broker.address, queue, idleWaitMs=0)
    end = plan(old)
    assert len(read(old, old.initialOffset(), end)) == 10
    new = source(readers, module_broker.address, queue, idleWaitMs=0)
    assert {row[3] for row in read(new, new.initialOffset(), end)} == {2}
    with pytest.raises(RunFenced):
        plan(old, end)
    assert plan(new, end) == end


def test_what_nobody_read_is_cut_anew(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 100)
    reader = source(readers, module_broker.address, queue, maxOffsetsPerTrigger=30)
    unread = plan(reader)
    later = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert len(read(reader, reader.initialOffset(), later)) == 100
    assert read(reader, reader.initialOffset(), unread) == [], (
        "its numbers went back to the lanes and read as nothing"
    )


def test_trigger_once_takes_everything(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 100)
    reader = source(readers, module_broker.address, queue, maxOffsetsPerTrigger=30)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert len(read(reader, reader.initialOffset(), end)) == 100


def test_a_batch_is_bounded_in_bytes(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 10_000)
    reader = source(readers, module_broker.address, queue, maxBytesPerTrigger=20_000)
    start = reader.initialOffset()
    rows = read(reader, start, plan(reader, start))
    assert 0 < len(rows) < 5000


def test_data_loss_fails_or_reads_as_nothing(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 40)
    reader = source(readers, module_broker.address, queue, maxOffsetsPerTrigger=10)
    boundaries = [reader.initialOffset()]
    for _ in range(4):
        boundaries.append(plan(reader, boundaries[-1]))
        read(reader, boundaries[-2], boundaries[-1])
    plan(reader, boundaries[-1])
    with pytest.raises(DataLost):
        reader.partitions(boundaries[0], boundaries[1])
    lenient = source(readers, module_broker.address, queue, failOnDataLoss="false")
    with pytest.warns(RuntimeWarning, match="failOnDataLoss=false"):
        tasks = lenient.partitions(boundaries[0], boundaries[1])
    assert [batch for task in tasks for batch in lenient.read(task)] == []


def test_after_a_loss_the_query_goes_on_with_what_is_kept(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 50)
    reader = source(readers, module_broker.address, queue, maxOffsetsPerTrigger=10)
    boundaries = [reader.initialOffset()]
    for _ in range(5):
        boundaries.append(plan(reader, boundaries[-1]))
        read(reader, boundaries[-2], boundaries[-1])
    # Batches 0 to 3 are acknowledged, the last of them is kept, batch 4 is in hand. Each keeps its boundary,
    # so no number moves.
    assert plan(reader, boundaries[1]) == boundaries[2]
    with pytest.raises(DataLost):
        reader.partitions(boundaries[1], boundaries[2])
    lenient = source(readers, module_broker.address, queue, failOnDataLoss="false")
    found = []
    for start, end in pairwise(boundaries[1:]):
        assert plan(lenient, start) == end
        is_kept = end in boundaries[4:]
        with nullcontext() if is_kept else pytest.warns(RuntimeWarning, match="goes on with what is kept"):
            tasks = lenient.partitions(start, end)
        found.append(sum(batch.num_rows for task in tasks for batch in lenient.read(task)))
    assert found == [0, 0, 10, 10]


def test_a_loopback_broker_is_refused_on_another_host(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    fill(module_broker.address, queue, 10)
    reader = source(readers, module_broker.address, queue)
    start = reader.initialOffset()
    (task,) = reader.partitions(start, plan(reader, start))
    assert isinstance(task, RangePartition)
    with pytest.raises(InvalidOption, match="give a host name that every executor can reach"):
        reader.read(dataclasses.replace(task, planned_on="driver.example"))


def test_a_broker_that_is_not_there(
    readers: list[MqStreamReader], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "FIRST_CONTACT_S", 0.3)
    reader = source(readers, "mq://127.0.0.1:9", queue)
    with pytest.raises(BrokerUnavailable, match="mq broker"):
        plan(reader)


def test_a_run_is_waited_for_longer_once_the_broker_was_reached(
    readers: list[MqStreamReader], broker: LocalBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "FIRST_CONTACT_S", 0.0)
    reader = source(readers, broker.address, queue)
    Connection.shared(broker.address).hello()
    assert plan(reader) == reader.initialOffset()


#: What the process of a streaming source does, which Spark starts without any logging of its own.
_POLLING = """
import sys
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_mq.spark.options import SourceOptions
from pyspark_mq.spark.source import MqStreamReader

options = SourceOptions.parse({"broker": sys.argv[1], "queue": sys.argv[2]})
reader = MqStreamReader(options, StructType([StructField("value", BinaryType())]))
offset = reader.initialOffset()
while True:
    offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
    print("polled", flush=True)
"""


@pytest.mark.timeout(50)
def test_a_query_says_that_its_broker_is_away_while_it_waits(broker: LocalBroker, queue: str) -> None:
    """On stderr, long before it fails: Python writes warnings of the logger there where nobody has set up
    logging.
    """
    command = [sys.executable, "-c", _POLLING, broker.address, queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as polling:
        assert polling.stdout is not None
        assert polling.stderr is not None
        try:
            assert polling.stdout.readline() == "polled\n"
            broker.kill()
            said = polling.stderr.readline()
            assert "trying again" in said
            assert broker.address in said
            assert polling.poll() is None
        finally:
            polling.kill()


def test_a_broker_that_stays_away_fails_the_task(
    readers: list[MqStreamReader], broker: LocalBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.address, queue, 10)
    reader = source(readers, broker.address, queue)
    start = reader.initialOffset()
    (task,) = reader.partitions(start, plan(reader, start))
    broker.kill()
    monkeypatch.setattr(fetch_module, "FETCH_RETRY_S", 0.3)
    with pytest.raises(BrokerUnavailable, match=r"partition \d, numbers"):
        list(reader.read(task))


def test_what_ends_by_itself_creates_no_queue(
    readers: list[MqStreamReader], module_broker: LocalBroker, queue: str
) -> None:
    """A misspelt name would read as an empty queue."""
    connection = Connection.shared(module_broker.address)
    reader = source(readers, module_broker.address, queue)
    with pytest.raises(UnknownDestination, match=queue):
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(UnknownDestination, match=queue):
        MqBatchReader(
            BrowseOptions.parse({"broker": module_broker.address, "queue": queue}), SCHEMA
        ).partitions()
    listed = connection.call("ListDestinations", admin_pb2.ListDestinationsRequest())
    assert queue not in {each.name for each in listed.destinations}
    plan(source(readers, module_broker.address, queue, idleWaitMs=0))
    assert (
        connection.call("DescribeDestination", admin_pb2.DescribeDestinationRequest(name=queue)).name == queue
    )


def test_a_reader_without_rows_begins_anew_at_another_broker(
    readers: list[MqStreamReader], broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    """The other one takes over the address. Run 1 is somebody else's there, and so is what that run holds."""
    reader = source(readers, broker.address, queue, idleWaitMs=0)
    start = reader.initialOffset()
    assert plan(reader) == start
    port = int(broker.address.rpartition(":")[2])
    broker.kill()
    with LocalBroker(tmp_path / "strange", port=port, segment_bytes=SEGMENT_BYTES) as strange:
        other_connection = f"mq://localhost:{port}"
        fill(strange.address, queue, 50)
        other = source(readers, other_connection, queue, idleWaitMs=0)
        end = plan(other)
        assert len(read(other, start, end)) == 50
        assert plan(reader) == start, "what another consumer holds is not for this one"
        fill(strange.address, queue, 5, first=50)
        assert len(read(reader, start, plan(reader))) == 5
        assert len(read(other, start, end)) == 50


def test_a_reader_with_rows_refuses_another_broker(
    readers: list[MqStreamReader], broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    fill(broker.address, queue, 10)
    reader = source(readers, broker.address, queue, idleWaitMs=0)
    end = plan(reader)
    port = int(broker.address.rpartition(":")[2])
    broker.kill()
    with LocalBroker(tmp_path / "strange", port=port, segment_bytes=SEGMENT_BYTES) as strange:
        fill(strange.address, queue, 10)
        with pytest.raises(WrongBroker):
            plan(reader, end)
