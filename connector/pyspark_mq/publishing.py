"""The Publish stream of a producer: opened when there is something to send, healed when it breaks, ended at close.

Two threads at most: gRPC's, which pulls requests (`_requests`), and ours, which reads answers (`_run`). Callers wait on `progress`, but
one that waits for the only batch there is sends it itself (`send_now`): no change of threads on this side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Protocol

import grpc

from mq_wire import framing
from mq_wire.errors import BrokerUnavailable, Busy, ClientClosed, MqError, WrongBroker
from mq_wire.v1.produce_pb2 import PublishResponse
from pyspark_mq.connection import BACKOFF_FIRST_S, BACKOFF_LAST_S, GONE, Connection, Stream
from pyspark_mq.receipts import Sending
from pyspark_mq.window import OutgoingBatch, Window

_NEVER: Final = float("inf")
#: How long close() waits for the broker to end a stream that has nothing left to say.
_LAST_WORDS_S: Final = 1.0
#: Nothing expires while a Hello is under way: it must not take long.
_HELLO_TIMEOUT_S: Final = 5.0


class Gathering(Protocol):
    """Rows that linger before they become batches."""

    @property
    def due_at(self) -> float:
        """When they are to leave; infinity where there are none. Asked with the lock."""
        ...

    def flush_due(self) -> None:
        """Lets them leave. Called without the lock."""
        ...


class Publishing:
    """What a producer and its threads share. Everything here is guarded by `lock`, unless it says otherwise.

    Attributes:
        work: for those who put requests on the stream.
        progress: for those who wait for room or answers.
        used: bytes of the window in use, gathering rows included.
        broken: why nothing can be sent any more.
    """

    def __init__(self, connection: Connection, queue: str, window: Window, send_timeout: float, gathering: Gathering) -> None:
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        self.progress = threading.Condition(self.lock)
        self.window = window
        self.used = 0
        self.broken: MqError | None = None
        self._connection, self._queue, self._send_timeout, self._gathering = connection, queue, send_timeout, gathering
        self._cluster_id = connection.cluster_id
        self._untold: list[Sending] = []
        self._ended = False
        self._stream_number = 0
        self._breaks = 0
        self._call: Stream | None = None
        self._sending_now = False
        self._thread: threading.Thread | None = None

    # -- with the lock, for the producer ---------------------------------------------------------------------------------

    def enqueue(self, batch: OutgoingBatch) -> None:
        """Takes a batch to be sent."""
        self.window.add(batch, time.monotonic() + self._send_timeout)
        self.used += batch.size
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"mq-producer-{self._queue}", daemon=True)
            self._thread.start()
        self.work.notify_all()

    def answered(self, sending: Sending, *, failed: bool = False) -> None:
        """One of the batches of `sending` has its outcome."""
        sending.left -= 1
        if failed and not sending.failed:
            sending.failed = True
            self._untold.append(sending)

    def take_untold(self) -> list[MqError]:
        """Returns the errors that no receipt has told yet; from now on they count as told."""
        untold, self._untold = [sending for sending in self._untold if not sending.asked], []
        for sending in untold:
            sending.asked = True
        return [error for sending in untold if (error := sending.error()) is not None]

    def _settle(self, batches: Iterable[OutgoingBatch]) -> None:
        for batch in batches:
            self.used -= batch.size
            if batch.sending is not None:
                self.answered(batch.sending, failed=batch.error is not None)
                batch.sending = None
        self.progress.notify_all()

    def _break(self, error: MqError) -> None:
        self.broken = error
        self._settle(self.window.fail_all(error))
        self.work.notify_all()

    def _expire(self, now: float) -> None:
        expired = self.window.expire(now, self._send_timeout)
        if expired:
            self._settle(expired)

    def _wake_at(self) -> float:
        return min(self.window.wake_at(), self._gathering.due_at)

    def _take_answer(self, response: PublishResponse | None) -> None:
        """Takes the answer to the only batch that was on its way; None where it got lost."""
        if response is None:
            self.window.disconnected()
            return
        try:
            settled = self.window.answer(response, time.monotonic())
        except MqError as error:
            self._break(error)
        else:
            if settled is not None:
                self._settle((settled,))

    def _has_nothing_to_stream(self) -> bool:
        return (self.window.idle or self._sending_now) and self._gathering.due_at == _NEVER

    # -- without the lock ------------------------------------------------------------------------------------------------

    def send_now(self, sending: Sending, timeout: float | None) -> None:
        """Sends the batch of `sending` on the caller's thread and takes the answer, if it is the only one there is and has not left yet.

        What goes wrong is left to the stream, which sends it again.
        """
        with self.lock:
            window = self.window
            if sending.left != 1 or window.batches != 1 or window.on_wire or self._sending_now or self._ended or self.broken is not None:
                return
            batch = window.next_batch(time.monotonic())
            if batch is None:
                return
            self._sending_now = True
            breaks = self._breaks
            message = framing.join(window.header(batch, self._cluster_id), b"" if batch.records is None else memoryview(batch.records))
        response: PublishResponse | None = None
        limit = self._send_timeout if timeout is None else timeout
        with suppress(MqError):  # the stream will tell
            response = self._connection.call("Send", message, timeout=limit, retry_timeout=None)
        with self.lock:
            self._sending_now = False
            # Where a stream broke meanwhile, what had no answer goes again: this answer is nobody's.
            if breaks == self._breaks:
                self._take_answer(response)
            if self.window.has_unsent:
                self.work.notify_all()

    def end(self) -> None:
        """Ends the stream; what is not confirmed by now fails with ClientClosed."""
        with self.lock:
            self._ended = True
            self._break(
                ClientClosed(f"the producer of queue {self._queue!r} was closed before the broker confirmed this: it may be stored or not")
            )
            thread, call = self._thread, self._call
        # The sending side has ended the stream; the broker ends it in turn. A broker that does not answer is not waited for.
        if thread is not None:
            thread.join(_LAST_WORDS_S)
            if thread.is_alive() and call is not None:
                call.cancel()

    def _run(self) -> None:
        pause = BACKOFF_FIRST_S
        while True:
            with self.lock:
                while self._has_nothing_to_stream() and not self._ended and self.broken is None:
                    self.work.wait()
                if self._ended or self.broken is not None:
                    return
            endpoint = self._connection.endpoint
            error, answers = self._stream_once()
            if error is None:
                continue
            if not isinstance(error, (Busy, *GONE)):
                with self.lock:
                    if not self._ended:
                        self._break(error)
                        self._connection.report(error)
                return
            self._connection.interrupted(endpoint)
            pause = BACKOFF_FIRST_S if answers else min(2 * pause, BACKOFF_LAST_S)
            self._pause(pause)

    def _stream_once(self) -> tuple[MqError | None, int]:
        """Runs one stream to its end. Returns why it ended, and how many answers it gave."""
        answers = 0
        error: MqError | None = None
        try:
            if self._connection.hello(timeout=_HELLO_TIMEOUT_S).cluster_id != self._cluster_id:
                raise WrongBroker(
                    f"the broker at {self._connection.endpoint} is another one than this producer of queue {self._queue!r} began with: "
                    "make a new producer; what was not confirmed may be stored on the old one"
                )
            with self.lock:
                self._stream_number += 1
                self._call = call = self._connection.stream("Publish", self._requests(self._stream_number))
            for response in call:
                answers += 1
                with self.lock:
                    settled = self.window.answer(response, time.monotonic())
                    if settled is not None:
                        self._settle((settled,))
                    if self.window.has_unsent:
                        self.work.notify_all()  # a partition that was held may go on
        except grpc.RpcError as failure:
            error = self._connection.error_of(failure, f"sending to queue {self._queue!r}")
        except MqError as failure:
            error = failure
        with self.lock:
            self._stream_number += 1
            self._breaks += 1
            self._call = None
            unanswered = self.window.on_wire
            self.window.disconnected()
            self.work.notify_all()
        if error is None and unanswered:
            error = BrokerUnavailable(f"the broker at {self._connection.endpoint} ended the stream with {unanswered} batches unanswered")
        return error, answers

    def _pause(self, seconds: float) -> None:
        """Waits before the next attempt; what becomes too old meanwhile fails."""
        until = time.monotonic() + seconds
        while True:
            with self.lock:
                now = time.monotonic()
                self._expire(now)
                if self._ended or now >= until:
                    return
                due_at = self._gathering.due_at
                if due_at > now:
                    self.work.wait(max(0.0, min(until, self._wake_at()) - now))
                    continue
            self._gathering.flush_due()

    def _requests(self, number: int) -> Iterator[bytes]:
        """The sending side of stream `number`."""
        while True:
            with self.lock:
                while True:
                    if number != self._stream_number or self._ended:
                        return
                    now = time.monotonic()
                    is_due = self._gathering.due_at <= now
                    batch = None if is_due or self._sending_now else self.window.next_batch(now)
                    if is_due or batch is not None:
                        break
                    wake_at = self._wake_at()
                    if wake_at <= now:
                        self._expire(now)
                    else:
                        self.work.wait(None if wake_at == _NEVER else wake_at - now)
                if batch is not None:
                    header, records = self.window.header(batch), batch.records
            if is_due:
                self._gathering.flush_due()
            else:
                yield framing.join(header, b"" if records is None else memoryview(records))
