"""What a consumer and its broker say to each other on a stream, in one session after the other.

Free of threads and locks: `Consuming` guards it. Time is an argument.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mq_wire.v1 import admin_pb2, consume_pb2
from pyspark_mq.client.asking import FEATURE, Asks
from pyspark_mq.client.backoff import BACKOFF
from pyspark_mq.client.message import Delivery
from pyspark_mq.client.receive_window import NEVER, ReceiveWindow
from pyspark_mq.client.sessions import Session, Sessions

#: A broker with this takes many consumers on one stream, is told which rows were handed over, and takes rows
#: back.
SHARED: Final = "consumers"
#: What a request of an open session may have.
_SAID: Final = ("handed_over", "credit", "acknowledge", "settle", "ask")


class Turn(NamedTuple):
    """What a consumer has to say now, and when it is to be asked again where it has nothing. `is_last`: the
    stream is to end behind it.
    """

    request: consume_pb2.ConsumeRequest | None = None
    wake_at: float = NEVER
    is_last: bool = False


class Conversation:
    """Of one consumer.

    Attributes:
        window: of the present session.
        asks: questions to the broker.
        sessions: all of them.
        number: what the consumer is called on its stream; None = it is not on any.
        open_at: when it is to be opened, at the earliest.
    """

    def __init__(self, queue: str, window: ReceiveWindow) -> None:
        self.window: Final = window
        self.asks: Final = Asks()
        self.sessions: Final = Sessions(queue)
        self.number: int | None = None
        self.open_at = 0.0
        self._queue: Final = queue
        self._waits = BACKOFF.waits()
        self._said_close = False
        self._session = self.sessions.present  # of the present stream, opened by the broker or not yet
        self._serial = 0

    def begin(self, hello: admin_pb2.HelloResponse, endpoint: str) -> None:
        """A session with this broker is to begin.

        Raises:
            WrongBroker: it is another one than before.
        """
        can_release = SHARED in hello.features
        self._session = self.sessions.begin(hello.cluster_id, endpoint, can_release=can_release)
        self.asks.is_possible = FEATURE in hello.features

    def open(self, number: int, client: str) -> consume_pb2.ConsumeRequest:
        """Returns the first words of the session that was begun."""
        self.number, self._said_close, self._serial = number, False, 0
        rows, size = self.window.open(exact=number > 0)
        opening = consume_pb2.OpenConsumer(
            destination=self._queue,
            credit=consume_pb2.Credit(rows=rows, bytes=size),
            # Deliveries of half a prefetch: one is worked on while the other is on its way.
            batch_rows_max=max(1, self.window.prefetch // 2),
            client=client,
        )
        return consume_pb2.ConsumeRequest(consumer=number, open=opening)

    def next(self, now: float, *, closing: bool) -> Turn:
        """Returns what is to be said now. `closing`: all that is left, and goodbye."""
        number = self.number
        if number is None or self._said_close:
            return Turn()
        request = consume_pb2.ConsumeRequest(consumer=number)
        self.window.fill(request, now, last=closing)
        if not closing and self._may_ask:
            request.ask.request_id = self.asks.send()
        if any(request.HasField(field) for field in _SAID):
            return Turn(request, is_last=closing and not number)
        if not closing:
            return Turn(wake_at=self.window.wake_at)
        self._said_close = True
        request.close = True
        return Turn(request) if number else Turn(is_last=True)

    def delivered(self, header: consume_pb2.ConsumeHeader, records: memoryview) -> Delivery:
        """Returns a delivery.

        Raises:
            InternalError: it cannot be read.
        """
        self._serial += 1
        return Delivery(header.delivery, records, self._queue, self._session, self._serial)

    def opened(self, destination_id: bytes) -> None:
        """The broker has opened the session.

        Raises:
            DestinationRecreated: its queue is another one than before.
        """
        session = self.sessions.opened(destination_id)
        self._waits = BACKOFF.waits()
        self.asks.opened(session)

    def asked(self, request_id: int) -> None:
        """The broker has answered a question."""
        self.asks.answered(request_id, self._session)

    def over(self, why: str) -> bool:
        """The session is over, or could not begin. Returns whether the broker had opened it."""
        self.number = None
        return self.sessions.broke(why)

    def wait(self, now: float) -> None:
        """The broker has ended the session: the next one begins after a while."""
        self.open_at = now + next(self._waits)

    @property
    def present(self) -> Session:
        """The session that the broker opened last."""
        return self.sessions.present

    @property
    def _may_ask(self) -> bool:
        # Without credit the answer would say nothing, and where confirmations are due there will be credit.
        return self.asks.is_due and (self.window.awaits_rows or not self.window.unconfirmed)
