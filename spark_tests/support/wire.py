"""A bare gRPC client, so that these tests see the wire and nothing else."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc
import pyarrow as pa

from mq_wire import envelope, framing
from mq_wire.errors import CODE_METADATA_KEY
from mq_wire.limits import RPC_BYTES_MAX
from mq_wire.service import METHODS
from mq_wire.v1.admin_pb2 import DestinationStats, HelloRequest, HelloResponse, StatsRequest
from mq_wire.v1.common_pb2 import Positions, RowsHeader
from mq_wire.v1.consume_pb2 import ConsumeHeader, ConsumeRequest
from mq_wire.v1.produce_pb2 import PublishHeader, PublishResponse
from mq_wire.v1.subscribe_pb2 import ConsumerRef, FetchRequest, HoldRunRequest, OpenRangeRequest, PlanRequest

TIMEOUT_S: Final = 20.0
#: A stream ends after so long, whatever it has done: on a machine that does much else a test may read from it
#: for minutes.
STREAM_TIMEOUT_S: Final = 300.0


class Wire:
    """One channel to a broker."""

    def __init__(self, address: str) -> None:
        target = address.removeprefix("mq://")
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", RPC_BYTES_MAX)]
        self.channel = grpc.insecure_channel(
            target, options=[*options, ("grpc.use_local_subchannel_pool", 1)]
        )
        self._stubs = {name: self._stub(name) for name in METHODS}

    def _stub(self, name: str) -> Any:
        method = METHODS[name]
        sent = "stream" if method.client_streaming else "unary"
        answered = "stream" if method.server_streaming else "unary"
        return getattr(self.channel, f"{sent}_{answered}")(
            method.path, method.serialize_request, method.parse_response
        )

    def call(self, name: str, request: Any) -> Any:
        return self._stubs[name](request, timeout=TIMEOUT_S)

    def hello(self) -> HelloResponse:
        """Asks who is there, and again until the connection is accepted."""
        request = HelloRequest(client="test", protocol=1)
        answer: HelloResponse = self._stubs["Hello"](request, timeout=TIMEOUT_S, wait_for_ready=True)
        return answer

    def stats(self, destination: str, *, wait_for_ready: bool = False) -> DestinationStats:
        """What the broker says of a destination; on request not before it accepts the connection."""
        request = StatsRequest(destination=destination)
        stats: DestinationStats = self._stubs["Stats"](
            request, timeout=TIMEOUT_S, wait_for_ready=wait_for_ready
        ).destination
        return stats

    def stream(self, name: str) -> Stream:
        return Stream(self._stubs[name])

    def hold(self, request: Any) -> Any:
        return self._stubs["HoldRun"](request, timeout=TIMEOUT_S)

    def publisher(self, destination: str) -> Publisher:
        return Publisher(self.stream("Publish"), destination)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


class Stream:
    """A two-way stream: put requests, iterate answers."""

    def __init__(self, stub: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = stub(iter(self._requests.get, None), timeout=STREAM_TIMEOUT_S)

    def put(self, request: Any) -> None:
        self._requests.put(request)

    def end(self) -> None:
        self._requests.put(None)

    def next(self) -> Any:
        return next(self.call)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.call)

    def cancel(self) -> None:
        self.call.cancel()
        self.end()


class Publisher:
    """One producer on one Publish stream, which counts its sequences."""

    def __init__(self, stream: Stream, destination: str) -> None:
        self.stream = stream
        self.destination = destination
        self.producer_id = uuid.uuid4().hex
        self.requests = 0
        self.sequences: dict[int, int] = {}

    def put(self, batch: pa.RecordBatch, partition: int = 0, **fields: Any) -> int:
        columns = envelope.columns_of(batch.schema)
        first = self.sequences.get(partition, 0)
        self.sequences[partition] = first + batch.num_rows
        fields = {
            "partition": partition,
            "first_sequence": first,
            "rows": batch.num_rows,
            "columns": columns,
            **fields,
        }
        return self.put_raw(envelope.encode(batch), **fields)

    def put_raw(self, records: Any, **fields: Any) -> int:
        self.requests += 1
        fields = {
            "destination": self.destination,
            "producer_id": self.producer_id,
            "request_id": self.requests,
            **fields,
        }
        self.stream.put(framing.join(PublishHeader(**fields).SerializeToString(), memoryview(records)))
        return self.requests

    def answer(self) -> PublishResponse:
        response: PublishResponse = self.stream.next()
        return response

    def send(self, batch: pa.RecordBatch, partition: int = 0, **fields: Any) -> PublishResponse:
        request = self.put(batch, partition, **fields)
        response = self.answer()
        assert response.request_id == request
        return response


def batch_of(values: Sequence[bytes], **columns: Any) -> pa.RecordBatch:
    """A record batch of the envelope; `columns` beside the values as lists."""
    arrays = {"value": values, **columns}
    fields = [field for field in envelope.COLUMNS if field.name in arrays]
    return pa.record_batch(
        [pa.array(arrays[field.name], field.type) for field in fields], schema=pa.schema(fields)
    )


def values_of(count: int, start: int = 0) -> list[bytes]:
    return [f"value-{number:08d}".encode() for number in range(start, start + count)]


def consumed(message: bytes) -> tuple[ConsumeHeader, pa.RecordBatch | None]:
    header_bytes, records = framing.split(message)
    header = ConsumeHeader.FromString(bytes(header_bytes))
    if not header.HasField("delivery"):
        return header, None
    return header, envelope.decode(records, header.delivery.columns, header.delivery.rows)


def fetched(message: bytes) -> tuple[RowsHeader, pa.RecordBatch]:
    header_bytes, records = framing.split(message)
    header = RowsHeader.FromString(bytes(header_bytes))
    return header, envelope.decode(records, header.columns, header.rows)


def open_consumer(wire: Wire, destination: str, rows: int, size: int = 1 << 30) -> Stream:
    stream = wire.stream("Consume")
    stream.put(
        ConsumeRequest(
            open={"destination": destination, "credit": {"rows": rows, "bytes": size}, "create": True}
        )
    )
    header, _ = consumed(stream.next())
    assert header.opened.destination_id
    return stream


def open_fetch(wire: Wire, rows: int, size: int = 1 << 30, **fields: Any) -> Stream:
    stream = wire.stream("Fetch")
    stream.put(FetchRequest(open=fields, credit_rows=rows, credit_bytes=size))
    return stream


def error_code(error: grpc.RpcError) -> str:
    """The stable code beside a status, or "" where there is none."""
    metadata: dict[str, Any] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    return str(metadata.get(CODE_METADATA_KEY, ""))


class Query:
    """One Spark query as the broker sees it."""

    def __init__(self, wire: Wire, destination: str) -> None:
        self.wire = wire
        self.run_stream = wire.hold(HoldRunRequest())
        self.run = next(self.run_stream).run
        self.who = ConsumerRef(destination=destination, run=self.run)
        self.start = Positions()

    def plan(self, **fields: Any) -> Any:
        reply = self.wire.call("Plan", PlanRequest(who=self.who, start=self.start, create=True, **fields))
        if not reply.idle:
            self.who.cluster_id, self.who.destination_id, self.who.incarnation = (
                reply.cluster_id,
                reply.destination_id,
                reply.incarnation,
            )
        return reply

    def open(self, end: Positions) -> list[Any]:
        return list(
            self.wire.call("OpenRange", OpenRangeRequest(who=self.who, start=self.start, end=end)).parts
        )

    def fetch(self, part: Any, rows: int = 1 << 30, size: int = 1 << 30, **fields: Any) -> Any:
        return open_fetch(
            self.wire,
            rows,
            size,
            who=self.who,
            partition=part.partition,
            first=part.first,
            last=part.last,
            **fields,
        )
