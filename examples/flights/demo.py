"""The demo (`make demo`): a whole job on real data.

336,776 flights are sent to a durable queue; delayed flights have higher priorities. A Spark query reads the
queue in batches, enriches the flights and writes them to a second queue exactly once. Half-way the broker is
killed with SIGKILL and started again. Then the results are counted.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
import time

import pyarrow as pa
import pyarrow.csv
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from examples.flights import dataset, job
from examples.flights.display import Display, summary_table, verdict
from examples.flights.results import Outcome, compare
from mq_broker import LocalBroker
from pyspark_mq import Consumer, Producer

PUBLISH_ROWS = 10_000
READ_ROWS = 20_000


def publish(broker: LocalBroker, rows: pa.Table, display: Display) -> None:
    """Sends all rows as record batches. Returns when the broker has all of them on disk."""
    with display.step("publish"), Producer(broker.address, queue="flights", window_bytes=8 << 20) as producer:
        done = 0
        for receipt in [producer.send_batch(batch) for batch in rows.to_batches(max_chunksize=PUBLISH_ROWS)]:
            done += sum(stored for _, _, stored, _ in receipt.result(timeout=60).ranges)
            display.advance("publish", done)


def watch(query: StreamingQuery, broker: LocalBroker, kill_at_rows: int, display: Display) -> None:
    """Follows the query to its end. Kills the broker once and starts it again, when `kill_at_rows` rows are
    done.

    Raises:
        StreamingQueryException: the query failed.
    """
    killed = False
    while True:
        ended = not query.isActive
        progress = [entry for entry in query.recentProgress if entry["numInputRows"]]
        done = sum(entry["numInputRows"] for entry in progress)
        display.advance("enrich", done, f"batch {len(progress)}")
        if ended:
            query.awaitTermination()  # raises the error if the query failed
            return
        if not killed and kill_at_rows <= done:
            killed = True
            kill_and_restart(broker, display)
        time.sleep(0.1)


def kill_and_restart(broker: LocalBroker, display: Display) -> None:
    """Kills the broker without a clean stop or a flush, and starts it again."""
    display.say(f"[bold red]SIGKILL[/bold red] to the broker (pid {broker.pid}), in the middle of a batch")
    broker.kill()
    time.sleep(1)  # so that viewers see it, and the query notices that the broker is away
    started = time.monotonic()
    broker.start()
    seconds = time.monotonic() - started
    display.say(
        f"[bold green]broker is back[/bold green] (pid {broker.pid}), "
        f"recovered from its journal in {seconds:.1f} s"
    )


def read_results(broker: LocalBroker, rows: int, display: Display) -> list[pa.RecordBatch]:
    """Takes all rows out of the result queue and acknowledges them."""
    batches: list[pa.RecordBatch] = []
    done = 0
    with display.step("read"), Consumer(broker.address, queue="enriched", prefetch=2 * READ_ROWS) as consumer:
        for batch in consumer.batches(max_rows=READ_ROWS, timeout=2.0):
            batches.append(batch)
            consumer.acknowledge(batch)
            done += batch.num_rows
            display.advance("read", done)
            if done >= rows:
                break  # further rows would be duplicates; they are read below
        batches += list(consumer.batches(max_rows=READ_ROWS, timeout=0.2))
        consumer.flush(timeout=30)
    return batches


def run(
    flights: pa.Table, airlines: pa.Table, folder: pathlib.Path, console: Console, rows_per_batch: int
) -> Outcome:
    """Runs all three steps in `folder` and returns the result."""
    rows = dataset.messages(flights)
    with LocalBroker(folder / "broker") as broker, Display(console, rows.num_rows) as display:
        display.say(f"broker at {broker.address} (pid {broker.pid})")
        publish(broker, rows, display)
        display.say(f"{rows.num_rows:,} flights are durable in queue [b]flights[/b]")
        spark = job.session(folder / "spark.log")
        display.say(f"Spark {spark.version} is up")
        try:
            with display.step("enrich"):
                query = job.start(spark, broker.address, airlines, folder / "checkpoint", rows_per_batch)
                watch(query, broker, rows.num_rows // 2, display)
        finally:
            spark.stop()
        batches = read_results(broker, rows.num_rows, display)
    outcome = compare(rows.num_rows, batches)
    console.print()
    console.print(summary_table(outcome.summary))
    rates = "\n".join(
        f"{name:<8} {rows.num_rows / seconds:>9,.0f} rows/s" for name, seconds in display.seconds.items()
    )
    facts = [
        ("rows in", f"{outcome.rows_in:,}"),
        ("rows out", f"{outcome.rows_out:,}"),
        ("duplicates", str(outcome.duplicates)),
        ("lost", str(outcome.lost)),
        ("micro-batches", str(outcome.batches)),
        ("speed", rates),
        ("time", f"{sum(display.seconds.values()):.1f} s, with a killed broker and a cold Spark"),
    ]
    console.print(verdict(facts, outcome.lost == 0 and outcome.duplicates == 0))
    return outcome


def main() -> int:
    """Returns the exit code: 1 if a row was lost or doubled, otherwise 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir",
        type=pathlib.Path,
        default=pathlib.Path(".demo"),
        help="download and data (default %(default)s)",
    )
    parser.add_argument(
        "--flights",
        type=pathlib.Path,
        help="a CSV file to use instead of the download, with the same columns",
    )
    parser.add_argument(
        "--rows-per-batch", type=int, default=25_000, help="maxOffsetsPerTrigger (default %(default)s)"
    )
    options = parser.parse_args()
    console = Console()
    console.print(
        "\n[bold]pyspark-mq[/bold]: flights through a durable queue, a Spark query and a killed broker\n"
    )
    if options.flights is None:
        flights, airlines = dataset.read_archive(dataset.download(options.dir / "download"))
    else:
        flights = pyarrow.csv.read_csv(options.flights)
        airlines = pa.table({"carrier": flights["carrier"].unique(), "name": flights["carrier"].unique()})
    folder = options.dir.resolve() / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = run(flights, airlines, folder, console, options.rows_per_batch)
    return 0 if outcome.lost == 0 and outcome.duplicates == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
