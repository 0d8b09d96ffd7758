"""A run: one start of a streaming query, held open at the broker by a stream that lives as long as this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from pyspark_mq.forks import grpc

from mq_wire.errors import BrokerUnavailable, MqError, RetryLater
from mq_wire.v1 import subscribe_pb2
from pyspark_mq.connection import BACKOFF_FIRST_S, BACKOFF_LAST_S, GONE, Connection, Stream

#: How long the source's calls go on trying while the broker is away: a restart is seconds, and a query that fails needs a person.
SOURCE_RETRY_S: Final = 60.0
#: The same before the broker was ever reached: then the address is more likely to be wrong than the broker to be restarting.
FIRST_CONTACT_S: Final = 10.0


def backoffs() -> Iterator[float]:
    """Yields the waits between attempts, in seconds, for ever."""
    pause = BACKOFF_FIRST_S
    while True:
        yield pause
        pause = min(2 * pause, BACKOFF_LAST_S)


def patience_s(connection: Connection) -> float:
    """Returns for how many seconds the source waits for the broker: longer once it was reached."""
    return SOURCE_RETRY_S if connection.reached else FIRST_CONTACT_S


class Run:
    """Takes a run number and keeps it, over broken connections too.

    The broker returns what the run planned and nobody read once the stream is gone, so nothing has to be cleaned up when Spark kills
    the process, which is how most queries stop.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number = 0
        self._error: MqError | None = None
        self._held = threading.Event()
        self._closed = threading.Event()
        self._stream: Stream | None = None
        threading.Thread(target=self._hold, name="mq-run", daemon=True).start()

    def number(self) -> int:
        """Returns the run's number once the broker holds it.

        Raises:
            BrokerUnavailable: it stayed away.
            MqError: the broker does not hold this run any more.
        """
        timeout = patience_s(self._connection)
        if not self._held.wait(timeout):
            raise BrokerUnavailable(
                f"no broker answered at {self._connection.address} for {timeout:g} s: start it with `mq broker`, or correct option broker"
            )
        if self._error is not None:
            raise self._error
        return self._number

    def close(self) -> None:
        """Ends the run; what it planned and nobody read goes back."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _hold(self) -> None:
        pauses = backoffs()
        while not self._closed.is_set():
            endpoint = self._connection.endpoint
            try:
                self._stream = self._connection.stream("HoldRun", subscribe_pb2.HoldRunRequest(run=self._number))
                if self._closed.is_set():
                    self._stream.cancel()
                for event in self._stream:
                    self._number = event.run
                    self._connection.reached = True
                    self._held.set()
                    pauses = backoffs()
            except grpc.RpcError as failed:
                error = self._connection.error_of(failed, "HoldRun")
                if self._closed.is_set():
                    return
                if not isinstance(error, (RetryLater, *GONE)):
                    self._error = error
                    self._held.set()
                    return
                self._connection.interrupted(endpoint)
            except MqError as error:  # the connection was closed under this run
                self._error = error
                self._held.set()
                return
            self._held.clear()
            self._closed.wait(next(pauses))
