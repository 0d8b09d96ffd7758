"""Rows on their way: what was handed over together, and the batches in which it travels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mq_wire.errors import MqError
from pyspark_mq.client.records import Piece

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Of a batch that never left.
NO_SEQUENCE: Final = -1


class Waiter(Protocol):
    """Who can send what is still waiting, and wait for its answer: the producer."""

    def wait_for(self, sending: Sending, timeout: float | None) -> None:
        """Returns when all of `sending` is answered, or after so many seconds."""
        ...


class Sending:
    """Rows that were handed over together and become one or more batches on the wire, one per partition or
    more.

    Attributes:
        batches: the batches, once the rows have left the accumulator.
        left: batches without an answer; counts the accumulator itself as one.
        routes: per row, the index of its batch and its row in there; None where all rows are in one batch, in
            order.
        failed: whether a batch was not stored, as far as is known.
        asked: whether somebody has been told of the failure.
    """

    __slots__ = ("asked", "batches", "failed", "left", "routes", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.batches: list[OutgoingBatch] = []
        self.left = 1
        self.routes: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        self.failed = False
        self.asked = False

    def settle(self, timeout: float | None) -> None:
        """Returns when every batch is answered, well or badly."""
        if self.left:
            self.waiter.wait_for(self, timeout)

    def of_row(self, row: int) -> tuple[OutgoingBatch, int]:
        """Returns the batch of a row, and the row's place in it."""
        if self.routes is None:
            return self.batches[0], row
        batch_of, place_of = self.routes
        return self.batches[batch_of[row]], int(place_of[row])

    def error(self) -> MqError | None:
        """Returns the first error of its batches."""
        return next((batch.error for batch in self.batches if batch.error is not None), None)


class OutgoingBatch:
    """One batch on its way to one partition, and later what became of it.

    `size` is what it takes of the window, in bytes. `records` is let go when the answer is in.
    """

    __slots__ = (
        "base_offset",
        "columns",
        "crc32",
        "deadline",
        "duplicates",
        "error",
        "is_skip",
        "lost",
        "partition",
        "priority_plus_one",
        "records",
        "refusal",
        "request_id",
        "rows",
        "sending",
        "sequence",
        "size",
        "stored",
        "uncertain",
    )

    def __init__(self, sending: Sending | None, partition: int, piece: Piece) -> None:
        self.sending, self.partition, self.rows, self.columns = sending, partition, piece.rows, piece.columns
        self.priority_plus_one, self.records, self.crc32 = piece.priority_plus_one, piece.records, piece.crc32
        self.size = 0 if piece.records is None else piece.records.size
        self.is_skip = piece.records is None
        self.sequence = NO_SEQUENCE
        self.request_id = 0
        self.deadline = 0.0
        self.uncertain = False  # it left, and may be stored
        self.lost = False  # an answer to it was lost
        self.refusal: MqError | None = None  # why it is still waiting
        self.stored = False
        self.error: MqError | None = None
        self.base_offset: int | None = None
        self.duplicates = 0
