"""A Spark driver in a process of its own that runs queries one after the other, each until it has done what
was there.

    python -m spark_tests.compat.spark_job '{"master": ..., "conf": ..., "jobs": [{"kind": "pipe", "address":
    ..., ...}, ...]}'

It says on stdout, one JSON object a line, which modules it runs with, and what came of each query. It imports
nothing of the packages under test by itself, so that it serves every version that stands first on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "value binary, priority int"


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def where(_: Iterable[int]) -> Iterator[str]:
    """The files that a Python worker imports."""
    import mq_wire
    import pyspark_mq

    yield str(pyspark_mq.__file__)
    yield str(mq_wire.__file__)


def run(spark: SparkSession, number: int, job: dict[str, Any]) -> None:
    reader = (
        spark.readStream.format("mq")
        .option("broker", job["address"])
        .option("queue", job["source"])
        .options(**job.get("options", {}))
    )
    if job["kind"] == "pipe":
        rows = reader.schema(SCHEMA).load()
        writer = rows.writeStream.format("mq").option("broker", job["address"]).option("queue", job["target"])
    else:
        rows = reader.load().select("value", "priority", "partition", "offset", "delivery_count")
        writer = rows.writeStream.foreachBatch(lambda batch, batch_id: each(batch, batch_id, number, job))
    writer.option("checkpointLocation", job["checkpoint"]).trigger(
        availableNow=True
    ).start().awaitTermination()


def each(batch: DataFrame, batch_id: int, number: int, job: dict[str, Any]) -> None:
    """Says what a batch holds, and in one batch waits for the end of the process."""
    names = ("partition", "offset", "priority", "delivery_count")
    rows = [[*(row[name] for name in names), row["value"].decode()] for row in batch.collect()]
    say(job=number, batch=batch_id, rows=sorted(rows))
    if batch_id == job.get("hold_at"):
        sys.stdin.read()


def main() -> None:
    from pyspark.sql import SparkSession

    work = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(work["master"]).appName("mq-compat")
    for name, value in work["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    say(driver=list(where(())), workers=spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect())
    for number, job in enumerate(work["jobs"]):
        try:
            run(spark, number, job)
            say(job=number, ended=True)
        except Exception as error:  # told to who started this, with the others' results
            say(job=number, error=str(error)[:3000])
    spark.stop()


if __name__ == "__main__":
    main()
