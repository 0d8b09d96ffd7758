"""A broker in trouble, as its clients see it: what it answers while it ends is no answer, and they wait for
its next start.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pyarrow as pa
import pytest

from mq_broker import LocalBroker
from mq_wire import errors, framing
from mq_wire.errors import CODE_METADATA_KEY, TABLE, MqError, SessionClosed, StorageFailed, StoreFull
from mq_wire.v1 import admin_pb2, common_pb2, consume_pb2, subscribe_pb2
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.columns import envelope_mask
from pyspark_mq.client.fetch import Fetch
from pyspark_mq.client.run import FIRST_CONTACT_S, SOURCE_RETRY_S, Run, patience_s

Spoil = Callable[[bytes], bytes | None]

_TROUBLES: list[type[MqError]] = [StorageFailed, StoreFull]


@dataclasses.dataclass
class Troubled(grpc.GenericRpcHandler):
    """A door before a real broker: the first call of `method` is refused with `error`, everything else is
    passed on.

    With `spoil`, answers of that call's stream go through it instead, until it says None: then the stream
    breaks off.
    """

    behind: grpc.Channel
    method: str
    error: type[MqError]
    spoil: Spoil | None = None
    refused: threading.Event = dataclasses.field(default_factory=threading.Event)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._pass_on(details.method, requests, context)
        )

    def _pass_on(
        self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        is_chosen = method.endswith(f"/{self.method}") and not self.refused.is_set()
        if is_chosen:
            self.refused.set()
            if self.spoil is None:
                context.set_trailing_metadata(((CODE_METADATA_KEY, self.error.code),))
                context.abort(grpc.StatusCode[TABLE[self.error]], "in trouble")
        call: Any = self.behind.stream_stream(method)
        answers = call(requests)
        context.add_callback(answers.cancel)
        try:
            for answer in answers:
                passed = self.spoil(answer) if is_chosen and self.spoil is not None else answer
                if passed is None:
                    answers.cancel()
                    context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
                yield passed
        except grpc.RpcError as error:
            metadata: Any = error.trailing_metadata() or ()
            context.set_trailing_metadata(tuple(metadata))
            context.abort(error.code(), error.details() or "")


class Door:
    """Serves one `Troubled`."""

    def __init__(
        self, broker: LocalBroker, method: str, error: type[MqError], spoil: Spoil | None = None
    ) -> None:
        self._channel = grpc.insecure_channel(broker.address.removeprefix("mq://"))
        self.trouble = Troubled(self._channel, method, error, spoil)
        self._server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[self.trouble])
        self.address = f"mq://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Door:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()


@pytest.mark.parametrize("error", _TROUBLES)
def test_calls_go_on_trying(module_broker: LocalBroker, error: type[MqError]) -> None:
    with Door(module_broker, "DescribeDestination", error) as door, Connection(door.address) as connection:
        request = admin_pb2.DescribeDestinationRequest(name="troubled.calls", create=True)
        assert connection.call("DescribeDestination", request).name == "troubled.calls"
        assert door.trouble.refused.is_set()


@pytest.mark.parametrize("error", _TROUBLES)
def test_calls_that_have_one_attempt_tell(module_broker: LocalBroker, error: type[MqError]) -> None:
    with Door(module_broker, "DescribeDestination", error) as door, Connection(door.address) as connection:
        request = admin_pb2.DescribeDestinationRequest(name="troubled.calls", create=True)
        with pytest.raises(error, match="in trouble"):
            connection.call("DescribeDestination", request, retry_timeout=None)


def test_a_run_is_held_again(module_broker: LocalBroker) -> None:
    with Door(module_broker, "HoldRun", StorageFailed) as door, Connection(door.address) as connection:
        assert patience_s(connection) == FIRST_CONTACT_S
        run = Run(connection)
        assert run.number() > 0
        assert door.trouble.refused.is_set()
        assert patience_s(connection) == SOURCE_RETRY_S, (
            "whatever is called next, the broker has been reached"
        )
        run.close()


@pytest.mark.parametrize("error", _TROUBLES)
def test_a_consumer_receives_on(module_broker: LocalBroker, error: type[MqError]) -> None:
    queue = f"troubled.consumer-{error.code}"
    with Producer(module_broker.address, queue=queue) as producer:
        producer.send(b"1").result(10)
    with Door(module_broker, "Consume", error) as door, Consumer(door.address, queue=queue) as consumer:
        message = consumer.receive(timeout=10)
        assert message is not None
        assert message.value == b"1"
        assert door.trouble.refused.is_set()


def test_a_fetch_goes_on(module_broker: LocalBroker) -> None:
    queue = "troubled.fetch"
    with Producer(module_broker.address, queue=queue) as producer:
        producer.send_batch(pa.record_batch({"value": [b"1", b"2"]})).result(10)
    with Door(module_broker, "Fetch", StorageFailed) as door, Connection(door.address) as connection:
        run = Run(connection)
        who = subscribe_pb2.ConsumerRef(destination=queue, consumer="reader", run=run.number())
        plan = connection.call(
            "Plan",
            subscribe_pb2.PlanRequest(who=who, start=common_pb2.Positions(), max_rows=10, max_bytes=1 << 20),
        )
        who.cluster_id, who.destination_id, who.incarnation = (
            plan.cluster_id,
            plan.destination_id,
            plan.incarnation,
        )
        opened = connection.call(
            "OpenRange", subscribe_pb2.OpenRangeRequest(who=who, start=common_pb2.Positions(), end=plan.end)
        )
        rows = 0
        for part in opened.parts:
            request = subscribe_pb2.OpenFetch(
                who=who,
                partition=part.partition,
                first=part.first,
                last=part.last,
                columns=envelope_mask(("value",)),
            )
            fetch = Fetch(connection, request, rows_max=262_144, bytes_max=16 << 20)
            fetch.start()
            rows += sum(header.rows for header, _ in fetch)
            fetch.close()
        assert rows == 2
        assert door.trouble.refused.is_set()
        run.close()


def test_an_acknowledgement_that_failed_storage_answers_is_as_one_that_was_not_answered(
    module_broker: LocalBroker,
) -> None:
    queue = "troubled.acknowledgement"
    with Producer(module_broker.address, queue=queue) as producer:
        producer.send(b"1").result(10)
    answered = threading.Event()

    def spoil(message: bytes) -> bytes | None:
        if answered.is_set():
            return None
        header = consume_pb2.ConsumeHeader.FromString(bytes(framing.split(message)[0]))
        if not header.HasField("acknowledged"):
            return message
        answered.set()
        header.error.code, header.error.message = StorageFailed.code, "in trouble"
        return framing.join(header.SerializeToString())

    with (
        Door(module_broker, "Consume", StorageFailed, spoil) as door,
        Consumer(door.address, queue=queue) as consumer,
    ):
        message = consumer.receive(timeout=10)
        assert message is not None
        consumer.acknowledge(message)
        with pytest.raises(errors.SendOutcomeUnknown):
            consumer.flush(timeout=0.5)
        assert answered.is_set()
        # A second answer breaks the stream, as the end of the broker does.
        with Producer(module_broker.address, queue=queue) as producer:
            producer.send(b"2").result(10)
        with pytest.raises(SessionClosed, match="may be delivered again"):
            consumer.flush(timeout=10)
        again = consumer.receive(timeout=10)
        assert again is not None
        assert again.value == b"2"
