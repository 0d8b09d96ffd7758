"""Clients of a broker that answers nonsense: they say so in time, no thread dies in silence, and nothing is
taken for done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from mq_wire import envelope, framing
from mq_wire.errors import InternalError, InvalidRecords, MqError
from mq_wire.service import METHODS, SERVICE_NAME
from mq_wire.v1 import admin_pb2, common_pb2, consume_pb2, produce_pb2
from pyspark_mq import Consumer, Producer
from spark_tests.hostile.traffic import rows

_SIMPLE = rows(3).select(["value"])


class LyingBroker:
    """Says hello as one should; what it sends on Consume and Publish is up to the test."""

    def __init__(
        self, consume: Callable[[], Iterator[bytes]], publish: Callable[[], Iterator[bytes]]
    ) -> None:
        hello = admin_pb2.HelloResponse(cluster_id=b"\xcc" * 16, version="0", protocol=1)
        described = admin_pb2.Destination(name="q", destination_id=bytes(16), partitions=[{"partition": 0}])
        single = {"Hello": hello.SerializeToString(), "DescribeDestination": described.SerializeToString()}
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(lambda _, context, answer=answer: answer)
            for name, answer in single.items()
        }
        handlers["Send"] = grpc.unary_unary_rpc_method_handler(lambda _, context: next(publish(), b""))
        for name, answers in (("Consume", consume), ("Publish", publish)):
            handlers[name] = grpc.stream_stream_rpc_method_handler(
                lambda requests, context, answers=answers: self._behind_one(requests, answers)
            )
        assert handlers.keys() <= METHODS.keys()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        self.address = f"mq://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    @staticmethod
    def _behind_one(requests: Iterator[bytes], answers: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        next(requests)
        yield from answers()
        yield from (b"" for _ in requests)  # open until the client goes

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def lying() -> Iterator[Callable[..., str]]:
    """Starts a broker that sends these bytes on Consume or Publish; returns its address."""
    started: list[LyingBroker] = []

    def start(consume: tuple[bytes, ...] = (), publish: tuple[bytes, ...] = ()) -> str:
        started.append(LyingBroker(lambda: iter(consume), lambda: iter(publish)))
        return started[-1].address

    yield start
    for broker in started:
        broker.close()


def opened() -> bytes:
    return framing.join(
        consume_pb2.ConsumeHeader(opened={"session": 1, "destination_id": bytes(16)}).SerializeToString()
    )


def delivery(records: bytes | None = None, **fields: Any) -> bytes:
    run = {
        "run_rows": [3],
        "append_time_us": [1],
        "priority": [4],
        "delivery_count": [1],
        "producer": [0],
        "producers": ["p"],
    }
    header = common_pb2.RowsHeader(
        **{"rows": 3, "columns": envelope.VALUE, "sequence_shift": [0], **run, **fields}
    )
    return framing.join(
        consume_pb2.ConsumeHeader(delivery=header).SerializeToString(),
        records or memoryview(envelope.encode(_SIMPLE)),
    )


_LIES: dict[str, bytes] = {
    "no message": b"\xff" * 50,
    "no header": framing.join(b"\xff\xff"),
    "no Arrow": delivery(b"\x00" * 200),
    "other rows": delivery(rows=4),
    "more runs than rows": delivery(
        run_rows=[3, 3], append_time_us=[1, 1], priority=[4, 4], delivery_count=[1, 1], producer=[0, 0]
    ),
    "partition 2^32 - 1": delivery(partition=2**32 - 1),
    "offset 2^64 - 1": delivery(base_offset=2**64 - 1),
    "half an offset": delivery(offsets=b"1234"),
    "priority 2^31": delivery(priority=[2**31]),
    "delivery count 2^32 - 1": delivery(delivery_count=[2**32 - 1]),
    "times beyond every calendar": delivery(append_time_us=[2**63 - 1]),
    "a producer that is not there": delivery(producer=[7]),
    "columns of another age": delivery(columns=2**60),
}


def test_an_honest_delivery_arrives(lying: Callable[..., str]) -> None:
    with Consumer(lying((opened(), delivery())), queue="q") as consumer:
        message = consumer.receive(timeout=20)
        assert message is not None
        assert message.value == b"value-0"


@pytest.mark.parametrize("lie", _LIES)
def test_a_consumer_says_so(lying: Callable[..., str], lie: str) -> None:
    with Consumer(lying((opened(), _LIES[lie])), queue="q") as consumer, pytest.raises(MqError) as caught:
        consumer.receive(timeout=20)
    assert isinstance(caught.value, (InternalError, InvalidRecords)) or caught.value.code == "UNSUPPORTED"


def receipt(**fields: Any) -> bytes:
    return produce_pb2.PublishResponse(request_id=1, receipt=fields).SerializeToString()


_NO_RECEIPTS: dict[str, bytes] = {
    "no message": b"\xff" * 9,
    "nothing": b"",
    "of another request": produce_pb2.PublishResponse(request_id=99, receipt={"rows": 1}).SerializeToString(),
    "neither receipt nor error": produce_pb2.PublishResponse(request_id=1).SerializeToString(),
    "of other rows": receipt(rows=2),
    "of another partition": receipt(rows=1, partition=3),
}


def test_an_honest_receipt_is_one(lying: Callable[..., str]) -> None:
    with Producer(lying(publish=(receipt(rows=1, base_offset=7),)), queue="q", send_timeout=5.0) as producer:
        assert producer.send(b"x").result(timeout=20).offset == 7


@pytest.mark.parametrize("answer", _NO_RECEIPTS.values(), ids=_NO_RECEIPTS)
def test_a_producer_takes_no_nonsense_for_a_receipt(lying: Callable[..., str], answer: bytes) -> None:
    producer = Producer(lying(publish=(answer,)), queue="q", send_timeout=1.0)
    with pytest.raises(MqError):
        producer.send(b"x").result(timeout=20)
    with contextlib.suppress(MqError):
        producer.close()
