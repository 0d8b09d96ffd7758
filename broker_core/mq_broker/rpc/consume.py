"""The Consume stream: it delivers rows as credit allows, and takes acknowledgements."""

from __future__ import annotations

import functools
import logging
import queue
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np

from mq_broker.core.commands import (
    Acknowledge,
    AddCredit,
    Ask,
    CloseSession,
    OpenSession,
    ReleaseView,
    RowsView,
)
from mq_broker.engine.quarantine import set_aside
from mq_broker.log import say
from mq_broker.rpc.bounds import Budget, LiveStreams
from mq_broker.rpc.status import abort, in_band
from mq_wire import envelope, framing
from mq_wire.errors import DataLost, InvalidRequest, JournalDamaged, MqError, NotAssigned
from mq_wire.limits import RECORDS_ROWS_MAX
from mq_wire.v1.consume_pb2 import (
    AcknowledgeRows,
    Asked,
    ConsumeHeader,
    ConsumeRequest,
    ConsumeResponse,
    Drained,
)

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine

#: Most credits, acknowledgements and questions of one stream that wait. Beyond that the stream is not read.
_UNANSWERED_MAX: Final = 256
#: Memory of an unanswered acknowledgement, in multiples of its size: the request, and its ranges as arrays.
_COPIES: Final = 3
_BATCH_ROWS: Final = 16_384
#: Most rows that an acknowledgement may name: no session holds more. A bitmap of all possible offsets would
#: take all memory of the broker.
_ROWS_HELD_MAX: Final = 1 << 31


def ignore(reply: Any) -> None:
    """For commands whose reply is not needed."""


class ConsumeStream:
    """One session of one consumer. A second thread reads requests. The thread of the call writes what the
    engine puts into the outbox.
    """

    def __init__(self, engine: Engine, streams: LiveStreams) -> None:
        self._engine = engine
        self._streams = streams
        # Views to send, answers, an error that ends the session, and None, which only wakes the writer.
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._unanswered = Budget(_UNANSWERED_MAX)
        self._bytes = streams.share_of_received()
        self._asked = self._answered = 0
        self._session = 0
        self._read_all = False
        self._gone = False
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
            opened = self._engine.call(OpenSession(first.open, self._outbox.put, self._told, context.peer()))
            self._session = opened.session
        except grpc.RpcError:
            return  # the client left before its first request
        except Exception as error:  # abort gives each its status
            abort(context, error)
        try:
            with self._streams.told_to_stop(self._wake):
                if not context.add_callback(self._leave):
                    return
                yield framing.join(ConsumeHeader(opened=opened).SerializeToString())
                self._streams.aside(self._read, first, requests)
                yield from self._answers(min(first.open.batch_rows_max or _BATCH_ROWS, RECORDS_ROWS_MAX))
                if not self._gone:
                    if self._fatal is not None:
                        raise self._fatal
                    if not self._read_all:
                        self._streams.check_running()
        except Exception as error:  # abort gives each its status
            abort(context, error)
        finally:
            self._close()

    def _answers(self, batch_rows_max: int) -> Iterator[bytes]:
        while not self._gone:
            item = self._outbox.get()
            if isinstance(item, RowsView):
                yield from self._delivery(item, batch_rows_max)
            elif isinstance(item, MqError):
                self._fatal = item
            elif item is not None:
                self._answered += 1
                self._unanswered.give(1)
                yield item
            if (
                self._fatal is not None
                or (self._read_all and self._asked == self._answered)
                or self._streams.stopping
            ):
                return

    def _delivery(self, view: RowsView, batch_rows_max: int) -> Iterator[bytes]:
        left = view
        try:
            while left.selection.rows:
                sent = 0
                try:
                    for header, records in self._streams.paced(
                        left, self._engine.read(left, envelope.ALL_COLUMNS, batch_rows_max)
                    ):
                        yield framing.join(
                            ConsumeHeader(delivery=header).SerializeToString(), memoryview(records)
                        )
                        if self._gone or self._streams.stopping:
                            return
                        sent += header.rows
                    return
                except (JournalDamaged, DataLost) as error:
                    # The damaged rows are taken out. Otherwise the stream would end, the rows would return to
                    # the queue, and the next consumer would fail in the same way, for ever.
                    lost = set_aside(self._engine, left, error)
                    left = replace(
                        left, selection=left.selection.slice(sent, left.selection.rows).without(lost)
                    )
        finally:
            self._engine.submit(ReleaseView(view), ignore)

    def _read(self, first: ConsumeRequest, requests: Iterator[ConsumeRequest]) -> None:
        try:
            self._take_in(first)
            for request in requests:
                if request.HasField("open"):
                    raise InvalidRequest("a second `open` on one Consume stream: open another stream")
                self._take_in(request)
                del request  # it may be large, and the next one may come late
        except grpc.RpcError:
            pass  # the client is gone; the callback of the call has told the writer
        except BaseException as error:  # it ends the stream with its status
            self._fatal = error
        finally:
            self._read_all = True
            self._wake()

    def _take_in(self, request: ConsumeRequest) -> None:
        # Credits are counted too, since the inbox of the engine has no bound of its own.
        if request.HasField("credit") and self._unanswered.take(1):
            self._engine.submit(
                AddCredit(self._session, request.credit.rows, request.credit.bytes), self._credited
            )
        size = _COPIES * request.ByteSize()
        if request.HasField("acknowledge") and self._unanswered.take(1) and self._bytes.take(size):
            self._asked += 1
            done = functools.partial(self._acknowledged, request.acknowledge.request_id, size)
            try:
                self._engine.submit(Acknowledge(self._session, ranges_of(request.acknowledge)), done)
            except MqError as error:
                done(error)

        if request.HasField("ask") and self._unanswered.take(1):
            self._asked += 1
            self._engine.submit(Ask(self._session, request.ask.request_id), self._heard)

    def _told(self, what: Asked | Drained | MqError) -> None:
        if isinstance(what, Asked):
            self._outbox.put(ConsumeResponse(header=ConsumeHeader(asked=what)).SerializeToString())
        elif isinstance(what, Drained):
            self._outbox.put(ConsumeResponse(header=ConsumeHeader(drained=what)).SerializeToString())
        else:
            say(logging.INFO, "session_ended", str(what), session=self._session)
            self._outbox.put(what)

    def _heard(self, reply: Any) -> None:
        # The answer comes through the outbox, after the rows. Only if there is no session any more, it is
        # this error.
        if isinstance(reply, MqError):
            self._outbox.put(reply)

    def _acknowledged(self, request_id: int, size: int, reply: Any) -> None:
        self._bytes.give(size)
        header = ConsumeHeader(acknowledged={"request_id": request_id})
        if isinstance(reply, Exception):
            header.error.CopyFrom(in_band(reply))
        else:
            header.acknowledged.rows = reply
        self._outbox.put(ConsumeResponse(header=header).SerializeToString())

    def _credited(self, reply: Any) -> None:
        self._unanswered.give(1)

    def refuse(self, error: MqError) -> None:
        """Ends the stream with `error`."""
        self._outbox.put(error)

    def _wake(self) -> None:
        self._outbox.put(None)

    def _leave(self) -> None:
        self._gone = True
        self._outbox.put(None)

    def _close(self) -> None:
        self._unanswered.close()
        self._bytes.close()
        self._engine.call(CloseSession(self._session))
        while not self._outbox.empty():
            item = self._outbox.get()
            if isinstance(item, RowsView):
                self._engine.submit(ReleaseView(item), ignore)


def ranges_of(request: AcknowledgeRows) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Returns for each partition the first offsets of its ranges and the offsets after their last ones, as
    int64 arrays, ascending and without overlap.

    Raises:
        InvalidRequest: a partition or an offset is named twice, half a pair, or an empty or negative range.
        NotAssigned: more offsets than a session can hold.
    """
    result = []
    if len({entry.partition for entry in request.partitions}) != len(request.partitions):
        raise InvalidRequest(
            f"an acknowledgement of {len(request.partitions)} partitions names one of them twice: "
            "name each once"
        )
    for entry in request.partitions:
        if not entry.ranges or len(entry.ranges) % 16:
            raise InvalidRequest(
                f"ranges of partition {entry.partition} have {len(entry.ranges)} bytes: "
                "give 16 for each pair of int64"
            )
        pairs = np.frombuffer(entry.ranges, "<i8").reshape(-1, 2)
        first, last = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
        if first.size > 1 and (first[1:] < first[:-1]).any():
            order = np.argsort(first, kind="stable")
            first, last = first[order], last[order]
        if int(first[0]) < 0 or (first >= last).any():
            raise InvalidRequest(
                f"ranges of partition {entry.partition} include one that is empty or begins below 0: "
                "give first < last"
            )
        if (first[1:] < last[:-1]).any():
            raise InvalidRequest(f"ranges of partition {entry.partition} overlap: name each offset once")
        if int((last - first).sum(dtype=np.uint64)) > _ROWS_HELD_MAX:
            raise NotAssigned(
                f"ranges of partition {entry.partition} name more than {_ROWS_HELD_MAX} offsets, "
                "more than a consumer can hold: name only rows that were delivered"
            )
        result.append((entry.partition, first, last))
    return result
