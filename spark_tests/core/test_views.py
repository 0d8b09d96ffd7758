"""Browsing, pins, and what operators ask and do."""

from __future__ import annotations

import pytest

from mq_broker.core.commands import ResolveFetch, Settings, Tick
from mq_wire.errors import DataLost, DestinationExists, InvalidName, LimitExceeded, UnknownDestination
from mq_wire.limits import PARTITIONS_MAX
from mq_wire.v1 import admin_pb2 as admin
from mq_wire.v1 import subscribe_pb2 as wire
from spark_tests.support.worlds.lists import ReadRow
from spark_tests.support.worlds.scenes import QUEUE, Scene


def browse(scene: Scene, opened: wire.OpenBrowseResponse) -> list[ReadRow]:
    rows = []
    for part in opened.parts:
        fetch = wire.OpenFetch(
            browse=opened.browse, partition=part.partition, first=part.first, last=part.last
        )
        rows += scene.read_all(scene.handle(ResolveFetch(fetch)))
    return rows


def test_a_view_shows_all_that_is_not_acknowledged_and_consumes_nothing() -> None:
    scene = Scene(2)
    scene.publish(4, 9, 4, 4)
    scene.publish(0, partition=1)
    session = scene.connect(1)
    scene.received(session)
    scene.query().plan(max_rows=1)
    scene.acknowledge(session, (0, 1, 2))
    opened = scene.handle(wire.OpenBrowseRequest(destination=QUEUE))
    assert [(part.partition, part.first, part.last, part.rows) for part in opened.parts] == [
        (0, 0, 3, 3),
        (1, 0, 1, 1),
    ]
    assert [(row.partition, row.offset, row.number) for row in browse(scene, opened)] == [
        (0, 0, 0),
        (0, 2, 1),
        (0, 3, 2),
        (1, 0, 0),
    ]
    assert scene.ready() == [2, 3]


def test_a_view_is_frozen_and_ends_some_time_after_its_last_use() -> None:
    scene = Scene(settings=Settings(default_partitions=1, browse_ttl_us=1000))
    scene.publish(4)
    opened = scene.handle(wire.OpenBrowseRequest(destination=QUEUE))
    session = scene.connect(9)
    scene.received(session)
    scene.acknowledge(session, (0, 0, 1))
    scene.publish(4)
    for _ in range(3):
        scene.now_us += 900
        assert [row.offset for row in browse(scene, opened)] == [0]
        scene.handle(Tick())
    assert scene.broker.state.pins
    scene.now_us += 1001
    scene.handle(Tick())
    assert not scene.broker.state.pins
    with pytest.raises(DataLost, match="read the queue again"):
        browse(scene, opened)


def test_a_view_of_a_queue_made_anew_is_gone() -> None:
    scene = Scene()
    scene.publish(4)
    opened = scene.handle(wire.OpenBrowseRequest(destination=QUEUE))
    scene.handle(admin.DeleteDestinationRequest(name=QUEUE))
    scene.sequences.clear()
    scene.publish(4)
    with pytest.raises(DataLost):
        browse(scene, opened)


def test_parts_of_a_view_that_are_not_there_are_nothing() -> None:
    scene = Scene(2)
    scene.publish(4)
    opened = scene.handle(wire.OpenBrowseRequest(destination=QUEUE))
    for partition, first, last in ((1, 0, 5), (0, 1, 9), (0, 1, 0), (7, 0, 1)):
        fetch = wire.OpenFetch(browse=opened.browse, partition=partition, first=first, last=last)
        assert scene.handle(ResolveFetch(fetch)) == []


def test_a_segment_is_not_given_back_while_somebody_reads_it() -> None:
    scene = Scene()
    scene.publish(4)
    session = scene.connect(1)
    scene.dispatch()
    scene.acknowledge(session, (0, 0, 1))
    assert scene.broker.reclaimable([1]) == []
    assert len(scene.received(session)) == 1
    assert scene.broker.reclaimable([1]) == [1]


@pytest.mark.parametrize("held", ["ready", "session", "planned", "kept", "staged"])
def test_a_segment_is_not_given_back_while_somebody_can_get_a_row_of_it(held: str) -> None:
    scene = Scene()
    if held == "staged":
        scene.stage(1)
    else:
        scene.publish(4)
    query = scene.query()
    if held == "session":
        scene.received(scene.connect(1))
    elif held in ("planned", "kept"):
        query.plan()
    if held == "kept":
        query.acknowledge(query.next)
    assert scene.broker.reclaimable([1, 2]) == [2]


def test_destinations_are_created_described_listed_and_deleted() -> None:
    scene = Scene(3)
    made = scene.handle(admin.CreateDestinationRequest(name="eu.orders", partitions=2))
    assert [partition.end_offset for partition in made.partitions] == [0, 0]
    assert made.created
    again = scene.handle(admin.CreateDestinationRequest(name="eu.orders"))
    assert (again.destination_id, len(again.partitions), again.created) == (made.destination_id, 2, False)
    assert scene.handle(admin.DescribeDestinationRequest(name="eu.orders")) == again
    with pytest.raises(DestinationExists, match="exists with 2 partitions, not 3"):
        scene.handle(admin.CreateDestinationRequest(name="eu.orders", partitions=3))
    assert len(scene.handle(admin.DescribeDestinationRequest(name="us", create=True)).partitions) == 3
    listed = scene.handle(admin.ListDestinationsRequest(prefix="eu.")).destinations
    assert [stats.name for stats in listed] == ["eu.orders"]
    scene.handle(admin.DeleteDestinationRequest(name="eu.orders"))
    with pytest.raises(UnknownDestination):
        scene.handle(admin.DeleteDestinationRequest(name="eu.orders"))
    assert (
        scene.handle(admin.CreateDestinationRequest(name="eu.orders")).destination_id != made.destination_id
    )


def test_what_may_not_be_created_is_refused() -> None:
    scene = Scene(settings=Settings(auto_create=False, destinations_max=1))
    with pytest.raises(UnknownDestination, match="auto_create_destinations"):
        scene.publish(4)
    for name in ("", "a..b", "../etc", "a\0b", "x" * 300, "a.*"):
        with pytest.raises(InvalidName):
            scene.handle(admin.CreateDestinationRequest(name=name))
    with pytest.raises(LimitExceeded):
        scene.handle(admin.CreateDestinationRequest(name="a", partitions=PARTITIONS_MAX + 1))
    scene.handle(admin.CreateDestinationRequest(name="a"))
    with pytest.raises(LimitExceeded, match="destinations_max = 1"):
        scene.handle(admin.CreateDestinationRequest(name="b"))


def test_figures_add_up() -> None:
    scene = Scene(2)
    scene.publish(4, 9, 9)
    scene.publish(0, partition=1)
    session = scene.connect(1)
    scene.received(session)
    scene.query().plan(max_rows=1)
    scene.now_us += 7_000_000
    reply = scene.handle(admin.StatsRequest(destination=QUEUE))
    stats = reply.destination
    assert (stats.depth_rows, stats.ready_rows, stats.assigned_rows, stats.enqueued_rows) == (4, 2, 2, 4)
    assert list(stats.ready_by_priority) == [1, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert (stats.oldest_age_ms, stats.consumers, stats.partitions) == (7000, 2, 2)
    assert stats.ready_bytes > 0
    broker = reply.broker
    assert (
        broker.published_rows,
        broker.delivered_rows,
        broker.sessions,
        broker.runs,
        broker.destinations,
    ) == (4, 1, 1, 1, 1)
    (row,) = scene.delivered[session]
    scene.acknowledge(session, (row.partition, row.offset, row.offset + 1))
    assert scene.handle(admin.StatsRequest()).broker.acknowledged_rows == 1


def test_consumers_are_listed_with_what_they_hold() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query("night")
    query.plan(max_rows=2)
    scene.now_us += 3_000_000
    (info,) = scene.handle(wire.ListConsumersRequest()).consumers
    assert (info.consumer, info.run, info.connected, info.unacknowledged_rows, info.read_rows) == (
        "night",
        1,
        True,
        2,
        0,
    )
    query.read({}, query.next, batch=("q1", 5))
    scene.close_run(query.run)
    again = query.copy(scene.run())
    again.open({}, query.next)
    (info,) = scene.handle(wire.ListConsumersRequest(destination=QUEUE)).consumers
    assert (info.read_rows, info.failed_attempts, info.query_id, info.batch_id) == (2, 1, "q1", 5)
    assert (info.oldest_unacknowledged_ms, dict(info.next.next), info.run) == (3000, {0: 2}, 2)
    assert info.pinned_bytes > 0
    again.acknowledge(query.next)
    (info,) = scene.handle(wire.ListConsumersRequest()).consumers
    assert (info.unacknowledged_rows, info.oldest_unacknowledged_ms, info.failed_attempts) == (0, 0, 0)
