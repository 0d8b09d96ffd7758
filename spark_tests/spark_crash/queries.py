"""The queries of the crash runs: from one queue or two, into a queue, into files, or into a database and a
queue by foreachBatch.
"""

from __future__ import annotations

import pathlib
import sqlite3
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA: Final = "value binary, priority int"
#: Where the rows of a query go: our sink; Spark's file sink; foreachBatch.
SINKS: Final = ("queue", "files", "batches")


def start(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Starts the query of a job.

    Args:
        job: `address`, `sources` and their `source_options`, `sink` (see `SINKS`), `target` (a queue), `out`
            (a folder of files, or a database), `checkpoint`; `trouble` lets tasks fail; `readers`: more than
            one load of each queue, which must be refused.
    """
    own, name = {"broker": job["address"]}, "mq"
    if "trouble" in job:
        from spark_tests.spark_crash.troubled import TroubledDataSource

        spark.dataSource.register(TroubledDataSource)
        own["trouble"], name = job["trouble"], "troubled"

    def load(queue: str) -> DataFrame:
        return (
            spark.readStream.format(name)
            .options(**own, **job["source_options"], queue=queue)
            .schema(SCHEMA)
            .load()
        )

    rows = _all_of([_read(load, queue, job.get("readers", "")) for queue in job["sources"]])
    writer = rows.writeStream.option("checkpointLocation", job["checkpoint"])
    if job["sink"] == "files":
        return writer.format("parquet").option("path", job["out"]).start()
    if job["sink"] == "batches":
        return writer.foreachBatch(_Store(job)).start()
    return writer.format(name).options(**own, queue=job["target"]).start()


def _read(load: Any, queue: str, readers: str) -> DataFrame:
    """Returns the rows of a queue, read by one reader, or by two as people do it without knowing."""
    rows: DataFrame = load(queue)
    if readers == "union":
        rows = rows.where("priority >= 5").union(load(queue).where("priority < 5"))
    elif readers == "join":
        rows = rows.join(load(queue).selectExpr("value as other"), rows["value"] == _column("other")).select(
            "value", "priority"
        )
    return rows


def _column(name: str) -> Any:
    from pyspark.sql.functions import col

    return col(name)


def _all_of(parts: list[DataFrame]) -> DataFrame:
    rows = parts[0]
    for more in parts[1:]:
        rows = rows.union(more)
    return rows


class _Store:
    """What README tells to do in foreachBatch: the batch's number goes into the same transaction, or is the
    version of a write.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = [(bytes(row["value"]), row["priority"]) for row in batch.collect()]
        store(pathlib.Path(self._job["out"]), rows, batch_id)
        writer = (
            batch.write.format("mq")
            .mode("append")
            .option("broker", self._job["address"])
            .option("queue", self._job["target"])
        )
        # A name of its own for each checkpoint, as its numbers begin anew.
        app = "-".join(pathlib.Path(self._job["checkpoint"]).parts[-2:])
        writer.option("txnAppId", app).option("txnVersion", batch_id).save()


def said_by(error: Exception) -> str:
    """Returns what a query failed with, without the plan that Spark adds."""
    return str(error).partition("=== Streaming Query")[0][:20_000]


def store(database: pathlib.Path, rows: list[tuple[bytes, int]], batch_id: int) -> None:
    """Writes a batch once: its number and its rows are in one transaction."""
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("create table if not exists batches (id integer primary key)")
        connection.execute("create table if not exists crossed (value blob, priority integer)")
        if connection.execute("insert or ignore into batches values (?)", (batch_id,)).rowcount:
            connection.executemany("insert into crossed values (?, ?)", rows)
    connection.close()
