"""What is kept of durable consumers and queries, for how long, and how many there may be."""

from __future__ import annotations

import pytest

from mq_broker.core.commands import Settings, Tick
from mq_wire.errors import (
    DataLost,
    LimitExceeded,
    StateMismatch,
)
from mq_wire.v1.admin_pb2 import StatsRequest
from mq_wire.v1.subscribe_pb2 import ReleaseConsumerRequest
from spark_tests.support.worlds.restarts import batches, lost, replayed
from spark_tests.support.worlds.scenes import QUEUE, Scene


def test_rows_that_are_kept_for_a_consumer_that_is_gone_go_after_a_while_their_boundary_stays() -> None:
    scene = Scene(settings=Settings(default_partitions=1, kept_range_ttl_us=1000, run_grace_us=100))
    query = scene.query()
    boundaries = batches(scene, query, 2)
    consumer = scene.queue.consumers[query.incarnation]
    scene.handle(Tick())
    scene.now_us += 5000
    scene.handle(Tick(True))
    assert consumer.plans, "its run is there"
    scene.close_run(query.run)
    scene.handle(Tick())
    scene.now_us += 999
    scene.handle(Tick())
    assert consumer.plans
    scene.now_us += 1
    scene.handle(Tick())
    assert not consumer.plans
    assert scene.destination.floor(0) == scene.destination.partitions[0].log.next_offset
    entries = len(scene.sink.entries)
    scene.handle(Tick())
    assert len(scene.sink.entries) == entries, "nothing is written for what changes nothing"
    replayed(scene)
    again = lost(scene, query, boundaries[1])
    again.plan()
    assert again.next == boundaries[2]
    with pytest.raises(DataLost):
        again.read(boundaries[1], again.next, ("q1", 1))
    scene.publish(4)
    again.plan()
    assert [row.offset for row in again.read(boundaries[2], again.next, ("q1", 2))] == [2]


def test_where_space_is_short_they_go_as_soon_as_the_query_had_time_to_come_back() -> None:
    scene = Scene(settings=Settings(default_partitions=1, run_grace_us=100))
    query = scene.query()
    batches(scene, query, 1)
    replayed(scene)
    consumer = scene.queue.consumers[query.incarnation]
    scene.handle(Tick(True))
    assert consumer.plans, "after a restart it may be about to hold its run again"
    scene.now_us += 100
    scene.handle(Tick(True))
    assert not consumer.plans


def test_what_is_not_acknowledged_is_never_forgotten() -> None:
    scene = Scene(settings=Settings(default_partitions=1, kept_range_ttl_us=1, run_grace_us=1))
    query = scene.query()
    boundaries = batches(scene, query, 1)
    scene.publish(4)
    query.plan()
    query.read(boundaries[1], query.next, ("q1", 1))
    scene.close_run(query.run)
    for _ in range(3):
        scene.now_us += 10
        scene.handle(Tick(True))
    assert len(scene.queue.consumers[query.incarnation].plans) == 2


def test_many_runs_without_a_name_pin_no_rows() -> None:
    """AvailableNow with a fresh checkpoint each time."""
    scene = Scene(settings=Settings(default_partitions=1, run_grace_us=1))
    for number in range(20):
        scene.publish(4)
        query = scene.query()
        query.plan()
        query.read({}, query.next, (f"q{number}", 0))
        query.plan()
        scene.close_run(query.run)
    scene.handle(Tick(True))
    scene.now_us += 1
    scene.handle(Tick(True))
    assert scene.destination.floor(0) == 20
    assert scene.handle(StatsRequest(destination=QUEUE)).destination.depth_rows == 0


# -- bounds


def test_incarnations_that_ended_are_known_for_the_last_thousand_per_queue() -> None:
    scene = Scene(settings=Settings(default_partitions=1, kept_ended=2))
    gone = []
    for _ in range(3):
        scene.publish(4)
        query = scene.query()
        query.plan()
        scene.handle(ReleaseConsumerRequest(consumer=query.incarnation.hex()))
        gone.append(query)
    assert list(scene.queue.ended) == [query.incarnation for query in gone[1:]]
    with pytest.raises(StateMismatch, match="knows no consumer"):
        gone[0].plan()
    replayed(scene)


def test_a_queue_has_no_more_durable_consumers_than_allowed() -> None:
    scene = Scene(settings=Settings(default_partitions=1, consumers_max=2))
    scene.publish(4, 4, 4, 4)
    scene.query("night").plan(max_rows=1)
    scene.query().plan(max_rows=1)
    with pytest.raises(LimitExceeded, match="mq consumers release"):
        scene.query().plan(max_rows=1)
    scene.query("night").plan(max_rows=1)
    assert len(scene.queue.consumers) == 2, "a takeover needs no room"


def test_queries_that_hold_and_commit_nothing_make_room_for_others() -> None:
    scene = Scene(settings=Settings(default_partitions=1, queries_max=3))
    scene.publish(*[4] * 9)
    readers = []
    for number in range(3):
        readers.append(scene.query())
        readers[-1].plan(max_rows=1)
        readers[-1].read({}, readers[-1].next, (f"q{number}", 0))
    late = scene.query()
    late.plan(max_rows=1)
    with pytest.raises(LimitExceeded, match="queries_max"):
        late.read({}, late.next, ("q3", 0))
    with pytest.raises(LimitExceeded):
        late.join("q3")
    scene.handle(ReleaseConsumerRequest(consumer=readers[0].incarnation.hex()))
    late.read({}, late.next, ("q3", 0))
    assert set(scene.broker.state.queries) == {"q1", "q2", "q3"}
    replayed(scene)


def test_boundaries_of_many_partitions_take_little_memory() -> None:
    scene = Scene(1024)
    query = scene.query()
    query.plan()
    for partition in range(0, 1024, 8):
        scene.publish(4, partition=partition)
    query.plan()
    query.read({}, query.next)
    end = dict(query.next)
    scene.publish(4)
    query.plan()
    query.plan(start=query.next)
    (past,) = scene.queue.consumers[query.incarnation].past.values()
    assert past.end == end
    assert len(past.packed_end) == len(past.packed_numbers) == 128 * 16
