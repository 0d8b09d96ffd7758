"""The Publish streams of a connection: each serves many producers, is opened when there is something to send,
and healed when it breaks.

Two threads a stream: gRPC's, which pulls requests (`_requests`), and ours, which reads answers (`_run`). A
stream's answers come in the order of its requests, so who asked is remembered as a line of producers.
Producers that have something to send take turns, a batch each.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from mq_wire import framing
from mq_wire.errors import BrokerUnavailable, Busy, InternalError, MqError
from mq_wire.v1 import admin_pb2
from mq_wire.v1.produce_pb2 import PublishResponse
from pyspark_mq.client.connection import GONE, Connection
from pyspark_mq.client.healing_stream import HealingStream
from pyspark_mq.client.log import LOG
from pyspark_mq.client.publishing import NEVER, Publishing, Request

#: More streams would share the work of the broker's threads, but not of this process's one interpreter.
_STREAMS_MAX: Final = 4
#: Nothing expires while a Hello is under way: it must not take long.
_HELLO_TIMEOUT_S: Final = 5.0
#: Timers that were set anew stay in the heap until they are due, or are so many more than producers.
_STALE_TIMERS_MAX: Final = 64
#: Nothing is looked at more often.
_TICK_S: Final = 0.001
#: Where producers have waited for each answer, the next batch is left to the one who waits for it: the stream
#: looks only so often, instead of being woken for each. For so long after the last one.
_LOOK_S: Final = 0.005
_HABIT_S: Final = 0.1
_CHOICE: Final = threading.Lock()


def stream_for_one_more(connection: Connection) -> PublishStream:
    """Returns the stream for a new producer: one of the connection's that nobody uses, a new one while there
    are few, or the least used.
    """
    streams: list[PublishStream] = connection.publish_streams
    with _CHOICE:
        stream = min(streams, key=lambda stream: stream.producers, default=None)
        if stream is None or (stream.producers and len(streams) < _STREAMS_MAX):
            stream = PublishStream(connection)
            streams.append(stream)
    return stream


class PublishStream:
    """One stream, and the producers that share it. Everything is guarded by `lock`, theirs too, unless it
    says otherwise.

    Attributes:
        lock: of the stream and of all its producers.
    """

    def __init__(self, connection: Connection) -> None:
        self.lock = threading.Lock()
        self._connection = connection
        self._work = threading.Condition(self.lock)  # for the two threads
        self._members: set[Publishing] = set()
        self._ready: deque[Publishing] = deque()
        self._timers: list[tuple[float, int, Publishing]] = []
        self._order = itertools.count()
        self._looks_until, self._looks = 0.0, False
        self._asked: deque[Publishing] = deque()  # whose requests are unanswered, in the order of the stream
        self._cluster_id = b""
        self._number = 0
        self._stream: Final = HealingStream(
            connection, "Publish", "sending", heals=(Busy, *GONE), hello_timeout=_HELLO_TIMEOUT_S
        )
        self._thread: threading.Thread | None = None
        self._bug: MqError | None = None
        self._leaving = False  # this process ends: no stream is opened any more

    # -- for producers
    # ---------------------------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether a stream is open."""
        return self._stream.is_open

    @property
    def producers(self) -> int:
        """How many share it."""
        return len(self._members)

    def join(self, publishing: Publishing) -> None:
        """Adds a producer."""
        with self.lock:
            self._members.add(publishing)

    def wake(self, member: Publishing, *, at_once: bool = True) -> None:
        """With the lock: `member` may have something to send. Not at once: it probably does so itself."""
        if not member.is_ready and member in self._members:
            member.is_ready = True
            self._ready.append(member)
            if self._thread is None and not self._leaving:
                self._start()
        if not at_once:
            self._looks_until = time.monotonic() + _HABIT_S
        if at_once or not self._looks:
            self._work.notify_all()

    def remind(self, member: Publishing, at: float) -> None:
        """With the lock: looks after `member` at that time, or earlier."""
        if at >= member.reminded_at:
            return
        member.reminded_at = at
        if len(self._timers) > 2 * len(self._members) + _STALE_TIMERS_MAX:
            self._timers = [
                (each.reminded_at, next(self._order), each)
                for each in self._members
                if each.reminded_at != NEVER
            ]
            heapq.heapify(self._timers)
        else:
            heapq.heappush(self._timers, (at, next(self._order), member))
        self._work.notify_all()

    def linger(self, member: Publishing, due: float) -> None:
        """With the lock: `member` has rows that are to become batches at that time. A stream is opened for
        them meanwhile.
        """
        self.remind(member, due)
        self.wake(member)

    def leave(self, member: Publishing) -> None:
        """Without the lock: takes a producer off. The last one waits a moment for the stream's orderly
        end.
        """
        with self.lock:
            self._members.discard(member)
            is_last = not self._members
            thread = self._thread
            self._work.notify_all()
        # The sending side has ended the stream; the broker ends it in turn.
        if is_last:
            self._stream.leave(thread)

    def stop_opening(self) -> None:
        """This process ends, and gRPC could start no thread for another stream: the open one is the last."""
        with self.lock:
            self._leaving = True
            self._work.notify_all()

    def forked(self) -> None:
        """In a child: nothing of it is left."""
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._stream.forked()
        self._members, self._ready, self._timers, self._asked = set(), deque(), [], deque()
        self._thread, self._leaving, self._looks = None, True, False

    # -- the thread
    # ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="mq-producer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # this process ends; what is left is sent without a stream
            self._leaving = True
        else:
            self._thread = thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as bug:
            LOG.exception("the thread of a Publish stream ended")
            with self.lock:
                self._thread = None
                self._fail_all(InternalError(f"the thread that sends has ended: {bug!r}: please report it"))
            if not isinstance(bug, Exception):
                raise

    def _serve(self) -> None:
        while (error := self._stream.serve(self, self._wanted, self._pause)) is not None:
            with self.lock:
                was_used = bool(self._members)
                self._fail_all(error)
            if was_used:
                self._connection.report(error)

    def _wanted(self) -> bool:
        """Waits until there is something to send. False = nobody is left who could have something."""
        with self.lock:
            while not self._has_work() and self._members and not self._leaving:
                self._rest()
            if self._members and not self._leaving:
                return True
            self._thread = None
            return False

    def _fail_all(self, error: MqError) -> None:
        for member in self._members:
            member.fail(error)
        self._members, self._ready, self._timers = set(), deque(), []
        self._work.notify_all()

    def _has_work(self) -> bool:
        self._fire(time.monotonic())
        while self._ready and not self._ready[0].wants_stream:
            member = self._ready.popleft()
            member.is_ready = False
            self.remind(member, member.wake_at())
        return bool(self._ready)

    def _rest(self) -> None:
        """Waits, with the lock, for something to do; looks by itself where it might not be told."""
        left = self._until_timer()
        if time.monotonic() < self._looks_until:
            self._looks = True
            left = _LOOK_S if left is None else min(left, _LOOK_S)
        try:
            self._work.wait(left)
        finally:
            self._looks = False

    def _until_timer(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def requests(self, hello: admin_pb2.HelloResponse) -> Iterator[bytes]:
        """A stream begins: returns its sending side."""
        with self.lock:
            self._cluster_id = hello.cluster_id
            self._number += 1
            return self._requests(self._number)

    def broke(self, error: MqError | None) -> MqError | None:
        """A stream is over, or could not be made: what it left unanswered goes again."""
        with self.lock:
            self._number += 1
            if error is not None and self._bug is not None:
                error = self._bug
            self._bug = None
            unanswered = len(self._asked)
            self._asked.clear()
            for member in self._members:
                member.disconnected()
                member.window.trouble = error if isinstance(error, Busy) else None
                self.wake(member)
                self.remind(member, member.wake_at())
            self._work.notify_all()
        if error is None and unanswered:
            error = BrokerUnavailable(
                f"the broker at {self._connection.endpoint} ended the stream with {unanswered} batches "
                f"unanswered"
            )
        return error

    def take(self, response: PublishResponse) -> None:
        """Gives an answer to the producer whose turn it is. One that has left or failed meanwhile
        wants none.
        """
        with self.lock:
            if not self._asked:
                raise InternalError(
                    f"the broker answered request {response.request_id}, which nobody made: please report it"
                )
            member = self._asked.popleft()
            member.window.trouble = None
            if member.broken is None:
                member.take_answer(response)
                if member.window.has_unsent:
                    self.wake(member)  # a partition that was held may go on

    def _pause(self, seconds: float) -> None:
        """Waits before the next attempt; what becomes too old meanwhile fails, what has lingered becomes
        batches.
        """
        until = time.monotonic() + seconds
        while True:
            with self.lock:
                now = time.monotonic()
                if not self._members or self._leaving or now >= until:
                    return
                due = self._pop_due(now)
                if due is None:
                    left = self._until_timer()
                    self._work.wait(until - now if left is None else min(until - now, left))
                    continue
                is_gathered = due.flush_due_at() <= now
                due.expire(now)
                self.wake(due)
                if not is_gathered:
                    self.remind(due, due.wake_at())
            if is_gathered:
                due.flush_due()
                with self.lock:
                    self.remind(due, due.wake_at())

    def _pop_due(self, now: float) -> Publishing | None:
        while self._timers and self._timers[0][0] <= now:
            at, _, member = heapq.heappop(self._timers)
            if at == member.reminded_at:
                member.reminded_at, member.is_due = NEVER, True
                if member in self._members:
                    return member
        return None

    def _fire(self, now: float) -> None:
        while (member := self._pop_due(now)) is not None:
            if not member.is_ready:
                member.is_ready = True
                self._ready.append(member)

    # -- the sending side
    # ------------------------------------------------------------------------------------------------

    def _requests(self, number: int) -> Iterator[bytes]:
        """The requests of stream `number`."""
        try:
            while True:
                with self.lock:
                    while True:
                        if number != self._number or not self._members:
                            return
                        member, request = self._next(time.monotonic())
                        if member is not None:
                            break
                        self._rest()
                if request is None:
                    member.flush_due()
                else:
                    header, records = request
                    yield framing.join(header, b"" if records is None else memoryview(records))
        except Exception as bug:  # on gRPC's thread, which would only say UNKNOWN
            LOG.exception("the sending side of a Publish stream ended")
            self._bug = InternalError(f"the thread that sends has ended: {bug!r}: please report it")
            raise

    def _next(self, now: float) -> tuple[Publishing | None, Request | None]:
        """Returns the next request and whose it is; a producer without a request has gathered rows that are
        to become batches.
        """
        self._fire(now)
        while self._ready:
            member = self._ready.popleft()
            member.is_ready = False
            if member.broken is not None:
                continue
            request = None
            is_gathered = member.flush_due_at() <= now
            if not is_gathered:
                if member.is_due:
                    member.expire(now)
                request = member.next_request(now, self._cluster_id)
                if request is None:
                    self.remind(member, max(member.wake_at(), now + _TICK_S))
                    continue
                self._asked.append(member)
            member.is_ready = True
            self._ready.append(member)
            return member, request
        return None, None
