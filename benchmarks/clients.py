"""Producer and Consumer against one broker process: throughput, one at a time, priorities, memory."""

from __future__ import annotations

import itertools
import pathlib
import statistics
import time
from collections.abc import Iterator

import pyarrow as pa

from benchmarks import data
from benchmarks.figures import Figure, measure
from mq_broker import LocalBroker
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection, Consumer, Producer

BATCH_ROWS = 20_000
WINDOW_BYTES = 16 << 20
PREFETCH_ROWS = 400_000
MESSAGES_IN_MEMORY_TEST = 20_000_000

_names = (f"bench-{number}" for number in itertools.count())


def publish(address: str, queue: str, rows: int, batch: pa.RecordBatch) -> float:
    """Sends at least `rows` rows and waits until all are durable; returns rows a second."""
    with Producer(address, queue=queue, window_bytes=WINDOW_BYTES) as producer:
        producer.send_batch(batch).result(timeout=60)
        batches = -(-rows // batch.num_rows)
        sent: int = batches * batch.num_rows
        started = time.perf_counter()
        for _ in range(batches):
            producer.send_batch(batch)
        producer.flush(timeout=120)
        return sent / (time.perf_counter() - started)


def drop(address: str, prefix: str) -> None:
    """Deletes the queues whose names begin with `prefix`, so that one round leaves nothing to the next."""
    with Connection(address) as connection:
        listed = connection.call("ListDestinations", admin_pb2.ListDestinationsRequest(prefix=prefix))
        for destination in listed.destinations:
            connection.call("DeleteDestination", admin_pb2.DeleteDestinationRequest(name=destination.name))


def publish_batches(broker: LocalBroker, rows: int) -> float:
    """Record batches of one producer process, rows a second."""
    queue = next(_names)
    rate = publish(broker.address, queue, rows, data.batch(BATCH_ROWS))
    drop(broker.address, queue)
    return rate


def send_messages(broker: LocalBroker, rows: int) -> float:
    """One send() a message, asynchronous, messages a second until all are durable."""
    queue, value = next(_names), bytes(data.VALUE_BYTES)
    with Producer(broker.address, queue=queue, window_bytes=WINDOW_BYTES) as producer:
        producer.send(value).result(timeout=60)
        started = time.perf_counter()
        send = producer.send
        for _ in range(rows):
            send(value)
        producer.flush(timeout=120)
        rate = rows / (time.perf_counter() - started)
    drop(broker.address, queue)
    return rate


def send_one_by_one(broker: LocalBroker, rows: int, medians_ms: list[float]) -> float:
    """One durable send after the other, messages a second. Adds to `medians_ms` what half of them took at
    most.
    """
    queue, value = next(_names), bytes(data.VALUE_BYTES)
    with Producer(broker.address, queue=queue) as producer:
        producer.send(value).result(timeout=60)
        taken = []
        started = last = time.perf_counter()
        for _ in range(rows):
            producer.send(value).result(timeout=60)
            now = time.perf_counter()
            taken.append(now - last)
            last = now
        rate = rows / (last - started)
        medians_ms.append(statistics.median(taken) * 1000)
    drop(broker.address, queue)
    return rate


def _taken(consumer: Consumer, rows: int) -> Iterator[pa.RecordBatch]:
    taken = 0
    for batch in consumer.batches(max_rows=100_000, timeout=10.0):
        yield batch
        taken += batch.num_rows
        if taken >= rows:
            return


def consume_batches(broker: LocalBroker, rows: int, batch: pa.RecordBatch) -> float:
    """A backlog taken as record batches, each acknowledged, until the broker has confirmed all: rows a
    second.
    """
    queue = next(_names)
    publish(broker.address, queue, rows - batch.num_rows, batch)
    with Consumer(
        broker.address, queue=queue, prefetch=PREFETCH_ROWS, max_unacknowledged=4 * PREFETCH_ROWS
    ) as consumer:
        started = time.perf_counter()
        for delivered in _taken(consumer, rows):
            consumer.acknowledge(delivered)
        consumer.flush(timeout=60)
        rate = rows / (time.perf_counter() - started)
    drop(broker.address, queue)
    return rate


def iterate_messages(broker: LocalBroker, rows: int) -> float:
    """A backlog taken message by message, acknowledged by the thousand: messages a second."""
    queue = next(_names)
    publish(broker.address, queue, rows - BATCH_ROWS, data.batch(BATCH_ROWS))
    with Consumer(
        broker.address, queue=queue, prefetch=PREFETCH_ROWS, max_unacknowledged=4 * PREFETCH_ROWS
    ) as consumer:
        started = time.perf_counter()
        in_hand = []
        for number, message in enumerate(consumer, 1):
            in_hand.append(message)
            if len(in_hand) == 1000:
                consumer.acknowledge(in_hand)
                in_hand = []
            if number == rows:
                break
        consumer.acknowledge(in_hand)
        consumer.flush(timeout=60)
        rate = rows / (time.perf_counter() - started)
    drop(broker.address, queue)
    return rate


def anonymous_mib(pid: int) -> float:
    """Memory of a process that is its own, in MiB: RssAnon. Mapped file pages count in RSS too, but belong to
    the page cache.
    """
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/{pid}/status has no RssAnon")


def memory(folder: pathlib.Path, rounds: int) -> Figure:
    """What the broker holds while 20 million messages wait."""
    figure = Figure("broker memory, 20 M messages (2 GB) waiting", "MiB", 500, at_most=True, note="RssAnon")
    with LocalBroker(folder / "memory") as broker:
        publish(broker.address, "waiting", MESSAGES_IN_MEMORY_TEST - BATCH_ROWS, data.batch(BATCH_ROWS))
        figure.rounds += [anonymous_mib(broker.pid) for _ in range(rounds)]
    return figure


def figures(folder: pathlib.Path, rounds: int, scale: float) -> Iterator[Figure]:
    """Measures everything; `scale` shrinks the counts for a quick look."""

    def rows(full: int) -> int:
        return max(2 * BATCH_ROWS, int(full * scale) // BATCH_ROWS * BATCH_ROWS)

    plain, mixed = data.batch(BATCH_ROWS), data.prioritised(BATCH_ROWS)
    with LocalBroker(folder / "clients") as broker:
        figure = Figure("publish, record batches", "rows/s", 2_000_000)
        yield measure(figure, rounds, lambda: publish_batches(broker, rows(6_000_000)))
        figure = Figure("publish, send() per message", "messages/s", 300_000)
        yield measure(figure, rounds, lambda: send_messages(broker, rows(600_000)))
        figure = Figure("publish, one durable send at a time", "messages/s", 2_000)
        medians: list[float] = []
        yield measure(figure, rounds, lambda: send_one_by_one(broker, int(3_000 * scale) + 100, medians))
        yield Figure("... of which half within", "ms", 0.5, at_most=True, rounds=medians[1:])
        figure = Figure("consume with acknowledgement, record batches", "rows/s", 3_000_000)
        yield measure(figure, rounds, lambda: consume_batches(broker, rows(4_000_000), plain))
        figure = Figure("consume with acknowledgement, message by message", "messages/s", 500_000)
        yield measure(figure, rounds, lambda: iterate_messages(broker, rows(1_000_000)))
        figure = Figure("consume, ten random priorities, 1 M backlog", "rows/s", 1_000_000)
        yield measure(figure, rounds, lambda: consume_batches(broker, rows(1_000_000), mixed))
    if scale >= 1:
        yield memory(folder, rounds)
