"""The Publish stream: it validates batches when they arrive, and answers them in order when they are
durable.

Where a client waits for each answer before it sends more, the thread of the call does everything itself:
it reads the request, takes the pen and writes the answer, without a change of threads.
"""

from __future__ import annotations

import contextlib
import functools
import queue
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import grpc

from mq_broker.rpc import intake
from mq_broker.rpc.bounds import Budget, LiveStreams, stopping
from mq_broker.rpc.status import abort, in_band
from mq_wire.v1.produce_pb2 import PublishResponse

if TYPE_CHECKING:
    from mq_broker.core.commands import Publish
    from mq_broker.engine.engine import Engine


#: Memory of the objects of a request, in addition to its bytes. It is counted so that millions of empty
#: requests are not within the limits.
_REQUEST_BYTES: Final = 2048


class _Slot:
    """The place of one request in the order of answers."""

    __slots__ = ("reply", "request_id", "size")

    def __init__(self, request_id: int, size: int) -> None:
        self.request_id = request_id
        self.size = size
        self.reply: Any = None


class _Request:
    """A request that was read, and what it takes of the budgets."""

    __slots__ = ("header", "records", "size")

    def __init__(self, message: bytes) -> None:
        self.header, self.records = intake.parse(message)
        self.size = len(message) + _REQUEST_BYTES


class PublishStream:
    """One stream. A second thread reads and validates requests, the thread of the call writes answers, and
    the engine's thread only fills slots.

    When an awaited request comes and nothing is unanswered, the reading thread hands it over and rests: the
    thread of the call answers it and reads on by itself, until a request comes that is not awaited.

    The stream is not read any further while its client does not read answers, or has more unanswered batches
    than allowed. HTTP/2 then stops the sender.
    """

    def __init__(
        self,
        engine: Engine,
        streams: LiveStreams,
        requests_max: int,
        bytes_max: int,
        bytes_total: Budget,
        cluster_id: bytes,
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._requests = Budget(requests_max)
        self._bytes = Budget(bytes_max)
        self._bytes_total = bytes_total
        self._cluster_id = cluster_id
        self._pending: deque[_Slot] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._read_all = False
        self._gone = False
        self._fatal: BaseException | None = None
        self._context: grpc.ServicerContext | None = None
        self._handed_over: _Request | None = None
        #: What the reading thread goes on with; None = it ends.
        self._given_back: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._is_listening = False  # the thread of the call waits for a request, and for nothing else

    def run(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[PublishResponse]:
        """Yields the answers until all requests are answered, the client is gone, or a request cannot be
        read.
        """
        self._context = context
        if not context.add_callback(self._leave):
            return
        with self._streams.told_to_stop(self._wake_up), contextlib.ExitStack() as cleanup:
            cleanup.callback(self._close)
            self._streams.aside(self._read, requests)
            while not self._gone:
                self._wake.get()
                # Read before the pending slots: once all requests are read, no slot is added.
                read_all = self._read_all
                while self._pending and self._pending[0].reply is not None:
                    slot = self._pending.popleft()
                    self._requests.give(1)
                    yield _response(slot.request_id, slot.reply)
                if read_all and not self._pending:
                    if self._fatal is not None:
                        abort(context, self._fatal)
                    return
                if self._streams.stopping and not self._pending:
                    # Batches that the reader submits from here on get no answer. The client sends them again,
                    # and the duplicate audit stores them once.
                    abort(context, stopping())
                if self._handed_over is not None:
                    request, self._handed_over = self._handed_over, None
                    yield from self._answer_each(request, requests)

    # -- on the thread of the call, where each answer is awaited -------------------------------------------

    def _answer_each(self, request: _Request, requests: Iterator[bytes]) -> Iterator[PublishResponse]:
        """Yields the answer to each request before it reads the next one. Gives the reading back where a
        request is not awaited.
        """
        while request.header.awaited and self._bytes_total.try_take(request.size):
            try:
                reply = self._reply_to(request)
            finally:
                self._bytes_total.give(request.size)
            yield _response(request.header.request_id, reply)
            del reply
            following = self._listen(requests)
            if following is None:
                return
            request = following
        self._given_back.put(request)

    def _reply_to(self, request: _Request) -> Any:
        """Returns the receipt once it is durable, or the error. Nothing of this stream is unanswered, so
        nothing can be overtaken.
        """
        try:
            return self._engine.answer(self._command(request))
        except Exception as error:  # it is the answer to this request
            return error

    def _listen(self, requests: Iterator[bytes]) -> _Request | None:
        """Returns the next request; None where the stream is to end."""
        # Told to end before this, it does not begin to wait; told later, `_interrupt` ends the call.
        self._is_listening = True
        try:
            if self._streams.stopping or self._read_all:
                return None
            message = next(requests, None)
            self._is_listening = False
            if message is not None:
                return _Request(message)
        except grpc.RpcError:
            self._gone = True
        except Exception as error:  # it ends the stream with its status
            self._fatal = error
        finally:
            self._is_listening = False
        self._given_back.put(None)
        return None

    # -- on the reading thread -----------------------------------------------------------------------------

    def _read(self, requests: Iterator[bytes]) -> None:
        try:
            for message in requests:
                request: _Request | None
                request = read = _Request(message)
                if read.header.awaited and not self._pending:
                    self._handed_over = read
                    self._wake.put(None)
                    request = self._given_back.get()
                if request is None or not self._accept(request):
                    return
                del message, request, read  # they may be large, and the next one may come late
        except grpc.RpcError:
            pass  # the client is gone; the callback of the call has told the writer
        except BaseException as error:  # it ends the stream with its status
            self._fatal = error
        finally:
            self._read_all = True
            self._wake.put(None)

    def _accept(self, request: _Request) -> bool:
        slot = _Slot(request.header.request_id, request.size)
        if not self._requests.take(1):
            return False
        if not self._bytes.take(slot.size):
            return False
        if not self._bytes_total.take(slot.size):
            self._bytes.give(slot.size)
            return False
        self._pending.append(slot)
        done = functools.partial(self._done, slot)
        try:
            self._engine.submit(self._command(request), done)
        except Exception as error:  # it is the answer to this request
            done(error)
        return True

    def _command(self, request: _Request) -> Publish:
        intake.check_broker(request.header, self._cluster_id)
        return intake.command(request.header, request.records)

    # -- on other threads ----------------------------------------------------------------------------------

    def _done(self, slot: _Slot, reply: Any) -> None:
        self._bytes.give(slot.size)
        self._bytes_total.give(slot.size)
        slot.reply = reply
        self._wake.put(None)

    def refuse(self, error: BaseException) -> None:
        """Ends the stream with `error`, after the answers to all submitted batches."""
        self._fatal = error
        self._read_all = True
        self._wake_up()

    def _wake_up(self) -> None:
        self._wake.put(None)
        if self._is_listening and self._context is not None:
            # Only a request or the end of the call wakes it; nothing is unanswered.
            self._context.cancel()

    def _leave(self) -> None:
        self._gone = True
        self._wake.put(None)

    def _close(self) -> None:
        self._requests.close()
        self._bytes.close()
        self._given_back.put(None)


def _response(request_id: int, reply: Any) -> PublishResponse:
    if isinstance(reply, Exception):
        return PublishResponse(request_id=request_id, error=in_band(reply))
    return PublishResponse(request_id=request_id, receipt=reply)
