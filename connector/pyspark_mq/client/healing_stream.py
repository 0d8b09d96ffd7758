"""A streaming call that is made again whenever it breaks: the only place that knows how."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import grpc

from mq_wire.errors import MqError, RetryLater
from mq_wire.v1 import admin_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.backoff import BACKOFF, Backoff
from pyspark_mq.client.connection import CALL_TIMEOUT_S, GONE, Connection, Stream

#: How long the thread of a stream that was asked to end may take for its last words.
LAST_WORDS_S: Final = 1.0


class Talk(Protocol):
    """What is said on a stream, for `HealingStream.serve`: called on its thread, without locks."""

    def requests(self, hello: admin_pb2.HelloResponse) -> Any:
        """Returns what is to be sent on a new stream to this broker: one request, or an iterator of them.

        Raises:
            MqError: nothing is to be said to this broker.
        """
        ...

    def take(self, answer: Any) -> None:
        """Takes what the broker says."""
        ...

    def broke(self, error: MqError | None) -> MqError | None:
        """The stream is over, or could not be made. Returns why, in better words where there are any; None
        where the broker ended it in good order.
        """
        ...


class HealingStream:
    """One streaming method of the broker, on one stream after the other.

    Either a thread serves it (`serve`), or who reads makes it and decides how long to go on (`make`,
    `answers`, `wait_after`).

    Args:
        connection: used, and left open.
        method: name in `mq.v1.Broker`.
        what: what was being done, for errors.
        heals: errors after which the call is made again; all others are for good.
        backoff: waits between failures; an answer ends a row of them.
        hello_timeout: seconds that the broker may take to say who it is.
    """

    def __init__(
        self,
        connection: Connection,
        method: str,
        what: str,
        *,
        heals: tuple[type[MqError], ...] = (RetryLater, *GONE),
        backoff: Backoff = BACKOFF,
        hello_timeout: float = CALL_TIMEOUT_S,
    ) -> None:
        self._connection: Final = connection
        self._method: Final = method
        self._what: Final = what
        self._heals: Final = heals
        self._backoff: Final = backoff
        self._hello_timeout: Final = hello_timeout
        self._waits: Iterator[float] | None = None  # of the present row of failures
        self._endpoint = ""
        self._call: Stream | None = None
        self._stopped = threading.Event()
        self._cancelled = False

    def forked(self) -> None:
        """In a child: leaves the call to the parent."""
        forks.keep_for_ever(self._call)
        self._call = None
        self._stopped = threading.Event()
        self._stopped.set()

    # -- one stream ----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a stream is there."""
        return self._call is not None

    def make(self, requests: Any) -> None:
        """Makes the call.

        Raises:
            BrokerUnavailable, ClientClosed: as `Connection.stream`.
        """
        self._endpoint = self._connection.endpoint
        self._call = self._connection.stream(self._method, requests)
        if self._cancelled and self._stopped.is_set():
            self.cancel()

    def answers(self) -> Iterator[Any]:
        """Yields what the broker says on the stream that was made.

        Raises:
            MqError: the stream broke.
        """
        call = self._call
        assert call is not None, "make the stream first"
        try:
            for answer in call:
                if self._waits is not None:
                    self._waits = None
                self._connection.reached = True
                yield answer
        except grpc.RpcError as failure:
            raise self._connection.error_of(failure, self._what) from None

    def cancel(self) -> None:
        """Ends the present stream from this side; where `stop` was called, also one that is just being
        made.
        """
        self._cancelled = True
        call = self._call
        if call is not None:
            call.cancel()

    # -- when it breaks ------------------------------------------------------------------------------------

    def heals(self, error: MqError) -> bool:
        """Whether another attempt may succeed."""
        return isinstance(error, self._heals)

    def wait_after(self, error: MqError | None) -> float:
        """The stream broke: tells the connection, and returns for how many seconds to wait before the next
        attempt.
        """
        if error is not None:
            self._connection.interrupted(self._endpoint)
        if self._waits is None:
            self._waits = self._backoff.waits()
        return next(self._waits)

    # -- on a thread ---------------------------------------------------------------------------------------

    def serve(
        self,
        talk: Talk,
        wanted: Callable[[], bool] | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> MqError | None:
        """Makes one stream after the other and has `talk` talk on it. Returns why it broke for good, or None
        once none is wanted any more.

        Args:
            wanted: asked before each stream, may wait; None = until `stop`.
            pause: waits so many seconds between two of them; None = until `stop`.
        """
        while not self._stopped.is_set() and (wanted is None or wanted()):
            error = talk.broke(self._once(talk))
            if self._stopped.is_set():
                break
            if error is not None and not self.heals(error):
                return error
            wait = self.wait_after(error)
            if pause is None:
                self._stopped.wait(wait)
            else:
                pause(wait)
        return None

    def _once(self, talk: Talk) -> MqError | None:
        self._endpoint = self._connection.endpoint
        try:
            self.make(talk.requests(self._connection.hello(timeout=self._hello_timeout)))
            for answer in self.answers():
                talk.take(answer)
        except MqError as error:
            return error
        finally:
            self._call = None
        return None

    def stop(self) -> None:
        """Lets `serve` make no further stream. The present one goes on to its end."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def leave(self, thread: threading.Thread | None) -> None:
        """Waits a moment until `thread`, which serves, has come to an orderly end; a broker that does not
        answer is not waited for.
        """
        if thread is not None and thread is not threading.current_thread():
            thread.join(LAST_WORDS_S)
            if thread.is_alive():
                self.cancel()
