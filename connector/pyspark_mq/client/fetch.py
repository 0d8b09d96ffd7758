"""Reads one range of one partition: a stream with bounded credit, which goes on where it broke off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Final

from mq_wire.errors import MqError
from mq_wire.v1 import common_pb2, subscribe_pb2
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.deliveries import fetched
from pyspark_mq.client.healing_stream import HealingStream

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
        self._request = request
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._outgoing: SimpleQueue[subscribe_pb2.FetchRequest | None] = SimpleQueue()
        self._stream: Final = HealingStream(connection, "Fetch", "Fetch")

    def start(self) -> None:
        """Asks for the rows from `request.first` on, so that they come while others are read."""
        self._outgoing = SimpleQueue()
        self._outgoing.put(
            subscribe_pb2.FetchRequest(
                open=self._request, credit_rows=self._rows_max, credit_bytes=self._bytes_max
            )
        )
        self._stream.make(iter(self._outgoing.get, None))

    def close(self) -> None:
        """Ends the stream, wherever it is."""
        self._outgoing.put(None)
        self._stream.cancel()

    def __iter__(self) -> Iterator[tuple[common_pb2.RowsHeader, memoryview]]:
        deadline = time.monotonic() + FETCH_RETRY_S
        wait: float | None = None
        while True:
            try:
                if wait is not None:
                    time.sleep(wait)
                    self.start()
                for header, records in self._responses():
                    yield header, records
                    deadline = time.monotonic() + FETCH_RETRY_S
                return
            except MqError as error:
                self.close()
                if not self._stream.heals(error) or time.monotonic() > deadline:
                    raise
                wait = self._stream.wait_after(error)

    def _responses(self) -> Iterator[tuple[common_pb2.RowsHeader, memoryview]]:
        rows = size = 0  # taken and not credited again
        for answer in self._answers():
            header, records = fetched(answer)
            # Where to go on if the stream breaks from here on.
            self._request.first = header.first_delivery + header.rows
            rows, size = rows + header.rows, size + len(records)
            yield header, records
            if 2 * rows >= self._rows_max or 2 * size >= self._bytes_max:
                self._outgoing.put(subscribe_pb2.FetchRequest(credit_rows=rows, credit_bytes=size))
                rows = size = 0

    def _answers(self) -> Iterator[bytes]:
        try:
            yield from self._stream.answers()
        except MqError as error:
            request = self._request
            where = f"partition {request.partition}, numbers {request.first} to {request.last}"
            raise type(error)(f"{where}: {error}") from None
