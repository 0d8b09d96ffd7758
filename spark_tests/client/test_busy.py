"""A broker that takes no further stream says so, and the application hears it: never nothing, and never
silence.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import Busy, SendOutcomeUnknown
from pyspark_mq import Consumer, Producer
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Stream, Wire, batch_of, open_consumer

WORDS = r"1 streams are open, the limit \(streams_max\) is 1: close some, or raise it"


@pytest.fixture(scope="module")
def full(module_path: pathlib.Path) -> Iterator[LocalBroker]:
    with LocalBroker(module_path / "full", streams_max=1) as broker:
        with Wire(broker.address) as wire:
            publisher = wire.publisher("orders")
            assert publisher.send(batch_of([b"one"])).receipt.rows == 1
            publisher.stream.end()
            assert not list(publisher.stream)
        yield broker


@pytest.fixture
def other(full: LocalBroker) -> Iterator[Stream]:
    """Whoever has the only stream."""
    with Wire(full.address) as wire:
        stream = open_consumer(wire, "others", 1)
        yield stream
        stream.end()
        wait_until(lambda: not list(stream))


def test_a_consumer_that_gets_no_stream_hears_why(
    full: LocalBroker, other: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(full.address, queue="orders") as consumer:
        with (
            caplog.at_level(logging.WARNING, "pyspark_mq"),
            pytest.raises(Busy, match=rf"nothing came .* refuses to deliver .*: {WORDS}"),
        ):
            consumer.receive(timeout=0.1)
        with pytest.raises(Busy, match=WORDS):
            next(consumer.batches(timeout=0.1))
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1, said
        assert "refuses to deliver and is asked again: 1 streams are open" in said[0]
        other.end()
        message = consumer.receive(timeout=10)
        assert message is not None
        assert message.value == b"one"


def test_a_producer_that_gets_no_stream_hears_why(full: LocalBroker, other: Stream) -> None:
    # Two batches at least: one alone would pass in a call of its own, which needs no stream.
    with Producer(full.address, queue="orders", send_timeout=3.0) as producer:
        receipts = [producer.send_batch(pa.record_batch({"value": [b"%d" % number]})) for number in range(3)]
        with pytest.raises((Busy, SendOutcomeUnknown), match=WORDS):
            receipts[0].result(10)
        for receipt in receipts[1:]:
            with contextlib.suppress(Busy, SendOutcomeUnknown):
                receipt.result(10)
