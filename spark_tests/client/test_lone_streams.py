"""A thread that waits for one receipt after the other has a Publish stream to itself: what happens to it."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import ClientClosed, SendOutcomeUnknown
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client import publishing
from pyspark_mq.client.lone_streams import STREAMS_MAX, LoneStream, LoneStreams
from pyspark_mq.client.receipts import Receipt
from spark_tests.support.waiting import wait_until


@pytest.fixture
def queue() -> str:
    return f"lone.{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, who sends again waits again and again."""
    monkeypatch.setattr(publishing, "_AGAIN_S", 60.0)


@pytest.fixture
def connection(module_broker: LocalBroker) -> Iterator[Connection]:
    with Connection(module_broker.address) as opened:
        yield opened


def lone(connection: Connection) -> LoneStreams:
    streams: LoneStreams = connection.lone_streams
    return streams


def stored(address: str, queue: str) -> list[tuple[int, bytes]]:
    """(partition, value) of all that is in a queue, in order within the partitions."""
    rows: list[dict[str, Any]] = []
    with Consumer(address, queue=queue) as consumer:
        for batch in consumer.batches(timeout=0.5):
            rows += batch.to_pylist()
            consumer.acknowledge(batch)
    rows.sort(key=lambda row: (row["partition"], row["offset"]))
    return [(row["partition"], row["value"]) for row in rows]


def pause(broker: LocalBroker) -> None:
    """Stops the process, all of its threads."""
    os.kill(broker.pid, signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{broker.pid}/task")
    wait_until(lambda: all(") T " in (task / "stat").read_text() for task in tasks.iterdir()))


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_one_after_the_other_takes_one_stream(connection: Connection, queue: str) -> None:
    with Producer(queue=queue, connection=connection) as producer:
        for number in range(50):
            receipt = producer.send(b"%d" % number, partition=0).result(20)
            assert (receipt.offset, receipt.duplicate) == (number, False)
            assert lone(connection).open == (number > 0)
    assert lone(connection).open == 0
    assert stored(str(connection.address), queue) == [(0, b"%d" % number) for number in range(50)]


def test_a_single_send_now_and_then_takes_none(
    connection: Connection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_AGAIN_S", 0.0)
    with Producer(queue=queue, connection=connection) as producer:
        for number in range(5):
            assert producer.send(b"%d" % number, partition=0).result(20).offset == number
        assert lone(connection).open == 0


def test_refusals_are_told_and_the_stream_goes_on(connection: Connection, queue: str) -> None:
    with Producer(queue=queue, connection=connection, name="old") as producer:
        assert [producer.send(b"1", partition=0).result(20).offset for _ in range(3)] == [0, 1, 2]
        with Producer(queue=queue, connection=connection, name="old") as newer:
            with pytest.raises(Exception, match="opened again"):
                producer.send(b"2", partition=0).result(20)
            assert [newer.send(b"3", partition=0).result(20).offset for _ in range(3)] == [3, 4, 5]
            assert lone(connection).open == 1


@pytest.mark.timeout(300)
def test_a_thousand_producers_take_few_threads_on_both_sides(
    module_broker: LocalBroker, connection: Connection
) -> None:
    before, there = threading.active_count(), threads_of(module_broker.pid)
    producers = [Producer(queue=f"many.{number % 7}", connection=connection) for number in range(1000)]
    most: list[int] = []

    def send(some: list[Producer]) -> None:
        for producer in some:
            for _ in range(2):
                producer.send(b"x").result(60)
            most.append(lone(connection).open + sum(each.live for each in connection.publish_streams))

    senders = [threading.Thread(target=send, args=(producers[first::6],)) for first in range(6)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    receipts = [producer.send(b"y") for producer in producers for _ in range(2)]
    for receipt in receipts:
        receipt.result(60)
    assert len(most) == 1000
    assert max(most) <= STREAMS_MAX
    assert lone(connection).open + sum(each.live for each in connection.publish_streams) <= STREAMS_MAX
    assert threading.active_count() - before <= 2 * STREAMS_MAX + 2
    assert threads_of(module_broker.pid) - there <= 2 * STREAMS_MAX + 16  # gRPC's own come and go
    for producer in producers:
        producer.close()
    assert lone(connection).open == 0


def test_windowed_sends_beside_it_keep_their_order(connection: Connection, queue: str) -> None:
    with Producer(queue=queue, connection=connection) as producer:
        batches = [pa.record_batch({"value": [b"b%d" % i], "partition": [1]}) for i in range(300)]

        def flood() -> None:
            for batch in batches:
                producer.send_batch(batch)

        flooding = threading.Thread(target=flood)
        for number in range(100):
            assert producer.send(b"%d" % number, partition=0).result(20).offset == number
            if number == 10:
                flooding.start()
        flooding.join()
        producer.flush(60)
        assert producer.rows_stored == 400
    assert stored(str(connection.address), queue) == [
        *((0, b"%d" % number) for number in range(100)),
        *((1, b"b%d" % number) for number in range(300)),
    ]


def test_streams_that_producers_share_come_first(connection: Connection, queue: str) -> None:
    producers = [Producer(queue=queue, connection=connection) for _ in range(STREAMS_MAX)]
    for _ in range(2):
        producers[0].send(b"x").result(20)
    assert lone(connection).open == 1
    for producer in producers:
        producer.send_batch(pa.record_batch({"value": [b"y"] * 10}))
        producer.flush(20)
    wait_until(lambda: all(stream.live for stream in connection.publish_streams))
    assert len(connection.publish_streams) == STREAMS_MAX
    assert lone(connection).open == 0
    for _ in range(3):
        assert not producers[0].send(b"z").result(20).duplicate
    assert lone(connection).open == 0
    for producer in producers:
        producer.close()


@pytest.mark.parametrize("breaking", ["killed", "cancelled", "closed"])
def test_what_breaks_in_the_middle_goes_again_and_is_stored_once(
    broker: LocalBroker, queue: str, breaking: str
) -> None:
    with (
        Connection(broker.address) as connection,
        Producer(queue=queue, connection=connection, send_timeout=60) as producer,
    ):
        for number in range(3):
            producer.send(b"%d" % number, partition=0).result(20)
        (stream,) = lone(connection)._idle
        pause(broker)
        receipts: list[Receipt] = []
        failed: list[BaseException] = []

        def send() -> None:
            try:
                receipts.append(producer.send(b"3", partition=0).result(50))
            except BaseException as error:
                failed.append(error)

        waiting = threading.Thread(target=send)
        waiting.start()
        wait_until(lambda: not lone(connection)._idle, message="the stream is not borrowed")
        if breaking == "killed":
            broker.kill()
            broker.start()
        else:
            if breaking == "cancelled":
                stream._call.cancel()
            else:
                connection.close()
            os.kill(broker.pid, signal.SIGCONT)
        waiting.join(60)
        assert not waiting.is_alive()
        if breaking == "closed":
            assert isinstance(failed[0], ClientClosed)
            return
        assert not failed
        assert receipts[0].offset == 3
        assert [producer.send(b"%d" % n, partition=0).result(20).offset for n in (4, 5, 6)] == [4, 5, 6]
        assert lone(connection).open == 1
    assert stored(broker.address, queue) == [(0, b"%d" % number) for number in range(7)]


def test_who_waits_no_longer_leaves_the_rest_to_the_shared_stream(broker: LocalBroker, queue: str) -> None:
    with Producer(broker.address, queue=queue, send_timeout=60) as producer:
        for number in range(3):
            producer.send(b"%d" % number, partition=0).result(20)
        pause(broker)
        receipt = producer.send(b"3", partition=0)
        with pytest.raises(SendOutcomeUnknown):
            receipt.result(0.2)
        os.kill(broker.pid, signal.SIGCONT)
        assert receipt.result(30).offset == 3
        assert [producer.send(b"%d" % n, partition=0).result(20).offset for n in (4, 5)] == [4, 5]
    assert stored(broker.address, queue) == [(0, b"%d" % number) for number in range(6)]


def test_a_broker_that_stops_ends_idle_ones_in_good_order(tmp_path: pathlib.Path, queue: str) -> None:
    with LocalBroker(tmp_path / "broker") as broker:
        with Producer(broker.address, queue=queue, send_timeout=60) as producer:
            for number in range(3):
                producer.send(b"%d" % number, partition=0).result(20)
            (stream,) = lone(producer._gathering.connection)._idle
            assert stream.is_open
            broker.stop()
            wait_until(lambda: not stream.is_open)
            broker.start()
            assert [producer.send(b"%d" % n, partition=0).result(30).offset for n in (3, 4)] == [3, 4]
        assert stored(broker.address, queue) == [(0, b"%d" % number) for number in range(5)]


@pytest.mark.parametrize("lacking", ["feature", "gRPC's way"])
def test_without_it_everybody_uses_the_unary_call(
    connection: Connection, queue: str, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "feature":
        del connection.hello().features[:]
    else:
        monkeypatch.setattr(LoneStream, "begin", lambda connection: None)
    with Producer(queue=queue, connection=connection) as producer:
        for number in range(5):
            assert producer.send(b"%d" % number, partition=0).result(20).offset == number
        assert lone(connection).open == 0
