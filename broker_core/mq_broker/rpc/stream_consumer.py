"""One consumer of a Consume stream: its session, its requests, and what it sends to its client."""

from __future__ import annotations

import functools
import logging
import queue
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mq_broker.core.commands import (
    Acknowledge,
    AddCredit,
    Ask,
    CloseSession,
    Drain,
    HandOver,
    OpenSession,
    Release,
    ReleaseView,
    RowsView,
    SessionEnd,
)
from mq_broker.core.handlers.sessions import CLIENT_CHARACTERS
from mq_broker.engine.quarantine import set_aside
from mq_broker.log import say
from mq_broker.rpc.bounds import Budget, Share
from mq_broker.rpc.offset_ranges import ranges_of
from mq_broker.rpc.outgoing import Pace, size_of
from mq_broker.rpc.status import in_band
from mq_wire import envelope, framing
from mq_wire.errors import DataLost, JournalDamaged, MqError, Unsupported
from mq_wire.limits import RECORDS_ROWS_MAX
from mq_wire.v1.consume_pb2 import (
    ACCEPT,
    RELEASE,
    Asked,
    ConsumeHeader,
    ConsumeRequest,
    Drained,
    OpenConsumer,
    PartitionRanges,
)

if TYPE_CHECKING:
    from mq_broker.engine.engine import Engine

#: Memory of an unanswered request, in multiples of its size: the request, and its ranges as arrays.
_COPIES: Final = 3
_BATCH_ROWS: Final = 16_384


def ignore(reply: Any) -> None:
    """For commands whose reply is not needed."""


@dataclass(slots=True)
class StreamParts:
    """What the consumers of one stream share.

    Attributes:
        ready: consumers that have something to send; None only wakes the writer.
        unanswered: bounds requests that wait.
        received: bounds the bytes of those with ranges.
        pace: room for the batch that is being sent.
        asked: requests that get an answer, so far.
        answered: those of them that were answered.
    """

    engine: Engine
    unanswered: Budget
    received: Share
    pace: Pace
    ready: queue.SimpleQueue[StreamConsumer | None]
    asked: int = 0
    answered: int = 0


class _Answer(NamedTuple):
    """A message without rows. `is_counted`: it answers a request. `is_last`: nothing follows it."""

    message: bytes
    is_counted: bool = True
    is_last: bool = False


class StreamConsumer:
    """One session. Three threads: the stream's reader calls `open`, `start`, `take_in` and `close`; its
    writer `turn` and, in the end, `abandon` and `release`; the engine's hands over rows and replies.

    Args:
        parts: of the stream.
        number: what its client calls it.
        forget: told before its last answer is sent.
        failed: gets the error that ends the session from this side; None = it is sent as an answer.
    """

    def __init__(
        self,
        parts: StreamParts,
        number: int,
        forget: Callable[[StreamConsumer], None],
        failed: Callable[[MqError], None] | None = None,
    ) -> None:
        self.number: Final = number
        self.session = 0
        #: Whether it is counted among `Places`.
        self.has_place = False
        self._parts, self._engine = parts, parts.engine
        self._forget, self._failed = forget, failed
        self._client, self._rows_max = "", _BATCH_ROWS
        self._items: deque[RowsView | _Answer] = deque()
        self._is_ready = True  # whether it is in line; nothing is sent before `start`
        self._is_closing = self._is_over = False
        self._sending: Generator[bytes] | None = None  # of the view that is being sent
        self._left: RowsView | None = None  # what of that view has not been sent without a gap, and of it
        self._sent = 0  # so many rows were

    # -- its life ------------------------------------------------------------------------------------------

    def open(self, opened: OpenConsumer, peer: str) -> None:
        """Opens the session.

        Raises:
            MqError: there is none.
        """
        reply = self._engine.call(OpenSession(opened, self._put, self._told, peer))
        self.session, self._client = reply.session, opened.client[:CLIENT_CHARACTERS]
        self._rows_max = min(opened.batch_rows_max or _BATCH_ROWS, RECORDS_ROWS_MAX)
        self._items.appendleft(self._answer(is_counted=self.number > 0, opened=reply))

    def refuse(self, error: MqError) -> None:
        """There is no session: says why."""
        self._is_closing = True
        self._items.append(self._answer(is_last=True, closed=True, error=in_band(error)))

    def start(self) -> None:
        """Lets what it has to say leave."""
        self._parts.ready.put(self)

    def close(self) -> None:
        """The client ends it."""
        parts = self._parts
        if not self._is_closing and parts.unanswered.take(1):
            parts.asked += 1
            self._is_closing = True
            self._engine.submit(CloseSession(self.session, SessionEnd.GOODBYE), self._closed)

    def abandon(self, end: SessionEnd) -> None:
        """The stream has ended: gives back what the session holds. Without a goodbye the session has no
        credit by now, so that no row comes after those that are known here.
        """
        is_goodbye = end is SessionEnd.GOODBYE
        sending, self._sending = self._sending, None
        unsent = [] if is_goodbye else [item for item in self._items if isinstance(item, RowsView)]
        if not is_goodbye and self._left is not None and self._sent < self._left.selection.rows:
            selection = self._left.selection
            unsent.append(replace(self._left, selection=selection.slice(self._sent, selection.rows)))
        self._engine.submit(CloseSession(self.session, end, tuple(unsent)), ignore)
        if sending is not None:
            sending.close()
        self._parts.pace.give()

    def release(self) -> None:
        """Gives back the views that were not sent, once the session is closed."""
        while self._items:
            item = self._items.popleft()
            if isinstance(item, RowsView):
                self._engine.submit(ReleaseView(item), ignore)

    # -- requests ------------------------------------------------------------------------------------------

    def take_in(self, request: ConsumeRequest) -> None:
        """Hands a request to the engine; waits while too many are unanswered.

        Raises:
            InvalidRequest, NotAssigned: what was handed over is not named as it should be.
        """
        parts, engine, session = self._parts, self._engine, self.session
        if self._is_closing:
            return
        size = _COPIES * request.ByteSize()
        # In this order: what was handed over is known before what follows from it.
        if request.HasField("handed_over") and self._count(size):
            rows = ranges_of(request.handed_over.partitions)
            engine.submit(HandOver(session, rows), functools.partial(self._noted, size))
        # Credits are counted too, since the inbox of the engine has no bound of its own.
        if request.HasField("credit") and parts.unanswered.take(1):
            engine.submit(AddCredit(session, request.credit.rows, request.credit.bytes), self._credited)
        if request.HasField("acknowledge"):
            self._settle(size, request.acknowledge.request_id, ACCEPT, request.acknowledge.partitions)
        if request.HasField("settle"):
            settle = request.settle
            self._settle(size, settle.request_id, settle.verb, settle.partitions, uncounted=settle.uncounted)
        if request.HasField("ask") and parts.unanswered.take(1):
            parts.asked += 1
            engine.submit(Ask(session, request.ask.request_id), self._heard)
        if request.HasField("drain") and parts.unanswered.take(1):
            parts.asked += 1
            engine.submit(Drain(session, request.drain.request_id), self._heard)
        if request.close:
            self.close()

    def _count(self, size: int) -> bool:
        return self._parts.unanswered.take(1) and self._parts.received.take(size)

    def _settle(self, size: int, request_id: int, verb: int, rows: Any, *, uncounted: bool = False) -> None:
        if not self._count(size):
            return
        self._parts.asked += 1
        done = functools.partial(self._settled, request_id, size)
        try:
            self._engine.submit(self._settling(verb, rows, uncounted=uncounted), done)
        except MqError as error:
            done(error)

    def _settling(self, verb: int, rows: list[PartitionRanges], *, uncounted: bool) -> Acknowledge | Release:
        if verb == ACCEPT:
            return Acknowledge(self.session, ranges_of(rows))
        if verb == RELEASE:
            return Release(self.session, ranges_of(rows), uncounted)
        raise Unsupported(f"this broker cannot settle rows with verb {verb}: accept or release them")

    # -- replies: on the engine's thread -------------------------------------------------------------------

    def _settled(self, request_id: int, size: int, reply: Any) -> None:
        self._parts.received.give(size)
        acknowledged = {"request_id": request_id}
        if isinstance(reply, Exception):
            self._put(self._answer(acknowledged=acknowledged, error=in_band(reply)))
        else:
            self._put(self._answer(acknowledged={**acknowledged, "rows": reply}))

    def _noted(self, size: int, reply: Any) -> None:
        self._parts.received.give(size)
        self._parts.unanswered.give(1)

    def _credited(self, reply: Any) -> None:
        self._parts.unanswered.give(1)

    def _heard(self, reply: Any) -> None:
        # The answer comes through `_told`, after the rows. Only if there is no session any more, it is this
        # error.
        if isinstance(reply, MqError):
            self._end(reply)

    def _closed(self, reply: Any) -> None:
        self._put(self._answer(is_last=True, closed=True))

    def _told(self, what: Asked | Drained | MqError) -> None:
        if isinstance(what, Asked):
            self._put(self._answer(asked=what))
        elif isinstance(what, Drained):
            self._put(self._answer(drained=what))
        else:
            say(logging.INFO, "session_ended", str(what), session=self.session, client=self._client)
            self._end(what)

    def _end(self, error: MqError) -> None:
        if self._failed is not None:
            self._failed(error)
        elif not self._is_closing:
            self._is_closing = True
            self._put(self._answer(is_counted=False, is_last=True, closed=True, error=in_band(error)))

    def _answer(self, *, is_counted: bool = True, is_last: bool = False, **fields: Any) -> _Answer:
        header = ConsumeHeader(consumer=self.number, **fields)
        return _Answer(framing.join(header.SerializeToString()), is_counted, is_last)

    def _put(self, item: RowsView | _Answer) -> None:
        """Any thread. The consumer may come to stand in line twice, but never not at all."""
        self._items.append(item)
        if not self._is_ready:
            self._is_ready = True
            self._parts.ready.put(self)

    # -- sending: on the writer's thread -------------------------------------------------------------------

    def turn(self) -> Iterator[bytes]:
        """Yields the next message, if there is one, and goes to the end of the line if there may be more."""
        if self._sending is not None and self._is_closing:
            self._sending.close()
            self._sending = None
        if self._sending is None and self._items:
            item = self._items.popleft()
            if not isinstance(item, RowsView):
                yield from self._say(item)
            elif self._is_closing:
                self._engine.submit(ReleaseView(item), ignore)
            else:
                self._sending = self._batches(item)
        if self._sending is not None:
            try:
                message = next(self._sending, None)
                if message is None:
                    self._sending = None
                else:
                    yield message
            finally:
                self._parts.pace.give()
        if self._items or self._sending is not None:
            self._parts.ready.put(self)
        else:
            self._is_ready = False
            if self._items and not self._is_ready:  # put in between
                self._is_ready = True
                self._parts.ready.put(self)

    def _say(self, answer: _Answer) -> Iterator[bytes]:
        if answer.is_counted:
            self._parts.answered += 1
            self._parts.unanswered.give(1)
        if self._is_over:
            return
        if answer.is_last:
            self._is_over = True
            self._forget(self)
        yield answer.message

    def _batches(self, view: RowsView) -> Generator[bytes]:
        """Yields the messages of a view, each with the credit that it took: together what the view took."""
        self._left, self._sent = view, 0
        left_bytes = view.size_bytes
        reckoned, pace = size_of(view), self._parts.pace
        try:
            while self._left.selection.rows > self._sent:
                batches = self._engine.read(self._left, envelope.ALL_COLUMNS, self._rows_max)
                try:
                    while True:
                        pace.take(reckoned)
                        batch = next(batches, None)
                        if batch is None:
                            return
                        header, records = batch
                        pace.correct(records)
                        if self.number:
                            left_rows = self._left.selection.rows - self._sent
                            header.credit_bytes = left_bytes * header.rows // left_rows
                            left_bytes -= header.credit_bytes
                        self._sent += header.rows
                        answer = ConsumeHeader(delivery=header, consumer=self.number)
                        yield framing.join(answer.SerializeToString(), memoryview(records))
                        del batch, records  # it may be large, and the next one may come late
                except (JournalDamaged, DataLost) as error:
                    # The damaged rows are taken out. Otherwise the stream would end, the rows would return to
                    # the queue, and the next consumer would fail in the same way, for ever.
                    pace.give()
                    lost = set_aside(self._engine, self._left, error)
                    rest = self._left.selection.slice(self._sent, self._left.selection.rows)
                    kept = rest.without(lost)
                    # What the damaged rows took, the session has got back.
                    left_bytes = max(0, left_bytes - view.frames.bytes_of(rest.without(kept.offsets())))
                    self._left, self._sent = replace(self._left, selection=kept), 0
        finally:
            self._left, self._sent = None, 0
            self._engine.submit(ReleaseView(view), ignore)
