"""The Consume stream: it delivers rows to its consumers as credit allows, and takes acknowledgements."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import grpc

from mq_broker.core.commands import CloseSession, Drain, SessionEnd
from mq_broker.rpc.bounds import Budget, LiveStreams, host_of
from mq_broker.rpc.caller import client_of
from mq_broker.rpc.places import Places
from mq_broker.rpc.status import abort
from mq_broker.rpc.stream_consumer import StreamConsumer, StreamParts, ignore
from mq_wire.errors import InvalidRequest, MqError
from mq_wire.v1.consume_pb2 import ConsumeRequest

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine

#: Most requests of one stream that wait. Beyond that the stream is not read.
_UNANSWERED_MAX: Final = 256
#: Where a connection breaks, gRPC may end the requests a moment before it says so. Until then an end is no
#: goodbye.
_SURE_S: Final = 0.05


class ConsumeStream:
    """The consumers of one stream: number 0 alone, or many with other numbers. A second thread reads
    requests. The thread of the call writes: the consumers take turns, a batch or an answer each.
    """

    def __init__(self, engine: Engine, streams: LiveStreams, places: Places) -> None:
        self._engine = engine
        self._streams = streams
        self._places = places
        self._ready: queue.SimpleQueue[StreamConsumer | None] = queue.SimpleQueue()
        self._consumers: dict[int, StreamConsumer] = {}
        self._lock = threading.Lock()  # of the consumers, once there may be many
        self._highest = 0
        self._is_single = self._is_closed = self._read_all = self._goodbye = False
        self._left = threading.Event()
        self._fatal: BaseException | None = None

    def run(self, requests: Iterator[ConsumeRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yields deliveries and answers until the client ends the stream or is gone. Rows that were delivered
        and not acknowledged then return to the queue.
        """
        try:
            first = next(requests, None)
            if first is None:
                return
            if not first.HasField("open"):
                raise InvalidRequest("the first message of a Consume stream must be `open`")
            self._begin(first, context)
        except grpc.RpcError:
            return  # the client left before its first request
        except Exception as error:  # abort gives each its status
            abort(context, error)
        try:
            with self._streams.told_to_stop(self._wake):
                if not context.add_callback(self._leave):
                    return
                self._streams.aside(self._read, first, requests)
                del first
                yield from self._answers()
                if not self._left.is_set():
                    if self._fatal is not None:
                        raise self._fatal
                    if not self._read_all:
                        self._streams.check_running()
        except Exception as error:  # abort gives each its status
            abort(context, error)
        finally:
            self._close()

    def refuse(self, error: MqError) -> None:
        """Ends the stream with `error`."""
        self._fatal = error
        self._wake()

    def _begin(self, first: ConsumeRequest, context: grpc.ServicerContext) -> None:
        self._peer, self._client = context.peer(), client_of(context)
        self._parts = StreamParts(
            self._engine,
            Budget(_UNANSWERED_MAX),
            self._streams.share_of_received(),
            self._streams.pace(context),
            self._ready,
        )
        if not first.consumer:
            self._is_single = True
            first.open.client = first.open.client or self._client
            consumer = StreamConsumer(self._parts, 0, self._forget, self.refuse)
            consumer.open(first.open, self._peer)
            first.ClearField("open")
            self._consumers[0] = consumer
            consumer.start()

    # -- writing -------------------------------------------------------------------------------------------

    def _answers(self) -> Iterator[bytes]:
        parts = self._parts
        while not self._left.is_set():
            consumer = self._ready.get()
            if consumer is not None and self._fatal is None:
                yield from consumer.turn()
            is_done = self._read_all and parts.asked == parts.answered
            if is_done and not self._is_single:
                is_done = not self._consumers
            if is_done or self._fatal is not None or self._streams.stopping:
                return

    def _forget(self, consumer: StreamConsumer) -> None:
        with self._lock:
            known = self._consumers.pop(consumer.number, None)
        if known is not None:
            self._give_place(known)

    def _give_place(self, consumer: StreamConsumer) -> None:
        if consumer.has_place:
            consumer.has_place = False
            self._places.leave(host_of(self._peer))

    # -- reading -------------------------------------------------------------------------------------------

    def _read(self, first: ConsumeRequest, requests: Iterator[ConsumeRequest]) -> None:
        try:
            self._take(first)
            del first
            for request in requests:
                self._take(request)
                del request  # it may be large, and the next one may come late
            if self._consumers and not self._left.wait(_SURE_S):
                self._goodbye = True
                for consumer in () if self._is_single else list(self._consumers.values()):
                    consumer.close()
        except grpc.RpcError:
            pass  # the client is gone; the callback of the call has told the writer
        except BaseException as error:  # it ends the stream with its status
            self._fatal = error
        finally:
            self._read_all = True
            self._wake()

    def _take(self, request: ConsumeRequest) -> None:
        number = request.consumer
        if bool(number) is self._is_single:
            first = "0, which has it alone" if self._is_single else "1 or above, and 0 is none of them"
            raise InvalidRequest(
                f"a message for consumer {number} on a stream that began with consumer {first}: "
                "open another stream"
            )
        if request.HasField("open"):
            self._open(request)
        consumer = self._consumers.get(number)
        if consumer is not None:
            consumer.take_in(request)
        elif number > self._highest:
            raise InvalidRequest(f"a message for consumer {number}, which was never opened: open it first")
        # Otherwise it has ended, which its client did not know yet.

    def _open(self, request: ConsumeRequest) -> None:
        number, parts = request.consumer, self._parts
        if number <= self._highest:
            raise InvalidRequest(
                "a second `open` on one Consume stream: open another stream"
                if self._is_single
                else f"consumer {number} is opened after consumer {self._highest} of the same stream: give "
                "each the next higher number"
            )
        if not parts.unanswered.take(1):
            return
        parts.asked += 1
        self._highest = number
        consumer = StreamConsumer(parts, number, self._forget)
        try:
            self._places.enter(host_of(self._peer), len(self._consumers))
            consumer.has_place = True
            request.open.client = request.open.client or self._client
            consumer.open(request.open, self._peer)
        except MqError as error:
            consumer.refuse(error)
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._consumers[number] = consumer
        if is_late:
            self._give_back([consumer], SessionEnd.LOST)
        else:
            consumer.start()

    # -- the end -------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._ready.put(None)

    def _leave(self) -> None:
        self._left.set()
        self._ready.put(None)

    def _close(self) -> None:
        self._parts.unanswered.close()
        self._parts.received.close()
        with self._lock:
            self._is_closed = True
            consumers = list(self._consumers.values())
            self._consumers.clear()
        end = SessionEnd.LOST
        if not self._left.is_set():
            if self._streams.stopping:
                end = SessionEnd.BROKER
            elif self._goodbye and self._fatal is None:
                end = SessionEnd.GOODBYE
        self._give_back(consumers, end)

    def _give_back(self, consumers: list[StreamConsumer], end: SessionEnd) -> None:
        """Closes the sessions of consumers that are no longer in the table."""
        if end is not SessionEnd.GOODBYE:
            for consumer in consumers:
                self._engine.submit(Drain(consumer.session, 0), ignore)
            self._until_handled()
        for consumer in consumers:
            consumer.abandon(end)
        self._until_handled()
        for consumer in consumers:
            consumer.release()
            self._give_place(consumer)

    def _until_handled(self) -> None:
        """Waits until the engine has handled what was submitted."""
        with contextlib.suppress(MqError):  # it has failed, or stops: its sessions end with it
            self._engine.call(CloseSession(0))
