"""One size limit for a message, however it is sent, and room for a key and headers around what was
received.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mq_wire.envelope import HEADERS_TYPE
from mq_wire.errors import LimitExceeded
from mq_wire.limits import HEADERS_PER_ROW_MAX, MESSAGE_BYTES_MAX, VALUE_BYTES_MAX
from pyspark_mq import Consumer, Producer
from pyspark_mq.spark.options import SinkOptions
from pyspark_mq.spark.staging import stage

if TYPE_CHECKING:
    from mq_broker import LocalBroker

TEXTS = {"message_id": "m", "correlation_id": "c", "reply_to": "r", "type": "t", "trace_context": "0"}
#: As many headers as there may be, in few bytes: what Arrow needs beside them is largest.
HEADERS = [(f"{number:03d}", b"") for number in range(HEADERS_PER_ROW_MAX)]
HEADERS_BYTES = 3 * HEADERS_PER_ROW_MAX


def largest(value_bytes: int) -> dict[str, Any]:
    """Returns a message of exactly MESSAGE_BYTES_MAX with every column."""
    key = b"k" * (MESSAGE_BYTES_MAX - value_bytes - HEADERS_BYTES - len(TEXTS))
    return {"value": b"v" * value_bytes, "key": key, "headers": HEADERS, **TEXTS}


def as_batch(message: dict[str, Any]) -> pa.RecordBatch:
    columns = {name: pa.array([content]) for name, content in message.items() if name != "headers"}
    if "headers" in message:
        columns["headers"] = pa.array(
            [[{"key": name, "value": content} for name, content in message["headers"]]], HEADERS_TYPE
        )
    return pa.record_batch(columns)


@pytest.mark.parametrize("value_bytes", [VALUE_BYTES_MAX, 1])
def test_the_largest_message_passes_by_every_way(module_broker: LocalBroker, value_bytes: int) -> None:
    queue = f"largest-{value_bytes}"
    message = largest(value_bytes)
    with (
        Producer(module_broker.address, queue=queue) as producer,
        Consumer(module_broker.address, queue=queue) as consumer,
    ):
        producer.send(**message).result(timeout=30)
        producer.send_batch(as_batch(message)).result(timeout=30)
        for _ in range(2):
            received = consumer.receive(timeout=30)
            assert received is not None
            assert (received.value, received.key) == (message["value"], message["key"])
            assert list(received.headers.items()) == HEADERS
            consumer.acknowledge(received)
    options = SinkOptions.parse({"broker": module_broker.address, "queue": queue})
    assert stage(iter([as_batch(message)]), options, socket.gethostname()).rows == 1


@pytest.mark.parametrize(
    "message",
    [{"value": b"v" * (VALUE_BYTES_MAX + 1)}, largest(1000) | {"reply_to": "rr"}],
    ids=["value", "whole"],
)
def test_one_byte_more_is_refused_in_the_same_words(
    module_broker: LocalBroker, message: dict[str, Any]
) -> None:
    options = SinkOptions.parse({"broker": module_broker.address, "queue": "too-large"})
    said = set()
    with Producer(module_broker.address, queue="too-large") as producer:
        for send in (
            lambda: producer.send(**message),
            lambda: producer.send_batch(as_batch(message)),
            lambda: stage(iter([as_batch(message)]), options, socket.gethostname()),
        ):
            with pytest.raises(LimitExceeded) as refused:
                send()
            said.add(str(refused.value))
        assert producer.rows_stored == 0
    assert len(said) == 1
    assert str(MESSAGE_BYTES_MAX) in said.pop()


def test_what_was_received_can_be_sent_again_with_a_key_and_headers(module_broker: LocalBroker) -> None:
    with (
        Producer(module_broker.address, queue="again") as producer,
        Consumer(module_broker.address, queue="again") as consumer,
    ):
        producer.send(b"v" * VALUE_BYTES_MAX).result(timeout=30)
        received = consumer.receive(timeout=30)
        assert received is not None
        producer.send(
            received.value, key=b"k" * 255, headers={"origin": b"o" * 1000, "why": b"w" * 10_000}
        ).result(timeout=30)
