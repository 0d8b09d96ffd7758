"""Runs, ranges and their readings: what is frozen, what counts as a failed attempt, what goes back."""

from __future__ import annotations

import pytest

from mq_broker.core.commands import HoldRun, Settings, Tick
from mq_wire.errors import (
    DataLost,
    EpochFenced,
    InvalidRequest,
    OffsetsUnknown,
    StagedSetUnknown,
    UnknownDestination,
)
from spark_tests.support.worlds.scenes import Query, Scene


def planned(*priorities: int, name: str = "") -> tuple[Scene, Query]:
    scene = Scene()
    scene.publish(*priorities)
    query = scene.query(name)
    query.plan()
    return scene, query


def counts(query: Query) -> list[int]:
    return [row.delivery_count for row in query.read({}, query.next)]


def test_a_range_gives_the_same_rows_any_number_of_times() -> None:
    scene, query = planned(4, 9, 4)
    first = query.read({}, query.next)
    scene.publish(9)
    assert query.read({}, query.next) == first
    assert query.fetch(1, 2) == first[1:2]
    assert query.fetch(2, 2) == query.fetch(3, 1) == []


def test_readings_of_one_run_are_one_attempt() -> None:
    _, query = planned(4)
    assert [counts(query) for _ in range(5)] == [[1]] * 5


def test_a_new_run_that_opens_what_an_earlier_one_read_counts_one_failed_attempt() -> None:
    scene, query = planned(4)
    for attempt in range(1, 5):
        assert counts(query) == [attempt]
        assert counts(query) == [attempt]
        query = query.copy(scene.run())


def test_a_run_that_never_read_did_not_fail() -> None:
    scene, query = planned(4)
    query.open({}, query.next)
    query = query.copy(scene.run())
    query.open({}, query.next)
    query = query.copy(scene.run())
    assert counts(query) == [1]
    query = query.copy(scene.run())
    query.open({}, query.next)
    query = query.copy(scene.run())
    assert counts(query) == [2], "only one of the two before has read it"


def test_a_late_reader_of_an_older_run_is_no_attempt_of_the_newer_one() -> None:
    scene, query = planned(4)
    newer = query.copy(scene.run())
    newer.open({}, query.next)
    assert [row.delivery_count for row in query.fetch(0, 1)] == [1]
    assert counts(newer.copy(scene.run())) == [1]


def test_a_broker_restart_is_no_failed_attempt() -> None:
    scene, query = planned(4)
    assert counts(query) == [1]
    scene.broker = scene.replayed()
    scene.handle(HoldRun(query.run))
    assert counts(query) == [1]


def test_what_was_acknowledged_did_not_fail() -> None:
    scene, query = planned(4)
    counts(query)
    query.acknowledge(query.next)
    assert counts(query.copy(scene.run())) == [1]


def test_what_our_sink_has_committed_did_not_fail() -> None:
    scene, query = planned(4)
    query.read({}, query.next, batch=("q1", 3))
    scene.stage(1, batch=3)
    scene.commit((1, 2), version=3)
    assert counts(query.copy(scene.run())) == [1]


def test_a_range_that_is_not_the_whole_plan_is_refused_and_a_reversed_one_too() -> None:
    scene, query = planned(4, 4)
    with pytest.raises(InvalidRequest):
        query.open({}, {0: 1})
    scene.publish(4)
    query.plan()
    with pytest.raises(InvalidRequest, match="ends before it starts"):
        query.open({0: 3}, {0: 2})
    assert query.open({0: 3}, {0: 3}) == []


def test_a_range_needs_an_incarnation() -> None:
    scene, query = planned(4)
    with pytest.raises(InvalidRequest, match="needs the incarnation"):
        scene.query().open({}, query.next)


def test_only_numbers_that_were_given_and_are_kept_can_be_read() -> None:
    _, query = planned(4, 4)
    with pytest.raises(OffsetsUnknown, match="never given"):
        query.fetch(0, 3)
    with pytest.raises(UnknownDestination, match="no partition 7"):
        query.fetch(0, 1, partition=7)


def test_a_range_of_several_plans_is_one_part_a_partition() -> None:
    scene = Scene(2)
    scene.publish(4, 4)
    scene.publish(4, partition=1)
    query = scene.query()
    query.plan(max_rows=1)
    query.read({}, query.next)
    query.plan()
    assert query.open({}, query.next) == [(0, 0, 2, 2), (1, 0, 1, 1)]
    assert [(row.partition, row.number) for row in query.read({}, query.next)] == [(0, 0), (0, 1), (1, 0)]


def test_the_end_of_a_run_gives_back_what_it_planned_and_nobody_read() -> None:
    scene, query = planned(4, 4)
    scene.close_run(query.run)
    assert scene.ready() == [0, 1]
    again = query.copy(scene.run())
    assert again.read({}, query.next) == []
    assert again.plan().end.next == {0: 4}


def test_what_was_read_is_kept_for_its_checkpoint() -> None:
    scene, query = planned(4, 4)
    query.read({}, query.next)
    scene.close_run(query.run)
    assert scene.ready() == []
    assert counts(query.copy(scene.run())) == [2, 2]


def test_the_end_of_one_run_leaves_the_plans_of_others_alone() -> None:
    scene, older = planned(4, 4)
    scene.publish(4)
    newer = scene.query()
    newer.plan()
    scene.close_run(newer.run)
    assert scene.ready() == [2]
    assert len(older.fetch(0, 2)) == 2


def test_the_end_of_an_older_run_does_not_touch_what_a_newer_one_took_over() -> None:
    scene, query = planned(4)
    newer = query.copy(scene.run())
    newer.open({}, query.next)
    scene.close_run(query.run)
    assert len(newer.fetch(0, 1)) == 1


def test_runs_of_hosts_that_do_not_come_back_end_after_a_while() -> None:
    settings = Settings(default_partitions=1, run_grace_us=1000)
    scene = Scene(settings=settings)
    scene.publish(4, 4)
    query = scene.query()
    query.plan(max_rows=1)
    other = scene.query()
    other.plan()
    scene.broker = scene.replayed()
    scene.handle(HoldRun(other.run))
    scene.handle(Tick())
    scene.now_us += 999
    scene.handle(Tick())
    assert scene.ready() == []
    scene.now_us += 1
    scene.handle(Tick())
    assert scene.ready() == [0], "the other came back"


def test_a_run_that_was_never_given_cannot_be_held() -> None:
    with pytest.raises(InvalidRequest, match="run 1 was never given"):
        Scene().handle(HoldRun(1))


def test_a_takeover_drops_the_output_of_what_it_frees_and_keeps_out_what_comes_later() -> None:
    scene, old = planned(4, 4, name="night")
    old.read({}, old.next, batch=("q1", 3))
    scene.stage(1, batch=3)
    scene.stage(2, batch=4)
    new = scene.query("night")
    new.plan()
    with pytest.raises(StagedSetUnknown):
        scene.commit((1, 2), version=3)
    with pytest.raises(EpochFenced, match="given to another consumer"):
        scene.stage(3, batch=3)
    with pytest.raises(EpochFenced):
        scene.commit(version=3)
    scene.commit((2, 2), version=4)
    assert counts(new) == [2, 2]


def test_a_takeover_acknowledges_what_our_sink_has_committed() -> None:
    scene, old = planned(4, 4, name="night")
    old.read({}, old.next, batch=("q1", 3))
    scene.stage(1, batch=3)
    scene.commit((1, 2), version=3, target="q")
    new = scene.query("night")
    assert new.plan().rows == 2, "the two rows of the sink"
    assert [row.offset for row in new.read({}, new.next)] == [2, 3]


def test_failed_attempts_of_a_range_follow_its_rows_back_to_the_queue() -> None:
    scene, old = planned(4, name="night")
    for _ in range(3):
        old.read({}, old.next)
        old = old.copy(scene.run())
    old.open({}, old.next)
    new = scene.query("night")
    new.plan()
    assert counts(new) == [2], "nobody knows which of its rows it was, so its runs are counted with the range"
    new.acknowledge(new.next)
    assert not scene.queue.backlogs[0].counts, "the counts of rows that are done are dropped"


def test_acknowledged_numbers_that_are_no_longer_kept_are_lost_not_other_rows() -> None:
    scene, query = planned(4)
    scene.publish(4)
    query.plan()
    query.acknowledge({0: 1})
    scene.publish(4)
    query.plan()
    with pytest.raises(DataLost):
        query.fetch(0, 1)
