"""Nothing came: said where a broker was asked and had nothing, and nowhere else."""

from __future__ import annotations

import os
import signal
import threading
import uuid
import warnings

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import BrokerUnavailable, DestinationRecreated, SessionClosed, UnknownDestination
from mq_wire.v1 import admin_pb2, subscribe_pb2
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.asking import Asks
from pyspark_mq.client.sessions import Session
from spark_tests.support.waiting import wait_until


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


def fill(address: str, queue: str, rows: int) -> None:
    with Producer(address, queue=queue) as producer:
        producer.send_batch(
            pa.table({"value": [b"%d" % i for i in range(rows)], "partition": [0] * rows})
        ).result(20)


def described(address: str, queue: str) -> admin_pb2.DestinationStats:
    with Connection(address) as connection:
        return connection.call("Stats", admin_pb2.StatsRequest(destination=queue)).destination  # type: ignore[no-any-return]


# -- a broker that is away ---------------------------------------------------------------------------------


def test_batches_do_not_end_when_the_broker_is_killed(broker: LocalBroker, queue: str) -> None:
    fill(broker.address, queue, 5000)
    address, taken = broker.address, 0
    with Consumer(address, queue=queue, prefetch=100) as consumer:
        batches = consumer.batches(max_rows=100, timeout=1.0)
        while taken < 1000:
            taken += next(batches).num_rows
        broker.kill()
        with pytest.raises(BrokerUnavailable, match=rf"{address} has been away for \d") as caught:
            taken += sum(batch.num_rows for batch in batches)
        assert queue in str(caught.value)
        assert taken < 5000


@pytest.mark.parametrize("timeout", [0, 0.001, 1.2])
def test_receiving_from_a_dead_broker_fails_and_goes_on_when_it_is_back(
    broker: LocalBroker, queue: str, timeout: float
) -> None:
    fill(broker.address, queue, 1)
    with Consumer(broker.address, queue=queue) as consumer:
        message = consumer.receive(timeout=20)
        assert message is not None
        consumer.acknowledge(message)
        consumer.flush(10)
        assert consumer.receive(timeout=timeout) is None, "it was asked, and had nothing"
        broker.kill()
        with pytest.raises(BrokerUnavailable):
            consumer.receive(timeout=timeout)
        with pytest.raises(BrokerUnavailable):
            list(consumer.messages(timeout=timeout))
        broker.start()
        fill(broker.address, queue, 1)
        fresh = consumer.receive(timeout=20)
        assert fresh is not None
        assert fresh.offset == 1


def test_a_broker_that_comes_back_in_time_is_not_noticed(broker: LocalBroker, queue: str) -> None:
    fill(broker.address, queue, 200)
    seen = []
    with Consumer(broker.address, queue=queue, prefetch=10) as consumer:
        for message in consumer.messages(timeout=30):
            seen.append(message.offset)
            if len(seen) == 50:
                broker.kill()
                broker.start()
            if message.offset == 199:
                break
    assert set(seen) == set(range(200))


def test_a_broker_that_is_silent_is_named(broker: LocalBroker, queue: str) -> None:
    fill(broker.address, queue, 1)
    with Consumer(broker.address, queue=queue) as consumer:
        assert consumer.receive(timeout=20)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(BrokerUnavailable, match="silent"):
                consumer.receive(timeout=0.1)
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_what_was_stored_before_is_there_however_short_the_time(
    module_broker: LocalBroker, queue: str
) -> None:
    with Producer(module_broker.address, queue=queue) as producer:
        for number in range(20):
            producer.send(b"%d" % number).result(10)
            with Consumer(module_broker.address, queue=queue) as consumer:
                message = consumer.receive(timeout=0)
                assert message is not None, "a receipt was given, and nobody else has it"
                consumer.acknowledge(message)
                assert consumer.receive(timeout=0) is None


def test_several_threads_are_told_alike(broker: LocalBroker, queue: str) -> None:
    fill(broker.address, queue, 1)
    told: list[BrokerUnavailable | None] = []
    with Consumer(broker.address, queue=queue) as consumer:
        assert consumer.receive(timeout=20)

        def work(kills: bool) -> None:
            assert kills or consumer.receive(timeout=0.2) is None
            try:
                consumer.receive(timeout=2.0)
                told.append(None)
            except BrokerUnavailable as error:
                told.append(error)

        for kills in (False, True):
            if kills:
                broker.kill()
            threads = [threading.Thread(target=work, args=(kills,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert told[:4] == [None] * 4
    assert all(told[4:])
    assert len(told) == 8


def test_who_asks_while_an_answer_is_due_is_told_as_well(broker: LocalBroker, queue: str) -> None:
    fill(broker.address, queue, 1)
    told: list[object] = []

    def work() -> None:
        try:
            told.append(consumer.receive(timeout=1.0))
        except BrokerUnavailable as error:
            told.append(error)

    with Consumer(broker.address, queue=queue) as consumer:
        assert consumer.receive(timeout=20)
        asks = consumer._consuming._talk.asks
        threads = [threading.Thread(target=work) for _ in range(2)]
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            threads[0].start()
            assert wait_until(lambda: bool(asks._sent))
            threads[1].start()
            assert wait_until(lambda: bool(asks._waiting))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        for thread in threads:
            thread.join()
    assert told == [None, None]


def test_an_older_broker_is_not_asked() -> None:
    asks, closed, open_ = Asks(), Session(b""), Session(b"1")
    closed.ended = "not begun"
    asking = asks.add(closed)
    assert not asks.is_due
    asks.opened(open_)
    assert asking.answered_in is open_, "that it is there must do"
    assert asks.add(open_).answered_in is open_


def test_what_a_session_did_not_answer_is_asked_in_the_next() -> None:
    asks, first, second = Asks(), Session(b"1"), Session(b"2")
    asks.is_possible = True
    asking = asks.add(first)
    number = asks.send()
    later = asks.add(first)
    due = [asks.is_due]
    asks.interrupted()
    assert [*due, asks.is_due] == [False, True], "one at a time"
    again = asks.send()
    asks.answered(number, first)  # an answer to another question
    asks.answered(again, second)
    assert asking.answered_in is later.answered_in is second


# -- max_unacknowledged ------------------------------------------------------------------------------------


def test_no_warning_while_acknowledgements_are_on_their_way(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 3000)
    seen = 0
    with (
        warnings.catch_warnings(),
        Consumer(module_broker.address, queue=queue, prefetch=10, max_unacknowledged=10) as consumer,
    ):
        warnings.simplefilter("error")
        for batch in consumer.batches(max_rows=10, timeout=1.0):
            seen += batch.num_rows
            consumer.acknowledge(batch)
    assert seen == 3000


def test_no_warning_where_the_queue_is_simply_empty(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 20)
    with (
        warnings.catch_warnings(),
        Consumer(module_broker.address, queue=queue, prefetch=10, max_unacknowledged=25) as consumer,
    ):
        warnings.simplefilter("error")
        assert len(list(consumer.messages(timeout=0.5))) == 20


def test_the_warning_says_the_number(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 30)
    with (
        Consumer(module_broker.address, queue=queue, prefetch=10, max_unacknowledged=25) as consumer,
        pytest.warns(
            UserWarning,
            match="25 messages were handed over and not acknowledged, which is max_unacknowledged",
        ),
    ):
        assert len(list(consumer.messages(timeout=0.5))) == 25


# -- a queue that is gone, a consumer that is ended --------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_who_waits_is_told_that_the_queue_was_deleted(
    module_broker: LocalBroker, queue: str, again: bool
) -> None:
    fill(module_broker.address, queue, 1)
    told: list[BaseException] = []
    with (
        Consumer(module_broker.address, queue=queue) as consumer,
        Connection(module_broker.address) as connection,
    ):
        assert consumer.receive(timeout=20)

        def work() -> None:
            try:
                consumer.receive()
            except UnknownDestination as error:
                told.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        connection.call("DeleteDestination", admin_pb2.DeleteDestinationRequest(name=queue))
        if again:
            connection.call("CreateDestination", admin_pb2.CreateDestinationRequest(name=queue))
            fill(module_broker.address, queue, 3)
        thread.join(20)
        assert "was deleted" in str(told[0])
        with pytest.raises(UnknownDestination, match="was deleted"):
            next(consumer.batches(timeout=1.0))
        if again:
            assert described(module_broker.address, queue).ready_rows == 3
        else:
            with pytest.raises(UnknownDestination):
                described(module_broker.address, queue)


def test_a_queue_that_was_exchanged_while_the_broker_was_away(broker: LocalBroker, queue: str) -> None:
    fill(broker.address, queue, 1)
    with Connection(broker.address) as connection, Consumer(broker.address, queue=queue) as consumer:
        assert consumer.receive(timeout=20)
        consuming = consumer._consuming
        made = connection.call("DescribeDestination", admin_pb2.DescribeDestinationRequest(name=queue))
        with consuming.lock:
            assert consuming._talk.sessions.opened(made.destination_id) is consuming.session
            with pytest.raises(DestinationRecreated, match=queue):
                consuming._talk.sessions.opened(b"\1" * 16)


def test_a_consumer_that_an_operator_ends_does_not_come_back(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 10)
    with (
        Consumer(module_broker.address, queue=queue) as consumer,
        Connection(module_broker.address) as connection,
    ):
        assert consumer.receive(timeout=20)
        (info,) = connection.call(
            "ListConsumers", subscribe_pb2.ListConsumersRequest(destination=queue)
        ).consumers
        assert (info.connected, info.unacknowledged_rows, info.consumer, info.incarnation) == (
            True,
            10,
            "",
            b"",
        )
        assert str(os.getpid()) in info.client
        assert "127.0.0.1" in info.peer
        reply = connection.call("ReleaseConsumer", subscribe_pb2.ReleaseConsumerRequest(session=info.session))
        assert reply.returned_rows == 10
        with pytest.raises(SessionClosed, match="ended by an operator"):
            list(consumer.messages(timeout=20))
        stats = described(module_broker.address, queue)
        assert (stats.ready_rows, stats.consumers) == (10, 0)
        with pytest.raises(UnknownDestination, match=str(info.session)):
            connection.call("ReleaseConsumer", subscribe_pb2.ReleaseConsumerRequest(session=info.session))


@pytest.mark.parametrize("name", ["typo", "typo.of.a.loop"])
def test_a_misspelt_queue_is_refused_and_not_made(module_broker: LocalBroker, name: str) -> None:
    with pytest.raises(UnknownDestination, match=f"mq create {name}"):
        Consumer(module_broker.address, queue=name)
    with pytest.raises(UnknownDestination):
        described(module_broker.address, name)


# -- a consumer that nobody has any more -------------------------------------------------------------------


def test_a_forgotten_consumer_ends(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 100)
    consumer: Consumer | None = Consumer(module_broker.address, queue=queue)
    assert consumer is not None
    assert consumer.receive(timeout=20)
    assert described(module_broker.address, queue).ready_rows == 0
    with pytest.warns(ResourceWarning, match=f"consumer of queue {queue!r} was not closed"):
        consumer = None
    assert wait_until(lambda: described(module_broker.address, queue).ready_rows == 100)
    assert wait_until(lambda: not any(queue in thread.name for thread in threading.enumerate()))


def test_messages_keep_no_consumer_alive(module_broker: LocalBroker, queue: str) -> None:
    fill(module_broker.address, queue, 3)
    consumer: Consumer | None = Consumer(module_broker.address, queue=queue)
    assert consumer is not None
    messages = list(consumer.messages(timeout=0.5))
    with pytest.warns(ResourceWarning):
        consumer = None
    assert [message.value for message in messages] == [b"0", b"1", b"2"]
    assert wait_until(lambda: described(module_broker.address, queue).ready_rows == 3)
