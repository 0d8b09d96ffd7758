"""Bytes that the device does not give back any more: the broker lives, and everybody else gets theirs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable
from pyspark_mq import Consumer, Producer
from spark_tests.faults.tracer import Injection, TracedBroker, why_no_tracer

pytestmark = [pytest.mark.faults]

_ROWS = 2000
_REFUSED = r"segment-0000000001\.mqj: .*cannot be read from the device.*ddrescue"


def test_rows_that_cannot_be_read_are_set_aside(tmp_path: pathlib.Path) -> None:
    """A mapped file that has become shorter is as one with bad sectors: touching them kills a process. It is
    not the file in hand: the broker would end when that is cut.
    """
    with LocalBroker(tmp_path / "broker", segment_bytes=32 << 20, default_partitions=1) as broker:
        _send(broker, "first", b"1")
        _send(broker, "second", b"2")
        pid = broker.pid
        with Consumer(broker.address, queue="first", prefetch=1) as consumer:
            assert consumer.receive(30) is not None  # the segment is mapped now, in its full length
        journal = tmp_path / "broker" / "journal"
        while len(segments := sorted(journal.glob("segment-*"))) == 1:
            _send(broker, "third", b"3")
        segment = segments[0]
        os.truncate(segment, 3 << 20)  # in the middle of the second
        assert _received(broker, "second") < _ROWS
        assert _received(broker, "first") == _ROWS
        assert broker.running
        assert broker.pid == pid
        assert "cannot be read from the device" in broker.stderr()


@pytest.mark.skipif(bool(why_no_tracer()), reason=why_no_tracer())
def test_a_journal_that_cannot_be_read_refuses_the_start(tmp_path: pathlib.Path) -> None:
    """The kernel says of each map that is read in that it cannot. Without asking, the first touch would kill
    the process.
    """
    unreadable = Injection(("madvise",), "error=EFAULT")
    with contextlib.closing(
        TracedBroker(tmp_path / "broker", segment_bytes=32 << 20, default_partitions=1)
    ) as broker:
        broker.start()
        with Producer(broker.address, queue="first") as producer:
            producer.send_batch(pa.record_batch({"value": [b"1" * 1000] * _ROWS})).result(30)
        broker.kill()
        broker.injection = unreadable
        with pytest.raises(BrokerUnavailable, match=_REFUSED):
            broker.start()
        assert broker.log is not None
        assert broker.log.hits
        for command in ("verify", "repair"):
            mq = [sys.executable, "-m", "mq_broker.console", command, str(tmp_path / "broker")]
            tool = subprocess.run(
                ["strace", *unreadable.flags(os.devnull), *mq], capture_output=True, text=True, check=False
            )
            assert tool.returncode == 2
            assert re.search(_REFUSED, tool.stderr)
        broker.injection = None
        broker.start()
        assert _received(broker, "first") == _ROWS


def _send(broker: LocalBroker, queue: str, value: bytes) -> None:
    with Producer(broker.address, queue=queue) as producer:
        producer.send_batch(pa.record_batch({"value": [value * 1000] * _ROWS})).result(30)


def _received(broker: LocalBroker, queue: str) -> int:
    with Consumer(broker.address, queue=queue) as consumer:
        return sum(batch.num_rows for batch in consumer.batches(timeout=2.0))
