"""The Publish stream: it validates batches when they arrive, and answers them in order when they are
durable.
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


class PublishStream:
    """One stream. A second thread reads and validates requests, the thread of the call writes answers, and
    the engine's thread only fills slots.

    The stream is not read any further while its client does not read answers, or has more unanswered batches
    than allowed. HTTP/2 then stops the sender.
    """

    def __init__(
        self, engine: Engine, streams: LiveStreams, requests_max: int, bytes_max: int, bytes_total: Budget
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._requests = Budget(requests_max)
        self._bytes = Budget(bytes_max)
        self._bytes_total = bytes_total
        self._pending: deque[_Slot] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._read_all = False
        self._gone = False
        self._fatal: BaseException | None = None

    def run(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[PublishResponse]:
        """Yields the answers until all requests are answered, the client is gone, or a request cannot be
        read.
        """
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
                    yield _response(slot)
                if read_all and not self._pending:
                    if self._fatal is not None:
                        abort(context, self._fatal)
                    return
                if self._streams.stopping and not self._pending:
                    # Batches that the reader submits from here on get no answer. The client sends them again,
                    # and the duplicate audit stores them once.
                    abort(context, stopping())

    def _read(self, requests: Iterator[bytes]) -> None:
        try:
            for message in requests:
                if not self._accept(message):
                    return
        except grpc.RpcError:
            pass  # the client is gone; the callback of the call has told the writer
        except BaseException as error:  # it ends the stream with its status
            self._fatal = error
        finally:
            self._read_all = True
            self._wake.put(None)

    def _accept(self, message: bytes) -> bool:
        header, records = intake.parse(message)
        slot = _Slot(header.request_id, len(message) + _REQUEST_BYTES)
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
            self._engine.submit(intake.command(header, records), done)
        except Exception as error:  # it is the answer to this request
            done(error)
        return True

    def _done(self, slot: _Slot, reply: Any) -> None:
        self._bytes.give(slot.size)
        self._bytes_total.give(slot.size)
        slot.reply = reply
        self._wake.put(None)

    def refuse(self, error: BaseException) -> None:
        """Ends the stream with `error`, after the answers to all submitted batches."""
        self._fatal = error
        self._read_all = True
        self._wake.put(None)

    def _wake_up(self) -> None:
        self._wake.put(None)

    def _leave(self) -> None:
        self._gone = True
        self._wake.put(None)

    def _close(self) -> None:
        self._requests.close()
        self._bytes.close()


def _response(slot: _Slot) -> PublishResponse:
    if isinstance(slot.reply, Exception):
        return PublishResponse(request_id=slot.request_id, error=in_band(slot.reply))
    return PublishResponse(request_id=slot.request_id, receipt=slot.reply)
