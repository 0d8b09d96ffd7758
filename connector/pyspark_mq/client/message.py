"""One delivered message, as a view of its delivery: two references, everything else on demand."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from mq_wire.v1.common_pb2 import RowsHeader
from pyspark_mq.client.columns import Rows
from pyspark_mq.client.outstanding import Ranges
from pyspark_mq.client.sessions import Session

__all__ = ["Delivery", "Message"]


class Delivery(Rows):
    """The rows of one delivery to a consumer, and how far they have been handed over.

    Attributes:
        session: what they were delivered in; they can be acknowledged only as long as it lives.
        serial: order of deliveries within the session.
        next_row: first row that the application does not have yet.
        size: bytes of memory.
        credit_bytes: bytes of credit that it took; 0 = its broker does not say.
    """

    __slots__ = ("_lists", "credit_bytes", "next_row", "serial", "session", "size", "values")

    def __init__(
        self, header: RowsHeader, records: memoryview, queue: str, session: Session, serial: int
    ) -> None:
        super().__init__(header, records, queue)
        self.session, self.serial = session, serial
        self.next_row = 0
        self.size, self.credit_bytes = len(records), header.credit_bytes
        self._lists: dict[str, list[Any]] = {}
        self.values: list[bytes] = []  # filled when messages are handed over one by one

    def ranges(self, first: int, last: int) -> Ranges:
        """Returns the offsets of rows [first, last)."""
        header = self._header
        if header.offsets:
            return Ranges.of(self.offsets[first:last])
        base = header.base_offset
        return Ranges(np.array([base + first], np.int64), np.array([base + last], np.int64))

    def list(self, name: str) -> list[Any]:
        """Returns a column as Python values; converted once per delivery, not once per message."""
        values = self._lists.get(name)
        if values is None:
            values = self._lists[name] = self.column(name).to_pylist()
        return values


class Message:
    """A message that was delivered to this consumer. Acknowledge it with `Consumer.acknowledge`."""

    __slots__ = ("_delivery", "_row")

    def __init__(self, delivery: Delivery, row: int) -> None:
        self._delivery = delivery
        self._row = row

    @property
    def value(self) -> bytes:
        """The message itself."""
        return self._delivery.values[self._row]

    @property
    def key(self) -> bytes | None:
        """What its partition was chosen by."""
        return self._of("key")  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        """Name of the queue that it came from."""
        return self._delivery.queue

    @property
    def partition(self) -> int:
        """Partition of the queue."""
        return self._delivery.partition

    @property
    def offset(self) -> int:
        """Position in the partition; never reused."""
        return self._of("offset")  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> datetime.datetime:
        """When the broker stored it, UTC."""
        return self._of("timestamp")  # type: ignore[no-any-return]

    @property
    def priority(self) -> int:
        """0 to 9."""
        return self._of("priority")  # type: ignore[no-any-return]

    @property
    def delivery_count(self) -> int:
        """1 for the first delivery; more when earlier ones were handed over and not acknowledged."""
        return self._of("delivery_count")  # type: ignore[no-any-return]

    @property
    def headers(self) -> dict[str, bytes | None]:
        """Headers by name; of a repeated name the last one. `header_pairs` has them all."""
        return dict(self.header_pairs)

    @property
    def header_pairs(self) -> list[tuple[str, bytes | None]]:
        """Headers in the producer's order, repetitions included."""
        return [(pair["key"], pair["value"]) for pair in self._of("headers") or ()]

    @property
    def message_id(self) -> str | None:
        """As the producer gave it."""
        return self._of("message_id")  # type: ignore[no-any-return]

    @property
    def correlation_id(self) -> str | None:
        """As the producer gave it."""
        return self._of("correlation_id")  # type: ignore[no-any-return]

    @property
    def reply_to(self) -> str | None:
        """As the producer gave it."""
        return self._of("reply_to")  # type: ignore[no-any-return]

    @property
    def type(self) -> str | None:
        """As the producer gave it."""
        return self._of("type")  # type: ignore[no-any-return]

    @property
    def trace_context(self) -> str | None:
        """As the producer gave it."""
        return self._of("trace_context")  # type: ignore[no-any-return]

    @property
    def created_at(self) -> datetime.datetime | None:
        """As the producer gave it."""
        return self._of("created_at")  # type: ignore[no-any-return]

    @property
    def producer(self) -> str | None:
        """Identity of the producer, where the broker still knows it."""
        return self._of("producer")  # type: ignore[no-any-return]

    @property
    def sequence(self) -> int | None:
        """The producer's number for it within the partition."""
        return self._of("sequence")  # type: ignore[no-any-return]

    def _of(self, name: str) -> Any:
        return self._delivery.list(name)[self._row]

    def __repr__(self) -> str:
        place = f"queue={self.queue!r} partition={self.partition} offset={self.offset}"
        return f"<Message {place} priority={self.priority} bytes={len(self.value)}>"
