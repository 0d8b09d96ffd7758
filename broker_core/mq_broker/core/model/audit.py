"""Duplicate audit of one partition by (producer, epoch, sequence): a mark and the last ranges of each
producer.

Unlike the audits it descends from (docs/rules.md, "Duplicate audit") it never takes a sequence below its
window for new, never drops a late first, and answers a duplicate with the original receipt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from mq_wire.errors import OutOfOrder, OutOfWindow, ProducerFenced, SequenceReused, UnknownProducer
from mq_wire.limits import AUDIT_RANGES

#: Base offset of a range that was given up.
SKIPPED = -1
#: Numbers of a range.
RANGE_NUMBERS: Final = 5


class Range(NamedTuple):
    """One batch that was stored (or skipped) under contiguous sequences."""

    first: int
    rows: int
    crc: int
    base: int
    time_us: int


class ProducerMark:
    """What one producer has stored in this partition.

    Attributes:
        epoch: the last one that sent anything.
        next_sequence: of that epoch.
        rows, last_offset: over all epochs; -1 = none.
        used: tells which mark was used before which, over all partitions of the broker.
        table: the last ranges as rows of five numbers, one behind the other.
    """

    __slots__ = ("epoch", "last_offset", "next_sequence", "rows", "table", "used")

    def __init__(
        self, epoch: int = 0, next_sequence: int = 0, rows: int = 0, last_offset: int = -1, used: int = 0
    ) -> None:
        self.epoch, self.next_sequence, self.rows, self.last_offset = epoch, next_sequence, rows, last_offset
        self.used = used
        self.table = array("q")

    @property
    def ranges(self) -> list[Range]:
        """The last ranges, oldest first."""
        numbers = iter(self.table)
        return [Range(*numbers_of_one) for numbers_of_one in zip(*[numbers] * RANGE_NUMBERS, strict=True)]

    def note(self, stored: Range) -> None:
        """Remembers one range more, and no more than `AUDIT_RANGES`."""
        self.table.extend(stored)
        if len(self.table) > RANGE_NUMBERS * AUDIT_RANGES:
            del self.table[:RANGE_NUMBERS]

    def amend(self, stored: Range) -> None:
        """Puts another range in the place of the last one."""
        self.table[-RANGE_NUMBERS:] = array("q", stored)


class AuditMemory:
    """What the audits of all partitions remember together. Producers without a name that were silent longest
    are forgotten beyond `total_max`, wherever they are.

    Args:
        anonymous_max: most producers without a name in one audit.
        total_max: and in all of them.

    Attributes:
        named: marks of named producers, which are never forgotten.
        forgot: audits that forgot a producer of their own accord; who reads it empties it.
    """

    def __init__(self, anonymous_max: int, total_max: int) -> None:
        self.anonymous_max, self.total_max = anonymous_max, total_max
        self.named = 0
        self.forgot: set[Audit] = set()
        self._uses = 0
        #: Silent longest first.
        self._anonymous: OrderedDict[ProducerMark, tuple[Audit, str]] = OrderedDict()

    @property
    def anonymous(self) -> int:
        """How many producers without a name are remembered."""
        return len(self._anonymous)

    def used(self, audit: Audit, producer: str, mark: ProducerMark) -> None:
        """A producer without a name sends: it is the last to be forgotten."""
        self._uses += 1
        mark.used = self._uses
        self._anonymous[mark] = audit, producer
        self._anonymous.move_to_end(mark)
        if len(self._anonymous) > self.total_max:
            silent, name = next(iter(self._anonymous.values()))
            silent.forget(name)
            self.forgot.add(silent)

    def drop(self, mark: ProducerMark) -> None:
        """A producer without a name is forgotten."""
        del self._anonymous[mark]

    def restore(self, audits: Iterable[Audit]) -> None:
        """Takes over what a snapshot has put into audits. Uses keep their numbers: parts of the snapshot that
        do not change are not written again.
        """
        found = [
            (mark.used, at, number, audit, producer)
            for at, audit in enumerate(audits)
            for number, (producer, mark) in enumerate(audit.anonymous.items())
        ]
        found.sort(key=lambda known: known[:3])
        self._anonymous = OrderedDict(
            (audit.anonymous[producer], (audit, producer)) for *_, audit, producer in found
        )
        self._uses = found[-1][0] if found else 0
        while len(self._anonymous) > self.total_max:
            audit, producer = next(iter(self._anonymous.values()))
            audit.forget(producer)


class Audit:
    """Producers of one partition. Those without a name are in the order of their last use, and are forgotten
    beyond a bound (their ids never come again).
    """

    __slots__ = ("_memory", "anonymous", "named", "place")

    def __init__(self, memory: AuditMemory) -> None:
        self._memory = memory
        #: Numbers of its destination and partition.
        self.place = (0, 0)
        self.anonymous: OrderedDict[str, ProducerMark] = OrderedDict()
        self.named: dict[str, ProducerMark] = {}

    def mark(self, producer: str) -> ProducerMark | None:
        """Returns what is known of a producer."""
        return self.named.get(producer) if is_named(producer) else self.anonymous.get(producer)

    def marks(self) -> Iterator[tuple[str, ProducerMark]]:
        """Yields all producers, those without a name first, silent longest first."""
        yield from self.anonymous.items()
        yield from self.named.items()

    def check(self, producer: str, epoch: int, first: int, rows: int, crc: int | None) -> Range | None:
        """Returns the original range where these sequences were stored before, None where they are the next
        ones. A skip has no `crc`.

        Raises:
            UnknownProducer, ProducerFenced, OutOfOrder, OutOfWindow, SequenceReused: see mq_wire.errors.
        """
        mark = self.mark(producer)
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
        mark = self.mark(producer)
        if mark is None:
            mark = ProducerMark(epoch)
            self.restore(producer, mark)
        if epoch != mark.epoch:
            mark.epoch = epoch
            mark.table = array("q")
        mark.next_sequence = stored.first + stored.rows
        mark.note(stored)
        if stored.base != SKIPPED:
            mark.rows += stored.rows
            mark.last_offset = stored.base + stored.rows - 1
        if not is_named(producer):
            self.anonymous.move_to_end(producer)
            self._memory.used(self, producer, mark)
            if len(self.anonymous) > self._memory.anonymous_max:
                self.forget(next(iter(self.anonymous)))

    def forget(self, producer: str) -> None:
        """Forgets a producer without a name."""
        self._memory.drop(self.anonymous.pop(producer))

    def restore(self, producer: str, mark: ProducerMark) -> None:
        """Takes a mark, used least recently first. `AuditMemory.restore` must follow that of a snapshot."""
        if is_named(producer):
            self._memory.named += producer not in self.named
            self.named[producer] = mark
        else:
            self.anonymous[producer] = mark

    def close(self) -> None:
        """Its partition is gone."""
        self._memory.named -= len(self.named)
        for producer in list(self.anonymous):
            self.forget(producer)


def named(name: str) -> str:
    """Returns the producer id of a stable producer name. Unnamed producers are hexadecimal numbers, so the
    two never meet.
    """
    return f"name/{name}"


def is_named(producer: str) -> bool:
    """Returns whether the producer id comes from a stable name."""
    return producer.startswith("name/")
