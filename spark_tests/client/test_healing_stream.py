"""A stream that breaks is made again: after which waits, after which errors, and for how long."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable, MqError, RunFenced
from mq_wire.v1 import admin_pb2, subscribe_pb2
from pyspark_mq import Connection
from pyspark_mq.client.backoff import Backoff
from pyspark_mq.client.healing_stream import HealingStream
from pyspark_mq.client.run import Run
from spark_tests.support.waiting import wait_until

NOBODY = "mq://127.0.0.1:9"


class Holding:
    """Takes runs, and notes what happens."""

    def __init__(self, refusal: MqError | None = None, answered: Callable[[], object] = lambda: None) -> None:
        self.refusal, self.answered = refusal, answered
        self.answers = 0
        self.errors: list[MqError | None] = []

    def requests(self, hello: admin_pb2.HelloResponse) -> subscribe_pb2.HoldRunRequest:
        if self.refusal is not None:
            raise self.refusal
        return subscribe_pb2.HoldRunRequest()

    def take(self, answer: subscribe_pb2.RunEvent) -> None:
        assert answer.run
        self.answers += 1
        self.answered()

    def broke(self, error: MqError | None) -> MqError | None:
        self.errors.append(error)
        return error


def test_waits_double_up_to_the_last() -> None:
    assert list(itertools.islice(Backoff(0.25, 1.5).waits(), 5)) == [0.25, 0.5, 1.0, 1.5, 1.5]


def test_it_is_tried_for_ever_with_growing_waits_where_nobody_is() -> None:
    waits: list[float] = []
    with Connection(NOBODY) as connection:
        stream, talk = HealingStream(connection, "HoldRun", "holding", backoff=Backoff(0.5, 2.0)), Holding()
        assert stream.serve(talk, lambda: len(waits) < 4, waits.append) is None
    assert waits == [0.5, 1.0, 2.0, 2.0]
    assert all(isinstance(error, BrokerUnavailable) for error in talk.errors)
    assert len(talk.errors) == 4


def test_an_answer_ends_a_row_of_failures(broker: LocalBroker) -> None:
    """The broker is away for two attempts in the middle."""
    waits: list[float] = []

    def is_back() -> bool:
        with suppress(BrokerUnavailable):
            return bool(connection.hello(refresh=True).cluster_id)
        return False

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            broker.start()
            wait_until(is_back)

    with Connection(broker.address) as connection:
        talk = Holding(answered=broker.kill)
        stream = HealingStream(connection, "HoldRun", "holding", backoff=Backoff(0.5, 8.0))
        assert stream.serve(talk, lambda: talk.answers < 2, pause) is None
    assert waits == [0.5, 1.0, 2.0, 0.5]


def test_an_error_for_good_is_returned(module_broker: LocalBroker) -> None:
    refusal = RunFenced("this run was replaced")
    with Connection(module_broker.address) as connection:
        talk = Holding(refusal)
        assert HealingStream(connection, "HoldRun", "holding").serve(talk) is refusal
        assert talk.errors == [refusal]
        healing = HealingStream(connection, "HoldRun", "holding", heals=(RunFenced,))
        assert healing.serve(talk, lambda: len(talk.errors) < 3, lambda _: None) is None


def test_stopped_and_cancelled_it_ends_at_once(module_broker: LocalBroker) -> None:
    held = threading.Event()
    with Connection(module_broker.address) as connection:
        stream, talk = HealingStream(connection, "HoldRun", "holding"), Holding(answered=held.set)
        thread = threading.Thread(target=stream.serve, args=(talk,))
        thread.start()
        assert held.wait(20)
        assert stream.is_open
        stream.stop()
        stream.cancel()
        thread.join(20)
        assert not thread.is_alive()
        assert not stream.is_open


def test_who_cancels_a_stream_has_not_lost_the_broker(
    module_broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Ending a run, or a query, is no outage, and no reason to go to the next address."""
    caplog.set_level(logging.INFO, "pyspark_mq")
    with Connection(f"{module_broker.address},{NOBODY}") as connection:
        run = Run(connection)
        assert run.number()
        thread = next(each for each in threading.enumerate() if each.name == "mq-run")
        run.close()
        thread.join(20)
        assert wait_until(lambda: connection._link is not None and not connection._link.users)
        assert f"mq://{connection.endpoint}" == module_broker.address
        assert connection.hello(refresh=True).cluster_id
    assert [record.getMessage() for record in caplog.records if "lost" in record.getMessage()] == []
