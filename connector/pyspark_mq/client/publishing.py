"""What one producer has under way: its window, who waits for what, and how the producer fails. The stream is
shared, see `publish_stream`.

Callers wait on `progress`, but one that waits for the only batch there is sends it itself (`send_now`): no
change of threads on this side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

from mq_wire import framing
from mq_wire.errors import (
    ClientClosed,
    InternalError,
    LimitExceeded,
    MqError,
    SendOutcomeUnknown,
    WrongBroker,
)
from mq_wire.limits import PUBLISH_HEADER_BYTES_MAX
from mq_wire.v1.produce_pb2 import PublishResponse
from pyspark_mq.client import forks
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.log import LOG
from pyspark_mq.client.sending import OutgoingBatch, Sending
from pyspark_mq.client.window import Window

NEVER: Final = float("inf")
#: Header and records of a PublishRequest.
Request = tuple[bytes, Any]


#: Who has waited for an answer so shortly before waits again and again.
_AGAIN_S: Final = 0.1
#: What is too old has been failed by then, unless its stream is held up.
_LATE_S: Final = 0.2


class Lingering(Protocol):
    """Rows that linger before they become batches."""

    @property
    def due_at(self) -> float:
        """When they are to leave; infinity where there are none. Asked with the lock."""
        ...

    def flush_due(self) -> None:
        """Lets them leave. Called without the lock."""
        ...


class SharedStream(Protocol):
    """The stream of several producers: see `PublishStream`, which is built on them."""

    lock: threading.Lock

    @property
    def live(self) -> bool:
        """Whether a stream is open."""
        ...

    def join(self, publishing: Publishing) -> None:
        """Adds a producer."""
        ...

    def wake(self, member: Publishing, *, at_once: bool = True) -> None:
        """`member` may have something to send. Not at once: it probably does so itself."""
        ...

    def remind(self, member: Publishing, at: float) -> None:
        """Looks after `member` at that time, or earlier."""
        ...

    def linger(self, member: Publishing, due: float) -> None:
        """`member` has rows that are to become batches at that time."""
        ...

    def leave(self, member: Publishing) -> None:
        """Takes a producer off."""
        ...

    def stop_opening(self) -> None:
        """This process ends: the open stream is the last."""
        ...

    def forked(self) -> None:
        """In a child: nothing of it is left."""
        ...


class Publishing:
    """What a producer and its stream share. Everything here is guarded by `lock`, which is the stream's,
    unless it says otherwise.

    Attributes:
        progress: for those who wait for room or answers.
        used: bytes of the window in use, gathering rows included.
        broken: why nothing can be sent any more.
        inherited: set in a forked process, whose parent all of this belongs to.
        is_ready, is_due, reminded_at: the stream's notes.
    """

    def __init__(
        self,
        connection: Connection,
        stream: SharedStream,
        queue: str,
        window: Window,
        send_timeout: float,
        lingering: Lingering,
    ) -> None:
        self.window = window
        self.used = 0
        self.broken: MqError | None = None
        self.inherited: ClientClosed | None = None
        self.is_ready = self.is_due = False
        self.reminded_at = NEVER
        self._connection, self._queue, self._send_timeout, self._lingering = (
            connection,
            queue,
            send_timeout,
            lingering,
        )
        self._cluster_id = connection.cluster_id
        self._untold: list[Sending] = []
        self._breaks = 0
        self._sending_now = False
        self._sent_now_at = float("-inf")
        self.stream = stream
        self.lock = stream.lock
        self.progress = threading.Condition(self.lock)
        stream.join(self)

    def forked(self, parent: int) -> None:
        """In a child: everything fails, nothing is sent."""
        self.stream.forked()
        self.lock = threading.Lock()
        self.progress = threading.Condition(self.lock)
        self.broken = self.inherited = forks.inherited(f"the producer of queue {self._queue!r}", parent)
        self._untold = []

    # -- with the lock, for the producer -------------------------------------------------------------------

    def enqueue(self, batch: OutgoingBatch) -> None:
        """Takes a batch to be sent."""
        now = time.monotonic()
        deadline = now + self._send_timeout
        self.window.add(batch, deadline)
        self.used += batch.size
        self.stream.wake(self, at_once=self.window.batches > 1 or now - self._sent_now_at >= _AGAIN_S)
        self.stream.remind(self, deadline)

    def linger_until(self, due: float) -> None:
        """Gathered rows are to become batches at that time."""
        self.stream.linger(self, due)

    def answered(self, sending: Sending, *, failed: bool = False) -> None:
        """One of the batches of `sending` has its outcome."""
        sending.left -= 1
        if failed and not sending.failed:
            sending.failed = True
            self._untold.append(sending)

    def take_untold(self) -> list[Sending]:
        """Returns what failed and no receipt has told yet; from now on it counts as told."""
        untold, self._untold = [sending for sending in self._untold if not sending.asked], []
        for sending in untold:
            sending.asked = True
        return untold

    # -- with the lock, for the stream ---------------------------------------------------------------------

    @property
    def wants_stream(self) -> bool:
        """Whether there is something that a stream must be open for."""
        return self.broken is None and (
            not (self.window.idle or self._sending_now) or self._lingering.due_at != NEVER
        )

    def flush_due_at(self) -> float:
        """When gathered rows are to become batches."""
        return self._lingering.due_at

    def wake_at(self) -> float:
        """When something has to be done next; infinity where nothing waits."""
        return min(self.window.wake_at(), self._lingering.due_at) if self.broken is None else NEVER

    def next_request(self, now: float, cluster_id: bytes, *, awaited: bool = False) -> Request | None:
        """Returns the next request for the stream, which leads to the broker `cluster_id`. What goes wrong
        fails this producer alone.

        `awaited`: nothing else is sent before its answer.
        """
        if self._sending_now or self.broken is not None:
            return None
        try:
            batch = self.window.next_batch(now)
            if batch is None:
                return None
            if cluster_id != self._cluster_id:
                raise WrongBroker(
                    f"the broker at {self._connection.endpoint} is another one than this producer of queue "
                    f"{self._queue!r} began with: "
                    "make a new producer; what was not confirmed may be stored on the old one"
                )
            header = self.window.header(batch, self._cluster_id, awaited=awaited)
            if len(header) > PUBLISH_HEADER_BYTES_MAX:
                raise LimitExceeded(
                    f"names and ids of a batch to queue {self._queue!r} take {len(header)} bytes, the "
                    f"limit is {PUBLISH_HEADER_BYTES_MAX}: "
                    "choose shorter ones"
                )
        except Exception as error:
            self._fail_told(error)
            return None
        return header, batch.records

    def take_answer(self, response: PublishResponse) -> None:
        """Takes the answer to the oldest request. What goes wrong fails this producer alone."""
        try:
            settled = self.window.answer(response, time.monotonic())
        except Exception as error:
            self._fail_told(error)
        else:
            if settled is not None:
                self._settle((settled,))

    def disconnected(self) -> None:
        """The stream is gone: what it left unanswered goes again."""
        self._breaks += 1
        self.window.disconnected()

    def expire(self, now: float) -> None:
        """Fails what is too old."""
        self.is_due = False
        if self.window.batches:
            self._settle(self.window.expire(now, self._send_timeout))

    def wait(self, left: float | None) -> bool:
        """Waits, with the lock, up to `left` seconds (None = for ever) for progress, and returns whether
        there was any.

        Who waits fails what is too old: a stream cannot while gRPC waits for a window from the other side.
        """
        late = max(self.window.wake_at() - time.monotonic(), 0.0) + _LATE_S
        if self.progress.wait(min(late, threading.TIMEOUT_MAX) if left is None else min(left, late)):
            return True
        now = time.monotonic()
        if self.window.wake_at() + _LATE_S / 2 <= now:
            self.expire(now)
        return False

    def fail(self, error: MqError) -> None:
        """Nothing can be sent any more; everything without an outcome fails with `error`."""
        self.broken = error
        self._settle(self.window.fail_all(error))

    def _fail_told(self, error: Exception) -> None:
        if not isinstance(error, MqError):
            LOG.error("the producer of queue %r failed", self._queue, exc_info=error)
            error = InternalError(
                f"the producer of queue {self._queue!r} failed: {error!r}: please report it"
            )
        self.fail(error)
        self._connection.report(error)

    def _settle(self, batches: Iterable[OutgoingBatch]) -> None:
        has_failed = False
        for batch in batches:
            has_failed |= batch.error is not None
            self.used -= batch.size
            if batch.sending is not None:
                self.answered(batch.sending, failed=batch.error is not None)
                batch.sending = None
        if has_failed and self.window.is_named and self.broken is None:
            # `stored` is a count: with a gap before the last row it would lead the next producer of this name
            # to the wrong place.
            self.fail(
                SendOutcomeUnknown(
                    f"a batch of a named producer of queue {self._queue!r} failed, and nothing behind it is "
                    "sent: make a new producer with this name, and continue after what it has in `stored`"
                )
            )
        self.progress.notify_all()

    # -- without the lock ----------------------------------------------------------------------------------

    def flush_due(self) -> None:
        """Lets rows that have lingered enough become batches."""
        try:
            self._lingering.flush_due()
        except Exception as error:
            with self.lock:
                self._fail_told(error)

    def send_now(self, sending: Sending, timeout: float | None) -> None:
        """Sends the batch of `sending` on the caller's thread and takes the answer, if it is the only one
        there is and has not left yet.

        What goes wrong is left to the stream, which sends it again.
        """
        if sending.left == 1 and self.window.batches == 1:
            self._sent_now_at = time.monotonic()
            if self._send_alone(timeout):
                self._sent_now_at = time.monotonic()

    def drain(self, until: float) -> None:
        """Sends everything on the caller's thread, batch by batch, where no stream is open to do it."""
        self.stream.stop_opening()
        while not self.stream.live and self.window.batches and (left := until - time.monotonic()) > 0:
            if not self._send_alone(left):
                time.sleep(min(left, 0.05))
                with self.lock:
                    self.expire(time.monotonic())

    def _call(self, message: bytes, timeout: float) -> PublishResponse:
        response: PublishResponse = self._connection.call(
            "Send", message, timeout=timeout, retry_timeout=None
        )
        return response

    def _send_alone(self, timeout: float | None) -> bool:
        """Returns whether a batch was answered."""
        with self.lock:
            window = self.window
            if window.on_wire or self._sending_now or self.broken is not None:
                return False
            request = self.next_request(time.monotonic(), self._cluster_id, awaited=True)
            if request is None:
                return False
            self._sending_now = True
            breaks = self._breaks
        header, records = request
        response: PublishResponse | None = None
        limit = self._send_timeout if timeout is None else timeout
        try:
            with suppress(MqError):  # the stream will tell
                response = self._call(
                    framing.join(header, b"" if records is None else memoryview(records)), limit
                )
        finally:
            with self.lock:
                self._sending_now = False
                # Where a stream broke meanwhile, what had no answer goes again: this answer is nobody's.
                if breaks == self._breaks and self.broken is None:
                    if response is None:
                        self.window.disconnected()
                    else:
                        self.take_answer(response)
                if self.window.has_unsent:
                    self.stream.wake(self)
        return response is not None

    def end(self) -> None:
        """Leaves the stream; what is not confirmed by now fails with ClientClosed."""
        with self.lock:
            self.fail(
                ClientClosed(
                    f"the producer of queue {self._queue!r} was closed before the broker confirmed this: "
                    f"it may be stored or not"
                )
            )
        self.stream.leave(self)
