"""The sinks against a real broker: exactly once, whatever is repeated, and batch writes in one
transaction.
"""

from __future__ import annotations

import pathlib
import uuid
from typing import TYPE_CHECKING

import pytest

from mq_wire.v1 import produce_pb2
from pyspark_mq import Connection
from pyspark_mq.spark.schema import SINK_COLUMNS, SOURCE_COLUMNS
from spark_tests.spark.queries import browse, fill, finish, pipe, run, start_pipe, stream, values
from spark_tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mq_broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def write(rows: DataFrame, address: str, queue: str = "", **options: object) -> None:
    writer = rows.write.format("mq").mode("append").option("broker", address)
    for name, value in ({"queue": queue} if queue else {}).items() | options.items():
        writer = writer.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    writer.save()


def numbers(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last).selectExpr("cast(id as string) as value")


@pytest.fixture
def target(queue: str) -> str:
    return f"{queue}-out"


def test_rows_pass_through_with_all_that_travels(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    rows = spark.sql(
        "select * from values (cast('k' as binary), 'a', 9, array(named_struct('key', 'h', 'value', "
        "cast('1' as binary))), 'm', 'c', 'r',"
        " 't', '00-1', timestamp '2026-03-29 01:59:59.123456'), (null, 'b', 0, null, null, null, null, "
        "null, null, null),"
        " (null, 'c', null, array(), null, null, '', null, null, null)"
        " as t(key, value, priority, headers, message_id, correlation_id, reply_to, type, trace_context, "
        "created_at)"
    )
    write(rows, module_broker.address, queue)
    every_column = ", ".join(f"{name} {ddl}" for name, ddl in SOURCE_COLUMNS.items())
    reader = spark.readStream.format("mq").option("broker", module_broker.address).option("queue", queue)
    pipe(reader.schema(every_column).load(), checkpoint, module_broker.address, target)
    browsing = (
        spark.read.format("mq")
        .option("broker", module_broker.address)
        .option("queue", target)
        .schema(every_column)
    )
    names = ["value", *(name for name in SINK_COLUMNS if name != "value")]
    found = {tuple(row) for row in plain(browsing.load().select(*names)).collect()}
    sent = rows.withColumn("value", rows.value.cast("binary")).fillna(4, ["priority"]).select(*names)
    assert found == {tuple(row) for row in plain(sent).collect()}
    assert {row["queue"] for row in browsing.load().collect()} == {target}


def plain(rows: DataFrame) -> DataFrame:
    """Every column as text, so that a row can be a member of a set."""
    return rows.selectExpr(*(f"to_json(named_struct('it', {name})) as {name}" for name in rows.columns))


def test_restart_after_every_lost_commit_is_exactly_once(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    """The driver died between the sink's commit and Spark's commit log: the batch runs again and must not be
    written twice.
    """
    fill(module_broker.address, queue, 300)
    rows = stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=100)
    pipe(rows, checkpoint, module_broker.address, target)
    commits = pathlib.Path(checkpoint) / "commits"
    (commits / "2").unlink()
    (commits / ".2.crc").unlink(missing_ok=True)
    fill(module_broker.address, queue, 50, first=300)
    pipe(rows, checkpoint, module_broker.address, target)
    assert sorted(values(browse(spark, module_broker.address, target).collect())) == list(range(350))


def test_a_batch_that_our_sink_committed_is_no_failed_attempt(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 100)
    rows = stream(spark, module_broker.address, queue)
    pipe(rows, checkpoint, module_broker.address, target)
    for name in ("commits/0", "commits/.0.crc"):
        (pathlib.Path(checkpoint) / name).unlink(missing_ok=True)
    counts: list[set[int]] = []
    run(rows, checkpoint, lambda batch, _: counts.append({row["delivery_count"] for row in batch.collect()}))
    assert counts == [{1}]


def test_exactly_once_with_the_broker_killed_in_between(
    spark: SparkSession, broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    fill(broker.address, queue, 20_000)
    query = start_pipe(
        stream(spark, broker.address, queue, maxOffsetsPerTrigger=1000), checkpoint, broker.address, target
    )
    for batches in (3, 6):
        wait_until(
            lambda want=batches: len(query.recentProgress) >= want or not query.isActive,  # type: ignore[misc]
            40,
            f"{batches} batches",
        )
        broker.kill()
        broker.start()
    finish(query)
    assert sorted(values(browse(spark, broker.address, target).collect())) == list(range(20_000))


def test_exactly_once_over_a_restart_of_a_failing_query(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    """Tasks of the failing batch have staged rows; none of them may come through."""
    fill(module_broker.address, queue, 1000)
    rows = stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=500, maxRecordsPerPartition=125)
    fails = (
        "case when cast(value as string) = '777' then raise_error('as the test wants') else value end "
        "as value"
    )
    with pytest.raises(Exception, match="as the test wants"):
        pipe(rows.selectExpr(fails), checkpoint, module_broker.address, target)
    pipe(rows.select("value"), checkpoint, module_broker.address, target)
    assert sorted(values(browse(spark, module_broker.address, target).collect())) == list(range(1000))


def test_empty_batches_commit_nothing(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 100)
    rows = stream(spark, module_broker.address, queue, maxOffsetsPerTrigger=50).where(
        "cast(value as string) > 'x'"
    )
    pipe(rows, checkpoint, module_broker.address, target)
    fill(module_broker.address, target, 1)
    assert browse(spark, module_broker.address, target).count() == 1


def test_another_number_of_rows_under_a_committed_batch(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    fill(module_broker.address, queue, 100)
    rows = stream(spark, module_broker.address, queue)
    pipe(rows, checkpoint, module_broker.address, target)
    for name in ("commits/0", "commits/.0.crc"):
        (pathlib.Path(checkpoint) / name).unlink(missing_ok=True)
    fewer = rows.where("cast(cast(value as string) as int) < 60")
    with pytest.raises(
        Exception, match=r"BatchMismatch: .*not deterministic.*checkpoint lost its last offsets"
    ):
        pipe(fewer, checkpoint, module_broker.address, target)
    pipe(fewer, checkpoint, module_broker.address, target, batchMismatch="keep")
    assert browse(spark, module_broker.address, target).count() == 100


def test_batch_write_is_one_transaction(spark: SparkSession, module_broker: LocalBroker, queue: str) -> None:
    rows = numbers(spark, 0, 1000).repartition(3)
    write(rows, module_broker.address, queue)
    write(rows, module_broker.address, queue)  # without txnAppId nothing says that it is the same
    assert sorted(values(browse(spark, module_broker.address, queue).collect())) == sorted(
        [*range(1000), *range(1000)]
    )
    bad = rows.selectExpr("case when value = '500' then null else value end as value")
    with pytest.raises(Exception, match=r"'?value'? .*null"):
        write(bad, module_broker.address, queue)
    assert browse(spark, module_broker.address, queue).count() == 2000


def test_txn_app_id_makes_a_batch_write_idempotent(
    spark: SparkSession, module_broker: LocalBroker, queue: str
) -> None:
    app = f"app-{uuid.uuid4()}"
    for version in (1, 1, 2, 2):
        write(
            numbers(spark, 10 * version, 10 * version + 5),
            module_broker.address,
            queue,
            txnAppId=app,
            txnVersion=version,
        )
    assert sorted(values(browse(spark, module_broker.address, queue).collect())) == [
        10,
        11,
        12,
        13,
        14,
        20,
        21,
        22,
        23,
        24,
    ]
    with pytest.raises(Exception, match="CheckpointTooOld"):
        write(numbers(spark, 10, 15), module_broker.address, queue, txnAppId=app, txnVersion=1)


def test_writes_inside_foreach_batch(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    """Two writes of one batch carry the same query and batch; each is its own transaction, and names the
    query that it works for.
    """
    fill(module_broker.address, queue, 100)

    def fan_out(rows: DataFrame, batch: int) -> None:
        for name in ("a", "b"):
            write(
                rows, module_broker.address, f"{target}-{name}", txnAppId=f"{target}-{name}", txnVersion=batch
            )

    query = run(stream(spark, module_broker.address, queue), checkpoint, fan_out)
    listing = produce_pb2.ListMarkersRequest(prefix=f"app:{target}-")
    markers = Connection.shared(module_broker.address).call("ListMarkers", listing).markers
    assert {(marker.owner, marker.query_id) for marker in markers} == {
        (f"app:{target}-{name}", query.id) for name in ("a", "b")
    }
    for name in ("a", "b"):
        assert sorted(values(browse(spark, module_broker.address, f"{target}-{name}").collect())) == list(
            range(100)
        )


def test_rows_are_routed_by_columns(spark: SparkSession, module_broker: LocalBroker, queue: str) -> None:
    rows = spark.range(10).selectExpr(
        "cast(id as string) as value",
        f"concat('{queue}-', id % 2) as queue",
        "cast(id % 4 as int) as partition",
    )
    write(rows, module_broker.address, routeByColumns=True)
    for parity in (0, 1):
        found = browse(spark, module_broker.address, f"{queue}-{parity}").collect()
        assert sorted(values(found)) == list(range(parity, 10, 2))
        assert all(row["partition"] == int(row["value"]) % 4 for row in found)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["id"], "InvalidRecords: .*value is missing"),
        (
            ["cast(id as string) as value", "id as keys"],
            r"InvalidRecords: .*keys is unknown \(did you mean key\?\)",
        ),
        (["cast(id as string) as value", "'x' as group_id"], "Unsupported: column group_id"),
        (["cast(id as string) as value", "12 as priority"], "InvalidRecords: .*priority 12"),
    ],
)
def test_what_cannot_be_written(
    spark: SparkSession, module_broker: LocalBroker, queue: str, columns: list[str], text: str
) -> None:
    with pytest.raises(Exception, match=text):
        write(spark.range(3).selectExpr(*columns), module_broker.address, queue)


def test_overwriting_is_refused(
    spark: SparkSession, module_broker: LocalBroker, queue: str, target: str, checkpoint: str
) -> None:
    rows = numbers(spark, 0, 3)
    with pytest.raises(Exception, match=r"Unsupported: queue .*use mode\('append'\)"):
        rows.write.format("mq").mode("overwrite").option("broker", module_broker.address).option(
            "queue", queue
        ).save()
    fill(module_broker.address, queue, 3)
    counts = (
        stream(spark, module_broker.address, queue)
        .groupBy("priority")
        .count()
        .selectExpr("cast(count as string) as value")
    )
    writer = (
        counts.writeStream.format("mq")
        .outputMode("complete")
        .option("broker", module_broker.address)
        .option("queue", target)
    )
    with pytest.raises(Exception, match=r"Unsupported: queue .*use outputMode\('append'\)"):
        finish(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
