"""A real disk that is full: publishes are refused with a word, consuming and acknowledging go on, and
everything heals by itself.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import sys

import numpy as np
import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import SendOutcomeUnknown, SendTimeout, StoreFull
from mq_wire.limits import TOKEN_BYTES
from mq_wire.v1 import produce_pb2
from pyspark_mq import Connection, Consumer, Producer
from spark_tests.faults.volume import Volume, why_no_volume
from spark_tests.oracle.judge import check
from spark_tests.oracle.marked import ids_of, rows_of, values_of
from spark_tests.support.crew.actor import PATIENCE_S, World
from spark_tests.support.crew.load import Load, judge, linger
from spark_tests.support.crew.members import ALONE, SHARED
from spark_tests.support.crew.receivers import drain
from spark_tests.support.crew.senders import BatchSender
from spark_tests.support.seeds import seeded, session_seed
from spark_tests.support.waiting import wait_until

_REFUSAL = (
    r"refused for .* is not stored: the disk has \d+ bytes free, a journal segment takes \d+ .*: "
    r"consume and acknowledge"
)
ROUNDS = int(os.environ.get("MQ_FAULT_ROUNDS", "0")) // 10
#: Does not fit into what is left of a segment that had no room for a batch of rows.
_LARGE_BYTES = 1 << 20
#: Small enough to stay one batch on the wire, with one outcome.
_BATCH_ROWS = 1000

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_volume()), reason=why_no_volume()),
]


@pytest.mark.timeout(180)
def test_a_full_disk_refuses_publishes_and_heals_by_consuming(tmp_path: pathlib.Path) -> None:
    """With the snapshot settings that everybody has."""
    with (
        Volume(tmp_path, 192 << 20) as volume,
        LocalBroker(volume.path / "broker", segment_bytes=32 << 20) as broker,
    ):
        world = World(broker.address, seeded("full"))
        stored = _fill(world)
        _staged_rows_are_refused(world)
        _single_messages_are_refused(world)
        waiting = BatchSender(world, ALONE, 3)
        waiting.start()
        _consume(world, rows=stored // 4)
        assert world.stats(SHARED).depth_rows == stored - stored // 4
        drain(world, SHARED)
        wait_until(
            lambda: waiting.progress > 20 * _BATCH_ROWS, PATIENCE_S, "the sender that waited does not heal"
        )
        world.stopping.set()
        waiting.join(PATIENCE_S)
        drain(world, ALONE)
        assert not world.stats(SHARED).depth_rows
    report = check(world.history)
    sys.stdout.write(f"MQ_SEED={session_seed()}: {report}\n")
    assert not report.wrong, str(report)
    assert report.ok == stored + waiting.progress


@pytest.mark.timeout(300)
def test_a_full_disk_is_emptied_by_single_rows_staged_sets_and_starts(tmp_path: pathlib.Path) -> None:
    """Every acknowledgement is a turn of its own, and processes come and go: none of it may use up what is
    left.
    """
    with Volume(tmp_path, 128 << 20) as volume:
        staged = produce_pb2.StagedSet(
            token=secrets.token_bytes(TOKEN_BYTES), epoch=1, query_id="full", run_id="run"
        )
        with LocalBroker(volume.path / "broker", segment_bytes=32 << 20) as broker:
            world = World(broker.address, seeded("full/single"))
            with Producer(world.address, queue=SHARED, staged=staged) as producer:
                producer.send_batch(pa.record_batch({"value": [bytes(1000)] * _BATCH_ROWS})).result(
                    PATIENCE_S
                )
            stored = left = _fill(world)
        for life in range(8):
            with (
                LocalBroker(volume.path / "broker", segment_bytes=32 << 20) as broker,
                Connection(broker.address) as connection,
            ):
                if life == 4:
                    discarded = connection.call(
                        "DiscardStaged", produce_pb2.DiscardStagedRequest(tokens=[staged.token])
                    )
                    assert discarded.rows == _BATCH_ROWS
                connection.call("TakeEpoch", produce_pb2.TakeEpochRequest())
                left -= _take_single(broker.address, 200)
                if life % 2:
                    broker.kill()
        with LocalBroker(volume.path / "broker", segment_bytes=32 << 20) as broker:
            world.address = broker.address
            drain(world, SHARED)
            with Producer(broker.address, queue=ALONE, send_timeout=PATIENCE_S) as producer:
                producer.send(b"x").result(PATIENCE_S)
            assert stored > left > 0
            assert not world.stats(SHARED).depth_rows


def _take_single(address: str, rows: int) -> int:
    with Consumer(address, queue=SHARED, prefetch=1) as consumer:
        for _ in range(rows):
            message = consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            consumer.acknowledge(message)
            consumer.flush(PATIENCE_S)
    return rows


@pytest.mark.skipif(not ROUNDS, reason="takes a while: make faults")
@pytest.mark.timeout(240 + 30 * ROUNDS)
def test_a_disk_that_others_have_filled_stops_nobody_for_good(tmp_path: pathlib.Path) -> None:
    """Not a byte is free, under load; then there is room again."""
    rng = seeded("full/others")
    settings = {"segment_bytes": 32 << 20, "snapshot_bytes": 1 << 20, "run_grace_s": 5}
    with Volume(tmp_path, 512 << 20) as volume, LocalBroker(volume.path / "broker", **settings) as broker:
        world = World(broker.address, rng)
        load = Load(world)
        try:
            load.start()
            load.wait_for_everybody()
            for _ in range(ROUNDS):
                ballast = volume.path / "ballast"
                _take_all_room(ballast)
                _wait_until_refused(world)
                load.healthy()
                linger(rng.uniform(0, 1))
                ballast.unlink()
                load.wait_for_everybody()
            load.finish()
        finally:
            world.stopping.set()
        sys.stdout.write(f"{judge(world, broker, f'MQ_SEED={session_seed()}, full')}\n")


def _fill(world: World) -> int:
    """Sends until the broker refuses and goes on to refuse; returns how many rows it took."""
    rows, more = 0, _fill_once(world, 0)
    while (
        more > rows
    ):  # the first snapshot tells how much room snapshots need, which may be less than was thought
        rows, more = more, _fill_once(world, more)
    return rows


def _fill_once(world: World, rows: int) -> int:
    """Goes on behind so many rows."""
    # A busy machine takes its time for a new segment; too short a patience might also end in the very moment
    # of an attempt.
    with Producer(world.address, queue=SHARED, send_timeout=3.5) as producer:
        while True:
            ids = ids_of(1, range(rows, rows + _BATCH_ROWS))
            world.history.attempted(ids)
            priorities = np.full(_BATCH_ROWS, 4)
            batch = pa.record_batch(
                {"value": values_of(ids, priorities), "partition": np.zeros(_BATCH_ROWS, np.int64)}
            )
            receipt = producer.send_batch(batch)
            try:
                [(partition, base, _, _)] = receipt.result(PATIENCE_S).ranges
            except StoreFull:
                break
            assert base is not None
            world.history.acknowledged(ids, SHARED, partition, base + np.arange(_BATCH_ROWS))
            rows += _BATCH_ROWS
        world.history.refused(ids)
        with pytest.raises(StoreFull, match=_REFUSAL):
            receipt.result(0)
    return rows


def _staged_rows_are_refused(world: World) -> None:
    staged = produce_pb2.StagedSet(
        token=secrets.token_bytes(TOKEN_BYTES), epoch=1, query_id="full", run_id="run"
    )
    producer = Producer(world.address, queue=SHARED, send_timeout=1.7, staged=staged)
    receipt = producer.send_batch(pa.record_batch({"value": [bytes(_LARGE_BYTES)]}))
    with pytest.raises(StoreFull, match=_REFUSAL):
        receipt.result(PATIENCE_S)
    producer.close(0)


def _single_messages_are_refused(world: World) -> None:
    with (
        Producer(world.address, queue=SHARED, send_timeout=1.7) as producer,
        pytest.raises(StoreFull, match=_REFUSAL),
    ):
        producer.send(bytes(_LARGE_BYTES)).result(PATIENCE_S)


def _consume(world: World, rows: int) -> None:
    """Takes and acknowledges exactly so many."""
    with Consumer(world.address, queue=SHARED, prefetch=1000) as consumer:
        left = rows
        while left:
            began = world.history.stamp()
            batch = next(consumer.batches(min(left, 1000), timeout=PATIENCE_S))
            read = rows_of(batch)
            world.history.read(SHARED, read, began)
            consumer.acknowledge(batch)
            consumer.flush(PATIENCE_S)
            world.history.confirmed(SHARED, read)
            left -= len(read)


def _take_all_room(ballast: pathlib.Path) -> None:
    with ballast.open("wb") as file:
        size = 0
        for step in (1 << 20, 1 << 12):
            while True:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                except OSError:
                    break
                size += step


def _wait_until_refused(world: World) -> None:
    """Others send as well, so sooner or later there is no segment left."""

    def refused() -> bool:
        with Producer(
            world.address, queue="full.probe", send_timeout=0.5, connect_timeout=PATIENCE_S
        ) as producer:
            try:
                producer.send(b"x" * 1000).result(PATIENCE_S)
            except StoreFull:
                return True
            except (SendTimeout, SendOutcomeUnknown):
                pass  # a busy machine
        return False

    wait_until(refused, PATIENCE_S, "publishes are never refused")
