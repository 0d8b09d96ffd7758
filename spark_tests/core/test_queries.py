"""What the broker knows of queries: a batch never changes after its number was used, and a queue has one reader in a query."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.commands import HoldRun, ResolveFetch, Settings, Tick
from mq_wire.errors import (
    CheckpointTooOld,
    DataLost,
    InvalidRequest,
    LimitExceeded,
    OffsetsUnknown,
    SharedRange,
    StateMismatch,
    WrongBroker,
)
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.admin_pb2 import StatsRequest
from mq_wire.v1.subscribe_pb2 import ReleaseConsumerRequest
from spark_tests.core import commands
from spark_tests.core.dumps import check_same, dump_broker
from spark_tests.core.scenes import QUEUE, WHO, Query, Scene
from spark_tests.core.worlds import CLUSTER, ListSink, counted_ids

Restart = Callable[[Scene], None]


def _not_at_all(scene: Scene) -> None:
    """Goes on."""


def _replayed(scene: Scene) -> None:
    _go_on_with(scene, scene.replayed())


def _from_snapshot(scene: Scene) -> None:
    snapshot.mark_all(scene.broker.state)
    parts, _ = snapshot.take(scene.broker.state, ())
    restored = Broker(CLUSTER, scene.settings, ListSink(), counted_ids())
    snapshot.restore(restored.state, iter(parts))
    _go_on_with(scene, restored)


def _go_on_with(scene: Scene, broker: Broker) -> None:
    check_same(dump_broker(broker), dump_broker(scene.broker))
    broker.ledger.sink, broker.ledger.new_id = scene.sink, scene.broker.ledger.new_id
    scene.broker = broker


restarts = pytest.mark.parametrize("restart", [_not_at_all, _replayed, _from_snapshot])


def batches(scene: Scene, query: Query, count: int, first: int = 0) -> list[dict[int, int]]:
    """Runs batches of one row each, and an idle poll; returns their boundaries."""
    boundaries = [dict(query.next)]
    for batch in range(first, first + count):
        scene.publish(4)
        query.plan()
        query.read(boundaries[-1], query.next, ("q1", batch))
        boundaries.append(dict(query.next))
    assert query.plan().idle
    return boundaries


def lost(scene: Scene, query: Query, start: dict[int, int]) -> Query:
    """The query starts anew with a checkpoint that ends at `start`."""
    scene.close_run(query.run)
    again = query.copy(scene.run())
    again.next = start
    return again


@restarts
def test_a_checkpoint_that_lost_its_last_batch_gets_it_again_and_nothing_new(restart: Restart) -> None:
    scene = Scene()
    query = scene.query()
    boundaries = batches(scene, query, 3)
    scene.publish(4, 4)
    restart(scene)
    again = lost(scene, query, boundaries[2])
    again.plan()
    assert again.next == boundaries[3], "an idle poll had acknowledged the batch"
    assert [row.offset for row in again.read(boundaries[2], again.next, ("q1", 2))] == [2]
    again.plan()
    assert [row.offset for row in again.read(boundaries[3], again.next, ("q1", 3))] == [3, 4]


@restarts
def test_two_lost_batches_are_lost_data_and_keep_their_numbers_where_that_is_accepted(restart: Restart) -> None:
    scene = Scene()
    query = scene.query()
    boundaries = batches(scene, query, 4)
    scene.publish(4, 4)
    restart(scene)
    again = lost(scene, query, boundaries[2])
    again.plan()
    assert again.next == boundaries[3]
    with pytest.raises(DataLost, match="no longer kept"):
        again.open(boundaries[2], boundaries[3])
    with pytest.raises(DataLost, match="lost its last batches"):
        again.fetch(2, 3, batch=("q1", 2))
    assert again.read(boundaries[2], boundaries[3], ("q1", 2), accept_data_loss=True) == []
    again.plan()
    assert again.next == boundaries[4]
    assert [row.offset for row in again.read(boundaries[3], again.next, ("q1", 3))] == [3]
    again.plan()
    assert [row.offset for row in again.read(boundaries[4], again.next, ("q1", 4))] == [4, 5]


@restarts
def test_boundaries_are_known_for_the_last_hundred_plans_and_older_ones_are_refused(restart: Restart) -> None:
    scene = Scene(settings=Settings(default_partitions=1, kept_boundaries=5))
    query = scene.query()
    boundaries = batches(scene, query, 10)
    restart(scene)
    consumer = scene.queue.consumers[query.incarnation]
    assert (len(consumer.past), len(consumer.plans)) == (5, 1)
    assert consumer.floor == boundaries[4]
    again = lost(scene, query, boundaries[4])
    again.plan()
    assert again.next == boundaries[5]
    with pytest.raises(DataLost):
        again.plan(start=boundaries[3])
    assert again.plan(start=boundaries[3], accept_data_loss=True).data_loss
    assert again.next == boundaries[5]
    with pytest.raises(CheckpointTooOld):
        again.read(boundaries[4], again.next, ("q1", 3), accept_data_loss=True)


@restarts
def test_a_lost_first_batch_never_gets_other_rows(restart: Restart) -> None:
    scene = Scene()
    query = scene.query()
    batches(scene, query, 1)
    scene.publish(4)
    restart(scene)
    scene.close_run(query.run)
    again = scene.query()
    again.plan()
    for accept in (False, True):
        with pytest.raises(CheckpointTooOld, match="lost its last batches"):
            again.read({}, again.next, ("q1", 0), accept_data_loss=accept)
    assert not scene.queue.consumers[again.incarnation].plans[1].batches, "a refused reading leaves nothing behind"
    assert scene.broker.state.queries["q1"].readers[1].incarnation == query.incarnation


@restarts
def test_a_queue_that_was_idle_in_the_lost_batch_puts_no_new_rows_into_it(restart: Restart) -> None:
    scene = Scene()
    query = scene.query()
    boundaries = batches(scene, query, 1)
    scene.handle(commands.publish("other", 0, WHO, 0, [(b"v", 4)]))
    who = commands.who("other", b"", "", b"", query.run)
    restart(scene)
    plan = scene.handle(wire.PlanRequest(who=who))
    who.destination_id, who.incarnation = plan.destination_id, plan.incarnation
    opened = wire.OpenFetch(who=who, first=0, last=1, query_id="q1", batch_id=0, accept_data_loss=True)
    with pytest.raises(CheckpointTooOld, match="'other'"):
        scene.handle(ResolveFetch(opened))
    assert query.read({}, boundaries[1], ("q1", 0)), "the other queue's rows are those of the batch"
    opened.batch_id = 1
    scene.read_all(scene.handle(ResolveFetch(opened)))


@restarts
def test_an_empty_batch_stays_empty(restart: Restart) -> None:
    """What its offsets name was given back before anybody read it; the batch ran all the same, and its number is used."""
    scene = Scene()
    query = scene.query()
    boundaries = batches(scene, query, 1)
    scene.publish(4)
    query.plan()
    end = dict(query.next)
    again = lost(scene, query, end)
    assert again.read(boundaries[1], end, ("q1", 1)) == []
    restart(scene)
    once_more = lost(scene, again, boundaries[1])
    once_more.plan()
    assert once_more.next == end
    once_more.plan()
    assert [row.offset for row in once_more.read(end, once_more.next, ("q1", 2))] == [1]


@restarts
def test_a_batch_before_all_that_are_remembered_is_refused(restart: Restart) -> None:
    scene = Scene(settings=Settings(default_partitions=1, kept_batches=3))
    query = scene.query()
    boundaries = batches(scene, query, 5)
    restart(scene)
    assert list(scene.broker.state.queries["q1"].reads) == [2, 3, 4]
    with pytest.raises(CheckpointTooOld):
        query.fetch(4, 5, batch=("q1", 1))
    with pytest.raises(CheckpointTooOld):
        query.join("q1", 1)
    assert query.read(boundaries[4], boundaries[5], ("q1", 4))


def test_plans_of_a_version_that_did_not_count_are_older_than_every_batch() -> None:
    scene = Scene()
    scene.publish(4)
    query = scene.query()
    query.plan()
    scene.queue.consumers[query.incarnation].plans[1].serial = 0
    scene.broker.state.plans_cut = 0
    assert query.read({}, query.next, ("q1", 0))


# -- two readers


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
def test_rows_of_two_readers_go_back_where_nothing_was_acknowledged_and_count_no_attempt(restart: Restart) -> None:
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
    assert not scene.queue.partitions[0].attempts
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


# -- strange brokers


def test_a_run_of_another_broker_is_not_held() -> None:
    scene = Scene()
    run = scene.run()
    assert scene.handle(HoldRun(run, CLUSTER)) == scene.handle(HoldRun(run)) == run
    with pytest.raises(WrongBroker, match="check the address"):
        scene.handle(HoldRun(run, b"another broker 1"))
    with pytest.raises(WrongBroker):
        scene.handle(HoldRun(0, b"another broker 1"))
    assert scene.broker.state.epoch == run


def test_every_call_of_a_consumer_is_refused_by_another_broker() -> None:
    scene = Scene()
    scene.publish(4)
    query = scene.query()
    query.plan()
    before = dump_broker(scene.broker)
    for who in (query.who, scene.query().who):
        who.cluster_id = b"another broker 1"
        requests: list[object] = [
            wire.PlanRequest(who=who, create=True),
            wire.OpenRangeRequest(who=who),
            wire.AcknowledgeRangeRequest(who=who),
            wire.JoinQueryRequest(who=who, query_id="q1"),
            ResolveFetch(wire.OpenFetch(who=who, first=0, last=1)),
        ]
        for request in requests:
            with pytest.raises(WrongBroker):
                scene.handle(request)
    before["epoch"] += 1
    check_same(dump_broker(scene.broker), before)


# -- what our sink has committed


@restarts
def test_a_commit_marks_the_plans_of_exactly_its_batch(restart: Restart) -> None:
    """A marker of another target may be higher: that says nothing of what was read for a lower batch."""
    scene = Scene()
    scene.publish(4, 4)
    query = scene.query("night")
    query.plan(max_rows=1)
    query.read({}, query.next, ("q1", 3))
    scene.stage(1, batch=7, queue="elsewhere")
    scene.commit((1, 2), version=7, target="elsewhere")
    restart(scene)
    assert scene.handle(ReleaseConsumerRequest(consumer="night")).returned_rows == 1


@restarts
def test_a_batch_that_is_read_again_after_its_commit_counts_as_committed(restart: Restart) -> None:
    scene = Scene()
    scene.publish(4, 4)
    query = scene.query("night")
    query.plan(max_rows=1)
    scene.stage(1, batch=3, queue="elsewhere")
    scene.commit((1, 2), version=3, target="elsewhere")
    restart(scene)
    query.read({}, query.next, ("q1", 3))
    restart(scene)
    assert scene.handle(ReleaseConsumerRequest(consumer="night")).acknowledged_rows == 1


def test_an_application_s_commit_marks_nothing() -> None:
    scene = Scene()
    scene.publish(4)
    query = scene.query("night")
    query.plan()
    query.read({}, query.next, ("q1", 3))
    scene.stage(1, batch=3, queue="elsewhere")
    scene.commit((1, 2), version=3, target="elsewhere", owner="app:q1")
    assert scene.handle(ReleaseConsumerRequest(consumer="night")).returned_rows == 1


# -- what is kept for nobody


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
    assert scene.queue.floor(0) == scene.queue.partitions[0].log.next_offset
    entries = len(scene.sink.entries)
    scene.handle(Tick())
    assert len(scene.sink.entries) == entries, "nothing is written for what changes nothing"
    _replayed(scene)
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
    _replayed(scene)
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
    assert scene.queue.floor(0) == 20
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
    _replayed(scene)


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
    _replayed(scene)


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
