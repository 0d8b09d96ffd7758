"""The Consume stream of a consumer: credit and acknowledgements out, deliveries and confirmations in.

Two threads: gRPC's, which pulls requests (`_requests`), and ours, which reads what the broker sends (`_run`).
The application waits on `_arrived`.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from typing import Final

from mq_wire import errors
from mq_wire.errors import (
    Busy,
    ClientClosed,
    MqError,
    SendOutcomeUnknown,
    SessionClosed,
    StorageFailed,
)
from mq_wire.v1 import admin_pb2, consume_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.arguments import check_timeout
from pyspark_mq.client.asking import FEATURE, Asking, Asks, Waiting, wait_time
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.deliveries import consumed
from pyspark_mq.client.healing_stream import HealingStream
from pyspark_mq.client.log import LOG
from pyspark_mq.client.message import Delivery
from pyspark_mq.client.outstanding import Ranges
from pyspark_mq.client.receive_window import NEVER, ReceiveWindow, Taken
from pyspark_mq.client.sessions import Session, Sessions

_UNLIMITED_BYTES: Final = 1 << 62


class Consuming:
    """The stream of one consumer, and the window behind it. Thread-safe; everything is guarded by `lock`.

    Attributes:
        queue: its name.
        address: of the broker.
        trouble: why the broker could not be reached, or gave no session, since it was last there.
        away_since: when the last session ended, or the first was to begin.
        inherited: set in a forked process, whose parent all of this belongs to.
    """

    def __init__(self, connection: Connection, queue: str, window: ReceiveWindow) -> None:
        self.lock = threading.Lock()
        self.queue: Final = queue
        self.address: Final = connection.address
        self.trouble: MqError | None = None
        self.away_since = 0.0
        self.inherited: ClientClosed | None = None
        self._arrived = threading.Condition(self.lock)  # for the application
        self._work = threading.Condition(self.lock)  # for the two threads
        self._window: Final = window
        self._asks: Final = Asks()
        self._connection: Final = connection
        self._errors: list[MqError] = []  # of acknowledgements, not told yet
        self._broken: MqError | None = None  # why nothing can be received any more
        self._flushing = 0  # callers who wait for confirmations
        self._warned = self._ended = False
        self._sessions: Final = Sessions(queue)
        self._session = self.session  # of the present stream, opened by the broker or not yet
        self._serial = 0
        self._stream: Final = HealingStream(connection, "Consume", f"receiving from queue {queue!r}")
        self._thread: threading.Thread | None = None

    def forked(self, parent: int) -> None:
        """In a child: refuses everything, and leaves the stream to the parent."""
        self._stream.forked()
        self.lock = threading.Lock()
        self._arrived, self._work = threading.Condition(self.lock), threading.Condition(self.lock)
        self._broken = self.inherited = forks.inherited(f"the consumer of queue {self.queue!r}", parent)
        self._errors, self._thread, self._ended = [], None, True

    @property
    def session(self) -> Session:
        """The present one, or the last."""
        return self._sessions.present

    # -- receiving -----------------------------------------------------------------------------------------

    def wish_prefetch(self, rows: int) -> None:
        """Raises the prefetch to `rows`, unless receiving has begun."""
        with self.lock:
            if self._thread is None:
                self._window.prefetch = max(rows, self._window.prefetch)

    def take_row(self, timeout: float | None) -> tuple[Delivery, int] | None:
        """Hands over one row; None where the broker had none within `timeout` seconds. Raises as
        `Consumer.receive`.
        """
        window = self._window
        with self.lock:
            delivery = window.current
            if delivery is None or self._broken is not None:
                delivery = self._next_delivery(check_timeout(timeout))
                if delivery is None:
                    return None
            if not delivery.values:
                delivery.values = delivery.list("value")
            row = delivery.next_row
            delivery.next_row = row + 1
            if row + 1 == delivery.rows:
                if window.finish(time.monotonic()):
                    self._work.notify_all()
            elif window.report_due == NEVER and window.handed(time.monotonic()):
                self._work.notify_all()
        return delivery, row

    def take_rows(self, rows_max: int, timeout: float) -> tuple[Session, list[Taken]] | None:
        """Hands over the rows of one session that are there, `rows_max` at most; None as `take_row`, and
        `timeout` may be infinite.
        """
        window = self._window
        with self.lock:
            delivery = window.current
            if delivery is None or self._broken is not None:
                delivery = self._next_delivery(timeout)
                if delivery is None:
                    return None
            taken, wakes = window.take(rows_max, time.monotonic())
            if wakes:
                self._work.notify_all()
        return delivery.session, taken

    def _next_delivery(self, timeout: float) -> Delivery | None:
        """Waits, with the lock, for a delivery and makes it the current one. None = the broker has none."""
        waiting = Waiting(timeout)
        self._begin()
        while True:
            if self._broken is not None:
                raise self._broken
            delivery = self._window.current or self._window.start()
            if delivery is not None:
                return delivery
            if self.is_full:
                self._warn_of_limit()
            left = waiting.left(self)
            if left <= 0:
                return None
            self._arrived.wait(wait_time(left))

    def _begin(self) -> None:
        """Opens the stream, once."""
        if self._thread is None and self._broken is None:
            self.away_since = time.monotonic()
            self._thread = threading.Thread(target=self._run, name=f"mq-consumer-{self.queue}", daemon=True)
            self._thread.start()

    def _warn_of_limit(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"queue {self.queue!r}: {self._window.max_unacknowledged:,} messages were handed over and "
                f"not acknowledged, which is "
                "max_unacknowledged: no more will come; acknowledge, or raise it",
                stacklevel=5,
            )

    @property
    def is_full(self) -> bool:
        """Whether nothing can come before the application acknowledges."""
        return self._window.is_full

    def ask(self) -> Asking:
        """With the lock: asks the broker whether there is nothing more, behind everything that was handed
        over, as soon as there is a session.
        """
        asking = self._asks.add(self.session)
        self._window.report()
        self._work.notify_all()
        return asking

    # -- acknowledging -------------------------------------------------------------------------------------

    def acknowledge(self, rows: dict[tuple[Session, int], Ranges]) -> None:
        """Takes exact acknowledgements, by session and partition; all of them or none.

        Raises:
            SessionClosed: one of the sessions is over.
            ClientClosed: in a forked process.
        """
        with self.lock:
            for session, _ in rows:
                self._check_session(session)
            now = time.monotonic()
            for (_, partition), ranges in rows.items():
                if self._window.acknowledge(partition, ranges, now):
                    self._work.notify_all()

    def acknowledge_up_to(self, delivery: Delivery, row: int) -> None:
        """Acknowledges what was handed over up to and with a row. Raises as `acknowledge`."""
        with self.lock:
            self._check_session(delivery.session)
            if self._window.acknowledge_up_to(delivery, row, time.monotonic()):
                self._work.notify_all()

    def flush(self, timeout: float | None) -> list[MqError]:
        """Sends acknowledgements that still linger, waits until the broker has confirmed all, and returns
        what went wrong without having been told.

        Raises:
            SendOutcomeUnknown: not all were confirmed within `timeout` seconds.
            ClientClosed: in a forked process.
        """
        deadline = time.monotonic() + check_timeout(timeout)
        if self.inherited is not None:
            raise self.inherited
        with self.lock:
            self._flushing += 1
            self._window.flush()
            self._work.notify_all()
            try:
                while self._window.unconfirmed and self._broken is None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise SendOutcomeUnknown(
                            f"acknowledgements on queue {self.queue!r} were not confirmed within {timeout} "
                            f"s: "
                            "they may count or not; flush again"
                        )
                    self._arrived.wait(wait_time(left))
            finally:
                self._flushing -= 1
            untold, self._errors = self._errors, []
        return untold

    def _check_session(self, session: Session) -> None:
        if self.inherited is not None:
            raise self.inherited
        self._sessions.check(session)

    def _fail(self, error: MqError) -> None:
        self._errors.append(error)
        self._connection.report(error)

    # -- the stream ----------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the stream; what was handed over and not acknowledged counts as a failed delivery."""
        with self.lock:
            self._ended = True
            self._broken = self._broken or ClientClosed(
                f"the consumer of queue {self.queue!r} is closed: make a new one"
            )
            self._work.notify_all()
            self._arrived.notify_all()
            self._stream.stop()
        self._stream.leave(self._thread)
        with self.lock:
            self._drop_session("the consumer was closed")

    def _drop_session(self, why: str) -> None:
        """The stream is gone: what it delivered goes to somebody else."""
        lost = self._window.close()
        if lost and not self._ended:
            self._fail(
                SessionClosed(
                    f"{lost} acknowledged rows of queue {self.queue!r} may be delivered again: {why} "
                    f"before that was confirmed"
                )
            )
        self.session.ended = why
        self.away_since = time.monotonic()
        self._asks.interrupted()
        self._arrived.notify_all()
        self._work.notify_all()

    def _run(self) -> None:
        try:
            self._stream.serve(self)
        except BaseException as bug:  # whoever waits for messages must hear of it
            LOG.exception("the thread of a consumer ended")
            with self.lock:
                self._broken = errors.InternalError(
                    f"the thread that receives has ended: {bug!r}: please report it"
                )
                self._drop_session("the thread that receives has ended")

    def requests(self, hello: admin_pb2.HelloResponse) -> Iterator[consume_pb2.ConsumeRequest]:
        """Begins a session: returns its sending side."""
        with self.lock:
            self._session = self._sessions.begin(hello.cluster_id, self._connection.endpoint)
            self._serial = 0
            self._asks.is_possible = FEATURE in hello.features
        return self._requests(self._session)

    def broke(self, error: MqError | None) -> MqError | None:
        """A session is over, or could not begin."""
        heals = error is None or self._stream.heals(error)
        why = f"the connection to the broker at {self._connection.endpoint} was interrupted"
        with self.lock:
            if self._sessions.broke(why if heals else str(error)):
                self._drop_session(why if heals else str(error))
            if heals:
                self._tell_if_busy(error)
                self.trouble = error
            elif not self._ended:
                self._broken = error
            self._work.notify_all()
            self._arrived.notify_all()
        return error

    def _tell_if_busy(self, error: MqError | None) -> None:
        if isinstance(error, Busy) and not isinstance(self.trouble, Busy):
            LOG.warning(
                "queue %r: the broker at %s refuses to deliver and is asked again: %s",
                self.queue,
                self._connection.endpoint,
                error,
            )

    def take(self, answer: bytes) -> None:
        """Takes in what the broker says."""
        header, records = consumed(answer)
        if header.HasField("delivery"):
            if not header.delivery.rows:
                return
            self._serial += 1
            delivery = Delivery(header.delivery, records, self.queue, self._session, self._serial)
            with self.lock:
                self._window.deliver(delivery)
                self._arrived.notify_all()
                while self._window.is_crowded and not self._flushing and not self._ended:
                    self._work.wait()
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
                acknowledged = header.acknowledged
                self._window.confirmed(acknowledged.request_id, acknowledged.rows, time.monotonic())
                if failure is not None:
                    self._fail(failure)
                self._work.notify_all()
                self._arrived.notify_all()
        elif header.HasField("asked"):
            with self.lock:
                self._asks.answered(header.asked.request_id, self._session)
                self._work.notify_all()  # what came while this was asked can be asked now
                self._arrived.notify_all()
        elif header.HasField("opened"):
            with self.lock:
                self.trouble = None
                self._asks.opened(self._sessions.opened(header.opened.destination_id))
                self._arrived.notify_all()

    def _requests(self, session: Session) -> Iterator[consume_pb2.ConsumeRequest]:
        """The sending side of one session."""
        with self.lock:
            credit = consume_pb2.Credit(rows=self._window.open(), bytes=_UNLIMITED_BYTES)
            # Deliveries of half a prefetch: one is worked on while the other is on its way.
            rows_max = max(1, self._window.prefetch // 2)
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
                    wake_at = 0.0 if self._may_ask else self._window.wake_at
                    self._work.wait(None if wake_at == NEVER else max(0.0, wake_at - now))
            if request is not None:
                yield request
            if is_last:
                return

    def _take_request(self, now: float, *, last: bool) -> consume_pb2.ConsumeRequest | None:
        """Returns what is due, as one request."""
        request = consume_pb2.ConsumeRequest()
        self._window.fill(request, now, last=last)
        if self._may_ask:
            request.ask.request_id = self._asks.send()
        is_empty = not any(request.HasField(field) for field in ("credit", "acknowledge", "ask"))
        return None if is_empty else request

    @property
    def _may_ask(self) -> bool:
        # Without credit the answer would say nothing, and where confirmations are due there will be credit.
        return self._asks.is_due and (self._window.awaits_rows or not self._window.unconfirmed)
