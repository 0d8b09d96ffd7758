"""The systems that Spark reads from and writes to in the comparison: ours, nothing at all, and Kafka."""

from __future__ import annotations

import itertools
import pathlib
from abc import ABC, abstractmethod

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import clients, data
from benchmarks.kafka import Kafka
from benchmarks.null_source import SCHEMA
from mq_broker import LocalBroker

PARTITIONS = 4


class System(ABC):
    """One system under test. A round reads `rows` rows, in batches of `rows_per_batch`."""

    name: str

    @abstractmethod
    def prepare(self, rows: int) -> None:
        """Makes `rows` rows ready to be read, outside of the time that is measured."""

    @abstractmethod
    def read(self, spark: SparkSession, rows: int, rows_per_batch: int) -> DataFrame:
        """The stream of what was prepared."""

    @abstractmethod
    def write(self, rows: DataFrame) -> DataStreamWriter:
        """A writer of the column `value` into this system."""

    def clean_up(self) -> None:  # noqa: B027 - most have nothing to drop
        """Drops what a round has left."""


class Ours(System):
    """format("mq"): durable before every receipt, exactly once."""

    name = "mq"

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._numbers = itertools.count()
        self._queue = ""

    def prepare(self, rows: int) -> None:
        self._queue = f"in-{next(self._numbers)}"
        batch: pa.RecordBatch = data.batch(min(rows // 2, clients.BATCH_ROWS))
        clients.publish(self._broker.address, self._queue, rows - batch.num_rows, batch)

    def read(self, spark: SparkSession, rows: int, rows_per_batch: int) -> DataFrame:
        reader = (
            spark.readStream.format("mq")
            .schema(SCHEMA)
            .option("broker", self._broker.address)
            .option("queue", self._queue)
        )
        return reader.option("maxOffsetsPerTrigger", rows_per_batch).option("maxBytesPerTrigger", "4g").load()

    def write(self, rows: DataFrame) -> DataStreamWriter:
        writer = rows.select("value").writeStream.format("mq")
        return writer.option("broker", self._broker.address).option("queue", self._queue.replace("in", "out"))

    def clean_up(self) -> None:
        clients.drop(self._broker.address, self._queue)
        clients.drop(self._broker.address, "out-")


class Nothing(System):
    """A Python source and sink with nothing behind them."""

    name = "null"

    def __init__(self, tasks: int = PARTITIONS) -> None:
        self._tasks = tasks

    def prepare(self, rows: int) -> None:
        """There is nothing to prepare."""

    def read(self, spark: SparkSession, rows: int, rows_per_batch: int) -> DataFrame:
        reader = spark.readStream.format("null").option("rows", rows).option("rowsPerBatch", rows_per_batch)
        return reader.option("tasks", self._tasks).load()

    def write(self, rows: DataFrame) -> DataStreamWriter:
        return rows.select("value").writeStream.format("null")


class KafkaSystem(System):
    """Spark's own Kafka connector: at least once, durable in the page cache."""

    name = "kafka"

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._filled = 0

    def prepare(self, rows: int) -> None:
        if self._filled < rows:
            self._kafka.fill("in", rows - self._filled)
            self._filled = rows

    def read(self, spark: SparkSession, rows: int, rows_per_batch: int) -> DataFrame:
        reader = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._kafka.address)
            .option("subscribe", "in")
        )
        return (
            reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows_per_batch).load()
        )

    def write(self, rows: DataFrame) -> DataStreamWriter:
        writer = (
            rows.select("value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._kafka.address)
        )
        return writer.option("topic", "out").option("kafka.batch.size", 262_144).option("kafka.linger.ms", 10)


def jars_option(kafka: Kafka | None) -> str:
    """What spark.jars must be."""
    return (
        ""
        if kafka is None
        else ",".join(str(jar) for jar in sorted(pathlib.Path(kafka.connector_jars).glob("*.jar")))
    )
