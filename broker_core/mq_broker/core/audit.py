"""Duplicate audit of one partition by (producer, epoch, sequence): a mark and the last ranges of each
producer.

Unlike the audits it descends from (docs/rules.md, "Duplicate audit") it never takes a sequence below its
window for new, never drops a late first, and answers a duplicate with the original receipt.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from mq_wire.errors import OutOfOrder, OutOfWindow, ProducerFenced, SequenceReused, UnknownProducer
from mq_wire.limits import AUDIT_RANGES

#: Base offset of a range that was given up.
SKIPPED = -1


class Range(NamedTuple):
    """One batch that was stored (or skipped) under contiguous sequences."""

    first: int
    rows: int
    crc: int
    base: int
    time_us: int


@dataclass(slots=True)
class ProducerMark:
    """What one producer has stored in this partition. `rows` and `last_offset` count over all epochs."""

    epoch: int = 0
    next_sequence: int = 0
    rows: int = 0
    last_offset: int = -1
    ranges: deque[Range] = field(default_factory=lambda: deque(maxlen=AUDIT_RANGES))


class Audit:
    """Producers, least recently used first; unnamed ones are forgotten beyond `anonymous_max` (their ids
    never come again).
    """

    __slots__ = ("_anonymous", "anonymous_max", "marks")

    def __init__(self, anonymous_max: int) -> None:
        self.marks: OrderedDict[str, ProducerMark] = OrderedDict()
        self.anonymous_max = anonymous_max
        self._anonymous = 0

    def check(self, producer: str, epoch: int, first: int, rows: int, crc: int | None) -> Range | None:
        """Returns the original range where these sequences were stored before, None where they are the next
        ones. A skip has no `crc`.

        Raises:
            UnknownProducer, ProducerFenced, OutOfOrder, OutOfWindow, SequenceReused: see mq_wire.errors.
        """
        mark = self.marks.get(producer)
        if mark is None or epoch > mark.epoch:
            if first == 0:
                return None
            if mark is None:
                raise UnknownProducer(
                    f"producer {producer!r} sends sequence {first}, but this partition knows nothing of it: "
                    "it was idle for too long, or the queue is another one; open a new producer"
                )
            raise OutOfOrder(
                f"producer {producer!r} began epoch {epoch} with sequence {first} instead of 0: send 0 "
                f"first, or skip up to it"
            )
        if epoch < mark.epoch:
            raise ProducerFenced(
                f"epoch {epoch} of producer {producer!r} was replaced by epoch {mark.epoch}: this instance "
                f"must stop"
            )
        if first == mark.next_sequence:
            return None
        if first > mark.next_sequence:
            raise OutOfOrder(
                f"producer {producer!r} sent sequence {first}, but {mark.next_sequence} is missing: send "
                f"it again, or skip up to {first}"
            )
        return self._recall(producer, mark, first, rows, crc)

    @staticmethod
    def _recall(producer: str, mark: ProducerMark, first: int, rows: int, crc: int | None) -> Range:
        for known in reversed(mark.ranges):
            if known.first == first:
                stored = None if known.base == SKIPPED else known.crc
                if (known.rows, stored) == (rows, crc):
                    return known
                now, then = ("skipped" if sum_ is None else f"checksum {sum_:#x}" for sum_ in (crc, stored))
                raise SequenceReused(
                    f"producer {producer!r} reused sequence {first} for other content ({rows} rows, {now}; "
                    f"before it was "
                    f"{known.rows} rows, {then}): a retry must send the same bytes"
                )
            if known.first < first:
                raise SequenceReused(
                    f"producer {producer!r} cut sequence {first} out of the stored batch {known.first}: "
                    f"retry whole batches"
                )
        raise OutOfWindow(
            f"sequence {first} of producer {producer!r} is older than the last {AUDIT_RANGES} batches that "
            f"are remembered: "
            "it cannot be told whether it was stored"
        )

    def record(self, producer: str, epoch: int, stored: Range) -> None:
        """Notes that these sequences are taken."""
        mark = self.marks.get(producer)
        if mark is None:
            mark = self.marks[producer] = ProducerMark(epoch)
            self._anonymous += not is_named(producer)
        if epoch != mark.epoch:
            mark.epoch = epoch
            mark.ranges.clear()
        mark.next_sequence = stored.first + stored.rows
        mark.ranges.append(stored)
        if stored.base != SKIPPED:
            mark.rows += stored.rows
            mark.last_offset = stored.base + stored.rows - 1
        self.marks.move_to_end(producer)
        if self._anonymous > self.anonymous_max:
            del self.marks[next(name for name in self.marks if not is_named(name))]
            self._anonymous -= 1

    def restore(self, producer: str, mark: ProducerMark) -> None:
        """Takes a mark of a snapshot, least recently used first."""
        self.marks[producer] = mark
        self._anonymous += not is_named(producer)


def named(name: str) -> str:
    """Returns the producer id of a stable producer name. Unnamed producers are hexadecimal numbers, so the
    two never meet.
    """
    return f"name/{name}"


def is_named(producer: str) -> bool:
    """Returns whether the producer id comes from a stable name."""
    return producer.startswith("name/")
