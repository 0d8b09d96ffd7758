"""The sessions of a consumer, one stream after the other. Free of locks and IO."""

from __future__ import annotations

import uuid
from typing import Final

from mq_wire.errors import DestinationRecreated, SessionClosed, WrongBroker


class Session:
    """One life of a consumer. `ended` tells why it is over; `can_release`: whether its broker takes rows back
    one by one.
    """

    __slots__ = ("can_release", "ended", "token")

    def __init__(self, token: bytes, *, can_release: bool = True) -> None:
        self.token: Final = token
        self.can_release: Final = can_release
        self.ended: str | None = None


class Sessions:
    """Of one consumer. All lead to the same queue of the same broker: what another one has, or has not, is
    not what was asked for.

    Attributes:
        present: the one that the broker opened last; only what it delivered can be acknowledged.
    """

    def __init__(self, queue: str) -> None:
        self.present = Session(b"")
        self.present.ended = "it has not begun"
        self._queue: Final = queue
        self._prefix: Final = uuid.uuid4().bytes
        self._count = 0
        self._beginning: Session | None = None
        self._cluster_id = b""  # of the broker that it goes to
        self._identity = b"", b""  # of broker and queue

    def begin(self, cluster_id: bytes, endpoint: str, *, can_release: bool = True) -> Session:
        """Returns a new session, which the broker `cluster_id` at `endpoint` is to open.

        Raises:
            WrongBroker: it is another broker than the one that the consumer began with.
        """
        if self._identity[0] not in (b"", cluster_id):
            raise WrongBroker(
                f"the broker at {endpoint} is another one than this consumer of queue {self._queue!r} began "
                f"with: all addresses must lead to the "
                "same broker; make a new consumer to receive from this one"
            )
        self._count += 1
        token = self._prefix + self._count.to_bytes(4, "big")
        session = self._beginning = Session(token, can_release=can_release)
        self._cluster_id = cluster_id
        return session

    def opened(self, destination_id: bytes) -> Session:
        """The broker has opened the session that was begun. Returns it; it is the present one now.

        Raises:
            DestinationRecreated: of another queue than the last one.
        """
        assert self._beginning is not None
        if self._identity[1] not in (b"", destination_id):
            raise DestinationRecreated(
                f"queue {self._queue!r} was deleted and created again while the broker was away, and what "
                f"was in it is gone: "
                "make a new consumer for the new one"
            )
        self._identity = self._cluster_id, destination_id
        self.present = self._beginning
        return self.present

    def broke(self, why: str) -> bool:
        """The stream of the session that was begun is over. Returns whether the broker had opened it."""
        session, self._beginning = self._beginning, None
        if session is not None:
            session.ended = why
        return session is self.present

    def check(self, session: Session) -> None:
        """Refuses what was delivered in another session than the present one.

        Raises:
            SessionClosed: with the reason.
        """
        if session is not self.present or session.ended:
            raise SessionClosed(
                f"these messages of queue {self._queue!r} can no longer be acknowledged: "
                f"{session.ended or 'their session is over'}; "
                "they will be delivered again"
            )
