"""Publish streams that a thread has to itself while it waits for one answer: it writes the request and takes
the answer, with no thread of ours between it and gRPC.

gRPC's own way to write on a stream is an iterator that a thread of gRPC's pulls, which costs a change of
threads a request. The one below it is not public: where it is missing or has changed, `is_possible` is False
and everybody uses the unary `Send`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

import grpc

from mq_wire.errors import BrokerUnavailable, Busy, InternalError, MqError
from mq_wire.v1.produce_pb2 import PublishResponse
from pyspark_mq.client import forks
from pyspark_mq.client.connection import CALL_TIMEOUT_S, GONE, Connection

#: What a broker has among its features that answers awaited requests on the thread that reads them.
FEATURE: Final = "awaited"
#: Publish streams of a connection, those that producers share included.
STREAMS_MAX: Final = 4
#: After a stream could not be had, `Send` is used for so long.
_PAUSE_S: Final = 10.0
#: How long an answer may take: after that the batch goes again on the shared stream, which heals.
_ANSWER_S: Final = 5.0
#: How long the reason may take that a stream has ended.
_REASON_S: Final = 1.0


class LoneStreams:
    """The lone streams of a connection. Thread-safe.

    Args:
        connection: used, and left open.
        others: how many Publish streams of the connection are open beside these.
    """

    def __init__(self, connection: Connection, others: Callable[[], int]) -> None:
        self._connection, self._others = connection, others
        self._lock = threading.Lock()
        self._idle: list[LoneStream] = []
        self._open = 0
        self._not_before = 0.0
        forks.watch(self)

    def forked(self, parent: int) -> None:
        """In a child: leaves the streams to the parent."""
        self._lock = threading.Lock()
        forks.keep_for_ever(self._idle)
        self._idle, self._not_before = [], float("inf")

    @property
    def open(self) -> int:
        """How many there are."""
        return self._open

    def ask(self, message: bytes, timeout: float) -> PublishResponse | None:
        """Sends a request and returns its answer; None where the broker takes no such stream now.

        Raises:
            MqError: the stream broke, or there was no answer within `timeout` seconds: the request may have
                been taken or not.
        """
        stream = self._borrow(min(timeout, CALL_TIMEOUT_S))
        if stream is None:
            return None
        answer = None
        try:
            answer = stream.ask(message, timeout)
        except Busy:
            self._not_before = time.monotonic() + _PAUSE_S  # it never took the stream
        except MqError as error:
            if isinstance(error, GONE):
                self._connection.interrupted(stream.endpoint)
            raise
        finally:
            self._give_back(stream, is_good=answer is not None)
        return answer

    def trim(self) -> None:
        """Ends streams that nobody uses, where there are too many beside the others."""
        with self._lock:
            unused = [self._idle.pop() for _ in range(min(len(self._idle), self._excess()))]
            self._open -= len(unused)
        for stream in unused:
            stream.end()

    def end(self) -> None:
        """Ends the streams that nobody uses."""
        with self._lock:
            unused, self._idle = self._idle, []
            self._open -= len(unused)
        for stream in unused:
            stream.end()

    def _excess(self) -> int:
        return max(self._open + self._others() - STREAMS_MAX, 0)

    def _borrow(self, timeout: float) -> LoneStream | None:
        with self._lock:
            while self._idle:
                stream = self._idle.pop()
                if stream.is_open:
                    return stream
                self._open -= 1
            if time.monotonic() < self._not_before or self._open + self._others() >= STREAMS_MAX:
                return None
            self._open += 1
        made: LoneStream | None = None
        try:
            if FEATURE in self._connection.hello(timeout=timeout).features:
                made = LoneStream.begin(self._connection)
            if made is None:
                self._not_before = time.monotonic() + _PAUSE_S
        finally:
            if made is None:
                with self._lock:
                    self._open -= 1
        return made

    def _give_back(self, stream: LoneStream, *, is_good: bool) -> None:
        with self._lock:
            is_kept = is_good and stream.is_open and not self._excess()
            if is_kept:
                self._idle.append(stream)
            else:
                self._open -= 1
        if not is_kept:
            stream.end(at_once=not is_good)


class LoneStream:
    """One Publish stream with one request at a time. Made by `begin`; for one thread at a time.

    Attributes:
        endpoint: where it leads.
    """

    def __init__(self, connection: Connection, send: Any, receive: Any) -> None:
        self.endpoint: Final = connection.endpoint
        self._connection, self._send, self._receive = connection, send, receive
        self._answers: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        #: For gRPC's thread, which has nothing to send but the end.
        self._last: SimpleQueue[None] = SimpleQueue()
        self._over = threading.Event()
        call: Any = connection.stream("Publish", iter(self._last.get, None))
        self._call = call
        self._operate: Any = getattr(getattr(call, "_call", None), "operate", None)
        if not self._call.add_callback(self._ended):
            self._ended()

    @classmethod
    def begin(cls, connection: Connection) -> LoneStream | None:
        """Returns a new stream; None where this gRPC has no way to write on it.

        Raises:
            BrokerUnavailable, ClientClosed: as `Connection.stream`.
        """
        core = getattr(grpc, "_cython", None)
        core = getattr(core, "cygrpc", None)
        send = getattr(core, "SendMessageOperation", None)
        receive = getattr(core, "ReceiveMessageOperation", None)
        if send is None or receive is None:
            return None
        stream = cls(connection, send, receive)
        if stream._operate is None:
            stream.end(at_once=True)
            return None
        return stream

    @property
    def is_open(self) -> bool:
        """Whether the broker has not ended it, as far as is known."""
        return not self._over.is_set()

    def ask(self, message: bytes, timeout: float) -> PublishResponse:
        """Sends a request and returns its answer.

        Raises:
            MqError: why there is none; the stream is of no use any more.
        """
        operations = self._send(message, 0), self._receive(0)
        try:
            has_begun = self.is_open and self._operate(operations, self._took)
        except ValueError as error:  # what gRPC raises for a channel that was closed meanwhile
            raise BrokerUnavailable(
                f"the channel to {self.endpoint} was closed meanwhile ({error}): try again"
            ) from None
        if not has_begun:
            raise self._error()
        try:
            answer = self._answers.get(timeout=min(timeout, _ANSWER_S))
        except Empty:
            raise BrokerUnavailable(
                f"the broker at {self.endpoint} gave no answer in time: look at its log, or allow more time"
            ) from None
        if answer is None:
            raise self._error()
        if isinstance(answer, Exception):
            raise InternalError(f"gRPC's answer cannot be read: {answer!r}: please report it")
        self._connection.reached = True
        return PublishResponse.FromString(answer)

    def end(self, *, at_once: bool = False) -> None:
        """Lets the broker end it in good order, or cancels it."""
        if at_once:
            self._call.cancel()
        self._last.put(None)

    def _error(self) -> MqError:
        if not self._over.wait(_REASON_S):
            self._call.cancel()
        if self._call.code() is grpc.StatusCode.OK:
            return BrokerUnavailable(f"the broker at {self.endpoint} ended the stream without an answer")
        return self._connection.error_of(self._call, "sending", self.endpoint)

    # -- on gRPC's thread ----------------------------------------------------------------------------------

    def _took(self, event: Any) -> bool:
        """Takes what came for a request. Returns whether the call is over, which gRPC notices by itself."""
        try:
            self._answers.put(event.batch_operations[1].message())
        except Exception as bug:  # it would end gRPC's thread, and with it all calls of the channel
            self._answers.put(bug)
        return False

    def _ended(self) -> None:
        self._over.set()
        self._answers.put(None)
        self._last.put(None)  # lets gRPC's thread go
