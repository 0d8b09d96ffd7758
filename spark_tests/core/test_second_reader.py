"""A queue has one reader in a query: a second one is refused before anything is lost."""

from __future__ import annotations

import pytest

from mq_wire.errors import (
    InvalidRequest,
    OffsetsUnknown,
    SharedRange,
)
from spark_tests.support.worlds.restarts import Restart, batches, restarts
from spark_tests.support.worlds.scenes import Query, Scene


def two_readers() -> tuple[Scene, Query, Query]:
    """A scene with two readers."""
    scene = Scene()
    return scene, scene.query(), scene.query()


def test_a_second_reader_is_refused_before_there_is_anything_to_read() -> None:
    scene, left, right = two_readers()
    scene.publish(4)
    left.plan(below={0: 0})
    left.join("q1", 0, "s1")
    for _ in range(2):
        with pytest.raises(SharedRange, match="self-join or a union"):
            right.join("q1", 0, "s1")
    left.join("q1", 0, "s1")
    other = scene.query()
    other.join("q2", 0, "s1")


@restarts
def test_rows_of_two_readers_go_back_where_nothing_was_acknowledged_and_count_no_attempt(
    restart: Restart,
) -> None:
    scene, left, right = two_readers()
    scene.publish(4, 4, 4)
    left.plan(max_rows=1)
    right.plan(max_rows=1)
    assert len(left.read({}, left.next, ("q1", 0), spark_run_id="s1")) == 1
    scene.stage(1, batch=0)
    restart(scene)
    with pytest.raises(SharedRange, match="rows are back in the queue"):
        right.read({}, right.next, ("q1", 0), spark_run_id="s1")
    assert scene.ready() == [0, 1, 2]
    assert not scene.queue.consumers
    assert not scene.broker.state.staged, "what came of them is not written"
    assert not scene.queue.backlogs[0].counts
    for reader in (left, right):
        with pytest.raises(SharedRange, match="Read the queue once"):
            reader.plan()
        with pytest.raises(SharedRange):
            reader.fetch(0, 1)
    restart(scene)
    with pytest.raises(SharedRange):
        left.plan()


def test_rows_stay_pinned_where_one_reader_has_acknowledged_but_what_nobody_read_goes_back() -> None:
    scene, left, right = two_readers()
    boundaries = batches(scene, left, 1)
    scene.publish(4, 4)
    left.plan(max_rows=1)
    right.plan()
    left.read(boundaries[1], left.next, ("q1", 1))
    with pytest.raises(SharedRange, match="mq consumers release"):
        right.read({}, right.next, ("q1", 1))
    assert scene.ready() == [2]
    assert left.read(boundaries[1], left.next, ("q1", 1)), "the first reader holds what it read"


def test_a_second_incarnation_is_refused_in_any_later_batch_and_any_later_start() -> None:
    scene, left, right = two_readers()
    scene.publish(4)
    left.plan()
    left.read({}, left.next, ("q1", 0))
    scene.publish(4)
    right = right.copy(scene.run())
    right.plan()
    with pytest.raises(SharedRange):
        right.read({}, right.next, ("q1", 7))


def test_a_newer_start_takes_the_place_of_the_older_whose_tasks_read_on() -> None:
    scene, query, _ = two_readers()
    scene.publish(4)
    query.join()
    query.plan()
    query.read({}, query.next, ("q1", 1))
    newer = query.copy(scene.run())
    assert newer.read({}, newer.next, ("q1", 1))
    known = scene.broker.state.queries["q1"].readers[1]
    assert (known.run, known.incarnation) == (newer.run, query.incarnation)
    entries = len(scene.sink.entries)
    assert query.fetch(0, 1, batch=("q1", 1)), "a zombie is never fenced"
    query.join()
    assert scene.broker.state.queries["q1"].readers[1] == known
    assert len(scene.sink.entries) == entries


def test_a_program_that_sets_its_job_group_is_no_second_reader_when_it_starts_again() -> None:
    scene, query, _ = two_readers()
    scene.publish(4)
    query.plan()
    query.read({}, query.next, ("q1", 0), spark_run_id="night job")
    again = query.copy(scene.run())
    assert again.read({}, again.next, ("q1", 0), spark_run_id="night job")


def test_joining_needs_a_query_and_what_all_calls_need() -> None:
    scene, query, _ = two_readers()
    scene.publish(4)
    with pytest.raises(InvalidRequest, match="query_id"):
        query.join("")
    wrong = query.copy(99)
    with pytest.raises(InvalidRequest, match="run 99"):
        wrong.join()
    stranger = query.copy()
    stranger.incarnation = b"s" * 16
    with pytest.raises(OffsetsUnknown):
        stranger.join()
    assert not scene.broker.state.queries
