"""The oracle is tested by histories with one planted fault each: an alarm that never rings proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from spark_tests.oracle.history import History
from spark_tests.oracle.judge import Report, check
from spark_tests.oracle.marked import Rows, ids_of, rows_of, values_of
from spark_tests.oracle.summary import summary

QUEUE = "q"


def rows(
    counters: list[int],
    producer: int = 1,
    partition: int = 0,
    offsets: list[int] | None = None,
    priorities: list[int] | None = None,
) -> Rows:
    count = len(counters)
    return Rows(
        ids_of(producer, counters),
        np.full(count, partition),
        np.array(counters if offsets is None else offsets),
        np.array([4] * count if priorities is None else priorities),
    )


def sent(history: History, sent: Rows) -> None:
    history.attempted(sent.ids)
    history.acknowledged(sent.ids, QUEUE, sent.partitions, sent.offsets)


def healthy() -> History:
    """Ten messages sent, read in order and acknowledged."""
    history = History()
    ten = rows(list(range(10)))
    sent(history, ten)
    history.read(QUEUE, ten, history.stamp(), history.new_stream())
    history.confirmed(QUEUE, ten)
    return history


def test_a_healthy_history_is_found_healthy() -> None:
    report = check(healthy())
    assert not report.wrong
    assert (
        report.attempted,
        report.acknowledged,
        report.ok,
        report.recovered,
        report.unknown,
        report.reads,
    ) == (10, 10, 10, 0, 0, 10)


def test_an_empty_history_is_found_healthy() -> None:
    assert not check(History()).wrong


def test_unknown_outcomes_may_be_either() -> None:
    history = healthy()
    arrived, vanished = rows([10, 11]), rows([12, 13, 14])
    history.attempted(arrived.ids)
    history.attempted(vanished.ids)
    history.read(QUEUE, arrived, history.stamp())
    report = check(history)
    assert not report.wrong
    assert (report.attempted, report.acknowledged, report.recovered, report.unknown) == (15, 10, 2, 3)


def test_a_set_that_is_written_anew_under_another_token_is_right() -> None:
    """A batch that runs again: of its attempts one is committed."""
    history = healthy()
    for first, counters in ((20, [10, 11, 12]), (23, [13, 14])):
        more = rows(counters, offsets=list(range(first, first + len(counters))))
        for _ in range(2):
            group = history.group()
            history.attempted(more.ids, group)
            history.group_committing(group)
        history.group_ended(group, committed=True)
        history.read(QUEUE, more, history.stamp())
    report = check(history)
    assert not report.wrong, str(report)


def test_redelivery_without_confirmation_is_right() -> None:
    history = History()
    three = rows([0, 1, 2])
    sent(history, three)
    for _ in range(3):
        history.read(QUEUE, three, history.stamp(), history.new_stream())
    assert not check(history).wrong


def lost(history: History) -> None:
    sent(history, rows([10]))


def doubled(history: History) -> None:
    history.read(QUEUE, rows([3], offsets=[77]), history.stamp())


def doubled_in_another_partition(history: History) -> None:
    history.read(QUEUE, rows([3], partition=2), history.stamp())


def overwritten(history: History) -> None:
    sent(history, rows([0], producer=2, offsets=[5]))
    history.read(QUEUE, rows([0], producer=2, offsets=[5]), 0)


def elsewhere(history: History) -> None:
    sent(history, rows([10]))
    history.read(QUEUE, rows([10], offsets=[11]), history.stamp())


def never_sent(history: History) -> None:
    history.read(QUEUE, rows([0], producer=9, offsets=[99]), history.stamp())


def refused_and_read(history: History) -> None:
    more = rows([10])
    history.attempted(more.ids)
    history.refused(more.ids)
    history.read(QUEUE, more, history.stamp())


def reordered_in_the_log(history: History) -> None:
    swapped = rows([10, 11], offsets=[11, 10])
    sent(history, swapped)
    history.read(QUEUE, swapped, history.stamp())


def reordered_when_read(history: History) -> None:
    more = rows([10, 11])
    sent(history, more)
    history.read(QUEUE, more[::-1], history.stamp(), history.new_stream())


def urgent_late(history: History) -> None:
    more = rows([10, 11], priorities=[4, 9])
    sent(history, more)
    history.read(QUEUE, more, history.stamp(), history.new_stream(), falling=True)


def resurrected(history: History) -> None:
    history.read(QUEUE, rows([4]), history.stamp())


def confirmed_twice(history: History) -> None:
    history.confirmed(QUEUE, rows([4]))


def torn(history: History) -> None:
    history.attempted(rows(list(range(10, 20))).ids, history.group())
    history.read(QUEUE, rows([10, 11, 12]), history.stamp())


def discarded_and_read(history: History) -> None:
    group, more = history.group(), rows([10, 11])
    history.attempted(more.ids, group)
    history.group_ended(group, committed=False)
    history.read(QUEUE, more, history.stamp())


def committed_and_lost(history: History) -> None:
    group = history.group()
    history.attempted(rows([10, 11]).ids, group)
    history.group_ended(group, committed=True)


def stored_before_the_past(history: History) -> None:
    sent(history, rows([0], producer=2, offsets=[20]))
    sent(history, rows([0], producer=3, offsets=[15]))
    history.read(QUEUE, rows([0], producer=2, offsets=[20]), 0)
    history.read(QUEUE, rows([0], producer=3, offsets=[15]), 0)


def fewer_attempts(history: History) -> None:
    more = rows([10])
    sent(history, more)
    history.read(QUEUE, more, history.stamp(), counts=2)
    history.read(QUEUE, more, history.stamp(), counts=1)


def read_before_its_commit(history: History) -> None:
    group, more = history.group(), rows([10, 11])
    history.attempted(more.ids, group)
    history.read(QUEUE, more, history.stamp())
    history.group_committing(group)
    history.group_ended(group, committed=True)


def committed(history: History, counters: list[int], partition: int, offsets: list[int]) -> None:
    group, more = history.group(), rows(counters, partition=partition, offsets=offsets)
    history.attempted(more.ids, group)
    history.read(QUEUE, more, history.stamp())


def others_within_a_commit(history: History) -> None:
    committed(history, [10, 11], 0, [10, 12])
    committed(history, [12], 0, [13])


def commits_in_different_orders(history: History) -> None:
    first, second = history.group(), history.group()
    for producer, group, offsets in ((2, first, [10, 21]), (3, second, [11, 20])):
        for partition, offset in enumerate(offsets, 1):
            one = rows([partition], producer, partition, [offset])
            history.attempted(one.ids, group)
            history.read(QUEUE, one, history.stamp())


def replayed_otherwise(history: History) -> None:
    for count in (5, 4):
        history.read_range(("c", 0, 0, 5), rows(list(range(count))))


def in_two_ranges(history: History) -> None:
    history.read_range(("c", 0, 0, 5), rows([0, 1]))
    history.read_range(("c", 0, 5, 9), rows([1, 2]))


def flipped_bit(history: History) -> None:
    content = bytearray(values_of(ids_of(1, [10]), np.array([4]))[0].as_py())
    content[100] ^= 1
    columns = {"value": pa.array([bytes(content)]), "partition": [0], "offset": [10], "priority": [4]}
    history.attempted(ids_of(1, [10]))
    history.read(QUEUE, rows_of(pa.record_batch(columns)), history.stamp())


def noted(history: History) -> None:
    history.note("what should not be")


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (lost, {"lost"}),
        (doubled, {"duplicated: stored at two places"}),
        (doubled_in_another_partition, {"duplicated: stored at two places"}),
        (overwritten, {"two messages at one place"}),
        (elsewhere, {"misplaced: read elsewhere than promised"}),
        (never_sent, {"unexpected"}),
        (refused_and_read, {"read although refused or discarded"}),
        (reordered_in_the_log, {"out of order in the log"}),
        (reordered_when_read, {"out of order when read"}),
        (urgent_late, {"urgent ones read late"}),
        (resurrected, {"came again after its acknowledgement was confirmed"}),
        (confirmed_twice, {"confirmed twice"}),
        (torn, {"torn sets"}),
        (discarded_and_read, {"read although refused or discarded"}),
        (committed_and_lost, {"lost"}),
        (replayed_otherwise, {"replays that differ"}),
        (in_two_ranges, {"in two ranges"}),
        (flipped_bit, {"damaged content"}),
        (noted, {"noted on the way"}),
        (stored_before_the_past, {"stored before what was promised before it was sent"}),
        (fewer_attempts, {"delivery counts that fell"}),
        (read_before_its_commit, {"read before its commit"}),
        (others_within_a_commit, {"commits that are not one after the other"}),
        (commits_in_different_orders, {"commits that are not one after the other"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_is_found_and_no_other(plant: Callable[[History], None], kinds: set[str]) -> None:
    history = healthy()
    plant(history)
    report = check(history)
    assert report.wrong.keys() == kinds, str(report)
    assert all(kind in str(report) for kind in kinds)


@pytest.mark.parametrize(("read", "thirds"), [([3, 4], (3, 0, 1)), ([0, 5], (0, 4, 0)), ([], (0, 0, 6))])
def test_it_tells_where_the_lost_ones_were(read: list[int], thirds: tuple[int, int, int]) -> None:
    history = History()
    sent(history, rows([0, 1, 2, 3, 4, 5]))
    history.read(QUEUE, rows(read), history.stamp())
    assert check(history).lost == thirds


def test_a_report_names_cases() -> None:
    history = healthy()
    lost(history)
    doubled(history)
    report: Report = check(history)
    assert report.examples["lost"] == ["1:10"]
    assert report.examples["duplicated: stored at two places"] == ["1:3"]


def test_a_summary_has_one_line_per_run_and_tells_what_is_wrong() -> None:
    history = healthy()
    lost(history)
    doubled(history)
    good, bad = check(healthy()), check(history)
    lines = summary({"good": good, "bad": bad, "both": Report.total([good, bad])}).splitlines()
    assert lines[0].split()[:3] == ["run", "attempted", "acknowledged"]
    assert lines[1].split() == ["good", "10", "10", "10", "0", "0", "0", "0/0/0", "0", "0", "0", "0", "10"]
    assert lines[2].split() == ["bad", "11", "11", "10", "0", "0", "1", "0/0/1", "1", "0", "0", "0", "11"]
    assert lines[3].split() == ["both", "21", "21", "20", "0", "0", "1", "0/0/1", "1", "0", "0", "0", "21"]
    assert any(line.startswith("bad: ") for line in lines)


def test_values_carry_their_ids() -> None:
    ids, priorities = ids_of(7, range(100)), np.arange(100) % 10
    columns = {
        "value": values_of(ids, priorities),
        "partition": [1] * 100,
        "offset": list(range(100)),
        "priority": priorities,
    }
    found = rows_of(pa.record_batch(columns).slice(10, 50))
    assert found.damaged == 0
    assert found.ids.tolist() == ids[10:60].tolist()
    assert found.priorities.tolist() == priorities[10:60].tolist()


def test_what_waits_where_it_came_from_is_not_lost() -> None:
    history = healthy()
    late = rows([10, 11, 12])
    history.attempted(late.ids)
    history.acknowledged(late.ids)
    assert check(history).wrong == {"lost": 3}
    history.kept(late.ids)
    report = check(history)
    assert not report.wrong
    assert (report.ok, report.kept) == (13, 3)


def test_what_was_delivered_and_waits_all_the_same_is_doubled() -> None:
    history = healthy()
    history.kept(rows([3, 4]).ids)
    assert check(history).duplicated == 2


def test_what_waits_and_was_never_sent_is_unexpected() -> None:
    history = healthy()
    history.kept(rows([77]).ids)
    assert check(history).wrong == {"unexpected": 1}
