"""Many consumers on one Consume stream: each has a session, errors and an end of its own, and none waits for
another.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from mq_broker import LocalBroker
from mq_wire.service import CLIENT_ID_KEY, METHODS
from mq_wire.v1.admin_pb2 import DeleteDestinationRequest
from mq_wire.v1.consume_pb2 import RELEASE, ConsumeHeader, ConsumeRequest
from mq_wire.v1.subscribe_pb2 import ListConsumersRequest, ReleaseConsumerRequest
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import Stream, Wire, batch_of, consumed, error_code, open_consumer, values_of


def opening(number: int, queue: str, rows: int = 100, size: int = 1 << 30, **fields: Any) -> ConsumeRequest:
    credit = {"rows": rows, "bytes": size}
    return ConsumeRequest(
        consumer=number, open={"destination": queue, "credit": credit, "create": True, **fields}
    )


def ranges(*pairs: tuple[int, int], partition: int = 0) -> list[dict[str, Any]]:
    return [{"partition": partition, "ranges": np.array(pairs, "<i8").tobytes()}]


def heard(stream: Stream) -> ConsumeHeader:
    return consumed(stream.next())[0]


def opened(wire: Wire, *queues: str, rows: int = 100) -> Stream:
    """A stream with one consumer of each queue, numbered from 1."""
    stream = wire.stream("Consume")
    for number, queue in enumerate(queues, 1):
        stream.put(opening(number, queue, rows))
        header = heard(stream)
        assert (header.consumer, header.HasField("opened")) == (number, True)
    return stream


def rows_of(stream: Stream, count: int) -> list[tuple[int, int, int]]:
    """(consumer, offset, delivery count) of the next `count` rows."""
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        header, batch = consumed(stream.next())
        assert batch is not None, header
        delivery = header.delivery
        offsets = (
            np.frombuffer(delivery.offsets, "<i8")
            if delivery.offsets
            else np.arange(delivery.base_offset, delivery.base_offset + delivery.rows)
        )
        counts = np.repeat(np.array(delivery.delivery_count), np.array(delivery.run_rows))
        found += zip([header.consumer] * delivery.rows, offsets.tolist(), counts.tolist(), strict=True)
    return found


def test_each_consumer_gets_its_rows_under_its_number(wire: Wire, queue_name: str) -> None:
    stream = opened(wire, queue_name, f"{queue_name}.other")
    wire.publisher(queue_name).send(batch_of(values_of(3)))
    wire.publisher(f"{queue_name}.other").send(batch_of(values_of(2)))
    assert sorted(rows_of(stream, 5)) == [*((1, at, 1) for at in range(3)), *((2, at, 1) for at in range(2))]
    stream.put(ConsumeRequest(consumer=2, acknowledge={"request_id": 9, "partitions": ranges((0, 2))}))
    header = heard(stream)
    assert (header.consumer, header.acknowledged.request_id, header.acknowledged.rows) == (2, 9, 2)
    stream.put(ConsumeRequest(consumer=1, ask={"request_id": 4}))
    header = heard(stream)
    assert (header.consumer, header.asked.request_id) == (1, 4)


def test_bytes_that_are_given_back_as_they_were_taken_last_for_ever(wire: Wire, queue_name: str) -> None:
    publisher = wire.publisher(queue_name)
    for number in range(10):
        publisher.send(batch_of([b"x" * (1000 + 777 * number)] * 30))
    stream = wire.stream("Consume")
    stream.put(opening(1, queue_name, 1000, 50_000, batch_rows_max=7))
    assert heard(stream).HasField("opened")
    rows = taken = 0
    while rows < 300:
        header = heard(stream)
        rows += header.delivery.rows
        taken += header.delivery.credit_bytes
        stream.put(ConsumeRequest(consumer=1, credit={"bytes": header.delivery.credit_bytes}))
    assert taken > 10 * 30 * 1000


def test_a_consumer_that_cannot_be_opened_leaves_the_others_alone(wire: Wire, queue_name: str) -> None:
    stream = opened(wire, queue_name)
    stream.put(ConsumeRequest(consumer=2, open={"destination": "no.such.queue", "credit": {"rows": 1}}))
    header = heard(stream)
    assert (header.consumer, header.closed, header.error.code) == (2, True, "UNKNOWN_DESTINATION")
    stream.put(ConsumeRequest(consumer=2, credit={"rows": 1}))  # it did not know yet
    wire.publisher(queue_name).send(batch_of(values_of(1)))
    assert rows_of(stream, 1) == [(1, 0, 1)]


def test_a_consumer_that_is_closed_gives_back_its_rows_and_the_others_go_on(
    wire: Wire, queue_name: str
) -> None:
    stream = opened(wire, queue_name)
    wire.publisher(queue_name).send(batch_of(values_of(10)))
    rows_of(stream, 10)
    stream.put(
        ConsumeRequest(
            consumer=1,
            handed_over={"partitions": ranges((0, 4))},
            acknowledge={"request_id": 1, "partitions": ranges((0, 2))},
            close=True,
        )
    )
    answers = [heard(stream) for _ in range(2)]
    assert answers[0].acknowledged.rows == 2
    assert (answers[1].consumer, answers[1].closed, answers[1].error.code) == (1, True, "")
    stream.put(opening(2, queue_name))
    assert heard(stream).HasField("opened")
    # Two were handed over and not acknowledged; the others were only on their way.
    assert rows_of(stream, 8) == [*((2, at, 2) for at in (2, 3)), *((2, at, 1) for at in range(4, 10))]


def test_the_end_of_the_stream_is_the_goodbye_of_all(wire: Wire, queue_name: str) -> None:
    stream = opened(wire, queue_name, queue_name)
    wire.publisher(queue_name).send(batch_of(values_of(1)))
    rows_of(stream, 1)
    stream.end()
    last = [consumed(message)[0] for message in stream]
    assert sorted((header.consumer, header.closed) for header in last) == [(1, True), (2, True)]
    assert rows_of(opened(wire, queue_name), 1) == [(1, 0, 1)]


def test_a_connection_that_breaks_counts_what_may_have_been_handed_over(
    wire: Wire, queue_name: str, module_broker: LocalBroker
) -> None:
    wire.publisher(queue_name).send(batch_of(values_of(2)))
    with Wire(module_broker.address) as other:
        assert [at for _, at, _ in rows_of(opened(other, queue_name, rows=2), 2)] == [0, 1]
    assert rows_of(opened(wire, queue_name), 2) == [(1, 0, 2), (1, 1, 2)]


def test_an_operator_ends_one_and_a_deleted_queue_another(wire: Wire, queue_name: str) -> None:
    stream = opened(wire, queue_name, f"{queue_name}.gone", f"{queue_name}.stays")
    (one,) = wire.call("ListConsumers", ListConsumersRequest(destination=queue_name)).consumers
    wire.call("ReleaseConsumer", ReleaseConsumerRequest(session=one.session))
    header = heard(stream)
    assert (header.consumer, header.closed, header.error.code) == (1, True, "SESSION_CLOSED")
    wire.call("DeleteDestination", DeleteDestinationRequest(name=f"{queue_name}.gone"))
    header = heard(stream)
    assert (header.consumer, header.closed, header.error.code) == (2, True, "UNKNOWN_DESTINATION")
    for number in (1, 2):
        stream.put(ConsumeRequest(consumer=number, ask={"request_id": 1}, close=True))
    wire.publisher(f"{queue_name}.stays").send(batch_of(values_of(1)))
    assert rows_of(stream, 1) == [(3, 0, 1)]


def test_rows_that_are_released_come_again(wire: Wire, queue_name: str) -> None:
    stream = opened(wire, queue_name, rows=4)
    wire.publisher(queue_name).send(batch_of(values_of(4)))
    rows_of(stream, 4)
    for request_id, (pair, uncounted) in enumerate((((0, 1), False), ((2, 4), True)), 1):
        settle = {
            "request_id": request_id,
            "verb": RELEASE,
            "partitions": ranges(pair),
            "uncounted": uncounted,
        }
        stream.put(ConsumeRequest(consumer=1, settle=settle))
        header = heard(stream)
        assert (header.acknowledged.request_id, header.acknowledged.rows) == (request_id, pair[1] - pair[0])
    stream.put(ConsumeRequest(consumer=1, credit={"rows": 10}))
    assert rows_of(stream, 3) == [(1, 0, 2), (1, 2, 1), (1, 3, 1)]
    stream.put(ConsumeRequest(consumer=1, settle={"request_id": 7, "verb": 4, "partitions": ranges((1, 2))}))
    header = heard(stream)
    assert (header.acknowledged.request_id, header.error.code) == (7, "UNSUPPORTED")


def test_credit_that_was_taken_back_brings_nothing(wire: Wire, queue_name: str) -> None:
    stream = opened(wire, queue_name)
    stream.put(ConsumeRequest(consumer=1, drain={"request_id": 3}))
    assert heard(stream).drained.request_id == 3
    wire.publisher(queue_name).send(batch_of(values_of(1)))
    stream.put(ConsumeRequest(consumer=1, ask={"request_id": 4}))
    assert heard(stream).HasField("asked")
    stream.put(ConsumeRequest(consumer=1, credit={"rows": 1, "bytes": 1}))
    assert rows_of(stream, 1) == [(1, 0, 1)]


def test_a_consumer_with_much_to_get_does_not_hold_up_the_others(wire: Wire, queue_name: str) -> None:
    stream = wire.stream("Consume")
    publisher = wire.publisher(f"{queue_name}.much")
    for _ in range(10):
        publisher.send(batch_of([b"x" * 64_000] * 20))
    stream.put(opening(1, f"{queue_name}.much", 1000, batch_rows_max=1))
    wire.publisher(queue_name).send(batch_of(values_of(1)))
    wait_until(lambda: wire.stats(f"{queue_name}.much").assigned_rows == 200)
    stream.put(opening(2, queue_name))
    wait_until(lambda: wire.stats(queue_name).assigned_rows == 1)
    order = [heard(stream).consumer for _ in range(203)]
    assert order.index(2) < 150


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (lambda queue: [opening(1, queue)], "next higher number"),
        (lambda queue: [opening(3, queue), opening(2, queue)], "next higher number"),
        (
            lambda queue: [ConsumeRequest(consumer=1, close=True), opening(1, queue)],
            "next higher number",
        ),
        (lambda queue: [ConsumeRequest(consumer=2, credit={"rows": 1})], "was never opened"),
        (lambda queue: [ConsumeRequest(credit={"rows": 1})], "open another stream"),
        (lambda queue: [opening(0, queue)], "open another stream"),
        (
            lambda queue: [ConsumeRequest(consumer=1, handed_over={"partitions": ranges((5, 2))})],
            "empty or begins below 0",
        ),
    ],
)
def test_numbers_that_cannot_be_end_the_stream(
    wire: Wire, queue_name: str, said: Callable[[str], list[ConsumeRequest]], words: str
) -> None:
    stream = opened(wire, queue_name)
    for request in said(queue_name):
        stream.put(request)
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert error_code(caught.value) == "INVALID_REQUEST"
    assert words in str(caught.value.details())
    # Nothing is left of it.
    assert wait_until(
        lambda: not wire.call("ListConsumers", ListConsumersRequest(destination=queue_name)).consumers
    )


def test_the_single_consumer_of_an_older_client_has_its_stream_alone(wire: Wire, queue_name: str) -> None:
    stream = open_consumer(wire, queue_name, 10)
    stream.put(opening(1, queue_name))
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert error_code(caught.value) == "INVALID_REQUEST"


def test_a_stream_and_a_broker_have_places_for_so_many(tmp_path: pathlib.Path) -> None:
    with (
        LocalBroker(tmp_path, sessions_max=30, sessions_per_stream_max=20) as broker,
        Wire(broker.address) as wire,
    ):
        one = opened(wire, *["orders"] * 20)
        one.put(opening(21, "orders"))
        header = heard(one)
        assert (header.consumer, header.closed, header.error.code) == (21, True, "BUSY")
        assert "sessions_per_stream_max) is 20" in header.error.message
        other = opened(wire, *["orders"] * 7)
        other.put(opening(8, "orders"))
        header = heard(other)
        assert (
            "27 consumers of this host are connected; the limit (sessions_max) is 30" in header.error.message
        )
        one.put(ConsumeRequest(consumer=1, close=True))
        assert heard(one).closed
        other.put(opening(9, "orders"))
        assert heard(other).HasField("opened")
        # A consumer of an older client is counted as a stream.
        assert open_consumer(wire, "orders", 1) is not None
        one.cancel()

        def answer() -> bool:
            number[0] += 1
            other.put(opening(number[0], "orders"))
            return heard(other).HasField("opened")

        number = [9]
        assert wait_until(answer)


def test_who_calls_is_told_to_operators(wire: Wire, queue_name: str) -> None:
    method = METHODS["Consume"]
    stub = wire.channel.stream_stream(method.path, method.serialize_request, method.parse_response)
    hostile = f"me {'x' * 300}"
    requests = Stream(
        lambda asked, timeout: stub(asked, timeout=timeout, metadata=((CLIENT_ID_KEY, hostile),))
    )
    requests.put(opening(1, f"{queue_name}.mine"))
    assert heard(requests).HasField("opened")
    (info,) = wire.call("ListConsumers", ListConsumersRequest(destination=f"{queue_name}.mine")).consumers
    assert info.client == hostile[:200]
