"""What a large load does to one broker: `make load`. Many messages waiting, many destinations, many idle
consumers.

Each part has a broker process of its own. Values of 100 bytes, a sync before every receipt. 100 million
messages take 12 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from benchmarks import data, idle
from benchmarks.clients import BATCH_ROWS, PREFETCH_ROWS, WINDOW_BYTES, anonymous_mib
from benchmarks.figures import Figure, table
from mq_broker import LocalBroker
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection, Consumer, Producer

#: The publish rate is taken per section, so that the first and the last ones can be compared.
SECTIONS = 20
QUEUE = "waiting"
#: What a message takes in the journal, about: value, offset in the record batch, its share of headers.
STORED_BYTES = data.VALUE_BYTES + 12
IDLE_SECONDS = 30
#: Client processes of the part whose consumers share connections.
CROWD_PROCESSES = 8
#: So often in the part with many destinations that what snapshots cost the turns shows.
SNAPSHOT_S = 2


def say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def waiting(folder: pathlib.Path, messages: int, batch: pa.RecordBatch, kind: str) -> Iterator[Figure]:
    """Fills one queue, restarts the broker in both ways, and drains it; every message is counted."""
    free = shutil.disk_usage(folder).free
    if free < messages * STORED_BYTES + (1 << 30):
        raise SystemExit(
            f"{messages:,} messages need {messages * STORED_BYTES >> 30} GiB, {folder} has {free >> 30}: "
            f"--messages or --dir"
        )
    with LocalBroker(folder / kind, start_timeout=120) as broker:
        rates, memory = fill(broker, messages, batch)
        yield Figure(f"{kind}: publish", "rows/s", rounds=rates)
        fifth = max(1, len(rates) // 5)
        ratio = statistics.median(rates[-fifth:]) / statistics.median(rates[:fifth])
        yield Figure(f"{kind}: publish rate at the end to the start", "", 0.8, rounds=[ratio])
        broker.kill()
        yield Figure(f"{kind}: restart after SIGKILL", "s", 10, at_most=True, rounds=[clocked(broker.start)])
        broker.stop(timeout=120)
        yield Figure(
            f"{kind}: restart after a clean stop", "s", 10, at_most=True, rounds=[clocked(broker.start)]
        )
        memory.append(anonymous_mib(broker.pid))
        rate = drain(broker, messages, memory)
        yield Figure(f"{kind}: drained and acknowledged", "rows/s", 1_000_000, rounds=[rate])
        yield Figure(
            f"{kind}: broker memory at most", "MiB", 1024, at_most=True, note="RssAnon", rounds=[max(memory)]
        )


def clocked(what: Callable[[], object]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def fill(broker: LocalBroker, messages: int, batch: pa.RecordBatch) -> tuple[list[float], list[float]]:
    """Publishes; returns rows a second of each section and memory in MiB behind each."""
    rates, memory = [], []
    batches = messages // SECTIONS // batch.num_rows
    with Producer(broker.address, queue=QUEUE, window_bytes=WINDOW_BYTES) as producer:
        for section in range(SECTIONS):
            started = time.perf_counter()
            for _ in range(batches):
                producer.send_batch(batch)
            producer.flush(timeout=120)
            rates.append(batches * batch.num_rows / (time.perf_counter() - started))
            memory.append(anonymous_mib(broker.pid))
            say(
                f"{(section + 1) * batches * batch.num_rows:,} waiting, {rates[-1]:,.0f} rows/s, "
                f"{memory[-1]:.0f} MiB"
            )
    return rates, memory


def drain(broker: LocalBroker, messages: int, memory: list[float]) -> float:
    """Takes and acknowledges everything; returns rows a second. Fails unless exactly `messages` came."""
    taken = 0
    started = time.perf_counter()
    with Consumer(
        broker.address, queue=QUEUE, prefetch=PREFETCH_ROWS, max_unacknowledged=4 * PREFETCH_ROWS
    ) as consumer:
        for batch in consumer.batches(max_rows=100_000, timeout=10.0):
            consumer.acknowledge(batch)
            taken += batch.num_rows
            if taken % 5_000_000 < batch.num_rows:
                memory.append(anonymous_mib(broker.pid))
            if taken >= messages:
                break
        consumer.flush(timeout=60)
        rate = taken / (time.perf_counter() - started)
    depth = stats(broker, QUEUE).depth_rows
    if taken != messages or depth:
        raise SystemExit(
            f"{messages:,} messages were acknowledged to the producer, {taken:,} came, {depth:,} are left"
        )
    return rate


def stats(broker: LocalBroker, queue: str) -> admin_pb2.DestinationStats:
    with Connection(broker.address) as connection:
        return connection.call("Stats", admin_pb2.StatsRequest(destination=queue)).destination  # type: ignore[no-any-return]


def destinations(folder: pathlib.Path, count: int) -> Iterator[Figure]:
    """Many queues: made, written to, listed, through a snapshot and a restart; one client is clocked."""
    with (
        LocalBroker(folder / "destinations", snapshot_interval_s=SNAPSHOT_S, start_timeout=120) as broker,
        Connection(broker.address) as connection,
    ):

        def create() -> None:
            for number in range(count):
                connection.call(
                    "CreateDestination",
                    admin_pb2.CreateDestinationRequest(name=f"load.{number}", partitions=4),
                )

        yield Figure(f"{count:,} destinations: created", "/s", rounds=[count / clocked(create)])
        laps = []
        with Producer(broker.address, queue="probe") as probe:
            for number in range(count):
                with Producer(queue=f"load.{number}", connection=connection) as producer:
                    producer.send(b"x").result(timeout=60)
                if number % 5 == 0:
                    laps.append(1000 * clocked(lambda: probe.send(b"x").result(timeout=60)))
        laps.sort()
        yield Figure(
            f"{count:,} destinations: a durable send, median", "ms", rounds=[statistics.median(laps)]
        )
        yield Figure(
            f"{count:,} destinations: a durable send, slowest of {len(laps)}",
            "ms",
            1000,
            at_most=True,
            rounds=[laps[-1]],
        )
        listed = 1000 * clocked(
            lambda: connection.call("ListDestinations", admin_pb2.ListDestinationsRequest(prefix="load."))
        )
        yield Figure(f"{count:,} destinations: listed", "ms", rounds=[listed])
        time.sleep(4 * SNAPSHOT_S)  # until the last snapshot is written
        yield Figure(
            f"{count:,} destinations: idle broker",
            "% of a core",
            5,
            at_most=True,
            rounds=[idle.busy_percent(broker.pid, 10)],
        )
        yield Figure(
            f"{count:,} destinations: broker memory",
            "MiB",
            1024,
            at_most=True,
            rounds=[anonymous_mib(broker.pid)],
        )
        broker.kill()
        yield Figure(
            f"{count:,} destinations: restart after SIGKILL",
            "s",
            10,
            at_most=True,
            rounds=[clocked(broker.start)],
        )


def idle_consumers(folder: pathlib.Path, count: int) -> Iterator[Figure]:
    """Connected consumers of queues without messages; then one message to each, to see that they are
    alive.
    """
    with LocalBroker(folder / "idle") as broker, idle.Crowd(broker.address, count) as crowd:
        busy = idle.busy_percent(broker.pid, IDLE_SECONDS)
        yield Figure(f"{count:,} idle consumers: broker", "% of a core", 5, at_most=True, rounds=[busy])
        yield Figure(
            f"{count:,} idle consumers: broker memory",
            "MiB",
            1024,
            at_most=True,
            rounds=[anonymous_mib(broker.pid)],
        )
        yield Figure(
            f"{count:,} idle consumers: all of them reached", "s", rounds=[clocked(crowd.reach_everybody)]
        )


def shared_consumers(folder: pathlib.Path, count: int) -> Iterator[Figure]:
    """As `idle_consumers`, with the consumers of a process on one connection, which share a stream."""
    name = f"{count:,} consumers in {CROWD_PROCESSES} processes"
    with LocalBroker(folder / "shared") as broker:
        started = time.perf_counter()
        with idle.Crowd(broker.address, count, -(-count // CROWD_PROCESSES), shared=True) as crowd:
            yield Figure(f"{name}: connected", "s", rounds=[time.perf_counter() - started])
            yield Figure(
                f"{name}: threads of the broker",
                "threads",
                150,
                at_most=True,
                rounds=[idle.threads(broker.pid)],
            )
            yield Figure(
                f"{name}: threads of a process",
                "threads",
                50,
                at_most=True,
                rounds=[max(idle.threads(pid) for pid in crowd.pids)],
            )
            busy = idle.busy_percent(broker.pid, IDLE_SECONDS)
            yield Figure(f"{name}: broker", "% of a core", 5, at_most=True, rounds=[busy])
            reached = clocked(crowd.reach_everybody)
            yield Figure(f"{name}: all of them reached", "s", rounds=[reached])
            yield Figure(
                f"{name}: broker memory",
                "MiB",
                400,
                at_most=True,
                note="RssAnon",
                rounds=[anonymous_mib(broker.pid)],
            )


def parts(options: argparse.Namespace, folder: pathlib.Path) -> Iterator[Figure]:
    chosen = options.only
    if chosen in (None, "uniform"):
        yield from waiting(folder, options.messages, data.batch(BATCH_ROWS), "uniform")
        shutil.rmtree(folder / "uniform", ignore_errors=True)
    if chosen in (None, "priorities"):
        yield from waiting(folder, options.messages, data.prioritised(BATCH_ROWS), "priorities")
        shutil.rmtree(folder / "priorities", ignore_errors=True)
    if chosen in (None, "destinations"):
        yield from destinations(folder, options.destinations)
    if chosen in (None, "idle"):
        yield from idle_consumers(folder, options.consumers)
    if chosen in (None, "shared"):
        yield from shared_consumers(folder, options.shared_consumers)


def main() -> int:
    """Returns the exit code: 1 where a figure misses its floor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--messages", type=int, default=100_000_000, help="that wait in one queue (default %(default)s)"
    )
    parser.add_argument("--destinations", type=int, default=10_000, help="default %(default)s")
    parser.add_argument("--consumers", type=int, default=1_000, help="idle ones (default %(default)s)")
    parser.add_argument(
        "--shared-consumers", type=int, default=8_000, help="on few connections (default %(default)s)"
    )
    parser.add_argument(
        "--only",
        choices=["uniform", "priorities", "destinations", "idle", "shared"],
        help="one part of it",
    )
    parser.add_argument(
        "--dir", type=pathlib.Path, help="where the journals go (default: a temporary folder)"
    )
    options = parser.parse_args()
    options.messages -= options.messages % (SECTIONS * BATCH_ROWS)
    folder = options.dir or pathlib.Path(tempfile.mkdtemp(prefix="mq-load-"))
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Figure] = []
    try:
        for figure in parts(options, folder):
            found.append(figure)
            say(f"{figure.name}: {figure.median:,.2f} {figure.unit}")
    finally:
        if options.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n")
    print(table(found))
    return 0 if all(figure.good for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
