"""One partition's side of a producer's window: in which order its batches go, and why they are held."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from mq_wire.errors import MqError, OutOfOrder
from mq_wire.limits import AUDIT_RANGES
from pyspark_mq.client.backoff import BACKOFF
from pyspark_mq.client.records import Piece
from pyspark_mq.client.sending import NO_SEQUENCE, OutgoingBatch

#: Unanswered batches of one partition: the broker must still remember each of them when it comes again.
_UNANSWERED_MAX: Final = AUDIT_RANGES // 2


class Lane:
    """The batches of one partition that may not go, and the sequences of those that do.

    Attributes:
        producer_id: under which its sequences count.
        forgotten: the broker does not know the producer any more.
        unanswered: requests on the present stream without an answer.
        held: a batch was refused: more follow when all are answered.
        full: as many are unanswered as may be: more follow when half of them are answered.
        until: held at least so long.
        refusal: why nothing of it is taken at present.
        waiting: in the order in which they are to go.
    """

    __slots__ = (
        "_next_sequence",
        "_waits",
        "forgotten",
        "full",
        "held",
        "producer_id",
        "refusal",
        "unanswered",
        "until",
        "waiting",
    )

    def __init__(self, producer_id: str) -> None:
        self.producer_id = producer_id
        self.forgotten = self.full = self.held = False
        self.unanswered = 0
        self.until = 0.0
        self.refusal: MqError | None = None
        self.waiting: list[OutgoingBatch] = []
        self._next_sequence = 0
        self._waits: Iterator[float] | None = None  # of the present row of refusals

    def admits(self, batch: OutgoingBatch) -> bool:
        """Whether a batch may go now, which then has its sequence; one that may not waits."""
        self.full = self.full or self.unanswered >= _UNANSWERED_MAX
        if self.held or self.full:
            self.waiting.append(batch)
            return False
        if batch.sequence == NO_SEQUENCE:
            batch.sequence = self._next_sequence
            self._next_sequence += batch.rows
        self.unanswered += 1
        return True

    def released(self, now: float) -> list[OutgoingBatch]:
        """Returns what may go on, which is all that waits or nothing."""
        is_drained = self.unanswered <= (0 if self.held else _UNANSWERED_MAX // 2)
        if not ((self.held or self.full) and is_drained and self.until <= now):
            return []
        self.held = self.full = False
        if self.forgotten:
            self._begin_anew()
        released, self.waiting = self.waiting, []
        return released

    def taken(self) -> None:
        """The broker has taken a batch."""
        self._waits = self.refusal = None

    def hold(self, batch: OutgoingBatch, error: MqError, now: float, *, pause: bool) -> None:
        """A batch was refused for now: it goes again before those behind it."""
        batch.refusal = error
        if not isinstance(error, OutOfOrder):
            self.refusal = error
        self._wait(or_skip(batch))
        if pause:
            if self._waits is None:
                self._waits = BACKOFF.waits()
            self.until = now + next(self._waits)

    def give_up(self, batch: OutgoingBatch, now: float) -> None:
        """Puts a skip in the place of a batch that has failed."""
        self._wait(skip_of(batch))
        self.until = max(self.until, now)

    def disconnected(self) -> list[OutgoingBatch]:
        """The stream is gone, and nothing holds it any more: returns what waited."""
        if self.forgotten and not self.unanswered:
            self._begin_anew()
        self.forgotten = self.held = self.full = False
        self.unanswered, self.until, self.refusal = 0, 0.0, None
        waiting, self.waiting = self.waiting, []
        return waiting

    def _wait(self, batch: OutgoingBatch) -> None:
        self.held = True
        self.waiting.append(batch)
        self.waiting.sort(key=_order)

    def _begin_anew(self) -> None:
        """Takes a new identity and numbers everything that waits from 0 on."""
        self.producer_id, self._next_sequence, self.forgotten = uuid.uuid4().hex, 0, False
        self.waiting = [batch for batch in self.waiting if not batch.is_skip]
        for batch in self.waiting:
            batch.sequence = NO_SEQUENCE


def _order(batch: OutgoingBatch) -> float:
    """Those that never left keep their order behind the others (sorting is stable)."""
    return float("inf") if batch.sequence == NO_SEQUENCE else batch.sequence


def or_skip(batch: OutgoingBatch) -> OutgoingBatch:
    """Returns what goes again of a batch: where it has failed while it was on the wire, its sequences are
    given up.
    """
    return skip_of(batch) if batch.error is not None and not batch.is_skip else batch


def skip_of(batch: OutgoingBatch) -> OutgoingBatch:
    """Returns what goes in the place of a batch that has failed: its sequences without its rows."""
    skip = OutgoingBatch(None, batch.partition, Piece.skip(batch.rows))
    skip.sequence = batch.sequence
    return skip
