"""The Publish stream: receipts, order, errors that leave the stream alive, and those that end it."""

from __future__ import annotations

import os
import pathlib
import zlib

import grpc
import pytest

from mq_broker import LocalBroker
from mq_wire import envelope, framing
from mq_wire.v1.produce_pb2 import PublishHeader
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Publisher, Wire, batch_of, error_code, values_of


def test_receipts_give_contiguous_offsets(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    first = publisher.send(batch_of(values_of(10)), partition=1).receipt
    second = publisher.send(batch_of(values_of(5)), partition=1).receipt
    assert (first.partition, first.base_offset, first.rows, first.duplicates) == (1, 0, 10, 0)
    assert (second.base_offset, second.rows) == (10, 5)
    assert first.log_id == second.log_id
    assert first.append_time_us > 1_600_000_000_000_000
    assert wire.stats(queue_name).ready_rows == 15


def test_answers_come_in_the_order_of_requests_also_around_refusals(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    asked = []
    for number in range(50):
        if number % 5 == 3:
            asked.append(
                (publisher.put_raw(b"no arrow", rows=1, columns=envelope.VALUE, first_sequence=0), False)
            )
        else:
            asked.append((publisher.put(batch_of(values_of(10))), True))
    publisher.stream.end()
    assert [(answer.request_id, answer.HasField("receipt")) for answer in publisher.stream] == asked
    assert wire.stats(queue_name).ready_rows == 400


def test_a_retry_gets_the_receipt_of_the_original(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    original = publisher.send(batch_of(values_of(10))).receipt
    again = publisher.send(batch_of(values_of(10)), first_sequence=0).receipt
    assert (again.base_offset, again.rows, again.duplicates) == (original.base_offset, 10, 10)
    assert wire.stats(queue_name).ready_rows == 10


def test_a_gap_is_out_of_order_until_it_is_skipped(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    publisher.send(batch_of(values_of(10)))
    gap = publisher.send(batch_of(values_of(10)), first_sequence=20)
    assert gap.error.code == "OUT_OF_ORDER"
    skipped = publisher.put_raw(b"", skip=True, first_sequence=10, rows=10)
    assert publisher.answer().request_id == skipped
    assert publisher.send(batch_of(values_of(10)), first_sequence=20).receipt.base_offset == 10


def test_a_skip_with_records_is_refused(wire: Wire, queue_name: str) -> None:
    answer = wire.publisher(queue_name).send(batch_of(values_of(1)), skip=True)
    assert answer.error.code == "INVALID_REQUEST"


def test_a_wrong_checksum_is_refused_and_a_right_one_is_not(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    batch = batch_of(values_of(10))
    crc = zlib.crc32(envelope.encode(batch))
    assert publisher.send(batch, has_crc32=True, crc32=crc ^ 1).error.code == "INVALID_RECORDS"
    assert publisher.send(batch, first_sequence=0, has_crc32=True, crc32=crc).receipt.rows == 10


@pytest.mark.parametrize("priority", [0, 4, 9])
def test_priority_of_a_whole_batch(wire: Wire, queue_name: str, priority: int) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(3)), priority_plus_one=priority + 1)
    lanes = wire.stats(queue_name).ready_by_priority
    assert list(lanes) == [3 if lane == priority else 0 for lane in range(10)]


def test_priority_of_each_row(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(12), priority=[0, 9, 9, 4] * 3))
    lanes = wire.stats(queue_name).ready_by_priority
    assert list(lanes) == [3, 0, 0, 0, 3, 0, 0, 0, 0, 6]


def test_priority_given_twice_is_refused(wire: Wire, queue_name: str) -> None:
    answer = wire.publisher(queue_name).send(batch_of(values_of(2), priority=[1, 2]), priority_plus_one=3)
    assert answer.error.code == "INVALID_REQUEST"


@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"\x0a\x7f", b"\x0a\x02\xff\xff"])
def test_what_cannot_be_read_ends_the_stream_after_the_answers_before_it(
    wire: Wire, queue_name: str, garbage: bytes
) -> None:
    publisher = wire.publisher(queue_name)
    publisher.put(batch_of(values_of(10)))
    publisher.stream.put(garbage)
    assert publisher.answer().receipt.rows == 10
    with pytest.raises(grpc.RpcError) as caught:
        publisher.answer()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_code(caught.value) == "INVALID_REQUEST"
    assert wire.publisher(queue_name).send(batch_of(values_of(1))).receipt.rows == 1


def test_many_streams_at_once(wire: Wire, queue_name: str) -> None:
    publishers = [wire.publisher(queue_name) for _ in range(8)]
    for number in range(80):
        publishers[number % 8].put(batch_of(values_of(100)), partition=number % 4)
    for publisher in publishers:
        assert sum(publisher.answer().receipt.rows for _ in range(10)) == 1000
    assert wire.stats(queue_name).ready_rows == 8000


def test_a_stream_that_reads_no_answers_is_read_no_further_and_loses_nothing(
    wire: Wire, queue_name: str
) -> None:
    publisher = wire.publisher(queue_name)
    batch = batch_of([b"x" * 100_000] * 10)  # 1 MB
    for _ in range(100):
        publisher.put(batch)
    publisher.stream.end()
    assert sum(publisher.answer().receipt.rows for _ in range(100)) == 1000


def test_unknown_fields_of_a_newer_client_are_skipped(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    records = envelope.encode(batch_of(values_of(1)))
    header = PublishHeader(
        request_id=1,
        destination=queue_name,
        producer_id=publisher.producer_id,
        rows=1,
        columns=envelope.VALUE,
    ).SerializeToString()
    publisher.stream.put(framing.join(header + b"\xf8\x07\x01", memoryview(records)) + b"\x98\x06\x01")
    assert publisher.answer().receipt.rows == 1


def test_awaited_requests_and_others_on_one_stream_are_answered_in_order(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    offsets = []
    for _ in range(3):
        offsets += [
            publisher.send(batch_of(values_of(1)), awaited=True).receipt.base_offset for _ in range(4)
        ]
        asked = [publisher.put(batch_of(values_of(1))) for _ in range(20)]
        answers = [publisher.answer() for _ in asked]
        assert [answer.request_id for answer in answers] == asked
        offsets += [answer.receipt.base_offset for answer in answers]
    publisher.stream.end()
    assert list(publisher.stream) == []
    assert offsets == list(range(72))


def test_a_client_that_does_not_wait_although_it_says_so_gets_its_answers_in_order(
    wire: Wire, queue_name: str
) -> None:
    publisher = wire.publisher(queue_name)
    asked = [publisher.put(batch_of(values_of(1)), awaited=number % 3 != 0) for number in range(200)]
    publisher.stream.end()
    answers = list(publisher.stream)
    assert [answer.request_id for answer in answers] == asked
    assert [answer.receipt.base_offset for answer in answers] == list(range(200))


def test_refusals_of_awaited_requests_leave_the_stream_alive(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    answers = [
        publisher.send(batch_of(values_of(1)), **{"awaited": True, "first_sequence": 0} | fields)
        for fields in ({}, {"schema_id": 7}, {"cluster_id": b"another"}, {"first_sequence": 9}, {})
    ]
    assert [answer.error.code for answer in answers] == [
        "", "UNSUPPORTED", "WRONG_BROKER", "OUT_OF_ORDER", ""
    ]  # fmt: skip
    assert answers[4].receipt.duplicates == 1


def test_another_broker_is_refused_without_waiting_too(wire: Wire, queue_name: str) -> None:
    mine = wire.hello().cluster_id
    publisher = wire.publisher(queue_name)
    assert publisher.send(batch_of(values_of(1)), cluster_id=mine).receipt.rows == 1
    assert publisher.send(batch_of(values_of(1)), cluster_id=mine[::-1]).error.code == "WRONG_BROKER"


def test_what_cannot_be_read_behind_an_awaited_request_ends_the_stream(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    assert publisher.send(batch_of(values_of(1)), awaited=True).receipt.rows == 1
    publisher.stream.put(b"\xff" * 40)
    with pytest.raises(grpc.RpcError) as caught:
        publisher.answer()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_code(caught.value) == "INVALID_REQUEST"


def test_streams_that_end_behind_an_awaited_request_make_room_for_others(tmp_path: pathlib.Path) -> None:
    with LocalBroker(tmp_path / "few", streams_max=2) as broker, Wire(broker.address) as wire:
        wire.hello()

        def opened() -> Publisher | None:
            publisher = wire.publisher("few")
            try:
                answer = publisher.send(batch_of(values_of(1)), awaited=True)
            except grpc.RpcError:  # the last ones are about to end
                return None
            assert answer.receipt.rows == 1
            return publisher

        for number in range(30):
            publisher = wait_until(opened)
            assert publisher is not None
            if number % 2:
                publisher.stream.cancel()
            else:
                publisher.stream.end()
                assert list(publisher.stream) == []
            if not number:
                threads = len(os.listdir(f"/proc/{broker.pid}/task"))
        assert len(os.listdir(f"/proc/{broker.pid}/task")) <= threads + 8
