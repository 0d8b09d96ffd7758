"""The Spark job: flights in, enriched flights out, exactly once."""

from __future__ import annotations

import os
import pathlib
import sys

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

FLIGHT = (
    "id long, carrier string, flight int, origin string, dest string, dep_delay int, arr_delay int, "
    "distance int, air_time int"
)
CONF = pathlib.Path(__file__).resolve().parents[2] / "conf"


def session(log: pathlib.Path) -> SparkSession:
    """Starts Spark in this process, with conf/spark-defaults.conf. The output of the JVM and of the Python
    workers goes to `log`.
    """
    os.environ.setdefault("SPARK_CONF_DIR", str(CONF))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The JVM and its Python workers inherit the stderr of this process. So it points to the log while they
    # start.
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            builder = SparkSession.builder.master("local[2]").appName("flights")
            return (
                builder.config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .getOrCreate()
            )
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def enriched(rows: DataFrame, airlines: DataFrame) -> DataFrame:
    """Returns each flight with the name of its airline, the minutes it made up in the air and its speed.

    `batch_time` is the time of the micro-batch. Spark keeps it in the checkpoint, so a repeated batch has the
    same time.
    """
    flight = F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    flights = rows.select("key", "priority", "delivery_count", flight).select(
        "key", "priority", "delivery_count", "flight.*"
    )
    result = F.struct(
        "id",
        "airline",
        F.concat_ws("-", "origin", "dest").alias("route"),
        "dep_delay",
        (F.col("dep_delay") - F.col("arr_delay")).alias("made_up"),
        F.round(F.col("distance") / F.col("air_time") * 60).alias("mph"),
        F.unix_micros(F.current_timestamp()).alias("batch_time"),
        "delivery_count",
    )
    return flights.join(F.broadcast(airlines), "carrier", "left").select(
        "key", F.to_json(result).alias("value"), "priority"
    )


def start(
    spark: SparkSession, broker: str, airlines: pa.Table, checkpoint: pathlib.Path, rows_per_batch: int
) -> StreamingQuery:
    """Starts the query that moves all rows from queue `flights` to queue `enriched`, and then ends."""
    flights = (
        spark.readStream.format("mq")
        .option("broker", broker)
        .option("queue", "flights")
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .load()
    )
    names = spark.createDataFrame(
        airlines.rename_columns(["carrier", "airline"]).to_pylist(), "carrier string, airline string"
    )
    return (
        enriched(flights, names)
        .writeStream.format("mq")
        .queryName("flights")
        .option("broker", broker)
        .option("queue", "enriched")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
