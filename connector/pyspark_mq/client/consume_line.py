"""The stream that consumers stand in line for, as they see it."""

from __future__ import annotations

from typing import Any, Protocol

from mq_wire.errors import MqError
from mq_wire.v1 import admin_pb2


class Line(Protocol):
    """A stream, as its consumers see it: see `ConsumeStream`. Its methods are called with the consumer's
    lock, but `leave`.

    Attributes:
        hello: what the broker of the present stream said of itself.
        life: number of the present stream.
    """

    hello: admin_pb2.HelloResponse
    life: int

    @property
    def is_mine(self) -> bool:
        """Whether this is the thread that reads it."""
        ...

    def join(self, member: Any) -> None:
        """Adds a consumer."""
        ...

    def wake(self, member: Any) -> None:
        """The consumer may have something to say."""
        ...

    def number_for(self, member: Any, life: int) -> int | None:
        """Returns what the consumer is called on the stream of that life; None where that is over."""
        ...

    def heals(self, error: MqError) -> bool:
        """Whether another attempt may succeed."""
        ...

    def leave(self, member: Any, until: float) -> None:
        """Without the lock: takes a consumer off. The last one waits so long for the stream's orderly end."""
        ...
