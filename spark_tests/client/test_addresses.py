"""Two addresses: a broker that restarts at the one while nobody is at the other costs nothing and ends
nobody's thread.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable, MqError, SessionClosed, WrongBroker
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.run import Run
from spark_tests.support.waiting import wait_until

#: The broker was once lost for good after a few of them; MQ_RESTARTS=20 takes a minute.
RESTARTS = int(os.environ.get("MQ_RESTARTS", "6"))


class Working:
    """Threads that use one connection, until they are told to stop. What ends one of them is kept."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def begin(self, work: Any) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=guarded))
        self._threads[-1].start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.fixture
def unhandled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What ended threads."""
    ended: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    yield ended
    assert not ended


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.timeout(400)
def test_restarts_at_one_of_two_addresses_cost_nothing(broker: LocalBroker, unhandled: list[Any]) -> None:
    queue = f"addresses.{uuid.uuid4().hex[:8]}"
    sent = 0
    got: set[bytes] = set()
    working = Working()
    with Connection(f"{broker.address},127.0.0.1:9") as connection:
        run = Run(connection)
        number = run.number()
        producer = Producer(queue=queue, connection=connection, send_timeout=60)
        consumer = Consumer(queue=queue, connection=connection)

        def send() -> None:
            nonlocal sent
            while not working.stop.wait(0.001):
                producer.send(b"%d" % sent)
                sent += 1

        def receive() -> None:
            while not working.stop.is_set() or len(got) < sent:
                try:
                    for batch in consumer.batches(timeout=0.2):
                        got.update(batch.column("value").to_pylist())
                        consumer.acknowledge(batch)
                except (SessionClosed, BrokerUnavailable):
                    pass  # delivered again

        def ask() -> None:
            while not working.stop.is_set():
                connection.call(
                    "DescribeDestination", admin_pb2.DescribeDestinationRequest(name=queue), retry_timeout=60
                )

        def stored_more(than: int) -> bool:
            return producer.rows_stored > than or bool(working.errors)

        for work in (send, receive, ask, ask):
            working.begin(work)
        for restart in range(RESTARTS):
            seen = producer.rows_stored
            wait_until(
                functools.partial(stored_more, seen), 60, f"nothing is stored after {restart} restarts"
            )
            assert not working.errors
            broker.kill()
            broker.start()
        working.stop.set()
        producer.flush(60)
        working.end()
        assert not working.errors
        assert len(got) == sent == producer.rows_stored
        assert run.number() == number
        assert {"mq-run", "mq-producer"} <= set(names())
        producer.close()
        with contextlib.suppress(SessionClosed):  # what came again is known
            consumer.close()
        run.close()


def test_a_channel_that_others_use_stays_open_when_one_moves_on(broker: LocalBroker) -> None:
    with (
        Connection(f"{broker.address},127.0.0.1:9") as connection,
        Producer(queue="q", connection=connection) as producer,
    ):
        producer.send(b"1").result(10)
        producer.send(b"2")
        producer.flush(10)
        link = connection._link
        assert link is not None
        link.failed = True  # as a call finds it that the broker refused at the wrong moment
        connection.interrupted(connection.endpoint)
        assert connection.endpoint == "127.0.0.1:9"
        for i in range(100):
            producer.send(b"%d" % i)
        producer.flush(10)
        assert link.users > 0


def test_a_closed_channel_is_an_absent_broker(module_broker: LocalBroker) -> None:
    with Connection(module_broker.address) as connection:
        connection.hello()
        assert connection._link is not None
        connection._link.channel.close()
        with pytest.raises(BrokerUnavailable, match="closed meanwhile"):
            connection.call(
                "DescribeDestination", admin_pb2.DescribeDestinationRequest(name="q"), retry_timeout=None
            )
        with pytest.raises(BrokerUnavailable, match="closed meanwhile"):
            connection.stream("Publish", iter(()))


def test_another_broker_at_the_other_address_is_refused_by_whoever_has_something_to_lose(
    broker: LocalBroker, module_broker: LocalBroker
) -> None:
    with Connection(f"{broker.address},{module_broker.address}") as connection:
        run = Run(connection)
        assert run.cluster_id == connection.cluster_id
        producer = Producer(queue="q", connection=connection)
        producer.send(b"1").result(10)
        broker.kill()
        with pytest.raises(WrongBroker):
            producer.send(b"2").result(20)
        wait_until(lambda: isinstance(run._error, WrongBroker), 20)
        with pytest.raises(WrongBroker, match="another broker"):
            run.number()
        fresh = Run(connection)
        assert fresh.number() > 0
        assert fresh.cluster_id == connection.cluster_id
        fresh.close()
        producer.close()  # its one failure was told


def test_an_outage_is_told_once_repeated_and_ended(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pyspark_mq")

    def told(words: str) -> list[int]:
        return [record.levelno for record in caplog.records if words in record.getMessage()]

    with Connection(broker.address) as connection, Producer(queue="q", connection=connection) as producer:
        producer.send(b"1").result(10)
        producer.send(b"2")
        producer.flush(10)
        assert told("connected to the broker") == [logging.INFO]
        run = Run(connection)
        run.number()
        broker.kill()
        wait_until(lambda: told("lost the broker at mq://"), 5)
        wait_until(lambda: told("is away since"), 20)
        broker.start()
        wait_until(lambda: told("the broker is back"), 20)
        assert told("lost the broker") == [logging.WARNING]
        assert set(told("is away since")) == {logging.WARNING}
        assert told("the broker is back") == [logging.INFO]
        run.close()


def test_a_broker_that_never_was_there_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    with Connection("mq://127.0.0.1:9") as connection:
        run = Run(connection)
        wait_until(
            lambda: any("mq://127.0.0.1:9 is away since" in record.getMessage() for record in caplog.records),
            20,
        )
        run.close()


def test_a_bug_in_a_thread_reaches_whoever_waits(
    module_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Connection(module_broker.address) as connection:
        producers = [Producer(queue=f"bugs.{number}", connection=connection) for number in range(5)]
        broken, neighbour = producers[0], producers[4]
        assert broken._gathering.publishing.stream is neighbour._gathering.publishing.stream
        monkeypatch.setattr(broken._gathering.publishing.window, "header", lambda *_, **__: 1 / 0)
        with pytest.raises(MqError, match="ZeroDivisionError"):
            broken.send(b"1").result(10)
        assert neighbour.send(b"1").result(10).offset == 0
        monkeypatch.setattr(neighbour._gathering.publishing.stream, "_pop_due", lambda _: 1 / 0)

        def send_until_it_fails() -> None:
            for _ in range(10):
                neighbour.send(b"2")
                neighbour.flush(10)

        with pytest.raises(MqError, match="ZeroDivisionError"):
            send_until_it_fails()
        for producer in producers:
            producer.close()
        run = Run(connection)
        monkeypatch.setattr(connection, "stream", lambda *_: 1 / 0)
        bugged = Run(connection)
        with pytest.raises(MqError, match="ZeroDivisionError"):
            bugged.number()
        run.close()


def test_a_consumer_says_nothing_of_a_queue_at_another_broker(
    broker: LocalBroker, module_broker: LocalBroker
) -> None:
    """That one's queue of the same name may be empty, or hold rows that nobody asked for."""
    for address in (broker.address, module_broker.address):
        with Producer(address, queue="there-and-here") as producer:
            producer.send(b"1").result(10)
    with Consumer(f"{broker.address},{module_broker.address}", queue="there-and-here") as consumer:
        assert consumer.receive(timeout=10) is not None
        broker.kill()
        with pytest.raises(WrongBroker, match="another one than this consumer"):
            list(consumer.messages(timeout=20))


def test_what_became_of_older_acknowledgements_is_not_said_of_a_newer_one(broker: LocalBroker) -> None:
    with Producer(broker.address, queue="older") as producer:
        producer.send(b"old").result(10)
    with Consumer(broker.address, queue="older") as consumer:
        old = consumer.receive(timeout=10)
        assert old is not None
        os.kill(broker.pid, signal.SIGSTOP)
        consumer.acknowledge(old)  # never confirmed
        broker.kill()
        broker.start()
        with Producer(broker.address, queue="older") as producer:
            producer.send(b"new", priority=9).result(10)
        new = consumer.receive(timeout=20)
        assert new is not None
        assert new.value == b"new"
        consumer.acknowledge(new)
        with pytest.raises(SessionClosed, match="1 acknowledged rows"):
            consumer.flush(timeout=20)
        again = consumer.receive(timeout=20)
        assert again is not None
        assert again.value == b"old"
        consumer.acknowledge(again)
