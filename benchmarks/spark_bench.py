"""Spark against its systems, in one session, round by round in turn, so that all of them see the same
noise.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.figures import Figure, shown
from benchmarks.kafka import Kafka
from benchmarks.null_source import NullSource
from benchmarks.spark_systems import KafkaSystem, Nothing, Ours, System, jars_option
from mq_broker import LocalBroker

ROWS = 6_000_000
ROWS_PER_BATCH = 2_000_000
TINY_ROWS = 100
TINY_BATCHES = 60
PROJECT = pathlib.Path(__file__).resolve().parents[1]
LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@contextmanager
def session(kafka: Kafka | None, folder: pathlib.Path) -> Iterator[SparkSession]:
    """Spark on two cores with conf/spark-defaults.conf, its checkpoints on a local disk; all systems on
    board.
    """
    os.environ["SPARK_CONF_DIR"] = str(PROJECT / "conf")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers import null_source from here.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(PROJECT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars_option(kafka))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.streaming.checkpointFileManagerClass", LOCAL_CHECKPOINTS)
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.local.dir", str(folder / "spark-local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")  # stopping a query in mid-batch is loud
    spark.dataSource.register(NullSource)
    try:
        yield spark
    finally:
        spark.stop()


class Trial:
    """Runs queries of one system and clocks them."""

    def __init__(self, spark: SparkSession, folder: pathlib.Path) -> None:
        self._spark = spark
        self._folder = folder
        self._number = 0

    def rate(self, system: System, rows: int, to_sink: bool) -> float:
        """Rows a second from the start of a query to its end, Trigger.AvailableNow, in three batches."""
        system.prepare(rows)
        stream = system.read(self._spark, rows, rows // 3)
        writer = system.write(stream) if to_sink else stream.writeStream.format("noop")
        started = time.perf_counter()
        query = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - started
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        if read != rows:
            raise RuntimeError(
                f"{system.name}: {read} rows came instead of {rows}: the figure would be wrong"
            )
        system.clean_up()
        return rows / seconds

    def tiny_batch_ms(self, system: System) -> float:
        """Median time of a batch of 100 rows in a query that always has more to do."""
        system.prepare(TINY_ROWS * TINY_BATCHES * 4)
        stream = system.read(self._spark, TINY_ROWS * TINY_BATCHES * 4, TINY_ROWS)
        query = stream.writeStream.format("noop").option("checkpointLocation", self._checkpoint()).start()
        try:
            durations = _durations(query)
        finally:
            query.stop()
        system.clean_up()
        return statistics.median(durations)

    def _checkpoint(self) -> str:
        self._number += 1
        return str(self._folder / f"checkpoint-{self._number}")


def _durations(query: StreamingQuery) -> list[float]:
    """Milliseconds of TINY_BATCHES batches behind the first ten, which are cold."""
    while True:
        ended = query.awaitTermination(1)
        durations = [
            progress["batchDuration"] for progress in query.recentProgress if progress["numInputRows"]
        ]
        if len(durations) >= TINY_BATCHES + 10:
            return durations[10 : 10 + TINY_BATCHES]
        if ended:
            raise RuntimeError(f"the query ended after {len(durations)} batches")


def paired(
    trial: Trial, systems: list[System], rounds: int, rows: int, to_sink: bool
) -> dict[str, list[float]]:
    """Rates of each system, its rounds in turn with the others'; the first round of all warms up and is
    dropped.
    """
    rates: dict[str, list[float]] = {system.name: [] for system in systems}
    for number in range(rounds + 1):
        for system in systems:
            rate = trial.rate(system, rows, to_sink)
            sys.stderr.write(
                f"  {system.name} -> {system.name if to_sink else 'noop'}: {shown(rate)} rows/s\n"
            )
            if number:
                rates[system.name].append(rate)
    return rates


def _ratio(name: str, ours: list[float], theirs: list[float], floor: float, at_most: bool = False) -> Figure:
    """The ratio of each round: what was measured side by side is compared side by side."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Figure(name, "x", floor, at_most, rounds=ratios)


def figures(folder: pathlib.Path, rounds: int, scale: float, kafka: Kafka | None) -> Iterator[Figure]:
    """Rates of all systems and the ratios of ours to the others'."""
    rows = int(ROWS * scale)
    with LocalBroker(folder / "spark-broker") as broker, session(kafka, folder) as spark:
        trial = Trial(spark, folder)
        theirs: list[System] = [KafkaSystem(kafka)] if kafka else []
        systems: list[System] = [Ours(broker), Nothing(), *theirs]
        for to_sink, floors in ((False, {"null": 0.7, "kafka": 1.2}), (True, {"null": 0.5, "kafka": 1.1})):
            rates = paired(trial, systems, rounds, rows, to_sink)
            for name, values in rates.items():
                yield Figure(f"Spark: {name} -> {name if to_sink else 'noop'}", "rows/s", rounds=values)
            for name, floor in floors.items():
                if name in rates:
                    yield _ratio(f"  ours to {name}", rates["mq"], rates[name], floor)
        tiny: list[System] = [Ours(broker), Nothing(tasks=1), *theirs]
        times: dict[str, list[float]] = {system.name: [] for system in tiny}
        for _ in range(rounds):
            for system in tiny:
                times[system.name].append(trial.tiny_batch_ms(system))
                sys.stderr.write(f"  {system.name}, 100 rows: {shown(times[system.name][-1])} ms\n")
        for name, values in times.items():
            yield Figure(f"Spark: batches of 100 rows, {name}", "ms", rounds=values)
        yield _ratio("  ours to null with one task", times["mq"], times["null"], 1.5, at_most=True)
