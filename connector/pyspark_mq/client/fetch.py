"""Reads one range of one partition: a stream with bounded credit, which goes on where it broke off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Final

import grpc

from mq_wire.errors import MqError, RetryLater, StorageFailed
from mq_wire.v1 import common_pb2, subscribe_pb2
from pyspark_mq.client.connection import GONE, Connection, Stream
from pyspark_mq.client.deliveries import fetched
from pyspark_mq.client.run import backoffs

#: How long a reader goes on trying while the broker is away.
FETCH_RETRY_S: Final = 60.0


class Fetch:
    """Rows of one range, of a durable consumer or a browse view. `start` it and iterate: it yields header and
    records of each delivery, in order. Reading goes on over broken connections, and raises what the broker
    refuses, or BrokerUnavailable when it stayed away for FETCH_RETRY_S.

    Args:
        connection: used, and left open.
        request: what is read; its `first` moves on with what was read.
        rows_max, bytes_max: most that is on its way, give or take a delivery.
    """

    def __init__(
        self, connection: Connection, request: subscribe_pb2.OpenFetch, rows_max: int, bytes_max: int
    ) -> None:
        self._connection = connection
        self._request = request
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._outgoing: SimpleQueue[subscribe_pb2.FetchRequest | None] = SimpleQueue()
        self._stream: Stream | None = None

    def start(self) -> None:
        """Asks for the rows from `request.first` on, so that they come while others are read."""
        self._outgoing = SimpleQueue()
        self._outgoing.put(
            subscribe_pb2.FetchRequest(
                open=self._request, credit_rows=self._rows_max, credit_bytes=self._bytes_max
            )
        )
        self._stream = self._connection.stream("Fetch", iter(self._outgoing.get, None))

    def close(self) -> None:
        """Ends the stream, wherever it is."""
        self._outgoing.put(None)
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def __iter__(self) -> Iterator[tuple[common_pb2.RowsHeader, memoryview]]:
        pauses = backoffs()
        deadline = time.monotonic() + FETCH_RETRY_S
        while True:
            endpoint = self._connection.endpoint
            try:
                for header, records in self._responses():
                    yield header, records
                    pauses, deadline = backoffs(), time.monotonic() + FETCH_RETRY_S
                return
            except (RetryLater, StorageFailed) as error:
                self.close()
                if time.monotonic() > deadline:
                    raise
                if isinstance(error, GONE):
                    self._connection.interrupted(endpoint)
            time.sleep(next(pauses))
            self.start()

    def _responses(self) -> Iterator[tuple[common_pb2.RowsHeader, memoryview]]:
        assert self._stream is not None
        rows = size = 0  # taken and not credited again
        answers = iter(self._stream)
        while True:
            try:
                answer = next(answers)
            except StopIteration:
                return
            except grpc.RpcError as error:
                raise self._named(self._connection.error_of(error, "Fetch")) from None
            header, records = fetched(answer)
            # Where to go on if the stream breaks from here on.
            self._request.first = header.first_delivery + header.rows
            rows, size = rows + header.rows, size + len(records)
            yield header, records
            if 2 * rows >= self._rows_max or 2 * size >= self._bytes_max:
                self._outgoing.put(subscribe_pb2.FetchRequest(credit_rows=rows, credit_bytes=size))
                rows = size = 0

    def _named(self, error: MqError) -> MqError:
        request = self._request
        return type(error)(
            f"partition {request.partition}, numbers {request.first} to {request.last}: {error}"
        )
