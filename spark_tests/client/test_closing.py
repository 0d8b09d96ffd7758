"""What is said of messages that are not answered when a producer is closed, and of copies."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import uuid

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import ClientClosed, SendOutcomeUnknown
from pyspark_mq import Consumer, Producer


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


def test_closing_says_what_is_true_afterwards(broker: LocalBroker, queue: str) -> None:
    producer = Producer(broker.address, queue=queue)
    producer.send(b"first").result(20)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        receipt = producer.send(b"second")
        with pytest.raises(SendOutcomeUnknown, match=r"does not try them any more.*not known") as told:
            producer.close(timeout=0.2)
        assert "again" not in str(told.value)
        with pytest.raises(ClientClosed):
            receipt.result(10)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_copy_is_refused_and_leaves_the_producer_open(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue) as producer:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"a producer cannot be copied or pickled.*in each process"):
                copied(producer)
        assert producer.send(b"fine").result(20).offset == 0
    with (
        Consumer(module_broker.address, queue=queue) as consumer,
        pytest.raises(TypeError, match="a consumer cannot be copied"),
    ):
        copy.copy(consumer)
