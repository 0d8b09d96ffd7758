"""The Consume stream: credit, order, acknowledgement, and what happens to rows whose stream ends."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from mq_wire.v1.admin_pb2 import CreateDestinationRequest, DeleteDestinationRequest, HelloRequest
from mq_wire.v1.consume_pb2 import ConsumeRequest
from mq_wire.v1.subscribe_pb2 import ListConsumersRequest, ReleaseConsumerRequest
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Stream, Wire, batch_of, consumed, error_code, open_consumer, values_of


def receive(stream: Stream, rows: int) -> list[tuple[Any, Any]]:
    """Deliveries until there are `rows` rows."""
    found: list[tuple[Any, Any]] = []
    while sum(header.rows for header, _ in found) < rows:
        header, batch = consumed(stream.next())
        assert batch is not None, header
        found.append((header.delivery, batch))
    return found


def acknowledgement(request_id: int, partition: int, *pairs: tuple[int, int]) -> ConsumeRequest:
    ranges = np.array(pairs, "<i8").tobytes()
    return ConsumeRequest(
        acknowledge={"request_id": request_id, "partitions": [{"partition": partition, "ranges": ranges}]}
    )


def values(found: list[tuple[Any, Any]]) -> list[bytes]:
    return [value for _, batch in found for value in batch.column("value").to_pylist()]


def test_rows_arrive_as_they_were_sent(wire: Wire, queue_name: str) -> None:
    keys = [None if number % 3 else b"k%d" % number for number in range(100)]
    wire.publisher(queue_name).send(batch_of(values_of(100), key=keys))
    found = receive(open_consumer(wire, queue_name, 1000), 100)
    assert values(found) == values_of(100)
    assert [key for _, batch in found for key in batch.column("key").to_pylist()] == keys
    header = found[0][0]
    assert (header.partition, header.base_offset) == (0, 0)
    assert sum(header.run_rows) == header.rows
    assert set(header.priority) == {4}
    assert set(header.delivery_count) == {1}


def test_a_consumer_that_waits_gets_rows_as_they_come(wire: Wire, queue_name: str) -> None:
    stream = open_consumer(wire, queue_name, 1000)
    publisher = wire.publisher(queue_name)
    for number in range(3):
        publisher.send(batch_of(values_of(10, 10 * number)))
        assert values(receive(stream, 10)) == values_of(10, 10 * number)


def test_urgent_rows_come_first(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    publisher.send(batch_of([b"low"] * 5), priority_plus_one=1)
    publisher.send(batch_of([b"high"] * 5), partition=1, priority_plus_one=10)
    stream = open_consumer(wire, queue_name, 5)
    assert values(receive(stream, 5)) == [b"high"] * 5
    stream.put(ConsumeRequest(credit={"rows": 5}))
    assert values(receive(stream, 5)) == [b"low"] * 5


def test_no_more_rows_than_credit(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(100)))
    stream = open_consumer(wire, queue_name, 10)
    assert values(receive(stream, 10)) == values_of(10)
    assert (wire.stats(queue_name).assigned_rows, wire.stats(queue_name).ready_rows) == (10, 90)
    stream.put(ConsumeRequest(credit={"rows": 15}))
    assert values(receive(stream, 15)) == values_of(15, 10)
    assert (wire.stats(queue_name).assigned_rows, wire.stats(queue_name).ready_rows) == (25, 75)


def test_credit_in_bytes_holds_back_as_well(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    for _ in range(20):
        publisher.send(batch_of([b"x" * 10_000] * 10))
    stream = open_consumer(wire, queue_name, 1000, size=250_000)
    receive(stream, 10)
    assert wire.stats(queue_name).assigned_rows < 100
    stream.put(ConsumeRequest(credit={"bytes": 1 << 30}))
    receive(stream, 190 - (wire.stats(queue_name).assigned_rows - 10))
    assert wait_until(lambda: wire.stats(queue_name).assigned_rows == 200)


def test_exactly_the_rows_that_are_named_are_acknowledged(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(100)))
    stream = open_consumer(wire, queue_name, 1000)
    receive(stream, 100)
    stream.put(acknowledgement(7, 0, (50, 60), (0, 10)))
    header, _ = consumed(stream.next())
    assert (header.acknowledged.request_id, header.acknowledged.rows, header.error.code) == (7, 20, "")
    assert wire.stats(queue_name).depth_rows == 80
    # New credit says that the application has seen the rows of the old one: they are redelivered as such.
    stream.put(ConsumeRequest(credit={"rows": 1000}))
    stream.put(acknowledgement(8, 0, (99, 100)))
    assert consumed(stream.next())[0].acknowledged.rows == 1
    stream.cancel()
    wait_until(lambda: wire.stats(queue_name).ready_rows == 79)
    expected = [value for number, value in enumerate(values_of(99)) if not (number < 10 or 50 <= number < 60)]
    again = receive(open_consumer(wire, queue_name, 1000), 79)
    assert values(again) == expected
    assert {count for header, _ in again for count in header.delivery_count} == {2}


def test_what_a_broken_connection_held_goes_back(wire: Wire, queue_name: str, module_broker: Any) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    with Wire(module_broker.address) as other:
        receive(open_consumer(other, queue_name, 100), 10)
    wait_until(lambda: wire.stats(queue_name).ready_rows == 10)


def test_ending_the_stream_answers_what_was_asked_before(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    stream = open_consumer(wire, queue_name, 100)
    receive(stream, 10)
    for number in range(10):
        stream.put(acknowledgement(number, 0, (number, number + 1)))
    stream.end()
    answers = [consumed(message)[0].acknowledged for message in stream]
    assert [(answer.request_id, answer.rows) for answer in answers] == [(number, 1) for number in range(10)]
    assert wire.stats(queue_name).depth_rows == 0


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([(5, 5)], "INVALID_REQUEST"),
        ([(9, 5)], "INVALID_REQUEST"),
        ([(-3, 2)], "INVALID_REQUEST"),
        ([(0, 6), (5, 8)], "INVALID_REQUEST"),
        ([(0, 11)], "NOT_ASSIGNED"),
        ([(2**62, 2**63 - 1)], "NOT_ASSIGNED"),
        ([(0, 2**63 - 1)], "NOT_ASSIGNED"),
    ],
)
def test_wrong_acknowledgements_are_refused(
    wire: Wire, queue_name: str, pairs: list[tuple[int, int]], code: str
) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    stream = open_consumer(wire, queue_name, 100)
    receive(stream, 10)
    stream.put(acknowledgement(1, 0, *pairs))
    header, _ = consumed(stream.next())
    assert header.acknowledged.request_id == 1
    assert header.error.code == code
    assert wire.stats(queue_name).depth_rows == 10
    stream.put(acknowledgement(2, 0, (0, 10)))
    assert consumed(stream.next())[0].acknowledged.rows == 10


def test_half_a_pair_of_offsets_is_refused(wire: Wire, queue_name: str) -> None:
    stream = open_consumer(wire, queue_name, 100)
    stream.put(
        ConsumeRequest(acknowledge={"request_id": 1, "partitions": [{"partition": 0, "ranges": b"\0" * 24}]})
    )
    assert consumed(stream.next())[0].error.code == "INVALID_REQUEST"


@pytest.mark.parametrize("request_fields", [{}, {"credit": {"rows": 5}}])
def test_a_stream_begins_with_open(wire: Wire, request_fields: dict[str, Any]) -> None:
    stream = wire.stream("Consume")
    stream.put(ConsumeRequest(**request_fields))
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    assert error_code(caught.value) == "INVALID_REQUEST"


def test_a_second_open_ends_the_stream(wire: Wire, queue_name: str) -> None:
    stream = open_consumer(wire, queue_name, 100)
    stream.put(ConsumeRequest(open={"destination": queue_name}))
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    assert error_code(caught.value) == "INVALID_REQUEST"


def test_an_unknown_destination_is_refused(wire: Wire) -> None:
    stream = wire.stream("Consume")
    stream.put(ConsumeRequest(open={"destination": "nobody.made.this"}))
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_two_consumers_share_a_queue(wire: Wire, queue_name: str) -> None:
    one, two = (open_consumer(wire, queue_name, 50) for _ in range(2))
    wire.publisher(queue_name).send(batch_of(values_of(100)))
    assert sorted(values(receive(one, 50)) + values(receive(two, 50))) == values_of(100)


def asking(request_id: int, rows: int = 0) -> ConsumeRequest:
    return ConsumeRequest(ask={"request_id": request_id}, credit={"rows": rows, "bytes": 1 << 30})


def test_who_asks_is_answered_behind_everything_that_was_ready(wire: Wire, queue_name: str) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(100)))
    stream = open_consumer(wire, queue_name, 0)
    for number, rows in ((7, 30), (8, 0), (9, 100)):
        stream.put(asking(number, rows))
        expected = min(rows, 70) if rows == 100 else rows
        if expected:
            assert sum(len(batch) for _, batch in receive(stream, expected)) == expected
        header, batch = consumed(stream.next())
        assert (header.HasField("asked"), header.asked.request_id, batch) == (True, number, None)
    stream.end()
    assert list(stream) == []


def test_questions_are_answered_before_the_stream_ends(wire: Wire, queue_name: str) -> None:
    stream = open_consumer(wire, queue_name, 0)
    for number in range(1000):
        stream.put(asking(number))
    stream.end()
    assert [consumed(message)[0].asked.request_id for message in stream] == list(range(1000))


def test_hello_says_that_one_may_ask(wire: Wire) -> None:
    assert "ask" in wire.call("Hello", HelloRequest(client="test", protocol=1)).features


def test_deleting_a_queue_ends_its_streams(wire: Wire, queue_name: str) -> None:
    streams = [open_consumer(wire, queue_name, 10) for _ in range(3)]
    wire.call("DeleteDestination", DeleteDestinationRequest(name=queue_name))
    for stream in streams:
        with pytest.raises(grpc.RpcError, match="was deleted") as caught:
            stream.next()
        assert error_code(caught.value) == "UNKNOWN_DESTINATION"


def test_a_late_deletion_spares_the_successor(wire: Wire, queue_name: str) -> None:
    request = DeleteDestinationRequest(name=queue_name)
    request.destination_id = wire.call(
        "CreateDestination", CreateDestinationRequest(name=queue_name)
    ).destination_id
    wire.call("DeleteDestination", request)
    wire.call("DeleteDestination", request)
    wire.publisher(queue_name).send(batch_of(values_of(5)))
    wire.call("DeleteDestination", request)
    assert wire.stats(queue_name).ready_rows == 5
    request.destination_id = b"short"
    with pytest.raises(grpc.RpcError) as caught:
        wire.call("DeleteDestination", request)
    assert error_code(caught.value) == "INVALID_REQUEST"


def test_connected_consumers_are_listed_and_ended(wire: Wire, queue_name: str, module_broker: Any) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    stream = wire.stream("Consume")
    opening = {
        "destination": queue_name,
        "credit": {"rows": 4, "bytes": 1 << 30},
        "client": "a program " + "x" * 400,
    }
    stream.put(ConsumeRequest(open=opening))
    session = consumed(stream.next())[0].opened.session
    receive(stream, 4)
    with Wire(module_broker.address) as operator:
        (info,) = operator.call("ListConsumers", ListConsumersRequest(destination=queue_name)).consumers
        assert (info.session, info.connected, info.unacknowledged_rows) == (session, True, 4)
        assert info.client.startswith("a program x")
        assert len(info.client) <= 200
        assert info.peer.startswith("ipv4:127.0.0.1:")
        assert operator.call("ReleaseConsumer", ReleaseConsumerRequest(session=session)).returned_rows == 4
    with pytest.raises(grpc.RpcError, match="ended by an operator") as caught:
        stream.next()
    assert error_code(caught.value) == "SESSION_CLOSED"
    assert wire.stats(queue_name).ready_rows == 10


def test_sessions_of_different_lives_of_a_broker_differ(broker: Any, queue_name: str) -> None:
    numbers = []
    for _ in range(2):
        with Wire(broker.address) as wire:
            stream = wire.stream("Consume")
            stream.put(ConsumeRequest(open={"destination": queue_name, "create": True}))
            numbers.append(consumed(stream.next())[0].opened.session)
        broker.kill()
        broker.start()
    assert len(set(numbers)) == 2, "an operator who ends the first one must not end the second"
