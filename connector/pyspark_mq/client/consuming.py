"""One consumer, between the application and the stream that it shares: what was delivered, what is to be
said, and what went wrong.

Three threads: the application's, which waits on `_arrived`; the stream's sending side, which asks what is to
be said (`next_request`); and its reader, which hands over what the broker says (`take`, `broke`).
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Final

from mq_wire import errors
from mq_wire.errors import Busy, ClientClosed, MqError, SendOutcomeUnknown, SessionClosed, StorageFailed
from mq_wire.v1 import consume_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.acknowledging import Verb
from pyspark_mq.client.arguments import check_timeout
from pyspark_mq.client.asking import Asking, Waiting, wait_time
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.consume_line import Line
from pyspark_mq.client.conversation import Conversation, Turn
from pyspark_mq.client.healing_stream import LAST_WORDS_S
from pyspark_mq.client.log import LOG
from pyspark_mq.client.message import Delivery
from pyspark_mq.client.outstanding import Ranges
from pyspark_mq.client.receive_window import NEVER, ReceiveWindow, Taken
from pyspark_mq.client.sessions import Session


class Consuming:
    """One consumer, and the window behind it. Thread-safe; everything is guarded by `lock`.

    Args:
        connection: for errors that no call can raise.
        queue: its name.
        window: its window.
        line: makes the stream when it is first needed, or returns the one that is shared.

    Attributes:
        queue: its name.
        address: of the broker.
        trouble: why the broker could not be reached, or gave no session, since it was last there.
        away_since: when the last session ended, or the first was to begin.
        inherited: set in a forked process, whose parent all of this belongs to.
        is_ready, reminded_at: of the stream, guarded by its lock.
    """

    def __init__(
        self, connection: Connection, queue: str, window: ReceiveWindow, line: Callable[[], Line]
    ) -> None:
        self.lock = threading.Lock()
        self.queue: Final = queue
        self.address: Final = connection.address
        self.trouble: MqError | None = None
        self.away_since = 0.0
        self.inherited: ClientClosed | None = None
        self._arrived = threading.Condition(self.lock)  # for the application
        self._room = threading.Condition(self.lock)  # for who reads the stream
        self._window: Final = window
        self._talk: Final = Conversation(queue, window)
        self._connection: Final = connection
        self._errors: list[MqError] = []  # of acknowledgements, not told yet
        self._broken: MqError | None = None  # why nothing can be received any more
        self._flushing = 0  # callers who wait for confirmations
        self._warned = self._ended = False
        self._make_line: Final = line
        self._line: Line | None = None
        self.is_ready, self.reminded_at = False, NEVER

    def forked(self, parent: int) -> None:
        """In a child: refuses everything, and leaves the stream to the parent."""
        self.lock = threading.Lock()
        self._arrived, self._room = threading.Condition(self.lock), threading.Condition(self.lock)
        self._broken = self.inherited = forks.inherited(f"the consumer of queue {self.queue!r}", parent)
        self._errors, self._line, self._ended = [], None, True

    @property
    def session(self) -> Session:
        """The present one, or the last."""
        return self._talk.present

    # -- receiving -----------------------------------------------------------------------------------------

    def wish_prefetch(self, rows: int) -> None:
        """Raises the prefetch to `rows`, unless receiving has begun."""
        with self.lock:
            if self._line is None:
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
                    self._wake()
            elif window.report_due == NEVER and window.handed(time.monotonic()):
                self._wake()
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
                self._wake()
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
        """Joins the stream, once."""
        if self._line is None and self._broken is None:
            self.away_since = time.monotonic()
            line = self._make_line()
            line.join(self)
            self._line = line

    def _wake(self) -> None:
        """Something may have to be said, or read."""
        self._room.notify_all()
        if self._line is not None:
            self._line.wake(self)

    def _warn_of_limit(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"queue {self.queue!r}: {self._window.max_unacknowledged:,} messages were handed over and "
                "not acknowledged, which is max_unacknowledged: no more will come; acknowledge, or raise it",
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
        asking = self._talk.asks.add(self.session)
        self._window.report()
        self._wake()
        return asking

    # -- acknowledging -------------------------------------------------------------------------------------

    def settle(self, rows: dict[tuple[Session, int], Ranges], verb: Verb) -> None:
        """Takes exact acknowledgements or releases, by session and partition; all of them or none.

        Raises:
            SessionClosed: one of the sessions is over.
            Unsupported: the broker takes no rows back.
            ClientClosed: in a forked process.
        """
        with self.lock:
            for session, _ in rows:
                self._check_session(session)
                if verb is not Verb.ACKNOWLEDGE and not session.can_release:
                    raise errors.Unsupported(
                        f"the broker at {self._connection.endpoint} is too old to take single messages of "
                        f"queue {self.queue!r} back: update it, or close the consumer, which gives back what "
                        "is not acknowledged"
                    )
            now = time.monotonic()
            for (_, partition), ranges in rows.items():
                if self._window.acknowledge(partition, ranges, now, verb):
                    self._wake()

    def acknowledge_up_to(self, delivery: Delivery, row: int) -> None:
        """Acknowledges what was handed over up to and with a row. Raises as `settle`."""
        with self.lock:
            self._check_session(delivery.session)
            if self._window.acknowledge_up_to(delivery, row, time.monotonic()):
                self._wake()

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
            self._wake()
            try:
                while self._window.unconfirmed and self._broken is None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise SendOutcomeUnknown(
                            f"acknowledgements on queue {self.queue!r} were not confirmed within {timeout} "
                            "s: they may count or not; flush again"
                        )
                    self._arrived.wait(wait_time(left))
            finally:
                self._flushing -= 1
            untold, self._errors = self._errors, []
        return untold

    def _check_session(self, session: Session) -> None:
        if self.inherited is not None:
            raise self.inherited
        self._talk.sessions.check(session)

    def _fail(self, error: MqError) -> None:
        self._errors.append(error)
        self._connection.report(error)

    # -- the end -------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the session, and waits a moment until the broker has said so; what was handed over and not
        acknowledged counts as a failed delivery.
        """
        until = time.monotonic() + LAST_WORDS_S
        with self.lock:
            self._ended = True
            self._broken = self._broken or ClientClosed(
                f"the consumer of queue {self.queue!r} is closed: make a new one"
            )
            self._arrived.notify_all()
            self._wake()
            line = self._line
            if line is not None and not line.is_mine:
                self._arrived.wait_for(lambda: self._talk.number is None, LAST_WORDS_S)
        if line is not None:
            line.leave(self, until)
        with self.lock:
            self._drop_session("the consumer was closed")

    def _drop_session(self, why: str) -> None:
        """The session is over: what it delivered goes to somebody else."""
        lost = self._window.close()
        if lost and not self._ended:
            rows = f"{lost} acknowledged rows of queue {self.queue!r}"
            self._fail(SessionClosed(f"{rows} may be delivered again: {why} before that was confirmed"))
        self.session.ended = why
        self.away_since = time.monotonic()
        self._arrived.notify_all()

    # -- for the stream ------------------------------------------------------------------------------------

    def move_to(self, line: Line) -> None:
        """Has no place on its stream, where it was not opened: goes to another one."""
        with self.lock:
            if not self._ended and self._line is not None:
                line.join(self)
                self._line = line

    def next_request(self, now: float, line: Line, life: int) -> Turn:
        """Returns what is to be said now on the stream of `line` in this life of it."""
        talk = self._talk
        with self.lock:
            if line is not self._line or life != line.life:
                return Turn()
            if talk.number is not None:
                return talk.next(now, closing=self._ended)
            if self._ended or self._broken is not None:
                return Turn()
            if now < talk.open_at:
                return Turn(wake_at=talk.open_at)
            try:
                talk.begin(line.hello, self._connection.endpoint)
            except MqError as error:
                self._over(str(error), error, heals=False)
                return Turn()
            number = line.number_for(self, life)
            if number is None:
                return Turn()
            return Turn(talk.open(number, self._connection.client))

    def broke(self, error: MqError | None, *, heals: bool) -> None:
        """The stream is over, or could not begin."""
        why = f"the connection to the broker at {self._connection.endpoint} was interrupted"
        with self.lock:
            self._over(why if heals else str(error), error, heals=heals)

    @property
    def is_done(self) -> bool:
        """Whether it wants no stream any more."""
        return self._talk.number is None and (self._ended or self._broken is not None)

    def _over(self, why: str, error: MqError | None, *, heals: bool) -> None:
        self._talk.asks.interrupted()  # a question may have been sent behind an opening that was refused
        if self._talk.over(why):
            self._drop_session(why)
        if heals:
            self._tell_if_busy(error)
            self.trouble = error
        elif not self._ended:
            self._broken = error
        self._arrived.notify_all()
        self._room.notify_all()

    def _tell_if_busy(self, error: MqError | None) -> None:
        if isinstance(error, Busy) and not isinstance(self.trouble, Busy):
            place = f"queue {self.queue!r}: the broker at {self._connection.endpoint}"
            LOG.warning("%s refuses to deliver and is asked again: %s", place, error)

    def take(self, header: consume_pb2.ConsumeHeader, records: memoryview, line: Line) -> None:
        """Takes in what the broker says."""
        talk = self._talk
        if header.HasField("delivery"):
            if header.delivery.rows:
                self._deliver(talk.delivered(header, records))
            return
        failure: MqError | None = None
        if header.HasField("error"):
            failure = errors.from_code(header.error.code, header.error.message)
        with self.lock:
            if header.closed:
                self._closed(failure, line)
            elif header.HasField("acknowledged"):
                # A failed storage: on its disk or not; unconfirmed until the stream breaks, which is when the
                # broker ends.
                if not isinstance(failure, StorageFailed):
                    acknowledged = header.acknowledged
                    self._window.confirmed(acknowledged.request_id, acknowledged.rows, time.monotonic())
                    if failure is not None:
                        self._fail(failure)
            elif header.HasField("asked"):
                talk.asked(header.asked.request_id)
            elif header.HasField("opened"):
                self._opened(header.opened.destination_id)
            # What came while something was asked or confirmed can be said now.
            self._wake()
            self._arrived.notify_all()

    def _deliver(self, delivery: Delivery) -> None:
        with self.lock:
            self._window.deliver(delivery)
            self._arrived.notify_all()
            # Never where a stream is shared, whose other consumers would wait as well.
            while self._window.is_crowded and not self._flushing and not self._ended:
                self._room.wait()

    def _opened(self, destination_id: bytes) -> None:
        try:
            self._talk.opened(destination_id)
        except MqError as error:
            if not self._talk.number:
                raise
            self._broken, self._ended = error, True  # which closes it
        else:
            self.trouble = None

    def _closed(self, error: MqError | None, line: Line) -> None:
        """The broker has ended the session."""
        heals = error is None or line.heals(error)
        self._over("the broker has ended the session" if error is None else str(error), error, heals=heals)
        if heals and not self._ended:
            self._talk.wait(time.monotonic())
