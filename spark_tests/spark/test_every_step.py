"""A query that ends at each step of a batch, source and sink, and starts again from its checkpoint: counted, nothing lost or doubled."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from spark_tests.spark.queries import browse, fill, finish, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

    from mq_broker import LocalBroker
    from pyspark_mq.sink import MqStreamWriter
    from pyspark_mq.source import MqStreamReader

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ROWS = 300
STEPS = [
    "initialOffset before", "latestOffset before", "latestOffset after", "partitions before", "partitions after", "read before",
    "read after", "commit before", "commit after", "write before", "write after", "sink commit before", "sink commit after",
]  # fmt: skip


Trip = Callable[[str, str], None]

# All classes and functions that travel to Spark's processes are local ones: those go by value, and no worker needs this module.


def trip_once() -> Trip:
    """Returns what fails at a step, once, where the file says so."""

    def trip(path: str, step: str) -> None:
        import pathlib

        file = pathlib.Path(path)
        if file.exists() and file.read_text() == step:
            file.unlink()
            raise RuntimeError(f"tripped: {step}")

    return trip


def reader_class(trip: Trip) -> type[MqStreamReader]:
    """Returns a source that may trip before and after each call."""
    from pyspark_mq.source import MqStreamReader

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

    return Reader


def writer_class(trip: Trip) -> type[MqStreamWriter]:
    """Returns a sink that may trip before and after each call."""
    from pyspark_mq.sink import MqStreamWriter

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

    return Writer


def tripping_source() -> type[DataSource]:
    """Returns a source and sink that do as "mq" does, but fail once at the step that the file of option `trip` names."""
    from pyspark_mq.datasource import MqDataSource

    trip = trip_once()
    reader_type, writer_type = reader_class(trip), writer_class(trip)

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
            reader.__class__, reader.path = reader_type, self.path
            return reader

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer: Any = super().streamWriter(schema, overwrite)
            writer.__class__, writer.path = writer_type, self.path
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
