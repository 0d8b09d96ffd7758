"""A batch never changes after its number was used; strange brokers; what our sink has committed."""

from __future__ import annotations

import pytest

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from mq_broker.core.commands import HoldRun, ResolveFetch, Settings
from mq_wire.errors import (
    CheckpointTooOld,
    DataLost,
    WrongBroker,
)
from mq_wire.store.v1 import store_pb2 as store
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.subscribe_pb2 import ReleaseConsumerRequest
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids
from spark_tests.support.worlds.restarts import Restart, batches, lost, restarts
from spark_tests.support.worlds.scenes import QUEUE, WHO, Scene


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
def test_two_lost_batches_are_lost_data_and_keep_their_numbers_where_that_is_accepted(
    restart: Restart,
) -> None:
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
    assert not scene.queue.consumers[again.incarnation].plans[1].batches, (
        "a refused reading leaves nothing behind"
    )
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
    """What its offsets name was given back before anybody read it; the batch ran all the same, and its number
    is used.
    """
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


def test_a_snapshot_of_format_1_marks_plans_by_what_its_markers_say() -> None:
    """It knew neither who reads for a query nor which plans are committed: any marker at or above the batch
    counted.
    """
    scene = Scene()
    scene.publish(4, 4)
    query = scene.query("night")
    query.plan(max_rows=1)
    query.read({}, query.next, ("q1", 3))
    state = scene.broker.state
    snapshot.mark_all(state)
    parts = dict(snapshot.take(state, ())[0])
    broker, consumers = (
        store.BrokerPart.FromString(parts["broker"]),
        store.ConsumersPart.FromString(parts["consumers/1"]),
    )
    broker.plans_cut = consumers.consumers[0].plans[0].serial = 0
    broker.markers.add(owner="query:q1", target="elsewhere", version=4, rows=1)
    parts |= {"broker": broker.SerializeToString(), "consumers/1": consumers.SerializeToString()}
    restored = Broker(CLUSTER, scene.settings, ListSink(), counted_ids())
    snapshot.restore(
        restored.state, iter((key, body) for key, body in parts.items() if not key.startswith("queries/"))
    )
    known = restored.state.by_name[QUEUE].queue.consumers[query.incarnation]
    assert known.plans[1].committed
    assert restored.state.queries["q1"].readers[1].incarnation == query.incarnation
    snapshot.tidy(restored.state)
    written = dict(snapshot.take(restored.state, parts)[0])
    assert {"broker", "consumers/1"} <= written.keys()
    again = Broker(CLUSTER, scene.settings, ListSink(), counted_ids())
    snapshot.restore(again.state, iter((parts | written).items()))
    check_same(dump_broker(again), dump_broker(restored))
