"""The Consume stream of a consumer: credit and acknowledgements out, deliveries and confirmations in.

Two threads: gRPC's, which pulls requests (`_requests`), and ours, which reads what the broker sends (`_run`).
The application waits on `arrived`. Credit beyond the first grant says exactly how many rows the application
has been handed (docs/rules.md, "Prefetch and credit"): the broker charges those, and no others, with a failed
attempt when the session ends.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Final

import grpc

from mq_wire import errors
from mq_wire.errors import (
    Busy,
    ClientClosed,
    DestinationRecreated,
    MqError,
    RetryLater,
    SessionClosed,
    StorageFailed,
)
from mq_wire.v1 import consume_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.acknowledging import Acknowledgements
from pyspark_mq.client.asking import FEATURE, Asking, Asks, check_broker
from pyspark_mq.client.connection import BACKOFF_FIRST_S, BACKOFF_LAST_S, GONE, Connection, Stream
from pyspark_mq.client.deliveries import consumed
from pyspark_mq.client.log import LOG
from pyspark_mq.client.message import Delivery, Session
from pyspark_mq.client.outstanding import Outstanding, Ranges

#: Rows that were handed over are reported when they are half of the prefetch, or after so long: less credit
#: at a time would make the broker's deliveries ever smaller, more time would leave more rows uncharged when
#: this process is killed.
_REPORT_S: Final = 0.1
#: Prefetch is counted in rows. Rows may be large: beyond so many bytes nothing more is read from the broker.
_BUFFER_BYTES_MAX: Final = 64 << 20
_UNLIMITED_BYTES: Final = 1 << 62
_LAST_WORDS_S: Final = 1.0
_NEVER: Final = float("inf")


class Consuming:
    """What a consumer and its threads share. Everything is guarded by `lock`, unless it says otherwise.

    Attributes:
        arrived: for the application, which waits for deliveries and confirmations.
        work: for those who put requests on the stream.
        buffered: deliveries that the application has not begun.
        current: the one that it is in the middle of.
        errors: of acknowledgements, not told yet.
        broken: why nothing can be received any more.
        trouble: why the broker could not be reached, or gave no session, since it was last there.
        away_since: when the last session ended, or the first was to begin.
    """

    def __init__(self, connection: Connection, queue: str, prefetch: int, max_unacknowledged: int) -> None:
        self.lock = threading.Lock()
        self.arrived = threading.Condition(self.lock)
        self.work = threading.Condition(self.lock)
        self.buffered: deque[Delivery] = deque()
        self.current: Delivery | None = None
        self.outstanding = Outstanding()
        self.session = Session(b"")
        self.session.ended = "it has not begun"
        self.errors: list[MqError] = []
        self.broken: MqError | None = None
        self.trouble: MqError | None = None
        self.away_since = 0.0
        # set in a forked process, whose parent all of this belongs to
        self.inherited: ClientClosed | None = None
        self.flushing = 0  # callers who wait for confirmations
        self.prefetch = prefetch
        self.queue: Final = queue
        self.address: Final = connection.address
        self._connection, self._max_unacknowledged = connection, max_unacknowledged
        self._asks = Asks()
        self._identity = b"", b""  # of broker and queue
        self._prefix = uuid.uuid4().bytes
        self._sessions = 0
        self._serial = 0
        self._finished_rows = self._granted = self._reported = self._confirmed_rows = 0
        self._buffer_bytes = 0
        self._acknowledgements = Acknowledgements()
        self._report_due = _NEVER  # when credit leaves
        self._ended = False
        self._call: Stream | None = None
        self._thread: threading.Thread | None = None

    def forked(self, parent: int) -> None:
        """In a child: refuses everything, and leaves the stream to the parent."""
        forks.keep_for_ever(self._call)
        self.lock = threading.Lock()
        self.arrived, self.work = threading.Condition(self.lock), threading.Condition(self.lock)
        self.broken = self.inherited = forks.inherited(f"the consumer of queue {self.queue!r}", parent)
        self.errors, self._call, self._thread, self._ended = [], None, None, True

    # -- with the lock, for the consumer -------------------------------------------------------------------

    def begin(self) -> None:
        """Opens the stream, once."""
        if self._thread is None:
            self.away_since = time.monotonic()
            self._thread = threading.Thread(target=self._run, name=f"mq-consumer-{self.queue}", daemon=True)
            self._thread.start()

    def start_delivery(self) -> Delivery | None:
        """Makes the next buffered delivery the current one; None where there is none."""
        if not self.buffered:
            return None
        delivery = self.current = self.buffered.popleft()
        self.outstanding.hand_over(delivery.serial, delivery.partition, delivery.offsets)
        return delivery

    def finish_delivery(self, delivery: Delivery) -> None:
        """The application has all rows of the current delivery."""
        self.current = None
        self._finished_rows += delivery.rows
        self._buffer_bytes -= delivery.size
        if self._buffer_bytes + delivery.size > _BUFFER_BYTES_MAX:
            self.work.notify_all()  # the reader waits there, too
        self.handed()

    def handed(self) -> None:
        """Rows were handed over: sees to it that they are reported, at once where half of the prefetch is
        due.
        """
        if 2 * self._unreported >= self.prefetch:
            self._report_due = 0.0
        elif self._report_due == _NEVER:
            self._report_due = time.monotonic() + _REPORT_S
        else:
            return
        self.work.notify_all()

    def acknowledge(self, session: Session, partition: int, ranges: Ranges) -> None:
        """Gathers acknowledgements to be sent."""
        self.check_session(session)
        if self._acknowledgements.gather(partition, ranges):
            self.work.notify_all()

    def check_session(self, session: Session) -> None:
        """Refuses what was delivered in another session than the present one.

        Raises:
            SessionClosed: with the reason.
            ClientClosed: in a forked process.
        """
        if self.inherited is not None:
            raise self.inherited
        if session is not self.session or session.ended:
            raise SessionClosed(
                f"these messages of queue {self.queue!r} can no longer be acknowledged: "
                f"{session.ended or 'their session is over'}; "
                "they will be delivered again"
            )

    def flush_now(self) -> None:
        """Lets what was gathered leave at once."""
        self._acknowledgements.flush_now()
        self.work.notify_all()

    @property
    def is_unscheduled(self) -> bool:
        """Whether no report of rows handed over is under way: then whoever hands over rows must ask
        for one.
        """
        return self._report_due == _NEVER

    @property
    def unconfirmed(self) -> bool:
        """Whether acknowledgements are gathered or on their way."""
        return bool(self._acknowledgements)

    @property
    def is_full(self) -> bool:
        """Whether nothing can come before the application acknowledges: all that may be unacknowledged was
        handed over, and is.
        """
        at_limit = self._granted >= self._confirmed_rows + self._max_unacknowledged
        return at_limit and self._handed_rows >= self._granted > 0 and not self.unconfirmed

    def ask(self) -> Asking:
        """Asks the broker whether there is nothing more, behind everything that was handed over: as soon as
        there is a session.
        """
        asking = self._asks.add(self.session)
        if self._unreported:
            self._report_due = 0.0
        self.work.notify_all()
        return asking

    @property
    def _handed_rows(self) -> int:
        current = self.current
        return self._finished_rows + (current.next_row if current is not None else 0)

    @property
    def _unreported(self) -> int:
        return self._handed_rows - self._reported

    def _take_request(self, now: float, *, last: bool) -> consume_pb2.ConsumeRequest | None:
        """Returns credit and acknowledgements that are due, as one request."""
        request = consume_pb2.ConsumeRequest()
        credit = 0
        if last or self._report_due <= now:
            self._report_due = _NEVER
            credit = self._unreported
            if not last:
                credit = max(0, min(credit, self._confirmed_rows + self._max_unacknowledged - self._granted))
        if credit:
            request.credit.rows = credit
            self._reported += credit
            self._granted += credit
        self._acknowledgements.fill(request, now, last=last)
        if self._may_ask:
            request.ask.request_id = self._asks.send()
        return request if credit or request.HasField("acknowledge") or request.HasField("ask") else None

    @property
    def _may_ask(self) -> bool:
        # Without credit the answer would say nothing, and where confirmations are due there will be credit.
        return self._asks.is_due and (self._granted > self._handed_rows or not self.unconfirmed)

    def _wake_at(self) -> float:
        """When something must leave."""
        return 0.0 if self._may_ask else min(self._report_due, self._acknowledgements.wake_at)

    def _drop_session(self, why: str) -> None:
        """The stream is gone: what it delivered goes to somebody else."""
        lost = self._acknowledgements.drop()
        if lost and not self._ended:
            self._fail(
                SessionClosed(
                    f"{lost} acknowledged rows of queue {self.queue!r} may be delivered again: {why} "
                    f"before that was confirmed"
                )
            )
        self.session.ended = why
        self.buffered.clear()
        self.current = None
        self.outstanding = Outstanding()
        self._finished_rows = self._granted = self._reported = self._confirmed_rows = self._buffer_bytes = 0
        self._report_due = _NEVER
        self.away_since = time.monotonic()
        self._asks.interrupted()
        self.arrived.notify_all()
        self.work.notify_all()

    def _fail(self, error: MqError) -> None:
        self.errors.append(error)
        self._connection.report(error)

    # -- without the lock ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the stream; what was handed over and not acknowledged counts as a failed delivery."""
        with self.lock:
            self._ended = True
            self.broken = self.broken or ClientClosed(
                f"the consumer of queue {self.queue!r} is closed: make a new one"
            )
            self.work.notify_all()
            self.arrived.notify_all()
            thread, call = self._thread, self._call
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LAST_WORDS_S)
            if thread.is_alive() and call is not None:
                call.cancel()
        with self.lock:
            self._drop_session("the consumer was closed")

    def _run(self) -> None:
        try:
            self._receive()
        except BaseException as bug:  # whoever waits for messages must hear of it
            LOG.exception("the thread of a consumer ended")
            with self.lock:
                self.broken = errors.InternalError(
                    f"the thread that receives has ended: {bug!r}: please report it"
                )
                self._drop_session("the thread that receives has ended")

    def _receive(self) -> None:
        pause = BACKOFF_FIRST_S
        while True:
            endpoint = self._connection.endpoint
            error, opened = self._session_once()
            if self._ended:
                return
            if error is not None and not isinstance(error, (RetryLater, *GONE)):
                with self.lock:
                    self.broken = error
                    self.arrived.notify_all()
                return
            if isinstance(error, Busy) and not isinstance(self.trouble, Busy):
                LOG.warning(
                    "queue %r: the broker at %s refuses to deliver and is asked again: %s",
                    self.queue,
                    endpoint,
                    error,
                )
            with self.lock:
                self.trouble = error
                self.arrived.notify_all()
            self._connection.interrupted(endpoint)
            pause = BACKOFF_FIRST_S if opened else min(2 * pause, BACKOFF_LAST_S)
            with self.lock:
                if self.work.wait_for(lambda: self._ended, pause):
                    return

    def _session_once(self) -> tuple[MqError | None, bool]:
        """Runs one session to its end. Returns why it ended, and whether the broker had opened it."""
        error: MqError | None = None
        with self.lock:
            self._sessions += 1
            session = Session(self._prefix + self._sessions.to_bytes(4, "big"))
            self._serial = 0
        try:
            hello = self._connection.hello()
            check_broker(self._identity[0], hello.cluster_id, self._connection.endpoint, self.queue)
            with self.lock:
                self._asks.is_possible = FEATURE in hello.features
            call = self._connection.stream("Consume", self._requests(session))
            self._call = call
            for message in call:
                self._take_in(session, message, hello.cluster_id)
        except grpc.RpcError as failure:
            error = self._connection.error_of(failure, f"receiving from queue {self.queue!r}")
        except MqError as failure:
            error = failure
        with self.lock:
            self._call = None
            is_final = error is not None and not isinstance(error, (RetryLater, *GONE))
            session.ended = (
                str(error)
                if is_final
                else f"the connection to the broker at {self._connection.endpoint} was interrupted"
            )
            opened = session is self.session
            if opened:
                self._drop_session(session.ended)
            self.work.notify_all()
        return error, opened

    def _take_in(self, session: Session, message: bytes, cluster_id: bytes) -> None:
        header, records = consumed(message)
        if header.HasField("delivery"):
            if not header.delivery.rows:
                return
            self._serial += 1
            delivery = Delivery(header.delivery, records, self.queue, session, self._serial)
            with self.lock:
                self.buffered.append(delivery)
                self._buffer_bytes += delivery.size
                self.arrived.notify_all()
                while (
                    self._buffer_bytes > _BUFFER_BYTES_MAX
                    and len(self.buffered) > 1
                    and not self.flushing
                    and not self._ended
                ):
                    self.work.wait()
        elif header.HasField("acknowledged"):
            failure = (
                errors.from_code(header.error.code, header.error.message)
                if header.HasField("error")
                else None
            )
            if isinstance(failure, StorageFailed):
                # on its disk or not: unconfirmed until the stream breaks, which is when the broker ends
                return
            with self.lock:
                self._acknowledgements.confirmed(header.acknowledged.request_id)
                self._confirmed_rows += header.acknowledged.rows
                if failure is not None:
                    self._fail(failure)
                if self._unreported and self._report_due == _NEVER:
                    self.handed()  # it was held back by max_unacknowledged
                self.work.notify_all()
                self.arrived.notify_all()
        elif header.HasField("asked"):
            with self.lock:
                self._asks.answered(header.asked.request_id, session)
                self.work.notify_all()  # what came while this was asked can be asked now
                self.arrived.notify_all()
        elif header.HasField("opened"):
            with self.lock:
                self._open(session, cluster_id, header.opened.destination_id)

    def _open(self, session: Session, cluster_id: bytes, destination_id: bytes) -> None:
        """The broker has opened a session.

        Raises:
            DestinationRecreated: of another queue than the last one.
        """
        if self._identity[1] not in (b"", destination_id):
            raise DestinationRecreated(
                f"queue {self.queue!r} was deleted and created again while the broker was away, and what "
                f"was in it is gone: "
                "make a new consumer for the new one"
            )
        self._identity = cluster_id, destination_id
        self.session, self.trouble = session, None
        self._asks.opened(session)
        self.arrived.notify_all()

    def _requests(self, session: Session) -> Iterator[consume_pb2.ConsumeRequest]:
        """The sending side of one session."""
        with self.lock:
            self._granted = min(self.prefetch, self._max_unacknowledged)
            credit = consume_pb2.Credit(rows=self._granted, bytes=_UNLIMITED_BYTES)
        # Deliveries of half a prefetch: one is worked on while the other is on its way.
        rows_max = max(1, self.prefetch // 2)
        yield consume_pb2.ConsumeRequest(
            open=consume_pb2.OpenConsumer(
                destination=self.queue, credit=credit, batch_rows_max=rows_max, client=self._connection.client
            )
        )
        while True:
            with self.lock:
                while True:
                    if session.ended:
                        return
                    is_last = self._ended
                    now = time.monotonic()
                    request = self._take_request(now, last=is_last)
                    if request is not None or is_last:
                        break
                    wake_at = self._wake_at()
                    self.work.wait(None if wake_at == _NEVER else max(0.0, wake_at - now))
            if request is not None:
                yield request
            if is_last:
                return
