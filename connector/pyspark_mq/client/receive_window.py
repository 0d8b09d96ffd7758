"""What a consumer may be given, was given, has handed over and has acknowledged, in one session after the
other.

Free of threads, locks, sockets and clocks: time is an argument. Rules (docs/rules.md, "Prefetch and credit"):

- The first grant lets the broker send `prefetch` rows. Each later one is for as many as the application has
  been handed since, so that never more than `prefetch` wait here. In an exact session (feature "consumers")
  the rows that were handed over are named, and bytes are granted as well. In any other one the broker takes
  the grants for the rows that were handed over, in the order of delivery.
- The broker charges those, and no others, with a failed attempt when the session ends with a goodbye.
- Never more than `max_unacknowledged` rows are granted beyond those that were acknowledged and confirmed.
- Acknowledgements are exact, or cumulative over what was handed over.
- When the session ends, what it delivered goes to somebody else, and nothing of it is remembered.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mq_wire.v1 import consume_pb2
from pyspark_mq.client.acknowledging import Acknowledgements, Verb
from pyspark_mq.client.message import Delivery
from pyspark_mq.client.outstanding import Outstanding, Ranges

#: Rows that were handed over are reported when they are half of the prefetch, or after so long: less credit
#: at a time would make the broker's deliveries ever smaller, more time would leave more rows uncharged when
#: this process is killed.
_REPORT_S: Final = 0.1
#: Prefetch is counted in rows. Rows may be large: beyond so many bytes nothing more is to come. An exact
#: session grants as many; of any other one nothing more is read.
_BUFFER_BYTES_MAX: Final = 64 << 20
_UNLIMITED_BYTES: Final = 1 << 62
NEVER: Final = float("inf")
#: A delivery, and first row and number of its rows that are handed over together.
Taken = tuple[Delivery, int, int]


class ReceiveWindow:
    """The deliveries of one consumer.

    Args:
        prefetch: most rows that wait here for the application.
        max_unacknowledged: most rows that are waiting here or handed over, and not acknowledged.

    Attributes:
        current: the delivery that the application is in the middle of; who hands over a row of it moves its
            `next_row` on, and then calls `finish` or `handed`. `take` does all of it.
        report_due: when rows that were handed over are to be reported; NEVER where no report is due.
    """

    __slots__ = (
        "_acknowledgements",
        "_buffer_bytes",
        "_buffered",
        "_bytes_due",
        "_confirmed_rows",
        "_current_from",
        "_exact",
        "_finished_rows",
        "_granted",
        "_handed_over",
        "_outstanding",
        "_reported",
        "_told",
        "current",
        "max_unacknowledged",
        "prefetch",
        "report_due",
    )

    def __init__(self, prefetch: int, max_unacknowledged: int) -> None:
        self.prefetch = prefetch
        self.current: Delivery | None = None
        self.report_due = NEVER
        self.max_unacknowledged: Final = max_unacknowledged
        self._buffered: deque[Delivery] = deque()
        self._outstanding = Outstanding()
        self._acknowledgements = Acknowledgements()
        self._handed_over: list[tuple[int, Ranges]] = []  # and not reported; with their partitions
        self._exact = False
        self._finished_rows = self._granted = self._reported = self._confirmed_rows = 0
        self._told = self._current_from = self._buffer_bytes = self._bytes_due = 0

    # -- sessions ------------------------------------------------------------------------------------------

    def open(self, *, exact: bool = False) -> tuple[int, int]:
        """A session begins: returns how many rows and bytes it may send at first. `exact`: whether the broker
        is told which rows were handed over, and says how many bytes each delivery took.
        """
        self._exact = exact
        self._granted = min(self.prefetch, self.max_unacknowledged)
        return self._granted, _BUFFER_BYTES_MAX if exact else _UNLIMITED_BYTES

    def close(self) -> int:
        """The session is over. Returns how many of its rows were acknowledged without being confirmed."""
        lost = self._acknowledgements.drop()
        self._buffered.clear()
        self.current = None
        self.report_due = NEVER
        self._outstanding = Outstanding()
        self._handed_over = []
        self._finished_rows = self._granted = self._reported = self._confirmed_rows = 0
        self._told = self._current_from = self._buffer_bytes = self._bytes_due = 0
        return lost

    # -- from the broker -----------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """Takes a delivery in."""
        self._buffered.append(delivery)
        self._buffer_bytes += delivery.size

    def confirmed(self, request_id: int, rows: int, now: float) -> None:
        """The broker has answered an acknowledgement or a release: `rows` rows of it are done."""
        self._acknowledgements.confirmed(request_id)
        self._confirmed_rows += rows
        if self._unreported and self.report_due == NEVER:
            # Credit was held back by max_unacknowledged.
            self.report_due = 0.0 if 2 * self._unreported >= self.prefetch else now + _REPORT_S

    @property
    def is_crowded(self) -> bool:
        """Whether so many bytes wait here that nothing more is to be read from the broker."""
        return not self._exact and self._buffer_bytes > _BUFFER_BYTES_MAX and len(self._buffered) > 1

    # -- to the application --------------------------------------------------------------------------------

    def start(self) -> Delivery | None:
        """Makes the next delivery the current one; None where none waits."""
        if not self._buffered:
            return None
        delivery = self.current = self._buffered.popleft()
        self._outstanding.hand_over(delivery.serial, delivery.partition, delivery.offsets)
        return delivery

    def take(self, rows_max: int, now: float) -> tuple[list[Taken], bool]:
        """Hands over the rows that are there from the current delivery on, `rows_max` at most. Returns them,
        and as `finish`.
        """
        taken, rows, wakes = list[Taken](), 0, False
        delivery = self.current
        while delivery is not None and rows < rows_max:
            first = delivery.next_row
            count = min(delivery.rows - first, rows_max - rows)
            taken.append((delivery, first, count))
            rows += count
            delivery.next_row = first + count
            if delivery.next_row == delivery.rows:
                wakes |= self.finish(now)
                delivery = self.start() if rows < rows_max else None
        return taken, self.handed(now) or wakes

    def finish(self, now: float) -> bool:
        """The application has all rows of the current delivery. Returns whether there may be something to
        send, or to read, now or at another time than before.
        """
        assert self.current is not None
        delivery = self.current
        self._note_handed_over(delivery)
        self.current, self._current_from = None, 0
        self._bytes_due += delivery.credit_bytes if self._exact else 0
        self._finished_rows += delivery.rows
        was_crowded = self._buffer_bytes > _BUFFER_BYTES_MAX
        self._buffer_bytes -= delivery.size
        return self.handed(now) or was_crowded

    def handed(self, now: float) -> bool:
        """Rows were handed over: sees to it that they are reported, at once where half of the prefetch is
        due. Returns whether there is something to send now, or at another time than before.
        """
        if 2 * self._untold >= self.prefetch or 2 * self._bytes_due >= _BUFFER_BYTES_MAX:
            self.report_due = 0.0
        elif self.report_due == NEVER:
            self.report_due = now + _REPORT_S
        else:
            return False
        return True

    # -- from the application ------------------------------------------------------------------------------

    def acknowledge(self, partition: int, ranges: Ranges, now: float, verb: Verb = Verb.ACKNOWLEDGE) -> bool:
        """Takes exact acknowledgements, or releases. Returns whether there is something to send now, or at
        another time than before.
        """
        self._outstanding.acknowledged(partition, ranges)
        return self._acknowledgements.gather(partition, ranges, now, verb)

    def acknowledge_up_to(self, delivery: Delivery, row: int, now: float) -> bool:
        """Acknowledges everything that was handed over of this partition, up to and with a row. Returns as
        `acknowledge`.
        """
        partition = delivery.partition
        ranges = self._outstanding.up_to(partition, delivery.serial, row)
        return ranges is not None and self._acknowledgements.gather(partition, ranges, now)

    def flush(self) -> None:
        """Lets acknowledgements leave without lingering."""
        self._acknowledgements.flush_now()

    def report(self) -> None:
        """Lets what was handed over be reported at once."""
        if self._unreported or self._untold:
            self.report_due = 0.0

    # -- to the broker -------------------------------------------------------------------------------------

    def fill(self, request: consume_pb2.ConsumeRequest, now: float, *, last: bool = False) -> None:
        """Puts what is due into a request: what was handed over, credit, acknowledgements. The last ones of a
        session take everything and grant nothing. Where a request does not take all, the rest stays due.
        """
        if last or self.report_due <= now:
            self.report_due = NEVER
            if self._exact:
                self._report(request)
            credit = self._unreported
            if last:
                credit = 0 if self._exact else credit
            else:
                credit = max(0, min(credit, self._confirmed_rows + self.max_unacknowledged - self._granted))
                if self._bytes_due:
                    request.credit.bytes, self._bytes_due = self._bytes_due, 0
            if credit:
                request.credit.rows = credit
                self._reported += credit
                self._granted += credit
        self._acknowledgements.fill(request, now, last=last)

    def _report(self, request: consume_pb2.ConsumeRequest) -> None:
        """Names the rows that were handed over since the last time."""
        if self.current is not None:
            self._note_handed_over(self.current)
        self._told = self._handed_rows
        parts: dict[int, list[Ranges]] = {}
        for partition, ranges in self._handed_over:
            parts.setdefault(partition, []).append(ranges)
        self._handed_over = []
        for partition, handed in parts.items():
            request.handed_over.partitions.add(partition=partition, ranges=Ranges.union(handed).to_bytes())

    def _note_handed_over(self, delivery: Delivery) -> None:
        """Notes what of the current delivery was handed over since the last time."""
        first, last = self._current_from, delivery.next_row
        if self._exact and first < last:
            self._handed_over.append((delivery.partition, delivery.ranges(first, last)))
            self._current_from = last

    @property
    def wake_at(self) -> float:
        """When something must leave."""
        return min(self.report_due, self._acknowledgements.wake_at)

    @property
    def unconfirmed(self) -> bool:
        """Whether acknowledgements are gathered or on their way."""
        return bool(self._acknowledgements)

    @property
    def awaits_rows(self) -> bool:
        """Whether the broker may still send rows of what it was granted."""
        return self._granted > self._handed_rows

    @property
    def is_full(self) -> bool:
        """Whether nothing can come before the application acknowledges: all that may be unacknowledged was
        handed over, and is.
        """
        at_limit = self._granted >= self._confirmed_rows + self.max_unacknowledged
        return at_limit and self._handed_rows >= self._granted > 0 and not self.unconfirmed

    @property
    def _handed_rows(self) -> int:
        current = self.current
        return self._finished_rows + (current.next_row if current is not None else 0)

    @property
    def _unreported(self) -> int:
        """Rows that were handed over and not credited again."""
        return self._handed_rows - self._reported

    @property
    def _untold(self) -> int:
        """Rows of which the broker has not been told that they were handed over."""
        return self._handed_rows - (self._told if self._exact else self._reported)
