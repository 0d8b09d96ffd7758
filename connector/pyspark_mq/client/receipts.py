"""Receipts: what became of a send, asked for when wanted."""

from __future__ import annotations

from pyspark_mq.client.sending import Sending

__all__ = ["BatchReceipt", "Receipt"]


class Receipt:
    """Of one message given to `Producer.send`. `result()` waits until the message is durable and returns this
    same receipt.
    """

    __slots__ = ("_row", "_sending")

    def __init__(self, sending: Sending, row: int) -> None:
        self._sending, self._row = sending, row

    def result(self, timeout: float | None = None) -> Receipt:
        """Waits until the broker has the message on disk. Asking sends what still lingers.

        Args:
            timeout: seconds to wait; None = until the producer's send_timeout decides.

        Raises:
            SendOutcomeUnknown: no answer yet; ask again, or see what the producer's send_timeout brings.
            MqError: the message was refused, or could not be sent.
        """
        sending = self._sending
        if sending.left:
            sending.settle(timeout)
        if sending.failed:
            batch, _ = sending.of_row(self._row)
            if batch.error is not None:
                sending.asked = True
                raise batch.error
        return self

    def done(self) -> bool:
        """Returns whether the outcome is known; never waits and never sends."""
        return not self._sending.left

    @property
    def partition(self) -> int:
        """Partition of the message; waits as `result()` does."""
        self.result()
        return self._sending.of_row(self._row)[0].partition

    @property
    def offset(self) -> int | None:
        """Offset of the message in its partition; None for staged messages, which get theirs at their
        commit.
        """
        self.result()
        batch, place = self._sending.of_row(self._row)
        return None if batch.base_offset is None else batch.base_offset + place

    @property
    def duplicate(self) -> bool:
        """Whether a retry found the message stored already; it is stored once either way."""
        self.result()
        return self._sending.of_row(self._row)[0].duplicates > 0

    def __repr__(self) -> str:
        if self._sending.left:
            return "<Receipt under way>"
        batch, place = self._sending.of_row(self._row)
        if batch.error is not None:
            return f"<Receipt failed: {batch.error}>"
        offset = "staged" if batch.base_offset is None else batch.base_offset + place
        return f"<Receipt partition={batch.partition} offset={offset}>"


class BatchReceipt:
    """Of one record batch or table given to `Producer.send_batch`. `result()` waits until all rows are
    durable and returns this receipt.
    """

    __slots__ = ("_sending", "rows")

    def __init__(self, sending: Sending, rows: int) -> None:
        self._sending, self.rows = sending, rows

    def result(self, timeout: float | None = None) -> BatchReceipt:
        """Waits until the broker has every row on disk.

        Raises:
            SendOutcomeUnknown: no answer yet; ask again, or see what the producer's send_timeout brings.
            MqError: the first error of the batches that the rows went out in; `stored` tells which others are
                durable.
        """
        sending = self._sending
        if sending.left:
            sending.settle(timeout)
        if sending.failed:
            error = sending.error()
            if error is not None:
                sending.asked = True
                raise error
        return self

    def done(self) -> bool:
        """Returns whether the outcome is known; never waits and never sends."""
        return not self._sending.left

    @property
    def ranges(self) -> list[tuple[int, int | None, int, int]]:
        """`(partition, base_offset, rows, duplicates)` of each batch, in the order of the rows; base_offset
        None while staged.
        """
        self.result()
        return self.stored

    @property
    def stored(self) -> list[tuple[int, int | None, int, int]]:
        """As `ranges`, but only what is known to be durable; never waits and never raises."""
        batches = self._sending.batches
        return [
            (batch.partition, batch.base_offset, batch.rows, batch.duplicates)
            for batch in batches
            if batch.stored
        ]

    def __repr__(self) -> str:
        return f"<BatchReceipt rows={self.rows} {'under way' if self._sending.left else self.stored}>"
