"""Directories of version 0.1.0 that have been through something: the cleaner has moved rows, and a frame was
found rotten.
"""

from __future__ import annotations

import pathlib
from typing import Final

from mq_broker import LocalBroker
from pyspark_mq import Consumer
from spark_tests.compat.brokers_v1 import as_seen, broker_on, manifests
from spark_tests.compat.life_v1 import Life
from spark_tests.compat.work_v1 import Reader, columns_for, token_of
from spark_tests.support.rotten import rot
from spark_tests.support.waiting import wait_until

QUEUE: Final = "worn.out"
#: Rows of a batch, bytes of a row, batches: together two segments and a bit.
ROWS, ROW_BYTES, BATCHES = 32, 32_000, 72


def moved_in_the_journal(data: pathlib.Path) -> Life:
    """Two segments of traffic, acknowledged but for a few rows, which the cleaner has moved. Then SIGKILL:
    the moves lie in the journal.
    """
    life, broker = _wear(data, snapshot_s=3)
    _clean(life, data)
    as_seen(life, broker)
    broker.kill()
    return life


def moved_in_the_snapshot(data: pathlib.Path) -> Life:
    """The same, and a clean stop: where the moved rows are is in the snapshot."""
    life, broker = _wear(data, snapshot_s=1)
    _clean(life, data)
    before = manifests(data)
    _stir(life)
    wait_until(lambda: manifests(data) != before, 20)
    as_seen(life, broker)
    broker.stop()
    return life


def quarantined_in_the_snapshot(data: pathlib.Path) -> Life:
    """A frame rotted under the running broker: its rows were taken out, the others stayed. Then a
    clean stop.
    """
    life, broker = _rot(data)
    broker.stop()
    return life


def quarantined_in_the_journal(data: pathlib.Path) -> Life:
    """The same, killed before the snapshot that follows at once was complete: without its two files the
    directory is what that leaves.
    """
    life, broker = _rot(data)
    wait_until(lambda: len(manifests(data)) > 1, 20)
    broker.kill()
    for kind in ("manifest-*.mqm", "pack-*.mqk"):
        max((data / "snapshots").glob(kind)).unlink()
    return life


def _rot(data: pathlib.Path) -> tuple[Life, LocalBroker]:
    """A frame that a snapshot covers is damaged, and a consumer meets it."""
    broker = broker_on(data).start()
    life = Life(broker.address)
    life.call("CreateDestination", name="rotten", partitions=1)
    for batch in range(4):
        life.send(
            "rotten", 0, token_of("rotten"), 3 * batch, [f"rotten batch {batch} row {at}" for at in range(3)]
        )
    broker.stop()
    rot(data, b"rotten batch 1 row 2")
    broker.start()
    life.reach("rotten")
    with Consumer(broker.address, queue="rotten") as consumer:
        for _ in range(4):
            message = consumer.receive(timeout=20.0)
            assert message is not None
        consumer.acknowledge(message)
    life.settle("rotten")
    assert life.wire.stats("rotten").quarantined_rows == 3
    life.later("browse", "without the rotten rows", destination="rotten")
    as_seen(life, broker)
    return life, broker


def _wear(data: pathlib.Path, snapshot_s: int) -> tuple[Life, LocalBroker]:
    broker = broker_on(data, snapshot_s).start()
    life = Life(broker.address)
    life.call("CreateDestination", name=QUEUE, partitions=1)
    life.call("CreateDestination", name="worn.planned", partitions=1)
    life.send(
        "worn.planned",
        0,
        token_of("planned"),
        0,
        [f"planned {at}" for at in range(8)],
        columns=columns_for(8),
    )
    life.send("worn.planned", 0, token_of("planned"), 8, [f"also planned {at}" for at in range(6)])
    reader = life.readers["worn"] = Reader(life, "worn.planned", "worn-reader")
    reader.plan(5)
    reader.read(query="worn-query", batch=0)
    reader.asks(0, 1, "rows that a query holds were moved")
    with Consumer(broker.address, queue=QUEUE, prefetch=ROWS) as consumer:
        for batch in range(BATCHES):
            values = [f"batch {batch} row {at} ".ljust(ROW_BYTES, ".") for at in range(ROWS)]
            columns = columns_for(ROWS) if batch % 3 == 0 else {}
            life.send(QUEUE, 0, token_of("worn"), ROWS * batch, values, columns=columns)
            for at in range(ROWS):
                message = consumer.receive(timeout=20.0)
                assert message is not None
                if at not in (3, 4, 17) or batch % 9:
                    consumer.acknowledge(message)
        consumer.flush(20.0)
    life.settle(QUEUE)
    life.later("browse", "the survivors", destination=QUEUE)
    life.later("send", "other rows under the sequence of a batch whose segment is "
                       "gone", destination=QUEUE, partition=0,
               producer_id=token_of("worn"), first_sequence=ROWS, values=["x"])  # fmt: skip
    life.later(
        "send",
        "the producer goes on",
        destination=QUEUE,
        partition=0,
        producer_id=token_of("worn"),
        first_sequence=ROWS * BATCHES,
        values=["on and on"],
    )
    return life, broker


def _stir(life: Life) -> None:
    """One row more, so that a snapshot is due."""
    life.send("worn.stirred", 0, token_of("stirred"), life.stirred, ["stirred"])
    life.stirred += 1


def _clean(life: Life, data: pathlib.Path) -> None:
    """Waits until the cleaner has emptied the first segment."""
    first = sorted((data / "journal").glob("segment-*"))[0]

    def gone() -> bool:
        _stir(life)
        return not first.exists()

    wait_until(gone, 60)
