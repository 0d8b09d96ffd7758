"""Credit, hand-over and acknowledgements of a consumer, against a list with one entry for each row."""

from __future__ import annotations

import pytest
from hypothesis import settings

from mq_wire.v1 import consume_pb2
from pyspark_mq.client import receive_window
from pyspark_mq.client.acknowledging import Verb
from pyspark_mq.client.receive_window import NEVER, ReceiveWindow
from spark_tests.support.machines.receiving import (
    ROW_BYTES,
    WindowMachine,
    acknowledged,
    delivery,
    offsets,
    ranges,
    sent,
)

# -- the rules, one by one ---------------------------------------------------------------------------------


def opened(
    prefetch: int = 10, max_unacknowledged: int = 100, rows: int = 0, *, exact: bool = False
) -> ReceiveWindow:
    window = ReceiveWindow(prefetch, max_unacknowledged)
    window.open(exact=exact)
    if rows:
        window.deliver(delivery(0, rows))
        window.start()
    return window


def is_full(window: ReceiveWindow) -> bool:
    return window.is_full


def hand_over(window: ReceiveWindow, rows: int, now: float = 0.0) -> bool:
    _, wakes = window.take(rows, now)
    return wakes


@pytest.mark.parametrize(("prefetch", "limit", "granted"), [(10, 100, 10), (100, 10, 10)])
def test_the_first_grant_is_the_prefetch_or_the_limit(prefetch: int, limit: int, granted: int) -> None:
    assert ReceiveWindow(prefetch, limit).open()[0] == granted


def test_few_rows_are_reported_after_a_while_and_half_of_the_prefetch_at_once() -> None:
    window = opened(prefetch=10, rows=10)
    assert hand_over(window, 1, now=5.0)
    assert 5.0 < window.wake_at < 5.2
    assert not sent(window, 5.0).HasField("credit")
    assert not hand_over(window, 1, now=5.05), "they leave with the first"
    assert sent(window, window.wake_at).credit.rows == 2
    assert window.wake_at == NEVER
    assert hand_over(window, 5, now=6.0)
    assert sent(window, 6.0).credit.rows == 5


def test_no_credit_goes_beyond_the_limit_until_acknowledgements_are_confirmed() -> None:
    window = opened(prefetch=10, max_unacknowledged=10, rows=10)
    assert not is_full(window), "not all is handed over"
    hand_over(window, 10)
    assert not sent(window, 1.0).HasField("credit")
    assert is_full(window)
    assert window.acknowledge(0, ranges(0, 1, 2), 1.0)
    assert not is_full(window), "room is on its way"
    request = sent(window, 2.0)
    assert acknowledged(request) == {0: [0, 1, 2]}
    window.confirmed(request.acknowledge.request_id, 3, 2.0)
    assert sent(window, 3.0).credit.rows == 3
    assert not is_full(window)


def test_the_last_request_tells_exactly_what_was_handed_over() -> None:
    window = opened(prefetch=10, max_unacknowledged=10, rows=10)
    hand_over(window, 3)
    window.acknowledge(0, ranges(1), 0.0)
    request = sent(window, last=True)
    assert (request.credit.rows, acknowledged(request)) == (3, {0: [1]})


def test_a_crowd_of_bytes_stops_the_reader_until_one_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    three = [delivery(2 * serial, 2, serial) for serial in range(3)]
    monkeypatch.setattr(receive_window, "_BUFFER_BYTES_MAX", 2 * three[0].size)
    window = opened(prefetch=1000)
    for each in three:
        assert not window.is_crowded
        window.deliver(each)
    assert window.is_crowded
    window.start()
    hand_over(window, 1)
    assert window.is_crowded, "the application still has it in hand"
    assert hand_over(window, 1), "who reads must be told"
    assert not window.is_crowded


def test_an_exact_session_names_the_rows_and_gives_bytes_back_with_the_delivery() -> None:
    window = opened(prefetch=50, rows=4, exact=True)
    window.deliver(delivery(10, 2, serial=2))
    hand_over(window, 3)
    request = sent(window, 1.0)
    assert (offsets(request.handed_over.partitions), request.credit.rows) == ({0: [0, 1, 2]}, 3)
    assert not request.credit.bytes, "the delivery is still in memory"
    hand_over(window, 2, now=1.0)
    request = sent(window, 2.0)
    assert (offsets(request.handed_over.partitions), request.credit.rows) == ({0: [3, 10]}, 2)
    assert request.credit.bytes == 4 * ROW_BYTES
    hand_over(window, 1, now=2.0)
    request = sent(window, 2.0, last=True)
    assert offsets(request.handed_over.partitions) == {0: [11]}
    assert not request.HasField("credit"), "nothing is granted any more"
    assert not sent(window, 2.0, last=True).ListFields()


def test_half_of_the_bytes_are_given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_window, "_BUFFER_BYTES_MAX", 4 * ROW_BYTES)
    window = opened(prefetch=1000, rows=2, exact=True)
    window.deliver(delivery(10, 20, serial=2))
    assert not window.is_crowded, "who shares a stream never stops reading"
    assert hand_over(window, 2)
    assert window.wake_at == 0.0
    assert sent(window).credit.bytes == 2 * ROW_BYTES


def test_acknowledged_and_released_rows_leave_together_and_two_kinds_of_release_apart() -> None:
    window = opened(rows=4, exact=True)
    hand_over(window, 4)
    window.acknowledge(0, ranges(0), 0.0)
    window.acknowledge(0, ranges(1), 0.0, Verb.RELEASE_UNCOUNTED)
    window.acknowledge(0, ranges(2, 3), 0.0, Verb.RELEASE)
    one, two, three = (sent(window, 1.0) for _ in range(3))
    assert acknowledged(one) == {0: [0]}
    assert [each.settle.verb for each in (one, two)] == [consume_pb2.RELEASE] * 2
    assert [each.settle.uncounted for each in (one, two)] == [True, False]
    assert [offsets(each.settle.partitions) for each in (one, two)] == [{0: [1]}, {0: [2, 3]}]
    assert not three.ListFields()
    for request_id in (1, 2, 3):
        assert window.unconfirmed
        window.confirmed(request_id, 1, 2.0)
    assert not window.unconfirmed


def test_cumulative_acknowledgement_takes_what_was_handed_over_and_is_left() -> None:
    window = opened(prefetch=100)
    one, other = delivery(0, 3), delivery(3, 3, serial=2)
    window.deliver(one)
    window.deliver(other)
    window.start()
    hand_over(window, 5)
    window.acknowledge(0, ranges(1), 0.0)
    assert not window.acknowledge_up_to(other, 1, 0.0), "what is gathered leaves together"
    window.flush()
    assert acknowledged(sent(window)) == {0: [0, 1, 2, 3, 4]}
    assert not window.acknowledge_up_to(other, 1, 0.0), "nothing is left"


def test_a_session_that_is_over_leaves_nothing() -> None:
    window = opened(prefetch=10, rows=10)
    hand_over(window, 6)
    window.acknowledge(0, ranges(0, 1), 0.0)
    window.flush()
    sent(window)
    window.acknowledge(0, ranges(2), 0.0)
    assert window.close() == 3
    assert (window.current, window.start(), window.wake_at) == (None, None, NEVER)
    assert not window.unconfirmed
    assert not window.is_full
    assert window.open()[0] == 10


# -- all of them together ----------------------------------------------------------------------------------


WindowMachine.TestCase.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)
TestAgainstRows = WindowMachine.TestCase
