"""A consumer's receive window between a broker and an application, and a list with one entry for each row."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mq_wire import envelope
from mq_wire.v1.common_pb2 import RowsHeader
from mq_wire.v1.consume_pb2 import ConsumeRequest, PartitionRanges
from pyspark_mq.client.acknowledging import Verb
from pyspark_mq.client.message import Delivery
from pyspark_mq.client.outstanding import Ranges
from pyspark_mq.client.receive_window import NEVER, ReceiveWindow
from pyspark_mq.client.sessions import Session

SESSION = Session(b"1")


@functools.cache
def records(rows: int) -> bytes:
    values = pa.array([b"x"] * rows, pa.binary())
    batch = pa.RecordBatch.from_arrays([values], schema=envelope.schema_of(envelope.VALUE))
    data: bytes = envelope.encode(batch).to_pybytes()
    return data


#: Of credit, that each row takes.
ROW_BYTES = 100


def delivery(first: int, rows: int, serial: int = 1, partition: int = 0) -> Delivery:
    header = RowsHeader(
        credit_bytes=ROW_BYTES * rows,
        partition=partition,
        rows=rows,
        columns=envelope.VALUE,
        base_offset=first,
        run_rows=[rows],
        append_time_us=[0],
        priority=[4],
        delivery_count=[1],
    )
    return Delivery(header, memoryview(records(rows)), "orders", SESSION, serial)


def ranges(*offsets: int) -> Ranges:
    return Ranges.of(np.array(offsets, np.int64))


def sent(window: ReceiveWindow, now: float = 0.0, *, last: bool = False) -> ConsumeRequest:
    request = ConsumeRequest()
    window.fill(request, now, last=last)
    return request


def offsets(partitions: Iterable[PartitionRanges]) -> dict[int, list[int]]:
    """Partition -> offsets."""
    return {
        each.partition: [
            offset
            for first, last in np.frombuffer(each.ranges, "<i8").reshape(-1, 2).tolist()
            for offset in range(first, last)
        ]
        for each in partitions
    }


def acknowledged(request: ConsumeRequest) -> dict[int, list[int]]:
    """Partition -> offsets."""
    return offsets(request.acknowledge.partitions)


@dataclass
class Row:
    """One row that was delivered in the present session."""

    partition: int
    offset: int
    delivery: Delivery
    place: int
    handed: bool = False
    told: bool = False  # to the broker, that it was handed over
    acknowledged: bool = False  # or released
    verb: Verb = Verb.ACKNOWLEDGE
    request: int = 0  # that carried its acknowledgement
    confirmed: bool = False


class WindowMachine(RuleBasedStateMachine):
    """Broker and application do as they like, within their rights."""

    @initialize(prefetch=st.integers(1, 12), limit=st.integers(1, 20), exact=st.booleans())
    def begin(self, prefetch: int, limit: int, exact: bool) -> None:
        self.exact = exact
        self.prefetch, self.limit = prefetch, limit
        self.window = ReceiveWindow(prefetch, limit)
        self.now = 0.0
        self.serial = 0
        self.next_offset = [0, 0]
        self.unanswered: list[int] = []
        self.open()

    def open(self) -> None:
        self.rows: list[Row] = []
        self.credit, self.credit_bytes = self.window.open(exact=self.exact)
        self.first, self.first_bytes = self.credit, self.credit_bytes
        assert self.credit == min(self.prefetch, self.limit)
        self.reported = 0

    def those(self, **marks: Any) -> list[Row]:
        return [row for row in self.rows if all(getattr(row, mark) == is_so for mark, is_so in marks.items())]

    # -- the broker

    @precondition(lambda self: self.credit > 0)
    @rule(data=st.data(), partition=st.integers(0, 1))
    def deliver(self, data: st.DataObject, partition: int) -> None:
        count = data.draw(st.integers(1, self.credit))
        first = self.next_offset[partition]
        self.next_offset[partition] += count
        self.serial += 1
        self.credit -= count
        self.credit_bytes -= ROW_BYTES * count
        made = delivery(first, count, self.serial, partition)
        self.window.deliver(made)
        self.rows += [Row(partition, first + place, made, place) for place in range(count)]

    @precondition(lambda self: bool(self.unanswered))
    @rule(refused=st.booleans())
    def confirm(self, refused: bool) -> None:
        """The broker answers in order; where it refuses, no row is done."""
        request_id = self.unanswered.pop(0)
        rows = self.those(request=request_id)
        for row in rows:
            row.confirmed, row.request = not refused, -1
        self.window.confirmed(request_id, 0 if refused else len(rows), self.now)

    @rule(one_of_many=st.integers(0, 9))
    def break_off(self, one_of_many: int) -> None:
        if one_of_many == 7:
            self.end_session()

    def end_session(self) -> None:
        assert self.window.close() == len([row for row in self.rows if row.acknowledged and row.request >= 0])
        self.unanswered.clear()
        self.open()

    # -- the application

    @rule(count=st.integers(1, 8), one_by_one=st.booleans())
    def take(self, count: int, one_by_one: bool) -> None:
        window = self.window
        waiting = [row for row in self.rows if not row.handed][:count]
        taken: list[tuple[Delivery, int, int]] = []
        if window.current is None and window.start() is None:
            assert not waiting
        elif one_by_one:
            while (current := window.current or window.start()) is not None and len(taken) < count:
                taken.append((current, current.next_row, 1))
                current.next_row += 1
                if current.next_row == current.rows:
                    window.finish(self.now)
                elif window.report_due == NEVER:
                    window.handed(self.now)
        else:
            taken, _ = window.take(count, self.now)
        got = [(each, first + at) for each, first, rows in taken for at in range(rows)]
        assert got == [(row.delivery, row.place) for row in waiting]
        for row in waiting:
            row.handed = True

    @precondition(lambda self: bool(self.those(handed=True, acknowledged=False)))
    @rule(data=st.data(), release=st.booleans())
    def acknowledge(self, data: st.DataObject, release: bool) -> None:
        verb = Verb.RELEASE if release and self.exact else Verb.ACKNOWLEDGE
        left = self.those(handed=True, acknowledged=False)
        partition = data.draw(st.sampled_from(sorted({row.partition for row in left})))
        chosen = data.draw(
            st.sets(st.sampled_from([r.offset for r in left if r.partition == partition]), min_size=1)
        )
        self.window.acknowledge(partition, ranges(*sorted(chosen)), self.now, verb)
        for row in left:
            row.acknowledged = row.partition == partition and row.offset in chosen
            row.verb = verb if row.acknowledged else row.verb

    @precondition(lambda self: bool(self.those(handed=True)))
    @rule(data=st.data())
    def acknowledge_up_to(self, data: st.DataObject) -> None:
        handed = self.those(handed=True)
        at = data.draw(st.integers(0, len(handed) - 1))
        self.window.acknowledge_up_to(handed[at].delivery, handed[at].place, self.now)
        for row in handed[: at + 1]:
            row.acknowledged = row.acknowledged or row.partition == handed[at].partition

    @rule()
    def flush(self) -> None:
        self.window.flush()

    # -- the wire

    @rule(later=st.sampled_from([0.2, 0.0, 0.004]), one_of_many=st.integers(0, 9))
    def send(self, later: float, one_of_many: int) -> None:
        last = one_of_many == 7
        self.now += later
        is_due = self.window.wake_at <= self.now
        request = sent(self.window, self.now, last=last)
        handed = len(self.those(handed=True))
        credit = request.credit.rows
        self.reported += credit
        assert self.reported <= handed, "only what was handed over is charged"
        self.check_handed_over(request, is_all=last)
        if last:
            assert self.exact or self.reported == handed, "and in the end all of it"
            assert not self.exact or not request.HasField("credit")
        else:
            self.credit += credit
            self.credit_bytes += request.credit.bytes
            assert self.window.wake_at > self.now, "what was due has left, or waits for something else"
        assert is_due or last or not request.ListFields()
        for part, verb in ((request.acknowledge, Verb.ACKNOWLEDGE), (request.settle, Verb.RELEASE)):
            if part.request_id:
                self.unanswered.append(part.request_id)
                gathered = self.those(acknowledged=True, request=0, verb=verb)
                expected: dict[int, list[int]] = {}
                for row in gathered:
                    row.request = part.request_id
                    expected.setdefault(row.partition, []).append(row.offset)
                assert offsets(part.partitions) == expected
        if last:
            self.end_session()

    def check_handed_over(self, request: ConsumeRequest, *, is_all: bool) -> None:
        """Exactly the rows that were handed over since the last report are named, each once."""
        if not self.exact:
            assert not request.HasField("handed_over")
            return
        new: dict[int, list[int]] = {}
        for row in self.those(handed=True, told=False):
            new.setdefault(row.partition, []).append(row.offset)
        named = offsets(request.handed_over.partitions)
        assert named == new if is_all else named in ({}, new)
        for row in self.those(handed=True) if named else ():
            row.told = True

    @rule(then_grant=st.booleans())
    def all_is_done(self, then_grant: bool) -> None:
        """What single steps come to only now and then: everything is handed over, acknowledged, confirmed."""
        self.take(100, one_by_one=False)
        if handed := self.those(handed=True):
            for partition in {row.partition for row in handed}:
                row = [row for row in handed if row.partition == partition][-1]
                self.window.acknowledge_up_to(row.delivery, row.place, self.now)
                for each in handed:
                    each.acknowledged = each.acknowledged or each.partition == partition
        self.send(0.2, 0)
        while self.unanswered:
            self.confirm(False)
        if then_grant:
            self.send(0.2, 0)

    # -- always

    @invariant()
    def nothing_goes_beyond_the_bounds(self) -> None:
        waiting = len(self.those(handed=False))
        assert waiting + self.credit <= self.prefetch, "so much may wait here"
        unacknowledged = len(self.those(confirmed=False))
        assert unacknowledged + self.credit <= self.limit

    @invariant()
    def what_was_handed_over_is_reported_as_soon_as_it_may_be(self) -> None:
        handed, confirmed = len(self.those(handed=True)), len(self.those(confirmed=True))
        if handed > self.reported and self.first + self.reported < confirmed + self.limit:
            assert self.window.report_due != NEVER
        if self.exact and self.those(handed=True, told=False):
            assert self.window.report_due != NEVER

    @invariant()
    def bytes_come_back_once_their_delivery_is_handed_over(self) -> None:
        waiting = {id(row.delivery) for row in self.those(handed=False)}
        held = sum(ROW_BYTES for row in self.rows if id(row.delivery) in waiting)
        assert not self.exact or self.credit_bytes + held <= self.first_bytes
        if self.exact and self.window.report_due == NEVER:
            assert self.credit_bytes + held == self.first_bytes

    @invariant()
    def it_knows_what_it_waits_for(self) -> None:
        window = self.window
        on_the_way = [row for row in self.rows if row.acknowledged and row.request >= 0]
        assert window.unconfirmed == bool(on_the_way)
        assert window.awaits_rows == bool(self.credit or self.those(handed=False))
        confirmed = len(self.those(confirmed=True))
        at_limit = self.first + self.reported == confirmed + self.limit
        assert window.is_full == (at_limit and not window.awaits_rows and not on_the_way)
