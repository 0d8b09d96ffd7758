"""A checkpoint that lost its last batches (a power cut of the driver, an older copy), judged by what is in
the sinks afterwards.

Either the query goes on as if nothing had happened, with the same rows under the same batch numbers, or it is
refused. Sinks that are idempotent by batch number skip a batch that they have seen: rows that come under a
used number are lost.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import StreamingQueryException

from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection
from spark_tests.spark.queries import browse, fill, finish, stream, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from mq_broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

#: What a refusal is, and what its words must name.
REFUSED: Final = r"(?s)(CheckpointTooOld|BatchMismatch|DataLost|OffsetsUnknown|SharedRange)\b.*checkpoint"
ROWS, LATER = 100, 30


class Pipeline:
    """One query from a queue into a sink that skips the batches it has seen."""

    def __init__(
        self, spark: SparkSession, address: str, name: str, folder: pathlib.Path, **options: object
    ) -> None:
        self.spark, self.address, self.queue, self.options = spark, address, name, options
        self.checkpoint = folder / name / "checkpoint"
        self.output = str(folder / name / "output")
        self.sent = 0
        self.refusal = ""

    def send(self, rows: int) -> None:
        fill(self.address, self.queue, rows, first=self.sent)
        self.sent += rows

    def start(self) -> StreamingQuery:
        rows = stream(self.spark, self.address, self.queue, maxOffsetsPerTrigger=ROWS, **self.options).select(
            "value"
        )
        return (
            self.into(rows)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def into(self, rows: DataFrame) -> DataStreamWriter:
        raise NotImplementedError

    def found(self) -> list[int]:
        """Returns what is in the sink."""
        raise NotImplementedError

    def waiting(self) -> int:
        """Returns how many rows are in the queue, held ones included."""
        stats = Connection.shared(self.address).call("Stats", admin_pb2.StatsRequest(destination=self.queue))
        return int(stats.destination.depth_rows)


class IntoFiles(Pipeline):
    """Spark's own file sink."""

    def into(self, rows: DataFrame) -> DataStreamWriter:
        return (
            rows.selectExpr("cast(value as string) as value")
            .writeStream.format("parquet")
            .option("path", self.output)
        )

    def found(self) -> list[int]:
        return values(self.spark.read.parquet(self.output).collect())


class IntoTable(Pipeline):
    """README's pattern with SQLite: insert unless the batch is there."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.table: dict[int, list[int]] = {}

    def into(self, rows: DataFrame) -> DataStreamWriter:
        return rows.writeStream.foreachBatch(self.insert)

    def insert(self, rows: DataFrame, batch: int) -> None:
        numbers = values(rows.collect())
        self.table.setdefault(batch, numbers)

    def found(self) -> list[int]:
        return [number for numbers in self.table.values() for number in numbers]


class IntoQueue(Pipeline):
    """Our own sink."""

    def into(self, rows: DataFrame) -> DataStreamWriter:
        writer = rows.writeStream.format("mq").option("broker", self.address)
        return writer.option("queue", f"{self.queue}-out")

    def found(self) -> list[int]:
        return values(browse(self.spark, self.address, f"{self.queue}-out").collect())


@pytest.fixture
def pipelines(
    spark: SparkSession, module_broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> Callable[..., list[Pipeline]]:
    def make(**options: object) -> list[Pipeline]:
        kinds: tuple[type[Pipeline], ...] = (IntoFiles, IntoTable, IntoQueue)
        return [
            kind(spark, module_broker.address, f"{queue}-{kind.__name__}", tmp_path, **options)
            for kind in kinds
        ]

    return make


def run_all(pipelines: list[Pipeline]) -> None:
    """Runs all of them side by side to their end; notes which are refused."""
    running = [(pipeline, pipeline.start()) for pipeline in pipelines]
    for pipeline, query in running:
        pipeline.refusal = refusal_of(query)


def refusal_of(query: StreamingQuery) -> str:
    """Waits for the end of a query and returns what it failed with; empty where it did not."""
    try:
        finish(query)
    except StreamingQueryException as error:
        return str(error)
    return ""


def lose(checkpoint: pathlib.Path, batches: range) -> None:
    """Deletes the last batches of a checkpoint, as a power cut does with what was not synced."""
    for batch in batches:
        for folder in ("offsets", "commits"):
            (checkpoint / folder / str(batch)).unlink()
            (checkpoint / folder / f".{batch}.crc").unlink(missing_ok=True)


def judge(pipeline: Pipeline, before: list[int]) -> None:
    """Everything once, or a refusal that changed nothing and names the checkpoint."""
    found = sorted(pipeline.found())
    if pipeline.refusal:
        assert re.search(REFUSED, pipeline.refusal)
        assert found == before, "a refusal leaves the sink as it was"
        assert pipeline.waiting() >= pipeline.sent - len(before), (
            "and what the sink lacks is still in the queue"
        )
    else:
        assert found == list(range(pipeline.sent))


@pytest.mark.parametrize(
    ("batches", "lost", "acknowledged", "options"),
    [
        (2, 1, False, {}),
        (2, 1, True, {}),
        (3, 2, True, {}),
        (3, 2, True, {"failOnDataLoss": False}),
        (1, 1, True, {}),
    ],
    ids=["last in hand", "last", "last two", "last two, going on", "first"],
)
def test_lost_batches(
    pipelines: Callable[..., list[Pipeline]],
    batches: int,
    lost: int,
    acknowledged: bool,
    options: dict[str, object],
) -> None:
    made = pipelines(**options)
    for pipeline in made:
        pipeline.send(batches * ROWS)
    run_all(made)
    if acknowledged:
        run_all(made)  # finds nothing new, and says so: what the last batch read is acknowledged
    assert [pipeline.refusal for pipeline in made] == [""] * len(made)
    before = list(range(batches * ROWS))
    for pipeline in made:
        assert sorted(pipeline.found()) == before
        lose(pipeline.checkpoint, range(batches - lost, batches))
        pipeline.send(LATER)
    run_all(made)
    # Spark's file sink passes over a batch that it knows without a task, so that nobody asks: its rows wait,
    # and the next batch is refused.
    silent = [pipeline for pipeline in made if not pipeline.refusal and sorted(pipeline.found()) == before]
    assert all(isinstance(pipeline, IntoFiles) for pipeline in silent)
    for pipeline in silent:
        pipeline.send(LATER)
    run_all(silent)
    assert all(pipeline.refusal for pipeline in silent)
    for pipeline in made:
        judge(pipeline, before)
    if batches == 2:
        assert [pipeline.refusal for pipeline in made] == [""] * len(made), (
            "one batch is kept, whoever lost its number"
        )


def test_a_queue_that_was_idle_in_the_lost_batch(
    spark: SparkSession, module_broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    """A query over two queues: what comes to the idle one must not slip into the lost batch."""
    address, checkpoint = module_broker.address, tmp_path / "checkpoint"
    table: dict[int, list[int]] = {}

    def insert(rows: DataFrame, batch: int) -> None:
        numbers = values(rows.collect())
        table.setdefault(batch, numbers)

    def run() -> str:
        both = (
            stream(spark, address, f"{queue}-a")
            .select("value")
            .union(stream(spark, address, f"{queue}-b").select("value"))
        )
        writer = both.writeStream.foreachBatch(insert).option("checkpointLocation", str(checkpoint))
        return refusal_of(writer.trigger(availableNow=True).start())

    def found() -> list[int]:
        return sorted(number for numbers in table.values() for number in numbers)

    fill(address, f"{queue}-a", 10)
    fill(address, f"{queue}-b", 10, first=10)
    assert not run()
    fill(address, f"{queue}-a", 10, first=20)
    assert not run()
    assert not run()  # finds nothing new, and says so
    assert found() == list(range(30))
    lose(checkpoint, range(max(table), max(table) + 1))
    fill(address, f"{queue}-b", 10, first=30)
    if refusal := run():
        assert re.search(REFUSED, refusal)
        assert found() == list(range(30))
        stats = Connection.shared(address).call("Stats", admin_pb2.StatsRequest(destination=f"{queue}-b"))
        assert stats.destination.depth_rows >= 10
    else:
        assert found() == list(range(40))
