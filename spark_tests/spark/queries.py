"""Small tools for Spark tests: fill a queue, run a query to its end, and say what a failed one said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: A query of a test that takes longer than this hangs.
QUERY_TIMEOUT_S = 50


def numbered(first: int, last: int) -> pa.RecordBatch:
    """Returns rows whose values are the numbers [first, last) as text."""
    return pa.record_batch(
        {"value": pa.array([str(number).encode() for number in range(first, last)], pa.binary())}
    )


def fill(address: str, queue: str, rows: int, *, first: int = 0, batch_rows: int = 1000) -> None:
    """Publishes the numbers [first, first + rows) and waits for their receipts."""
    from pyspark_mq import Producer

    with Producer(address, queue=queue) as producer:
        for at in range(first, first + rows, batch_rows):
            producer.send_batch(numbered(at, min(at + batch_rows, first + rows)))


def stream(spark: SparkSession, address: str, queue: str, **options: object) -> DataFrame:
    """Returns the streaming DataFrame of a queue."""
    reader = spark.readStream.format("mq").option("broker", address).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()


def browse(spark: SparkSession, address: str, queue: str, **options: object) -> DataFrame:
    """Returns what waits in a queue."""
    reader = spark.read.format("mq").option("broker", address).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def run(rows: DataFrame, checkpoint: str, each_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
    """Runs a query with AvailableNow and foreachBatch until it ends; raises what it failed with."""
    return finish(
        rows.writeStream.foreachBatch(each_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def pipe(rows: DataFrame, checkpoint: str, address: str, queue: str, **options: object) -> StreamingQuery:
    """Runs a query from `rows` into another queue until it ends; raises what it failed with."""
    return finish(start_pipe(rows, checkpoint, address, queue, **options))


def start_pipe(
    rows: DataFrame, checkpoint: str, address: str, queue: str, **options: object
) -> StreamingQuery:
    """Starts a query with AvailableNow from `rows` into another queue."""
    writer = (
        rows.writeStream.format("mq")
        .option("broker", address)
        .option("queue", queue)
        .option("checkpointLocation", checkpoint)
    )
    for name, value in options.items():
        writer = writer.option(name, str(value))
    return writer.trigger(availableNow=True).start()


def finish(query: StreamingQuery) -> StreamingQuery:
    """Waits for the end of a query; raises what it failed with."""
    if not query.awaitTermination(QUERY_TIMEOUT_S):
        query.stop()
        raise AssertionError(
            f"the query did not end within {QUERY_TIMEOUT_S} s; its last progress: {query.lastProgress}"
        )
    return query


def values(rows: Sequence[Any]) -> list[int]:
    """Returns the numbers that `numbered` rows hold, in their order."""
    return [int(row["value"]) for row in rows]


def edit_offsets(checkpoint: str, batch: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the (only) source's offsets of one batch in a checkpoint."""
    import pathlib

    path = pathlib.Path(checkpoint) / "offsets" / str(batch)
    *head, last = path.read_text().splitlines()
    offsets = json.loads(last)
    change(offsets)
    path.write_text("\n".join([*head, json.dumps(offsets)]))
    (path.parent / f".{batch}.crc").unlink(missing_ok=True)
