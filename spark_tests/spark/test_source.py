"""The streaming source against a real broker: what is read, how often, and what a restart repeats."""

from __future__ import annotations

import pathlib
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_tests.spark.queries import browse, fill, finish, numbered, run, stream, values
from spark_tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mq_broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


class Collector:
    """Collects the rows of each batch, and fails in batch `fail_at` after it has read the batch."""

    def __init__(self, fail_at: int = -1) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.fail_at = fail_at

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.batches[batch] = rows.collect()
        if batch == self.fail_at:
            raise RuntimeError(f"batch {batch} fails as the test wants")

    @property
    def rows(self) -> list[Any]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def test_all_columns_come_as_they_were_sent(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    from pyspark_mq import Producer

    headers = [[("a", b"1"), ("a", b"2")], None, []]
    with Producer(module_broker.address, queue=queue, name="sender") as producer:
        sent = pa.record_batch(
            {
                "key": pa.array([b"k1", None, b"k3"]),
                "value": pa.array([b"v1", b"", b"\x00\xff"]),
                "headers": pa.array(
                    [
                        None if row is None else [{"key": key, "value": value} for key, value in row]
                        for row in headers
                    ],
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                ),
                "priority": pa.array([9, 0, 4], pa.int8()),
                "message_id": pa.array(["m1", None, "m3"]),
            }
        )
        producer.send_batch(sent).result(timeout=10)
    collector = Collector()
    run(stream(spark, module_broker.address, queue, includeHeaders=True), checkpoint, collector)
    by_value = {bytes(row["value"]): row for row in collector.rows}
    assert len(collector.rows) == 3
    for at, row in enumerate(by_value[value] for value in (b"v1", b"", b"\x00\xff")):
        assert row["key"] == sent.column("key")[at].as_py()
        assert row["priority"] == sent.column("priority")[at].as_py()
        assert row["message_id"] == sent.column("message_id")[at].as_py()
        expected = headers[at]
        assert (row["headers"] and [(h["key"], bytes(h["value"])) for h in row["headers"]]) == (
            expected and list(expected)
        )
        assert (row["queue"], row["delivery_count"], row["expires_at"]) == (queue, 1, None)
        assert row["offset"] >= 0
        assert row["sequence"] >= 0
        assert row["producer"]
        assert abs(row["timestamp"].timestamp() - collector.rows[0]["timestamp"].timestamp()) < 60
    assert len({bytes(row["delivery"]) for row in collector.rows}) == 3


def test_a_user_schema_picks_columns(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 10)
    reader = spark.readStream.format("mq").option("broker", module_broker.address).option("queue", queue)
    collector = Collector()
    run(reader.schema("offset long, priority int, value binary, partition int").load(), checkpoint, collector)
    assert collector.rows[0].__fields__ == ["offset", "priority", "value", "partition"]
    assert sorted(values(collector.rows)) == list(range(10))


def test_available_now_ends_under_a_running_producer(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    from pyspark_mq import Producer

    fill(module_broker.address, queue, 1000)
    stop, late = threading.Event(), list[int]()

    def produce() -> None:
        with Producer(module_broker.address, queue=queue) as producer:
            while not stop.wait(0.02):
                producer.send_batch(numbered(1000 + len(late), 1001 + len(late))).result(timeout=10)
                late.append(1)

    thread = threading.Thread(target=produce)
    thread.start()
    collector = Collector()
    try:
        wait_until(lambda: late, message="the producer sends")
        run(stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=300), checkpoint, collector)
    finally:
        stop.set()
        thread.join()
    assert all(len(rows) <= 300 for rows in collector.batches.values())
    assert len(collector.batches) >= 4
    first = values(collector.rows)
    assert set(range(1000)) <= set(first)
    again = Collector()
    run(stream(spark, module_broker.address, queue), checkpoint, again)
    assert sorted(first + values(again.rows)) == list(range(1000 + len(late)))


def test_a_failed_batch_comes_again_and_is_counted(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 300)
    failing = Collector(fail_at=1)
    with pytest.raises(Exception, match="batch 1 fails as the test wants"):
        run(stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=100), checkpoint, failing)
    again = Collector()
    # Other limits now: a batch that was read keeps its boundary.
    run(stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=1000), checkpoint, again)
    assert sorted(again.batches) == [1, 2]
    assert sorted(values(again.batches[1])) == sorted(values(failing.batches[1]))
    assert {row["delivery_count"] for row in again.batches[1]} == {2}
    assert {row["delivery_count"] for row in again.batches[2]} == {1}
    assert sorted(values(failing.batches[0] + again.rows)) == list(range(300))


def test_several_actions_read_the_same_rows_and_charge_nobody(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 500)
    seen: list[Any] = []

    def several_actions(rows: DataFrame, batch: int) -> None:
        seen.append(rows.collect())
        assert rows.count() == 500
        rows.limit(1).collect()
        seen.append(rows.union(rows).collect())

    run(stream(spark, module_broker.address, queue), checkpoint, several_actions)
    assert [sorted(values(rows)) for rows in seen] == [list(range(500)), sorted([*range(500), *range(500)])]
    assert {row["delivery_count"] for rows in seen for row in rows} == {1}
    assert {bytes(row["delivery"]) for row in seen[0]} == {bytes(row["delivery"]) for row in seen[1]}


def test_tasks_are_split_and_read_everything_once(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 1000)
    tasks = []

    def count_tasks(rows: DataFrame, batch: int) -> None:
        tasks.append(rows.rdd.getNumPartitions())
        assert sorted(values(rows.collect())) == list(range(1000))

    run(
        stream(
            spark, module_broker.address, queue, maxRecordsPerPartition=150, minPartitions=3, prefetchRows=10
        ),
        checkpoint,
        count_tasks,
    )
    assert len(tasks) == 1
    assert tasks[0] >= 7


def test_a_small_batch_is_one_task(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 40, batch_rows=10)
    tasks = []
    run(
        stream(spark, module_broker.address, queue),
        checkpoint,
        lambda rows, batch: tasks.append(rows.rdd.getNumPartitions()),
    )
    assert tasks == [1]


def test_lag_shows_in_progress(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 250)
    query = run(
        stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=100), checkpoint, Collector()
    )
    source = query.recentProgress[0]["sources"][0]
    assert '"lag_rows"' in str(source["latestOffset"])
    assert source["numInputRows"] == 100


def test_a_continuous_query_waits_for_enough_rows(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 10)
    collector = Collector()
    rows = stream(spark, module_broker.address, queue, minOffsetsPerTrigger=100, maxTriggerDelay="10m")
    query = rows.writeStream.foreachBatch(collector).option("checkpointLocation", checkpoint).start()
    try:
        wait_until(lambda: len(collector.rows) == 10, 30, "the first trigger does not wait")
        fill(module_broker.address, queue, 50, first=10)
        # Below the minimum: nothing more comes until there is enough.
        fill(module_broker.address, queue, 60, first=60)
        wait_until(lambda: len(collector.rows) == 120, 30, "the second batch")
    finally:
        query.stop()
    assert sorted(len(rows) for rows in collector.batches.values() if rows) in ([10, 110], [10, 10, 100])
    assert sorted(values(collector.rows)) == list(range(120))


def test_a_new_checkpoint_takes_over_a_named_consumer(
    spark: SparkSession, module_broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    fill(module_broker.address, queue, 100)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    failing = Collector(fail_at=0)
    with pytest.raises(Exception, match="batch 0 fails"):
        run(stream(spark, module_broker.address, queue, consumer="billing"), old, failing)
    taken = Collector()
    run(stream(spark, module_broker.address, queue, consumer="billing"), new, taken)
    assert sorted(values(taken.rows)) == list(range(100))
    assert {row["delivery_count"] for row in taken.rows} == {2}
    with pytest.raises(Exception, match="IncarnationSuperseded"):
        run(stream(spark, module_broker.address, queue, consumer="billing"), old, Collector())


def test_a_restored_checkpoint_is_refused(
    spark: SparkSession, module_broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    """A copy made before the last batches: their rows are acknowledged and no longer kept."""
    checkpoint, copy = str(tmp_path / "checkpoint"), str(tmp_path / "copy")
    fill(module_broker.address, queue, 50)
    run(stream(spark, module_broker.address, queue), checkpoint, Collector())
    shutil.copytree(checkpoint, copy)
    for first in (50, 100, 150):
        fill(module_broker.address, queue, 50, first=first)
        run(stream(spark, module_broker.address, queue), checkpoint, Collector())
    fill(module_broker.address, queue, 50, first=200)
    with pytest.raises(Exception, match="DataLost"):
        run(stream(spark, module_broker.address, queue), copy, Collector())


def test_a_recreated_queue_is_another_queue(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    from mq_wire.v1 import admin_pb2
    from pyspark_mq import Connection

    fill(module_broker.address, queue, 10)
    run(stream(spark, module_broker.address, queue), checkpoint, Collector())
    Connection.shared(module_broker.address).call(
        "DeleteDestination", admin_pb2.DeleteDestinationRequest(name=queue)
    )
    fill(module_broker.address, queue, 10)
    with pytest.raises(Exception, match="DestinationRecreated"):
        run(stream(spark, module_broker.address, queue), checkpoint, Collector())


def test_another_queue_under_the_same_checkpoint_is_refused(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 10)
    run(stream(spark, module_broker.address, queue), checkpoint, Collector())
    fill(module_broker.address, f"{queue}-2", 10)
    with pytest.raises(
        Exception, match=f"option queue is '{queue}-2', but the checkpoint was made with '{queue}'"
    ):
        run(stream(spark, module_broker.address, f"{queue}-2"), checkpoint, Collector())


def test_two_queries_share_a_queue(
    spark: SparkSession, module_broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    fill(module_broker.address, queue, 1000)
    collectors = [Collector(), Collector()]
    queries = [
        stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=100)
        .writeStream.foreachBatch(collector)
        .option("checkpointLocation", str(tmp_path / f"checkpoint-{number}"))
        .trigger(availableNow=True)
        .start()
        for number, collector in enumerate(collectors)
    ]
    for query in queries:
        finish(query)
    assert sorted(values([row for collector in collectors for row in collector.rows])) == list(range(1000))


def test_a_stopped_query_gives_back_what_it_never_read(
    spark: SparkSession, module_broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    fill(module_broker.address, queue, 100)
    entered, leave = threading.Event(), threading.Event()

    def hang(rows: DataFrame, batch: int) -> None:
        entered.set()
        leave.wait(30)
        raise RuntimeError("the batch must not end well, even where stop() comes late")

    query = stream(spark, module_broker.address, queue).writeStream.foreachBatch(hang)
    running = query.option("checkpointLocation", str(tmp_path / "a")).start()
    assert entered.wait(30)
    stopper = threading.Thread(target=running.stop)
    stopper.start()
    leave.set()
    stopper.join()

    def read_by_another() -> bool:
        collector = Collector()
        run(stream(spark, module_broker.address, queue), str(tmp_path / "b"), collector)
        everything.extend(values(collector.rows))
        return len(everything) == 100

    everything: list[int] = []
    wait_until(read_by_another, 30, "the rows go back when the run ends")
    assert sorted(everything) == list(range(100))


def test_browsing_shows_what_is_left(
    spark: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 100)
    assert sorted(values(browse(spark, module_broker.address, queue).collect())) == list(range(100))
    run(stream(spark, module_broker.address, queue), checkpoint, Collector())
    fill(module_broker.address, queue, 5, first=100)
    run(stream(spark, module_broker.address, queue), checkpoint, Collector())
    left = browse(spark, module_broker.address, queue, maxRecordsPerPartition=2)
    assert set(values(left.collect())) <= {100, 101, 102, 103, 104}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxOffsetPerTrigger": "5"}, r"InvalidOption: .*did you mean maxOffsetsPerTrigger\?"),
        ({"startingOffsets": "latest"}, "InvalidOption: option startingOffsets is 'latest'"),
        ({"poison": "bisect"}, "Unsupported: option poison"),
        ({"queue": ""}, "InvalidOption: option queue is missing"),
    ],
)
def test_wrong_options_fail_at_load(
    spark: SparkSession, queue: str, options: dict[str, str], text: str
) -> None:
    for reader in (spark.readStream, spark.read):
        reader.format("mq").option("broker", "mq://127.0.0.1:1").options(**({"queue": queue} | options))
        with pytest.raises(Exception, match=text):
            reader.load()


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        (
            {"maxOffsetPerTrigger": "5"},
            "value binary",
            r"InvalidOption: .*did you mean maxOffsetsPerTrigger\?",
        ),
        ({}, "value string", "InvalidRecords: .*column value is string, and must be binary"),
    ],
)
def test_with_a_schema_of_the_users_mistakes_fail_when_the_query_starts(
    spark: SparkSession,
    module_broker: LocalBroker,
    queue: str,
    checkpoint: str,
    options: dict[str, str],
    schema: str,
    text: str,
) -> None:
    """Spark calls nothing of ours at such a load()."""
    reader = (
        spark.readStream.format("mq")
        .option("broker", module_broker.address)
        .option("queue", queue)
        .options(**options)
    )
    rows = reader.schema(schema).load()
    with pytest.raises(Exception, match=text) as failure:
        finish(
            rows.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
    assert "UnboundLocalError" not in str(failure.value)
