"""Bytes that the device does not give back any more: the broker lives, and everybody else gets theirs."""

from __future__ import annotations

import os
import pathlib

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from pyspark_mq import Consumer, Producer

pytestmark = [pytest.mark.faults]

_ROWS = 2000


def test_rows_that_cannot_be_read_are_set_aside(tmp_path: pathlib.Path) -> None:
    """A mapped file that has become shorter is as one with bad sectors: touching them kills a process."""
    with LocalBroker(tmp_path / "broker", segment_bytes=32 << 20, default_partitions=1) as broker:
        for queue, value in (("first", b"1"), ("second", b"2")):
            with Producer(broker.address, queue=queue) as producer:
                producer.send_batch(pa.record_batch({"value": [value * 1000] * _ROWS})).result(30)
        pid = broker.pid
        with Consumer(broker.address, queue="first", prefetch=1) as consumer:
            assert consumer.receive(30) is not None  # the segment is mapped now, in its full length
        (segment,) = (tmp_path / "broker" / "journal").glob("segment-*")
        os.truncate(segment, 3 << 20)  # in the middle of the second
        assert _received(broker, "second") < _ROWS
        assert _received(broker, "first") == _ROWS
        assert broker.running
        assert broker.pid == pid
        assert "cannot be read from the device" in broker.stderr()


def _received(broker: LocalBroker, queue: str) -> int:
    with Consumer(broker.address, queue=queue) as consumer:
        return sum(batch.num_rows for batch in consumer.batches(timeout=2.0))
