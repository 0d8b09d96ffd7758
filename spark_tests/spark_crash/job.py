"""A Spark driver in a process of its own: queue -> queue over one checkpoint, started anew in the same JVM when it fails.

    python -m spark_tests.spark_crash.job '{"address": ..., "source": ..., "target": ..., "checkpoint": ..., ...}'

The query starts when a line comes on stdin; what happens to it is said on stdout, one JSON object a line. With stdin the process ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "value binary, priority int"


def say(what: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"said": what, "at": round(time.time(), 2), **more}) + "\n")
    sys.stdout.flush()


def session(master: str, conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("mq-spark-crash")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    own = {"broker": job["address"]}
    if "trouble" in job:
        from spark_tests.spark_crash.troubled import TroubledDataSource

        spark.dataSource.register(TroubledDataSource)
        own["trouble"] = job["trouble"]
    name = "troubled" if "trouble" in job else "mq"
    reader = spark.readStream.format(name).options(**own, **job["source_options"], queue=job["source"]).schema(SCHEMA)
    writer = reader.load().writeStream.format(name).options(**own, queue=job["target"])
    return writer.option("checkpointLocation", job["checkpoint"]).start()


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = session(job["master"], job["conf"])
    if not sys.stdin.readline():
        return
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    while True:
        query = start(spark, job)
        say("started", run=str(query.runId))
        try:
            query.awaitTermination()
            say("ended")
        except Exception as error:  # said, and tried again: what a supervisor of a query does
            say("failed", error=str(error).partition("=== Streaming Query")[0][:1000])


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
