"""Named producers against a real broker: what they count, and who of two goes on."""

from __future__ import annotations

import contextlib

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import MqError, ProducerFenced, SendOutcomeUnknown, SendTimeout
from pyspark_mq import Consumer, Producer
from spark_tests.support.proxy import REQUESTS, Proxy


def received(address: str, queue: str) -> list[bytes]:
    """The values of all that is in a queue, in order of partition and offset."""
    with Consumer(address, queue=queue) as consumer:
        found = [(m.partition, m.offset, m.value) for m in consumer.messages(timeout=0.5)]
    return [value for _, _, value in sorted(found)]


def test_a_name_tells_what_it_has_stored_and_fences_its_older_self(module_broker: LocalBroker) -> None:
    queue = "named-0"
    name = f"loader-{queue}"
    first = Producer(module_broker.address, queue=queue, name=name)
    assert first.stored == {}
    for i in range(3):
        first.send(b"%d" % i, partition=1).result(10)
    with Producer(module_broker.address, queue=queue, name=name) as second:
        assert second.stored == {1: (3, 2)}
        assert second.send(b"3", partition=1).result(10).offset == 3
        with pytest.raises(ProducerFenced):
            first.send(b"zombie", partition=1).result(10)
        with pytest.raises(ProducerFenced):
            first.send(b"zombie", partition=1)
        first.close()
    assert received(module_broker.address, queue) == [b"0", b"1", b"2", b"3"]


def test_a_name_counts_no_row_behind_a_gap(module_broker: LocalBroker) -> None:
    """What a program that goes on behind `stored` has lost or doubled otherwise."""
    queue = "named-1"
    name = f"loader-{queue}"
    values = [b"m%d" % number for number in range(10)]
    with Proxy(module_broker.address) as proxy:
        first = Producer(proxy.address, queue=queue, name=name, send_timeout=1.5, linger_ms=0)
        for value in values[:3]:
            first.send(value, partition=0).result(10)
        proxy.silence(REQUESTS)
        lost, *behind = [first.send(value, partition=0) for value in values[3:6]]
        for receipt in (lost, *behind):
            with pytest.raises((SendOutcomeUnknown, SendTimeout)):
                receipt.result(10)
        proxy.heal()
        proxy.cut()
        with pytest.raises(SendOutcomeUnknown, match="make a new producer with this name"):
            first.send(values[6], partition=0).result(10)
        with contextlib.suppress(MqError):
            first.close()
    with Producer(module_broker.address, queue=queue, name=name) as second:
        stored, _ = second.stored[0]
        for value in values[stored:]:
            second.send(value, partition=0)
    assert received(module_broker.address, queue) == values
