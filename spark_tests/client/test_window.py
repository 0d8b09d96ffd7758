"""The window gives sequences, keeps order through refusals and broken streams, and tells each batch's outcome
once.
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq_wire.errors import (
    InvalidRecords,
    MqError,
    ProducerFenced,
    SendOutcomeUnknown,
    SendTimeout,
    StoreFull,
    UnknownProducer,
)
from mq_wire.limits import AUDIT_RANGES
from mq_wire.v1.common_pb2 import Error
from mq_wire.v1.produce_pb2 import PublishHeader, PublishResponse, Receipt
from pyspark_mq.client.records import Piece
from pyspark_mq.client.sending import OutgoingBatch
from pyspark_mq.client.window import Window

FOREVER = float("inf")


def batch(partition: int = 0, rows: int = 1, size: int = 10) -> OutgoingBatch:
    return OutgoingBatch(None, partition, Piece(rows, 2, 0, pa.py_buffer(b"x" * size), 7))


def window() -> Window:
    return Window("orders", "p", 0)


def sent(window: Window, now: float = 0.0) -> list[OutgoingBatch]:
    out = []
    while (one := window.next_batch(now)) is not None:
        out.append(one)
    return out


def stored(batch: OutgoingBatch, base: int = 0) -> PublishResponse:
    return PublishResponse(
        request_id=batch.request_id,
        receipt=Receipt(partition=batch.partition, base_offset=base, rows=batch.rows),
    )


def refused(batch: OutgoingBatch, code: str) -> PublishResponse:
    return PublishResponse(request_id=batch.request_id, error=Error(code=code, message=code))


def test_sequences_count_rows_per_partition() -> None:
    w = window()
    for partition, rows in [(0, 3), (1, 5), (0, 2), (1, 1)]:
        w.add(batch(partition, rows), FOREVER)
    assert [(b.partition, b.sequence) for b in sent(w)] == [(0, 0), (1, 0), (0, 3), (1, 5)]


def test_answer_frees_the_window_and_tells_the_offset() -> None:
    w = window()
    one = batch(rows=3, size=100)
    w.add(one, FOREVER)
    assert (w.bytes, w.batches) == (100, 1)
    sent(w)
    assert w.answer(stored(one, base=42), 0.0) is one
    assert (w.bytes, w.batches, w.idle, one.stored, one.base_offset, w.rows_stored) == (
        0,
        0,
        True,
        True,
        42,
        3,
    )


def test_full_store_holds_the_partition_until_all_answers_are_in_then_resends_in_order() -> None:
    w = window()
    first, second, third, other = batch(), batch(), batch(), batch(1)
    for one in (first, second, other):
        w.add(one, FOREVER)
    sent(w)
    w.answer(refused(first, StoreFull.code), 0.0)
    w.add(third, FOREVER)
    assert sent(w) == []  # the answer to `second` is still missing
    w.answer(refused(second, "OUT_OF_ORDER"), 0.0)
    assert w.answer(stored(other), 0.0) is other
    assert sent(w, now=0.0) == []  # the broker gets a moment
    assert w.wake_at() > 0.0
    again = sent(w, now=w.wake_at())
    assert again == [first, second, third]
    assert [b.sequence for b in again] == [0, 1, 2]
    assert len({b.request_id for b in again} | {other.request_id}) == 4


def test_a_batch_refused_for_good_fails_and_its_sequences_are_skipped() -> None:
    w = window()
    bad, good = batch(rows=4), batch(rows=2)
    w.add(bad, FOREVER)
    w.add(good, FOREVER)
    sent(w)
    assert w.answer(refused(bad, InvalidRecords.code), 0.0) is bad
    assert isinstance(bad.error, InvalidRecords)
    w.answer(refused(good, "OUT_OF_ORDER"), 0.0)
    skip, again = sent(w)
    header = PublishHeader.FromString(w.header(skip))
    assert (header.skip, header.first_sequence, header.rows, header.has_crc32) == (True, 0, 4, False)
    assert (again, again.sequence) == (good, 4)
    assert w.answer(stored(skip), 0.0) is None
    assert w.answer(stored(again), 0.0) is good
    assert w.idle


def test_a_broken_stream_sends_everything_again_under_the_same_sequences() -> None:
    w = window()
    batches = [batch(i % 2, rows=i + 1) for i in range(4)]
    for one in batches:
        w.add(one, FOREVER)
    before = {one: one.sequence for one in sent(w)}
    assert w.answer(stored(batches[0]), 0.0) is batches[0]
    late = batch(0)
    w.add(late, FOREVER)
    w.disconnected()
    again = sent(w)
    assert {one: one.sequence for one in again if one is not late} == {
        one: before[one] for one in batches[1:]
    }
    assert [one for one in again if one.partition == 0] == [batches[2], late]


def test_time_out_before_and_after_leaving_are_different_errors() -> None:
    w = window()
    left, stayed = batch(), batch()
    w.add(left, 1.0)
    sent(w)
    w.add(stayed, 1.0)
    assert w.wake_at() == 1.0
    assert set(w.expire(1.0, 30.0)) == {left, stayed}
    assert isinstance(left.error, SendOutcomeUnknown)
    assert isinstance(stayed.error, SendTimeout)
    assert w.batches == 0
    # What never left took no sequence; what left is given up when the stream breaks.
    after = batch()
    w.add(after, FOREVER)
    w.disconnected()
    skip, last = sent(w)
    assert (skip.is_skip, skip.sequence, last, last.sequence) == (True, 0, after, 1)


def test_a_late_answer_changes_no_outcome() -> None:
    w = window()
    one = batch()
    w.add(one, 1.0)
    sent(w)
    w.expire(1.0, 30.0)
    assert w.answer(stored(one), 2.0) is None
    assert isinstance(one.error, SendOutcomeUnknown)
    assert w.idle


def test_a_store_that_stays_full_is_named_when_time_is_up() -> None:
    w = window()
    one = batch()
    w.add(one, 1.0)
    sent(w)
    w.answer(refused(one, StoreFull.code), 0.5)
    assert w.expire(1.0, 30.0) == [one]
    assert isinstance(one.error, StoreFull)


def test_a_store_that_stays_full_is_named_also_by_those_behind_the_refused() -> None:
    w = window()
    one, two, three = batch(), batch(), batch()
    w.add(one, 1.0)
    w.add(two, 2.0)
    sent(w)
    w.answer(refused(one, StoreFull.code), 0.5)
    w.answer(refused(two, "OUT_OF_ORDER"), 0.5)
    assert w.expire(1.0, 1.0) == [one]
    (skip, behind) = sent(w, now=1.5)
    assert skip.is_skip
    w.answer(refused(skip, StoreFull.code), 1.6)
    w.answer(refused(behind, "OUT_OF_ORDER"), 1.6)
    w.add(three, 3.0)  # its partition is held: it does not even leave
    assert sent(w, now=1.6) == []
    assert w.expire(3.0, 1.0) == [two, three]
    assert isinstance(two.error, StoreFull)
    assert isinstance(three.error, StoreFull)


def test_what_a_broken_stream_may_still_deliver_is_never_said_not_to_be_stored() -> None:
    w = window()
    one, two = batch(), batch()
    w.add(one, 1.0)
    w.add(two, 1.0)
    sent(w)
    w.disconnected()
    sent(w)
    # Neither is stored now; the broken stream delivers both when the disk has room again.
    w.answer(refused(one, StoreFull.code), 0.5)
    w.answer(refused(two, "OUT_OF_ORDER"), 0.5)
    assert w.expire(1.0, 30.0) == [one, two]
    assert isinstance(one.error, SendOutcomeUnknown)
    assert isinstance(two.error, SendOutcomeUnknown)


def test_a_fenced_producer_fails_everything() -> None:
    w = window()
    one, two = batch(), batch()
    w.add(one, FOREVER)
    w.add(two, FOREVER)
    sent(w)
    with pytest.raises(ProducerFenced) as caught:
        w.answer(refused(one, ProducerFenced.code), 0.0)
    assert set(w.fail_all(caught.value)) == {one, two}
    assert w.idle
    assert w.bytes == 0


def test_an_unnamed_producer_that_was_forgotten_goes_on_under_a_new_identity() -> None:
    w = window()
    old, one, two = batch(rows=2), batch(rows=3), batch(rows=1)
    w.add(old, FOREVER)
    sent(w)
    w.answer(stored(old), 0.0)
    w.add(one, FOREVER)
    w.add(two, FOREVER)
    sent(w)
    assert (one.sequence, two.sequence) == (2, 5)
    assert w.answer(refused(one, "UNKNOWN_PRODUCER"), 0.0) is None
    assert w.answer(refused(two, "UNKNOWN_PRODUCER"), 0.0) is None
    assert sent(w) == [one, two]
    headers = [PublishHeader.FromString(w.header(each)) for each in (one, two)]
    assert [header.first_sequence for header in headers] == [0, 3]
    assert headers[0].producer_id == headers[1].producer_id != "p"
    assert w.answer(stored(one), 0.0) is one


def test_a_forgotten_producer_whose_answer_was_lost_cannot_go_on() -> None:
    w = window()
    old, one = batch(), batch()
    w.add(old, FOREVER)
    sent(w)
    w.answer(stored(old), 0.0)
    w.add(one, FOREVER)
    sent(w)
    w.disconnected()
    sent(w)
    with pytest.raises(UnknownProducer):
        w.answer(refused(one, "UNKNOWN_PRODUCER"), 0.0)


def test_no_more_unanswered_than_the_audit_remembers() -> None:
    w = window()
    for _ in range(2 * AUDIT_RANGES):
        w.add(batch(), FOREVER)
    first = sent(w)
    assert 1 < len(first) < AUDIT_RANGES
    for one in first:
        w.answer(stored(one), 0.0)
    assert sent(w)


class Broker:
    """The audit of one producer, as PROTOCOL.md tells it, with refusals and losses by choice."""

    def __init__(self) -> None:
        self.next: dict[int, int] = defaultdict(int)
        self.log: dict[int, list[int]] = defaultdict(list)
        self.known: dict[tuple[int, int], int] = {}

    def take(self, header: PublishHeader, tag: int, refusal: str | None) -> PublishResponse:
        key, expected = (header.partition, header.first_sequence), self.next[header.partition]
        if refusal is not None and header.first_sequence >= expected:
            return PublishResponse(request_id=header.request_id, error=Error(code=refusal))
        if header.first_sequence > expected:
            return PublishResponse(request_id=header.request_id, error=Error(code="OUT_OF_ORDER"))
        if header.first_sequence < expected:
            if self.known.get(key) != (-1 if header.skip else tag):
                return PublishResponse(request_id=header.request_id, error=Error(code="SEQUENCE_REUSED"))
            return PublishResponse(
                request_id=header.request_id,
                receipt=Receipt(partition=header.partition, rows=header.rows, duplicates=header.rows),
            )
        self.known[key] = -1 if header.skip else tag
        self.next[header.partition] += header.rows
        if not header.skip:
            self.log[header.partition].append(tag)
        return PublishResponse(
            request_id=header.request_id, receipt=Receipt(partition=header.partition, rows=header.rows)
        )


@settings(deadline=None)
@given(st.data())
def test_each_batch_is_stored_once_and_in_order_whatever_happens(data: st.DataObject) -> None:
    """Random adds, answers, refusals and broken streams; then a quiet end. `crc32` serves as the name of a
    batch.
    """
    w, broker, now = window(), Broker(), 0.0
    batches: list[OutgoingBatch] = []
    wire: list[tuple[OutgoingBatch, PublishResponse]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        now += 0.1
        match data.draw(st.sampled_from(["add", "send", "answer", "refuse", "spoil", "break"])):
            case "add":
                piece = Piece(data.draw(st.integers(1, 3)), 2, 0, pa.py_buffer(b"x"), len(batches))
                one = OutgoingBatch(None, data.draw(st.integers(0, 1)), piece)
                batches.append(one)
                w.add(one, FOREVER)
            case "send" | "refuse" | "spoil" as how:
                one_or_none = w.next_batch(now)
                if one_or_none is not None:
                    refusal = {
                        "send": None,
                        "refuse": "STORE_FULL",
                        "spoil": None if one_or_none.is_skip else "INVALID_RECORDS",
                    }[how]
                    header = PublishHeader.FromString(w.header(one_or_none))
                    wire.append((one_or_none, broker.take(header, one_or_none.crc32, refusal)))
            case "answer" if wire:
                w.answer(wire.pop(0)[1], now)
            case "break":
                wire.clear()
                w.disconnected()
    for _ in range(1000):
        now += 10
        one_or_none = w.next_batch(now)
        if one_or_none is not None:
            wire.append(
                (
                    one_or_none,
                    broker.take(PublishHeader.FromString(w.header(one_or_none)), one_or_none.crc32, None),
                )
            )
        elif wire:
            w.answer(wire.pop(0)[1], now)
        elif w.idle:
            break
    assert w.idle
    assert w.bytes == w.batches == 0
    for partition in (0, 1):
        mine = [one for one in batches if one.partition == partition]
        confirmed = [one.crc32 for one in mine if one.stored]
        assert broker.log[partition] == sorted(broker.log[partition])
        assert set(confirmed) <= set(broker.log[partition])
        assert all(one.stored or isinstance(one.error, MqError) for one in mine)
        assert set(broker.log[partition]) - set(confirmed) <= {
            one.crc32 for one in mine if one.error is not None
        }
