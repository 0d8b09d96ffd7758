"""A run: one start of a streaming query, held open at the broker by a stream that lives as long as this
process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import grpc

from mq_wire.errors import BrokerUnavailable, InternalError, MqError, RetryLater, WrongBroker
from mq_wire.v1 import subscribe_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.connection import BACKOFF_FIRST_S, BACKOFF_LAST_S, GONE, Connection, Stream
from pyspark_mq.client.log import LOG

#: How long the source's calls go on trying while the broker is away: a restart is seconds, and a query that
#: fails needs a person.
SOURCE_RETRY_S: Final = 60.0
#: The same before the broker was ever reached: then the address is more likely to be wrong than the broker to
#: be restarting.
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

    The broker returns what the run planned and nobody read once the stream is gone, so nothing has to be
    cleaned up when Spark kills the process, which is how most queries stop.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number = 0
        self._cluster_id = b""
        self._error: MqError | None = None
        self._held = threading.Event()
        self._closed = threading.Event()
        self._stream: Stream | None = None
        forks.watch(self)
        threading.Thread(target=self._run, name="mq-run", daemon=True).start()

    def forked(self, parent: int) -> None:
        """In a child: refuses, and leaves the stream to the parent."""
        forks.keep_for_ever(self._stream)
        self._stream = None
        self._error = forks.inherited("the run", parent)
        self._held, self._closed = threading.Event(), threading.Event()
        self._held.set()

    @property
    def cluster_id(self) -> bytes:
        """Identity of the broker that gave the number, 16 bytes; waits and raises as `number` does."""
        self.number()
        return self._cluster_id

    def number(self) -> int:
        """Returns the run's number once the broker holds it.

        Raises:
            BrokerUnavailable: it stayed away.
            WrongBroker: another broker stands at the address now; a new run can be taken there.
            MqError: the broker does not hold this run any more.
        """
        timeout = patience_s(self._connection)
        if not self._held.wait(timeout):
            raise BrokerUnavailable(
                f"no broker answered at {self._connection.address} for {timeout:g} s: start it with `mq "
                f"broker`, or correct option broker"
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

    def _run(self) -> None:
        try:
            error = self._hold()
        except BaseException as bug:  # whoever waits for the number must hear of it
            LOG.exception("the thread that holds a run ended")
            error = InternalError(f"the thread that holds the run has ended: {bug!r}: please report it")
        if error is not None:
            self._error = error
            self._held.set()

    def _hold(self) -> MqError | None:
        """Holds the run until it is closed (None), or can be held no longer: returns why."""
        pauses = backoffs()
        error: MqError | None
        while not self._closed.is_set():
            endpoint = self._connection.endpoint
            try:
                cluster_id = self._connection.hello().cluster_id
                # Asked here as well: older brokers do not look at what the request says.
                if self._number and cluster_id != self._cluster_id:
                    raise WrongBroker(
                        f"another broker stands at {endpoint}: run {self._number} was taken from "
                        f"{self._cluster_id.hex()}, "
                        f"this is {cluster_id.hex()}: correct the address, or start with a new checkpoint"
                    )
                request = subscribe_pb2.HoldRunRequest(run=self._number, cluster_id=cluster_id)
                self._stream = stream = self._connection.stream("HoldRun", request)
                if self._closed.is_set():
                    stream.cancel()
                for event in stream:
                    self._number, self._cluster_id = event.run, cluster_id
                    self._connection.reached = True
                    self._held.set()
                    pauses = backoffs()
            except grpc.RpcError as failed:
                error = self._connection.error_of(failed, "HoldRun")
            except MqError as failure:
                error = failure
            else:
                error = None
            if self._closed.is_set():
                return None
            if error is not None:
                if not isinstance(error, (RetryLater, *GONE)):
                    return error
                self._connection.interrupted(endpoint)
            self._held.clear()
            self._closed.wait(next(pauses))
        return None
