"""What `latestOffset` gets: docs/rules.md, "Plans and delivery numbers"."""

from __future__ import annotations

import pytest

from mq_wire.errors import (
    DataLost,
    DestinationRecreated,
    IncarnationSuperseded,
    InvalidName,
    InvalidRequest,
    OffsetsUnknown,
    RunFenced,
    UnknownDestination,
    WrongBroker,
)
from mq_wire.v1 import subscribe_pb2 as wire
from mq_wire.v1.admin_pb2 import DeleteDestinationRequest
from mq_wire.v1.subscribe_pb2 import ReleaseConsumerRequest
from spark_tests.support.worlds import commands
from spark_tests.support.worlds.scenes import QUEUE, Scene


def test_with_nothing_ready_there_is_nothing_to_do_and_nobody_is_minted() -> None:
    scene = Scene()
    query = scene.query()
    assert query.plan().idle
    assert not scene.queue.consumers
    scene.publish(4)
    assert not query.plan().idle


def test_the_first_plan_mints_once_per_run_however_often_it_is_asked() -> None:
    scene = Scene()
    scene.publish(4, 4)
    query = scene.query()
    first, again = query.copy(), query.copy()
    first.plan()
    again.plan()
    assert first.incarnation == again.incarnation
    assert len(scene.queue.consumers) == 1
    other = scene.query()
    scene.publish(4)
    other.plan()
    assert other.incarnation != first.incarnation


def test_a_plan_that_nobody_read_is_cut_anew_under_fresh_numbers() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query()
    assert (query.plan(max_rows=2).rows, query.next) == (2, {0: 2})
    scene.publish(9)
    assert (query.plan(start={}, max_rows=3).rows, query.next) == (3, {0: 5})
    assert query.fetch(0, 2) == [], "numbers whose rows went back hold nothing"
    assert [(row.number, row.offset) for row in query.fetch(2, 5)] == [(2, 3), (3, 0), (4, 1)]
    assert query.open({}, {0: 2}) == [(0, 0, 2, 0)]


def test_a_plan_whose_reading_has_begun_keeps_its_boundary_whatever_the_limits_say_now() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query()
    query.plan(max_rows=2)
    query.read({}, {0: 2})
    scene.publish(9, 9, 9)
    again = query.copy(scene.run())
    assert (again.plan(start={}, max_rows=1, min_rows=6).rows, again.next) == (2, {0: 2})
    assert [row.offset for row in again.fetch(0, 2)] == [0, 1]


def test_also_where_numbers_of_an_unread_plan_lie_before_it() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query()
    query.plan(max_rows=1)
    query.plan(start={}, max_rows=2)
    query.read({0: 1}, {0: 3})
    again = query.copy(scene.run())
    again.plan(start={})
    assert again.next == {0: 3}
    assert [row.offset for row in again.read({}, {0: 3})] == [0, 1]


def test_asking_behind_a_boundary_acknowledges_everything_before_it() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query()
    query.plan(max_rows=2)
    query.read({}, {0: 2})
    assert query.plan(start={0: 2}).rows == 1
    assert scene.queue.assigned_rows() == 1
    assert query.acknowledge({0: 2}) == 0


def test_idle_also_acknowledges() -> None:
    scene = Scene()
    scene.publish(4)
    query = scene.query()
    query.plan()
    query.read({}, query.next)
    assert query.plan().idle
    assert scene.queue.assigned_rows() == 0


def test_the_last_acknowledged_plan_stays_readable_until_the_next_is_acknowledged() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query()
    query.plan(max_rows=1)
    assert [row.offset for row in query.read({}, {0: 1})] == [0]
    query.plan(max_rows=1)
    assert [row.offset for row in query.read({}, {0: 1})] == [0]
    query.plan(max_rows=1)
    with pytest.raises(DataLost):
        query.open({}, {0: 1})
    with pytest.raises(DataLost):
        query.fetch(0, 1)
    assert [row.offset for row in query.read({0: 1}, {0: 2})] == [1]
    assert query.plan(start={0: 1}).rows == 1
    assert [row.offset for row in query.read({0: 1}, query.next)] == [1], (
        "a checkpoint that lost its last batch gets it again, as it was"
    )


def test_minimum_rows_are_asked_of_what_is_ready() -> None:
    scene = Scene(2)
    scene.publish(4, 4, 4)
    scene.publish(4, 4, partition=1)
    query = scene.query()
    assert query.plan(min_rows=6).idle
    assert query.plan(min_rows=5, below={0: 3, 1: 1}).idle
    assert query.plan(min_rows=5, max_rows=2).rows == 2


def test_a_bounded_plan_serves_only_what_was_there() -> None:
    scene = Scene(2)
    scene.publish(4, 4)
    scene.publish(9, partition=1)
    query = scene.query()
    assert query.plan(below={0: 1}).rows == 1
    query.read({}, query.next)
    assert query.plan(below={0: 1}).idle
    assert scene.ready(0) == [1]
    assert scene.ready(1) == [0]


def test_the_highest_priorities_go_first_across_partitions() -> None:
    scene = Scene(3)
    scene.publish(4, 9, 4)
    scene.publish(9, 0, partition=1)
    scene.publish(4, 4, 4, partition=2)
    query = scene.query()
    query.plan(max_rows=4)
    rows = query.read({}, query.next)
    assert [(row.partition, row.offset) for row in rows] == [(0, 1), (0, 0), (1, 0), (2, 0)]


def test_the_limit_of_bytes_holds_also_for_rows_of_uneven_size() -> None:
    scene = Scene()
    for _ in range(10):
        scene.publish(4, size=10_000)
    for _ in range(30):
        scene.publish(4, 4, 4, 4)
    sizes = scene.destination.partitions[0].log.index().frames["size"].tolist()
    query = scene.query()
    planned = query.plan(max_bytes=25_000)
    assert planned.rows == 2
    assert sum(sizes[:2]) <= 25_000 < sum(sizes[:3])
    query.plan(max_bytes=1)
    assert query.next == {0: 3}, "one row at least"
    query.plan(max_bytes=1 << 30)
    assert query.next == {0: 130}


def test_small_rows_behind_a_large_one_count_one_by_one() -> None:
    scene = Scene()
    scene.publish(4, 4, 4, 4, 4, 4)
    scene.publish(4, size=1_000_000)
    size = int(scene.destination.partitions[0].log.index().frames["size"][0])
    assert scene.query().plan(max_bytes=size).rows == 6


def test_every_boundary_ever_given_stays_valid() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query()
    query.plan(max_rows=1)
    query.plan(start={}, max_rows=2)
    query.plan(start={}, max_rows=3)
    for boundary in ({0: 1}, {0: 3}, {0: 6}):
        assert query.open({}, boundary)
    query.plan(start={0: 3})
    assert query.plan(start={0: 3}).rows == 3, "of the plan before nothing was left to acknowledge"


def test_offsets_that_this_broker_never_gave_are_told_apart() -> None:
    scene = Scene(2)
    scene.publish(4, 4, 4)
    query = scene.query()
    query.plan(max_rows=2)
    with pytest.raises(OffsetsUnknown, match="restored from an older backup"):
        query.plan(start={0: 7})
    with pytest.raises(OffsetsUnknown):
        query.plan(start={0: 2, 1: 1})
    with pytest.raises(InvalidRequest, match="no boundary"):
        query.plan(start={0: 1})
    assert query.plan(start={0: 2, 1: 0}).rows == 1, "a partition at 0 is as good as none"
    stranger = query.copy()
    stranger.incarnation = b"s" * 16
    with pytest.raises(OffsetsUnknown, match="knows no consumer"):
        stranger.plan()


def test_offsets_of_another_broker_or_of_a_queue_made_anew_are_refused() -> None:
    scene = Scene()
    scene.publish(4)
    query = scene.query()
    query.plan()
    who = query.who
    who.cluster_id = b"other broker is "
    with pytest.raises(WrongBroker):
        scene.handle(wire.PlanRequest(who=who, start=commands.positions(query.next)))
    scene.handle(DeleteDestinationRequest(name=QUEUE))
    with pytest.raises(DestinationRecreated, match="does not exist any more"):
        query.plan()
    scene.sequences.clear()
    scene.publish(4)
    with pytest.raises(DestinationRecreated, match="created again"):
        query.plan()
    with pytest.raises(DestinationRecreated):
        query.fetch(0, 1)


def test_an_unknown_queue_is_created_only_where_that_is_wanted() -> None:
    scene = Scene()
    with pytest.raises(UnknownDestination):
        scene.handle(wire.PlanRequest(who=scene.query().who))
    assert not scene.broker.state.by_name


def test_a_lower_run_is_refused_and_told_which_run_replaced_it_also_after_a_restart() -> None:
    scene = Scene()
    scene.publish(4, 4)
    older = scene.query()
    older.plan(max_rows=1)
    newer = older.copy(scene.run())
    newer.acknowledge({})
    with pytest.raises(RunFenced, match="replaced by run 2"):
        older.plan(start={})
    scene.broker = scene.replayed()
    with pytest.raises(RunFenced, match="replaced by run 2"):
        older.plan(start={})
    with pytest.raises(RunFenced):
        older.acknowledge(older.next)
    with pytest.raises(RunFenced):
        older.open({}, older.next)


@pytest.mark.parametrize("run", [0, 99])
def test_a_run_that_was_never_given_is_refused(run: int) -> None:
    scene = Scene()
    scene.publish(4)
    query = scene.query()
    query.plan()
    wrong = query.copy()
    wrong.run = run
    for call in (
        wrong.plan,
        lambda: wrong.open({}, query.next),
        lambda: wrong.fetch(0, 1),
        lambda: wrong.acknowledge(query.next),
    ):
        with pytest.raises(InvalidRequest, match=f"run {run} was never given"):
            call()


def test_a_new_checkpoint_takes_a_named_consumer_over_and_its_rows_come_first() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    old = scene.query("night")
    old.plan(max_rows=2)
    old.read({}, old.next)
    new = scene.query("night")
    assert new.plan(max_rows=2).rows == 2
    assert [(row.offset, row.delivery_count) for row in new.read({}, new.next)] == [(0, 2), (1, 2)]
    with pytest.raises(IncarnationSuperseded, match=new.incarnation.hex()):
        old.plan()
    with pytest.raises(IncarnationSuperseded):
        old.fetch(0, 1)
    with pytest.raises(IncarnationSuperseded):
        old.copy(scene.run()).open({}, old.next)


def test_also_when_nothing_but_the_old_ones_rows_is_left() -> None:
    scene = Scene()
    scene.publish(4, 4)
    old = scene.query("night")
    old.plan()
    new = scene.query("night")
    assert new.plan().rows == 2
    assert [row.delivery_count for row in new.read({}, new.next)] == [1, 1], "never read, never failed"


def test_an_older_run_cannot_take_over() -> None:
    scene = Scene()
    scene.publish(4, 4)
    early = scene.query("night")
    scene.query("night").plan()
    with pytest.raises(RunFenced):
        early.plan()


def test_a_takeover_counts_each_reading_once() -> None:
    scene = Scene()
    scene.publish(4)
    old = scene.query("night")
    old.plan()
    old.read({}, old.next)
    again = old.copy(scene.run())
    again.open({}, old.next)
    new = scene.query("night")
    new.plan()
    assert [row.delivery_count for row in new.read({}, new.next)] == [2], "opened twice, but read once"


def test_a_name_and_its_checkpoint_belong_together() -> None:
    scene = Scene()
    scene.publish(4)
    query = scene.query("night")
    query.plan()
    query.name = "day"
    with pytest.raises(InvalidRequest, match="restore the option"):
        query.plan()
    with pytest.raises(InvalidName):
        scene.query("a/b").plan()


def test_a_released_consumer_is_over_and_its_rows_are_ready() -> None:
    scene = Scene()
    scene.publish(4, 4)
    query = scene.query()
    query.plan()
    reply = scene.handle(ReleaseConsumerRequest(destination=QUEUE, consumer=query.incarnation.hex()))
    assert (reply.returned_rows, reply.acknowledged_rows) == (2, 0)
    assert scene.ready() == [0, 1]
    with pytest.raises(IncarnationSuperseded, match="released by an operator"):
        query.plan()


@pytest.mark.parametrize("consumer", ["", "nobody"])
def test_a_release_names_exactly_one(consumer: str) -> None:
    scene = Scene()
    scene.publish(4)
    scene.query().plan()
    with pytest.raises((InvalidRequest, UnknownDestination)):
        scene.handle(ReleaseConsumerRequest(consumer=consumer))
    assert len(scene.queue.consumers) == 1


def test_lag_is_what_still_waits() -> None:
    scene = Scene()
    scene.publish(4, 4, 4)
    query = scene.query()
    query.plan(max_rows=1)
    scene.now_us += 5_000_000
    lag = query.plan(max_rows=1).lag
    assert (lag.rows, lag.oldest_age_ms) == (1, 5000)
    query.plan()
    query.read({0: 2}, query.next)
    assert query.plan().lag == wire.Lag(), "what is kept for a checkpoint is done nevertheless"
