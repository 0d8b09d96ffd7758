"""The producer against a real broker: receipts, order, windows, failures that reach the caller, retries that
store once.
"""

from __future__ import annotations

import pathlib
import threading
import time
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire.errors import (
    BrokerUnavailable,
    ClientClosed,
    InvalidName,
    InvalidOption,
    InvalidRecords,
    LimitExceeded,
    MqError,
    ProducerFenced,
    SendOutcomeUnknown,
    SendTimeout,
    WrongBroker,
)
from mq_wire.limits import RECORDS_BYTES_MAX
from mq_wire.v1 import produce_pb2
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.partitioner import partitions_of
from spark_tests.support.waiting import wait_until


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


@pytest.fixture
def connection(module_broker: LocalBroker) -> Iterator[Connection]:
    with Connection(module_broker.address) as opened:
        yield opened


def received(address: str, queue: str, timeout: float = 0.5) -> list[dict[str, object]]:
    """All that is in a queue, partition by partition in order of offset."""
    rows: list[dict[str, object]] = []
    with Consumer(address, queue=queue) as consumer:
        for batch in consumer.batches(timeout=timeout):
            rows += batch.to_pylist()
            consumer.acknowledge(batch)
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_a_message_arrives_with_all_that_was_sent(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue) as producer:
        receipt = producer.send(b"v", key=b"k", priority=7, headers={"a": b"1"}, message_id="m").result(
            timeout=10
        )
        assert (receipt.offset, receipt.duplicate) == (0, False)
        assert receipt.partition == partitions_of(pa.array([b"k"], pa.binary()), producer.partitions)[0]
    (row,) = received(module_broker.address, queue)
    assert (row["value"], row["key"], row["priority"], row["message_id"]) == (b"v", b"k", 7, "m")
    assert row["headers"] == [{"key": "a", "value": b"1"}]
    assert (row["partition"], row["offset"]) == (receipt.partition, receipt.offset)


def test_every_receipt_names_the_place_of_its_own_message(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue, batch_rows=100) as producer:
        receipts = [
            producer.send(
                b"%d" % i,
                key=b"%d" % (i % 7) if i % 3 else None,
                priority=i % 10,
                partition=1 if i % 5 == 0 else None,
            )
            for i in range(5000)
        ]
        places = {(receipt.partition, receipt.offset): i for i, receipt in enumerate(receipts)}
    assert len(places) == 5000
    rows = received(module_broker.address, queue)
    assert [int(row["value"]) for row in rows] == [places[row["partition"], row["offset"]] for row in rows]  # type: ignore[call-overload,index]
    assert [row["priority"] for row in rows] == [int(row["value"]) % 10 for row in rows]  # type: ignore[call-overload]


def test_one_thread_sends_in_order_within_a_partition(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue, batch_rows=50, linger_ms=1) as producer:
        batch = pa.RecordBatch.from_pydict({"value": [b"x"], "partition": [2]})
        for i in range(500):
            producer.send(b"%d" % i, partition=2)
            if i % 100 == 50:
                producer.send_batch(batch.set_column(0, "value", pa.array([b"%d" % i])))
    values = [int(row["value"]) for row in received(module_broker.address, queue)]  # type: ignore[call-overload]
    assert values == sorted(values)
    assert len(values) == 505


def test_asking_for_a_receipt_does_not_wait_for_the_linger(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue, linger_ms=20_000) as producer:
        producer.send(b"0").result(timeout=10)
        under_way = producer.send(b"1")  # nothing was under way: leaves at once
        lingering = producer.send(b"2")
        assert lingering.result(timeout=10).offset is not None
        assert under_way.done()


def test_lingering_messages_leave_by_themselves(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue, linger_ms=30) as producer:
        receipts = [producer.send(b"%d" % i) for i in range(20)]
        wait_until(lambda: all(receipt.done() for receipt in receipts))


def test_record_batches_of_every_size_are_stored_whole(module_broker: LocalBroker, queue: str) -> None:
    values = [b"%d" % i for i in range(300_000)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    with Producer(module_broker.address, queue=queue, window_bytes=1 << 20) as producer:
        receipt = producer.send_batch(table)
        ranges = receipt.result(timeout=30).ranges
        assert sum(rows for _, _, rows, _ in ranges) == 300_000
        assert len(ranges) > 2
        assert len({partition for partition, *_ in ranges}) > 1
        assert producer.send_batch(table.slice(0, 0)).result(timeout=5).ranges == []
        assert producer.rows_stored == 300_000
    assert {row["value"] for row in received(module_broker.address, queue)} == set(values)


def test_a_keyed_batch_is_split_by_key(module_broker: LocalBroker, queue: str) -> None:
    keys = [b"k%d" % (i % 50) for i in range(10_000)]
    numbers = range(10_000)
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"%d" % i for i in numbers], "key": keys, "priority": [i % 10 for i in numbers]}
    )
    with Producer(module_broker.address, queue=queue) as producer:
        assert sum(rows for _, _, rows, _ in producer.send_batch(batch).result(10).ranges) == 10_000
        expected = dict(
            zip(keys, partitions_of(batch.column("key"), producer.partitions).tolist(), strict=True)
        )
    rows = received(module_broker.address, queue)
    assert all(row["partition"] == expected[row["key"]] for row in rows)  # type: ignore[index]
    assert sorted(int(row["value"]) for row in rows) == list(range(10_000))  # type: ignore[call-overload]


def test_bad_input_is_refused_at_the_call_and_harms_nothing(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue) as producer:
        with pytest.raises(InvalidRecords, match=r"text\.encode"):
            producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidRecords, match="None"):
            producer.send(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidRecords, match="priority 10"):
            producer.send(b"", priority=10)
        with pytest.raises(InvalidRecords, match="did you mean 'message_id'"):
            producer.send(b"", mesage_id="x")
        with pytest.raises(InvalidRecords, match="partition 99"):
            producer.send(b"", partition=99)
        with pytest.raises(LimitExceeded):
            producer.send(b"x" * RECORDS_BYTES_MAX)
        with pytest.raises(InvalidRecords, match="value"):
            producer.send_batch(pa.table({"val": [b"a"]}))
        with pytest.raises(InvalidRecords, match="list"):
            producer.send_batch([b"a"])
        assert producer.send(b"fine").result(10).offset == 0
    assert [row["value"] for row in received(module_broker.address, queue)] == [b"fine"]


def test_a_message_larger_than_the_window_goes_alone(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue, window_bytes=1000) as producer:
        receipts = [producer.send(b"x" * size) for size in (10, 500, 100_000, 10, 3_000_000)]
        assert all(receipt.result(20).offset is not None for receipt in receipts)


def test_wrong_options_are_refused(module_broker: LocalBroker) -> None:
    with pytest.raises(InvalidName):
        Producer(module_broker.address, queue="a..b")
    with pytest.raises(InvalidOption, match="linger_ms=-1"):
        Producer(module_broker.address, queue="a", linger_ms=-1)
    with pytest.raises(InvalidOption, match="batch_rows"):
        Producer(module_broker.address, queue="a", batch_rows=0)


def test_no_broker_is_one_clear_error() -> None:
    with pytest.raises(BrokerUnavailable, match=r"mq://127\.0\.0\.1:9 .*mq broker"):
        Producer("mq://127.0.0.1:9", queue="a", connect_timeout=0.1)


def test_failover_finds_the_broker_that_is_there(module_broker: LocalBroker, queue: str) -> None:
    there = module_broker.address.removeprefix("mq://")
    with Producer(f"mq://127.0.0.1:9,{there}", queue=queue) as producer:
        assert producer.send(b"a").result(10).offset == 0


def test_a_closed_producer_takes_nothing_and_closing_flushes(module_broker: LocalBroker, queue: str) -> None:
    producer = Producer(module_broker.address, queue=queue, linger_ms=10_000)
    receipts = [producer.send(b"%d" % i) for i in range(100)]
    producer.close()
    producer.close()
    assert all(receipt.done() for receipt in receipts)
    assert receipts[99].offset is not None
    with pytest.raises(ClientClosed):
        producer.send(b"late")
    with pytest.raises(ClientClosed):
        producer.send_batch(pa.table({"value": [b"late"]}))


def test_several_threads_share_a_producer(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue, window_bytes=20_000, batch_rows=64) as producer:

        def work(name: int) -> None:
            for i in range(1000):
                producer.send(b"%d-%d" % (name, i), partition=name)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = received(module_broker.address, queue)
    for name in range(4):
        assert [row["value"] for row in rows if row["partition"] == name] == [
            b"%d-%d" % (name, i) for i in range(1000)
        ]


def test_a_failure_nobody_asked_about_is_raised_at_flush(module_broker: LocalBroker, queue: str) -> None:
    name = f"loader-{queue}"
    first = Producer(module_broker.address, queue=queue, name=name)
    first.send(b"0").result(10)
    with Producer(module_broker.address, queue=queue, name=name):
        first.send(b"zombie")
        with pytest.raises(ProducerFenced):
            first.flush(10)
        first.close()  # told once


def test_the_error_handler_hears_of_a_fence_at_once(module_broker: LocalBroker, queue: str) -> None:
    told: list[MqError] = []
    with Connection(module_broker.address, on_error=told.append) as connection:
        first = Producer(queue=queue, name=f"loader-{queue}", connection=connection)
        first.send(b"0").result(10)
        with Producer(module_broker.address, queue=queue, name=f"loader-{queue}"):
            receipt = first.send(b"zombie")
            wait_until(lambda: told)
            assert isinstance(told[0], ProducerFenced)
            with pytest.raises(ProducerFenced):
                receipt.result(10)
        first.close()


def test_staged_rows_are_invisible_until_committed(
    module_broker: LocalBroker, connection: Connection, queue: str
) -> None:
    token = uuid.uuid4().bytes
    epoch = connection.call("TakeEpoch", produce_pb2.TakeEpochRequest()).epoch
    staged = produce_pb2.StagedSet(token=token, epoch=epoch, query_id=queue, batch_id=0, run_id="r")
    with Producer(queue=queue, staged=staged, connection=connection, window_bytes=4 << 20) as producer:
        for _ in range(5):
            producer.send_batch(pa.table({"value": [b"%d" % i for i in range(1000)]}))
        producer.flush()
        assert producer.rows_stored == 5000
        assert producer.send_batch(pa.table({"value": [b"last"]})).result(10).ranges[0][1] is None
    assert received(module_broker.address, queue, timeout=0.2) == []
    commit = produce_pb2.CommitStagedRequest(
        tokens=[produce_pb2.StagedToken(token=token, rows=5001)],
        target=queue,
        owner=f"query:{queue}",
        version=0,
        rows=5001,
    )
    assert connection.call("CommitStaged", commit).rows == 5001
    assert len(received(module_broker.address, queue)) == 5001


def test_a_killed_broker_costs_no_message_and_doubles_none(broker: LocalBroker, queue: str) -> None:
    stop = threading.Event()
    receipts = []

    def work(producer: Producer) -> None:
        i = 0
        while not stop.is_set():
            receipts.append(producer.send(b"%d" % i, partition=i % 2))
            i += 1

    with Producer(broker.address, queue=queue, window_bytes=50_000, batch_rows=100, linger_ms=1) as producer:
        thread = threading.Thread(target=work, args=(producer,))
        thread.start()
        for _ in range(2):
            before = producer.rows_stored
            wait_until(lambda: producer.rows_stored > before + 500, message="rows stored")  # noqa: B023 - called in this round only
            broker.kill()
            broker.start()
        before = producer.rows_stored
        wait_until(lambda: producer.rows_stored > before + 500, message="rows stored after the restart")
        stop.set()
        thread.join()
        producer.flush(20)
        places = {(receipt.partition, receipt.offset): i for i, receipt in enumerate(receipts)}
    rows = received(broker.address, queue)
    assert len(places) == len(receipts) == len(rows)
    assert [int(row["value"]) for row in rows] == [places[row["partition"], row["offset"]] for row in rows]  # type: ignore[call-overload,index]
    for partition in (0, 1):
        values = [int(row["value"]) for row in rows if row["partition"] == partition]  # type: ignore[call-overload]
        assert values == sorted(values)


def test_a_time_out_reaches_whoever_asks_and_else_close(broker: LocalBroker, queue: str) -> None:
    producer = Producer(broker.address, queue=queue, send_timeout=2.0)
    producer.send(b"0").result(10)
    broker.kill()
    with pytest.raises((SendTimeout, SendOutcomeUnknown)):
        producer.send(b"1").result(10)
    producer.send(b"2")
    started = time.monotonic()
    with pytest.raises((SendTimeout, SendOutcomeUnknown)):
        producer.close()
    assert time.monotonic() - started < 10


def test_after_a_time_out_the_producer_goes_on(broker: LocalBroker, queue: str) -> None:
    with Producer(broker.address, queue=queue, send_timeout=2.0) as producer:
        producer.send(b"0", partition=0).result(10)
        broker.kill()
        lost = producer.send(b"1", partition=0)
        with pytest.raises((SendTimeout, SendOutcomeUnknown)):
            lost.result(10)
        broker.start()
        wait_until(lambda: _try(producer, b"2"))
    values = [row["value"] for row in received(broker.address, queue)]
    assert values[0] == b"0"
    assert b"2" in values
    assert len(values) == len(set(values))


def _try(producer: Producer, value: bytes) -> bool:
    try:
        producer.send(value, partition=0).result(10)
    except (SendTimeout, SendOutcomeUnknown):
        return False
    return True


def test_an_idle_producer_that_the_broker_forgot_sends_on(tmp_path: pathlib.Path, queue: str) -> None:
    with LocalBroker(tmp_path / "small", anonymous_producers_max=1, default_partitions=1) as small:
        with Producer(small.address, queue=queue) as idle, Producer(small.address, queue=queue) as busy:
            idle.send(b"0").result(10)
            busy.send(b"1").result(10)
            assert [idle.send(b"%d" % i).result(10).offset for i in (2, 3)] == [2, 3]
        assert [row["value"] for row in received(small.address, queue)] == [b"0", b"1", b"2", b"3"]


def test_another_broker_behind_the_same_address_is_refused(tmp_path: pathlib.Path, queue: str) -> None:
    with LocalBroker(tmp_path / "one") as one:
        address = one.address
        producer = Producer(address, queue=queue)
        producer.send(b"0").result(10)
        one.stop()
        with LocalBroker(tmp_path / "two", port=int(address.rpartition(":")[2])):
            with pytest.raises(WrongBroker):
                producer.send(b"1").result(20)
            producer.close()


def test_a_stream_that_opens_beside_a_lone_send_changes_nothing(
    module_broker: LocalBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Connection(module_broker.address) as connection,
        Producer(queue=queue, connection=connection, linger_ms=500) as producer,
    ):
        publishing, call, others = producer._gathering.publishing, connection.call, []

        def call_beside_a_stream(method: str, *arguments: object, **options: float | None) -> object:
            response = call(method, *arguments, **options)  # type: ignore[arg-type]
            if method == "Send":
                others.append(producer.send(b"lingers"))
                wait_until(lambda: publishing.stream.live, 10, "the stream does not open")
            return response

        monkeypatch.setattr(connection, "call", call_beside_a_stream)
        assert producer.send(b"alone").result(10).offset == 0
        monkeypatch.undo()
        assert len(others) == 1, "the first message must have been sent alone"
        others[0].result(10)
        assert not producer.send(b"after").result(10).duplicate
    assert sorted(str(row["value"]) for row in received(module_broker.address, queue)) == [
        "b'after'",
        "b'alone'",
        "b'lingers'",
    ]
