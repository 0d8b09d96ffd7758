"""A Spark driver in a process of its own: one query over one checkpoint, started anew in the same JVM when it
fails.

    python -m spark_tests.spark_crash.job '{"address": ..., "sources": [...], "sink": "queue", "target": ...,
    ...}'

The query (see `queries.start`) starts when a line comes on stdin, a JSON object with what has been settled
since: its checkpoint, and perhaps another query to run `beside` it. What happens is said on stdout, one JSON
object a line. With stdin the process ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from spark_tests.spark_crash import queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = session(job["master"], job["conf"])
    line = sys.stdin.readline()
    if not line:
        return
    job |= json.loads(line)
    if "beside" in job:
        # Started here: on another thread, where no session is active, Spark finds no source that is written
        # in Python.
        beside = queries.start(spark, job | job.pop("beside"))
        threading.Thread(target=_watch, args=(beside,), daemon=True).start()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    while True:
        query = queries.start(spark, job)
        say("started", run=str(query.runId))
        try:
            query.awaitTermination()
            say("ended")
        except Exception as error:  # said, and tried again: what a supervisor of a query does
            say("failed", error=queries.said_by(error))


def _watch(beside: StreamingQuery) -> None:
    try:
        beside.awaitTermination()
        say("beside ended")
    except Exception as error:  # said: the test knows what it should be
        say("beside failed", error=queries.said_by(error))


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
