"""Whether there is nothing: only the broker can say so. An answer stands behind all rows that were ready when
the broker looked.
"""

from __future__ import annotations

import math
import time
from typing import Final, Protocol

from mq_wire.errors import BrokerUnavailable, Busy, MqError, RetryLater
from pyspark_mq.client.address import Address
from pyspark_mq.client.sessions import Session

#: What a broker that can be asked has among its features.
FEATURE: Final = "ask"
#: Who waits asks after so long, or so long before the time-out: while rows come nobody is asked, and in the
#: end the answer is young.
_ASK_AFTER_S: Final = 0.01
#: So long it may take at least until the broker is there, and where it is there and silent.
_PATIENCE_S: Final = 1.0
_PATIENCE_WITH_SILENCE_S: Final = 10.0


class Receiver(Protocol):
    """Who waits, as its patience sees it: see `Consuming`."""

    trouble: MqError | None
    away_since: float

    @property
    def session(self) -> Session:
        """The present one, or the last."""
        ...

    @property
    def queue(self) -> str:
        """Its name."""
        ...

    @property
    def address(self) -> Address:
        """Of the broker."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether nothing can come before the application acknowledges."""
        ...

    def ask(self) -> Asking:
        """Asks the broker whether there is nothing more."""
        ...


class Asking:
    """One question. `answered_in`: the session that it was answered in."""

    __slots__ = ("answered_in",)

    def __init__(self) -> None:
        self.answered_in: Session | None = None


class Asks:
    """The questions of a consumer, one request at a time. Guarded by the consumer's lock.

    Attributes:
        is_possible: whether the broker can be asked; of an older one it must do that it is there.
    """

    def __init__(self) -> None:
        self.is_possible = False
        self._waiting: list[Asking] = []  # not sent, or sent in a session that is over
        self._sent: list[Asking] = []
        self._request_id = 0

    def add(self, session: Session) -> Asking:
        """Takes a question. `session`: the present one."""
        asking = Asking()
        self._waiting.append(asking)
        self.opened(session)
        return asking

    def opened(self, session: Session) -> None:
        """Answers what an older broker cannot be asked, where it is there."""
        if not self.is_possible and session.ended is None:
            _answer(self._waiting, session)

    @property
    def is_due(self) -> bool:
        """Whether there is something to ask, and nothing asked."""
        return bool(self._waiting) and not self._sent and self.is_possible

    def send(self) -> int:
        """Returns the id of a request for everything that is to be asked."""
        self._waiting, self._sent = [], self._waiting
        self._request_id += 1
        return self._request_id

    def answered(self, request_id: int, session: Session) -> None:
        """The broker has answered."""
        if request_id == self._request_id:
            _answer(self._sent, session)

    def interrupted(self) -> None:
        """What was not answered is asked again in the next session."""
        self._waiting, self._sent = self._sent + self._waiting, []


class Waiting:
    """One call that waits for rows: until when, and what it may say of having seen none.

    Args:
        timeout: seconds, or infinity.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._began = time.monotonic()
        self._deadline = self._began + timeout
        self._ask_at = max(min(self._began + _ASK_AFTER_S, self._deadline), self._deadline - _PATIENCE_S)
        self._asking: Asking | None = None
        self._asked_at = 0.0

    def left(self, receiver: Receiver) -> float:
        """Returns for how many seconds to wait now; 0 or less = the broker has nothing, or owes nothing
        before an acknowledgement.

        Raises:
            BrokerUnavailable: the time is over, and nobody could be asked.
            Busy: the same, since the broker refuses another consumer.
        """
        now = time.monotonic()
        if receiver.is_full:
            return self._deadline - now
        if now < self._ask_at:
            return self._ask_at - now
        asking = self._asking
        is_alive = asking is not None and (asking.answered_in is None or asking.answered_in.ended is None)
        if asking is None or not is_alive:
            asking, self._asked_at = receiver.ask(), now
            self._asking = asking
        if asking.answered_in is not None:
            return self._deadline - now
        is_away = receiver.trouble is not None and receiver.session.ended is not None
        patience = self._began + _PATIENCE_S if is_away else self._asked_at + _PATIENCE_WITH_SILENCE_S
        left = max(self._deadline, patience) - now
        if left <= 0:
            raise self._unavailable(receiver)
        return left

    def _unavailable(self, receiver: Receiver) -> RetryLater:
        nothing = f"nothing came from queue {receiver.queue!r} within {self._timeout:g} s"
        if receiver.session.ended is None:
            return BrokerUnavailable(
                f"{nothing}, and the broker at {receiver.address} is silent: look at its log, and receive "
                f"again"
            )
        away = time.monotonic() - receiver.away_since
        if isinstance(receiver.trouble, Busy):
            return Busy(
                f"{nothing}: the broker at {receiver.address} refuses to deliver since {away:.1f} s: "
                f"{receiver.trouble}"
            )
        why = f": {receiver.trouble}" if receiver.trouble is not None else ""
        return BrokerUnavailable(
            f"{nothing}, and the broker at {receiver.address} has been away for {away:.1f} s; receive "
            f"again when it is back{why}"
        )


def _answer(asks: list[Asking], session: Session) -> None:
    for asking in asks:
        asking.answered_in = session
    asks.clear()


def wait_time(left: float) -> float | None:
    """Returns seconds as `Condition.wait` takes them."""
    return None if math.isinf(left) else min(left, 1e6)
