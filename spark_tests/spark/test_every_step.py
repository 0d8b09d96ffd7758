"""A query that ends at each step of a batch, source and sink, and starts again from its checkpoint: counted, nothing lost or doubled."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import pytest

from spark_tests.spark.queries import browse, fill, finish, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

    from mq_broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ROWS = 300
STEPS = [
    "initialOffset before", "latestOffset before", "latestOffset after", "partitions before", "partitions after", "read before",
    "read after", "commit before", "commit after", "write before", "write after", "sink commit before", "sink commit after",
]  # fmt: skip


def tripping_source() -> type[DataSource]:
    """Returns a source and sink that do as "mq" does, but fail once at the step that the file of option `trip` names.

    The classes are local, so that they travel to Spark's processes by value.
    """
    from pyspark_mq.datasource import MqDataSource
    from pyspark_mq.sink import MqStreamWriter
    from pyspark_mq.source import MqStreamReader

    def trip(path: str, step: str) -> None:
        import pathlib

        file = pathlib.Path(path)
        if file.exists() and file.read_text() == step:
            file.unlink()
            raise RuntimeError(f"tripped: {step}")

    class Reader(MqStreamReader):
        path: str

        def initialOffset(self) -> dict[str, Any]:
            trip(self.path, "initialOffset before")
            return super().initialOffset()

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
            trip(self.path, "latestOffset before")
            end = super().latestOffset(start, limit)
            if end != start:
                trip(self.path, "latestOffset after")
            return end

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
            trip(self.path, "partitions before")
            tasks = super().partitions(start, end)
            trip(self.path, "partitions after")
            return tasks

        def read(self, partition: Any) -> Any:
            trip(self.path, "read before")
            yield from super().read(partition)
            trip(self.path, "read after")

        def commit(self, end: dict[str, Any]) -> None:
            trip(self.path, "commit before")
            super().commit(end)
            trip(self.path, "commit after")

    class Writer(MqStreamWriter):
        path: str

        def write(self, iterator: Any) -> Any:
            trip(self.path, "write before")
            message = super().write(iterator)
            trip(self.path, "write after")
            return message

        def commit(self, messages: Any, batchId: int) -> None:
            trip(self.path, "sink commit before")
            super().commit(messages, batchId)
            trip(self.path, "sink commit after")

    class TrippingDataSource(MqDataSource):
        def __init__(self, options: Any) -> None:
            kept = dict(options)
            self.path = kept.pop("trip")
            super().__init__(kept)

        @classmethod
        def name(cls) -> str:
            return "mqtrip"

        def streamReader(self, schema: Any) -> Any:
            reader: Any = super().streamReader(schema)
            reader.__class__, reader.path = Reader, self.path
            return reader

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer: Any = super().streamWriter(schema, overwrite)
            writer.__class__, writer.path = Writer, self.path
            return writer

    return TrippingDataSource


@pytest.fixture(scope="module")
def tripping(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(tripping_source())
    return spark


def attempt(rows: DataFrame, address: str, target: str, trip: pathlib.Path, checkpoint: str) -> None:
    writer = rows.writeStream.format("mqtrip").option("broker", address).option("queue", target).option("trip", str(trip))
    finish(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())


@pytest.mark.parametrize("step", STEPS)
def test_exactly_once_from_every_step(
    tripping: SparkSession, module_broker: LocalBroker, queue: str, checkpoint: str, tmp_path: pathlib.Path, step: str
) -> None:
    address, target, trip = module_broker.address, f"{queue}-out", tmp_path / "trip"
    fill(address, queue, ROWS)
    rows = tripping.readStream.format("mqtrip").option("broker", address).option("queue", queue).option("trip", str(trip))
    stream = rows.option("maxOffsetsPerTrigger", ROWS // 3).load()
    trip.write_text(step)
    with pytest.raises(Exception, match=f"tripped: {step}"):
        attempt(stream, address, target, trip, checkpoint)
    assert not trip.exists()
    attempt(stream, address, target, trip, checkpoint)
    assert sorted(values(browse(tripping, address, target).collect())) == list(range(ROWS))
