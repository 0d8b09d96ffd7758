"""The Consume stream of a connection: all its consumers share it. A broker that cannot do that gets a stream
for each.

Two threads: gRPC's, which pulls requests (`_requests`), and ours, which reads what the broker sends (`_run`).
The reader never waits for an application: each consumer has granted what may come. Consumers that have
something to say take turns.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from mq_wire.errors import InternalError, MqError
from mq_wire.v1 import admin_pb2, consume_pb2
from pyspark_mq.client import forks
from pyspark_mq.client.connection import Connection
from pyspark_mq.client.consuming import Consuming
from pyspark_mq.client.conversation import SHARED
from pyspark_mq.client.deliveries import consumed
from pyspark_mq.client.healing_stream import HealingStream
from pyspark_mq.client.log import LOG
from pyspark_mq.client.receive_window import NEVER

#: Timers that were set anew stay in the heap until they are due, or are so many more than consumers.
_STALE_TIMERS_MAX: Final = 64


def stream_for_one_more(connection: Connection, queue: str) -> ConsumeStream:
    """Returns the stream for a new consumer: the one that all of the connection share, or one of its own
    where the broker is known to be too old for that.
    """
    hello = connection.known_hello
    if hello is not None and SHARED not in hello.features:
        return ConsumeStream(connection, queue)
    return connection.part(ConsumeStream)


class ConsumeStream:
    """One stream, and the consumers that share it. `lock` guards all of it; who holds a consumer's lock may
    take it, never the other way round.

    Args:
        connection: used, and left open.
        queue: of the only consumer; "" = there may be many.

    Attributes:
        hello: what the broker of the present stream said of itself.
        life: number of the present stream; what is said for another one is not sent.
    """

    def __init__(self, connection: Connection, queue: str = "") -> None:
        self.lock = threading.Lock()
        self.hello = admin_pb2.HelloResponse()
        self.life = 0
        self._connection: Final = connection
        self._is_own: Final = bool(queue)
        self._work = threading.Condition(self.lock)  # for the two threads
        self._members: dict[Consuming, None] = {}
        self._numbers: dict[int, Consuming] = {}  # of the present stream
        self._highest = 0
        self._ready: deque[Consuming] = deque()
        self._timers: list[tuple[float, int, Consuming]] = []
        self._order = itertools.count()
        what = f"receiving from queue {queue!r}" if queue else "receiving"
        self._stream: Final = HealingStream(connection, "Consume", what)
        self._thread: threading.Thread | None = None
        self._bug: MqError | None = None
        forks.watch(self)

    def forked(self, parent: int) -> None:
        """In a child: nothing of it is left."""
        self._stream.forked()
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._members, self._numbers, self._ready, self._timers = {}, {}, deque(), []
        self._thread = None

    # -- for consumers -------------------------------------------------------------------------------------

    @property
    def is_mine(self) -> bool:
        """Whether this is the thread that reads it."""
        return threading.current_thread() is self._thread

    def heals(self, error: MqError) -> bool:
        """Whether another attempt may succeed."""
        return self._stream.heals(error)

    def join(self, member: Consuming) -> None:
        """Adds a consumer, and begins to serve where it is the first one."""
        with self.lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="mq-consumer", daemon=True)
                thread.start()
                self._thread = thread
            self._members[member] = None
            self._put(member)

    def wake(self, member: Consuming) -> None:
        """The consumer may have something to say."""
        with self.lock:
            self._put(member)

    def number_for(self, member: Consuming, life: int) -> int | None:
        """Returns what the consumer is called on the stream of that life; None where that is over."""
        with self.lock:
            if life != self.life:
                return None
            number = 0
            if SHARED in self.hello.features:
                number = self._highest = self._highest + 1
            self._numbers[number] = member
            return number

    def leave(self, member: Consuming, until: float) -> None:
        """Takes a consumer off. The last one waits until then for the stream's orderly end; a broker that
        does not answer is not waited for.
        """
        with self.lock:
            self._members.pop(member, None)
            self._work.notify_all()
            thread = self._thread
            if thread is None or self.is_mine:
                return
            left = max(0.0, until - time.monotonic())
            self._work.wait_for(lambda: self._members or self._thread is not thread, left)
            is_stuck = not self._members and self._thread is thread
        if is_stuck:
            self._stream.cancel()

    def _put(self, member: Consuming) -> None:
        if not member.is_ready:
            member.is_ready = True
            self._ready.append(member)
        self._work.notify_all()

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            # What ended it for good was told to all who were there; others may have come.
            while self._stream.serve(self, self._wanted, self._pause) is not None:
                pass
        except BaseException as bug:  # whoever waits for messages must hear of it
            LOG.exception("the thread of a Consume stream ended")
            with self.lock:
                self._thread = None
            self.broke(InternalError(f"the thread that receives has ended: {bug!r}: please report it"))

    def _wanted(self) -> bool:
        """Whether anybody is there. The thread ends otherwise."""
        with self.lock:
            if not self._members:
                self._thread = None
                self._work.notify_all()
            return bool(self._members)

    def _pause(self, seconds: float) -> None:
        with self.lock:
            self._work.wait_for(lambda: not self._members, seconds)

    def requests(self, hello: admin_pb2.HelloResponse) -> Iterator[consume_pb2.ConsumeRequest]:
        """A stream begins: returns its sending side."""
        moved: list[Consuming] = []
        with self.lock:
            self.hello = hello
            self.life += 1
            self._numbers, self._highest = {}, 0
            if not self._is_own and SHARED not in hello.features:
                moved, self._members, self._ready, self._timers = list(self._members), {}, deque(), []
            for member in self._members:
                self._put(member)
            life = self.life
        for member in moved:
            member.is_ready, member.reminded_at = False, NEVER
            member.move_to(ConsumeStream(self._connection, member.queue))
        return self._requests(life)

    def broke(self, error: MqError | None) -> MqError | None:
        """A stream is over, or could not be made: so are the sessions of all consumers."""
        with self.lock:
            self.life += 1
            self._numbers = {}
            members = list(self._members)
            if error is not None and self._bug is not None:
                error = self._bug
            self._bug = None
            heals = error is None or self._stream.heals(error)
            if not heals:
                self._members, self._ready, self._timers = {}, deque(), []
        for member in members:
            member.broke(error, heals=heals)
        with self.lock:
            self._work.notify_all()
        return error

    def take(self, answer: bytes) -> None:
        """Hands what the broker says to the consumer whom it is about."""
        header, records = consumed(answer)
        member = self._numbers.get(header.consumer)
        if member is not None:
            if header.closed:
                del self._numbers[header.consumer]
            member.take(header, records, self)
        elif header.consumer > self._highest or not header.consumer:
            raise InternalError(
                f"the broker speaks to consumer {header.consumer}, which is none: please report it"
            )

    # -- the sending side ----------------------------------------------------------------------------------

    def _requests(self, life: int) -> Iterator[consume_pb2.ConsumeRequest]:
        """The requests of one stream."""
        try:
            while (member := self._next(life)) is not None:
                turn = member.next_request(time.monotonic(), self, life)
                with self.lock:
                    if turn.request is not None:
                        self._put(member)
                    elif member.is_done:
                        self._members.pop(member, None)
                    else:
                        self._remind(member, turn.wake_at)
                if turn.request is not None:
                    yield turn.request
                if turn.is_last:
                    return
                del turn
        except Exception as bug:  # on gRPC's thread, which would only say UNKNOWN
            LOG.exception("the sending side of a Consume stream ended")
            self._bug = InternalError(f"the thread that sends has ended: {bug!r}: please report it")
            raise

    def _next(self, life: int) -> Consuming | None:
        """Waits until a consumer may have something to say; None where the stream is over."""
        with self.lock:
            while True:
                if life != self.life or not self._members:
                    return None
                now = time.monotonic()
                while self._timers and self._timers[0][0] <= now:
                    at, _, due = heapq.heappop(self._timers)
                    if at == due.reminded_at:
                        due.reminded_at = NEVER
                        self._put(due)
                if self._ready:
                    member = self._ready.popleft()
                    member.is_ready = False
                    return member
                self._work.wait(max(0.0, self._timers[0][0] - now) if self._timers else None)

    def _remind(self, member: Consuming, at: float) -> None:
        """Looks after a consumer at that time, or earlier."""
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
